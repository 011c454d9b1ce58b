//! A pass as the convolution of images in lines that `conv2d_taps` computes, and the packing of its weights. The
//! forward pass is such a convolution, and the gradient of the input is one, too.
//!
//! At stride 1, that gradient convolves the cotangents, with taps in reverse order. At stride `s`, its pixels fall into
//! `s` phases along each axis, by their remainders. Each phase is reached through taps of its own. So the gradient is a
//! convolution without stride whose output channels are those of all phases, and the store scatters them. All phases
//! share one window, with zero weights where a phase has no tap.

use super::ConvShape;
use super::pass::Pass;
use crate::Shape;
use crate::kernel::gemm::{Parts, sum_parts_at, sum_parts_by_lines};
use crate::kernel::launch::{
    Binding, Caps, Channels, Define, LINE, Launch, Workgroups, define, tree, workgroup_memory,
};
use crate::ops::window::Window;

/// Invocations of a workgroup that packs weights.
const PACKERS: usize = 256;

/// The most phases along an axis. More would mostly multiply zeros.
const PHASES: usize = 3;

/// A pass as a convolution of the images that it reads.
#[derive(Clone, Copy)]
pub(super) struct Convolution<'g> {
    /// Its extents; output channels are those of all phases. Channels of a group are multiples of [`LINE`]; those that
    /// the weight lacks are zeros.
    pub(super) geometry: ConvShape,
    /// The convolution that the pass is of.
    of: &'g ConvShape,
    /// The axes of a gradient of the input.
    axes: Option<[Axis; 2]>,
}

/// An axis of a gradient of the input: in phase `a`, tap `t` of the window has weight `(base + a − step·t) / dilation`,
/// if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Axis {
    pub(super) phases: usize,
    pub(super) taps: usize,
    pub(super) padding: usize,
    pub(super) dilation: usize,
    base: usize,
    step: usize,
}

impl Axis {
    /// `None` where there is more padding than the taps span, or too large a stride.
    pub(super) fn new(window: Window) -> Option<Self> {
        let Window { kernel, stride, padding, dilation } = window;
        if stride == 1 {
            let base = (kernel - 1) * dilation;
            let inside = base.checked_sub(padding)?;
            return Some(Self { phases: 1, taps: kernel, padding: inside, dilation, base, step: dilation });
        }
        if stride > PHASES {
            return None;
        }
        // The outputs that reach the first pixel of each phase through some tap, in strides before or after it.
        let [stride, padding, dilation] = [stride, padding, dilation].map(usize::cast_signed);
        let reached = (0..stride)
            .flat_map(|phase| (0..kernel.cast_signed()).map(move |tap| phase + padding - tap * dilation))
            .filter(|distance| distance % stride == 0)
            .map(|distance| distance / stride);
        let (first, last) = (reached.clone().min()?, reached.max()?);
        let before = usize::try_from(-first).ok()?;
        Some(Self {
            phases: stride.cast_unsigned(),
            taps: (last - first + 1).cast_unsigned(),
            padding: before,
            dilation: 1,
            base: padding.cast_unsigned() + stride.cast_unsigned() * before,
            step: stride.cast_unsigned(),
        })
    }

    /// The weight of the convolution's window that a tap of this one has in a phase, if any.
    pub(super) fn weight(&self, of: Window, phase: usize, tap: usize) -> Option<usize> {
        let weight = (self.base + phase).checked_sub(self.step * tap)?;
        (weight % of.dilation == 0 && weight / of.dilation < of.kernel).then_some(weight / of.dilation)
    }
}

impl<'g> Convolution<'g> {
    /// `None` where the pass has no such form.
    pub(super) fn new(pass: Pass, of: &'g ConvShape) -> Option<Self> {
        let lines = of.in_lines()?;
        match pass {
            Pass::Forward => Some(Self { geometry: lines, of, axes: None }),
            Pass::GradInput => {
                let [vertical, horizontal] = [Axis::new(of.window(1))?, Axis::new(of.window(2))?];
                let geometry = lines.transposed(
                    vertical.phases * horizontal.phases,
                    [vertical.taps, horizontal.taps],
                    [of.h.div_ceil(vertical.phases), of.w.div_ceil(horizontal.phases)],
                    [vertical.padding, horizontal.padding],
                    [vertical.dilation, horizontal.dilation],
                );
                Some(Self { geometry, of, axes: Some([vertical, horizontal]) })
            }
            Pass::GradWeight => None,
        }
    }

    /// The number of phases along each axis.
    pub(super) fn phases(&self) -> [usize; 2] {
        self.axes.map_or([1, 1], |axes| axes.map(|axis| axis.phases))
    }

    /// Images, channels, and the rows and columns of planes of the result.
    fn result(&self) -> [usize; 4] {
        let g = self.of;
        if self.axes.is_some() { [g.n, g.c, g.h, g.w] } else { [g.n, g.o, g.p, g.q] }
    }

    fn result_shape(&self) -> Shape {
        if self.axes.is_some() { self.of.input() } else { self.of.output() }
    }

    /// Elements of a channel of the result.
    fn pixels(&self) -> usize {
        if self.axes.is_some() { self.of.inputs() } else { self.of.outputs() }
    }

    /// Channels of the result, rounded up to lines.
    fn padded_channels(&self) -> usize {
        let [down, across] = self.phases();
        self.geometry.o / (down * across)
    }

    /// `true` if the result is stored in lines, padded or not.
    pub(super) fn stores_lines(&self) -> bool {
        Channels::of(self.result_shape()).is_some()
    }

    /// Elements of the result, and of one part of a cut reduction, which has whole lines.
    pub(super) fn elements(&self) -> [usize; 2] {
        let ([n, c, ..], pixels) = (self.result(), self.pixels());
        [c, self.padded_channels()].map(|channels| n * channels * pixels)
    }

    /// The launch that adds up parts, which have their channels innermost and are in scratch buffer 0, into the result.
    pub(super) fn sum_parts(&self, parts: usize) -> Launch {
        let ([elements, part], [_, c, ..], padded) = (self.elements(), self.result(), self.padded_channels());
        if self.stores_lines() {
            return sum_parts_by_lines(parts, part, 0);
        }
        let pixels = self.pixels();
        let at = format!("(i / {}u * {pixels}u + i % {pixels}u) * {padded}u + i / {pixels}u % {c}u", c * pixels);
        sum_parts_at(parts, elements, 0, &Parts { elements: part, taps: 1, at })
    }

    /// The kernel's defines for the scattered store.
    pub(super) fn scatter(&self) -> Vec<Define> {
        let ([_, _, rows, columns], [down, across]) = (self.result(), self.phases());
        define![PHASES_P: down, PHASES_Q: across, RESULT_P: rows, RESULT_Q: columns]
    }

    /// Output and input channels of a group.
    fn extents(&self) -> [usize; 2] {
        let g = &self.geometry;
        [g.o / g.groups, g.c / g.groups]
    }

    /// Taps of a plane.
    fn taps(&self) -> usize {
        self.geometry.kernel[0] * self.geometry.kernel[1]
    }

    /// Planes of the kernel, of all groups.
    fn planes(&self) -> usize {
        self.of.groups * self.of.depth.kernel
    }

    /// Blocks of so many rows in a group.
    fn blocks_of_rows(&self, rows: usize) -> usize {
        self.extents()[0].div_ceil(rows)
    }

    /// Blocks of eight channels of a tile's rows; each has its own power of two.
    fn blocks(&self, rows: usize) -> usize {
        self.planes() * self.blocks_of_rows(rows) * (self.extents()[1] / LINE)
    }

    /// Bytes of workgroup memory that packs so many rows: a block's weights, f32 with `BF16_UNITS` and else f16, and
    /// the numbers among which its peak is found.
    fn memory(&self, rows: usize, caps: &Caps) -> usize {
        let bytes = if caps.bf16_units { 4 } else { 2 };
        workgroup_memory(&[LINE * bytes * self.taps() * pitch(rows), 4 * PACKERS])
    }

    /// Rows that a workgroup packs, for tiles of so many rows; `None` where workgroup memory is too small for them. In
    /// bf16, rows share no power of two, so each workgroup packs few rows, and there are many workgroups.
    fn rows_of_block(&self, rows: usize, caps: &Caps) -> Option<usize> {
        let sizes = if caps.bf16_units { [32, 16] } else { [rows; 2] };
        sizes.into_iter().find(|&rows| self.memory(rows, caps) <= caps.workgroup_memory)
    }

    /// `true` if weights can be packed for tiles of so many rows.
    pub(super) fn can_pack(&self, rows: usize, caps: &Caps) -> bool {
        self.rows_of_block(rows, caps).is_some()
    }

    /// The launch that packs weights for tiles of so many rows: rounded, and in the order in which products read them.
    /// `packed` binds the results: the weights, and in f16 their powers of two.
    pub(super) fn pack(&self, rows: usize, packed: &[Binding], caps: &Caps) -> Launch {
        let rows = self.rows_of_block(rows, caps).expect("asked before");
        let (g, [m, k], taps, blocks) = (self.of, self.extents(), self.taps(), self.blocks(rows));
        let [kh, kw] = g.kernel;
        let form = if self.axes.is_some() { "grad_input" } else { "forward" };
        let mut defines = define![
            G: g.groups, TAPS: taps, KW: self.geometry.kernel[1], M: m, K: k,
            ROWS: rows, BLOCKS: self.blocks_of_rows(rows), COUNT: LINE * taps * rows, PITCH: pitch(rows),
            LOADS: (LINE * taps * rows).div_ceil(PACKERS),
            W_O: g.o / g.groups, W_C: g.c / g.groups, W_KD: g.depth.kernel, W_KH: kh, W_KW: kw, FORM: form,
        ];
        if let Some([vertical, horizontal]) = self.axes {
            let dilation = g.options().dilation;
            defines.extend(define![
                PHASES_P: vertical.phases, PHASES_Q: horizontal.phases,
                BASE_P: vertical.base, BASE_Q: horizontal.base, STEP_P: vertical.step, STEP_Q: horizontal.step,
                DH: dilation[0], DW: dilation[1],
            ]);
        }
        let workgroups = Workgroups::new(blocks, PACKERS)
            .with_memory(&[self.memory(rows, caps)])
            .looping((LINE * taps * rows / 4).div_ceil(PACKERS) + 1 + tree(PACKERS));
        let launch = Launch::new("conv2d_pack_taps", defines, (0, 0), workgroups).on_bf16_units(caps);
        Launch { bindings: [&[Binding::Input(1)], packed].concat(), ..launch }
    }

    /// Floats of each buffer of packed weights.
    pub(super) fn scratch(&self, rows: usize, caps: &Caps) -> Vec<usize> {
        let [m, k] = self.extents();
        let mut scratch = vec![(self.planes() * m * k * self.taps()).div_ceil(2), self.blocks(rows)];
        scratch.truncate(if caps.bf16_units { 1 } else { 2 });
        scratch
    }
}

/// The pitch of taps of so many rows in workgroup memory: two more, so that neighbours lie in different banks.
fn pitch(rows: usize) -> usize {
    rows + 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::Conv2dOptions;

    /// Along one axis: the taps that each input pixel's gradient gets from the window of all phases, against the
    /// definition.
    #[test]
    fn windows_of_phases_hold_every_tap() {
        for stride in 1..=PHASES {
            for (kernel, padding, dilation) in
                (1..6).flat_map(|k| (0..4).flat_map(move |p| (1..4).map(move |d| (k, p, d))))
            {
                let options =
                    Conv2dOptions { stride: [stride; 2], padding: [padding; 2], dilation: [dilation; 2], groups: 1 };
                let Ok(g) = ConvShape::new(Shape::from([1, 8, 13, 13]), Shape::from([8, 8, kernel, kernel]), options)
                else {
                    continue;
                };
                let Some(axis) = Axis::new(g.window(1)) else {
                    assert!(padding > (kernel - 1) * dilation, "kernel {kernel}, {options:?}");
                    continue;
                };
                for pixel in 0..g.h {
                    let (phase, place) = (pixel % axis.phases, pixel / axis.phases);
                    let window = (0..axis.taps).filter_map(|t| {
                        let output = (place + t * axis.dilation).checked_sub(axis.padding).filter(|&p| p < g.p)?;
                        Some((output, axis.weight(g.window(1), phase, t)?))
                    });
                    let mut found: Vec<_> = window.collect();
                    found.sort_unstable();
                    let reaches = |p: usize, i: usize| p * stride + i * dilation == pixel + padding;
                    let outputs = (0..g.p).flat_map(|p| (0..kernel).map(move |i| (p, i)));
                    let expected: Vec<_> = outputs.filter(|&(p, i)| reaches(p, i)).collect();
                    assert_eq!(found, expected, "pixel {pixel}, kernel {kernel}, {options:?}");
                }
            }
        }
    }
}
