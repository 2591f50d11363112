"""Times PyTorch on several cards, a process each: the peer of `benchmarks --suite cards --peer torch`, which starts it with torchrun.

With --serve, rank 0 reads requests, {"workload", "size", "mode", "precision", "calls"}, and answers each with the seconds that so many steps
took. Or with --once and such a request: it makes a step, and rank 0 says so by a line.

A step is forward, cross entropy, backward and an update by SGD with momentum 0.9; each card has its part of one batch of the size, which stays
there. The workload allreduce is ten all-reduces of size bytes instead, in the mode nccl. Only the last step is waited for. Modes, all of which
sum gradients by NCCL: ddp (DistributedDataParallel), ddp-compile (with torch.compile), ddp-graph (the whole step in one CUDA graph), zero1 (each
card has the optimizer's state of a part of the parameters). dp is torch.nn.DataParallel: the first process drives all cards, and the others wait.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from torch_nets import WORKLOADS
from torch_step import SGD, captured, in_stride, make_step, settle

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ROOM_FOR_ALL = 128e9  # bytes of a card that has room for the large network in all modes, and for ours beside them


def sums(size):
    """Ten all-reduces of so many bytes, in one CUDA graph."""
    x, side = torch.zeros(size // 4, device="cuda"), torch.cuda.Stream()

    def repeat():
        for _ in range(10):
            dist.all_reduce(x)

    return captured(repeat, side, 1, x)


def build(workload, size, mode, precision):
    if workload == "allreduce":
        return sums(size)
    settle(precision)
    network, shape, classes = WORKLOADS[workload]
    model, loss = network().cuda(), nn.CrossEntropyLoss()
    if mode == "dp":
        model, share = nn.DataParallel(model), size
    else:
        share = size // WORLD
    x, y = torch.randn(share, *shape).cuda(), torch.randint(0, classes, (share,)).cuda()
    graph = mode == "ddp-graph"
    side = torch.cuda.Stream() if graph else torch.cuda.current_stream()
    if mode != "dp":
        with torch.cuda.stream(side):
            model = DistributedDataParallel(
                model, device_ids=[RANK], gradient_as_bucket_view=True, static_graph=not graph
            )
    forward = torch.compile(model) if mode == "ddp-compile" else model
    if mode == "zero1":
        sgd = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.SGD, **SGD)
    else:
        sgd = torch.optim.SGD(model.parameters(), fused=True, **SGD)
    step = make_step(forward, loss, x, y, sgd, precision, graph)
    if not graph:
        return step
    # DDP rebuilds its buckets and wants some more steps before a capture.
    return captured(step, side, 11, (model, sgd, x, y))


prepare = in_stride(build)
current = None


def timed(workload, size, mode, precision, calls):
    global current
    alone = workload == "big" and torch.cuda.get_device_properties(0).total_memory < ROOM_FOR_ALL
    case = workload, size, precision, mode if alone else ""
    if current != case:  # what went before is not needed any more
        current = case
        prepare.cache_clear()
        torch._dynamo.reset()
        torch.cuda.empty_cache()
    if mode == "dp" and RANK > 0:
        return
    step = prepare(workload, size, mode, precision)
    torch.cuda.synchronize()
    if mode != "dp":
        dist.barrier()
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        step()
    torch.cuda.synchronize()
    return {"seconds": time.perf_counter() - start}


def serve():
    told = dist.new_group(backend="gloo")
    if RANK == 0:
        print(json.dumps({"version": torch.__version__}), flush=True)
    while True:
        line = [sys.stdin.readline() if RANK == 0 else None]
        dist.broadcast_object_list(line, group=told)
        if not line[0]:
            return
        answer = timed(**json.loads(line[0]))
        if RANK == 0:
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    torch.cuda.set_device(RANK)
    dist.init_process_group("nccl", device_id=torch.device("cuda", RANK))
    if sys.argv[1] == "--once":
        build(**json.loads(sys.argv[2]))()
        torch.cuda.synchronize()
        if RANK == 0:
            print("first step", flush=True)
    else:
        serve()
    dist.barrier()
    os._exit(0)  # graphs that hold NCCL's work make a proper end hang
