//! Matrix products on a GPU: the tilings of the shared WGSL product, and which of them suits a shape.

use super::launch::{Binding, Caps, Kind, Launch, define};

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
            TM: tm, TN: tn, FM: fm, FN: fn_, BK: depth, UNROLL: 4, PARTS: self.parts,
            LOADS: (rows + columns) * depth / (16 * tm * tn),
        ]
    }

    /// The variant's name: the tiling's, and whether the reduction is cut.
    #[must_use]
    pub fn name(&self) -> &'static str {
        if self.parts == 1 { self.tiling.name } else { "split tiles" }
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
        let mut choices: Vec<_> = order.iter().map(|&tiling| Choice { tiling, parts: 1 }).collect();
        let cut = parts(&order[0]);
        if cut > 1 {
            choices.insert(0, Choice { tiling: order[0], parts: cut });
        }
        choices
    }
}

/// The launch that adds up the parts of a reduction, which are in scratch 0, into result 0.
#[must_use]
pub fn sum_parts(parts: usize, elements: usize) -> Launch {
    let defines = define![WG: 256, PARTS: parts, LEN: elements];
    let launch = Launch::new("sum_parts", defines, (0, 1), elements.div_ceil(256));
    Launch { bindings: vec![Binding::Scratch(0), Binding::Output(0)], ..launch }.stores_through_epilogue()
}
