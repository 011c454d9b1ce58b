#!/usr/bin/env bash
# PyTorch's gradient of hardsigmoid in double precision has a slope that was rounded to single precision.
#
# One would guess: a function of float64 has a float64 gradient, exact to about 1e-16. Between -3 and 3, the slope of
# hardsigmoid is 1/6.
#
# What happens: on the CPU, the slope is the float32 nearest to 1/6, which is off by 3e-8. The forward result, and both
# directions of hardswish, have the precision of a double.
#
# Why it matters: double precision is what one compares other implementations in. With a tolerance for doubles, the one
# that is exact seems wrong; so does a finite difference, if it is precise enough.
#
# Source: the formula in PyTorch's documentation of Hardsigmoid, x/6 + 1/2; the values below were observed.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.15.0 numpy==2.4.6

"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
import torch
import torch.nn.functional as F

print("torch", torch.__version__)
x = torch.linspace(-2, 2, 9, dtype=torch.float64, requires_grad=True)

y = F.hardsigmoid(x)
assert (y - (x / 6 + 0.5)).abs().max() < 1e-15, "the result is that of a double"
(slope,) = torch.autograd.grad(y.sum(), x)
print(f"slope of hardsigmoid: {slope[0].item()!r}; 1/6 is {1 / 6!r}")
assert (slope == float(np.float32(1 / 6))).all(), "this has changed"

(slope,) = torch.autograd.grad(F.hardswish(x).sum(), x)
assert (slope - (2 * x + 3) / 6).abs().max() < 1e-15, "hardswish has the slope of a double"
PYTHON
echo "as described"
