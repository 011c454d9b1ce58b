//! Schedules: a learning rate, or a factor, as a function of the step.
//!
//! A [`Schedule`] is a pure function from the index of a step to a number. It has no memory, so a resumed training
//! needs only its step, and it is written and parsed as its description:
//!
//! ```
//! use meganeura::optim::Schedule;
//!
//! let schedule = Schedule::cosine(1e-3, 10_000, 1e-5).warmup(500);
//! assert_eq!(schedule.to_string(), "warmup(500, cosine(0.001, 10000, 1e-5))");
//! assert_eq!("warmup(500, cosine(1e-3, 10_000, 1e-5))".parse::<Schedule>()?, schedule);
//! # Ok::<(), meganeura::Error>(())
//! ```
//!
//! A [`Plateau`] follows a metric instead, and remembers what it was told.

mod plateau;
mod text;

use std::f64::consts::PI;

pub use plateau::Plateau;

use super::{Group, Optimizer};

/// A number as a function of the step, counted from 0.
///
/// ```
/// use meganeura::optim::Schedule;
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let mut net = Linear::new(2, 1).init(&device, Seed::new(42))?;
/// let mut optimizer = Sgd::new(0.1);
/// let schedule = Schedule::cosine(0.1, 90, 0.0).warmup(10);
/// let (x, t) = (Tensor::full(&device, [8, 2], 1.0)?, Tensor::full(&device, [8, 1], 5.0)?);
/// for step in 0..100 {
///     schedule.set_lr(step, &mut optimizer);
///     let tape = Tape::new(&device);
///     let loss = net.forward(&tape.input(&x)).mse(&tape.input(&t));
///     let grads = tape.backward(&loss)?;
///     optimizer.step(&mut net, &grads)?;
/// }
/// # let tape = Tape::inference(&device);
/// # assert!((net.forward(&tape.input(&x)).to_vec()?[0] - 5.0).abs() < 0.01);
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule(Form);

/// Numbers in the order of the description.
#[derive(Clone, Debug, PartialEq)]
enum Form {
    Constant(f64),
    Linear { from: f64, to: f64, steps: u64 },
    Step { from: f64, factor: f64, every: u64 },
    MultiStep { from: f64, factor: f64, milestones: Vec<u64> },
    Exponential { from: f64, factor: f64 },
    Cosine { from: f64, steps: u64, floor: f64 },
    CosineRestarts { from: f64, steps: u64, growth: u64, floor: f64 },
    Polynomial { from: f64, steps: u64, power: f64, floor: f64 },
    OneCycle { peak: f64, steps: u64, share: f64, division: f64, last_division: f64 },
    Warmup(u64, Box<Form>),
    Then(u64, Box<Form>, Box<Form>),
}

impl Schedule {
    /// The same number always.
    #[must_use]
    pub fn constant(value: f64) -> Self {
        Self(Form::Constant(value))
    }

    /// A straight line: `from + (to − from)·min(s, steps)/steps`
    #[must_use]
    pub fn linear(from: f64, to: f64, steps: u64) -> Self {
        Self(Form::Linear { from, to, steps })
    }

    /// Multiplied by a factor every `every` steps: `from·factor^⌊s/every⌋`; PyTorch's `StepLR`. 0 means never.
    #[must_use]
    pub fn step(from: f64, factor: f64, every: u64) -> Self {
        Self(Form::Step { from, factor, every })
    }

    /// Multiplied by a factor at each milestone: `from·factor^k` with the number k of milestones up to and including s;
    /// PyTorch's `MultiStepLR`.
    #[must_use]
    pub fn multi_step(from: f64, factor: f64, milestones: &[u64]) -> Self {
        Self(Form::MultiStep { from, factor, milestones: milestones.to_vec() })
    }

    /// Multiplied by a factor each step: `from·factorˢ`
    #[must_use]
    pub fn exponential(from: f64, factor: f64) -> Self {
        Self(Form::Exponential { from, factor })
    }

    /// Half a cosine, then the floor: `floor + (from − floor)·(1 + cos(π·min(s, steps)/steps))/2`; PyTorch's
    /// `CosineAnnealingLR` up to `T_max`, after which PyTorch's rises again. [Loshchilov and Hutter,
    /// 2016](https://arxiv.org/abs/1608.03983), without restarts.
    #[must_use]
    pub fn cosine(from: f64, steps: u64, floor: f64) -> Self {
        Self(Form::Cosine { from, steps, floor })
    }

    /// Repeated half cosines: [`cosine`](Self::cosine)`(from, steps, floor)`, then the same over `steps·growth` steps,
    /// then over `steps·growth²`, and so on; PyTorch's `CosineAnnealingWarmRestarts`. With a growth of 0 it stays at
    /// the floor after the first cycle. [Loshchilov and Hutter, 2016](https://arxiv.org/abs/1608.03983).
    ///
    /// ```
    /// use meganeura::optim::Schedule;
    ///
    /// let schedule = Schedule::cosine_restarts(1.0, 2, 2, 0.0);
    /// assert_eq!([0, 1, 2, 4, 6].map(|step| (100.0 * schedule.at(step)).round()), [100.0, 50.0, 100.0, 50.0, 100.0]);
    /// ```
    #[must_use]
    pub fn cosine_restarts(from: f64, steps: u64, growth: u64, floor: f64) -> Self {
        Self(Form::CosineRestarts { from, steps, growth, floor })
    }

    /// `floor + (from − floor)·(1 − min(s, steps)/steps)^power`; PyTorch's `PolynomialLR` where the floor is 0.
    #[must_use]
    pub fn polynomial(from: f64, steps: u64, power: f64, floor: f64) -> Self {
        Self(Form::Polynomial { from, steps, power, floor })
    }

    /// Up to a peak and down to almost 0, over `steps` steps in all: [`one_cycle_with`](Self::one_cycle_with)`(peak,
    /// steps, 0.3, 25, 1e4)`, the learning rates of PyTorch's `OneCycleLR` with its defaults. PyTorch cycles the
    /// momentum as well; here it stays constant.
    #[must_use]
    pub fn one_cycle(peak: f64, steps: u64) -> Self {
        Self::one_cycle_with(peak, steps, 0.3, 25.0, 1e4)
    }

    /// Two half cosines: from `peak/division` up to the peak at step `share·steps − 1`, then down to
    /// `peak/division/last_division` at the last step, `steps − 1`.
    /// [Smith and Topin, 2017](https://arxiv.org/abs/1708.07120).
    #[must_use]
    pub fn one_cycle_with(peak: f64, steps: u64, share: f64, division: f64, last_division: f64) -> Self {
        Self(Form::OneCycle { peak, steps, share, division, last_division })
    }

    /// A linear warm-up to this schedule's first number, followed by the schedule from its start. Step s of the warm-up
    /// is `(s + 1)/(steps + 1)` of that number, so that no step is wasted on 0.
    #[must_use]
    pub fn warmup(self, steps: u64) -> Self {
        Self(Form::Warmup(steps, Box::new(self.0)))
    }

    /// This schedule for `steps` steps, then another one from its start.
    ///
    /// ```
    /// use meganeura::optim::Schedule;
    ///
    /// let schedule = Schedule::constant(0.1).then(2, Schedule::exponential(0.1, 0.5));
    /// assert_eq!([0, 1, 2, 3].map(|step| schedule.at(step)), [0.1, 0.1, 0.1, 0.05]);
    /// ```
    #[must_use]
    pub fn then(self, steps: u64, next: Self) -> Self {
        Self(Form::Then(steps, Box::new(self.0), Box::new(next.0)))
    }

    /// The number at a step.
    #[must_use]
    pub fn at(&self, step: u64) -> f64 {
        self.0.at(step)
    }

    /// Sets the learning rate of an optimizer to the number at a step. Groups whose learning rate is a multiple of it
    /// follow.
    pub fn set_lr(&self, step: u64, optimizer: &mut (impl Optimizer + ?Sized)) {
        optimizer.set_lr(self.at(step));
    }

    /// Sets the factor of a group's learning rate to the number at a step.
    ///
    /// ```
    /// use meganeura::optim::{Group, Schedule};
    /// use meganeura::prelude::*;
    ///
    /// let mut optimizer = AdamW::new(1e-3).group(Group::new("encoder.**"));
    /// let thaw = Schedule::linear(0.0, 1.0, 100);
    /// thaw.set_lr_scale(50, &mut optimizer.groups_mut()[0]);
    /// ```
    pub fn set_lr_scale(&self, step: u64, group: &mut Group) {
        group.set_lr_scale(self.at(step));
    }
}

impl Form {
    fn at(&self, step: u64) -> f64 {
        match *self {
            Self::Constant(value) => value,
            Self::Linear { from, to, steps } => from + (to - from) * progress(step, steps),
            Self::Step { from, factor, every } => from * power(factor, step.checked_div(every).unwrap_or(0)),
            Self::MultiStep { from, factor, ref milestones } => {
                let passed = milestones.iter().filter(|&&milestone| milestone <= step).count();
                from * power(factor, passed as u64)
            }
            Self::Exponential { from, factor } => from * power(factor, step),
            Self::Cosine { from, steps, floor } => half_cosine(from, floor, progress(step, steps)),
            Self::CosineRestarts { from, steps, growth, floor } => {
                let (step, steps) = since_restart(step, steps, growth);
                half_cosine(from, floor, progress(step, steps))
            }
            Self::Polynomial { from, steps, power, floor } => {
                floor + (from - floor) * (1.0 - progress(step, steps)).powf(power)
            }
            Self::OneCycle { peak, steps, share, division, last_division } => {
                let (first, last) = (peak / division, peak / division / last_division);
                let (step, end) = (float(step), float(steps) - 1.0);
                let top = share * float(steps) - 1.0;
                // In this order, nothing divides by 0.
                match step {
                    step if step >= end => last,
                    step if step < top => half_cosine(first, peak, step / top),
                    step => half_cosine(peak, last, (step - top) / (end - top)),
                }
            }
            Self::Warmup(steps, ref next) if step < steps => next.at(0) * float(step + 1) / (float(steps) + 1.0),
            Self::Then(steps, ref first, _) if step < steps => first.at(step),
            Self::Warmup(steps, ref next) | Self::Then(steps, _, ref next) => next.at(step - steps),
        }
    }
}

/// The step within its cycle, and the cycle's length. A cycle of no steps never ends, nor does the first one with a
/// growth of 0.
fn since_restart(mut step: u64, mut steps: u64, growth: u64) -> (u64, u64) {
    if growth == 1 && steps > 0 {
        step %= steps;
    }
    while growth > 1 && steps > 0 && step >= steps {
        (step, steps) = (step - steps, steps.saturating_mul(growth));
    }
    (step, steps)
}

/// The completed share of `steps`, at most 1. With no steps it is 1.
fn progress(step: u64, steps: u64) -> f64 {
    if step >= steps { 1.0 } else { float(step) / float(steps) }
}

fn half_cosine(from: f64, to: f64, progress: f64) -> f64 {
    to + (from - to) * f64::midpoint(1.0, (PI * progress).cos())
}

fn power(base: f64, exponent: u64) -> f64 {
    base.powf(float(exponent))
}

#[expect(clippy::cast_precision_loss, reason = "nobody makes 2^53 steps")]
fn float(steps: u64) -> f64 {
    steps as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::{AdamW, Sgd};

    #[track_caller]
    fn assert_at(schedule: &Schedule, expected: &[(u64, f64)]) {
        for &(step, expected) in expected {
            let found = schedule.at(step);
            assert!((found - expected).abs() <= 1e-15 * expected.abs().max(1e-3), "{step}: {found}, not {expected}");
        }
    }

    #[test]
    fn schedules_follow_their_formulas() {
        let half = std::f64::consts::FRAC_1_SQRT_2;
        for (schedule, expected) in [
            (Schedule::constant(0.5), &[(0, 0.5), (u64::MAX, 0.5)][..]),
            (Schedule::linear(1.0, 0.2, 4), &[(0, 1.0), (1, 0.8), (3, 0.4), (4, 0.2), (9, 0.2)]),
            (Schedule::step(0.8, 0.5, 3), &[(0, 0.8), (2, 0.8), (3, 0.4), (5, 0.4), (6, 0.2)]),
            (Schedule::step(0.8, 0.5, 0), &[(0, 0.8), (100, 0.8)]),
            (Schedule::multi_step(1.0, 0.1, &[2, 5]), &[(1, 1.0), (2, 0.1), (4, 0.1), (5, 0.01), (99, 0.01)]),
            (Schedule::exponential(2.0, 0.5), &[(0, 2.0), (1, 1.0), (4, 0.125)]),
            (
                Schedule::cosine(1.0, 8, 0.2),
                &[(0, 1.0), (2, 0.2 + 0.4 * (1.0 + half)), (4, 0.6), (6, 0.2 + 0.4 * (1.0 - half)), (8, 0.2), (9, 0.2)],
            ),
            (Schedule::cosine_restarts(1.0, 2, 1, 0.2), &[(0, 1.0), (1, 0.6), (2, 1.0), (3, 0.6), (1 << 40, 1.0)]),
            (
                Schedule::cosine_restarts(1.0, 2, 3, 0.0),
                &[(1, 0.5), (2, 1.0), (5, 0.5), (8, 1.0), (17, 0.5), (26, 1.0)],
            ),
            (Schedule::cosine_restarts(1.0, 2, 0, 0.2), &[(1, 0.6), (2, 0.2), (99, 0.2)]),
            (Schedule::polynomial(1.0, 4, 2.0, 0.0), &[(0, 1.0), (1, 0.5625), (2, 0.25), (4, 0.0), (5, 0.0)]),
            (Schedule::polynomial(1.0, 4, 1.0, 0.5), &[(2, 0.75), (4, 0.5)]),
            (Schedule::constant(1.0).warmup(3), &[(0, 0.25), (1, 0.5), (2, 0.75), (3, 1.0)]),
            (Schedule::linear(1.0, 0.0, 2).warmup(1), &[(0, 0.5), (1, 1.0), (2, 0.5), (3, 0.0)]),
            (
                Schedule::constant(1.0).then(2, Schedule::constant(2.0)).then(3, Schedule::linear(4.0, 5.0, 1)),
                &[(1, 1.0), (2, 2.0), (3, 4.0), (4, 5.0)],
            ),
        ] {
            assert_at(&schedule, expected);
        }
    }

    #[test]
    fn one_cycle_is_pytorchs() {
        // OneCycleLR(max_lr=1.0, total_steps=10): up to step 2, down to step 9.
        let falling = |k: f64| 4e-6 + (1.0 - 4e-6) * (1.0 + (PI * k / 7.0).cos()) / 2.0;
        let expected = [(0, 0.04), (1, 0.52), (2, 1.0), (3, falling(1.0)), (6, falling(4.0)), (9, 4e-6), (10, 4e-6)];
        assert_at(&Schedule::one_cycle(1.0, 10), &expected);
        for steps in 0..4 {
            assert!((0..5).all(|step| Schedule::one_cycle(1.0, steps).at(step).is_finite()), "{steps}");
        }
        let all_down = Schedule::one_cycle_with(1.0, 3, 0.0, 10.0, 10.0);
        assert_at(&all_down, &[(2, 0.01)]);
    }

    #[test]
    fn schedules_of_no_steps_end_at_once() {
        for (schedule, value) in [
            (Schedule::linear(1.0, 2.0, 0), 2.0),
            (Schedule::cosine(1.0, 0, 0.5), 0.5),
            (Schedule::cosine_restarts(1.0, 0, 2, 0.5), 0.5),
            (Schedule::polynomial(1.0, 0, 2.0, 0.5), 0.5),
            (Schedule::constant(1.0).warmup(0), 1.0),
            (Schedule::constant(1.0).then(0, Schedule::constant(3.0)), 3.0),
        ] {
            assert_eq!(schedule.at(0), value, "{schedule}");
        }
    }

    #[test]
    fn rates_and_factors_are_set() {
        let mut optimizers: [Box<dyn Optimizer>; 2] = [Box::new(Sgd::new(0.1)), Box::new(AdamW::new(0.1))];
        for optimizer in &mut optimizers {
            Schedule::linear(1.0, 0.0, 4).set_lr(1, &mut **optimizer);
            assert_eq!(optimizer.lr(), 0.75);
        }
        let mut group = Group::new("**");
        Schedule::linear(0.0, 1.0, 4).set_lr_scale(1, &mut group);
        assert_eq!(format!("{group:?}"), format!("{:?}", Group::new("**").lr_scale(0.25)));
    }
}
