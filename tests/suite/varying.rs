//! Steps whose shapes vary: plans are kept for many shapes, and kernels serve several.

use libtest_mimic::Trial;
use meganeura::nn::*;
use meganeura::optim::TrainStep;
use meganeura::prelude::*;

use crate::Outcome;
use crate::adapter::gpu_trial;
use crate::nets::tensor;

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    trials.push(Trial::test("varying::every_length_is_planned_once", || planned_once(&Device::cpu())));
    trials.push(gpu_trial("varying::gpu::every_length_is_planned_once", |device| planned_once(&device.for_testing(0))));
    trials.push(Trial::test("varying::every_length_is_recorded_once", || recorded_once(&Device::cpu())));
    trials.push(gpu_trial("varying::gpu::sequences_share_kernels", |device| {
        share_kernels(device, sequences, &[5, 6, 7, 11, 12, 19, 31])
    }));
    trials.push(gpu_trial("varying::gpu::batches_of_images_share_kernels", |device| {
        share_kernels(device, images, &[2, 3, 5, 6, 7, 11])
    }));
    trials.push(gpu_trial("varying::fast::attentions_share_kernels", |device| {
        match device.with_precision(Precision::Fast) {
            Ok(fast) => share_kernels(&fast, attention, &[33, 34, 35, 41, 50, 57, 63]),
            // `devices::fast` checks the reason against the known ones.
            Err(_) => Ok(()),
        }
    }));
}

/// More lengths than a device kept plans for when it kept a fixed number.
const LENGTHS: std::ops::Range<usize> = 1..100;

fn planned_once(device: &Device) -> Outcome {
    let layer = Linear::new(3, 2).init(device, Seed::new(1))?;
    let epoch = || -> Result<(), meganeura::Error> {
        for length in LENGTHS {
            let tape = Tape::new(device);
            let loss = layer.forward(&tape.input(&Tensor::ones(device, [length, 3])?)).square().mean();
            let grads = tape.backward(&loss)?;
            let held = grads.get(&layer.weight);
            loss.item()?;
            drop(held);
        }
        Ok(())
    };
    epoch()?;
    let plans = device.stats().plans;
    epoch()?;
    assert_eq!(device.stats().plans, plans);
    Ok(())
}

fn recorded_once(device: &Device) -> Outcome {
    let layer = Linear::new(3, 2).init(device, Seed::new(1))?;
    let mut optimizer = Sgd::new(0.1);
    let mut step = TrainStep::new(&layer, |layer: &Linear, x: &Var| layer.forward(x).square().mean());
    for _ in 0..2 {
        for length in LENGTHS {
            step.call(&mut optimizer, &Tensor::ones(device, [length, 3])?)?;
        }
    }
    assert_eq!(step.recorded(), LENGTHS.len() as u64);
    Ok(())
}

/// The results of a step for one extent: the loss, and gradients.
type Step = fn(&Device, usize) -> Result<Vec<Vec<f32>>, meganeura::Error>;

/// A transformer on sequences of this length.
fn sequences(device: &Device, length: usize) -> Result<Vec<Vec<f32>>, meganeura::Error> {
    let encoder = TransformerEncoderLayer::new(8, 2).feed_forward(12).dropout(0.0).init(device, Seed::new(1))?;
    let tape = Tape::new(device);
    let x = tape.input(&tensor(device, "x", [3, length, 8])?);
    let y = encoder.forward(&x);
    let loss = (y.square() + y.softmax(1)).mean();
    let grads = tape.backward(&loss)?;
    let held = [grads.of(&x), grads.get(&encoder.feed_forward.linear1.weight)];
    let mut all = vec![vec![loss.item()?]];
    for value in held.into_iter().flatten() {
        all.push(value.to_vec()?);
    }
    Ok(all)
}

/// An attention of this many queries and keys, in narrow heads and in wide ones.
fn attention(device: &Device, length: usize) -> Result<Vec<Vec<f32>>, meganeura::Error> {
    let mut all = Vec::new();
    for features in [32, 136] {
        let tape = Tape::new(device);
        let input = |name: &str| Ok::<_, meganeura::Error>(tape.input(&tensor(device, name, [2, length, features])?));
        let (q, k, v) = (input("q")?, input("k")?, input("v")?);
        let loss = q.attention(&k, &v, None).square().mean();
        let grads = tape.backward(&loss)?;
        let held = [grads.of(&q), grads.of(&k), grads.of(&v)];
        all.push(vec![loss.item()?]);
        for value in held.into_iter().flatten() {
            all.push(value.to_vec()?);
        }
    }
    Ok(all)
}

/// A convolutional network on a batch of this size.
fn images(device: &Device, batch: usize) -> Result<Vec<Vec<f32>>, meganeura::Error> {
    let conv = Conv2d::new(3, 8, 3).padding(1).init(device, Seed::new(1))?;
    let norm = BatchNorm2d::new(8).init(device, Seed::new(2))?;
    let head = Linear::new(8 * 4 * 5, 4).init(device, Seed::new(3))?;
    let tape = Tape::new(device);
    let x = tape.input(&tensor(device, "x", [batch, 3, 8, 10])?);
    let y = norm.forward(&conv.forward(&x)).relu().max_pool2d([2, 2], [2, 2], [0, 0], [1, 1]);
    let loss = head.forward(&y.flatten()).log_softmax(1).square().mean();
    let grads = tape.backward(&loss)?;
    let scale = norm.weight.as_ref().expect("it has one");
    let held = [grads.of(&x), grads.get(&conv.weight), grads.get(scale)];
    let mut all = vec![vec![loss.item()?]];
    for value in held.into_iter().flatten() {
        all.push(value.to_vec()?);
    }
    Ok(all)
}

/// On a device that has met several extents, most kernels serve all of them, and give the bits of those that are
/// compiled for one.
fn share_kernels(device: &Device, step: Step, extents: &[usize]) -> Outcome {
    let varying = device.for_testing(0);
    let mut last = (0, 0);
    for &extent in extents {
        let bits = |all: Vec<Vec<f32>>| -> Vec<Vec<u32>> {
            all.into_iter().map(|values| values.into_iter().map(f32::to_bits).collect()).collect()
        };
        let (shared, own) = (bits(step(&varying, extent)?), bits(step(&device.for_testing(0), extent)?));
        assert!(shared.len() > 2 && shared == own, "extent {extent}");
        last = varying.dynamic_launches();
    }
    let (dynamic, all) = last;
    assert!(2 * dynamic > all, "{dynamic} of {all} launches");
    // An extent that comes back often gets kernels of its own.
    let last = *extents.last().expect("there are some");
    let first = step(&varying, last)?;
    for _ in 0..64 {
        assert_eq!(step(&varying, last)?, first);
    }
    assert_eq!(varying.dynamic_launches(), (0, all));
    Ok(())
}
