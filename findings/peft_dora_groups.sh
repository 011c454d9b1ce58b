#!/usr/bin/env bash
# peft normalises DoRA's weights of grouped convolutions by a norm that is not theirs.
#
# One would guess: with DoRA, each filter is scaled to the length that the magnitude vector has for it, so the norm of
# the filter of the adapted layer is this magnitude, for any number of groups.
#
# What happens: for one group it is. With more, the filters that the layer applies have other lengths, from 0.65 to 1.74
# times the magnitudes below: the norm by which the layer divides is not that of the sum of its weight and its update.
#
# Why it matters: an implementation that follows DoRA's formula differs from an adapter that peft trained by tens of
# percent, and the magnitudes of such an adapter are no lengths of anything.
#
# Source: the paper of DoRA, "Weight-Decomposed Low-Rank Adaptation", equation 5; the behaviour was observed.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet peft==0.21.2 torch==2.15.0

"$folder/venv/bin/python" - <<'PYTHON'
import warnings

import peft
import torch
from torch import nn

warnings.simplefilter("ignore")
torch.manual_seed(0)
print("peft", peft.__version__, "torch", torch.__version__.split("+")[0])


def lengths(groups):
    """The norms of the filters that a layer with an adapter applies, as parts of its magnitudes."""
    net = nn.Sequential(nn.Conv2d(8, 12, 3, padding=1, groups=groups, bias=False)).double()
    config = peft.LoraConfig(target_modules=["0"], r=4, use_dora=True)
    model = peft.get_peft_model(net, config).double().eval()
    layer = model.base_model.model[0]
    with torch.no_grad():
        layer.lora_B["default"].weight.normal_(std=0.3)
        # The answers to impulses are the filters, whatever the layer does inside.
        impulses = torch.eye(8 * 9, dtype=torch.double).reshape(72, 8, 3, 3)
        filters = model(impulses)[:, :, 1, 1].T
        return filters.norm(dim=1) / layer.lora_magnitude_vector["default"].weight.flatten()


for groups in [1, 2, 4]:
    found = lengths(groups)
    print(f"{groups} groups: lengths of {found.min():.3f} to {found.max():.3f} times the magnitudes")
    is_right = bool((found - 1).abs().max() < 1e-9)
    assert is_right == (groups == 1), "this has changed"
PYTHON
echo "as described"
