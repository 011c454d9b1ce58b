//! Batched matrix multiplication.

use super::Vjp;
use crate::ops::matmul::Matmul;
use crate::{Error, ErrorKind, Result, Shape, Var};

impl Var {
    /// The matrix product over the last two axes: `y[…, i, j] = Σ_k x[…, i, k]·other[…, k, j]`
    ///
    /// Shapes: `x […, M, K]`, `other […, K, N]` → `y […, M, N]`; leading axes broadcast as in NumPy. Operands with
    /// fewer than two axes or with different `K` are an error. Transposing an operand with [`Var::t`] costs nothing.
    #[doc(alias("mm", "bmm"))]
    #[must_use]
    #[track_caller]
    pub fn matmul(&self, other: &Self) -> Self {
        let (a, b) = (self.shape(), other.shape());
        if a.rank() < 2 || b.rank() < 2 || (a.rank() == 2 && b.rank() == 2) {
            return self.record(Matmul, &[self, other]);
        }
        let (a_batch, b_batch) = (&a.dims()[..a.rank() - 2], &b.dims()[..b.rank() - 2]);
        let Some(batch) = Shape::new(a_batch).broadcast(&Shape::new(b_batch)) else {
            let message = format!("the batch extents {a_batch:?} and {b_batch:?} do not broadcast");
            let error = Error::new(ErrorKind::Shape, message).in_op("matmul");
            let error = error.operand(self.ty(), self.path()).operand(other.ty(), other.path());
            return self.fail(error.at(std::panic::Location::caller()));
        };
        // One product of all rows, if they share the other operand: its gradient is one product, too.
        let ([m, k], columns) = (inner(a), inner(b));
        let is_shared = batch.dims() == a_batch && b_batch.iter().all(|&extent| extent == 1);
        if is_shared && k == columns[0] && !self.is_transposed() {
            let rows = self.reshape([batch.elements() * m, k]);
            let y = rows.record(Matmul, &[&rows, &other.reshape(columns)]);
            return y.reshape(a.with(a.rank() - 1, columns[1]));
        }
        let with_batch = |var: &Self| {
            let shape = var.shape();
            let dims = [batch.dims(), &shape.dims()[shape.rank() - 2..]].concat();
            var.expand(Shape::new(&dims))
        };
        self.record(Matmul, &[&with_batch(self), &with_batch(other)])
    }
}

/// The last two extents.
fn inner(shape: Shape) -> [usize; 2] {
    let rank = shape.rank();
    [shape[rank - 2], shape[rank - 1]]
}

impl Vjp for Matmul {
    fn vjp(&self, x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let ([a, b], Some(dy)) = (x, &dy[0]) else { return Ok(vec![None, None]) };
        let da = if a.is_transposed() { b.matmul(&dy.t()).t() } else { dy.matmul(&b.t()) };
        let db = if b.is_transposed() { dy.t().matmul(a).t() } else { a.t().matmul(dy) };
        Ok(vec![Some(da), Some(db)])
    }
}

#[cfg(feature = "testing")]
mod cases {
    use super::*;
    use crate::functions::case::{Array, Case, Special, Tested};
    use crate::ops::matmul::MatmulShape;

    /// A product whose left operand has these magnitudes along the reduction, in order.
    fn growing(x: &[Var], magnitudes: [f64; 4]) -> Var {
        let left = magnitudes.map(|magnitude| x[0].scale(magnitude));
        Var::concat(&left.each_ref(), 1).matmul(&Var::concat(&[&x[1]; 4], 0)).scale(1e-6)
    }

    /// Three loops.
    pub(crate) fn naive(x: &[Array]) -> Vec<Array> {
        let MatmulShape { batch, m, k, n } = MatmulShape::new(x[0].shape.dims(), x[1].shape.dims());
        let mut y = Vec::with_capacity(batch * m * n);
        for (b, i, j) in triples(batch, m, n) {
            y.push((0..k).map(|l| x[0].data[(b * m + i) * k + l] * x[1].data[(b * k + l) * n + j]).sum());
        }
        let rank = x[0].shape.rank();
        vec![Array { shape: x[0].shape.with(rank - 1, n), data: y }]
    }

    /// All triples below the bounds, the last index fastest.
    fn triples(a: usize, b: usize, c: usize) -> impl Iterator<Item = (usize, usize, usize)> {
        (0..a * b * c).map(move |i| (i / (b * c), i / c % b, i % c))
    }

    impl Tested for Matmul {
        fn special() -> &'static [Special] {
            &[Special::Product]
        }

        fn cases() -> Vec<Case> {
            let case = |a: &[usize], b: &[usize]| Case::new(Self).input(a).input(b).tolerance(1e-5).naive(naive);
            vec![
                case(&[1, 1], &[1, 1]),
                case(&[2, 3], &[3, 4]),
                case(&[17, 33], &[33, 65]),
                case(&[64, 16], &[16, 64]),
                case(&[1, 300], &[300, 2]),
                case(&[3, 5, 7], &[3, 7, 2]),
                case(&[2, 3, 4, 5], &[2, 3, 5, 6]),
                // more than one tile of every size, with and without fours
                case(&[131, 40], &[40, 133]),
                case(&[132, 68], &[68, 136]),
                // and a reduction that is split into parts, the last one shorter
                case(&[2, 36, 1000], &[2, 1000, 40]),
                // eights, whole tiles
                case(&[136, 72], &[72, 152]),
                case(&[128, 40], &[40, 256]),
                // magnitudes outside the range of f16
                case(&[34, 40], &[40, 35]).scale(1e-10),
                Case::recorded("matmul", &[&[9, 40], &[40, 35]], |x| {
                    x[0].scale(1e5).matmul(&x[1].scale(1e5)).scale(1e-10)
                }),
                // blocks of the reduction of different magnitude: scales that were found in the first do not fit the
                // others
                Case::recorded("matmul", &[&[70, 64], &[64, 72]], |x| growing(x, [0.0, 1e-9, 1e6, 1.0])),
                Case::recorded("matmul", &[&[70, 64], &[64, 72]], |x| growing(x, [1e-9, 1e6, 0.0, 1.0])),
                Case::recorded("matmul", &[&[72, 64], &[64, 136]], |x| growing(x, [0.0, 1e-9, 1e6, 1.0])),
                Case::recorded("matmul", &[&[136, 64], &[72, 64]], |x| x[0].matmul(&x[1].t())),
                Case::recorded("matmul", &[&[136, 72]], |x| x[0].matmul(&x[0].t())),
                Case::recorded("matmul", &[&[64, 136], &[64, 72]], |x| x[0].t().matmul(&x[1])),
                Case::recorded("matmul", &[&[132, 36], &[140, 36]], |x| x[0].matmul(&x[1].t())),
                Case::recorded("matmul", &[&[44, 132], &[44, 68]], |x| x[0].t().matmul(&x[1])),
                Case::recorded("matmul", &[&[5, 7], &[6, 7]], |x| x[0].matmul(&x[1].t())),
                Case::recorded("matmul", &[&[7, 5], &[7, 6]], |x| x[0].t().matmul(&x[1])),
                Case::recorded("matmul", &[&[3, 2, 4], &[4, 5]], |x| x[0].matmul(&x[1])),
                Case::recorded("matmul", &[&[7, 1, 36], &[36, 40]], |x| x[0].matmul(&x[1])),
                Case::recorded("matmul", &[&[3, 2, 4], &[1, 5, 4]], |x| x[0].transpose(0, 1).matmul(&x[1].t())),
                Case::recorded("matmul", &[&[3, 4, 2], &[4, 5]], |x| x[0].t().matmul(&x[1])),
                Case::recorded("matmul", &[&[2, 1, 3, 4], &[3, 4, 2]], |x| x[0].matmul(&x[1])),
                Case::recorded("matmul", &[&[4, 4]], |x| x[0].slice(0, 1..3).matmul(&x[0].slice(1, 0..3))),
            ]
        }
    }
}
