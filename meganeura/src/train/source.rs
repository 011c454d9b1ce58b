//! Batches of any fields, as lists of tensors.

use std::panic::Location;

use crate::data::{Batch, Batches, Collate, Fields, OnTape};
use crate::run::Run;
use crate::world::World;
use crate::{Device, Result, Tensor, Var};

/// The tensors of each batch: those of the inputs, then those of the targets.
pub(super) type Flat = Box<dyn Iterator<Item = Result<Vec<Tensor>>>>;

/// The inputs of a batch on a tape.
pub(super) type InputVars<I, T, C> = <<<C as Collate<I, T>>::Inputs as Fields>::Tensors as OnTape>::Vars;

/// The targets of a batch on a tape.
pub(super) type TargetVars<I, T, C> = <<<C as Collate<I, T>>::Targets as Fields>::Tensors as OnTape>::Vars;

/// Batches that a step can record.
///
/// A name for the bounds: all [`Collate`]s whose batches are [`OnTape`] have it.
pub trait Recordable<I, T>: Collate<I, T, Inputs: Fields<Tensors: OnTape>, Targets: Fields<Tensors: OnTape>> {}

impl<I, T, C> Recordable<I, T> for C where
    C: Collate<I, T, Inputs: Fields<Tensors: OnTape>, Targets: Fields<Tensors: OnTape>>
{
}

/// Batches without their types, and the user's line that gave them.
pub(super) struct Source {
    batches: Box<dyn Erased>,
    line: &'static Location<'static>,
}

trait Erased {
    fn len(&self) -> Result<usize>;
    fn next_epoch(&self, run: &mut Run, epochs: u64, line: &'static Location<'static>) -> Option<Flat>;
    fn pass(&self, device: &Device, world: &World, line: &'static Location<'static>) -> Flat;
}

impl Source {
    pub(super) fn new<I: Fields, T: Fields, C: Recordable<I, T>>(
        batches: Batches<I, T, C>,
        line: &'static Location<'static>,
    ) -> Self {
        Self { batches: Box::new(batches), line }
    }

    /// The number of batches in an epoch.
    pub(super) fn len(&self) -> Result<usize> {
        self.batches.len().map_err(|error| error.at(self.line))
    }

    /// The remaining batches of the run's next epoch.
    pub(super) fn next_epoch(&self, run: &mut Run, epochs: u64) -> Option<Flat> {
        self.batches.next_epoch(run, epochs, self.line)
    }

    /// All batches, the same at each pass; of several ranks, each gets every n-th.
    pub(super) fn pass(&self, device: &Device, world: &World) -> Flat {
        self.batches.pass(device, world, self.line)
    }
}

impl<I: Fields, T: Fields, C: Recordable<I, T>> Erased for Batches<I, T, C> {
    fn len(&self) -> Result<usize> {
        self.len()
    }

    fn next_epoch(&self, run: &mut Run, epochs: u64, line: &'static Location<'static>) -> Option<Flat> {
        let batches = run.next_epoch_of(self, epochs)?.at_line(line);
        Some(flat(batches))
    }

    fn pass(&self, device: &Device, world: &World, line: &'static Location<'static>) -> Flat {
        let batches = self.clone().epoch(0).on(device).at_line(line);
        flat(batches.skip(world.rank()).step_by(world.size()))
    }
}

fn flat<A: OnTape, B: OnTape>(batches: impl Iterator<Item = Result<Batch<A, B>>> + 'static) -> Flat {
    Box::new(batches.map(|batch| {
        let (Batch { inputs, targets }, mut tensors) = (batch?, Vec::new());
        inputs.push_onto(&mut tensors);
        targets.push_onto(&mut tensors);
        Ok(tensors)
    }))
}

/// The inputs and targets that these values stand for.
pub(super) fn of_vars<I: Fields, T: Fields, C: Recordable<I, T>>(
    vars: &[Var],
) -> (InputVars<I, T, C>, TargetVars<I, T, C>) {
    let mut vars = vars.iter().cloned();
    let inputs = <<C::Inputs as Fields>::Tensors as OnTape>::record(&mut vars);
    (inputs, <<C::Targets as Fields>::Tensors as OnTape>::record(&mut vars))
}
