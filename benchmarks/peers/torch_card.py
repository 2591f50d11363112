"""Times PyTorch on a card: the peer of `benchmarks --suite card --peer torch`.

That command starts it with --serve. It reads requests, {"workload", "size", "mode", "precision", "wait", "calls"}, and answers each
with the seconds that so many steps took. So its samples are taken in turn with ours. Or with --once and {"workload", "size", "mode",
"precision", "steps"}: it makes a step and says so by a line, {}, makes more steps, and says the peak of the card's memory in bytes.

A step is forward, cross entropy, backward and an update by SGD with momentum 0.9, on one batch that stays on the card. With wait, each
step is waited for; else only the last. Modes: eager, compile (torch.compile), graph (the whole step in one CUDA graph), last (images with
channels last), or some of these joined by +.
"""

import json
import sys
import time

import torch
from torch import nn

from torch_nets import WORKLOADS
from torch_step import SGD, captured, in_stride, make_step, settle


def build(workload, size, mode, precision):
    settle(precision)
    network, shape, classes = WORKLOADS[workload]
    modes = mode.split("+")
    model, loss = network().cuda(), nn.CrossEntropyLoss()
    x, y = torch.randn(size, *shape).cuda(), torch.randint(0, classes, (size,)).cuda()
    if "last" in modes:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    sgd = torch.optim.SGD(model.parameters(), fused=True, **SGD)
    forward = torch.compile(model) if "compile" in modes else model
    graph = "graph" in modes
    step = make_step(forward, loss, x, y, sgd, precision, graph)
    if not graph:
        return step
    return captured(step, torch.cuda.Stream(), 5, (model, sgd, x, y))


prepare = in_stride(build)
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
