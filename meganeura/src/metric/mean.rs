//! Means: of errors, and of losses in nats.

use crate::error::{bail, here, here_async};
#[cfg(not(target_family = "wasm"))]
use crate::wait::block_on;
use crate::world::World;
use crate::{Result, Tensor};

/// A sum in double precision and the number of its terms.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mean {
    sum: f64,
    count: u64,
}

impl Mean {
    /// Adds `count` terms by their sum.
    #[cfg(not(target_family = "wasm"))]
    pub(super) fn add(&mut self, sum: f64, count: usize) {
        self.merge(Self { sum, count: count as u64 });
    }

    fn merge(&mut self, other: Self) {
        self.sum += other.sum;
        self.count += other.count;
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a sum of counts")]
    pub(super) fn over(self, world: &World) -> Result<Self> {
        let sums = world.sum(&[self.sum, self.count as f64])?;
        Ok(Self { sum: sums[0], count: sums[1] as u64 })
    }

    pub(super) fn value(self, what: &str) -> Result<f64> {
        if self.count == 0 {
            bail!(Argument, "{what} of no numbers: `update` has counted none");
        }
        Ok(self.sum / self.count as f64)
    }

    /// The mean of `of` over the differences.
    async fn of_differences(predictions: &Tensor, targets: &Tensor, of: impl Fn(f64) -> f64) -> Result<Self> {
        let (found, expected) = (predictions.ty(), targets.ty());
        if found.shape != expected.shape || !found.dtype.is_float() || !expected.dtype.is_float() {
            bail!(Shape, "predictions and targets must be floats of one shape, they are {found} and {expected}");
        }
        let (predictions, targets) = (predictions.to_f64_vec_async().await?, targets.to_f64_vec_async().await?);
        let mut sum = 0.0;
        for (at, (prediction, target)) in predictions.iter().zip(&targets).enumerate() {
            let difference = prediction - target;
            if difference.is_nan() {
                bail!(NotFinite, "element {at}: the prediction is {prediction}, the target {target}");
            }
            sum += of(difference);
        }
        Ok(Self { sum, count: predictions.len() as u64 })
    }
}

/// A metric that is the mean of a function of the differences.
macro_rules! of_differences {
    ($(#[$doc:meta])* $name:ident, $what:literal, $of:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default)]
        #[must_use]
        pub struct $name(Mean);

        impl $name {
            /// An accumulator without predictions.
            pub fn new() -> Self {
                Self::default()
            }

            /// Counts a batch: predictions and targets of one shape. Every element counts equally.
            ///
            /// # Errors
            ///
            /// Fails if the shapes differ, one of them is not of floats, or a difference is NaN.
            #[cfg(not(target_family = "wasm"))]
            #[track_caller]
            pub fn update(&mut self, predictions: &Tensor, targets: &Tensor) -> Result<()> {
                block_on(self.update_async(predictions, targets))
            }

            /// Like [`update`](Self::update), without blocking the thread.
            ///
            /// # Errors
            ///
            /// Fails like [`update`](Self::update).
            #[track_caller]
            pub fn update_async(
                &mut self,
                predictions: &Tensor,
                targets: &Tensor,
            ) -> impl Future<Output = Result<()>> {
                here_async(async { Ok(self.0.merge(Mean::of_differences(predictions, targets, $of).await?)) })
            }

            /// Adds the counts of another accumulator.
            pub fn merge(&mut self, other: &Self) {
                self.0.merge(other.0);
            }

            /// An accumulator with the counts of all ranks, the same on each. The call is collective: it waits for all
            /// ranks.
            ///
            /// # Errors
            ///
            /// Fails if another rank called something else, or left.
            #[track_caller]
            pub fn over(&self, world: &World) -> Result<Self> {
                here(|| Ok(Self(self.0.over(world)?)))
            }

            /// The mean over all elements so far; infinite if a difference was.
            ///
            /// # Errors
            ///
            /// Fails if nothing was counted.
            #[track_caller]
            pub fn value(&self) -> Result<f64> {
                here(|| self.0.value($what))
            }
        }
    };
}

of_differences! {
    /// The mean absolute error, `mean |y − t|`, summed in double precision.
    ///
    /// ```
    /// use meganeura::metric::MeanAbsoluteError;
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let mut error = MeanAbsoluteError::new();
    /// error.update(&Tensor::from_slice(&device, [2], &[1.0, 5.0])?, &Tensor::from_slice(&device, [2], &[2.0, 2.0])?)?;
    /// assert_eq!(error.value()?, 2.0);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    MeanAbsoluteError, "the mean absolute error", f64::abs
}

of_differences! {
    /// The mean squared error, `mean (y − t)²`, summed in double precision. Its root has the unit of the targets.
    ///
    /// ```
    /// use meganeura::metric::MeanSquaredError;
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let mut error = MeanSquaredError::new();
    /// error.update(&Tensor::from_slice(&device, [2], &[1.0, 5.0])?, &Tensor::from_slice(&device, [2], &[2.0, 2.0])?)?;
    /// assert_eq!(error.value()?, 5.0);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    MeanSquaredError, "the mean squared error", |difference| difference * difference
}

/// The perplexity of a language model, `exp (Σ n·ℓ / Σ n)`, from mean losses `ℓ` in nats over `n` tokens each, such as
/// those of [`cross_entropy`](crate::Var::cross_entropy).
///
/// ```
/// use meganeura::metric::Perplexity;
///
/// let mut perplexity = Perplexity::new();
/// perplexity.update(2.0_f32.ln(), 30)?; // as if there were two words to guess from, 30 times
/// perplexity.update(16.0_f32.ln(), 10)?;
/// assert!((perplexity.value()? - 2_f64.powf(1.75)).abs() < 1e-6);
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Perplexity(Mean);

impl Perplexity {
    /// An accumulator without tokens.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts a batch: the mean loss over `tokens` tokens, in nats. Tokens that the loss ignores are not among them.
    ///
    /// # Errors
    ///
    /// Fails if the loss is NaN, or the number of tokens is 0.
    #[track_caller]
    pub fn update(&mut self, loss: impl Into<f64>, tokens: usize) -> Result<()> {
        let loss = loss.into();
        here(|| {
            if tokens == 0 {
                bail!(Argument, "a mean loss of 0 tokens");
            }
            if loss.is_nan() {
                bail!(NotFinite, "the mean loss of {tokens} tokens is NaN");
            }
            self.0.merge(Mean { sum: loss * tokens as f64, count: tokens as u64 });
            Ok(())
        })
    }

    /// Adds the counts of another accumulator.
    pub fn merge(&mut self, other: &Self) {
        self.0.merge(other.0);
    }

    /// An accumulator with the tokens of all ranks, the same on each. The call is collective: it waits for all ranks.
    ///
    /// # Errors
    ///
    /// Fails if another rank called something else, or left.
    #[track_caller]
    pub fn over(&self, world: &World) -> Result<Self> {
        here(|| Ok(Self(self.0.over(world)?)))
    }

    /// The perplexity: 1 for a model that is always certain and right, the number of words for a model that knows
    /// nothing.
    ///
    /// # Errors
    ///
    /// Fails if nothing was counted.
    #[track_caller]
    pub fn value(&self) -> Result<f64> {
        here(|| Ok(self.0.value("the perplexity")?.exp()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::noise;
    use super::*;
    use crate::{Device, ErrorKind};

    fn tensor(values: &[f32]) -> Tensor {
        Tensor::from_slice(&Device::cpu(), [values.len()], values).unwrap()
    }

    #[test]
    fn agrees_with_the_formula_over_batches() {
        let numbers: Vec<_> = noise(60).map(|x| x as f32 / 1000.0 - 30.0).collect();
        let (predictions, targets) = numbers.split_at(30);
        let (mut absolute, mut squared) = (MeanAbsoluteError::new(), MeanSquaredError::new());
        for (predictions, targets) in predictions.chunks(7).zip(targets.chunks(7)) {
            let (mut part, other) = (MeanAbsoluteError::new(), MeanAbsoluteError::new());
            part.update(&tensor(predictions), &tensor(targets)).unwrap();
            part.merge(&other);
            absolute.merge(&part);
            squared.update(&tensor(predictions), &tensor(targets)).unwrap();
        }
        let differences = || predictions.iter().zip(targets).map(|(y, t)| f64::from(*y) - f64::from(*t));
        let mean = |sum: f64| sum / 30.0;
        // Thirty f64 roundings.
        let near = |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 30.0 * f64::EPSILON);
        near(absolute.value().unwrap(), mean(differences().map(f64::abs).sum()));
        near(squared.value().unwrap(), mean(differences().map(|x| x * x).sum()));
    }

    #[test]
    fn misuse_is_an_error() {
        let (mut error, device) = (MeanAbsoluteError::new(), Device::cpu());
        let labels = Tensor::indices(&device, [2], &[0, 1]).unwrap();
        for (x, y) in [(tensor(&[1.0]), tensor(&[1.0, 2.0])), (labels.clone(), labels)] {
            assert_eq!(error.update(&x, &y).unwrap_err().kind(), ErrorKind::Shape);
        }
        let infinite = tensor(&[f32::INFINITY]);
        assert_eq!(error.update(&infinite, &infinite).unwrap_err().kind(), ErrorKind::NotFinite);
        error.update(&infinite, &tensor(&[0.0])).unwrap();
        assert_eq!(error.value().unwrap(), f64::INFINITY);
    }

    #[test]
    fn perplexity_weighs_by_tokens() {
        let (mut whole, mut part) = (Perplexity::new(), Perplexity::new());
        whole.update(1.0, 1).unwrap();
        part.update(3.0, 3).unwrap();
        whole.merge(&part);
        assert_eq!(whole.value().unwrap(), 2.5_f64.exp());
        assert_eq!(whole.update(f32::NAN, 3).unwrap_err().kind(), ErrorKind::NotFinite);
        assert_eq!(whole.update(1.0, 0).unwrap_err().kind(), ErrorKind::Argument);
        assert_eq!(whole.value().unwrap(), 2.5_f64.exp());
    }
}
