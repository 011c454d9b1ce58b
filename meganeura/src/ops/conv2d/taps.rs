//! Variants of `conv2d_taps`: convolutions on matrix units, of images in bf16, and gradients of their inputs. A tile's
//! inputs are loaded into workgroup memory once and reused by all taps; see `shaders/wgsl/conv2d_taps.wgsl`.

use std::cmp::Reverse;

use super::Geometry;
use super::convolution::Convolution;
use super::tile::{Tile, invocations, memory_of_sums};
use crate::kernel::launch::{Binding, Caps, LINE, Launch, Variant, define, tree};

/// The outputs that a workgroup computes: pixels by channels, in fragments of 16×16.
struct Tiling {
    name: &'static str,
    /// The variant's name where the reduction is cut.
    split: &'static str,
    /// Subgroups along pixels and channels.
    subgroups: [usize; 2],
    /// Fragments of each subgroup, likewise.
    fragments: [usize; 2],
    /// Input channels of a step.
    depth: usize,
}

macro_rules! tiling {
    ($name:literal, $subgroups:expr, $fragments:expr, $depth:literal) => {
        Tiling {
            name: $name,
            split: concat!($name, ", split"),
            subgroups: $subgroups,
            fragments: $fragments,
            depth: $depth,
        }
    };
}

/// For many channels of wide images, which make many workgroups. Subgroups of 128×32 read the fewest fragments.
const WIDE: Tiling = tiling!("taps 128", [1, 4], [8, 2], 16);
/// For many workgroups.
const LARGE: Tiling = tiling!("taps 128×64", [2, 2], [4, 2], 16);
/// For few workgroups, or images of few rows.
const SMALL: Tiling = tiling!("taps 64", [2, 2], [2, 2], 16);
/// For few channels.
const NARROW: Tiling = tiling!("taps 256×32", [4, 1], [4, 2], 16);
/// For columns of many taps.
const TALL: Tiling = tiling!("taps 128×32", [2, 2], [4, 1], 16);
/// For a single tap, whose steps are short.
const DEEP: Tiling = tiling!("taps 128 deep", [2, 2], [4, 4], 32);
/// The same for fewer channels or workgroups.
const DEEP_SMALL: Tiling = tiling!("taps 64 deep", [2, 2], [2, 2], 32);

/// The numbers of turns in which subgroups may store their sums.
const TURNS: [usize; 3] = [1, 2, 4];

/// The most fragments of weights in a step: an invocation has registers for no more.
const FRAGMENTS: usize = 12;

impl Tiling {
    fn pixels(&self) -> usize {
        16 * self.subgroups[0] * self.fragments[0]
    }

    fn channels(&self) -> usize {
        16 * self.subgroups[1] * self.fragments[1]
    }

    /// Bytes of workgroup memory: the inputs of a tile, the weights of a step, and the sums of the subgroups that store
    /// in one turn.
    fn memory(&self, c: &Geometry, tile: &Tile, turns: usize) -> usize {
        let blocks = tile.halo(c) * (self.depth / 4 + 2) + c.kernel[0] * self.depth * (self.channels() / 4 + 2);
        8 * blocks + memory_of_sums(self.subgroups, turns)
    }

    /// Workgroups, unless the reduction is cut.
    fn workgroups(&self, c: &Geometry) -> usize {
        c.groups * (c.o / c.groups).div_ceil(self.channels()) * Tile::new(c, self.pixels(), 1).count(c)
    }

    /// Workgroups that the device runs at once.
    fn slots(&self, c: &Geometry, caps: &Caps) -> usize {
        let tile = Tile::new(c, self.pixels(), 1);
        let invocations = self.subgroups[0] * self.subgroups[1] * caps.subgroup.1;
        caps.multiprocessors.at_once(invocations, self.memory(c, &tile, TURNS[2]))
    }

    fn variant(&self, convolution: &Convolution<'_>, caps: &Caps) -> Option<Variant> {
        let c = &convolution.geometry;
        let tile = Tile::new(c, self.pixels(), 1);
        let invocations = invocations(self.subgroups, caps)?;
        let memory = |turns| self.memory(c, &tile, turns);
        let turns = TURNS.into_iter().find(|&turns| memory(turns) <= caps.multiprocessors.memory_of(2)).unwrap_or(TURNS[2]);
        let [rows, columns] = self.fragments;
        let fits = c.kernel[0] * columns <= FRAGMENTS && tile.rows.is_multiple_of(rows);
        if !fits
            || !convolution.can_pack(self.channels(), caps)
            || memory(turns) > caps.workgroup_memory
            || !tile.suits(c)
        {
            return None;
        }
        let blocks = (c.c / c.groups).div_ceil(self.depth);
        let workgroups = self.workgroups(c);
        // A part has enough terms to be worth the sum of parts.
        let least = 256usize.div_ceil(self.depth * c.kernel[0] * c.kernel[1]);
        let parts = (self.slots(c, caps) / workgroups).clamp(1, (blocks / least).max(1));
        let of_step = c.kernel[0] * self.depth * self.channels() / LINE;
        let mut defines = c.defines();
        defines.extend(tile.defines(c));
        defines.extend(convolution.scatter());
        defines.extend(define![
            SM: self.subgroups[0], SN: self.subgroups[1], FM: rows, FN: columns, SUBGROUP: caps.subgroup.1,
            STEPS: self.depth / 16, ROWS_READ: Tile::rows_of(c, rows), PARTS: parts, TURNS: turns,
            LOADS_X: tile.loads_of_inputs(c, self.depth, invocations), LOADS_W: of_step.div_ceil(invocations),
            EACH: 32usize.div_ceil(caps.subgroup.1), LINES: 1,
        ]);
        // Zeros; the blocks in two attempts; and the blocks once more whose magnitudes are compared in between.
        let lines_of_weights = c.kernel[0] * self.depth * (self.channels() / 4 + 2);
        let zeros =
            (tile.halo(c) * (self.depth / 4 + 2)).div_ceil(invocations) + lines_of_weights.div_ceil(invocations);
        let of_block = 4 + 2 * c.kernel[1] * (1 + self.depth / 16);
        let loops = zeros + of_block * blocks.div_ceil(parts) + 8 * tree(invocations) + 24;
        let mut product =
            Launch::new("conv2d_taps", defines, (0, 0), parts * workgroups).loops(loops).on_bf16_units(caps);
        let of_weights = convolution.scratch(self.channels(), caps);
        let whole = parts == 1 && convolution.stores_lines();
        let packed: Vec<_> = (0..of_weights.len()).map(|k| Binding::Scratch(usize::from(!whole) + k)).collect();
        let mut bindings = [&[Binding::Input(0)], &packed[..]].concat();
        let mut launches = vec![convolution.pack(self.channels(), &packed, caps)];
        let mut scratch = Vec::new();
        if whole {
            product.defines.extend(define![SUMS: "whole"]);
            launches.push(Launch { bindings, ..product }.stores_through_epilogue().by_lines());
        } else {
            product.defines.extend(define![SUMS: "parts", SUMS_AT: bindings.len()]);
            bindings.push(Binding::Scratch(0));
            launches.extend([Launch { bindings, ..product }, convolution.sum_parts(parts)]);
            scratch.push(parts * convolution.elements()[1]);
        }
        scratch.extend(of_weights);
        Some(Variant { name: if parts == 1 { self.name } else { self.split }, launches, scratch })
    }
}

/// Variants of a pass, best first; none where taps are too many, or tiles would be half empty.
pub(super) fn variants(convolution: &Convolution<'_>, caps: &Caps) -> Vec<Variant> {
    let c = &convolution.geometry;
    let tilings = match (c.o / c.groups, c.kernel) {
        (0..=32, _) => [NARROW, SMALL, LARGE, WIDE, TALL, DEEP, DEEP_SMALL],
        (_, [1, 1]) => [DEEP, DEEP_SMALL, SMALL, LARGE, NARROW, WIDE, TALL],
        (65.., _) if c.q >= 16 => [WIDE, LARGE, SMALL, NARROW, TALL, DEEP, DEEP_SMALL],
        _ => [LARGE, SMALL, WIDE, NARROW, TALL, DEEP, DEEP_SMALL],
    };
    let offered = |tiling: &Tiling| {
        let variant = tiling.variant(convolution, caps)?.bounded()?;
        Some((tiling.workgroups(c), tiling.slots(c, caps), variant))
    };
    let mut offered: Vec<_> = tilings.iter().filter_map(offered).collect();
    // The first tiling whose workgroups fill a device, but do not exceed it where a multiprocessor runs one at a time;
    // else the first that keeps half of the device busy; else the one with the most workgroups, whose reduction is cut.
    let fills = |&(workgroups, slots, _): &(usize, usize, Variant)| {
        10 * workgroups >= 9 * slots && (slots > caps.multiprocessors.count || workgroups <= slots)
    };
    let filled = offered.iter().position(fills);
    let busy = || offered.iter().position(|&(workgroups, _, _)| workgroups >= caps.multiprocessors.count);
    let most = || (0..offered.len()).min_by_key(|&at| Reverse(offered[at].0));
    if let Some(best) = filled.or_else(busy).or_else(most) {
        offered[..=best].rotate_right(1);
    }
    offered.into_iter().map(|(_, _, variant)| variant).collect()
}
