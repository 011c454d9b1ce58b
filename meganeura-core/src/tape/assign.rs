//! Updates of buffers: noted while a forward pass is recorded, applied when the step is taken.

use std::panic::Location;
use std::sync::Arc;

use super::{Tape, TapeState, Var};
use crate::error::here;
use crate::graph::ValueId;
use crate::param::Cell;
use crate::{Buffer, Error, ErrorKind, Result};

/// A buffer with its new value.
pub(super) struct Assigned {
    cell: Arc<Cell>,
    pub(super) new: New,
}

/// The new value of a buffer.
#[derive(Clone)]
pub(super) enum New {
    /// This value, on the next step.
    Pending(ValueId),
    /// A step has applied it.
    Taken,
    /// It could not be recorded.
    Wrong(Error),
}

impl New {
    pub(super) fn pending(&self) -> Option<ValueId> {
        match self {
            Self::Pending(value) => Some(*value),
            Self::Taken | Self::Wrong(_) => None,
        }
    }
}

impl From<Result<ValueId>> for New {
    fn from(new: Result<ValueId>) -> Self {
        new.map_or_else(Self::Wrong, Self::Pending)
    }
}

impl Tape {
    /// Updates a model's buffer, such as running statistics, to a function of its latest value on this tape.
    ///
    /// The buffer changes when the step is taken, in the same run: by an optimizer's step, or by [`Tape::apply`]
    /// without an optimizer. Reading values of the tape changes no buffer. If a step is skipped because a gradient is
    /// not finite, buffers keep their values as well. If several optimizers step parts of a model, the first step
    /// updates all buffers.
    ///
    /// The caller checks whether the tape [is training](Self::is_training). A new value of the wrong type is an error
    /// of the step.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let seen = Buffer::new(Tensor::zeros(&device, [2])?);
    /// for _ in 0..3 {
    ///     let tape = Tape::new(&device);
    ///     let x = tape.input(&Tensor::from_slice(&device, [2], &[1.0, 5.0])?);
    ///     tape.update_buffer(&seen, |old| old + &x);
    ///     tape.apply()?;
    /// }
    /// assert_eq!(seen.value().to_vec()?, [3.0, 15.0]);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    #[track_caller]
    pub fn update_buffer(&self, buffer: &Buffer, new: impl FnOnce(&Var) -> Var) {
        let old = self.latest(buffer);
        self.assign(buffer, &old, &new(&old));
    }

    /// The latest value of a buffer on this tape.
    #[track_caller]
    #[doc(hidden)]
    pub fn latest(&self, buffer: &Buffer) -> Var {
        let recorded = self.buffer(buffer);
        let latest = self.assigned_to(buffer).and_then(|at| self.recording.borrow().assigned[at].new.pending());
        latest.map_or(recorded, |value| self.var(value))
    }

    fn assigned_to(&self, buffer: &Buffer) -> Option<usize> {
        self.recording.borrow().assigned_at.get(&buffer.cell().id()).copied()
    }

    /// [`update_buffer`](Self::update_buffer) with the new value already recorded, for callers whose line a closure
    /// would hide.
    #[track_caller]
    #[doc(hidden)]
    pub fn assign(&self, buffer: &Buffer, old: &Var, new: &Var) {
        let location = Location::caller();
        let known = self.assigned_to(buffer);
        let fits = || {
            let error = |kind, message: String| {
                let error = Error::new(kind, message).in_op("update_buffer").operand(buffer.ty(), buffer.path());
                error.operand(new.ty(), new.path()).at(location)
            };
            if !self.same(new.tape()) {
                return Err(error(ErrorKind::Argument, "the new value is on another tape".into()));
            }
            let value = new.id()?;
            if new.ty() != buffer.ty() {
                return Err(error(ErrorKind::Shape, format!("{} cannot take the place of {}", new.ty(), buffer.ty())));
            }
            Ok(value)
        };
        // For a buffer on another device, `old` is poisoned; the step returns its error.
        let assigned = Assigned { cell: Arc::clone(buffer.cell()), new: old.id().and_then(|_| fits()).into() };
        let mut recording = self.recording.borrow_mut();
        match known {
            // The first error stays.
            Some(at) if matches!(recording.assigned[at].new, New::Wrong(_)) => (),
            Some(at) => recording.assigned[at] = assigned,
            None => {
                let at = recording.assigned.len();
                recording.assigned_at.insert(assigned.cell.id(), at);
                recording.assigned.push(assigned);
            }
        }
    }

    /// Takes the step without an optimizer.
    ///
    /// Computes all held values, and updates the buffers. As after any step, values that depend on an updated buffer
    /// are stale.
    ///
    /// # Errors
    ///
    /// Any error from recording, and errors of the device. [`StaleTape`](ErrorKind::StaleTape) if a parameter has
    /// changed since, or if a step has already updated the buffers.
    #[track_caller]
    pub fn apply(&self) -> Result<()> {
        here(|| {
            self.expect_not_taken()?;
            self.update(Vec::new())
        })
    }

    fn expect_not_taken(&self) -> Result<()> {
        let assigned = &self.recording.borrow().assigned;
        match assigned.first() {
            Some(Assigned { cell, .. }) if assigned.iter().all(|assigned| matches!(assigned.new, New::Taken)) => {
                Err(super::run::stale(cell))
            }
            _ => Ok(()),
        }
    }

    /// Replaces the new value of each buffer by `gate` of it and the old one.
    #[doc(hidden)]
    pub fn gate_buffers(&self, gate: impl Fn(&Var, &Var) -> Var) {
        let mut assigned = std::mem::take(&mut self.recording.borrow_mut().assigned);
        for Assigned { cell, new } in &mut assigned {
            if let Some(value) = new.pending() {
                *new = gate(&self.var(value), &self.cell(cell)).id().into();
            }
        }
        self.recording.borrow_mut().assigned = assigned;
    }
}

impl TapeState {
    /// The buffers to update, with their new values.
    pub(super) fn assigned_values(&self) -> Result<Vec<(Arc<Cell>, ValueId)>> {
        let value = |Assigned { cell, new }: &Assigned| match new {
            New::Pending(value) => Some(Ok((Arc::clone(cell), *value))),
            New::Taken => None,
            New::Wrong(error) => Some(Err(error.clone())),
        };
        self.assigned.iter().filter_map(value).collect()
    }

    /// Notes that a step has taken the buffers.
    pub(super) fn take_assigned(&mut self) {
        self.assigned.iter_mut().for_each(|assigned| assigned.new = New::Taken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, Tensor};

    fn buffer(device: &Device, data: &[f32]) -> Buffer {
        Buffer::new(Tensor::from_slice(device, [data.len()], data).unwrap())
    }

    #[test]
    fn each_update_sees_the_one_before() {
        let device = Device::cpu();
        let buffer = buffer(&device, &[1.0, 2.0]);
        let tape = Tape::new(&device);
        tape.update_buffer(&buffer, |old| old * 10.0);
        tape.update_buffer(&buffer, |old| old + 1.0);
        assert_eq!(tape.buffer(&buffer).to_vec().unwrap(), [1.0, 2.0], "reading changes nothing");
        tape.apply().unwrap();
        assert_eq!(buffer.value().to_vec().unwrap(), [11.0, 21.0]);
        assert_eq!(tape.apply().unwrap_err().kind(), ErrorKind::StaleTape);
    }

    #[test]
    fn misfits_are_errors_of_the_step() {
        let device = Device::cpu();
        let buffer = buffer(&device, &[1.0, 2.0]);
        buffer.set_path("norm.running_mean");
        let tape = Tape::new(&device);
        let line = line!() + 1;
        tape.update_buffer(&buffer, |old| old.sum());
        tape.update_buffer(&buffer, |old| old + 1.0);
        let error = tape.apply().unwrap_err();
        assert_eq!((error.kind(), error.location().unwrap().line()), (ErrorKind::Shape, line));
        assert!(error.to_string().contains("norm.running_mean"), "{error}");
        let other = Tape::new(&device);
        other.update_buffer(&buffer, |_| tape.buffer(&buffer));
        assert_eq!(other.apply().unwrap_err().kind(), ErrorKind::Argument);
        assert_eq!(buffer.value().to_vec().unwrap(), [1.0, 2.0]);
    }
}
