//! Products and convolutions of what `DequantizeLinear` gives, in single precision of bytes, in double of floats.

use super::{Attributes, Graph, Value};
use crate::onnx::import::Model;
use crate::onnx::proto::element::{FLOAT, INT8, INT32, UINT8};
use crate::{Device, Precision, Profiling, Result, Tape, Tensor};

/// Numbers of a range, in no order.
fn numbers(count: usize, least: f64, range: usize) -> Vec<f64> {
    (0..count).map(|i| least + ((i * 7919 + 13) % 10_007 % range) as f64).collect()
}

/// A node whose operands are bytes with scales: its first two, and perhaps a third of `int32`.
fn node(op: &str, x: &[i64], w: &[i64], axis: Option<i64>, with_bias: bool, attributes: Attributes<'_>) -> Graph {
    let elements = |dims: &[i64]| dims.iter().product::<i64>().unsigned_abs() as usize;
    let graph = Graph::new(13)
        .input("x", UINT8, x)
        .output("y", FLOAT)
        .constant("sx", FLOAT, &[], &[0.037])
        .constant("zx", UINT8, &[], &[9.0])
        .constant("w", INT8, w, &numbers(elements(w), -128.0, 256))
        .node("DequantizeLinear", &["x", "sx", "zx"], &["fx"], &[]);
    let count = axis.map_or(1, |axis| w[axis as usize]);
    let of_axis: &[i64] = if axis.is_some() { &[count] } else { &[] };
    let scales: Vec<_> = (0..count).map(|i| 0.01 + 0.003 * i as f64).collect();
    let graph = graph
        .constant("sw", FLOAT, of_axis, &scales)
        .constant("zw", INT8, of_axis, &numbers(elements(of_axis), -3.0, 7))
        .node("DequantizeLinear", &["w", "sw", "zw"], &["fw"], &[("axis", Value::Int(axis.unwrap_or(1)))]);
    if !with_bias {
        return graph.node(op, &["fx", "fw"], &["y"], attributes);
    }
    let channels = w[0];
    graph
        .constant("b", INT32, &[channels], &numbers(elements(&[channels]), -5000.0, 10_000))
        .constant("sb", FLOAT, &[], &[0.001])
        .node("DequantizeLinear", &["b", "sb"], &["fb"], &[])
        .node(op, &["fx", "fw", "fb"], &["y"], attributes)
}

fn result(graph: &Graph, x: &[i64], precision: Precision) -> Result<(Vec<f64>, bool)> {
    let device = Device::cpu_with(precision);
    let model = Model::from_bytes(&device, &graph.bytes())?;
    let shape: Vec<_> = x.iter().map(|&extent| extent.unsigned_abs() as usize).collect();
    let pixels = Tensor::from_f64(&device, &shape[..], &numbers(shape.iter().product(), 0.0, 256))?;
    let tape = Tape::new(&device);
    let y = model.record(&tape, &[tape.input(&pixels)])?.swap_remove(0);
    device.set_profiling(Profiling::Launches)?;
    let y = y.to_tensor()?.to_f64_vec()?;
    let is_of_bytes = device.last_profile()?.launches.iter().any(|launch| launch.name.contains("_integer"));
    Ok((y, is_of_bytes))
}

#[test]
fn bytes_are_multiplied_as_bytes() -> Result<()> {
    let pads = |pads: &[i64]| ("pads", Value::Ints(pads.to_vec()));
    let many = [2, 40, 9, 8];
    for (op, x, w, axis, with_bias, attributes, is_of_bytes) in [
        ("Conv", &many[..], &[5, 40, 3, 3][..], Some(0), true, &[pads(&[1, 1, 1, 1])][..], true),
        ("Conv", &many, &[5, 40, 3, 2], None, false, &[pads(&[0, 2, 1, 0])], true),
        ("Conv", &many, &[6, 20, 1, 1], Some(0), true, &[("group", Value::Int(2))], true),
        ("Conv", &[1, 300, 17], &[7, 300, 4], Some(0), true, &[], true),
        ("Conv", &many, &[40, 1, 3, 3], Some(0), true, &[("group", Value::Int(40))], false),
        ("MatMul", &[3, 4, 500], &[500, 9], Some(1), false, &[], true),
        ("MatMul", &[3, 4, 50], &[50, 9], Some(0), false, &[], false),
        ("Gemm", &[6, 70], &[11, 70], Some(0), true, &[("transB", Value::Int(1)), ("alpha", Value::Float(0.5))], true),
        ("Gemm", &[70, 6], &[70, 11], Some(1), false, &[("transA", Value::Int(1))], false),
    ] {
        let graph = node(op, x, w, axis, with_bias, attributes);
        let (found, of_bytes) = result(&graph, x, Precision::Full)?;
        let (wanted, of_floats) = result(&graph, x, Precision::Double)?;
        let what = format!("{op} {x:?} {w:?}");
        assert_eq!((of_bytes, of_floats), (is_of_bytes, false), "{what}");
        let largest = wanted.iter().fold(0f64, |largest, y| largest.max(y.abs()));
        for (found, wanted) in found.iter().zip(&wanted) {
            assert!((found - wanted).abs() <= 2e-6 * largest, "{what}: {found}, not {wanted}");
        }
    }
    Ok(())
}
