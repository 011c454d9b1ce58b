//! Random crops of images.

use super::{Transform, image};
use crate::data::order::below;
use crate::error::bail;
use crate::seed::Seed;
use crate::{Result, Shape};

/// Crops an image to this size at a random position, uniformly distributed, after adding a border of zeros.
///
/// `RandomCrop::new(32, 32).padding(4)` moves a 32×32 image by up to four pixels each way.
#[derive(Clone, Copy, Debug)]
pub struct RandomCrop {
    height: usize,
    width: usize,
    padding: usize,
}

impl RandomCrop {
    /// Crops of this size.
    #[must_use]
    pub fn new(height: usize, width: usize) -> Self {
        Self { height, width, padding: 0 }
    }

    /// Adds a border of zeros to every side first. Put the crop before [`Normalize`](super::Normalize) for a black
    /// border, after it for a border in the mean colour.
    #[must_use]
    pub fn padding(self, padding: usize) -> Self {
        Self { padding, ..self }
    }
}

impl Transform for RandomCrop {
    fn shape(&self, shape: Shape) -> Result<Shape> {
        let [channels, height, width] = image(shape)?;
        let Self { height: h, width: w, padding } = *self;
        if h == 0 || w == 0 {
            bail!(Argument, "a crop of {h}×{w} pixels is empty");
        }
        if padding > height.max(width).max(h).max(w) {
            bail!(Argument, "a border of {padding} pixels is larger than an image of {height}×{width}");
        }
        let border = padding.checked_mul(2);
        let is_in =
            |piece, extent: usize| border.and_then(|border| extent.checked_add(border)).is_some_and(|all| piece <= all);
        if !is_in(h, height) || !is_in(w, width) {
            bail!(Shape, "a crop of {h}×{w} does not fit into an image of {height}×{width} with a border of {padding}");
        }
        Ok([channels, h, w].into())
    }

    fn apply(&self, example: &mut Vec<f32>, shape: Shape, seed: Seed) {
        let Self { height: h, width: w, padding } = *self;
        let (height, width) = (shape[1], shape[2]);
        let mut rng = seed.rng();
        // In the image with its border.
        let top = below(&mut rng, height + 2 * padding - h + 1);
        let left = below(&mut rng, width + 2 * padding - w + 1);
        // The crop is appended after the image, where there is room for it, and the image is removed.
        let whole = example.len();
        for channel in (0..whole).step_by(height * width) {
            for y in top..top + h {
                for x in left..left + w {
                    let (y, x) = (y.wrapping_sub(padding), x.wrapping_sub(padding));
                    let is_in = y < height && x < width;
                    example.push(if is_in { example[channel + y * width + x] } else { 0.0 });
                }
            }
        }
        example.drain(..whole);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn cropped(crop: RandomCrop, shape: [usize; 3], seed: u64) -> Vec<f32> {
        let elements = u16::try_from(shape.iter().product::<usize>()).unwrap();
        let mut example: Vec<_> = (1..=elements).map(f32::from).collect();
        crop.apply(&mut example, shape.into(), Seed::new(seed));
        example
    }

    #[test]
    fn every_window_occurs_and_no_other() {
        let crops: HashSet<Vec<_>> = (0..200)
            .map(|seed| cropped(RandomCrop::new(2, 1).padding(1), [1, 2, 2], seed))
            .map(|crop| crop.into_iter().map(|x| x as u32).collect())
            .collect();
        // By hand: 3 × 4 windows of 2×1 in (0 0 0 0, 0 1 2 0, 0 3 4 0, 0 0 0 0). The windows in the two border columns
        // are all zeros.
        let expected = [[0, 0], [0, 1], [1, 3], [3, 0], [0, 2], [2, 4], [4, 0]];
        assert_eq!(crops, expected.map(Vec::from).into());
    }

    #[test]
    fn channels_are_cropped_alike() {
        for seed in 0..20 {
            let crop = cropped(RandomCrop::new(2, 2), [2, 3, 4], seed);
            let [a, b, c, d, rest @ ..] = &crop[..] else { panic!("{crop:?}") };
            assert_eq!([*b, *c, *d], [a + 1.0, a + 4.0, a + 5.0]);
            assert_eq!(rest, [a + 12.0, b + 12.0, c + 12.0, d + 12.0]);
        }
        assert_eq!(cropped(RandomCrop::new(3, 4), [2, 3, 4], 1), cropped(RandomCrop::new(3, 4), [2, 3, 4], 2));
    }
}
