//! Horizontal and vertical flips of images.

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

/// Flips an image upside down, with some probability.
#[derive(Clone, Copy, Debug)]
pub struct VerticalFlip {
    probability: f64,
}

impl VerticalFlip {
    /// Flips with this probability, from 0 to 1.
    #[must_use]
    pub fn new(probability: f64) -> Self {
        Self { probability }
    }
}

/// The shape of an image, which a flip with this probability leaves as it is.
fn flipped(shape: Shape, probability: f64) -> Result<Shape> {
    if !(0.0..=1.0).contains(&probability) {
        bail!(Argument, "a probability lies between 0 and 1");
    }
    image(shape).map(|_| shape)
}

impl Transform for VerticalFlip {
    fn shape(&self, shape: Shape) -> Result<Shape> {
        flipped(shape, self.probability)
    }

    fn apply(&self, example: &mut Vec<f32>, shape: Shape, seed: Seed) {
        if !happens(&mut seed.rng(), self.probability) {
            return;
        }
        let (height, width) = (shape[1], shape[2]);
        for channel in example.chunks_exact_mut(height * width) {
            let (top, bottom) = channel.split_at_mut(height / 2 * width);
            // An odd height has a row in the middle, at the front of `bottom`.
            let rows = top.chunks_exact_mut(width).zip(bottom.chunks_exact_mut(width).rev());
            rows.for_each(|(upper, lower)| upper.swap_with_slice(lower));
        }
    }
}

impl Transform for HorizontalFlip {
    fn shape(&self, shape: Shape) -> Result<Shape> {
        flipped(shape, self.probability)
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
    fn columns_are_mirrored() {
        let flipped = |height: usize, seed| {
            let mut example: Vec<_> = (0..4 * height).map(|i| i as f32).collect();
            VerticalFlip::new(0.5).apply(&mut example, [2, height, 2].into(), Seed::new(seed));
            example
        };
        let seed = (0..).find(|&seed| flipped(1, seed) == flipped(1, 0) && flipped(2, seed)[0] == 2.0).unwrap();
        assert_eq!(flipped(2, seed), [2., 3., 0., 1., 6., 7., 4., 5.]);
        assert_eq!(flipped(3, seed), [4., 5., 2., 3., 0., 1., 10., 11., 8., 9., 6., 7.]);
        assert_eq!(flipped(1, seed), [0., 1., 2., 3.]);
        let count = (0..1000).filter(|&seed| flipped(2, seed)[0] == 2.0).count();
        // Five standard deviations.
        assert!(count.abs_diff(500) < 80, "{count}");
    }

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
