//! A moment in a training, for callbacks.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use crate::error::here;
use crate::module::Module;
use crate::optim::{Optimizer, TrainStep};
use crate::run::{Metric, Position, Run};
use crate::{Device, Result, Tensor, Var};

/// A moment in a training: what a callback of a [`Trainer`](super::Trainer) sees, and may change.
pub struct At<'f, M> {
    pub(super) model: &'f mut dyn Held<M>,
    pub(super) average: Option<&'f M>,
    pub(super) optimizer: &'f mut dyn Optimizer,
    pub(super) run: &'f mut Run,
    pub(super) results: &'f [Tensor],
    pub(super) metrics: &'f mut BTreeMap<String, f64>,
    pub(super) lines: &'f mut Vec<String>,
    pub(super) is_stopped: &'f mut bool,
    /// `true` at the end of an epoch.
    pub(super) is_epoch: bool,
}

/// The model, while a training step holds it.
pub(super) trait Held<M> {
    fn get(&self) -> &M;
    fn get_mut(&mut self) -> &mut M;
}

impl<M: Module> Held<M> for TrainStep<'_, &mut M, Vec<Var>, Result<Vec<Var>>> {
    fn get(&self) -> &M {
        self.module()
    }

    fn get_mut(&mut self) -> &mut M {
        self.module_mut()
    }
}

impl<M> At<'_, M> {
    /// The model.
    #[must_use]
    pub fn model(&self) -> &M {
        self.model.get()
    }

    /// The model, to change it: to thaw a part after some epochs, for example. The step is then
    /// [recorded anew](TrainStep::module_mut).
    #[must_use]
    pub fn model_mut(&mut self) -> &mut M {
        self.model.get_mut()
    }

    /// The moving average of the model, if there is [one](super::Trainer::ema).
    #[must_use]
    pub fn average(&self) -> Option<&M> {
        self.average
    }

    /// The optimizer.
    #[must_use]
    pub fn optimizer(&mut self) -> &mut dyn Optimizer {
        self.optimizer
    }

    /// The position after the step, or after the epoch.
    #[must_use]
    pub fn position(&self) -> Position {
        self.run.position()
    }

    /// The loss of the last step, and the other results of the loss function. Reading one waits for the device.
    #[must_use]
    pub fn results(&self) -> &[Tensor] {
        self.results
    }

    /// The metrics of the last epoch that ended, by name: `epoch_loss` and those of the validations.
    #[must_use]
    pub fn metrics(&self) -> &BTreeMap<String, f64> {
        self.metrics
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.run.device()
    }

    /// The run's folder, for files of your own; `None` for a training without one.
    #[must_use]
    pub fn folder(&self) -> Option<&Path> {
        self.run.is_kept().then(|| self.run.folder())
    }

    /// `true` on the rank that writes files; callbacks run on all ranks.
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.run.world().is_first()
    }

    /// Logs numbers: see [`Run::log`]. At the end of an epoch they are metrics like those of the validations, which may
    /// decide about the best checkpoint and an early end.
    ///
    /// # Errors
    ///
    /// Fails like [`Run::log`].
    #[track_caller]
    pub fn log(&mut self, values: &[(&str, &dyn Metric)]) -> Result<()> {
        here(|| {
            for (name, value) in values.iter().filter(|_| self.is_epoch) {
                self.metrics.insert((*name).to_owned(), value.reading().number()?);
            }
            self.run.log(values)
        })
    }

    /// Shows the distribution of a tensor's numbers in TensorBoard: see [`Run::log_histogram`].
    ///
    /// # Errors
    ///
    /// Fails like [`Run::log_histogram`].
    #[cfg(feature = "tensorboard")]
    #[track_caller]
    pub fn log_histogram(&mut self, name: &str, tensor: &Tensor) -> Result<()> {
        here(|| self.run.log_histogram(name, tensor))
    }

    /// Shows an image in TensorBoard: see [`Run::log_image`].
    ///
    /// # Errors
    ///
    /// Fails like [`Run::log_image`].
    #[cfg(all(feature = "images", feature = "tensorboard"))]
    #[track_caller]
    pub fn log_image(&mut self, name: &str, image: &Tensor) -> Result<()> {
        here(|| self.run.log_image(name, image))
    }

    /// Prints a line, without disturbing the progress.
    pub fn print(&mut self, line: impl Into<String>) {
        self.lines.push(line.into());
    }

    /// Ends the training after this step or epoch, with a checkpoint. In a world, all ranks must call it.
    pub fn stop(&mut self) {
        *self.is_stopped = true;
    }
}

impl<M> fmt::Debug for At<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "At({}, {:?})", self.run.position(), self.metrics)
    }
}
