//! Training steps that are recorded once give the same bits as a tape for every step, whatever changes in between.

mod follows;
mod scripts;

use libtest_mimic::Trial;
use meganeura::loss::CrossEntropyOptions;
use meganeura::nn::{BatchNorm2d, Conv2d, Dropout, GroupNorm, Linear};
use meganeura::optim::{Adam, AdamW, Group, Optimizer, Schedule, Sgd, TrainStep};
use meganeura::{Device, ErrorKind, Grads, Init, Layer, Module, ModuleExt, Precision, Result, Seed, Tape, Tensor, Var};

use crate::Outcome;
use crate::adapter::gpu_trial;
use crate::nets::{Tiny, bits, images, tensor};

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    follows::collect(trials);
    scripts::collect(trials);
    type Test = fn(&Device) -> Outcome;
    let tests: [(&str, Test); 8] = [
        ("trains_to_the_same_bits_as_a_tape", trains),
        ("follows_changes_between_calls", changes),
        ("skips_non_finite_steps", not_finite),
        ("draws_new_masks_in_each_call", dropout),
        ("gives_metrics_beside_the_loss", metrics),
        ("is_recorded_for_each_shape", shapes),
        ("resumes_from_a_saved_state", resumes),
        ("bad_input", bad_input),
    ];
    for (name, test) in tests {
        trials.push(Trial::test(format!("train_step::cpu::{name}"), move || test(&Device::cpu())));
        trials.push(gpu_trial(format!("train_step::gpu::{name}"), move |device| test(&device.for_testing(0))));
    }
    trials.push(gpu_trial("train_step::gpu::in_fast_precision", |device| {
        match device.with_precision(Precision::Fast) {
            Ok(fast) => trains(&fast),
            Err(_) => trains(&device.for_testing_bf16(0)),
        }
    }));
}

/// Convolutions, both kinds of normalisation, running statistics, and dropout.
#[derive(Module, Debug)]
#[module(sequential)]
struct Net {
    #[module(init = Conv2d::new(1, 8, 3).padding(1))]
    stem: Conv2d,
    #[module(init = BatchNorm2d::new(8), then = relu)]
    batch_norm: BatchNorm2d,
    #[module(init = Conv2d::new(8, 8, 3).padding(1))]
    body: Conv2d,
    #[module(init = GroupNorm::new(2, 8), then = relu)]
    norm: GroupNorm,
    #[module(init = Dropout::new(0.25), before = flatten)]
    dropout: Dropout,
    #[module(init = Linear::new(8 * 36, 3))]
    head: Linear,
}

type Classes = (Var, Var);

fn loss<M: Layer>(net: &M, (x, labels): &Classes) -> Var {
    net.forward(x).cross_entropy(labels)
}

fn compiled<M: Layer>(net: &M) -> TrainStep<'_, &M, Classes, Var> {
    TrainStep::new(net, loss::<M>)
}

/// A training step with a tape.
fn step<M: Layer>(
    net: &mut M,
    optimizer: &mut dyn Optimizer,
    (x, labels): (&Tensor, &Tensor),
    change: impl Fn(&M, Grads) -> Result<Grads>,
) -> Result<f32> {
    let tape = Tape::new(x.device());
    let loss = loss(net, &(tape.input(x), tape.input(labels)));
    let grads = change(net, tape.backward(&loss)?)?;
    optimizer.step_with_loss(net, &grads, &loss)?;
    loss.item()
}

fn clip<M: Module>(net: &M, grads: Grads) -> Result<Grads> {
    grads.clip_norm(net, 0.5)
}

fn unchanged<M: Module>(_: &M, grads: Grads) -> Result<Grads> {
    Ok(grads)
}

/// Each optimizer with a schedule, groups and clipping.
fn trains(device: &Device) -> Outcome {
    let (x, labels) = images(device, "train_step", 4)?;
    let decayed = || Group::by(|_, param| param.shape().rank() < 2).weight_decay(0.0);
    let optimizers: [fn() -> Box<dyn Optimizer>; 3] = [
        || Box::new(Sgd::new(0.1).momentum(0.9).weight_decay(1e-3)),
        || Box::new(Adam::new(0.01)),
        || Box::new(AdamW::new(0.01)),
    ];
    for make in optimizers {
        let schedule = Schedule::cosine(0.05, 6, 0.0).warmup(2);
        device.set_seed(5);
        let (mut by_tape, mut optimizer) = (Net::init(device, 1)?, make());
        optimizer.groups_mut().push(decayed());
        let mut losses = Vec::new();
        for number in 0..6 {
            schedule.set_lr(number, &mut *optimizer);
            losses.push(step(&mut by_tape, &mut *optimizer, (&x, &labels), clip)?);
        }
        device.set_seed(5);
        let (net, mut optimizer) = (Net::init(device, 1)?, make());
        optimizer.groups_mut().push(decayed());
        let mut step = compiled(&net).gradients(clip);
        for (number, expected) in losses.iter().enumerate() {
            schedule.set_lr(number as u64, &mut *optimizer);
            let loss = step.call(&mut *optimizer, (&x, &labels))?.item()?;
            assert_eq!(loss.to_bits(), expected.to_bits(), "{} in step {number}", optimizer.name());
        }
        assert_eq!(step.recorded(), 1);
        assert_eq!(bits(&net)?, bits(&by_tape)?, "{}", optimizer.name());
        assert_eq!(losses.len(), 6);
        assert_ne!(losses[0].to_bits(), losses[5].to_bits());
    }
    Ok(())
}

/// Freezes and thaws parameters, sets weights, changes the weight decay and a group, and uses the model in between.
fn changes(device: &Device) -> Outcome {
    let (x, labels) = images(device, "train_step", 4)?;
    let new_optimizer = || AdamW::new(0.01).weight_decay(0.0);
    let change = |at: usize, net: &mut Tiny| match at {
        2 => net.freeze("stem.*"),
        4 => net.thaw("stem.*"),
        8 => net.stem.weight.set(tensor(net.stem.weight.value().device(), "new", [4, 1, 3, 3])?),
        _ => Ok(()),
    };
    let change_optimizer = |at: usize, optimizer: &mut AdamW| match at {
        5 => *optimizer = std::mem::replace(optimizer, new_optimizer()).weight_decay(0.1),
        7 => optimizer.groups_mut().push(Group::new("head.*").lr_scale(0.5)),
        8 => optimizer.groups_mut()[0].set_lr_scale(0.1),
        _ => {}
    };
    let (mut by_tape, mut optimizer) = (Tiny::init(device, 1)?, new_optimizer());
    by_tape.name_parameters();
    for at in 0..10 {
        change(at, &mut by_tape)?;
        change_optimizer(at, &mut optimizer);
        step(&mut by_tape, &mut optimizer, (&x, &labels), unchanged)?;
    }
    let (net, mut optimizer) = (Tiny::init(device, 1)?, new_optimizer());
    net.name_parameters();
    let mut step = TrainStep::new(Box::new(net), loss::<Tiny>);
    let mut held = Vec::new();
    for at in 0..10 {
        if [2, 4, 8].contains(&at) {
            change(at, step.module_mut())?;
        }
        change_optimizer(at, &mut optimizer);
        // The old weights are held elsewhere, and must not change.
        let (seen, before) = (step.module().head.weight.value(), bits(step.module())?);
        step.call(&mut optimizer, (&x, &labels))?;
        assert_ne!(bits(step.module())?, before);
        held.push(seen);
        step.module().forward(&Tape::inference(device).input(&x)).to_vec()?;
    }
    assert_eq!(bits(step.module())?, bits(&by_tape)?);
    let first = held[0].to_vec()?;
    assert!(held[1..].iter().all(|later| later.to_vec().is_ok_and(|later| later != first)));
    // After each access to the module; with weight decay; with groups.
    assert_eq!(step.recorded(), 6);
    Ok(())
}

fn not_finite(device: &Device) -> Outcome {
    let (x, labels) = images(device, "train_step", 4)?;
    let bad = Tensor::full(device, [4, 1, 6, 6], f32::NAN)?;
    let net = Tiny::init(device, 1)?;
    let mut optimizer = AdamW::new(0.01).skip_not_finite(true);
    let mut step = compiled(&net);
    step.call(&mut optimizer, (&x, &labels))?;
    let before = bits(&net)?;
    let line = line!() + 1;
    assert!(step.call(&mut optimizer, (&bad, &labels))?.item()?.is_nan());
    assert_eq!((bits(&net)?, optimizer.skipped(), step.recorded()), (before.clone(), 1, 1));
    let skip = optimizer.last_skip().expect("skipped");
    assert!(skip.to_string().contains("`the loss`"), "{skip}");
    assert_eq!(skip.location().map(std::panic::Location::line), Some(line));
    let mut optimizer = optimizer.check_finite(true);
    let error = step.call(&mut optimizer, (&bad, &labels)).expect_err("NaN");
    assert_eq!((error.kind(), bits(&net)?), (ErrorKind::NotFinite, before.clone()));
    step.call(&mut optimizer, (&x, &labels))?;
    assert_ne!(bits(&net)?, before);
    Ok(())
}

fn dropout(device: &Device) -> Outcome {
    let net = (Dropout::new(0.5), Linear::new(64, 1)).init(device, Seed::new(1))?;
    let x = Tensor::full(device, [1, 64], 1.0)?;
    let mut step = TrainStep::new(&net, |net, x: &Var| net.forward(x).sum());
    let mut optimizer = Sgd::new(0.0);
    device.set_seed(9);
    let compiled = [(); 4].map(|()| step.call(&mut optimizer, &x).and_then(|loss| loss.item()));
    device.set_seed(9);
    let taped = [(); 4].map(|()| net.forward(&Tape::new(device).input(&x)).sum().item());
    for (k, (a, b)) in compiled.iter().zip(&taped).enumerate() {
        assert_eq!(a.as_ref().ok(), b.as_ref().ok(), "step {k}");
    }
    assert!(compiled.iter().flatten().any(|loss| Some(loss) != compiled[0].as_ref().ok()), "{compiled:?}");
    Ok(())
}

fn metrics(device: &Device) -> Outcome {
    let (x, labels) = images(device, "train_step", 4)?;
    let net = Tiny::init(device, 1)?;
    let mut step = TrainStep::new(&net, |net, (x, labels): &Classes| {
        let scores = net.forward(x);
        let weight = net.tape_weight(x.tape());
        (scores.cross_entropy(labels), scores, weight)
    });
    let mut optimizer = Sgd::new(0.1);
    for _ in 0..3 {
        let before = net.head.weight.value().to_vec()?;
        let expected = net.forward(&Tape::new(device).input(&x)).to_vec()?;
        let (loss, scores, weight) = step.call(&mut optimizer, (&x, &labels))?;
        assert!(loss.item()?.is_finite());
        assert_eq!(scores.to_vec()?, expected);
        // A parameter before the step.
        assert_eq!(weight.to_vec()?, before);
        assert_ne!(net.head.weight.value().to_vec()?, before);
    }
    Ok(())
}

impl Tiny {
    fn tape_weight(&self, tape: &Tape) -> Var {
        tape.param(&self.head.weight)
    }
}

fn shapes(device: &Device) -> Outcome {
    let batches = [4, 3, 4, 3, 1, 4].map(|size| images(device, "train_step", size));
    let batches = batches.into_iter().collect::<Result<Vec<_>>>()?;
    let (mut by_tape, mut optimizer) = (Tiny::init(device, 1)?, AdamW::new(0.01));
    for (x, labels) in &batches {
        step(&mut by_tape, &mut optimizer, (x, labels), unchanged)?;
    }
    let (net, mut optimizer) = (Tiny::init(device, 1)?, AdamW::new(0.01));
    let mut step = compiled(&net);
    for (x, labels) in &batches {
        step.call(&mut optimizer, (x, labels))?;
    }
    assert_eq!((bits(&net)?, step.recorded()), (bits(&by_tape)?, 3));
    Ok(())
}

fn resumes(device: &Device) -> Outcome {
    let (x, labels) = images(device, "train_step", 4)?;
    let train = |net: &Tiny, optimizer: &mut AdamW, steps: usize| -> Result<()> {
        let mut step = compiled(net);
        (0..steps).try_for_each(|_| step.call(optimizer, (&x, &labels)).map(drop))
    };
    let (whole, mut optimizer) = (Tiny::init(device, 1)?, AdamW::new(0.01));
    train(&whole, &mut optimizer, 5)?;
    let (mut first, mut optimizer) = (Tiny::init(device, 1)?, AdamW::new(0.01));
    train(&first, &mut optimizer, 2)?;
    let (second, mut other) = (first.clone(), AdamW::new(0.5));
    other.load_state(&second, &optimizer.state_of(&first))?;
    train(&second, &mut other, 3)?;
    assert_eq!(bits(&second)?, bits(&whole)?);
    // A state that is loaded in between takes effect at the next call.
    let mut step = TrainStep::new(&mut first, loss::<Tiny>);
    step.call(&mut optimizer, (&x, &labels))?;
    optimizer.load_state(step.module(), &other.state_of(&second))?;
    step.module_mut().copy_from(&second)?;
    step.call(&mut optimizer, (&x, &labels))?;
    train(&second, &mut other, 1)?;
    assert_eq!(bits(&first)?, bits(&second)?);
    Ok(())
}

fn bad_input(device: &Device) -> Outcome {
    let (x, labels) = images(device, "train_step", 4)?;
    let net = Tiny::init(device, 1)?;
    let before = bits(&net)?;
    let mut optimizer = AdamW::new(0.01);
    let expect = |what: &str, result: Result<Tensor>, kind, part: &str| {
        let error = result.expect_err(what);
        assert!(error.kind() == kind && error.to_string().contains(part), "{what}: {error:?}");
        assert!(error.location().is_some_and(|at| at.file().starts_with("tests/suite")), "{what}: {error:?}");
    };
    let wide = tensor(device, "wide", [4, 2, 6, 6])?;
    expect("channels", compiled(&net).call(&mut optimizer, (&wide, &labels)), ErrorKind::Shape, "");
    let beyond = Tensor::indices(device, [4], &[0, 1, 2, 3])?;
    let mut step = compiled(&net);
    expect("labels", step.call(&mut optimizer, (&x, &beyond)), ErrorKind::Argument, "3");
    // Ignored labels may be anything, others may not.
    let options = CrossEntropyOptions { ignored: Some(9), ..CrossEntropyOptions::default() };
    let ignoring = |net: &Tiny, (x, labels): &Classes| net.forward(x).cross_entropy_with(labels, &options);
    let mut ignoring = TrainStep::new(&net, ignoring);
    let beyond = Tensor::indices(device, [4], &[0, 9, 2, 5])?;
    expect("labels beside ignored ones", ignoring.call(&mut optimizer, (&x, &beyond)), ErrorKind::Argument, "5");
    let elsewhere = Device::cpu_with(Precision::Double);
    let (other, _) = images(&elsewhere, "train_step", 4)?;
    expect("device", step.call(&mut optimizer, (&other, &labels)), ErrorKind::Device, "");
    let reads = |net: &Tiny, batch: &Classes| {
        let loss = loss(net, batch);
        if loss.item().is_ok() { loss } else { loss.refuse("reads", ErrorKind::Argument, "could not be read") }
    };
    expect("a read", TrainStep::new(&net, reads).call(&mut optimizer, (&x, &labels)), ErrorKind::Argument, "reads");
    expect(
        "a learning rate",
        step.call(&mut AdamW::new(f64::NAN), (&x, &labels)),
        ErrorKind::Argument,
        "learning rate",
    );
    let constant = TrainStep::new(&net, |_: &Tiny, (x, _): &Classes| x.sum()).call(&mut optimizer, (&x, &labels));
    expect("no parameter", constant, ErrorKind::NoGradient, "");
    let scores = TrainStep::new(&net, |net: &Tiny, (x, _): &Classes| net.forward(x));
    let mut scores = scores;
    expect("no scalar", scores.call(&mut optimizer, (&x, &labels)), ErrorKind::Shape, "");
    assert_eq!(bits(&net)?, before);
    // After all these errors, the step still works.
    step.call(&mut optimizer, (&x, &labels))?;
    assert_ne!(bits(&net)?, before);
    Ok(())
}
