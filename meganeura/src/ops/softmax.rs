//! Softmax and its logarithm along an axis.

mod native_blocks;

use self::native_blocks::Blocks;
use super::segments::{RUN, Segments};
use super::{Bf16, Innermost, Kernel, Primitive, Stores};
use crate::kernel::launch::{Argument, Binding, Caps, Define, LINE, Launch, Variant, Workgroups, define};
use crate::kernel::native::{self, OutView, Real, Scratch, View};
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Form};
use crate::tape::Var;
use crate::{Result, Shape, TensorType};

/// `y = eˣ / Σ eˣ` along an axis, or its logarithm `x − ln Σ eˣ`; the maximum is subtracted first, so nothing
/// overflows.
///
/// A row of −∞ alone gives NaN, or 0 if it is `masked`: the weights of a query that sees no key.
///
/// Shapes: `y` has that of `x`. Gradient: `dx = y·(dy − Σ dy·y)`; of the logarithm, `dx = dy − eʸ·Σ dy`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Softmax {
    axis: usize,
    log: bool,
    /// Only along the last axis, and not of the logarithm.
    masked: bool,
}

/// The extents before, along and after an axis.
pub(super) fn around(shape: Shape, axis: usize) -> (usize, usize, usize) {
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
        self.segments.workgroups(self.outer.saturating_mul(self.inner), parts, loops)
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
    fn of_lines(shape: Shape, axis: usize) -> Self {
        let (outer, len, _) = around(shape, axis);
        let lines = len / LINE;
        Self { outer, len: lines, inner: 1, segments: Segments::rows(lines), parts: 1 }
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

/// The ONNX form of the softmax of scores along the last axis, with 0 in rows of −∞.
#[cfg(feature = "onnx")]
pub(super) fn weights(scores: form::Value, ty: TensorType, to: &mut Form) -> form::Value {
    let last = form::Attribute::Int(-1);
    let weights = to.node("Softmax", &[scores], vec![("axis", last)]);
    let axis = to.ints(vec![-1]);
    let peak = to.node("ReduceMax", &[scores, axis], vec![("keepdims", form::Attribute::Int(1))]);
    let [none, zero] = [f64::NEG_INFINITY, 0.0].map(|number| to.float(ty.dtype, number));
    let sees_none = to.node("Equal", &[peak, none], Vec::new());
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

    fn vjp(&self, _x: &[Var], y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let (y, Some(dy)) = (&y[0], &dy[0]) else { return Ok(vec![None]) };
        Ok(vec![Some(match self.log {
            true => dy - y.exp() * dy.sum_keep(&[self.axis]),
            false => y * (dy - (dy * y).sum_keep(&[self.axis])),
        })])
    }

    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[form::Operand], _: &[TensorType], to: &mut Form) -> Option<form::Results> {
        if self.masked {
            return form::only(weights(x[0].value, x[0].ty, to));
        }
        let axis = vec![("axis", form::Attribute::Int(form::int(self.axis)))];
        form::only(to.node(if self.log { "LogSoftmax" } else { "Softmax" }, &[x[0].value], axis))
    }

    #[cfg(feature = "testing")]
    fn cases() -> Vec<super::case::Case> {
        use super::case::{Array, Case};
        let naive = |x: &Array, axis, log: bool| {
            let (_, len, inner) = around(x.shape, axis);
            let mut y = x.clone();
            for (at, y) in y.data.iter_mut().enumerate() {
                let first = at / (len * inner) * len * inner + at % inner;
                let total: f64 = (0..len).map(|l| x.data[first + l * inner].exp()).sum();
                *y = if log { *y - total.ln() } else { y.exp() / total };
            }
            vec![y]
        };
        let case = |x: &[usize], axis, log| {
            let case = Case::new(Self { axis, log, masked: false }).input(x).tolerance(1e-5).scale(3.0);
            // Quadratic in the length of a row, so not for long ones.
            if around(Shape::new(x), axis).1 > 1000 { case } else { case.naive(move |a| naive(&a[0], axis, log)) }
        };
        let shapes: [(&[usize], usize); 12] = [
            (&[1, 1], 1),
            (&[3, 5], 1),
            (&[4, 7, 3], 1),
            (&[6, 2], 0),
            (&[2, 515], 1),
            (&[131, 10], 1),
            // more than 32 elements, some distance apart
            (&[2, 45, 3, 5], 1),
            (&[70, 81], 0),
            // in lines of eight
            (&[5, 24], 1),
            (&[3, 2, 520], 2),
            // long enough to be split
            (&[2, 17_001], 1),
            (&[1, 1100, 5], 1),
        ];
        let mut cases: Vec<_> =
            shapes.iter().flat_map(|&(x, axis)| [case(x, axis, false), case(x, axis, true)]).collect();
        // Row 1 is hidden. In the others, so are some elements.
        let masked: [&[usize]; 4] = [&[3, 1], &[3, 70], &[2, 3, 24], &[2, 17_001]];
        cases.extend(masked.map(|shape| {
            Case::recorded("softmax", &[shape], move |x| {
                let (tape, last) = (x[0].tape(), shape.len() - 1);
                let place = |axis: usize| tape.iota([shape[axis]], 0);
                let some = place(last).gt(&tape.scalar(0.0)) * place(last).lt(&tape.scalar(20.0));
                let hidden = place(last - 1).eq(&tape.scalar(1.0)).unsqueeze(1) + some;
                hidden.where_cond(&tape.scalar(f64::NEG_INFINITY), &x[0]).weights()
            })
        }));
        cases
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
        let (outer, len, inner) = around(x[0].shape, self.axis);
        let fits = caps.bf16 && !self.log && inner == 1 && len > 0 && len.is_multiple_of(LINE) && outer > 0;
        let fits = fits && !Rows::of_lines(x[0].shape, self.axis).is_split();
        let bf16 = Bf16 { innermost: Innermost::Last, operands: &[0], stores: Stores::Lines, wanted: false };
        fits.then_some(bf16)
    }

    fn variants(&self, x: &[Argument], _: &[TensorType], _: &Caps) -> Vec<Variant> {
        let shape = x[0].ty.shape;
        if x[0].format.is_bf16() {
            let mut lines = Rows::of_lines(shape, self.axis).variant("lines", self, "lines");
            lines.launches = lines.launches.into_iter().map(Launch::by_lines).collect();
            return vec![lines];
        }
        Rows::forms(shape, self.axis).iter().map(|(name, rows)| rows.variant(name, self, "full")).collect()
    }
}

impl Var {
    /// The softmax along an axis: `eˣ / Σ eˣ`. The shape is unchanged; an axis out of range is an error. A row of −∞
    /// alone gives NaN, as in PyTorch; [`attention`](Self::attention) gives 0 there.
    #[must_use]
    #[track_caller]
    pub fn softmax(&self, axis: usize) -> Self {
        self.record(Softmax { axis, log: false, masked: false }, &[self])
    }

    /// The softmax of scores along the last axis, with 0 in rows of −∞.
    #[track_caller]
    pub(super) fn weights(&self) -> Self {
        self.record(Softmax { axis: self.shape().rank() - 1, log: false, masked: true }, &[self])
    }

    /// The logarithm of the softmax along an axis: `x − ln Σ eˣ`. The shape is unchanged; an axis out of range is an
    /// error.
    #[must_use]
    #[track_caller]
    pub fn log_softmax(&self, axis: usize) -> Self {
        self.record(Softmax { axis, log: true, masked: false }, &[self])
    }
}
