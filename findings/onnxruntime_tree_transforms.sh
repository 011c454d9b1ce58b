#!/usr/bin/env bash
# onnxruntime takes the numbers of two transforms of `TreeEnsemble` for each other.
#
# One would guess: `post_transform = 1` is a softmax and `2` a logistic function, as ONNX numbers them.
#
# What happens: onnxruntime computes the logistic function for 1, and the softmax for 2.
#
# Why it matters: scores differ from those of a reader that follows ONNX, and a file that was made to suit onnxruntime
# is wrong elsewhere. The older `TreeEnsembleClassifier` and `TreeEnsembleRegressor` name the transforms, and agree.
#
# Source: the attribute `post_transform` of TreeEnsemble in the operators of ai.onnx.ml; the behaviour was observed.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0

"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

print("onnxruntime", onnxruntime.__version__)
print(onnx.defs.get_schema("TreeEnsemble", "ai.onnx.ml").attributes["post_transform"].description)


def scores(transform):
    """Of two trees with one comparison each, one for each of two targets, all of whose leaves weigh 1 and -1."""
    array = lambda numbers, dtype=np.float32: numpy_helper.from_array(np.array(numbers, dtype))
    node = helper.make_node(
        "TreeEnsemble",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        tree_roots=[0, 1],
        nodes_featureids=[0, 0],
        nodes_modes=array([0, 0], np.uint8),
        nodes_splits=array([0.0, 0.0]),
        nodes_truenodeids=[0, 2],
        nodes_trueleafs=[1, 1],
        nodes_falsenodeids=[1, 3],
        nodes_falseleafs=[1, 1],
        leaf_targetids=[0, 0, 1, 1],
        leaf_weights=array([1.0, 1.0, -1.0, -1.0]),
        n_targets=2,
        post_transform=transform,
    )
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, width]) for name, width in [("x", 1), ("y", 2)]]
    graph = helper.make_graph([node], "trees", values[:1], values[1:])
    sets = [helper.make_opsetid("ai.onnx.ml", 5), helper.make_opsetid("", 21)]
    model = helper.make_model(graph, opset_imports=sets, ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": np.zeros((1, 1), np.float32)})[0][0]


raw = np.array([1.0, -1.0])
logistic, softmax = 1 / (1 + np.exp(-raw)), np.exp(raw) / np.exp(raw).sum()
for transform in (0, 1, 2):
    print(transform, scores(transform))
print("logistic", logistic, "softmax", softmax)
assert np.allclose(scores(0), raw)
assert np.allclose(scores(1), logistic) and np.allclose(scores(2), softmax), "this has changed"
PYTHON
echo "as described"
