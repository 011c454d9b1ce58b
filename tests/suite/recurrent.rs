//! Recurrent layers: the launches of a step.

use libtest_mimic::Trial;
use meganeura::nn::*;
use meganeura::{Device, Init, Layer, ModuleExt, Result, Seed, Tape};

use crate::Outcome;
use crate::adapter::gpu_trial;
use crate::nets::tensor;

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    trials.push(gpu_trial("recurrent::launches_of_a_step", launches_of_a_step));
    trials.push(Trial::test("recurrent::large_steps_are_recorded_one_by_one", large_steps));
}

/// The number of launches for one more time step: forward, or forward and backward.
fn of_a_step<G: RecurrentGates>(device: &Device, config: &RecurrentConfig<G>, backward: bool) -> Result<u64> {
    let mut launches = [0, 0];
    for (launches, steps) in launches.iter_mut().zip([5, 6]) {
        let device = device.for_testing(0);
        let layer = config.clone().init(&device, Seed::new(1))?;
        let tape = Tape::new(&device);
        let y = layer.forward(&tape.input(&tensor(&device, "x", [3, steps, 4])?));
        let loss = y.square().sum();
        drop(y);
        if backward {
            let grads = tape.backward(&loss)?;
            let held: Vec<_> = layer.named_parameters().iter().map(|(_, param)| grads.get(param)).collect();
            loss.item()?;
            drop(held);
        } else {
            loss.item()?;
        }
        *launches = device.stats().launches;
    }
    Ok(launches[1] - launches[0])
}

/// The input's products are one launch for all steps, and so are the gradients of the weights. A step launches its
/// product, and the formula with it; so does its gradient.
fn launches_of_a_step(device: &Device) -> Outcome {
    for (backward, launches) in [(false, 1), (true, 2)] {
        assert_eq!(of_a_step(device, &Rnn::new(4, 8), backward)?, launches);
        assert_eq!(of_a_step(device, &Lstm::new(4, 8), backward)?, launches);
        assert_eq!(of_a_step(device, &Gru::new(4, 8), backward)?, launches);
    }
    Ok(())
}

/// Steps whose products are too large for one operation are recorded one by one, with the same results and gradients as
/// the rows of a smaller batch.
fn large_steps() -> Outcome {
    let device = Device::cpu();
    let (rows, few) = (160, 2);
    let lstm = Lstm::new(8, 1024).init(&device, Seed::new(1))?;
    let tape = Tape::new(&device);
    let x = tape.input(&tensor(&device, "x", [rows, 2, 8])?);
    let part = x.slice(0, 0..few);
    let [whole, alone] = [&x, &part].map(|x| lstm.forward(x).slice(0, 0..few));
    let grads = [&whole, &alone].map(|y| tape.backward(&y.square().sum()));
    let [a, b] = [whole.to_vec()?, alone.to_vec()?];
    assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-5));
    let [a, b] = grads;
    let (a, b) = (a?, b?);
    for (path, param) in lstm.named_parameters() {
        let [a, b] = [&a, &b].map(|grads| grads.get(param).expect("it is used").to_vec());
        let (a, b) = (a?, b?);
        let largest = b.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
        assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-4 * largest), "{path}");
    }
    Ok(())
}
