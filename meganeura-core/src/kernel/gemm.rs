//! Matrix products on a GPU: launches of the WGSL engine `shared/gemm` in a tiling. [`tilings`] has the tilings, and
//! picks those that suit a shape; [`bf16`] multiplies operands in bf16, [`ordered`] those that it puts in the order of
//! matrix units.

mod bf16;
mod ordered;
mod tilings;

pub use bf16::{Lines, multiplies_bf16};
pub use tilings::{LAUNCH, time_of_sums};

use super::fragments::{Fragments, PITCH_SUMS};
use super::launch::{Access, Binding, Caps, Define, Kind, LINE, Launch, Variant, Workgroups, define, workgroup_memory};
use super::offset::offset;
use crate::Layout;

/// Rows of a result whose tiles workgroups take column by column. Those that run at once then read operands of a few
/// megabytes, which stay in the cache.
const GROUPED_ROWS: usize = 2048;

/// Elements that an invocation loads at a time.
const BLOCK: usize = 16;

/// A way for a workgroup to compute a tile of a product; see `shared/gemm.wgsl`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tiling {
    /// The variant's name.
    name: &'static str,
    /// Its name where the reduction is cut.
    split: &'static str,
    units: Units,
    /// Invocations, or on matrix units subgroups, down and across a tile.
    workers: [usize; 2],
    /// Blocks of 4×4, or on matrix units fragments of 16×16, that each of them computes, down and across.
    blocks: [usize; 2],
    /// Elements along the reduction that are in workgroup memory at a time.
    depth: usize,
}

/// The arithmetic units, and the number of steps that workgroup memory holds: 2 is double buffering.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Units {
    /// Scalar f32 arithmetic.
    Scalar { stages: usize },
    /// Matrix units on f16.
    Matrix { stages: usize },
}

/// The consequences of a tiling's units.
struct Traits {
    /// The value of the define `UNITS`.
    name: &'static str,
    /// Steps that workgroup memory holds.
    stages: usize,
    /// Rows, and columns, of a worker's block.
    side: usize,
    /// `true` if a worker is a subgroup, `false` if it is an invocation.
    is_subgroup: bool,
    /// Steps of a round of the kernel's loop.
    round: usize,
    /// Padding after each term's row of a tile in workgroup memory, in groups of four elements.
    gap: usize,
    /// For a tiling and its unroll factor: iterations per step, and iterations of a part outside its steps.
    loops: fn(&Tiling, usize) -> [usize; 2],
    /// The defines of a choice that only these units have.
    defines: fn(&Choice) -> Vec<Define>,
    /// `true` if sums can be stored without the epilogue, which takes the define `PLAIN`.
    can_be_plain: bool,
}

impl Units {
    fn traits(self) -> Traits {
        match self {
            Self::Scalar { stages } => Traits {
                name: "scalar",
                stages,
                side: 4,
                is_subgroup: false,
                round: 1,
                // The pitch is odd, so that stores of neighbouring terms hit different banks.
                gap: 1,
                loops: |tiling, unroll| [tiling.depth / unroll + 2, 1],
                defines: Choice::scalar_defines,
                can_be_plain: false,
            },
            Self::Matrix { stages } => Traits {
                name: "matrix",
                stages,
                side: 16,
                is_subgroup: true,
                round: stages,
                // 16 bytes more than the tile, so that neighbouring terms lie in different banks.
                gap: 2,
                // Finding the powers of two goes over the operands up to three times more, and reduces in each step.
                loops: |_, _| [16, 256],
                defines: Choice::matrix_defines,
                can_be_plain: true,
            },
        }
    }
}

/// Extents of a batch of products `[M,K]·[K,N]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Product {
    /// The number of products.
    pub batch: usize,
    /// Rows of the result.
    pub m: usize,
    /// Columns of the result.
    pub n: usize,
    /// Terms of each sum.
    pub k: usize,
    /// The order of the operands in memory.
    pub operands: Operands,
    /// `true` if columns `16·i..16·(i + 1)` of a row are always adjacent in the result.
    pub beside: bool,
}

impl Product {
    /// `true` for small products on a driver that compiles for the CPU: compiling a tile takes longer than it saves.
    #[must_use]
    pub fn is_not_worth_tiles(self, caps: &Caps) -> bool {
        let Self { batch, m, n, k, .. } = self;
        caps.kind == Kind::Software && batch.saturating_mul(m).saturating_mul(n).saturating_mul(k) <= 1 << 16
    }
}

/// The order of a product's operands in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operands {
    /// In both, neighbours along the reduction are adjacent.
    Along,
    /// One is as in `Along`, one as in `Across`.
    Mixed,
    /// In both, neighbours across the reduction are adjacent.
    Across,
    /// The columns of the second are gathered from images, which takes registers and time.
    Gathered,
}

/// The ways in which a reduction may be cut into parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    /// It may not be cut.
    Never,
    /// An additional launch adds up the parts; see [`Choice::variant`].
    Added,
    /// The launch that reads the result adds up the parts on the way.
    Taken,
}

/// A tiling, and the number of parts that the reduction is cut into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    tiling: Tiling,
    /// Parts of the reduction, each with workgroups of its own.
    pub parts: usize,
    /// The unroll factor of scalar loops.
    unroll: usize,
    /// Invocations of a subgroup.
    subgroup: usize,
}

impl Tiling {
    /// Rows and columns of a tile.
    fn extent(&self) -> [usize; 2] {
        let side = self.units.traits().side;
        [0, 1].map(|axis| side * self.blocks[axis] * self.workers[axis])
    }

    /// Tiles down and across.
    fn grid(&self, product: Product) -> [usize; 2] {
        let [rows, columns] = self.extent();
        [product.m.div_ceil(rows), product.n.div_ceil(columns)]
    }

    /// Workgroups for one part of the reduction.
    fn tiles(&self, product: Product) -> usize {
        let [down, across] = self.grid(product);
        product.batch * down * across
    }

    /// The pitches in workgroup memory of each operand's terms, in fours.
    fn pitches(&self) -> [usize; 2] {
        self.extent().map(|side| side / 4 + self.units.traits().gap)
    }

    /// The fours of workgroup memory of each operand's steps.
    fn fours(&self) -> [usize; 2] {
        self.pitches().map(|pitch| self.units.traits().stages * self.depth * pitch)
    }

    /// The tile as matrix units compute it.
    fn fragments(&self) -> Fragments {
        Fragments { subgroups: self.workers, each: self.blocks }
    }

    /// Bytes of workgroup memory: the steps of both operands, and on matrix units a fragment of sums of each subgroup
    /// and a flag. If two workgroups fit on a multiprocessor, one loads or stores while the other multiplies.
    fn memory(&self) -> usize {
        match self.units {
            Units::Scalar { .. } => workgroup_memory(&self.fours().map(|fours| 16 * fours)),
            Units::Matrix { .. } => self.fragments().memory(self.fours(), 1, false) + workgroup_memory(&[16]),
        }
    }

    /// Invocations of a workgroup, for subgroups of so many.
    fn invocations(&self, subgroup: usize) -> usize {
        self.workers[0] * self.workers[1] * if self.units.traits().is_subgroup { subgroup } else { 1 }
    }

    fn fits(&self, caps: &Caps) -> bool {
        let [rows, columns] = self.extent();
        let invocations = self.invocations(caps.subgroup.1);
        self.memory() <= caps.workgroup_memory
            && invocations <= caps.workgroup_size
            && ((rows + columns) * self.depth).is_multiple_of(BLOCK * invocations)
    }

    /// Iterations of a step, and of a part besides those of its steps.
    fn iterations(&self, unroll: usize) -> [usize; 2] {
        (self.units.traits().loops)(self, unroll)
    }

    /// A bound on the iterations of a part of so many terms, as [`Workgroups::loops`] counts them.
    fn loops(&self, part: usize, unroll: usize) -> usize {
        let [of_step, of_part] = self.iterations(unroll);
        part.div_ceil(self.depth).saturating_mul(of_step).saturating_add(of_part)
    }

    /// The most terms of a part on a device that bounds loops, in whole steps.
    fn most(&self, unroll: usize, caps: &Caps) -> usize {
        (caps.loops / self.iterations(unroll)[0] - 1).saturating_mul(self.depth)
    }

    /// Terms of each part but perhaps the last, in whole rounds.
    fn part(&self, product: Product, parts: usize) -> usize {
        product.k.div_ceil(parts).next_multiple_of(self.units.traits().round * self.depth)
    }

    /// The number of parts for about `wanted` workgroups, each of which has at least `least` terms.
    fn parts(&self, product: Product, wanted: usize, least: usize) -> usize {
        (wanted / self.tiles(product)).clamp(1, (product.k / least).clamp(1, 64))
    }
}

/// The destination of a tiled launch's sums.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sums {
    /// To result 0, each once, through the epilogue.
    Whole,
    /// To a scratch buffer, part after part.
    Scratch(usize),
}

impl Choice {
    fn new(tiling: Tiling, parts: usize, unroll: usize, caps: &Caps) -> Self {
        Self { tiling, parts, unroll, subgroup: caps.subgroup.1 }
    }

    /// The defines that `shared/gemm` takes with `UNITS` scalar alone.
    fn scalar_defines(&self) -> Vec<Define> {
        let [down, across] = self.tiling.workers;
        define![TM: down, TN: across, UNROLL: self.unroll]
    }

    /// The defines that `shared/gemm` takes with `UNITS` matrix alone, but for `PLAIN`.
    fn matrix_defines(&self) -> Vec<Define> {
        let Tiling { workers: [_, across], depth, .. } = self.tiling;
        let sums = 4 * self.tiling.fragments().fours_of_sums(1);
        define![
            SN: across, STEPS: depth / 16, SUBGROUP: self.subgroup, EACH: 256 / self.subgroup,
            PITCH: 4 * PITCH_SUMS, FLOATS_OF_SUMS: sums,
        ]
    }

    /// The variant's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        if self.parts == 1 { self.tiling.name } else { self.tiling.split }
    }

    /// The workgroups of a tiled launch.
    #[must_use]
    pub fn workgroups(&self, product: Product) -> Workgroups {
        Workgroups::new(self.parts * self.tiling.tiles(product), self.tiling.invocations(self.subgroup))
            .with_memory(&[self.tiling.memory()])
            .looping(self.tiling.loops(self.tiling.part(product, self.parts), self.unroll))
    }

    /// A launch of `kernel`, which includes `shared/gemm`, with these defines besides those of `shared/gemm`. `across`
    /// is `true` for operands whose adjacent elements lie across the reduction.
    #[must_use]
    pub fn launch(
        &self,
        kernel: &'static str,
        mut defines: Vec<Define>,
        product: Product,
        operands: &[Binding],
        across: [bool; 2],
        sums: Sums,
    ) -> Launch {
        let Tiling { units, blocks, depth, .. } = self.tiling;
        let Traits { name, stages, can_be_plain, defines: of_units, .. } = units.traits();
        let ([rows, columns], [tiles_m, tiles_n]) = (self.tiling.extent(), self.tiling.grid(product));
        let ([pitch_a, pitch_b], [fours_a, fours_b]) = (self.tiling.pitches(), self.tiling.fours());
        let workgroups = self.workgroups(product);
        let (mut bindings, mut access) = (operands.to_vec(), Access::Elements);
        defines.extend(define![
            UNITS: name, FM: blocks[0], FN: blocks[1], BM: rows, BN: columns, BK: depth, STAGES: stages,
            TILES_M: tiles_m, TILES_N: tiles_n, PARTS: self.parts, PART_K: self.tiling.part(product, self.parts),
            PITCH_A: pitch_a, PITCH_B: pitch_b, FOURS_A: fours_a, FOURS_B: fours_b,
        ]);
        defines.extend(of_units(self));
        if can_be_plain {
            let whole = product.beside && product.m.is_multiple_of(rows) && product.n.is_multiple_of(columns);
            match sums {
                Sums::Whole if whole => access = Access::ElementsOrPlain,
                Sums::Scratch(_) if whole => defines.extend(define![PLAIN: "parts"]),
                _ => defines.extend(define![PLAIN: "none"]),
            }
        }
        let [a_along, b_along] = [if across[0] { "row" } else { "k" }, if across[1] { "column" } else { "k" }];
        let loads = (rows + columns) * depth / (BLOCK * workgroups.invocations);
        defines.extend(define![LOADS: loads, A_ALONG: a_along, B_ALONG: b_along]);
        let mut launch = Launch::new(kernel, defines, (0, 0), workgroups);
        match sums {
            Sums::Whole => {
                launch.bindings = bindings;
                launch.defines.extend(define![SUMS: "whole"]);
                Launch { access, ..launch.stores_through_epilogue() }
            }
            Sums::Scratch(at) => {
                launch.defines.extend(define![SUMS: "parts", SUMS_AT: bindings.len()]);
                bindings.push(Binding::Scratch(at));
                launch.bindings = bindings;
                launch
            }
        }
    }

    /// The number of scratch buffers that [`Choice::variant`] needs.
    #[must_use]
    pub fn scratch(&self) -> usize {
        usize::from(self.parts > 1)
    }

    /// A variant that computes `product` into result 0. `launch` makes the tiled launch for a destination of its sums.
    /// Where the reduction is cut, a further launch adds up the parts.
    #[must_use]
    pub fn variant(&self, product: Product, launch: impl FnOnce(Sums) -> Launch) -> Variant {
        if self.parts == 1 {
            return Variant::simple(self.name(), launch(Sums::Whole));
        }
        let elements = product.batch * product.m * product.n;
        let launches = vec![launch(Sums::Scratch(0)), sum_parts(self.parts, elements, 0)];
        Variant { name: self.name(), launches, scratch: vec![self.parts * elements] }
    }

    /// The launch of the plain product on strided operands `a [B…,M,K]` and `b [B…,K,N]`.
    #[must_use]
    pub fn strided(&self, product: Product, [a, b]: [(Binding, &Layout); 2], sums: Sums) -> Launch {
        let Product { batch, m, n, k, .. } = product;
        let across = lie_across([a.1, b.1]);
        let mut defines = operands([a.1, b.1]);
        defines.extend(define![
            BATCH: batch, M: m, N: n, K: k, GROUP: GROUPED_ROWS / self.tiling.extent()[0],
            A_ELEM: element(reads_fours(a.1, usize::from(!across[0]))),
            B_ELEM: element(reads_fours(b.1, usize::from(across[1]))),
        ]);
        self.launch("gemm", defines, product, &[a.0, b.0], across, sums)
    }
}

/// `true` for operands whose adjacent elements lie across the reduction rather than along it.
#[must_use]
pub fn lie_across([a, b]: [&Layout; 2]) -> [bool; 2] {
    let (_, [a_row, a_col]) = strides(a);
    let (_, [_, b_col]) = strides(b);
    [a_row == 1 && a_col != 1, b_col == 1]
}

/// The batch axes of an operand, and the strides of its rows and columns.
#[must_use]
pub fn strides(layout: &Layout) -> (Layout, [usize; 2]) {
    let rank = layout.shape().rank();
    let (batch, matrix) = layout.split(&[rank - 2, rank - 1]);
    (batch, [matrix.strides()[0], matrix.strides()[1]])
}

/// Defines for the places of both operands' elements.
#[must_use]
pub fn operands([a, b]: [&Layout; 2]) -> Vec<Define> {
    let (a_batch, [a_row, a_col]) = strides(a);
    let (b_batch, [b_row, b_col]) = strides(b);
    let mut defines = define![A_ROW: a_row, A_COL: a_col, B_ROW: b_row, B_COL: b_col];
    defines.extend([("A_BATCH", offset(&a_batch, "b")), ("B_BATCH", offset(&b_batch, "b"))]);
    defines
}

/// The element type of a binding that is read in fours, or else one by one.
#[must_use]
pub fn element(fours: bool) -> &'static str {
    if fours { "vec4<f32>" } else { "f32" }
}

/// `true` if four neighbours along one of the last two axes can be read at once, from every multiple of four on.
#[must_use]
pub fn reads_fours(layout: &Layout, axis: usize) -> bool {
    let (batch, strides) = strides(layout);
    let [along, across] = [strides[axis], strides[1 - axis]];
    let rank = layout.shape().rank();
    let extent = layout.shape().dims()[rank - 2 + axis];
    let fours = |number: usize| number.is_multiple_of(4);
    along == 1 && fours(extent) && fours(across) && fours(batch.offset()) && batch.strides().iter().all(|&s| fours(s))
}

/// The launch that adds up the parts of a reduction, which are in a scratch buffer, into result 0.
#[must_use]
pub fn sum_parts(parts: usize, elements: usize, scratch: usize) -> Launch {
    sum_parts_at(parts, elements, scratch, &Parts { elements, taps: 1, at: "i".into() })
}

/// The order of a part's elements.
pub struct Parts {
    /// Elements of a part.
    pub elements: usize,
    /// Elements that are adjacent in the result and far apart in a part, at most 256.
    pub taps: usize,
    /// A WGSL expression for the place of element `i` in a part.
    pub at: String,
}

/// The number of parts from which several invocations share a sum, where sums pass through workgroup memory anyway; and
/// the most of them.
const MANY_PARTS: usize = 32;
const SLICES: usize = 16;

/// [`sum_parts`] for parts whose order is not the result's.
#[must_use]
pub fn sum_parts_at(parts: usize, elements: usize, scratch: usize, order: &Parts) -> Launch {
    let Parts { elements: part, taps, at } = order;
    let rows = sums_rows(*taps, elements);
    let unit = if rows { taps * LINE } else { *taps };
    // Few elements of many parts: several invocations for each.
    let slices = if *taps > 1 && parts >= MANY_PARTS { (256 / unit).min(SLICES) } else { 1 };
    let wg = 256 / (unit * slices) * (unit * slices);
    let defines = define![PARTS: parts, PART: part, LEN: elements, TAPS: taps, AT: at, SLICES: slices];
    // Elements that are far apart in a part change places.
    let memory = if *taps == 1 { 0 } else { 4 * wg };
    let loops = parts.div_ceil(slices) + slices + 2;
    let mut workgroups = Workgroups::of(elements, wg / slices).with_memory(&[memory]).looping(loops);
    workgroups.invocations = wg;
    let launch = Launch::new("sum_parts", defines, (0, 1), workgroups);
    let bindings = vec![Binding::Scratch(scratch), Binding::Output(0)];
    let access = if rows { Access::ElementsOrLines } else { Access::Elements };
    Launch { bindings, access, ..launch }.stores_through_epilogue()
}

/// `true` if [`sum_parts_at`] can also store its result by lines.
#[must_use]
pub fn sums_rows(taps: usize, elements: usize) -> bool {
    taps * LINE <= 256 && elements.is_multiple_of(LINE)
}

/// [`sum_parts`] where result 0 is stored in lines, and parts have its order.
#[must_use]
pub fn sum_parts_by_lines(parts: usize, elements: usize, scratch: usize) -> Launch {
    let mut launch = sum_parts(parts, elements, scratch).by_lines();
    launch.defines.extend(define![LINES: 1]);
    launch.workgroups.count = (elements / LINE).div_ceil(launch.workgroups.invocations);
    launch
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_invocation_that_shares_a_sum_has_parts() {
        for taps in [1, 2, 3, 4, 9, 15, 25, 49, 121, 256] {
            for parts in [1, 2, 31, 32, 33, 396] {
                for elements in [taps * 5, taps * 8] {
                    let order = Parts { elements, taps, at: "i".into() };
                    let launch = sum_parts_at(parts, elements, 0, &order);
                    let of = |name| launch.defines.iter().find(|(define, _)| *define == name).expect("it is defined");
                    let [slices, wg] = ["SLICES", "WG"].map(|name| of(name).1.parse::<usize>().expect("a number"));
                    let unit = if sums_rows(taps, elements) { taps * LINE } else { taps };
                    assert!(slices <= parts && wg <= 256 && wg.is_multiple_of(slices * unit), "{taps}, {parts}");
                    assert_eq!(launch.workgroups.count, elements.div_ceil(wg / slices));
                    assert!(slices == 1 || taps > 1);
                }
            }
        }
    }
}
