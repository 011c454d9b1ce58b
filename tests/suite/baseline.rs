//! The adapter with WebGPU's default limits: checks the kernels and plans that are chosen there.

use std::sync::Arc;

use libtest_mimic::Trial;
use meganeura::ops::case::{Case, Special};
use meganeura::optim::{AdamW, Optimizer};
use meganeura::{Device, ErrorKind, FromSeed, ModuleExt, Precision, Result, Seed};

use crate::Outcome;
use crate::adapter::{gpu_trial, gpu_trial_again};
use crate::nets::{Tiny, images, record};
use crate::numbers::{Computed, Reference, compare};
use crate::ops::{wgsl, wgsl_gradient};

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    let differs = |case: &Case| case.is(Special::AtBaseline) && !case.fails;
    for (number, case) in meganeura::ops::all_cases().into_iter().filter(differs).map(Arc::new).enumerate() {
        let name = |part: &str| format!("baseline::{part}::{}", case.name);
        let (result, gradient) = (Arc::clone(&case), Arc::clone(&case));
        trials.push(gpu_trial(name("wgsl"), move |device| wgsl(&result, &device.at_baseline()?)));
        let again = move |device: &'static Device| wgsl_gradient(&gradient, &device.at_baseline()?);
        trials.push(gpu_trial_again(number, name("wgsl_gradient"), again));
    }
    trials.push(gpu_trial("baseline::a_network_trains", trains));
    trials.push(gpu_trial("baseline::launches_beyond_the_limits_are_refused", refused));
}

/// The parameters of a network after a few steps.
fn trained(device: &Device) -> Result<Vec<f64>> {
    let mut net = Tiny::from_seed(device, Seed::new(1))?;
    let mut optimizer = AdamW::new(0.01);
    let (images, labels) = images(device, "baseline", 5)?;
    for _ in 0..3 {
        let (_, grads) = record(&net, &images, &labels)?;
        optimizer.step(&mut net, &grads)?;
    }
    let values = net.leaves().into_iter().map(|leaf| leaf.value().to_f64_vec()).collect::<Result<Vec<_>>>()?;
    Ok(values.concat())
}

fn trains(device: &Device) -> Outcome {
    let computed = trained(&device.at_baseline()?.for_testing(0))?;
    // Three updates of 0.01 each. Rounding can change their directions, because Adam divides small gradients by their
    // own size.
    compare("parameters", &Computed(computed), &Reference(trained(&Device::cpu_with(Precision::Double))?), 1e-4)?;
    Ok(())
}

/// The device really has these limits: it refuses kernels that need more.
fn refused(device: &Device) -> Outcome {
    let at_baseline = device.at_baseline()?;
    assert!(at_baseline.to_string() == device.to_string(), "{at_baseline} is {device}");
    let run = |invocations| crate::planned::run_large(&at_baseline, invocations);
    run(256)?;
    let error = run(257).expect_err("257 invocations are more than 256");
    assert_eq!(error.kind(), ErrorKind::Device, "{error}");
    assert_eq!(Device::cpu().at_baseline().expect_err("no adapter").kind(), ErrorKind::Device);
    Ok(())
}
