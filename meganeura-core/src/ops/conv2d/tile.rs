//! Tiles of output pixels and of the inputs that they read; see `shaders/wgsl/shared/conv2d_tile.wgsl`.

use super::ConvShape;
use crate::kernel::fragments::Fragments;
use crate::kernel::launch::{Caps, Define, define};

/// The output pixels that a workgroup takes at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tile {
    /// Images, or planes of volumes, whose pixels are interleaved: a fragment is `16 / images` neighbouring pixels of
    /// each.
    images: usize,
    /// Blocks of so many images.
    blocks: usize,
    /// Rows of outputs.
    pub(super) rows: usize,
    /// Columns of outputs.
    columns: usize,
    /// `true` if the rows are consecutive parts of the only row of each image: a sequence is folded.
    folded: bool,
}

/// The columns of outputs of a fragment.
const FRAGMENT: usize = 16;

impl Tile {
    /// A tile of so many pixels, at most so many fragments wide.
    pub(super) fn new(g: &ConvShape, pixels: usize, across: usize) -> Self {
        let folded = folds(g);
        let [p, q] = grid(g, folded);
        let images = FRAGMENT / q.next_power_of_two().min(FRAGMENT);
        let fragments = q.div_ceil(FRAGMENT);
        let across = if fragments.is_multiple_of(across) { across } else { 1 };
        let columns = FRAGMENT / images * across;
        let rest = pixels / (FRAGMENT * across);
        let rows = rest.min(p.next_power_of_two());
        Self { images, blocks: rest / rows, rows, columns, folded }
    }

    pub(super) fn pixels(&self) -> usize {
        self.images * self.blocks * self.rows * self.columns
    }

    /// Fragments of a row.
    pub(super) fn across(&self) -> usize {
        self.columns * self.images / FRAGMENT
    }

    /// Fragments of one row of outputs of every image.
    pub(super) fn fragments_of_row(&self) -> usize {
        self.blocks * self.across()
    }

    /// The number of tiles along images, rows and columns.
    fn counts(&self, g: &ConvShape) -> [usize; 3] {
        let [p, q] = grid(g, self.folded);
        [g.planes().div_ceil(self.images * self.blocks), p.div_ceil(self.rows), q.div_ceil(self.columns)]
    }

    pub(super) fn count(&self, g: &ConvShape) -> usize {
        self.counts(g).iter().product()
    }

    /// `true` if the kernels can take this tile, and at least half of the tiles' pixels lie inside images.
    pub(super) fn suits(&self, g: &ConvShape) -> bool {
        let filled = self.count(g) * self.pixels() <= 2 * (g.planes() * g.p * g.q).next_multiple_of(self.pixels());
        filled && g.options().padding[1] < self.columns_read(g)
    }

    /// Rows that so many rows of outputs read.
    pub(super) fn rows_of(g: &ConvShape, rows: usize) -> usize {
        (rows - 1) * stride(g, 0) + g.gaps()[0] + 1
    }

    fn columns_read(&self, g: &ConvShape) -> usize {
        (self.columns - 1) * stride(g, 1) + g.gaps()[1] + 1
    }

    /// The first column that is loaded, and the number of columns. With one tile across, unless it is folded, columns
    /// of padding need not be loaded: only those inside the image are.
    fn loaded(&self, g: &ConvShape) -> [usize; 2] {
        let whole = self.counts(g)[2] == 1 && !self.folded && (g.kernel[1] > 1 || g.options().stride[1] == 1);
        let (columns, padding) = (self.columns_read(g), g.options().padding[1]);
        if whole { [padding, g.w.min(columns - padding)] } else { [0, columns] }
    }

    /// Inputs that are loaded.
    fn inputs(&self, g: &ConvShape) -> usize {
        self.images * self.blocks * Self::rows_of(g, self.rows) * self.loaded(g)[1]
    }

    /// Columns with the same remainder by the stride.
    fn plane(&self, g: &ConvShape) -> usize {
        self.columns + g.gaps()[1] / stride(g, 1)
    }

    /// Inputs in workgroup memory.
    pub(super) fn halo(&self, g: &ConvShape) -> usize {
        self.images * self.blocks * Self::rows_of(g, self.rows) * stride(g, 1) * self.plane(g)
    }

    /// The lines of the tile's inputs that each invocation loads, `channels` channels at a time.
    pub(super) fn loads_of_inputs(&self, g: &ConvShape, channels: usize, invocations: usize) -> usize {
        loads(self.inputs(g), channels, invocations)
    }

    /// Lines of the tile's outputs, likewise.
    pub(super) fn loads_of_outputs(&self, channels: usize, invocations: usize) -> usize {
        loads(self.pixels(), channels, invocations)
    }

    /// The kernel's defines.
    pub(super) fn defines(&self, g: &ConvShape) -> Vec<Define> {
        let ([_, tiles_p, tiles_q], [first, inside]) = (self.counts(g), self.loaded(g));
        let mut defines = define![
            TILE_P: self.rows, TILE_Q: self.columns, TILE_N: self.images * self.blocks, IMAGES: self.images,
            TILES: self.count(g), TILES_P: tiles_p, TILES_Q: tiles_q, STRIDE_P: stride(g, 0), STRIDE_Q: stride(g, 1),
            HALO_P: Self::rows_of(g, self.rows), FIRST_COLUMN: first, INSIDE: inside, INPUTS: self.inputs(g),
            PLANE: self.plane(g),
        ];
        if self.folded {
            defines.extend(define![FOLD: self.columns]);
        }
        defines
    }
}

/// `true` if images are single rows of several fragments. As parts of one row below another, these share tiles.
fn folds(g: &ConvShape) -> bool {
    [g.h, g.p, g.kernel[0], g.options().stride[0]] == [1; 4] && g.q > FRAGMENT
}

/// Rows and columns of outputs.
fn grid(g: &ConvShape, folded: bool) -> [usize; 2] {
    if folded { [g.q.div_ceil(FRAGMENT), FRAGMENT] } else { [g.p, g.q] }
}

/// The stride among the rows or columns that are loaded: for a single tap, those that it skips are not.
fn stride(g: &ConvShape, axis: usize) -> usize {
    if g.kernel[axis] == 1 { 1 } else { g.options().stride[axis] }
}

/// The pixels are rounded up to a multiple of eight.
fn loads(pixels: usize, channels: usize, invocations: usize) -> usize {
    (pixels.next_multiple_of(8) * channels / 8).div_ceil(invocations)
}

/// Invocations of a workgroup that computes so many fragments, if the device can have it.
pub(super) fn invocations(tile: Fragments, caps: &Caps) -> Option<usize> {
    let invocations = tile.invocations(caps);
    (caps.matrix && invocations.is_power_of_two() && invocations <= caps.workgroup_size).then_some(invocations)
}
