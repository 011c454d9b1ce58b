//! Cumulative sums along an axis.

use std::array;

use super::scan;
use super::softmax::around;
use super::{Kernel, Primitive};
use crate::kernel::launch::{Argument, Caps, Variant};
use crate::kernel::native::{self, Element, OutView, Real, Scratch, Slice, View};
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Form};
use crate::{DType, Result, Shape, TensorType};

/// Cumulative sums along an axis: `y[…, k, …] = Σ_{l ≤ k} x[…, l, …]`, or over `l ≥ k` with `reverse`
///
/// Shapes: `y` has that of `x`. Gradient: the cumulative sums of `dy` from the other end.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Cumsum {
    pub(crate) axis: usize,
    pub(crate) reverse: bool,
}

impl Primitive for Cumsum {
    fn name(&self) -> &'static str {
        "cumsum"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        if let Some(odd) = x.iter().find(|x| x.dtype == DType::U32) {
            return Err(format!("needs floats, i32 or i64, the operand holds {}; `cast` converts it", odd.dtype));
        }
        scan::outputs(x, self.axis)
    }

    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[form::Operand], _: &[TensorType], to: &mut Form) -> Option<form::Results> {
        let axis = to.int(form::int(self.axis));
        let reverse = vec![("reverse", form::Attribute::Int(i64::from(self.reverse)))];
        form::only(to.node("CumSum", &[x[0].value, axis], reverse))
    }
}

impl Kernel for Cumsum {
    fn stores(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], _: &Scratch) {
        let shape = x[0].layout().shape();
        match x[0].slice() {
            Slice::Float(x) => self.sums(shape, x, y[0].floats(), |sum, x| sum + x),
            Slice::Int(x) => self.sums(shape, x, y[0].integers::<i32>(), i32::wrapping_add),
            Slice::Long(x) => self.sums(shape, x, y[0].integers::<i64>(), i64::wrapping_add),
            Slice::Index(_) => unreachable!("the type rule refused indices"),
        }
    }

    fn variants(&self, x: &[Argument], _: &[TensorType], _: &Caps) -> Vec<Variant> {
        let words = x[0].ty.dtype.bytes() / 4;
        scan::variants((self.name(), words), x[0].ty, self.axis, self.reverse)
    }
}

/// Lines whose sums are computed in turns.
const ABREAST: usize = 8;

impl Cumsum {
    /// The sums of up to [`ABREAST`] lines, each of adjacent elements.
    #[inline(always)]
    fn of_lines<E: Element>(&self, len: usize, x: &[E], y: &mut [E], join: &impl Fn(E, E) -> E) {
        let place = |step| if self.reverse { len - 1 - step } else { step };
        if y.len() < ABREAST * len {
            for (y, x) in y.chunks_mut(len).zip(x.chunks(len)) {
                let mut sum = x[place(0)];
                y[place(0)] = sum;
                for at in (1..len).map(place) {
                    sum = join(sum, x[at]);
                    y[at] = sum;
                }
            }
            return;
        }
        let (x, y) = (&x[..ABREAST * len], &mut y[..ABREAST * len]);
        let mut sums: [E; ABREAST] = array::from_fn(|line| x[line * len + place(0)]);
        sums.iter().enumerate().for_each(|(line, &sum)| y[line * len + place(0)] = sum);
        for at in (1..len).map(place) {
            for (line, sum) in sums.iter_mut().enumerate() {
                *sum = join(*sum, x[line * len + at]);
                y[line * len + at] = *sum;
            }
        }
    }

    fn sums<E: Element>(&self, shape: Shape, x: &[E], y: &mut [E], join: impl Fn(E, E) -> E + Sync) {
        let (_, len, inner) = around(shape, self.axis);
        if inner == 1 {
            // A sum waits for the one before it, so several lines take turns.
            let lines = native::grain(1).div_ceil(len).next_multiple_of(ABREAST);
            return native::parallel(y, lines * len, &|first, y| {
                let x = x[first..].chunks(ABREAST * len);
                y.chunks_mut(ABREAST * len).zip(x).for_each(|(y, x)| self.of_lines(len, x, y, &join));
            });
        }
        native::parallel(y, len * inner, &|first, y| {
            y.copy_from_slice(&x[first..][..y.len()]);
            for step in 1..len {
                let (at, before) = if self.reverse { (len - 1 - step, len - step) } else { (step, step - 1) };
                let (low, high) = y.split_at_mut(at.max(before) * inner);
                let (low, high) = (&mut low[at.min(before) * inner..][..inner], &mut high[..inner]);
                let (to, from) = if self.reverse { (low, high) } else { (high, low) };
                to.iter_mut().zip(from).for_each(|(to, from)| *to = join(*to, *from));
            }
        });
    }
}
