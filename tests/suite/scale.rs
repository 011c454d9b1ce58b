//! Long tapes and large models. No test here asserts a time: quadratic work would take minutes or more at these
//! sizes, and recursion along a tape would overflow the small stacks.

use libtest_mimic::{Failed, Trial};
use meganeura::optim::{AdamW, Optimizer};
use meganeura::{Device, ModuleExt, Param, Precision, Result, Tape, Tensor};

use crate::Outcome;
use crate::adapter::gpu_trial;

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    let mut test = |name: &str, run: fn() -> Outcome| {
        trials.push(Trial::test(format!("scale::{name}"), move || in_small_stack(run)));
    };
    test("a_chain_of_a_hundred_thousand_nodes", || chain(&double(), 33_000));
    test("a_deep_network", || deep_network(&double(), 10_000));
    test("a_hundred_thousand_views", || views(&double(), 100_000));
    test("a_step_of_ten_thousand_parameters", || many_parameters(&Device::cpu(), 10_000));
    trials.push(gpu_trial("scale::gpu::a_long_chain", |device| chain(device, 3_000)));
    trials.push(gpu_trial("scale::gpu::a_deep_network", |device| deep_network(device, 1_000)));
    trials.push(gpu_trial("scale::gpu::a_step_of_two_thousand_parameters", |device| {
        // A separate device, so that its plans are only this test's.
        many_parameters(&device.for_testing(0), 2_000)
    }));
}

fn double() -> Device {
    Device::cpu_with(Precision::Double)
}

/// Runs on a thread with a quarter of Rust's default stack.
fn in_small_stack(run: fn() -> Outcome) -> Outcome {
    let thread = std::thread::Builder::new().stack_size(512 << 10).spawn(run)?;
    thread.join().map_err(|_| Failed::from("the thread panicked"))?
}

fn tolerance(device: &Device) -> f64 {
    // Each step rounds once, and its derivative is at most 1. In f32 on a GPU, sines have errors of up to 2⁻¹¹.
    if device.precision() == Precision::Double { 1e-11 } else { 5e-3 }
}

#[track_caller]
fn expect_close(found: f64, expected: f64, tolerance: f64) {
    assert!((found - expected).abs() <= tolerance * expected.abs().max(1e-3), "{found} is not {expected}");
}

/// `sin(sin(…x))` and its derivative `cos(x)·cos(sin x)·…`: both passes together are one group of pointwise operations.
fn chain(device: &Device, length: usize) -> Outcome {
    let tape = Tape::new(device);
    let x = tape.input(&Tensor::from_f64(device, [2], &[0.5, -1.25])?);
    let y = (0..length).fold(x.clone(), |y, _| y.sin());
    let grads = tape.backward(&y.sum())?;
    let dx = grads.of(&x).expect("the sum depends on it");
    let (y, dx) = (y.to_tensor()?.to_f64_vec()?, dx.to_tensor()?.to_f64_vec()?);
    for (i, x) in [0.5f64, -1.25].into_iter().enumerate() {
        let (expected_y, expected_dx) = (0..length).fold((x, 1.0), |(y, dy), _| (y.sin(), dy * y.cos()));
        expect_close(y[i], expected_y, tolerance(device));
        expect_close(dx[i], expected_dx, tolerance(device));
    }
    Ok(())
}

/// A chain of products, each followed by elementwise work.
fn deep_network(device: &Device, depth: usize) -> Outcome {
    let tape = Tape::new(device);
    let x = tape.input(&Tensor::from_f64(device, [1, 2], &[0.5, -1.25])?);
    // A rotation by 90°, so the result is known.
    let turn = tape.input(&Tensor::from_f64(device, [2, 2], &[0.0, 1.0, -1.0, 0.0])?);
    let y = (0..depth).fold(x.clone(), |y, _| y.matmul(&turn).sin());
    let grads = tape.backward(&y.sum())?;
    let dx = grads.of(&x).expect("the sum depends on it");
    let (y, dx) = (y.to_tensor()?.to_f64_vec()?, dx.to_tensor()?.to_f64_vec()?);
    let mut expected = [0.5f64, -1.25];
    let mut layers = Vec::with_capacity(depth);
    for _ in 0..depth {
        let [a, b] = expected;
        layers.push([-b, a]);
        expected = [(-b).sin(), a.sin()];
    }
    let mut cotangent = [1.0, 1.0];
    for [a, b] in layers.into_iter().rev() {
        let [da, db] = [cotangent[0] * a.cos(), cotangent[1] * b.cos()];
        cotangent = [db, -da];
    }
    for i in 0..2 {
        expect_close(y[i], expected[i], tolerance(device));
        expect_close(dx[i], cotangent[i], tolerance(device));
    }
    Ok(())
}

/// Chained views, some of which are read.
fn views(device: &Device, count: usize) -> Outcome {
    let tape = Tape::new(device);
    let x = tape.input(&Tensor::from_f64(device, [2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])?);
    let mut y = x.clone();
    let mut read = Vec::new();
    for k in 0..count {
        y = y.t();
        if k % 100 == 1 {
            read.push(y.exp().sum());
        }
    }
    let read = read.into_iter().reduce(|sum, y| sum + y).expect("there are some");
    let (y, read) = (y.to_tensor()?.to_f64_vec()?, read.to_tensor()?.to_f64_vec()?);
    assert_eq!(y, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let expected = (count / 100) as f64 * (1..=6).map(|x| f64::from(x).exp()).sum::<f64>();
    expect_close(read[0], expected, 1e-12);
    Ok(())
}

/// The first three steps of a model with `count` parameters. The loss depends on each parameter through a separate
/// path.
fn many_parameters(device: &Device, count: usize) -> Outcome {
    let new = |k: usize| Ok(Param::new(Tensor::full(device, [3], (k % 7) as f32)?));
    let mut params = (0..count).map(new).collect::<Result<Vec<_>>>()?;
    let mut optimizer = AdamW::new(0.25).weight_decay(0.0).check_finite(true);
    for step in 1..=3u8 {
        let tape = Tape::new(device);
        let terms = params.iter().map(|w| tape.param(w).sum());
        let loss = terms.reduce(|sum, term| sum + term).expect("there are some");
        let grads = tape.backward(&loss)?;
        optimizer.step(&mut params, &grads)?;
        // A constant gradient moves each number by the rate.
        for (k, w) in params.iter().enumerate().step_by(count / 100) {
            let expected = (k % 7) as f64 - 0.25 * f64::from(step);
            w.value().to_vec()?.into_iter().for_each(|w| expect_close(f64::from(w), expected, 1e-4));
        }
    }
    assert_eq!(device.stats().plans, 2, "a plan of this size is kept from the second time on");
    assert_eq!(params.parameter_count(), 3 * count);
    Ok(())
}
