//! Optimizers, which update parameters along their gradients.
//!
//! A step appends the update of every parameter to the gradients' tape, and runs the tape. Forward pass, backward pass
//! and update are one plan, and parameters and state are written in place. Learning rate, decay and bias corrections
//! are inputs of the plan, so a schedule never makes a new one.
//!
//! An optimizer is a [`Rule`], a formula of a few lines. The common part is in `step.rs` and `record.rs`, the state in
//! `state.rs` and the refusal of NaN in `finite.rs`. Settings for some of the parameters are in `group.rs`.
//!
//! | for | use |
//! |---|---|
//! | images, much data, time to tune the learning rate | [`Sgd`] with momentum |
//! | nearly everything else | [`AdamW`]; [`Lion`] where memory is short, [`Muon`] for large matrices |
//! | reproducing papers | [`Adam`], [`NAdam`], [`RAdam`], [`RmsProp`], [`Adagrad`] |
//! | losses without noise, few parameters | [`Lbfgs`], which takes a closure |
//! | a changing learning rate | [`Schedule`]; by a metric, [`Plateau`] |
//! | batches too large for the device | [`Optimizer::accumulate`] |
//! | a steadier model to evaluate | [`Ema`] |

mod accumulate;
mod adagrad;
mod adam;
mod ema;
mod finite;
mod group;
#[cfg(not(target_family = "wasm"))]
mod lbfgs;
mod lion;
mod muon;
mod nadam;
mod radam;
mod record;
mod rms_prop;
mod rule;
pub mod schedule;
mod sgd;
mod shards;
mod state;
mod step;
mod train_step;

pub use accumulate::Accumulate;
pub use adagrad::Adagrad;
pub use adam::{Adam, AdamW};
pub use ema::Ema;
pub use group::{Group, Settings};
#[cfg(not(target_family = "wasm"))]
pub use lbfgs::Lbfgs;
pub use lion::Lion;
pub use muon::Muon;
pub use nadam::NAdam;
pub use radam::RAdam;
pub use rms_prop::RmsProp;
pub use rule::{Given, Rule};
pub use schedule::{Plateau, Schedule};
pub use sgd::Sgd;
pub use state::OptimizerState;
pub(crate) use state::{fits, is_of_another};
pub use step::Stepper;
pub use train_step::TrainStep;

use std::panic::Location;
use std::pin::Pin;

use crate::error::{here, here_async};
use crate::module::Module;
use crate::wait::block_or_refuse;
use crate::{Error, Grads, Result, Var};
use finite::NotFinite;
use step::expect_no_wait;

/// An algorithm that improves the parameters of a model, given their gradients.
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
pub trait Optimizer: Rule {
    /// Updates every parameter of `module` that is not frozen. The same run computes everything that is held on the
    /// tape.
    ///
    /// `module` may be a part of the model that the gradients belong to. The rest is left alone, and another optimizer
    /// may step another part with the same gradients ([an example, and what it costs](Grads#several-optimizers)).
    /// Buffers that the forward pass updated change with the first of these steps. After the step, other values on the
    /// tape that depend on the changed parameters are stale.
    ///
    /// # Errors
    ///
    /// Nothing has changed when any of these is returned:
    ///
    /// * the error of recording the step, if it failed;
    /// * [`Argument`](crate::ErrorKind::Argument) if the gradients are of a [tape for inference](crate::Tape::inference);
    /// * [`NoGradient`](crate::ErrorKind::NoGradient), with their paths, if parameters that are not frozen got no
    ///   gradient, unless that [was allowed](Grads::allow_unused); also if there are parameters and all of them are
    ///   frozen;
    /// * [`StaleTape`](crate::ErrorKind::StaleTape) if one of the parameters was already stepped with these gradients,
    ///   or changed otherwise;
    /// * [`Argument`](crate::ErrorKind::Argument) if a setting is invalid, if a [`Group`] has no parameter or sets
    ///   nothing, or if the gradients were [accumulated](Self::accumulate) for only a part of `module`;
    /// * [`NotFinite`](crate::ErrorKind::NotFinite), with their paths, if gradients hold NaN or infinity and the
    ///   optimizer [checks](Self::check_finite) them.
    #[track_caller]
    fn step(&mut self, module: &mut dyn Module, grads: &Grads) -> Result<()> {
        let line = Location::caller();
        here(|| {
            expect_no_wait(self.stepper(), &grads.tape().device(), "step_async")?;
            block_or_refuse(step::step(self, module, grads, None, line), "await `step_async`")
        })
    }

    /// Like [`step`](Self::step), without blocking the thread: for web pages and other async programs.
    ///
    /// It waits while more runs are in flight than the device needs to be busy, as `step` does natively, and for the
    /// verdict of a [check](Self::check_finite). If the future is dropped while it waits for a verdict, the step is
    /// taken and not counted.
    ///
    /// # Errors
    ///
    /// Fails like [`step`](Self::step).
    #[track_caller]
    fn step_async<'a>(
        &'a mut self,
        module: &'a mut dyn Module,
        grads: &'a Grads,
    ) -> Pin<Box<dyn Future<Output = Result<()>> + 'a>> {
        let line = Location::caller();
        Box::pin(here_async(async move {
            grads.tape().device().room().await?;
            step::step(self, module, grads, None, line).await
        }))
    }

    /// Like [`step`](Self::step), for an optimizer that checks: NaN or infinity in the loss counts as well, even if
    /// every gradient is finite.
    ///
    /// # Errors
    ///
    /// Fails like [`step`](Self::step).
    #[track_caller]
    fn step_with_loss(&mut self, module: &mut dyn Module, grads: &Grads, loss: &Var) -> Result<()> {
        let line = Location::caller();
        here(|| {
            expect_no_wait(self.stepper(), &grads.tape().device(), "step_with_loss_async")?;
            block_or_refuse(step::step(self, module, grads, Some(loss), line), "await `step_with_loss_async`")
        })
    }

    /// Like [`step_with_loss`](Self::step_with_loss), without blocking the thread; see
    /// [`step_async`](Self::step_async).
    ///
    /// # Errors
    ///
    /// Fails like [`step`](Self::step).
    #[track_caller]
    fn step_with_loss_async<'a>(
        &'a mut self,
        module: &'a mut dyn Module,
        grads: &'a Grads,
        loss: &'a Var,
    ) -> Pin<Box<dyn Future<Output = Result<()>> + 'a>> {
        let line = Location::caller();
        Box::pin(here_async(async move {
            grads.tape().device().room().await?;
            step::step(self, module, grads, Some(loss), line).await
        }))
    }

    /// Adds the gradients of a micro-batch to earlier ones, for batches that are too large for the device.
    ///
    /// For the last micro-batch of a step, it returns the summed gradients: pass them, clipped or not, to
    /// [`step`](Self::step). For every other micro-batch, it runs the tape at once and returns `None`; that run also
    /// computes everything held on the tape. See [`Accumulate`].
    ///
    /// Each micro-batch but the last is one run: forward pass, backward pass and sum. The run of the last one includes
    /// the update. So there are two plans, however many micro-batches make a step.
    ///
    /// A parameter that some of the micro-batches leave out has the sum over the others, if that
    /// [is allowed](Grads::allow_unused). Where several optimizers step parts of a model, each accumulates a
    /// [clone](Grads::clone) of the gradients for its part.
    ///
    /// # Errors
    ///
    /// Fails if recording failed; with [`NoGradient`](crate::ErrorKind::NoGradient), as for [`step`](Self::step); with
    /// [`Argument`](crate::ErrorKind::Argument) if a step has 0 micro-batches, or if earlier micro-batches had other
    /// parameters. On error, the sums stay.
    #[track_caller]
    fn accumulate(&mut self, module: &dyn Module, grads: Grads, how: Accumulate) -> Result<Option<Grads>> {
        here(|| self.stepper_mut().sums.add(module, grads, how))
    }

    /// Like [`accumulate`](Self::accumulate) for the last micro-batch of a step, for data that end early.
    ///
    /// # Errors
    ///
    /// Fails like [`accumulate`](Self::accumulate).
    #[track_caller]
    fn accumulate_last(&mut self, module: &dyn Module, grads: Grads, how: Accumulate) -> Result<Grads> {
        here(|| self.stepper_mut().sums.finish(module, grads, how))
    }

    /// The number of micro-batches that [were added](Self::accumulate) and wait for their step.
    fn accumulated(&self) -> u64 {
        self.stepper().sums.added
    }

    /// The learning rate.
    fn lr(&self) -> f64 {
        self.stepper().settings.lr
    }

    /// Changes the learning rate from the next step on.
    fn set_lr(&mut self, lr: f64) {
        self.stepper_mut().settings.lr = lr;
    }

    /// Gives some of the parameters their own settings. If several groups have a parameter in common, the last one that
    /// has a setting wins.
    #[must_use]
    fn group(mut self, group: Group) -> Self
    where
        Self: Sized,
    {
        self.groups_mut().push(group);
        self
    }

    /// The groups of parameters with their own settings, in the order in which they were added.
    fn groups_mut(&mut self) -> &mut Vec<Group> {
        &mut self.stepper_mut().groups
    }

    /// Makes a gradient with NaN or infinity an error that leaves the model, and this optimizer, unchanged. `false` by
    /// default. The check runs along with the step, but each step then waits for the device.
    #[must_use]
    fn check_finite(mut self, check: bool) -> Self
    where
        Self: Sized,
    {
        self.stepper_mut().not_finite = if check { NotFinite::Error } else { NotFinite::Unchecked };
        self
    }

    /// Like [`check_finite`](Self::check_finite), but such a step is skipped and counted instead of being an error.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let mut w = Param::new(Tensor::from_slice(&device, [1], &[0.0])?);
    /// let mut optimizer = Sgd::new(0.1).skip_not_finite(true);
    /// let tape = Tape::new(&device);
    /// let grads = tape.backward(&tape.param(&w).log().sum())?; // 1/0
    /// optimizer.step(&mut w, &grads)?;
    /// assert_eq!((w.value().item()?, optimizer.skipped()), (0.0, 1));
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    #[must_use]
    fn skip_not_finite(mut self, skip: bool) -> Self
    where
        Self: Sized,
    {
        self.stepper_mut().not_finite = if skip { NotFinite::Skip } else { NotFinite::Unchecked };
        self
    }

    /// The number of skipped steps.
    fn skipped(&self) -> u64 {
        self.stepper().skipped
    }

    /// The reason if the last step was skipped, with the paths of the gradients that were not finite. It is not part of
    /// the [state](Self::state_of).
    fn last_skip(&self) -> Option<&Error> {
        self.stepper().last_skip.as_ref()
    }

    /// The optimizer's memory of its steps, and of [micro-batches](Self::accumulate) that wait for theirs, by the paths
    /// of the parameters in `module`. Save it with the module.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let mut net = Linear::new(2, 1).init(&device, Seed::new(1))?;
    /// let mut optimizer = AdamW::new(1e-3);
    /// # let x = Tensor::full(&device, [4, 2], 1.0)?;
    /// # let tape = Tape::new(&device);
    /// # let grads = tape.backward(&net.forward(&tape.input(&x)).mean())?;
    /// optimizer.step(&mut net, &grads)?;
    ///
    /// let state = optimizer.state_of(&net);
    /// assert!(state.tensors.contains_key("weight.m"));
    /// let mut same = AdamW::new(1e-3);
    /// same.load_state(&net, &state)?; // goes on as if nothing had happened
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    fn state_of(&self, module: &dyn Module) -> OptimizerState {
        state::save(self, module)
    }

    /// Like [`state_of`](Self::state_of), with the state of all ranks if it is [sharded](Grads::average_to_owners). The
    /// call is then collective, and the tensors of other ranks are on the CPU. Any number of ranks can load the state.
    ///
    /// # Errors
    ///
    /// Fails with [`PeerLost`](crate::ErrorKind::PeerLost) if another rank left, and if the device fails.
    #[track_caller]
    fn whole_state_of(&self, module: &dyn Module) -> Result<OptimizerState> {
        here(|| state::save_whole(self, module))
    }

    /// Loads a state that [`state_of`](Self::state_of) returned: for a model of the same structure, into an optimizer
    /// with the same settings. Training then continues bit for bit, with the learning rate of the state.
    ///
    /// # Errors
    ///
    /// Fails with [`Checkpoint`](crate::ErrorKind::Checkpoint) if a part is missing, has another shape or belongs to no
    /// parameter, or if the learning rate is NaN, infinite or below 0. Fails if the device fails. Nothing has changed
    /// then.
    #[track_caller]
    fn load_state(&mut self, module: &dyn Module, state: &OptimizerState) -> Result<()> {
        here(|| state::load(self, module, state))
    }
}

impl<R: Rule> Optimizer for R {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, ErrorKind, Param, Precision, Tape, Tensor};

    /// The result of three steps from `w = (1, −2, 3)` on `½·Σ c·w²` with `c = (1, 0.5, −2)`, the last at half the
    /// learning rate.
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

    /// Equal up to the rounding errors of a different order of operations.
    #[track_caller]
    pub(super) fn assert_close(found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-14 * b.abs();
        assert!(found.iter().zip(expected).all(close), "{found:?} is not {expected:?}");
    }

    /// Asserts that a step with these settings fails and changes nothing.
    #[track_caller]
    pub(super) fn assert_senseless(mut optimizer: impl Optimizer) {
        let device = Device::cpu();
        let mut w = Param::new(Tensor::full(&device, [1], 1.0).unwrap());
        let tape = Tape::new(&device);
        let grads = tape.backward(&tape.param(&w).sum()).unwrap();
        let error = optimizer.step(&mut w, &grads).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Argument);
        assert!(error.to_string().starts_with(optimizer.name()), "{error}");
        assert_eq!(w.value().item().unwrap(), 1.0);
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
