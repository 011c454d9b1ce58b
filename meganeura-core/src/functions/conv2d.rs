//! Convolution of images. It and its two gradients are linear in both operands and closed under differentiation, so
//! second derivatives come for free.

use super::Vjp;
use crate::ops::Conv2dOptions;
use crate::ops::conv2d::{Conv2d, Conv2dGradInput, Conv2dGradWeight};
use crate::{Result, Var};

impl Var {
    /// 2-D convolution without bias: each output pixel is the sum of the weights times the input pixels under them.
    ///
    /// Shapes: `x [N, C, H, W]`, `weight [O, C/groups, KH, KW]` → `[N, O, P, Q]` with
    /// `P = ⌊(H + 2·padding − dilation·(KH − 1) − 1)/stride⌋ + 1`, and `Q` likewise. Other shapes, and a kernel that is
    /// larger than the padded input, are an error.
    #[must_use]
    #[track_caller]
    pub fn conv2d(&self, weight: &Self, options: Conv2dOptions) -> Self {
        self.record(Conv2d(options), &[self, weight])
    }
}

impl Vjp for Conv2d {
    fn vjp(&self, x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let ([x, w], Some(dy)) = (x, &dy[0]) else { return Ok(vec![None, None]) };
        let dx = dy.record(Conv2dGradInput { options: self.0, input: x.shape() }, &[dy, w]);
        let dw = dy.record(Conv2dGradWeight { options: self.0, weight: w.shape() }, &[x, dy]);
        Ok(vec![Some(dx), Some(dw)])
    }
}

impl Vjp for Conv2dGradInput {
    fn vjp(&self, x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let ([cotangent, w], Some(d)) = (x, &dy[0]) else { return Ok(vec![None, None]) };
        let d_cotangent = d.record(Conv2d(self.options), &[d, w]);
        let dw = d.record(Conv2dGradWeight { options: self.options, weight: w.shape() }, &[d, cotangent]);
        Ok(vec![Some(d_cotangent), Some(dw)])
    }
}

impl Vjp for Conv2dGradWeight {
    fn vjp(&self, x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let ([x, cotangent], Some(d)) = (x, &dy[0]) else { return Ok(vec![None, None]) };
        let dx = d.record(Conv2dGradInput { options: self.options, input: x.shape() }, &[cotangent, d]);
        let d_cotangent = d.record(Conv2d(self.options), &[x, d]);
        Ok(vec![Some(dx), Some(d_cotangent)])
    }
}

#[cfg(feature = "testing")]
mod cases {
    use super::*;
    use crate::Shape;
    use crate::functions::case::{Array, Case, Special, Tested};
    use crate::ops::conv2d::geometry::ConvShape;

    /// The shapes that all three passes are tested with: everything that was ever wrong.
    pub(super) fn cases(case: impl Fn(Conv2dOptions, Shape, Shape) -> Case) -> Vec<Case> {
        let of = |stride, padding, dilation, groups| Conv2dOptions { stride, padding, dilation, groups };
        let plain = Conv2dOptions::default();
        [
            (plain, [1, 1, 1, 1], [1, 1, 1, 1]),
            (plain, [2, 3, 5, 4], [4, 3, 1, 1]),
            (of([1, 1], [1, 1], [1, 1], 1), [2, 3, 6, 5], [4, 3, 3, 3]),
            // channels in fours
            (of([1, 1], [1, 1], [1, 1], 1), [2, 4, 6, 5], [8, 4, 3, 3]),
            (of([2, 1], [1, 2], [1, 2], 2), [2, 8, 7, 6], [16, 4, 2, 3]),
            // … and in eights
            (of([1, 1], [1, 1], [1, 1], 1), [2, 8, 6, 5], [16, 8, 3, 3]),
            (of([2, 1], [1, 2], [1, 2], 2), [2, 16, 7, 6], [32, 8, 2, 3]),
            // … without stride: dilated groups beyond a tile of rows, more padding than the kernel needs, many taps
            (of([1, 1], [2, 0], [1, 2], 2), [2, 16, 7, 9], [144, 8, 3, 2]),
            (of([1, 1], [3, 3], [1, 1], 1), [3, 40, 5, 4], [8, 40, 3, 3]),
            (of([1, 1], [2, 2], [1, 1], 1), [1, 8, 6, 7], [8, 8, 5, 5]),
            (of([2, 1], [3, 2], [1, 1], 1), [2, 16, 15, 12], [40, 16, 7, 5]),
            // … in sixteens: narrow images by turns, wide ones in two tiles, a dilated one with more rows than taps
            // reach, whole tiles
            (of([1, 1], [1, 1], [1, 1], 1), [3, 16, 6, 5], [32, 16, 3, 3]),
            (of([1, 1], [0, 1], [1, 1], 2), [1, 64, 5, 40], [96, 32, 2, 3]),
            (of([1, 1], [3, 0], [2, 1], 1), [5, 32, 3, 4], [16, 32, 3, 2]),
            (of([1, 1], [1, 1], [1, 1], 1), [2, 128, 8, 16], [128, 128, 3, 3]),
            // … 3×3 without stride, channels beyond sixteen with a rest: padding by axis, several blocks of tiles
            (of([1, 1], [2, 0], [1, 1], 1), [2, 21, 5, 9], [18, 21, 3, 3]),
            (of([1, 1], [0, 1], [1, 1], 1), [9, 16, 13, 6], [50, 16, 3, 3]),
            // few channels beside many, as where networks begin and end
            (of([1, 1], [1, 1], [1, 1], 1), [2, 16, 9, 10], [3, 16, 3, 3]),
            (of([2, 1], [1, 2], [1, 1], 1), [2, 40, 7, 9], [5, 40, 3, 2]),
            (of([2, 2], [1, 1], [1, 1], 1), [2, 3, 9, 8], [16, 3, 3, 3]),
            // beyond one tile of every size
            (of([1, 1], [1, 1], [1, 1], 1), [2, 5, 9, 10], [35, 5, 3, 3]),
            (of([2, 1], [2, 0], [1, 1], 2), [3, 8, 11, 13], [72, 4, 3, 2]),
            // padding other than (k − 1)/2
            (of([1, 1], [2, 0], [1, 1], 1), [1, 2, 4, 5], [3, 2, 3, 2]),
            // stride with a remainder, even sizes
            (of([2, 2], [1, 1], [1, 1], 1), [2, 2, 8, 8], [3, 2, 3, 3]),
            (of([3, 2], [0, 1], [1, 1], 1), [2, 1, 9, 8], [2, 1, 2, 4]),
            // 1×1 with a stride, as in residual shortcuts
            (of([2, 2], [0, 0], [1, 1], 1), [2, 3, 5, 5], [2, 3, 1, 1]),
            (of([1, 1], [2, 2], [2, 2], 1), [1, 2, 6, 6], [2, 2, 3, 3]),
            (of([2, 1], [1, 2], [1, 3], 1), [1, 2, 5, 9], [2, 2, 3, 2]),
            // grouped, depthwise
            (of([1, 1], [1, 1], [1, 1], 2), [2, 4, 5, 5], [6, 2, 3, 3]),
            (of([1, 1], [1, 1], [1, 1], 3), [1, 3, 4, 6], [3, 1, 3, 3]),
            // the kernel covers the whole padded input
            (of([1, 1], [1, 0], [1, 1], 1), [2, 2, 2, 4], [2, 2, 4, 4]),
            // many small images, in groups or not
            (of([1, 2], [1, 0], [1, 1], 2), [19, 4, 3, 4], [6, 2, 2, 3]),
            (of([1, 1], [1, 1], [1, 1], 1), [40, 2, 8, 8], [3, 2, 3, 3]),
            // depthwise, in eights: a stride, dilated strides, large kernels, one row, one tap, more padding than taps
            // span, a single pixel, a stride beyond tiles
            (of([1, 1], [1, 1], [1, 1], 8), [2, 8, 5, 7], [8, 1, 3, 3]),
            (of([2, 2], [1, 1], [1, 1], 16), [3, 16, 9, 8], [16, 1, 3, 3]),
            (of([2, 3], [2, 3], [1, 2], 8), [2, 8, 10, 13], [8, 1, 3, 4]),
            (of([2, 1], [4, 2], [3, 2], 24), [1, 24, 9, 9], [24, 1, 5, 3]),
            (of([1, 1], [3, 3], [1, 1], 40), [1, 40, 8, 9], [40, 1, 7, 7]),
            (of([2, 2], [5, 5], [1, 1], 8), [1, 8, 12, 7], [8, 1, 11, 11]),
            (of([1, 1], [0, 7], [1, 1], 8), [2, 8, 3, 9], [8, 1, 1, 15]),
            (of([1, 2], [0, 0], [1, 1], 8), [2, 8, 3, 3], [8, 1, 1, 1]),
            (of([1, 1], [3, 0], [1, 1], 8), [1, 8, 4, 5], [8, 1, 3, 2]),
            (of([1, 1], [1, 1], [1, 1], 8), [2, 8, 1, 1], [8, 1, 3, 3]),
            (of([5, 3], [2, 2], [1, 1], 8), [2, 8, 11, 9], [8, 1, 5, 5]),
            // … and not in eights
            (of([3, 2], [2, 3], [1, 1], 12), [2, 12, 11, 10], [12, 1, 5, 7]),
            (of([1, 2], [1, 2], [1, 2], 100), [1, 100, 4, 5], [100, 1, 3, 3]),
            (of([1, 1], [1, 1], [1, 1], 60), [3, 60, 8, 3], [60, 1, 3, 3]),
            // multipliers that divide a line and not, and a whole line of outputs
            (of([2, 1], [1, 1], [1, 1], 8), [2, 8, 7, 6], [16, 1, 3, 3]),
            (of([1, 2], [1, 1], [1, 1], 8), [2, 8, 5, 6], [24, 1, 3, 3]),
            (of([1, 1], [1, 1], [1, 1], 8), [1, 8, 4, 5], [64, 1, 3, 3]),
            // groups of few channels, whose lines are whole or not
            (of([1, 1], [1, 1], [1, 1], 4), [2, 16, 6, 5], [16, 4, 3, 3]),
            (of([2, 2], [1, 1], [1, 1], 8), [2, 16, 7, 9], [32, 2, 3, 3]),
            (of([1, 1], [1, 1], [1, 1], 8), [1, 24, 5, 5], [24, 3, 3, 3]),
            (of([2, 1], [1, 0], [1, 2], 2), [2, 16, 6, 7], [24, 8, 3, 3]),
            // widths at which reciprocal arithmetic goes wrong
            (of([1, 1], [1, 1], [1, 1], 1), [1, 1, 3, 41], [2, 1, 3, 3]),
            (of([1, 2], [1, 1], [1, 1], 1), [1, 1, 2, 55], [1, 1, 3, 3]),
        ]
        .map(|(options, x, w)| case(options, Shape::from(x), Shape::from(w)))
        .into()
    }

    /// The definition, term by term: `y`, and for a given `dy` the gradients `dx` and `dw`.
    pub(crate) fn naive(arrays: &[Array], options: Conv2dOptions, x_shape: Shape, w_shape: Shape) -> Vec<Array> {
        let g = ConvShape::new(x_shape, w_shape, options).expect("cases fit");
        let (x, w) = (&arrays[0].data, &arrays[1].data);
        let dy = arrays.get(2).map_or_else(|| vec![0.0; g.output().elements()], |dy| dy.data.clone());
        let mut y = vec![0.0; g.output().elements()];
        let (mut dx, mut dw) = (vec![0.0; x_shape.elements()], vec![0.0; w_shape.elements()]);
        let per_group = g.c / g.groups;
        for out in 0..y.len() {
            let (q, p, o, n) = (out % g.q, out / g.q % g.p, out / (g.q * g.p) % g.o, out / (g.q * g.p * g.o));
            let group = o / (g.o / g.groups);
            for tap in 0..per_group * g.kernel[0] * g.kernel[1] {
                let (j, i, c) = (tap % g.kernel[1], tap / g.kernel[1] % g.kernel[0], tap / (g.kernel[0] * g.kernel[1]));
                let at = |k: usize, o: usize, axis: usize| {
                    (o * options.stride[axis] + k * options.dilation[axis]).checked_sub(options.padding[axis])
                };
                let (Some(row), Some(column)) = (at(i, p, 0), at(j, q, 1)) else { continue };
                if row < g.h && column < g.w {
                    let xi = ((n * g.c + group * per_group + c) * g.h + row) * g.w + column;
                    let wi = (o * per_group + c) * g.kernel[0] * g.kernel[1] + i * g.kernel[1] + j;
                    y[out] += x[xi] * w[wi];
                    dx[xi] += dy[out] * w[wi];
                    dw[wi] += dy[out] * x[xi];
                }
            }
        }
        let array = |shape, data| Array { shape, data };
        vec![array(g.output(), y), array(x_shape, dx), array(w_shape, dw)]
    }

    impl Tested for Conv2d {
        fn special() -> &'static [Special] {
            &[Special::Product]
        }

        fn cases() -> Vec<Case> {
            let mut cases = cases(|options, x, w| {
                let naive = move |a: &[Array]| naive(a, options, x, w).swap_remove(0);
                Case::new(Self(options)).input(x.dims()).input(w.dims()).tolerance(1e-5).naive(move |a| vec![naive(a)])
            });
            // Operands of different magnitudes, in channels by eight and not.
            for channels in [3, 8] {
                let (x, w) = ([2, channels, 6, 5], [8, channels, 3, 3]);
                cases.push(Case::recorded("conv2d", &[&x, &w], |x| {
                    x[0].scale(1e-4).conv2d(&x[1].scale(1e4), Conv2dOptions::default())
                }));
            }
            // Parts of a sum that differ in size, over channels and over images: scales that were found with the first
            // do not hold.
            for (axis, stride) in [(1, 1), (1, 2), (0, 1), (0, 2)] {
                let (x, w) = ([2, 16, 7, 6], [8, if axis == 1 { 64 } else { 16 }, 3, 3]);
                cases.push(Case::recorded("conv2d", &[&x, &w], move |x| {
                    let parts = [0.0, 1e-9, 1e6, 1.0].map(|factor| x[0].scale(factor));
                    let growing = Var::concat(&parts.each_ref(), axis);
                    let options = Conv2dOptions { stride: [stride; 2], padding: [1; 2], ..Conv2dOptions::default() };
                    growing.conv2d(&x[1], options).scale(1e-6)
                }));
            }
            cases
        }
    }

    impl Tested for Conv2dGradInput {
        fn special() -> &'static [Special] {
            &[Special::Product]
        }

        fn cases() -> Vec<Case> {
            let mut cases = cases(|options, x, w| {
                let y = ConvShape::new(x, w, options).expect("cases fit").output();
                let naive = move |a: &[Array]| {
                    let zeros = Array { shape: x, data: vec![0.0; x.elements()] };
                    vec![naive(&[zeros, a[1].clone(), a[0].clone()], options, x, w).swap_remove(1)]
                };
                Case::new(Self { options, input: x }).input(y.dims()).input(w.dims()).tolerance(1e-5).naive(naive)
            });
            cases.extend(crate::functions::conv_transpose2d::cases::recorded());
            cases
        }
    }

    impl Tested for Conv2dGradWeight {
        fn special() -> &'static [Special] {
            &[Special::Product, Special::WithoutOnnx]
        }

        fn cases() -> Vec<Case> {
            cases(|options, x, w| {
                let y = ConvShape::new(x, w, options).expect("cases fit").output();
                let naive = move |a: &[Array]| {
                    let zeros = Array { shape: w, data: vec![0.0; w.elements()] };
                    vec![naive(&[a[0].clone(), zeros, a[1].clone()], options, x, w).swap_remove(2)]
                };
                Case::new(Self { options, weight: w }).input(x.dims()).input(y.dims()).tolerance(1e-5).naive(naive)
            })
        }
    }
}
