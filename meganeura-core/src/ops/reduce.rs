//! Reductions over any axes: sum, maximum and minimum; and the mean made of them.

pub(super) mod forms;

use std::ops::Range;

use pulp::{Simd, WithSimd};

use self::forms::Reduction;
use super::{Bf16, Innermost, Kernel, Primitive, Stores};
use crate::kernel::launch::{Argument, Caps, Variant};
use crate::kernel::native::{self, Cascade, Integer, OutView, Real, Scratch, Slice, View, by_halves};
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Form};
use crate::{DType, Layout, Result, TensorType};

/// On the CPU, fewer results than this are each split into parts …
pub(super) const FEW: usize = 256;
/// … of at least this many elements …
pub(super) const PART: usize = 1 << 14;
/// … and at most this many parts.
pub(super) const PARTS: usize = 256;
/// Interleaved partial results of a row: two of the widest vectors.
pub(super) const LANES: usize = 32;
/// The number of columns that are folded at once.
pub(super) const COLUMNS: usize = 256;
/// The elements of a block: this many of each column, or of each partial result of a row, are folded in sequence.
const RUN: usize = 16;

/// `y[kept] = fold over the reduced axes of x`
///
/// Shapes: the reduced axes keep extent 1; `Var::sum_over` and similar methods drop them.
/// Gradient: of a sum, `dy` repeated; of a maximum or minimum, `dy` shared equally among the elements that attain it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Reduce {
    pub(crate) fold: Fold,
    /// In ascending order, without duplicates.
    pub(crate) axes: Vec<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Fold {
    Sum,
    Max,
    Min,
}

impl Fold {
    fn start<T: Real>(self) -> T {
        match self {
            Self::Sum => T::ZERO,
            Self::Max => T::NEG_INFINITY,
            Self::Min => -T::NEG_INFINITY,
        }
    }

    #[inline(always)]
    fn join<T: Real>(self, a: T, b: T) -> T {
        match self {
            Self::Sum => a + b,
            Self::Max if b > a || b.is_nan() => b,
            Self::Min if b < a || b.is_nan() => b,
            Self::Max | Self::Min => a,
        }
    }
}

impl Primitive for Reduce {
    fn name(&self) -> &'static str {
        match self.fold {
            Fold::Sum => "sum",
            Fold::Max => "max",
            Fold::Min => "min",
        }
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let [x] = x else { return Err(format!("takes one operand, not {}", x.len())) };
        if x.dtype == DType::U32 {
            return Err(format!("needs floats, i32 or i64, the operand holds {}; `cast` converts it", x.dtype));
        }
        let mut shape = x.shape;
        for (at, &axis) in self.axes.iter().enumerate() {
            if axis >= shape.rank() {
                return Err(format!("axis {axis} is out of range: the shape has {} axes", shape.rank()));
            }
            if self.axes[..at].contains(&axis) {
                return Err(format!("axis {axis} is named twice"));
            }
            shape = shape.with(axis, 1);
        }
        Ok(vec![x.with_shape(shape)])
    }

    /// ONNX leaves NaN open for extrema, and readers pass over it. So NaN is marked, and a mark wins.
    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[form::Operand], y: &[TensorType], to: &mut Form) -> Option<form::Results> {
        let op = match self.fold {
            _ if self.axes.is_empty() => return form::only(x[0].value),
            Fold::Sum => "ReduceSum",
            Fold::Max => "ReduceMax",
            Fold::Min => "ReduceMin",
        };
        let axes = to.ints(form::ints(&self.axes));
        let fold = |to: &mut Form, op, x| to.node(op, &[x, axes], vec![("keepdims", form::Attribute::Int(1))]);
        let folded = fold(to, op, x[0].value);
        if self.fold == Fold::Sum || !y[0].dtype.is_float() || to.is_truth(x[0].value) {
            return form::only(folded);
        }
        let is_nan = to.node("IsNaN", &[x[0].value], Vec::new());
        let marks = to.bytes(is_nan);
        let marked = fold(to, "ReduceMax", marks);
        let (has_nan, nan) = (to.condition(marked), to.float(y[0].dtype, f64::NAN));
        form::only(to.node("Where", &[has_nan, nan, folded], Vec::new()))
    }
}

impl Kernel for Reduce {
    fn reads_strided(&self, _: usize) -> bool {
        true
    }

    fn loads(&self) -> Option<usize> {
        Some(0)
    }

    fn stores(&self) -> bool {
        true
    }

    /// The order of the elements does not matter, and results are few.
    fn bf16(&self, _: &[TensorType], _: &[TensorType], caps: &Caps) -> Option<Bf16> {
        caps.bf16.then_some(Bf16::new(Innermost::Channels, &[0], Stores::Full))
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], _: &Scratch) {
        match x[0].slice() {
            Slice::Int(data) => return self.integers(data, x[0].layout(), y[0].integers()),
            Slice::Long(data) => return self.integers(data, x[0].layout(), y[0].integers()),
            Slice::Float(_) | Slice::Index(_) => {}
        }
        let (x, y) = (x[0], y[0].floats());
        let (kept, reduced) = x.layout().split(&self.axes);
        let (kept, reduced) = (kept.collapse(), reduced.collapse());
        let data = x.floats();
        let side_by_side = |layout: &Layout| layout.strides().last().is_some_and(|&stride| stride == 1);
        let columns = side_by_side(&kept) && !side_by_side(&reduced);
        let (outs, len) = (y.len(), reduced.shape().elements());
        let arch = pulp::Arch::new();
        let rows = |first, y: &mut [T], range| {
            arch.dispatch(By(self.fold, Rows { data, kept: &kept, reduced: &reduced, range, first, y }));
        };
        // Few results with many elements each, split into parts. Their number depends on the shape, not on the threads.
        let chunk = PART.max(len.div_ceil(PARTS));
        if outs < FEW && len > chunk {
            let mut partials = vec![self.fold.start(); outs * len.div_ceil(chunk)];
            native::parallel(&mut partials, outs, &|first, y| {
                let start = first / outs * chunk;
                let range = start..len.min(start + chunk);
                if columns {
                    self.columns(data, &kept, &reduced, range, y);
                } else {
                    rows(0, y, range);
                }
            });
            y.copy_from_slice(&partials[..outs]);
            for part in partials[outs..].chunks_exact(outs) {
                y.iter_mut().zip(part).for_each(|(y, &x)| *y = self.fold.join(*y, x));
            }
        } else if columns {
            self.columns(data, &kept, &reduced, 0..len, y);
        } else if len <= RUN && kept.shape().rank() > 0 {
            native::parallel(y, native::grain(len), &|first, y| {
                arch.dispatch(By(self.fold, Short { data, kept: &kept, reduced: &reduced, first, y }));
            });
        } else {
            native::parallel(y, native::grain(len), &|first, part| {
                rows(first, part, 0..len);
            });
        }
    }

    fn variants(&self, x: &[Argument], _: &[TensorType], caps: &Caps) -> Vec<Variant> {
        let words = x[0].ty.dtype.bytes() / 4;
        let reduction = Reduction { kernel: "reduce", op: self.name(), words, stores: true };
        forms::variants(reduction, &x[0], &self.axes, caps)
    }
}

impl Reduce {
    /// The reduction of integers. Their sums wrap around, so the order does not matter.
    fn integers<I: Integer>(&self, data: &[I], x: &Layout, y: &mut [I]) {
        let (kept, reduced) = x.split(&self.axes);
        let (kept, reduced) = (kept.collapse(), reduced.collapse());
        let len = reduced.shape().elements();
        let join = match self.fold {
            Fold::Sum => I::plus,
            Fold::Max => I::max,
            Fold::Min => I::min,
        };
        native::parallel(y, native::grain(len), &|first, y| {
            for (y, o) in y.iter_mut().zip(first..) {
                let elements = &data[kept.at(o)..];
                *y = (1..len).fold(elements[reduced.at(0)], |result, r| join(result, elements[reduced.at(r)]));
            }
        });
    }

    /// Folds a range of the elements of several results at once, where the results are adjacent and the elements are
    /// not.
    fn columns<T: Real>(&self, data: &[T], kept: &Layout, reduced: &Layout, range: Range<usize>, y: &mut [T]) {
        let width = *kept.shape().dims().last().expect("columns are an axis");
        let arch = pulp::Arch::new();
        native::parallel(y, width, &|first, y| {
            let base = kept.at(first);
            native::parallel(y, COLUMNS, &|first, y| {
                let data = &data[base + first..];
                arch.dispatch(By(self.fold, Columns { data, reduced, range: range.clone(), y }));
            });
        });
    }
}

/// Work that folds elements.
trait Folded {
    type Number: Real;

    /// Runs with a fold's function and its neutral element.
    fn folded(self, neutral: Self::Number, join: impl Fn(Self::Number, Self::Number) -> Self::Number);
}

/// Work with a fold, compiled for each fold and for the processor's SIMD.
struct By<W>(Fold, W);

impl<W: Folded> WithSimd for By<W> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self(fold, work) = self;
        match fold {
            Fold::Sum => work.folded(Fold::Sum.start(), |a, b| Fold::Sum.join(a, b)),
            Fold::Max => work.folded(Fold::Max.start(), |a, b| Fold::Max.join(a, b)),
            Fold::Min => work.folded(Fold::Min.start(), |a, b| Fold::Min.join(a, b)),
        }
    }
}

/// Folds a range of the elements of at most [`COLUMNS`] adjacent results.
struct Columns<'a, T> {
    /// The operand, from the first result's first element on.
    data: &'a [T],
    reduced: &'a Layout,
    range: Range<usize>,
    y: &'a mut [T],
}

impl<T: Real> Folded for Columns<'_, T> {
    type Number = T;

    #[inline(always)]
    fn folded(self, neutral: T, join: impl Fn(T, T) -> T) {
        let Self { data, reduced, range, y, .. } = self;
        let mut cascade = Cascade::<T, COLUMNS>::new(neutral);
        let mut run = [neutral; COLUMNS];
        let run = &mut run[..y.len()];
        for first in range.clone().step_by(RUN) {
            run.fill(neutral);
            for r in first..range.end.min(first + RUN) {
                let x = &data[reduced.at(r)..][..y.len()];
                run.iter_mut().zip(x).for_each(|(run, &x)| *run = join(*run, x));
            }
            cascade.push(run, &join);
        }
        y.copy_from_slice(&cascade.finish(&join)[..y.len()]);
    }
}

/// Folds the few elements of each result, for all results along the innermost kept axis at once.
struct Short<'a, T> {
    data: &'a [T],
    kept: &'a Layout,
    /// At most [`RUN`] elements.
    reduced: &'a Layout,
    /// The index of the first result.
    first: usize,
    y: &'a mut [T],
}

impl<T: Real> Folded for Short<'_, T> {
    type Number = T;

    #[inline(always)]
    fn folded(self, neutral: T, join: impl Fn(T, T) -> T) {
        let Self { data, kept, reduced, first, y, .. } = self;
        let (width, stride) = (kept.shape().dims()[kept.shape().rank() - 1], kept.strides()[kept.shape().rank() - 1]);
        let len = reduced.shape().elements();
        let mut done = 0;
        while done < y.len() {
            let at = first + done;
            let count = (width - at % width).min(y.len() - done);
            let (y, base) = (&mut y[done..done + count], kept.at(at));
            y.fill(neutral);
            for r in 0..len {
                let x = &data[base + reduced.at(r)..];
                match stride {
                    1 => y.iter_mut().zip(x).for_each(|(y, &x)| *y = join(*y, x)),
                    2 => y.iter_mut().zip(x.chunks(2)).for_each(|(y, x)| *y = join(*y, x[0])),
                    0 => y.iter_mut().for_each(|y| *y = join(*y, x[0])),
                    _ => y.iter_mut().zip(x.iter().step_by(stride)).for_each(|(y, &x)| *y = join(*y, x)),
                }
            }
            done += count;
        }
    }
}

/// Folds a range of the elements of each of several results.
struct Rows<'a, T> {
    data: &'a [T],
    kept: &'a Layout,
    reduced: &'a Layout,
    range: Range<usize>,
    /// The index of the first result.
    first: usize,
    y: &'a mut [T],
}

impl<T: Real> Folded for Rows<'_, T> {
    type Number = T;

    #[inline(always)]
    fn folded(self, neutral: T, join: impl Fn(T, T) -> T) {
        let Self { data, kept, reduced, range, first, y } = self;
        for (i, y) in y.iter_mut().enumerate() {
            *y = row(&data[kept.at(first + i)..], reduced, range.clone(), neutral, &join);
        }
    }
}

/// Folds a range of the elements of one result: stretches of the innermost reduced axis, in blocks, with interleaved
/// partial results so that the loop is SIMD.
#[inline(always)]
fn row<T: Real>(data: &[T], reduced: &Layout, range: Range<usize>, neutral: T, join: impl Fn(T, T) -> T) -> T {
    let inner = reduced.shape().dims().last().copied().unwrap_or(1);
    let stride = reduced.strides().last().copied().unwrap_or(1);
    let (mut cascade, mut lanes) = (Cascade::<T, LANES>::new(neutral), [neutral; LANES]);
    let (mut folded, mut at) = (0, range.start);
    while at < range.end {
        let start = reduced.at(at);
        let count = (inner - at % inner).min(range.end - at).min(RUN * LANES);
        if stride == 1 {
            let (chunks, rest) = data[start..start + count].as_chunks::<LANES>();
            for chunk in chunks {
                lanes.iter_mut().zip(chunk).for_each(|(lane, &x)| *lane = join(*lane, x));
            }
            lanes.iter_mut().zip(rest).for_each(|(lane, &x)| *lane = join(*lane, x));
        } else {
            for i in 0..count {
                lanes[i % LANES] = join(lanes[i % LANES], data[start + i * stride]);
            }
        }
        at += count;
        // The number of elements in the first lane, which has the most.
        folded += count.div_ceil(LANES);
        if folded >= RUN && at < range.end {
            cascade.push(&lanes, &join);
            (lanes, folded) = ([neutral; LANES], 0);
        }
    }
    cascade.push(&lanes, &join);
    by_halves(cascade.finish(&join), &join)
}

#[expect(clippy::cast_precision_loss, reason = "extents are far below 2^53")]
pub(crate) const fn as_f64(n: usize) -> f64 {
    n as f64
}
