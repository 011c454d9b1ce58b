//! Concatenation along an axis.

use super::{Bf16, Innermost, Kernel, Primitive, Stores};
use crate::kernel::launch::{Argument, Caps, Channels, Format, LINE, Launch, Variant, Workgroups, define};
use crate::kernel::native::{self, OutView, Real, Scratch, View};
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Form};
use crate::{Layout, Result, Shape, TensorType};

/// Concatenates the operands along an axis.
///
/// Shapes: equal except along the axis, whose extents add up. Gradient: each operand's part of `dy`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Concat {
    pub(crate) axis: usize,
}

impl Concat {
    /// `true` if it joins its operands along this axis.
    pub(crate) fn is_along(&self, axis: usize) -> bool {
        self.axis == axis
    }
}

impl Primitive for Concat {
    fn name(&self) -> &'static str {
        "concat"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let axis = self.axis;
        let Some(first) = x.first() else { return Err("needs at least one operand".into()) };
        if axis >= first.shape.rank() {
            return Err(format!("axis {axis} of shapes of {} axes", first.shape.rank()));
        }
        let mut extent = 0;
        for ty in x {
            if ty.dtype != first.dtype {
                return Err(format!(
                    "needs elements of one type, not {} and {}; `cast` converts them",
                    first.dtype, ty.dtype
                ));
            }
            if ty.shape.rank() != first.shape.rank() || ty.shape.with(axis, 1) != first.shape.with(axis, 1) {
                return Err(format!("{} and {} differ outside axis {axis}", first.shape, ty.shape));
            }
            extent += ty.shape[axis];
        }
        Ok(vec![first.with_shape(first.shape.with(axis, extent))])
    }

    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[form::Operand], _: &[TensorType], to: &mut Form) -> Option<form::Results> {
        let values: Vec<_> = x.iter().map(|x| x.value).collect();
        form::only(to.node("Concat", &values, vec![("axis", form::Attribute::Int(form::int(self.axis)))]))
    }
}

impl Kernel for Concat {
    fn reads_strided(&self, _: usize) -> bool {
        true
    }

    fn parts(&self, x: &[Shape], format: Format) -> Option<Vec<Layout>> {
        if matches!(format, Format::Full | Format::Bf16) {
            return Some(parts(x, self.axis));
        }
        if !end_with_lines(x, 1) {
            return None;
        }
        // For each pixel, the channels of one operand after those of the other, with the padding of the last one.
        let pixel = |x: &Shape| Shape::from([x.elements() / x[1], x[1].next_multiple_of(LINE)]);
        Some(parts(&x.iter().map(pixel).collect::<Vec<_>>(), 1))
    }

    /// Concatenates channels, or along any axis of values whose last axis has whole lines, line by line. Where operands
    /// do not end with a line, there is a kernel that shifts them.
    fn bf16(&self, x: &[TensorType], _: &[TensorType], caps: &Caps) -> Option<Bf16> {
        const OPERANDS: [usize; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
        let operands = OPERANDS.get(..x.len())?;
        let shapes: Vec<_> = x.iter().map(|ty| ty.shape).collect();
        let of_channels = self.axis == 1
            && shapes.iter().all(|&shape| Channels::of(shape).is_some())
            && (end_with_lines(&shapes, 1) || shapes.len() <= SHIFTED);
        let has_lines = |ty: &TensorType| {
            ty.shape.elements() > 0 && ty.shape.dims().last().is_some_and(|last| last.is_multiple_of(LINE))
        };
        let of_lines = x.iter().all(has_lines);
        let innermost = if of_channels { Innermost::Channels } else { Innermost::Flat };
        let otherwise = (of_channels && of_lines).then_some(Innermost::Flat);
        let fits = caps.bf16 && (of_channels || of_lines);
        fits.then_some(Bf16 { otherwise, ..Bf16::new(innermost, operands, Stores::Words) })
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], _: &Scratch) {
        let shapes: Vec<_> = x.iter().map(|x| x.layout().shape()).collect();
        for (x, part) in x.iter().zip(parts(&shapes, self.axis)) {
            native::of_one_type!(*x, y[0], |x_data, y| native::copy_strided(x_data, x.layout(), y, &part));
        }
    }

    /// None, unless operands in lines must be shifted: on GPUs, the program that computes an operand stores it in its
    /// part of the result, or the operand is copied there.
    fn variants(&self, x: &[Argument], y: &[TensorType], _: &Caps) -> Vec<Variant> {
        let channels: Option<Vec<_>> = x.iter().map(|x| x.format.channels()).collect();
        channels.map_or(Vec::new(), |channels| vec![shifted(&channels, y[0].shape)])
    }
}

/// The most operands of the kernel that shifts channels: a launch binds eight buffers.
const SHIFTED: usize = 7;

/// `true` if all operands but the last have whole lines along an axis.
fn end_with_lines(x: &[Shape], axis: usize) -> bool {
    x.iter().rev().skip(1).all(|shape| shape[axis].is_multiple_of(LINE))
}

/// Images side by side, of any channels.
fn shifted(x: &[Channels], y: Shape) -> Variant {
    const GROUP: usize = 256;
    let (pixels, lines) = (y.elements() / y[1], y[1].div_ceil(LINE));
    let mut begin = 0;
    let part = |(k, of): (usize, &Channels)| {
        let part = part(k, begin, of.lines());
        begin += of.channels;
        part
    };
    let parts: Vec<_> = x.iter().enumerate().map(part).collect();
    let defines = define![PIXELS: pixels, LINES: lines, OPERANDS: x.len(), PARTS: parts.join("\n")];
    let workgroups = Workgroups::of(pixels * lines, GROUP);
    Variant::simple("lines", Launch::new("concat_lines", defines, (x.len(), 1), workgroups))
}

/// The WGSL of what operand `k` has of a line of the result. It has so many lines, and its first channel is channel
/// `begin` of the result.
fn part(k: usize, begin: usize, lines: usize) -> String {
    let line = format!(
        "fn line_{k}(pixel: u32, at: u32) -> vec4<u32> {{\n    if at >= {lines}u {{\n        return vec4<u32>();\n    }}\n    \
         return x_{k}[pixel * {lines}u + at];\n}}\n"
    );
    let (whole, shift) = (begin / LINE, begin % LINE);
    let head = format!("fn part_{k}(pixel: u32, line: u32) -> vec4<u32> {{\n");
    if shift == 0 {
        return format!("{line}{head}    return line_{k}(pixel, line - {whole}u);\n}}");
    }
    // Lines before the first are beyond the last, counted modulo 2³². Halves of words are counted through both lines.
    let reads = format!(
        "    let lower = line_{k}(pixel, line - {}u);\n    let upper = line_{k}(pixel, line - {whole}u);\n",
        whole + 1
    );
    let word = |at: usize| format!("{}[{}u]", ["lower", "upper"][at / 4], at % 4);
    let words = (0..LINE / 2).map(|to| match LINE - shift + 2 * to {
        half if half.is_multiple_of(2) => word(half / 2),
        half => format!("({} >> 16u) | ({} << 16u)", word(half / 2), word(half / 2 + 1)),
    });
    format!("{line}{head}{reads}    return vec4({});\n}}", words.collect::<Vec<_>>().join(", "))
}

/// The layout of each of these shapes in their concatenation along an axis.
fn parts(x: &[Shape], axis: usize) -> Vec<Layout> {
    let extent = x.iter().map(|shape| shape[axis]).sum();
    let whole = Layout::contiguous(x[0].with(axis, extent));
    let part = |start: &mut usize, shape: &Shape| {
        let part = whole.slice(axis, *start, shape[axis]);
        *start += shape[axis];
        Some(part)
    };
    x.iter().scan(0, part).collect()
}
