//! Softmax and its logarithm along an axis.

mod native_blocks;

use self::native_blocks::Blocks;
use super::segments::{RUN, Segments};
use super::{Bf16, Innermost, Kernel, Primitive, Stores};
use crate::kernel::launch::{Argument, Binding, Caps, Define, Format, LINE, Launch, Variant, Workgroups, define};
use crate::kernel::native::{self, OutView, Real, Scratch, View};
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Form};
use crate::{Result, Shape, TensorType};

/// `y = eˣ / Σ eˣ` along an axis, or its logarithm `x − ln Σ eˣ`; the maximum is subtracted first, so nothing
/// overflows.
///
/// A row of −∞ alone gives NaN, or 0 if it is `masked`: the weights of a query that sees no key.
///
/// Shapes: `y` has that of `x`. Gradient: `dx = y·(dy − Σ dy·y)`; of the logarithm, `dx = dy − eʸ·Σ dy`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Softmax {
    pub(crate) axis: usize,
    pub(crate) log: bool,
    /// Only along the last axis, and not of the logarithm.
    pub(crate) masked: bool,
}

/// The extents before, along and after an axis.
pub(crate) fn around(shape: Shape, axis: usize) -> (usize, usize, usize) {
    let dims = shape.dims();
    (dims[..axis].iter().product(), dims[axis], dims[axis + 1..].iter().product())
}

/// The extents around a row, and the distribution of rows over invocations.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    outer: usize,
    pub(super) len: usize,
    inner: usize,
    pub(super) segments: Segments,
    /// More than one if rows are split; then `softmax_parts` runs first.
    pub(super) parts: usize,
}

impl Rows {
    /// The forms for processing rows, with their names, best first: one invocation per row if rows are short, or
    /// adjacent and plentiful; else several, up to a workgroup; a split if rows are long and few.
    pub(super) fn forms(shape: Shape, axis: usize) -> [(&'static str, Self); 4] {
        let (outer, len, inner) = around(shape, axis);
        let rows = outer.saturating_mul(inner);
        let of = |segments, parts| Self { outer, len, inner, segments, parts };
        let serial = ("serial", of(Segments::SERIAL, 1));
        // Adjacent invocations share a row if its elements are adjacent; if the rows are adjacent, because another axis
        // follows, each takes a different row.
        let neighbours = ("rows", of(Segments::rows(len), 1));
        let across = ("columns", of(Segments::columns(inner), 1));
        let best = if inner == 1 { Segments::rows(len) } else { Segments::columns(inner) };
        let split = ("split", of(best, best.parts(rows, len, true)));
        match (len, inner) {
            _ if best.is_split(rows, len) => [split, serial, neighbours, across],
            (..4, _) => [serial, neighbours, across, split],
            (_, 1) => [neighbours, serial, across, split],
            _ if len <= 32 || rows >= 1 << 16 => [serial, across, neighbours, split],
            _ => [across, serial, neighbours, split],
        }
    }

    /// `true` if rows are so few and long that several workgroups share one.
    fn is_split(&self) -> bool {
        self.segments.is_split(self.outer.saturating_mul(self.inner), self.len)
    }

    /// The workgroups for so many parts of each row.
    fn of_parts(&self, parts: usize, loops: usize) -> Workgroups {
        self.segments.workgroups(self.outer.saturating_mul(self.inner), parts, loops, 1)
    }

    /// The workgroups of a kernel that goes over a row `times` times, once in runs; if rows are split, over the results
    /// of its parts.
    pub(super) fn workgroups(&self, times: usize) -> Workgroups {
        self.of_parts(1, self.loops(times))
    }

    fn loops(&self, times: usize) -> usize {
        let passes = self.segments.loops(if self.parts == 1 { self.len } else { self.parts }, 1, times);
        passes.saturating_add(self.runs())
    }

    /// The iterations over the runs of a row, or of a part, each with an inner loop that it enters.
    fn runs(&self) -> usize {
        self.segments.each(self.len, self.parts).div_ceil(RUN).saturating_mul(2).saturating_add(1)
    }

    fn defines(&self) -> Vec<Define> {
        let blocks = self.of_parts(1, 0).count;
        let extents = define![OUTER: self.outer, LEN: self.len, INNER: self.inner, BLOCKS: blocks];
        [self.segments.defines(self.len, self.parts), extents].concat()
    }

    /// The launch of `softmax_parts`, and the number of floats in each scratch buffer that it writes: peaks, masses
    /// and, if there is a third, drifts.
    pub(super) fn parts_launch(&self, results: usize) -> (Launch, Vec<usize>) {
        let mut defines = self.defines();
        defines.extend(define![DRIFT: u32::from(results == 3)]);
        let loops = self.segments.loops(self.len, self.parts, 3).saturating_add(self.runs());
        let mut launch = Launch::new("softmax_parts", defines, (1, 0), self.of_parts(self.parts, loops));
        launch.bindings.extend((0..results).map(Binding::Scratch));
        let partials = self.outer.saturating_mul(self.inner).saturating_mul(self.parts);
        (launch, vec![partials; results])
    }

    /// The form for rows that are stored in lines; a line counts as one element.
    pub(super) fn of_lines(shape: Shape, axis: usize) -> Self {
        let (outer, len, _) = around(shape, axis);
        let lines = len.div_ceil(LINE);
        Self { outer, len: lines, inner: 1, segments: Segments::rows(lines), parts: 1 }
    }

    /// `true` if rows along this axis can be stored in lines.
    pub(super) fn are_lines(shape: Shape, axis: usize) -> bool {
        let (_, len, inner) = around(shape, axis);
        inner == 1 && Format::has_rows(shape, len)
    }

    fn variant(&self, name: &'static str, op: &Softmax, format: &'static str) -> Variant {
        let mut defines = self.defines();
        defines.extend(define![LOG: u32::from(op.log), MASKED: u32::from(op.masked), FORMAT: format]);
        let loops = self.loops(2).saturating_add(self.segments.loops(self.len, self.parts, 1));
        let workgroups = self.of_parts(self.parts, loops);
        let mut launch = Launch::new("softmax", defines, (1, 1), workgroups).stores_through_epilogue();
        if self.parts == 1 {
            return Variant::simple(name, launch);
        }
        let (parts, scratch) = self.parts_launch(2);
        launch.bindings.extend((0..2).map(Binding::Scratch));
        Variant { name, launches: vec![parts, launch], scratch }
    }
}

/// The elements in the last line of a row.
pub(super) fn tail(len: usize) -> usize {
    len - (len - 1) / LINE * LINE
}

/// The ONNX form of the softmax of scores along the last axis, with 0 in rows of −∞.
#[cfg(feature = "onnx")]
pub(super) fn weights(scores: form::Value, ty: TensorType, to: &mut Form) -> form::Value {
    let last = form::Attribute::Int(-1);
    let weights = to.node("Softmax", &[scores], vec![("axis", last)]);
    let axis = to.ints(vec![-1]);
    let [none, zero] = [f64::NEG_INFINITY, 0.0].map(|number| to.float(ty.dtype, number));
    // Readers pass over NaN in `ReduceMax`. A row without any number above −∞ adds up to −∞, or to NaN if it has one.
    let [is_low, adds_up] = ["ReduceMax", "ReduceSum"].map(|op| {
        let of_row = to.node(op, &[scores, axis], vec![("keepdims", form::Attribute::Int(1))]);
        to.node("Equal", &[of_row, none], Vec::new())
    });
    let sees_none = to.node("And", &[is_low, adds_up], Vec::new());
    to.node("Where", &[sees_none, zero, weights], Vec::new())
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
            return Err(format!("axis {} is out of range: the shape has {} axes", self.axis, x[0].shape.rank()));
        }
        debug_assert!(!self.masked || (!self.log && self.axis + 1 == x[0].shape.rank()), "the weights of attention");
        Ok(vec![x[0]])
    }

    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[form::Operand], _: &[TensorType], to: &mut Form) -> Option<form::Results> {
        if self.masked {
            return form::only(weights(x[0].value, x[0].ty, to));
        }
        let axis = vec![("axis", form::Attribute::Int(form::int(self.axis)))];
        form::only(to.node(if self.log { "LogSoftmax" } else { "Softmax" }, &[x[0].value], axis))
    }
}

impl Kernel for Softmax {
    fn stores(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], _: &Scratch) {
        let (_, len, inner) = around(x[0].layout().shape(), self.axis);
        let x = x[0].floats();
        let arch = pulp::Arch::new();
        // Short rows are grouped.
        let blocks = native::grain(len * inner);
        native::parallel(y[0].floats(), blocks * len * inner, &|first, y| {
            let x = &x[first..][..y.len()];
            arch.dispatch(Blocks { log: self.log, masked: self.masked, len, inner, x, y });
        });
    }

    /// Logarithms stay in `f32`, as losses are computed from them.
    fn bf16(&self, x: &[TensorType], _: &[TensorType], caps: &Caps) -> Option<Bf16> {
        let fits = caps.bf16 && !self.log && Rows::are_lines(x[0].shape, self.axis);
        let fits = fits && !Rows::of_lines(x[0].shape, self.axis).is_split();
        let bf16 = Bf16::new(Innermost::Last, &[0], Stores::Lines);
        fits.then_some(bf16)
    }

    fn variants(&self, x: &[Argument], _: &[TensorType], _: &Caps) -> Vec<Variant> {
        let shape = x[0].ty.shape;
        if x[0].format.is_bf16() {
            let mut lines = Rows::of_lines(shape, self.axis).variant("lines", self, "lines");
            lines.launches = lines.launches.into_iter().map(Launch::by_lines).collect();
            lines.launches[0].defines.extend(define![TAIL: tail(around(shape, self.axis).1)]);
            return vec![lines];
        }
        Rows::forms(shape, self.axis).iter().map(|(name, rows)| rows.variant(name, self, "full")).collect()
    }
}
