//! Matrix products on a GPU: the tilings of the shared WGSL product. Which of them suits a shape is in [`choose`].

mod choose;
mod halves;

pub use halves::{Lines, multiplies_halves};

use super::launch::{Binding, Caps, LINE, Launch, Variant, define};
use super::offset::offset;
use crate::Layout;

/// Elements that an invocation loads at a time.
const BLOCK: usize = 16;

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
    /// In f32, with so many halves of workgroup memory.
    Scalar { halves: usize },
    /// On matrix units, with so many halves.
    Matrix { halves: usize },
}

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
    /// Whether sixteen columns lie beside each other in the result, those from a multiple of sixteen on.
    pub beside: bool,
}

/// How the operands of a product lie in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operands {
    /// Both with their neighbours along the reduction.
    Along,
    /// One so, one as below.
    Mixed,
    /// Both with their neighbours across it.
    Across,
    /// The columns are gathered from images, which takes registers and time.
    Gathered,
}

/// Whether a reduction may be cut into parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    /// No.
    Never,
    /// A launch more adds them up; see [`Choice::variant`].
    Added,
    /// The launch that reads the result adds them up on the way.
    Taken,
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
        let side = if let Units::Scalar { .. } = self.units { 4 } else { 16 };
        [0, 1].map(|axis| side * self.blocks[axis] * self.workers[axis])
    }

    /// Workgroups for one part of the reduction.
    fn tiles(&self, product: Product) -> usize {
        let [rows, columns] = self.extent();
        product.batch * product.m.div_ceil(rows) * product.n.div_ceil(columns)
    }

    /// Bytes of workgroup memory: lines of four along the tile, a little longer than it; on matrix units besides, a
    /// fragment of sums of each subgroup. A multiprocessor of NVIDIA's has 48 KB for all its workgroups through Vulkan,
    /// so that 24 KB let it run two, one of which loads or stores while the other multiplies.
    fn memory(&self) -> usize {
        let [rows, columns] = self.extent();
        let others = self.workers[0] * self.workers[1] * 16 * 20 * 4;
        match self.units {
            Units::Scalar { halves } => halves * self.depth * (rows / 4 + 1 + columns / 4 + 1) * 16,
            Units::Matrix { halves } => halves * self.depth * (rows / 4 + 2 + columns / 4 + 2) * 8 + others,
        }
    }

    fn invocations(&self, caps: &Caps) -> usize {
        let each = if let Units::Scalar { .. } = self.units { 1 } else { caps.subgroup.1 };
        self.workers[0] * self.workers[1] * each
    }

    fn fits(&self, caps: &Caps) -> bool {
        let [rows, columns] = self.extent();
        let invocations = self.invocations(caps);
        self.memory() <= caps.workgroup_memory
            && invocations <= caps.workgroup_size
            && ((rows + columns) * self.depth).is_multiple_of(BLOCK * invocations)
    }

    /// A bound on the iterations of a part of so many terms, as [`Launch::loops`] counts them.
    fn loops(&self, part: usize, unroll: usize) -> usize {
        let steps = part.div_ceil(self.depth);
        match self.units {
            Units::Scalar { .. } => steps.saturating_mul(self.depth / unroll + 2).saturating_add(1),
            // Those that look for scales go over the operands up to three times more, and join what they find in each
            // step.
            Units::Matrix { .. } => steps.saturating_mul(16).saturating_add(256),
        }
    }

    /// The most terms that a part may have on a device that bounds loops, in whole steps.
    fn most(&self, unroll: usize, caps: &Caps) -> usize {
        (caps.loops / (self.depth / unroll + 2) - 1).saturating_mul(self.depth)
    }

    /// Terms of each part but perhaps the last, in whole steps.
    fn part(&self, product: Product, parts: usize) -> usize {
        product.k.div_ceil(parts).next_multiple_of(self.depth)
    }

    /// Into how many parts the reduction is cut, so that about `wanted` workgroups run, each over `least` terms at
    /// least.
    fn parts(&self, product: Product, wanted: usize, least: usize) -> usize {
        (wanted / self.tiles(product)).clamp(1, (product.k / least).clamp(1, 64))
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
    fn new(tiling: Tiling, parts: usize, unroll: usize, caps: &Caps) -> Self {
        Self { tiling, parts, unroll, subgroup: caps.subgroup.1 }
    }

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

    /// A launch of `kernel`, which includes the shared product, with these defines besides the product's. `across` says
    /// for each operand whether its neighbours in memory lie across the reduction.
    #[must_use]
    pub fn launch(
        &self,
        kernel: &'static str,
        mut defines: Vec<(&'static str, String)>,
        product: Product,
        operands: &[Binding],
        across: [bool; 2],
        sums: Sums,
    ) -> Launch {
        let Tiling { units, workers, blocks, depth, .. } = self.tiling;
        let [rows, columns] = self.tiling.extent();
        let [down, over] = workers;
        let (mut bindings, mut plain) = (operands.to_vec(), false);
        let (name, each) = match units {
            Units::Scalar { .. } => ("scalar", 1),
            Units::Matrix { .. } => ("matrix", self.subgroup),
        };
        let invocations = down * over * each;
        defines.extend(define![UNITS: name, FM: blocks[0], FN: blocks[1], PARTS: self.parts]);
        if let Units::Scalar { halves } = units {
            defines.extend(define![TM: down, TN: over, BK: depth, HALVES: halves, UNROLL: self.unroll]);
        } else {
            let halves = if let Units::Matrix { halves } = units { halves } else { 1 };
            defines.extend(define![SM: down, SN: over, STEPS: depth / 16, HALVES: halves]);
            defines.extend(define![SUBGROUP: self.subgroup, EACH: 256 / self.subgroup]);
            let whole = product.beside && product.m.is_multiple_of(rows) && product.n.is_multiple_of(columns);
            match sums {
                Sums::Whole if whole => plain = true,
                Sums::Scratch(_) if whole => defines.extend(define![PLAIN: "parts"]),
                _ => defines.extend(define![PLAIN: "none"]),
            }
        }
        let [a_along, b_along] = [if across[0] { "row" } else { "k" }, if across[1] { "column" } else { "k" }];
        let loads = (rows + columns) * depth / (BLOCK * invocations);
        defines.extend(define![LOADS: loads, A_ALONG: a_along, B_ALONG: b_along]);
        let loops = self.tiling.loops(self.tiling.part(product, self.parts), self.unroll);
        let mut launch = Launch::new(kernel, defines, (0, 0), self.workgroups(product)).loops(loops);
        match sums {
            Sums::Whole => {
                launch.bindings = bindings;
                launch.defines.extend(define![SUMS: "whole"]);
                Launch { plain, ..launch.stores_through_epilogue() }
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
        usize::from(self.parts > 1)
    }

    /// A variant that computes `product` into result 0 by the launch that is made for where the sums go; the parts of a
    /// cut reduction are added up at the end.
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
            BATCH: batch, M: m, N: n, K: k,
            A_ELEM: element(reads_fours(a.1, usize::from(!across[0]))),
            B_ELEM: element(reads_fours(b.1, usize::from(across[1]))),
        ]);
        self.launch("gemm", defines, product, &[a.0, b.0], across, sums)
    }
}

/// For each operand whether its neighbours in memory lie across the reduction rather than along it.
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

/// Where the elements of both operands are, for the shaders.
#[must_use]
pub fn operands([a, b]: [&Layout; 2]) -> Vec<(&'static str, String)> {
    let (a_batch, [a_row, a_col]) = strides(a);
    let (b_batch, [b_row, b_col]) = strides(b);
    let mut defines = define![A_ROW: a_row, A_COL: a_col, B_ROW: b_row, B_COL: b_col];
    defines.extend([("A_BATCH", offset(&a_batch, "b")), ("B_BATCH", offset(&b_batch, "b"))]);
    defines
}

/// The type of a binding's elements that is read by fours, or else one by one.
#[must_use]
pub fn element(fours: bool) -> &'static str {
    if fours { "vec4<f32>" } else { "f32" }
}

/// Whether four neighbours along one of the last two axes can be read at once, wherever a multiple of four begins.
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

/// How the parts of a reduction lie.
pub struct Parts {
    /// Elements of a part.
    pub elements: usize,
    /// Elements that lie beside each other in the result and far from each other in a part, at most 256.
    pub taps: usize,
    /// A WGSL expression for the place of element `i` in a part.
    pub at: String,
}

/// The same where parts lie in another order than the result.
#[must_use]
pub fn sum_parts_at(parts: usize, elements: usize, scratch: usize, order: &Parts) -> Launch {
    let Parts { elements: part, taps, at } = order;
    let defines = define![WG: 256, PARTS: parts, PART: part, LEN: elements, TAPS: taps, AT: at];
    let workgroups = elements.div_ceil(256 / taps * taps);
    let launch = Launch::new("sum_parts", defines, (0, 1), workgroups).loops(parts + 1);
    Launch { bindings: vec![Binding::Scratch(scratch), Binding::Output(0)], ..launch }.stores_through_epilogue()
}

/// The same where result 0 is stored in lines, and parts lie in its order.
#[must_use]
pub fn sum_parts_by_lines(parts: usize, elements: usize, scratch: usize) -> Launch {
    let mut launch = sum_parts(parts, elements, scratch).by_lines();
    launch.defines.extend(define![LINES: 1]);
    launch.workgroups = (elements / LINE).div_ceil(256);
    launch
}
