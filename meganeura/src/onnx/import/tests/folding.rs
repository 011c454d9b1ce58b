//! Constants give the same results as inputs, for every operator that is folded.

use super::{Attributes, Graph, Value, assert_close, tensor};
use crate::onnx::import::Model;
use crate::onnx::proto::element::*;
use crate::{Device, Result, Tensor};

/// A node with its operands on the tape, and with constants.
fn both(op: &str, operands: &[(i32, &[i64], &[f64])], to: i32, attributes: Attributes<'_>) -> Result<()> {
    let names: Vec<_> = (0..operands.len()).map(|k| format!("x{k}")).collect();
    let named: Vec<_> = names.iter().map(String::as_str).collect();
    let mut run = Graph::new(21).output("y", to).node(op, &named, &["y"], attributes);
    let mut folded = run.clone().input("unused", FLOAT, &[1]);
    for (name, (ty, dims, numbers)) in named.iter().zip(operands) {
        run = run.input(name, *ty, dims);
        folded = folded.constant(name, *ty, dims, numbers);
    }
    let numbers: Vec<_> = operands.iter().map(|(.., numbers)| *numbers).collect();
    let what = format!("{op} {operands:?}");
    assert_close(&folded.numbers(&[&[0.0]])?, &run.numbers(&numbers)?, &what);
    Ok(())
}

#[test]
fn constants_are_computed_as_at_run_time() -> Result<()> {
    let ints: &[f64] = &[7.0, -7.0, 7.0, -7.0, 6.0, 0.0];
    let divisors: &[f64] = &[3.0, 3.0, -3.0, -3.0, 3.0, 5.0];
    let floats: &[f64] = &[7.5, -7.5, 0.5, -2.5, 2.5, 0.0];
    let positive: &[f64] = &[0.5, 1.0, 2.0, 3.25, 1e-20, 1e20];
    let six: &[i64] = &[6];
    for op in ["Add", "Sub", "Mul", "Div", "Min", "Max", "Mod"] {
        both(op, &[(INT64, six, ints), (INT64, six, divisors)], INT64, &[])?;
        both(op, &[(INT32, &[2, 3], ints), (INT32, &[3], &[2.0, -3.0, 4.0])], INT32, &[])?;
        if op != "Mod" {
            both(op, &[(FLOAT, six, floats), (FLOAT, six, divisors)], FLOAT, &[])?;
        }
    }
    both("Mod", &[(INT64, six, ints), (INT64, six, divisors)], INT64, &[("fmod", Value::Int(1))])?;
    for op in ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"] {
        both(op, &[(INT64, six, ints), (INT64, six, divisors)], BOOL, &[])?;
        both(op, &[(FLOAT, six, floats), (FLOAT, &[1], &[0.5])], BOOL, &[])?;
    }
    for op in ["And", "Or", "Xor"] {
        both(op, &[(BOOL, &[4], &[0.0, 0.0, 1.0, 1.0]), (BOOL, &[4], &[0.0, 1.0, 0.0, 1.0])], BOOL, &[])?;
    }
    for op in ["Min", "Max"] {
        both(op, &[(FLOAT, &[2], &[f64::NAN, 1.0]), (FLOAT, &[2], &[1.0, f64::NAN])], FLOAT, &[])?;
    }
    both("Not", &[(BOOL, &[2], &[0.0, 1.0])], BOOL, &[])?;
    for op in ["Neg", "Abs"] {
        both(op, &[(INT64, six, ints)], INT64, &[])?;
        both(op, &[(INT8, &[3], &[-128.0, 127.0, 5.0])], INT8, &[])?;
    }
    for op in ["Neg", "Abs", "Floor", "Ceil", "Round"] {
        both(op, &[(FLOAT, six, floats)], FLOAT, &[])?;
    }
    for op in ["Sqrt", "Log", "Reciprocal"] {
        both(op, &[(FLOAT, six, positive)], FLOAT, &[])?;
    }
    both("Exp", &[(FLOAT, six, &[0.5, -1.0, 2.0, 3.25, -80.0, 0.0])], FLOAT, &[])?;
    both("Where", &[(BOOL, &[3], &[0.0, 1.0, 1.0]), (INT64, &[2, 3], ints), (INT64, &[1], &[-4.0])], INT64, &[])?;
    both("Concat", &[(INT64, &[2], &[1.0, -2.0]), (INT64, &[1], &[3.0])], INT64, &[("axis", Value::Int(0))])?;
    both("Transpose", &[(FLOAT, &[2, 3], floats)], FLOAT, &[("perm", Value::Ints(vec![1, 0]))])?;
    both("Identity", &[(FLOAT, &[2, 3], floats)], FLOAT, &[])?;
    both("ReduceProd", &[(INT64, &[3], &[2.0, -3.0, 4.0])], INT64, &[])?;
    Ok(())
}

#[test]
fn arithmetic_has_the_precision_of_the_file() -> Result<()> {
    // 10 × 0.7 is 7 in single precision only.
    for (ty, expected) in [(FLOAT, 7.0), (DOUBLE, 6.0)] {
        let graph = Graph::new(21)
            .input("unused", FLOAT, &[1])
            .output("y", INT64)
            .constant("ten", ty, &[], &[10.0])
            .constant("scale", ty, &[], &[f64::from(0.7f32)])
            .node("Mul", &["ten", "scale"], &["product"], &[])
            .node("Floor", &["product"], &["floor"], &[])
            .node("Cast", &["floor"], &["y"], &[("to", Value::Int(INT64.into()))]);
        assert_eq!(graph.numbers(&[&[0.0]])?, [expected]);
    }
    // Floats add the step each time.
    let graph = Graph::new(21).input("unused", FLOAT, &[1]).output("y", FLOAT);
    let graph = graph.constant("a", FLOAT, &[], &[0.0]).constant("b", FLOAT, &[], &[1.0]);
    let graph = graph.constant("c", FLOAT, &[], &[0.1]).node("Range", &["a", "b", "c"], &["y"], &[]);
    assert_eq!(graph.numbers(&[&[0.0]])?[7], f64::from(0.700_000_05f32));
    Ok(())
}

/// Of `uint64`, also above 2⁶³ − 1: constants have the results that the same values have when the model runs.
#[test]
fn large_integers_without_a_sign() -> Result<()> {
    let mut large = tensor("large", UINT64, &[3], &[]);
    large.uint64_data = vec![u64::MAX, 1 << 63, 6];
    let mut graph = Graph::new(21)
        .output("quotient", UINT64)
        .output("shifted", UINT64)
        .output("is_less", BOOL)
        .output("float", FLOAT)
        .output("unique", UINT64)
        .output("x", FLOAT)
        .input("x", FLOAT, &[1])
        .constant("two", UINT64, &[1], &[2.0])
        .node("Div", &["large", "two"], &["quotient"], &[])
        .node("BitShift", &["large", "two"], &["shifted"], &[("direction", Value::Text("RIGHT"))])
        .node("Less", &["two", "large"], &["is_less"], &[])
        .node("Cast", &["large"], &["float"], &[("to", Value::Int(FLOAT.into()))])
        .node("Unique", &["large"], &["unique"], &[]);
    graph.graph.initializer.push(large);
    let results = graph.run(&[&[0.0]])?;
    let floats = |bits: [u64; 3]| bits.map(|bits| bits.cast_signed() as f64).to_vec();
    let half = 1u64 << 62;
    assert_eq!(results[0].1, floats([(1 << 63) - 1, half, 3]));
    assert_eq!(results[1].1, floats([(1 << 62) - 1, 1 << 61, 1]));
    assert_eq!(results[2].1, [1.0, 1.0, 1.0]);
    assert_eq!(results[3].1, [2f64.powi(64), 2f64.powi(63), 6.0]);
    assert_eq!(results[4].1, floats([6, 1 << 63, u64::MAX]));
    Ok(())
}

/// A node of a shape's computation: operator, operands, results, attributes.
type Step<'a> = (&'static str, &'a [&'a str], &'a [&'a str], Attributes<'a>);

/// Compiles a model whose result has the extents that these nodes compute from those of its input, `[2, 3, 4]`.
fn computes_extents(nodes: &[Step<'_>], expected: &[usize]) -> Result<()> {
    let mut graph = Graph::new(21)
        .input("x", FLOAT, &[2, 3, 4])
        .output("result", FLOAT)
        .ints("0", &[0.0])
        .ints("2,0", &[2.0, 0.0])
        .constant("[2],[0]", INT64, &[2, 1], &[2.0, 0.0])
        .constant("[1]", INT64, &[1, 1], &[1.0])
        .ints("1", &[1.0])
        .ints("5", &[5.0])
        .ints("2", &[2.0])
        .ints("0,1", &[0.0, 1.0])
        .ints("1,3", &[1.0, 3.0])
        .ints("3,3", &[3.0, 3.0])
        .ints("1,5", &[1.0, 5.0])
        .constant("zero", INT64, &[], &[0.0])
        .constant("three", INT64, &[], &[3.0])
        .constant("seven", INT64, &[], &[7.0])
        .constant("101", BOOL, &[3], &[1.0, 0.0, 1.0])
        .constant("half", FLOAT, &[], &[0.5])
        .constant("u8 0", UINT8, &[], &[0.0])
        .node("Shape", &["x"], &["s"], &[]);
    for (op, operands, results, attributes) in nodes {
        graph = graph.node(op, operands, results, attributes);
    }
    let graph = graph.node("ReduceMean", &["x"], &["mean"], &[("keepdims", Value::Int(0))]);
    let graph = graph.node("Expand", &["mean", "y"], &["result"], &[]);
    let device = Device::cpu();
    let model = Model::from_bytes(&device, &graph.bytes())?;
    let what = || nodes.iter().map(|node| node.0).collect::<Vec<_>>().join(", ");
    let compiled = model.compile().map_err(|error| error.context(what()))?;
    let result = compiled.call(&[&Tensor::full(&device, [2, 3, 4], 1.5)?])?.swap_remove(0);
    assert_eq!(result.shape().dims(), expected, "{}", what());
    assert_eq!(result.to_vec()?, vec![1.5; expected.iter().product()], "{}", what());
    Ok(())
}

#[test]
fn shapes_are_computed_by_any_operator() -> Result<()> {
    let (axis, keep) = (|axis| ("axis", Value::Int(axis)), |kept| ("keepdims", Value::Int(kept)));
    let to = |element: i32| ("to", Value::Int(element.into()));
    let single = |op, operands: &[&str], attributes: Attributes<'_>, expected: &[usize]| {
        computes_extents(&[(op, operands, &["y"], attributes)], expected)
    };
    single("GatherElements", &["s", "2,0"], &[], &[4, 2])?;
    single("GatherND", &["s", "[2],[0]"], &[], &[4, 2])?;
    single("ScatterElements", &["s", "1", "5"], &[], &[2, 5, 4])?;
    single("ScatterND", &["s", "[1]", "5"], &[], &[2, 5, 4])?;
    for (op, extent) in [("ReduceSum", 9), ("ReduceMax", 4), ("ReduceMin", 2), ("ReduceMean", 3), ("ReduceProd", 24)] {
        single(op, &["s"], &[], &[extent])?;
    }
    single("ArgMax", &["s"], &[axis(0), keep(1)], &[2])?;
    single("CumSum", &["s", "zero"], &[], &[2, 5, 9])?;
    single("Clip", &["s", "zero", "three"], &[], &[2, 3, 3])?;
    single("Sign", &["s"], &[], &[1, 1, 1])?;
    single("Pad", &["s", "0,1", "seven"], &[], &[2, 3, 4, 7])?;
    single("Tile", &["s", "2"], &[], &[2, 3, 4, 2, 3, 4])?;
    single("Compress", &["s", "101"], &[axis(0)], &[2, 4])?;
    single("Einsum", &["s", "s"], &[("equation", Value::Text("i,i->i"))], &[4, 9, 16])?;
    single("BitwiseAnd", &["s", "5"], &[], &[0, 1, 4]).expect_err("an extent is 0");
    single("BitwiseOr", &["s", "1"], &[], &[3, 3, 5])?;
    computes_extents(&[("TopK", &["s", "2"], &["y", ""], &[])], &[4, 3])?;
    // As a published speech model has it.
    let parts: [Step<'_>; 4] = [
        ("Cast", &["s"], &["i"], &[to(INT32)]),
        ("Split", &["i"], &["a", "b", "c"], &[("num_outputs", Value::Int(3))]),
        ("Concat", &["c", "a"], &["ca"], &[axis(0)]),
        ("Cast", &["ca"], &["y"], &[to(INT64)]),
    ];
    computes_extents(&parts, &[4, 2])?;
    let flat: [Step<'_>; 3] = [
        ("Expand", &["s", "1,3"], &["rows"], &[]),
        ("Flatten", &["rows"], &["flat"], &[axis(0)]),
        ("Squeeze", &["flat"], &["y"], &[]),
    ];
    computes_extents(&flat, &[2, 3, 4])?;
    let triangle: [Step<'_>; 3] = [
        ("Expand", &["s", "3,3"], &["square"], &[]),
        ("Trilu", &["square"], &["lower"], &[("upper", Value::Int(0))]),
        ("ReduceSum", &["lower", "0"], &["y"], &[keep(0)]),
    ];
    computes_extents(&triangle, &[6, 6, 4])?;
    let product: [Step<'_>; 2] = [("MatMul", &["s", "s"], &["dot"], &[]), ("Unsqueeze", &["dot", "0"], &["y"], &[])];
    computes_extents(&product, &[29])?;
    let hot: [Step<'_>; 2] = [("OneHot", &["1", "three", "1,5"], &["h"], &[]), ("Squeeze", &["h"], &["y"], &[])];
    computes_extents(&hot, &[1, 5, 1])?;
    let listed: [Step<'_>; 3] = [
        ("SplitToSequence", &["s"], &["list"], &[axis(0)]),
        ("SequenceErase", &["list", "zero"], &["rest"], &[]),
        ("ConcatFromSequence", &["rest"], &["y"], &[axis(0)]),
    ];
    computes_extents(&listed, &[3, 4])?;
    let scaled: [Step<'_>; 4] = [
        ("Cast", &["s"], &["u"], &[to(UINT8)]),
        ("DequantizeLinear", &["u", "half", "u8 0"], &["f"], &[]),
        ("Ceil", &["f"], &["up"], &[]),
        ("Cast", &["up"], &["y"], &[to(INT64)]),
    ];
    computes_extents(&scaled, &[1, 2, 2])
}

#[test]
fn the_input_that_decides_is_named() -> Result<()> {
    let graph = Graph::new(21)
        .input("x", FLOAT, &[2, 3])
        .input("length", INT64, &[1])
        .output("y", FLOAT)
        .ints("one", &[1.0])
        .node("Shape", &["x"], &["s"], &[])
        .node("Add", &["length", "one"], &["longer"], &[])
        .node("Mul", &["s", "longer"], &["more"], &[])
        .node("Max", &["more", "one"], &["new"], &[])
        .node("Expand", &["x", "new"], &["y"], &[]);
    let error = Model::from_bytes(&Device::cpu(), &graph.bytes())?.compile().unwrap_err().to_string();
    assert!(error.contains("(Expand)") && error.contains("depends on the values of `length`"), "{error}");
    assert!(error.contains("`Model::run`"), "{error}");
    Ok(())
}
