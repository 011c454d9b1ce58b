//! Horizontal flips of images.

use super::{Transform, image};
use crate::data::order::happens;
use crate::error::bail;
use crate::seed::Seed;
use crate::{Result, Shape};

/// Flips an image left to right, with some probability.
#[derive(Clone, Copy, Debug)]
pub struct HorizontalFlip {
    probability: f64,
}

impl HorizontalFlip {
    /// Flips with this probability, from 0 to 1.
    #[must_use]
    pub fn new(probability: f64) -> Self {
        Self { probability }
    }
}

impl Transform for HorizontalFlip {
    fn shape(&self, shape: Shape) -> Result<Shape> {
        if !(0.0..=1.0).contains(&self.probability) {
            bail!(Argument, "a probability lies between 0 and 1");
        }
        image(shape).map(|_| shape)
    }

    fn apply(&self, example: &mut Vec<f32>, shape: Shape, seed: Seed) {
        if happens(&mut seed.rng(), self.probability) {
            example.chunks_exact_mut(shape[2]).for_each(<[f32]>::reverse);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_mirrored() {
        let flipped = |probability, seed| {
            let mut example: Vec<_> = (0..12u8).map(f32::from).collect();
            HorizontalFlip::new(probability).apply(&mut example, [2, 2, 3].into(), Seed::new(seed));
            example
        };
        assert_eq!(flipped(1.0, 0), [2., 1., 0., 5., 4., 3., 8., 7., 6., 11., 10., 9.]);
        assert_eq!(flipped(0.0, 0)[..3], [0., 1., 2.]);
        let count = (0..1000).filter(|&seed| flipped(0.5, seed)[0] == 2.0).count();
        // Five standard deviations.
        assert!(count.abs_diff(500) < 80, "{count}");
    }
}
