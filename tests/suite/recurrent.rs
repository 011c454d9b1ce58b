//! Recurrent layers: the launches of a step.

use libtest_mimic::Trial;
use meganeura::nn::*;
use meganeura::{Device, Init, Layer, ModuleExt, Result, Seed, Tape};

use crate::Outcome;
use crate::adapter::gpu_trial;
use crate::nets::tensor;

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    trials.push(gpu_trial("recurrent::launches_of_a_step", launches_of_a_step));
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

/// The input's products are one launch for all steps, and so is the copy of the outputs of a few steps. A step
/// launches the product of the hidden state, which merges the input's part, the bias and elementwise work, and all
/// gates, unless there is only one.
fn launches_of_a_step(device: &Device) -> Outcome {
    assert_eq!(of_a_step(device, &Rnn::new(4, 8), false)?, 1);
    assert_eq!(of_a_step(device, &Lstm::new(4, 8), false)?, 2);
    assert_eq!(of_a_step(device, &Gru::new(4, 8), false)?, 2);
    Ok(())
}
