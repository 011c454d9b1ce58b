//! Normalisation to mean 0 and deviation 1.

use std::fmt;

use super::Transform;
use crate::data::{Array, Dataset, Fields};
use crate::error::{bail, here};
use crate::host::try_filled;
use crate::seed::Seed;
use crate::{Result, Shape};

/// `(x − mean) / deviation`, with a mean and a standard deviation for each channel, the first axis of an example.
///
/// It has no randomness: apply it to test examples, too.
///
/// ```
/// use meganeura::data::Normalize;
/// use meganeura::prelude::*;
///
/// let (train, test) = Dataset::new(vec![1.0, 10.0, 3.0, 30.0, 5.0, 20.0], [2], vec![0, 1, 0])?.split_at(2)?;
/// let normalize = Normalize::fit(&train)?;
/// println!("{normalize}"); // mean [2.0, 20.0], deviation [1.0, 10.0]
/// # assert_eq!(normalize.to_string(), "mean [2.0, 20.0], deviation [1.0, 10.0]");
/// let (train, test) = (train.batches(2).transform(normalize.clone()), test.batches(2).transform(normalize));
/// # let inputs = test.on(&Device::cpu()).next().unwrap()?.inputs.to_vec()?;
/// # assert_eq!(inputs, [3.0, 0.0]);
/// # drop(train);
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Normalize {
    mean: Vec<f32>,
    deviation: Vec<f32>,
}

impl Normalize {
    /// Normalises with these means and standard deviations.
    #[must_use]
    pub fn new(mean: impl Into<Vec<f32>>, deviation: impl Into<Vec<f32>>) -> Self {
        Self { mean: mean.into(), deviation: deviation.into() }
    }

    /// Normalises with the means and standard deviations of these examples, which it reads once: those of training,
    /// never those of the test. A channel that is the same everywhere keeps its scale, a deviation of 1.
    ///
    /// To apply it in another program, print it, or write down [`mean`](Self::mean) and
    /// [`deviation`](Self::deviation), and pass them to [`new`](Self::new).
    ///
    /// # Errors
    ///
    /// Fails if there are no examples or one of them cannot be read; if their numbers of channels differ, or a number
    /// is not finite.
    #[track_caller]
    pub fn fit<T: Fields>(examples: &Dataset<Array<f32>, T>) -> Result<Self> {
        here(|| {
            let mut channels: Vec<Moments> = Vec::new();
            for index in 0..examples.len() {
                let (input, _) = examples.get(index)?;
                let shape = input.shape();
                let Some(&count) = shape.dims().first().filter(|_| shape.elements() > 0) else {
                    bail!(Shape, "example {index} of shape {shape} has no channels");
                };
                if index == 0 {
                    channels = try_filled(count, Moments::default())?;
                }
                if count != channels.len() {
                    bail!(Shape, "example {index} of shape {shape}, and those before have {} channels", channels.len());
                }
                let values = input.values().chunks_exact(shape.elements() / count);
                for (channel, (values, moments)) in values.zip(&mut channels).enumerate() {
                    if let Some(value) = values.iter().find(|value| !value.is_finite()) {
                        bail!(NotFinite, "channel {channel} of example {index} has {value}");
                    }
                    values.iter().for_each(|&value| moments.add(f64::from(value)));
                }
            }
            if channels.is_empty() {
                bail!(Argument, "no examples, which have no mean");
            }
            #[expect(clippy::cast_possible_truncation, reason = "examples have single precision")]
            let of =
                |number: fn(&Moments) -> f64| channels.iter().map(|moments| number(moments) as f32).collect::<Vec<_>>();
            Ok(Self::new(of(|moments| moments.mean), of(Moments::deviation)))
        })
    }

    /// The mean of each channel.
    #[must_use]
    pub fn mean(&self) -> &[f32] {
        &self.mean
    }

    /// The standard deviation of each channel.
    #[must_use]
    pub fn deviation(&self) -> &[f32] {
        &self.deviation
    }
}

/// The numbers as [`Normalize::new`] takes them, without loss.
impl fmt::Display for Normalize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mean {:?}, deviation {:?}", self.mean, self.deviation)
    }
}

/// The mean of numbers and the sum of their squared distances from it, updated with each number: sums of squares would
/// cancel where the mean is far from 0.
#[derive(Clone, Copy, Default)]
struct Moments {
    count: f64,
    mean: f64,
    squares: f64,
}

impl Moments {
    fn add(&mut self, value: f64) {
        self.count += 1.0;
        let distance = value - self.mean;
        self.mean += distance / self.count;
        self.squares += distance * (value - self.mean);
    }

    /// The deviation of the population; 1 where the numbers are the same, or so near that single precision has no
    /// reciprocal of their deviation.
    fn deviation(&self) -> f64 {
        let deviation = (self.squares / self.count).sqrt();
        if deviation < f64::from(f32::MIN_POSITIVE) { 1.0 } else { deviation }
    }
}

impl Transform for Normalize {
    fn shape(&self, shape: Shape) -> Result<Shape> {
        let Self { mean, deviation } = self;
        let Some(&channels) = shape.dims().first() else { bail!(Shape, "a single number has no channels") };
        if mean.len() != channels || deviation.len() != channels {
            let (means, deviations) = (mean.len(), deviation.len());
            bail!(Shape, "{means} means and {deviations} deviations for the {channels} channels of {shape}");
        }
        if !mean.iter().all(|mean| mean.is_finite()) || !deviation.iter().all(|d| d.is_normal() && *d > 0.0) {
            bail!(Argument, "means are finite, deviations are finite and above 0");
        }
        Ok(shape)
    }

    fn apply(&self, example: &mut Vec<f32>, shape: Shape, _: Seed) {
        let channels = example.chunks_exact_mut(shape.elements() / shape[0]);
        for (channel, (mean, deviation)) in channels.zip(self.mean.iter().zip(&self.deviation)) {
            channel.iter_mut().for_each(|x| *x = (*x - mean) / deviation);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn each_channel_has_its_own() {
        let mut example = vec![1.0, 2.0, 3.0, 4.0];
        let normalise = Normalize::new([1.0, 4.0], [0.5, 2.0]);
        normalise.apply(&mut example, [2, 1, 2].into(), Seed::new(0));
        assert_eq!(example, [0.0, 2.0, -0.5, 0.0]);
    }

    #[test]
    fn it_is_fitted_to_examples() {
        // Two channels of two pixels; a mean far above the spread.
        let inputs: Vec<f32> = (0..40u16).map(|i| f32::from(i * i % 7) + if i % 4 < 2 { 1e6 } else { 0.0 }).collect();
        let data = Dataset::new(inputs.clone(), [2, 1, 2], vec![0; 10]).unwrap();
        let normalize = Normalize::fit(&data).unwrap();
        for channel in 0..2 {
            let of = inputs.chunks(2).skip(channel).step_by(2).flatten().copied().map(f64::from).collect::<Vec<_>>();
            let mean = of.iter().sum::<f64>() / 20.0;
            let deviation = (of.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 20.0).sqrt();
            assert_eq!(normalize.mean()[channel], mean as f32);
            assert!((f64::from(normalize.deviation()[channel]) - deviation).abs() < 1e-6);
        }
        let again = Normalize::new(normalize.mean(), normalize.deviation());
        assert_eq!(again, normalize);
        // A column that is the same everywhere.
        let flat = Dataset::new(vec![3.0, 1.0, 3.0, 2.0], [2], vec![0, 0]).unwrap();
        assert_eq!(Normalize::fit(&flat).unwrap().deviation(), [1.0, 0.5]);
    }

    #[test]
    fn examples_that_have_no_mean_are_errors() {
        let nan = Dataset::new(vec![3.0, f32::NAN], [1], vec![0, 0]).unwrap();
        let error = Normalize::fit(&nan).unwrap_err();
        assert!(error.kind() == ErrorKind::NotFinite && error.message().contains("channel 0 of example 1"), "{error}");
        let none = nan.subset(Vec::new());
        if let Ok(none) = none {
            assert_eq!(Normalize::fit(&none).unwrap_err().kind(), ErrorKind::Argument);
        }
    }
}
