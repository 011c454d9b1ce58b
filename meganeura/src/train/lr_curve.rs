//! Losses at rising learning rates: a search for the rate to train with.

use std::fmt;

use super::trainer::Trainer;
use super::validation::device_of;
use crate::error::{bail, here};
use crate::module::{Leaf, Module, ModuleExt};
use crate::optim::{Accumulate, Optimizer, TrainStep};
use crate::run::Run;
use crate::{Result, Tensor, Var};

/// The lowest and the highest learning rate, and the number of steps between them.
const RANGE: [f64; 2] = [1e-7, 10.0];
const STEPS: u32 = 100;

/// The share of the earlier losses in a smoothed loss.
const SMOOTHING: f64 = 0.9;

/// The factor above the best loss at which the search ends.
const DIVERGED: f64 = 4.0;

/// Losses at rising learning rates, from [`Trainer::find_lr`]. `{}` draws them.
///
/// ```text
///      lr     loss
///  1.0e-7   2.3104  ###########################
///  …
///  6.3e-3   1.1052  ############  <- the steepest fall
///  …
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct LrCurve {
    points: Vec<(f64, f64)>,
}

impl LrCurve {
    /// Learning rates with their smoothed losses, in the order of the steps.
    #[must_use]
    pub fn points(&self) -> &[(f64, f64)] {
        &self.points
    }

    /// The learning rate at which the loss falls most steeply, over a tenth of the curve to each side; `None` if it
    /// never falls. Good rates to train with lie
    /// near it: the peak of a [`one_cycle`](crate::optim::Schedule::one_cycle) schedule may be a few times larger.
    #[must_use]
    pub fn suggestion(&self) -> Option<f64> {
        let reach = (self.points.len() / 10).max(1);
        let slopes = self.points.windows(2 * reach + 1).map(|part| (part[reach].0, part[2 * reach].1 - part[0].1));
        let steepest = slopes.min_by(|a, b| a.1.total_cmp(&b.1));
        steepest.filter(|&(_, slope)| slope < 0.0).map(|(lr, _)| lr)
    }
}

impl fmt::Display for LrCurve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const WIDTH: f64 = 40.0;
        let losses = || self.points.iter().map(|&(_, loss)| loss);
        let (low, high) = losses().fold((f64::MAX, f64::MIN), |(low, high), loss| (low.min(loss), high.max(loss)));
        write!(f, "      lr     loss")?;
        for &(lr, loss) in &self.points {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to the width")]
            let length = (WIDTH * (loss - low) / (high - low).max(f64::MIN_POSITIVE)) as usize;
            let mark = if Some(lr) == self.suggestion() { "  <- the steepest fall" } else { "" };
            write!(f, "\n{lr:8.1e} {loss:8.4}  {:#<1$}{mark}", "", length + 1)?;
        }
        Ok(())
    }
}

impl<M: Module> Trainer<'_, M> {
    /// Trains for up to 100 steps with learning rates that rise from 1e-7 to 10, until the loss diverges, and returns
    /// the losses. The model and the device's random numbers are then as before; the optimizer is used up.
    /// [Smith, 2015](https://arxiv.org/abs/1506.01186).
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// # fn main() -> meganeura::Result<()> {
    /// # let mut net = (Linear::new(1, 8), Relu, Linear::new(8, 2)).init(&Device::cpu(), Seed::new(1))?;
    /// # let x: Vec<f32> = (0..64u16).map(|i| f32::from(i).sin()).collect();
    /// # let labels: Vec<u32> = x.iter().map(|x| u32::from(*x > 0.0)).collect();
    /// # let batches = Dataset::new(x, [1], labels)?.batches(16).shuffle(7);
    /// let curve = Trainer::new(&mut net, batches, |net, x, t| net.forward(x).cross_entropy(t)).find_lr(AdamW::new(0.0))?;
    /// println!("{curve}");
    /// let lr = curve.suggestion().unwrap_or(1e-3);
    /// # assert!((1e-6..10.0).contains(&lr), "{curve}");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Of the trainer's options, [`accumulate`](Self::accumulate), [`clip_norm`](Self::clip_norm) and
    /// [`gradients`](Self::gradients) apply.
    ///
    /// # Errors
    ///
    /// Fails like [`fit`](Self::fit), and with [`NotFinite`](crate::ErrorKind::NotFinite) if the first loss is NaN or
    /// infinite.
    #[track_caller]
    pub fn find_lr(self, mut optimizer: impl Optimizer) -> Result<LrCurve> {
        here(|| {
            self.check()?;
            let Self { model, source, mut loss, mut gradients, run, accumulate, .. } = self;
            let device = match &run {
                Some(run) => run.device().clone(),
                None => device_of(model)?,
            };
            let seed = device.seed();
            let values: Vec<Tensor> = model.leaves().iter().map(Leaf::value).collect();
            let mut run = Run::unkept(&device).open()?;
            let mut step = TrainStep::new(&*model, |model: &M, vars: &Vec<Var>| loss(model, vars))
                .gradients(|model, grads| gradients.iter_mut().try_fold(grads, |grads, change| change(model, grads)))
                .accumulate(Accumulate::mean(accumulate));
            let mut search = Search::default();
            let mut rise = || {
                while let Some(batches) = source.next_epoch(&mut run, u64::MAX) {
                    for batch in batches {
                        let batch = batch?;
                        optimizer.set_lr(search.lr());
                        let results = step.call(&mut optimizer, &batch.iter().collect::<Vec<_>>())?;
                        let loss = results[0].to_f64_vec()?.iter().sum::<f64>();
                        if search.is_over_after(loss, accumulate)? {
                            return Ok(());
                        }
                        run.advance();
                    }
                }
                Ok(())
            };
            let result = rise();
            drop(step);
            for (leaf, value) in model.leaves().iter().zip(values) {
                leaf.cell().set(value);
            }
            device.set_seed(seed);
            result.map(|()| LrCurve { points: search.points })
        })
    }
}

/// The losses so far.
#[derive(Default)]
struct Search {
    points: Vec<(f64, f64)>,
    /// The losses of the batches of a step that is not complete.
    batches: Vec<f64>,
    /// The decaying sum of the losses, and that of their weights.
    sum: f64,
    weight: f64,
}

impl Search {
    fn lr(&self) -> f64 {
        let [low, high] = RANGE;
        low * (high / low).powf(self.points.len() as f64 / f64::from(STEPS - 1))
    }

    /// Takes the loss of a batch. Returns `true` after the last step, and if the loss diverges.
    fn is_over_after(&mut self, loss: f64, accumulate: u64) -> Result<bool> {
        self.batches.push(loss);
        if (self.batches.len() as u64) < accumulate {
            return Ok(false);
        }
        let loss = self.batches.iter().sum::<f64>() / self.batches.len() as f64;
        self.batches.clear();
        if !loss.is_finite() {
            if self.points.is_empty() {
                bail!(NotFinite, "the first loss is {loss}");
            }
            return Ok(true);
        }
        let lr = self.lr();
        self.sum = SMOOTHING * self.sum + (1.0 - SMOOTHING) * loss;
        self.weight = SMOOTHING * self.weight + (1.0 - SMOOTHING);
        let smooth = self.sum / self.weight;
        let best = self.points.iter().map(|&(_, loss)| loss).fold(f64::INFINITY, f64::min);
        // Losses may be negative.
        let is_diverged = smooth > best + (DIVERGED - 1.0) * best.abs() && self.points.len() >= 10;
        if !is_diverged {
            self.points.push((lr, smooth));
        }
        Ok(is_diverged || self.points.len() >= STEPS as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steepest_fall_is_suggested() {
        let curve = |losses: &[f64]| {
            let points = losses.iter().enumerate().map(|(step, &loss)| (10_f64.powi(step as i32 - 4), loss));
            LrCurve { points: points.collect() }
        };
        let falls = curve(&[2.0, 1.9, 1.0, 0.8, 3.0]);
        assert_eq!(falls.suggestion(), Some(falls.points[2].0));
        assert!(falls.to_string().contains("1.0e-3   1.9000  #"), "{falls}");
        assert_eq!(falls.to_string().matches("<- the steepest fall").count(), 1);
        assert_eq!((curve(&[1.0, 2.0, 3.0]).suggestion(), curve(&[]).suggestion()), (None, None));
    }

    #[test]
    fn a_search_ends_when_the_loss_diverges() {
        let mut search = Search::default();
        let mut count = 0;
        while !search.is_over_after(if count < 20 { 1.0 } else { 100.0 }, 2).unwrap() {
            count += 1;
        }
        assert_eq!((count, search.points.len()), (21, 10));
        let mut search = Search::default();
        assert_eq!(search.lr(), 1e-7);
        while !search.is_over_after(-1.0, 1).unwrap() {}
        assert_eq!(search.points.len(), 100);
        assert!((search.points[99].0 - 10.0).abs() < 1e-9 && (search.points[50].1 + 1.0).abs() < 1e-12);
        assert!(Search::default().is_over_after(f64::NAN, 1).is_err());
        let mut search = Search::default();
        assert!(!search.is_over_after(1.0, 1).unwrap() && search.is_over_after(f64::INFINITY, 1).unwrap());
    }
}
