//! Compiled training steps: functions that update cells, and take numbers with each call.

use std::fmt;
use std::sync::Arc;

use super::compile::Function;
use super::{Tape, Var};
use crate::graph::Source;
use crate::host::HostWord;
use crate::param::Cell;
use crate::{Device, Result, Tensor, TensorType};

/// A compiled step. A call takes the batch and the numbers, and updates the cells.
pub struct CompiledStep {
    function: Function,
    host: Vec<HostWord>,
    /// The host word of each number, unless nothing depends on it.
    numbers: Vec<Option<usize>>,
    /// The first of the two host words of the random seed, if it is used.
    seed: Option<usize>,
}

impl Tape {
    /// A tape to record a training step on, and the step's inputs, which have no tensors yet.
    #[track_caller]
    #[doc(hidden)]
    pub fn of_step(device: &Device, types: &[TensorType]) -> Result<(Self, Vec<Var>)> {
        let tape = Self::with_seed(device, 0);
        let inputs = tape.declare_all(types)?;
        Ok((tape, inputs))
    }

    /// Compiles the recording: the wanted values, the new values of cells and of updated buffers, and the
    /// [scalars](Self::scalar) that each call provides.
    #[doc(hidden)]
    pub fn compile_step(
        &self,
        types: &[TensorType],
        wanted: &[&Var],
        updates: Vec<(Arc<Cell>, Var)>,
        numbers: &[Var],
    ) -> Result<CompiledStep> {
        let wanted = wanted.iter().map(|value| self.own(value)).collect::<Result<Vec<_>>>()?;
        let mut assigns = updates.into_iter().map(|(cell, new)| Ok((cell, new.id()?))).collect::<Result<Vec<_>>>()?;
        let recording = self.recording.borrow();
        assigns.extend(recording.assigned_values()?);
        let (function, words) = recording.compile(types, &wanted, Some(&assigns))?;
        let word = |value| match recording.graph.maker(value).source {
            Source::Host(at) => words.iter().position(|&word| word == at),
            _ => unreachable!("scalars and seeds are words of the host"),
        };
        let numbers = numbers.iter().map(|number| Ok(word(number.id()?))).collect::<Result<_>>()?;
        let seed = recording.seed_value.and_then(word);
        let host = function.host().to_vec();
        Ok(CompiledStep { function, host, numbers, seed })
    }
}

impl fmt::Debug for CompiledStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompiledStep").finish_non_exhaustive()
    }
}

impl CompiledStep {
    /// `true` if a call can take these inputs, and the cells are on its device.
    pub fn takes(&self, inputs: &[&Tensor]) -> bool {
        let device = self.function.device();
        let is_here = |tensor: &&Tensor| tensor.is_readable_on(device);
        self.function.types().eq(inputs.iter().map(|tensor| tensor.ty()))
            && inputs[0].device().precision() == device.precision()
            && inputs.iter().all(is_here)
            && self.function.is_at_home()
    }

    /// An estimate of the host memory that it takes.
    pub fn host_bytes(&self) -> usize {
        self.function.host_bytes()
    }

    /// Takes a step with these inputs and numbers, and the device's next random seed. Returns the wanted values.
    #[doc(hidden)]
    pub fn call(&mut self, inputs: &[&Tensor], numbers: impl IntoIterator<Item = f64>) -> Result<Vec<Tensor>> {
        for (word, number) in self.numbers.iter().zip(numbers) {
            if let Some(at) = *word {
                self.host[at] = HostWord::Float(number);
            }
        }
        // Drawn for each step, as a new tape would.
        let seed = self.function.device().next_seed();
        if let Some(at) = self.seed {
            self.host[at..at + 2].copy_from_slice(&HostWord::of_seed(seed));
        }
        self.function.call(inputs, &self.host)
    }
}
