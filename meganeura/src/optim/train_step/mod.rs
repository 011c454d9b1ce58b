//! Training steps that are recorded once.

mod cached;

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::Location;

use super::record::expect_settings;
use super::step::expect_no_wait;
use super::{Accumulate, Optimizer};
use crate::error::{bail, here, here_async};
use crate::module::Module;
use crate::tape::{Outputs, Tensors};
use crate::wait::block_or_refuse;
use crate::{Grads, Result, Tape, Tensor, TensorType};
use cached::{CachedStep, Recorder, Sight};

/// The bytes of host memory that compiled steps may take; the least recently used is dropped first. The number of steps
/// is not limited: batches may have hundreds of sequence lengths.
const BYTES_KEPT: usize = 256 << 20;

/// A training step that is recorded once for each shape of its inputs: forward, loss, backward and update in one call.
///
/// A new tape for every step costs the host about a microsecond per operation, which dominates for small models. A
/// `TrainStep` runs its closure on the first call, keeps the plan, and only binds tensors and numbers from then on. It
/// computes the same bits.
///
/// The closure takes the batch: a [`Var`](crate::Var), or a tuple or an array of them. It returns the loss, or a tuple
/// or an array that starts with the loss, followed by values to read along with it, such as a metric.
/// [`call`](Self::call) takes tensors in place of the inputs, and returns tensors in place of the results.
///
/// ```
/// use meganeura::optim::{Schedule, TrainStep};
/// use meganeura::prelude::*;
///
/// # fn main() -> meganeura::Result<()> {
/// let device = Device::cpu();
/// let net = (Linear::new(4, 16), Relu, Linear::new(16, 3)).init(&device, Seed::new(1))?;
/// let mut optimizer = AdamW::new(1e-2);
/// let mut step = TrainStep::new(&net, |net, (x, labels): &(Var, Var)| net.forward(x).cross_entropy(labels))
///     .gradients(|net, grads| grads.clip_norm(net, 1.0));
/// let x = Tensor::full(&device, [2, 4], 0.5)?;
/// let labels = Tensor::indices(&device, [2], &[0, 2])?;
/// let schedule = Schedule::cosine(1e-2, 10, 0.0);
/// let mut losses = Vec::new();
/// for number in 0..10 {
///     optimizer.set_lr(schedule.at(number));
///     losses.push(step.call(&mut optimizer, (&x, &labels))?.item()?);
/// }
/// assert!(losses[9] < losses[0]);
/// # Ok(())
/// # }
/// ```
///
/// # What each call sees, and what is fixed
///
/// * Parameters, buffers and the optimizer's state are **seen** as they are at each call: one may evaluate, save, load
///   or average the model in between. So are the learning rate, weight decay, the groups' numbers, and everything else
///   that the [`Rule`](super::Rule) computes from them.
/// * Each call draws **new random numbers**, those that the next [`Tape::new`] would draw.
/// * The step is **recorded anew** for other shapes; when parts of the model are replaced, frozen, thawed, or change
///   between training and evaluation mode, through whichever handle; for another optimizer or another state of it; and
///   when the optimizer's groups, its formula, or its handling of NaN change. The last recordings are kept, as many as
///   fit into 256 MiB.
/// * [`module_mut`](Self::module_mut) **discards all recordings**, of every shape: a dropout rate, an `eps`, the
///   momentum of running statistics, and every field of your own layers may decide what is recorded.
/// * Everything else that the closures read is **fixed** when they run: tensors that they bring onto the tape, numbers
///   that they capture, and what changes through a shared reference, such as a `Cell` in a layer. Anything that changes
///   from step to step must be an input; after any other such change, call [`record_anew`](Self::record_anew). Reading
///   a value of the tape inside a closure is an error.
///
/// The step runs on the device, and in the precision, of the batch's first tensor.
///
/// # Speed
///
/// `BENCHMARKS.md` compares it with a tape for every step (columns "tape" and "once").
pub struct TrainStep<'a, M: Deref, I, O> {
    module: M,
    loss: Box<LossFn<'a, M::Target, I, O>>,
    gradients: Box<GradientsFn<'a, M::Target>>,
    accumulate: Accumulate,
    /// The most recently used one is last.
    cached: Vec<CachedStep>,
    recorded: u64,
}

type LossFn<'a, M, I, O> = dyn FnMut(&M, &I) -> O + 'a;
type GradientsFn<'a, M> = dyn FnMut(&M, Grads) -> Result<Grads> + 'a;

impl<'a, M, I, O> TrainStep<'a, M, I, O>
where
    M: Deref<Target: Module + Sized>,
    I: Outputs,
    O: Outputs,
{
    /// A step that minimizes the loss that the closure records, given the module and the batch. The module is borrowed,
    /// or owned through a pointer: `&net`, `&mut net`, a `Box`, an `Rc`.
    #[must_use]
    pub fn new(module: M, loss: impl FnMut(&M::Target, &I) -> O + 'a) -> Self {
        let gradients = Box::new(|_: &M::Target, grads| Ok(grads));
        Self {
            module,
            loss: Box::new(loss),
            gradients,
            accumulate: Accumulate::sum(1),
            cached: Vec::new(),
            recorded: 0,
        }
    }

    /// Applies `change` to the gradients before the optimizer gets them: [`Grads::clip_norm`], for example.
    #[must_use]
    pub fn gradients(mut self, change: impl FnMut(&M::Target, Grads) -> Result<Grads> + 'a) -> Self {
        self.gradients = Box::new(change);
        self.record_anew();
        self
    }

    /// Makes a step of several calls, each with a micro-batch: the last call takes the step, and earlier ones only add
    /// up their gradients. [`gradients`](Self::gradients) applies to the result.
    #[must_use]
    pub fn accumulate(mut self, how: Accumulate) -> Self {
        self.accumulate = how;
        self.record_anew();
        self
    }

    /// The module.
    #[must_use]
    pub fn module(&self) -> &M::Target {
        &self.module
    }

    /// The module, to change it: to freeze or evaluate parts of it, to set values, rates, or fields of your own.
    ///
    /// This discards the recordings, as any field may decide what the closures record. The next call with each shape
    /// records the step anew, which costs as much as a tape; its plan is known if the change left the structure as it
    /// was. [`module`](Self::module) is enough to read.
    #[must_use]
    pub fn module_mut(&mut self) -> &mut M::Target
    where
        M: DerefMut,
    {
        self.record_anew();
        &mut self.module
    }

    /// Discards the recordings, so that the closures run again at the next call with each shape.
    ///
    /// Needed after a change that no call can see: of a number in a [`Cell`](std::cell::Cell) or behind a lock that the
    /// closures or the module's layers read.
    ///
    /// ```
    /// use std::cell::Cell;
    ///
    /// use meganeura::optim::TrainStep;
    /// use meganeura::prelude::*;
    ///
    /// # fn main() -> meganeura::Result<()> {
    /// let device = Device::cpu();
    /// let net = Linear::new(2, 1).init(&device, Seed::new(1))?;
    /// let scale = Cell::new(1.0);
    /// let mut step = TrainStep::new(&net, |net, x: &Var| net.forward(x).square().sum() * scale.get());
    /// let (mut optimizer, x) = (Sgd::new(0.0), Tensor::full(&device, [1, 2], 0.5)?);
    /// let loss = step.call(&mut optimizer, &x)?.item()?;
    ///
    /// scale.set(2.0);
    /// assert_eq!(step.call(&mut optimizer, &x)?.item()?, loss); // recorded with the old number
    /// step.record_anew();
    /// assert_eq!(step.call(&mut optimizer, &x)?.item()?, 2.0 * loss);
    /// # Ok(())
    /// # }
    /// ```
    pub fn record_anew(&mut self) {
        self.cached.clear();
    }

    /// The number of times that the closures have run.
    #[must_use]
    pub fn recorded(&self) -> u64 {
        self.recorded
    }

    /// Takes a step with this batch. Returns the loss and the closure's other results, as tensors on the device.
    ///
    /// On a GPU, the call submits the work and returns; reading the loss waits for it. If the optimizer
    /// [checks](Optimizer::check_finite) its gradients, the call waits, and the check covers the loss as well.
    ///
    /// # Errors
    ///
    /// Fails like recording, [`Tape::backward`] and [`Optimizer::step`], and if the batch is on another device than the
    /// model.
    #[track_caller]
    pub fn call(
        &mut self,
        optimizer: &mut dyn Optimizer,
        batch: <I::Tensors as Tensors>::Refs<'_>,
    ) -> Result<O::Tensors> {
        let (line, inputs) = (Location::caller(), I::Tensors::list(batch));
        here(|| {
            if let Some(first) = inputs.first() {
                expect_no_wait(optimizer.stepper(), first.device(), "call_async")?;
            }
            block_or_refuse(self.run(optimizer, &inputs, line), "await `call_async`")
        })
    }

    /// Like [`call`](Self::call), without blocking the thread: for web pages and other async programs.
    ///
    /// It waits while more runs are in flight than the device needs to be busy, as `call` does natively, and for the
    /// verdict of a [check](Optimizer::check_finite).
    ///
    /// # Errors
    ///
    /// Fails like [`call`](Self::call).
    #[track_caller]
    pub fn call_async(
        &mut self,
        optimizer: &mut dyn Optimizer,
        batch: <I::Tensors as Tensors>::Refs<'_>,
    ) -> impl Future<Output = Result<O::Tensors>> {
        let (line, inputs) = (Location::caller(), I::Tensors::list(batch));
        here_async(async move {
            if let Some(first) = inputs.first() {
                first.device().room().await?;
            }
            self.run(optimizer, &inputs, line).await
        })
    }

    async fn run(
        &mut self,
        optimizer: &mut dyn Optimizer,
        inputs: &[&Tensor],
        line: &'static Location<'static>,
    ) -> Result<O::Tensors> {
        expect_settings(optimizer)?;
        let sight = Sight::of(&*self.module);
        let adds = !optimizer.stepper().sums.is_last(self.accumulate)?;
        match self.cached.iter().position(|step| step.fits(inputs, &sight, optimizer, adds)) {
            Some(at) => self.cached[at..].rotate_left(1),
            None => {
                let step = self.compile(inputs, sight, optimizer)?;
                self.cached.retain(|step| !step.is_dead());
                self.cached.push(step);
                let mut bytes = 0;
                let fits = |step: &&CachedStep| {
                    bytes += step.host_bytes();
                    bytes <= BYTES_KEPT
                };
                let kept = self.cached.iter().rev().take_while(fits).count().max(1);
                self.cached.drain(..self.cached.len() - kept);
            }
        }
        let last = self.cached.last_mut().expect("the one that fits");
        let results = last.call(inputs, optimizer, line).await?;
        Ok(O::Tensors::collect(&mut results.into_iter()))
    }

    fn compile(&mut self, inputs: &[&Tensor], sight: Sight, optimizer: &mut dyn Optimizer) -> Result<CachedStep> {
        let Some(first) = inputs.first() else { bail!(Argument, "a training step needs a batch") };
        let types: Vec<TensorType> = inputs.iter().map(|tensor| tensor.ty()).collect();
        let (tape, vars) = Tape::of_step(first.device(), &types)?;
        self.recorded += 1;
        let results = (self.loss)(&self.module, &I::collect(&mut vars.into_iter())).vars()?;
        let Some(loss) = results.first() else { bail!(Argument, "a training step needs a loss") };
        let grads = tape.backward(loss)?;
        let mut recorder = Recorder { types: &types, results: &results, basis: None, sight };
        let sums = &mut optimizer.stepper_mut().sums;
        if !sums.is_last(self.accumulate)? {
            return recorder.addition(optimizer, &*self.module, &grads);
        }
        let grads = if sums.is_alone(self.accumulate) {
            grads
        } else {
            let addition = sums.record(&*self.module, &grads)?;
            let (grads, basis) = addition.into_grads(sums, grads, self.accumulate);
            recorder.basis = Some(basis);
            grads
        };
        let grads = (self.gradients)(&self.module, grads)?;
        if !grads.tape().same(&tape) {
            bail!(Argument, "the gradients are those of another tape than the loss");
        }
        recorder.update(optimizer, &*self.module, &grads)
    }
}

impl<M: Deref, I, O> fmt::Debug for TrainStep<'_, M, I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TrainStep({} compiled)", self.cached.len())
    }
}
