#!/usr/bin/env python3
"""The reference workloads in PyTorch, timed as `cargo run --release --example bench` times them.

Same models, shapes, losses, optimizers and options, and one line of JSON with the same keys, so that a comparison is two
commands. What PyTorch does not know (plans, launches, submissions) is null.

    cargo run --release --example bench -- --workload tiny --device cpu --json
    python3 examples/bench/torch_twin.py --workload tiny --device cpu --threads 2 --json
"""

import argparse
import json
import math
import resource
import statistics
import sys
import time

import torch
from torch import nn
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
    def __init__(self, c, o, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(c, o, 3, stride, 1, bias=False), nn.GroupNorm(32, o)
        self.conv2, self.norm2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.GroupNorm(32, o)
        self.skip = nn.Identity()
        if stride != 1 or c != o:
            self.skip = nn.Sequential(nn.Conv2d(c, o, 1, stride, bias=False), nn.GroupNorm(32, o))

    def forward(self, x):
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.skip(x))


class ResNet18Gn(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.GroupNorm(32, 64), nn.ReLU())
        widths = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)]
        self.blocks = nn.Sequential(*(BasicBlock(*width) for width in widths))
        self.head = nn.Linear(512, 10)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class ResidualBlock(nn.Module):
    def __init__(self, c, o, time_width):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, c), nn.Conv2d(c, o, 3, padding=1)
        self.time = nn.Linear(time_width, o)
        self.norm2, self.conv2 = nn.GroupNorm(32, o), nn.Conv2d(o, o, 3, padding=1)
        self.skip = nn.Conv2d(c, o, 1) if c != o else nn.Identity()

    def forward(self, x, t):
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.time(F.silu(t))[:, :, None, None]
        return self.conv2(F.silu(self.norm2(h))) + self.skip(x)


class UNet(nn.Module):
    def __init__(self, ch=128, mult=(1, 2, 2)):
        super().__init__()
        self.ch = ch
        width = 4 * ch
        self.time = nn.Sequential(nn.Linear(ch, width), nn.SiLU(), nn.Linear(width, width))
        self.stem = nn.Conv2d(3, ch, 3, padding=1)
        skips, c = [ch], ch
        self.down = nn.ModuleList()
        for level, m in enumerate(mult):
            for _ in range(2):
                self.down.append(ResidualBlock(c, ch * m, width))
                c = ch * m
                skips.append(c)
            if level + 1 < len(mult):
                self.down.append(nn.Conv2d(c, c, 3, stride=2, padding=1))
                skips.append(c)
        self.middle = ResidualBlock(c, c, width)
        self.up = nn.ModuleList()
        for level, m in reversed(list(enumerate(mult))):
            for _ in range(3):
                self.up.append(ResidualBlock(c + skips.pop(), ch * m, width))
                c = ch * m
            if level > 0:
                self.up.append(nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(c, c, 3, padding=1)))
        self.norm, self.head = nn.GroupNorm(32, c), nn.Conv2d(c, 3, 3, padding=1)

    def forward(self, x, t):
        half = self.ch // 2
        frequencies = torch.exp(-math.log(10_000) / half * torch.arange(half, device=x.device))
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


# name: model, its parameters, default batch, shape of one input
WORKLOADS = {
    "tiny": (Tiny, 9_962, 64, (1, 8, 8)),
    "mlp": (Mlp, 1_863_690, 1024, (784,)),
    "resnet18gn": (ResNet18Gn, 11_173_962, 128, (3, 32, 32)),
    "unet": (UNet, 22_944_003, 64, (3, 32, 32)),
}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=WORKLOADS, default="tiny")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or another that PyTorch knows")
    parser.add_argument("--batch", type=int, help="default: as in the table of workloads")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--threads", type=int, help="threads on the CPU; default: all cores")
    parser.add_argument("--tf32", action="store_true", help="let matrix units round inputs to TF32")
    parser.add_argument("--compile", action="store_true", help="through torch.compile")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    return parser.parse_args()


def make_optimizer(workload, parameters):
    if workload == "resnet18gn":
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=5e-4)
    return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=1e-2)


def main():
    options = parse()
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.backends.cuda.matmul.allow_tf32 = options.tf32
    torch.backends.cudnn.allow_tf32 = options.tf32
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(42)

    device = torch.device(options.device)
    model, expected, batch, shape = WORKLOADS[options.workload]
    batch = options.batch or batch
    net = model().to(device)
    params = sum(parameter.numel() for parameter in net.parameters())
    assert params == expected, f"{params} parameters, not {expected}: this is another model"
    optimizer = make_optimizer(options.workload, net.parameters())

    x = torch.randn(batch, *shape, device=device)
    if options.workload == "unet":
        noise, t = torch.randn_like(x), torch.randint(0, 1000, (batch,), device=device).float()
        compute_loss = lambda: F.mse_loss(net(x, t), noise)
    else:
        labels = torch.randint(0, 10, (batch,), device=device)
        compute_loss = lambda: F.cross_entropy(net(x), labels)
    if options.compile:
        compute_loss = torch.compile(compute_loss)

    def step():
        """The loss and the milliseconds it took; reading the loss waits for the device."""
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = compute_loss()
        loss.backward()
        optimizer.step()
        return loss.item(), (time.perf_counter() - begin) * 1e3

    loss_first, first_step_ms = step()
    for _ in range(options.warmup):
        step()
    losses, times = zip(*(step() for _ in range(options.steps)))

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu, {torch.get_num_threads()} threads"
    peak = torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else None
    # Kilobytes on Linux, bytes on macOS.
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    result = {
        "framework": "torch" + ("-compiled" if options.compile else ""),
        "version": torch.__version__,
        "device": name,
        "precision": "tf32" if options.tf32 else "full",
        "workload": options.workload,
        "batch": batch,
        "ms_per_step_median": round(statistics.median(times), 4),
        "ms_per_step_min": round(min(times), 4),
        "first_step_ms": round(first_step_ms, 3),
        "plan_ms": None,
        "launches_per_step": None,
        "submissions_per_step": None,
        "peak_device_mib": peak and round(peak, 1),
        "peak_rss_mib": round(rss, 1),
        "params": params,
        "loss_first": loss_first,
        "loss_last": losses[-1],
    }
    if options.json:
        print(json.dumps(result))
    else:
        for key, value in result.items():
            print(f"{key:22} {value}")


if __name__ == "__main__":
    main()
