//! Optimizers: how a step along the gradient is made.
//!
//! A step appends the update of every parameter to the tape that the gradients are on and runs the tape: forward pass,
//! backward pass and update are one plan, and parameters and state are written in place. Learning rate,
//! decay and bias corrections are numbers that the plan is given, so a schedule never makes a new one.
//!
//! Optimizers write their rules with [`Var`]'s operations and know no device or kernel. What they share
//! (which parameters are trained, where state lives, refusing what is not finite) is in `step.rs`; settings that some of the
//! parameters have for themselves are in `group.rs`.

mod adamw;
mod clip;
mod finite;
mod group;
mod sgd;
mod step;

pub use adamw::AdamW;
pub use group::Group;
pub use sgd::Sgd;

use crate::module::Module;
use crate::{Grads, Result, Var};

/// Something that changes the parameters of a model for the better, given their gradients.
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let mut net = Linear::new(2, 1).init(&device, Seed::new(42))?;
/// let mut optimizer = Sgd::new(0.1).momentum(0.9);
/// let (x, t) = (Tensor::full(&device, [8, 2], 1.0)?, Tensor::full(&device, [8, 1], 5.0)?);
/// for step in 0..200 {
///     optimizer.set_lr(if step < 100 { 0.1 } else { 0.01 });
///     let tape = Tape::new(&device);
///     let loss = net.forward(&tape.input(&x)).mse(&tape.input(&t));
///     let grads = tape.backward(&loss)?.clip_norm(&net, 1.0)?;
///     optimizer.step(&mut net, &grads)?;
/// }
/// # let tape = Tape::inference(&device);
/// # assert!((net.forward(&tape.input(&x)).to_vec()?[0] - 5.0).abs() < 0.01);
/// # Ok::<(), meganeura::Error>(())
/// ```
pub trait Optimizer {
    /// Updates every parameter of `module` that is not frozen, and everything that is held on the tape is computed along.
    ///
    /// `module` may be a part of what the gradients are of: the rest is left alone. The step ends the tape, as the parameters
    /// that it recorded are no more; another optimizer steps another part on a tape of its own.
    ///
    /// # Errors
    ///
    /// Nothing has changed when any of these is returned:
    ///
    /// * what went wrong while recording the step;
    /// * [`NoGradient`](crate::ErrorKind::NoGradient), with their paths, if parameters that are not frozen got no gradient;
    /// * [`StaleTape`](crate::ErrorKind::StaleTape) if these gradients were stepped along already;
    /// * likewise if there are parameters, and all of them are frozen;
    /// * [`Argument`](crate::ErrorKind::Argument) if a setting makes no sense, or a [`Group`] has no parameter;
    /// * [`NotFinite`](crate::ErrorKind::NotFinite), with their paths, if gradients hold NaN or infinity and the optimizer
    ///   was told to check.
    fn step(&mut self, module: &mut dyn Module, grads: &Grads) -> Result<()>;

    /// As [`step`](Self::step), for an optimizer that was told to check: NaN or infinity in the loss is an error as well,
    /// even where every gradient is finite.
    ///
    /// # Errors
    ///
    /// As [`step`](Self::step).
    fn step_with_loss(&mut self, module: &mut dyn Module, grads: &Grads, loss: &Var) -> Result<()>;

    /// The learning rate.
    fn lr(&self) -> f64;

    /// Changes the learning rate from the next step on.
    fn set_lr(&mut self, lr: f64);

    /// The groups of parameters with settings of their own, in the order in which they were given.
    fn groups_mut(&mut self) -> &mut Vec<Group>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, Param, Precision, Tape, Tensor};

    /// Where three steps lead from `w = (1, −2, 3)` on `½·Σ c·w²` with `c = (1, 0.5, −2)`, the last at half the rate.
    pub(super) fn after_three_steps(mut optimizer: impl Optimizer) -> Vec<f64> {
        let device = Device::cpu_with(Precision::Double);
        let tensor = |data: &[f64]| Tensor::from_f64(&device, [3], data).unwrap();
        let mut w = Param::new(tensor(&[1.0, -2.0, 3.0]));
        for lr in [0.1, 0.1, 0.05] {
            optimizer.set_lr(lr);
            let tape = Tape::new(&device);
            let loss = (tape.input(&tensor(&[1.0, 0.5, -2.0])) * tape.param(&w).square()).sum() * 0.5;
            let grads = tape.backward(&loss).unwrap();
            optimizer.step(&mut w, &grads).unwrap();
        }
        w.value().to_f64_vec().unwrap()
    }

    /// Equal up to the roundings of a different order of operations.
    #[track_caller]
    pub(super) fn assert_close(found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-14 * b.abs();
        assert!(found.iter().zip(expected).all(close), "{found:?} is not {expected:?}");
    }

    #[test]
    fn optimizers_can_be_chosen_at_run_time() {
        let mut optimizers: Vec<Box<dyn Optimizer>> = vec![Box::new(Sgd::new(0.1)), Box::new(AdamW::new(0.1))];
        for optimizer in &mut optimizers {
            optimizer.set_lr(0.5);
            assert_eq!(optimizer.lr(), 0.5);
        }
    }
}
