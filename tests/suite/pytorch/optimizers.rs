//! Some steps of every optimizer, and every schedule.

use std::sync::Arc;

use libtest_mimic::{Failed, Trial};
use meganeura::io::Checkpoint;
use meganeura::nn::Linear;
use meganeura::optim::{
    Adagrad, Adam, AdamW, Lbfgs, Lion, Muon, NAdam, Optimizer, Plateau, RAdam, RmsProp, Schedule, Sgd,
};
use meganeura::{Device, Init, Layer, ModuleExt, Result, Seed, Tape};

use super::compare::relative_error;
use super::golden::{Array, Golden, case_of, cases_of};
use super::{Case, Numbers, agreement};
use crate::numbers::{Computed, Reference};

const RATE: f64 = 0.125;

/// An optimizer that minimises the squared error of a linear layer.
fn optimizer<O: Optimizer + 'static>(torch: &str, make: fn() -> O) -> Arc<Case> {
    let run = move |device: &Device, golden: &Golden| {
        let mut net = Linear::new(4, 3).bias(golden.has("state.bias")).init(device, Seed::new(1))?;
        net.load_safetensors(&golden.state()?)?.strict()?;
        let (x, t) = (golden.tensor(device, "input.x")?, golden.tensor(device, "input.t")?);
        let (mut optimizer, mut numbers) = (make(), Numbers::new());
        for step in (1..).take_while(|step| golden.has(&format!("after.{step}.weight"))) {
            let tape = Tape::new(device);
            let loss = net.forward(&tape.input(&x)).mse(&tape.input(&t));
            let grads = tape.backward(&loss)?;
            optimizer.step(&mut net, &grads)?;
            for (path, param) in net.named_parameters() {
                numbers.insert(format!("after.{step}.{path}"), Array::read(&param.value())?);
            }
        }
        Ok(numbers)
    };
    Arc::new(Case { file: "optimizers", torch: torch.to_owned(), run: Box::new(run) })
}

/// Like [`optimizer`], for an optimizer that evaluates the loss itself.
fn lbfgs(torch: &str, make: fn() -> Lbfgs) -> Arc<Case> {
    let run = move |device: &Device, golden: &Golden| {
        let mut net = Linear::new(4, 3).init(device, Seed::new(1))?;
        net.load_safetensors(&golden.state()?)?.strict()?;
        let (x, t) = (golden.tensor(device, "input.x")?, golden.tensor(device, "input.t")?);
        let loss = |net: &Linear| {
            let tape = Tape::new(device);
            Ok(net.forward(&tape.input(&x)).mse(&tape.input(&t)))
        };
        let (mut lbfgs, mut numbers) = (make(), Numbers::new());
        for step in (1..).take_while(|step| golden.has(&format!("after.{step}.weight"))) {
            lbfgs.step(&mut net, loss)?;
            for (path, param) in net.named_parameters() {
                numbers.insert(format!("after.{step}.{path}"), Array::read(&param.value())?);
            }
        }
        Ok(numbers)
    };
    Arc::new(Case { file: "optimizers", torch: torch.to_owned(), run: Box::new(run) })
}

pub(super) fn cases() -> Vec<Arc<Case>> {
    vec![
        lbfgs("optim.LBFGS(p, lr=0.5, max_iter=3, history_size=2)", || Lbfgs::new(0.5).iterations(3).history(2)),
        lbfgs("optim.LBFGS(p, max_iter=3, line_search_fn='strong_wolfe')", || {
            Lbfgs::new(1.0).iterations(3).line_search(true)
        }),
        optimizer("optim.SGD(p, lr=0.125)", || Sgd::new(RATE)),
        optimizer("optim.SGD(p, lr=0.125, momentum=0.9, weight_decay=0.01)", || {
            Sgd::new(RATE).momentum(0.9).weight_decay(0.01)
        }),
        optimizer("optim.SGD(p, lr=0.125, momentum=0.5, weight_decay=0.1, nesterov=True)", || {
            Sgd::new(RATE).momentum(0.5).weight_decay(0.1).nesterov(true)
        }),
        optimizer("optim.Adam(p, lr=0.125)", || Adam::new(RATE)),
        optimizer("optim.Adam(p, lr=0.125, betas=(0.5, 0.75), eps=0.01, weight_decay=0.1)", || {
            Adam::new(RATE).betas(0.5, 0.75).eps(0.01).weight_decay(0.1)
        }),
        optimizer("optim.AdamW(p, lr=0.125)", || AdamW::new(RATE)),
        optimizer("optim.AdamW(p, lr=0.125, betas=(0.5, 0.75), eps=0.01, weight_decay=0.3)", || {
            AdamW::new(RATE).betas(0.5, 0.75).eps(0.01).weight_decay(0.3)
        }),
        optimizer("optim.RMSprop(p, lr=0.125)", || RmsProp::new(RATE)),
        optimizer("optim.RMSprop(p, lr=0.125, alpha=0.5, eps=0.01, momentum=0.3, weight_decay=0.1)", || {
            RmsProp::new(RATE).alpha(0.5).eps(0.01).momentum(0.3).weight_decay(0.1)
        }),
        optimizer("optim.RMSprop(p, lr=0.125, alpha=0.9, eps=0.01, centered=True)", || {
            RmsProp::new(RATE).alpha(0.9).eps(0.01).centered(true)
        }),
        optimizer("optim.Muon(p, lr=0.125, adjust_lr_fn='match_rms_adamw')", || Muon::new(RATE)),
        optimizer(
            "optim.Muon(p, lr=0.125, momentum=0.5, nesterov=False, weight_decay=0.3, adjust_lr_fn='match_rms_adamw')",
            || Muon::new(RATE).momentum(0.5).nesterov(false).weight_decay(0.3),
        ),
        optimizer("Lion(p, lr=0.125, betas=(0.5, 0.75), weight_decay=0.1)", || {
            Lion::new(RATE).betas(0.5, 0.75).weight_decay(0.1)
        }),
        optimizer("optim.Adam(p, lr=0.125, betas=(0.5, 0.25), weight_decay=0.1, amsgrad=True)", || {
            Adam::new(RATE).betas(0.5, 0.25).weight_decay(0.1).amsgrad(true)
        }),
        optimizer("optim.AdamW(p, lr=0.125, betas=(0.5, 0.25), eps=0.01, weight_decay=0.3, amsgrad=True)", || {
            AdamW::new(RATE).betas(0.5, 0.25).eps(0.01).weight_decay(0.3).amsgrad(true)
        }),
        optimizer("optim.Adagrad(p, lr=0.125)", || Adagrad::new(RATE)),
        optimizer(
            "optim.Adagrad(p, lr=0.125, lr_decay=0.5, weight_decay=0.1, initial_accumulator_value=0.25, eps=0.01)",
            || Adagrad::new(RATE).lr_decay(0.5).weight_decay(0.1).initial(0.25).eps(0.01),
        ),
        optimizer("optim.NAdam(p, lr=0.125)", || NAdam::new(RATE)),
        optimizer(
            "optim.NAdam(p, lr=0.125, betas=(0.5, 0.75), eps=0.01, weight_decay=0.1, momentum_decay=0.25)",
            || NAdam::new(RATE).betas(0.5, 0.75).eps(0.01).weight_decay(0.1).momentum_decay(0.25),
        ),
        optimizer("optim.NAdam(p, lr=0.125, weight_decay=0.3, decoupled_weight_decay=True)", || {
            NAdam::new(RATE).weight_decay(0.3).decoupled(true)
        }),
        optimizer("optim.RAdam(p, lr=0.125)", || RAdam::new(RATE)),
        optimizer("optim.RAdam(p, lr=0.125, betas=(0.5, 0.9375), eps=0.01, weight_decay=0.1)", || {
            RAdam::new(RATE).betas(0.5, 0.9375).eps(0.01).weight_decay(0.1)
        }),
        optimizer("optim.RAdam(p, lr=0.125, weight_decay=0.3, decoupled_weight_decay=True)", || {
            RAdam::new(RATE).weight_decay(0.3).decoupled(true)
        }),
    ]
}

/// A slightly wrong momentum, which shows from the second step on.
pub(super) fn wrong() -> Vec<(Arc<Case>, Vec<&'static str>)> {
    let keys = ["after.2.bias", "after.2.weight", "after.3.bias", "after.3.weight"];
    let case = optimizer("optim.SGD(p, lr=0.125, momentum=0.9, weight_decay=0.01)", || {
        Sgd::new(RATE).momentum(0.905).weight_decay(0.01)
    });
    vec![(case, keys.to_vec())]
}

/// Schedules that start from a rate of 0.1.
fn schedules() -> Vec<(&'static str, Schedule)> {
    vec![
        ("ConstantLR(o, factor=1.0)", Schedule::constant(0.1)),
        ("LinearLR(o, start_factor=1.0, end_factor=0.2, total_iters=4)", Schedule::linear(0.1, 0.02, 4)),
        ("StepLR(o, step_size=3, gamma=0.5)", Schedule::step(0.1, 0.5, 3)),
        ("MultiStepLR(o, milestones=[2, 5], gamma=0.1)", Schedule::multi_step(0.1, 0.1, &[2, 5])),
        ("ExponentialLR(o, gamma=0.9)", Schedule::exponential(0.1, 0.9)),
        ("CosineAnnealingLR(o, T_max=7, eta_min=0.01)", Schedule::cosine(0.1, 7, 0.01)),
        ("PolynomialLR(o, total_iters=6, power=2.0)", Schedule::polynomial(0.1, 6, 2.0, 0.0)),
        ("OneCycleLR(o, max_lr=1.0, total_steps=10)", Schedule::one_cycle(1.0, 10)),
        (
            "OneCycleLR(o, max_lr=1.0, total_steps=12, pct_start=0.4, div_factor=10.0, final_div_factor=100.0)",
            Schedule::one_cycle_with(1.0, 12, 0.4, 10.0, 100.0),
        ),
        (
            "SequentialLR(o, [LinearLR(o, start_factor=0.25, total_iters=3), CosineAnnealingLR(o, T_max=6)], [3])",
            Schedule::cosine(0.1, 6, 0.0).warmup(3),
        ),
        (
            "SequentialLR(o, [ConstantLR(o, factor=1.0), ExponentialLR(o, gamma=0.5)], [4])",
            Schedule::constant(0.1).then(4, Schedule::exponential(0.1, 0.5)),
        ),
        ("CosineAnnealingWarmRestarts(o, T_0=3, eta_min=0.01)", Schedule::cosine_restarts(0.1, 3, 1, 0.01)),
        ("CosineAnnealingWarmRestarts(o, T_0=2, T_mult=3)", Schedule::cosine_restarts(0.1, 2, 3, 0.0)),
    ]
}

/// Schedules that depend on a metric and start from a rate of 0.1.
fn plateaus() -> Vec<(&'static str, Plateau)> {
    let new = || Plateau::new(0.1);
    vec![
        ("ReduceLROnPlateau(o, patience=1)", new().patience(1)),
        (
            "ReduceLROnPlateau(o, factor=0.5, patience=0, threshold=0.05, cooldown=2, min_lr=0.01)",
            new().factor(0.5).patience(0).threshold(0.05).cooldown(2).floor(0.01),
        ),
        (
            "ReduceLROnPlateau(o, mode='max', factor=0.7, patience=2, threshold=0.1, threshold_mode='abs')",
            new().maximize(true).factor(0.7).patience(2).threshold(0.1).absolute(true),
        ),
        ("ReduceLROnPlateau(o, mode='max', factor=0.7, patience=1)", new().maximize(true).factor(0.7).patience(1)),
    ]
}

pub(super) fn collect_schedules(trials: &mut Vec<Trial>) {
    let names = schedules().into_iter().map(|(torch, _)| torch).chain(plateaus().into_iter().map(|(torch, _)| torch));
    let names: Vec<_> = names.map(str::to_owned).collect();
    trials.push(Trial::test("pytorch::every_case_of_schedules_is_compared", move || {
        super::complete("schedules", &names)?;
        // No case is unused.
        assert_eq!(cases_of("schedules")?.len(), names.len());
        Ok(())
    }));
    for (torch, schedule) in schedules() {
        let rates = move |golden: &Golden| {
            let steps = golden.array("output")?.data.len() as u64;
            Ok((0..steps).map(|step| schedule.at(step)).collect())
        };
        trials.push(Trial::test(format!("pytorch::f64::{torch}"), move || follows(torch, rates)));
    }
    for (torch, plateau) in plateaus() {
        let rates = move |golden: &Golden| {
            let mut plateau = plateau;
            let told = |metric| {
                plateau.tell(metric);
                plateau.lr()
            };
            Ok(golden.array("input.metrics")?.data.into_iter().map(told).collect())
        };
        trials.push(Trial::test(format!("pytorch::f64::{torch}"), move || follows(torch, rates)));
    }
}

/// Compares the rate of every step. PyTorch multiplies rates step by step, with one rounding each.
fn follows(torch: &str, rates: impl FnOnce(&Golden) -> Result<Vec<f64>, Failed>) -> Result<(), Failed> {
    let golden = case_of("schedules", torch)?;
    let Array { data: expected, .. } = golden.array("output")?;
    let error = relative_error(&Computed(rates(&golden)?), &Reference(expected));
    agreement::note_schedule(torch, error);
    if error > 1e-14 { Err(format!("off by {error:.1e} of the largest rate").into()) } else { Ok(()) }
}
