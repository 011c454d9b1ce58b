//! The launches of statistics of channels on a GPU.
//!
//! | elements of a channel | form |
//! |---|---|
//! | few, or channels enough to keep a GPU busy | whole: a workgroup, or a segment of one, computes a channel |
//! | many | split: a launch computes parts, another joins them |
//! | bf16 with channels innermost | lines: split, eight channels at a time |
//!
//! The choice depends on shapes alone, so the same step gives the same bits on every device that computes the same way.

use super::ChannelShape;
use crate::kernel::launch::{
    Binding, Define, Format, LINE, Launch, Multiprocessors, Variant, Workgroups, define, tree,
};
use crate::ops::totals::Totals;

/// The invocations of a workgroup.
const GROUP: usize = 256;

/// The elements of an invocation below which it is not worth splitting channels.
const EACH: usize = 8;

/// Channels with fewer elements in an example than this get one invocation for each part, and neighbours read
/// neighbouring channels.
const NARROW: usize = 8;

/// The workgroups that keep a large GPU busy, so many that the last ones to finish cost little.
const WORKGROUPS: usize = Multiprocessors::LARGE.enough(8);

/// The most parts of a channel, and of a line of channels.
const PARTS: usize = 1024;
const PARTS_OF_LINES: usize = 512;

/// The most neighbouring lines of a workgroup: 64 bytes.
const EIGHTS: usize = 4;

/// Cells of a stretch, as in `shared/channels`.
const STRETCH: usize = 32;

/// What is computed: the kernel of the parts, the one that joins them, the numbers of operands and results, and the
/// floats that a part leaves.
struct Statistic {
    kernel: &'static str,
    join: &'static str,
    operands: usize,
    results: usize,
    words: usize,
    /// The operand that the kernel loads through `load`.
    loads: Option<usize>,
}

const MOMENTS: Statistic = Statistic {
    kernel: "channel_moments",
    join: "channel_moments_join",
    operands: 1,
    results: 3,
    words: 4,
    loads: None,
};

const SUMS: Statistic =
    Statistic { kernel: "channel_sums", join: "channel_sums_join", operands: 3, results: 2, words: 2, loads: Some(0) };

/// The variants of [`ChannelMoments`](super::ChannelMoments), best first.
pub(super) fn moments(shape: ChannelShape, format: Format) -> Vec<Variant> {
    MOMENTS.variants(shape, format)
}

/// The variants of [`ChannelSums`](super::ChannelSums), best first.
pub(super) fn sums(shape: ChannelShape, format: Format) -> Vec<Variant> {
    SUMS.variants(shape, format)
}

/// `parts` parts of at most `chunk` elements of each channel.
#[derive(Clone, Copy)]
struct Split {
    parts: usize,
    chunk: usize,
}

impl Split {
    /// About so many parts, whose lengths are multiples of `of`.
    fn new(len: usize, parts: usize, of: usize) -> Self {
        let chunk = len.div_ceil(parts.max(1)).next_multiple_of(of);
        Self { parts: len.div_ceil(chunk), chunk }
    }

    /// An upper bound on the iterations over a part, shared by so many invocations.
    fn loops(self, invocations: usize) -> usize {
        self.chunk.div_ceil(4 * invocations) + 4 * self.chunk.div_ceil(STRETCH * invocations) + 2
    }
}

impl Statistic {
    fn variants(&self, shape: ChannelShape, format: Format) -> Vec<Variant> {
        if format.is_bf16() {
            return vec![self.lines(shape)];
        }
        let ChannelShape { c, s, .. } = shape;
        let len = shape.len();
        // Invocations of a channel that is not split.
        let lanes = if s < NARROW { 1 } else { len.div_ceil(EACH).next_power_of_two().min(GROUP) };
        // In a split channel, an invocation has a stretch at least, and several if it is alone.
        let (of_parts, stretches) = if s < NARROW { (1, 4) } else { (GROUP, 1) };
        let wanted = (WORKGROUPS * GROUP).div_ceil(c * of_parts).min(PARTS);
        let parts = wanted.min(len / (stretches * STRETCH * of_parts));
        let whole = self.full(shape, Split { parts: 1, chunk: len }, lanes);
        // Tests run the split form on channels that are too short for it.
        let split = self.full(shape, Split::new(len, parts.max(2), 1), of_parts);
        if parts < 2 { vec![whole, split] } else { vec![split, whole] }
    }

    /// The form for elements in `f32`.
    fn full(&self, shape: ChannelShape, split: Split, lanes: usize) -> Variant {
        let ChannelShape { c, s, .. } = shape;
        let Split { parts, chunk } = split;
        let totals = Totals::of(lanes);
        let units = c.saturating_mul(parts);
        let mut defines = totals.defines();
        defines.extend(define![FORMAT: "full", HALVES: 1, LEN: shape.len(), C: c, S: s, UNITS: units]);
        defines.extend(define![PARTS: parts, CHUNK: chunk]);
        let loops = split.loops(lanes) + 2 * Totals::LOOPS;
        let workgroups = totals.workgroups(units.div_ceil(totals.count()), loops);
        if parts == 1 {
            defines.extend(define![TO: "result"]);
            let launch = self.first(defines, workgroups, self.results).stores_all_through_epilogue();
            return Variant::simple("whole", launch);
        }
        defines.extend(define![TO: "scratch"]);
        let mut first = self.first(defines, workgroups, 0);
        first.bindings.push(Binding::Scratch(0));
        self.joined("split", first, shape, split)
    }

    fn lines(&self, shape: ChannelShape) -> Variant {
        let (c, len) = (shape.c, shape.len());
        let lines = c.div_ceil(LINE);
        let eights = lines.next_power_of_two().min(EIGHTS);
        let (blocks, rows) = (lines.div_ceil(eights), GROUP / eights);
        let parts = (WORKGROUPS / blocks).clamp(1, PARTS_OF_LINES).min(len.div_ceil(EACH * rows));
        let split = Split::new(len, parts, rows);
        let Split { parts, chunk } = split;
        let units = blocks * parts;
        let mut defines = define![FORMAT: "lines", HALVES: 2, TO: "scratch", LEN: len, C: c, UNITS: units];
        defines.extend(define![PARTS: parts, CHUNK: chunk, EIGHTS: eights]);
        let workgroups =
            Workgroups::new(units, GROUP).with_memory(&[4 * LINE * GROUP]).looping(split.loops(rows) + 3 * tree(GROUP));
        let mut first = self.first(defines, workgroups, 0).by_lines();
        first.bindings.push(Binding::Scratch(0));
        self.joined("lines", first, shape, split)
    }

    /// The launch that computes parts.
    fn first(&self, defines: Vec<Define>, workgroups: Workgroups, results: usize) -> Launch {
        let launch = Launch::new(self.kernel, defines, (self.operands, results), workgroups);
        match self.loads {
            Some(operand) => launch.loads_through_prologue(operand),
            None => launch,
        }
    }

    /// The variant whose second launch joins the parts of the first.
    fn joined(&self, name: &'static str, first: Launch, shape: ChannelShape, split: Split) -> Variant {
        let Split { parts, chunk } = split;
        // Loads of one invocation would wait for one another.
        let totals = Totals { group: GROUP, lanes: parts.next_power_of_two().min(GROUP) };
        let mut defines = [totals.defines(), define![C: shape.c, PARTS: parts]].concat();
        if self.words == MOMENTS.words {
            defines.extend(define![LEN: shape.len(), CHUNK: chunk]);
        }
        let loops = 2 * (parts.div_ceil(totals.lanes) + 1) + 2 * Totals::LOOPS;
        let workgroups = totals.workgroups(shape.c.div_ceil(totals.count()), loops);
        let mut second = Launch::new(self.join, defines, (0, self.results), workgroups);
        second.bindings.insert(0, Binding::Scratch(0));
        let second = second.stores_all_through_epilogue();
        let scratch = self.words.saturating_mul(parts).saturating_mul(shape.c);
        Variant { name, launches: vec![first, second], scratch: vec![scratch] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_follows_the_shape() {
        for (n, c, s, name) in [
            (64, 64, 112 * 112, "split"),
            (64, 512, 28 * 28, "split"),
            (64, 128, 28 * 28, "split"),
            (64, 2048, 7 * 7, "whole"),
            (4, 3, 35, "whole"),
            (8192, 512, 1, "split"),
            (64, 512, 1, "whole"),
        ] {
            let variants = moments(ChannelShape { n, c, s }, Format::Full);
            assert_eq!(variants[0].name, name, "[{n}, {c}, {s}]");
            assert_eq!(variants.len(), 2, "[{n}, {c}, {s}]");
        }
    }
}
