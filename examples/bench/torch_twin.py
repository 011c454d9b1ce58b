#!/usr/bin/env python3
"""The reference workloads and kernels in PyTorch, timed like `cargo run --release --example bench`.

The models, shapes, losses and optimizers are the same, and shared options and JSON keys have the same names, so a
comparison takes two commands. Values that PyTorch does not have (plans, launches, submissions, variants) are null.

    cargo run --release --example bench -- --workload tiny --device cpu --json
    python3 examples/bench/torch_twin.py --workload tiny --device cpu --threads 2 --json

    cargo run --release --example bench -- --kernel matmul:1024 --device cpu --json >>ours.jsonl
    python3 examples/bench/torch_twin.py --kernel matmul:1024 --device cpu --threads 2 --json >>theirs.jsonl
    python3 examples/bench/torch_twin.py --compare ours.jsonl theirs.jsonl

The switches that make PyTorch fast can be combined. `--best` tries their combinations and prints the fastest last:

    python3 torch_twin.py --workload unet --device cuda --amp bf16 --channels-last --compile --fused --graph --json
    python3 torch_twin.py --workload unet --device cuda --best --json >>theirs.jsonl
    python3 torch_twin.py --kernel conv2d:64,128,32,128,3,1 --device cuda --half f16 --channels-last --json

Under `torchrun`, each process trains on its own GPU, through DistributedDataParallel, like `bench --ranks`:

    torchrun --nproc-per-node 2 torch_twin.py --workload resnet18gn --device cuda --tf32 --compile --fused --json

`--amp` keeps parameters in f32; autocast chooses the operations in half precision. `--half` is for kernels: operands,
cotangents and results are then in half precision in memory. `--graph` replays the whole step as one CUDA graph.
"""

import argparse
import contextlib
import itertools
import json
import math
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import time

import torch
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn import functional as F


class Tiny(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(512, 10),
        )


class Mlp(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(784, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 10))


class BasicBlock(nn.Module):
    def __init__(self, c, o, stride, groups):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(c, o, 3, stride, 1, bias=False), nn.GroupNorm(groups, o)
        self.conv2, self.norm2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.GroupNorm(groups, o)
        self.skip = nn.Identity()
        if stride != 1 or c != o:
            self.skip = nn.Sequential(nn.Conv2d(c, o, 1, stride, bias=False), nn.GroupNorm(groups, o))

    def forward(self, x):
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.skip(x))


class ResNet18Gn(nn.Module):
    def __init__(self, ch=64, groups=32):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, ch, 3, padding=1, bias=False), nn.GroupNorm(groups, ch), nn.ReLU())
        widths = [(1, 1, 1), (1, 1, 1), (1, 2, 2), (2, 2, 1), (2, 4, 2), (4, 4, 1), (4, 8, 2), (8, 8, 1)]
        self.blocks = nn.Sequential(*(BasicBlock(c * ch, o * ch, stride, groups) for c, o, stride in widths))
        self.head = nn.Linear(8 * ch, 10)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class ResidualBlock(nn.Module):
    def __init__(self, c, o, time_width, groups):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(groups, c), nn.Conv2d(c, o, 3, padding=1)
        self.time = nn.Linear(time_width, o)
        self.norm2, self.conv2 = nn.GroupNorm(groups, o), nn.Conv2d(o, o, 3, padding=1)
        self.skip = nn.Conv2d(c, o, 1) if c != o else nn.Identity()

    def forward(self, x, t):
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.time(F.silu(t))[:, :, None, None]
        return self.conv2(F.silu(self.norm2(h))) + self.skip(x)


class UNet(nn.Module):
    def __init__(self, ch=128, mult=(1, 2, 2), groups=32):
        super().__init__()
        self.ch = ch
        width = 4 * ch
        self.time = nn.Sequential(nn.Linear(ch, width), nn.SiLU(), nn.Linear(width, width))
        self.stem = nn.Conv2d(3, ch, 3, padding=1)
        skips, c = [ch], ch
        self.down = nn.ModuleList()
        for level, m in enumerate(mult):
            for _ in range(2):
                self.down.append(ResidualBlock(c, ch * m, width, groups))
                c = ch * m
                skips.append(c)
            if level + 1 < len(mult):
                self.down.append(nn.Conv2d(c, c, 3, stride=2, padding=1))
                skips.append(c)
        self.middle = ResidualBlock(c, c, width, groups)
        self.up = nn.ModuleList()
        for level, m in reversed(list(enumerate(mult))):
            for _ in range(3):
                self.up.append(ResidualBlock(c + skips.pop(), ch * m, width, groups))
                c = ch * m
            if level > 0:
                self.up.append(nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(c, c, 3, padding=1)))
        self.norm, self.head = nn.GroupNorm(groups, c), nn.Conv2d(c, 3, 3, padding=1)

    def forward(self, x, t):
        half = self.ch // 2
        frequencies = torch.exp(-math.log(10_000) / (half - 1) * torch.arange(half, device=x.device))
        angles = t[:, None] * frequencies
        t = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        h = self.stem(x)
        skips = [h]
        for layer in self.down:
            h = layer(h, t) if isinstance(layer, ResidualBlock) else layer(h)
            skips.append(h)
        h = self.middle(h, t)
        for layer in self.up:
            h = layer(torch.cat([h, skips.pop()], 1), t) if isinstance(layer, ResidualBlock) else layer(h)
        return self.head(F.silu(self.norm(h)))


class Attention(nn.Module):
    def __init__(self, width, heads, causal):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        n, length, width = x.shape
        q, k, v = self.qkv(x).view(n, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.output(y.transpose(1, 2).reshape(n, length, width))


class TransformerLayer(nn.Module):
    def __init__(self, width, heads, causal=False):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads, causal)
        self.norm2 = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


class ViT(nn.Module):
    def __init__(self, ch=384, layers=12, side=224, patch=16, head=64, classes=1000):
        super().__init__()
        self.patches = nn.Conv2d(3, ch, patch, stride=patch)
        self.positions = nn.Parameter(0.02 * torch.randn((side // patch) ** 2, ch))
        self.layers = nn.Sequential(*(TransformerLayer(ch, ch // head) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(ch), nn.Linear(ch, classes)

    def forward(self, x):
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.norm(self.layers(tokens)).mean(1))


class Gpt2(nn.Module):
    def __init__(self, ch=768, layers=12, length=1024, vocabulary=50_257, head=64):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, ch)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.positions = nn.Parameter(0.02 * torch.randn(length, ch))
        self.layers = nn.Sequential(*(TransformerLayer(ch, ch // head, causal=True) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(ch), nn.Linear(ch, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        return self.head(self.norm(self.layers(x)))


class Bottleneck(nn.Module):
    def __init__(self, c, o, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(c, o, 1, bias=False), nn.BatchNorm2d(o)
        self.conv2, self.norm2 = nn.Conv2d(o, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o)
        self.conv3, self.norm3 = nn.Conv2d(o, 4 * o, 1, bias=False), nn.BatchNorm2d(4 * o)
        self.skip = nn.Identity()
        if c != 4 * o:
            self.skip = nn.Sequential(nn.Conv2d(c, 4 * o, 1, stride, bias=False), nn.BatchNorm2d(4 * o))

    def forward(self, x):
        y = F.relu(self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))
        return F.relu(self.norm3(self.conv3(y)) + self.skip(x))


class ResNet50(nn.Module):
    def __init__(self, ch=64, depths=(3, 4, 6, 3), classes=1000):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, ch, 7, 2, 3, bias=False), nn.BatchNorm2d(ch)
        blocks, c = [], ch
        for stage, depth in enumerate(depths):
            for block in range(depth):
                blocks.append(Bottleneck(c, ch << stage, 2 if stage > 0 and block == 0 else 1))
                c = 4 * ch << stage
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(c, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, 2, 1)
        return self.head(self.blocks(x).mean((2, 3)))


class InvertedResidual(nn.Module):
    def __init__(self, c, o, expansion, stride):
        super().__init__()
        wide = expansion * c
        self.widen = nn.Identity()
        if expansion != 1:
            self.widen = nn.Sequential(nn.Conv2d(c, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU())
        self.depthwise = nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False)
        self.norm = nn.BatchNorm2d(wide)
        self.narrow, self.narrow_norm = nn.Conv2d(wide, o, 1, bias=False), nn.BatchNorm2d(o)
        self.is_residual = stride == 1 and c == o

    def forward(self, x):
        y = self.narrow_norm(self.narrow(F.relu(self.norm(self.depthwise(self.widen(x))))))
        return x + y if self.is_residual else y


class MobileNetV2(nn.Module):
    # expansion, width, blocks, stride
    STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))

    def __init__(self, first=32, stages=STAGES, last=1280, classes=1000):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, first, 3, 2, 1, bias=False), nn.BatchNorm2d(first)
        blocks, c = [], first
        for expansion, width, count, stride in stages:
            for block in range(count):
                blocks.append(InvertedResidual(c, width, expansion, stride if block == 0 else 1))
                c = width
        self.blocks = nn.Sequential(*blocks)
        self.top, self.top_norm = nn.Conv2d(c, last, 1, bias=False), nn.BatchNorm2d(last)
        self.head = nn.Linear(last, classes)

    def forward(self, x):
        x = self.blocks(F.relu(self.norm(self.stem(x))))
        return self.head(F.relu(self.top_norm(self.top(x))).mean((2, 3)))


class LstmLanguage(nn.Module):
    def __init__(self, ch=512, layers=2, vocabulary=10_000, length=None):
        super().__init__()
        self.tokens, self.lstm = nn.Embedding(vocabulary, ch), nn.LSTM(ch, ch, layers, batch_first=True)
        self.head = nn.Linear(ch, vocabulary)

    def forward(self, tokens):
        return self.head(self.lstm(self.tokens(tokens))[0])


# name: model, its parameters, default batch, shape of one input
WORKLOADS = {
    "tiny": (Tiny, 9_962, 64, (1, 8, 8)),
    "mlp": (Mlp, 1_863_690, 1024, (784,)),
    "resnet18gn": (ResNet18Gn, 11_173_962, 128, (3, 32, 32)),
    "unet": (UNet, 22_944_003, 64, (3, 32, 32)),
    "vit": (ViT, 22_049_896, 64, (3, 224, 224)),
    "gpt2": (Gpt2, 163_037_184, 8, (1024,)),
    "resnet50": (ResNet50, 25_557_032, 64, (3, 224, 224)),
    "mobilenet": (MobileNetV2, 3_504_872, 64, (3, 224, 224)),
    "lstm": (LstmLanguage, 14_452_496, 64, (128,)),
}
# The tokens of language models, and the classes of those of images that have other than 10.
VOCABULARIES = {"gpt2": 50_257, "lstm": 10_000}
CLASSES = {"vit": 1000, "resnet50": 1000, "mobilenet": 1000}

HALF = {"bf16": torch.bfloat16, "f16": torch.float16}
# The switches of each precision of a step.
PRECISIONS = {"full": [], "tf32": ["--tf32"], "amp-bf16": ["--amp", "bf16"], "amp-f16": ["--amp", "f16"]}
# The modes of torch.compile, and what they add to the name of the framework.
MODES = {"default": "compiled", "max-autotune-no-cudagraphs": "autotuned"}
# Steps before the capture of a CUDA graph. They create the optimizer's state, compile, and choose cuDNN's algorithms.
WARM_UPS = 3

# The minimum size of a kernel's operands over all sets, and the maximum number of sets.
BYTES, SETS = 100_000_000, 256
UNITS = {"tflops": "TFLOP/s", "gbps": "GB/s"}
GROUPS = 32
# The warm-up in seconds: a GPU that idled has a low clock, and needs this long to raise it.
AWAKE = 0.3


class Kernel:
    """One operation: its operands, its passes, and their work."""

    def __init__(self, spec, dtype, channels_last):
        self.dtype, self.channels_last = dtype, channels_last
        name, _, extents = spec.partition(":")
        operations = (self.matmul, self.conv2d, self.group_norm, self.linear_gelu, self.layer_norm, self.copy)
        operations += (self.embedding, self.cross_entropy, self.depthwise, self.grouped, self.conv1d, self.conv3d)
        operations += (self.topk, self.sort, self.permute, self.transpose, self.grid_sample, self.argmax_gather)
        operations += (self.gelu, self.cumsum, self.max_pool, self.avg_pool, self.lstm)
        attentions = (self.attention, self.causal_attention, self.composed_attention)
        # The number of indices and their bound; each set has other ones.
        self.indices = (0, 1)
        makers = {make.__name__: make for make in operations + attentions}
        try:
            sizes = [int(extent) for extent in extents.split(",")]
            if name == "matmul" and len(sizes) == 1:
                sizes *= 3
            makers[name](*sizes)
        except (KeyError, TypeError, ValueError):
            sys.exit(f"error: unknown kernel {spec}; `bench --help` lists the kernels")

    def matmul(self, m, k, n):
        self.operands = [((m, k), 1), ((k, n), k**-0.5)]
        self.result = (m, n)
        self.rate, self.work = "tflops", dict.fromkeys(("forward", "grad_input", "grad_weight"), 2 * m * k * n)
        self.forward = torch.matmul
        self.grad_input = lambda a, b, dy: dy @ b.T
        self.grad_weight = lambda a, b, dy: a.T @ dy

    def conv1d(self, n, c, length, k, r, stride):
        self.full_convolution((n, c, length), k, r, stride)

    def conv2d(self, n, c, h, k, r, stride):
        self.full_convolution((n, c, h, h), k, r, stride)

    def conv3d(self, n, c, d, h, k, r, stride):
        self.full_convolution((n, c, d, h, h), k, r, stride)

    def full_convolution(self, x, k, r, stride):
        weight = (k, x[1]) + (r,) * (len(x) - 2)
        self.convolution(x, weight, stride, 1)
        flops = 2 * math.prod(self.result) * math.prod(weight[1:])
        self.rate, self.work = "tflops", dict.fromkeys(("forward", "grad_input", "grad_weight"), flops)

    def depthwise(self, n, c, h, w, r, stride):
        self.grouped(n, c, h, w, r, stride, 1)

    def grouped(self, n, c, h, w, r, stride, each):
        self.convolution((n, c, h, w), (c, each, r, r), stride, c // each)
        size = self.dtype.itemsize * (math.prod(self.operands[0][0]) + math.prod(self.result))
        self.rate, self.work = "gbps", dict.fromkeys(("forward", "grad_input", "grad_weight"), size)

    def convolution(self, image, weight, stride, groups):
        r = weight[2]
        side = lambda extent: (extent + 2 * (r // 2) - r) // stride + 1
        self.operands = [(image, 1), (weight, math.prod(weight[1:]) ** -0.5)]
        self.result = (image[0], weight[0], *map(side, image[2:]))
        axes = len(image) - 2
        convolve = (F.conv1d, F.conv2d, F.conv3d)[axes - 1]
        self.forward = lambda x, w: convolve(x, w, stride=stride, padding=r // 2, groups=groups)

        def backward(x, w, dy, wanted):
            geometry = ([stride] * axes, [r // 2] * axes, [1] * axes, False, [0] * axes, groups)
            return torch.ops.aten.convolution_backward(dy, x, w, None, *geometry, wanted)

        self.grad_input = lambda x, w, dy: backward(x, w, dy, [True, False, False])[0]
        self.grad_weight = lambda x, w, dy: backward(x, w, dy, [False, True, False])[1]

    def group_norm(self, n, c, h, w):
        self.operands = [((n, c, h, w), 1), ((c,), 1), ((c,), 1)]
        self.result = (n, c, h, w)
        size = self.dtype.itemsize * n * c * h * w
        self.rate, self.work = "gbps", {"forward": 2 * size, "backward": 3 * size, "both": 4 * size}
        self.forward = lambda x, weight, bias: F.silu(F.group_norm(x, GROUPS, weight, bias))

    def linear_gelu(self, m, k, n):
        self.operands = [((m, k), 1), ((n, k), k**-0.5), ((n,), 1)]
        self.result = (m, n)
        flops = 2 * m * k * n
        self.rate, self.work = "tflops", {"forward": flops, "backward": 2 * flops, "both": 3 * flops}
        self.forward = lambda x, w, b: F.gelu(F.linear(x, w, b))

    def layer_norm(self, m, n):
        self.operands = [((m, n), 1), ((n,), 1), ((n,), 1)]
        self.result = (m, n)
        size = self.dtype.itemsize * m * n
        self.rate, self.work = "gbps", {"forward": 2 * size, "backward": 3 * size, "both": 4 * size}
        self.forward = lambda x, weight, bias: F.layer_norm(x, (n,), weight, bias)

    def embedding(self, rows, count, width):
        self.operands, self.indices = [((rows, width), 1)], (count, rows)
        self.result = (count, width)
        row = self.dtype.itemsize * width
        work = {"forward": 2 * count, "backward": count + rows, "both": 3 * count + rows}
        self.rate, self.work = "gbps", {name: row * lines for name, lines in work.items()}
        self.forward = lambda table, index: F.embedding(index, table)

    def cross_entropy(self, m, classes):
        self.operands, self.indices = [((m, classes), 1)], (m, classes)
        self.result = (m,)
        size = self.dtype.itemsize * m * classes
        self.rate, self.work = "gbps", {"forward": size, "backward": 2 * size, "both": 3 * size}
        self.forward = lambda x, labels: F.cross_entropy(x, labels, reduction="none")

    def attention(self, b, h, l, d, **options):
        self.operands = [((b, h, l, d), 1)] * 3
        self.result = (b, h, l, d)
        product = 2 * b * h * l * l * d
        self.rate, self.work = "tflops", {"forward": 2 * product, "backward": 5 * product, "both": 7 * product}
        self.forward = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options)

    def causal_attention(self, b, h, l, d):
        self.attention(b, h, l, d, is_causal=True)

    def composed_attention(self, b, h, l, d):
        self.attention(b, h, l, d)
        self.forward = lambda q, k, v: F.softmax(q * d**-0.5 @ k.transpose(-2, -1), dim=-1) @ v

    def copy(self, size):
        self.operands = [((size // self.dtype.itemsize,), 1)]
        self.result = (size // self.dtype.itemsize,)
        self.rate, self.work = "gbps", {"forward": 2 * size}
        self.forward = torch.clone

    def corner(self, operands, result, forward):
        """An operation of the list `corners`."""
        self.operands, self.result, self.forward = operands, result, forward
        size = self.dtype.itemsize * (math.prod(operands[0][0]) + math.prod(result))
        self.rate, self.work = "gbps", {"forward": size, "backward": size, "both": 2 * size}

    def topk(self, m, n, k):
        self.corner([((m, n), 1)], (m, k), lambda x: torch.topk(x, k, 1)[0])

    def sort(self, m, n):
        self.corner([((m, n), 1)], (m, n), lambda x: torch.sort(x, 1)[0])

    def permute(self, a, b, c):
        self.corner([((a, b, c), 1)], (c, a, b), lambda x: x.permute(2, 0, 1).contiguous())

    def transpose(self, m, n):
        self.corner([((m, n), 1)], (n, m), lambda x: x.t().contiguous())

    def grid_sample(self, n, c, h, w):
        sample = lambda x, grid: F.grid_sample(x, grid, align_corners=False)
        self.corner([((n, c, h, w), 1), ((n, h, w, 2), 0.5)], (n, c, h, w), sample)

    def argmax_gather(self, m, n):
        self.corner([((m, n), 1)], (m, 1), lambda x: x.gather(1, x.argmax(1, keepdim=True)))

    def gelu(self, count):
        self.corner([((count,), 1)], (count,), F.gelu)

    def cumsum(self, m, n):
        self.corner([((m, n), 1)], (m, n), lambda x: x.cumsum(1))

    def max_pool(self, *extents):
        self.pool(F.max_pool2d, *extents)

    def avg_pool(self, *extents):
        self.pool(F.avg_pool2d, *extents)

    def pool(self, pool, n, c, h, r, stride):
        p = (h + 2 * (r // 2) - r) // stride + 1
        self.corner([((n, c, h, h), 1)], (n, c, p, p), lambda x: pool(x, r, stride, r // 2))

    def lstm(self, t, n, h):
        weight, state = ((4 * h, h), h**-0.5), ((n, h), 1)

        def forward(x, of_input, of_state, bias, h, c):
            weights = (of_input, of_state, bias, torch.zeros_like(bias))
            return torch.lstm(x, (h[None], c[None]), weights, True, 1, 0.0, False, False, False)[0]

        operands = [((t, n, h), 1), weight, weight, ((4 * h,), 1), state, state]
        self.corner(operands, (t, n, h), forward)
        del self.work["backward"], self.work["both"]

    def data(self, device):
        """The sets of operands, each with the cotangent of the result."""
        size = sum(self.dtype.itemsize * math.prod(shape) for shape, _ in self.operands)
        sets = min(max(math.ceil(BYTES / size), 1), SETS)
        shapes = self.operands + [(self.result, 1)]
        draw = lambda shape, std: lay_out(torch.randn(shape, device=device) * std, self.channels_last).to(self.dtype)
        return [[draw(shape, std) for shape, std in shapes] for _ in range(sets)]

    def passes(self, sets, mode):
        """For each pass a function of the number of a set."""
        forward = compiled(self.forward, mode)
        count, bound = self.indices
        draw = lambda: [torch.randint(bound, (count,), device=sets[0][0].device)] if count else []
        indices = [draw() for _ in sets]
        operands = [operands for *operands, _ in sets]
        # Trained operands; a forward pass of these keeps the values that the gradients need.
        trained = [[x.detach().requires_grad_() for x in operands] for operands in operands]

        def gradient(which):
            compute = compiled(getattr(self, which), mode)
            return lambda at: compute(*sets[at])

        def gradients(y, at, **options):
            # Stored, as an optimizer has them: that of a permutation is a view.
            return [dx.contiguous() for dx in torch.autograd.grad(y, trained[at], sets[at][-1], **options)]

        all_of = lambda of, at: forward(*of[at], *indices[at])
        results = [all_of(trained, at) for at in range(len(sets))] if "backward" in self.work else []
        passes = {
            # Untrained operands, so that nothing is kept.
            "forward": lambda at: all_of(operands, at),
            "backward": lambda at: gradients(results[at], at, retain_graph=True),
            "both": lambda at: gradients(all_of(trained, at), at),
        }
        for name in self.work:
            yield name, passes[name] if name in passes else gradient(name)


def lay_out(x, channels_last):
    """The same tensor; with `channels_last`, one of four or five dimensions lies in memory with its channels last."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.contiguous(memory_format=formats[x.dim()]) if channels_last and x.dim() in formats else x


def compiled(function, mode):
    return torch.compile(function, mode=mode) if mode else function


def time_on_cuda(run, count, sets):
    """Milliseconds of each run by the device's clock. The device sleeps first, so that the host is ahead of it."""
    times = []
    for first in range(0, count, 10):
        events = []
        torch.cuda._sleep(10_000_000)
        for at in range(first, min(first + 10, count)):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run(at % sets)
            end.record()
            events.append((begin, end))
        torch.cuda.synchronize()
        times += [begin.elapsed_time(end) for begin, end in events]
    return times


def time_on_host(run, count, sets):
    times = []
    for at in range(count):
        begin = time.perf_counter()
        run(at % sets)
        times.append((time.perf_counter() - begin) * 1e3)
    return times


def time_kernels(options, device):
    listed, _, text = options.kernel.partition(":")
    lists = {"standard": "kernels.txt", "corners": "corners.txt"}
    if listed not in lists:
        return time_kernel(options, options.kernel, device)
    with open(pathlib.Path(__file__).with_name(lists[listed])) as lines:
        specs = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    specs = [spec for spec in specs if text in spec]
    if not specs:
        sys.exit(f"error: no kernel of the list contains {text}")
    for spec in specs:
        if options.compile:
            # What was compiled for the last kernel would count as a recompilation for this one.
            torch.compiler.reset()
        time_kernel(options, spec, device)


def time_kernel(options, spec, device):
    kernel = Kernel(spec, HALF.get(options.half, torch.float32), options.channels_last)
    if options.do_pass and options.do_pass not in kernel.work and spec == options.kernel:
        sys.exit(f"error: {spec} has no such pass; there are {', '.join(kernel.work)}")
    sets = kernel.data(device)
    on_cuda = device.type == "cuda"
    measure = time_on_cuda if on_cuda else time_on_host
    for name, run in kernel.passes(sets, options.compile):
        if options.do_pass not in (None, name):
            continue
        begin, at = time.perf_counter(), 0
        while at <= options.warmup or (on_cuda and time.perf_counter() - begin < AWAKE):
            run(at % len(sets))
            if on_cuda:
                torch.cuda.synchronize()
            at += 1
        times = measure(run, options.steps, len(sets))
        ms = statistics.median(times)
        unit = 1e9 if kernel.rate == "tflops" else 1e6
        result = {
            **settings(options, device, images=any(len(shape) == 4 for shape, _ in kernel.operands)),
            "kernel": spec,
            "pass": name,
            "ms": round(ms, 6),
            "ms_min": round(min(times), 6),
            kernel.rate: round(kernel.work[name] / ms / unit, 5),
            **dict.fromkeys(("variant", "launches")),
            "timer": "device" if on_cuda else "host",
            "sets": len(sets),
        }
        if options.json:
            print(json.dumps(result), flush=True)
        else:
            rate = f"{result[kernel.rate]:9.2f} {UNITS[kernel.rate]}"
            print(f"{spec} {name:11} {ms:10.4f} ms {rate}", flush=True)


class Training:
    """A workload with its data and its optimizer, on a device."""

    def __init__(self, options, device):
        model, expected, batch, shape = WORKLOADS[options.workload]
        self.batch = options.batch or batch
        self.images = len(shape) == 3
        sizes = {"ch": options.channels, "layers": options.layers, "length": options.length}
        given = {name: size for name, size in sizes.items() if size}
        with torch.device(device):
            net = model(**given)
        self.params = sum(parameter.numel() for parameter in net.parameters())
        assert given or self.params == expected, f"{self.params} parameters, not {expected}: another model"
        if options.channels_last:
            net.to(memory_format=torch.channels_last)
        self.optimizer = make_optimizer(options, net.parameters())
        if distributed.is_initialized():
            net = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True, static_graph=True)
            if options.average_bf16:
                net.register_comm_hook(None, default_hooks.bf16_compress_hook)
        # With the default scale, 2^16, gradients may overflow in the first step, which corrupts fused SGD's momentum.
        self.scaler = torch.amp.GradScaler(device.type, init_scale=2.0**10, enabled=options.amp == "f16")
        self.precision = torch.autocast(device.type, HALF[options.amp]) if options.amp else contextlib.nullcontext()
        draw = lambda: lay_out(torch.randn(self.batch, *shape, device=device), options.channels_last)
        if options.workload in VOCABULARIES:
            length = options.length or shape[0]
            text = torch.randint(0, VOCABULARIES[options.workload], (self.batch, length + 1), device=device)
            tokens, following = text[:, :-1].contiguous(), text[:, 1:].flatten()
            compute_loss = lambda: F.cross_entropy(net(tokens).flatten(0, 1), following)
        elif options.workload == "unet":
            x = draw()
            noise, t = draw(), torch.randint(0, 1000, (self.batch,), device=device).float()
            compute_loss = lambda: F.mse_loss(net(x, t), noise)
        else:
            x = draw()
            labels = torch.randint(0, CLASSES.get(options.workload, 10), (self.batch,), device=device)
            compute_loss = lambda: F.cross_entropy(net(x), labels)
        self.compute_loss = compiled(compute_loss, options.compile)

    def step(self):
        """Trains one step; returns the loss, on the device."""
        self.optimizer.zero_grad(set_to_none=True)
        with self.precision:
            loss = self.compute_loss()
        # Without f16 the scaler is disabled and passes everything through.
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss

    def capture(self):
        """Trains a few steps, then captures one in a CUDA graph; returns the first loss, and a step that replays."""
        # Autograd accumulates a gradient on the stream where the parameter was first used. The default stream cannot
        # be captured, so not even the first step may run there.
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            losses = [self.step().item() for _ in range(WARM_UPS)]
        torch.cuda.current_stream().wait_stream(side)
        # If there are no gradients yet, the captured backward pass allocates them in the graph's own memory, and each
        # replay overwrites them. The captured zero_grad then has nothing to do.
        self.optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = self.step().detach()

        def replay():
            graph.replay()
            return loss
        return losses[0], replay


def make_optimizer(options, parameters):
    fused = options.fused or None  # Unlike False, None lets PyTorch choose foreach.
    rate = {"resnet18gn": 0.1, "resnet50": 0.01, "mobilenet": 0.01}.get(options.workload)
    if rate:
        return torch.optim.SGD(parameters, lr=rate, momentum=0.9, weight_decay=5e-4, fused=fused)
    lr = 1e-4 if options.workload in ("vit", "gpt2") else 1e-3
    return torch.optim.AdamW(parameters, lr=lr, weight_decay=1e-2, fused=fused, capturable=options.graph)


def time_steps(options, device):
    training = Training(options, device)
    begin = time.perf_counter()
    loss_first, run = training.capture() if options.graph else (training.step().item(), training.step)
    # With a graph, this includes the steps that warm up, and the capture.
    first_step_ms = (time.perf_counter() - begin) * 1e3

    def step():
        """The loss and the milliseconds it took; reading the loss waits for the device."""
        begin = time.perf_counter()
        loss = run().item()
        return loss, (time.perf_counter() - begin) * 1e3

    for _ in range(options.warmup):
        step()
    losses, times = zip(*(step() for _ in range(options.steps)))
    # A capture allocates as a step does, so its peak counts; a replay allocates nothing.
    peak = torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else None
    # Kilobytes on Linux, bytes on macOS.
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    result = {
        **settings(options, device, training.images),
        "version": torch.__version__,
        "workload": options.workload,
        "batch": training.batch,
        "ranks": distributed.get_world_size() if distributed.is_initialized() else 1,
        "ms_per_step_median": round(statistics.median(times), 4),
        "ms_per_step_min": round(min(times), 4),
        "first_step_ms": round(first_step_ms, 3),
        **dict.fromkeys(("host_ms", "plan_ms", "launches_per_step", "submissions_per_step")),
        "peak_device_mib": peak and round(peak, 1),
        "peak_rss_mib": round(rss, 1),
        "params": training.params,
        "loss_first": loss_first,
        "loss_last": losses[-1],
    }
    if distributed.is_initialized() and distributed.get_rank() > 0:
        return
    if options.json:
        print(json.dumps(result))
    else:
        for key, value in result.items():
            print(f"{key:22} {value}")


def best(options):
    """Times each sensible combination of switches in a separate process; prints each line, then the fastest."""
    on_cuda, images = options.device.startswith("cuda"), len(WORKLOADS[options.workload][3]) == 3
    names = ("workload", "device", "batch", "steps", "warmup", "threads", "channels", "layers", "length")
    given = [f"--{name}={value}" for name in names if (value := getattr(options, name)) is not None]
    command = [sys.executable, __file__, "--json", "--fused", *given]

    def either(possible, given, *switch):
        """Without and with a switch; only with it if it was given."""
        return [switch] if given else [(), switch] if possible else [()]
    axes = (
        [PRECISIONS[name] for name in options.best or ["tf32" if on_cuda else "full", "amp-bf16"]],
        either(True, options.compile, "--compile", options.compile or "default"),
        either(images, options.channels_last, "--channels-last"),
        either(on_cuda, options.graph, "--graph"),
    )
    in_words = lambda report: f"{time_of(report):10.4f} ms  {describe(report)}"
    show = lambda report: print((json.dumps if options.json else in_words)(report), flush=True)
    reports = []
    for choice in itertools.product(*axes):
        switches = [*itertools.chain(*choice)]
        run = subprocess.run(command + switches, capture_output=True, text=True)
        if run.returncode == 0:
            reports.append(json.loads(run.stdout.splitlines()[-1]))
            show(reports[-1])
        else:
            # PyTorch prints hints after the line that names the error.
            lines = run.stderr.strip().splitlines() or [f"exit status {run.returncode}"]
            why = next((line for line in reversed(lines) if "Error" in line), lines[-1])
            print(f"failed: {' '.join(switches)}: {why}", file=sys.stderr, flush=True)
    if not reports:
        sys.exit("error: every combination failed")
    show(min(reports, key=time_of))


def compare(ours, theirs):
    """Prints how many times faster the first program is: the other's time over its own, a row for each measurement."""

    def read(path):
        """The lines of a file, grouped by measurement, fastest first; the last of several with the same settings."""
        with open(path) as lines:
            reports = [json.loads(line) for line in lines if line.startswith("{")]
        of_kernel = lambda report: (report["kernel"], report["pass"])
        # A model's channels show only in the number of its parameters.
        of_step = lambda report: (report["workload"], f"batch {report['batch']}, {report['params']:,} parameters")
        found = {}
        for report in reports:
            what = (of_kernel if "kernel" in report else of_step)(report)
            found.setdefault(what, {})[describe(report)] = report
        return {what: sorted(of_settings.values(), key=time_of) for what, of_settings in found.items()}

    ours, theirs = read(ours), read(theirs)
    both = [what for what in ours if what in theirs]
    if not both:
        sys.exit("error: the two files have no measurement in common")
    sides = [("ours", ours), ("theirs", theirs)]
    described = {side: {describe(file[what][0]) for what in both} for side, file in sides}
    first, second = (min(of) if len(of) == 1 else f"{side} (settings below)" for side, of in described.items())
    print(f"{first} against {second}; ratio: the time of the latter over that of the former\n")
    print("| what | pass | ours, ms | theirs, ms | ratio | rate | variant |")
    print("|---|---|---|---|---|---|---|")
    ratios, without = {}, {}
    for what in both:
        our, their = ours[what][0], theirs[what][0]
        ratio = time_of(their) / time_of(our)
        ratios.setdefault(what[1], []).append(ratio)
        packing = our.get("packing_ms") or 0
        without.setdefault(what[1], []).append(time_of(their) / (time_of(our) - packing))
        rate = next((f"{our[key]:.4g} {unit}" for key, unit in UNITS.items() if key in our), "")
        cells = (*what, f"{time_of(our):.4g}", f"{time_of(their):.4g}", f"{ratio:.2f}", rate, our.get("variant") or "")
        print(f"| {' | '.join(cells)} |")
    print()
    for measured, of_pass in ratios.items():
        mean = f"{measured}: geometric mean of {len(of_pass)} ratios {statistics.geometric_mean(of_pass):.3f}"
        rest = statistics.geometric_mean(without[measured])
        print(mean + (f", without the packing of weights {rest:.3f}" if without[measured] != of_pass else ""))
    for (side, file), what in itertools.product(sides, both):
        fastest, *slower = file[what]
        if slower or len(described[side]) > 1:
            of = f", the fastest of {len(slower) + 1} settings" if slower else ""
            print(f"{side}, {' '.join(what)}: {describe(fastest)}{of}")
    for what in [*(what for what in ours if what not in theirs), *(what for what in theirs if what not in ours)]:
        print(f"only in one file: {' '.join(what)}")


def settings(options, device, images):
    """The keys of a line that say how it was measured; `images`: whether there are 4-D tensors, which have a layout."""
    precision = options.half or (f"amp-{options.amp}" if options.amp else "tf32" if options.tf32 else "full")
    switches = {"channels_last": options.channels_last and images, "fused": options.fused}
    cpu = f"cpu, {torch.get_num_threads()} threads"
    return {
        "framework": "-".join(filter(None, ["torch", MODES.get(options.compile), options.graph and "graph"])),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu,
        "precision": precision,
        # Only enabled switches, because the other program's lines have none.
        **{name: True for name, on in switches.items() if on},
    }


def describe(report):
    """The settings of a line, in words."""
    switches = [name.replace("_", " ") for name in ("channels_last", "fused") if report.get(name)]
    return f"{report['framework']} ({', '.join([report['precision'], *switches, report['device']])})"


def time_of(report):
    return report.get("ms", report.get("ms_per_step_median"))


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=WORKLOADS, default="tiny")
    parser.add_argument("--kernel", metavar="SPEC", help="time one operation, or a list, instead: see `bench --help`")
    parser.add_argument("--pass", dest="do_pass", help="time only this pass of the kernel")
    parser.add_argument("--compare", nargs=2, metavar=("OURS", "THEIRS"), help="print the ratios of two files of lines")
    parser.add_argument(
        "--best", nargs="*", choices=PRECISIONS, metavar="PRECISION",
        help="try the switches below with a fused optimizer; one that is given stays on. "
        f"Precisions: {', '.join(PRECISIONS)}; default: tf32 and amp-bf16, on the CPU full and amp-bf16",
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda or another that PyTorch knows")
    parser.add_argument("--batch", type=int, help="default: 64; mlp 1024, resnet18gn 128, gpt2 8")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--threads", type=int, help="threads on the CPU; default: all cores")
    parser.add_argument("--tf32", action="store_true", help="let matrix units round inputs to TF32")
    parser.add_argument("--amp", choices=HALF, help="autocast of the forward pass and the loss; f16 scales the loss")
    parser.add_argument("--half", choices=HALF, help="operands of a kernel in this type")
    parser.add_argument("--channels-last", action="store_true", help="4-D tensors as NHWC in memory")
    parser.add_argument(
        "--channels", type=int,
        help="channels of the first layer of resnet18gn (64), unet (128) or resnet50 (64); features of a token of vit (384), "
        "gpt2 (768) or lstm (512)",
    )
    parser.add_argument("--layers", type=int, help="layers of vit or gpt2 (12), or of lstm (2)")
    parser.add_argument("--length", type=int, help="tokens of a sequence of gpt2 (1024) or lstm (128)")
    parser.add_argument("--compile", nargs="?", const="default", choices=MODES, help="through torch.compile, in a mode")
    parser.add_argument("--fused", action="store_true", help="a fused optimizer")
    parser.add_argument("--graph", action="store_true", help="the whole step in one CUDA graph, replayed each step")
    parser.add_argument("--average-bf16", action="store_true", help="processes exchange gradients in bf16")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    options = parser.parse_args()
    on_cuda, tries = options.device.startswith("cuda"), options.best is not None
    of_steps = options.amp or options.fused or options.graph or tries
    for complaint, applies in (
        ("--half is for kernels; a workload has --amp", options.half and not options.kernel),
        ("--amp, --fused, --graph and --best are for workloads; a kernel has --half", of_steps and options.kernel),
        (f"--graph needs a CUDA device, not {options.device}", options.graph and not on_cuda),
        # Without it, the host checks for overflow of gradients, which a capture does not allow.
        ("--graph with --amp f16 needs --fused", options.graph and options.amp == "f16" and not options.fused),
        ("--best takes precisions itself: --best tf32 amp-bf16", tries and (options.amp or options.tf32)),
    ):
        if applies:
            sys.exit(f"error: {complaint}")
    return options


def main():
    options = parse()
    if options.compare:
        return compare(*options.compare)
    if options.best is not None:
        return best(options)
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.backends.cuda.matmul.allow_tf32 = options.tf32
    torch.backends.cudnn.allow_tf32 = options.tf32
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(42)

    device = torch.device(options.device)
    if device.type == "cuda":
        # Streams, events and graphs belong to the current device.
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", device.index or 0)))
        torch.cuda.set_device(device)
    if "RANK" in os.environ:
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    (time_kernels if options.kernel else time_steps)(options, device)
    if distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
