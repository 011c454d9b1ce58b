//! Buffers that a forward pass gives new values: noted while recording, applied when the step is taken.

use std::panic::Location;
use std::sync::Arc;

use super::{Tape, Var};
use crate::graph::ValueId;
use crate::param::Cell;
use crate::{Buffer, Error, ErrorKind, Result};

/// What a buffer becomes, or why it cannot.
pub(super) struct Assigned {
    cell: Arc<Cell>,
    new: Result<ValueId>,
}

impl Tape {
    /// Gives a model's buffer a new value, made from its latest on this tape: running statistics, say.
    ///
    /// The buffer changes when the step is taken, in the same run: by an optimizer's step, or without one by
    /// [`Tape::apply`]. A tape of which only values are read changes nothing. Where a step is held back, because a gradient is
    /// not finite, buffers stay as well.
    ///
    /// Whether the tape [is training](Self::is_training) is the caller's to ask. A new value that does not fit is an error of
    /// the step.
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
        let location = Location::caller();
        let cell = buffer.cell();
        let recorded = self.buffer(buffer);
        let known = self.recording.borrow().assigned_at.get(&cell.id()).copied();
        let latest = known.and_then(|at| self.recording.borrow().assigned[at].new.clone().ok());
        let old = latest.map_or(recorded, |value| self.var(value));
        let new = new(&old);
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
        // A buffer on another device is on this tape only as the error that says so.
        let assigned = Assigned { cell: Arc::clone(cell), new: old.id().and_then(|_| fits()) };
        let mut recording = self.recording.borrow_mut();
        match known {
            // What went wrong first stays.
            Some(at) if recording.assigned[at].new.is_err() => (),
            Some(at) => recording.assigned[at] = assigned,
            None => {
                let at = recording.assigned.len();
                recording.assigned_at.insert(assigned.cell.id(), at);
                recording.assigned.push(assigned);
            }
        }
    }

    /// Takes the step without an optimizer: computes everything that is held, and gives the buffers their new values. As any
    /// step, it ends the tape.
    ///
    /// # Errors
    ///
    /// What went wrong while recording; [`StaleTape`](ErrorKind::StaleTape) if a parameter changed meanwhile; what the device
    /// meets.
    pub fn apply(&self) -> Result<()> {
        self.update(Vec::new())
    }

    /// The buffers that are to change, and to what.
    pub(super) fn assigned_values(&self) -> Result<Vec<(Arc<Cell>, ValueId)>> {
        let recording = self.recording.borrow();
        let value = |assigned: &Assigned| Ok((Arc::clone(&assigned.cell), assigned.new.clone()?));
        recording.assigned.iter().map(value).collect()
    }

    /// Replaces the new value of each buffer by what `gate` makes of it and the old one.
    pub(crate) fn gate_buffers(&self, gate: impl Fn(&Var, &Var) -> Var) {
        let assigned = std::mem::take(&mut self.recording.borrow_mut().assigned);
        let gated = assigned.into_iter().map(|Assigned { cell, new }| {
            let new = new.and_then(|new| gate(&self.var(new), &self.cell(&cell)).id());
            Assigned { cell, new }
        });
        let gated = gated.collect();
        self.recording.borrow_mut().assigned = gated;
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
    fn what_does_not_fit_is_an_error_of_the_step() {
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
