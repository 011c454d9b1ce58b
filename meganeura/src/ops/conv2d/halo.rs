//! Convolutions without stride on matrix units, gradients of the input among them, whose tiles have what they read of the images in
//! workgroup memory once for all taps; see `shared/gemm_halo.wgsl`.

use super::Geometry;
use super::pass::Pass;
use super::tile::Tile;
use crate::kernel::gemm::{Choice, HALO_COLUMNS, Halo, Operands, Product};
use crate::kernel::launch::{Binding, Caps, Launch, Variant, define, tree};

/// What a tile reads of images.
fn halo(tile: &Tile, g: &Geometry) -> Halo {
    Halo { taps: g.kernel[0] * g.kernel[1], pixels: tile.halo(g), inside: tile.inputs(g) }
}

/// The weights that a pass multiplies with, and how they are packed.
#[derive(Clone, Copy)]
pub(super) struct Weights<'g> {
    of: &'g Geometry,
    form: &'static str,
    /// The product's rows and the channels that it sums over, of a group.
    extents: [usize; 2],
}

impl<'g> Weights<'g> {
    pub(super) fn new(pass: Pass, of: &'g Geometry) -> Self {
        let (o, c) = (of.o / of.groups, of.c / of.groups);
        let (form, extents) = if pass == Pass::Forward { ("forward", [o, c]) } else { ("grad_input", [c, o]) };
        Self { of, form, extents }
    }

    fn taps(&self) -> usize {
        self.of.kernel[0] * self.of.kernel[1]
    }

    /// Blocks of eight channels of a tile's rows, each with a power of two of its own.
    fn blocks(&self, rows: usize) -> usize {
        self.of.groups * self.extents[0].div_ceil(rows) * (self.extents[1] / 8)
    }

    /// Whether a workgroup of the kernel that packs them has memory for a block, and what its peak is found with.
    pub(super) fn pack_fits(&self, rows: usize, caps: &Caps) -> bool {
        16 * self.taps() * (rows + 2) + 1024 <= caps.workgroup_memory
    }

    /// The launch that rounds them and brings them into order, for tiles of so many rows.
    pub(super) fn pack(&self, rows: usize, packed: Binding, powers: Binding) -> Launch {
        let (g, taps, blocks) = (self.of, self.taps(), self.blocks(rows));
        let defines = define![
            G: g.groups, TAPS: taps, ROWS: rows, LOADS: taps * rows / 32, FORM: self.form,
            GROUP_O: g.o / g.groups, GROUP_C: g.c / g.groups,
        ];
        let launch = Launch::new("conv2d_pack_halves", defines, (0, 0), blocks);
        let launch = launch.loops((2 * taps * rows).div_ceil(256) + 1 + tree(256));
        Launch { bindings: vec![Binding::Input(1), packed, powers], ..launch }
    }

    /// Floats of what is packed, and of the powers.
    pub(super) fn scratch(&self, rows: usize) -> [usize; 2] {
        [(self.of.o * self.of.patch()).div_ceil(2), self.blocks(rows)]
    }
}

/// Whether these are better than those of `taps`: tiles of 128 channels, of images that are wide enough for many of them.
pub(super) fn pays(pass: Pass, g: &Geometry) -> bool {
    let [m, _] = Weights::new(pass, g).extents;
    let width = if pass == Pass::Forward { g.q } else { g.w };
    width >= 16 && m > 64
}

/// Ways to compute a pass on images in halves, best first; none where tiles would be half empty, or where channels do not fill them.
pub(super) fn variants(pass: Pass, g: &Geometry, caps: &Caps) -> Vec<Variant> {
    let weights = Weights::new(pass, g);
    // A convolution is the gradient of its gradient.
    let Some(transposed) = g.transposed() else { return Vec::new() };
    let c = if pass == Pass::Forward { g } else { &transposed };
    let (tile, pixels) = (Tile::new(c, HALO_COLUMNS, 2), c.n * c.p * c.q);
    let ([m, channels], taps) = (weights.extents, weights.taps());
    let n = tile.count(c) * HALO_COLUMNS;
    if !(2..=9).contains(&taps) || !m.is_multiple_of(8) || n > 2 * pixels || !tile.suits(c) {
        return Vec::new();
    }
    let beside = tile.is_beside() && n == pixels;
    let product = Product { batch: c.groups, m, n, k: channels * taps, operands: Operands::Gathered, beside };
    let variant = |choice: Choice| {
        let [packed, powers] = [0, 1].map(|k| Binding::Scratch(choice.scratch() + k));
        let mut defines = c.defines();
        defines.extend(tile.defines());
        let operands = [Binding::Input(0), packed, powers];
        let launch = |sums| choice.launch("conv2d_halo", defines, product, &operands, [false; 2], sums);
        // What there is of the result: the product's columns are counted in whole tiles.
        let mut variant = choice.variant(Product { n: pixels, ..product }, launch);
        variant.launches.insert(0, weights.pack(choice.rows(), packed, powers));
        variant.scratch.extend(weights.scratch(choice.rows()));
        variant
    };
    let choices = product.halo_choices(caps, halo(&tile, c), c.q).into_iter();
    let packs = |choice: &Choice| weights.pack_fits(choice.rows(), caps);
    choices.filter(packs).map(|choice| variant(choice.of_halves(true))).collect()
}
