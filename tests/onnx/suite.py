#!/usr/bin/env python3
"""Writes the cases of ONNX's backend suite as files that the program of this folder reads.

    python3 tests/onnx/suite.py DIR

For each case there are `KIND/NAME.onnx`; `KIND/NAME.json` with the relative and the absolute tolerance, the number of inputs and outputs
of each call, the names that a clear error may use, and the values that are no tensors of numbers; and `KIND/NAME.safetensors` with the
tensors `CALL.input.K` and `CALL.output.K`, or `CALL.input.K.I` in a sequence. Floats are widened to `F64`, integers and conditions to
`I64`, or `U64` where they are unsigned and of 64 bits. Needs onnx, numpy and safetensors; `cargo xtask onnx-suite` installs them.
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


def read(file, port):
    """The value in a file."""
    if port.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(file))
    if port.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(file))
    if port.HasField("tensor_type"):
        return onnx.TensorProto.FromString(file)
    return None


def store(name, value, port, tensors, others):
    """Adds a value to the tensors of numbers, or to the other values; to neither if it is of another kind, such as a map."""
    if isinstance(value, onnx.TensorProto):
        value = numpy_helper.to_array(value)
    if isinstance(value, (list, tuple)):
        others[name] = {"sequence": len(value)}
        for k, item in enumerate(value):
            store(f"{name}.{k}", item, None, tensors, others)
        return
    if value is None and port is not None and port.HasField("optional_type"):
        others[name] = {"nothing": True}
    if isinstance(value, str):
        value = np.array(value, dtype=object)
    if isinstance(value, np.ndarray) and value.dtype.kind in "OUS":
        texts = [text.decode() if isinstance(text, bytes) else str(text) for text in value.reshape(-1)]
        others[name] = {"dims": list(value.shape), "texts": texts}
        return
    array = widened(value)
    if array is not None:
        tensors[name] = array


def of_disk(folder, model):
    """The calls of a case that is kept in files: lists of inputs and outputs."""
    calls = []
    for data in sorted(Path(folder).glob("test_data_set_*"), key=lambda path: int(path.name.rsplit("_", 1)[1])):
        values = {}
        for what, ports in [("input", model.graph.input), ("output", model.graph.output)]:
            files = sorted(data.glob(f"{what}_*.pb"), key=lambda path: int(path.stem.rsplit("_", 1)[1]))
            values[what] = []
            for port, file in zip(ports, files):
                values[what].append(read(file.read_bytes(), port.type))
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
    tensors, others = {}, {}
    initial = {tensor.name for tensor in model.graph.initializer}
    ports = [[port for port in model.graph.input if port.name not in initial], list(model.graph.output)]
    for number, (inputs, outputs) in enumerate(calls):
        for what, values, types in [("input", inputs, ports[0]), ("output", outputs, ports[1])]:
            for k, value in enumerate(values):
                store(f"{number}.{what}.{k}", value, types[k].type if k < len(types) else None, tensors, others)
    operators, values = names(model)
    info = {
        "rtol": case.rtol,
        "atol": case.atol,
        "calls": [[len(inputs), len(outputs)] for inputs, outputs in calls],
        "operators": operators,
        "values": values,
        "others": others,
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
