//! The quality of a model on held-out data.

use std::panic::Location;

use super::source::{InputVars, Recordable, Source, TargetVars, of_vars};
use crate::data::{Batches, Fields};
use crate::error::{bail, here};
use crate::metric::Measure;
use crate::module::{Module, ModuleExt};
use crate::world::World;
use crate::{Device, Result, Tape, Tensor, Var};

/// The device of a model's parameters.
pub(super) fn device_of(model: &dyn Module) -> Result<Device> {
    match model.leaves().first() {
        Some(leaf) => Ok(leaf.value().device().clone()),
        None => bail!(Argument, "a model without parameters has no device"),
    }
}

/// Counts the predictions of a model over all batches, and returns the measure.
///
/// The function returns predictions and targets for the inputs and targets of a batch. It is recorded on a tape for
/// inference, on the device of the model's parameters.
///
/// ```
/// use meganeura::metric::Confusion;
/// use meganeura::prelude::*;
/// use meganeura::train::evaluate;
///
/// # fn main() -> meganeura::Result<()> {
/// let net = Linear::new(2, 3).init(&Device::cpu(), Seed::new(1))?;
/// let test = Dataset::new(vec![0.5; 20], [2], vec![1; 10])?;
/// let confusion = evaluate(&net, test.batches(4), Confusion::new(3)?, |net, x, labels| (net.forward(x), labels.clone()))?;
/// assert_eq!((0..3).map(|predicted| confusion.count(1, predicted)).sum::<u64>(), 10);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// Fails if the model has no parameters, if a batch cannot be made, and with the errors of the function and of the
/// measure.
#[track_caller]
pub fn evaluate<M: Module, I: Fields, T: Fields, C: Recordable<I, T>, V: Measure>(
    model: &M,
    batches: Batches<I, T, C>,
    mut measure: V,
    mut function: impl FnMut(&M, &InputVars<I, T, C>, &TargetVars<I, T, C>) -> (Var, Var),
) -> Result<V> {
    let source = Source::new(batches, Location::caller());
    here(|| {
        let device = device_of(model)?;
        let mut forward = |model: &M, vars: &[Var]| {
            let (inputs, targets) = of_vars::<I, T, C>(vars);
            function(model, &inputs, &targets)
        };
        pass(model, &source, &device, &World::alone(), &mut forward, &mut |y, t| measure.update(y, t))?;
        Ok(measure)
    })
}

/// Predictions and targets of a batch.
pub(super) type Forward<'a, M> = dyn FnMut(&M, &[Var]) -> (Var, Var) + 'a;

/// Counts a rank's part of the batches.
fn pass<M>(
    model: &M,
    source: &Source,
    device: &Device,
    world: &World,
    forward: &mut Forward<'_, M>,
    count: &mut dyn FnMut(&Tensor, &Tensor) -> Result<()>,
) -> Result<()> {
    for batch in source.pass(device, world) {
        let tape = Tape::inference(device);
        let vars: Vec<_> = batch?.iter().map(|tensor| tape.input(tensor)).collect();
        let (predictions, targets) = forward(model, &vars);
        count(&predictions.to_tensor()?, &targets.to_tensor()?)?;
    }
    Ok(())
}

/// A measure that has counted nothing yet, as often as needed.
type Fresh = Box<dyn Fn() -> Box<dyn Measure>>;

/// A validation of a [`Trainer`](super::Trainer).
pub(super) struct Validation<'a, M> {
    source: Source,
    forward: Box<Forward<'a, M>>,
    measures: Vec<(String, Fresh)>,
}

impl<'a, M> Validation<'a, M> {
    pub(super) fn new(source: Source, forward: impl FnMut(&M, &[Var]) -> (Var, Var) + 'a) -> Self {
        Self { source, forward: Box::new(forward), measures: Vec::new() }
    }

    pub(super) fn measure(&mut self, name: String, measure: impl Measure + Clone + 'static) {
        self.measures.push((name, Box::new(move || Box::new(measure.clone()))));
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.measures.iter().map(|(name, _)| &**name)
    }

    /// The values of the measures, the same on all ranks.
    pub(super) fn run(&mut self, model: &M, device: &Device, world: &World) -> Result<Vec<(String, f64)>> {
        let mut measures: Vec<_> = self.measures.iter().map(|(_, fresh)| fresh()).collect();
        let mut count = |predictions: &Tensor, targets: &Tensor| {
            measures.iter_mut().try_for_each(|measure| measure.update(predictions, targets))
        };
        let counted = pass(model, &self.source, device, world, &mut *self.forward, &mut count);
        world.expect_all(counted)?;
        let value = |((name, _), mut measure): (&(String, Fresh), Box<dyn Measure>)| {
            if !world.is_alone() {
                measure.gather(world)?;
            }
            let value = measure.value().map_err(|error| error.context(format_args!("the measure `{name}`")))?;
            Ok((name.clone(), value))
        };
        self.measures.iter().zip(measures).map(value).collect()
    }
}
