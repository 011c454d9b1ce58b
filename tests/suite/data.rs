//! Training data from files, through loader threads, and from the middle of an epoch.

use std::path::Path;

use libtest_mimic::Trial;
use meganeura::data::{Batches, HorizontalFlip, ImageFolder, Normalize, RandomCrop};
use meganeura::nn::{Conv2d, Linear};
use meganeura::optim::{Optimizer, Sgd};
use meganeura::prelude::Dataset;
use meganeura::{Device, ErrorKind, Module, Result};

use crate::Outcome;
use crate::adapter::gpu_trial;
use crate::nets::record;

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    trials.push(Trial::test("data::threads_train_the_same", || threads(&Device::cpu())));
    trials.push(gpu_trial("data::gpu::threads_train_the_same", threads));
    trials.push(Trial::test("data::resumes_in_mid_epoch", || resumes(&Device::cpu())));
    trials.push(gpu_trial("data::gpu::resumes_in_mid_epoch", resumes));
    trials.push(Trial::test("data::damage_ends_the_training", || damage(&Device::cpu())));
    trials.push(Trial::test("data::many_loaders_at_once", || many(&Device::cpu())));
    trials.push(gpu_trial("data::gpu::many_loaders_at_once", many));
}

const IMAGES: usize = 90;
const BATCH: usize = 8;
const STEPS: usize = IMAGES.div_ceil(BATCH);

#[derive(Module, Debug)]
#[module(sequential)]
struct Net {
    #[module(init = Conv2d::new(3, 4, 3).padding(1), then = [relu, flatten])]
    stem: Conv2d,
    #[module(init = Linear::new(4 * 6 * 6, 3))]
    head: Linear,
}

/// A folder of gray images of 7 by 8 pixels in three classes, as PNM, which is simple enough to write by hand.
fn folder() -> Result<tempfile::TempDir, std::io::Error> {
    let root = tempfile::tempdir()?;
    for index in 0..IMAGES {
        let class = index % 3;
        let folder = root.path().join(["down", "left", "right"][class]);
        std::fs::create_dir_all(&folder)?;
        let pixel = |i: usize| (index * 29 + i * (7 + 20 * class)) as u8;
        let image = [b"P5 8 7 255 ".to_vec(), (0..56).map(pixel).collect()].concat();
        std::fs::write(folder.join(format!("{index:03}.pgm")), image)?;
    }
    Ok(root)
}

fn batches(root: &Path) -> Result<Batches> {
    let images = Dataset::of(ImageFolder::open(root)?.rgb())?;
    Ok(images
        .batches(BATCH)
        .shuffle(11)
        .epoch(0)
        .transform(RandomCrop::new(6, 6).padding(1))
        .transform(HorizontalFlip::new(0.5))
        .transform(Normalize::new([0.5; 3], [0.25; 3])))
}

/// A training run, and the bits of the loss of every step.
struct Training {
    device: Device,
    net: Net,
    optimizer: Sgd,
    losses: Vec<u32>,
}

impl Training {
    fn new(device: &Device) -> Result<Self> {
        let (net, optimizer) = (Net::init(device, 5)?, Sgd::new(0.05).momentum(0.9));
        Ok(Self { device: device.clone(), net, optimizer, losses: Vec::new() })
    }

    fn steps(&mut self, batches: Batches, most: usize) -> Result<()> {
        for batch in batches.on(&self.device).take(most) {
            let batch = batch?;
            let (loss, grads) = record(&self.net, &batch.inputs, &batch.targets)?;
            self.optimizer.step(&mut self.net, &grads)?;
            self.losses.push(loss.item()?.to_bits());
        }
        Ok(())
    }
}

/// The losses of two epochs.
fn losses(device: &Device, root: &Path, workers: usize) -> Result<Vec<u32>> {
    let mut training = Training::new(device)?;
    for epoch in 0..2 {
        training.steps(batches(root)?.epoch(epoch).workers(workers), usize::MAX)?;
    }
    Ok(training.losses)
}

fn threads(device: &Device) -> Outcome {
    let root = folder()?;
    let expected = losses(device, root.path(), 0)?;
    assert_eq!(expected.len(), 2 * STEPS);
    assert!(expected.iter().all(|&loss| f32::from_bits(loss).is_finite()));
    assert_ne!(expected[..STEPS], expected[STEPS..]);
    for workers in [1, 3, 8] {
        assert_eq!(losses(device, root.path(), workers)?, expected, "{workers} threads");
    }
    Ok(())
}

fn resumes(device: &Device) -> Outcome {
    let root = folder()?;
    let expected = losses(device, root.path(), 0)?;
    for (taken, workers) in [(1, 0), (5, 2), (STEPS - 1, 3), (STEPS, 1)] {
        let mut training = Training::new(device)?;
        // Drops the loader in the middle of the epoch.
        training.steps(batches(root.path())?.epoch(0).workers(workers), taken)?;
        training.steps(batches(root.path())?.epoch(0).workers(workers).skip(taken), usize::MAX)?;
        training.steps(batches(root.path())?.epoch(1), usize::MAX)?;
        assert_eq!(training.losses, expected, "after {taken} batches, {workers} threads");
    }
    Ok(())
}

fn damage(device: &Device) -> Outcome {
    let root = folder()?;
    let damaged = root.path().join("left").join("040.pgm");
    std::fs::write(&damaged, "P5 8 7 255 short")?;
    let whole = |workers| -> Result<usize> {
        let mut training = Training::new(device)?;
        let error = training.steps(batches(root.path())?.workers(workers), usize::MAX).expect_err("damaged");
        assert_eq!(error.kind(), ErrorKind::Data, "{error}");
        assert!(error.to_string().contains(&format!("{}, byte ", damaged.display())), "{error}");
        Ok(training.losses.len())
    };
    // All steps before the damaged image are taken, with or without threads.
    let before = whole(0)?;
    assert!(before > 0 && before < STEPS, "{before}");
    assert_eq!(whole(4)?, before);
    Ok(())
}

/// Eight concurrent loops with eight threads each, all on one device.
fn many(device: &Device) -> Outcome {
    let root = folder()?;
    let read = |workers: usize, epoch: u64| -> Result<Vec<u32>> {
        let mut bits = Vec::new();
        for batch in batches(root.path())?.epoch(epoch).workers(workers).on(device) {
            let batch = batch?;
            bits.extend(batch.inputs.to_vec()?.into_iter().map(f32::to_bits));
            bits.extend(batch.targets.to_u32_vec()?);
        }
        Ok(bits)
    };
    let expected: Vec<_> = (0..8).map(|epoch| read(0, epoch)).collect::<Result<_>>()?;
    let read = &read;
    let found: Vec<_> = std::thread::scope(|scope| {
        let loops: Vec<_> = (0..8).map(|epoch| scope.spawn(move || read(8, epoch))).collect();
        loops.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Result<_>>()
    })?;
    assert!(found == expected, "threads read something else");
    assert_ne!(expected[0], expected[1]);
    Ok(())
}
