//! Results at the corners of operators.

use super::{Graph, Value, assert_close};
use crate::onnx::import::Model;
use crate::onnx::proto::element::*;
use crate::{DType, Device, ErrorKind, Result, Shape, Tape, Tensor};

fn ramp(count: usize) -> Vec<f64> {
    (0..count).map(|at| at as f64).collect()
}

/// A `Resize` of one row.
fn resize(count: usize, scale: f64, opset: i64, attributes: super::Attributes<'_>) -> Result<Vec<f64>> {
    let operands: &[&str] = if opset < 11 { &["x", "s"] } else { &["x", "", "s"] };
    let graph = Graph::new(opset)
        .input("x", FLOAT, &[1, 1, 1, count as i64])
        .output("y", FLOAT)
        .constant("s", FLOAT, &[4], &[1.0, 1.0, 1.0, scale])
        .node("Resize", operands, &["y"], attributes);
    graph.numbers(&[&ramp(count)])
}

#[test]
fn fractional_scales_are_those_of_single_precision() -> Result<()> {
    let third = 1.0 / 3.0;
    for (scale, rule, places, expected) in [
        (0.7, "floor", "asymmetric", vec![0, 1, 2, 4, 5, 7, 8, 10, 11, 12, 14, 15, 17, 18]),
        (0.7, "round_prefer_ceil", "half_pixel", vec![0, 2, 3, 5, 6, 7, 9, 10, 12, 13, 15, 16, 17, 19]),
        (0.9, "floor", "asymmetric", vec![0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14, 15, 16, 17, 18]),
        (0.9, "round_prefer_floor", "half_pixel", vec![0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 17, 18, 19]),
        (
            1.3,
            "floor",
            "asymmetric",
            vec![0, 0, 1, 2, 3, 3, 4, 5, 6, 6, 7, 8, 9, 10, 10, 11, 12, 13, 13, 14, 15, 16, 16, 17, 18, 19],
        ),
        (
            1.3,
            "round_prefer_floor",
            "half_pixel",
            vec![0, 1, 1, 2, 3, 4, 4, 5, 6, 7, 8, 8, 9, 10, 11, 11, 12, 13, 14, 14, 15, 16, 17, 18, 18, 19],
        ),
        (1.1, "floor", "asymmetric", vec![0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19]),
        (1.1, "ceil", "asymmetric", vec![0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 19]),
        (third, "round_prefer_floor", "half_pixel", vec![1, 4, 7, 10, 13, 16]),
    ] {
        let attributes = [
            ("mode", Value::Text("nearest")),
            ("nearest_mode", Value::Text(rule)),
            ("coordinate_transformation_mode", Value::Text(places)),
        ];
        let expected: Vec<_> = expected.into_iter().map(f64::from).collect();
        assert_eq!(resize(20, scale, 18, &attributes)?, expected, "{scale} {rule}");
    }
    let linear = [
        ("mode", Value::Text("linear")),
        ("coordinate_transformation_mode", Value::Text("half_pixel")),
        // Attributes that PyTorch writes although they mean nothing here.
        ("nearest_mode", Value::Text("floor")),
        ("cubic_coeff_a", Value::Float(-0.75)),
        ("extrapolation_value", Value::Float(0.0)),
    ];
    let expected = [0.214_285_731, 1.642_857_075, 3.071_428_537, 4.5, 5.928_571_701, 7.357_142_925, 8.785_714_149];
    assert_close(&resize(10, 0.7, 18, &linear)?, &expected, "0.7");
    assert_eq!(resize(10, 1.3, 18, &linear)?.len(), 13);
    Ok(())
}

#[test]
fn resize_of_operator_set_10() -> Result<()> {
    let mode = |mode| [("mode", Value::Text(mode))];
    for (scale, nearest, linear) in [
        (0.6, vec![0.0, 2.0, 4.0, 5.0], vec![0.0, 1.666_666_627, 3.333_333_254, 5.0]),
        (0.5, vec![0.0, 2.0, 4.0], vec![0.0, 2.0, 4.0]),
        (
            1.7,
            vec![0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 4.0, 4.0, 5.0, 5.0],
            (0..11).map(|p| f64::from(p) / f64::from(1.7f32)).collect(),
        ),
    ] {
        assert_eq!(resize(7, scale, 10, &mode("nearest"))?, nearest, "{scale}");
        assert_close(&resize(7, scale, 10, &mode("linear"))?, &linear, "linear");
    }
    assert_eq!(resize(2, 2.0, 10, &[])?, [0.0, 0.0, 1.0, 1.0]);
    Ok(())
}

/// The numbers of a cast, when the model runs and when it is folded.
fn cast(numbers: &[f64], from: i32, to: i32) -> Result<[Vec<f64>; 2]> {
    let attributes = [("to", Value::Int(to.into()))];
    let dims = [numbers.len() as i64];
    let graph = Graph::new(21).output("y", to).node("Cast", &["x"], &["y"], &attributes);
    let run = graph.clone().input("x", from, &dims).numbers(&[numbers])?;
    // A model needs an input.
    let folded = graph.constant("x", from, &dims, numbers).input("unused", FLOAT, &[1]).numbers(&[&[0.0]])?;
    Ok([run, folded])
}

#[test]
fn casts_wrap_around() -> Result<()> {
    let floats = [300.7, -1.5, 3e9, -3e9, -0.0, 0.5, 255.9, 256.0, 1e20];
    let low = f64::from(i32::MIN);
    for (to, expected) in [
        (UINT8, [44.0, 255.0, 0.0, 0.0, 0.0, 0.0, 255.0, 0.0, 0.0]),
        (INT8, [44.0, -1.0, 0.0, 0.0, 0.0, 0.0, -1.0, 0.0, 0.0]),
        (UINT16, [300.0, 65535.0, 0.0, 0.0, 0.0, 0.0, 255.0, 256.0, 0.0]),
        (INT16, [300.0, -1.0, 0.0, 0.0, 0.0, 0.0, 255.0, 256.0, 0.0]),
        (INT32, [300.0, -1.0, low, low, 0.0, 0.0, 255.0, 256.0, low]),
        (INT64, [300.0, -1.0, 3e9, -3e9, 0.0, 0.0, 255.0, 256.0, -2f64.powi(63)]),
        (BOOL, [1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0]),
    ] {
        let [run, folded] = cast(&floats, FLOAT, to)?;
        assert_close(&run, &expected, &format!("float to {to}"));
        assert_close(&folded, &expected, &format!("float to {to}, folded"));
    }
    let ints = [300.0, -1.0, 128.0, -129.0, 65543.0];
    for (to, expected) in [
        (UINT8, [44.0, 255.0, 128.0, 127.0, 7.0]),
        (INT8, [44.0, -1.0, -128.0, 127.0, 7.0]),
        (UINT16, [300.0, 65535.0, 128.0, 65407.0, 7.0]),
        (INT16, [300.0, -1.0, 128.0, -129.0, 7.0]),
        (INT32, ints),
        (FLOAT, ints),
        (BOOL, [1.0; 5]),
    ] {
        let [run, folded] = cast(&ints, INT64, to)?;
        assert_eq!(run, expected, "int64 to {to}");
        assert_eq!(folded, expected, "int64 to {to}, folded");
    }
    Ok(())
}

#[test]
fn narrow_integers_wrap_around() -> Result<()> {
    for (op, a, b, ty, expected) in [
        ("Add", 200.0, 100.0, UINT8, 44.0),
        ("Sub", 1.0, 2.0, UINT8, 255.0),
        ("Mul", 20.0, 20.0, UINT8, 144.0),
        ("Add", 100.0, 100.0, INT8, -56.0),
        ("Add", 32767.0, 1.0, INT16, -32768.0),
    ] {
        let graph = Graph::new(21).output("y", ty).node(op, &["a", "b"], &["y"], &[]);
        let run = graph.input("a", ty, &[1]).input("b", ty, &[1]).numbers(&[&[a], &[b]])?;
        assert_eq!(run, [expected], "{op} {a} {b}");
    }
    Ok(())
}

#[test]
fn integers_below_zero_leave_as_integers() -> Result<()> {
    let device = Device::cpu();
    let graph = Graph::new(20)
        .input("x", FLOAT, &[2, 2])
        .output("place", INT64)
        .output("less", INT64)
        .constant("one", INT64, &[], &[1.0])
        .node("ArgMax", &["x"], &["place"], &[("axis", Value::Int(1)), ("keepdims", Value::Int(0))])
        .node("Sub", &["place", "one"], &["less"], &[]);
    let model = Model::from_bytes(&device, &graph.bytes())?.compile()?;
    let x = Tensor::from_slice(&device, [2, 2], &[3.0, 1.0, 1.0, 3.0])?;
    let y = model.call(&[&x])?;
    assert_eq!(y[0].to_i64_vec()?, [0, 1]);
    assert_eq!(y[1].to_i64_vec()?, [-1, 0]);
    Ok(())
}

/// Results of a node for integers of a type, which are given and returned as their 64 bits.
fn integers(op: &str, ty: i32, operands: &[&[i64]], attributes: super::Attributes<'_>) -> Result<Vec<i64>> {
    let device = Device::cpu();
    let names: Vec<_> = (0..operands.len()).map(|k| format!("x{k}")).collect();
    let named: Vec<_> = names.iter().map(String::as_str).collect();
    let mut graph = Graph::new(28).output("y", ty).node(op, &named, &["y"], attributes);
    for (name, numbers) in named.iter().zip(operands) {
        graph = graph.input(name, ty, &[numbers.len() as i64]);
    }
    let model = Model::from_bytes(&device, &graph.bytes())?;
    let tape = Tape::new(&device);
    let input = |numbers: &&[i64]| Ok(tape.input(&Tensor::from_i64(&device, [numbers.len()], numbers)?));
    let inputs = operands.iter().map(input).collect::<Result<Vec<_>>>()?;
    let y = model.record(&tape, &inputs)?.swap_remove(0).to_tensor()?;
    assert_eq!(y.ty().dtype, model.outputs()[0].dtype(DType::F32), "{op}");
    y.to_i64_vec()
}

#[test]
fn integers_are_exact_and_wrap_around() -> Result<()> {
    let (low, high, odd) = (i64::MIN, i64::MAX, (1 << 53) + 1);
    for (op, ty, a, b, expected) in [
        ("Add", INT64, high, 1, low),
        ("Sub", INT64, odd, 2 * odd, -odd),
        ("Mul", INT64, odd, 3, 3 * odd),
        ("Div", INT64, -odd, 2, -odd / 2),
        ("Mod", INT64, -odd, 1 << 40, (-odd).rem_euclid(1 << 40)),
        ("Max", INT64, odd, odd - 1, odd),
        ("Min", INT64, low, high, low),
        ("Pow", INT64, 3, 39, 3i64.pow(39)),
        ("Add", INT32, i64::from(i32::MAX), 1, i64::from(i32::MIN)),
        ("Mul", INT32, 65_537, 65_537, 131_073),
        ("Add", UINT32, 4_294_967_295, 2, 1),
        ("Sub", UINT32, 0, 1, 4_294_967_295),
        ("Div", UINT32, 4_294_967_295, 2, 2_147_483_647),
        ("Mul", UINT16, 65_535, 65_535, 1),
        ("Sub", INT8, -128, 1, 127),
        // The bits of 2^64 − 1, which is above 1.
        ("Sub", UINT64, 0, 1, -1),
        ("Max", UINT64, -1, 1, -1),
        ("Div", UINT64, -1, 10, 1_844_674_407_370_955_161),
        ("Div", UINT64, -1, i64::MIN, 1),
        ("Div", UINT64, 7, -1, 0),
        ("Mod", UINT64, -1, 10, 5),
        ("Min", UINT64, -1, 1, 1),
        ("BitwiseAnd", INT64, -odd, 0xff, -odd & 0xff),
        ("BitwiseXor", UINT8, 0b1010, 0b0110, 0b1100),
    ] {
        assert_eq!(integers(op, ty, &[&[a], &[b]], &[])?, [expected], "{op} {ty} {a} {b}");
    }
    assert_eq!(integers("BitwiseNot", UINT8, &[&[5]], &[])?, [250]);
    assert_eq!(integers("Abs", INT64, &[&[-odd]], &[])?, [odd]);
    assert_eq!(integers("ReduceSum", INT64, &[&[high, 1, -1, 5]], &[("keepdims", Value::Int(0))])?, [low + 4]);
    assert_eq!(integers("ReduceProd", INT64, &[&[odd, 3]], &[])?, [3 * odd]);
    for (direction, ty, x, by, expected) in [
        ("LEFT", UINT8, 255, 4, 240),
        ("RIGHT", INT32, -8, 1, -4),
        ("RIGHT", UINT64, -1, 60, 15),
        ("RIGHT", UINT32, 4_294_967_295, 31, 1),
    ] {
        let shifted = integers("BitShift", ty, &[&[x], &[by]], &[("direction", Value::Text(direction))])?;
        assert_eq!(shifted, [expected], "{direction} {ty} {x} {by}");
    }
    for (mode, expected) in [("edge", [5, 5, 5, odd, 7, 7]), ("reflect", [7, odd, 5, odd, 7, odd])] {
        let graph = Graph::new(21).input("x", INT64, &[3]).output("y", INT64).ints("pads", &[2.0, 1.0]);
        let graph = graph.node("Pad", &["x", "pads"], &["y"], &[("mode", Value::Text(mode))]);
        let device = Device::cpu();
        let x = Tensor::from_i64(&device, [3], &[5, odd, 7])?;
        let y = Model::from_bytes(&device, &graph.bytes())?.compile()?.call(&[&x])?;
        assert_eq!(y[0].to_i64_vec()?, expected, "{mode}");
    }
    Ok(())
}

#[test]
fn large_integers_are_scattered_multiplied_and_compared() -> Result<()> {
    let (device, odd) = (Device::cpu(), (1i64 << 53) + 1);
    let run = |graph: Graph, inputs: &[(&[usize], &[i64])]| -> Result<Vec<i64>> {
        let of = |(dims, numbers): &(&[usize], &[i64])| Tensor::from_i64(&device, Shape::new(dims), numbers);
        let inputs = inputs.iter().map(of).collect::<Result<Vec<_>>>()?;
        Model::from_bytes(&device, &graph.bytes())?.compile()?.call(&inputs.iter().collect::<Vec<_>>())?[0].to_i64_vec()
    };
    let graph = || Graph::new(21).input("x", INT64, &[4]).input("i", INT64, &[3]).input("u", INT64, &[3]);
    for (reduction, expected) in [
        ("none", [odd, -1, -3, 4]),
        ("add", [odd + 1, -1, odd - 3, 4]),
        ("mul", [odd, -2, -3 * odd, 4]),
        ("max", [odd, 2, odd, 4]),
        ("min", [1, -1, -3, 4]),
    ] {
        let graph = graph().output("y", INT64);
        let graph = graph.node("ScatterElements", &["x", "i", "u"], &["y"], &[("reduction", Value::Text(reduction))]);
        let expected = if reduction == "add" { [odd + 1, 1, odd - 3, 4] } else { expected };
        let x = [1, 2, odd, 4];
        assert_eq!(run(graph, &[(&[4], &x), (&[3], &[0, 1, -2]), (&[3], &[odd, -1, -3])])?, expected, "{reduction}");
    }
    let graph = Graph::new(21).input("a", INT64, &[2, 2]).input("b", INT64, &[2, 3]).output("y", INT64);
    let graph = graph.node("MatMul", &["a", "b"], &["y"], &[]);
    let product = run(graph, &[(&[2, 2], &[odd, 1, -1, 0]), (&[2, 3], &[1, 2, 3, -4, -5, odd])])?;
    assert_eq!(product, [odd - 4, 2 * odd - 5, 4 * odd, -1, -2, -3]);
    let graph = Graph::new(21).input("a", INT64, &[2]).input("b", INT64, &[2]).output("y", INT64);
    let graph = graph.node("Greater", &["a", "b"], &["more"], &[]);
    let graph = graph.node("Cast", &["more"], &["y"], &[("to", Value::Int(INT64.into()))]);
    assert_eq!(run(graph, &[(&[2], &[odd, odd]), (&[2], &[odd - 1, odd])])?, [1, 0]);
    Ok(())
}

#[test]
fn empty_axes_may_mean_no_reduction() -> Result<()> {
    let x = [1.0, -2.0, 3.0];
    for (op, none, all) in [
        ("ReduceSum", [1.0, -2.0, 3.0], 2.0),
        ("ReduceSumSquare", [1.0, 4.0, 9.0], 14.0),
        ("ReduceL1", [1.0, 2.0, 3.0], 6.0),
        ("ReduceL2", [1.0, 2.0, 3.0], 14f64.sqrt()),
        ("ReduceLogSum", [0.0, f64::NAN, 3f64.ln()], 2f64.ln()),
        ("ReduceLogSumExp", [1.0, -2.0, 3.0], 3.132_845_2),
        ("ReduceMax", [1.0, -2.0, 3.0], 3.0),
        ("ReduceMin", [1.0, -2.0, 3.0], -2.0),
        ("ReduceMean", [1.0, -2.0, 3.0], 2.0 / 3.0),
        ("ReduceProd", [1.0, -2.0, 3.0], -6.0),
    ] {
        let graph = Graph::new(18).input("x", FLOAT, &[3]).output("y", FLOAT).ints("axes", &[]);
        let noop = [("noop_with_empty_axes", Value::Int(1)), ("keepdims", Value::Int(0))];
        assert_close(&graph.clone().node(op, &["x", "axes"], &["y"], &noop).numbers(&[&x])?, &none, op);
        assert_close(&graph.clone().node(op, &["x"], &["y"], &noop).numbers(&[&x])?, &none, op);
        assert_close(&graph.node(op, &["x", "axes"], &["y"], &noop[1..]).numbers(&[&x])?, &[all], op);
    }
    Ok(())
}

#[test]
fn zeros_have_a_norm_of_zero() -> Result<()> {
    let graph = Graph::new(22).input("x", FLOAT, &[2, 2]).output("y", FLOAT);
    let of = |p| graph.clone().node("LpNormalization", &["x"], &["y"], &[("p", Value::Int(p))]);
    assert_close(&of(2).numbers(&[&[0.0, 0.0, 3.0, 4.0]])?, &[0.0, 0.0, 0.6, 0.8], "2");
    assert_close(&of(1).numbers(&[&[0.0, 0.0, 3.0, 4.0]])?, &[0.0, 0.0, 3.0 / 7.0, 4.0 / 7.0], "1");
    assert!(of(3).error(&[&[0.0; 4]]).to_string().contains("the attribute `p` is 3"));
    Ok(())
}

#[test]
fn padding_of_maxima_is_below_every_number() -> Result<()> {
    let low = f64::NEG_INFINITY;
    let kernel = ("kernel_shape", Value::Ints(vec![2, 2]));
    let graph = Graph::new(21).input("x", FLOAT, &[1, 1, 1, 4]).output("y", FLOAT);
    let graph = graph.node("MaxPool", &["x"], &["y"], &[kernel, ("pads", Value::Ints(vec![1, 1, 0, 0]))]);
    assert_eq!(graph.numbers(&[&[low; 4]])?, [low; 4]);
    let graph = Graph::new(21).input("x", FLOAT, &[2]).output("y", FLOAT).ints("pads", &[1.0, 0.0]);
    let graph = graph.constant("value", FLOAT, &[], &[low]).node("Pad", &["x", "pads", "value"], &["y"], &[]);
    assert_eq!(graph.numbers(&[&[1.0, 2.0]])?, [low, 1.0, 2.0]);
    Ok(())
}

/// One step of decoding: the cache with the new keys, their sum, and a reduction of the cache alone.
fn step() -> Graph {
    Graph::new(21)
        .input("past", FLOAT, &[1, -1, 2])
        .input("new", FLOAT, &[1, 1, 2])
        .output("all", FLOAT)
        .output("sum", FLOAT)
        .output("length", INT64)
        .ints("axes", &[1.0])
        .node("Concat", &["past", "new"], &["all"], &[("axis", Value::Int(1))])
        .node("ReduceSum", &["past", "axes"], &["sum"], &[("keepdims", Value::Int(0))])
        .node("Shape", &["past"], &["dims"], &[])
        .node("Gather", &["dims", "axes"], &["length"], &[])
}

#[test]
fn a_cache_may_be_empty() -> Result<()> {
    let device = Device::cpu();
    let new = Tensor::from_slice(&device, [1, 1, 2], &[1.0, 2.0])?;
    let mut model = Model::from_bytes(&device, &step().bytes())?;
    model.set_empty("past", &[1, 0, 2])?;
    assert_eq!(model.inputs().len(), 1);
    let first = model.compile()?.call(&[&new])?;
    assert_eq!((first[0].shape().dims(), first[0].to_vec()?), (&[1, 1, 2][..], vec![1.0, 2.0]));
    assert_eq!((first[1].to_vec()?, first[2].to_i64_vec()?), (vec![0.0, 0.0], vec![0]));
    let model = Model::from_bytes(&device, &step().bytes())?;
    let second = model.compile_for(&[first[0].shape(), new.shape()])?.call(&[&first[0], &new])?;
    assert_eq!(second[0].to_vec()?, [1.0, 2.0, 1.0, 2.0]);
    assert_eq!(second[2].to_i64_vec()?, [1]);
    Ok(())
}

#[test]
fn only_extents_of_the_file_may_be_empty() -> Result<()> {
    let mut model = Model::from_bytes(&Device::cpu(), &step().bytes())?;
    for (name, extents, expected) in [
        ("other", &[0][..], "the model has no input `other`"),
        ("past", &[1, 3, 2], "cannot be without elements as [1, 3, 2]"),
        ("past", &[0, 3, 2], "input past: float[1, ?, 2] cannot be without elements as [0, 3, 2]"),
        ("past", &[1, 0], "cannot be without elements as [1, 0]"),
    ] {
        let error = model.set_empty(name, extents).expect_err(expected);
        assert_eq!(error.kind(), ErrorKind::Argument);
        assert!(error.to_string().contains(expected), "{error}");
    }
    assert_eq!(model.inputs().len(), 2);
    Ok(())
}

#[test]
fn reductions_of_nothing_are_neutral() -> Result<()> {
    for (op, expected) in [
        ("ReduceSum", 0.0),
        ("ReduceSumSquare", 0.0),
        ("ReduceL1", 0.0),
        ("ReduceL2", 0.0),
        ("ReduceProd", 1.0),
        ("ReduceMax", f64::NEG_INFINITY),
        ("ReduceMin", f64::INFINITY),
        ("ReduceLogSum", f64::NEG_INFINITY),
        ("ReduceLogSumExp", f64::NEG_INFINITY),
        ("ReduceMean", f64::NAN),
    ] {
        let graph = Graph::new(18).input("unused", FLOAT, &[1]).constant("x", FLOAT, &[2, 0], &[]).ints("axes", &[1.0]);
        let graph = graph.node(op, &["x", "axes"], &["y"], &[("keepdims", Value::Int(0))]).output("y", FLOAT);
        assert_close(&graph.numbers(&[&[0.0]])?, &[expected; 2], op);
    }
    Ok(())
}

#[test]
fn places_of_maxima_and_different_elements_are_int64() -> Result<()> {
    let device = Device::cpu();
    let graph = Graph::new(22).input("x", FLOAT, &[1, 2, 4]).output("i", INT64).node(
        "MaxPool",
        &["x"],
        &["y", "i"],
        &[("kernel_shape", Value::Ints(vec![2])), ("strides", Value::Ints(vec![2]))],
    );
    let x = Tensor::from_slice(&device, [1, 2, 4], &[1.0, 5.0, 2.0, 0.0, 7.0, 3.0, 4.0, 9.0])?;
    let y = Model::from_bytes(&device, &graph.bytes())?.compile()?.call(&[&x])?;
    assert_eq!(y[0].to_i64_vec()?, [1, 2, 4, 7]);
    // How many are different is known from the numbers.
    let graph = Graph::new(22).input("x", INT64, &[4]).output("y", INT64).node("Unique", &["x"], &["y"], &[]);
    assert_eq!(graph.numbers(&[&[3.0, 1.0, 3.0, -2.0]])?, [-2.0, 1.0, 3.0]);
    let model = Model::from_bytes(&device, &graph.bytes())?;
    let error = model.compile().expect_err("there are no numbers").to_string();
    assert!(error.contains("(Unique): `x` decides what is computed, and depends on the values of `x`"), "{error}");
    Ok(())
}
