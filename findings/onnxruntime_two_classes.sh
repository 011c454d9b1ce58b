#!/usr/bin/env bash
# onnxruntime's ensembles of trees give labels that are no classes, if both of two classes have weights.
#
# One would guess: `TreeEnsembleClassifier` gives the label of the class with the largest score, and every label is one
# of `classlabels_int64s`.
#
# What happens: with two classes, both of which have weights in the leaves, the label is 0 or 1 whatever the classes are
# called, and whether it is 1 depends on the second class alone: its score is above 0. The scores are right. With weights
# for one of the two classes, or with three classes, labels are those of the classes.
#
# Why it matters: scores and labels of one call contradict each other, without an error. A forest with probabilities in
# its leaves has the label 1 wherever the second class has any probability.
#
# Source: `TreeEnsembleClassifier` in the operators of ai.onnx.ml; the behaviour was observed.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0

"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
import onnxruntime
from onnx import TensorProto, helper

print("onnxruntime", onnxruntime.__version__)


def call(labels, weights):
    """Labels and scores of two rows that reach the two leaves of a tree. `weights` has those of a leaf's classes."""
    leaves = [(leaf, number, weight) for leaf, row in enumerate(weights, 1) for number, weight in row.items()]
    node = helper.make_node(
        "TreeEnsembleClassifier",
        ["x"],
        ["label", "scores"],
        domain="ai.onnx.ml",
        nodes_treeids=[0, 0, 0],
        nodes_nodeids=[0, 1, 2],
        nodes_featureids=[0, 0, 0],
        nodes_values=[0.0, 0.0, 0.0],
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"],
        nodes_truenodeids=[1, 0, 0],
        nodes_falsenodeids=[2, 0, 0],
        class_treeids=[0] * len(leaves),
        class_nodeids=[leaf for leaf, _, _ in leaves],
        class_ids=[number for _, number, _ in leaves],
        class_weights=[weight for _, _, weight in leaves],
        classlabels_int64s=labels,
    )
    port = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node],
        "trees",
        [port("x", TensorProto.FLOAT, [2, 1])],
        [port("label", TensorProto.INT64, None), port("scores", TensorProto.FLOAT, None)],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    label, scores = session.run(None, {"x": np.array([[-1.0], [1.0]], np.float32)})
    print(f"classes {labels}: labels {label.tolist()}, scores {np.round(scores, 3).tolist()}")
    return label.tolist()


found = [
    call([5, 9], [{0: 0.8, 1: 0.2}, {0: 0.3, 1: 0.7}]),
    call([5, 9], [{0: 0.8, 1: -0.2}, {0: 0.1, 1: 0.9}]),
    call([5, 9], [{1: 0.2}, {1: 0.7}]),
    call([5, 9, 11], [{0: 0.8, 1: 0.2}, {0: 0.3, 2: 0.7}]),
]
assert found == [[1, 1], [0, 1], [5, 9], [5, 11]], "this has changed"
PYTHON
echo "as described"
