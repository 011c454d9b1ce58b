//! Host numbers on a tape: scalars, constants, and the random seed.

use std::panic::Location;

use super::{Tape, Var};
use crate::graph::{Exact, Source};
use crate::host::HostWord;
use crate::{DType, Shape, TensorType};

impl Tape {
    /// A number that may change from step to step without a new plan, such as a learning rate or a loss weight.
    #[must_use]
    #[track_caller]
    pub fn scalar(&self, value: f64) -> Var {
        let mut recording = self.recording.borrow_mut();
        let at = recording.host.len();
        recording.host.push(HostWord::Float(value));
        let ty = TensorType::new(recording.device.precision().dtype(), Shape::SCALAR);
        let value = recording.push(Source::Host(at), [], [ty], Location::caller());
        drop(recording);
        self.var(value)
    }

    /// A number that is part of the program: a different one needs a new plan.
    #[track_caller]
    #[doc(hidden)]
    pub fn constant(&self, value: f64) -> Var {
        let mut recording = self.recording.borrow_mut();
        let ty = TensorType::new(recording.device.precision().dtype(), Shape::SCALAR);
        let value = recording.push(Source::Const(Exact(value)), [], [ty], Location::caller());
        drop(recording);
        self.var(value)
    }

    /// The tape's random seed as two `u32` words, and the number of a new stream.
    #[track_caller]
    pub(crate) fn random_stream(&self) -> (Var, u32) {
        let mut recording = self.recording.borrow_mut();
        let stream = recording.streams;
        recording.streams += 1;
        let value = match recording.seed_value {
            Some(value) => value,
            None => {
                let at = recording.host.len();
                let seed = recording.seed;
                recording.host.extend(HostWord::of_seed(seed));
                let ty = TensorType::new(DType::U32, Shape::from([2]));
                recording.push(Source::Host(at), [], [ty], Location::caller())
            }
        };
        recording.seed_value = Some(value);
        drop(recording);
        (self.var(value), stream)
    }
}
