#!/usr/bin/env bash
# PEFT's LoRA of a convolution ignores `padding_mode` and `dilation`: merging the adapter changes the model's output.
#
# One would guess: `merge_and_unload()` gives the model that was trained, up to rounding, or refuses, as PEFT does for
# convolutions in groups.
#
# What happens: the adapter's first factor is a convolution with the layer's kernel size, stride and padding, but without
# its `padding_mode` and `dilation`. With `padding_mode="reflect"` or `"circular"`, the adapter pads with zeros in
# training, and with the mode once it is merged, so the outputs along the border differ. With `padding="same"` and a
# dilation, the shapes agree, and all outputs differ.
#
# Why it matters: no warning is given. A model that is evaluated before it is merged, as in training, and served
# merged computes something else; and a program that reads such an adapter as W + s·B·A is wrong as well.
#
# Source: PEFT's class `_ConvNd` in `tuners/lora/layer.py`; the outputs below were observed.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet peft==0.21.2 torch==2.15.0 numpy==2.4.6

"$folder/venv/bin/python" - <<'PYTHON' 2>/dev/null
import peft
import torch
from torch import nn

print("peft", peft.__version__, "torch", torch.__version__)


def change(**settings):
    """The largest change of the output by merging, inside and along the border, relative to the output."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 3, 3, **settings))
    model = peft.get_peft_model(net, peft.LoraConfig(r=2, target_modules=["0"])).eval()
    for name, param in model.named_parameters():
        if "lora_" in name:
            nn.init.normal_(param)
    x = torch.randn(1, 2, 8, 8)
    with torch.no_grad():
        before = model(x).clone()
        after = model.merge_and_unload()(x)
    change = (before - after).abs() / before.abs().max()
    return change[..., 2:-2, 2:-2].max().item(), change.max().item()


for settings, inside, border in [
    ({"padding": 1}, False, False),
    ({"padding": 1, "padding_mode": "reflect"}, False, True),
    ({"padding": 1, "padding_mode": "circular"}, False, True),
    ({"padding": "same", "dilation": 2}, True, True),
]:
    found = change(**settings)
    print(f"{settings}: inside {found[0]:.1e}, along the border {found[1]:.1e}")
    assert (found[0] > 0.01, found[1] > 0.01) == (inside, border), "this has changed"
PYTHON
echo "as described"
