#!/usr/bin/env bash
# PyTorch's exporter to ONNX drops the label smoothing of a cross-entropy.
#
# One would guess: an exported model computes what the model does, or the export fails.
#
# What happens: `torch.onnx.export(..., dynamo=True)` exports `F.cross_entropy(x, y, label_smoothing=0.2)` without an
# error or a warning. The graph is that of `F.cross_entropy(x, y)`, and so are its results.
#
# Why it matters: a loss or a metric inside of an exported model differs from PyTorch's, by a few percent that look like
# a fault of whoever runs the file. A reader of ONNX files cannot see that anything is missing.
#
# Source: the documentation of torch.nn.functional.cross_entropy and torch.onnx.export; the behaviour was observed.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.15.0 numpy==2.4.6 onnx==1.23.2 onnxscript==0.7.2 onnxruntime==1.32.0

"$folder/venv/bin/python" - "$folder/loss.onnx" <<'PYTHON'
import sys

import onnx
import onnxruntime
import torch
import torch.nn.functional as F

print("torch", torch.__version__)


class Loss(torch.nn.Module):
    def forward(self, x, y):
        return F.cross_entropy(x, y, label_smoothing=0.2)


torch.manual_seed(0)
x, y = torch.randn(8, 5), torch.arange(8) % 5
torch.onnx.export(Loss(), (x, y), sys.argv[1], dynamo=True, verbose=False)
session = onnxruntime.InferenceSession(sys.argv[1])
feeds = {input.name: value.numpy() for input, value in zip(session.get_inputs(), (x, y))}
exported = session.run(None, feeds)[0].item()
smoothed, plain = Loss()(x, y).item(), F.cross_entropy(x, y).item()
print(f"PyTorch {smoothed:.6f}, exported {exported:.6f}, without smoothing {plain:.6f}")
print("operators:", [node.op_type for node in onnx.load(sys.argv[1]).graph.node])
assert abs(smoothed - plain) > 1e-3, "smoothing makes a difference"
assert abs(exported - plain) < 1e-5, "this has changed"
PYTHON
echo "as described"
