//! Operands that are packed in f16 before they are multiplied on matrix units; see `shared/packed.wgsl`.

use super::{Choice, Product, Sums, strides};
use crate::Layout;
use crate::kernel::launch::{Binding, Launch, define, tree};

/// The side of the blocks that are scaled by one power each.
const BLOCK: usize = 32;

/// A matrix that can be packed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packable {
    /// Elements of its lines of eight, a multiple of 8.
    x: usize,
    /// Elements across them.
    y: usize,
    begin: usize,
    pitch: usize,
    /// Whether its lines lie along its rows' axis.
    down: bool,
}

impl Packable {
    /// The matrix of this layout, `None` where it cannot be packed. Lines are made of elements that are not neighbours in memory, so
    /// that invocations beside each other read and write what is beside each other.
    #[must_use]
    pub fn new(layout: &Layout) -> Option<Self> {
        let (batch, [row, column]) = strides(layout);
        let &[.., rows, columns] = layout.shape().dims() else { return None };
        let (x, y, pitch, down) = if column == 1 { (rows, columns, row, true) } else { (columns, rows, column, false) };
        let fits = layout.shape().rank() == 2 && (column == 1 || row == 1) && x.is_multiple_of(8);
        fits.then_some(Self { x, y, begin: batch.offset(), pitch, down })
    }

    /// The launch that packs it, from its binding to those of what it takes: for itself, and for the exponents of its blocks; and the
    /// floats of these.
    #[must_use]
    pub fn pack(&self, from: Binding, to: [Binding; 2]) -> (Launch, [usize; 2]) {
        let defines = define![X: self.x, Y: self.y, BEGIN: self.begin, PITCH: self.pitch];
        let blocks = self.x.div_ceil(BLOCK) * self.y.div_ceil(BLOCK);
        let launch = Launch::new("gemm_pack", defines, (0, 0), blocks).loops(tree(128));
        (Launch { bindings: vec![from, to[0], to[1]], ..launch }, [self.x * self.y / 2, blocks])
    }

    /// For the operands `[M,K]` and `[K,N]` of a product, whether their lines lie across the reduction.
    #[must_use]
    pub fn across([a, b]: [&Self; 2]) -> [bool; 2] {
        [a.down, !b.down]
    }
}

impl Choice {
    /// The launch of the product of packed operands: both, then the exponents of both. `across` says for each whether its lines lie
    /// across the reduction.
    #[must_use]
    pub fn packed(&self, product: Product, operands: &[Binding; 4], across: [bool; 2], sums: Sums) -> Launch {
        let defines = define![BATCH: product.batch, M: product.m, N: product.n, K: product.k];
        self.launch("gemm_of_packed", defines, product, operands, across, sums)
    }
}
