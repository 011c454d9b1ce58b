//! Pooling, and adaptive pooling over any number of axes.

mod avg;
mod max;

use crate::ops::Pool;
use crate::ops::window::{INPUTS, expect_axes};
use crate::{ErrorKind, Shape, Tensor, Var};

impl Var {
    /// The means of as many windows as `size` along each of `D` axes, which cover the axis: elements
    /// `⌊p·L/P⌋ .. ⌈(p+1)·L/P⌉`.
    #[must_use]
    #[track_caller]
    #[doc(hidden)]
    pub fn adaptive_avg_pool<const D: usize>(&self, name: &'static str, size: [usize; D]) -> Self {
        let output = match self.pooled(name, |x| adaptive_output(x.shape, size)) {
            Ok(output) => output,
            Err(poisoned) => return poisoned,
        };
        let [depth, rows, columns] = axes::<D>();
        let [q, r] = [rows, columns].map(|axis| axis.map_or(1, |axis| size[axis]));
        let y = self.as_images::<D>().adaptive_avg_pool2d([q, r]);
        let y = match (depth, self.shape().dims()) {
            (Some(depth), &[n, c, d, ..]) => y.reshape([n, c, d, q * r]).adaptive_avg_pool2d([size[depth], q * r]),
            _ => y,
        };
        y.reshape(output)
    }

    /// The maxima of the windows of [`adaptive_avg_pool`](Self::adaptive_avg_pool), and if they are wanted, their
    /// indices in all of these axes together: `u32`.
    #[track_caller]
    #[doc(hidden)]
    pub fn adaptive_max_pool<const D: usize>(
        &self,
        name: &'static str,
        size: [usize; D],
        wants_indices: bool,
    ) -> (Self, Option<Self>) {
        if let Err(poisoned) = self.pooled(name, |x| adaptive_output(x.shape, size)) {
            return (poisoned.clone(), wants_indices.then_some(poisoned));
        }
        let shape = self.shape();
        let extents: [usize; D] = std::array::from_fn(|axis| shape[2 + axis]);
        if (0..D).all(|axis| extents[axis].is_multiple_of(size[axis])) {
            let kernel: [usize; D] = std::array::from_fn(|axis| extents[axis] / size[axis]);
            let [y, index] = self.max_pool_of(Pool::new(kernel));
            return (y, wants_indices.then_some(index));
        }
        let elements = extents.iter().product();
        let mut index = wants_indices.then(|| {
            let numbers = self.tape().iota([elements], 0);
            self.counted(name, elements, || numbers.reshape(&[&[1; 2], &extents[..]].concat()[..]).expand(shape))
        });
        let mut y = self.clone();
        // From the last axis on, so that the first of equal elements wins.
        for axis in (2..2 + D).rev() {
            let windows = match Windows::new(&y, axis, size[axis - 2]) {
                Ok(windows) => windows,
                Err(error) => return (self.fail(error.clone()), wants_indices.then(|| self.fail(error))),
            };
            let candidates = windows.of(&y);
            let winners = candidates.argmax(axis + 1).unsqueeze(axis + 1);
            index = index.map(|index| windows.of(&index).gather(axis + 1, &winners).squeeze(axis + 1));
            y = candidates.gather(axis + 1, &winners).squeeze(axis + 1);
        }
        (y, index.map(|index| index.to_index()))
    }

    /// The output's shape by a rule, or this value, poisoned.
    #[track_caller]
    fn pooled(
        &self,
        name: &'static str,
        rule: impl Fn(&crate::TensorType) -> Result<Shape, String>,
    ) -> Result<Shape, Self> {
        if let Some(error) = self.error() {
            return Err(self.fail(error));
        }
        let ty = self.ty();
        let output = match ty.dtype.is_float() {
            true => rule(&ty),
            false => Err(format!("needs floats, the operand holds {}", ty.dtype)),
        };
        match output {
            Ok(output) => Ok(output),
            Err(message) => Err(self.refuse(name, ErrorKind::Shape, message)),
        }
    }

    /// Sequences as images of one row, and volumes as the images of their slices.
    #[track_caller]
    fn as_images<const D: usize>(&self) -> Self {
        match (D, self.shape().dims()) {
            (1, &[n, c, length]) => self.reshape([n, c, 1, length]),
            (3, &[n, c, d, h, w]) => self.reshape([n, c * d, h, w]),
            _ => self.clone(),
        }
    }

    /// Indices that are computed as floats, or the error if there are more than these can count.
    #[track_caller]
    fn counted(&self, name: &'static str, elements: usize, indices: impl FnOnce() -> Self) -> Self {
        if elements > 1 << 24 && self.ty().dtype == crate::DType::F32 {
            let message = format!("an f32 cannot count {elements} elements, so there are no indices of the maxima");
            return self.refuse(name, ErrorKind::Shape, message);
        }
        indices()
    }
}

/// The numbers of the axes of depth, height and width; sequences have only a width.
fn axes<const D: usize>() -> [Option<usize>; 3] {
    std::array::from_fn(|axis| (axis + D).checked_sub(3))
}

/// The output's shape of pooling to a size, or why there is none.
fn adaptive_output<const D: usize>(x: Shape, size: [usize; D]) -> Result<Shape, String> {
    expect_axes::<D>("input", &x, INPUTS)?;
    Ok(Shape::new(&[&x.dims()[..2], &size[..]].concat()))
}

/// Windows that cover an axis, as rows of equal length: the last element of a shorter window is there twice.
struct Windows {
    axis: usize,
    count: usize,
    index: Var,
}

impl Windows {
    #[track_caller]
    fn new(x: &Var, axis: usize, count: usize) -> crate::Result<Self> {
        let extent = x.shape()[axis];
        let range = |window: usize| (window * extent / count, ((window + 1) * extent).div_ceil(count));
        let longest = (0..count).map(|window| range(window).1 - range(window).0).max().unwrap_or(1);
        let elements = (0..count).flat_map(|window| {
            let (first, end) = range(window);
            (0..longest).map(move |at| u32::try_from((first + at).min(end - 1)).unwrap_or(u32::MAX))
        });
        let elements: Vec<_> = elements.collect();
        let index = x.tape().input(&Tensor::indices(&x.tape().device(), [elements.len()], &elements)?);
        Ok(Self { axis, count, index })
    }

    /// `[.., R, ..]` → `[.., windows, elements, ..]`.
    #[track_caller]
    fn of(&self, x: &Var) -> Var {
        let (shape, axis, longest) = (x.shape(), self.axis, self.index.shape().elements() / self.count);
        let dims = [&shape.dims()[..axis], &[self.count, longest], &shape.dims()[axis + 1..]].concat();
        x.index_select(axis, &self.index).reshape(&dims[..])
    }
}

#[cfg(feature = "testing")]
mod cases {
    use super::*;
    use crate::ops::pool::AnyPool;

    /// Windows that overlap, leave remainders, and extend into the padding.
    pub(super) fn windows() -> Vec<(AnyPool, Shape)> {
        let images = images().into_iter().map(|(pool, x)| (pool.into(), Shape::from(x)));
        let sequences = sequences().into_iter().map(|(pool, x)| (pool.into(), Shape::from(x)));
        let volumes = volumes().into_iter().map(|(pool, x)| (pool.into(), Shape::from(x)));
        images.chain(sequences).chain(volumes).collect()
    }

    fn of<const D: usize>(kernel: [usize; D], stride: [usize; D], padding: [usize; D]) -> Pool<D> {
        Pool { kernel, stride, padding, dilation: [1; D], ceil_mode: false }
    }

    fn up<const D: usize>(pool: Pool<D>) -> Pool<D> {
        Pool { ceil_mode: true, ..pool }
    }

    fn images() -> Vec<(Pool<2>, [usize; 4])> {
        vec![
            (of([1, 1], [1, 1], [0, 0]), [1, 1, 1, 1]),
            (of([2, 2], [2, 2], [0, 0]), [2, 3, 6, 8]),
            (of([2, 2], [2, 2], [0, 0]), [1, 2, 7, 5]),
            (of([3, 3], [2, 2], [1, 1]), [2, 2, 8, 7]),
            (of([3, 2], [1, 3], [1, 0]), [1, 3, 5, 11]),
            (of([3, 3], [1, 1], [0, 0]), [2, 1, 3, 41]),
            // channels that divide into lines
            (of([3, 2], [2, 3], [1, 1]), [2, 24, 9, 7]),
            // windows past the padding, and none that begin there
            (up(of([3, 2], [2, 3], [1, 0])), [2, 3, 6, 6]),
            (up(of([2, 4], [3, 3], [1, 0])), [1, 2, 4, 3]),
            (up(of([3, 3], [2, 2], [1, 1])), [1, 16, 6, 8]),
        ]
    }

    fn sequences() -> Vec<(Pool<1>, [usize; 3])> {
        vec![
            (of([1], [1], [0]), [1, 1, 1]),
            (of([3], [2], [1]), [2, 3, 10]),
            (up(of([3], [2], [0])), [1, 2, 6]),
            (of([5], [3], [2]), [2, 16, 23]),
        ]
    }

    fn volumes() -> Vec<(Pool<3>, [usize; 5])> {
        vec![
            (of([1, 1, 1], [1, 1, 1], [0, 0, 0]), [1, 1, 1, 1, 1]),
            (of([2, 2, 2], [2, 2, 2], [0, 0, 0]), [2, 2, 5, 4, 6]),
            (of([3, 2, 3], [2, 1, 3], [1, 0, 1]), [1, 3, 6, 3, 7]),
            // a window of one plane of many, with a stride, and one of many planes of a single pixel
            (of([1, 2, 2], [2, 1, 2], [0, 1, 0]), [1, 2, 5, 4, 6]),
            (of([3, 1, 1], [1, 1, 1], [1, 0, 0]), [2, 2, 4, 2, 3]),
            (up(of([2, 3, 2], [3, 2, 2], [1, 1, 0])), [1, 2, 4, 6, 3]),
            // channels that divide into lines
            (of([3, 3, 2], [2, 2, 1], [1, 1, 0]), [2, 16, 5, 6, 4]),
            (up(of([2, 2, 3], [2, 1, 2], [0, 1, 1])), [1, 10, 5, 4, 6]),
        ]
    }
}
