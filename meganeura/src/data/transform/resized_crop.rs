//! Random crops, scaled to one size.

use std::ops::RangeInclusive;

use super::affine::between;
use super::{Transform, image};
use crate::error::bail;
use crate::seed::Seed;
use crate::{Result, Shape};

/// Crops a random part of an image, and scales it to a given size. torchvision's `RandomResizedCrop`.
///
/// The area of the part is a random share of the image's, from 8 % to all of it by default, and its proportions are
/// between 3:4 and 4:3. Pixels are interpolated between their four neighbours; [`nearest`](Self::nearest) is for masks.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct RandomResizedCrop {
    size: [usize; 2],
    area: [f64; 2],
    ratio: [f64; 2],
    is_nearest: bool,
}

impl RandomResizedCrop {
    /// Crops to this height and width.
    pub fn new(height: usize, width: usize) -> Self {
        Self { size: [height, width], area: [0.08, 1.0], ratio: [3.0 / 4.0, 4.0 / 3.0], is_nearest: false }
    }

    /// The range of the part's share of the area.
    pub fn area(self, shares: RangeInclusive<f64>) -> Self {
        Self { area: [*shares.start(), *shares.end()], ..self }
    }

    /// The range of the part's width divided by its height, whose logarithm is uniform.
    pub fn ratio(self, ratios: RangeInclusive<f64>) -> Self {
        Self { ratio: [*ratios.start(), *ratios.end()], ..self }
    }

    /// Takes the nearest pixel, without interpolation.
    pub fn nearest(self) -> Self {
        Self { is_nearest: true, ..self }
    }
}

impl Transform for RandomResizedCrop {
    fn shape(&self, shape: Shape) -> Result<Shape> {
        let is_range = |[low, high]: [f64; 2], most: f64| low > 0.0 && low <= high && high <= most;
        if !is_range(self.area, 1.0) || !is_range(self.ratio, f64::MAX) || self.size.contains(&0) {
            bail!(
                Argument,
                "sizes are above 0, shares of the area between 0 and 1, and ranges begin with the smaller end"
            );
        }
        let [channels, ..] = image(shape)?;
        Ok(Shape::from([channels, self.size[0], self.size[1]]))
    }

    #[expect(clippy::cast_possible_truncation, reason = "pixels have single precision")]
    fn apply(&self, example: &mut Vec<f32>, shape: Shape, seed: Seed) {
        let [height, width] = [shape[1], shape[2]].map(|extent| extent as f64);
        let mut rng = seed.rng();
        let area = (self.area[0] + (self.area[1] - self.area[0]) * rng.uniform()) * height * width;
        let [low, high] = self.ratio.map(f64::ln);
        let ratio = (low + (high - low) * rng.uniform()).exp();
        // A part that would not fit is as large as it may be in that direction.
        let [high, wide] = [(area / ratio).sqrt().clamp(1.0, height), (area * ratio).sqrt().clamp(1.0, width)];
        let [top, left] = [(height - high) * rng.uniform(), (width - wide) * rng.uniform()];
        let (before, plane) = (std::mem::take(example), shape[1] * shape[2]);
        let [rows, columns] = self.size;
        for from in before.chunks_exact(plane) {
            let pixel = |y: f64, x: f64| {
                // The pixels at the edges go on outside.
                #[expect(clippy::cast_sign_loss, reason = "inside of the image")]
                let (y, x) = (y.clamp(0.0, height - 1.0) as usize, x.clamp(0.0, width - 1.0) as usize);
                f64::from(from[y * shape[2] + x])
            };
            for at in 0..rows * columns {
                let y = top + ((at / columns) as f64 + 0.5) * high / rows as f64 - 0.5;
                let x = left + ((at % columns) as f64 + 0.5) * wide / columns as f64 - 0.5;
                let value = if self.is_nearest { pixel(y.round(), x.round()) } else { between(y, x, pixel) };
                example.push(value as f32);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use crate::data::Array;

    fn image() -> Array<f32> {
        Array::new((0..2 * 24u8).map(f32::from).collect(), [2, 4, 6]).unwrap()
    }

    #[test]
    fn the_whole_image_at_its_size_is_the_image() {
        let whole = RandomResizedCrop::new(4, 6).area(1.0..=1.0).ratio(1.5..=1.5);
        assert_eq!(image().transformed(&whole, 1).unwrap(), image());
        assert_eq!(image().transformed(&whole.nearest(), 1).unwrap(), image());
        let half = RandomResizedCrop::new(2, 3).area(1.0..=1.0).ratio(1.5..=1.5);
        // Each pixel is the mean of four.
        assert_eq!(image().transformed(&half, 1).unwrap().values()[..3], [3.5, 5.5, 7.5]);
    }

    #[test]
    fn parts_lie_inside_of_the_image() {
        for seed in 0..50 {
            let part = image().transformed(&RandomResizedCrop::new(3, 5), seed).unwrap();
            assert_eq!(part.shape(), Shape::from([2, 3, 5]));
            assert!(part.values()[..15].iter().all(|x| (0.0..=23.0).contains(x)));
            // Both channels are cut at the same place.
            assert!(part.values()[..15].iter().zip(&part.values()[15..]).all(|(a, b)| (a + 24.0 - b).abs() < 1e-4));
            let labels = image().transformed(&RandomResizedCrop::new(9, 9).nearest(), seed).unwrap();
            assert!(labels.values().iter().all(|x| x.fract() == 0.0));
        }
    }

    #[test]
    fn misuse_is_an_error() {
        for crop in [
            RandomResizedCrop::new(0, 4),
            RandomResizedCrop::new(4, 4).area(0.0..=1.0),
            RandomResizedCrop::new(4, 4).area(0.5..=1.1),
            RandomResizedCrop::new(4, 4).ratio(2.0..=1.0),
            RandomResizedCrop::new(4, 4).ratio(f64::NAN..=1.0),
        ] {
            assert_eq!(image().transformed(&crop, 1).unwrap_err().kind(), ErrorKind::Argument);
        }
    }
}
