#!/usr/bin/env bash
# PyTorch's layers disagree with each other, and with themselves, about a sequence that is all padding.
#
# One would guess: `nn.TransformerEncoderLayer` computes the same in training mode without dropout as in evaluation
# mode, and whether `nn.MultiheadAttention` also returns its weights (`need_weights`, the default) does not change its
# result.
#
# What happens: for a sequence whose `key_padding_mask` is True everywhere, the layer's result is finite with gradients
# enabled, in either mode. Under `torch.no_grad()` in evaluation mode, where a fast path takes over, all of it is NaN.
# `nn.MultiheadAttention` gives NaN with `need_weights=True`, and the bias of its output without: the second goes through
# `scaled_dot_product_attention`, whose softmax gives 0 for a row without keys, the first through a plain softmax.
#
# Why it matters: a model trains on batches with empty sequences and no warning, then gives NaN when it is evaluated.
# Who compares numbers with PyTorch must say which path gave them: only that of `scaled_dot_product_attention` gives 0.
#
# Source: PyTorch's documentation of `nn.MultiheadAttention` ("need_weights", "fast path") and of
# `torch.nn.functional.scaled_dot_product_attention`; the values below were observed.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.15.0 numpy==2.4.6

"$folder/venv/bin/python" - <<'PYTHON'
import warnings

import torch
from torch import nn

warnings.simplefilter("ignore")
print("torch", torch.__version__)
torch.manual_seed(0)
x = torch.randn(2, 3, 4)
padding = torch.tensor([[False, False, True], [True, True, True]])


def finite(y):
    """Whether each of the two sequences is finite. Position 2 of the first is padding as well, but sees the others."""
    return [bool(torch.isfinite(sequence).all()) for sequence in y]


layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True)
found = {}
for mode in ("train", "eval"):
    getattr(layer, mode)()
    found[f"encoder layer, {mode}(), gradients"] = finite(layer(x, src_key_padding_mask=padding)[:, :2])
    with torch.no_grad():
        found[f"encoder layer, {mode}(), no_grad"] = finite(layer(x, src_key_padding_mask=padding)[:, :2])
attention = nn.MultiheadAttention(4, 2, batch_first=True)
for weights in (True, False):
    y, _ = attention(x, x, x, key_padding_mask=padding, need_weights=weights)
    found[f"attention, need_weights={weights}"] = finite(y)
for name, values in found.items():
    print(f"{name}: finite in [a padded sequence, one of padding alone]: {values}")

nan = [True, False]
expected = {name: nan if name in ("encoder layer, eval(), no_grad", "attention, need_weights=True") else [True, True] for name in found}
assert found == expected, f"this has changed: expected {expected}"
bias = attention.out_proj.bias.detach()
y, _ = attention(x, x, x, key_padding_mask=padding, need_weights=False)
assert torch.equal(y[1], bias.expand(3, 4)), "an empty sequence got something other than the bias"
PYTHON
echo "as described"
