//! Windows, rows and reductions that are too long for one invocation's loop.
//!
//! Mesa's lavapipe silently ends an invocation's loops after 65,535 iterations, counted over all loops of the shader.
//! On other drivers, these tests cover the forms that split a long loop between invocations.

use libtest_mimic::{Failed, Trial};
use meganeura::loss::{CrossEntropyOptions, Reduction};
use meganeura::ops::Conv2dOptions;
use meganeura::ops::case::Case;
use meganeura::{Device, Precision, Result, Tape, Tensor, Var};

use crate::adapter::gpu_trial;
use crate::numbers::{Computed, Numbers, Reference, compare, operands};
use crate::ops::{each_variant, offered};

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    let mut add = |name: &str, test: fn(&Device) -> Result<(), Failed>| {
        trials.push(gpu_trial(format!("loops::{name}"), test));
    };
    add("average_pooling", average_pooling);
    add("maximum_pooling", maximum_pooling);
    add("resampling", resampling);
    add("convolution_with_a_large_kernel", large_kernel);
    add("convolution_of_many_channels", many_channels);
    add("gradient_of_a_weight_over_many_pixels", many_pixels);
    add("products", products);
    add("dot_products", dot_products);
    add("reductions", reductions);
    add("powers_on_the_way_into_a_sum", powers);
    add("softmax", softmax);
    add("cross_entropy", cross_entropy);
    add("gradient_of_a_table", table);
}

/// The compared values.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Result,
    /// The gradients of `Σ c·y` with respect to all operands, with random `c`.
    Gradients,
    /// The gradient with respect to the operand of this index.
    Gradient(usize),
}

/// Compares an operation on random operands with double precision, in every variant.
fn hold(
    device: &Device,
    part: Part,
    shapes: &[&[usize]],
    tolerance: f64,
    operation: impl Fn(&[Var]) -> Var,
) -> Result<(), Failed> {
    let numbers = operands(&Case::recorded("loops", shapes, |x| x[0].clone()));
    let reference = run(&Device::cpu_with(Precision::Double), part, &numbers, &operation)?;
    each_variant(device, |device| {
        let computed = run(device, part, &numbers, &operation)?;
        let kernels: Vec<_> = device.kernel_choices().concat();
        let kernels: Vec<_> = kernels.iter().map(|kernel| format!("{} {}", kernel.op, kernel.variant)).collect();
        for (k, (computed, reference)) in computed.into_iter().zip(&reference).enumerate() {
            let what = format!("number {k} of {shapes:?} by {kernels:?}");
            compare(&what, &Computed(computed), &Reference(reference.clone()), tolerance)?;
        }
        Ok(offered(device))
    })
}

/// The same in the variant that the device chooses.
fn hold_best(
    device: &Device,
    part: Part,
    shapes: &[&[usize]],
    tolerance: f64,
    operation: impl Fn(&[Var]) -> Var,
) -> Result<(), Failed> {
    let numbers = operands(&Case::recorded("loops", shapes, |x| x[0].clone()));
    let reference = run(&Device::cpu_with(Precision::Double), part, &numbers, &operation)?;
    let computed = run(&device.for_testing(0), part, &numbers, &operation)?;
    for (k, (computed, reference)) in computed.into_iter().zip(reference).enumerate() {
        compare(&format!("number {k} of {shapes:?}"), &Computed(computed), &Reference(reference), tolerance)?;
    }
    Ok(())
}

fn run(device: &Device, part: Part, numbers: &[Numbers], operation: impl Fn(&[Var]) -> Var) -> Result<Vec<Vec<f64>>> {
    let tape = Tape::new(device);
    let x = numbers.iter().map(|x| Ok(tape.input(&x.tensor(device)?))).collect::<Result<Vec<_>>>()?;
    let y = operation(&x);
    if part == Part::Result {
        return Ok(vec![y.to_tensor()?.to_f64_vec()?]);
    }
    let dims = y.shape();
    let cotangent = &operands(&Case::recorded("cotangent", &[dims.dims()], |x| x[0].clone()))[0];
    let grads = tape.backward_with(&y, &tape.input(&cotangent.tensor(device)?))?;
    drop(y);
    let of = match part {
        Part::Gradient(number) => &x[number..=number],
        _ => &x[..],
    };
    let gradients: Vec<_> = of.iter().map(|x| grads.of(x).expect("the result depends on it")).collect();
    gradients.iter().map(|gradient| gradient.to_tensor()?.to_f64_vec()).collect()
}

/// A small plane: the rest of a large window is padding.
const SMALL: &[usize] = &[1, 2, 3, 5];
/// A window of 67,600 pixels. Half of its extent as padding surrounds [`SMALL`].
const LARGE: [usize; 2] = [260, 260];
const AROUND: [usize; 2] = [130, 130];

fn average_pooling(device: &Device) -> Result<(), Failed> {
    for count_include_pad in [true, false] {
        // 81,200 pixels in each window.
        let pool = |x: &[Var]| x[0].avg_pool2d([290, 280], [1, 2], [0, 0], count_include_pad);
        hold(device, Part::Result, &[&[1, 1, 300, 303]], 1e-6, pool)?;
        let around = |x: &[Var]| x[0].avg_pool2d(LARGE, [1, 1], AROUND, count_include_pad) * 6e4;
        hold(device, Part::Result, &[SMALL], 1e-5, around)?;
        hold(device, Part::Gradients, &[SMALL], 1e-5, around)?;
    }
    // Each pixel is in many windows.
    hold(device, Part::Gradients, &[&[2, 1, 70, 90]], 1e-6, |x| x[0].avg_pool2d([64, 80], [1, 1], [32, 5], false))
}

fn maximum_pooling(device: &Device) -> Result<(), Failed> {
    // The largest pixel of each window is its last (rising), its first (falling), or in between.
    let [h, w] = [300, 303];
    let images: [fn(usize) -> f32; 3] = [|i| i as f32, |i| -(i as f32), |i| (i * 7919 % 90_900) as f32];
    for value in images {
        let image: Vec<_> = (0..h * w).map(value).collect();
        let pooled = |device: &Device| -> Result<Vec<f32>> {
            let x = Tape::new(device).input(&Tensor::from_slice(device, [1, 1, h, w], &image)?);
            x.max_pool2d([290, 280], [1, 2], [0, 0], [1, 1]).to_vec()
        };
        let expected = pooled(&Device::cpu())?;
        each_variant(device, |device| {
            assert_eq!(pooled(device)?, expected);
            Ok(offered(device))
        })?;
    }
    let around = |x: &[Var]| x[0].max_pool2d(LARGE, [1, 1], AROUND, [1, 1]);
    hold(device, Part::Result, &[SMALL], 1e-6, around)?;
    hold(device, Part::Gradients, &[SMALL], 1e-6, around)?;
    let dilated = |x: &[Var]| x[0].max_pool2d([30, 40], [1, 2], [15, 3], [2, 2]);
    hold(device, Part::Result, &[&[2, 1, 70, 90]], 1e-6, dilated)?;
    hold(device, Part::Gradients, &[&[2, 1, 70, 90]], 1e-6, dilated)
}

fn resampling(device: &Device) -> Result<(), Failed> {
    for corners in [true, false] {
        // Each of four pixels has a share in up to 490,000 results.
        hold(device, Part::Gradients, &[&[1, 1, 2, 2]], 1e-6, |x| x[0].resize_bilinear([700, 700], corners))?;
        hold(device, Part::Result, &[&[1, 1, 2, 2]], 1e-6, |x| x[0].resize_bilinear([70, 700], corners))?;
    }
    // Windows of 301 × 301 pixels, which overlap.
    hold(device, Part::Result, &[&[1, 1, 601, 601]], 1e-6, |x| x[0].adaptive_avg_pool2d([2, 2]))?;
    hold(device, Part::Gradients, &[&[1, 2, 3, 3]], 1e-6, |x| x[0].adaptive_avg_pool2d([500, 400]))
}

/// One channel and several take different code paths.
fn large_kernel(device: &Device) -> Result<(), Failed> {
    let convolve = |x: &[Var]| x[0].conv2d(&x[1], Conv2dOptions::default());
    let padded = |x: &[Var]| x[0].conv2d(&x[1], Conv2dOptions { padding: AROUND, ..Conv2dOptions::default() });
    for channels in [1, 4] {
        let w: &[usize] = &[channels, channels, LARGE[0], LARGE[1]];
        // Sequential sums of 270,400 terms: ε·√K is 3e-5.
        hold(device, Part::Result, &[&[1, channels, 261, 262], w], 3e-5, convolve)?;
        hold(device, Part::Gradient(0), &[&[1, channels, 2, 3], w], 1e-5, padded)?;
    }
    // More pixels than taps.
    hold_best(device, Part::Gradients, &[&[1, 1, 261, 262], &[1, 1, LARGE[0], LARGE[1]]], 1e-5, convolve)
}

/// Sums over 70,000 channels.
fn many_channels(device: &Device) -> Result<(), Failed> {
    let convolve = |x: &[Var]| x[0].conv2d(&x[1], Conv2dOptions::default());
    for outputs in [1, 5] {
        hold(device, Part::Result, &[&[1, 70_000, 1, 2], &[outputs, 70_000, 1, 1]], 1e-5, convolve)?;
        hold(device, Part::Gradient(0), &[&[1, outputs, 1, 2], &[70_000, outputs, 1, 1]], 1e-5, convolve)?;
    }
    Ok(())
}

/// The tolerance for sums of millions, as 256 sums of 17,000 terms of size 1. Each is about 130, and rounds √17,000
/// times by half a unit in the last place. Together that is 8e-3, and the whole sum may be as small as a hundred.
const MILLIONS: f64 = 1e-4;

fn many_pixels(device: &Device) -> Result<(), Failed> {
    let convolve = |x: &[Var]| x[0].conv2d(&x[1], Conv2dOptions::default());
    // 70,225 pixels, in tiles; then 4.4 million, of which each of 64 invocations would add 68,906.
    hold(device, Part::Gradient(1), &[&[1, 5, 265, 265], &[5, 5, 1, 1]], 1e-5, convolve)?;
    hold_best(device, Part::Gradient(1), &[&[1, 1, 2100, 2100], &[1, 1, 1, 1]], MILLIONS, convolve)
}

fn products(device: &Device) -> Result<(), Failed> {
    hold(device, Part::Result, &[&[33, 60_001], &[60_001, 34]], 1e-5, |x| x[0].matmul(&x[1]))
}

fn dot_products(device: &Device) -> Result<(), Failed> {
    hold_best(device, Part::Result, &[&[1, 4_300_000], &[4_300_000, 1]], MILLIONS, |x| x[0].matmul(&x[1]))
}

fn reductions(device: &Device) -> Result<(), Failed> {
    let folds: [fn(&Var, &[usize]) -> Var; 3] = [Var::sum_over, Var::max_over, Var::min_over];
    for fold in folds {
        hold(device, Part::Result, &[&[300_001]], 1e-4, |x| fold(&x[0], &[0]))?;
        hold(device, Part::Result, &[&[270_001, 3]], 1e-4, |x| fold(&x[0], &[0]))?;
        hold(device, Part::Result, &[&[3, 270_001]], 1e-4, |x| fold(&x[0], &[1]))?;
    }
    Ok(())
}

/// A function in a kernel's prologue must not loop, because it runs inside of the kernel's own loop.
fn powers(device: &Device) -> Result<(), Failed> {
    hold(device, Part::Result, &[&[70_001]], 1e-4, |x| (x[0].tanh() * 1.1).pow(x[0].tape().scalar(15.0)).sum())
}

fn softmax(device: &Device) -> Result<(), Failed> {
    let shapes: [(&[usize], usize); 3] = [(&[2, 66_001], 1), (&[66_001, 3], 0), (&[25_000], 0)];
    for (shape, axis) in shapes {
        hold(device, Part::Result, &[shape], 1e-5, |x| x[0].log_softmax(axis))?;
        hold(device, Part::Result, &[shape], 1e-5, |x| x[0].softmax(axis) * 1e4)?;
    }
    Ok(())
}

fn cross_entropy(device: &Device) -> Result<(), Failed> {
    let options = CrossEntropyOptions { label_smoothing: 0.1, reduction: Reduction::None, ..Default::default() };
    let loss = |x: &[Var]| {
        let labels = Tensor::indices(&x[0].tape().device(), [2], &[5, 69_999]).expect("two");
        x[0].cross_entropy_with(&labels, &options)
    };
    hold(device, Part::Result, &[&[2, 70_000]], 1e-5, loss)
}

/// One row of a table used more than 65,535 times, which is more uses than one loop visits.
fn table(device: &Device) -> Result<(), Failed> {
    for (uses, width) in [(70_001, 3), (66_001, 67), (600_001, 1)] {
        let gathered = |x: &[Var]| {
            let index: Vec<u32> = (0..uses).map(|i| if i % 500 == 7 { i % 4 } else { 1 }).collect();
            let index = Tensor::indices(&x[0].tape().device(), [index.len()], &index).expect("as many");
            x[0].embedding(&x[0].tape().input(&index))
        };
        // Sequential sums of up to 600,000 terms: ε·√K is 5e-5, and more if the terms have one sign.
        hold(device, Part::Gradients, &[&[4, width]], 3e-4, gathered)?;
    }
    Ok(())
}
