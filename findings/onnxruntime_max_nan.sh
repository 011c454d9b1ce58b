#!/usr/bin/env bash
# onnxruntime's ArgMax, ArgMin and ReduceMax pass over a NaN, unless it is the first element.
#
# One would guess: a row with a NaN has the maximum NaN, at the NaN's index, as in NumPy and PyTorch; or NaN is passed
# over everywhere, as by `numpy.nanmax`.
#
# What happens: a NaN at index 0 wins, because no later element compares as greater. A NaN anywhere else loses: ArgMax
# and ReduceMax give the largest number.
#
# Why it matters: a classifier that broke and gives NaN still names a class, and whether it does depends on the position
# of the NaN. An export that promises the framework's values needs IsNaN in front of ArgMax.
#
# Source: ONNX's descriptions of ArgMax and ReduceMax, which do not mention NaN; onnxruntime's CPU provider; the values below were
# observed.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6

"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
import onnxruntime
from onnx import TensorProto, helper

print("onnxruntime", onnxruntime.__version__)


def session(op, result, **attributes):
    node = helper.make_node(op, ["x"], ["y"], keepdims=0, **attributes)
    graph = helper.make_graph(
        [node], "rows", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3])],
        [helper.make_tensor_value_info("y", result, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


argmax = session("ArgMax", TensorProto.INT64, axis=1)
argmin = session("ArgMin", TensorProto.INT64, axis=1)
largest = session("ReduceMax", TensorProto.FLOAT, axes=[1])
nan = np.nan
for row, guess, seen, maximum in [
    ([nan, 1, 2], (0, 0), (0, 0), nan),
    ([1, nan, 2], (1, 1), (2, 0), 2),
    ([2, 1, nan], (2, 2), (0, 1), 2),
]:
    x = np.array([row], np.float32)
    assert (np.argmax(x), np.argmin(x)) == guess and np.isnan(x.max()), "NumPy finds the NaN"
    found = tuple(int(op.run(None, {"x": x})[0].item()) for op in (argmax, argmin))
    value = largest.run(None, {"x": x})[0].item()
    print(f"{row}: ArgMax and ArgMin {found}, ReduceMax {value}; NumPy {guess}")
    assert found == seen, f"this has changed: expected {seen}"
    assert value == maximum or (np.isnan(value) and np.isnan(maximum)), f"this has changed: expected {maximum}"
PYTHON
echo "as described"
