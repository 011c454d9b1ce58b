//! Transformations of examples, which apply before they are put into a batch. One transformation per file.

mod affine;
mod color_jitter;
mod crop;
mod cutout;
mod flip;
mod normalize;
mod resized_crop;

use std::fmt;

pub use affine::RandomAffine;
pub use color_jitter::ColorJitter;
pub use crop::RandomCrop;
pub use cutout::Cutout;
pub use flip::{HorizontalFlip, VerticalFlip};
pub use normalize::Normalize;
pub use resized_crop::RandomResizedCrop;

use crate::error::bail;
use crate::seed::Seed;
use crate::{Result, Shape};

/// A transformation of an example: [`Batches::transform`](super::Batches::transform) applies it.
///
/// The crate has [`RandomCrop`], [`RandomResizedCrop`], [`RandomAffine`], [`HorizontalFlip`], [`VerticalFlip`],
/// [`Cutout`], [`ColorJitter`] and [`Normalize`]; your own is a type with these two methods.
///
/// ```
/// use meganeura::data::Transform;
/// use meganeura::prelude::*;
///
/// /// Half of the images with paper and ink exchanged.
/// #[derive(Debug)]
/// struct Invert;
///
/// impl Transform for Invert {
///     fn shape(&self, shape: Shape) -> meganeura::Result<Shape> {
///         Ok(shape)
///     }
///
///     fn apply(&self, example: &mut Vec<f32>, _: Shape, seed: Seed) {
///         if seed.rng().next_u64() % 2 == 0 {
///             example.iter_mut().for_each(|x| *x = 1.0 - *x);
///         }
///     }
/// }
///
/// let digits = Dataset::new(vec![0.25; 40], [1, 2, 2], vec![0; 10])?;
/// let batch = digits.batches(10).transform(Invert).on(&Device::cpu()).next().unwrap()?;
/// assert!(batch.inputs.to_vec()?.iter().any(|x| *x == 0.75));
/// # assert!(batch.inputs.to_vec()?.iter().any(|x| *x == 0.25));
/// # Ok::<(), meganeura::Error>(())
/// ```
pub trait Transform: fmt::Debug + Send + Sync {
    /// The shape of an example of this shape after the transformation.
    ///
    /// # Errors
    ///
    /// Fails if such examples cannot be transformed, or if the transformation itself is invalid.
    fn shape(&self, shape: Shape) -> Result<Shape>;

    /// Changes an example of this shape, row by row, into one of [`shape(shape)`](Self::shape).
    ///
    /// All randomness must come from the seed, which differs for each epoch, position and transformation. `example` has
    /// capacity for both, one after the other.
    fn apply(&self, example: &mut Vec<f32>, shape: Shape, seed: Seed);
}

/// Channels, height and width of an image.
fn image(shape: Shape) -> Result<[usize; 3]> {
    match *shape.dims() {
        [channels, height, width] => Ok([channels, height, width]),
        _ => bail!(Shape, "an image has shape [channels, height, width], not {shape}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use crate::data::Array;

    #[test]
    fn shapes_follow_each_other() {
        let crop = RandomCrop::new(3, 2).padding(1);
        let example = Array::zeros([1, 4, 5]).unwrap().transformed(&crop, 1).unwrap();
        assert_eq!(example.shape(), Shape::from([1, 3, 2]));
        let example = example.transformed(&HorizontalFlip::new(0.5), 1).unwrap();
        assert_eq!(example.transformed(&crop, 2).unwrap().shape(), Shape::from([1, 3, 2]));
    }

    #[test]
    fn errors_name_the_transform_or_the_misfit() {
        type Wrong = (Box<dyn Transform>, &'static [usize], ErrorKind, &'static str);
        let wrong: [Wrong; 12] = [
            (Box::new(RandomCrop::new(6, 6)), &[1, 5, 6], ErrorKind::Shape, "RandomCrop"),
            (Box::new(RandomCrop::new(0, 6)), &[1, 5, 6], ErrorKind::Argument, "RandomCrop"),
            (Box::new(RandomCrop::new(2, 2).padding(usize::MAX)), &[1, 5, 6], ErrorKind::Argument, "RandomCrop"),
            (Box::new(RandomCrop::new(usize::MAX, 2).padding(usize::MAX)), &[1, 5, 6], ErrorKind::Shape, "RandomCrop"),
            (Box::new(RandomCrop::new(2, 2)), &[4], ErrorKind::Shape, "[channels, height, width]"),
            (Box::new(HorizontalFlip::new(0.5)), &[2, 2], ErrorKind::Shape, "HorizontalFlip"),
            (Box::new(HorizontalFlip::new(f64::NAN)), &[1, 2, 2], ErrorKind::Argument, "HorizontalFlip"),
            (Box::new(VerticalFlip::new(1.5)), &[1, 2, 2], ErrorKind::Argument, "VerticalFlip"),
            (Box::new(Cutout::new(2)), &[2, 2], ErrorKind::Shape, "Cutout"),
            (Box::new(Normalize::new([0.5; 3], [0.5; 3])), &[1, 2, 2], ErrorKind::Shape, "3 means"),
            (Box::new(Normalize::new([0.5], [0.5; 2])), &[1, 2, 2], ErrorKind::Shape, "2 deviations"),
            (Box::new(Normalize::new([0.5], [0.0])), &[1, 2, 2], ErrorKind::Argument, "Normalize"),
        ];
        for (transform, shape, kind, part) in wrong {
            let error = Array::zeros(shape).unwrap().transformed(&*transform, 1).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(part), "{error}");
        }
    }
}
