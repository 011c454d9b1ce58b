//! Random scripts of changes between steps: to the model, to the optimizer, to the batch, and through other handles on
//! parts of the model. After each step, loss, parameters and buffers have the bits that a tape for every step gives.

use std::cell::Cell;
use std::sync::Arc;

use libtest_mimic::Trial;
use meganeura::module::Generator;
use meganeura::nn::{BatchNorm1d, Dropout, LayerNorm, Linear};
use meganeura::optim::{AdamW, Group, Optimizer, Sgd, TrainStep};
use meganeura::{Device, Init, Layer, Module, ModuleExt, Param, Result, Seed, Tape, Tensor, Var};

use super::unchanged;
use crate::Outcome;
use crate::adapter::gpu_trial;
use crate::nets::{bits, tensor};

pub(super) fn collect(trials: &mut Vec<Trial>) {
    trials.push(Trial::test("train_step::cpu::follows_random_scripts", || {
        (0..60).try_for_each(|seed| follows(&Device::cpu(), seed, 30))
    }));
    trials
        .push(gpu_trial("train_step::gpu::follows_random_scripts", |device| follows(&device.for_testing(0), 1000, 12)));
    for (name, test) in [
        ("a_recording_lasts_until_something_changes", lasts as fn(&Device) -> Outcome),
        ("each_change_is_seen_at_every_batch_size", each_change),
    ] {
        trials.push(Trial::test(format!("train_step::cpu::{name}"), move || test(&Device::cpu())));
    }
}

/// A model whose recording depends on fields, modes, other owners of its parts, and a cell.
#[derive(Module, Debug)]
struct Net {
    stem: Linear,
    batch_norm: BatchNorm1d,
    norm: LayerNorm,
    dropout: Dropout,
    /// Also held outside of the model.
    shared: Arc<Dropout>,
    head: Linear,
    /// A field of this model alone, which decides the structure.
    #[module(skip)]
    power: u32,
    /// A field of this model alone, which is a number of the formula.
    #[module(skip)]
    slope: f64,
    /// It changes without `&mut`.
    #[module(skip)]
    hidden: Cell<f64>,
}

impl Net {
    fn new(device: &Device) -> Result<Self> {
        Ok(Self {
            stem: Linear::new(5, 8).init(device, 1)?,
            batch_norm: BatchNorm1d::new(8).init(device, 1)?,
            norm: LayerNorm::new([8]).init(device, 1)?,
            dropout: Dropout::new(0.25),
            shared: Arc::new(Dropout::new(0.125)),
            head: Linear::new(8, 1).init(device, 2)?,
            power: 1,
            slope: 0.1,
            hidden: Cell::new(1.0),
        })
    }
}

impl Layer for Net {
    fn forward(&self, x: &Var) -> Var {
        let x = self.dropout.forward(&self.batch_norm.forward(&self.stem.forward(x)));
        let x = self.shared.forward(&self.norm.forward(&x.leaky_relu(self.slope)));
        (1..self.power).fold(x, |x, _| x.tanh()) * self.hidden.get()
    }
}

/// Handles on parts of a model that somebody else keeps.
struct Handles {
    shared: Arc<Dropout>,
    stem: Param,
}

impl Handles {
    fn on(net: &Net) -> Self {
        Self { shared: Arc::clone(&net.shared), stem: net.stem.weight.tied() }
    }
}

fn loss(net: &Net, x: &Var) -> Var {
    net.head.forward(&net.forward(x)).square().mean()
}

/// Either optimizer may make a step; each keeps its own state.
struct Optimizers {
    sgd: Sgd,
    adamw: AdamW,
    is_sgd: bool,
}

impl Optimizers {
    fn new() -> Self {
        Self { sgd: Sgd::new(0.05), adamw: AdamW::new(0.01), is_sgd: true }
    }

    fn current(&mut self) -> &mut dyn Optimizer {
        if self.is_sgd { &mut self.sgd } else { &mut self.adamw }
    }
}

/// One change, with all of its random choices made.
#[derive(Clone, Copy, Debug)]
enum Change {
    // To the model, by `&mut`.
    Evaluate(&'static str),
    Train(&'static str),
    Freeze(&'static str),
    Thaw(&'static str),
    Dropout(f64),
    Momentum(f64),
    BatchEps(f64),
    LayerEps(f64),
    Power(u32),
    Slope(f64),
    Value(usize),
    Replace(u64),
    // By a handle that is held elsewhere.
    EvaluateShared(bool),
    FreezeStem(bool),
    // By a cell, which a call cannot see.
    Hidden(f64),
    // To the optimizer.
    Lr(f64),
    Decay(f64),
    Group(f64),
    SgdMomentum(f64),
    Betas(f64),
    Eps(f64),
    Amsgrad(bool),
    Check(bool),
    Switch,
}

fn pick<T: Copy>(rng: &mut Generator, of: &[T]) -> T {
    of[rng.next_u32() as usize % of.len()]
}

impl Change {
    fn random(rng: &mut Generator) -> Self {
        let part = pick(rng, &["**", "stem", "batch_norm", "dropout", "shared", "norm", "head"]);
        // The head stays trained, so that there is something to train.
        let weights = pick(rng, &["stem.*", "batch_norm.*", "norm.weight", "stem.bias"]);
        match rng.next_u32() % 24 {
            0 | 1 => Self::Evaluate(part),
            2 | 3 => Self::Train(part),
            4 => Self::Freeze(weights),
            5 => Self::Thaw(weights),
            6 => Self::Dropout(pick(rng, &[0.0, 0.25, 0.5])),
            7 => Self::Momentum(pick(rng, &[0.0, 0.1, 0.5])),
            8 => Self::BatchEps(pick(rng, &[1e-5, 0.1])),
            9 => Self::LayerEps(pick(rng, &[1e-5, 0.2])),
            10 => Self::Power(pick(rng, &[1, 2, 3])),
            11 => Self::Slope(pick(rng, &[0.1, 0.3])),
            12 => Self::Value(rng.next_u32() as usize % 3),
            13 => Self::Replace(rng.next_u64() % 3),
            14 => Self::EvaluateShared(pick(rng, &[true, false])),
            15 => Self::FreezeStem(pick(rng, &[true, false])),
            16 => Self::Hidden(pick(rng, &[1.0, 0.5])),
            17 => Self::Lr(pick(rng, &[0.0, 0.01, 0.05])),
            18 => pick(rng, &[Self::Decay(0.0), Self::Decay(0.1), Self::Group(0.0), Self::Group(0.3)]),
            19 => Self::SgdMomentum(pick(rng, &[0.0, 0.5, 0.9])),
            20 => pick(rng, &[Self::Betas(0.8), Self::Betas(0.9), Self::Eps(1e-8), Self::Eps(1e-2)]),
            21 => Self::Amsgrad(pick(rng, &[true, false])),
            22 => Self::Check(pick(rng, &[true, false])),
            _ => Self::Switch,
        }
    }

    fn is_of_the_model(self) -> bool {
        use Change::*;
        matches!(
            self,
            Evaluate(_)
                | Train(_)
                | Freeze(_)
                | Thaw(_)
                | Dropout(_)
                | Momentum(_)
                | BatchEps(_)
                | LayerEps(_)
                | Power(_)
                | Slope(_)
                | Value(_)
                | Replace(_)
        )
    }

    fn change_model(self, net: &mut Net) -> Result<()> {
        let device = net.head.weight.value().device().clone();
        match self {
            Self::Evaluate(part) => net.evaluate(part)?,
            Self::Train(part) => net.train(part)?,
            Self::Freeze(weights) => net.freeze(weights)?,
            Self::Thaw(weights) => net.thaw(weights)?,
            Self::Dropout(p) => net.dropout.p = p,
            Self::Momentum(momentum) => net.batch_norm.momentum = momentum,
            Self::BatchEps(eps) => net.batch_norm.eps = eps,
            Self::LayerEps(eps) => net.norm.eps = eps,
            Self::Power(power) => net.power = power,
            Self::Slope(slope) => net.slope = slope,
            Self::Value(name) => net.head.weight.set(tensor(&device, ["a", "b", "c"][name], [1, 8])?)?,
            Self::Replace(seed) => net.head = Linear::new(8, 1).init(&device, Seed::new(seed))?,
            _ => unreachable!("{self:?} is not of the model"),
        }
        Ok(())
    }

    fn change_elsewhere(self, handles: &mut Handles, optimizers: &mut Optimizers) -> Result<()> {
        let Optimizers { sgd, adamw, is_sgd } = optimizers;
        let old_sgd = |sgd: &mut Sgd| std::mem::replace(sgd, Sgd::new(0.0));
        let old_adamw = |adamw: &mut AdamW| std::mem::replace(adamw, AdamW::new(0.0));
        match self {
            Self::EvaluateShared(true) => handles.shared.evaluate("**")?,
            Self::EvaluateShared(false) => handles.shared.train("**")?,
            Self::FreezeStem(true) => handles.stem.freeze(),
            Self::FreezeStem(false) => handles.stem.thaw(),
            Self::Lr(lr) => {
                sgd.set_lr(lr);
                adamw.set_lr(lr);
            }
            Self::Decay(decay) => {
                *sgd = old_sgd(sgd).weight_decay(decay);
                *adamw = old_adamw(adamw).weight_decay(decay);
            }
            Self::Group(decay) => {
                for optimizer in [sgd as &mut dyn Optimizer, adamw] {
                    match &mut optimizer.groups_mut()[..] {
                        [] => optimizer.groups_mut().push(Group::new("head.*").weight_decay(decay)),
                        [group, ..] => group.set_weight_decay(decay),
                    }
                }
            }
            Self::SgdMomentum(momentum) => *sgd = old_sgd(sgd).momentum(momentum),
            Self::Betas(first) => *adamw = old_adamw(adamw).betas(first, 0.99),
            Self::Eps(eps) => *adamw = old_adamw(adamw).eps(eps),
            // The state has another tensor.
            Self::Amsgrad(is_on) => *adamw = AdamW::new(0.01).amsgrad(is_on),
            Self::Check(is_on) => {
                *sgd = old_sgd(sgd).skip_not_finite(is_on);
                *adamw = old_adamw(adamw).skip_not_finite(is_on);
            }
            Self::Switch => *is_sgd = !*is_sgd,
            _ => unreachable!("{self:?} is of the model"),
        }
        Ok(())
    }
}

/// The script of a seed: before each step some changes, none in half of the steps, and the batch.
fn script(device: &Device, seed: u64, steps: usize) -> Result<Vec<(Vec<Change>, Tensor)>> {
    let mut rng = Seed::new(seed).rng();
    let mut step = |at: usize| {
        let count = if at == 0 { 0 } else { pick(&mut rng, &[0, 0, 0, 1, 1, 2]) };
        let changes = (0..count).map(|_| Change::random(&mut rng)).collect();
        let size = pick(&mut rng, &[4, 4, 4, 3, 2]);
        Ok((changes, tensor(device, &format!("x{}", at % 5), [size, 5])?))
    };
    (0..steps).map(&mut step).collect()
}

/// The bits of the loss, then of the model.
type Seen = (u32, Vec<(String, Vec<u64>)>);

fn by_tape(device: &Device, script: &[(Vec<Change>, Tensor)]) -> Result<Vec<Seen>> {
    let mut net = Net::new(device)?;
    net.name_parameters();
    let (mut handles, mut optimizers) = (Handles::on(&net), Optimizers::new());
    device.set_seed(3);
    let mut seen = Vec::new();
    for (changes, x) in script {
        for &change in changes {
            match change {
                Change::Hidden(number) => net.hidden.set(number),
                change if change.is_of_the_model() => change.change_model(&mut net)?,
                change => change.change_elsewhere(&mut handles, &mut optimizers)?,
            }
        }
        let tape = Tape::new(device);
        let loss = loss(&net, &tape.input(x));
        let grads = unchanged(&net, tape.backward(&loss)?)?;
        optimizers.current().step_with_loss(&mut net, &grads, &loss)?;
        seen.push((loss.item()?.to_bits(), bits(&net)?));
    }
    Ok(seen)
}

fn follows(device: &Device, seed: u64, steps: usize) -> Outcome {
    let script = script(device, seed, steps)?;
    let expected = by_tape(device, &script)?;
    let net = Net::new(device)?;
    net.name_parameters();
    let (mut handles, mut optimizers) = (Handles::on(&net), Optimizers::new());
    let mut step = TrainStep::new(Box::new(net), loss);
    device.set_seed(3);
    for (at, ((changes, x), expected)) in script.iter().zip(&expected).enumerate() {
        for &change in changes {
            match change {
                Change::Hidden(number) => {
                    step.module().hidden.set(number);
                    step.record_anew();
                }
                change if change.is_of_the_model() => change.change_model(step.module_mut())?,
                change => change.change_elsewhere(&mut handles, &mut optimizers)?,
            }
        }
        let recorded = step.recorded();
        let found = step.call(optimizers.current(), x)?.item()?.to_bits();
        assert!(step.recorded() <= recorded + 1);
        let history: Vec<_> = script[..=at].iter().map(|(changes, x)| (changes, x.shape()[0])).collect();
        assert_eq!((found, bits(step.module())?), *expected, "seed {seed}, step {at}: {history:?}");
    }
    Ok(())
}

/// Without changes, there is one recording for each batch size, and for each mode that comes again.
fn lasts(device: &Device) -> Outcome {
    let net = Net::new(device)?;
    let (mut handles, mut optimizer) = (Handles::on(&net), AdamW::new(0.01));
    let mut step = TrainStep::new(Box::new(net), loss);
    let batches = [tensor(device, "four", [4, 5])?, tensor(device, "two", [2, 5])?];
    for round in 0..3 {
        for x in &batches {
            handles.shared.train("**")?;
            step.call(&mut optimizer, x)?;
            step.call(&mut optimizer, x)?;
            handles.shared.evaluate("**")?;
            step.call(&mut optimizer, x)?;
            assert!(step.recorded() <= 4, "in round {round}: {}", step.recorded());
        }
    }
    assert_eq!(step.recorded(), 4);
    // A look at the module changes nothing; access that may change it records each shape anew, once.
    assert!(step.module().dropout.p > 0.0);
    step.call(&mut optimizer, &batches[0])?;
    assert_eq!(step.recorded(), 4);
    assert!(step.module_mut().dropout.p > 0.0);
    for x in [&batches[0], &batches[1], &batches[0], &batches[1]] {
        step.call(&mut optimizer, x)?;
    }
    assert_eq!(step.recorded(), 6);
    Ok(())
}

/// Both batch sizes are recorded, then each kind of change is made alone: either size sees it, whichever comes first.
fn each_change(device: &Device) -> Outcome {
    let changes = [
        Change::Evaluate("**"),
        Change::Evaluate("batch_norm"),
        Change::Dropout(0.75),
        Change::Momentum(0.9),
        Change::BatchEps(0.5),
        Change::LayerEps(0.5),
        Change::Power(2),
        Change::Slope(0.5),
        Change::Freeze("stem.*"),
        Change::EvaluateShared(true),
        Change::FreezeStem(true),
        Change::Eps(0.1),
        Change::Betas(0.5),
    ];
    let (four, two) = (tensor(device, "four", [4, 5])?, tensor(device, "two", [2, 5])?);
    for change in changes {
        for last in [[&four, &two], [&two, &four]] {
            let train = |with: &[Change]| -> Result<Vec<(Vec<Change>, Tensor)>> {
                let step = |changes: &[Change], x: &Tensor| (changes.to_vec(), x.clone());
                Ok(vec![
                    step(&[Change::Switch], &four),
                    step(&[], &two),
                    step(with, last[0]),
                    step(&[], last[1]),
                    step(&[], last[0]),
                ])
            };
            let (script, without) = (train(&[change])?, train(&[])?);
            let expected = by_tape(device, &script)?;
            assert_ne!(expected, by_tape(device, &without)?, "{change:?} changes nothing");
            let net = Net::new(device)?;
            net.name_parameters();
            let (mut handles, mut optimizers) = (Handles::on(&net), Optimizers::new());
            let mut step = TrainStep::new(Box::new(net), loss);
            device.set_seed(3);
            for (at, ((changes, x), expected)) in script.iter().zip(&expected).enumerate() {
                for &change in changes {
                    match change.is_of_the_model() {
                        true => change.change_model(step.module_mut())?,
                        false => change.change_elsewhere(&mut handles, &mut optimizers)?,
                    }
                }
                let found = step.call(optimizers.current(), x)?.item()?.to_bits();
                assert_eq!((found, bits(step.module())?), *expected, "{change:?}, step {at}");
            }
        }
    }
    Ok(())
}
