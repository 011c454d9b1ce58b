#!/usr/bin/env python3
"""Inference on the CPU, side by side: `bench --serve --onnx`, onnxruntime and PyTorch, on the same ONNX files.

The models have random weights; `--models` lists some by name. Each round runs every program once, in a process of its
own, one after the other; a row shows the least time of all rounds. `--onnx` adds files, without PyTorch.

    cargo build --release --example bench
    python3 examples/bench/serve_twin.py --threads 1
    python3 examples/bench/serve_twin.py --threads 2 --models resnet18 --rounds 5
    python3 examples/bench/serve_twin.py --threads 2 --clients 4 --steps 100 --rounds 1
    python3 examples/bench/serve_twin.py --threads 1 --models squeezenet resnet18 mobilenet --int8 QOperator

With `--clients`, as many threads call each model at the same time, and a row shows the time within which half of the
calls and 99 % of them were answered, and the calls a second, of the best round. With `--int8`, onnxruntime quantises
the models first: weights as int8, activations as uint8.

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

import numpy as np


def models():
    """The models, and PyTorch with them; the process that times onnxruntime has its own memory only."""
    import serve_models

    return serve_models


def peak_mib():
    status = pathlib.Path("/proc/self/status")
    if status.exists():
        # Of this program alone: the other counter begins with the peak of the process that started it.
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 2**10
    # Kilobytes, on macOS bytes.
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
    import torch

    torch.set_num_threads(options.threads)
    net, inputs = models().model(options.name)

    def run():
        # The mode is each thread's own.
        with torch.inference_mode():
            net(*inputs)

    timed(run, options)


def check(name, path):
    import torch

    net, inputs = models().model(name)
    run = session(path, 2)
    (theirs,) = run.run(None, {port.name: x.numpy() for port, x in zip(run.get_inputs(), inputs)})
    with torch.inference_mode():
        ours = net(*inputs).numpy()
    assert np.allclose(ours, theirs, rtol=1e-3, atol=1e-3 * np.abs(ours).max()), f"{name}: the file is another model"


def quantise(path, form):
    """Replaces a file by the model in bytes, in one of onnxruntime's two forms."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Random(CalibrationDataReader):
        def __init__(self):
            ports = session(path, 2).get_inputs()
            numbers = [np.random.default_rng(seed) for seed in range(3)]
            self.feeds = iter([{port.name: r.standard_normal(port.shape).astype(np.float32) for port in ports} for r in numbers])

        def get_next(self):
            return next(self.feeds, None)

    quant_pre_process(path, path + ".inferred", skip_symbolic_shape=True)
    types = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
    quantize_static(path + ".inferred", path, Random(), quant_format=QuantFormat[form], **types)


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
        columns = ["model", "meganeura", "onnxruntime", "ratio"] + ([] if options.int8 else ["PyTorch", "ratio"])
        print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        files = [(name, os.path.join(folder, f"{name}.onnx")) for name in options.models]
        for name, path in files:
            models().export(name, path)
            check(name, path)
            if options.int8:
                quantise(path, options.int8)
        for name, path in files + [(pathlib.Path(path).stem, path) for path in options.onnx]:
            programs = ["meganeura", "onnxruntime"] + (["torch"] if name in models().MODELS and path not in options.onnx and not options.int8 else [])
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
    parser.add_argument("--models", nargs="*", metavar="NAME", help="some of the models [default: all]")
    parser.add_argument("--onnx", nargs="*", default=[], metavar="FILE", help="more files, with fixed shapes")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20, help="timed calls in each round")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--clients", type=int, help="threads that call a model at the same time")
    parser.add_argument("--int8", choices=("QOperator", "QDQ"), help="models in bytes, in this form")
    parser.add_argument("--bench", default="target/release/examples/bench", help="the program of this project")
    parser.add_argument("--export", metavar="FOLDER", help="only write the files of the models")
    parser.add_argument("--time", choices=("onnxruntime", "torch"), help=argparse.SUPPRESS)
    parser.add_argument("--file", help=argparse.SUPPRESS)
    parser.add_argument("--name", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.time:
        known = list(models().MODELS)
        options.models = known if options.models is None else options.models
        if unknown := [name for name in options.models if name not in known]:
            parser.error(f"no model {', '.join(unknown)}; there are {', '.join(known)}")
    if options.time:
        {"onnxruntime": time_onnxruntime, "torch": time_torch}[options.time](options)
    elif options.export:
        for name in options.models:
            models().export(name, os.path.join(options.export, f"{name}.onnx"))
    else:
        compare(options)


if __name__ == "__main__":
    main()
