#!/usr/bin/env python3
"""Compares `onnxruntime`'s results on ONNX files with this framework's.

    MEGANEURA_ONNX=DIR cargo test -p meganeura-tests --test suite onnx
    python3 tests/onnx/check.py DIR

The tests write `NAME.onnx`, with inputs and outputs in `NAME.safetensors` beside it. Each file has to pass the checker of the package
`onnx`, including shape inference. Needs onnx, onnxruntime, safetensors and numpy; `cargo xtask onnx` does all of this.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from safetensors.numpy import load_file

TYPES = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(int64)": np.int64}


def error(x, want):
    """The largest difference, relative to the largest magnitude or 1, whichever is larger."""
    if x.shape != want.shape:
        sys.exit(f"error: shape {x.shape}, not {want.shape}")
    x, want = x.astype(np.float64), want.astype(np.float64)
    same = (x == want) | (np.isnan(x) & np.isnan(want))
    finite = np.isfinite(want)
    scale = max(1.0, np.abs(want[finite]).max(initial=0.0))
    with np.errstate(invalid="ignore"):
        difference = np.where(same, 0.0, np.abs(x - want) / scale)
    return np.nan_to_num(difference, nan=np.inf).max(initial=0.0)


def check(path, opset, tolerance):
    """The largest error of a model's outputs, and the tolerance."""
    tensors = load_file(path.with_suffix(".safetensors"))
    model = onnx.load(path)
    if opset:
        model.opset_import[0].version = opset
        model.ir_version = onnx.helper.OP_SET_ID_VERSION_MAP[("ai.onnx", opset)]
    onnx.checker.check_model(model, full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    inputs = {x.name: tensors[f"input.{k}"].astype(TYPES[x.type]) for k, x in enumerate(session.get_inputs())}
    outputs = session.run(None, inputs)
    found = max(error(y, tensors[f"output.{k}"]) for k, y in enumerate(outputs))
    return found, max(tolerance, tensors["tolerance"].item() * 1.001)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tolerance", type=float, default=1e-5, help="a case whose numbers are delicate allows more")
    parser.add_argument("--opset", type=int, help="read the files as of another operator set")
    options = parser.parse_args()
    files = sorted(options.folder.glob("*.onnx"))
    if not files:
        sys.exit(f"error: no files in {options.folder}")
    worst, failed = (0.0, ""), []
    for path in files:
        try:
            found, allowed = check(path, options.opset, options.tolerance)
        except Exception as fault:
            found, allowed = np.inf, 0
            print(f"{path.stem}: {str(fault).strip().splitlines()[0]}")
        worst = max(worst, (found, path.stem))
        if not found <= allowed:
            failed.append(path.stem)
            print(f"{path.stem}: error {found:.1e}")
    print(f"onnxruntime {onnxruntime.__version__}: {len(files)} files, {len(failed)} failed, largest error {worst[0]:.1e} ({worst[1]})")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
