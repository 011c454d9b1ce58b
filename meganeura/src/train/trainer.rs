//! The options of a training.

use std::fmt;
use std::io::Write;
use std::panic::Location;

use super::at::At;
use super::fit::{Average, fit};
use super::source::{InputVars, Recordable, Source, TargetVars, of_vars};
use super::validation::Validation;
use super::{EarlyStop, Report};
use crate::data::{Batches, Fields};
use crate::error::{bail, here};
use crate::metric::Measure;
use crate::module::Module;
use crate::optim::{Ema, Optimizer, Plateau, Schedule};
use crate::run::{Best, Run};
use crate::tape::Outputs;
use crate::{Error, ErrorKind, Grads, Result, Var};

/// A training loop: a model, batches and a loss, with everything around them. See the [module's page](super).
///
/// A step is recorded once, as a [`TrainStep`](crate::optim::TrainStep), and each epoch goes through the batches in an
/// order of its own. By default a training prints a line for each epoch, shows its [progress](super::Progress) on a
/// terminal, and keeps nothing but the model; a [`run`](Self::run) keeps checkpoints and metrics, and resumes.
#[doc(alias("Learner", "LearnerBuilder"))]
#[must_use]
pub struct Trainer<'a, M> {
    pub(super) model: &'a mut M,
    pub(super) source: Source,
    pub(super) loss: Box<LossFn<'a, M>>,
    pub(super) names: Vec<String>,
    pub(super) run: Option<Run>,
    pub(super) epochs: u64,
    pub(super) schedule: Option<Box<dyn FnOnce(u64) -> Schedule + 'a>>,
    pub(super) may_prolong: bool,
    pub(super) accumulate: u64,
    pub(super) gradients: Vec<Box<GradientsFn<'a, M>>>,
    pub(super) average: Option<Box<AverageFn<'a, M>>>,
    pub(super) validations: Vec<Validation<'a, M>>,
    pub(super) stop_early: Option<(String, EarlyStop)>,
    pub(super) plateau: Option<(String, Plateau)>,
    pub(super) each_step: Vec<Box<Callback<'a, M>>>,
    pub(super) each_epoch: Vec<Box<Callback<'a, M>>>,
    pub(super) save_every: u64,
    pub(super) loads_best: bool,
    pub(super) log: Option<Box<dyn Write + 'a>>,
    pub(super) shows_progress: bool,
    /// A call that makes no sense, reported when the training starts.
    misuse: Option<Error>,
}

pub(super) type LossFn<'a, M> = dyn FnMut(&M, &[Var]) -> Result<Vec<Var>> + 'a;
pub(super) type GradientsFn<'a, M> = dyn FnMut(&M, Grads) -> Result<Grads> + 'a;
pub(super) type AverageFn<'a, M> = dyn FnOnce(&M) -> Result<Box<dyn Average<M>>> + 'a;
pub(super) type Callback<'a, M> = dyn FnMut(&mut At<'_, M>) -> Result<()> + 'a;

impl<'a, M: Module> Trainer<'a, M> {
    /// A training of this model with these batches. The function records the loss of the model for the inputs and the
    /// targets of a batch; a tuple or an array may follow the loss with values to [name](Self::results) and log. A
    /// function that can fail returns a `Result`.
    ///
    /// Inputs and targets are a [`Var`], or tuples and arrays like those of the [examples](crate::data::Fields).
    #[track_caller]
    pub fn new<I: Fields, T: Fields, C: Recordable<I, T>, O: Outputs>(
        model: &'a mut M,
        batches: Batches<I, T, C>,
        mut loss: impl FnMut(&M, &InputVars<I, T, C>, &TargetVars<I, T, C>) -> O + 'a,
    ) -> Self {
        Self {
            model,
            source: Source::new(batches, Location::caller()),
            loss: Box::new(move |model, vars| {
                let (inputs, targets) = of_vars::<I, T, C>(vars);
                loss(model, &inputs, &targets).vars()
            }),
            names: Vec::new(),
            run: None,
            epochs: 1,
            schedule: None,
            may_prolong: false,
            accumulate: 1,
            gradients: Vec::new(),
            average: None,
            validations: Vec::new(),
            stop_early: None,
            plateau: None,
            each_step: Vec::new(),
            each_epoch: Vec::new(),
            save_every: 1,
            loads_best: false,
            log: Some(Box::new(std::io::stdout())),
            shows_progress: true,
            misuse: None,
        }
    }

    /// The number of epochs, 1 by default. A resumed training counts those that it made before, so a greater number
    /// prolongs it: see [`prolong`](Self::prolong).
    pub fn epochs(self, epochs: u64) -> Self {
        Self { epochs, ..self }
    }

    /// Keeps checkpoints and metrics in the folder of this run, and continues it from its last checkpoint.
    ///
    /// The run decides when to save, which checkpoints to keep, about Ctrl-C, TensorBoard and ranks: see
    /// [`RunOptions`](crate::run::RunOptions). Its device is that of the batches, and a device of
    /// [`Precision::Fast`](crate::Precision::Fast) trains in mixed precision.
    ///
    /// Each step logs `loss`, the results with [names](Self::results) and, if it changes, `lr`. Each epoch logs
    /// `epoch_loss` (the mean) and the measures of the [validations](Self::validate), then saves a checkpoint.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// # fn main() -> meganeura::Result<()> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let folder = folder.path();
    /// # let device = Device::cpu();
    /// # let mut net = Linear::new(1, 2).init(&device, Seed::new(1))?;
    /// # let data = Dataset::new(vec![0.5; 8], [1], vec![1; 8])?;
    /// let run = Run::at(folder, &device).setting("batch", 4).open()?; // begun, or resumed
    /// let report = Trainer::new(&mut net, data.batches(4).shuffle(7), |net, x, t| net.forward(x).cross_entropy(t))
    ///     .epochs(3)
    ///     .run(run)
    ///     .fit(&mut Sgd::new(0.1))?;
    /// assert_eq!(report.position().step, 6);
    /// # Ok(())
    /// # }
    /// ```
    pub fn run(self, run: Run) -> Self {
        Self { run: Some(run), ..self }
    }

    /// Names for the values that the loss function returns after the loss, to log them.
    pub fn results<const N: usize>(self, names: [&str; N]) -> Self {
        Self { names: names.map(str::to_owned).into(), ..self }
    }

    /// Sets the learning rate of each step by a schedule, given the number of steps in all epochs.
    ///
    /// ```
    /// # use meganeura::prelude::*;
    /// # fn main() -> meganeura::Result<()> {
    /// # let mut net = Linear::new(1, 2).init(&Device::cpu(), Seed::new(1))?;
    /// # let data = Dataset::new(vec![0.5; 8], [1], vec![1; 8])?;
    /// # let batches = data.batches(4).shuffle(7);
    /// Trainer::new(&mut net, batches, |net, x, t| net.forward(x).cross_entropy(t))
    ///     .epochs(3)
    ///     .schedule(|steps| Schedule::one_cycle(1e-2, steps))
    ///     .fit(&mut AdamW::new(1e-2))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A [run](Self::run) records it, and resuming with another one is an error.
    pub fn schedule(self, schedule: impl FnOnce(u64) -> Schedule + 'a) -> Self {
        Self { schedule: Some(Box::new(schedule)), ..self }
    }

    /// Lets a resumed training go on with another [schedule](Self::schedule) than before, such as one for more epochs.
    /// `events.jsonl` of the run reports the change.
    ///
    /// Five more epochs are `.epochs(run.position().epoch + 5).prolong(true)`. The learning rate is then that of the
    /// new schedule at the current step.
    pub fn prolong(self, may_prolong: bool) -> Self {
        Self { may_prolong, ..self }
    }

    /// Reduces the learning rate when a metric of the epochs stops improving: `epoch_loss`, or one that is
    /// [measured](Self::measure) or [logged](At::log). A resumed training tells it the earlier metrics again.
    pub fn plateau(self, metric: impl Into<String>, plateau: Plateau) -> Self {
        Self { plateau: Some((metric.into(), plateau)), ..self }
    }

    /// Clips the norm of all gradients of a step: [`Grads::clip_norm`].
    pub fn clip_norm(self, max: f64) -> Self {
        self.gradients(move |model, grads| grads.clip_norm(model, max))
    }

    /// Applies a function to the gradients of a step, after those of earlier calls. In a world, they are already the
    /// means over all ranks.
    pub fn gradients(mut self, change: impl FnMut(&M, Grads) -> Result<Grads> + 'a) -> Self {
        self.gradients.push(Box::new(change));
        self
    }

    /// Makes a step of `batches` batches: the mean of their gradients. A batch then counts as a step of the run, and
    /// [`schedule`](Self::schedule) counts steps of the optimizer.
    pub fn accumulate(self, batches: u64) -> Self {
        Self { accumulate: batches, ..self }
    }

    /// Also keeps a [moving average](Ema) of the model, with the decay `min(decay, (1 + t)/(10 + t))` after t steps.
    ///
    /// Validations measure the average. Checkpoints have both, as `model.safetensors` and `average.safetensors`. At the
    /// end, the model gets the values of the average.
    pub fn ema(self, decay: f64) -> Self
    where
        M: Clone + 'static,
    {
        let make =
            move |model: &M| -> Result<Box<dyn Average<M>>> { Ok(Box::new(Ema::new(model, decay)?.warmup(true))) };
        Self { average: Some(Box::new(make)), ..self }
    }

    /// Validates the model with these batches at the end of each epoch. The function returns predictions and targets
    /// for the inputs and targets of a batch; [`measure`](Self::measure) says what to count. There may be several
    /// validations.
    ///
    /// In a world, each rank takes some of the batches.
    #[track_caller]
    pub fn validate<I: Fields, T: Fields, C: Recordable<I, T>>(
        mut self,
        batches: Batches<I, T, C>,
        mut function: impl FnMut(&M, &InputVars<I, T, C>, &TargetVars<I, T, C>) -> (Var, Var) + 'a,
    ) -> Self {
        let forward = move |model: &M, vars: &[Var]| {
            let (inputs, targets) = of_vars::<I, T, C>(vars);
            function(model, &inputs, &targets)
        };
        self.validations.push(Validation::new(Source::new(batches, Location::caller()), forward));
        self
    }

    /// Counts predictions and targets of the [validation](Self::validate) before it, and logs the value under this
    /// name.
    ///
    /// ```
    /// use meganeura::metric::{Accuracy, MeanOf};
    /// # use meganeura::prelude::*;
    /// # fn main() -> meganeura::Result<()> {
    /// # let mut net = Linear::new(1, 2).init(&Device::cpu(), Seed::new(1))?;
    /// # let data = Dataset::new(vec![0.5; 8], [1], vec![1; 8])?;
    /// # let (batches, test) = (data.batches(4).shuffle(7), data.batches(8));
    /// let report = Trainer::new(&mut net, batches, |net, x, t| net.forward(x).cross_entropy(t))
    ///     .validate(test, |net, x, t| (net.forward(x), t.clone()))
    ///     .measure("accuracy", Accuracy::new())
    ///     .measure("test_loss", MeanOf::new(|y, t| y.cross_entropy(t)))
    ///     .fit(&mut Sgd::new(0.1))?;
    /// println!("{}", report.metrics["test_loss"]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn measure(mut self, name: impl Into<String>, measure: impl Measure + Clone + 'static) -> Self {
        let name = name.into();
        match self.validations.last_mut() {
            Some(validation) => validation.measure(name, measure),
            None => self.refuse(format!("there is nothing to measure `{name}` of: `validate` comes before `measure`")),
        }
        self
    }

    /// Ends the training when a metric of the epochs has not improved for `patience` epochs: `epoch_loss`, or one that
    /// is [measured](Self::measure) or [logged](At::log). A resumed training takes the earlier metrics into account.
    pub fn stop_early(self, metric: impl Into<String>, which: Best, patience: u64) -> Self {
        Self { stop_early: Some((metric.into(), EarlyStop::new(which, patience))), ..self }
    }

    /// Saves a checkpoint after every so many epochs and after the last one, rather than after each. The run also saves
    /// when [it is due](crate::run::RunOptions::every).
    pub fn save_every(self, epochs: u64) -> Self {
        Self { save_every: epochs, ..self }
    }

    /// Loads the weights of the best checkpoint at the end, that of [`keep_best`](crate::run::RunOptions::keep_best):
    /// those of the [average](Self::ema), if there is one.
    pub fn load_best(self) -> Self {
        Self { loads_best: true, ..self }
    }

    /// Calls a function after each step.
    pub fn each_step(mut self, callback: impl FnMut(&mut At<'_, M>) -> Result<()> + 'a) -> Self {
        self.each_step.push(Box::new(callback));
        self
    }

    /// Calls a function after each epoch, when the validations are done, and before the checkpoint is saved.
    ///
    /// ```
    /// # use meganeura::prelude::*;
    /// # fn main() -> meganeura::Result<()> {
    /// # let mut net = (Linear::new(1, 4), Relu, Linear::new(4, 2)).init(&Device::cpu(), Seed::new(1))?;
    /// # let data = Dataset::new(vec![0.5; 8], [1], vec![1; 8])?;
    /// net.freeze("0.**")?;
    /// Trainer::new(&mut net, data.batches(4).shuffle(7), |net, x, t| net.forward(x).cross_entropy(t))
    ///     .epochs(3)
    ///     .each_epoch(|at| {
    ///         if at.position().epoch == 2 {
    ///             at.model_mut().thaw("0.**")?;
    ///             at.print("the first layer is trained from here on");
    ///         }
    ///         Ok(())
    ///     })
    ///     .fit(&mut Sgd::new(0.1))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn each_epoch(mut self, callback: impl FnMut(&mut At<'_, M>) -> Result<()> + 'a) -> Self {
        self.each_epoch.push(Box::new(callback));
        self
    }

    /// Writes the lines of the epochs here; to stdout by default.
    pub fn log_to(self, log: impl Write + 'a) -> Self {
        Self { log: Some(Box::new(log)), ..self }
    }

    /// Prints nothing, and shows no progress.
    pub fn quiet(self) -> Self {
        Self { log: None, shows_progress: false, ..self }
    }

    /// Trains the model.
    ///
    /// A loss that is NaN or infinite ends the training with an error, before anything of it is saved: at the end of
    /// the epoch, or when it is noticed before. An optimizer that [skips](Optimizer::skip_not_finite) such steps goes
    /// on, unless a whole epoch is skipped.
    ///
    /// # Errors
    ///
    /// Fails if a batch cannot be made, with the errors of the functions and callbacks, if a checkpoint cannot be
    /// saved or does not fit, and with [`NotFinite`](ErrorKind::NotFinite) if the training diverges. Fails with
    /// [`Argument`](ErrorKind::Argument) if the options contradict each other: a metric that is not measured, for
    /// example.
    #[track_caller]
    pub fn fit(self, optimizer: &mut dyn Optimizer) -> Result<Report> {
        here(|| {
            self.check()?;
            fit(self, optimizer)
        })
    }

    #[track_caller]
    fn refuse(&mut self, message: String) {
        self.misuse.get_or_insert_with(|| Error::new(ErrorKind::Argument, message).at(Location::caller()));
    }

    pub(super) fn check(&self) -> Result<()> {
        if let Some(misuse) = &self.misuse {
            return Err(misuse.clone());
        }
        if self.accumulate == 0 || self.save_every == 0 {
            bail!(Argument, "`accumulate` takes at least 1 batch, and `save_every` at least 1 epoch");
        }
        if self.schedule.is_some() && self.plateau.is_some() {
            bail!(Argument, "a schedule and a plateau cannot both set the learning rate");
        }
        if self.loads_best && self.run.as_ref().is_none_or(|run| !run.keeps_best()) {
            bail!(Argument, "`load_best` loads the checkpoint of `RunOptions::keep_best`, and the run keeps none");
        }
        let mut names = vec!["epoch_loss", "loss", "lr"];
        names.extend(self.names.iter().map(String::as_str));
        for name in self.validations.iter().flat_map(Validation::names) {
            if names.contains(&name) {
                bail!(Argument, "two metrics are called `{name}`");
            }
            names.push(name);
        }
        Ok(())
    }
}

impl<M> fmt::Debug for Trainer<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trainer({} epochs, {} validations)", self.epochs, self.validations.len())
    }
}
