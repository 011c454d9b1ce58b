//! Softmax and its logarithm along an axis.

use super::{Kernel, Primitive};
use crate::kernel::launch::{Argument, Caps, Launch, Variant, define};
use crate::kernel::native::{self, OutView, Real, View};
use crate::tape::Var;
use crate::{Result, Shape, TensorType};

/// `y = eˣ / Σ eˣ` along an axis, or its logarithm `x − ln Σ eˣ`; the maximum is subtracted first, so nothing overflows.
///
/// Shapes: `y` as `x`. Gradient: `dx = y·(dy − Σ dy·y)`; of the logarithm, `dx = dy − eʸ·Σ dy`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Softmax {
    axis: usize,
    log: bool,
}

/// Extents before, along and after an axis.
pub(super) fn around(shape: Shape, axis: usize) -> (usize, usize, usize) {
    let dims = shape.dims();
    (dims[..axis].iter().product(), dims[axis], dims[axis + 1..].iter().product())
}

/// A workgroup that is not mostly idle over rows of this length.
pub(super) fn row_group(len: usize) -> usize {
    if len > 128 { 128 } else { 32 }
}

impl Primitive for Softmax {
    fn name(&self) -> &'static str {
        if self.log { "log_softmax" } else { "softmax" }
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        if !x[0].dtype.is_float() {
            return Err(format!("needs floats, the operand holds {}", x[0].dtype));
        }
        if self.axis >= x[0].shape.rank() {
            return Err(format!("axis {} of a shape of {} axes", self.axis, x[0].shape.rank()));
        }
        Ok(vec![x[0]])
    }

    fn vjp(&self, _x: &[Var], y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let (y, Some(dy)) = (&y[0], &dy[0]) else { return Ok(vec![None]) };
        Ok(vec![Some(match self.log {
            true => dy - y.exp() * dy.sum_keep(&[self.axis]),
            false => y * (dy - (dy * y).sum_keep(&[self.axis])),
        })])
    }

    #[cfg(feature = "testing")]
    fn cases() -> Vec<super::case::Case> {
        let case =
            |x: &[usize], axis, log| super::case::Case::new(Self { axis, log }).input(x).tolerance(1e-5).scale(3.0);
        let shapes: [(&[usize], usize); 5] =
            [(&[1, 1], 1), (&[3, 5], 1), (&[4, 7, 3], 1), (&[6, 2], 0), (&[2, 515], 1)];
        shapes.iter().flat_map(|&(x, axis)| [case(x, axis, false), case(x, axis, true)]).collect()
    }
}

impl Kernel for Softmax {
    fn reads_strided(&self, _: usize) -> bool {
        false
    }

    fn loads(&self) -> Option<usize> {
        None
    }

    fn stores(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>]) {
        let (_, len, inner) = around(x[0].layout().shape(), self.axis);
        let x = x[0].floats();
        native::parallel(y[0].floats(), len * inner, |first, y| {
            let x = &x[first..][..len * inner];
            for i in 0..inner {
                let row = || x[i..].iter().step_by(inner).copied();
                let lse = native::log_sum_exp(row());
                for (y, x) in y[i..].iter_mut().step_by(inner).zip(row()) {
                    *y = if self.log { x - lse } else { (x - lse).exp() };
                }
            }
        });
    }

    fn variants(&self, x: &[Argument], _: &[TensorType], _: &Caps) -> Vec<Variant> {
        let (outer, len, inner) = around(x[0].ty.shape, self.axis);
        let log = u32::from(self.log);
        let defines = define![WG: row_group(len), OUTER: outer, LEN: len, INNER: inner, LOG: log];
        vec![Variant::simple("tree", Launch::new("softmax", defines, (1, 1), outer * inner).stores_through_epilogue())]
    }
}

impl Var {
    /// `eˣ / Σ eˣ` along an axis.
    #[must_use]
    #[track_caller]
    pub fn softmax(&self, axis: usize) -> Self {
        self.record(Softmax { axis, log: false }, &[self])
    }

    /// `x − ln Σ eˣ` along an axis.
    #[must_use]
    #[track_caller]
    pub fn log_softmax(&self, axis: usize) -> Self {
        self.record(Softmax { axis, log: true }, &[self])
    }
}
