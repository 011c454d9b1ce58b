//! Variants of `conv2d_grad_weight_taps`: gradients of weights on matrix units, of images in bf16. Sums over tiles of
//! pixels are computed for many taps at once; see `shaders/wgsl/conv2d_grad_weight_taps.wgsl`.

use super::Geometry;
use super::tile::{Tile, invocations, memory_of_sums};
use crate::kernel::gemm::{Parts, sum_parts_at};
use crate::kernel::launch::{Binding, Caps, Launch, Variant, define};

/// The part of the gradient that a workgroup computes: output by input channels, in fragments of 16×16.
struct Tiling {
    name: &'static str,
    /// Subgroups along output and input channels.
    subgroups: [usize; 2],
    /// Fragments of each subgroup, likewise.
    fragments: [usize; 2],
}

/// For 3×3 taps, which fill the registers of an invocation.
const WIDE: Tiling = Tiling { name: "taps 64×32", subgroups: [2, 2], fragments: [2, 1] };
/// The same for few input channels.
const NARROW: Tiling = Tiling { name: "taps 128×16", subgroups: [4, 1], fragments: [2, 1] };
/// For images of few channels, with which networks begin and end.
const FEW_INPUTS: Tiling = Tiling { name: "taps 64×16", subgroups: [4, 1], fragments: [1, 1] };
const FEW_OUTPUTS: Tiling = Tiling { name: "taps 16×64", subgroups: [1, 4], fragments: [1, 1] };
/// For a tap or two.
const SQUARE: Tiling = Tiling { name: "taps 64", subgroups: [2, 2], fragments: [2, 2] };
/// The same for many channels.
const SQUARE_LARGE: Tiling = Tiling { name: "taps 128", subgroups: [2, 2], fragments: [4, 4] };

/// The most fragments of sums: an invocation has registers for no more.
const FRAGMENTS: usize = 18;

/// The most taps that the sum of parts can take.
const MOST_TAPS: usize = 256;

impl Tiling {
    fn channels(&self) -> [usize; 2] {
        [0, 1].map(|axis| 16 * self.subgroups[axis] * self.fragments[axis])
    }

    /// The largest tile of pixels that leaves room for a second workgroup, or else the smallest.
    fn tile(&self, g: &Geometry, caps: &Caps) -> Tile {
        let tiles = [(64, 2), (64, 1), (32, 1), (16, 1)].map(|(pixels, across)| Tile::new(g, pixels, across));
        let smallest = tiles[3];
        tiles.into_iter().find(|tile| self.memory(g, tile) <= caps.multiprocessors.memory_of(2)).unwrap_or(smallest)
    }

    /// Bytes of workgroup memory: the inputs and cotangents of a tile, and the sums that are checked.
    fn memory(&self, g: &Geometry, tile: &Tile) -> usize {
        let [o, c] = self.channels();
        (tile.halo(g) * (c / 4 + 2) + tile.pixels() * (o / 4 + 2)) * 8 + memory_of_sums(self.subgroups, 2)
    }

    /// The variant for the convolution `of`; `g` is the same with channels that fall into lines. A launch computes as
    /// many rows of taps as there are registers for, which mostly is all.
    fn variant(&self, of: &Geometry, g: &Geometry, caps: &Caps) -> Option<Variant> {
        let (o, c, [kh, kw]) = (g.o / g.groups, g.c / g.groups, g.kernel);
        let invocations = invocations(self.subgroups, caps)?;
        let at_a_time = FRAGMENTS / (kw * self.fragments[0] * self.fragments[1]);
        let most = g.with_rows(kh.div_ceil(kh.div_ceil(at_a_time.max(1))));
        let tile = self.tile(&most, caps);
        if at_a_time == 0
            || kh * kw > MOST_TAPS
            || self.memory(&most, &tile) > caps.workgroup_memory
            || !tile.suits(&most)
        {
            return None;
        }
        let [rows, columns] = self.channels();
        let [padded_o, padded_c] = [o.next_multiple_of(rows), c.next_multiple_of(columns)];
        let (tiles, of_channels) = (tile.count(g), g.groups * (padded_o / rows) * (padded_c / columns));
        let parts = (2 * caps.multiprocessors.count / of_channels).clamp(1, tiles);
        let product = |first: usize| {
            let some = g.with_rows(most.kernel[0].min(kh - first));
            let mut defines = some.defines_below(first * g.options().dilation[0]);
            defines.extend(tile.defines(&some));
            defines.extend(define![
                SM: self.subgroups[0], SN: self.subgroups[1], FM: self.fragments[0], FN: self.fragments[1],
                SUBGROUP: caps.subgroup.1, ACROSS: tile.across(), PARTS: parts,
                LOADS_X: tile.loads_of_inputs(&some, columns, invocations),
                LOADS_DY: tile.loads_of_outputs(rows, invocations), TAPS: kh * kw, FIRST: first * kw,
            ]);
            // Zeros, and the tiles with the lines whose magnitudes are compared, in two attempts.
            let zeros = (tile.halo(&some) * (columns / 4 + 2)).div_ceil(invocations);
            let lines = tile.loads_of_inputs(&some, columns, invocations) + tile.loads_of_outputs(rows, invocations);
            let loops = 2 * (zeros + (tiles.div_ceil(parts) + 1) * (lines + tile.fragments_of_row() + 4)) + 32;
            let bindings = vec![Binding::Input(0), Binding::Input(1), Binding::Scratch(0)];
            let launch = Launch::new("conv2d_grad_weight_taps", defines, (0, 0), parts * of_channels);
            Launch { bindings, ..launch.loops(loops).on_bf16_units(caps) }
        };
        let (of_o, of_c, taps) = (of.o / of.groups, of.c / of.groups, kh * kw);
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
        let mut launches: Vec<_> = (0..kh).step_by(most.kernel[0]).map(product).collect();
        launches.push(sum_parts_at(parts, of.o * of.patch(), 0, &part));
        Some(Variant { name: self.name, launches, scratch: vec![parts * part.elements] })
    }
}

/// Variants of the gradient, best first; none where rows of taps are too long, or tiles would be half empty.
pub(super) fn variants(g: &Geometry, caps: &Caps) -> Vec<Variant> {
    let Some(lines) = g.in_lines() else { return Vec::new() };
    let tilings = match (lines.o / lines.groups, lines.c / lines.groups) {
        (0..=16, _) => [FEW_OUTPUTS, SQUARE, WIDE, NARROW, FEW_INPUTS, SQUARE_LARGE],
        (0..=64, 0..=16) => [FEW_INPUTS, SQUARE, NARROW, WIDE, FEW_OUTPUTS, SQUARE_LARGE],
        (_, 0..=16) => [SQUARE, NARROW, WIDE, FEW_INPUTS, FEW_OUTPUTS, SQUARE_LARGE],
        (128.., 128..) => [SQUARE_LARGE, SQUARE, WIDE, NARROW, FEW_INPUTS, FEW_OUTPUTS],
        _ => [SQUARE, WIDE, NARROW, FEW_INPUTS, FEW_OUTPUTS, SQUARE_LARGE],
    };
    let variant = |tiling: &Tiling| tiling.variant(g, &lines, caps)?.bounded();
    let mut variants: Vec<_> = tilings.iter().filter_map(variant).collect();
    // Fewest launches first: each reads both images.
    variants.sort_by_key(|variant| variant.launches.len());
    variants
}
