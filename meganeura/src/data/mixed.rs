//! Batches of mixed images.

use super::{Array, Batches, Collated};
use crate::error::bail;
use crate::seed::{Generator, Seed};
use crate::{Result, Shape};

/// Batches of images with the probabilities of their classes, as [`Batches::mixup`] and [`Batches::cutmix`] make them.
pub type MixedBatches =
    Batches<(Array<f32>, Array<f32>), u32, Collated<(Array<f32>, Array<f32>), u32, Array<f32>, Array<f32>>>;

impl Batches {
    /// Mixes each image with the next one of its batch: `λ·x + (1 − λ)·x'`, and the targets alike, with λ from the
    /// distribution Beta(α, α). The targets become probabilities `[N, classes]`, for
    /// [`soft_cross_entropy`](crate::Var::soft_cross_entropy). [Zhang et al., 2017](https://arxiv.org/abs/1710.09412).
    ///
    /// Call it last: it makes whole batches.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let images = Dataset::new(vec![0.5; 4 * 12], [3, 2, 2], vec![0, 1, 2, 0])?;
    /// for batch in images.batches(4).shuffle(7).epoch(0).mixup(0.2, 3).on(&Device::cpu()) {
    ///     let targets = batch?.targets;
    ///     assert_eq!(targets.shape(), [4, 3].into());
    ///     # assert!((targets.to_vec()?.iter().sum::<f32>() - 4.0).abs() < 1e-5);
    /// }
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    ///
    /// A label that is not below `classes`, or an α that is not above 0, is an error of the batch.
    pub fn mixup(self, alpha: f64, classes: usize) -> MixedBatches {
        self.mixed(alpha, classes, |image, other, _, share, _| {
            #[expect(clippy::cast_possible_truncation, reason = "images have single precision")]
            let share = share as f32;
            image.iter_mut().zip(other).for_each(|(x, other)| *x = share * *x + (1.0 - share) * other);
        })
    }

    /// Replaces a box of each image, at a random place and with the area `1 − λ`, by the same box of the next image of
    /// its batch, and mixes the targets by the area. Otherwise like [`mixup`](Self::mixup), for images
    /// `[channels, height, width]`. [Yun et al., 2019](https://arxiv.org/abs/1905.04899).
    pub fn cutmix(self, alpha: f64, classes: usize) -> MixedBatches {
        self.mixed(alpha, classes, |image, other, [height, width], share, places| {
            let [top, bottom, left, right] = cut([height, width], share, places);
            for at in 0..image.len() {
                let (row, column) = (at / width % height, at % width);
                if (top..bottom).contains(&row) && (left..right).contains(&column) {
                    image[at] = other[at];
                }
            }
        })
    }

    fn mixed(self, alpha: f64, classes: usize, mix: Mix) -> MixedBatches {
        // Every example draws its share and the place of its box from its own seed.
        let drawn = self.map(move |image, label, seed: Seed| {
            if !(alpha > 0.0 && alpha.is_finite()) {
                bail!(Argument, "images cannot be mixed with an alpha of {alpha}; it is above 0");
            }
            let mut rng = seed.rng();
            let share = beta(alpha, &mut rng);
            let draws = [share, rng.uniform(), rng.uniform()];
            #[expect(clippy::cast_possible_truncation, reason = "exact enough for a share")]
            let draws = draws.map(|number| number as f32).to_vec();
            Ok(((image, Array::from(draws)), label))
        });
        drawn.collate(move |examples| mix_all(&examples, classes, mix))
    }
}

/// Changes an image by another one of the same batch, given their height and width, the share of the first, and two
/// numbers from 0 to 1.
type Mix = fn(&mut [f32], &[f32], [usize; 2], f64, [f64; 2]);

/// An image with its share and a place, and its label.
type Drawn = ((Array<f32>, Array<f32>), u32);

fn mix_all(examples: &[Drawn], classes: usize, mix: Mix) -> Result<(Array<f32>, Array<f32>)> {
    let shape = examples[0].0.0.shape();
    if let Some(((image, _), _)) = examples.iter().find(|((image, _), _)| image.shape() != shape) {
        bail!(Shape, "images of one batch have the shapes {shape} and {}", image.shape());
    }
    if let Some((_, label)) = examples.iter().find(|(_, label)| *label as usize >= classes) {
        bail!(Argument, "label {label} is out of range: there are {classes} classes");
    }
    let plane = match *shape.dims() {
        [.., height, width] => [height, width],
        [width] => [1, width],
        [] => [1, 1],
    };
    let count = examples.len();
    let mut images = Array::zeros(Shape::new(&[&[count], shape.dims()].concat()))?;
    let mut targets = Array::zeros([count, classes])?;
    let rows = images.values_mut().chunks_mut(shape.elements().max(1)).zip(targets.values_mut().chunks_mut(classes));
    for (at, (row, target)) in rows.enumerate() {
        let ((image, draws), label) = &examples[at];
        let ((other, _), other_label) = &examples[(at + 1) % count];
        row.copy_from_slice(image.values());
        let &[share, x, y] = draws.values() else { unreachable!("a share and a place") };
        mix(row, other.values(), plane, f64::from(share), [x, y].map(f64::from));
        // The share of the elements that stayed, or of their brightness: the same for both ways of mixing, but for the
        // rounding of a box to whole pixels.
        target[*label as usize] += share;
        target[*other_label as usize] += 1.0 - share;
    }
    Ok((images, targets))
}

/// The rows and columns of a box with the area `1 − share`, inside of the image.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and the extent")]
fn cut([height, width]: [usize; 2], share: f64, [x, y]: [f64; 2]) -> [usize; 4] {
    let side = (1.0 - share).max(0.0).sqrt();
    let range = |extent: usize, place: f64| {
        let length = (side * extent as f64).round() as usize;
        let start = (place * (extent - length + 1) as f64) as usize;
        [start.min(extent - length), start.min(extent - length) + length]
    };
    let ([top, bottom], [left, right]) = (range(height, y), range(width, x));
    [top, bottom, left, right]
}

/// A number from the distribution Beta(α, α).
fn beta(alpha: f64, rng: &mut Generator) -> f64 {
    let [x, y] = [gamma(alpha, rng), gamma(alpha, rng)];
    // With a tiny alpha, both may be 0.
    if x + y > 0.0 { x / (x + y) } else { f64::from(rng.uniform() < 0.5) }
}

/// A number from the gamma distribution. [Marsaglia and Tsang, 2000](https://doi.org/10.1145/358407.358414); below 1,
/// that of `alpha + 1` times `u^(1/alpha)`.
fn gamma(alpha: f64, rng: &mut Generator) -> f64 {
    if alpha < 1.0 {
        let boost = rng.uniform().powf(1.0 / alpha);
        return gamma(alpha + 1.0, rng) * boost;
    }
    let d = alpha - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let x = rng.normal();
        let v = (1.0 + c * x).powi(3);
        let u: f64 = rng.uniform();
        if v > 0.0 && u.ln() < 0.5 * x * x + d - d * v + d * v.ln() {
            return d * v;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Dataset;
    use crate::{Device, ErrorKind};

    #[test]
    fn shares_have_the_moments_of_their_distribution() {
        let mut rng = Seed::new(1).rng();
        for alpha in [0.2, 1.0, 3.0] {
            let shares: Vec<f64> = (0..20_000).map(|_| beta(alpha, &mut rng)).collect();
            assert!(shares.iter().all(|share| (0.0..=1.0).contains(share)));
            let mean = shares.iter().sum::<f64>() / shares.len() as f64;
            let variance = shares.iter().map(|share| (share - mean).powi(2)).sum::<f64>() / shares.len() as f64;
            // Deviations of about 0.004 and 0.002 are expected.
            assert!((mean - 0.5).abs() < 0.015, "{alpha}: {mean}");
            assert!((variance - 0.25 / (2.0 * alpha + 1.0)).abs() < 0.01, "{alpha}: {variance}");
        }
    }

    /// Images of their label.
    fn images() -> Dataset {
        let pixels = (0..6u8).flat_map(|label| vec![f32::from(label); 2 * 8 * 8]).collect();
        Dataset::new(pixels, [2, 8, 8], (0..6).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn pixels_and_targets_are_mixed_alike() {
        for (is_cut, batches) in [
            (false, images().batches(6).shuffle(3).epoch(1).mixup(1.0, 6)),
            (true, images().batches(6).shuffle(3).epoch(1).cutmix(1.0, 6)),
        ] {
            let batch = batches.on(&Device::cpu()).next().unwrap().unwrap();
            let (pixels, targets) = (batch.inputs.to_vec().unwrap(), batch.targets.to_vec().unwrap());
            for (image, target) in pixels.chunks(128).zip(targets.chunks(6)) {
                assert!((target.iter().sum::<f32>() - 1.0).abs() < 1e-6);
                assert_eq!(target.iter().filter(|&&share| share > 0.0).count(), 2, "{target:?}");
                let mean = image.iter().sum::<f32>() / 128.0;
                let expected: f32 = target.iter().zip(0..6u8).map(|(share, label)| share * f32::from(label)).sum();
                // A side of the box is rounded by up to half a pixel of eight.
                let tolerance = if is_cut { 5.0 * 0.13 } else { 1e-4 };
                assert!((mean - expected).abs() < tolerance, "{mean} {expected}");
                let mut kinds = image.to_vec();
                kinds.sort_by(f32::total_cmp);
                kinds.dedup();
                assert!(kinds.len() <= if is_cut { 2 } else { 1 });
                assert_eq!(image[..64], image[64..], "both channels alike");
            }
        }
    }

    #[test]
    fn misuse_is_an_error_of_the_batch() {
        let error = |batches: MixedBatches| batches.on(&Device::cpu()).next().unwrap().unwrap_err();
        assert_eq!(error(images().batches(6).mixup(0.0, 6)).kind(), ErrorKind::Argument);
        let error = error(images().batches(6).cutmix(1.0, 5));
        assert!(error.to_string().contains("label 5 is out of range: there are 5 classes"), "{error}");
        assert_eq!(cut([4, 4], 0.0, [1.0, 1.0]), [0, 4, 0, 4]);
        assert_eq!(cut([4, 4], 1.0, [1.0, 0.0]), [0, 0, 4, 4]);
    }
}
