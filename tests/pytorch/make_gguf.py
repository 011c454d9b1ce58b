#!/usr/bin/env python3
"""Writes `types.gguf`, with a tensor of every type that is read and of one that is not, and the numbers that the package `gguf`
decodes from it, `types_gguf.safetensors`.

    pip install gguf==0.19.0 safetensors
    python3 tests/pytorch/make_gguf.py
"""

from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import save_file

HERE = Path(__file__).parent
QUANTISED = "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K".split()
# The places of the halves in a block of the types that the package does not encode: their other bytes may be any.
HALVES = {"Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}


def quantised(name, rng):
    """Three blocks, two of which have numbers of ordinary size."""
    kind = Type[name]
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    if name not in HALVES:
        return gguf.quantize(rng.standard_normal((3, elements), np.float32) * [[1], [100], [1e-3]], kind)
    blocks = rng.integers(0, 256, (3, size), np.uint8)
    for at in HALVES[name]:
        blocks[:, at : at + 2] = rng.standard_normal((3, 1)).astype(np.float16).view(np.uint8)
    return blocks


def main():
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(HERE / "types.gguf", "test")
    writer.add_name("every type")
    writer.add_array("tokens", ["a", "ä", ""])
    expected = {}
    numbers = rng.standard_normal((2, 3, 4), np.float32)
    for name in "float32 float64 float16 int8 int16 int32 int64".split():
        expected[f"plain.{name}"] = (numbers * 50).astype(name)
        writer.add_tensor(f"plain.{name}", expected[f"plain.{name}"])
    halves = gguf.quantize(numbers, Type.BF16)
    writer.add_tensor("plain.bfloat16", halves, raw_dtype=Type.BF16)
    expected["plain.bfloat16"] = gguf.dequantize(halves, Type.BF16)
    for name in QUANTISED:
        blocks = quantised(name, rng)
        writer.add_tensor(f"blk.{name}.weight", blocks, raw_dtype=Type[name])
        expected[f"blk.{name}.weight"] = gguf.dequantize(blocks, Type[name])
        assert np.isfinite(expected[f"blk.{name}.weight"]).all(), name
    writer.add_tensor("other", np.zeros((1, 54), np.uint8), raw_dtype=Type.TQ1_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_file({name: np.ascontiguousarray(x) for name, x in expected.items()}, HERE / "types_gguf.safetensors")


if __name__ == "__main__":
    main()
