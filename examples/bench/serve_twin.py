#!/usr/bin/env python3
"""Inference on the CPU, side by side: `bench --serve --onnx`, onnxruntime and PyTorch, on the same ONNX files.

The models have random weights; `--models` lists some by name. Each round runs every program once, in a process of its
own, one after the other; a row shows the least time of all rounds. `--onnx` adds files, without PyTorch.

    cargo build --release --example bench
    python3 examples/bench/serve_twin.py --threads 1
    python3 examples/bench/serve_twin.py --threads 2 --models resnet18 --rounds 5
    python3 examples/bench/serve_twin.py --threads 2 --clients 4 --steps 100 --rounds 1

With `--clients`, as many threads call each model at the same time, and a row shows the time within which half of the
calls and 99 % of them were answered, and the calls a second, of the best round.

The results of onnxruntime and PyTorch are compared, so that the files are known to be the models.
"""

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import threading
import time
import warnings

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from torch_twin import MobileNetV2, ResNet50, UNet, ViT


class Block(nn.Module):
    def __init__(self, c, o, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(c, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o)
        self.conv2, self.norm2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o)
        self.skip = nn.Identity()
        if stride != 1 or c != o:
            self.skip = nn.Sequential(nn.Conv2d(c, o, 1, stride, bias=False), nn.BatchNorm2d(o))

    def forward(self, x):
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.skip(x))


class ResNet18(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        widths = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1)]
        widths += [(128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)]
        self.blocks, self.head = nn.Sequential(*(Block(*width) for width in widths)), nn.Linear(512, 1000)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, 2, 1)
        return self.head(self.blocks(x).mean((2, 3)))


class Fire(nn.Module):
    def __init__(self, c, squeeze, expand):
        super().__init__()
        self.squeeze = nn.Conv2d(c, squeeze, 1)
        self.one, self.three = nn.Conv2d(squeeze, expand, 1), nn.Conv2d(squeeze, expand, 3, padding=1)

    def forward(self, x):
        x = F.relu(self.squeeze(x))
        return torch.cat([F.relu(self.one(x)), F.relu(self.three(x))], 1)


class SqueezeNet(nn.Sequential):
    def __init__(self):
        pool = nn.MaxPool2d(3, 2)
        super().__init__(
            nn.Conv2d(3, 64, 3, 2), nn.ReLU(), pool,
            Fire(64, 16, 64), Fire(128, 16, 64), pool,
            Fire(128, 32, 128), Fire(256, 32, 128), pool,
            Fire(256, 48, 192), Fire(384, 48, 192), Fire(384, 64, 256), Fire(512, 64, 256),
            nn.Conv2d(512, 1000, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )


# name: model, shapes of the inputs
MODELS = {
    "resnet18": (ResNet18, [(1, 3, 224, 224)]),
    "resnet18-batch8": (ResNet18, [(8, 3, 224, 224)]),
    "resnet50": (ResNet50, [(1, 3, 224, 224)]),
    "mobilenet": (MobileNetV2, [(1, 3, 224, 224)]),
    "squeezenet": (SqueezeNet, [(1, 3, 224, 224)]),
    "squeezenet64": (SqueezeNet, [(1, 3, 64, 64)]),
    "unet32": (lambda: UNet(ch=32), [(1, 3, 32, 32), (1,)]),
    "vit": (lambda: ViT(ch=192, layers=4), [(1, 3, 224, 224)]),
}


def model(name):
    """A model in evaluation mode, with running statistics as after a training, and inputs."""
    torch.manual_seed(42)
    make, shapes = MODELS[name]
    net = make().eval()
    for norm in net.modules():
        if isinstance(norm, nn.BatchNorm2d):
            for numbers in (norm.running_var, norm.weight.data):
                numbers.uniform_(0.5, 1.5)
            for numbers in (norm.running_mean, norm.bias.data):
                numbers.normal_(0, 0.1)
    return net, [torch.randn(shape) for shape in shapes]


def export(name, path):
    net, inputs = model(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # As it is: an exporter that folds normalisations would hide whether programs do.
        torch.onnx.export(
            net, tuple(inputs), path, dynamo=False, do_constant_folding=False,
            training=torch.onnx.TrainingMode.PRESERVE,
        )


def peak_mib():
    # Kilobytes on Linux, bytes on macOS.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def timed(run, options):
    for _ in range(options.warmup + 1):
        run()
    times = []

    def client():
        for _ in range(options.steps):
            begin = time.perf_counter()
            run()
            times.append((time.perf_counter() - begin) * 1e3)

    clients = [threading.Thread(target=client) for _ in range(options.clients or 1)]
    begin = time.perf_counter()
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    seconds = time.perf_counter() - begin
    assert len(times) == options.steps * len(clients), "a client failed"
    times.sort()
    p99 = times[max(1, -(-len(times) * 99 // 100)) - 1]
    report = {"ms_min": times[0], "ms_median": float(np.median(times)), "ms_p99": p99}
    print(json.dumps({**report, "calls_per_second": len(times) / seconds, "peak_rss_mib": peak_mib()}))


def session(path, threads):
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads, settings.inter_op_num_threads = threads, 1
    return onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])


def time_onnxruntime(options):
    run = session(options.file, options.threads)
    types = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32}
    feed = {}
    for port in run.get_inputs():
        numbers = np.random.default_rng(42).standard_normal(port.shape)
        feed[port.name] = (numbers if port.type == "tensor(float)" else 0 * numbers).astype(types[port.type])
    timed(lambda: run.run(None, feed), options)


def time_torch(options):
    torch.set_num_threads(options.threads)
    net, inputs = model(options.name)

    def run():
        # The mode is each thread's own.
        with torch.inference_mode():
            net(*inputs)

    timed(run, options)


def check(name, path):
    net, inputs = model(name)
    run = session(path, 2)
    (theirs,) = run.run(None, {port.name: x.numpy() for port, x in zip(run.get_inputs(), inputs)})
    with torch.inference_mode():
        ours = net(*inputs).numpy()
    assert np.allclose(ours, theirs, rtol=1e-3, atol=1e-3 * np.abs(ours).max()), f"{name}: the file is another model"


def measure(program, options, path, name):
    """One process of a program; the object that it prints."""
    steps = ["--steps", str(options.steps), "--warmup", str(options.warmup)]
    if options.clients:
        steps += ["--clients", str(options.clients)]
    if program == "meganeura":
        command = [options.bench, "--serve", "--onnx", path, "--device", "cpu", "--json", *steps]
    else:
        command = [sys.executable, __file__, "--time", program, "--file", path, "--name", name, *steps]
        command += ["--threads", str(options.threads)]
    threads = {"RAYON_NUM_THREADS": str(options.threads), "OMP_NUM_THREADS": str(options.threads)}
    run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **threads})
    if run.returncode:
        sys.exit(f"error: {program} on {path}: {run.stderr.strip()}")
    return json.loads(run.stdout.splitlines()[-1])


def compare(options):
    if options.clients:
        print(f"{options.threads} threads, {options.clients} clients with {options.steps} calls each: ms of half of the")
        print(f"calls, and of 99 % of them (calls a second); the best of {options.rounds} rounds\n")
        print("| model | meganeura | onnxruntime | PyTorch |\n|---|---|---|---|", flush=True)
    else:
        print(f"{options.threads} threads, least of {options.rounds} rounds of {options.steps} calls, ms (peak MiB)\n")
        print("| model | meganeura | onnxruntime | ratio | PyTorch | ratio |\n|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        files = [(name, os.path.join(folder, f"{name}.onnx")) for name in options.models]
        for name, path in files:
            export(name, path)
            check(name, path)
        for name, path in files + [(pathlib.Path(path).stem, path) for path in options.onnx]:
            programs = ["meganeura", "onnxruntime"] + (["torch"] if name in MODELS and path not in options.onnx else [])
            rounds = [[measure(program, options, path, name) for program in programs] for _ in range(options.rounds)]
            if options.clients:
                best = [max(of, key=lambda report: report["calls_per_second"]) for of in zip(*rounds)]
                cells = [f"{of['ms_median']:.3g}, {of['ms_p99']:.3g} ({of['calls_per_second']:.4g})" for of in best]
                print(f"| {' | '.join([name, *cells])} |", flush=True)
                continue
            least = [min(of, key=lambda report: report["ms_min"]) for of in zip(*rounds)]
            ours = least[0]["ms_min"]
            cells = [f"{report['ms_min']:.3g} ({report['peak_rss_mib']:.0f})" for report in least]
            ratios = [f"{ours / report['ms_min']:.2f}" for report in least[1:]]
            row = [name, cells[0], *(cell for pair in zip(cells[1:], ratios) for cell in pair)]
            print(f"| {' | '.join(row)} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--onnx", nargs="*", default=[], metavar="FILE", help="more files, with fixed shapes")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20, help="timed calls in each round")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--clients", type=int, help="threads that call a model at the same time")
    parser.add_argument("--bench", default="target/release/examples/bench", help="the program of this project")
    parser.add_argument("--export", metavar="FOLDER", help="only write the files of the models")
    parser.add_argument("--time", choices=("onnxruntime", "torch"), help=argparse.SUPPRESS)
    parser.add_argument("--file", help=argparse.SUPPRESS)
    parser.add_argument("--name", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.time:
        {"onnxruntime": time_onnxruntime, "torch": time_torch}[options.time](options)
    elif options.export:
        for name in options.models:
            export(name, os.path.join(options.export, f"{name}.onnx"))
    else:
        compare(options)


if __name__ == "__main__":
    main()
