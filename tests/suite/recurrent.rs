//! Recurrent layers: the launches of a step.

use libtest_mimic::Trial;
use meganeura::nn::*;
use meganeura::{Device, Init, Layer, ModuleExt, Precision, Result, Seed, Tape, Tensor};

use crate::Outcome;
use crate::adapter::gpu_trial;
use crate::nets::{normal, tensor};
use crate::numbers::{Computed, Reference, compare};

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    trials.push(gpu_trial("recurrent::launches_of_a_step", launches_of_a_step));
    trials.push(gpu_trial("recurrent::weights_are_read_as_bf16", weights_as_bf16));
    trials.push(Trial::test("recurrent::large_steps_are_recorded_one_by_one", large_steps));
    trials.push(Trial::test("recurrent::gradients_in_single_precision", single_precision));
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

/// The outputs and all gradients of a layer over sequences, with hidden weights that bf16 holds exactly.
fn trained<G: RecurrentGates>(
    device: &Device,
    config: &RecurrentConfig<G>,
    [n, hidden]: [usize; 2],
) -> Result<Vec<Vec<f64>>> {
    let mut layer = config.clone().init(device, Seed::new(1))?;
    for cell in &mut layer.cells {
        let shape = cell.weight_hh.shape();
        let exact = normal("weight", shape.elements()).into_iter().map(|x| (x * 16.0).round() / 64.0 / 8.0);
        cell.weight_hh.set(Tensor::from_f64(device, shape, &exact.collect::<Vec<_>>())?)?;
    }
    let tape = Tape::new(device);
    let y = layer.forward(&tape.input(&tensor(device, "x", [n, 4, 8])?));
    let cotangent = tape.input(&tensor(device, "dy", [n, 4, 2 * hidden])?);
    let grads = tape.backward(&(&y * cotangent).sum())?;
    let mut results = vec![y.to_tensor()?.to_f64_vec()?];
    for (_, param) in layer.named_parameters() {
        results.push(grads.get(param).expect("it is used").to_tensor()?.to_f64_vec()?);
    }
    Ok(results)
}

/// Checks [`trained`] on a device against double precision.
fn check_trained<G: RecurrentGates + Default>(device: &Device, [n, hidden]: [usize; 2]) -> Outcome {
    let config = Recurrent::<G>::new(8, hidden).bidirectional(true);
    let reference = trained(&Device::cpu_with(Precision::Double), &config, [n, hidden])?;
    let computed = trained(device, &config, [n, hidden])?;
    for (k, (computed, reference)) in computed.into_iter().zip(reference).enumerate() {
        let what = format!("{n} rows, {hidden} units, value {k}");
        compare(&what, &Computed(computed), &Reference(reference), 1e-5)?;
    }
    Ok(())
}

/// Parts of rows and of units, for rows and units that are no multiples of them. All memory holds NaN before it is
/// written.
fn single_precision() -> Outcome {
    let device = Device::cpu().for_testing(0);
    for extents in [[3, 8], [38, 37], [1, 70], [73, 32]] {
        check_trained::<RnnGates>(&device, extents)?;
        check_trained::<LstmGates>(&device, extents)?;
        check_trained::<GruGates>(&device, extents)?;
    }
    Ok(())
}

/// Weights of one line and of many, for fewer and more rows than a tile has. All memory holds NaN before it is written.
fn weights_as_bf16(device: &Device) -> Outcome {
    fn check<G: RecurrentGates + Default>(device: &Device) -> Outcome {
        for extents in [[3, 8], [33, 24]] {
            let bf16 = device.for_testing_bf16(0);
            check_trained::<G>(&bf16, extents)?;
            let plans = bf16.plan_dumps().concat();
            let mut steps = plans.lines().filter(|line| line.contains("[steps: ")).peekable();
            assert!(steps.peek().is_some() && steps.all(|line| line.contains("bf16[")), "{plans}");
        }
        Ok(())
    }
    check::<RnnGates>(device)?;
    check::<LstmGates>(device)?;
    check::<GruGates>(device)
}
