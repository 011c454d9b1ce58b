#!/usr/bin/env bash
# onnxruntime's Resize takes places within 1e-6 of a half for halves, an absolute bound that no document mentions.
#
# One would guess: with mode "nearest" and `nearest_mode` "round_prefer_floor", the place `(p + 0.5)/scale - 0.5`,
# computed in float, is rounded to the nearest pixel, and only an exact half is rounded down. So says the operator's
# description.
#
# What happens: at a scale of 1.3, pixel 19 comes from place 14.500001 (one float above 14.5), and is rounded down to
# 14. With "round_prefer_ceil" and a scale of 1.2, place 7.4999995 is rounded up to 8. Past place 16, neighbours of a
# half are further than 1e-6 from it, and are rounded as one would guess: place 29.500002 to 30.
#
# Why it matters: an implementation that follows the description picks other source pixels at scales such as 1.2 and
# 1.3, and only on the first pixels of an axis. One pixel off does not look like a rounding error.
#
# Source: ONNX's description of Resize ("nearest_mode"), onnxruntime's CPU provider; the values below were observed.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet onnx==1.23.2 onnxruntime==1.32.0

"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

print("onnxruntime", onnxruntime.__version__)


def source(scale, rounding, places, p):
    """The source pixel of pixel p in a row of 40."""
    node = helper.make_node(
        "Resize", ["x", "", "scales"], ["y"], mode="nearest", nearest_mode=rounding,
        coordinate_transformation_mode=places,
    )
    graph = helper.make_graph(
        [node], "resize",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 1, 40])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array([1, 1, 1, scale], np.float32), "scales")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    row = np.arange(40, dtype=np.float32).reshape(1, 1, 1, 40)
    return int(session.run(None, {"x": row})[0].ravel()[p])


for scale, rounding, places, p, guess, seen in [
    (1.3, "round_prefer_floor", "half_pixel", 19, 15, 14),
    (1.2, "round_prefer_ceil", "asymmetric", 9, 7, 8),
    (1.05, "round_prefer_floor", "half_pixel", 31, 30, 30),
]:
    half = np.float32(0.5 if places == "half_pixel" else 0)
    place = (np.float32(p) + half) / np.float32(scale) - half
    found = source(scale, rounding, places, p)
    print(f"{rounding} at scale {scale}: pixel {p}, place {place:.7f}: guess {guess}, found {found}")
    assert place % 1 != 0.5, "the place is no exact half"
    assert found == seen, "this has changed"
PYTHON
echo "as described"
