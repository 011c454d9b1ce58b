//! Three steps of every optimizer, and every schedule.

use std::sync::Arc;

use libtest_mimic::{Failed, Trial};
use meganeura::io::Checkpoint;
use meganeura::nn::Linear;
use meganeura::optim::{Adam, AdamW, Lion, Muon, Optimizer, RmsProp, Schedule, Sgd};
use meganeura::{Device, Init, Layer, ModuleExt, Result, Seed, Tape};

use super::compare::relative_error;
use super::golden::{Array, Golden, case_of, cases_of};
use super::{Case, Numbers, agreement};
use crate::numbers::{Computed, Reference};

const RATE: f64 = 0.125;

/// An optimizer of a linear layer's squared error.
fn optimizer<O: Optimizer + 'static>(torch: &str, make: fn() -> O) -> Arc<Case> {
    let run = move |device: &Device, golden: &Golden| {
        let mut net = Linear::new(4, 3).bias(golden.has("state.bias")).init(device, Seed::new(1))?;
        net.load_safetensors(&golden.state()?)?.strict()?;
        let (x, t) = (golden.tensor(device, "input.x")?, golden.tensor(device, "input.t")?);
        let (mut optimizer, mut numbers) = (make(), Numbers::new());
        for step in 1..=3 {
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

pub(super) fn cases() -> Vec<Arc<Case>> {
    vec![
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
    ]
}

/// Forgets the first gradient as it should, and the second one not quite.
pub(super) fn wrong() -> Vec<(Arc<Case>, Vec<&'static str>)> {
    let keys = ["after.2.bias", "after.2.weight", "after.3.bias", "after.3.weight"];
    let case = optimizer("optim.SGD(p, lr=0.125, momentum=0.9, weight_decay=0.01)", || {
        Sgd::new(RATE).momentum(0.905).weight_decay(0.01)
    });
    vec![(case, keys.to_vec())]
}

/// Schedules, from a rate of 0.1.
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
    ]
}

pub(super) fn collect_schedules(trials: &mut Vec<Trial>) {
    let names: Vec<_> = schedules().iter().map(|(torch, _)| (*torch).to_owned()).collect();
    trials.push(Trial::test("pytorch::every_case_of_schedules_is_compared", move || {
        super::complete("schedules", &names)?;
        // Nothing was left unread.
        assert_eq!(cases_of("schedules")?.len(), names.len());
        Ok(())
    }));
    for (torch, schedule) in schedules() {
        trials.push(Trial::test(format!("pytorch::f64::{torch}"), move || follows(torch, &schedule)));
    }
}

/// The rate of every step. PyTorch multiplies them up step by step, one rounding each.
fn follows(torch: &str, schedule: &Schedule) -> Result<(), Failed> {
    let Array { data: expected, .. } = case_of("schedules", torch)?.array("output")?;
    let computed = (0..expected.len() as u64).map(|step| schedule.at(step)).collect();
    let error = relative_error(&Computed(computed), &Reference(expected));
    agreement::note_schedule(torch, error);
    if error > 1e-14 { Err(format!("off by {error:.1e} of the largest rate").into()) } else { Ok(()) }
}
