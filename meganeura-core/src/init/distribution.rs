//! Random numbers from a seed.
//!
//! The algorithms are here rather than in a library of distributions because they are part of the interface: a seeded
//! model must not start from other values after an update.

use crate::host::reserve;
use crate::seed::Seed;
use crate::{Result, Shape};

/// The distribution to draw from.
#[derive(Clone, Copy)]
pub(super) enum Distribution {
    Constant(f64),
    /// Uniform from the first number, included, to the second, excluded.
    Uniform(f64, f64),
    /// Mean and standard deviation.
    Normal(f64, f64),
}

impl Distribution {
    pub(super) fn makes_sense(self) -> bool {
        match self {
            Self::Constant(value) => value.is_finite(),
            Self::Uniform(low, high) => low <= high && (high - low).is_finite(),
            Self::Normal(mean, std) => mean.is_finite() && std.is_finite() && std >= 0.0,
        }
    }

    /// One number for each element of the shape.
    pub(super) fn draw(self, shape: Shape, seed: Seed) -> Result<Vec<f64>> {
        let count = shape.elements();
        let mut values = Vec::new();
        reserve(&mut values, count).map_err(|error| {
            error.context(format_args!("the {count} initial values of a parameter of shape {shape}, as they are drawn"))
        })?;
        let mut rng = seed.rng();
        match self {
            Self::Constant(value) => values.resize(count, value),
            Self::Uniform(low, high) => values.extend((0..count).map(|_| low + (high - low) * rng.uniform())),
            Self::Normal(mean, std) => {
                while values.len() < count {
                    let pair = rng.normal_pair().map(|z| mean + std * z);
                    values.extend(pair.iter().take(count - values.len()));
                }
            }
        }
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(distribution: Distribution, count: usize) -> Vec<f64> {
        distribution.draw(Shape::from([count]), Seed::new(42)).unwrap()
    }

    #[test]
    fn first_numbers_never_change() {
        // Expected values from an independent implementation and the generator's published outputs. If this fails,
        // every seeded model of every user starts from other values.
        let uniform = draw(Distribution::Uniform(0.0, 1.0), 3);
        assert_eq!(uniform, [0.226_512_517_928_313_5, 0.239_106_690_318_599_55, 0.760_833_410_686_741]);
        let normal = draw(Distribution::Normal(0.0, 1.0), 3);
        let expected = [0.049_017_572_888_746_586, 0.715_044_657_853_571, -1.665_693_121_258_388];
        // The other implementation's logarithm and cosine may round differently.
        assert!(normal.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-15), "{normal:?}");
    }

    #[test]
    fn gaussian_tails_are_there() {
        let samples = draw(Distribution::Normal(1.0, 2.0), 100_000);
        let beyond = |sigmas: f64| samples.iter().filter(|x| (*x - 1.0).abs() > 2.0 * sigmas).count() as f64 / 1e5;
        // P(|z| > 1, 2, 3) = 0.3173, 0.0455, 0.0027; the standard error of the first is 0.0015.
        assert!((beyond(1.0) - 0.3173).abs() < 0.006);
        assert!((beyond(2.0) - 0.0455).abs() < 0.003);
        assert!((beyond(3.0) - 0.0027).abs() < 0.0007);
    }

    #[test]
    fn a_longer_tensor_starts_like_a_shorter_one() {
        let normal = Distribution::Normal(0.0, 1.0);
        assert_eq!(draw(normal, 5), draw(normal, 8)[..5]);
    }
}
