//! Convolutions without stride on matrix units, gradients of the input among them, whose tiles have what they read of the images in
//! workgroup memory once for all taps; see `shared/gemm_halo.wgsl`.

use super::Geometry;
use super::pass::Pass;
use crate::kernel::gemm::{Choice, HALO_COLUMNS, Halo, Operands, Product};
use crate::kernel::launch::{Binding, Caps, Launch, Variant, define, tree};

/// The pixels of a tile.
struct Tile {
    /// Images whose pixels take turns, so that sixteen columns are `16 / images` pixels beside each other.
    images: usize,
    /// As many of those again.
    groups: usize,
    rows: usize,
    columns: usize,
}

impl Tile {
    fn new(g: &Geometry) -> Self {
        let images = 16 / g.q.next_power_of_two().min(16);
        let columns = match g.q {
            0..=16 => 16 / images,
            _ if g.q.div_ceil(32) * 32 == g.q.div_ceil(16) * 16 => 32,
            _ => 16,
        };
        let rest = HALO_COLUMNS / (images * columns);
        let rows = rest.min(g.p.next_power_of_two());
        Self { images, groups: rest / rows, rows, columns }
    }

    /// How many there are along images, rows and columns.
    fn counts(&self, g: &Geometry) -> [usize; 3] {
        [g.n.div_ceil(self.images * self.groups), g.p.div_ceil(self.rows), g.q.div_ceil(self.columns)]
    }

    fn halo(&self, g: &Geometry) -> Halo {
        let ([down, over], [.., across]) = (g.span(), self.counts(g));
        let rows = self.images * self.groups * (self.rows + down);
        let columns = self.columns + over;
        let inside = if across == 1 { g.w } else { columns };
        Halo { taps: g.kernel[0] * g.kernel[1], pixels: rows * columns, inside: rows * inside }
    }
}

/// Ways to compute a pass, best first; none where tiles would be half empty, or where channels do not fill them. `half`:
/// of images in halves, to a result in halves.
pub(super) fn variants(pass: Pass, g: &Geometry, half: bool, caps: &Caps) -> Vec<Variant> {
    let form = if pass == Pass::Forward { "forward" } else { "grad_input" };
    // A convolution is the gradient of its gradient.
    let Some(transposed) = g.transposed() else { return Vec::new() };
    let c = if pass == Pass::Forward { g } else { &transposed };
    let (tile, pixels) = (Tile::new(c), c.n * c.p * c.q);
    let (m, channels, taps) = (c.o / c.groups, c.c / c.groups, c.kernel[0] * c.kernel[1]);
    let n = tile.counts(c).iter().product::<usize>() * HALO_COLUMNS;
    if !(2..=9).contains(&taps) || !m.is_multiple_of(8) || n > 2 * pixels {
        return Vec::new();
    }
    let beside = tile.images == 1 && n == pixels;
    let product = Product { batch: c.groups, m, n, k: channels * taps, operands: Operands::Gathered, beside };
    let variant = |choice: Choice| {
        let [packed, powers] = [0, 1].map(|k| Binding::Scratch(choice.scratch() + k));
        let mut defines = c.defines();
        defines.extend(define![TILE_P: tile.rows, TILE_Q: tile.columns, TILE_N: tile.groups, IMAGES: tile.images]);
        let operands = [Binding::Input(0), packed, powers];
        let launch = |sums| choice.launch("conv2d_halo", defines, product, &operands, [false; 2], sums);
        // What there is of the result: the product's columns are counted in whole tiles.
        let mut variant = choice.variant(Product { n: pixels, ..product }, launch);
        // The weights, scaled in blocks of eight channels of a tile's rows.
        let (rows, blocks) = (choice.rows(), g.groups * m.div_ceil(choice.rows()) * (channels / 8));
        let defines = define![G: g.groups, TAPS: taps, ROWS: rows, LOADS: taps * rows / 32, FORM: form];
        let groups = define![GROUP_O: g.o / g.groups, GROUP_C: g.c / g.groups];
        let pack = Launch::new("conv2d_pack_halves", [defines, groups].concat(), (0, 0), blocks);
        let pack = pack.loops((2 * taps * rows).div_ceil(256) + 1 + tree(256));
        variant.launches.insert(0, Launch { bindings: vec![Binding::Input(1), packed, powers], ..pack });
        variant.scratch.extend([(g.o * g.patch()).div_ceil(2), blocks]);
        variant
    };
    // What the kernel that packs needs: a block, and what its peak is found with.
    let packs = |choice: &Choice| 16 * taps * (choice.rows() + 2) + 1024 <= caps.workgroup_memory;
    let choices = product.halo_choices(caps, tile.halo(c), c.q).into_iter().filter(packs);
    choices.map(|choice| variant(if half { choice.of_halves(true) } else { choice })).collect()
}
