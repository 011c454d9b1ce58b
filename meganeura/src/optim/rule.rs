//! The formula of an optimizer, from which everything that a user calls is derived.

use crate::dtype::check_eps;
use crate::error::bail;
use crate::module::Leaf;
use crate::{Result, Var};

use super::Stepper;
use super::group::Settings;

/// An optimizer's formula.
///
/// Every type that implements it is an [`Optimizer`](super::Optimizer). The values that change from step to step are
/// [`numbers`](Self::numbers), computed on the host and passed to the plan. [`update`](Self::update) records how they
/// are used, with [`Var`]'s operations. So a schedule makes no new plan.
///
/// ```
/// use meganeura::optim::{Given, Rule, Settings, Stepper};
/// use meganeura::module::Leaf;
/// use meganeura::prelude::*;
///
/// /// Steps as long as the learning rate, along each gradient's sign: `w ← w − lr·sign dw`
/// struct SignSgd(Stepper);
///
/// impl Rule for SignSgd {
///     fn name(&self) -> &'static str {
///         "sign_sgd"
///     }
///     fn stepper(&self) -> &Stepper {
///         &self.0
///     }
///     fn stepper_mut(&mut self) -> &mut Stepper {
///         &mut self.0
///     }
///     fn check(&self) -> meganeura::Result<()> {
///         Ok(())
///     }
///     fn state(&self, _: &Leaf<'_>) -> &'static [&'static str] {
///         &[]
///     }
///     fn numbers(&self, settings: Settings, _: u64) -> Vec<f64> {
///         vec![settings.lr]
///     }
///     fn update(&self, given: &Given<'_>) -> (Var, Vec<Var>) {
///         let [lr] = given.numbers();
///         (&given.w - lr * given.dw.sign(), vec![])
///     }
/// }
///
/// let device = Device::cpu();
/// let mut w = Param::new(Tensor::from_slice(&device, [2], &[1.0, -1.0])?);
/// let tape = Tape::new(&device);
/// let grads = tape.backward(&tape.param(&w).square().sum())?;
/// SignSgd(Stepper::new(0.25, 0.0)).step(&mut w, &grads)?;
/// assert_eq!(w.value().to_vec()?, [0.75, -0.75]);
/// # Ok::<(), meganeura::Error>(())
/// ```
pub trait Rule {
    /// The optimizer's name in messages.
    fn name(&self) -> &'static str;

    /// The common part of every optimizer: settings, groups, and the state of each parameter.
    fn stepper(&self) -> &Stepper;

    /// The common part, mutable.
    fn stepper_mut(&mut self) -> &mut Stepper;

    /// Checks the settings before each step. Learning rate and weight decay were checked before.
    ///
    /// # Errors
    ///
    /// Fails if a setting is invalid, and names it.
    fn check(&self) -> Result<()>;

    /// The names of the tensors kept for a parameter, which have its shape and are initially zeros. The name
    /// `gradient_sum` is reserved.
    fn state(&self, parameter: &Leaf<'_>) -> &'static [&'static str];

    /// The numbers of the formula for a parameter with these settings at its update number `t`, starting from 1. Their
    /// count must not depend on either.
    fn numbers(&self, settings: Settings, t: u64) -> Vec<f64>;

    /// The identity of the operations that [`update`](Self::update) records, apart from the parameter and its settings.
    ///
    /// Rules with the same name return the same number if the same operations update their numbers and state. A
    /// [`TrainStep`](super::TrainStep) is recorded anew when the number changes. 0 by default, for rules that always
    /// record the same operations.
    fn variant(&self) -> u64 {
        0
    }

    /// The new value and the new state of a parameter.
    ///
    /// A [`TrainStep`](super::TrainStep) runs it once and keeps the recorded operations. So everything that may change
    /// later must come from [`numbers`](Self::numbers), or be counted by [`variant`](Self::variant); of the settings,
    /// it may depend on whether the weight decay is 0, and on nothing else.
    fn update(&self, given: &Given<'_>) -> (Var, Vec<Var>);
}

/// The operands from which a [`Rule`] computes a parameter's new value.
#[derive(Debug)]
#[non_exhaustive]
pub struct Given<'a> {
    /// The parameter's place in the model.
    pub leaf: &'a Leaf<'a>,
    /// Its value.
    pub w: Var,
    /// Its gradient.
    pub dw: Var,
    /// Its settings. A formula that omits terms that are 0 gets another plan when that changes.
    pub settings: Settings,
    pub(super) state: Vec<Var>,
    pub(super) numbers: &'a [Var],
}

impl Given<'_> {
    /// The parameter's state, in the order of [`Rule::state`].
    ///
    /// # Panics
    ///
    /// Panics if the state does not have `N` tensors.
    #[must_use]
    pub fn state<const N: usize>(&self) -> [&Var; N] {
        exactly(&self.state, "tensors of state")
    }

    /// The gradient with weight decay added: `dw + λ·w`, where λ is one of the numbers.
    #[must_use]
    pub fn decayed_gradient(&self, decay: &Var) -> Var {
        if self.settings.weight_decay == 0.0 { self.dw.clone() } else { &self.dw + decay * &self.w }
    }

    /// The parameter and its gradient, with weight decay applied to one of them: `w·kept` and `dw` if it is decoupled,
    /// else `w` and [`decayed_gradient`](Self::decayed_gradient).
    pub(super) fn decayed(&self, decoupled: bool, decay: &Var) -> (Var, Var) {
        match decoupled {
            true => (&self.w * decay, self.dw.clone()),
            false => (self.w.clone(), self.decayed_gradient(decay)),
        }
    }

    /// The numbers, in the order of [`Rule::numbers`].
    ///
    /// # Panics
    ///
    /// Panics if there are not `N` of them.
    #[must_use]
    pub fn numbers<const N: usize>(&self) -> [&Var; N] {
        exactly(self.numbers, "numbers")
    }
}

pub(super) fn exactly<'v, const N: usize>(vars: &'v [Var], what: &str) -> [&'v Var; N] {
    let all: Vec<_> = vars.iter().collect();
    all.try_into().unwrap_or_else(|_| panic!("the rule has {} {what} and asks for {N}", vars.len()))
}

/// Fails unless the number is at least 0.
pub(super) fn expect_not_negative(optimizer: &str, what: &str, number: f64) -> Result<()> {
    if !number.is_finite() || number < 0.0 {
        bail!(Argument, "{optimizer}: the {what} is {number}; it must be 0 or above");
    }
    Ok(())
}

/// Fails unless the number keeps a denominator above 0.
pub(super) fn expect_eps(optimizer: &str, eps: f64) -> Result<()> {
    match check_eps(eps) {
        Ok(()) => Ok(()),
        Err(message) => bail!(Argument, "{optimizer}: {message}"),
    }
}

/// Fails unless the number is at least 0 and below 1.
pub(super) fn expect_share(optimizer: &str, what: &str, number: f64) -> Result<()> {
    if !(0.0..1.0).contains(&number) {
        bail!(Argument, "{optimizer}: the {what} is {number}; it must be at least 0 and below 1");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::Optimizer;
    use crate::{Device, ErrorKind, Param, Tape, Tensor};

    /// A rule with `update` as its formula.
    struct Own {
        update: fn(&Given<'_>) -> (Var, Vec<Var>),
        state: &'static [&'static str],
        stepper: Stepper,
    }

    impl Rule for Own {
        fn name(&self) -> &'static str {
            "own"
        }

        fn stepper(&self) -> &Stepper {
            &self.stepper
        }

        fn stepper_mut(&mut self) -> &mut Stepper {
            &mut self.stepper
        }

        fn check(&self) -> Result<()> {
            Ok(())
        }

        fn state(&self, _: &Leaf<'_>) -> &'static [&'static str] {
            self.state
        }

        fn numbers(&self, settings: Settings, t: u64) -> Vec<f64> {
            vec![settings.lr, t as f64]
        }

        fn update(&self, given: &Given<'_>) -> (Var, Vec<Var>) {
            (self.update)(given)
        }
    }

    /// The result of two steps from 8, with gradients of 2.
    fn two_steps(update: fn(&Given<'_>) -> (Var, Vec<Var>)) -> Result<f32> {
        let device = Device::cpu();
        let mut w = Param::new(Tensor::full(&device, [1], 8.0)?);
        let mut own = Own { update, state: &["last"], stepper: Stepper::new(0.5, 0.0) };
        for _ in 0..2 {
            let tape = Tape::new(&device);
            let grads = tape.backward(&(tape.param(&w).sum() * 2.0))?;
            if let Err(error) = own.step(&mut w, &grads) {
                assert_eq!(w.value().item()?, 8.0);
                return Err(error);
            }
        }
        assert_eq!(device.stats().plans, 1);
        w.value().item()
    }

    #[test]
    fn rules_receive_all_state_that_they_name() {
        let update = |given: &Given<'_>| {
            let ([last], [lr, t]) = (given.state(), given.numbers());
            (&given.w - lr * (&given.dw * t + last), vec![given.dw.clone()])
        };
        // 8 − 0.5·(2·1 + 0), then − 0.5·(2·2 + 2)
        assert_eq!(two_steps(update).unwrap(), 4.0);
    }

    #[test]
    fn a_reserved_name_is_an_error() {
        let device = Device::cpu();
        let mut w = Param::new(Tensor::full(&device, [1], 8.0).unwrap());
        let update = |given: &Given<'_>| (given.w.clone(), vec![given.dw.clone()]);
        let mut own = Own { update, state: &["gradient_sum"], stepper: Stepper::new(0.5, 0.0) };
        let tape = Tape::new(&device);
        let grads = tape.backward(&tape.param(&w).sum()).unwrap();
        let error = own.step(&mut w, &grads).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Argument);
        assert!(error.to_string().contains("own: `gradient_sum` holds the sum of micro-batches"), "{error}");
    }

    #[test]
    fn results_of_rules_must_fit() {
        type Update = fn(&Given<'_>) -> (Var, Vec<Var>);
        let wrong: [(Update, ErrorKind, &str); 4] = [
            (|given| (given.w.clone(), vec![]), ErrorKind::Argument, "own: the rule gives 0 tensors of state for 1"),
            (|given| (given.w.sum(), vec![given.dw.clone()]), ErrorKind::Shape, "gives f32[] in the place of f32[1]"),
            (|given| (given.w.clone(), vec![given.dw.sum()]), ErrorKind::Shape, "gives f32[] in the place of f32[1]"),
            (|given| (given.w.reshape([7]), vec![given.dw.clone()]), ErrorKind::Shape, "reshape"),
        ];
        for (update, kind, message) in wrong {
            let error = two_steps(update).unwrap_err();
            assert_eq!(error.kind(), kind);
            assert!(error.to_string().contains(message), "{error}");
        }
    }
}
