//! Normalisation to mean 0 and deviation 1.

use super::Transform;
use crate::error::bail;
use crate::seed::Seed;
use crate::{Result, Shape};

/// `(x − mean) / deviation`, with a mean and a standard deviation for each channel, the first axis of an example.
///
/// It has no randomness: apply it to test examples, too.
#[derive(Clone, Debug)]
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

    #[test]
    fn each_channel_has_its_own() {
        let mut example = vec![1.0, 2.0, 3.0, 4.0];
        let normalise = Normalize::new([1.0, 4.0], [0.5, 2.0]);
        normalise.apply(&mut example, [2, 1, 2].into(), Seed::new(0));
        assert_eq!(example, [0.0, 2.0, -0.5, 0.0]);
    }
}
