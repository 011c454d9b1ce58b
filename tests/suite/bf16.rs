//! Values held as bf16, with channels innermost: conversions, rounding, and models that hold every possible value so.

use libtest_mimic::Trial;
use meganeura::nn::{Conv2d, GroupNorm};
use meganeura::{Device, Init, Layer, Precision, Result, Seed, Tape, Tensor, Var};

use crate::Outcome;
use crate::adapter::{gpu_trial, is_software};
use crate::golden;
use crate::nets::{normal, tensor};
use crate::numbers::{Computed, Reference, compare};

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    trials.push(gpu_trial("bf16::is_rounded_to_the_nearest", rounded));
    trials.push(gpu_trial("bf16::holds_non_finite_values", not_finite));
    trials.push(gpu_trial("bf16::holds_special_values_among_others", special));
    trials.push(gpu_trial("bf16::lies_between_the_steps_of_a_model", model));
    trials.push(gpu_trial("bf16::of_a_part_is_not_that_of_the_whole", parts));
    trials.push(gpu_trial("bf16::golden_plan", golden_plan));
    trials.push(gpu_trial("bf16::of_weight_gradients_lies_in_rows", weight_gradients));
}

/// A normalisation of images. Its result is held as `f32`, or as bf16 if another kernel reads it.
fn normalised(device: &Device, x: &[f64], shape: [usize; 4], again: bool) -> Result<Vec<f32>> {
    let norm = GroupNorm::new(2, shape[1]).init(device, Seed::new(1))?;
    let tape = Tape::new(device);
    let y = norm.forward(&tape.input(&Tensor::from_f64(device, shape, x)?));
    let z = again.then(|| norm.forward(&y));
    let y = y.to_tensor()?.to_vec()?;
    drop(z);
    Ok(y)
}

const SHAPES: [[usize; 4]; 5] = [[2, 8, 3, 5], [1, 24, 7, 9], [3, 40, 1, 2], [2, 64, 16, 16], [1, 16, 33, 31]];

/// Slices of the first images of a tensor: all begin at the same place of the same memory.
fn parts(device: &Device) -> Outcome {
    let device = device.for_testing_bf16(0);
    let norm = GroupNorm::new(2, 8).init(&device, Seed::new(1))?;
    let x = tensor(&device, "parts", [3, 8, 3, 5])?;
    let apart = |images: usize| -> Result<Vec<f32>> {
        let tape = Tape::new(&device);
        norm.forward(&tape.input(&x).slice(0, 0..images)).to_tensor()?.to_vec()
    };
    let tape = Tape::new(&device);
    let all = tape.input(&x);
    let results = [1, 3, 2].map(|images| (images, norm.forward(&all.slice(0, 0..images))));
    let sum = results.iter().map(|(_, y)| y.sum()).reduce(|a, b| a + b).expect("three");
    sum.item()?;
    for (images, y) in results {
        // A result that a sum reads is rounded; one that is only read by the caller is not.
        let expected: Vec<_> = apart(images)?.into_iter().map(rounded_bf16).collect();
        assert_eq!(y.to_tensor()?.to_vec()?, expected, "{images} images");
    }
    Ok(())
}

/// The golden plan shows the values held as bf16, and the conversions. There is an input, a concatenation of
/// channels, and a value that the caller holds.
fn golden_plan(device: &Device) -> Outcome {
    let device = device.for_testing_bf16(0);
    let norms =
        [(2, 8), (4, 24)].map(|(groups, channels)| GroupNorm::new(groups, channels).init(&device, Seed::new(1)));
    let [first, second] = norms;
    let (first, second) = (first?, second?);
    let tape = Tape::new(&device);
    let x = tape.input(&tensor(&device, "x", [2, 8, 3, 5])?);
    let y = first.forward(&x).silu();
    let sides = second.forward(&Var::concat(&[&y, &x, &y], 1)).relu();
    let loss = (sides.max_pool2d([3, 5], [1, 1], [0, 0], [1, 1]).flatten() * sides.mean_over(&[2, 3])).sum();
    let grads = tape.backward(&loss)?;
    drop((sides, loss));
    for (_, gradient) in grads.named(&first)? {
        gradient.to_tensor()?;
    }
    y.to_tensor()?;
    golden::check_plan("plan_bf16_gpu", &device.plan_dumps().join("\n"))
}

fn rounded_bf16(x: f32) -> f32 {
    if x.is_nan() {
        return x;
    }
    let bits = x.to_bits();
    f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
}

fn rounded(device: &Device) -> Outcome {
    let device = device.for_testing_bf16(0);
    for shape in SHAPES {
        let x = normal("rounded", shape.iter().product());
        let full = normalised(&device, &x, shape, false)?;
        let bf16 = normalised(&device, &x, shape, true)?;
        assert!(full.iter().any(|&x| x != rounded_bf16(x)), "{shape:?}: no f32 result needs rounding");
        for (at, (full, found)) in full.iter().zip(bf16).enumerate() {
            assert_eq!(rounded_bf16(*full).to_bits(), found.to_bits(), "{shape:?}: element {at}, {full:e}");
        }
    }
    Ok(())
}

fn not_finite(device: &Device) -> Outcome {
    let device = device.for_testing_bf16(0);
    for shape in SHAPES {
        for value in [f64::NAN, f64::INFINITY] {
            let mut x = normal("not finite", shape.iter().product());
            x[1] = value;
            let y = normalised(&device, &x, shape, true)?;
            // The group of this element is NaN; the others are not.
            let group = y.len() / shape[0] / 2;
            assert!(y[..group].iter().all(|y| y.is_nan()), "{shape:?}: {value} is lost");
            assert!(y[group..].iter().all(|y| y.is_finite()), "{shape:?}: {value} spreads");
        }
    }
    Ok(())
}

/// Numbers that are rounded alone or in a line with values that need care, in every place of a line.
fn special(device: &Device) -> Outcome {
    let device = device.for_testing_bf16(0);
    let shape = [1, 8, 9, 11];
    let special = [
        f32::NAN,
        -f32::NAN,
        f32::INFINITY,
        -f32::INFINITY,
        f32::MAX,
        f32::MIN,
        3e38,
        -2.13e38,
        7.3e25,
        7.8e25,
        -0.0,
        1.0 + 2f32.powi(-8),
    ];
    let mut x: Vec<f32> = normal("special", shape.iter().product()).into_iter().map(|x| x as f32).collect();
    // A line is the eight channels of a pixel.
    for pixel in (0..99).step_by(2) {
        x[pixel / 2 % 8 * 99 + pixel] = special[pixel / 2 % special.len()];
    }
    let norm = GroupNorm::new(2, 8).init(&device, Seed::new(1))?;
    let tape = Tape::new(&device);
    let y = -tape.input(&Tensor::from_slice(&device, shape, &x)?);
    let read = norm.forward(&y);
    let y = y.to_tensor()?.to_vec()?;
    drop(read);
    for (at, (x, found)) in x.iter().zip(y).enumerate() {
        let expected = rounded_bf16(-x);
        // GPUs may round large numbers towards 0.
        let is_cut = x.abs() >= 2f32.powi(86) && found.to_bits() == (-x).to_bits() & 0xffff_0000;
        let is_right = if x.is_nan() { found.is_nan() } else { expected.to_bits() == found.to_bits() || is_cut };
        assert!(is_right, "element {at}: {:e} became {found:e}, not {expected:e}", -x);
    }
    assert!(x.iter().any(|&x| x != rounded_bf16(x)), "no number needs rounding");
    Ok(())
}

/// The gradients of a convolution's weights, as bf16 in the order of the API: for each shape, the rounded gradients
/// that the device keeps as `f32` if nothing else reads them. In fast precision only.
fn weight_gradients(device: &Device) -> Outcome {
    let Ok(device) = device.with_precision(Precision::Fast) else { return Ok(()) };
    let device = device.for_testing_bf16(0);
    let convs = [
        (8, Conv2d::new(8, 8, 1)),
        (16, Conv2d::new(16, 24, 3).padding(1)),
        (3, Conv2d::new(3, 40, 3)),
        (64, Conv2d::new(64, 7, 2)),
        (24, Conv2d::new(24, 32, 5).stride(2)),
        (48, Conv2d::new(48, 32, 3).groups(2)),
    ];
    for (number, (channels, conv)) in convs.into_iter().enumerate() {
        let conv = conv.init(&device, Seed::new(number as u64))?;
        let x = tensor(&device, "x", [3, channels, 9, 11])?;
        let gradient = |is_read: bool| -> Result<Vec<f32>> {
            let tape = Tape::new(&device);
            let loss = conv.forward(&tape.input(&x)).square().mean();
            let gradient = tape.backward(&loss)?.get(&conv.weight).expect("the loss depends on it");
            if !is_read {
                return gradient.to_tensor()?.to_vec();
            }
            // The norm reads the gradient as bf16; padding does not, so that it shows what was stored.
            let (norm, padded) = (gradient.square().sum(), gradient.pad(&[(0, 0), (0, 0), (0, 0), (0, 1)], 0.0));
            let shown = padded.slice(3, 0..gradient.ty().shape[3]);
            drop(gradient);
            norm.item()?;
            shown.to_tensor()?.to_vec()
        };
        let (full, bf16) = (gradient(false)?, gradient(true)?);
        assert!(full.iter().any(|&x| x != rounded_bf16(x)), "{number}: no f32 result needs rounding");
        let expected: Vec<_> = full.into_iter().map(rounded_bf16).collect();
        assert_eq!(bf16, expected, "convolution {number}");
    }
    Ok(())
}

/// Two residual blocks, then a factor for each channel and a mean over pixels.
fn network(device: &Device, x: &[f64], shape: [usize; 4]) -> Result<Vec<Vec<f64>>> {
    let c = shape[1];
    let stem = Conv2d::new(c, 16, 3).padding(1).init(device, Seed::new(2))?;
    let norms: Vec<_> = (0..2).map(|_| GroupNorm::new(4, 16).init(device, Seed::new(3))).collect::<Result<_>>()?;
    let convs = [Conv2d::new(16, 16, 3).padding(1), Conv2d::new(16, 24, 3).padding(1).stride(2)];
    let convs = convs.into_iter().map(|conv| conv.init(device, Seed::new(4))).collect::<Result<Vec<_>>>()?;
    let tape = Tape::new(device);
    let input = tape.input(&Tensor::from_f64(device, shape, x)?);
    let gain = tape.input(&tensor(device, "gain", [16, 1, 1])?);
    let stem_out = stem.forward(&input);
    let block = norms[0].forward(&stem_out).silu() * &gain;
    let block = norms[1].forward(&convs[0].forward(&block)).gelu() + &stem_out;
    let last = convs[1].forward(&block).tanh();
    let pooled = last.mean_over(&[2, 3]);
    let spread = last.variance_over(&[1], 1);
    let loss = (&pooled * tape.input(&tensor(device, "pooled", pooled.shape())?)).sum() + spread.mean();
    let grads = tape.backward(&loss)?;
    let mut values = vec![pooled, loss, grads.of(&input).expect("depends")];
    let modules: [&dyn Layer; 5] = [&stem, &norms[0], &norms[1], &convs[0], &convs[1]];
    for module in modules {
        values.extend(grads.named(module)?.into_iter().map(|(_, gradient)| gradient));
    }
    values.push(block);
    values.iter().map(|value| value.to_tensor()?.to_f64_vec()).collect()
}

fn model(device: &Device) -> Outcome {
    let double = Device::cpu_with(Precision::Double);
    let shapes = [[2, 8, 6, 10], [1, 3, 9, 7], [3, 16, 16, 16]];
    // Software takes seconds to compile each network.
    for shape in &shapes[..if is_software(device) { 2 } else { 3 }] {
        let x = normal("model", shape.iter().product());
        let reference = network(&double, &x, *shape)?;
        let devices = [Ok(device.for_testing_bf16(0)), device.with_precision(Precision::Fast)];
        for device in devices.into_iter().flatten() {
            let found = network(&device, &x, *shape)?;
            for (k, (found, reference)) in found.into_iter().zip(&reference).enumerate() {
                // One rounding to eight bits for each operation on a value's way.
                let scale = reference.iter().fold(0.0f64, |max, x| max.max(x.abs()));
                let scaled = |data: &[f64]| data.iter().map(|x| x / scale).collect::<Vec<_>>();
                let what = format!("{shape:?} on {device}: value {k}");
                compare(&what, &Computed(scaled(&found)), &Reference(scaled(reference)), 0.03)?;
            }
        }
    }
    Ok(())
}
