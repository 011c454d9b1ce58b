#!/usr/bin/env bash
# onnxruntime's Cast to float8 without saturation: some finite numbers beyond the range become the largest float8 number,
# or NaN where infinity is right.
#
# One would guess: with `saturate=0`, whatever rounds to more than the largest number becomes NaN in E4M3FN, which has no
# infinity, and infinity in E5M2. So there is one threshold: 464 for E4M3FN, halfway between 448 and the next step, and
# 61440 for E5M2.
#
# What happens: in E4M3FN 465 to 479 become NaN, 480 to 495 become 448 again, and 496 and more NaN. In E5M2 61440 to
# 65535 become NaN, and 65536 and more infinity. Negative numbers do the same. With `saturate=1` all of them become the
# largest number, as they should.
#
# Why it matters: a cast without saturation is there to make overflow visible. A tensor with 485 in it is cast without a
# trace of overflow, and a test of infinities finds none for 63000. A comparison of another implementation with
# onnxruntime fails in these bands only.
#
# Source: the table of conversions to float8 in ONNX's description of Cast; the values below were observed.
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


def through(kind, numbers, saturate):
    """The numbers after a cast to an 8-bit type and back."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [len(numbers)]) for name in ("wide", "again")]
    nodes = [
        helper.make_node("Cast", ["wide"], ["narrow"], to=kind, saturate=saturate),
        helper.make_node("Cast", ["narrow"], ["again"], to=TensorProto.FLOAT),
    ]
    graph = helper.make_graph(nodes, "casts", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"wide": np.array(numbers, np.float32)})[0]


NAN, INF = float("nan"), float("inf")
for name, kind, most, seen, right in [
    (
        "E4M3FN",
        TensorProto.FLOAT8E4M3FN,
        448,
        {464: 448, 465: NAN, 479: NAN, 480: 448, 485: 448, 496: NAN, 1e9: NAN},
        {464: 448, 465: NAN, 479: NAN, 480: NAN, 485: NAN, 496: NAN, 1e9: NAN},
    ),
    (
        "E5M2",
        TensorProto.FLOAT8E5M2,
        57344,
        {61439: 57344, 61440: NAN, 63000: NAN, 65535: NAN, 65536: INF, 1e30: INF},
        {61439: 57344, 61440: INF, 63000: INF, 65535: INF, 65536: INF, 1e30: INF},
    ),
]:
    numbers = list(seen)
    for sign in (1, -1):
        signed = [sign * x for x in numbers]
        found = through(kind, signed, 0)
        for x, y in zip(signed, found):
            print(f"{name}: {x:g} becomes {y:g}; right: {sign * right[abs(x)]:g}")
        expected = np.array([sign * y for y in seen.values()], np.float32)
        np.testing.assert_array_equal(found, expected, "this has changed")
        np.testing.assert_array_equal(through(kind, signed, 1), np.full(len(signed), sign * most, np.float32))
    assert any(not np.array_equal(seen[x], right[x], equal_nan=True) for x in numbers)
PYTHON
echo "as described"
