//! What all metrics of predictions and targets have in common, and the mean of any function of them.

use std::fmt;
use std::sync::Arc;

use super::mean::Mean;
use super::{Accuracy, Confusion, MeanAbsoluteError, MeanSquaredError, Regression, RocAuc};
use crate::error::{bail, here};
use crate::world::World;
use crate::{Result, Tape, Tensor, Var};

/// A metric of predictions and targets, which adds up over batches: what
/// [`evaluate`](crate::train::evaluate) and [`Trainer::measure`](crate::train::Trainer::measure) take.
///
/// ```
/// use meganeura::metric::Measure;
/// use meganeura::prelude::*;
/// use meganeura::world::World;
///
/// /// The largest error of all.
/// #[derive(Clone, Default)]
/// struct Worst(f64);
///
/// impl Measure for Worst {
///     fn update(&mut self, predictions: &Tensor, targets: &Tensor) -> meganeura::Result<()> {
///         let errors = (predictions - targets)?.to_f64_vec()?;
///         self.0 = errors.into_iter().fold(self.0, |worst, error| worst.max(error.abs()));
///         Ok(())
///     }
///
///     fn gather(&mut self, world: &World) -> meganeura::Result<()> {
///         let mut all = vec![0.0; world.size()];
///         all[world.rank()] = self.0;
///         self.0 = world.sum(&all)?.into_iter().fold(0.0, f64::max);
///         Ok(())
///     }
///
///     fn value(&self) -> meganeura::Result<f64> {
///         Ok(self.0)
///     }
/// }
/// ```
pub trait Measure {
    /// Counts a batch.
    ///
    /// # Errors
    ///
    /// Fails if predictions and targets do not fit, or predictions hold NaN.
    #[track_caller]
    fn update(&mut self, predictions: &Tensor, targets: &Tensor) -> Result<()>;

    /// Adds what the other ranks counted, so that all have the same. The call is collective: it waits for all ranks.
    ///
    /// # Errors
    ///
    /// Fails if another rank called something else, or left.
    #[track_caller]
    fn gather(&mut self, world: &World) -> Result<()>;

    /// The metric over all batches so far.
    ///
    /// # Errors
    ///
    /// Fails if nothing was counted.
    #[track_caller]
    fn value(&self) -> Result<f64>;
}

macro_rules! measures {
    ($($name:ident $value:ident)+) => {$(
        impl Measure for $name {
            #[track_caller]
            fn update(&mut self, predictions: &Tensor, targets: &Tensor) -> Result<()> {
                Self::update(self, predictions, targets)
            }

            #[track_caller]
            fn gather(&mut self, world: &World) -> Result<()> {
                *self = self.over(world)?;
                Ok(())
            }

            #[track_caller]
            fn value(&self) -> Result<f64> {
                self.$value()
            }
        }
    )+};
}

measures! {
    Accuracy value
    Confusion accuracy
    MeanAbsoluteError value
    MeanSquaredError value
    Regression value
    RocAuc value
}

type Function = dyn Fn(&Var, &Var) -> Var + Send + Sync;

/// The mean of any function of predictions and targets: a loss over a whole dataset, for example.
///
/// The function returns a number for each example, or for each pixel, token or other element, all of which count
/// equally; or one number for the batch, which counts once for each example, the first axis of the targets.
///
/// ```
/// use meganeura::metric::MeanOf;
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let mut loss = MeanOf::new(|y, t| y.mse(t));
/// for numbers in [&[1.0, 3.0][..], &[5.0]] {
///     let y = Tensor::from_slice(&device, [numbers.len()], numbers)?;
///     loss.update(&y, &Tensor::zeros(&device, [numbers.len()])?)?;
/// }
/// assert_eq!(loss.value()?, (1.0 + 9.0 + 25.0) / 3.0);
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct MeanOf {
    function: Arc<Function>,
    mean: Mean,
    is_exp: bool,
}

impl MeanOf {
    /// The mean of this function of predictions and targets, recorded on a tape for inference.
    pub fn new(function: impl Fn(&Var, &Var) -> Var + Send + Sync + 'static) -> Self {
        Self { function: Arc::new(function), mean: Mean::default(), is_exp: false }
    }

    /// Makes the value the exponential function of the mean: the perplexity, if the function is a cross-entropy.
    pub fn exp(self) -> Self {
        Self { is_exp: true, ..self }
    }

    /// Counts a batch.
    ///
    /// # Errors
    ///
    /// Fails with the error of recording, if a value is NaN, and if the targets of a batch with one number have no
    /// axis.
    #[track_caller]
    pub fn update(&mut self, predictions: &Tensor, targets: &Tensor) -> Result<()> {
        here(|| {
            let tape = Tape::inference(predictions.device());
            let values = (self.function)(&tape.input(predictions), &tape.input(targets)).to_tensor()?;
            let numbers = values.to_f64_vec()?;
            if let Some(at) = numbers.iter().position(|number| number.is_nan()) {
                bail!(NotFinite, "value {at} of {} is NaN", values.ty());
            }
            let weight = match (values.shape().rank(), targets.shape().dims().first()) {
                (1.., _) => 1,
                (0, Some(&examples)) => examples,
                (0, None) => bail!(Shape, "one number for targets {}, which have no axis of examples", targets.ty()),
            };
            self.mean.add(numbers.iter().sum::<f64>() * weight as f64, numbers.len() * weight);
            Ok(())
        })
    }

    /// The mean so far, or its [`exp`](Self::exp).
    ///
    /// # Errors
    ///
    /// Fails if nothing was counted.
    #[track_caller]
    pub fn value(&self) -> Result<f64> {
        here(|| {
            let mean = self.mean.value("the mean")?;
            Ok(if self.is_exp { mean.exp() } else { mean })
        })
    }
}

impl Measure for MeanOf {
    #[track_caller]
    fn update(&mut self, predictions: &Tensor, targets: &Tensor) -> Result<()> {
        Self::update(self, predictions, targets)
    }

    #[track_caller]
    fn gather(&mut self, world: &World) -> Result<()> {
        here(|| {
            self.mean = self.mean.over(world)?;
            Ok(())
        })
    }

    #[track_caller]
    fn value(&self) -> Result<f64> {
        Self::value(self)
    }
}

impl fmt::Debug for MeanOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MeanOf({:?})", self.mean)
    }
}
