//! Convolutions without stride on matrix units, gradients of the input among them, whose tiles have what they read of the images in
//! workgroup memory once for all taps; see `shared/gemm_halo.wgsl`.

use super::Geometry;
use super::convolution::Convolution;
use super::tile::Tile;
use crate::kernel::gemm::{Choice, HALO_COLUMNS, Halo, Operands, Product};
use crate::kernel::launch::{Binding, Caps, Variant};

/// What a tile reads of images.
fn halo(tile: &Tile, g: &Geometry) -> Halo {
    Halo { taps: g.kernel[0] * g.kernel[1], pixels: tile.halo(g), inside: tile.inputs(g) }
}

/// Whether these are better than those of `taps`: tiles of 128 channels, of images that are wide enough for many of them.
pub(super) fn pays(convolution: &Convolution<'_>) -> bool {
    let c = &convolution.geometry;
    c.q >= 16 && c.o / c.groups > 64
}

/// Ways to compute a pass on images in halves, best first; none where there is a stride, where tiles would be half empty, or where
/// channels do not fill them.
pub(super) fn variants(convolution: &Convolution<'_>, caps: &Caps) -> Vec<Variant> {
    let c = &convolution.geometry;
    let (tile, pixels) = (Tile::new(c, HALO_COLUMNS, 2), c.n * c.p * c.q);
    let (m, taps) = (c.o / c.groups, c.kernel[0] * c.kernel[1]);
    let n = tile.count(c) * HALO_COLUMNS;
    let strides = [c.options().stride, convolution.phases()];
    if strides != [[1, 1]; 2] || !(2..=9).contains(&taps) || n > 2 * pixels || !tile.suits(c) {
        return Vec::new();
    }
    let beside = tile.is_beside() && n == pixels;
    let product = Product { batch: c.groups, m, n, k: c.patch(), operands: Operands::Gathered, beside };
    let variant = |choice: Choice| {
        let of_weights = convolution.scratch(choice.rows(), caps);
        let packed: Vec<_> = (0..of_weights.len()).map(|k| Binding::Scratch(choice.scratch() + k)).collect();
        let mut defines = c.defines();
        defines.extend(tile.defines());
        let operands = [&[Binding::Input(0)], &packed[..]].concat();
        let launch =
            |sums| choice.launch("conv2d_halo", defines, product, &operands, [false; 2], sums).of_bfloats(caps);
        // What there is of the result: the product's columns are counted in whole tiles.
        let mut variant = choice.variant(Product { n: pixels, ..product }, launch);
        variant.launches.insert(0, convolution.pack(choice.rows(), &packed, caps));
        variant.scratch.extend(of_weights);
        variant
    };
    let choices = product.halo_choices(caps, halo(&tile, c), c.q).into_iter();
    let packs = |choice: &Choice| convolution.pack_fits(choice.rows(), caps);
    choices.filter(packs).map(|choice| variant(choice.stores_lines())).collect()
}
