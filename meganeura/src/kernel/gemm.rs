//! Matrix products on a GPU: the tilings of the shared WGSL product, and which of them suits a shape.

use super::launch::{Argument, Binding, Caps, Kind, Launch, Variant, define, offset};
use crate::Layout;

/// How a workgroup computes a tile of a product; see `shared/gemm.wgsl`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tiling {
    name: &'static str,
    /// The name where the reduction is cut.
    split: &'static str,
    units: Units,
    /// Invocations, or on matrix units subgroups, down and across a tile.
    workers: [usize; 2],
    /// Blocks of 4×4, or on matrix units fragments of 16×16, that each of them computes, down and across.
    blocks: [usize; 2],
    /// Elements along the reduction that are in workgroup memory at a time.
    depth: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Units {
    Scalar,
    /// With so many halves of workgroup memory.
    Matrix {
        halves: usize,
    },
    /// The same, of operands that are `f16` in memory.
    Half,
}

/// A tiling, and its name with a cut reduction.
macro_rules! tiling {
    ($name:literal, $units:expr, $workers:expr, $blocks:expr, $depth:expr) => {
        Tiling {
            name: $name,
            split: concat!($name, ", split"),
            units: $units,
            workers: $workers,
            blocks: $blocks,
            depth: $depth,
        }
    };
}

/// 128×128: the most products for each element that is read.
const LARGE: Tiling = tiling!("tile 128", Units::Scalar, [16, 8], [2, 4], 16);
/// The same in half the workgroup memory, and the better one where neighbours of both operands lie across the reduction.
const LARGE_SHALLOW: Tiling = tiling!("tile 128 shallow", Units::Scalar, [16, 8], [2, 4], 8);
/// 64×64: four times as many workgroups.
const MEDIUM: Tiling = tiling!("tile 64", Units::Scalar, [8, 8], [2, 2], 16);
const MEDIUM_SHALLOW: Tiling = tiling!("tile 64 shallow", Units::Scalar, [8, 8], [2, 2], 8);
/// 32×32, for small matrices.
const SMALL: Tiling = tiling!("tile 32", Units::Scalar, [8, 8], [1, 1], 16);

/// 128×256 on matrix units.
const MATRIX_WIDE: Tiling = tiling!("matrix 128×256", Units::Matrix { halves: 1 }, [2, 4], [4, 4], 32);
/// 128×128.
const MATRIX_LARGE: Tiling = tiling!("matrix 128", Units::Matrix { halves: 1 }, [2, 2], [4, 4], 32);
/// The same by eight subgroups, which leaves registers for operands that are gathered.
const MATRIX_EIGHT: Tiling = tiling!("matrix 128 by 8", Units::Matrix { halves: 1 }, [2, 4], [4, 2], 32);
/// 64×256, where rows are few.
const MATRIX_FLAT: Tiling = tiling!("matrix 64×256", Units::Matrix { halves: 1 }, [1, 4], [4, 4], 32);
/// 64×128.
const MATRIX_MEDIUM: Tiling = tiling!("matrix 64×128", Units::Matrix { halves: 2 }, [2, 2], [2, 4], 32);
/// 64×64.
const MATRIX_SMALL: Tiling = tiling!("matrix 64", Units::Matrix { halves: 2 }, [2, 2], [2, 2], 32);

/// 128×128 of operands that are `f16` already.
const HALF_LARGE: Tiling = tiling!("half 128", Units::Half, [2, 2], [4, 4], 32);
/// 64×256, where rows are few.
const HALF_FLAT: Tiling = tiling!("half 64×256", Units::Half, [1, 4], [4, 4], 32);
/// 64×64.
const HALF_SMALL: Tiling = tiling!("half 64", Units::Half, [2, 2], [2, 2], 32);

/// Maxima of each operand that the scales on matrix units are made of.
const PEAKS: usize = 512;

/// Extents of a batch of products `[M,K]·[K,N]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Product {
    /// How many there are.
    pub batch: usize,
    /// Rows of the result.
    pub m: usize,
    /// Columns of the result.
    pub n: usize,
    /// Terms of each sum.
    pub k: usize,
    /// How the operands lie.
    pub operands: Operands,
}

/// How the operands of a product lie in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operands {
    /// At least one with its neighbours along the reduction.
    Along,
    /// Both with their neighbours across it.
    Across,
    /// The columns are gathered from images, operand 0, which takes registers and time; the rows are operand 1.
    Gathered,
}

/// A tiling, and the number of parts that the reduction is cut into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    tiling: Tiling,
    /// Parts of the reduction, each with workgroups of its own.
    pub parts: usize,
    /// Terms that scalar loops add in a row.
    unroll: usize,
    /// Invocations of a subgroup.
    subgroup: usize,
}

impl Tiling {
    /// Rows and columns of a tile.
    fn extent(&self) -> [usize; 2] {
        let side = if self.units == Units::Scalar { 4 } else { 16 };
        [0, 1].map(|axis| side * self.blocks[axis] * self.workers[axis])
    }

    /// Workgroups for one part of the reduction.
    fn tiles(&self, product: Product) -> usize {
        let [rows, columns] = self.extent();
        product.batch * product.m.div_ceil(rows) * product.n.div_ceil(columns)
    }

    /// Bytes of workgroup memory: lines of four along the tile, a little longer than it.
    fn memory(&self) -> usize {
        let [rows, columns] = self.extent();
        match self.units {
            Units::Scalar => 2 * self.depth * (rows / 4 + 1 + columns / 4 + 1) * 16,
            Units::Half => {
                let subgroups = self.workers[0] * self.workers[1];
                // A tile lies along the reduction or across it.
                let tile = |side: usize| (side * (self.depth / 4 + 2)).max(self.depth * (side / 4 + 2)) * 8;
                tile(rows) + tile(columns) + subgroups * 16 * 20 * 4
            }
            Units::Matrix { halves } => {
                let subgroups = self.workers[0] * self.workers[1];
                halves * self.depth * (rows / 4 + 2 + columns / 4 + 2) * 8 + subgroups * 16 * 20 * 4
            }
        }
    }

    fn invocations(&self, caps: &Caps) -> usize {
        let each = if self.units == Units::Scalar { 1 } else { caps.subgroup.1 };
        self.workers[0] * self.workers[1] * each
    }

    /// Elements that an invocation loads at a time: a block, or a line.
    fn load(&self) -> usize {
        if self.units == Units::Half { 8 } else { 16 }
    }

    fn fits(&self, caps: &Caps) -> bool {
        let [rows, columns] = self.extent();
        let invocations = self.invocations(caps);
        // Blocks are loaded by all invocations alike.
        self.memory() <= caps.workgroup_memory
            && invocations <= caps.workgroup_size
            && ((rows + columns) * self.depth).is_multiple_of(self.load() * invocations)
    }

    /// Into how many parts the reduction is cut, so that about `wanted` workgroups run, each over `least` terms at least.
    fn parts(&self, product: Product, wanted: usize, least: usize) -> usize {
        (wanted / self.tiles(product)).clamp(1, (product.k / least).clamp(1, 32))
    }
}

/// Workgroups that keep a device busy.
fn busy(caps: &Caps) -> usize {
    match caps.kind {
        Kind::Discrete => 128,
        Kind::Integrated => 16,
        Kind::Software => 1,
    }
}

impl Product {
    /// Ways to tile this, best first; never empty. `cut` says whether the reduction may be cut.
    #[must_use]
    pub fn choices(self, caps: &Caps, cut: bool) -> Vec<Choice> {
        let mut choices = if caps.matrix { self.matrix_choices(caps, cut) } else { Vec::new() };
        if choices.is_empty() {
            choices = self.scalar_choices(caps, cut);
        }
        choices
    }

    /// Tilings in f32. The table, for a device of its own (others are kept busy by fewer workgroups):
    ///
    /// | smaller extent | workgroups, parts counted | tiling |
    /// |---|---|---|
    /// | above 64 | 96 or more of 128×128, each over 512 terms | 128×128, its reduction cut in two where that makes 160 |
    /// | above 16 | 64 or more of 64×64 | 64×64, cut into parts of 128 terms or more to reach 576 |
    /// | any | any | 32×32, cut into parts of 64 terms or more to reach 512 |
    fn scalar_choices(self, caps: &Caps, cut: bool) -> Vec<Choice> {
        let (small, busy) = (self.m.min(self.n), busy(caps));
        let mut larger = [[LARGE, LARGE_SHALLOW], [MEDIUM, MEDIUM_SHALLOW]];
        if self.operands == Operands::Across {
            larger.iter_mut().for_each(|depths| depths.reverse());
        }
        // What fits stands in for what does not.
        let [large, medium] = larger.map(|[first, second]| if first.fits(caps) { first } else { second });
        let parts = |tiling: &Tiling, wanted, least| if cut { tiling.parts(self, wanted, least) } else { 1 };
        let of_large = parts(&large, busy * 5 / 4, 256);
        let of_medium = parts(&medium, busy * 9 / 2, 128);
        let few = of_large <= 2 && self.k / of_large >= 512;
        let (best, of_best) = if small > 64 && few && large.tiles(self) * of_large >= busy * 3 / 4 {
            (large, of_large)
        } else if small > 16 && medium.tiles(self) * of_medium >= busy / 2 {
            (medium, of_medium)
        } else {
            (SMALL, parts(&SMALL, busy * 4, 64))
        };
        // A driver that compiles for the CPU takes seconds for what a GPU's takes a moment.
        let unroll = if caps.kind == Kind::Software { 1 } else { 4 };
        let choice = |tiling, parts| Choice { tiling, parts, unroll, subgroup: caps.subgroup.1 };
        let mut choices = vec![choice(best, of_best)];
        if of_best > 1 {
            choices.push(choice(best, 1));
        }
        let rest = [MEDIUM, MEDIUM_SHALLOW, LARGE, LARGE_SHALLOW, SMALL];
        choices.extend(rest.into_iter().filter(|&tiling| tiling != best).map(|tiling| choice(tiling, 1)));
        choices.retain(|choice| choice.tiling.fits(caps));
        if caps.kind == Kind::Software {
            // Nor would more than one other choice be worth it: a tile of another size, whose steps are of another depth.
            let other = if best == medium { LARGE_SHALLOW } else { medium };
            choices.retain(|choice| choice.tiling == best || choice.tiling == other);
        }
        choices
    }

    /// Tilings on matrix units of operands in f32: the largest of which there are enough to keep the device busy, or else the
    /// smallest, cut into parts of 256 terms or more. Small ones suit operands that are gathered, wide ones those that must be
    /// turned on their way.
    fn matrix_choices(self, caps: &Caps, cut: bool) -> Vec<Choice> {
        let (small, busy) = (self.m.min(self.n), busy(caps));
        // Few rows, and too few columns for many workgroups: the weights of a narrow layer.
        let long = self.operands == Operands::Gathered && small <= 64 && MATRIX_SMALL.tiles(self) < busy;
        let mut order = match self.operands {
            _ if small <= 32 => [MATRIX_SMALL, MATRIX_MEDIUM, MATRIX_LARGE, MATRIX_EIGHT, MATRIX_FLAT, MATRIX_WIDE],
            Operands::Gathered if small <= 64 && !long => {
                [MATRIX_SMALL, MATRIX_FLAT, MATRIX_MEDIUM, MATRIX_LARGE, MATRIX_EIGHT, MATRIX_WIDE]
            }
            _ if small <= 64 => [MATRIX_MEDIUM, MATRIX_SMALL, MATRIX_FLAT, MATRIX_LARGE, MATRIX_EIGHT, MATRIX_WIDE],
            Operands::Gathered => [MATRIX_LARGE, MATRIX_SMALL, MATRIX_EIGHT, MATRIX_MEDIUM, MATRIX_FLAT, MATRIX_WIDE],
            Operands::Across => [MATRIX_LARGE, MATRIX_MEDIUM, MATRIX_SMALL, MATRIX_WIDE, MATRIX_FLAT, MATRIX_EIGHT],
            Operands::Along => [MATRIX_WIDE, MATRIX_LARGE, MATRIX_MEDIUM, MATRIX_SMALL, MATRIX_FLAT, MATRIX_EIGHT],
        }
        .to_vec();
        order.retain(|tiling| tiling.fits(caps));
        let most = || if long { order.first() } else { order.iter().max_by_key(|tiling| tiling.tiles(self)) };
        let Some(&best) = order.iter().find(|tiling| tiling.tiles(self) >= busy).or_else(most) else {
            return Vec::new();
        };
        // Small tiles of long sums: a few workgroups for each multiprocessor.
        let wanted = if best == MATRIX_SMALL { 4 * busy } else { busy };
        let of_best = if cut { best.parts(self, wanted, 256) } else { 1 };
        let choice = |tiling, parts| Choice { tiling, parts, unroll: 1, subgroup: caps.subgroup.1 };
        let mut choices = vec![choice(best, of_best)];
        if of_best > 1 {
            choices.push(choice(best, 1));
        }
        choices.extend(order.into_iter().filter(|&tiling| tiling != best).map(|tiling| choice(tiling, 1)));
        choices
    }

    /// Ways to tile this where the operands are rounded to `f16` beforehand, best first; none where the device has no matrix units.
    #[must_use]
    pub fn half_choices(self, caps: &Caps) -> Vec<Choice> {
        let mut order = match self.m.min(self.n) {
            ..=32 => vec![HALF_SMALL, HALF_LARGE, HALF_FLAT],
            _ if self.m <= 64 => vec![HALF_FLAT, HALF_SMALL, HALF_LARGE],
            _ => vec![HALF_LARGE, HALF_SMALL, HALF_FLAT],
        };
        order.retain(|tiling| caps.matrix && tiling.fits(caps));
        let choice = |tiling, parts| Choice { tiling, parts, unroll: 1, subgroup: caps.subgroup.1 };
        let mut choices: Vec<_> = order.iter().map(|&tiling| choice(tiling, 1)).collect();
        if let Some(&best) = order.first() {
            let parts = best.parts(self, 256, 256);
            if parts > 1 {
                choices.insert(0, choice(best, parts));
            }
        }
        choices
    }
}

/// Where the sums of a tiled launch go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sums {
    /// To result 0, each once, through the epilogue.
    Whole,
    /// To a scratch buffer, part after part.
    Scratch(usize),
}

impl Choice {
    /// The variant's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        if self.parts == 1 { self.tiling.name } else { self.tiling.split }
    }

    /// The number of workgroups.
    #[must_use]
    pub fn workgroups(&self, product: Product) -> usize {
        self.parts * self.tiling.tiles(product)
    }

    /// A launch of `kernel`, which includes the shared product, with these defines besides the product's. `across` says for
    /// each operand whether its neighbours in memory lie across the reduction.
    #[must_use]
    pub fn launch(
        &self,
        kernel: &'static str,
        mut defines: Vec<(&'static str, String)>,
        product: Product,
        operands: [Binding; 2],
        across: [bool; 2],
        sums: Sums,
    ) -> Launch {
        let Tiling { units, workers, blocks, depth, .. } = self.tiling;
        let [rows, columns] = self.tiling.extent();
        let loads = |invocations: usize| (rows + columns) * depth / (self.tiling.load() * invocations);
        let [down, over] = workers;
        let mut bindings: Vec<_> = operands.into();
        match units {
            Units::Scalar => {
                defines.extend(define![UNITS: "scalar", TM: down, TN: over, BK: depth, UNROLL: self.unroll]);
                defines.extend(define![LOADS: loads(down * over)]);
            }
            Units::Matrix { .. } | Units::Half => {
                let (units, halves) =
                    if let Units::Matrix { halves } = units { ("matrix", halves) } else { ("half", 1) };
                bindings.push(Binding::Scratch(0));
                if units == "matrix" {
                    defines.extend(define![A_IS: u32::from(product.operands == Operands::Gathered)]);
                }
                defines.extend(define![UNITS: units, SM: down, SN: over, STEPS: depth / 16, HALVES: halves]);
                defines.extend(define![SUBGROUP: self.subgroup, LOADS: loads(down * over * self.subgroup)]);
            }
        }
        defines.extend(define![
            FM: blocks[0], FN: blocks[1], PARTS: self.parts,
            A_ALONG: if across[0] { "row" } else { "k" }, B_ALONG: if across[1] { "column" } else { "k" },
        ]);
        let mut launch = Launch::new(kernel, defines, (0, 0), self.workgroups(product));
        match sums {
            Sums::Whole => {
                launch.bindings = bindings;
                launch.defines.extend(define![SUMS: "whole"]);
                launch.stores_through_epilogue()
            }
            Sums::Scratch(at) => {
                launch.defines.extend(define![SUMS: "parts", SUMS_AT: bindings.len()]);
                bindings.push(Binding::Scratch(at));
                launch.bindings = bindings;
                launch
            }
        }
    }

    /// Scratch buffers of [`Choice::variant`]'s variant.
    #[must_use]
    pub fn scratch(&self) -> usize {
        2 * usize::from(self.tiling.units != Units::Scalar) + usize::from(self.parts > 1)
    }

    /// A variant that computes `product` of operands 0 and 1 into result 0 by the launch that is made for where the sums go. On
    /// matrix units the operands' scales are found first; the parts of a cut reduction are added up at the end.
    #[must_use]
    pub fn variant(&self, product: Product, x: &[Argument], launch: impl FnOnce(Sums) -> Launch) -> Variant {
        let (mut launches, mut scratch) = (Vec::new(), Vec::new());
        if self.tiling.units != Units::Scalar {
            launches.extend(scales(x));
            scratch.extend([4, 2 * PEAKS]);
        }
        if self.parts == 1 {
            launches.push(launch(Sums::Whole));
        } else {
            let (at, elements) = (scratch.len(), product.batch * product.m * product.n);
            launches.extend([launch(Sums::Scratch(at)), sum_parts(self.parts, elements, at)]);
            scratch.push(self.parts * elements);
        }
        Variant { name: self.name(), launches, scratch }
    }

    /// The launch of the plain product on strided operands `a [B…,M,K]` and `b [B…,K,N]`.
    #[must_use]
    pub fn strided(&self, product: Product, [a, b]: [(Binding, &Layout); 2], sums: Sums) -> Launch {
        let Product { batch, m, n, k, .. } = product;
        let across = lie_across([a.1, b.1]);
        let element = |fours| if fours { "vec4<f32>" } else { "f32" };
        let mut defines = operands([a.1, b.1]);
        defines.extend(define![
            BATCH: batch, M: m, N: n, K: k,
            A_ELEM: element(reads_fours(a.1, usize::from(!across[0]))),
            B_ELEM: element(reads_fours(b.1, usize::from(across[1]))),
        ]);
        self.launch("gemm", defines, product, [a.0, b.0], across, sums)
    }
}

/// For each operand whether its neighbours in memory lie across the reduction rather than along it.
#[must_use]
pub fn lie_across([a, b]: [&Layout; 2]) -> [bool; 2] {
    let (_, [a_row, a_col]) = strides(a);
    let (_, [_, b_col]) = strides(b);
    [a_row == 1 && a_col != 1, b_col == 1]
}

/// The launches that find scales for operands 0 and 1: their largest magnitudes, in scratch 1, and powers of two, in scratch 0.
fn scales(x: &[Argument]) -> [Launch; 2] {
    let span = |argument: &Argument| {
        // From a view's first element to its last: maxima need no order, and what lies between may count.
        let layout = argument.layout;
        let shape = layout.shape();
        let steps = shape.dims().iter().zip(layout.strides());
        let len = steps.map(|(&extent, &stride)| (extent - 1) * stride).sum::<usize>() + 1;
        let fours = layout.offset().is_multiple_of(4) && len.is_multiple_of(4);
        if fours { ("vec4<f32>", layout.offset() / 4, len / 4) } else { ("f32", layout.offset(), len) }
    };
    let [(a, a_from, a_len), (b, b_from, b_len)] = [span(&x[0]), span(&x[1])];
    let mut defines = define![WG: 256, GROUPS: PEAKS, A_ELEM: a, A_FROM: a_from, A_LEN: a_len];
    defines.extend(define![B_ELEM: b, B_FROM: b_from, B_LEN: b_len]);
    let launch =
        |kernel, defines, bindings, workgroups| Launch { bindings, ..Launch::new(kernel, defines, (0, 0), workgroups) };
    let (scales, peaks) = (Binding::Scratch(0), Binding::Scratch(1));
    [
        launch("peaks", defines, vec![Binding::Input(0), Binding::Input(1), peaks], PEAKS),
        launch("scales", define![WG: 256, GROUPS: PEAKS], vec![peaks, scales], 1),
    ]
}

/// The batch axes of an operand, and the strides of its rows and columns.
#[must_use]
pub fn strides(layout: &Layout) -> (Layout, [usize; 2]) {
    let rank = layout.shape().rank();
    let (batch, matrix) = layout.split(&[rank - 2, rank - 1]);
    (batch, [matrix.strides()[0], matrix.strides()[1]])
}

/// Where the elements of both operands are, for the shaders.
#[must_use]
pub fn operands([a, b]: [&Layout; 2]) -> Vec<(&'static str, String)> {
    let (a_batch, [a_row, a_col]) = strides(a);
    let (b_batch, [b_row, b_col]) = strides(b);
    let mut defines = define![A_ROW: a_row, A_COL: a_col, B_ROW: b_row, B_COL: b_col];
    defines.extend([("A_BATCH", offset(&a_batch, "b")), ("B_BATCH", offset(&b_batch, "b"))]);
    defines
}

/// Whether four neighbours along one of the last two axes can be read at once, wherever a multiple of four begins.
fn reads_fours(layout: &Layout, axis: usize) -> bool {
    let (batch, strides) = strides(layout);
    let [along, across] = [strides[axis], strides[1 - axis]];
    let rank = layout.shape().rank();
    let extent = layout.shape().dims()[rank - 2 + axis];
    let fours = |number: usize| number.is_multiple_of(4);
    along == 1 && fours(extent) && fours(across) && fours(batch.offset()) && batch.strides().iter().all(|&s| fours(s))
}

/// The launch that adds up the parts of a reduction, which are in a scratch buffer, into result 0.
fn sum_parts(parts: usize, elements: usize, scratch: usize) -> Launch {
    let defines = define![WG: 256, PARTS: parts, LEN: elements];
    let launch = Launch::new("sum_parts", defines, (0, 1), elements.div_ceil(256));
    Launch { bindings: vec![Binding::Scratch(scratch), Binding::Output(0)], ..launch }.stores_through_epilogue()
}
