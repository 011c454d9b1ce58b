//! Random rotations, scalings and shifts of images.

use std::ops::RangeInclusive;

use super::{Transform, image};
use crate::error::bail;
use crate::seed::{Generator, Seed};
use crate::{Result, Shape};

/// Rotates, scales, shifts and shears an image at random, around its centre. torchvision's `RandomAffine`.
///
/// Pixels are interpolated between their four neighbours, and are 0 outside of the image. A mask of labels takes
/// [`nearest`](Self::nearest), so that no label is made up.
///
/// ```
/// use meganeura::data::{Array, RandomAffine};
/// use meganeura::prelude::*;
///
/// let images = Array::new(vec![1.0; 4 * 9], [4, 1, 3, 3])?;
/// let masks = Array::new(vec![2.0; 4 * 9], [4, 1, 3, 3])?;
/// let turn = RandomAffine::new().degrees(15.0).scale(0.8..=1.2);
/// let batches = Dataset::from_columns(images, masks)?.batches(4).map(move |image, mask, seed| {
///     Ok((image.transformed(&turn, seed)?, mask.transformed(&turn.nearest(), seed)?)) // the same turn for both
/// });
/// # let batch = batches.on(&Device::cpu()).next().unwrap()?;
/// # assert!(batch.targets.to_vec()?.iter().all(|x| [0.0, 2.0].contains(x)));
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct RandomAffine {
    degrees: f64,
    shift: [f64; 2],
    /// The ends of the range of the logarithm of the scale.
    scale: [f64; 2],
    shear: f64,
    is_nearest: bool,
}

impl RandomAffine {
    /// No change, until another method adds one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Rotates by up to this angle, both ways.
    pub fn degrees(self, most: f64) -> Self {
        Self { degrees: most, ..self }
    }

    /// Shifts by up to these shares of height and width, both ways.
    pub fn shift(self, rows: f64, columns: f64) -> Self {
        Self { shift: [rows, columns], ..self }
    }

    /// Scales by a factor of this range, whose logarithm is uniform. A factor above 1 enlarges.
    pub fn scale(self, factors: RangeInclusive<f64>) -> Self {
        Self { scale: [factors.start().ln(), factors.end().ln()], ..self }
    }

    /// Shears rows by up to this angle, both ways.
    pub fn shear(self, degrees: f64) -> Self {
        Self { shear: degrees, ..self }
    }

    /// Takes the nearest pixel, without interpolation.
    pub fn nearest(self) -> Self {
        Self { is_nearest: true, ..self }
    }
}

/// A number from −`most` to `most`.
fn both_ways(rng: &mut Generator, most: f64) -> f64 {
    most * (2.0 * rng.uniform() - 1.0)
}

impl Transform for RandomAffine {
    fn shape(&self, shape: Shape) -> Result<Shape> {
        let Self { degrees, shift, scale, shear, .. } = *self;
        if [degrees, shift[0], shift[1], scale[0], scale[1], shear].iter().any(|number| !number.is_finite()) {
            bail!(Argument, "angles and shifts are finite, and factors of the scale are finite and above 0");
        }
        if shear.abs() >= 90.0 || scale[0] > scale[1] {
            bail!(Argument, "a shear is below 90 degrees, and a range of scales begins with its smaller end");
        }
        image(shape).map(|_| shape)
    }

    #[expect(clippy::cast_possible_truncation, reason = "pixels have single precision")]
    fn apply(&self, example: &mut Vec<f32>, shape: Shape, seed: Seed) {
        let (height, width) = (shape[1], shape[2]);
        let mut rng = seed.rng();
        let angle = both_ways(&mut rng, self.degrees).to_radians();
        let [down, right] = [0, 1].map(|axis| both_ways(&mut rng, self.shift[axis]) * [height, width][axis] as f64);
        let factor = (self.scale[0] + (self.scale[1] - self.scale[0]) * rng.uniform()).exp();
        let shear = both_ways(&mut rng, self.shear).to_radians().tan();
        let (sin, cos) = angle.sin_cos();
        // The source of a pixel: back by the shift, the rotation, the scale, then the shear.
        let [middle_y, middle_x] = [height, width].map(|extent| (extent as f64 - 1.0) / 2.0);
        let source = |row: usize, column: usize| {
            let (y, x) = (row as f64 - middle_y - down, column as f64 - middle_x - right);
            let (y, x) = ((cos * y - sin * x) / factor, (sin * y + cos * x) / factor);
            (y + middle_y, x - shear * y + middle_x)
        };
        let before = example.clone();
        for (plane, from) in example.chunks_exact_mut(height * width).zip(before.chunks_exact(height * width)) {
            let pixel = |y: f64, x: f64| {
                let is_inside = (0.0..height as f64).contains(&y) && (0.0..width as f64).contains(&x);
                #[expect(clippy::cast_sign_loss, reason = "inside of the image")]
                if is_inside { f64::from(from[y as usize * width + x as usize]) } else { 0.0 }
            };
            for (at, value) in plane.iter_mut().enumerate() {
                let (y, x) = source(at / width, at % width);
                *value = if self.is_nearest { pixel(y.round(), x.round()) as f32 } else { between(y, x, pixel) as f32 };
            }
        }
    }
}

/// The value between four pixels. A share of 0 does not count, even if its pixel is NaN.
pub(super) fn between(y: f64, x: f64, pixel: impl Fn(f64, f64) -> f64) -> f64 {
    let (top, left) = (y.floor(), x.floor());
    let (down, right) = (y - top, x - left);
    let corners = [(1.0 - down) * (1.0 - right), (1.0 - down) * right, down * (1.0 - right), down * right];
    let places = [(top, left), (top, left + 1.0), (top + 1.0, left), (top + 1.0, left + 1.0)];
    corners.into_iter().zip(places).filter(|(share, _)| *share > 0.0).map(|(share, (y, x))| share * pixel(y, x)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use crate::data::Array;

    fn image() -> Array<f32> {
        Array::new((0..2 * 25u8).map(f32::from).collect(), [2, 5, 5]).unwrap()
    }

    #[test]
    fn no_change_is_the_identity() {
        for turn in [RandomAffine::new(), RandomAffine::new().nearest(), RandomAffine::new().scale(1.0..=1.0)] {
            assert_eq!(image().transformed(&turn, 3).unwrap(), image());
        }
    }

    #[test]
    fn pixels_move_as_the_angle_and_the_shift_say() {
        // The sign of the draw decides the way.
        let seed = (0..).find(|&seed| Seed::new(seed).rng().uniform() > 0.999).unwrap();
        let turned = image().transformed(&RandomAffine::new().degrees(90.0), seed).unwrap();
        let (from, to) = (image(), turned.values());
        for (row, column) in [(0, 0), (0, 4), (1, 3), (2, 2), (4, 1)] {
            // Almost a quarter turn, towards rows below: the pixel from the left column comes to the top.
            let expected = from.values()[(4 - column) * 5 + row].max(from.values()[column * 5 + 4 - row]);
            let other = from.values()[(4 - column) * 5 + row].min(from.values()[column * 5 + 4 - row]);
            let found = to[row * 5 + column];
            assert!((found - expected).abs() < 0.5 || (found - other).abs() < 0.5, "{row} {column}: {found}");
        }
        let total = |array: &Array<f32>| array.values().iter().sum::<f32>();
        let away = image().transformed(&RandomAffine::new().shift(100.0, 0.0), 1).unwrap();
        assert_eq!(total(&away), 0.0);
        let small = image().transformed(&RandomAffine::new().scale(0.5..=0.5), 1).unwrap();
        assert!(total(&small) < 0.5 * total(&image()));
        let sheared = image().transformed(&RandomAffine::new().shear(40.0), 5).unwrap();
        assert_eq!(sheared.values()[10..15], image().values()[10..15], "the middle row stays");
        assert_ne!(sheared, image());
    }

    #[test]
    fn masks_keep_their_labels() {
        let turn = RandomAffine::new().degrees(30.0).shift(0.2, 0.2).scale(0.7..=1.5).shear(10.0).nearest();
        for seed in 0..20 {
            let turned = image().transformed(&turn, seed).unwrap();
            assert!(turned.values().iter().all(|x| x.fract() == 0.0 && (0.0..50.0).contains(x)));
        }
    }

    #[test]
    fn misuse_is_an_error() {
        for turn in [
            RandomAffine::new().degrees(f64::NAN),
            RandomAffine::new().scale(0.0..=1.0),
            RandomAffine::new().scale(2.0..=1.0),
            RandomAffine::new().shear(90.0),
        ] {
            assert_eq!(image().transformed(&turn, 1).unwrap_err().kind(), ErrorKind::Argument);
        }
        let flat = Array::from(vec![1.0]);
        assert_eq!(flat.transformed(&RandomAffine::new(), 1).unwrap_err().kind(), ErrorKind::Shape);
    }
}
