//! Variants of `conv2d_taps`: convolutions on matrix units, of images in bf16, and gradients of their inputs. A tile's
//! inputs are loaded into workgroup memory once and reused by all taps; see `shaders/wgsl/conv2d_taps.wgsl`.

use std::cmp::Reverse;

use super::ConvShape;
use super::convolution::Convolution;
use super::tile::{Tile, invocations};
use crate::kernel::fragments::{Fragments, pitch};
use crate::kernel::launch::{Binding, Caps, LINE, Launch, Variant, Workgroups, define, tree};

/// The parameters of `conv2d_taps`.
struct Taps {
    name: &'static str,
    /// The variant's name where the reduction is cut.
    split: &'static str,
    /// The outputs that a workgroup computes: pixels by channels.
    outputs: Fragments,
    /// Input channels of a step.
    depth: usize,
}

macro_rules! taps {
    ($name:literal, $subgroups:expr, $fragments:expr, $depth:literal) => {
        Taps {
            name: $name,
            split: concat!($name, ", split"),
            outputs: Fragments { subgroups: $subgroups, each: $fragments },
            depth: $depth,
        }
    };
}

/// For many channels of wide images, which make many workgroups. Subgroups of 128×32 read the fewest fragments.
const WIDE: Taps = taps!("taps 128", [1, 4], [8, 2], 16);
/// For many workgroups.
const LARGE: Taps = taps!("taps 128×64", [2, 2], [4, 2], 16);
/// For few workgroups, or images of few rows.
const SMALL: Taps = taps!("taps 64", [2, 2], [2, 2], 16);
/// For few channels.
const NARROW: Taps = taps!("taps 256×32", [4, 1], [4, 2], 16);
/// For columns of many taps.
const TALL: Taps = taps!("taps 128×32", [2, 2], [4, 1], 16);
/// For a single tap, whose steps are short.
const DEEP: Taps = taps!("taps 128 deep", [2, 2], [4, 4], 32);
/// The same for fewer channels or workgroups.
const DEEP_SMALL: Taps = taps!("taps 64 deep", [2, 2], [2, 2], 32);

/// The numbers of turns in which subgroups may store their sums.
const TURNS: [usize; 3] = [1, 2, 4];

/// The most fragments of weights in a step: an invocation has registers for no more.
const FRAGMENTS: usize = 12;

impl Taps {
    fn pixels(&self) -> usize {
        self.outputs.extent()[0]
    }

    fn channels(&self) -> usize {
        self.outputs.extent()[1]
    }

    /// The fours of workgroup memory of a tile's inputs, and of the weights of a step.
    fn fours(&self, c: &ConvShape, tile: &Tile) -> [usize; 2] {
        [tile.halo(c) * pitch(self.depth), c.kernel[0] * self.depth * pitch(self.channels())]
    }

    /// Bytes of workgroup memory. Turns are chosen by those of f16, whatever the units multiply.
    fn memory(&self, c: &ConvShape, tile: &Tile, turns: usize, is_f16: bool) -> usize {
        self.outputs.memory(self.fours(c, tile), turns, is_f16)
    }

    /// Tiles of a group's output channels.
    fn tiles_of_channels(&self, c: &ConvShape) -> usize {
        (c.o / c.groups).div_ceil(self.channels())
    }

    /// Workgroups, unless the reduction is cut.
    fn workgroups(&self, c: &ConvShape) -> usize {
        c.groups * self.tiles_of_channels(c) * Tile::new(c, self.pixels(), 1).count(c)
    }

    /// Blocks of a group's input channels.
    fn blocks(&self, c: &ConvShape) -> usize {
        (c.c / c.groups).div_ceil(self.depth)
    }

    /// Those of all planes of the kernel.
    fn blocks_of_planes(&self, c: &ConvShape) -> usize {
        c.depth.kernel * self.blocks(c)
    }

    /// A bound on the iterations of an invocation: zeros; the blocks in two attempts; and the blocks once more whose
    /// magnitudes are compared in between.
    fn loops(&self, c: &ConvShape, tile: &Tile, parts: usize, invocations: usize) -> usize {
        let zeros: usize = self.fours(c, tile).map(|fours| fours.div_ceil(invocations)).iter().sum();
        let of_block = 4 + 2 * c.kernel[1] * (1 + self.depth / 16);
        zeros + of_block * self.blocks_of_planes(c).div_ceil(parts) + 8 * tree(invocations) + 24
    }

    /// Workgroups that the device runs at once.
    fn slots(&self, c: &ConvShape, caps: &Caps) -> usize {
        let tile = Tile::new(c, self.pixels(), 1);
        caps.multiprocessors.at_once(self.outputs.invocations(caps), self.memory(c, &tile, TURNS[2], true))
    }

    fn variant(&self, convolution: &Convolution<'_>, caps: &Caps) -> Option<Variant> {
        let c = &convolution.geometry;
        let tile = Tile::new(c, self.pixels(), 1);
        let invocations = invocations(self.outputs, caps)?;
        let memory = |turns| self.memory(c, &tile, turns, true);
        let turns =
            TURNS.into_iter().find(|&turns| memory(turns) <= caps.multiprocessors.memory_of(2)).unwrap_or(TURNS[2]);
        let [rows, columns] = self.outputs.each;
        let fits = c.kernel[0] * columns <= FRAGMENTS && tile.rows.is_multiple_of(rows);
        if !fits
            || !convolution.can_pack(self.channels(), caps)
            || memory(turns) > caps.workgroup_memory
            || !tile.suits(c)
        {
            return None;
        }
        let (blocks, workgroups) = (self.blocks_of_planes(c), self.workgroups(c));
        // A part has enough terms to be worth the sum of parts.
        let least = 256usize.div_ceil(self.depth * c.kernel[0] * c.kernel[1]);
        let parts = (self.slots(c, caps) / workgroups).clamp(1, (blocks / least).max(1));
        let of_step = c.kernel[0] * self.depth * self.channels() / LINE;
        let mut defines = c.defines();
        defines.extend(tile.defines(c));
        defines.extend(convolution.scatter());
        defines.extend(self.outputs.defines(turns, caps));
        let [fours_x, fours_w] = self.fours(c, &tile);
        defines.extend(define![
            BO: self.channels(), BK: self.depth, STEPS: self.depth / 16, TILES_O: self.tiles_of_channels(c),
            BLOCKS: self.blocks(c), PARTS: parts, ROWS_READ: Tile::rows_of(c, rows), PITCH_X: pitch(self.depth),
            PITCH_W: pitch(self.channels()), FOURS_X: fours_x, FOURS_W: fours_w, LINES_W: of_step,
            LOADS_X: tile.loads_of_inputs(c, self.depth, invocations), LOADS_W: of_step.div_ceil(invocations),
            EACH: 32usize.div_ceil(caps.subgroup.1), LINES: 1,
        ]);
        let needs = Workgroups::new(parts * workgroups, invocations)
            .with_memory(&[self.memory(c, &tile, turns, !caps.bf16_units)])
            .looping(self.loops(c, &tile, parts, invocations));
        let mut product = Launch::new("conv2d_taps", defines, (0, 0), needs).on_bf16_units(caps);
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
    let offered = |tiling: &Taps| {
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
