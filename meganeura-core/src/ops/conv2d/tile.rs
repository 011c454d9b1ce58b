//! Tiles of output pixels and of the inputs that they read; see `shaders/wgsl/shared/conv2d_tile.wgsl`.

use super::ConvShape;
use crate::kernel::fragments::Fragments;
use crate::kernel::launch::{Caps, Define, define};

/// The output pixels that a workgroup takes at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tile {
    /// Images whose pixels are interleaved: a fragment is `16 / images` neighbouring pixels of each.
    images: usize,
    /// Blocks of so many images.
    blocks: usize,
    /// Rows of outputs.
    pub(super) rows: usize,
    /// Columns of outputs.
    columns: usize,
}

impl Tile {
    /// A tile of so many pixels, at most so many fragments wide.
    pub(super) fn new(g: &ConvShape, pixels: usize, across: usize) -> Self {
        let images = 16 / g.q.next_power_of_two().min(16);
        let fragments = g.q.div_ceil(16);
        let across = if fragments.is_multiple_of(across) { across } else { 1 };
        let columns = 16 / images * across;
        let rest = pixels / (16 * across);
        let rows = rest.min(g.p.next_power_of_two());
        Self { images, blocks: rest / rows, rows, columns }
    }

    pub(super) fn pixels(&self) -> usize {
        self.images * self.blocks * self.rows * self.columns
    }

    /// Fragments of a row.
    pub(super) fn across(&self) -> usize {
        self.columns * self.images / 16
    }

    /// Fragments of one row of outputs of every image.
    pub(super) fn fragments_of_row(&self) -> usize {
        self.blocks * self.across()
    }

    /// The number of tiles along images, rows and columns.
    fn counts(&self, g: &ConvShape) -> [usize; 3] {
        [g.n.div_ceil(self.images * self.blocks), g.p.div_ceil(self.rows), g.q.div_ceil(self.columns)]
    }

    pub(super) fn count(&self, g: &ConvShape) -> usize {
        self.counts(g).iter().product()
    }

    /// `true` if the kernels can take this tile, and at least half of the tiles' pixels lie inside images.
    pub(super) fn suits(&self, g: &ConvShape) -> bool {
        let filled = self.count(g) * self.pixels() <= 2 * (g.n * g.p * g.q).next_multiple_of(self.pixels());
        filled && g.options().padding[1] < self.columns_read(g)
    }

    /// Rows that so many rows of outputs read.
    pub(super) fn rows_of(g: &ConvShape, rows: usize) -> usize {
        (rows - 1) * stride(g, 0) + g.gaps()[0] + 1
    }

    fn columns_read(&self, g: &ConvShape) -> usize {
        (self.columns - 1) * stride(g, 1) + g.gaps()[1] + 1
    }

    /// The first column that is loaded, and the number of columns. With one tile across, columns of padding need not
    /// be loaded: only those inside the image are.
    fn loaded(&self, g: &ConvShape) -> [usize; 2] {
        let whole = self.counts(g)[2] == 1 && (g.kernel[1] > 1 || g.options().stride[1] == 1);
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
        define![
            TILE_P: self.rows, TILE_Q: self.columns, TILE_N: self.images * self.blocks, IMAGES: self.images,
            TILES: self.count(g), TILES_P: tiles_p, TILES_Q: tiles_q, STRIDE_P: stride(g, 0), STRIDE_Q: stride(g, 1),
            HALO_P: Self::rows_of(g, self.rows), FIRST_COLUMN: first, INSIDE: inside, INPUTS: self.inputs(g),
            PLANE: self.plane(g),
        ]
    }
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
