//! Variants of `conv2d_grad_weight_taps`: gradients of weights on matrix units, of images in bf16. Sums over tiles of
//! pixels are computed for many taps at once; see `shaders/wgsl/conv2d_grad_weight_taps.wgsl`.

use super::ConvShape;
use super::tile::{Tile, invocations};
use crate::kernel::fragments::{Fragments, pitch};
use crate::kernel::gemm::{Parts, sum_parts_at};
use crate::kernel::launch::{Binding, Caps, Launch, Variant, Workgroups, define};

/// The parameters of `conv2d_grad_weight_taps`.
struct Taps {
    name: &'static str,
    /// The part of the gradient that a workgroup computes: output by input channels.
    sums: Fragments,
}

/// Turns in which subgroups check their sums.
const TURNS: usize = 2;

const fn taps(name: &'static str, subgroups: [usize; 2], each: [usize; 2]) -> Taps {
    Taps { name, sums: Fragments { subgroups, each } }
}

/// For 3×3 taps, which fill the registers of an invocation.
const WIDE: Taps = taps("taps 64×32", [2, 2], [2, 1]);
/// The same for few input channels.
const NARROW: Taps = taps("taps 128×16", [4, 1], [2, 1]);
/// For images of few channels, with which networks begin and end.
const FEW_INPUTS: Taps = taps("taps 64×16", [4, 1], [1, 1]);
const FEW_OUTPUTS: Taps = taps("taps 16×64", [1, 4], [1, 1]);
/// For a tap or two.
const SQUARE: Taps = taps("taps 64", [2, 2], [2, 2]);
/// The same for many channels.
const SQUARE_LARGE: Taps = taps("taps 128", [2, 2], [4, 4]);

/// The most fragments of sums: an invocation has registers for no more.
const FRAGMENTS: usize = 18;

/// The most taps that the sum of parts can take.
const MOST_TAPS: usize = 256;

impl Taps {
    /// The largest tile of pixels that leaves room for a second workgroup, or else the smallest.
    fn tile(&self, g: &ConvShape, caps: &Caps) -> Tile {
        let tiles = [(64, 2), (64, 1), (32, 1), (16, 1)].map(|(pixels, across)| Tile::new(g, pixels, across));
        let smallest = tiles[3];
        tiles
            .into_iter()
            .find(|tile| self.memory(g, tile, true) <= caps.multiprocessors.memory_of(2))
            .unwrap_or(smallest)
    }

    /// The fours of workgroup memory of a tile's inputs and of its cotangents.
    fn fours(&self, g: &ConvShape, tile: &Tile) -> [usize; 2] {
        let [o, c] = self.sums.extent();
        [tile.halo(g) * pitch(c), tile.pixels() * pitch(o)]
    }

    /// Bytes of workgroup memory. Tiles are chosen by those of f16, whatever the units multiply.
    fn memory(&self, g: &ConvShape, tile: &Tile, is_f16: bool) -> usize {
        self.sums.memory(self.fours(g, tile), TURNS, is_f16)
    }

    /// A bound on the iterations of an invocation that goes over so many tiles: in two attempts, zeros, and the tiles
    /// with the lines whose magnitudes are compared.
    fn loops(&self, g: &ConvShape, tile: &Tile, tiles: usize, invocations: usize) -> usize {
        let [o, c] = self.sums.extent();
        let zeros = self.fours(g, tile)[0].div_ceil(invocations);
        let lines = tile.loads_of_inputs(g, c, invocations) + tile.loads_of_outputs(o, invocations);
        2 * (zeros + (tiles + 1) * (lines + tile.fragments_of_row() + 4)) + 32
    }

    /// The variant for the convolution `of`; `g` is the same with channels that fall into lines. A launch computes as
    /// many rows of taps as there are registers for, which mostly is all.
    fn variant(&self, of: &ConvShape, g: &ConvShape, caps: &Caps) -> Option<Variant> {
        let (o, c, [kh, kw]) = (g.o / g.groups, g.c / g.groups, g.kernel);
        let invocations = invocations(self.sums, caps)?;
        let at_a_time = FRAGMENTS / (kw * self.sums.each[0] * self.sums.each[1]);
        let most = g.with_rows(kh.div_ceil(kh.div_ceil(at_a_time.max(1))));
        let tile = self.tile(&most, caps);
        if at_a_time == 0
            || g.taps() > MOST_TAPS
            || self.memory(&most, &tile, true) > caps.workgroup_memory
            || !tile.suits(&most)
        {
            return None;
        }
        let [rows, columns] = self.sums.extent();
        let [tiles_o, tiles_c] = [o.div_ceil(rows), c.div_ceil(columns)];
        let [padded_o, padded_c] = [tiles_o * rows, tiles_c * columns];
        let (tiles, of_channels) = (tile.count(g), g.groups * tiles_o * tiles_c);
        let parts = (2 * caps.multiprocessors.count / of_channels).clamp(1, tiles);
        let product = |plane: usize, first: usize| {
            let some = g.with_rows(most.kernel[0].min(kh - first));
            let mut defines = some.defines_below(first * g.options().dilation[0]);
            defines.extend(tile.defines(&some));
            defines.extend(self.sums.defines(TURNS, caps));
            let [fours_x, fours_dy] = self.fours(&some, &tile);
            defines.extend(define![
                BO: rows, BC: columns, TILES_O: tiles_o, TILES_C: tiles_c, ROWS: padded_o, COLUMNS: padded_c,
                OUTPUTS: tile.pixels(), ACROSS: tile.across(), FRAGMENTS_OF_ROW: tile.fragments_of_row(), PARTS: parts,
                PITCH_X: pitch(columns), PITCH_DY: pitch(rows), FOURS_X: fours_x, FOURS_DY: fours_dy,
                LOADS_X: tile.loads_of_inputs(&some, columns, invocations),
                LOADS_DY: tile.loads_of_outputs(rows, invocations), TAPS_OF_ALL: g.taps(),
                FIRST: (plane * kh + first) * kw,
            ]);
            if !g.depth.is_flat() {
                defines.extend(define![PLANE_OF_TAPS: plane]);
            }
            let workgroups = Workgroups::new(parts * of_channels, invocations)
                .with_memory(&[self.memory(&some, &tile, !caps.bf16_units)])
                .looping(self.loops(&some, &tile, tiles.div_ceil(parts), invocations));
            let bindings = vec![Binding::Input(0), Binding::Input(1), Binding::Scratch(0)];
            let launch = Launch::new("conv2d_grad_weight_taps", defines, (0, 0), workgroups);
            Launch { bindings, ..launch.on_bf16_units(caps) }
        };
        let (of_o, of_c, taps) = (of.o / of.groups, of.c / of.groups, g.taps());
        let part = Parts {
            elements: taps * g.groups * padded_o * padded_c,
            taps,
            at: format!(
                "(i % {taps}u * {groups}u + i / {group}u) * {plane}u + i / {row}u % {of_o}u * {padded_c}u + i / {taps}u % {of_c}u",
                groups = g.groups,
                group = of_o * of_c * taps,
                plane = padded_o * padded_c,
                row = of_c * taps,
            ),
        };
        let mut launches: Vec<_> = (0..g.depth.kernel)
            .flat_map(|plane| (0..kh).step_by(most.kernel[0]).map(move |first| (plane, first)))
            .map(|(plane, first)| product(plane, first))
            .collect();
        launches.push(sum_parts_at(parts, of.o * of.patch(), 0, &part));
        Some(Variant { name: self.name, launches, scratch: vec![parts * part.elements] })
    }
}

/// Variants of the gradient, best first; none where rows of taps are too long, or tiles would be half empty.
pub(super) fn variants(g: &ConvShape, caps: &Caps) -> Vec<Variant> {
    let Some(lines) = g.in_lines() else { return Vec::new() };
    let tilings = match (lines.o / lines.groups, lines.c / lines.groups) {
        (0..=16, _) => [FEW_OUTPUTS, SQUARE, WIDE, NARROW, FEW_INPUTS, SQUARE_LARGE],
        (0..=64, 0..=16) => [FEW_INPUTS, SQUARE, NARROW, WIDE, FEW_OUTPUTS, SQUARE_LARGE],
        (_, 0..=16) => [SQUARE, NARROW, WIDE, FEW_INPUTS, FEW_OUTPUTS, SQUARE_LARGE],
        (128.., 128..) => [SQUARE_LARGE, SQUARE, WIDE, NARROW, FEW_INPUTS, FEW_OUTPUTS],
        _ => [SQUARE, WIDE, NARROW, FEW_INPUTS, FEW_OUTPUTS, SQUARE_LARGE],
    };
    let variant = |tiling: &Taps| tiling.variant(g, &lines, caps)?.bounded();
    let mut variants: Vec<_> = tilings.iter().filter_map(variant).collect();
    // Fewest launches first: each reads both images.
    variants.sort_by_key(|variant| variant.launches.len());
    variants
}
