//! Random changes of colours.

use super::{Transform, image};
use crate::error::bail;
use crate::seed::Seed;
use crate::{Result, Shape};

/// Changes brightness, contrast, saturation and hue of an image with numbers from 0 to 1 at random, and keeps them in
/// that range. torchvision's `ColorJitter`, in this order.
///
/// ```
/// use meganeura::data::{Array, ColorJitter};
///
/// let image = Array::new(vec![0.5; 12], [3, 2, 2])?;
/// let changed = image.transformed(&ColorJitter::new().brightness(0.4).saturation(0.2), 1)?;
/// assert!((0.3..0.7).contains(&changed.values()[0]));
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct ColorJitter {
    brightness: f64,
    contrast: f64,
    saturation: f64,
    hue: f64,
}

/// The weights of red, green and blue in the brightness of a pixel.
const WEIGHTS: [f32; 3] = [0.299, 0.587, 0.114];

impl ColorJitter {
    /// No change, until another method adds one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Multiplies by a factor from `1 − most` to `1 + most`.
    pub fn brightness(self, most: f64) -> Self {
        Self { brightness: most, ..self }
    }

    /// Multiplies the distance from the mean brightness of the image by a factor from `1 − most` to `1 + most`.
    pub fn contrast(self, most: f64) -> Self {
        Self { contrast: most, ..self }
    }

    /// Multiplies the distance from the brightness of each pixel by a factor from `1 − most` to `1 + most`. An image of
    /// one channel stays.
    pub fn saturation(self, most: f64) -> Self {
        Self { saturation: most, ..self }
    }

    /// Turns the hue of each pixel by a part of the circle from `−most` to `most`, which is at most 0.5. An image of
    /// one channel stays.
    pub fn hue(self, most: f64) -> Self {
        Self { hue: most, ..self }
    }
}

/// A pixel with its hue turned by a part of the circle: the same largest and smallest number, and the same distance
/// between them.
fn turned([red, green, blue]: [f32; 3], part: f32) -> [f32; 3] {
    let (most, least) = (red.max(green).max(blue), red.min(green).min(blue));
    let spread = most - least;
    if spread <= 0.0 {
        return [red, green, blue];
    }
    // The place on the circle, in sixths of it.
    let place = match most {
        most if most == red => (green - blue) / spread,
        most if most == green => (blue - red) / spread + 2.0,
        _ => (red - green) / spread + 4.0,
    };
    let place = place + 6.0 * part;
    // Each colour falls from the largest number to the smallest within the third of the circle around its opposite.
    [5.0, 3.0, 1.0].map(|opposite| {
        let at = (place + opposite).rem_euclid(6.0);
        most - spread * at.min(4.0 - at).clamp(0.0, 1.0)
    })
}

impl Transform for ColorJitter {
    fn shape(&self, shape: Shape) -> Result<Shape> {
        if [self.brightness, self.contrast, self.saturation].iter().any(|most| !(0.0..=1.0).contains(most)) {
            bail!(Argument, "changes lie between 0 and 1");
        }
        if !(0.0..=0.5).contains(&self.hue) {
            bail!(Argument, "a change of the hue lies between 0 and 0.5, it is {}", self.hue);
        }
        match image(shape)? {
            [1 | 3, ..] => Ok(shape),
            [channels, ..] => bail!(Shape, "an image has one channel or three, not {channels}"),
        }
    }

    fn apply(&self, example: &mut Vec<f32>, shape: Shape, seed: Seed) {
        let (channels, plane) = (shape[0], shape[1] * shape[2]);
        let mut rng = seed.rng();
        #[expect(clippy::cast_possible_truncation, reason = "pixels have single precision")]
        let mut factor = |most: f64| (1.0 + most * (2.0 * rng.uniform() - 1.0)) as f32;
        let [brightness, contrast, saturation, hue] =
            [self.brightness, self.contrast, self.saturation, self.hue].map(&mut factor);
        let gray = |example: &[f32], at: usize| match channels {
            1 => example[at],
            _ => WEIGHTS.iter().enumerate().map(|(channel, weight)| weight * example[channel * plane + at]).sum(),
        };
        example.iter_mut().for_each(|x| *x = (brightness * *x).clamp(0.0, 1.0));
        let mean = (0..plane).map(|at| gray(example, at)).sum::<f32>() / plane as f32;
        example.iter_mut().for_each(|x| *x = (mean + contrast * (*x - mean)).clamp(0.0, 1.0));
        if channels == 3 {
            for at in 0..plane {
                let gray = gray(example, at);
                for x in example[at..].iter_mut().step_by(plane) {
                    *x = (gray + saturation * (*x - gray)).clamp(0.0, 1.0);
                }
                if self.hue > 0.0 {
                    let pixel = turned([0, 1, 2].map(|channel| example[channel * plane + at]), hue - 1.0);
                    pixel.into_iter().enumerate().for_each(|(channel, x)| example[channel * plane + at] = x);
                }
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
        Array::new(vec![0.2, 0.4, 0.1, 0.5, 0.3, 0.6], [3, 1, 2]).unwrap()
    }

    #[test]
    fn each_change_has_its_invariant() {
        let near = |a: f32, b: f32| (a - b).abs() < 1e-5;
        let gray = |x: &[f32], at: usize| 0.299 * x[at] + 0.587 * x[2 + at] + 0.114 * x[4 + at];
        let of = |jitter: ColorJitter, seed: u64| image().transformed(&jitter, seed).unwrap().into_values();
        let before = image().into_values();
        for seed in 0..20 {
            let x = of(ColorJitter::new().brightness(0.5), seed);
            assert!(near(x[0] / before[0], x[5] / before[5]) && (0.5..=1.5).contains(&(x[0] / before[0])), "{x:?}");
            let x = of(ColorJitter::new().contrast(0.5), seed);
            assert!(near(gray(&x, 0) + gray(&x, 1), gray(&before, 0) + gray(&before, 1)), "{x:?}");
            let x = of(ColorJitter::new().saturation(0.5), seed);
            assert!(near(gray(&x, 0), gray(&before, 0)) && near(gray(&x, 1), gray(&before, 1)), "{x:?}");
            assert!(
                of(ColorJitter::new().brightness(1.0).contrast(1.0).saturation(1.0), seed)
                    .iter()
                    .all(|x| (0.0..=1.0).contains(x))
            );
            assert!(of(ColorJitter::new(), seed).iter().zip(&before).all(|(&x, &y)| near(x, y)));
        }
        let single = Array::new(vec![0.5, 0.25], [1, 1, 2]).unwrap();
        assert_eq!(single.clone().transformed(&ColorJitter::new().saturation(1.0), 1).unwrap(), single);
    }

    #[test]
    fn hues_turn_around_the_circle() {
        let near = |x: [f32; 3], y: [f32; 3]| x.iter().zip(y).all(|(x, y)| (x - y).abs() < 1e-6);
        // A third of the circle from red to green to blue, half of it to the opposite colour.
        for (pixel, part, expected) in [
            ([0.9, 0.1, 0.1], 1.0 / 3.0, [0.1, 0.9, 0.1]),
            ([0.9, 0.1, 0.1], -1.0 / 3.0, [0.1, 0.1, 0.9]),
            ([0.9, 0.1, 0.1], 0.5, [0.1, 0.9, 0.9]),
            ([0.9, 0.5, 0.1], 1.0 / 3.0, [0.1, 0.9, 0.5]),
            ([0.2, 0.4, 0.8], 0.25, [0.8, 0.2, 0.7]),
            ([0.4, 0.4, 0.4], 0.3, [0.4, 0.4, 0.4]),
            ([0.2, 0.7, 0.3], 0.0, [0.2, 0.7, 0.3]),
        ] {
            let found = turned(pixel, part);
            assert!(near(found, expected), "{pixel:?} {part}: {found:?}");
            assert!(near(turned(found, -part), pixel));
        }
        let mut changed = 0;
        for seed in 0..20 {
            let x = image().transformed(&ColorJitter::new().hue(0.5), seed).unwrap().into_values();
            let before = image().into_values();
            for at in 0..2 {
                let of = |x: &[f32], pick: fn(f32, f32) -> f32| {
                    [0, 2, 4].map(|c| x[c + at]).into_iter().reduce(pick).unwrap()
                };
                assert!((of(&x, f32::max) - of(&before, f32::max)).abs() < 1e-6);
                assert!((of(&x, f32::min) - of(&before, f32::min)).abs() < 1e-6);
            }
            changed += usize::from(!near([x[0], x[2], x[4]], [before[0], before[2], before[4]]));
        }
        assert!(changed > 15, "{changed}");
        let error = image().transformed(&ColorJitter::new().hue(0.6), 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Argument);
    }

    #[test]
    fn misuse_is_an_error() {
        let error = image().transformed(&ColorJitter::new().contrast(1.5), 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Argument);
        let two = Array::new(vec![0.5; 4], [2, 1, 2]).unwrap();
        assert_eq!(two.transformed(&ColorJitter::new(), 1).unwrap_err().kind(), ErrorKind::Shape);
    }
}
