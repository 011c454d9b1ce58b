//! Variants of `conv2d_lines`: convolutions of few channels in a group, and gradients of their inputs, of images in
//! bf16.

use super::axis::{Axis, Tiled, defines};
use super::{APART, Group, cheapest, idleness, suits};
use crate::kernel::launch::{Caps, Define, LINE, Launch, Variant, Workgroups, define};
use crate::ops::conv2d::ConvShape;
use crate::ops::conv2d::pass::Pass;

/// Invocations of a workgroup, if lines and tiles divide them.
const GROUP: usize = 256;

/// The most lines of a workgroup: neighbours read neighbouring memory.
const ACROSS: usize = 32;

/// Outputs of an invocation: it has registers for the sums of no more lines.
const OUTPUTS: usize = 8;

/// The most lines that an invocation reads in a row of a tile.
const READ: usize = 24;

/// The most lines that are read for a tile all at once, instead of row by row; and those that are few.
const UNROLLED: usize = 30;
const FEW: usize = 16;

/// The inputs that a line of eight output channels reads at a pixel.
pub(super) struct Reads {
    group: Group,
    /// The lines that are read, if the channels are whole lines or lie in one.
    lines: Option<usize>,
    /// `true` if they are a part of a line.
    shifted: bool,
}

impl Reads {
    pub(super) fn new(pass: Pass, g: &ConvShape) -> Self {
        let group @ Group { input, output } = Group::new(pass, g);
        let channels = match output {
            _ if output.is_multiple_of(LINE) => Some(input),
            _ if LINE.is_multiple_of(output) => Some(LINE / output * input),
            _ => None,
        };
        let is_whole = |&channels: &usize| channels.is_multiple_of(LINE) && channels <= 4 * LINE;
        let fits = |channels: &usize| input <= LINE && (is_whole(channels) || LINE.is_multiple_of(*channels));
        let channels = channels.filter(fits);
        Self {
            group,
            lines: channels.map(|channels| channels.div_ceil(LINE)),
            shifted: channels.is_some_and(|channels| channels < LINE),
        }
    }

    /// Input channels of a group that are read at once.
    pub(super) fn at_once(&self) -> usize {
        if self.lines.is_some() { self.group.input } else { 1 }
    }

    /// The numbers of such turns.
    pub(super) fn turns(&self) -> usize {
        self.group.input / self.at_once()
    }

    pub(super) fn lines_read(&self) -> usize {
        self.lines.unwrap_or(1)
    }

    /// The loads of a pixel, where a line is one.
    fn loads(&self) -> usize {
        self.lines.unwrap_or(LINE) * self.turns()
    }

    /// The functions that take input channel `k` of each output channel's group from what was read.
    fn spread(&self) -> String {
        let element = |e: usize, k: usize| {
            let Group { input, output } = self.group;
            let channel = match self.lines {
                Some(_) if output < LINE => e / output * input + k,
                Some(_) => k,
                None => e,
            };
            let (half, at) = (["first", "second"][channel % LINE / 4], ["x", "y", "z", "w"][channel % 4]);
            format!("x.line_{}.{half}.{at}", channel / LINE)
        };
        let four = |from: usize, k: usize| {
            let elements: Vec<_> = (from..from + 4).map(|e| element(e, k)).collect();
            format!("vec4({})", elements.join(", "))
        };
        let function = |k: usize| {
            let halves = [four(0, k), four(4, k)].join(", ");
            format!("fn spread_{k}(x: Inputs) -> Eight {{ return Eight({halves}); }}")
        };
        (0..self.at_once()).map(function).collect::<Vec<_>>().join("\n")
    }

    /// The defines of a kernel that reads so many channels in all, for so many output channels.
    pub(super) fn defines(&self, channels: usize, outputs: usize) -> Vec<Define> {
        let Group { input, output } = self.group;
        let mut defines = define![
            CHANNELS: channels.next_multiple_of(LINE), OUTPUTS: outputs, IN: input, OUT: output, READS: if self.lines.is_some() { "lines" } else { "elements" },
            LINES_READ: self.lines_read(), AT_ONCE: self.at_once(), SPREAD: self.spread(), TURNS: self.turns(),
        ];
        if self.shifted {
            defines.extend(define![SHIFTED: 1]);
        }
        defines
    }
}

/// Blocks of at most so many lines, and the lines of each.
pub(super) fn blocks(lines: usize, most: usize) -> [usize; 2] {
    let blocks = lines.div_ceil(most);
    [blocks, lines.div_ceil(blocks)]
}

/// The variant of a pass, if both images are in lines; `None` where there are too many channels or taps.
pub(in crate::ops::conv2d) fn variant(pass: Pass, g: &ConvShape, caps: &Caps) -> Option<Variant> {
    let apart = if pass == Pass::GradInput { g.options().stride } else { [1; 2] };
    if !suits(g) || apart.iter().any(|&stride| stride > APART) {
        return None;
    }
    let [channels, outputs, form] = match pass {
        Pass::Forward => [g.c, g.o, 0],
        Pass::GradInput => [g.o, g.c, 1],
        Pass::GradWeight => return None,
    };
    let (lines, depth) = (outputs.div_ceil(LINE), g.depth_of(pass));
    let (reads, axes, taps) = (Reads::new(pass, g), Axis::both(pass, g), g.taps());
    // Workgroup memory for the weights of a line, and lines of which several workgroups reside on a multiprocessor.
    let of_line = 4 * LINE * taps * reads.group.input;
    let most = (caps.multiprocessors.memory_of(3).min(caps.workgroup_memory) / of_line).clamp(1, ACROSS);
    let [blocks, across] = blocks(lines, most);
    if of_line * across > caps.workgroup_memory {
        return None;
    }
    let tiles = [1, 2, 3, 4, 6, 7, 8];
    let cost = |tiled: &[Tiled; 2]| {
        let [p, q] = tiled;
        let columns = q.positions * reads.lines_read();
        let is_least = q.tile == axes[1].least();
        let outputs = (p.tile * q.tile) as f64;
        let products = p.products(g.kernel[0]) * q.products(g.kernel[1]) * reads.group.input;
        // In instructions: eight products; a line's load and its conversion; the load of a tap's weights.
        let loads = p.positions * q.positions * reads.loads();
        let weights = p.products(g.kernel[0]) * g.kernel[1] * reads.group.input;
        let each = (8 * products + 28 * loads + 8 * weights) as f64 / outputs + 100.0;
        // Many lines need more registers; loops over rows wait for each.
        let each = match p.positions * columns {
            lines if lines <= FEW => each,
            lines if lines <= UNROLLED => 1.15 * each,
            _ if p.tile == 1 => 1.3 * each,
            _ => 1.45 * each,
        };
        let invocations = g.n * depth.outputs * p.tiles * q.tiles * lines;
        (columns <= READ || is_least).then(|| each * p.waste() * q.waste() * idleness(invocations))
    };
    let tiled = cheapest(&axes, [&tiles, &tiles], OUTPUTS, cost)?;
    let slots = (GROUP / across).max(1);
    let [p, q] = &tiled;
    let count = g.n * depth.outputs * p.tiles * q.tiles;
    let unrolled = p.positions * q.positions * reads.lines_read() <= UNROLLED;
    let fours = 2 * taps * reads.group.input * across;
    let mut all = [defines(&axes, &tiled), depth.defines(), reads.defines(channels, outputs)].concat();
    all.extend(define![
        N: g.n, FORM: ["forward", "grad_input"][form], LINES: lines, ACROSS: across, BLOCKS: blocks, SLOTS: slots,
        TILES: count, WEIGHTS: fours, ROWS_ARE: if unrolled { "unrolled" } else { "looped" },
    ]);
    let invocations = across * slots;
    let workgroups = Workgroups::new(blocks * count.div_ceil(slots), invocations)
        .with_memory(&[16 * fours])
        .looping(fours.div_ceil(invocations) + 2 + depth.kernel * reads.turns() * (p.positions + 2));
    let launch = Launch::new("conv2d_lines", all, (2, 1), workgroups).stores_through_epilogue().by_lines();
    Some(Variant::simple("lines", launch))
}
