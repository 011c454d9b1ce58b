//! Reading results: the run's own commands copy small ones, a separate submission copies large ones.

use std::sync::Arc;
use std::thread;

use libtest_mimic::Trial;
use meganeura::nn::Linear;
use meganeura::optim::{Optimizer, Sgd, TrainStep};
use meganeura::{Device, Init, Layer, Param, Result, Seed, Tape, Tensor, Var};

use crate::Outcome;
use crate::adapter::{block_on, gpu_trial};
use crate::nets::normal;

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    type Test = fn(&Device) -> Outcome;
    let tests: [(&str, Test); 4] = [
        ("small_results_are_copied_by_the_run", small),
        ("results_stay_while_later_steps_run", later),
        ("updated_values_are_read_again", updated),
        ("from_several_threads", threads),
    ];
    for (name, test) in tests {
        trials.push(Trial::test(format!("reads::cpu::{name}"), move || test(&Device::cpu())));
        // A separate adapter, because all devices of an adapter share their count of reads.
        trials.push(gpu_trial(format!("reads::gpu::{name}"), move |device| {
            test(&Device::named(&device.to_string())?.for_testing(0))
        }));
    }
}

/// The number of reads that needed separate GPU commands; 0 on the CPU.
fn reads<T>(device: &Device, work: impl FnOnce() -> Result<T>) -> Result<(T, u64)> {
    let before = device.stats().reads;
    let done = work()?;
    Ok((done, device.stats().reads - before))
}

fn numbers(device: &Device, name: &str, count: usize) -> Result<Tensor> {
    Tensor::from_f64(device, [count], &normal(name, count))
}

/// The first elements of a tensor, doubled.
fn doubled(x: &Var, count: usize) -> Var {
    x.slice(0, 0..count) * 2.0
}

fn small(device: &Device) -> Outcome {
    let x = numbers(device, "small", 4000)?;
    let expected: Vec<f32> = x.to_vec()?.iter().map(|x| x * 2.0).collect();
    for (counts, fit) in [
        (&[1][..], true),
        (&[1, 3, 2, 5, 230], true),
        (&[1; 40], true),
        (&[256], true),
        (&[257], false),
        (&[4000], false),
    ] {
        let tape = Tape::new(device);
        let x = tape.input(&x);
        let results: Vec<_> = counts.iter().map(|&count| doubled(&x, count)).collect();
        let tensors = results.iter().map(Var::to_tensor).collect::<Result<Vec<_>>>()?;
        let (found, reads) = reads(device, || tensors.iter().map(Tensor::to_vec).collect::<Result<Vec<_>>>())?;
        for (found, &count) in found.iter().zip(counts) {
            assert_eq!(*found, expected[..count], "{counts:?}");
        }
        let again = tensors.iter().map(|tensor| block_on(tensor.to_vec_async())).collect::<Result<Vec<_>>>()?;
        assert_eq!(again, found);
        if fit && counts.len() < 16 {
            assert_eq!(reads, 0, "{counts:?}");
        } else if device.is_gpu() {
            assert!(reads > 0, "{counts:?}");
        }
    }
    Ok(())
}

fn later(device: &Device) -> Outcome {
    let net = Linear::new(3, 1).init(device, Seed::new(1))?;
    let (mut optimizer, x) = (Sgd::new(0.01), Tensor::full(device, [2, 3], 1.0)?);
    let mut step = TrainStep::new(&net, |net: &Linear, x: &Var| (net.forward(x).square().mean(), net.forward(x).sum()));
    let (mut at_once, mut kept) = (Vec::new(), Vec::new());
    for number in 0..60 {
        let results = step.call(&mut optimizer, &x)?;
        if number % 3 == 0 {
            at_once.push((results.0.item()?, results.1.item()?));
            kept.push(results);
        }
    }
    let (read, reads) = reads(device, || kept.iter().rev().map(|(a, b)| Ok((a.item()?, b.item()?))).collect())?;
    let read: Vec<(f32, f32)> = read;
    assert!(read.iter().rev().eq(&at_once), "{read:?} {at_once:?}");
    assert!(at_once.windows(2).all(|pair| pair[1].0 < pair[0].0), "a loss that falls: {at_once:?}");
    assert_eq!(reads, 0);
    Ok(())
}

/// A run's result becomes a parameter's value, and a step updates it. Reads must give the updated value, not the copy
/// that the run made.
fn updated(device: &Device) -> Outcome {
    let mut param = Param::new(Tensor::zeros(device, [3])?);
    let computed =
        || doubled(&Tape::new(device).input(&Tensor::from_slice(device, [3], &[1.0, 2.0, 3.0])?), 3).to_tensor();
    for held in [false, true] {
        param.set(computed()?)?;
        let before = held.then(|| param.value());
        for steps in 1..4u8 {
            let tape = Tape::new(device);
            let grads = tape.backward(&tape.param(&param).sum())?;
            Sgd::new(1.0).step(&mut param, &grads)?;
            assert_eq!(param.value().to_vec()?, [2.0, 4.0, 6.0].map(|x: f32| x - f32::from(steps)), "{held}");
        }
        if let Some(before) = before {
            assert_eq!(before.to_vec()?, [2.0, 4.0, 6.0]);
        }
    }
    Ok(())
}

fn threads(device: &Device) -> Outcome {
    let tape = Tape::new(device);
    let x = tape.input(&numbers(device, "threads", 100)?);
    let results = [doubled(&x, 7), doubled(&x, 9)];
    let tensors: Arc<[Tensor]> = results.iter().map(Var::to_tensor).collect::<Result<_>>()?;
    let read = || {
        let tensors = Arc::clone(&tensors);
        thread::spawn(move || tensors.iter().map(Tensor::to_vec).collect::<Result<Vec<_>>>())
    };
    let readers: Vec<_> = (0..8).map(|_| read()).collect();
    let expected: Vec<f32> = x.to_tensor()?.to_vec()?.iter().map(|x| x * 2.0).collect();
    for reader in readers {
        assert_eq!(reader.join().expect("no panic")?, [&expected[..7], &expected[..9]]);
    }
    Ok(())
}
