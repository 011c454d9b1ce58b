#!/usr/bin/env python3
"""Writes the cases of ONNX's backend suite as files that the program of this folder reads.

    python3 tests/onnx/suite.py DIR

For each case there are `KIND/NAME.onnx`; `KIND/NAME.json` with the relative and the absolute tolerance, the number of inputs and outputs
of each call, and the names that a clear error may use; and `KIND/NAME.safetensors` with the tensors `CALL.input.K` and `CALL.output.K`.
Floats are widened to `F64`, integers and conditions to `I64`, or `U64` where they are unsigned and of 64 bits. Values that are no tensors
of numbers are left out. Needs onnx, numpy and safetensors; `cargo xtask onnx-suite` installs them.
"""

import argparse
import json
import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests
from safetensors.numpy import save_file

KINDS = ["node", "simple", "pytorch-converted", "pytorch-operator"]


def widened(value):
    """A value as an array of one of the widest types; `None` if it is not a tensor of numbers."""
    if isinstance(value, onnx.TensorProto):
        value = numpy_helper.to_array(value)
    if not isinstance(value, (np.ndarray, np.generic)):
        return None
    value = np.asarray(value)
    if value.dtype == np.uint64:
        wide = np.uint64
    elif value.dtype.kind in "iub" or value.dtype.name.startswith(("int", "uint")):
        wide = np.int64
    # Types of the package ml_dtypes, such as bfloat16, are of kind V.
    elif value.dtype.kind in "fV":
        wide = np.float64
    else:
        return None
    return np.array(value, dtype=wide, order="C")


def of_disk(folder, model):
    """The calls of a case that is kept in files: lists of inputs and outputs."""
    calls = []
    for data in sorted(Path(folder).glob("test_data_set_*"), key=lambda path: int(path.name.rsplit("_", 1)[1])):
        values = {}
        for what, ports in [("input", model.graph.input), ("output", model.graph.output)]:
            files = sorted(data.glob(f"{what}_*.pb"), key=lambda path: int(path.stem.rsplit("_", 1)[1]))
            values[what] = []
            for port, file in zip(ports, files):
                tensor = None
                if port.type.HasField("tensor_type"):
                    tensor = onnx.TensorProto.FromString(file.read_bytes())
                values[what].append(tensor)
        calls.append((values["input"], values["output"]))
    return calls


def nodes(graph):
    """The nodes of a graph, and of those inside them."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from nodes(attribute.g)


def names(model):
    """What a clear error names: operators, values."""
    graph = model.graph
    operators = sorted({node.op_type for node in nodes(graph)})
    values = sorted({value.name for value in [*graph.input, *graph.output, *graph.initializer] if value.name})
    return operators, values


def write(folder, case):
    model, calls = case.model, case.data_sets
    if model is None:
        model = onnx.load(Path(case.model_dir) / "model.onnx")
        calls = of_disk(case.model_dir, model)
    path = folder / case.kind / case.name
    tensors = {}
    for number, (inputs, outputs) in enumerate(calls):
        for what, values in [("input", inputs), ("output", outputs)]:
            for k, value in enumerate(values):
                array = widened(value)
                if array is not None:
                    tensors[f"{number}.{what}.{k}"] = array
    operators, values = names(model)
    info = {
        "rtol": case.rtol,
        "atol": case.atol,
        "calls": [[len(inputs), len(outputs)] for inputs, outputs in calls],
        "operators": operators,
        "values": values,
    }
    path.with_suffix(".onnx").write_bytes(model.SerializeToString())
    path.with_suffix(".json").write_text(json.dumps(info))
    save_file(tensors, path.with_suffix(".safetensors"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    # Some cases divide by zero on purpose.
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    count = 0
    for kind in KINDS:
        (options.folder / kind).mkdir(parents=True, exist_ok=True)
        for case in load_model_tests(kind=kind):
            write(options.folder, case)
            count += 1
    print(f"onnx {onnx.__version__}: {count} cases in {options.folder}")
    sys.exit(0 if count else 1)


if __name__ == "__main__":
    main()
