//! Sorting along an axis.

use super::softmax::around;
use super::{Kernel, Primitive};
use crate::host::reserve;
use crate::kernel::launch::{Argument, Binding, Caps, Launch, Variant, Workgroups, define, tree};
use crate::kernel::native::{self, Element, OutView, Real, Scratch, Slice, View};
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Form};
use crate::{DType, Result, TensorType};

/// The number of elements that a workgroup sorts at once.
const BLOCK: usize = 256;

/// The indices that sort each line along an axis: `x[order[0]] ≤ x[order[1]] ≤ …`, or ≥. The sort is stable; NaN counts
/// as the largest.
///
/// Shapes: `x [A…, R, B…]` → the first of the order, `u32 [A…, kept, B…]`. Has no gradient.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ArgSort {
    pub(crate) axis: usize,
    pub(crate) descending: bool,
    /// How many of the sorted elements are wanted, from the first on.
    pub(crate) kept: usize,
}

impl Primitive for ArgSort {
    fn name(&self) -> &'static str {
        "argsort"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let [x] = x else { return Err(format!("takes one operand, not {}", x.len())) };
        if self.axis >= x.shape.rank() {
            return Err(format!("axis {} is out of range: the shape has {} axes", self.axis, x.shape.rank()));
        }
        if !(1..=x.shape[self.axis]).contains(&self.kept) {
            return Err(format!("axis {} of {} has no {} elements to keep", self.axis, x.shape, self.kept));
        }
        Ok(vec![TensorType::new(DType::U32, x.shape.with(self.axis, self.kept))])
    }

    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[form::Operand], _: &[TensorType], to: &mut Form) -> Option<form::Results> {
        let count = to.ints(vec![form::int(self.kept)]);
        let attributes = vec![
            ("axis", form::Attribute::Int(form::int(self.axis))),
            ("largest", form::Attribute::Int(i64::from(self.descending))),
            ("sorted", form::Attribute::Int(1)),
        ];
        form::only(to.optional("TopK", vec![Some(x[0].value), Some(count)], 2, attributes)[1])
    }
}

impl Kernel for ArgSort {
    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], scratch: &Scratch) {
        let (_, len, inner) = around(x[0].layout().shape(), self.axis);
        match x[0].slice() {
            Slice::Float(x) => match T::singles(x) {
                Some(x) => self.order([len, inner], x, y[0].indices(), scratch),
                None => self.order::<f64>([len, inner], bytemuck::cast_slice(x), y[0].indices(), scratch),
            },
            Slice::Index(x) => self.order([len, inner], x, y[0].indices(), scratch),
            Slice::Int(x) => self.order([len, inner], x, y[0].indices(), scratch),
            Slice::Long(x) => self.order([len, inner], x, y[0].indices(), scratch),
        }
    }

    fn variants(&self, x: &[Argument], _: &[TensorType], _: &Caps) -> Vec<Variant> {
        let ty = x[0].ty;
        let order = (self.descending, self.kept);
        vec![sort(ty.dtype, around(ty.shape, self.axis), order, Some(Binding::Output(0)))]
    }
}

impl ArgSort {
    /// The order of lines of `len` elements, `inner` of which are interleaved.
    fn order<E: Sorted>(&self, [len, inner]: [usize; 2], x: &[E], y: &mut [u32], scratch: &Scratch) {
        let kept = self.kept;
        native::parallel(y, kept * inner, &|first, y| {
            let x = &x[first / kept * len..][..len * inner];
            let mut first = First { kept, descending: self.descending, bound: None, order: Vec::new() };
            let most = len.min(first.capacity());
            if let Err(error) = reserve(&mut first.order, most) {
                return scratch.refuse(error);
            }
            for column in 0..inner {
                if inner == 1 {
                    first.add_line(x);
                } else {
                    let line = x[column..].iter().step_by(inner).zip(0..);
                    line.for_each(|(&x, place)| first.add(x, place));
                }
                let places = y[column..].iter_mut().step_by(inner);
                places.zip(first.sorted()).for_each(|(y, &keyed)| *y = E::place(keyed));
                first.bound = None;
                first.order.clear();
            }
        });
    }
}

/// The first elements of a line, as they are found.
struct First<E: Sorted> {
    kept: usize,
    descending: bool,
    /// The key of the last one to keep among those so far. A later element must be below it.
    bound: Option<E::Key>,
    /// Those found so far, and some more, so that the last one to keep is rarely sought among them.
    order: Vec<E::Keyed>,
}

impl<E: Sorted> First<E> {
    /// How many to keep at most in order. More of them are sought among candidates.
    const FEW: usize = 16;

    fn capacity(&self) -> usize {
        if self.kept <= Self::FEW { self.kept + 1 } else { 2 * self.kept.max(32) }
    }

    fn add(&mut self, x: E, place: u32) {
        let key = x.key(self.descending);
        if self.bound.is_some_and(|bound| key >= bound) {
            return;
        }
        let keyed = E::keyed(key, place);
        if self.kept <= Self::FEW {
            let rank = self.order.partition_point(|&other| other < keyed);
            self.order.insert(rank, keyed);
            self.order.truncate(self.kept);
            self.bound = self.order.get(self.kept - 1).map(|&last| E::key_of(last));
            return;
        }
        self.order.push(keyed);
        if self.order.len() == self.capacity() {
            self.select();
        }
    }

    /// Drops all but those to keep.
    fn select(&mut self) {
        if self.order.len() > self.kept {
            let (_, last, _) = self.order.select_nth_unstable(self.kept - 1);
            self.bound = Some(E::key_of(*last));
            self.order.truncate(self.kept);
        }
    }

    /// Adds adjacent elements: parts without any below the bound are passed over by a SIMD loop.
    fn add_line(&mut self, x: &[E]) {
        const PART: usize = 64;
        for (x, first) in x.chunks(PART).zip((0..).step_by(PART)) {
            let descending = self.descending;
            let any_below = |bound| x.iter().fold(false, |any, x| any | (x.key(descending) < bound));
            if self.bound.is_none_or(any_below) {
                x.iter().zip(first..).for_each(|(&x, place)| self.add(x, place));
            }
        }
    }

    /// The elements to keep, in order.
    fn sorted(&mut self) -> &[E::Keyed] {
        self.select();
        self.order.sort_unstable();
        &self.order
    }
}

/// An element that is sorted by a key, a whole number whose order is that of the elements: NaN is the largest, and
/// zeros of both signs are equal. The element's place behind its key makes the order stable.
trait Sorted: Element {
    type Key: Copy + Ord;
    type Keyed: Copy + Ord;

    /// The key; its complement for descending order.
    fn key(self, descending: bool) -> Self::Key;
    fn keyed(key: Self::Key, place: u32) -> Self::Keyed;
    fn key_of(keyed: Self::Keyed) -> Self::Key;
    fn place(keyed: Self::Keyed) -> u32;
}

macro_rules! sorted {
    ($($T:ident by $Key:ident, in $Keyed:ident: |$x:ident| $key:expr;)+) => {
        $(
            #[expect(clippy::cast_possible_truncation, reason = "the upper half is the key, the lower one holds a u32")]
            impl Sorted for $T {
                type Key = $Key;
                type Keyed = $Keyed;

                #[inline(always)]
                fn key(self, descending: bool) -> $Key {
                    let $x = self;
                    let key: $Key = $key;
                    if descending { !key } else { key }
                }

                #[inline(always)]
                fn keyed(key: $Key, place: u32) -> $Keyed {
                    $Keyed::from(key) << $Key::BITS | $Keyed::from(place)
                }

                #[inline(always)]
                fn key_of(keyed: $Keyed) -> $Key {
                    (keyed >> $Key::BITS) as $Key
                }

                #[inline(always)]
                fn place(keyed: $Keyed) -> u32 {
                    keyed as u32
                }
            }
        )+
    };
}

/// The bits of a float as a key: those of negative numbers in reverse, below those of the others.
macro_rules! key_of_float {
    ($x:expr, $Key:ident) => {{
        // Turns −0 into 0.
        let bits = ($x + 0.0).to_bits();
        let sign = 1 << ($Key::BITS - 1);
        if $x.is_nan() { $Key::MAX } else { bits ^ if bits >= sign { $Key::MAX } else { sign } }
    }};
}

sorted! {
    f32 by u32, in u64: |x| key_of_float!(x, u32);
    f64 by u64, in u128: |x| key_of_float!(x, u64);
    u32 by u32, in u64: |x| x;
    i32 by u32, in u64: |x| x.cast_unsigned() ^ (1 << 31);
    i64 by u64, in u128: |x| x.cast_unsigned() ^ (1 << 63);
}

/// The launches that write the first `kept` of the order of operand 0 along an axis of `len` elements to the binding
/// `to`, or else to the last scratch buffer. The operand has elements of this type.
///
/// They sort blocks in workgroup memory, then merge runs, whose length doubles in each pass. The blocks have a buffer
/// of their own, so that other steps can share it; the passes take turns with two others.
pub(super) fn sort(
    dtype: DType,
    (outer, len, inner): (usize, usize, usize),
    (descending, kept): (bool, usize),
    to: Option<Binding>,
) -> Variant {
    let lines = outer * inner;
    let elements = lines * len;
    let blocks = len.div_ceil(BLOCK);
    let passes = blocks.next_power_of_two().ilog2() as usize;
    let own = passes.min(3);
    let to = to.unwrap_or(Binding::Scratch(own));
    let written = |pass| match pass {
        pass if pass == passes => to,
        0 => Binding::Scratch(0),
        pass => Binding::Scratch(2 - pass % 2),
    };
    let shape = define![ELEMENT: dtype, LEN: len, INNER: inner, DESCENDING: u32::from(descending)];
    let kept = |pass| if pass == passes { kept } else { len };
    let defines = [define![LINES: lines, BLOCKS: blocks, KEPT: kept(0)], shape.clone()].concat();
    let workgroups =
        Workgroups::new(lines.saturating_mul(blocks), BLOCK).with_memory(&[dtype.bytes() * BLOCK]).looping(BLOCK + 1);
    let sorted = Launch::new("sort_blocks", defines, (1, 1), workgroups);
    let mut launches = vec![Launch { bindings: vec![Binding::Input(0), written(0)], ..sorted }];
    for pass in 0..passes {
        let run = BLOCK << pass;
        let workgroups = Workgroups::of_elements(elements).looping(tree(run) + 1);
        let defines = [define![N: elements, RUN: run, KEPT: kept(pass + 1)], shape.clone()].concat();
        let merge = Launch::new("sort_merge", defines, (1, 1), workgroups);
        let bindings = vec![Binding::Input(0), written(pass), written(pass + 1)];
        launches.push(Launch { bindings, ..merge });
    }
    let scratch = vec![elements; own + usize::from(matches!(to, Binding::Scratch(_)))];
    Variant { name: "merge", launches, scratch }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::native::Buffers;

    fn expect_sorted<E: Sorted>(name: &str, numbers: &[E]) {
        let scratch = Scratch::new(&Buffers::default().into(), true);
        for inner in [1, 3] {
            let len = numbers.len() / inner / 2;
            for kept in [1, 5, 16, 17, 40, len] {
                for descending in [false, true] {
                    let mut y = vec![u32::MAX; 2 * kept * inner];
                    ArgSort { axis: 1, descending, kept }.order([len, inner], numbers, &mut y, &scratch);
                    for line in 0..2 * inner {
                        let of = |extent, k: usize| (line / inner * extent + k) * inner + line % inner;
                        let mut places: Vec<_> = (0..len).collect();
                        places.sort_by(|&a, &b| {
                            let (a, b) = (numbers[of(len, a)], numbers[of(len, b)]);
                            let order = a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()));
                            if descending { order.reverse() } else { order }
                        });
                        let found: Vec<_> = (0..kept).map(|k| y[of(kept, k)] as usize).collect();
                        assert_eq!(found, places[..kept], "{kept} of {len} {name}, {inner} interleaved, {descending}");
                    }
                }
            }
        }
    }

    #[test]
    #[expect(clippy::cast_possible_truncation, reason = "any bits will do")]
    fn the_first_of_each_line_are_in_order() {
        let bits = |at: u64| (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // Few values, so that many are equal.
        let float = |at: u64| match bits(at) >> 58 {
            0 => f64::NAN,
            1 => -f64::NAN,
            2 => f64::INFINITY,
            3 => f64::NEG_INFINITY,
            4 => -0.0,
            5 => 0.0,
            small => f64::from(small as u32 / 2) - 16.0,
        };
        expect_sorted("f64", &(0..1200).map(float).collect::<Vec<_>>());
        expect_sorted("f32", &(0..1200).map(|at| float(at) as f32).collect::<Vec<_>>());
        expect_sorted("u32", &(0..1200).map(|at| bits(at) as u32).collect::<Vec<_>>());
        expect_sorted("i32", &(0..1200).map(|at| bits(at) as i32).collect::<Vec<_>>());
        expect_sorted("i64", &(0..1200).map(|at| bits(at).cast_signed()).collect::<Vec<_>>());
        // Descending and ascending lines: each element, or none, displaces another.
        expect_sorted("sorted f32", &(0..1200).map(|at: u16| f32::from(at)).collect::<Vec<_>>());
    }
}
