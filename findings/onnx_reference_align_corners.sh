#!/usr/bin/env bash
# ONNX's reference implementation of Resize does not align corners, unless the scale gives a whole length.
#
# One would guess: with `coordinate_transformation_mode` "align_corners", the last pixel of the result shows the last
# pixel of the image, in every implementation.
#
# What happens: four pixels at a scale of 0.6 become two. The reference implementation of the package `onnx` maps the
# second one by the length 2.4, which is not rounded, to place 2.14 of 3. onnxruntime maps it to the last pixel. ONNX's
# own tests of backends are computed by the reference, so onnxruntime gives other numbers there.
#
# Why it matters: an importer that passes ONNX's test of this mode disagrees with onnxruntime, and the other way round.
# One has to choose, and to say so beside the test.
#
# Source: ONNX's description of Resize, where the formula takes the length of the resized tensor; `onnx.reference`;
# onnxruntime's CPU provider; the values below were observed.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet onnx==1.23.2 onnxruntime==1.32.0

"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

print("onnx", onnx.__version__, "onnxruntime", onnxruntime.__version__)
node = helper.make_node(
    "Resize", ["x", "", "scales"], ["y"], mode="linear", coordinate_transformation_mode="align_corners")
graph = helper.make_graph(
    [node], "row",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 1, 4]),
     helper.make_tensor_value_info("scales", TensorProto.FLOAT, [4])],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
reference = ReferenceEvaluator(model)
x = np.array([[[[1, 2, 3, 4]]]], np.float32)
for scale, of_runtime, of_reference in [(0.6, [1, 4], [1, 3.142857]), (0.5, [1, 4], [1, 4])]:
    inputs = {"x": x, "scales": np.array([1, 1, 1, scale], np.float32)}
    found = [np.asarray(run(None, inputs)[0]).ravel() for run in (session.run, reference.run)]
    print(f"scale {scale}: onnxruntime {found[0]}, reference {found[1]}")
    for name, values, expected in zip(("onnxruntime", "the reference"), found, (of_runtime, of_reference)):
        assert np.allclose(values, expected, atol=1e-5), f"this has changed: {name} gave {values}, not {expected}"
PYTHON
echo "as described"
