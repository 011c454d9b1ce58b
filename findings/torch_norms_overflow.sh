#!/usr/bin/env bash
# PyTorch's normalisations of finite numbers above 1e19 are exactly 0, or NaN, by layer and by size.
#
# One would guess: a normalisation does not depend on the size of its input. Or else, where the squares of float32
# overflow, the result is infinite or NaN, so that a check for finite numbers finds it.
#
# What happens: `rms_norm` of (1, -1, 2, 0.5) times 1e19 or more is 0 in every element, since it divides by an infinite
# root. `layer_norm` and `group_norm` are 0 at 1e19 and NaN from 1e20 on. In float64, all are right.
#
# Why it matters: activations that grow without bound become a layer that outputs its bias. The loss stays finite, and
# `clip_grad_norm_(..., error_if_nonfinite=True)` and anomaly detection see nothing.
#
# Source: PyTorch's documentation of `nn.RMSNorm`, `nn.LayerNorm` and `nn.GroupNorm`, whose formulas have no limit; the
# values below were observed on the CPU.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.15.0 numpy==2.4.6

"$folder/venv/bin/python" - <<'PYTHON'
import torch
import torch.nn.functional as F

print("torch", torch.__version__)
norms = {
    "rms_norm": lambda x: F.rms_norm(x, [4], eps=1e-5),
    "layer_norm": lambda x: F.layer_norm(x, [4]),
    "group_norm": lambda x: F.group_norm(x.reshape(1, 4, 1, 1), 1).reshape(1, 4),
}


def kind(name, size):
    x = torch.tensor([[1.0, -1.0, 2.0, 0.5]]) * size
    y, right = norms[name](x), norms[name](x.double())
    assert torch.isfinite(x).all() and torch.isfinite(right).all()
    if torch.isnan(y).all():
        return "NaN"
    if (y == 0).all():
        return "0"
    return "right" if torch.allclose(y.double(), right, rtol=1e-5) else "wrong"


for name, expected in [
    ("rms_norm", ["right", "0", "0", "0"]),
    ("layer_norm", ["right", "0", "NaN", "NaN"]),
    ("group_norm", ["right", "0", "NaN", "NaN"]),
]:
    found = [kind(name, size) for size in (1e18, 1e19, 1e20, 1e30)]
    print(f"{name} at 1e18, 1e19, 1e20, 1e30: {found}")
    assert found == expected, f"this has changed: expected {expected}"
PYTHON
echo "as described"
