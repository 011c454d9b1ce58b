//! Matrix products on a GPU: the tilings of the shared WGSL product, and which of them suits a shape.

use super::launch::{Binding, Caps, Kind, Launch, Variant, define, offset};
use crate::Layout;

/// How a workgroup computes a tile of a product; see `shared/gemm.wgsl`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tiling {
    /// The name of the variants that are tiled so.
    pub name: &'static str,
    /// Invocations down and across a tile.
    invocations: [usize; 2],
    /// Blocks of 4×4 elements that each of them computes, down and across.
    blocks: [usize; 2],
    /// Elements along the reduction that are in workgroup memory at a time.
    depth: usize,
}

/// 128×128: the most products for each element that is read.
const LARGE: Tiling = Tiling { name: "tile 128", invocations: [16, 8], blocks: [2, 4], depth: 16 };
/// The same in half the workgroup memory.
const LARGE_SHALLOW: Tiling = Tiling { name: "tile 128 shallow", depth: 8, ..LARGE };
/// 64×64: four times as many workgroups.
const MEDIUM: Tiling = Tiling { name: "tile 64", invocations: [8, 8], blocks: [2, 2], depth: 16 };
/// The same in half the workgroup memory.
const MEDIUM_SHALLOW: Tiling = Tiling { name: "tile 64 shallow", depth: 8, ..MEDIUM };
/// 32×32, for small matrices.
const SMALL: Tiling = Tiling { name: "tile 32", invocations: [8, 8], blocks: [1, 1], depth: 16 };

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
}

/// A tiling, and the number of parts that the reduction is cut into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    /// The tiling.
    pub tiling: Tiling,
    /// Parts of the reduction, each with workgroups of its own.
    pub parts: usize,
    /// Steps of the reduction that are written out in a row.
    unroll: usize,
}

impl Tiling {
    /// Rows and columns of a tile.
    fn extent(&self) -> [usize; 2] {
        [0, 1].map(|axis| 4 * self.blocks[axis] * self.invocations[axis])
    }

    /// Workgroups for one part of the reduction.
    fn tiles(&self, product: Product) -> usize {
        let [rows, columns] = self.extent();
        product.batch * product.m.div_ceil(rows) * product.n.div_ceil(columns)
    }

    /// Bytes of workgroup memory: two halves, each line of four one longer than the tile.
    fn memory(&self) -> usize {
        let [rows, columns] = self.extent();
        2 * self.depth * (rows / 4 + 1 + columns / 4 + 1) * 16
    }

    fn fits(&self, caps: &Caps) -> bool {
        self.memory() <= caps.workgroup_memory && self.invocations[0] * self.invocations[1] <= caps.workgroup_size
    }
}

impl Choice {
    /// What the shared product's holes are filled with.
    #[must_use]
    pub fn defines(&self) -> Vec<(&'static str, String)> {
        let Tiling { invocations: [tm, tn], blocks: [fm, fn_], depth, .. } = self.tiling;
        let [rows, columns] = self.tiling.extent();
        define![
            TM: tm, TN: tn, FM: fm, FN: fn_, BK: depth, UNROLL: self.unroll, PARTS: self.parts,
            LOADS: (rows + columns) * depth / (16 * tm * tn),
        ]
    }

    /// The number of workgroups.
    #[must_use]
    pub fn workgroups(&self, product: Product) -> usize {
        self.parts * self.tiling.tiles(product)
    }
}

impl Product {
    /// Ways to tile this, best first; never empty.
    ///
    /// A tile of 128 wins where there are enough of them for every multiprocessor; else smaller ones do, and where even those
    /// are few, the reduction is cut into parts.
    #[must_use]
    pub fn choices(self, caps: &Caps) -> Vec<Choice> {
        // Workgroups that keep a device of this kind busy.
        let busy = match caps.kind {
            Kind::Discrete => 128,
            Kind::Integrated => 16,
            Kind::Software => 1,
        };
        // A driver that compiles for the CPU takes seconds for what a GPU's takes a moment.
        let unroll = if caps.kind == Kind::Software { 1 } else { 4 };
        let mut order = vec![LARGE, LARGE_SHALLOW, MEDIUM, MEDIUM_SHALLOW, SMALL];
        order.retain(|tiling| tiling.fits(caps));
        let enough = |tiling: &Tiling| {
            let side = tiling.extent()[0];
            let small = self.m.min(self.n);
            tiling.tiles(self) >= busy && (small > side / 2 || *tiling == SMALL)
        };
        let best = order.iter().position(enough).unwrap_or(order.len() - 1);
        order[..=best].rotate_right(1);
        let parts = |tiling: &Tiling| {
            // Each part should keep a few steps of the reduction; the sums of the parts cost a pass over the result.
            let most = self.k / (8 * tiling.depth);
            (2 * busy / tiling.tiles(self)).clamp(1, most.clamp(1, 32))
        };
        let mut choices: Vec<_> = order.iter().map(|&tiling| Choice { tiling, parts: 1, unroll }).collect();
        let cut = parts(&order[0]);
        if cut > 1 {
            choices.insert(0, Choice { tiling: order[0], parts: cut, unroll });
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
    /// The launch of the shared product on strided operands `a [B…,M,K]` and `b [B…,K,N]`.
    #[must_use]
    pub fn launch(&self, product: Product, [a, b]: [(Binding, &Layout); 2], sums: Sums) -> Launch {
        let Product { batch, m, n, k } = product;
        let mut defines = self.defines();
        defines.extend(operands([a.1, b.1]));
        defines.extend(define![BATCH: batch, M: m, N: n, K: k]);
        // Neighbours that are read together: along the reduction, unless those across it are neighbours in memory.
        let (_, [a_row, a_col]) = strides(a.1);
        let (_, [_, b_col]) = strides(b.1);
        let (a_down, b_across) = (a_row == 1 && a_col != 1, b_col == 1);
        let element = |fours| if fours { "vec4<f32>" } else { "f32" };
        defines.extend(define![
            A_ALONG: if a_down { "row" } else { "k" },
            B_ALONG: if b_across { "column" } else { "k" },
            A_ELEM: element(reads_fours(a.1, usize::from(!a_down))),
            B_ELEM: element(reads_fours(b.1, usize::from(b_across))),
        ]);
        let launch = Launch::new("gemm", defines, (0, 0), self.workgroups(product));
        sums.bind(launch, vec![a.0, b.0])
    }

    /// A variant that launches `kernel`, which includes the shared product, with these defines besides its own, and adds up
    /// the parts if the reduction is cut. It reads operands 0 and 1.
    #[must_use]
    pub fn variant(&self, product: Product, launch: impl FnOnce(Sums) -> Launch) -> Variant {
        if self.parts == 1 {
            return Variant::simple(self.tiling.name, launch(Sums::Whole));
        }
        let elements = product.batch * product.m * product.n;
        Variant {
            name: "tiles, split",
            launches: vec![launch(Sums::Scratch(0)), sum_parts(self.parts, elements)],
            scratch: vec![self.parts * elements],
        }
    }
}

impl Sums {
    /// The launch with these operands, and its sums bound and defined.
    #[must_use]
    pub fn bind(self, mut launch: Launch, operands: Vec<Binding>) -> Launch {
        launch.bindings = operands;
        let sums = if self == Self::Whole { "whole" } else { "parts" };
        launch.defines.push(("SUMS", sums.into()));
        match self {
            Self::Whole => launch.stores_through_epilogue(),
            Self::Scratch(at) => {
                launch.bindings.push(Binding::Scratch(at));
                launch
            }
        }
    }
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

/// The launch that adds up the parts of a reduction, which are in scratch 0, into result 0.
#[must_use]
pub fn sum_parts(parts: usize, elements: usize) -> Launch {
    let defines = define![WG: 256, PARTS: parts, LEN: elements];
    let launch = Launch::new("sum_parts", defines, (0, 1), elements.div_ceil(256));
    Launch { bindings: vec![Binding::Scratch(0), Binding::Output(0)], ..launch }.stores_through_epilogue()
}
