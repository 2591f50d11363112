#!/usr/bin/env python3
"""Writes PyTorch's numbers for nn's layers, losses, optimizers and training.

    python3 make_fixtures.py OUTDIR [MNIST_DIR]

README.md beside this file describes what is written. Every case is seeded by
its own name, so adding one changes no other. Inputs are drawn in float32; the
result is computed from them in float32 and in float64, and the float64 result
is what is stored, rounded once to float32. How far PyTorch's own float32 falls
from it is in the case's metadata ("float32_error").
"""

import copy
import gzip
import json
import math
import os
import platform
import struct
import sys
import zlib

import numpy as np
import torch
from safetensors import safe_open
from torch import nn

SIZE_LIMIT = 1_500_000  # bytes, all files together

DTYPE_NAMES = {torch.int64: "I64", torch.float32: "F32", torch.uint8: "U8"}
# Descending alignment, so that every tensor starts at a multiple of its size.
DTYPE_ORDER = ["I64", "F32", "U8"]


# --- Cases and files ---------------------------------------------------------


class File:
    """One safetensors file: tensors "case/role" and a JSON string per case."""

    def __init__(self, name):
        self.name = name
        self.tensors = {}
        self.cases = {}
        self.worst = (0.0, "")

    def add(self, case, op, args, tensors, **extra):
        """Stores ready tensors (float64 ones are rounded to float32)."""
        if case in self.cases or "/" in case:
            raise ValueError(f"{self.name}: case {case!r}: used twice, or has a slash")
        stored = {}
        for role, t in tensors.items():
            t = t.detach().clone().contiguous()
            if t.dtype == torch.float64:
                t = t.float()
            if t.is_floating_point() and not torch.isfinite(t).all():
                raise ValueError(f"{self.name}: {case}/{role}: has values that are not finite")
            stored[role] = t
        for role, t in stored.items():
            self.tensors[f"{case}/{role}"] = t
        self.cases[case] = {
            "op": op,
            "args": args,
            "shapes": {role: list(t.shape) for role, t in stored.items()},
            **extra,
        }

    def compute(self, case, op, args, inputs, fn, **extra):
        """Stores inputs and fn's results.

        fn(tensors, dtype) gets the inputs with floats cast to dtype and returns
        {role: tensor}; it must not change the inputs.
        """
        results = {}
        for dtype in (torch.float32, torch.float64):
            cast = {role: t.detach().clone() for role, t in inputs.items()}
            cast = {role: t.to(dtype) if t.is_floating_point() else t for role, t in cast.items()}
            results[dtype] = {role: t.detach() for role, t in fn(cast, dtype).items()}
        exact, rounded = results[torch.float64], results[torch.float32]
        error = 0.0
        for role, want in exact.items():
            if want.is_floating_point():
                if want.dtype != torch.float64:
                    raise TypeError(f"{self.name}: {case}/{role}: was not computed in float64")
                diff = (rounded[role].double() - want).abs() / want.abs().clamp(min=1)
                error = max(error, diff.max().item())
            elif not torch.equal(rounded[role], want):
                raise ValueError(f"{self.name}: {case}/{role}: integers differ between dtypes")
        self.worst = max(self.worst, (error, case))
        both = set(inputs) & set(exact)
        if both:
            raise ValueError(f"{self.name}: {case}: roles that are both input and result: {both}")
        self.add(
            case, op, args, {**inputs, **exact}, **extra, float32_error=float(f"{error:.1e}")
        )

    def save(self, folder, about):
        """Writes the file. Done here, not by the safetensors library, because that
        may order the metadata differently from run to run."""
        metadata = {"_about": json.dumps(about, sort_keys=True)}
        for case, text in self.cases.items():
            metadata[case] = json.dumps(text, allow_nan=False)
        order = sorted(
            self.tensors,
            key=lambda name: (DTYPE_ORDER.index(DTYPE_NAMES[self.tensors[name].dtype]), name),
        )
        header, chunks, offset = {"__metadata__": metadata}, [], 0
        for name in order:
            t = self.tensors[name]
            array = t.numpy()
            data = array.astype(array.dtype.newbyteorder("<")).tobytes()
            header[name] = {
                "dtype": DTYPE_NAMES[t.dtype],
                "shape": list(t.shape),
                "data_offsets": [offset, offset + len(data)],
            }
            offset += len(data)
            chunks.append(data)
        head = json.dumps(header, separators=(",", ":")).encode()
        head += b" " * (-len(head) % 8)
        path = os.path.join(folder, self.name)
        with open(path, "wb") as out:
            out.write(struct.pack("<Q", len(head)) + head + b"".join(chunks))
        return path

    def check(self, path):
        """Reads the file back with the safetensors library and compares all of it."""
        with safe_open(path, framework="pt") as f:
            metadata, names = f.metadata(), set(f.keys())
            if names != set(self.tensors):
                raise ValueError(f"{path}: tensor names differ after reading back")
            for name, want in self.tensors.items():
                got = f.get_tensor(name)
                if got.dtype != want.dtype or not torch.equal(got, want):
                    raise ValueError(f"{path}: {name}: differs after reading back")
        if set(metadata) != set(self.cases) | {"_about"}:
            raise ValueError(f"{path}: cases differ after reading back")
        for case in self.cases:
            for role, shape in json.loads(metadata[case])["shapes"].items():
                if list(self.tensors[f"{case}/{role}"].shape) != shape:
                    raise ValueError(f"{path}: {case}/{role}: shape differs from its metadata")


def seed(case):
    torch.manual_seed(zlib.crc32(case.encode()))


# --- Modules -----------------------------------------------------------------


class Residual(nn.Sequential):
    """x + f(x), f the modules in turn; parameters are named as in Sequential."""

    def forward(self, x):
        return x + super().forward(x)


def build(op, args):
    """Makes the module that a case's "op" and "args" describe."""
    if op in ("Sequential", "Residual"):
        cls = nn.Sequential if op == "Sequential" else Residual
        return cls(*[build(*m) for m in args["modules"]])
    return getattr(nn, op)(**args)


def randomize_norms(module):
    """Gives normalization layers weights and statistics other than 1 and 0."""
    for m in module.modules():
        if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm)):
            with torch.no_grad():
                if m.weight is not None:
                    m.weight.copy_(torch.rand_like(m.weight) + 0.5)
                    m.bias.copy_(torch.randn_like(m.bias) * 0.5)
                if getattr(m, "running_mean", None) is not None:
                    m.running_mean.copy_(torch.randn_like(m.running_mean) * 0.3)
                    m.running_var.copy_(torch.rand_like(m.running_var) + 0.5)


# --- layers.safetensors ------------------------------------------------------


def layer(f, case, op, args, shape, train=True, steps=1, draw=None):
    """One forward and backward of a module on an input of the given shape.

    steps > 1 adds forwards on further inputs (in.x.2, ...), for running
    statistics; out and the gradients are those of the first.
    """
    seed(case)
    module = build(op, args)
    randomize_norms(module)
    module.train(train)

    draw = draw or torch.randn
    inputs = {"in.x": draw(*shape)}
    for step in range(2, steps + 1):
        # Each batch has its own mean and spread, so that the statistics move.
        inputs[f"in.x.{step}"] = draw(*shape) * (0.5 + step) + 0.25 * step
    with torch.no_grad():
        out = copy.deepcopy(module)(inputs["in.x"])
    inputs["gout"] = torch.randn(*out.shape)
    for name, p in module.named_parameters():
        inputs[f"param.{name}"] = p.detach().clone()
    for name, b in module.named_buffers():
        inputs[f"buf.before.{name}"] = b.detach().clone()

    def run(t, dtype):
        m = copy.deepcopy(module).to(dtype)
        x = t["in.x"]
        if x.is_floating_point():
            x.requires_grad_(True)
        y = m(x)
        y.backward(t["gout"])
        result = {"out": y}
        if x.is_floating_point():
            result["grad.x"] = x.grad
        for name, p in m.named_parameters():
            result[f"grad.{name}"] = p.grad
        with torch.no_grad():
            for step in range(2, steps + 1):
                m(t[f"in.x.{step}"])
        for name, b in m.named_buffers():
            result[f"buf.after.{name}"] = b
        return result

    f.compute(case, op, args, inputs, run, mode="train" if train else "eval", steps=steps)


def wide(*shape):
    """Inputs that reach where sigmoid, tanh and the like are flat."""
    return torch.randn(*shape) * 3


def with_zero(*shape):
    x = torch.randn(*shape)
    x.view(-1)[0] = 0
    return x


def spread(*shape):
    """Inputs whose mean is not zero, so that a layer must subtract it."""
    return torch.randn(*shape) * 1.5 + 0.7


def make_layers():
    f = File("layers.safetensors")

    layer(f, "linear", "Linear", dict(in_features=7, out_features=5), (3, 7))
    layer(f, "linear_nobias", "Linear", dict(in_features=7, out_features=5, bias=False), (3, 7))
    layer(f, "linear_3d", "Linear", dict(in_features=5, out_features=3), (2, 4, 5))
    layer(f, "linear_3d_nobias", "Linear", dict(in_features=5, out_features=3, bias=False),
          (2, 4, 5))
    layer(f, "linear_batch1", "Linear", dict(in_features=9, out_features=1), (1, 9))

    def conv(case, cin, cout, kernel, shape, **more):
        args = dict(in_channels=cin, out_channels=cout, kernel_size=kernel, **more)
        layer(f, case, "Conv2d", args, shape)

    conv("conv2d", 3, 4, 3, (2, 3, 7, 9))
    conv("conv2d_batch1", 2, 3, 5, (1, 2, 8, 5))
    conv("conv2d_nobias", 3, 5, 3, (2, 3, 5, 6), bias=False)
    conv("conv2d_1x1", 5, 3, 1, (2, 5, 4, 3))
    conv("conv2d_1x1_stride", 3, 4, 1, (2, 3, 5, 7), stride=2)
    conv("conv2d_stride", 3, 4, 3, (2, 3, 8, 9), stride=2)
    conv("conv2d_stride_pair", 2, 3, 3, (2, 2, 8, 11), stride=(2, 3))
    conv("conv2d_padding", 2, 3, 3, (2, 2, 5, 7), padding=1)
    conv("conv2d_padding_pair", 2, 3, (3, 5), (2, 2, 5, 7), padding=(1, 2))
    conv("conv2d_dilation", 2, 3, 3, (2, 2, 9, 8), dilation=2)
    conv("conv2d_dilation_pair", 2, 3, 3, (2, 2, 7, 9), dilation=(1, 3))
    conv("conv2d_groups", 4, 6, 3, (2, 4, 5, 6), groups=2)
    conv("conv2d_depthwise", 3, 3, 3, (2, 3, 6, 5), padding=1, groups=3)
    conv("conv2d_depthwise_multiplier", 3, 6, 3, (2, 3, 6, 5), padding=1, groups=3)
    conv("conv2d_kernel_3x5", 2, 3, (3, 5), (2, 2, 6, 9))
    conv("conv2d_kernel_1x4", 2, 3, (1, 4), (2, 2, 3, 7))
    conv("conv2d_kernel_4x1", 2, 3, (4, 1), (2, 2, 7, 3))
    conv("conv2d_all", 4, 6, (3, 2), (2, 4, 11, 7), stride=(2, 1), padding=(1, 2),
         dilation=(2, 3), groups=2)
    # The last row and column of the padded input are reached by no window.
    conv("conv2d_unused_edge", 2, 2, 2, (1, 2, 5, 7), stride=2)

    def maxpool(case, shape, **args):
        layer(f, case, "MaxPool2d", args, shape)

    maxpool("maxpool2d", (2, 3, 6, 8), kernel_size=2)
    maxpool("maxpool2d_floor", (2, 3, 7, 9), kernel_size=2, ceil_mode=False)
    maxpool("maxpool2d_stride", (2, 2, 7, 9), kernel_size=3, stride=2)
    maxpool("maxpool2d_overlap", (2, 2, 5, 6), kernel_size=3, stride=1)
    maxpool("maxpool2d_pair", (2, 2, 7, 9), kernel_size=(2, 3), stride=(1, 2))
    maxpool("maxpool2d_padding", (2, 2, 7, 9), kernel_size=3, stride=2, padding=1)
    maxpool("maxpool2d_dilation", (2, 2, 8, 9), kernel_size=2, stride=1, dilation=2)
    maxpool("maxpool2d_all", (2, 2, 9, 11), kernel_size=(3, 2), stride=(2, 3), padding=(1, 1),
            dilation=(2, 3))

    def avgpool(case, shape, **args):
        layer(f, case, "AvgPool2d", args, shape)

    avgpool("avgpool2d", (2, 3, 6, 8), kernel_size=2)
    avgpool("avgpool2d_floor", (2, 2, 7, 9), kernel_size=(2, 4))
    avgpool("avgpool2d_stride", (2, 2, 7, 9), kernel_size=3, stride=2)
    avgpool("avgpool2d_padding", (2, 2, 7, 9), kernel_size=3, stride=2, padding=1,
            count_include_pad=True)
    avgpool("avgpool2d_padding_excluded", (2, 2, 7, 9), kernel_size=3, stride=2, padding=1,
            count_include_pad=False)
    avgpool("avgpool2d_pair", (2, 2, 6, 9), kernel_size=(2, 3), stride=(1, 2), padding=(1, 0))
    avgpool("avgpool2d_pair_excluded", (2, 2, 6, 9), kernel_size=(3, 4), stride=(2, 3),
            padding=(1, 2), count_include_pad=False)

    def adaptive(case, shape, size):
        layer(f, case, "AdaptiveAvgPool2d", dict(output_size=size), shape)

    adaptive("adaptiveavgpool2d_1", (2, 3, 5, 7), 1)
    adaptive("adaptiveavgpool2d_dividing", (2, 2, 6, 9), (2, 3))
    adaptive("adaptiveavgpool2d_nondividing", (2, 2, 7, 10), (3, 4))
    adaptive("adaptiveavgpool2d_row", (2, 2, 5, 7), (1, 5))
    adaptive("adaptiveavgpool2d_same", (1, 2, 3, 5), (3, 5))
    adaptive("adaptiveavgpool2d_larger", (1, 2, 3, 5), (4, 7))

    def batchnorm(case, op, shape, train=True, **args):
        args = dict(num_features=shape[1], **args)
        layer(f, case, op, args, shape, train=train, steps=3 if train else 1, draw=spread)

    batchnorm("batchnorm1d_train", "BatchNorm1d", (6, 5))
    batchnorm("batchnorm1d_3d_train", "BatchNorm1d", (3, 4, 7))
    batchnorm("batchnorm2d_train", "BatchNorm2d", (3, 4, 5, 3))
    batchnorm("batchnorm1d_eval", "BatchNorm1d", (6, 5), train=False)
    batchnorm("batchnorm1d_3d_eval", "BatchNorm1d", (3, 4, 7), train=False)
    batchnorm("batchnorm2d_eval", "BatchNorm2d", (3, 4, 5, 3), train=False)
    batchnorm("batchnorm2d_momentum", "BatchNorm2d", (3, 2, 3, 5), momentum=0.3)
    # momentum None: the plain mean over all batches so far.
    batchnorm("batchnorm2d_cumulative", "BatchNorm2d", (3, 2, 3, 5), momentum=None)
    batchnorm("batchnorm1d_momentum_one", "BatchNorm1d", (5, 3), momentum=1.0)
    batchnorm("batchnorm2d_eps", "BatchNorm2d", (3, 2, 3, 5), eps=0.01)
    batchnorm("batchnorm2d_noaffine_train", "BatchNorm2d", (3, 2, 3, 5), affine=False)
    batchnorm("batchnorm2d_noaffine_eval", "BatchNorm2d", (3, 2, 3, 5), train=False, affine=False)
    batchnorm("batchnorm1d_noaffine_train", "BatchNorm1d", (7, 3), affine=False)

    def layernorm(case, shape, normalized, **args):
        layer(f, case, "LayerNorm", dict(normalized_shape=normalized, **args), shape, draw=spread)

    layernorm("layernorm", (4, 7), [7])
    layernorm("layernorm_3d", (2, 3, 5), [5])
    layernorm("layernorm_two_dims", (3, 4, 6), [4, 6])
    layernorm("layernorm_eps", (4, 7), [7], eps=0.01)
    layernorm("layernorm_eps_small", (4, 7), [7], eps=1e-12)
    layernorm("layernorm_noaffine", (3, 5), [5], elementwise_affine=False)
    layernorm("layernorm_two_dims_noaffine", (2, 3, 5), [3, 5], elementwise_affine=False)

    layer(f, "embedding", "Embedding", dict(num_embeddings=7, embedding_dim=5), (3, 4),
          draw=lambda *shape: torch.tensor([[0, 3, 3, 6], [1, 3, 0, 2], [6, 6, 6, 1]]))
    layer(f, "embedding_1d", "Embedding", dict(num_embeddings=4, embedding_dim=3), (5,),
          draw=lambda *shape: torch.tensor([2, 2, 0, 3, 2]))
    layer(f, "embedding_padding_idx", "Embedding",
          dict(num_embeddings=6, embedding_dim=3, padding_idx=2), (2, 4),
          draw=lambda *shape: torch.tensor([[0, 2, 5, 5], [2, 1, 2, 0]]))

    # relu has one input that is exactly 0: its gradient there is 0.
    layer(f, "relu", "ReLU", {}, (3, 7), draw=with_zero)
    layer(f, "gelu", "GELU", {}, (4, 9), draw=wide)
    layer(f, "gelu_tanh", "GELU", dict(approximate="tanh"), (4, 9), draw=wide)
    layer(f, "silu", "SiLU", {}, (4, 9), draw=wide)
    layer(f, "sigmoid", "Sigmoid", {}, (4, 9), draw=wide)
    layer(f, "tanh", "Tanh", {}, (4, 9), draw=wide)
    for op in ("Softmax", "LogSoftmax"):
        name = op.lower()
        layer(f, name, op, dict(dim=-1), (3, 7), draw=wide)
        layer(f, f"{name}_3d_last", op, dict(dim=-1), (2, 3, 5), draw=wide)
        layer(f, f"{name}_3d_dim1", op, dict(dim=1), (2, 5, 3), draw=wide)
        layer(f, f"{name}_4d_dim1", op, dict(dim=1), (2, 3, 2, 5), draw=wide)
    layer(f, "flatten", "Flatten", {}, (2, 3, 4, 5))
    layer(f, "flatten_range", "Flatten", dict(start_dim=1, end_dim=2), (2, 3, 4, 5))
    layer(f, "flatten_all", "Flatten", dict(start_dim=0), (2, 3, 4))

    def linear(n, m):
        return ["Linear", dict(in_features=n, out_features=m)]

    mlp = [linear(6, 9), ["ReLU", {}], linear(9, 4)]
    layer(f, "sequential", "Sequential", dict(modules=mlp), (5, 6))
    nested = [linear(5, 6), ["Sequential", dict(modules=[["Tanh", {}], linear(6, 7)])],
              ["GELU", {}], linear(7, 3)]
    layer(f, "sequential_nested", "Sequential", dict(modules=nested), (4, 5))
    cnn = [
        ["Conv2d", dict(in_channels=2, out_channels=3, kernel_size=3, padding=1, bias=False)],
        ["BatchNorm2d", dict(num_features=3)],
        ["ReLU", {}],
        ["MaxPool2d", dict(kernel_size=2)],
        ["Flatten", {}],
        linear(18, 4),
    ]
    layer(f, "sequential_cnn_train", "Sequential", dict(modules=cnn), (3, 2, 5, 6))
    layer(f, "sequential_cnn_eval", "Sequential", dict(modules=cnn), (3, 2, 5, 6), train=False)
    branch = [linear(5, 8), ["SiLU", {}], linear(8, 5)]
    layer(f, "residual", "Residual", dict(modules=branch), (4, 5))
    inside = [linear(4, 5), ["Residual", dict(modules=branch)], linear(5, 3)]
    layer(f, "sequential_residual", "Sequential", dict(modules=inside), (3, 4))

    make_initial(f)
    return f


def make_initial(f):
    """What PyTorch's default initialization draws: the rule, and one draw's moments."""

    def initial(case, op, args, rules):
        seed(case)
        tensors = {}
        for name, p in build(op, args).state_dict().items():
            v, rule = p.double().reshape(-1), rules[name]
            mean, std = v.mean().item(), v.std(unbiased=False).item() if v.numel() > 1 else 0.0
            low, high = v.min().item(), v.max().item()
            if rule["dist"] == "constant":
                ok = low == high == rule["value"]
            else:
                bound = rule.get("bound", math.inf)
                want = rule["std"] if rule["dist"] == "normal" else bound / math.sqrt(3)
                # Six standard errors; the spread's is at most std/sqrt(2n).
                slack = 6 * want / math.sqrt(v.numel())
                # A bound itself may be rounded up to float32.
                ok = -bound * (1 + 1e-6) <= low and high <= bound * (1 + 1e-6)
                ok = ok and abs(mean) <= slack and abs(std - want) <= slack
            if not ok:
                raise ValueError(f"{f.name}: {case}: {name} is not {rule}: mean {mean}, std {std}, "
                                 f"min {low}, max {high}")
            tensors[f"stats.{name}"] = torch.tensor([mean, std, low, high], dtype=torch.float64)
        f.add(case, op, args, tensors, init=rules, stats=["mean", "std", "min", "max"])

    def uniform(fan_in):
        return {"dist": "uniform", "bound": 1 / math.sqrt(fan_in)}

    def constant(value):
        return {"dist": "constant", "value": value}

    initial("init_linear", "Linear", dict(in_features=300, out_features=200),
            {"weight": uniform(300), "bias": uniform(300)})
    initial("init_conv2d", "Conv2d", dict(in_channels=16, out_channels=32, kernel_size=3),
            {"weight": uniform(16 * 9), "bias": uniform(16 * 9)})
    initial("init_conv2d_groups", "Conv2d",
            dict(in_channels=16, out_channels=32, kernel_size=(3, 5), groups=4),
            {"weight": uniform(4 * 15), "bias": uniform(4 * 15)})
    initial("init_embedding", "Embedding", dict(num_embeddings=1000, embedding_dim=64),
            {"weight": {"dist": "normal", "mean": 0.0, "std": 1.0}})
    norm = {"weight": constant(1), "bias": constant(0)}
    stats = {"running_mean": constant(0), "running_var": constant(1),
             "num_batches_tracked": constant(0)}
    initial("init_batchnorm1d", "BatchNorm1d", dict(num_features=17), {**norm, **stats})
    initial("init_batchnorm2d", "BatchNorm2d", dict(num_features=17), {**norm, **stats})
    initial("init_layernorm", "LayerNorm", dict(normalized_shape=[5, 7]), norm)


# --- losses.safetensors ------------------------------------------------------


def make_losses():
    f = File("losses.safetensors")

    def loss(case, op, args, draw):
        """draw() gives the inputs: logits, target and, where used, weight or pos_weight."""
        seed(case)
        inputs = draw()

        def run(t, dtype):
            weights = {k: t[k] for k in ("weight", "pos_weight") if k in t}
            x = t["logits"].requires_grad_(True)
            value = getattr(nn, op)(**args, **weights)(x, t["target"])
            value.backward()
            return {"loss": value, "grad": x.grad}

        f.compute(case, op, args, inputs, run)

    def classes(scale=1.0, ignored=None, weight=False, log=False, rows=7, n=5):
        def draw():
            x = torch.randn(rows, n) * 1.5 * scale
            if log:
                x = torch.log_softmax(x, dim=1)
            target = torch.randint(n, (rows,))
            # Every class occurs, and the first target is never an ignored one.
            target[:n] = torch.randperm(n)[:rows]
            if ignored is not None:
                target[target == ignored] = (ignored + 1) % n if ignored >= 0 else 0
                target[2], target[rows - 1] = ignored, ignored
            t = {"logits": x, "target": target}
            if weight:
                t["weight"] = torch.rand(n) * 2 + 0.25
            return t

        return draw

    def both(case, op, draw, **args):
        loss(case, op, args, draw)
        loss(f"{case}_sum", op, dict(args, reduction="sum"), draw)

    def ce(case, draw, **args):
        both(case, "CrossEntropyLoss", draw, **args)

    def nll(case, draw, **args):
        both(case, "NLLLoss", draw, **args)

    ce("cross_entropy", classes())
    ce("cross_entropy_smoothing", classes(), label_smoothing=0.1)
    ce("cross_entropy_ignore", classes(ignored=1), ignore_index=1)
    ce("cross_entropy_weight", classes(weight=True))
    ce("cross_entropy_weight_smoothing", classes(weight=True), label_smoothing=0.2)
    ce("cross_entropy_smoothing_ignore", classes(ignored=3), label_smoothing=0.2, ignore_index=3)
    ce("cross_entropy_weight_ignore", classes(ignored=2, weight=True), ignore_index=2)
    ce("cross_entropy_all", classes(ignored=-100, weight=True), label_smoothing=0.3)
    nll("nll", classes(log=True))
    nll("nll_weight", classes(log=True, weight=True))
    nll("nll_ignore", classes(log=True, ignored=3), ignore_index=3)
    nll("nll_weight_ignore", classes(log=True, ignored=-100, weight=True))
    # -100 is the ignored label without being asked for.
    loss("cross_entropy_ignore_default", "CrossEntropyLoss", {}, classes(ignored=-100))
    # exp of these logits overflows float32.
    loss("cross_entropy_large", "CrossEntropyLoss", {}, classes(scale=100.0))
    loss("cross_entropy_batch1", "CrossEntropyLoss", {}, classes(rows=1))

    def pairs():
        t = {"logits": torch.randn(4, 7), "target": torch.randn(4, 7)}
        t["target"][0, 0] = t["logits"][0, 0]  # L1's gradient at 0 is 0
        return t

    def bits(pos_weight=False, scale=1.0, soft=False):
        def draw():
            x = torch.randn(5, 3) * 2 * scale
            target = torch.rand(5, 3)
            t = {"logits": x, "target": target if soft else target.round()}
            if pos_weight:
                t["pos_weight"] = torch.rand(3) * 3 + 0.5
            return t

        return draw

    both("mse", "MSELoss", pairs)
    both("l1", "L1Loss", pairs)
    both("bce_logits", "BCEWithLogitsLoss", bits())
    both("bce_logits_pos_weight", "BCEWithLogitsLoss", bits(pos_weight=True))
    loss("bce_logits_soft", "BCEWithLogitsLoss", {}, bits(soft=True))
    loss("bce_logits_large", "BCEWithLogitsLoss", {}, bits(scale=50.0))
    return f


# --- optim.safetensors -------------------------------------------------------

OPTIM_SHAPES = {"a": (3, 5), "b": (7,)}
OPTIM_STEPS = 6
SCHEDULE_STEPS = 30


def optimizer_run(f, case, op, args):
    seed(case)
    inputs = {}
    for name, shape in OPTIM_SHAPES.items():
        inputs[f"init.{name}"] = torch.randn(*shape)
        inputs[f"grad.{name}"] = torch.randn(OPTIM_STEPS, *shape)

    def run(t, dtype):
        params = {n: nn.Parameter(t[f"init.{n}"].clone()) for n in OPTIM_SHAPES}
        optimizer = getattr(torch.optim, op)(list(params.values()), **args)
        after = {n: [] for n in OPTIM_SHAPES}
        for step in range(OPTIM_STEPS):
            for n, p in params.items():
                p.grad = t[f"grad.{n}"][step].clone()
            optimizer.step()
            for n, p in params.items():
                after[n].append(p.detach().clone())
        return {f"after.{n}": torch.stack(v) for n, v in after.items()}

    f.compute(case, op, args, inputs, run)


def warmup_cosine(step, warmup, total):
    """Factor of LambdaLR: linear up to 1 over warmup steps, then half a cosine to 0."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))


def schedule(f, case, op, args, base_lr=0.1, momentum=False):
    """The rate that step 0, 1, ... of the optimizer uses."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=base_lr, momentum=0.9)
    if op == "LambdaLR":
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: warmup_cosine(step, args["warmup"], args["total"]))
    else:
        scheduler = getattr(torch.optim.lr_scheduler, op)(optimizer, **args)
    rates, momenta = [], []
    for step in range(SCHEDULE_STEPS):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        momenta.append(float(optimizer.param_groups[0]["momentum"]))
        optimizer.step()
        if step + 1 < SCHEDULE_STEPS:
            scheduler.step()
    tensors = {"lr": torch.tensor(rates, dtype=torch.float64)}
    if momentum:
        tensors["momentum"] = torch.tensor(momenta, dtype=torch.float64)
    f.add(case, op, args, tensors, base_lr=base_lr)


def clip(f, case, op, args, scale=1.0):
    seed(case)
    inputs = {f"grad.{n}": torch.randn(*shape) * scale for n, shape in OPTIM_SHAPES.items()}

    def run(t, dtype):
        params = {n: nn.Parameter(torch.zeros_like(t[f"grad.{n}"])) for n in OPTIM_SHAPES}
        for n, p in params.items():
            p.grad = t[f"grad.{n}"].clone()
        total = getattr(nn.utils, op)(list(params.values()), **args)
        result = {f"clipped.{n}": p.grad for n, p in params.items()}
        if op == "clip_grad_norm_":
            result["total_norm"] = total
        return result

    f.compute(case, op, args, inputs, run)


def make_optim():
    f = File("optim.safetensors")

    def sgd(case, **args):
        optimizer_run(f, case, "SGD", dict(lr=0.1, **args))

    sgd("sgd")
    sgd("sgd_momentum", momentum=0.9)
    sgd("sgd_nesterov", momentum=0.9, nesterov=True)
    sgd("sgd_weight_decay", weight_decay=0.05)
    sgd("sgd_momentum_weight_decay", momentum=0.9, weight_decay=0.05)
    sgd("sgd_dampening", momentum=0.8, dampening=0.3)
    sgd("sgd_dampening_weight_decay", momentum=0.8, dampening=0.3, weight_decay=0.02)
    sgd("sgd_nesterov_weight_decay", momentum=0.8, nesterov=True, weight_decay=0.02)

    for op in ("Adam", "AdamW"):
        name = op.lower()
        optimizer_run(f, name, op, {})
        optimizer_run(f, f"{name}_lr", op, dict(lr=0.05))
        optimizer_run(f, f"{name}_betas_eps", op, dict(lr=0.02, betas=(0.8, 0.95), eps=0.001))
        optimizer_run(f, f"{name}_weight_decay", op, dict(lr=0.02, weight_decay=0.1))
    optimizer_run(f, "adamw_no_weight_decay", "AdamW", dict(lr=0.02, weight_decay=0))

    def rmsprop(case, **args):
        optimizer_run(f, case, "RMSprop", args)

    rmsprop("rmsprop")
    rmsprop("rmsprop_alpha_eps", lr=0.02, alpha=0.9, eps=0.001)
    rmsprop("rmsprop_momentum", lr=0.02, momentum=0.9)
    rmsprop("rmsprop_centered", lr=0.02, centered=True)
    rmsprop("rmsprop_weight_decay", lr=0.02, weight_decay=0.1)
    rmsprop("rmsprop_all", lr=0.02, alpha=0.9, momentum=0.7, centered=True, weight_decay=0.1)

    schedule(f, "schedule_step", "StepLR", dict(step_size=7))
    schedule(f, "schedule_step_gamma", "StepLR", dict(step_size=10, gamma=0.3))
    schedule(f, "schedule_cosine", "CosineAnnealingLR", dict(T_max=SCHEDULE_STEPS))
    # Past T_max the cosine goes up again.
    schedule(f, "schedule_cosine_past_end", "CosineAnnealingLR", dict(T_max=11, eta_min=0.01))
    schedule(f, "schedule_linear", "LinearLR", {})
    schedule(f, "schedule_linear_warmup", "LinearLR", dict(start_factor=0.1, total_iters=12))
    schedule(f, "schedule_linear_decay", "LinearLR",
             dict(start_factor=1.0, end_factor=0.25, total_iters=20))
    schedule(f, "schedule_warmup_cosine", "LambdaLR",
             dict(warmup=6, total=SCHEDULE_STEPS,
                  formula="s<warmup: (s+1)/warmup; else 0.5*(1+cos(pi*(s-warmup)/(total-warmup)))"))
    onecycle = dict(max_lr=0.5, total_steps=SCHEDULE_STEPS)
    schedule(f, "schedule_onecycle", "OneCycleLR", onecycle, momentum=True)
    schedule(f, "schedule_onecycle_no_momentum", "OneCycleLR",
             dict(onecycle, cycle_momentum=False), momentum=True)
    schedule(f, "schedule_onecycle_options", "OneCycleLR",
             dict(onecycle, pct_start=0.4, div_factor=10.0, final_div_factor=100.0,
                  cycle_momentum=False))
    schedule(f, "schedule_onecycle_linear", "OneCycleLR",
             dict(onecycle, anneal_strategy="linear", cycle_momentum=False))

    clip(f, "clip_norm", "clip_grad_norm_", dict(max_norm=1.0))
    clip(f, "clip_norm_half", "clip_grad_norm_", dict(max_norm=0.5, norm_type=2.0))
    clip(f, "clip_norm_large_gradients", "clip_grad_norm_", dict(max_norm=5.0), scale=100.0)
    # A norm under the limit leaves the gradients alone.
    clip(f, "clip_norm_unreached", "clip_grad_norm_", dict(max_norm=100.0))
    clip(f, "clip_value", "clip_grad_value_", dict(clip_value=0.5))
    clip(f, "clip_value_unreached", "clip_grad_value_", dict(clip_value=50.0))
    return f


# --- training.safetensors, mnist.safetensors ---------------------------------


def training_run(f, case, modules, optim, optim_args, inputs, batches, steps, **extra):
    """Trains Sequential(modules) with cross-entropy from PyTorch's own initial weights.

    batches(tensors, dtype) gives the list of (x, target) that steps 0, 1, ...
    use in turn, from the beginning again when it is shorter than steps.
    """
    module = build("Sequential", dict(modules=modules))
    inputs = dict(inputs)
    for name, v in module.state_dict().items():
        inputs[f"init.{name}"] = v.detach().clone()

    def run(t, dtype):
        m = copy.deepcopy(module).to(dtype).train()
        optimizer = getattr(torch.optim, optim)(m.parameters(), **optim_args)
        criterion = nn.CrossEntropyLoss()
        data = batches(t, dtype)
        losses = []
        for step in range(steps):
            x, target = data[step % len(data)]
            optimizer.zero_grad()
            value = criterion(m(x), target)
            value.backward()
            optimizer.step()
            losses.append(value.detach())
        return {"losses": torch.stack(losses),
                **{f"final.{name}": v for name, v in m.state_dict().items()}}

    args = dict(modules=modules, optimizer=[optim, optim_args], loss=["CrossEntropyLoss", {}],
                steps=steps)
    f.compute(case, "Sequential", args, inputs, run, **extra)


def make_training():
    f = File("training.safetensors")

    def stacked(t, dtype):
        return list(zip(t["in.x"], t["in.target"]))

    def teacher(case, steps, batch, shape, classes):
        """Random inputs, labelled by a random linear map, so that there is something to learn."""
        seed(case)
        x = torch.randn(steps, batch, *shape)
        scores = x.flatten(2) @ torch.randn(math.prod(shape), classes)
        return {"in.x": x, "in.target": scores.argmax(dim=2)}

    def linear(n, m):
        return ["Linear", dict(in_features=n, out_features=m)]

    relu = ["ReLU", {}]

    data = teacher("mlp", 20, 12, (20,), 5)
    training_run(f, "mlp", [linear(20, 16), relu, linear(16, 16), relu, linear(16, 5)],
                 "SGD", dict(lr=0.1, momentum=0.9), data, stacked, 20)

    data = teacher("cnn", 10, 8, (1, 12, 12), 10)
    cnn = [
        ["Conv2d", dict(in_channels=1, out_channels=4, kernel_size=3)], relu,
        ["Conv2d", dict(in_channels=4, out_channels=6, kernel_size=3)], relu,
        ["MaxPool2d", dict(kernel_size=2)],
        ["Flatten", {}],
        linear(96, 10),
    ]
    training_run(f, "cnn", cnn, "Adam", {}, data, stacked, 10)

    # Running statistics are part of the state dict and move with the steps.
    data = teacher("cnn_batchnorm", 8, 6, (1, 9, 7), 3)
    cnn = [
        ["Conv2d", dict(in_channels=1, out_channels=3, kernel_size=3, bias=False)],
        ["BatchNorm2d", dict(num_features=3)], relu,
        ["MaxPool2d", dict(kernel_size=2)],
        ["Flatten", {}],
        linear(18, 3),
    ]
    training_run(f, "cnn_batchnorm", cnn, "SGD", dict(lr=0.05, momentum=0.9), data, stacked, 8)
    return f


def read_idx(folder, name, magic, count):
    """The first count items of an IDX file of bytes (gzip or not), without its header."""
    path = os.path.join(folder, name)
    if os.path.exists(path):
        opener = open
    else:
        path, opener = f"{path}.gz", gzip.open
    with opener(path, "rb") as f:
        head = f.read(8)
        if len(head) < 8 or struct.unpack(">I", head[:4])[0] != magic:
            raise ValueError(f"{path}: not an IDX file with magic number {magic}")
        total = struct.unpack(">I", head[4:])[0]
        sides = [struct.unpack(">I", f.read(4))[0] for _ in range(magic % 256 - 1)]
        if total < count:
            raise ValueError(f"{path}: has {total} items, {count} are needed")
        size = count * math.prod(sides)
        data = f.read(size)
        if len(data) != size:
            raise ValueError(f"{path}: ends before its first {count} items do")
    return torch.from_numpy(np.frombuffer(data, dtype=np.uint8).copy()).reshape(count, *sides)


def make_mnist(folder):
    """A few steps on the first real MNIST images, kept as the bytes they are."""
    f = File("mnist.safetensors")
    batch, images = 16, 128
    inputs = {
        "in.images": read_idx(folder, "train-images-idx3-ubyte", 2051, images),
        "in.labels": read_idx(folder, "train-labels-idx1-ubyte", 2049, images).long(),
    }

    def batches(t, dtype):
        # Divided in float32, as a loader does, whatever the steps are computed in.
        x = (t["in.images"].float() / 255).to(dtype)
        return list(zip(x.split(batch), t["in.labels"].split(batch)))

    seed("mnist_mlp")
    training_run(f, "mnist_mlp",
                 [["Flatten", {}], ["Linear", dict(in_features=784, out_features=16)],
                  ["ReLU", {}], ["Linear", dict(in_features=16, out_features=10)]],
                 "SGD", dict(lr=0.1, momentum=0.9), inputs, batches, 24,
                 batch=batch, input="float32(images)/255; batches in order, then again")
    return f


def main(argv):
    if len(argv) not in (2, 3):
        sys.exit(f"usage: {argv[0]} OUTDIR [MNIST_DIR]")
    folder = argv[1]
    os.makedirs(folder, exist_ok=True)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)

    files = [make_layers(), make_losses(), make_optim(), make_training()]
    if len(argv) == 3:
        files.append(make_mnist(argv[2]))

    about = {
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "script": "make_fixtures.py",
        "precision": "inputs and parameters are float32; results were computed from them in "
                     "float64 and rounded once to float32; float32_error is the largest "
                     "|float32 - float64| / max(1, |float64|) of PyTorch's own float32",
    }
    about = {k: str(v) for k, v in about.items()}
    total, parts = 0, []
    for f in files:
        path = f.save(folder, about)
        f.check(path)
        size = os.path.getsize(path)
        total += size
        parts.append(f"{f.name} {len(f.cases)} cases {size} B")
    if total > SIZE_LIMIT:
        sys.exit(f"{folder}: {total} bytes, over the limit of {SIZE_LIMIT}")
    error, case = max(f.worst for f in files)
    print(f"ok: torch {about['torch']}: {', '.join(parts)}; {total} B in all, read back equal; "
          f"largest float32 error {error:.1e} ({case})")


if __name__ == "__main__":
    main(sys.argv)
