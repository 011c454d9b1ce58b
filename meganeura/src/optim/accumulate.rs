//! Gradients of several small batches, for one step.

use std::collections::HashMap;
use std::fmt;

use super::state::Kept;
use super::step::{Trained, expect_gradients};
use crate::error::bail;
use crate::module::{Module, ModuleExt};
use crate::{Grads, Result, Var};

/// Adds up the gradients of micro-batches, so that a step is that of a batch too large for the device.
///
/// Each micro-batch but the last is one run: forward pass, backward pass and sum. In the last one the update is part of the run,
/// clipping included. So there are two plans however many micro-batches make a step.
///
/// ```
/// use meganeura::optim::Accumulator;
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let mut net = Linear::new(1, 1).init(&device, Seed::new(1))?;
/// let mut optimizer = AdamW::new(1e-3);
/// let mut accumulator = Accumulator::mean(4);
/// for number in 0..8u8 {
///     let tape = Tape::new(&device);
///     let x = Tensor::full(&device, [16, 1], f32::from(number))?;
///     let loss = net.forward(&tape.input(&x)).square().mean();
///     let grads = tape.backward(&loss)?;
///     if let Some(grads) = accumulator.add(&net, grads)? {
///         let grads = grads.clip_norm(&net, 1.0)?;
///         optimizer.step(&mut net, &grads)?; // twice
///     }
/// }
/// # Ok::<(), meganeura::Error>(())
/// ```
#[must_use]
pub struct Accumulator {
    every: u64,
    is_mean: bool,
    /// How many are in the sums.
    added: u64,
    /// By the identity of the parameter: one sum for each.
    sums: HashMap<u64, Kept>,
}

impl Accumulator {
    /// The mean of as many micro-batches, for losses that are means: the gradient of the whole batch, where micro-batches are
    /// equally large.
    pub fn mean(every: u64) -> Self {
        Self { every, is_mean: true, added: 0, sums: HashMap::new() }
    }

    /// The sum of as many micro-batches, for losses that are sums.
    pub fn sum(every: u64) -> Self {
        Self { is_mean: false, ..Self::mean(every) }
    }

    /// How many micro-batches were added since the last step.
    #[must_use]
    pub fn added(&self) -> u64 {
        self.added
    }

    /// Adds the gradients of a micro-batch. With those of the last one it gives the gradients to step along; with others it
    /// runs what was recorded, and everything that is held on the tape is computed along.
    ///
    /// # Errors
    ///
    /// What went wrong while recording; [`NoGradient`](crate::ErrorKind::NoGradient), as for
    /// [`Optimizer::step`](super::Optimizer::step); [`Argument`](crate::ErrorKind::Argument) if every 0 are to make a step. The
    /// sums have not changed then.
    #[track_caller]
    pub fn add(&mut self, module: &dyn Module, grads: Grads) -> Result<Option<Grads>> {
        if self.every == 0 {
            bail!(Argument, "gradients of 0 micro-batches make no step");
        }
        if self.added + 1 >= self.every {
            return self.finish(module, grads).map(Some);
        }
        let sums = self.record(module, &grads)?;
        let sums = sums.into_iter().map(|(Trained { cell, .. }, sum)| (self.sums[&cell.id()].cells[0].clone(), sum));
        grads.tape().update(sums.collect())?;
        self.added += 1;
        Ok(None)
    }

    /// As [`add`](Self::add) with the last micro-batch, whichever it is: where data end early.
    ///
    /// # Errors
    ///
    /// As [`add`](Self::add).
    #[track_caller]
    pub fn finish(&mut self, module: &dyn Module, grads: Grads) -> Result<Grads> {
        if self.every == 1 && self.added == 0 {
            return Ok(grads);
        }
        let sums = self.record(module, &grads)?;
        #[expect(clippy::cast_precision_loss, reason = "nobody adds 2^53 gradients")]
        let share = grads.tape().scalar(1.0 / (self.added + 1) as f64);
        let scaled = |sum| if self.is_mean { sum * &share } else { sum };
        let entries = sums.into_iter().map(|(Trained { cell, .. }, sum)| (cell, scaled(sum))).collect();
        self.added = 0;
        Ok(grads.with_entries(entries))
    }

    /// The sum of each parameter's gradients, these included. The first ones of a step take the place of old sums, which may
    /// hold anything, in the plan of those that come after.
    #[track_caller]
    fn record(&mut self, module: &dyn Module, grads: &Grads) -> Result<Vec<(Trained, Var)>> {
        let tape = grads.tape();
        let has_sums = tape.scalar(if self.added > 0 { 1.0 } else { 0.0 });
        let zero = tape.constant(0.0);
        let mut sums = Vec::new();
        for parameter in expect_gradients(&module.leaves(), grads)? {
            let kept = self.sums.entry(parameter.cell.id()).or_default();
            kept.prepare(&parameter.cell, 1)?;
            let sum = has_sums.select(&tape.cell(&kept.cells[0]), &zero) + &parameter.dw;
            sums.push((parameter, sum));
        }
        Ok(sums)
    }
}

impl fmt::Debug for Accumulator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { every, is_mean, added, .. } = self;
        write!(f, "Accumulator {{ every: {every}, is_mean: {is_mean}, added: {added} }}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::{Adam, Optimizer, Sgd};
    use crate::{Device, ErrorKind, Param, Precision, Tape, Tensor};

    fn param() -> Param {
        Param::new(Tensor::from_f64(&Device::cpu_with(Precision::Double), [2], &[1.0, -2.0]).unwrap())
    }

    /// The gradient is `x`, whatever `w` is.
    fn grads(w: &Param, x: [f64; 2]) -> Grads {
        let tape = Tape::new(w.value().device());
        let x = tape.input(&Tensor::from_f64(&tape.device(), [2], &x).unwrap());
        tape.backward(&(tape.param(w) * x).sum()).unwrap()
    }

    fn value(w: &Param) -> Vec<f64> {
        w.value().to_f64_vec().unwrap()
    }

    #[test]
    fn sums_and_means_begin_anew_after_each_step() {
        for (mut accumulator, share) in [(Accumulator::mean(3), 1.0 / 3.0), (Accumulator::sum(3), 1.0)] {
            let (mut w, mut sgd) = (param(), Sgd::new(0.5));
            let mut expected = value(&w);
            for cycle in 0..3 {
                let all = [[1.0, 0.5], [2.0, f64::from(cycle)], [0.25, -4.0]];
                for (k, x) in all.into_iter().enumerate() {
                    assert_eq!(accumulator.added(), k as u64);
                    let before = value(&w);
                    match accumulator.add(&w, grads(&w, x)).unwrap() {
                        Some(grads) => sgd.step(&mut w, &grads).unwrap(),
                        None => assert_eq!(value(&w), before),
                    }
                }
                for (i, expected) in expected.iter_mut().enumerate() {
                    *expected -= 0.5 * (all.iter().map(|x| x[i]).sum::<f64>() * share);
                }
                let found = value(&w);
                assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-15), "{found:?} {expected:?}");
            }
        }
    }

    #[test]
    fn there_are_two_plans() {
        let mut w = param();
        let device = w.value().device().clone();
        let (mut adam, mut accumulator) = (Adam::new(0.1), Accumulator::mean(4));
        for step in 0..12 {
            let grads = grads(&w, [1.0, 2.0]);
            if let Some(grads) = accumulator.add(&w, grads).unwrap() {
                let grads = grads.clip_norm(&w, 1.0).unwrap().clip_value(&w, 0.5).unwrap();
                adam.step(&mut w, &grads).unwrap();
            }
            assert_eq!(device.stats().plans, if step < 3 { 1 } else { 2 });
        }
    }

    #[test]
    fn what_is_not_finite_is_gone_with_its_step() {
        let (mut w, mut accumulator) = (param(), Accumulator::sum(2));
        let mut sgd = Sgd::new(0.5).skip_not_finite(true);
        for x in [[f64::NAN, f64::INFINITY], [0.0; 2], [1.0, 1.0], [1.0, 3.0]] {
            if let Some(grads) = accumulator.add(&w, grads(&w, x)).unwrap() {
                sgd.step(&mut w, &grads).unwrap();
            }
        }
        assert_eq!((value(&w), sgd.skipped()), (vec![0.0, -4.0], 1));
    }

    #[test]
    fn data_may_end_early() {
        let (mut w, mut accumulator) = (param(), Accumulator::mean(100));
        assert!(accumulator.add(&w, grads(&w, [1.0, 2.0])).unwrap().is_none());
        let last = accumulator.finish(&w, grads(&w, [3.0, 4.0])).unwrap();
        Sgd::new(1.0).step(&mut w, &last).unwrap();
        assert_eq!((value(&w), accumulator.added()), (vec![-1.0, -5.0], 0));
    }

    #[test]
    fn misuse_is_an_error() {
        let (w, other) = (param(), param());
        let error = Accumulator::sum(0).add(&w, grads(&w, [1.0; 2])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Argument);
        let mut accumulator = Accumulator::sum(2);
        let error = accumulator.add(&other, grads(&w, [1.0; 2])).unwrap_err();
        assert_eq!((error.kind(), accumulator.added()), (ErrorKind::NoGradient, 0));
    }
}
