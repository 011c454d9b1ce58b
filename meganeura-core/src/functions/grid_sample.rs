//! Sampling of images at computed positions.

use crate::ErrorKind;
use crate::tape::Var;

/// The value of an image between its pixels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GridSampleMode {
    /// Interpolates between the four nearest pixels.
    #[default]
    Bilinear,
    /// The nearest pixel, on a tie the one with the even index. The grid has no gradient then.
    Nearest,
}

/// The value of an image outside of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GridSamplePadding {
    /// Zero.
    #[default]
    Zeros,
    /// The value at the nearest point of the edge.
    Border,
}

/// Options of [`Var::grid_sample`]. The defaults are PyTorch's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct GridSampleOptions {
    /// The value between pixels.
    pub mode: GridSampleMode,
    /// The value outside of the image.
    pub padding: GridSamplePadding,
    /// `true` if −1 and 1 are the centres of the outermost pixels, `false` if they are their outer edges.
    pub align_corners: bool,
}

impl Var {
    /// Samples images at the positions of a grid, between their pixels. [Jaderberg et al.,
    /// 2015](https://arxiv.org/abs/1506.02025).
    ///
    /// `y[n,c,p,q] = x[n,c,h,w]` where `grid[n,p,q] = (w, h)`, from −1 at the left or upper edge to 1 at the right or
    /// lower edge.
    ///
    /// Where the grid is NaN, the result is NaN. The gradient of the grid is 0 where the result is constant: beyond the
    /// outermost pixel centres with border padding, one pixel further out with zeros. The gradient of a pixel is a sum
    /// in a fixed order. On a GPU, each pixel scans all grid positions of its image, so the time grows with the product
    /// of the two sizes.
    ///
    /// Shapes: `x [N, C, H, W]`, `grid [N, P, Q, 2]` → `y [N, C, P, Q]`. Other shapes are an error, and so are images
    /// of more than 2²⁴ pixels.
    ///
    /// ```
    /// use meganeura::ops::GridSampleOptions;
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let tape = Tape::new(&device);
    /// let x = tape.input(&Tensor::from_slice(&device, [1, 1, 1, 2], &[1.0, 3.0])?);
    /// let grid = tape.input(&Tensor::from_slice(&device, [1, 1, 3, 2], &[-0.5, 0.0, 0.0, 0.0, 1.0, 0.0])?);
    /// assert_eq!(x.grid_sample(&grid, GridSampleOptions::default()).to_vec()?, [1.0, 2.0, 1.5]);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn grid_sample(&self, grid: &Self, options: GridSampleOptions) -> Self {
        if let Some(error) = grid.error() {
            return self.fail(error);
        }
        let ([n, _, h, w], [grids, p, q, 2]) = (dims(self), dims(grid)) else {
            let message =
                format!("needs images [N, C, H, W] and a grid [N, P, Q, 2], not {} and {}", self.ty(), grid.ty());
            return self.refuse(NAME, ErrorKind::Shape, message);
        };
        if n != grids || !self.ty().dtype.is_float() || !grid.ty().dtype.is_float() {
            let message = format!("needs floats, and one grid for each image, not {} and {}", self.ty(), grid.ty());
            return self.refuse(NAME, ErrorKind::Shape, message);
        }
        let along = |axis: usize, extent| {
            grid.slice(3, axis..axis + 1).reshape([n, 1, p * q]).place_among(extent, options.align_corners)
        };
        self.sample_at([&along(0, w), &along(1, h)], [p, q], options)
    }

    /// Samples `[N, C, H, W]` at places `[N, 1, P·Q]` across and down, counted in pixels from the middle of the first,
    /// which gives `[N, C, P, Q]`. The shapes must be these.
    #[must_use]
    #[track_caller]
    #[doc(hidden)]
    pub fn sample_at(&self, [across, down]: [&Self; 2], [p, q]: [usize; 2], options: GridSampleOptions) -> Self {
        let [n, c, h, w] = dims(self);
        // The number of a pixel is computed in floats.
        let pixels = h.saturating_mul(w);
        if pixels > 1 << 24 {
            return self.refuse(NAME, ErrorKind::Argument, format!("images of {h}×{w} pixels are too large"));
        }
        let along = |place: &Self, axis: usize, extent| {
            let Taps { places, shares } = place.taps(extent, options);
            // Rows and columns as the axes of a matrix.
            let count = places.shape()[1];
            let shape = if axis == 0 { [n, 1, count, p * q] } else { [n, count, 1, p * q] };
            let extent = self.constant(real(extent));
            let is_inside = places.ge(self.constant(0.0)) * places.lt(extent);
            [places, is_inside, shares].map(|x| x.reshape(shape))
        };
        let ([columns, is_column, of_columns], [rows, is_row, of_rows]) = (along(across, 0, w), along(down, 1, h));
        let numbers = (is_column * is_row).where_cond(&(rows.scale(real(w)) + columns), &self.constant(real(pixels)));
        let shares = of_columns * of_rows;
        let taps = shares.shape()[1] * shares.shape()[2];
        let [numbers, shares] = [numbers, shares].map(|x| x.reshape([n, taps, p * q]));
        self.reshape([n, c, pixels]).weighted_gather(&numbers.to_index(), &shares).reshape([n, c, p, q])
    }

    /// The pixels that places `[N, 1, K]` read along an axis of `extent` pixels.
    #[track_caller]
    fn taps(&self, extent: usize, options: GridSampleOptions) -> Taps {
        let place = if options.mode == GridSampleMode::Nearest { self.round() } else { self.clone() };
        let last = real(extent);
        let place = match options.padding {
            GridSamplePadding::Zeros => place.clamp(-1.0, last),
            GridSamplePadding::Border => place.clamp(0.0, last - 1.0),
        };
        let one = self.constant(1.0);
        if options.mode == GridSampleMode::Nearest {
            // NaN stays.
            return Taps { shares: place.detach().scale(0.0) + one, places: place };
        }
        let (first, step) = (place.floor(), self.tape().iota([1, 2, 1], 1));
        // 1 minus the distance from the place: `1 − far`, then `far`.
        let far = place - &first;
        let shares = (step.scale(2.0) - &one) * far + (one - &step);
        Taps { places: first + step, shares }
    }

    /// The position of a coordinate from −1 to 1 among `extent` pixels.
    #[track_caller]
    fn place_among(&self, extent: usize, align_corners: bool) -> Self {
        let (extent, from_edge) = (real(extent), self + self.constant(1.0));
        if align_corners {
            from_edge.scale(0.5 * (extent - 1.0))
        } else {
            from_edge.scale(0.5 * extent) - self.constant(0.5)
        }
    }
}

/// The name in errors.
const NAME: &str = "grid_sample";

/// The pixels that are read along an axis, and their shares in the result, `[N, T, K]`.
struct Taps {
    places: Var,
    shares: Var,
}

#[expect(clippy::cast_precision_loss, reason = "extents are far below 2^53")]
fn real(extent: usize) -> f64 {
    extent as f64
}

/// The four extents of a value, if it has four axes.
fn dims(x: &Var) -> [usize; 4] {
    x.shape().dims().try_into().unwrap_or_default()
}

#[cfg(feature = "testing")]
pub(super) mod cases {
    use super::*;
    use crate::functions::case::{Array, Case};

    pub(in crate::functions) fn recorded() -> Vec<Case> {
        let naive = |options: GridSampleOptions| {
            let GridSampleOptions { mode, padding, align_corners } = options;
            move |x: &[Array]| {
                let [[n, c, h, w], [_, p, q, _]]: [[usize; 4]; 2] =
                    [0, 1].map(|k| x[k].shape.dims().try_into().expect("four axes"));
                let place = |grid: f64, extent: usize| {
                    let extent = extent as f64;
                    let at = if align_corners {
                        (grid + 1.0) * (extent - 1.0) / 2.0
                    } else {
                        ((grid + 1.0) * extent - 1.0) / 2.0
                    };
                    if padding == GridSamplePadding::Border { at.clamp(0.0, extent - 1.0) } else { at }
                };
                let pixel = |plane: usize, row: f64, column: f64| {
                    let is_inside = row >= 0.0 && column >= 0.0 && row < h as f64 && column < w as f64;
                    if is_inside { x[0].data[(plane * h + row as usize) * w + column as usize] } else { 0.0 }
                };
                let of = |element: usize| {
                    let (plane, at) = (element / (p * q), element % (p * q));
                    let place_of = |k: usize, extent| place(x[1].data[(plane / c * p * q + at) * 2 + k], extent);
                    let (column, row) = (place_of(0, w), place_of(1, h));
                    if mode == GridSampleMode::Nearest {
                        return pixel(plane, row.round_ties_even(), column.round_ties_even());
                    }
                    let mut sum = 0.0;
                    for (i, j) in [(0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0)] {
                        let (at_row, at_column) = (row.floor() + i, column.floor() + j);
                        let weight = (1.0 - (row - at_row).abs()) * (1.0 - (column - at_column).abs());
                        sum += weight * pixel(plane, at_row, at_column);
                    }
                    sum
                };
                let shape = crate::Shape::from([n, c, p, q]);
                vec![Array { shape, data: (0..shape.elements()).map(of).collect() }]
            }
        };
        let mut cases = Vec::new();
        for bits in 0..8 {
            let options = GridSampleOptions {
                mode: [GridSampleMode::Bilinear, GridSampleMode::Nearest][bits & 1],
                padding: [GridSamplePadding::Zeros, GridSamplePadding::Border][bits >> 1 & 1],
                align_corners: bits & 4 != 0,
            };
            for (x, grid) in [(&[2, 3, 4, 5][..], &[2, 3, 2, 2][..]), (&[1, 1, 1, 3], &[1, 2, 5, 2])] {
                let case = Case::recorded("grid_sample", &[x, grid], move |x| x[0].grid_sample(&x[1], options));
                // A third of the positions are outside.
                cases.push(case.range(-1.4, 1.4).naive(naive(options)).tolerance(4e-6));
            }
        }
        let wrong = |x: &[usize], grid: &[usize]| {
            Case::recorded("grid_sample", &[x, grid], |x| x[0].grid_sample(&x[1], GridSampleOptions::default()))
                .expect_error()
        };
        cases.extend([
            wrong(&[2, 3, 4, 5], &[1, 3, 2, 2]),
            wrong(&[1, 3, 4, 5], &[1, 3, 2, 3]),
            wrong(&[4, 5], &[1, 3, 2, 2]),
        ]);
        cases
    }
}
