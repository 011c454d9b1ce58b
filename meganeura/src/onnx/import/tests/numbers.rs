//! Results at the corners of operators.

use super::{Graph, Value, assert_close};
use crate::onnx::import::Model;
use crate::onnx::proto::element::*;
use crate::{Device, Result, Tensor};

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
fn negative_integers_leave_as_floats() -> Result<()> {
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
    assert_eq!(y[0].to_u32_vec()?, [0, 1]);
    assert_eq!(y[1].to_vec()?, [-1.0, 0.0]);
    Ok(())
}

#[test]
fn integers_without_an_exact_float_become_infinite() -> Result<()> {
    let device = Device::cpu();
    let graph = |op: &str, to: i64| {
        let graph = Graph::new(20).input("i", INT64, &[3]).output("y", FLOAT).constant("k", INT64, &[], &[1.0]);
        graph.node(op, &["i", "k"], &["z"], &[]).node("Cast", &["z"], &["y"], &[("to", Value::Int(to))])
    };
    let i = Tensor::indices(&device, [3], &[40_000_001, 16_777_217, 16_777_214])?;
    let run = |graph: &Graph| -> Result<Vec<f32>> {
        Model::from_bytes(&device, &graph.bytes())?.compile()?.call(&[&i])?[0].to_vec()
    };
    assert_eq!(run(&graph("Add", 1))?, [f32::INFINITY, f32::INFINITY, 16_777_215.0]);
    // Comparisons with small numbers are right.
    assert_eq!(run(&graph("Greater", 1))?, [1.0; 3]);
    // A constant that has no float is refused.
    let graph = Graph::new(20).input("i", INT64, &[1]).output("y", INT64).constant("k", INT64, &[], &[16_777_217.0]);
    let error = graph.node("Add", &["i", "k"], &["y"], &[]).error(&[&[1.0]]);
    assert!(error.to_string().contains("(Add): the integer 16777217 is computed with as a float"), "{error}");
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
