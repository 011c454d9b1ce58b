#!/usr/bin/env bash
# GELU of PyTorch and onnxruntime in single precision is 0 below -5.5, where its values are ordinary numbers.
#
# One would guess: `gelu(x) = x·Φ(x)` is within a few units in the last place, as `exp`, `tanh` and `erf` are. Floats
# hold its values down to about x = -13: gelu(-6) is -5.9e-9.
#
# What happens: Φ is computed as (1 + erf(x/√2))/2. For negative x the sum cancels. At -4 the result is off by up to
# 0.2 %, at -5 by 4 to 17 %, and from about -5.5 on it is -0. At -∞ it is NaN, the product of infinity and that 0.
# `torch.special.ndtr` is Φ, and is 0 there as well. `x * torch.special.erfc(-x / sqrt(2)) / 2` is right, and so is
# double precision.
#
# Why it matters: a comparison of implementations by relative error fails for the better one. A test of gradients by
# finite differences in single precision finds a flat function. A -∞, as masks have, becomes NaN instead of 0.
#
# Source: PyTorch's documentation of `torch.nn.GELU`, and ONNX's operator `Gelu`, give the formula; the behaviour was
# observed.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0 torch==2.15.0

"$folder/venv/bin/python" - <<'PYTHON'
import math

import onnxruntime
import torch
from onnx import TensorProto, helper

print("torch", torch.__version__, "onnxruntime", onnxruntime.__version__)
x = torch.tensor([-2.0, -4.0, -5.0, -6.0, -10.0, -math.inf])

ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [len(x)]) for name in "xy"]
graph = helper.make_graph([helper.make_node("Gelu", ["x"], ["y"])], "gelu", ports[:1], ports[1:])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])

exact = [number * math.erfc(-number / math.sqrt(2)) / 2 for number in x[:-1].tolist()]
results = {
    "torch": torch.nn.functional.gelu(x).tolist(),
    "onnxruntime": session.run(None, {"x": x.numpy()})[0].tolist(),
    "x * ndtr(x)": (x * torch.special.ndtr(x)).tolist(),
    "by erfc": (x * torch.special.erfc(-x / math.sqrt(2)) / 2).tolist(),
}
print(f"{'x':>12}", *(f"{number:>12.4g}" for number in x.tolist()))
print(f"{'exact':>12}", *(f"{number:>12.4g}" for number in exact))
for name, found in results.items():
    print(f"{name:>12}", *(f"{number:>12.4g}" for number in found))
    errors = [abs(number / right - 1) for number, right in zip(found, exact)]
    print(f"{'error':>12}", *(f"{error:>12.2g}" for error in errors))
    if name == "by erfc":
        assert max(errors) < 1e-5, "it was right"
        continue
    assert errors[0] < 1e-5, "near 0 it was right"
    assert 1e-4 < errors[1] < errors[2] < 1, "the error grew"
    assert found[3] == found[4] == 0, "it was 0"
    assert math.isnan(found[5]), "it was NaN"

double = torch.nn.functional.gelu(x[:4].double()).tolist()
assert all(abs(number / right - 1) < 1e-5 for number, right in zip(double, exact)), "in double precision it was right"
PYTHON
