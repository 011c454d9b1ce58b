//! Cutout: hides a part of the image.

use super::{Transform, image};
use crate::data::order::below;
use crate::seed::Seed;
use crate::{Result, Shape};

/// Hides a square of an image with zeros.
///
/// The centre of the square is any pixel, and the square may extend beyond the border (DeVries & Taylor, Improved
/// Regularization of Convolutional Neural Networks with Cutout, 2017).
///
/// Zero is the mean after [`Normalize`](super::Normalize), and black before it; the authors use the mean.
#[derive(Clone, Copy, Debug)]
pub struct Cutout {
    side: usize,
}

impl Cutout {
    /// Squares of `side` by `side` pixels.
    #[must_use]
    pub fn new(side: usize) -> Self {
        Self { side }
    }
}

impl Transform for Cutout {
    fn shape(&self, shape: Shape) -> Result<Shape> {
        image(shape).map(|_| shape)
    }

    fn apply(&self, example: &mut Vec<f32>, shape: Shape, seed: Seed) {
        let (height, width) = (shape[1], shape[2]);
        let mut rng = seed.rng();
        let mut range = |extent: usize| {
            let (centre, before) = (below(&mut rng, extent), self.side / 2);
            centre.saturating_sub(before)..centre.saturating_add(self.side - before).min(extent)
        };
        let (rows, columns) = (range(height), range(width));
        for channel in example.chunks_exact_mut(height * width) {
            for row in rows.clone() {
                channel[row * width..][..width][columns.clone()].fill(0.0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hidden(side: usize, seed: u64) -> Vec<(usize, usize)> {
        let mut example = vec![1.0; 2 * 20];
        Cutout::new(side).apply(&mut example, [2, 4, 5].into(), Seed::new(seed));
        assert_eq!(example[..20], example[20..], "channels differ");
        (0..20).filter(|&i| example[i] == 0.0).map(|i| (i / 5, i % 5)).collect()
    }

    #[test]
    fn a_square_is_hidden() {
        let sizes: Vec<_> = (0..200).map(|seed| hidden(3, seed).len()).collect();
        // 2 or 3 rows by 2 or 3 columns: the border cuts off a row or column.
        for size in [4, 6, 9] {
            assert!(sizes.contains(&size), "{size}");
        }
        assert!(sizes.iter().all(|size| [4, 6, 9].contains(size)), "{sizes:?}");
        let corner = (0..200).map(|seed| hidden(3, seed)).find(|hidden| hidden.len() == 4 && hidden[0] == (0, 0));
        assert_eq!(corner.unwrap(), [(0, 0), (0, 1), (1, 0), (1, 1)]);
    }

    #[test]
    fn sides_may_be_nothing_or_everything() {
        assert!(hidden(0, 1).is_empty());
        assert_eq!(hidden(usize::MAX, 1).len(), 20);
        // Every pixel is the centre for some seed.
        let mut alone: Vec<_> = (0..500).flat_map(|seed| hidden(1, seed)).collect();
        alone.sort_unstable();
        alone.dedup();
        assert_eq!(alone.len(), 20);
    }
}
