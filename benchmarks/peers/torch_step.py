"""A training step of PyTorch on cards, and how it comes into its stride: what the peers there share."""

import functools

import torch

SGD = {"lr": 0.01, "momentum": 0.9}


def settle(precision):
    """Lets the libraries do what the precision allows, and begins with the same random numbers."""
    exact = precision == "fp32"
    torch.backends.cuda.matmul.allow_tf32 = not exact
    torch.backends.cudnn.allow_tf32 = not exact
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(1)


def make_step(forward, loss, x, y, sgd, precision, graph):
    """The function that does one step on a batch; graph says whether it is to be captured."""
    half = torch.autocast("cuda", dtype=torch.bfloat16, enabled=precision == "bf16", cache_enabled=not graph)

    def step():
        sgd.zero_grad(set_to_none=True)
        with half:
            value = loss(forward(x), y)
        value.backward()
        sgd.step()

    return step


def captured(step, side, runs, keep):
    """The step as one CUDA graph, which is captured in a stream after some runs there. What is to be kept lives as long as the function."""
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(runs):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        step()
    return lambda keep=keep: graph.replay()


def in_stride(build):
    """A function like build, which makes a step: the step has run some times, and is made once for the same arguments."""

    @functools.cache
    def prepare(*what):
        step = build(*what)
        for _ in range(3):
            step()
        return step

    return prepare
