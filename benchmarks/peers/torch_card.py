"""Times PyTorch on a card: the peer of `benchmarks --suite card --peer torch`.

That command starts it with --serve. It reads requests, {"workload", "size", "mode", "precision", "wait", "calls"}, and answers each
with the seconds that so many steps took. So its samples are taken in turn with ours. Or with --once and {"workload", "size", "mode",
"precision", "steps"}: it makes a step and says so by a line, {}, makes more steps, and says the peak of the card's memory in bytes.

A step is forward, cross entropy, backward and an update by SGD with momentum 0.9, on one batch that stays on the card. With wait, each
step is waited for; else only the last. Modes: eager, compile (torch.compile), graph (the whole step in one CUDA graph), last (images with
channels last), or some of these joined by +.
"""

import functools
import json
import sys
import time

import torch
from torch import nn

from torch_nets import WORKLOADS


@functools.cache
def prepare(workload, size, mode, precision):
    """The function that does one step, in its stride."""
    step = build(workload, size, mode, precision)
    for _ in range(3):
        step()
    return step


def build(workload, size, mode, precision):
    exact = precision == "fp32"
    torch.backends.cuda.matmul.allow_tf32 = not exact
    torch.backends.cudnn.allow_tf32 = not exact
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(1)
    network, shape, classes = WORKLOADS[workload]
    modes = mode.split("+")
    model, loss = network().cuda(), nn.CrossEntropyLoss()
    x, y = torch.randn(size, *shape).cuda(), torch.randint(0, classes, (size,)).cuda()
    if "last" in modes:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    sgd = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    forward = torch.compile(model) if "compile" in modes else model
    half = torch.autocast("cuda", dtype=torch.bfloat16, enabled=precision == "bf16", cache_enabled="graph" not in modes)

    def step():
        sgd.zero_grad(set_to_none=True)
        with half:
            value = loss(forward(x), y)
        value.backward()
        sgd.step()

    if "graph" not in modes:
        return step
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(5):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    # The graph's tensors live as long as the closure does.
    return lambda keep=(model, sgd, x, y): graph.replay()


current = None


def timed(workload, size, mode, precision, wait, calls):
    global current
    if current != (workload, size):  # what went before is not needed any more
        current = workload, size
        prepare.cache_clear()
        torch.cuda.empty_cache()
    step = prepare(workload, size, mode, precision)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        step()
        if wait:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return {"seconds": time.perf_counter() - start}


def start(workload, size, mode, precision, steps):
    step = build(workload, size, mode, precision)
    step()
    torch.cuda.synchronize()
    print("{}", flush=True)
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    print(json.dumps({"memory": torch.cuda.max_memory_allocated()}), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--once":
        start(**json.loads(sys.argv[2]))
        sys.exit()
    print(json.dumps({"version": torch.__version__}), flush=True)
    for line in sys.stdin:
        print(json.dumps(timed(**json.loads(line))), flush=True)
