//! What the guide shows and its own examples cannot hold it to: the plans of its page on plans.

use libtest_mimic::Trial;
use meganeura::nn::Linear;
use meganeura::optim::{Optimizer, Sgd};
use meganeura::{Device, Init, Layer, Seed, Tape, Tensor};

use crate::Outcome;
use crate::adapter::gpu_trial;

const PAGE: &str = include_str!("../../meganeura/src/guide/plans.md");

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    trials.push(Trial::test("guide::plan", || shows(&Device::cpu(), 0)));
    trials.push(gpu_trial("guide::gpu::plan", |device| shows(&device.for_testing(0)?, 1)));
}

/// The plan of the page's example is the page's block of text number `at`, but for how a GPU launches it: devices differ in that.
fn shows(device: &Device, at: usize) -> Outcome {
    let mut net = Linear::new(4, 3).init(device, Seed::new(42))?;
    let (x, target) = (Tensor::full(device, [8, 4], 1.0)?, Tensor::zeros(device, [8, 3])?);
    let tape = Tape::new(device);
    let loss = net.forward(&tape.input(&x)).relu().mse(&tape.input(&target));
    let grads = tape.backward(&loss)?;
    Sgd::new(0.1).step(&mut net, &grads)?;
    let shown = PAGE.split("```text\n").nth(1 + at).and_then(|rest| rest.split("```").next());
    let step = |line: &str| line.rsplit_once("  [").map_or(line, |(step, _)| step).to_owned();
    let steps = |plan: &str| plan.lines().map(step).collect::<Vec<_>>();
    let dump = device.plan_dumps().remove(0);
    assert_eq!(steps(&dump), steps(shown.expect("the page shows both")), "guide/plans.md should show\n{dump}");
    Ok(())
}
