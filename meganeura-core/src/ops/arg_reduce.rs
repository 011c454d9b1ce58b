//! The index of the largest or smallest element along an axis.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::reduce::forms::{self, Reduction};
use super::reduce::{COLUMNS, FEW, LANES, PART, PARTS};
use super::{Kernel, Primitive};
use crate::kernel::launch::{Argument, Caps, Variant};
use crate::kernel::native::{self, Element, OutView, Real, Scratch, Slice, View};
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Form};
use crate::{DType, Layout, Result, Shape, TensorType};

/// The elements of a row whose extremum is found first, and its index then, only if it is the best so far.
const BLOCK: usize = 1024;

/// The index of the largest or the smallest element along an axis: `y = arg max x`
///
/// Of several such elements, the first; NaN counts as the extremum.
///
/// Shapes: `x [A…, R, B…]` → `y u32 [A…, B…]`. Has no gradient.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ArgReduce {
    pub(crate) axis: usize,
    pub(crate) largest: bool,
}

impl Primitive for ArgReduce {
    fn name(&self) -> &'static str {
        if self.largest { "argmax" } else { "argmin" }
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let [x] = x else { return Err(format!("takes one operand, not {}", x.len())) };
        let Some(&extent) = x.shape.dims().get(self.axis) else {
            return Err(format!("axis {} is out of range: the shape has {} axes", self.axis, x.shape.rank()));
        };
        if extent == 0 {
            return Err(format!("axis {} has no elements", self.axis));
        }
        if u32::try_from(extent).is_err() {
            return Err(format!("a u32 cannot count the {extent} elements of axis {}", self.axis));
        }
        let mut dims = x.shape.dims().to_vec();
        dims.remove(self.axis);
        Ok(vec![TensorType::new(DType::U32, Shape::new(&dims))])
    }

    /// ONNX leaves NaN open, and readers skip it. So where a line has NaN, the operator looks for it among marks.
    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[form::Operand], _: &[TensorType], to: &mut Form) -> Option<form::Results> {
        let (op, fold) = if self.largest { ("ArgMax", "ReduceMax") } else { ("ArgMin", "ReduceMin") };
        let attributes = |keepdims| vec![("keepdims", form::Attribute::Int(keepdims))];
        let axis = ("axis", form::Attribute::Int(form::int(self.axis)));
        if !x[0].ty.dtype.is_float() {
            return form::only(to.node(op, &[x[0].value], [vec![axis], attributes(0)].concat()));
        }
        let is_nan = to.node("IsNaN", &[x[0].value], Vec::new());
        let mark = if self.largest { is_nan } else { to.node("Not", &[is_nan], Vec::new()) };
        let marks = to.cast(mark, x[0].ty.dtype);
        let axes = to.ints(form::ints(&[self.axis]));
        let extremum = to.node(fold, &[marks, axes], attributes(1));
        let condition = to.condition(extremum);
        let [yes, no] = if self.largest { [marks, x[0].value] } else { [x[0].value, marks] };
        let among = to.node("Where", &[condition, yes, no], Vec::new());
        form::only(to.node(op, &[among], [vec![axis], attributes(0)].concat()))
    }
}

impl Kernel for ArgReduce {
    fn reads_strided(&self, _: usize) -> bool {
        true
    }

    fn loads(&self) -> Option<usize> {
        Some(0)
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], _: &Scratch) {
        let (layout, y) = (x[0].layout(), y[0].indices());
        match x[0].slice() {
            Slice::Float(data) => self.best(data, layout, y),
            Slice::Index(data) => self.best(data, layout, y),
            Slice::Int(data) => self.best(data, layout, y),
            Slice::Long(data) => self.best(data, layout, y),
        }
    }

    fn variants(&self, x: &[Argument], _: &[TensorType], caps: &Caps) -> Vec<Variant> {
        let op = if self.largest { "max" } else { "min" };
        // The key and the index of a candidate; a key of two words is aligned to them.
        let words = 2 * x[0].ty.dtype.bytes() / 4;
        let reduction = Reduction { kernel: "arg_reduce", op, words, stores: false };
        forms::variants(reduction, &x[0], &[self.axis], caps)
    }
}

impl ArgReduce {
    fn best<T: Element>(&self, data: &[T], x: &Layout, y: &mut [u32]) {
        let (kept, reduced) = x.split(&[self.axis]);
        let kept = kept.collapse();
        let lines = Lines { data, kept, stride: reduced.strides()[0], largest: self.largest };
        let (outs, len) = (y.len(), reduced.shape().elements());
        // Few results with many elements each, split into parts. Their number depends on the shape, not on the threads.
        let chunk = PART.max(len.div_ceil(PARTS));
        if outs >= FEW || len <= chunk {
            return lines.best(0..len, y);
        }
        let mut partials = vec![(T::default(), 0); outs * len.div_ceil(chunk)];
        native::parallel(&mut partials, outs, &|first, y| {
            let start = first / outs * chunk;
            lines.best(start..len.min(start + chunk), y);
        });
        for (o, y) in y.iter_mut().enumerate() {
            let of_parts = partials[o..].iter().step_by(outs).copied();
            let best = of_parts.reduce(|a, b| if beats(self.largest, b.0, a.0) { b } else { a });
            *y = best.map_or(0, |(_, index)| index);
        }
    }
}

/// `true` if an element takes the place of an earlier one.
#[inline(always)]
fn beats<T: Element>(largest: bool, later: T, earlier: T) -> bool {
    let is_further = if largest { later > earlier } else { later < earlier };
    is_further | (later.is_nan() & !earlier.is_nan())
}

/// An index as the kernel's result.
fn index(place: usize) -> u32 {
    u32::try_from(place).expect("the type rule bounds the axis")
}

/// The place of a result, or of one of its parts.
trait Slot<T>: Send {
    fn put(&mut self, best: (T, u32));
}

impl<T> Slot<T> for u32 {
    fn put(&mut self, (_, index): (T, u32)) {
        *self = index;
    }
}

impl<T: Send> Slot<T> for (T, u32) {
    fn put(&mut self, best: (T, u32)) {
        *self = best;
    }
}

/// The lines of an operand.
struct Lines<'a, T> {
    data: &'a [T],
    /// The first element of each line.
    kept: Layout,
    /// The distance between elements of a line.
    stride: usize,
    largest: bool,
}

impl<T: Element> Lines<'_, T> {
    /// Finds the best elements of all lines, among a range of their elements.
    fn best<Y: Slot<T>>(&self, range: Range<usize>, y: &mut [Y]) {
        let arch = pulp::Arch::new();
        match (self.kept.strides(), self.kept.shape().dims()) {
            (&[.., 1], &[.., width]) if self.stride != 1 => native::parallel(y, width, &|first, y| {
                let base = self.kept.at(first);
                native::parallel(y, COLUMNS, &|first, y| {
                    arch.dispatch(Columns { lines: self, base: base + first, range: range.clone(), y });
                });
            }),
            _ => native::parallel(y, native::grain(range.len()), &|first, y| {
                arch.dispatch(Rows { lines: self, first, range: range.clone(), y });
            }),
        }
    }
}

/// Adjacent lines, at most [`COLUMNS`].
struct Columns<'a, T, Y> {
    lines: &'a Lines<'a, T>,
    /// The place of the first line.
    base: usize,
    range: Range<usize>,
    y: &'a mut [Y],
}

impl<T: Element, Y: Slot<T>> WithSimd for Columns<'_, T, Y> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { lines, base, range, y } = self;
        let row = |r: usize| &lines.data[base + r * lines.stride..][..y.len()];
        let (mut values, mut indices) = ([T::default(); COLUMNS], [index(range.start); COLUMNS]);
        values[..y.len()].copy_from_slice(row(range.start));
        for r in range.start + 1..range.end {
            let at = index(r);
            for ((value, index), &x) in values.iter_mut().zip(&mut indices).zip(row(r)) {
                let wins = beats(lines.largest, x, *value);
                *value = if wins { x } else { *value };
                *index = if wins { at } else { *index };
            }
        }
        y.iter_mut().zip(values.into_iter().zip(indices)).for_each(|(y, best)| y.put(best));
    }
}

/// Lines one by one.
struct Rows<'a, T, Y> {
    lines: &'a Lines<'a, T>,
    /// The number of the first line.
    first: usize,
    range: Range<usize>,
    y: &'a mut [Y],
}

impl<T: Element, Y: Slot<T>> WithSimd for Rows<'_, T, Y> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { lines: &Lines { data, ref kept, stride, largest }, first, range, y } = self;
        for (y, line) in y.iter_mut().zip(first..) {
            let line = &data[kept.at(line)..];
            let mut best = (line[range.start * stride], range.start);
            if stride == 1 {
                let blocks = line[range.clone()].chunks(BLOCK).zip(range.clone().step_by(BLOCK));
                for (block, start) in blocks {
                    let extremum = extremum(largest, block);
                    if beats(largest, extremum, best.0) {
                        best = (extremum, start + place(block, extremum));
                    }
                }
            } else {
                for r in range.clone() {
                    let x = line[r * stride];
                    if beats(largest, x, best.0) {
                        best = (x, r);
                    }
                }
            }
            y.put((best.0, index(best.1)));
        }
    }
}

/// The first place of a block's extremum. There is NaN only if that is the extremum.
#[inline(always)]
fn place<T: Element>(block: &[T], extremum: T) -> usize {
    let is_it = |x: &T| (*x == extremum) | x.is_nan();
    // A search that may end at any element is no SIMD loop.
    let part = block.chunks(LANES).position(|part| part.iter().fold(false, |any, x| any | is_it(x)));
    let begin = part.unwrap_or(0) * LANES;
    begin + block[begin..].iter().position(is_it).unwrap_or(0)
}

/// The extremum of a block that is not empty: NaN if there is any.
#[inline(always)]
fn extremum<T: Element>(largest: bool, block: &[T]) -> T {
    let mut lanes = [block[0]; LANES];
    let fold = |lane: &mut T, x: T| *lane = if beats(largest, x, *lane) { x } else { *lane };
    let (chunks, rest) = block.as_chunks::<LANES>();
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(lane, &x)| fold(lane, x));
    }
    lanes.iter_mut().zip(rest).for_each(|(lane, &x)| fold(lane, x));
    native::by_halves(lanes, |a, b| if beats(largest, b, a) { b } else { a })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_has_at_most_as_many_elements_as_a_u32_can_count() {
        let of = |extent| {
            let ty = TensorType::new(DType::F32, Shape::from([3, extent]));
            ArgReduce { axis: 1, largest: true }.outputs(&[ty])
        };
        let most = u32::MAX as usize;
        assert_eq!(of(most).expect("fits")[0].to_string(), "u32[3]");
        let error = of(most + 1).expect_err("it has no index");
        assert_eq!(error, "a u32 cannot count the 4294967296 elements of axis 1");
    }

    #[test]
    fn long_rows_are_split_and_keep_index_and_key() {
        let best = |shape: &[usize], axis| {
            let x = Argument::contiguous(TensorType::new(DType::F32, Shape::new(shape)));
            ArgReduce { axis, largest: false }.variants(&[x], &[], &Caps::DISCRETE).swap_remove(0)
        };
        for (shape, axis, name, scratch) in [
            (&[60_000, 10][..], 1, "rows", 0),
            (&[1000, 7], 1, "serial", 0),
            (&[100, 200], 0, "columns", 0),
            (&[1 << 25], 0, "split rows", 2 * 1024),
            (&[100_000, 10], 0, "split columns", 2 * 10 * 390),
        ] {
            let variant = best(shape, axis);
            assert_eq!((variant.name, variant.scratch.iter().sum::<usize>()), (name, scratch), "{shape:?} over {axis}");
            assert_eq!(variant.launches[0].loads, Some(0));
        }
    }
}
