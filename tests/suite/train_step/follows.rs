//! Changes between calls of a training step. After each change, the bits are the same as with a tape for every step.

use libtest_mimic::Trial;
use meganeura::optim::{Accumulate, AdamW, Group, Muon, Optimizer, RAdam, RmsProp, Sgd, TrainStep};
use meganeura::{Device, ErrorKind, Grads, ModuleExt, Result, Tape, Tensor};

use super::{Classes, clip, loss, unchanged};
use crate::Outcome;
use crate::adapter::gpu_trial;
use crate::nets::{Tiny, bits, images, tensor};

pub(super) fn collect(trials: &mut Vec<Trial>) {
    type Test = fn(&Device) -> Outcome;
    let tests: [(&str, Test); 7] = [
        ("follows_settings_of_the_formula", formulas),
        ("follows_groups", groups),
        ("follows_replaced_parameters", replaced),
        ("follows_changes_of_gradients", gradients),
        ("adds_up_micro_batches", accumulated),
        ("drops_recordings_that_can_never_fit_again", dead),
        ("refuses_values_of_other_tapes", other_tapes),
    ];
    for (name, test) in tests {
        trials.push(Trial::test(format!("train_step::cpu::{name}"), move || test(&Device::cpu())));
        trials.push(gpu_trial(format!("train_step::gpu::{name}"), move |device| test(&device.for_testing(0))));
    }
    trials.push(gpu_trial("train_step::gpu::follows_a_model_from_device_to_device", moved));
}

/// Trains for eight steps, with a change of the optimizer before each, on tapes and by a compiled step, and compares
/// every bit. The model changes before the steps of `models`.
fn same_bits<O: Optimizer>(
    device: &Device,
    new_optimizer: impl Fn() -> O,
    change: impl Fn(usize, &mut O),
    models: &[usize],
    change_model: impl Fn(usize, &mut Tiny) -> Result<()>,
) -> Outcome {
    let (x, labels) = images(device, "follows", 4)?;
    let (mut by_tape, mut optimizer) = (Tiny::init(device, 1)?, new_optimizer());
    for at in 0..8 {
        change(at, &mut optimizer);
        if models.contains(&at) {
            change_model(at, &mut by_tape)?;
        }
        super::step(&mut by_tape, &mut optimizer, (&x, &labels), unchanged)?;
    }
    let mut optimizer = new_optimizer();
    let mut step = TrainStep::new(Box::new(Tiny::init(device, 1)?), loss::<Tiny>);
    for at in 0..8 {
        change(at, &mut optimizer);
        if models.contains(&at) {
            change_model(at, step.module_mut())?;
        }
        step.call(&mut optimizer, (&x, &labels))?;
    }
    assert_eq!(bits(step.module())?, bits(&by_tape)?, "{}", optimizer.name());
    assert!(step.recorded() < 8, "{}: recorded {} times", optimizer.name(), step.recorded());
    Ok(())
}

fn rebuild<O>(optimizer: &mut O, placeholder: O, change: impl FnOnce(O) -> O) {
    *optimizer = change(std::mem::replace(optimizer, placeholder));
}

/// [`same_bits`] without changes of the model.
fn same_optimizer_bits<O: Optimizer>(
    device: &Device,
    new_optimizer: impl Fn() -> O,
    change: impl Fn(usize, &mut O),
) -> Outcome {
    same_bits(device, new_optimizer, change, &[], |_, _| Ok(()))
}

fn formulas(device: &Device) -> Outcome {
    let sgd = || Sgd::new(0.1);
    same_optimizer_bits(device, sgd, |at, optimizer| match at {
        2 => rebuild(optimizer, sgd(), |optimizer| optimizer.momentum(0.9)),
        4 => rebuild(optimizer, sgd(), |optimizer| optimizer.nesterov(true)),
        6 => rebuild(optimizer, sgd(), |optimizer| optimizer.nesterov(false)),
        _ => {}
    })?;
    let rms_prop = || RmsProp::new(0.01);
    same_optimizer_bits(device, rms_prop, |at, optimizer| {
        match at {
            // The state has other tensors, so it starts anew.
            3 => *optimizer = rms_prop().centered(true),
            5 => *optimizer = rms_prop().momentum(0.5),
            _ => {}
        }
    })?;
    let adamw = || AdamW::new(0.01);
    same_optimizer_bits(device, adamw, |at, optimizer| {
        if at == 3 {
            *optimizer = adamw().amsgrad(true);
        }
    })?;
    // The same settings and state have another meaning.
    let radam = || RAdam::new(0.01).weight_decay(0.1);
    same_optimizer_bits(device, radam, |at, optimizer| {
        if at == 3 {
            rebuild(optimizer, radam(), |optimizer| optimizer.decoupled(true));
        }
    })?;
    let muon = || Muon::new(0.01).adam_for(|path, _| path.starts_with("stem"));
    same_optimizer_bits(device, muon, |at, optimizer| {
        if at == 3 {
            rebuild(optimizer, muon(), |optimizer| optimizer.nesterov(false));
        }
    })
}

fn groups(device: &Device) -> Outcome {
    let scaled = |pattern: &str, scale| Group::new(pattern).lr_scale(scale);
    let adamw = || AdamW::new(0.01).group(scaled("stem.*", 0.5)).group(scaled("head.*", 0.1));
    same_optimizer_bits(device, adamw, |at, optimizer| match at {
        2 => optimizer.groups_mut().swap(0, 1),
        3 => optimizer.groups_mut()[0] = scaled("*.bias", 0.2),
        5 => optimizer.groups_mut()[1].set_lr_scale(0.9),
        _ => {}
    })?;
    // A group without parameters is an error, as with a tape.
    let (x, labels) = images(device, "follows", 4)?;
    let (net, mut optimizer) = (Tiny::init(device, 1)?, adamw());
    let mut step = TrainStep::new(&net, loss::<Tiny>);
    step.call(&mut optimizer, (&x, &labels))?;
    optimizer.groups_mut()[0] = scaled("nothing.*", 0.5);
    let error = step.call(&mut optimizer, (&x, &labels)).expect_err("a group of no parameters");
    assert!(error.to_string().contains("nothing.*"), "{error}");
    Ok(())
}

fn replaced(device: &Device) -> Outcome {
    let change = |at, net: &mut Tiny| {
        let device = net.head.weight.value().device().clone();
        match at {
            2 => *net = net.clone(),
            4 => net.head.weight.set(tensor(&device, "head", net.head.weight.shape())?)?,
            _ => net.head = Tiny::init(&device, 7)?.head,
        }
        Ok(())
    };
    same_bits(device, || AdamW::new(0.01), |_, _| {}, &[2, 4, 5], change)
}

fn tighter(net: &Tiny, grads: Grads) -> Result<Grads> {
    grads.clip_norm(net, 0.01)
}

fn gradients(device: &Device) -> Outcome {
    let (x, labels) = images(device, "follows", 4)?;
    let (mut by_tape, mut optimizer) = (Tiny::init(device, 1)?, Sgd::new(0.1));
    super::step(&mut by_tape, &mut optimizer, (&x, &labels), clip)?;
    super::step(&mut by_tape, &mut optimizer, (&x, &labels), tighter)?;
    let (net, mut optimizer) = (Tiny::init(device, 1)?, Sgd::new(0.1));
    let mut step = TrainStep::new(&net, loss::<Tiny>).gradients(clip);
    step.call(&mut optimizer, (&x, &labels))?;
    step = step.gradients(tighter);
    step.call(&mut optimizer, (&x, &labels))?;
    assert_eq!(bits(&net)?, bits(&by_tape)?);
    Ok(())
}

/// Micro-batches of two sizes, means and sums, parts that are frozen in between, and batches with NaN.
fn accumulated(device: &Device) -> Outcome {
    let batches = [images(device, "follows", 4)?, images(device, "others", 4)?, images(device, "few", 2)?];
    let nan = (Tensor::full(device, [4, 1, 6, 6], f32::NAN)?, batches[0].1.clone());
    let batch = |at: usize| if at == 10 { &nan } else { &batches[at * 2 % 5 % 3] };
    let change = |at: usize, net: &mut Tiny| match at {
        4 => net.freeze("stem.*"),
        9 => net.thaw("stem.*"),
        _ => Ok(()),
    };
    for how in [Accumulate::mean(3), Accumulate::sum(2), Accumulate::mean(1)] {
        let new = || -> Result<_> { Ok((Tiny::init(device, 1)?, AdamW::new(0.01).skip_not_finite(true))) };
        let (mut by_tape, mut optimizer) = new()?;
        by_tape.name_parameters();
        let mut losses = Vec::new();
        for at in 0..18 {
            change(at, &mut by_tape)?;
            let (x, labels) = batch(at);
            let tape = Tape::new(device);
            let loss = loss(&by_tape, &(tape.input(x), tape.input(labels)));
            let grads = tape.backward(&loss)?;
            if let Some(grads) = optimizer.accumulate(&by_tape, grads, how)? {
                let grads = clip(&by_tape, grads)?;
                optimizer.step_with_loss(&mut by_tape, &grads, &loss)?;
            }
            losses.push(loss.item()?.to_bits());
        }
        let (net, mut other) = new()?;
        net.name_parameters();
        let mut step = TrainStep::new(Box::new(net), loss::<Tiny>).gradients(clip).accumulate(how);
        for (at, expected) in losses.into_iter().enumerate() {
            if [4, 9].contains(&at) {
                change(at, step.module_mut())?;
            }
            let (x, labels) = batch(at);
            assert_eq!(step.call(&mut other, (x, labels))?.item()?.to_bits(), expected, "{how:?}: batch {at}");
        }
        assert_eq!(bits(step.module())?, bits(&by_tape)?, "{how:?}");
        assert_eq!((other.skipped(), other.accumulated()), (optimizer.skipped(), optimizer.accumulated()), "{how:?}");
        assert!(other.skipped() > 0 && step.recorded() < 18, "{how:?}: recorded {} times", step.recorded());
    }
    let net = Tiny::init(device, 1)?;
    let mut none = TrainStep::new(&net, loss::<Tiny>).accumulate(Accumulate::sum(0));
    let error = none.call(&mut Sgd::new(0.1), (&batches[0].0, &batches[0].1)).expect_err("no batches");
    assert_eq!(error.kind(), ErrorKind::Argument, "{error}");
    Ok(())
}

fn dead(device: &Device) -> Outcome {
    let (x, labels) = images(device, "follows", 4)?;
    let net = Tiny::init(device, 1)?;
    let mut step = TrainStep::new(&net, loss::<Tiny>);
    for _ in 0..4 {
        step.call(&mut AdamW::new(0.01), (&x, &labels))?;
    }
    let mut optimizer = AdamW::new(0.01);
    step.call(&mut optimizer, (&x, &labels))?;
    for _ in 0..3 {
        let state = optimizer.state_of(&net);
        optimizer.load_state(&net, &state)?;
        step.call(&mut optimizer, (&x, &labels))?;
    }
    assert_eq!((step.recorded(), format!("{step:?}")), (8, "TrainStep(1 compiled)".to_owned()));
    // The smaller last batch of an epoch does not evict the recording of the others.
    let (few, few_labels) = images(device, "few", 2)?;
    for _ in 0..3 {
        step.call(&mut optimizer, (&few, &few_labels))?;
        step.call(&mut optimizer, (&x, &labels))?;
    }
    assert_eq!((step.recorded(), format!("{step:?}")), (9, "TrainStep(2 compiled)".to_owned()));
    Ok(())
}

fn other_tapes(device: &Device) -> Outcome {
    let (x, labels) = images(device, "follows", 4)?;
    let net = Tiny::init(device, 1)?;
    let (before, mut optimizer) = (bits(&net)?, Sgd::new(0.1));
    let elsewhere = |net: &Tiny| {
        let tape = Tape::inference(device);
        loss(net, &(tape.input(&x), tape.input(&labels)))
    };
    let mut step = TrainStep::new(&net, |net: &Tiny, batch: &Classes| (loss(net, batch), elsewhere(net)));
    let error = step.call(&mut optimizer, (&x, &labels)).expect_err("a result of another tape");
    assert!(error.kind() == ErrorKind::Argument && error.to_string().contains("another tape"), "{error}");
    let other_grads = |net: &Tiny, _| {
        let loss = elsewhere(net);
        loss.tape().backward(&loss)
    };
    let mut step = TrainStep::new(&net, loss::<Tiny>).gradients(other_grads);
    let error = step.call(&mut optimizer, (&x, &labels)).expect_err("gradients of another tape");
    assert!(error.kind() == ErrorKind::Argument && error.to_string().contains("another tape"), "{error}");
    // A number that is read during recording would be constant in every step.
    let read = |net: &Tiny, batch: &Classes| {
        let norm = batch.0.param(&net.head.weight).square().sum();
        match norm.item() {
            Ok(norm) => loss(net, batch) * f64::from(norm),
            Err(error) => norm.refuse("scaled", ErrorKind::Argument, error.to_string()),
        }
    };
    let error = TrainStep::new(&net, read).call(&mut optimizer, (&x, &labels)).expect_err("a value that was read");
    assert!(error.to_string().contains("a value cannot be read here: the function is only being recorded"), "{error}");
    assert_eq!(bits(&net)?, before);
    Ok(())
}

fn moved(device: &Device) -> Outcome {
    let devices = [device.for_testing(0), Device::cpu()];
    let train = |net: &mut Tiny, optimizer: &mut AdamW, device: &Device| -> Result<()> {
        let (x, labels) = images(device, "follows", 4)?;
        super::step(net, optimizer, (&x, &labels), unchanged).map(drop)
    };
    let order = [0, 0, 1, 0, 1, 1].map(|at: usize| &devices[at]);
    let (mut by_tape, mut optimizer) = (Tiny::init(&devices[0], 1)?, AdamW::new(0.01));
    for device in order {
        by_tape.to_device(device)?;
        train(&mut by_tape, &mut optimizer, device)?;
    }
    let mut optimizer = AdamW::new(0.01);
    let mut step = TrainStep::new(Box::new(Tiny::init(&devices[0], 1)?), loss::<Tiny>);
    for device in order {
        step.module_mut().to_device(device)?;
        let (x, labels) = images(device, "follows", 4)?;
        step.call(&mut optimizer, (&x, &labels))?;
    }
    assert_eq!(bits(step.module())?, bits(&by_tape)?);
    Ok(())
}
