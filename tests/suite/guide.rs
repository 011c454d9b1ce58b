//! Parts of the guide that its own examples cannot test: the plans on its page about plans, and the gradients at
//! corners on its page about PyTorch.

use libtest_mimic::Trial;
use meganeura::nn::{BatchNorm2d, Conv2d, Linear, Relu};
use meganeura::optim::{Optimizer, Sgd};
use meganeura::{Device, Init, Layer, Seed, Tape, Tensor, Var};

use crate::Outcome;
use crate::adapter::gpu_trial;

const PAGE: &str = include_str!("../../meganeura/src/guide/plans.md");
const FROM_PYTORCH: &str = include_str!("../../meganeura/src/guide/from_pytorch.md");

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    trials.push(Trial::test("guide::plan", || shows(&Device::cpu(), 0)));
    trials.push(gpu_trial("guide::gpu::plan", |device| shows(&device.for_testing(0), 1)));
    trials.push(Trial::test("guide::compiled", compiled));
    trials.push(Trial::test("guide::corners", || corners(&Device::cpu())));
    trials.push(gpu_trial("guide::gpu::corners", |device| corners(&device.for_testing(0))));
}

/// The plan of the page's example equals the page's text block number `at`, except for the launches, in which devices
/// differ.
fn shows(device: &Device, at: usize) -> Outcome {
    let mut net = Linear::new(4, 3).init(device, Seed::new(42))?;
    let (x, target) = (Tensor::full(device, [8, 4], 1.0)?, Tensor::zeros(device, [8, 3])?);
    let tape = Tape::new(device);
    let loss = net.forward(&tape.input(&x)).relu().mse(&tape.input(&target));
    let grads = tape.backward(&loss)?;
    Sgd::new(0.1).step(&mut net, &grads)?;
    let step = |line: &str| line.rsplit_once("  [").map_or(line, |(step, _)| step).to_owned();
    let steps = |plan: &str| plan.lines().map(step).collect::<Vec<_>>();
    let dump = device.plan_dumps().remove(0);
    assert_eq!(steps(&dump), steps(shown(at)), "guide/plans.md should show\n{dump}");
    Ok(())
}

/// The page's text block number `at`.
fn shown(at: usize) -> &'static str {
    let block = PAGE.split("```text\n").nth(1 + at).and_then(|rest| rest.split("```").next());
    block.expect("the page shows it")
}

/// Likewise both plans of a compiled function.
fn compiled() -> Outcome {
    let device = Device::cpu();
    let net = (Conv2d::new(1, 4, 3), BatchNorm2d::new(4), Relu).init(&device, Seed::new(42))?;
    device.compile([1, 1, 8, 8], |x| net.forward(x))?;
    let dumps = device.plan_dumps().join("\n");
    assert_eq!(dumps, shown(2), "guide/plans.md should show\n{dumps}");
    Ok(())
}

/// A function as the page's table spells it, applied to the numbers in the second column: to `x`, or to `x` and `y`.
type Corner = (&'static str, fn(&Var) -> Var);

const CORNERS: [Corner; 20] = [
    ("`x.relu()`", Var::relu),
    ("`x.leaky_relu(0.25)`", |x| x.leaky_relu(0.25)),
    ("`x.elu(0.5)`", |x| x.elu(0.5)),
    ("`x.abs()`", Var::abs),
    ("`x.clamp(-1.0, 2.0)`", |x| x.clamp(-1.0, 2.0)),
    ("`x.minimum(&y)`", |x| first(x).minimum(second(x))),
    ("`x.maximum(&y)`", |x| first(x).maximum(second(x))),
    ("`x.min_over(&[0])`", |x| x.min_over(&[0])),
    ("`x.max_over(&[0])`", |x| x.max_over(&[0])),
    ("`x.max_pool2d(…)`", |x| x.reshape([1, 1, 1, 3]).max_pool2d([1, 3], [1, 1], [0, 0], [1, 1])),
    ("`x.l1(&y)`", |x| first(x).l1(&second(x))),
    ("`x.huber(&y, 1.0)`", |x| first(x).huber(&second(x), 1.0)),
    ("`x.smooth_l1(&y, 0.0)`", |x| first(x).smooth_l1(&second(x), 0.0)),
    ("`x.pow(&y)`", |x| first(x).pow(second(x))),
    ("`x.powf(0.5)`", |x| x.powf(0.5)),
    ("`x.sqrt()`", Var::sqrt),
    ("`x.rsqrt()`", Var::rsqrt),
    ("`x.recip()`", Var::recip),
    ("`x.log()`", Var::log),
    ("`x.erfinv()`", Var::erfinv),
];

fn first(x: &Var) -> Var {
    x.slice(0, 0..1)
}

fn second(x: &Var) -> Var {
    x.slice(0, 1..2)
}

/// Every line of the table is true, and every function above has a line.
fn corners(device: &Device) -> Outcome {
    let table =
        FROM_PYTORCH.split("| function | at | gradient |\n|---|---|---|\n").nth(1).expect("the page has the table");
    let lines: Vec<_> = table.lines().take_while(|line| !line.is_empty()).collect();
    for line in &lines {
        let [_, function, at, gradient, _] = line.split('|').map(str::trim).collect::<Vec<_>>()[..] else {
            return Err(format!("not three columns: {line}").into());
        };
        // Words may follow the numbers.
        let words = |text: &'static str| text.split([',', ':']).map(str::trim);
        let numbers = |text| words(text).map_while(|word| word.parse().ok()).collect::<Vec<f32>>();
        let (at, expected) = (numbers(at), numbers(gradient));
        let corner = CORNERS.iter().find(|(name, _)| *name == function).ok_or(format!("no function for {line}"))?;
        let tape = Tape::new(device);
        let x = tape.input(&Tensor::from_slice(device, [at.len()], &at)?);
        let grads = tape.backward(&corner.1(&x).sum())?;
        assert_eq!(grads.of(&x).expect("all depend on x").to_vec()?, expected, "{line}");
    }
    let missing = CORNERS.iter().find(|(name, _)| !lines.iter().any(|line| line.contains(name)));
    assert_eq!(missing.map(|(name, _)| name), None);
    Ok(())
}
