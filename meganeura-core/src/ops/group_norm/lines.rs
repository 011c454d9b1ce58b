//! The launches of group normalisation for [bf16](Format::Bf16) on a GPU.
//!
//! A workgroup computes a slab of an image: channels that are whole groups and whole lines. Its invocations hold the
//! lines in registers, so memory is read once. If a slab is too long for that, each pass reads it again, mostly from
//! the second-level cache.

use super::{GroupNormShape, forms};
use crate::TensorType;
use crate::kernel::launch::{
    Binding, Caps, Channels, LINE, Launch, Multiprocessors, Variant, Workgroups, define, literal,
};
use crate::ops::Exact;
use crate::ops::{Bf16, Innermost, Stores};

/// The most invocations of a workgroup.
const GROUP: usize = 256;

/// The most lines that an invocation holds; in the backward pass, of two tensors.
const HELD: usize = 16;
const HELD_BACKWARD: usize = 8;

/// Slabs are wide, up to WIDE channels, if that leaves MANY workgroups with few lines per invocation.
const MANY: usize = Multiprocessors::LARGE.enough(4);
const FEW_LINES: usize = 4;
const WIDE: usize = 128;

/// Otherwise they are as wide as two memory sectors if that leaves ENOUGH workgroups: on an H200 this is an eighth
/// faster than one sector. Slabs narrower than a sector would read data that their neighbours need.
const ENOUGH: usize = Multiprocessors::LARGE.enough(1);
const SECTOR: usize = 2 * LINE;

/// The most channels of a slab: with more, a workgroup would have fewer than two pixels.
const WIDEST: usize = LINE * GROUP / 2;

/// The quads of lines that an invocation reads at a time if it does not hold them all.
const QUADS: usize = 2;

/// An upper bound on the iterations of sums over a slab, between two passes.
const TOTAL: usize = 256;

/// The channels of a workgroup, and the distribution of their lines over its invocations.
#[derive(Clone, Copy)]
struct Slab {
    channels: usize,
    /// The pixels that a workgroup processes at once, a power of two.
    pixels: usize,
    /// The lines of an invocation.
    lines: usize,
}

impl Slab {
    fn new(g: &GroupNormShape, channels: usize) -> Self {
        let most = 1 << (GROUP / (channels / LINE)).ilog2();
        let pixels = g.s.next_power_of_two().min(most);
        Self { channels, pixels, lines: g.s.div_ceil(pixels) }
    }

    /// The best slab, if any fits, where an invocation holds at most `held` lines.
    fn of(g: &GroupNormShape, held: usize) -> Option<Self> {
        let (least, all) = (least_channels(g.c / g.groups), stored_channels(g));
        let widths = (least..=all.min(WIDE.max(least))).step_by(least).filter(|&width| all.is_multiple_of(width));
        let mut slabs: Vec<_> = widths.filter(|&width| width <= WIDEST).map(|width| Self::new(g, width)).collect();
        // With padding, there may be no other whole groups.
        if slabs.is_empty() && all <= WIDEST {
            slabs.push(Self::new(g, all));
        }
        let narrowest = |channels| slabs.iter().find(|slab| slab.channels >= channels);
        let leaves = |slab: &Self, workgroups, lines| slab.lines <= lines && g.n * (all / slab.channels) >= workgroups;
        let many = slabs.iter().rev().find(|slab| slab.channels >= 2 * SECTOR && leaves(slab, MANY, FEW_LINES));
        let enough = || narrowest(2 * SECTOR).filter(|slab| leaves(slab, ENOUGH, held));
        many.or_else(enough).or_else(|| narrowest(SECTOR)).or(slabs.first()).copied()
    }

    /// An upper bound on the iterations of so many passes over the lines.
    fn loops(&self, is_held: bool, passes: usize) -> usize {
        (passes - 1) * TOTAL + if is_held { 0 } else { passes * (self.lines.div_ceil(4 * QUADS) + 1) }
    }

    /// A launch of a kernel with `passes` passes over the lines. An invocation has `sums` sums besides those of its
    /// cells. A group takes `statistics` bytes of workgroup memory besides its sums.
    fn launch(
        &self,
        g: &GroupNormShape,
        kernel: &'static str,
        is_held: bool,
        passes: usize,
        [sums, statistics]: [usize; 2],
    ) -> Launch {
        let &Self { channels, pixels, lines } = self;
        let each = if is_held { lines.next_power_of_two().min(4) } else { 4 };
        let quads = if is_held { lines.div_ceil(each) } else { QUADS };
        // The channels of a cell, and the cells of a line.
        let group = g.c / g.groups;
        let cell = LINE >> LINE.ilog2().saturating_sub(group.trailing_zeros());
        let cells = LINE / cell;
        let planes = 2 * cells + sums;
        // With many planes, workgroup memory holds the sums of half of the pixels, to which the other half's are added.
        // Adding up to eight at a time leaves those of `rows` pixels.
        let kept = if planes > 8 { pixels / 2 } else { pixels };
        let added = kept.min(8);
        let rows = kept / added;
        let terms = rows * (group / cell);
        // About as many partial sums as there are terms in each.
        let folds = if terms <= 16 { 1 } else { 1 << terms.ilog2().div_ceil(2) };
        let mut defines = define![N: g.n, C: g.c, S: g.s, G: g.groups, SLAB: channels, PIXELS: pixels, CELLS: cells];
        defines.extend(define![HELD: u32::from(is_held), QUADS: quads, EACH: each, PLANES: planes, FOLDS: folds]);
        let (octets, slabs) = (channels / LINE, stored_channels(g) / channels);
        let groups = if slabs == 1 { g.groups } else { channels / group };
        let padded = u32::from(!g.c.is_multiple_of(LINE));
        defines.extend(define![OCTETS: octets, GROUPS: groups, SLABS: slabs, PADDED: padded]);
        defines.extend(define![KEPT: octets * kept, TERMS: added, FEWER: octets * rows, ROWS: rows]);
        let held = if is_held { 4 } else { 0 };
        let workgroups = Workgroups::new(g.n * slabs, octets * pixels)
            .with_memory(&[4 * planes * octets * kept, 8 * groups * folds, statistics * groups, held])
            .looping(self.loops(is_held, passes));
        Launch::new(kernel, defines, (0, 0), workgroups).by_lines()
    }

    /// `true` to hold the lines, `false` to read them again; the better one first.
    fn ways(&self, held: usize) -> impl Iterator<Item = bool> + use<> {
        let lines = self.lines;
        [true, false].into_iter().filter(move |&is_held| !is_held || lines <= held)
    }
}

/// The channels of an image, with padding.
fn stored_channels(g: &GroupNormShape) -> usize {
    g.c.next_multiple_of(LINE)
}

/// The fewest channels that are whole groups and whole lines.
fn least_channels(group: usize) -> usize {
    // The least common multiple of LINE, a power of two, and the group.
    group << LINE.ilog2().saturating_sub(group.trailing_zeros())
}

fn name(is_held: bool) -> &'static str {
    if is_held { "lines_held" } else { "lines" }
}

/// The variants of the forward pass, best first; empty if no form fits.
pub(super) fn forward(g: &GroupNormShape, eps: Exact) -> Vec<Variant> {
    let Some(slab) = Slab::of(g, HELD) else { return Vec::new() };
    let variant = |is_held| {
        let mut launch = slab.launch(g, "group_norm_lines", is_held, 3, [0, 16]);
        launch.defines.extend(define![EPS: literal(eps.0)]);
        launch.bindings.extend((0..3).map(Binding::Input).chain((0..3).map(Binding::Output)));
        Variant::simple(name(is_held), launch.stores_through_epilogue())
    };
    slab.ways(HELD).map(variant).collect()
}

/// The variants of the backward pass, best first; empty if no form fits.
pub(super) fn backward(g: &GroupNormShape) -> Vec<Variant> {
    let Some(slab) = Slab::of(g, HELD_BACKWARD) else { return Vec::new() };
    let variant = |is_held| {
        let mut launch = slab.launch(g, "group_norm_grad_lines", is_held, 2, [2 * LINE, 8]);
        launch.bindings.extend((0..4).map(Binding::Input).chain([Binding::Scratch(0)]));
        let launch = launch.loads_through_prologue(4).stores_through_epilogue();
        let mut variant = Variant::simple(name(is_held), launch);
        forms::add_sums(g, g.n, &mut variant);
        variant
    };
    slab.ways(HELD_BACKWARD).map(variant).collect()
}

/// `true` if the device stores results as bf16, and there are forms for an operand of this type.
fn fit(x: TensorType, groups: usize, caps: &Caps) -> bool {
    let fits = |g: GroupNormShape| {
        let variants = [forward(&g, Exact(0.0)), backward(&g)];
        let most = Caps::LOOPS_IN_SOFTWARE / 4;
        variants
            .iter()
            .all(|ways| ways.first().is_some_and(|best| best.launches.iter().all(|l| l.workgroups.loops < most)))
    };
    caps.bf16 && Channels::of(x.shape).is_some() && fits(GroupNormShape::of(x.shape, groups))
}

/// The operands and results that a pass takes as bf16: images, or rows in lines. `operands` are those that it reads
/// so.
pub(super) fn bf16(x: TensorType, groups: usize, operands: &'static [usize], caps: &Caps) -> Option<Bf16> {
    let innermost = if fit(x, groups, caps) { Innermost::Channels } else { Innermost::Flat };
    let rows = || caps.bf16 && forms::fit_lines(&GroupNormShape::of(x.shape, groups));
    let fits = innermost == Innermost::Channels || rows();
    fits.then_some(Bf16::new(innermost, operands, Stores::Lines))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::launch::Access;
    use crate::{DType, Shape};

    fn number(launch: &Launch, name: &str) -> usize {
        let define = launch.defines.iter().find(|(known, _)| *known == name);
        define.expect("all have").1.parse().expect("a number")
    }

    #[test]
    fn slabs_follow_the_shape() {
        let (held, read) = ("lines_held", "lines");
        for (shape, groups, [first, second]) in [
            ([64, 128, 32, 32], 32, [(32, held), (16, held)]),
            ([64, 64, 32, 32], 32, [(32, held), (16, held)]),
            ([32, 64, 32, 32], 32, [(16, held), (16, held)]),
            ([128, 256, 16, 16], 32, [(32, held), (32, held)]),
            ([128, 512, 4, 4], 32, [(128, held), (128, held)]),
            ([64, 512, 8, 8], 1, [(512, held), (512, read)]),
            ([1, 128, 128, 128], 4, [(32, read), (32, read)]),
            // groups of 12 channels, so that a line belongs to two groups
            ([2, 24, 3, 3], 2, [(24, held), (24, held)]),
            ([2, 8, 3, 3], 8, [(8, held), (8, held)]),
            // padded: groups of four channels, and of fifteen, which are no whole lines
            ([64, 60, 32, 32], 15, [(32, held), (16, held)]),
            ([64, 60, 32, 32], 4, [(64, read), (64, read)]),
        ] {
            let g = GroupNormShape::of(Shape::from(shape), groups);
            for (variants, expected) in [(forward(&g, Exact(1e-5)), first), (backward(&g), second)] {
                let found = (number(&variants[0].launches[0], "SLAB"), variants[0].name);
                assert_eq!(found, expected, "{shape:?}, {groups} groups");
            }
        }
    }

    #[test]
    fn launches_fit_their_kernels() {
        for c in [5, 8, 10, 12, 16, 24, 40, 60, 63, 64, 96, 100, 120, 128, 200, 500, 512, 1000, 1020, 1024, 2048, 4096]
        {
            for (n, s) in [(1, 2), (1, 9), (3, 16), (128, 49), (64, 1024), (1, 9000), (5000, 2), (1, (1 << 25) / c)] {
                for groups in (1..=c).filter(|groups| c % groups == 0) {
                    let g = GroupNormShape { n, c, s, groups };
                    check(&g);
                }
            }
        }
    }

    fn check(g: &GroupNormShape) {
        let (first, second) = (forward(g, Exact(0.0)), backward(g));
        let stored = stored_channels(g);
        assert!(!first.is_empty() || least_channels(g.c / g.groups) > WIDEST && (stored == g.c || stored > WIDEST));
        assert_eq!(first.is_empty(), second.is_empty());
        for launch in first.iter().chain(&second).map(|variant| &variant.launches[0]) {
            let [slab, pixels, folds, cells] = ["SLAB", "PIXELS", "FOLDS", "CELLS"].map(|name| number(launch, name));
            let (lines, group) = (number(launch, "QUADS") * number(launch, "EACH"), g.c / g.groups);
            assert!(slab.is_multiple_of(LINE) && stored.is_multiple_of(slab), "{launch:?}");
            assert!(slab.is_multiple_of(group) || slab == stored && stored > g.c, "{launch:?}");
            assert!(pixels.is_power_of_two() && pixels >= 2 && slab / LINE * pixels <= GROUP, "{launch:?}");
            assert!(group % (LINE / cells) == 0 && (cells == 1 || group % (2 * LINE / cells) != 0), "{launch:?}");
            assert!(folds <= 16 && 256 * 4 * number(launch, "PLANES") <= 32 << 10, "{launch:?}");
            assert!(number(launch, "EACH") <= 4 && lines <= HELD, "{launch:?}");
            assert!(number(launch, "HELD") == 0 || lines * pixels >= g.s, "{launch:?}");
            assert!(
                launch.access == Access::Lines && launch.stores && launch.workgroups.count == g.n * stored / slab,
                "{launch:?}"
            );
            assert!((1..Caps::LOOPS_IN_SOFTWARE / 4).contains(&launch.workgroups.loops), "{launch:?}");
        }
    }

    #[test]
    fn tensors_without_lines_are_not_held_in_lines() {
        let caps = Caps { bf16: true, ..Caps::DISCRETE };
        let fit = |shape: &[usize], groups, caps| fit(TensorType::new(DType::F32, Shape::new(shape)), groups, caps);
        assert!(fit(&[2, 24, 5, 5], 8, &caps) && !fit(&[2, 24, 5, 5], 8, &Caps::DISCRETE));
        assert!(
            fit(&[2, 20, 5, 5], 4, &caps)
                && !fit(&[2, 4, 5, 5], 4, &caps)
                && !fit(&[2, 24, 1, 1], 8, &caps)
                && !fit(&[2, 24], 8, &caps)
        );
        assert!(fit(&[2, 24, 25], 8, &caps) && fit(&[2, 24, 3, 5, 5], 8, &caps));
        assert!(fit(&[1, 1024, 4, 4], 1, &caps) && !fit(&[1, 2048, 4, 4], 1, &caps));
    }
}
