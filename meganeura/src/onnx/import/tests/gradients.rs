//! Gradients flow through imported operators: compared with finite differences in double precision.

use super::{Attributes, Graph, Value};
use crate::onnx::import::Model;
use crate::onnx::proto::element::{DOUBLE, INT64};
use crate::{Device, Precision, Result, Shape, Tape, Tensor};

/// Numbers without a pattern, apart from zero and from each other.
fn numbers(count: usize, seed: f64) -> Vec<f64> {
    (0..count).map(|k| ((k as f64 + seed) * 12.9898).sin()).collect()
}

/// Compares the gradient of the first operand of a node, for a cotangent without a pattern, with finite differences.
fn check(op: &str, x: &[i64], others: &[(i32, &[i64], Vec<f64>)], attributes: Attributes<'_>) -> Result<()> {
    let mut graph = Graph::new(28).input("x", DOUBLE, x).output("y", DOUBLE);
    let mut names = vec!["x".to_owned()];
    for (k, (ty, dims, data)) in others.iter().enumerate() {
        // An operand that is left out has no numbers.
        names.push(if data.is_empty() { String::new() } else { format!("c{k}") });
        if !data.is_empty() {
            graph = graph.constant(&names[k + 1], *ty, dims, data);
        }
    }
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let graph = graph.node(op, &names, &["y"], attributes);
    let device = Device::cpu_with(Precision::Double);
    let model = Model::from_bytes(&device, &graph.bytes())?;
    let dims: Vec<_> = x.iter().map(|&extent| extent as usize).collect();
    let shape = Shape::new(&dims);
    let data = numbers(shape.elements(), 1.0);
    let value = |data: &[f64]| -> Result<(f64, Vec<f64>)> {
        let tape = Tape::new(&device);
        let x = tape.input(&Tensor::from_f64(&device, shape, data)?);
        let y = model.record(&tape, std::slice::from_ref(&x))?.swap_remove(0);
        let weights = Tensor::from_f64(&device, y.shape(), &numbers(y.shape().elements(), 5.0))?;
        let sum = (y * tape.input(&weights)).sum();
        let grads = tape.backward(&sum)?;
        Ok((sum.to_tensor()?.to_f64_vec()?[0], grads.of(&x).expect("it depends on x").to_tensor()?.to_f64_vec()?))
    };
    let (_, gradient) = value(&data)?;
    let step = 1e-6;
    for (k, dx) in gradient.iter().enumerate() {
        let moved = |by: f64| {
            let mut data = data.clone();
            data[k] += by;
            Ok::<_, crate::Error>(value(&data)?.0)
        };
        let slope = (moved(step)? - moved(-step)?) / (2.0 * step);
        // The rounding of the difference, and the next term of the series.
        assert!((dx - slope).abs() < 1e-7 * (1.0 + slope.abs()), "{op} {k}: {dx}, and the slope is {slope}");
    }
    Ok(())
}

#[test]
fn gradients_are_the_slopes() -> Result<()> {
    let double = |dims: &'static [i64], seed: f64| {
        let count = dims.iter().product::<i64>() as usize;
        (DOUBLE, dims, numbers(count, seed))
    };
    let heads: &[i64] = &[1, 2, 3, 4];
    let keys = || [double(&[1, 2, 5, 4], 2.0), double(&[1, 2, 5, 3], 3.0)];
    check("Attention", heads, &keys(), &[("softcap", Value::Float(0.5)), ("is_causal", Value::Int(1))])?;
    check("Attention", heads, &keys(), &[("left_window_size", Value::Int(1))])?;
    let angles = [double(&[1, 3, 2], 2.0), double(&[1, 3, 2], 3.0)];
    check("RotaryEmbedding", heads, &angles, &[("interleaved", Value::Int(1))])?;
    for (op, gates) in [("LSTM", 4), ("GRU", 3)] {
        let weights: &[&'static [i64]; 2] = match gates {
            4 => &[&[1, 8, 3], &[1, 8, 2]],
            _ => &[&[1, 6, 3], &[1, 6, 2]],
        };
        check(op, &[3, 2, 3], &[double(weights[0], 2.0), double(weights[1], 3.0)], &[])?;
        check(
            op,
            &[3, 2, 3],
            &[double(weights[0], 2.0), double(weights[1], 3.0)],
            &[("clip", Value::Float(3.0)), ("direction", Value::Text("reverse"))],
        )?;
    }
    let labels = || (INT64, &[2i64, 2][..], vec![0.0, 2.0, 1.0, 2.0]);
    check("SoftmaxCrossEntropyLoss", &[2, 3, 2], &[labels(), double(&[3], 7.0)], &[("ignore_index", Value::Int(1))])?;
    check("NegativeLogLikelihoodLoss", &[2, 3, 2], &[labels()], &[("reduction", Value::Text("none"))])?;
    check("LRN", &[2, 5, 3], &[], &[("size", Value::Int(3)), ("alpha", Value::Float(0.5))])?;
    check("MeanVarianceNormalization", &[2, 3, 2, 2], &[], &[])?;
    check("CumProd", &[4, 2], &[(INT64, &[1], vec![0.0])], &[("exclusive", Value::Int(1))])?;
    for op in ["Acos", "Asin", "Asinh", "Atan", "Atanh"] {
        check(op, &[5], &[], &[])?;
    }
    let tuples = || (INT64, &[2i64, 2][..], vec![2.0, 1.0, -1.0, 0.0]);
    check("GatherND", &[3, 2, 2], &[tuples()], &[])?;
    check("ScatterND", &[3, 2, 2], &[tuples(), double(&[2, 2], 2.0)], &[("reduction", Value::Text("add"))])?;
    check("ScatterND", &[3, 2, 2], &[tuples(), double(&[2, 2], 2.0)], &[("reduction", Value::Text("mul"))])?;
    check("ReverseSequence", &[3, 2], &[(INT64, &[2], vec![2.0, 3.0])], &[])?;
    check("LpPool", &[1, 2, 5], &[], &[("kernel_shape", Value::Ints(vec![2])), ("p", Value::Int(3))])?;
    check("CenterCropPad", &[3, 4], &[(INT64, &[2], vec![5.0, 2.0])], &[])?;
    check("DFT", &[2, 5, 2], &[], &[("onesided", Value::Int(0))])?;
    check("STFT", &[1, 7, 1], &[(INT64, &[], vec![2.0]), double(&[4], 2.0)], &[])?;
    let resized = |mode, antialias, size: Vec<f64>| {
        let others = [(INT64, &[0i64][..], vec![]), (INT64, &[0][..], vec![]), (INT64, &[3][..], size)];
        let attributes = [("mode", Value::Text(mode)), ("antialias", Value::Int(antialias))];
        check("Resize", &[2, 5, 3], &others, &attributes)
    };
    resized("cubic", 1, vec![2.0, 2.0, 7.0])?;
    resized("linear", 0, vec![2.0, 3.0, 7.0])?;
    let same = [("auto_pad", Value::Text("SAME_UPPER")), ("strides", Value::Ints(vec![2]))];
    check("ConvTranspose", &[1, 2, 4], &[double(&[2, 3, 3], 2.0)], &same)?;
    let boxes = (DOUBLE, &[2i64, 4][..], vec![0.0, 0.5, 3.0, 4.0, -1.0, 1.0, 2.2, 2.0]);
    let images = || (INT64, &[2i64][..], vec![0.0, 1.0]);
    for mode in ["avg", "max"] {
        let attributes =
            [("output_height", Value::Int(2)), ("mode", Value::Text(mode)), ("sampling_ratio", Value::Int(2))];
        check("RoiAlign", &[2, 2, 4, 5], &[boxes.clone(), images()], &attributes)?;
    }
    check("AffineGrid", &[2, 2, 3], &[(INT64, &[4], vec![2.0, 1.0, 3.0, 4.0])], &[])?;
    let extents = |numbers: [f64; 2]| (INT64, &[2i64][..], numbers.to_vec());
    let pads = [("pads", Value::Ints(vec![1, 0, 0, 1]))];
    check("Col2Im", &[1, 8, 12], &[extents([4.0, 3.0]), extents([2.0, 2.0])], &pads)?;
    let places = (INT64, &[1i64, 1, 2, 2][..], vec![5.0, 7.0, 13.0, 15.0]);
    let pool = [("kernel_shape", Value::Ints(vec![2, 2])), ("strides", Value::Ints(vec![2, 2]))];
    check("MaxUnpool", &[1, 1, 2, 2], &[places], &pool)?;
    let places = |dims: &'static [i64]| {
        let count = dims.iter().product::<i64>() as usize;
        (DOUBLE, dims, numbers(count, 4.0).into_iter().map(|x| 1.4 * x).collect())
    };
    for padding in ["zeros", "border", "reflection"] {
        let attributes = [("mode", Value::Text("cubic")), ("padding_mode", Value::Text(padding))];
        check("GridSample", &[2, 2, 3, 4], &[places(&[2, 3, 2, 2])], &attributes)?;
        let attributes = [("mode", Value::Text("linear")), ("padding_mode", Value::Text(padding))];
        check("GridSample", &[1, 2, 3, 2, 4], &[places(&[1, 2, 1, 2, 3])], &attributes)?;
    }
    let offsets = || double(&[1, 16, 3, 2], 3.0);
    let moved = [("offset_group", Value::Int(2)), ("strides", Value::Ints(vec![1, 2]))];
    check("DeformConv", &[1, 4, 4, 4], &[double(&[2, 4, 2, 2], 2.0), offsets()], &moved)?;
    let heads = [("q_num_heads", Value::Int(4)), ("kv_num_heads", Value::Int(2))];
    let (keys, rates) = (|| [double(&[2, 3, 4], 2.0), double(&[2, 3, 6], 3.0)], || double(&[2, 3, 2], 7.0));
    let nothing = || (DOUBLE, &[0i64][..], Vec::new());
    let [key, value] = keys();
    check("LinearAttention", &[2, 3, 8], &[key, value, nothing(), rates(), rates()], &heads)?;
    let causal = [("activation", Value::Text("silu"))];
    check("CausalConvWithState", &[2, 3, 4], &[double(&[3, 1, 3], 2.0), double(&[3], 3.0)], &causal)?;
    check("Mod", &[7], &[double(&[7], 5.0)], &[("fmod", Value::Int(1))])?;
    check("SwiGLU", &[5], &[double(&[5], 2.0)], &[("alpha", Value::Float(1.5))])?;
    check("Shrink", &[5], &[], &[("bias", Value::Float(0.1)), ("lambd", Value::Float(0.3))])
}
