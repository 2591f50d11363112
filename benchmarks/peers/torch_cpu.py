"""Times PyTorch on the CPU: the peer of `go run ./benchmarks --suite host --peer torch`, which runs this and reads its output.

By itself:  python3 torch_cpu.py --workload mlp,matmul --cores 2

Prints a JSON row a line, in the form of benchmarks/row.go. A step is forward, cross entropy, backward and an update by plain SGD, on
one batch that stays where it is.
"""

import argparse
import json
import statistics
import time

import torch
from torch import nn


def mlp():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10),
    )


def measure(fn, runs, min_time):
    """Median seconds a call, of samples that take at least min_time each."""

    def repeat(n):
        start = time.perf_counter()
        for _ in range(n):
            fn()
        return time.perf_counter() - start

    repeat(1)
    n = 1
    while (took := repeat(n)) < min_time:
        n = max(n + 1, int(min(1.2 * n * min_time / max(took, 1e-9), 100 * n)))
    return statistics.median(repeat(n) / n for _ in range(runs))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", default="host", choices=["host"])
    parser.add_argument("--workload", default="mlp,cnn,matmul", help="others are passed over")
    parser.add_argument("--cores", type=int, default=torch.get_num_threads())
    parser.add_argument("--runs", type=int, default=11)
    parser.add_argument("--min-time", type=float, default=0.1, help="seconds of a sample")
    args = parser.parse_args()
    wanted = args.workload.split(",")

    def emit(workload, batch, cores, metric, value, unit):
        mode = "torch, 1 core" if cores == 1 else f"torch, {cores} cores"
        print(json.dumps({
            "suite": args.suite, "workload": workload, "batch": batch, "mode": mode, "metric": metric,
            "value": value, "unit": unit, "peer": None, "ratio": None,
        }), flush=True)

    torch.manual_seed(1)
    torch.set_num_threads(args.cores)
    for name, build, batch in (("mlp", mlp, 64), ("mlp", mlp, 1024), ("cnn", cnn, 64)):
        if name not in wanted:
            continue
        model, loss = build(), nn.CrossEntropyLoss()
        sgd = torch.optim.SGD(model.parameters(), lr=0.01)
        x, y = torch.randn(batch, 1, 28, 28), torch.randint(0, 10, (batch,))

        def step():
            sgd.zero_grad()
            loss(model(x), y).backward()
            sgd.step()

        emit(name, batch, args.cores, "step", 1e3 * measure(step, args.runs, args.min_time), "ms")

    if "matmul" in wanted:
        for n in (256, 512, 1024, 2048):
            for cores in sorted({1, args.cores}):
                torch.set_num_threads(cores)
                a, b, c = torch.randn(n, n), torch.randn(n, n), torch.empty(n, n)
                seconds = measure(lambda: torch.mm(a, b, out=c), args.runs, args.min_time)
                emit(f"matmul-{n}", None, cores, "speed", 2 * n**3 / seconds / 1e9, "GFLOP/s")


if __name__ == "__main__":
    main()
