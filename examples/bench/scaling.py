#!/usr/bin/env python3
"""Times training steps on one and on several GPUs of a host, and prints the efficiency of weak scaling.

    cargo build --release --example bench
    python3 examples/bench/scaling.py --ranks 2 4 8 --torch

Each run is a `bench --compile` of its own: alone, and under `torchrun` or `mpirun` with the same batch for each rank.
Its result is the median of the steps, each of which reads the loss. The efficiency is the time of one rank over that of
several. With `--rounds`, the runs take turns, and the table has the means. `--torch` also times `torch_twin.py`, which
trains with DistributedDataParallel. Without GPUs:

    cargo build --release --example bench --features mpi
    python3 examples/bench/scaling.py --launcher mpirun --device cpu --workloads tiny --precisions full --ranks 2
"""

import argparse
import json
import os
import pathlib
import secrets
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
# PyTorch's switches for each precision, and both programs' for each form of gradients.
TORCH = {"full": ["--tf32"], "fast": ["--amp", "bf16"]}
EXCHANGES = {"f32": [], "bf16": ["--average-bf16"], "sharded": ["--shard"]}


def runs(options):
    """The runs of a table: for each row, its name, and the command for a number of ranks."""
    steps = ["--steps", str(options.steps), "--warmup", str(options.warmup), "--json"]
    for workload in options.workloads:
        for precision in options.precisions:
            for exchange in options.exchanges:
                if exchange == "bf16" and precision != "fast":
                    continue
                program = ["--workload", workload, "--device", options.device, "--precision", precision, "--compile"]
                yield f"{workload}, {precision}, {exchange}", ours(options, program, EXCHANGES[exchange], steps)
            if options.torch:
                device = "cpu" if options.device == "cpu" else "cuda"
                program = ["--workload", workload, "--device", device, *TORCH[precision]]
                program += options.torch_switches.split()
                for exchange in ["f32", "bf16"] if precision == "fast" else ["f32"]:
                    switches = EXCHANGES[exchange]
                    yield f"PyTorch: {workload}, {precision}, {exchange}", theirs(program, switches, steps)


def ours(options, program, exchange, steps):
    def command(ranks):
        own = [options.bench, *program, *steps]
        if ranks == 1:
            return own
        if options.launcher == "mpirun":
            return [*own, *exchange, "--ranks", str(ranks)]
        return ["torchrun", "--no-python", "--nproc-per-node", str(ranks), *own, *exchange]
    return command


def theirs(program, exchange, steps):
    def command(ranks):
        own = [str(HERE / "torch_twin.py"), *program, *steps]
        if ranks == 1:
            return [sys.executable, *own]
        return ["torchrun", "--nproc-per-node", str(ranks), *own, *exchange]
    return command


def report(command, options):
    """The report of a run, or None if it failed or took too long."""
    # Rank 0 ignores connections that do not know it.
    environment = {"MEGANEURA_SECRET": secrets.token_hex(16), **os.environ}
    try:
        run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=options.limit)
    except subprocess.TimeoutExpired:
        print(f"{' '.join(command)}: took longer than {options.limit} s", file=sys.stderr)
        return None
    lines = [line for line in run.stdout.splitlines() if line.startswith("{")]
    if run.returncode or not lines:
        said = [line for line in run.stderr.splitlines() if "error" in line.lower()] or ["it printed no report"]
        print(f"{' '.join(command)}: exit code {run.returncode}: {said[0]}", file=sys.stderr)
        return None
    return json.loads(lines[-1])


def table(options, times):
    several = [ranks for ranks in options.ranks if ranks > 1]
    print("| ms per step | 1 |" + "".join(f" {ranks} | efficiency |" for ranks in several))
    print("|---" * (2 + 2 * len(several)) + "|")
    for name, of in times.items():
        mean = {ranks: statistics.mean(found) for ranks, found in of.items() if found}
        cells = [name, f"{mean[1]:.2f}" if 1 in mean else ""]
        for ranks in several:
            is_known = 1 in mean and ranks in mean
            cells.append(f"{mean[ranks]:.2f}" if ranks in mean else "")
            cells.append(f"{mean[1] / mean[ranks]:.3f}" if is_known else "")
        print("| " + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", default="target/release/examples/bench", help="the program `bench`")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--workloads", nargs="+", default=["resnet18gn", "unet", "gpt2", "vit"])
    parser.add_argument("--precisions", nargs="+", choices=TORCH, default=[*TORCH])
    parser.add_argument("--exchanges", nargs="+", choices=EXCHANGES, default=[*EXCHANGES], help="forms of gradients")
    parser.add_argument("--launcher", choices=["torchrun", "mpirun"], default="torchrun")
    parser.add_argument("--device", default="gpu")
    parser.add_argument("--torch", action="store_true", help="also PyTorch")
    parser.add_argument(
        "--torch-switches", default="--compile --fused", metavar="'SWITCHES'",
        help="those of torch_twin.py, as --torch-switches='--compile --fused --channels-last'; `--best` finds them",
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--warmup", type=int, default=15)
    parser.add_argument("--limit", type=float, default=300, help="seconds for a run")
    parser.add_argument("--log", type=pathlib.Path, help="append each run's report to this file")
    options = parser.parse_args()
    rows = dict(runs(options))
    times = {name: {ranks: [] for ranks in [1, *options.ranks]} for name in rows}
    for _ in range(options.rounds):
        # Rows that differ in what ranks exchange have the run of one rank in common.
        reports = {}
        for name, command in rows.items():
            for ranks, found in times[name].items():
                run = command(ranks)
                key = tuple(run) if ranks == 1 else (name, ranks)
                if key not in reports:
                    reports[key] = report(run, options)
                measured = reports[key]
                if measured:
                    found.append(measured["ms_per_step_median"])
                    if options.log:
                        with options.log.open("a") as log:
                            print(json.dumps({"row": name, **measured}), file=log)
    table(options, times)
    if any(not found for of in times.values() for found in of.values()):
        sys.exit("error: some runs failed")


if __name__ == "__main__":
    main()
