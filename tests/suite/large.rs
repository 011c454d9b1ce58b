//! Larger sizes than the cases of operations have: more workgroups than fit in one grid dimension, and layer-sized
//! operations.

use libtest_mimic::{Failed, Trial};
use meganeura::ops::Conv2dOptions;
use meganeura::ops::case::Case;
use meganeura::optim::{Optimizer, Sgd};
use meganeura::{Device, Param, Precision, Result, Tape, Tensor, Var};

use crate::adapter::{gpu_trial, is_software};
use crate::nets::tensor;
use crate::numbers::{Computed, Reference, compare, operands};
use crate::ops::{each_variant, most_again, offered};

/// Too many for one element per invocation in a one-dimensional grid, and not a multiple of a workgroup.
const ELEMENTS: usize = 17_000_001;

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    trials.push(gpu_trial("large::elementwise", elementwise));
    trials.push(Trial::test("large::cpu::indices", || indices(&Device::cpu())));
    trials.push(gpu_trial("large::indices", indices));
    trials.push(gpu_trial("large::updated", updated));
    trials.push(gpu_trial("large::joined", joined));
    trials.push(gpu_trial("large::convolution", convolution));
    trials.push(gpu_trial("large::product", product));
    trials.push(gpu_trial("large::shared_operands", shared_operands));
}

fn elementwise(device: &Device) -> Result<(), Failed> {
    // Each element's value tells its place. `i / 2` is exact in f32.
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
    // Nor was anything in between skipped.
    assert!(y.iter().enumerate().all(|(i, &y)| y == value(i) * 0.5 + 1.0));
    Ok(())
}

/// The indices of extrema that no f32 can hold.
fn indices(device: &Device) -> Result<(), Failed> {
    const PLACE: usize = (1 << 24) + 1;
    let mut x = vec![0.0; PLACE + 2];
    x[PLACE] = 1.0;
    let x = Tape::new(device).input(&Tensor::from_slice(device, [x.len()], &x)?);
    for y in [x.argmax(0), (-&x).argmin(0)] {
        assert_eq!(y.to_tensor()?.to_u32_vec()?, [u32::try_from(PLACE)?]);
    }
    assert_eq!(x.argmin(0).to_tensor()?.to_u32_vec()?, [0]);
    Ok(())
}

/// An in-place update happens once for each element, the last invocation's incomplete group included.
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

/// A typical layer: 3×3 from 64 to 128 channels on four images of 32×32. The weight's gradient has 128×576 elements,
/// sums over 4096 pixels. Software gets one image of 16×16.
fn convolution(device: &Device) -> Result<(), Failed> {
    let options = Conv2dOptions { padding: [1, 1], ..Conv2dOptions::default() };
    let (n, side) = if is_software(device) { (1, 16) } else { (4, 32) };
    in_every_variant(device, [&[n, 64, side, side], &[128, 64, 3, 3], &[n, 128, side, side]], |x, w| {
        x.conv2d(w, options)
    })
}

/// A product that large GPUs split into one part per multiprocessor. Software gets a smaller one.
fn product(device: &Device) -> Result<(), Failed> {
    let side = if is_software(device) { 384 } else { 768 };
    in_every_variant(device, [&[side, side]; 3], Var::matmul)
}

/// Checks an operation on two operands in every variant: result and both gradients, against double precision. The third
/// shape is the result's. Software only gets the best variant.
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
        let gradients = x[..2].iter().map(|operand| grads.of(operand).expect("the loss depends on it"));
        let results: Vec<_> = std::iter::once(y).chain(gradients).collect();
        let results = results.iter().map(|result| result.to_tensor()?.to_f64_vec()).collect::<Result<_>>()?;
        Ok((results, offered(device)))
    };
    let (reference, _) = run(&Device::cpu_with(Precision::Double))?;
    let most = most_again(device);
    each_variant(device, |device| {
        let (computed, offered) = run(device)?;
        for (k, (computed, reference)) in computed.into_iter().zip(&reference).enumerate() {
            compare(&format!("result {k}"), &Computed(computed), &Reference(reference.clone()), 5e-6)?;
        }
        Ok(offered.min(most))
    })
}

/// Convolves each of two batches with each of two weights in one run. Each weight is packed once for both batches, and
/// packed weights must not be mixed up. Large GPUs split these reductions.
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
    // In fast precision, images are rounded to eight bits.
    let fast = device.with_precision(Precision::Fast).ok().map(|device| (device, 6e-3));
    for (device, tolerance) in [(device.clone(), 1e-5)].into_iter().chain(fast) {
        compare("y", &Computed(run(&device)?), &Reference(reference.clone()), tolerance)?;
    }
    Ok(())
}
