//! Products and convolutions of bytes, for quantised models.

use super::Vjp;
use crate::ops::ConvOptions;
use crate::ops::conv2d::ConvInteger;
use crate::ops::integer_products::Bytes;
use crate::ops::matmul_integer::MatmulInteger;
use crate::{DType, Result, Shape, Var};

impl Var {
    /// The product `Σ_k (x[…, i, k] − zx[…, i])·(other[…, k, j] − zero[…, j])` of bytes, which are whole floats. Sums
    /// wrap around as `i32`, and become floats for a `result` of floats.
    ///
    /// Shapes: `x […, M, K]`, `other […, K, N]`, `zeros` `[…, M, 1]` and `[…, 1, N]` → `[…, M, N]`; leading axes
    /// broadcast, and so do zero points.
    #[must_use]
    #[track_caller]
    #[doc(hidden)]
    pub fn matmul_integer(&self, other: &Self, zeros: [&Self; 2], bytes: [Bytes; 2], result: DType) -> Self {
        let (op, [za, zb]) = (MatmulInteger { bytes, result }, zeros);
        let shapes = [self, other, za, zb].map(Self::shape);
        let leading = |shape: &Shape| Shape::new(&shape.dims()[..shape.rank().saturating_sub(2)]);
        let batch = shapes.iter().try_fold(Shape::SCALAR, |batch, shape| batch.broadcast(&leading(shape)));
        let (Some(batch), [.., m, _], [.., _, n]) = (batch, shapes[0].dims(), shapes[1].dims()) else {
            // The type rule says what does not fit.
            return self.record(op, &[self, other, za, zb]);
        };
        let with_batch = |var: &Self, matrix: &[usize]| var.expand(&[batch.dims(), matrix].concat()[..]);
        let last = |shape: &Shape| shape.dims()[shape.rank() - 2..].to_vec();
        let (a, b) = (with_batch(self, &last(&shapes[0])), with_batch(other, &last(&shapes[1])));
        self.record(op, &[&a, &b, &with_batch(za, &[*m, 1]), &with_batch(zb, &[1, *n])])
    }

    /// The convolution of bytes, which are whole floats, `x − zero` with `weight − zeros`, plus a bias of `i32`. Sums
    /// wrap around as `i32`, and become floats for a `result` of floats.
    ///
    /// Shapes: those of [`Var::convolve`]; `zero [1]`, `zeros [O]`, `bias [O]`.
    #[must_use]
    #[track_caller]
    #[doc(hidden)]
    pub fn convolve_integer<const D: usize>(
        &self,
        weight: &Self,
        [zero, zeros, bias]: [&Self; 3],
        options: ConvOptions<D>,
        bytes: [Bytes; 2],
        result: DType,
    ) -> Self {
        let op = ConvInteger { options: options.into(), bytes, result };
        self.record(op, &[self, weight, zero, zeros, bias])
    }
}

impl Vjp for MatmulInteger {
    fn vjp(&self, x: &[Var], _y: &[Var], _dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        Ok(vec![None; x.len()])
    }
}

impl Vjp for ConvInteger {
    fn vjp(&self, x: &[Var], _y: &[Var], _dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        Ok(vec![None; x.len()])
    }
}

#[cfg(feature = "testing")]
mod cases {
    use super::*;
    use crate::functions::case::{Array, Case, Tested};
    use crate::functions::conv2d::cases::cases;
    use crate::ops::conv2d::AnyConvOptions;
    use crate::ops::conv2d::geometry::ConvShape;
    use crate::ops::matmul::MatmulShape;

    /// Labels of a case as bytes.
    fn bytes_of(x: &Var, bytes: Bytes) -> Var {
        let x = x.to_float();
        &x + x.constant(f64::from(bytes.least()))
    }

    /// A case of these operands, each as labels below a bound. A case needs a gradient, so there is a float as well.
    fn case_of(name: &str, operands: &[(&[usize], usize)], f: impl Fn(&[Var]) -> Var + Send + Sync + 'static) -> Case {
        let case = Case::recorded(name, &[&[1]], move |x| {
            let y = f(&x[1..]);
            let y = if y.ty().dtype.is_float() { y } else { y.to_float() };
            y + x[0].reshape([]) * 0.0
        });
        operands.iter().fold(case, |case, (shape, bound)| case.labels(shape, *bound))
    }

    impl Tested for MatmulInteger {
        fn cases() -> Vec<Case> {
            let mut cases = Vec::new();
            for (a, b) in [
                (&[1, 1][..], &[1, 1][..]),
                (&[2, 3], &[3, 4]),
                (&[17, 33], &[33, 65]),
                (&[1, 300], &[300, 70]),
                (&[3, 5, 7], &[3, 7, 2]),
                (&[2, 3, 4, 5], &[2, 3, 5, 6]),
                (&[131, 40], &[40, 133]),
                (&[66, 700], &[700, 290]),
                // few results of long sums
                (&[5, 1000], &[1000, 3]),
                (&[2, 33, 529], &[2, 529, 31]),
            ] {
                let [of_a, of_b] = [Bytes::Signed, Bytes::Unsigned];
                for (bytes, is_whole) in [([of_a, of_a], false), ([of_a, of_b], true), ([of_b, of_a], true)] {
                    let rank = a.len();
                    let mut rows = a.to_vec();
                    rows[rank - 1] = 1;
                    let mut columns = b.to_vec();
                    columns[rank - 2] = 1;
                    let name = format!("matmul_integer {bytes:?} {is_whole}");
                    let operands = [a, b, &rows, &columns].map(|shape| (shape, 256));
                    let case = case_of(&name, &operands, move |x| {
                        let [a, b, za, zb] = [0, 1, 2, 3].map(|k: usize| bytes_of(&x[k], bytes[k % 2]));
                        let result = if is_whole { DType::I32 } else { a.ty().dtype };
                        a.matmul_integer(&b, [&za, &zb], bytes, result)
                    });
                    cases.push(case.naive(move |x| vec![product(&x[1..], bytes)]));
                }
            }
            cases.push(case_of("matmul_integer", &[(&[4, 9], 256), (&[4, 6], 256)], |x| {
                let [a, b] = [0, 1].map(|k: usize| bytes_of(&x[k], Bytes::Unsigned));
                let zero = a.constant(3.0).reshape([1, 1]);
                let result = a.ty().dtype;
                a.t().matmul_integer(&b, [&zero, &zero], [Bytes::Unsigned; 2], result)
            }));
            cases
        }
    }

    /// Three loops.
    fn product(x: &[Array], bytes: [Bytes; 2]) -> Array {
        let MatmulShape { batch, m, k, n } = MatmulShape::new(x[0].shape.dims(), x[1].shape.dims());
        let at = |operand: usize, place: usize| x[operand].data[place] + f64::from(bytes[operand % 2].least());
        let mut y = Vec::with_capacity(batch * m * n);
        for index in 0..batch * m * n {
            let (b, i, j) = (index / (m * n), index / n % m, index % n);
            let (za, zb) = (at(2, b * m + i), at(3, b * n + j));
            let term = |l: usize| (at(0, (b * m + i) * k + l) - za) * (at(1, (b * k + l) * n + j) - zb);
            y.push((0..k).map(term).sum());
        }
        let rank = x[0].shape.rank();
        Array { shape: x[0].shape.with(rank - 1, n), data: y }
    }

    impl Tested for ConvInteger {
        fn cases() -> Vec<Case> {
            let number = std::cell::Cell::new(0);
            cases(|options, x, w| {
                // Every pair of kinds, and both results.
                let k = number.replace(number.get() + 1);
                let kinds = [Bytes::Signed, Bytes::Unsigned];
                let (bytes, is_whole) = ([kinds[k % 2], kinds[k / 2 % 2]], k.is_multiple_of(3));
                let name = format!("conv_integer {bytes:?} {options:?}");
                let of_channels: &[usize] = &[w[0]];
                let (x_dims, w_dims): (&[usize], &[usize]) = (x.dims(), w.dims());
                let operands = [(x_dims, 256), (w_dims, 256), (&[1], 256), (of_channels, 256), (of_channels, 2000)];
                let case = case_of(&name, &operands, move |x| {
                    let [input, w, zero, zeros] = [0, 1, 2, 3].map(|k: usize| bytes_of(&x[k], bytes[k % 2]));
                    let result = if is_whole { DType::I32 } else { input.ty().dtype };
                    let op = ConvInteger { options, bytes, result };
                    input.record(op, &[&input, &w, &zero, &zeros, &x[4].cast(DType::I32)])
                });
                case.naive(move |x| vec![convolution(&x[1..], options, bytes)])
            })
        }
    }

    /// A loop over outputs and one over taps.
    fn convolution(x: &[Array], options: AnyConvOptions, bytes: [Bytes; 2]) -> Array {
        let g = ConvShape::new(x[0].shape, x[1].shape, options).expect("it fits");
        let at = |operand: usize, place: usize| x[operand].data[place] + f64::from(bytes[operand % 2].least());
        let (patch, taps, outputs) = (g.patch(), g.patch() / (g.c / g.groups), g.outputs());
        let sum = |index: usize| {
            let (image, o, output) = (index / (g.o * outputs), index / outputs % g.o, index % outputs);
            let first = (image * g.groups + o / (g.o / g.groups)) * (g.c / g.groups);
            let term = |term: usize| {
                let place = g.place(output, term % taps)?;
                Some(
                    (at(0, (first + term / taps) * g.inputs() + place) - at(2, 0))
                        * (at(1, o * patch + term) - at(3, o)),
                )
            };
            x[4].data[o] + (0..patch).filter_map(term).sum::<f64>()
        };
        Array { shape: g.output(), data: (0..g.n * g.o * outputs).map(sum).collect() }
    }
}
