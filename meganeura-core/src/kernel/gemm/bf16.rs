//! Variants of `matmul_bf16`: products on matrix units of operands in lines of bf16, into lines; see
//! `shaders/wgsl/matmul_bf16.wgsl`.

use super::{GROUPED_ROWS, Product, strides, sum_parts_by_lines};
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
    /// Steps in workgroup memory.
    stages: usize,
    times: Times,
}

/// Microseconds on an H200.
struct Times {
    /// Per step of each of several workgroups on a multiprocessor, by how operands are read; see [`Reading`].
    beside: [f64; 4],
    /// Per step of a workgroup that has its multiprocessor to itself, if two can share it. If not, workgroups are
    /// always alone.
    alone: Option<f64>,
    /// Per workgroup, besides its steps.
    fixed: f64,
}

/// How operands are read. Lines across the reduction are adjacent for a whole tile. Those along it are adjacent for a
/// step only, so loads touch more rows, and use less of what memory delivers.
#[derive(Clone, Copy)]
enum Reading {
    /// Both have lines across the reduction.
    Across,
    /// One has.
    Mixed,
    /// None has.
    Along,
    /// None has, and they come from memory, because the cache does not hold them.
    AlongFromMemory,
}

macro_rules! tiling {
    ($name:literal, $subgroups:expr, $fragments:expr, $depth:literal, $stages:literal, $times:expr) => {{
        let (beside, alone, fixed) = $times;
        Bf16Tiling {
            name: $name,
            split: concat!($name, ", split"),
            tile: Fragments { subgroups: $subgroups, each: $fragments },
            depth: $depth,
            stages: $stages,
            times: Times { beside, alone, fixed },
        }
    }};
}

/// The tilings for units that multiply f16. Times are fitted to products of 256³ to 4096³ (2026-11-24).
const OF_F16: [Bf16Tiling; 3] = [
    // The most products for each element that is read.
    tiling!("bf16 128", [2, 2], [4, 4], 32, 1, ([0.49; 4], Some(0.6), 0.0)),
    // For few workgroups: steps are long, because no other workgroup runs while one waits.
    tiling!("bf16 128×64", [2, 2], [4, 2], 64, 1, ([0.82; 4], None, 0.0)),
    // For many workgroups.
    tiling!("bf16 64", [2, 2], [2, 2], 64, 1, ([0.41; 4], Some(0.6), 0.0)),
];

/// The tilings for units that multiply bf16. Times of the tilings above 128×64 are fitted to products of transformers,
/// with 384 to 50,304 rows, terms or columns (2026-11-28).
const OF_BF16: [Bf16Tiling; 6] = [
    tiling!("bf16 128", [2, 2], [4, 4], 32, 1, ([0.405, 0.442, 0.52, 0.7], Some(0.72), 1.4)),
    tiling!("bf16 160×128", [2, 2], [5, 4], 32, 1, ([0.465, 0.55, 0.66, 0.78], Some(0.74), 1.8)),
    // For one workgroup on each multiprocessor. Two steps in memory replace the other workgroup.
    tiling!("bf16 192×256", [2, 4], [6, 4], 16, 2, ([0.69, 0.705, 0.8, 1.2], None, 3.2)),
    // Likewise, for operands that come from memory, which delivers at least 64 bytes at a time.
    tiling!("bf16 192×256, deep", [2, 4], [6, 4], 32, 1, ([1.5, 1.48, 1.74, 1.75], None, 6.0)),
    tiling!("bf16 128×64", [2, 2], [4, 2], 64, 1, ([0.75; 4], None, 1.0)),
    tiling!("bf16 64", [2, 2], [2, 2], 64, 1, ([0.38; 4], Some(0.55), 0.5)),
];

/// Bytes of operands that an H200's cache holds.
const CACHE: usize = 48 << 20;

/// An operand as the kernel reads it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lines {
    /// `true` if its lines lie across the reduction.
    pub(super) across: bool,
    /// The stride between neighbouring lines of the other axis.
    pub(super) pitch: usize,
    pub(super) batch: Layout,
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

    pub(super) fn format(&self) -> &'static str {
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

    /// The pitches in workgroup memory of both operands' rows of lines, and the size of a step, by the order of each.
    /// In fours for units that multiply f16, in lines for those that multiply bf16.
    fn stage(&self, across: [bool; 2], caps: &Caps) -> [[usize; 2]; 2] {
        let extent = self.tile.extent();
        let [a, b] = [0, 1].map(|operand| {
            let [rows, numbers] =
                if across[operand] { [self.depth, extent[operand]] } else { [extent[operand], self.depth] };
            let pitch = pitch(numbers) / if caps.bf16_units { LINE / 4 } else { 1 };
            [pitch, rows * pitch]
        });
        [[a[0], b[0]], [a[1], b[1]]]
    }

    /// Lines of workgroup memory for units that multiply bf16: the steps, and later a row of each subgroup's fragments
    /// of sums.
    fn lines(&self, across: [bool; 2], caps: &Caps) -> usize {
        let [_, lines] = self.stage(across, caps);
        (self.stages * (lines[0] + lines[1])).max(self.tile.fours_of_rows())
    }

    /// Bytes of workgroup memory.
    fn memory(&self, across: [bool; 2], turns: usize, caps: &Caps) -> usize {
        if caps.bf16_units {
            return 16 * self.lines(across, caps);
        }
        let [_, fours] = self.stage(across, caps);
        self.tile.memory(fours, turns, true)
    }

    /// The most parts that the reduction may be cut into: each has at least 512 terms, and there are at most four
    /// workgroups for each multiprocessor.
    fn most_parts(&self, product: &Product, caps: &Caps) -> usize {
        (caps.multiprocessors.enough(4) / self.tiles(product)).clamp(1, (product.k / 512).clamp(1, 64))
    }

    /// An estimate of the time in microseconds on an H200. Devices of other kinds are modelled as having fewer
    /// multiprocessors of the same kind.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    fn estimate(&self, product: &Product, operands: [&Lines; 2], parts: usize, caps: &Caps) -> f64 {
        let each = (parts * self.tiles(product)).div_ceil(caps.multiprocessors.count);
        let beside = self.times.beside[Reading::of(product, operands) as usize];
        let [in_pairs, alone] = match self.times.alone {
            Some(alone) => {
                [each - each % 2, each % 2].map(|count| count as f64 * if count == 1 { alone } else { beside })
            }
            None => [each as f64 * beside, 0.0],
        };
        let steps = (self.part(product, parts) / self.depth) as f64;
        let sums = |parts: usize| (4 * parts * product.batch * product.m * product.n) as f64 / 4.5e6;
        let added = if parts == 1 { 0.0 } else { 3.0 + sums(parts + 1) };
        4.0 + steps * (in_pairs + alone) + each as f64 * self.times.fixed + added
    }

    /// Terms of each part but perhaps the last, in whole rounds of steps.
    fn part(&self, product: &Product, parts: usize) -> usize {
        product.k.div_ceil(parts).next_multiple_of(self.stages * self.depth)
    }

    /// A bound on the iterations of an invocation. Units that multiply bf16 go over a part's steps once. Otherwise, up
    /// to two attempts and the search for the largest magnitudes each do so.
    fn loops(&self, product: &Product, parts: usize, caps: &Caps) -> usize {
        let steps = self.part(product, parts) / self.depth;
        if caps.bf16_units { steps + 1 } else { 3 * steps + 8 * tree(self.tile.invocations(caps)) + 24 }
    }

    /// `true` if a device can run this tiling for operands of any order.
    fn fits(&self, caps: &Caps) -> bool {
        let invocations = self.tile.invocations(caps);
        let [_, columns] = self.tile.extent();
        let memory = [[false, false], [false, true], [true, false], [true, true]];
        caps.matrix
            && invocations <= caps.workgroup_size
            && (columns * self.depth / LINE).is_multiple_of(invocations)
            && memory.iter().all(|&across| self.memory(across, MOST_TURNS, caps) <= caps.workgroup_memory)
    }

    /// `true` if registers hold what an invocation loads in a step: lines of f32 take twice as many.
    fn holds(&self, operands: [&Lines; 2]) -> bool {
        let [down, across] = self.tile.each;
        down * across <= 16 || operands.iter().all(|lines| lines.format != Format::Full)
    }

    fn variant(&self, product: &Product, operands: [&Lines; 2], parts: usize, caps: &Caps) -> Variant {
        let &Product { batch, m, n, k, .. } = product;
        let across = operands.map(|lines| lines.across);
        let memory = |turns| self.memory(across, turns, caps);
        // Turns take time, but a second workgroup saves more.
        let of_two = caps.multiprocessors.memory_of(2);
        let room = if memory(MOST_TURNS) <= of_two { of_two } else { caps.workgroup_memory };
        let turns = [1, 2].into_iter().find(|&turns| memory(turns) <= room).unwrap_or(MOST_TURNS);
        let workgroups = Workgroups::new(parts * self.tiles(product), self.tile.invocations(caps))
            .with_memory(&[memory(turns)])
            .looping(self.loops(product, parts, caps));
        let [rows, columns] = self.tile.extent();
        let [tiles_m, tiles_n] = self.grid(product);
        let [pitches, sizes] = self.stage(across, caps);
        let loads = [rows, columns].map(|side| (side * self.depth).div_ceil(LINE * workgroups.invocations));
        let [a, b] = operands;
        // Rows of the result are padded to whole lines.
        let row = n.next_multiple_of(LINE);
        let mut defines = define![
            BATCH: batch, M: m, N: n, K: k, Y_PITCH: row,
            A_ALONG: if a.across { "row" } else { "k" }, B_ALONG: if b.across { "column" } else { "k" },
            A_PITCH: a.pitch, B_PITCH: b.pitch, A_FORMAT: a.format(), B_FORMAT: b.format(),
            BM: rows, BN: columns, BK: self.depth, STEPS: self.depth / 16, STAGES: self.stages,
            TILES_M: tiles_m, TILES_N: tiles_n, PARTS: parts, PART_K: self.part(product, parts),
            PITCH_A: pitches[0], PITCH_B: pitches[1], PLACES_A: sizes[0], PLACES_B: sizes[1],
            LINES_A: rows * self.depth / LINE, LOADS_A: loads[0], LOADS_B: loads[1], LINES: 1,
            GROUP: GROUPED_ROWS / rows,
        ];
        if parts * self.part(product, parts) != k {
            defines.extend(define![RAGGED: 1]);
        }
        if caps.bf16_units {
            let [down, beside] = self.tile.each;
            defines.extend(define![
                OPERAND: "f32", PLACES: self.lines(across, caps), EACH: (32 * beside).div_ceil(caps.subgroup.1),
                SUBGROUP: caps.subgroup.1, SN: self.tile.subgroups[1], FM: down, FN: beside,
            ]);
        } else {
            let each = 32usize.div_ceil(caps.subgroup.1);
            defines.extend(define![OPERAND: "f16", PLACES: sizes[0] + sizes[1], EACH: each]);
            defines.extend(self.tile.defines(turns, caps));
        }
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

impl Reading {
    fn of(product: &Product, operands: [&Lines; 2]) -> Self {
        let bytes = 2 * product.batch * product.k * (product.m + product.n);
        match operands.map(|lines| lines.across) {
            [true, true] => Self::Across,
            [false, false] if bytes > 2 * CACHE => Self::AlongFromMemory,
            [false, false] => Self::Along,
            _ => Self::Mixed,
        }
    }
}

/// The tilings for a device's units.
fn tilings(caps: &Caps) -> &'static [Bf16Tiling] {
    if caps.bf16_units { &OF_BF16 } else { &OF_F16 }
}

/// `true` if a device can multiply bf16.
#[must_use]
pub fn multiplies_bf16(caps: &Caps) -> bool {
    caps.bf16 && tilings(caps).iter().any(|tiling| tiling.fits(caps))
}

impl Product {
    /// Variants that compute this product of operands in lines, into lines, best first by an estimate of the time.
    #[must_use]
    pub fn of_bf16(&self, operands: [&Lines; 2], caps: &Caps) -> Vec<Variant> {
        let mut ways = self.in_fragments(operands, caps);
        for tiling in tilings(caps).iter().filter(|tiling| tiling.fits(caps) && tiling.holds(operands)) {
            let time = |parts: usize| tiling.estimate(self, operands, parts, caps);
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

    /// The variants of a product whose operands are transposed views or not.
    fn ways_of([m, k, n]: [usize; 3], transposed: [bool; 2], caps: &Caps) -> Vec<Variant> {
        let lines = |dims: [usize; 2], at: usize| {
            let [rows, columns] = dims;
            let strides = if transposed[at] { [1, rows] } else { [columns, 1] };
            let layout = Layout::strided(Shape::from(dims), &strides);
            let ty = TensorType::new(DType::F32, Shape::from(dims));
            Lines::new(&Argument { ty, layout, format: Format::Bf16 }, at == 0).expect("it lies in lines")
        };
        let product = Product { batch: 1, m, n, k, operands: Operands::Mixed, beside: true };
        product.of_bf16([&lines([m, k], 0), &lines([k, n], 1)], caps)
    }

    fn ways(product: [usize; 3], caps: &Caps) -> Vec<Variant> {
        ways_of(product, [false; 2], caps)
    }

    /// The value of a define of a variant's first launch.
    fn number(way: &Variant, name: &str) -> usize {
        let define = way.launches[0].defines.iter().find(|(known, _)| *known == name);
        define.expect("it is there").1.parse().expect("a number")
    }

    const CAPS: Caps = Caps { matrix: true, bf16: true, ..Caps::DISCRETE };
    const WITH_BF16_UNITS: Caps = Caps { bf16_units: true, ..CAPS };

    #[test]
    fn tilings_suit_how_many_workgroups_a_multiprocessor_gets() {
        let best = |product| ways(product, &CAPS)[0].name;
        assert_eq!(best([4096, 4096, 4096]), "bf16 128");
        assert_eq!(best([8192, 512, 512]), "bf16 128");
        assert_eq!(best([1024, 1024, 1024]), "bf16 128×64");
        assert_eq!(best([512, 512, 512]), "bf16 64");
        assert_eq!(best([512, 8192, 512]), "bf16 128, split");
    }

    /// The choices for products of transformers, each the fastest that was measured on an H200, or within 5 % of it.
    #[test]
    fn products_of_transformers_have_the_fastest_tilings() {
        let (none, second, first) = ([false; 2], [false, true], [true, false]);
        let table = [
            ([4096, 4096, 4096], none, "bf16 128", 1),
            ([8192, 768, 3072], none, "bf16 128", 1),
            ([8192, 3072, 768], none, "bf16 192×256", 1),
            ([8192, 768, 50_304], none, "bf16 128", 1),
            ([12_544, 384, 1536], none, "bf16 192×256", 1),
            ([8192, 50_304, 768], second, "bf16 192×256, deep", 1),
            ([768, 8192, 50_304], first, "bf16 160×128", 1),
            ([8192, 3072, 768], second, "bf16 192×256", 1),
            ([768, 8192, 3072], first, "bf16 160×128, split", 2),
            ([384, 12_544, 1536], first, "bf16 128, split", 7),
        ];
        for (product, transposed, name, parts) in table {
            let best = ways_of(product, transposed, &WITH_BF16_UNITS).swap_remove(0);
            assert_eq!((best.name, number(&best, "PARTS")), (name, parts), "{product:?}");
        }
    }

    #[test]
    fn small_products_have_small_tiles_on_bf16_units() {
        let best = |product| ways(product, &WITH_BF16_UNITS)[0].name;
        assert_eq!(best([1024, 1024, 1024]), "bf16 128×64");
        assert_eq!(best([512, 512, 512]), "bf16 64");
        assert_eq!(best([40, 64, 72]), "bf16 64");
    }

    #[test]
    fn every_part_has_terms_in_whole_rounds() {
        for product in [[64, 520, 64], [40, 5000, 72], [512, 8192, 512], [256, 65_544, 8]] {
            for way in [CAPS, WITH_BF16_UNITS].iter().flat_map(|caps| ways(product, caps)) {
                let [parts, part, depth, stages] = ["PARTS", "PART_K", "BK", "STAGES"].map(|name| number(&way, name));
                assert!((parts - 1) * part < product[1], "{way:?}");
                assert!(part.is_multiple_of(depth * stages), "{way:?}");
            }
        }
    }

    #[test]
    fn f32_operands_have_tiles_that_leave_registers() {
        let full = |dims: [usize; 2], is_first| {
            let argument = Argument::contiguous(TensorType::new(DType::F32, Shape::from(dims)));
            Lines::new(&argument, is_first).expect("it lies in lines")
        };
        let product = Product { batch: 1, m: 8192, n: 768, k: 3072, operands: Operands::Mixed, beside: true };
        let ways = product.of_bf16([&full([8192, 3072], true), &full([3072, 768], false)], &WITH_BF16_UNITS);
        assert!(!ways.is_empty() && ways.iter().all(|way| number(way, "FM") * number(way, "FN") <= 16), "{ways:?}");
    }

    #[test]
    fn a_device_with_little_memory_multiplies_no_bf16() {
        for workgroup_memory in [16 << 10, 20 << 10, 32 << 10, 48 << 10] {
            for caps in [CAPS, WITH_BF16_UNITS] {
                let caps = Caps { workgroup_memory, ..caps };
                assert_eq!(ways([64, 64, 64], &caps).is_empty(), !multiplies_bf16(&caps), "{workgroup_memory}");
            }
        }
    }
}
