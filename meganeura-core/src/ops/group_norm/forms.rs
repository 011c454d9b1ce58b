//! The launches of group normalisation on a GPU: the forms, and the choice for each shape.
//!
//! A form that reads memory once holds a group in the registers of a workgroup, or of a segment of one if groups are
//! small. A longer group is split into parts: one launch sums each part, another adds these sums and computes the
//! elements.
//!
//! | direction | group | form |
//! |---|---|---|
//! | forward | up to 4096 elements, or up to 16,384 where there are 128 groups | held |
//! | forward | longer | split |
//! | backward | of up to 4096 channels of one element each | rows |
//! | backward | of up to 256 channels, up to 32 elements for each of 256 invocations; beyond 4096 elements only where there are 128 groups | held |
//! | backward | longer | split |
//!
//! In the backward pass, a last launch adds the sums of each channel over the samples; two launches if there are many
//! samples. With very many samples, each workgroup adds the sums of a few of them itself, so that the sums take less
//! memory than the samples.
//!
//! The table depends on shapes alone, so the same step gives the same bits on every device that computes the same way.

use super::GroupNormShape;
use crate::kernel::launch::{Binding, Define, LINE, Launch, Multiprocessors, Variant, Workgroups, define, literal};
use crate::ops::Exact;
use crate::ops::totals::{Totals, segments};

/// The partial sums of a block with many channels.
const FOLDS: usize = 16;

/// A workgroup for each total.
const WHOLE: Totals = Totals { group: GROUP, lanes: GROUP };

/// The most invocations of a workgroup.
const GROUP: usize = 256;

/// The elements in a part of a long group.
const PART: usize = 4096;

/// The elements of a long group that a workgroup computes once its parts are summed.
const CHUNK: usize = 2048;

/// The most elements that an invocation holds: one number each in the forward pass, two in the backward pass, several
/// in rows.
const HELD: [usize; 3] = [64, 32, 16];

/// The number of groups from which each gets one workgroup even if it is long.
const MANY: usize = Multiprocessors::LARGE.enough(1);

/// The number of samples whose sums are kept separately, and the most samples that one workgroup adds.
const APART: usize = 1024;
const ROWS: usize = 16;

/// The most sums of a channel that one launch adds. If there are more, a first launch adds this range at a time.
const SUMS: usize = 2048;
const RANGE: usize = 256;

/// The number of adjacent invocations for `elements` elements, if each holds `each`; at most `most`, so each may hold
/// more.
fn lanes(elements: usize, each: usize, most: usize) -> usize {
    elements.div_ceil(each).next_power_of_two().min(most)
}

fn shape(g: &GroupNormShape) -> Vec<Define> {
    define![N: g.n, C: g.c, S: g.s, G: g.groups]
}

/// The unit of a pass: elements, or lines of bf16.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    Element,
    Line,
}

impl Unit {
    fn name(self) -> &'static str {
        if self == Self::Line { "lines" } else { "full" }
    }
}

/// The form of a pass, `backward` or forward, over lines along rows of one channel: normalisation over the last axes.
fn of_lines(g: &GroupNormShape, eps: Exact, backward: bool) -> Option<Variant> {
    /// The most lines that an invocation holds.
    const MOST: usize = 8;
    let lines = GroupNormShape { s: g.s / LINE, ..*g };
    let len = lines.group();
    let fits = g.c == 1 && g.s.is_multiple_of(LINE) && g.s > 0 && len <= GROUP * MOST;
    let blocks = Blocks::held(&lines, [1, MOST]).filter(|_| fits)?;
    if backward {
        return Some(held_backward(&lines, &blocks, Unit::Line));
    }
    let launch = held_forward(&lines, eps, ("result", Unit::Line), (len, 1, 2)).stores_through_epilogue();
    Some(Variant::simple("rows of lines", launch.by_lines()))
}

/// `true` if both passes have a form over lines along rows.
pub(super) fn fit_lines(g: &GroupNormShape) -> bool {
    of_lines(g, Exact(0.0), true).is_some()
}

/// The forward pass over lines along rows.
pub(super) fn forward_of_lines(g: &GroupNormShape, eps: Exact) -> Vec<Variant> {
    of_lines(g, eps, false).into_iter().collect()
}

/// The backward pass over lines along rows.
pub(super) fn backward_of_lines(g: &GroupNormShape) -> Vec<Variant> {
    of_lines(g, Exact(0.0), true).into_iter().collect()
}

/// The variants of the forward pass, best first.
pub(super) fn forward(g: &GroupNormShape, eps: Exact) -> Vec<Variant> {
    let (len, groups) = (g.group(), g.n * g.groups);
    let mut variants = vec![split_forward(g, eps)];
    if len <= GROUP * HELD[0] {
        let at = usize::from(len > PART && groups < MANY);
        let launch = held_forward(g, eps, ("result", Unit::Element), (len, 1, 8)).stores_through_epilogue();
        variants.insert(at, Variant::simple("held", launch));
    }
    variants
}

/// A launch over parts of `part` elements, `parts` per group. An invocation holds `each` of them where possible.
fn held_forward(
    g: &GroupNormShape,
    eps: Exact,
    (to, unit): (&'static str, Unit),
    sizes: (usize, usize, usize),
) -> Launch {
    let (part, parts, each) = sizes;
    let lanes = lanes(part, each, GROUP);
    let totals = Totals::of(lanes);
    let whole = to == "result";
    let mut defines = [shape(g), totals.defines()].concat();
    defines.extend(define![EPS: literal(eps.0), HOLD: part.div_ceil(lanes), PART: part]);
    defines.extend(define![PARTS: parts, FULL: if whole { part / lanes } else { 0 }]);
    defines.extend(define![TO: to, FORMAT: unit.name(), ALIGNED: u32::from(whole && g.s.is_multiple_of(lanes))]);
    let units = (g.n * g.groups).saturating_mul(parts);
    defines.extend(define![UNITS: units]);
    let workgroups = totals.workgroups(units.div_ceil(totals.count()), 2 * Totals::LOOPS);
    Launch::new("group_norm", defines, (3, 3), workgroups)
}

/// The defines and workgroups of a launch that adds up so many sums of parts of each group, in a number of passes, and
/// then computes the group's elements in chunks.
fn in_chunks(g: &GroupNormShape, sums: usize, passes: usize) -> (Vec<Define>, Workgroups) {
    let chunk = CHUNK.max(4 * sums);
    let chunks = g.group().div_ceil(chunk);
    let loops = passes * sums.div_ceil(GROUP) + chunk.div_ceil(4 * GROUP) + 2 * Totals::LOOPS;
    let defines = [shape(g), WHOLE.defines(), define![CHUNK: chunk, CHUNKS: chunks]].concat();
    (defines, WHOLE.workgroups((g.n * g.groups).saturating_mul(chunks), loops))
}

fn split_forward(g: &GroupNormShape, eps: Exact) -> Variant {
    let (len, groups) = (g.group(), g.n * g.groups);
    // Tests run this form on groups that are too short for it.
    let part = PART.min(len.div_ceil(2));
    let parts = len.div_ceil(part);
    let mut first = held_forward(g, eps, ("scratch", Unit::Element), (part, parts, 16));
    first.bindings = vec![Binding::Input(0), Binding::Scratch(0)];
    let (mut defines, workgroups) = in_chunks(g, parts, 2);
    defines.extend(define![EPS: literal(eps.0), PART: part, PARTS: parts]);
    let mut second = Launch::new("group_norm_apply", defines, (3, 3), workgroups);
    second.bindings.insert(3, Binding::Scratch(0));
    let launches = vec![first, second.stores_through_epilogue()];
    Variant { name: "split", launches, scratch: vec![4 * groups.saturating_mul(parts)] }
}

/// The distribution of a group's channels over the invocations of a workgroup, in the backward pass.
struct Blocks {
    /// The channels of a block.
    channels: usize,
    /// The invocations for a channel.
    lanes: usize,
    piece: usize,
    /// The number of parts of a channel.
    pieces: usize,
    /// The samples whose sums a workgroup adds.
    rows: usize,
}

impl Blocks {
    /// A block for a whole group, if it can be held: by invocations with `each` units, or up to `holds` if there are
    /// too few invocations.
    fn held(g: &GroupNormShape, [each, holds]: [usize; 2]) -> Option<Self> {
        let channels = g.c / g.groups;
        let most = 1 << (GROUP / channels).checked_ilog2()?;
        let lanes = lanes(g.s, each, most);
        let block = lanes * channels;
        let rows = rows(g, (g.n * g.groups).div_ceil(segments(block)));
        (g.s <= holds * lanes).then_some(Self { channels, lanes, piece: g.s, pieces: 1, rows })
    }

    fn split(g: &GroupNormShape) -> Self {
        let (piece, pieces) = (g.s.min(PART), g.s.div_ceil(PART));
        let lanes = lanes(piece, 16, GROUP);
        let channels = if pieces == 1 { (g.c / g.groups).min(GROUP / lanes) } else { 1 };
        Self { channels, lanes, piece, pieces, rows: 1 }
    }

    /// The number of blocks in a group.
    fn count(&self, g: &GroupNormShape) -> usize {
        (g.c / g.groups).div_ceil(self.channels) * self.pieces
    }

    fn launch(&self, g: &GroupNormShape, to: &'static str, unit: Unit) -> Launch {
        let &Self { channels, lanes, piece, pieces, rows } = self;
        let block = channels * lanes;
        let full = if pieces == 1 && (g.c / g.groups).is_multiple_of(channels) { piece / lanes } else { 0 };
        let totals = Totals { group: segments(block) * block, lanes };
        let mut defines = [shape(g), totals.defines()].concat();
        defines.extend(define![HOLD: piece.div_ceil(lanes), FULL: full, FOLDS: FOLDS, BLOCK: block]);
        defines.extend(define![TO: to, FORMAT: unit.name(), CH: channels, PIECE: piece, PIECES: pieces, ROWS: rows]);
        let units = (g.n.div_ceil(rows) * g.groups).saturating_mul(self.count(g));
        defines.extend(define![BLOCKS: self.count(g), UNITS: units]);
        let count = units.div_ceil(segments(block));
        let more = [8 * totals.count(), 8 * segments(block) * FOLDS];
        let workgroups = totals.workgroups(count, rows * 3 * Totals::LOOPS).with_memory(&more);
        let mut launch = Launch::new("group_norm_grad", defines, (5, 0), workgroups);
        launch.bindings.push(Binding::Scratch(0));
        launch.loads_through_prologue(4)
    }
}

/// The samples whose sums a workgroup adds, given the number of workgroups with one sample each.
fn rows(g: &GroupNormShape, workgroups: usize) -> usize {
    (g.n / APART).min(workgroups / GROUP).clamp(1, ROWS)
}

/// The variants of the backward pass, best first.
pub(super) fn backward(g: &GroupNormShape) -> Vec<Variant> {
    let few = g.group() > PART && g.n * g.groups < MANY;
    let split = split_backward(g);
    let held = if g.s == 1 {
        rows_backward(g)
    } else {
        Blocks::held(g, [8, HELD[1]]).map(|blocks| held_backward(g, &blocks, Unit::Element))
    };
    match held {
        Some(held) if few => vec![split, held],
        Some(held) => vec![held, split],
        None => vec![split],
    }
}

fn held_backward(g: &GroupNormShape, blocks: &Blocks, unit: Unit) -> Variant {
    let launch = blocks.launch(g, "result", unit).stores_through_epilogue();
    let (name, launch) = if unit == Unit::Line { ("rows of lines", launch.by_lines()) } else { ("held", launch) };
    let mut variant = Variant::simple(name, launch);
    add_sums(g, g.n.div_ceil(blocks.rows), &mut variant);
    variant
}

fn rows_backward(g: &GroupNormShape) -> Option<Variant> {
    let lanes = lanes(g.group(), 4, GROUP);
    if g.group() > HELD[2] * lanes {
        return None;
    }
    let rows = rows(g, (g.n * g.groups).div_ceil(segments(lanes)));
    let parts = g.n.div_ceil(rows);
    let totals = Totals::of(lanes);
    let mut defines = define![N: g.n, C: g.c, G: g.groups, ROWS: rows];
    defines.extend(totals.defines());
    defines.extend(define![HOLD: g.group().div_ceil(lanes), FULL: g.group() / lanes]);
    defines.extend(define![UNITS: parts * g.groups]);
    let count = (parts * g.groups).div_ceil(totals.count());
    let workgroups = totals.workgroups(count, rows * 2 * Totals::LOOPS);
    let mut launch = Launch::new("group_norm_grad_rows", defines, (5, 0), workgroups);
    launch.bindings.push(Binding::Scratch(0));
    let mut variant = Variant::simple("rows", launch.loads_through_prologue(4).stores_through_epilogue());
    add_sums(g, parts, &mut variant);
    Some(variant)
}

fn split_backward(g: &GroupNormShape) -> Variant {
    let blocks = Blocks::split(g);
    let mut first = blocks.launch(g, "scratch", Unit::Element);
    first.bindings.push(Binding::Scratch(1));
    let (mut defines, workgroups) = in_chunks(g, blocks.count(g), 1);
    defines.extend(define![BLOCKS: blocks.count(g)]);
    let mut second = Launch::new("group_norm_grad_apply", defines, (4, 0), workgroups);
    second.bindings.push(Binding::Scratch(1));
    let second = second.loads_through_prologue(4).stores_through_epilogue();
    let mut variant = Variant { name: "split", launches: vec![first, second], scratch: Vec::new() };
    add_sums(g, g.n * blocks.pieces, &mut variant);
    variant.scratch.insert(1, 2 * (g.n * g.groups).saturating_mul(blocks.count(g)));
    variant
}

/// Appends launches that add `parts` sums of each channel, which are in scratch buffer 0.
pub(super) fn add_sums(g: &GroupNormShape, parts: usize, variant: &mut Variant) {
    let totals = Totals { group: GROUP, lanes: 32 };
    let launch = |parts: usize, range: usize, bindings: Vec<Binding>| {
        let to = if bindings.len() == 3 { "result" } else { "scratch" };
        let (ranges, blocks) = (parts.div_ceil(range), g.c.div_ceil(totals.count()));
        let mut defines = totals.defines();
        defines.extend(define![TO: to, P: parts, C: g.c, RANGE: range, RANGES: ranges, BLOCKS: blocks]);
        let workgroups =
            totals.workgroups(ranges.saturating_mul(blocks), range.div_ceil(8 * totals.lanes) + Totals::LOOPS);
        Launch { bindings, ..Launch::new("group_norm_grad_sums", defines, (0, 0), workgroups) }
    };
    variant.scratch.push(parts.saturating_mul(2 * g.c));
    let (mut from, mut left) = (0, parts);
    if parts > SUMS {
        // After the variant's other scratch buffers.
        (from, left) = (if variant.launches.len() == 1 { 1 } else { 2 }, parts.div_ceil(RANGE));
        variant.launches.push(launch(parts, RANGE, vec![Binding::Scratch(0), Binding::Scratch(from)]));
        variant.scratch.push(left * 2 * g.c);
    }
    let results = vec![Binding::Scratch(from), Binding::Output(1), Binding::Output(2)];
    variant.launches.push(launch(left, left, results));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shape;
    use crate::kernel::launch::Caps;

    fn names(variants: &[Variant]) -> Vec<&'static str> {
        variants.iter().map(|variant| variant.name).collect()
    }

    #[test]
    fn the_form_follows_the_shape() {
        for (shape, groups, forward_form, backward_form) in [
            (&[64, 128, 32, 32][..], 32, "held", "held"),
            (&[64, 256, 32, 32], 32, "held", "held"),
            (&[64, 128, 64, 64], 32, "held", "split"),
            (&[1, 128, 64, 64], 32, "split", "split"),
            (&[8, 512, 7, 7], 32, "held", "held"),
            (&[8, 512, 7, 7], 1, "split", "split"),
            // normalisation over the last axes
            (&[8192, 1024], 1, "held", "rows"),
            (&[60_000, 10], 1, "held", "rows"),
            (&[1, 3_000_000], 1, "split", "split"),
            (&[3000, 2], 1, "held", "rows"),
        ] {
            let g = GroupNormShape::of(Shape::new(shape), groups);
            let (first, second) = (forward(&g, Exact(1e-5)), backward(&g));
            assert_eq!((first[0].name, second[0].name), (forward_form, backward_form), "{shape:?}, {groups} groups");
            assert!(names(&first).contains(&"split") && names(&second).contains(&"split"));
        }
    }

    #[test]
    fn launches_fit_their_kernels() {
        let number = |launch: &Launch, name: &str| {
            let define = launch.defines.iter().find(|(known, _)| *known == name);
            define.map(|(_, value)| value.parse::<usize>().expect("a number"))
        };
        let extents = [1, 2, 3, 7, 16, 49, 100, 1024, 5000, 9000];
        for (c, s) in extents.into_iter().flat_map(|c| extents.map(|s| (c, s))) {
            for (n, groups) in [(1, 1), (3, c), (5000, 1)] {
                let g = GroupNormShape { n, c, s, groups };
                for launch in forward(&g, Exact(0.0)).iter().chain(&backward(&g)).flat_map(|variant| &variant.launches)
                {
                    let of = |name| number(launch, name);
                    let (group, lanes) = (of("WG").expect("all have"), of("LANES").expect("all have"));
                    assert!(group <= GROUP && group % lanes == 0 && lanes.is_power_of_two(), "{launch:?}");
                    assert!(launch.workgroups.count > 0, "{launch:?}");
                    assert!((1..Caps::LOOPS_IN_SOFTWARE / 4).contains(&launch.workgroups.loops), "{launch:?}");
                    if let Some(hold) = of("HOLD") {
                        let part = of("PART").or(of("PIECE")).unwrap_or(g.group());
                        assert!(hold * lanes >= part && hold <= HELD[0] && of("FULL") <= Some(hold), "{launch:?}");
                    }
                    if let (Some(part), Some(parts)) = (of("PART"), of("PARTS")) {
                        assert!((parts - 1) * part < g.group() && g.group() <= parts * part, "{launch:?}");
                    }
                    if let (Some(piece), Some(pieces), Some(channels)) = (of("PIECE"), of("PIECES"), of("CH")) {
                        assert!((pieces - 1) * piece < s && s <= pieces * piece, "{launch:?}");
                        assert!((pieces == 1 || channels == 1) && group % (channels * lanes) == 0, "{launch:?}");
                    }
                }
            }
        }
    }
}
