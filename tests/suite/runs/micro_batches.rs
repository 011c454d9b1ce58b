//! Runs that resume between two micro-batches of one step, or after skipped steps.

use std::path::Path;

use libtest_mimic::{Failed, Trial};
use meganeura::optim::{Accumulate, AdamW, Optimizer};
use meganeura::run::{Run, read_metrics};
use meganeura::{Device, Layer, Tape};

use super::training_program::{Net, data};
use crate::Outcome;
use crate::adapter::gpu_trial;
use crate::nets::bits;

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    trials.push(Trial::test("runs::resume_between_micro_batches", || resume(&Device::cpu())));
    trials.push(gpu_trial("runs::gpu::resume_between_micro_batches", |device| resume(&device.for_testing(0))));
}

/// The number of micro-batches, each a step of the run. `EVERY` of them make a step of the optimizer.
const ALL: u64 = 25;
const EVERY: u64 = 3;

/// Trains until the run has this many micro-batches, and saves. Every seventh loss is NaN.
fn train(folder: &Path, device: &Device, seed: u64, until: u64) -> Result<Net, Failed> {
    let mut run = Run::at(folder, device).open()?;
    let (mut net, mut optimizer) = (Net::init(device, seed)?, AdamW::new(0.01).skip_not_finite(true));
    let is_restored = run.restore(&mut net, &mut optimizer)?;
    assert_eq!(is_restored, run.step() > 0);
    // After any restart, the optimizer's count of micro-batches matches the run's step.
    assert_eq!(optimizer.accumulated(), run.step() % EVERY);
    let data = data()?;
    while let Some(epoch) = run.next_epoch(100) {
        for batch in data.batches(8).shuffle(1).epoch(epoch).skip(run.batch()).on(device) {
            if run.step() == until {
                run.checkpoint(&net, &optimizer)?;
                return Ok(net);
            }
            let batch = batch?;
            let tape = Tape::new(device);
            let factor = if run.step() % 7 == 6 { f64::NAN } else { 1.0 };
            let loss = net.forward(&tape.input(&batch.inputs)).cross_entropy(&batch.targets) * factor;
            if let Some(grads) = optimizer.accumulate(&net, tape.backward(&loss)?, Accumulate::mean(EVERY))? {
                let grads = grads.clip_norm(&net, 1.0)?;
                optimizer.step(&mut net, &grads)?;
            }
            run.advance();
            run.log(&[("loss", &loss.to_tensor()?), ("skipped", &optimizer.skipped())])?;
        }
    }
    Err("the epochs ended".into())
}

fn resume(device: &Device) -> Outcome {
    let directory = tempfile::tempdir()?;
    let [whole, parts] = ["whole", "parts"].map(|name| directory.path().join(name));
    device.set_seed(5);
    let expected = train(&whole, device, 1, ALL)?;
    let lines = |folder: &Path| {
        let values = |line: meganeura::run::Line| (line.step, format!("{:?}", line.values));
        read_metrics(folder).map(|lines| lines.into_iter().map(values).collect::<Vec<_>>())
    };
    // Parts begin with 0, 1 or 2 micro-batches in the sums, and after 0 to 3 skipped steps.
    for (index, until) in [1, 8, 9, 10, 14, 22, ALL].into_iter().enumerate() {
        device.set_seed(if index == 0 { 5 } else { 99 });
        let net = train(&parts, device, if index == 0 { 1 } else { 9 }, until)?;
        if until == ALL {
            assert_eq!(bits(&net)?, bits(&expected)?);
        }
    }
    assert_eq!(lines(&parts)?, lines(&whole)?);
    assert!(
        lines(&whole)?.last().is_some_and(|(_, values)| values.contains("\"skipped\": 3.0")),
        "{:?}",
        lines(&whole)?
    );
    Ok(())
}
