//! Variants of `matmul_bf16`: products on matrix units of operands in lines of bf16, into lines; see
//! `shaders/wgsl/matmul_bf16.wgsl`.

use super::{Product, strides, sum_parts_by_lines};
use crate::Layout;
use crate::kernel::format::lies_in_lines;
use crate::kernel::fragments::{Fragments, pitch};
use crate::kernel::launch::{Argument, Binding, Caps, Format, LINE, Launch, Variant, Workgroups, define, tree};
use crate::kernel::offset::offset;

/// The most turns that subgroups take to store their sums; workgroup memory holds the sums of one turn.
const MOST_TURNS: usize = 4;

/// The parameters of `matmul_bf16`.
struct Bf16Tiling {
    /// The variant's name.
    name: &'static str,
    /// Its name where the reduction is cut.
    split: &'static str,
    /// The tile of the result that a workgroup computes.
    tile: Fragments,
    /// Terms of a step.
    depth: usize,
    /// Microseconds per step on an H200: of a workgroup alone on its multiprocessor, and of each of several on one.
    step: [f64; 2],
}

macro_rules! tiling {
    ($name:literal, $subgroups:expr, $fragments:expr, $depth:literal, $step:expr) => {
        Bf16Tiling {
            name: $name,
            split: concat!($name, ", split"),
            tile: Fragments { subgroups: $subgroups, each: $fragments },
            depth: $depth,
            step: $step,
        }
    };
}

/// 128×128: the most products for each element that is read.
const LARGE: Bf16Tiling = tiling!("bf16 128", [2, 2], [4, 4], 32, [0.6, 0.49]);
/// 128×64, for few workgroups: steps are long, because no other workgroup runs while one waits.
const MEDIUM: Bf16Tiling = tiling!("bf16 128×64", [2, 2], [4, 2], 64, [0.73, 0.9]);
/// 64×64, for many workgroups.
const SMALL: Bf16Tiling = tiling!("bf16 64", [2, 2], [2, 2], 64, [0.6, 0.41]);

/// An operand as the kernel reads it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lines {
    /// `true` if its lines lie across the reduction.
    across: bool,
    /// The stride between neighbouring lines of the other axis.
    pitch: usize,
    batch: Layout,
    format: Format,
}

impl Lines {
    /// An operand `[B…,rows,columns]`. The reduction is along the columns of the first, the rows of the second. `None`
    /// where it does not lie in lines.
    #[must_use]
    pub fn new(argument: &Argument, is_first: bool) -> Option<Self> {
        let (batch, [row, column]) = strides(&argument.layout);
        let (down, pitch) = if column == 1 { (false, row) } else { (true, column) };
        let lines = Self { across: down == is_first, pitch, batch, format: argument.format };
        lies_in_lines(&argument.layout, argument.format).then_some(lines)
    }

    fn format(&self) -> &'static str {
        if self.format == Format::Full { "full" } else { "bf16" }
    }
}

impl Bf16Tiling {
    /// Tiles down and across.
    fn grid(&self, product: &Product) -> [usize; 2] {
        let [rows, columns] = self.tile.extent();
        [product.m.div_ceil(rows), product.n.div_ceil(columns)]
    }

    fn tiles(&self, product: &Product) -> usize {
        let [down, across] = self.grid(product);
        product.batch * down * across
    }

    /// The pitches in workgroup memory of both operands' rows of lines, and the fours of a step, by the order of each.
    fn stage(&self, across: [bool; 2]) -> [[usize; 2]; 2] {
        let extent = self.tile.extent();
        let [a, b] = [0, 1].map(|operand| {
            let [rows, numbers] =
                if across[operand] { [self.depth, extent[operand]] } else { [extent[operand], self.depth] };
            [pitch(numbers), rows * pitch(numbers)]
        });
        [[a[0], b[0]], [a[1], b[1]]]
    }

    /// Bytes of workgroup memory. Turns are chosen by those of f16, whatever the units multiply.
    fn memory(&self, across: [bool; 2], turns: usize, is_f16: bool) -> usize {
        let [_, fours] = self.stage(across);
        self.tile.memory(fours, turns, is_f16)
    }

    /// The most parts that the reduction may be cut into: each has at least 512 terms, and there are at most four
    /// workgroups for each multiprocessor.
    fn most_parts(&self, product: &Product, caps: &Caps) -> usize {
        (caps.multiprocessors.enough(4) / self.tiles(product)).clamp(1, (product.k / 512).clamp(1, 64))
    }

    /// An estimate of the time in microseconds on an H200. The figures are fitted to products of 256³ to 4096³
    /// (2026-11-24). Devices of other kinds are modelled as having fewer multiprocessors of the same kind.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    fn estimate(&self, product: &Product, parts: usize, caps: &Caps) -> f64 {
        let each = (parts * self.tiles(product)).div_ceil(caps.multiprocessors.enough(1));
        let [alone, beside] = self.step;
        let step = if each == 1 { alone } else { beside * each as f64 };
        let [rows, columns] = self.tile.extent();
        let terms = parts * self.part(product, parts);
        // Where extents are not whole tiles, every load checks its bounds.
        let is_whole = product.m.is_multiple_of(rows) && product.n.is_multiple_of(columns) && product.k == terms;
        let steps = (terms / (parts * self.depth)) as f64 * if is_whole { 1.0 } else { 1.3 };
        let sums = |parts: usize| (4 * parts * product.batch * product.m * product.n) as f64 / 4.5e6;
        let added = if parts == 1 { 0.0 } else { 3.0 + sums(parts + 1) };
        4.0 + steps * step + added
    }

    /// Terms of each part but perhaps the last, in whole steps.
    fn part(&self, product: &Product, parts: usize) -> usize {
        product.k.div_ceil(parts).next_multiple_of(self.depth)
    }

    /// A bound on the iterations of an invocation: up to two attempts and the search for the largest magnitudes each go
    /// over all steps of a part.
    fn loops(&self, product: &Product, parts: usize, caps: &Caps) -> usize {
        3 * (self.part(product, parts) / self.depth) + 8 * tree(self.tile.invocations(caps)) + 24
    }

    /// `true` if a device can run this tiling for operands of any order.
    fn fits(&self, caps: &Caps) -> bool {
        let invocations = self.tile.invocations(caps);
        let in_whole_loads = |side: usize| (side * self.depth / LINE).is_multiple_of(invocations);
        let memory = [false, true].map(|across| self.memory([across; 2], MOST_TURNS, true));
        caps.matrix
            && invocations <= caps.workgroup_size
            && self.tile.extent().into_iter().all(in_whole_loads)
            && memory.iter().all(|&bytes| bytes <= caps.workgroup_memory)
    }

    fn variant(&self, product: &Product, operands: [&Lines; 2], parts: usize, caps: &Caps) -> Variant {
        let &Product { batch, m, n, k, .. } = product;
        let across = operands.map(|lines| lines.across);
        let memory = |turns| self.memory(across, turns, true);
        // Turns take time, but a second workgroup saves more.
        let of_two = caps.multiprocessors.memory_of(2);
        let room = if memory(MOST_TURNS) <= of_two { of_two } else { caps.workgroup_memory };
        let turns = [1, 2].into_iter().find(|&turns| memory(turns) <= room).unwrap_or(MOST_TURNS);
        let workgroups = Workgroups::new(parts * self.tiles(product), self.tile.invocations(caps))
            .with_memory(&[self.memory(across, turns, !caps.bf16_units)])
            .looping(self.loops(product, parts, caps));
        let [rows, columns] = self.tile.extent();
        let [tiles_m, tiles_n] = self.grid(product);
        let [pitches, fours] = self.stage(across);
        let loads = [rows, columns].map(|side| side * self.depth / (LINE * workgroups.invocations));
        let [a, b] = operands;
        // Rows of the result are padded to whole lines.
        let row = n.next_multiple_of(LINE);
        let mut defines = define![
            BATCH: batch, M: m, N: n, K: k, Y_PITCH: row,
            A_ALONG: if a.across { "row" } else { "k" }, B_ALONG: if b.across { "column" } else { "k" },
            A_PITCH: a.pitch, B_PITCH: b.pitch, A_FORMAT: a.format(), B_FORMAT: b.format(),
            BM: rows, BN: columns, BK: self.depth, STEPS: self.depth / 16, EACH: 32usize.div_ceil(caps.subgroup.1),
            TILES_M: tiles_m, TILES_N: tiles_n, PARTS: parts, PART_K: self.part(product, parts),
            PITCH_A: pitches[0], PITCH_B: pitches[1], FOURS_A: fours[0], FOURS_B: fours[1],
            LOADS_A: loads[0], LOADS_B: loads[1], LINES: 1,
        ];
        defines.extend(self.tile.defines(turns, caps));
        defines.extend([("A_BATCH", offset(&a.batch, "b")), ("B_BATCH", offset(&b.batch, "b"))]);
        let mut launch = Launch::new("matmul_bf16", defines, (2, 0), workgroups).on_bf16_units(caps);
        if parts == 1 {
            launch.defines.extend(define![SUMS: "whole"]);
            return Variant::simple(self.name, launch.stores_through_epilogue().by_lines());
        }
        launch.defines.extend(define![SUMS: "parts", SUMS_AT: launch.bindings.len()]);
        launch.bindings.push(Binding::Scratch(0));
        let elements = batch * m * row;
        let launches = vec![launch, sum_parts_by_lines(parts, elements, 0)];
        Variant { name: self.split, launches, scratch: vec![parts * elements] }
    }
}

/// `true` if a device can multiply bf16.
#[must_use]
pub fn multiplies_bf16(caps: &Caps) -> bool {
    caps.bf16 && SMALL.fits(caps)
}

impl Product {
    /// Variants that compute this product of operands in lines, into lines, best first by [`Bf16Tiling::estimate`].
    #[must_use]
    pub fn of_bf16(&self, operands: [&Lines; 2], caps: &Caps) -> Vec<Variant> {
        let mut ways = Vec::new();
        for tiling in [LARGE, MEDIUM, SMALL].iter().filter(|tiling| tiling.fits(caps)) {
            let time = |parts: usize| tiling.estimate(self, parts, caps);
            let is_filled = |parts: &usize| (parts - 1) * tiling.part(self, *parts) < self.k;
            let cuts = (2..=tiling.most_parts(self, caps)).filter(is_filled);
            let cut = cuts.min_by(|a, b| time(*a).total_cmp(&time(*b)));
            let timed = |parts| (time(parts), tiling.variant(self, operands, parts, caps));
            ways.extend(cut.into_iter().chain([1]).map(timed));
        }
        ways.sort_by(|a, b| a.0.total_cmp(&b.0));
        ways.into_iter().map(|(_, variant)| variant).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::gemm::Operands;
    use crate::{DType, Shape, TensorType};

    fn ways([m, k, n]: [usize; 3], caps: &Caps) -> Vec<Variant> {
        let lines = |dims: [usize; 2], is_first| {
            let ty = TensorType::new(DType::F32, Shape::from(dims));
            let argument = Argument { format: Format::Bf16, ..Argument::contiguous(ty) };
            Lines::new(&argument, is_first).expect("it lies in lines")
        };
        let product = Product { batch: 1, m, n, k, operands: Operands::Mixed, beside: true };
        product.of_bf16([&lines([m, k], true), &lines([k, n], false)], caps)
    }

    const CAPS: Caps = Caps { matrix: true, bf16: true, ..Caps::DISCRETE };

    #[test]
    fn tilings_suit_how_many_workgroups_a_multiprocessor_gets() {
        let best = |product| ways(product, &CAPS)[0].name;
        assert_eq!(best([4096, 4096, 4096]), "bf16 128");
        assert_eq!(best([8192, 512, 512]), "bf16 128");
        assert_eq!(best([1024, 1024, 1024]), "bf16 128×64");
        assert_eq!(best([512, 512, 512]), "bf16 64");
        assert_eq!(best([512, 8192, 512]), "bf16 128, split");
    }

    #[test]
    fn every_part_has_terms() {
        for product in [[64, 520, 64], [40, 5000, 72], [512, 8192, 512], [256, 65_544, 8]] {
            for way in ways(product, &CAPS) {
                let number = |name| way.launches[0].defines.iter().find(|(known, _)| *known == name);
                let number = |name| number(name).expect("it is there").1.parse::<usize>().expect("a number");
                assert!((number("PARTS") - 1) * number("PART_K") < product[1], "{way:?}");
            }
        }
    }

    #[test]
    fn a_device_with_little_memory_multiplies_no_bf16() {
        for workgroup_memory in [16 << 10, 20 << 10, 32 << 10, 48 << 10] {
            let caps = Caps { workgroup_memory, ..CAPS };
            assert_eq!(ways([64, 64, 64], &caps).is_empty(), !multiplies_bf16(&caps), "{workgroup_memory}");
        }
    }
}
