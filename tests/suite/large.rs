//! Sizes above the cases of operations: more workgroups than fit in one dimension of a grid, and operations of the size
//! of a layer.

use libtest_mimic::{Failed, Trial};
use meganeura::ops::Conv2dOptions;
use meganeura::ops::case::Case;
use meganeura::optim::{Optimizer, Sgd};
use meganeura::{Device, Param, Precision, Result, Tape, Tensor, Var};

use crate::adapter::gpu_trial;
use crate::nets::tensor;
use crate::numbers::{Computed, Reference, compare, operands};
use crate::ops::{each_variant, offered};

/// More than invocations with one element each would take, and no multiple of what they take together.
const ELEMENTS: usize = 17_000_001;

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    trials.push(gpu_trial("large::elementwise", elementwise));
    trials.push(gpu_trial("large::updated", updated));
    trials.push(gpu_trial("large::joined", joined));
    trials.push(gpu_trial("large::convolution", convolution));
    trials.push(gpu_trial("large::product", product));
    trials.push(gpu_trial("large::shared_operands", shared_operands));
}

fn elementwise(device: &Device) -> Result<(), Failed> {
    // Integers, exact in f32 above 2²⁴ where they are even; each element's value names its place.
    let value = |i: usize| (i / 2) as f32;
    let y = {
        let x: Vec<f32> = (0..ELEMENTS).map(value).collect();
        let x = Tape::new(device).input(&Tensor::from_slice(device, [ELEMENTS], &x)?);
        (x * 0.5 + 1.0).to_vec()?
    };
    assert_eq!(y.len(), ELEMENTS);
    for start in [0, 65_535 * 64, 65_535 * 256, ELEMENTS / 2, ELEMENTS - 300] {
        for i in (start..ELEMENTS).take(300) {
            assert_eq!(y[i], value(i) * 0.5 + 1.0, "element {i}");
        }
    }
    // Nothing in between was skipped either.
    assert!(y.iter().enumerate().all(|(i, &y)| y == value(i) * 0.5 + 1.0));
    Ok(())
}

/// An element that is replaced where it lies is replaced once, the last of those that an invocation computes together
/// included.
fn updated(device: &Device) -> Result<(), Failed> {
    const ELEMENTS: usize = (1 << 20) + 77;
    let mut weights = Param::new(Tensor::full(device, [ELEMENTS], 1.0)?);
    for _ in 0..3 {
        let tape = Tape::new(device);
        let grads = tape.backward(&tape.param(&weights).sum())?;
        Sgd::new(0.25).step(&mut weights, &grads)?;
    }
    let values = weights.value().to_vec()?;
    assert!(values.iter().all(|&value| value == 0.25), "{:?}", &values[ELEMENTS - 80..]);
    Ok(())
}

/// With 64 elements a workgroup, more than 65,535 workgroups.
fn joined(device: &Device) -> Result<(), Failed> {
    const ELEMENTS: usize = 2_100_001;
    let x: Vec<f32> = (0..ELEMENTS).map(|i| i as f32).collect();
    let x = Tape::new(device).input(&Tensor::from_slice(device, [ELEMENTS], &x)?);
    let y = Var::concat(&[&x, &x, &x], 0).to_vec()?;
    assert_eq!(y.len(), 3 * ELEMENTS);
    assert!(y.iter().enumerate().all(|(i, &y)| y == (i % ELEMENTS) as f32));
    Ok(())
}

/// A layer's convolution, 3×3 from 64 to 128 channels on four images of 32×32. The gradient of the weight is a product
/// of 128×576 sums over 4096 pixels.
fn convolution(device: &Device) -> Result<(), Failed> {
    let options = Conv2dOptions { padding: [1, 1], ..Conv2dOptions::default() };
    in_every_variant(device, [&[4, 64, 32, 32], &[128, 64, 3, 3], &[4, 128, 32, 32]], |x, w| x.conv2d(w, options))
}

/// A product that large GPUs cut into parts of which each multiprocessor gets one.
fn product(device: &Device) -> Result<(), Failed> {
    in_every_variant(device, [&[768, 768]; 3], Var::matmul)
}

/// An operation on two operands, with its result's cotangents as the third: result and both gradients, in every
/// variant, against double precision.
fn in_every_variant(
    device: &Device,
    shapes: [&[usize]; 3],
    operation: impl Fn(&Var, &Var) -> Var,
) -> Result<(), Failed> {
    let operands = operands(&Case::recorded("large", &shapes, |x| x[0].clone()));
    let run = |device: &Device| -> Result<(Vec<Vec<f64>>, usize)> {
        let tape = Tape::new(device);
        let x = operands.iter().map(|x| Ok(tape.input(&x.tensor(device)?))).collect::<Result<Vec<_>>>()?;
        let y = operation(&x[0], &x[1]);
        let loss = (&y * &x[2]).sum();
        let grads = tape.backward(&loss)?;
        let mut results = vec![y.to_tensor()?.to_f64_vec()?];
        for operand in &x[..2] {
            let gradient = grads.of(operand).expect("the loss depends on it");
            results.push(gradient.to_tensor()?.to_f64_vec()?);
        }
        Ok((results, offered(device)))
    };
    let (reference, _) = run(&Device::cpu_with(Precision::Double))?;
    each_variant(device, |device| {
        let (computed, offered) = run(device)?;
        for (k, (computed, reference)) in computed.into_iter().zip(&reference).enumerate() {
            compare(&format!("result {k}"), &Computed(computed), &Reference(reference.clone()), 5e-6)?;
        }
        Ok(offered)
    })
}

/// Two images and two weights, each with each, in one run: what brings weights into another form is done once for both
/// images, and what comes of it is told apart. Large GPUs cut these reductions.
fn shared_operands(device: &Device) -> Result<(), Failed> {
    let run = |device: &Device| -> Result<Vec<f64>> {
        let tape = Tape::new(device);
        let input = |name, shape: [usize; 4]| Ok::<_, meganeura::Error>(tape.input(&tensor(device, name, shape)?));
        let images = [input("x", [8, 64, 16, 16])?, input("other x", [8, 64, 16, 16])?];
        let weights = [input("w", [64, 64, 3, 3])?, input("other w", [64, 64, 3, 3])?];
        let options = Conv2dOptions { stride: [2, 2], ..Conv2dOptions::default() };
        let results = images.each_ref().map(|x| weights.each_ref().map(|w| x.conv2d(w, options)));
        Var::concat(&results.as_flattened().iter().collect::<Vec<_>>(), 0).to_tensor()?.to_f64_vec()
    };
    let reference = run(&Device::cpu_with(Precision::Double))?;
    // Images are rounded to eight digits.
    let fast = device.with_precision(Precision::Fast).ok().map(|device| (device, 6e-3));
    for (device, tolerance) in [(device.clone(), 1e-5)].into_iter().chain(fast) {
        compare("y", &Computed(run(&device)?), &Reference(reference.clone()), tolerance)?;
    }
    Ok(())
}
