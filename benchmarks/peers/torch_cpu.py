"""Times PyTorch on the CPU: the peer of `go run ./benchmarks --suite host --peer torch`.

By itself it prints a JSON row a line, in the form of benchmarks/row.go:

    python3 torch_cpu.py --workload mlp,matmul --cores 2

With --serve, which is how that command starts it, it reads requests, {"workload", "size", "cores", "calls"}, and answers each with
the seconds that so many calls took. So its samples are taken in turn with those of the others.

A step is forward, cross entropy, backward and an update by plain SGD, on one batch that stays where it is.
"""

import argparse
import functools
import json
import statistics
import sys
import time

import torch
from torch import nn

from torch_nets import WORKLOADS


@functools.lru_cache(maxsize=1)
def prepare(workload, size):
    """The function to time; size is a batch, or that of square matrices."""
    torch.manual_seed(1)
    if workload == "matmul":
        a, b, c = torch.randn(size, size), torch.randn(size, size), torch.empty(size, size)
        return lambda: torch.mm(a, b, out=c)
    network, shape, classes = WORKLOADS[workload]
    model, loss = network(), nn.CrossEntropyLoss()
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(size, *shape), torch.randint(0, classes, (size,))

    def step():
        sgd.zero_grad()
        loss(model(x), y).backward()
        sgd.step()

    return step


def timed(workload, size, cores, calls):
    """Seconds of so many calls."""
    if torch.get_num_threads() != cores:
        torch.set_num_threads(cores)
    fn = prepare(workload, size)
    start = time.perf_counter()
    for _ in range(calls):
        fn()
    return time.perf_counter() - start


def serve():
    print(json.dumps({"version": torch.__version__}), flush=True)
    for line in sys.stdin:
        print(json.dumps({"seconds": timed(**json.loads(line))}), flush=True)


def median(workload, size, cores, runs, min_time):
    """Median seconds a call, of samples that take at least min_time each."""
    timed(workload, size, cores, 1)
    n = 1
    while (took := timed(workload, size, cores, n)) < min_time:
        n = max(n + 1, int(min(1.2 * n * min_time / max(took, 1e-9), 100 * n)))
    return statistics.median(timed(workload, size, cores, n) / n for _ in range(runs))


def rows(args):
    for workload, size in (("mlp", 64), ("mlp", 1024), ("cnn", 64), *(("matmul", n) for n in (256, 512, 1024, 2048))):
        if workload not in args.workload.split(","):
            continue
        product = workload == "matmul"
        for cores in sorted({1, args.cores}) if product else [args.cores]:
            seconds = median(workload, size, cores, args.runs, args.min_time)
            print(json.dumps({
                "suite": "host",
                "workload": f"matmul-{size}" if product else workload,
                "batch": None if product else size,
                "mode": "torch, 1 core" if cores == 1 else f"torch, {cores} cores",
                "metric": "speed" if product else "step",
                "value": 2 * size**3 / seconds / 1e9 if product else 1e3 * seconds,
                "unit": "GFLOP/s" if product else "ms",
                "peer": None,
                "ratio": None,
            }), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", action="store_true", help="answer requests on standard input")
    parser.add_argument("--workload", default="mlp,cnn,matmul")
    parser.add_argument("--cores", type=int, default=torch.get_num_threads())
    parser.add_argument("--runs", type=int, default=11)
    parser.add_argument("--min-time", type=float, default=0.1, help="seconds of a sample")
    arguments = parser.parse_args()
    if arguments.serve:
        serve()
    else:
        rows(arguments)
