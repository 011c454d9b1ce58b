#!/usr/bin/env python3
"""Writes cases whose outputs `onnxruntime` computes, in the form of `suite.py`: what ONNX's suite has no cases for.

    python3 tests/onnx/onnxruntime_cases.py DIR

They are recurrent layers in all of their forms, the operators of com.microsoft, quantised products with long sums, functions of a file,
nodes in any order, integers that no float holds, resizing in all of its forms, transposed convolutions of given extents, sequences,
regions of images, places between pixels, floats of 8 bits, and linear models and trees of ai.onnx.ml. Weights of type int8 stay within ±60: `onnxruntime` adds products of bytes in pairs of 16 bits, which saturate.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save_file

import suite

MICROSOFT = "com.microsoft"
LEARNED = "ai.onnx.ml"
rng = np.random.default_rng(0)


def floats(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def uint8(*shape):
    return rng.integers(0, 256, shape).astype(np.uint8)


def int8(*shape):
    return rng.integers(-60, 60, shape).astype(np.int8)


def int32(low, high, *shape):
    return rng.integers(low, high, shape).astype(np.int32)


def scalar(number, dtype=np.float32):
    return np.array(number, dtype)


def node(op, inputs, outputs, domain=MICROSOFT, **attributes):
    return helper.make_node(op, inputs, outputs, name=f"{op} of {outputs[0]}", domain=domain, **attributes)


class Writer:
    """Writes cases into a folder."""

    def __init__(self, folder):
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)

    def case(self, name, nodes, inputs, outputs, constants=None, tolerance=1e-4, functions=(), opset=17):
        """A model of these nodes, with what `onnxruntime` computes of the inputs; `outputs` gives the type of each."""
        element = {x.dtype: helper.np_dtype_to_tensor_dtype(x.dtype) for x in inputs.values()}
        graph = helper.make_graph(
            nodes,
            name,
            [helper.make_tensor_value_info(key, element[x.dtype], list(x.shape)) for key, x in inputs.items()],
            [helper.make_tensor_value_info(key, kind, None) for key, kind in outputs.items()],
            [numpy_helper.from_array(x, key) for key, x in (constants or {}).items()],
        )
        sets = {"": opset, MICROSOFT: 1, LEARNED: 5 if nodes[0].op_type == "TreeEnsemble" else 3, **{function.domain: 1 for function in functions}}
        imports = [helper.make_opsetid(domain, version) for domain, version in sets.items()]
        model = helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=8)
        options = onnxruntime.SessionOptions()
        # Several threads quantise parts of a batch by themselves.
        options.intra_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
        results = session.run(None, inputs)
        tensors = {f"0.input.{k}": suite.widened(x) for k, x in enumerate(inputs.values())}
        others = {}
        for k, x in enumerate(results):
            suite.store(f"0.output.{k}", x, None, tensors, others)
        operators, values = suite.names(model)
        counts = [[len(inputs), len(results)]]
        info = {"rtol": tolerance, "atol": tolerance, "calls": counts, "operators": operators, "values": values, "others": others}
        path = self.folder / name
        path.with_suffix(".onnx").write_bytes(model.SerializeToString())
        path.with_suffix(".json").write_text(json.dumps(info))
        save_file(tensors, path.with_suffix(".safetensors"))


FLOAT, INT32, UINT8 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.UINT8
INT64, UINT32, UINT64 = TensorProto.INT64, TensorProto.UINT32, TensorProto.UINT64


def fused(write):
    """Convolutions and products with what follows them."""
    activations = {
        "none": {},
        "relu": {"activation": "Relu"},
        "tanh": {"activation": "Tanh"},
        "sigmoid": {"activation": "Sigmoid"},
        "leaky_relu": {"activation": "LeakyRelu", "activation_params": [0.2]},
        "clip": {"activation": "Clip", "activation_params": [-0.5, 0.7]},
        "hard_sigmoid": {"activation": "HardSigmoid", "activation_params": [0.3, 0.4]},
    }
    weights = {"w": floats(4, 3, 3, 3), "b": floats(4)}
    for name, attributes in activations.items():
        nodes = [node("FusedConv", ["x", "w", "b"], ["y"], pads=[1, 1, 1, 1], strides=[2, 1], **attributes)]
        write.case(f"fused_conv_{name}", nodes, {"x": floats(2, 3, 7, 6)}, {"y": FLOAT}, weights)
    nodes = [node("FusedConv", ["x", "w", "b", "z"], ["y"], pads=[1, 1, 1, 1], activation="Relu")]
    write.case("fused_conv_sum", nodes, {"x": floats(2, 3, 7, 6), "z": floats(2, 4, 7, 6)}, {"y": FLOAT}, weights)
    nodes = [node("FusedGemm", ["a", "b", "c"], ["y"], alpha=0.5, transB=1, activation="LeakyRelu", activation_alpha=0.3)]
    write.case("fused_gemm", nodes, {"a": floats(3, 5)}, {"y": FLOAT}, {"b": floats(4, 5), "c": floats(4)})
    nodes = [node("FusedMatMul", ["a", "b"], ["y"], alpha=0.5, transA=1, transB=1)]
    write.case("fused_matmul", nodes, {"a": floats(2, 5, 3), "b": floats(2, 4, 5)}, {"y": FLOAT})
    one, two = {"a": floats(2, 5)}, {"a": floats(2, 5), "b": floats(5)}
    write.case("bias_gelu", [node("BiasGelu", ["a", "b"], ["y"])], two, {"y": FLOAT})
    write.case("gelu", [node("Gelu", ["a"], ["y"])], one, {"y": FLOAT})
    write.case("fast_gelu", [node("FastGelu", ["a", "b"], ["y"])], two, {"y": FLOAT})
    write.case("quick_gelu", [node("QuickGelu", ["a"], ["y"], alpha=1.5)], one, {"y": FLOAT})


def norms(write):
    """Normalisation of a sum, and of words."""
    inputs = {"a": floats(2, 3, 8), "s": floats(2, 3, 8)}
    weights = {"g": floats(8), "c": floats(8), "b": floats(8)}
    sums = {"y": FLOAT, "sum": FLOAT}
    nodes = [node("SkipLayerNormalization", ["a", "s", "g", "c", "b"], ["y", "", "", "sum"], epsilon=1e-5)]
    write.case("skip_layer_norm", nodes, inputs, sums, weights)
    nodes = [node("SkipLayerNormalization", ["a", "s", "g"], ["y"])]
    write.case("skip_layer_norm_alone", nodes, inputs, {"y": FLOAT}, {"g": weights["g"]})
    nodes = [node("SkipSimplifiedLayerNormalization", ["a", "s", "g", "b"], ["y", "", "", "sum"])]
    write.case("skip_rms_norm", nodes, inputs, sums, {"g": weights["g"], "b": weights["b"]})
    nodes = [node("SimplifiedLayerNormalization", ["a", "g"], ["y"], domain="", epsilon=1e-6, axis=-1, stash_type=1)]
    write.case("rms_norm", nodes, {"a": inputs["a"]}, {"y": FLOAT}, {"g": weights["g"]})
    inputs = {"i": int32(0, 10, 2, 5), "s": int32(0, 2, 2, 5), "m": np.array([[1, 1, 1, 0, 0], [1] * 5], np.int32)}
    tables = {"w": floats(10, 8), "p": floats(12, 8), "t": floats(2, 8), "g": floats(8), "b": floats(8)}
    nodes = [node("EmbedLayerNormalization", ["i", "s", "w", "p", "t", "g", "b", "m"], ["y", "counts", "sum"])]
    write.case("embed_layer_norm", nodes, inputs, {"y": FLOAT, "counts": INT32, "sum": FLOAT}, tables)


def attention(write):
    """Attention whose projections are part of it, and without them."""
    weights = {"w": floats(8, 24), "b": floats(24)}
    masks = {
        "lengths": np.array([3, 5], np.int32),
        "ends": np.array([3, 5, 1, 2], np.int32),
        "keys": np.array([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1]], np.int32),
        "queries": int32(0, 2, 2, 5, 5),
    }
    x = floats(2, 5, 8)
    nodes = [node("Attention", ["x", "w", "b"], ["y"], num_heads=2)]
    write.case("attention", nodes, {"x": x}, {"y": FLOAT}, weights)
    nodes = [node("Attention", ["x", "w", "b"], ["y"], num_heads=2, unidirectional=1)]
    write.case("attention_causal", nodes, {"x": x}, {"y": FLOAT}, weights)
    for name, mask in masks.items():
        nodes = [node("Attention", ["x", "w", "b", "m"], ["y"], num_heads=2)]
        write.case(f"attention_mask_of_{name}", nodes, {"x": x, "m": mask}, {"y": FLOAT}, weights)
    nodes = [node("Attention", ["x", "w", "b", "", "p"], ["y", "present"], num_heads=2, unidirectional=1)]
    write.case("attention_past", nodes, {"x": x, "p": floats(2, 2, 2, 3, 4)}, {"y": FLOAT, "present": FLOAT}, weights)
    nodes = [node("Attention", ["x", "w", "b", "", "", "bias"], ["y"], num_heads=2, scale=0.3)]
    write.case("attention_bias", nodes, {"x": x, "bias": floats(2, 2, 5, 5)}, {"y": FLOAT}, weights)
    nodes = [node("Attention", ["x", "w", "b"], ["y"], num_heads=2, qkv_hidden_sizes=[8, 8, 12])]
    write.case("attention_sizes", nodes, {"x": x}, {"y": FLOAT}, {"w": floats(8, 28), "b": floats(28)})

    inputs, bias = {"q": floats(2, 5, 8), "k": floats(2, 4, 8), "v": floats(2, 4, 8)}, {"b": floats(24)}
    nodes = [node("MultiHeadAttention", ["q", "k", "v", "b"], ["y"], num_heads=2)]
    write.case("multi_head_attention", nodes, inputs, {"y": FLOAT}, bias)
    nodes = [node("MultiHeadAttention", ["q", "k", "v", "b", "m"], ["y"], num_heads=2)]
    mask = np.array([[1, 1, 0, 0], [1, 1, 1, 1]], np.int32)
    write.case("multi_head_attention_mask", nodes, {**inputs, "m": mask}, {"y": FLOAT}, bias)
    names = ["q", "k", "v", "b", "", "", "keys", "values"]
    nodes = [node("MultiHeadAttention", names, ["y", "all_keys", "all_values"], num_heads=2, unidirectional=1)]
    inputs = {name: floats(2, 3, 8) for name in "qkv"} | {"keys": floats(2, 2, 4, 4), "values": floats(2, 2, 4, 4)}
    write.case("multi_head_attention_past", nodes, inputs, {"y": FLOAT, "all_keys": FLOAT, "all_values": FLOAT}, bias)

    positions = np.arange(5, dtype=np.int64)[None].repeat(2, 0)
    angles = {"c": floats(10, 4), "s": floats(10, 4)}
    nodes = [node("RotaryEmbedding", ["x", "p", "c", "s"], ["y"])]
    write.case("rotary", nodes, {"x": floats(2, 2, 5, 8), "p": positions}, {"y": FLOAT}, angles)
    nodes = [node("RotaryEmbedding", ["x", "p", "c", "s"], ["y"], interleaved=1)]
    write.case("rotary_flat", nodes, {"x": floats(2, 5, 16), "p": positions}, {"y": FLOAT}, angles)


def quantised(write):
    """Integers for floats: products, elementwise functions, pools."""
    inner, columns, block = 70, 6, 32
    blocks = -(-inner // block)
    for bits in (2, 4, 8):
        packed = {"b": uint8(columns, blocks, block * bits // 8), "s": floats(columns * blocks)}
        zeros = {"z": uint8(columns * -(-blocks * bits // 8))}
        attributes = {"K": inner, "N": columns, "bits": bits, "block_size": block}
        x = {"a": floats(3, inner)}
        nodes = [node("MatMulNBits", ["a", "b", "s"], ["y"], **attributes)]
        write.case(f"matmul_{bits}_bits", nodes, x, {"y": FLOAT}, packed, tolerance=1e-3)
        nodes = [node("MatMulNBits", ["a", "b", "s", "z"], ["y"], **attributes)]
        write.case(f"matmul_{bits}_bits_zeros", nodes, x, {"y": FLOAT}, packed | zeros, tolerance=1e-3)

    def scales(**zeros):
        """The scale `NAMEs` and the zero point `NAMEz` of each name."""
        pairs = [{f"{name}s": scalar(scale), f"{name}z": scalar(zero, np.uint8)} for name, (scale, zero) in zeros.items()]
        return {key: x for pair in pairs for key, x in pair.items()}

    nodes = [node("QGemm", ["a", "as", "az", "b", "bs", "bz", "c", "ys", "yz"], ["y"], transB=1)]
    weights = {"b": int8(5, 300), "bs": floats(5) ** 2 + 0.01, "bz": np.zeros(5, np.int8), "c": int32(-500, 500, 5)}
    write.case("gemm_of_bytes", nodes, {"a": uint8(3, 300)}, {"y": UINT8}, scales(a=(0.02, 120), y=(0.9, 100)) | weights)
    nodes = [node("DynamicQuantizeMatMul", ["a", "b", "bs", "bz", "c"], ["y"])]
    weights = {"b": int8(300, 5), "bs": scalar(0.02), "bz": scalar(3, np.int8), "c": floats(5)}
    write.case("dynamic_matmul", nodes, {"a": floats(3, 300)}, {"y": FLOAT}, weights)
    nodes = [node("DynamicQuantizeMatMul", ["a", "b", "bs"], ["y"])]
    write.case("dynamic_matmul_columns", nodes, {"a": floats(2, 3, 30)}, {"y": FLOAT}, {"b": uint8(30, 5), "bs": floats(5)})
    for name, directions, batch, kind, with_columns in [
        ("plain", 1, 1, np.int8, False),
        ("both_ways", 2, 1, np.uint8, False),
        ("columns", 2, 3, np.int8, True),
        ("reverse", 1, 2, np.int8, True),
    ]:
        direction = {"both_ways": "bidirectional", "columns": "bidirectional", "reverse": "reverse"}.get(name, "forward")
        scales_of = lambda: (rng.random((directions, 20) if with_columns else directions) * 0.01 + 0.005).astype(np.float32)
        zeros_of = lambda: np.full((directions, 20) if with_columns else directions, 0 if kind == np.int8 else 128, kind)
        make = int8 if kind == np.int8 else uint8
        weights = {"w": make(directions, 7, 20), "r": make(directions, 5, 20), "b": floats(directions, 40)}
        weights |= {"ws": scales_of(), "wz": zeros_of(), "rs": scales_of(), "rz": zeros_of()}
        names = ["x", "w", "r", "b", "", "h", "c", "", "ws", "wz", "rs", "rz"]
        nodes = [node("DynamicQuantizeLSTM", names, ["y", "last", "cell"], hidden_size=5, direction=direction)]
        inputs = {"x": floats(6, batch, 7), "h": floats(directions, batch, 5) / 2, "c": floats(directions, batch, 5)}
        write.case(f"dynamic_lstm_{name}", nodes, inputs, {"y": FLOAT, "last": FLOAT, "cell": FLOAT}, weights, tolerance=1e-3)
    nodes = [node("MatMulIntegerToFloat", ["a", "b", "as", "bs", "az", "bz", "c"], ["y"])]
    weights = scales(a=(0.1, 7)) | {"b": int8(30, 5), "bs": floats(5), "bz": int8(5), "c": floats(5)}
    write.case("matmul_to_float", nodes, {"a": uint8(3, 30)}, {"y": FLOAT}, weights)
    for op in ("QLinearAdd", "QLinearMul"):
        nodes = [node(op, ["a", "as", "az", "b", "bs", "bz", "ys", "yz"], ["y"])]
        constants = scales(a=(0.1, 7), b=(0.2, 99), y=(0.35, 11))
        write.case(op, nodes, {"a": uint8(3, 4), "b": uint8(4)}, {"y": UINT8}, constants)
    for op, attributes in (("QLinearSigmoid", {}), ("QLinearLeakyRelu", {"alpha": 0.1})):
        nodes = [node(op, ["a", "as", "az", "ys", "yz"], ["y"], **attributes)]
        write.case(op, nodes, {"a": uint8(3, 40)}, {"y": UINT8}, scales(a=(0.02, 120), y=(0.01, 11)))
    nodes = [node("QLinearGlobalAveragePool", ["a", "as", "az", "ys", "yz"], ["y"])]
    constants = scales(a=(0.02, 120), y=(0.015, 11))
    write.case("global_average_pool_of_bytes", nodes, {"a": uint8(2, 3, 5, 5)}, {"y": UINT8}, constants)
    nodes = [node("QLinearConcat", ["ys", "yz", "a", "as", "az", "b", "bs", "bz"], ["y"], axis=1)]
    constants = scales(a=(0.02, 120), b=(0.03, 20), y=(0.03, 11))
    write.case("concat_of_bytes", nodes, {"a": uint8(2, 3), "b": uint8(2, 4)}, {"y": UINT8}, constants)
    nodes = [node("QuantizeLinear", ["x", "xs", "xz"], ["q"]), node("DequantizeLinear", ["q", "xs", "xz"], ["y"])]
    write.case("there_and_back", nodes, {"x": floats(3, 4)}, {"y": FLOAT}, scales(x=(0.02, 128)))

    # Sums of more products than are exact at once.
    nodes = [node("MatMulInteger", ["a", "b", "az", "bz"], ["y"], domain="")]
    zeros = {"az": scalar(130, np.uint8), "bz": scalar(120, np.uint8)}
    write.case("long_sums", nodes, {"a": uint8(3, 700), "b": uint8(700, 5)}, {"y": INT32}, zeros)
    names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"]
    nodes = [node("QLinearConv", names, ["y"], domain="", pads=[1, 1, 1, 1])]
    weights = {"w": int8(4, 40, 3, 3), "ws": (floats(4) ** 2 + 0.1) * np.float32(0.02), "wz": np.zeros(4, np.int8)}
    weights |= scales(x=(0.02, 120), y=(0.6, 128)) | {"b": int32(-999, 999, 4)}
    write.case("long_sums_of_a_convolution", nodes, {"x": uint8(1, 40, 6, 6)}, {"y": UINT8}, weights)
    nodes = [node("ConvInteger", ["x", "w", "xz"], ["y"], domain="", group=2, pads=[1, 0, 0, 1])]
    inputs = {"x": uint8(1, 4, 6, 6), "w": uint8(4, 2, 3, 3)}
    write.case("convolution_in_groups", nodes, inputs, {"y": INT32}, {"xz": scalar(3, np.uint8)})


def recurrent(write):
    """Layers in each direction: with and without biases, initial states, lengths, and what is unusual."""
    steps, batch, features, hidden = 5, 3, 4, 6
    for op, gates, parts in (("LSTM", 4, 2), ("GRU", 3, 1), ("RNN", 1, 1)):
        outputs = dict.fromkeys(["y", "yh", "yc"][: 1 + parts], FLOAT)
        functions = {"LSTM": ["HardSigmoid", "Softsign", "Elu"], "GRU": ["HardSigmoid", "Softsign"], "RNN": ["Relu"]}[op]
        for direction, count in (("forward", 1), ("reverse", 1), ("bidirectional", 2)):
            forms = {
                "alone": {},
                "states": {},
                "lengths": {},
                "functions": {"activations": functions * count},
                "clipped": {"clip": 0.4},
            }
            if op == "GRU":
                forms["reset_after"] = {"linear_before_reset": 1}
            if op == "LSTM":
                forms |= {"peepholes": {}, "input_forget": {"input_forget": 1}}
            for form, attributes in forms.items():
                inputs = {"x": floats(steps, batch, features)}
                weights = {"w": floats(count, gates * hidden, features), "r": floats(count, gates * hidden, hidden)}
                names = ["x", "w", "r"]
                if form != "alone":
                    weights["b"] = floats(count, 2 * gates * hidden)
                    names.append("b")
                if form in ("states", "lengths"):
                    inputs["l"] = np.array([5, 3, 1] if form == "lengths" else [5, 5, 5], np.int32)
                    inputs |= {name: floats(count, batch, hidden) for name in ["h", "c"][:parts]}
                    names += ["l", "h", "c"][: 1 + parts]
                if form == "peepholes":
                    weights["p"] = floats(count, 3 * hidden)
                    names += ["", "", "", "p"]
                layer = node(op, names, list(outputs), domain="", hidden_size=hidden, direction=direction, **attributes)
                write.case(f"{op.lower()}_{direction}_{form}", [layer], inputs, outputs, weights)


def graphs(write):
    """A function of the file, nodes in another order, and a branch that is chosen at run time."""
    body = [node("Mul", ["a", "b"], ["t"], domain=""), node("Add", ["t", "b"], ["u"], domain="")]
    last = node("LeakyRelu", ["u"], ["c"], domain="")
    last.attribute.append(onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT))
    function = helper.make_function("own", "Bent", ["a", "b"], ["c"], [*body, last], [helper.make_opsetid("", 17)], ["slope"])
    calls = [node("Bent", ["x", "y"], ["z"], domain="own", slope=0.3), node("Bent", ["z", "y"], ["o"], domain="own", slope=0.1)]
    write.case("function", calls, {"x": floats(3, 4), "y": floats(4)}, {"o": FLOAT}, functions=[function])
    nodes = [node("Relu", ["t"], ["o"], domain=""), node("Add", ["x", "x"], ["t"], domain="")]
    write.case("unsorted", nodes, {"x": floats(3)}, {"o": FLOAT})

    def branch(op, name):
        result = helper.make_tensor_value_info(name, FLOAT, None)
        return helper.make_graph([node(op, ["x", "two"], [name], domain="")], name, [], [result], [numpy_helper.from_array(scalar(2), "two")])

    for name, number in (("positive", 1.0), ("negative", -1.0)):
        nodes = [
            node("ReduceSum", ["x"], ["s"], domain="", keepdims=0),
            node("Greater", ["s", "zero"], ["c"], domain=""),
            node("If", ["c"], ["y"], domain="", then_branch=branch("Mul", "yes"), else_branch=branch("Sub", "no")),
        ]
        write.case(f"branch_{name}", nodes, {"x": np.full((2, 3), number, np.float32)}, {"y": FLOAT}, {"zero": scalar(0)})


def integers(write):
    """Integers that no float holds, of both signs, and where they wrap around."""
    odd = (1 << 53) + 1
    long = np.array([odd, -odd, 7, -7, 2**63 - 1, -(2**63), 0, 1 << 40], np.int64)
    other = np.array([3, 5, -2, 2, 1, 7, odd, -3], np.int64)
    short = np.array([2**31 - 1, -(2**31), 5, -5, 1 << 24, (1 << 24) + 1], np.int32)
    small = np.array([2, 3, -3, 2, 65537, 3], np.int32)
    word = np.array([2**32 - 1, 0, 1 << 31, 7], np.uint32)
    big = np.array([2**64 - 1, 2**63, 10, 5], np.uint64)
    for kind, dtype, a, b in [
        ("int64", INT64, long, other),
        ("int32", INT32, short, small),
        ("uint32", UINT32, word, np.array([2, 1, 3, 9], np.uint32)),
        ("uint64", UINT64, big, np.array([10, 3, 2**64 - 5, 2], np.uint64)),
    ]:
        for op in ["Add", "Sub", "Mul", "Div", "Mod", "Max", "Min"]:
            write.case(f"{kind}_{op.lower()}", [node(op, ["a", "b"], ["y"], domain="")], {"a": a, "b": b}, {"y": dtype})
        for op in ["Greater", "LessOrEqual", "Equal"]:
            nodes = [node(op, ["a", "b"], ["y"], domain="")]
            write.case(f"{kind}_{op.lower()}", nodes, {"a": a, "b": b}, {"y": TensorProto.BOOL})
        for to in [INT64, INT32, UINT32, UINT64, TensorProto.INT8, UINT8]:
            nodes = [node("Cast", ["a"], ["y"], domain="", to=to)]
            write.case(f"{kind}_to_{TensorProto.DataType.Name(to).lower()}", nodes, {"a": a}, {"y": to})
    rows = np.stack([long, other])
    for op in ["ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd"]:
        inputs, constants = ["x", "axes"] if op == "ReduceSum" else ["x"], {"axes": np.array([1], np.int64)}
        attributes = {} if op == "ReduceSum" else {"axes": [1]}
        nodes = [node(op, inputs, ["y"], domain="", keepdims=0, **attributes)]
        # Beyond 2^53, sums and products of `onnxruntime` 1.32 are not exact.
        numbers = rows % 999 + (1 << 30 if op != "ReduceProd" else 1)
        write.case(f"int64_{op.lower()}", nodes, {"x": numbers[:, :4]}, {"y": INT64}, constants if op == "ReduceSum" else None)
    for op in ["ArgMax", "ArgMin"]:
        nodes = [node(op, ["x"], ["y"], domain="", axis=1, select_last_index=1)]
        write.case(f"int32_{op.lower()}", nodes, {"x": np.stack([short, small, short])}, {"y": INT64})
    nodes = [node("TopK", ["x", "k"], ["y", "i"], domain="", axis=-1)]
    write.case("int64_topk", nodes, {"x": rows}, {"y": INT64, "i": INT64}, {"k": np.array([3], np.int64)})
    nodes = [node("CumSum", ["x", "axis"], ["y"], domain="", reverse=1)]
    write.case("int64_cumsum", nodes, {"x": rows}, {"y": INT64}, {"axis": np.array(1, np.int64)})
    nodes = [node("MatMul", ["a", "b"], ["y"], domain="")]
    write.case("int64_matmul", nodes, {"a": rows[:, :3], "b": rows[:1, :6].reshape(1, 3, 2)}, {"y": INT64})
    indices = {"i": np.array([[0, 0, 3], [-1, 1, 1]], np.int64)}
    for reduction in ["add", "mul"]:
        nodes = [node("ScatterElements", ["x", "i", "u"], ["y"], domain="", axis=1, reduction=reduction)]
        write.case(f"int64_scatter_{reduction}", nodes, {"x": rows, "u": rows[:, 1:4].copy()}, {"y": INT64}, indices)
    places = {"i": np.array([[1, -3, 0]], np.int64)}
    nodes = [node("GatherElements", ["x", "i"], ["y"], domain="", axis=1), node("Where", ["c", "y", "z"], ["o"], domain="")]
    inputs = {"x": rows, "c": np.array([True, False, True]), "z": np.array(odd, np.int64)}
    write.case("int64_where", nodes, inputs, {"o": INT64}, places)
    nodes = [node("OneHot", ["x", "depth", "values"], ["y"], domain="")]
    constants = {"depth": np.array(4, np.int64), "values": np.array([-odd, odd], np.int64)}
    write.case("int64_one_hot", nodes, {"x": np.array([0, -1, 9, 2], np.int64)}, {"y": INT64}, constants)


def resizing(write):
    """Sizes, scales, filters and regions of every kind, of one to three axes."""
    x = {"x": floats(2, 3, 7, 9)}
    places = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric"]
    for mode in ["linear", "cubic"]:
        for coordinates in places:
            for name, scale in [("down", [1, 1, 0.6, 0.7]), ("up", [1, 1, 1.3, 2.6])]:
                attributes = {"mode": mode, "coordinate_transformation_mode": coordinates}
                nodes = [node("Resize", ["x", "", "s"], ["y"], domain="", **attributes)]
                write.case(f"resize_{mode}_{coordinates}_{name}", nodes, x, {"y": FLOAT}, {"s": np.array(scale, np.float32)}, opset=19)
        for name, size in [("down", [2, 3, 3, 4]), ("up", [2, 3, 11, 10])]:
            nodes = [node("Resize", ["x", "", "", "s"], ["y"], domain="", mode=mode, antialias=1)]
            write.case(f"resize_{mode}_antialias_{name}", nodes, x, {"y": FLOAT}, {"s": np.array(size, np.int64)}, opset=18)
        nodes = [node("Resize", ["x", "", "", "s"], ["y"], domain="", mode=mode, exclude_outside=int(mode == "cubic"))]
        write.case(f"resize_{mode}_sizes", nodes, x, {"y": FLOAT}, {"s": np.array([2, 3, 5, 20], np.int64)}, opset=18)
    for mode in ["nearest", "linear"]:
        attributes = {"mode": mode, "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 5.0}
        nodes = [node("Resize", ["x", "roi", "", "s"], ["y"], domain="", **attributes)]
        constants = {"roi": np.array([0, 0, 0.2, -0.3, 1, 1, 1.1, 0.9], np.float32), "s": np.array([2, 3, 6, 5], np.int64)}
        write.case(f"resize_{mode}_region", nodes, x, {"y": FLOAT}, constants, opset=18)
        nodes = [node("Resize", ["x", "", "s"], ["y"], domain="", mode=mode)]
        write.case(f"resize_{mode}_volume", nodes, {"x": floats(1, 2, 3, 4, 5)}, {"y": FLOAT}, {"s": np.array([1, 1, 2, 0.6, 1.5], np.float32)})
        nodes = [node("Upsample", ["x", "s"], ["y"], domain="", mode=mode)]
        write.case(f"upsample_{mode}", nodes, x, {"y": FLOAT}, {"s": np.array([1, 1, 2, 3], np.float32)}, opset=9)


def transposed(write):
    """Transposed convolutions whose results have given extents."""
    for name, attributes in {
        "shape": {"output_shape": [10, 12], "strides": [3, 2]},
        "shape_upper": {"output_shape": [8, 9], "strides": [3, 2], "auto_pad": "SAME_UPPER"},
        "same_upper": {"strides": [2, 3], "auto_pad": "SAME_UPPER"},
        "same_lower": {"strides": [2, 1], "auto_pad": "SAME_LOWER", "dilations": [2, 1]},
    }.items():
        nodes = [node("ConvTranspose", ["x", "w", "b"], ["y"], domain="", **attributes)]
        weights = {"w": floats(4, 2, 3, 3), "b": floats(2)}
        write.case(f"conv_transpose_{name}", nodes, {"x": floats(2, 4, 3, 5)}, {"y": FLOAT}, weights)


def angles(write):
    x = np.concatenate([floats(9) * 3, np.array([0, 1, -1, 0.5, -0.5, 1e-6, 40, -1e20, np.inf, np.nan], np.float32)])
    for op in ["Acos", "Asin", "Atan"]:
        write.case(op.lower(), [node(op, ["x"], ["y"], domain="")], {"x": x}, {"y": FLOAT}, tolerance=1e-6)


def sequences(write):
    """Sequences that are taken apart and put together."""
    x = {"x": floats(5, 4)}
    for name, constants, attributes in [
        ("each", {}, {"axis": 1}),
        ("flat", {}, {"axis": 0, "keepdims": 0}),
        ("equal", {"n": np.array(2, np.int64)}, {"axis": 0}),
        ("given", {"n": np.array([1, 3, 1], np.int64)}, {"axis": 0}),
    ]:
        nodes = [
            node("SplitToSequence", ["x", *constants], ["s"], domain="", **attributes),
            node("SequenceLength", ["s"], ["length"], domain=""),
            node("SequenceErase", ["s"], ["t"], domain=""),
            node("SequenceAt", ["t", "last"], ["part"], domain=""),
            node("SequenceInsert", ["t", "part", "last"], ["u"], domain=""),
            node("ConcatFromSequence", ["u"], ["y"], domain="", axis=attributes["axis"], new_axis=int(name == "flat")),
        ]
        write.case(f"sequence_{name}", nodes, x, {"length": INT64, "y": FLOAT}, {**constants, "last": np.array(-1, np.int64)})


def regions(write):
    """Places of maxima, crops, grids, windows that are put back, and different elements."""
    for name, shape, attributes in [
        ("rows", (2, 3, 9), {"kernel_shape": [3], "strides": [2]}),
        ("padded", (2, 3, 7, 6), {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "strides": [2, 1]}),
        ("columns", (2, 2, 5, 6), {"kernel_shape": [2, 3], "storage_order": 1, "pads": [1, 1, 1, 1]}),
        ("dilated", (1, 2, 8, 7), {"kernel_shape": [2, 2], "dilations": [2, 3], "ceil_mode": 1}),
        ("volume", (1, 2, 4, 5, 6), {"kernel_shape": [2, 2, 2], "strides": [2, 2, 1]}),
    ]:
        nodes = [node("MaxPool", ["x"], ["y", "i"], domain="", **attributes)]
        write.case(f"max_pool_places_{name}", nodes, {"x": floats(*shape)}, {"y": FLOAT, "i": INT64})
    pool = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [node("MaxPool", ["x"], ["p", "i"], domain="", **pool), node("MaxUnpool", ["p", "i"], ["y"], domain="", **pool)]
    write.case("max_unpool", nodes, {"x": floats(2, 3, 6, 4)}, {"y": FLOAT})
    boxes = np.array([[0, 0, 5, 6], [1.5, 2.2, 3.1, 7.9], [-2, -3, 4, 2.5], [6, 6, 6.2, 9.5], [3, 3, 2, 2]], np.float32)
    constants = {"boxes": boxes, "images": np.array([0, 1, 1, 0, 1], np.int64)}
    for name, attributes, version in [
        ("half_pixel", {"output_height": 3, "output_width": 2, "spatial_scale": 0.7}, 16),
        ("output_half_pixel", {"output_height": 2, "output_width": 3, "spatial_scale": 1.3}, 10),
        ("samples", {"output_height": 2, "output_width": 2, "sampling_ratio": 2}, 16),
    ]:
        nodes = [node("RoiAlign", ["x", "boxes", "images"], ["y"], domain="", **attributes)]
        write.case(f"roi_align_{name}", nodes, {"x": floats(2, 3, 9, 8)}, {"y": FLOAT}, constants, opset=version)
    for corners in [0, 1]:
        for name, shape in [("images", [2, 3, 4, 5]), ("volumes", [2, 1, 3, 4, 2])]:
            nodes = [node("AffineGrid", ["x", "size"], ["y"], domain="", align_corners=corners)]
            axes = len(shape) - 2
            x = {"x": floats(2, axes, axes + 1)}
            write.case(f"affine_grid_{name}_{corners}", nodes, x, {"y": FLOAT}, {"size": np.array(shape, np.int64)}, opset=20)
    for name, image, block, attributes in [
        ("strided", [7, 6], [3, 2], {"strides": [2, 1], "pads": [1, 0, 0, 1]}),
        ("dilated", [8, 9], [2, 3], {"dilations": [3, 2], "strides": [1, 2]}),
        ("volume", [4, 5, 6], [2, 1, 3], {}),
    ]:
        axes = len(image)
        get = lambda key, usual: attributes.get(key, usual)
        strides, dilations, pads = get("strides", [1] * axes), get("dilations", [1] * axes), get("pads", [0] * 2 * axes)
        places = [
            (image[k] + pads[k] + pads[axes + k] - dilations[k] * (block[k] - 1) - 1) // strides[k] + 1 for k in range(axes)
        ]
        nodes = [node("Col2Im", ["x", "image", "block"], ["y"], domain="", **attributes)]
        constants = {"image": np.array(image, np.int64), "block": np.array(block, np.int64)}
        x = {"x": floats(2, 3 * int(np.prod(block)), int(np.prod(places)))}
        write.case(f"col2im_{name}", nodes, x, {"y": FLOAT}, constants, opset=18)
    for name, x, attributes in [
        ("sorted", np.array([2.5, -1, 2.5, 3, -1, 0], np.float32), {}),
        ("unsorted", np.array([[7, -1, 7], [3, 0, 3]], np.int64), {"sorted": 0}),
        ("slices", np.array([[1, 0, 1, 2], [5, 3, 5, 1]], np.int64), {"axis": 1}),
        ("rows", np.array([[1, 2], [0, 5], [1, 2]], np.float32), {"axis": 0, "sorted": 1}),
    ]:
        nodes = [node("Unique", ["x"], ["y", "first", "inverse", "counts"], domain="", **attributes)]
        kind = helper.np_dtype_to_tensor_dtype(x.dtype)
        write.case(f"unique_{name}", nodes, {"x": x}, {"y": kind, "first": INT64, "inverse": INT64, "counts": INT64})


def grids(write):
    """Places between pixels, from far outside to far inside."""
    for name, shape, out in [("images", (2, 3, 4, 5), (3, 4)), ("volumes", (2, 2, 3, 4, 5), (2, 3, 2)), ("row", (1, 2, 1, 4), (2, 3))]:
        axes = len(out)
        for mode in ["linear", "nearest", "cubic"][: 2 if axes == 3 else 3]:
            for padding in ["zeros", "border", "reflection"]:
                for corners in [0, 1]:
                    attributes = {"mode": mode, "padding_mode": padding, "align_corners": corners}
                    nodes = [node("GridSample", ["x", "grid"], ["y"], domain="", **attributes)]
                    inputs = {"x": floats(*shape), "grid": 1.5 * floats(shape[0], *out, axes)}
                    write.case(f"grid_sample_{name}_{mode}_{padding}_{corners}", nodes, inputs, {"y": FLOAT}, opset=20)
    for name, x, weight, parts, attributes, out in [
        ("plain", (1, 2, 5, 4), (3, 2, 3, 2), 1, {}, (3, 3)),
        ("strided", (2, 4, 7, 6), (6, 2, 3, 3), 2, {"group": 2, "strides": [2, 1], "pads": [1, 0, 1, 2]}, (4, 6)),
        ("dilated", (2, 3, 8, 7), (2, 3, 2, 3), 3, {"dilations": [3, 2], "pads": [0, 1, 2, 0]}, (7, 4)),
    ]:
        taps = weight[2] * weight[3]
        inputs = {"x": floats(*x), "offset": floats(x[0], 2 * parts * taps, *out)}
        constants = {"w": floats(*weight), "b": floats(weight[0])}
        nodes = [node("DeformConv", ["x", "w", "offset"], ["y"], domain="", offset_group=parts, **attributes)]
        write.case(f"deform_conv_{name}", nodes, inputs, {"y": FLOAT}, {"w": constants["w"]}, opset=19)
        inputs["mask"] = floats(x[0], parts * taps, *out)
        nodes = [node("DeformConv", ["x", "w", "offset", "b", "mask"], ["y"], domain="", offset_group=parts, **attributes)]
        write.case(f"deform_conv_{name}_masked", nodes, inputs, {"y": FLOAT}, constants, opset=19)


def narrow(write):
    """Floats of 8 bits and integers of 4, and remainders of floats."""
    x = np.concatenate([floats(40) * 10.0 ** rng.integers(-6, 6, 40), [0, -0.0, 448, 464, 465, 57344, 61440, 61441, 1e30, 2.0**-10]])
    x = x.astype(np.float32)
    for to, largest in [("FLOAT8E4M3FN", 448), ("FLOAT8E4M3FNUZ", 240), ("FLOAT8E5M2", 57344), ("FLOAT8E5M2FNUZ", 57344)]:
        for saturate in [0, 1]:
            # Just beyond the largest number, onnxruntime's results depend on the bits: of E4M3FN, 465 becomes NaN and 484 becomes 448.
            is_beyond = (np.abs(x) > largest) & (np.abs(x) < 2 * largest)
            nodes = [
                node("Cast", ["x"], ["narrow"], domain="", to=getattr(TensorProto, to), saturate=saturate),
                node("Cast", ["narrow"], ["y"], domain="", to=FLOAT),
            ]
            inputs = {"x": x if saturate else np.where(is_beyond, 0, x)}
            write.case(f"cast_{to.lower()}_{saturate}", nodes, inputs, {"y": FLOAT}, tolerance=0, opset=19)
    for name, a, b in [
        ("small", floats(7, 5), floats(5)),
        ("large", 1000 * floats(33), floats(33)),
        ("whole", np.array([6, -6, 7, -7, 0.5, 3], np.float32), np.array([3, 3, -3, -3, np.inf, 0.25], np.float32)),
    ]:
        nodes = [node("Mod", ["a", "b"], ["y"], domain="", fmod=1)]
        write.case(f"mod_floats_{name}", nodes, {"a": a, "b": b}, {"y": FLOAT}, tolerance=2e-4, opset=13)


def grown(trees, features, modes, deepest=4):
    """Random trees: for each, the nodes in order, as `(feature, mode, split, yes, no)`, or `None` for a leaf."""
    forest = []
    for _ in range(trees):
        nodes = [None]
        grow = [(0, 0)]
        while grow:
            at, depth = grow.pop()
            if depth == deepest or depth > 0 and rng.random() < 0.3:
                continue
            yes, no = len(nodes), len(nodes) + 1
            nodes[at] = (int(rng.integers(features)), str(rng.choice(modes)), float(rng.integers(-3, 4)) / 2, yes, no)
            nodes += [None, None]
            grow += [(yes, depth + 1), (no, depth + 1)]
        forest.append(nodes)
    return forest


def numbered(forest, missing=False):
    """The attributes of a forest before `TreeEnsemble`, and its leaves."""
    rows = [(tree, at, node) for tree, nodes in enumerate(forest) for at, node in enumerate(nodes)]
    part = lambda k, leaf: [leaf if node is None else node[k] for _, _, node in rows]
    attributes = {
        "nodes_treeids": [tree for tree, _, _ in rows],
        "nodes_nodeids": [at for _, at, _ in rows],
        "nodes_featureids": part(0, 0),
        "nodes_modes": part(1, "LEAF"),
        "nodes_values": part(2, 0.0),
        "nodes_truenodeids": part(3, 0),
        "nodes_falsenodeids": part(4, 0),
        "nodes_hitrates": [1.0] * len(rows),
    }
    if missing:
        attributes["nodes_missing_value_tracks_true"] = [int(rng.integers(2)) for _ in rows]
    return attributes, [(tree, at) for tree, at, node in rows if node is None]


def weighted(prefix, leaves, targets, weight):
    """The attributes of weights of these targets in each leaf."""
    rows = [(tree, at, target) for tree, at in leaves for target in targets(tree)]
    return {
        f"{prefix}_treeids": [tree for tree, _, _ in rows],
        f"{prefix}_nodeids": [at for _, at, _ in rows],
        f"{prefix}_ids": [target for _, _, target in rows],
        f"{prefix}_weights": [float(weight()) for _ in rows],
    }


def learned(write):
    """Linear models, trees, and what scales their inputs. Numbers are halves, so that many equal a split.

    `onnxruntime` takes the numbers of two transforms of `TreeEnsemble` for each other, so no case has one.
    """
    modes = [f"BRANCH_{mode}" for mode in ["LEQ", "LT", "GTE", "GT", "EQ", "NEQ"]]
    halves = lambda *shape: rng.integers(-4, 5, shape).astype(np.float32) / 2
    with_nan = halves(9, 5)
    with_nan[rng.random((9, 5)) < 0.3] = np.nan
    make = lambda op, outputs, **attributes: [node(op, ["x"], outputs, domain=LEARNED, **attributes)]
    for name, kinds, count, x, options in [
        ("plain", modes[:1], 1, halves(7, 5), {}),
        ("all_modes", modes, 3, halves(7, 5), {"base_values": [0.5, -1.0, 2.0]}),
        ("missing", modes, 2, with_nan, {"post_transform": "LOGISTIC"}),
        ("average", modes[1:3], 2, halves(1, 5), {"aggregate_function": "AVERAGE", "post_transform": "SOFTMAX"}),
    ]:
        attributes, leaves = numbered(grown(6, 5, kinds), missing=name == "missing")
        attributes |= weighted("target", leaves, lambda tree: range(count) if tree else [0], rng.standard_normal)
        nodes = make("TreeEnsembleRegressor", ["y"], n_targets=count, **attributes, **options)
        write.case(f"tree_regressor_{name}", nodes, {"x": x}, {"y": FLOAT})
    for name, labels, targets, weight, options in [
        ("three", {"classlabels_int64s": [7, -9, 4]}, lambda tree: [tree % 3], rng.standard_normal, {"post_transform": "SOFTMAX"}),
        ("three_based", {"classlabels_int64s": [7, -9, 4]}, lambda tree: range(3), rng.random, {"base_values": [0.1, 0.2, -3.0]}),
        ("absent", {"classlabels_int64s": [7, 8, 9, 10]}, lambda tree: [0, 2], lambda: -rng.random(), {}),
        ("texts", {"classlabels_strings": ["a", "bb", "c"]}, lambda tree: range(3), rng.standard_normal, {"post_transform": "LOGISTIC"}),
        ("two", {"classlabels_int64s": [5, 6]}, lambda tree: [0], rng.standard_normal, {}),
        ("two_logistic", {"classlabels_int64s": [5, 6]}, lambda tree: [0], rng.standard_normal, {"post_transform": "LOGISTIC", "base_values": [0.3]}),
        ("two_positive", {"classlabels_int64s": [5, 6]}, lambda tree: [0], lambda: rng.random() / 6, {}),
        ("two_softmax", {"classlabels_strings": ["no", "yes"]}, lambda tree: [0], rng.standard_normal, {"post_transform": "SOFTMAX"}),
    ]:
        attributes, leaves = numbered(grown(6, 5, modes[:1]))
        attributes |= weighted("class", leaves, targets, weight) | labels
        nodes = make("TreeEnsembleClassifier", ["label", "y"], **attributes, **options)
        kind = TensorProto.STRING if "classlabels_strings" in labels else TensorProto.INT64
        write.case(f"tree_classifier_{name}", nodes, {"x": halves(9, 5)}, {"label": kind, "y": FLOAT})
    for name, kinds, dtype, options in [
        ("plain", modes[:1], np.float32, {"n_targets": 1}),
        ("doubles", modes, np.float64, {"n_targets": 2}),
        ("average", modes, np.float32, {"n_targets": 2, "aggregate_function": 0}),
    ]:
        rows, leaves, roots = [], 0, []
        forest = grown(5, 5, kinds)
        for nodes in forest:
            place, roots = {}, [*roots, len(rows)]
            for at, one in enumerate(nodes):
                place[at] = leaves if one is None else len(rows)
                leaves += one is None
                if one is not None:
                    rows.append([*one, nodes, place])
        side = lambda k: [row[6][row[k]] for row in rows]
        is_leaf = lambda k: [int(row[5][row[k]] is None) for row in rows]
        array = lambda numbers, dtype=dtype: numpy_helper.from_array(np.array(numbers, dtype))
        attributes = {
            "tree_roots": roots,
            "nodes_featureids": [row[0] for row in rows],
            "nodes_modes": array([modes.index(row[1]) for row in rows], np.uint8),
            "nodes_splits": array([row[2] for row in rows]),
            "nodes_truenodeids": side(3),
            "nodes_trueleafs": is_leaf(3),
            "nodes_falsenodeids": side(4),
            "nodes_falseleafs": is_leaf(4),
            "leaf_targetids": [int(rng.integers(options["n_targets"])) for _ in range(leaves)],
            "leaf_weights": array(rng.standard_normal(leaves)),
        }
        x = halves(9, 5).astype(dtype)
        nodes = make("TreeEnsemble", ["y"], **attributes, **options)
        write.case(f"tree_ensemble_{name}", nodes, {"x": x}, {"y": helper.np_dtype_to_tensor_dtype(np.dtype(dtype))})
    numbers = lambda *shape: rng.standard_normal(shape).reshape(-1).astype(np.float32).tolist()
    for name, count, labels, options in [
        ("one_row", 1, {"classlabels_ints": [3, 8]}, {}),
        ("one_row_logistic", 1, {"classlabels_strings": ["a", "b"]}, {"post_transform": "LOGISTIC"}),
        ("two", 2, {"classlabels_ints": [3, 8]}, {"post_transform": "LOGISTIC", "multi_class": 1}),
        ("three", 3, {"classlabels_strings": ["a", "b", "c"]}, {"post_transform": "SOFTMAX"}),
    ]:
        nodes = make("LinearClassifier", ["label", "y"], coefficients=numbers(count, 4), intercepts=numbers(count), **labels, **options)
        kind = TensorProto.STRING if "classlabels_strings" in labels else TensorProto.INT64
        write.case(f"linear_classifier_{name}", nodes, {"x": floats(6, 4)}, {"label": kind, "y": FLOAT})
    for name, count, options in [("one", 1, {"intercepts": numbers(1)}), ("three", 3, {"targets": 3})]:
        nodes = make("LinearRegressor", ["y"], coefficients=numbers(count, 4), **options)
        write.case(f"linear_regressor_{name}", nodes, {"x": floats(6, 4)}, {"y": FLOAT})
    for norm in ["MAX", "L1", "L2"]:
        x = floats(5, 4)
        x[2] = 0
        write.case(f"normalizer_{norm.lower()}", make("Normalizer", ["y"], norm=norm), {"x": x}, {"y": FLOAT})
    write.case("scaler", make("Scaler", ["y"], offset=numbers(4), scale=numbers(4)), {"x": floats(5, 4)}, {"y": FLOAT})
    write.case("scaler_one", make("Scaler", ["y"], offset=[0.5], scale=[3.0]), {"x": rng.integers(-9, 9, (2, 3))}, {"y": FLOAT})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    onnxruntime.set_default_logger_severity(4)
    write = Writer(options.folder / "onnxruntime")
    for family in (fused, norms, attention, quantised, recurrent, graphs, integers, resizing, transposed, angles, sequences, regions, grids, narrow, learned):
        family(write)
    print(f"onnxruntime {onnxruntime.__version__}: {len(list(write.folder.glob('*.onnx')))} cases")


if __name__ == "__main__":
    main()
