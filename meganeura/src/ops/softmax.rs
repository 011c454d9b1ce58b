//! Softmax and its logarithm along an axis.

use super::reduce::lanes;
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

/// The ways to launch a kernel that works on rows, the best one first. One invocation takes a row where those are short, or
/// plenty; else a few do, up to a whole workgroup: neighbours where the row's elements lie side by side, and where rows do
/// (with an axis after theirs), a row of the workgroup apart. `defines` are the kernel's, less those of `shared/segments`.
pub(super) fn row_variants(
    kernel: &'static str,
    defines: &[(&'static str, String)],
    bindings: (usize, usize),
    (outer, len, inner): (usize, usize, usize),
) -> Vec<Variant> {
    let rows = outer.saturating_mul(inner);
    let serial = ("serial", 64, 1, 0);
    let neighbours = ("rows", 256, lanes(len), 0);
    let across = ("columns", 256, 256 / inner.min(64).next_power_of_two(), 1);
    let forms = match (len, inner) {
        (..4, _) => [serial, neighbours, across],
        (_, 1) => [neighbours, serial, across],
        _ if len <= 32 || rows >= 1 << 16 => [serial, across, neighbours],
        _ => [across, serial, neighbours],
    };
    let variant = |(name, group, lanes, across): (&'static str, usize, usize, u32)| {
        let mut defines = defines.to_vec();
        defines.extend(define![WG: group, LANES: lanes, ACROSS: across]);
        let launch = Launch::new(kernel, defines, bindings, rows.div_ceil(group / lanes));
        Variant::simple(name, launch.stores_through_epilogue())
    };
    forms.map(variant).into()
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
        let shapes: [(&[usize], usize); 8] = [
            (&[1, 1], 1),
            (&[3, 5], 1),
            (&[4, 7, 3], 1),
            (&[6, 2], 0),
            (&[2, 515], 1),
            (&[131, 10], 1),
            // more than 32 elements, some distance apart
            (&[2, 45, 3, 5], 1),
            (&[70, 81], 0),
        ];
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
        let defines = define![OUTER: outer, LEN: len, INNER: inner, LOG: log];
        row_variants("softmax", &defines, (1, 1), (outer, len, inner))
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
