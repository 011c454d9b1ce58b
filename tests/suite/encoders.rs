//! Launches that are recorded below wgpu, and those that wgpu encodes, are the same.

use std::process::Command;

use libtest_mimic::{Failed, Trial};
use meganeura::optim::{AdamW, Optimizer};
use meganeura::{Device, Profiling, Result};

use crate::Outcome;
use crate::adapter::gpu_trial;
use crate::nets::{Tiny, bits, images, record};

/// The argument that makes this program train a few steps, print every bit of the weights and what it took, and end.
const TRAINED: &str = "print-what-was-trained";

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    trials.push(gpu_trial("encoders::give_the_same_bits", encoders));
}

/// Does so if asked to. A process has one environment, which chooses the encoder.
pub(crate) fn train_if_asked() -> bool {
    let asked = std::env::args().nth(1).as_deref() == Some(TRAINED);
    if asked {
        print!("{}", train().unwrap_or_else(|error| format!("{error:?}")));
    }
    asked
}

fn train() -> Result<String> {
    let device = Device::best()?;
    let mut net = Tiny::init(&device, 1)?;
    let (pixels, labels) = images(&device, "trained", 4)?;
    let mut optimizer = AdamW::new(0.01);
    let timed = device.set_profiling(Profiling::Launches).is_ok();
    for _ in 0..6 {
        let (_, grads) = record(&net, &pixels, &labels)?;
        optimizer.step(&mut net, &grads)?;
    }
    let launches = if timed { device.last_profile()?.launches.len() } else { 0 };
    Ok(format!("{:?} {launches} launches", bits(&net)?))
}

fn encoders(device: &Device) -> Outcome {
    let train = |encoder: &str| {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(TRAINED).env("MEGANEURA_DEVICE", device.to_string()).env("MEGANEURA_CACHE", "off");
        let output = command.env("MEGANEURA_ENCODER", encoder).output()?;
        assert!(output.status.success(), "{output:?}");
        Ok::<_, Failed>(String::from_utf8(output.stdout)?)
    };
    let trained = train("")?;
    assert!(trained.starts_with("[(\"") && trained.ends_with(" launches"), "{trained}");
    assert_eq!(train("wgpu")?, trained);
    Ok(())
}
