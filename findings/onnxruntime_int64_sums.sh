#!/usr/bin/env bash
# onnxruntime's ReduceSum and ReduceProd of int64 are not exact beyond 2^53.
#
# One would guess: sums and products of 64-bit integers are exact up to 2^63, as NumPy's and PyTorch's are, and wrap
# around beyond that.
#
# What happens: on the CPU, 2^53 + 1 plus 0 is 2^53, and 94906267² ends in 8 instead of 9, as if the numbers passed
# through doubles. The axis does not matter. Add and Mul of the same numbers are exact.
#
# Why it matters: sums of hashes, identifiers or fixed-point numbers, and products of large extents, differ in their last
# digits from the framework that exported the model. A comparison with onnxruntime blames the implementation that is
# exact.
#
# Source: ONNX's descriptions of ReduceSum and ReduceProd, whose types include int64; the values below were observed.
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


def run(op, **inputs):
    of = {name: helper.make_tensor_value_info(name, TensorProto.INT64, x.shape) for name, x in inputs.items()}
    node = helper.make_node(op, list(inputs), ["y"])
    result = helper.make_tensor_value_info("y", TensorProto.INT64, None)
    graph = helper.make_graph([node], "integers", list(of.values()), [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, inputs)[0].item()


for reduced, exact, numbers, seen in [
    ("ReduceSum", "Add", [2**53 + 1, 0], 2**53),
    ("ReduceProd", "Mul", [94906267, 94906267], 94906267**2 - 1),
]:
    a, b = np.array(numbers, np.int64)
    right = int(a + b if exact == "Add" else a * b)
    for shape, axis in [([1, 2], 1), ([2, 1], 0)]:
        found = run(reduced, x=np.array(numbers, np.int64).reshape(shape), axes=np.array([axis], np.int64))
        print(f"{reduced} of {numbers} along axis {axis}: {found}; exact: {right}")
        assert found == seen != right, f"this has changed: expected {seen}"
    assert run(exact, a=np.array([a]), b=np.array([b])) == right, f"{exact} is exact"
PYTHON
echo "as described"
