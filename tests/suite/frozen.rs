//! Frozen parameters cost no gradient: none is in the plan, and below the trained part none is even recorded.

use libtest_mimic::Trial;
use meganeura::nn::{BatchNorm2d, Conv2d, Dropout, Linear};
use meganeura::optim::{Optimizer, Sgd};
use meganeura::{Device, Grads, Layer, Module, ModuleExt, Result, Tape, Var};

use crate::Outcome;
use crate::adapter::gpu_trial;
use crate::nets::{bits, images};

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    let mut both = |name: &str, run: fn(&Device) -> Outcome| {
        // Separate devices, so that their plans are only this test's.
        trials.push(Trial::test(format!("frozen::{name}"), move || run(&Device::cpu())));
        trials.push(gpu_trial(format!("frozen::gpu::{name}"), move |device| run(&device.for_testing(0))));
    };
    both("the_sweep_stops_below_the_trained_part", sweep_stops);
    both("a_held_input_has_a_gradient", held_input);
    both("gradients_pass_through_frozen_layers", passes_through);
    both("thawed_parameters_train_again", thawed);
    both("evaluated_parts_keep_their_statistics_and_drop_nothing", evaluated);
}

/// Layers with weights of different shapes, to tell them apart in dumps.
#[derive(Module, Debug)]
#[module(sequential)]
struct Net {
    #[module(init = Encoder::parts(), frozen)]
    encoder: (Conv2d, Conv2d),
    #[module(init = Conv2d::new(3, 5, 3).padding(1), then = relu)]
    neck: Conv2d,
    #[module(init = Linear::new(5 * 36, 3), before = flatten)]
    head: Linear,
}

struct Encoder;

impl Encoder {
    fn parts() -> (meganeura::nn::Conv2dConfig, meganeura::nn::Conv2dConfig) {
        (Conv2d::new(1, 2, 3).padding(1), Conv2d::new(2, 3, 3).padding(1))
    }
}

/// A forward and backward pass. The input is held only if `hold` is `true`.
fn record(net: &Net, device: &Device, hold: bool) -> Result<(Var, Grads, Option<Var>)> {
    let (images, labels) = images(device, "frozen", 4)?;
    let x = Tape::new(device).input(&images);
    let loss = net.forward(&x).cross_entropy(&labels);
    let x = hold.then_some(x);
    let grads = loss.tape().backward(&loss)?;
    Ok((loss, grads, x))
}

/// The plan of one step.
fn plan(device: &Device, net: &mut Net, hold: bool) -> Result<String> {
    let (_, grads, held) = record(net, device, hold)?;
    // The loss is held for the backward pass, but not computed.
    drop(held);
    Sgd::new(0.1).step(net, &grads)?;
    Ok(device.plan_dumps().pop().expect("a step is a plan"))
}

/// The lines that name this operation and this shape.
fn lines(dump: &str, op: &str, shape: &str) -> usize {
    dump.lines().filter(|line| count(line, op) > 0 && line.contains(shape)).count()
}

/// The number of results of this operation.
fn count(dump: &str, op: &str) -> usize {
    dump.match_indices(op).filter(|(at, _)| dump[at + op.len()..].starts_with([' ', '('])).count()
}

const FIRST: &str = "weight: [2, 1, 3, 3]";
const SECOND: &str = "weight: [3, 2, 3, 3]";
const NECK: &str = "weight: [5, 3, 3, 3]";

fn sweep_stops(device: &Device) -> Outcome {
    let mut net = Net::init(device, 1)?;
    let (loss, grads, _) = record(&net, device, false)?;
    let tape = loss.tape().to_string();
    // The gradient of the neck's weight is recorded. Nothing of the convolutions below is.
    assert_eq!(lines(&tape, "conv2d_grad_weight", NECK), 1, "{tape}");
    assert_eq!(count(&tape, "conv2d_grad_weight"), 1, "{tape}");
    assert!(grads.by_path("encoder.0.weight").is_none() && grads.by_path("neck.weight").is_some());
    drop((loss, grads));
    let dump = plan(device, &mut net, false)?;
    assert_eq!(lines(&dump, "conv2d_grad_weight", NECK), 1, "{dump}");
    assert_eq!(count(&dump, "conv2d_grad_weight"), 1, "{dump}");
    // The gradient of the neck's input is not computed.
    assert_eq!(count(&dump, "conv2d_grad_input"), 0, "{dump}");
    // If all but the head is frozen, no convolution is differentiated.
    net.freeze("neck.*")?;
    let (loss, ..) = record(&net, device, false)?;
    assert!(!loss.tape().to_string().contains("conv2d_grad"), "{}", loss.tape());
    // If all are thawed, all convolutions are differentiated.
    net.thaw("**")?;
    let (loss, ..) = record(&net, device, false)?;
    assert_eq!(count(&loss.tape().to_string(), "conv2d_grad_weight"), 3);
    Ok(())
}

fn held_input(device: &Device) -> Outcome {
    let mut net = Net::init(device, 1)?;
    let (_, grads, x) = record(&net, device, true)?;
    let dx = grads.of(&x.expect("held")).expect("the loss depends on it").to_vec()?;
    assert!(dx.iter().any(|&dx| dx != 0.0));
    assert!(grads.get(&net.encoder.0.weight).is_none());
    // The input's gradient is the same whether parameters are trained or not.
    net.thaw("**")?;
    let (_, grads, x) = record(&net, device, true)?;
    assert_eq!(grads.of(&x.expect("held")).expect("depends").to_vec()?, dx);
    net.freeze("encoder.**")?;
    // A recorded gradient costs nothing unless it is read.
    let dump = plan(device, &mut net, true)?;
    assert_eq!((count(&dump, "conv2d_grad_weight"), count(&dump, "conv2d_grad_input")), (1, 0), "{dump}");
    Ok(())
}

fn passes_through(device: &Device) -> Outcome {
    let mut net = Net::init(device, 1)?;
    net.thaw("encoder.0.*")?;
    net.freeze_where(|path, param| {
        path.starts_with("neck") || (path.starts_with("head") && param.shape().rank() == 1)
    })?;
    let before = bits(&net)?;
    let dump = plan(device, &mut net, false)?;
    let weights = [FIRST, SECOND, NECK].map(|weight| lines(&dump, "conv2d_grad_weight", weight));
    assert_eq!(weights, [1, 0, 0], "{dump}");
    assert_eq!(count(&dump, "conv2d_grad_input"), 2, "{dump}");
    let changed: Vec<_> =
        bits(&net)?.into_iter().zip(before).filter(|(a, b)| a != b).map(|((path, _), _)| path).collect();
    assert_eq!(changed, ["encoder.0.weight", "encoder.0.bias", "head.weight"]);
    Ok(())
}

fn thawed(device: &Device) -> Outcome {
    let mut net = Net::init(device, 1)?;
    let step = |net: &mut Net| -> Result<Vec<String>> {
        let before = bits(net)?;
        let (_, grads, _) = record(net, device, false)?;
        Sgd::new(0.1).step(net, &grads)?;
        let pairs = bits(net)?.into_iter().zip(before);
        Ok(pairs.filter(|(now, before)| now != before).map(|((path, _), _)| path).collect())
    };
    assert_eq!(step(&mut net)?, ["neck.weight", "neck.bias", "head.weight", "head.bias"]);
    net.thaw("encoder.1.weight")?;
    net.freeze("**.bias")?;
    assert_eq!(step(&mut net)?, ["encoder.1.weight", "neck.weight", "head.weight"]);
    Ok(())
}

/// A part to be frozen and evaluated, and a part to be trained.
#[derive(Module, Debug, Clone)]
#[module(sequential)]
struct FineTuned {
    #[module(init = (Conv2d::new(1, 3, 3), BatchNorm2d::new(3), Dropout::new(0.5)), then = Dropout::new(0.5))]
    encoder: (Conv2d, BatchNorm2d, Dropout),
    #[module(init = BatchNorm2d::new(3), then = flatten)]
    norm: BatchNorm2d,
    #[module(init = Linear::new(3 * 16, 3))]
    head: Linear,
}

/// The tensors that a training step changes.
fn changed(net: &mut FineTuned, device: &Device) -> Result<Vec<String>> {
    let before = bits(net)?;
    let (images, labels) = images(device, "evaluated", 4)?;
    let loss = net.forward(&Tape::new(device).input(&images)).cross_entropy(&labels);
    let grads = loss.tape().backward(&loss)?;
    Sgd::new(0.1).step(net, &grads)?;
    let pairs = bits(net)?.into_iter().zip(before);
    Ok(pairs.filter(|(now, before)| now != before).map(|((path, _), _)| path).collect())
}

fn evaluated(device: &Device) -> Outcome {
    let mut net = FineTuned::init(device, 1)?;
    let statistics = ["encoder.1.running_mean", "encoder.1.running_var"];
    let trained = ["norm.weight", "norm.bias", "norm.running_mean", "norm.running_var", "head.weight", "head.bias"];
    net.freeze("encoder.**")?;
    assert_eq!(changed(&mut net, device)?, [&statistics[..], &trained].concat(), "frozen alone, statistics move");
    net.evaluate("encoder")?;
    assert_eq!(changed(&mut net, device)?, trained);
    // The evaluated part, and a copy of it, compute the same in a training step as in inference.
    let (images, _) = images(device, "evaluated", 4)?;
    let of = |net: &FineTuned, tape: &Tape| net.encoder.forward(&tape.input(&images)).to_vec();
    let expected = of(&net, &Tape::inference(device))?;
    assert_eq!(of(&net, &Tape::new(device))?, expected);
    assert_eq!(of(&net.clone(), &Tape::new(device))?, expected);
    net.train("**")?;
    assert_ne!(of(&net, &Tape::new(device))?, expected);
    assert_eq!(changed(&mut net, device)?, [&statistics[..], &trained].concat());
    Ok(())
}
