//! Tiles of 4×4 outputs, and the images that they are cut from.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::FREQUENCIES;
use super::transform::{self, LANES, Vector};
use super::vectors;
use crate::kernel::native::{Scratch, parallel_scratch};

/// The most tiles of a block: their transforms stay in the L2 cache while all products read them.
const BLOCK: usize = 48;

/// The tiles of some images, image by image and row by row, in blocks of nearly one size. Those of volumes are in
/// several layers, with as many blocks each: each block of a layer is followed by the same one of the next layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tiles {
    layers: usize,
    rows: usize,
    columns: usize,
    /// Tiles of a layer, of all images.
    count: usize,
    /// Tiles of every block but the last.
    pub(super) block: usize,
}

/// Neighbouring tiles of one row.
pub(super) struct Run {
    pub(super) image: usize,
    pub(super) layer: usize,
    pub(super) row: usize,
    pub(super) columns: Range<usize>,
    /// The number of the first in its block.
    pub(super) first: usize,
}

impl Tiles {
    /// The tiles that cover `n` images of so many layers of these outputs.
    pub(super) fn new(n: usize, layers: usize, outputs: [usize; 2]) -> Self {
        let [rows, columns] = outputs.map(|extent| extent.div_ceil(4));
        let count = n * rows * columns;
        Self { layers, rows, columns, count, block: count.div_ceil(count.div_ceil(BLOCK).max(1)) }
    }

    pub(super) fn blocks(&self) -> usize {
        self.layers * self.count.div_ceil(self.block.max(1))
    }

    /// The layer of a block.
    pub(super) fn layer(&self, block: usize) -> usize {
        block % self.layers
    }

    /// The same block as one of these tiles in a layer of others.
    pub(super) fn in_layer(&self, block: usize, others: &Self, layer: usize) -> usize {
        block / self.layers * others.layers + layer
    }

    /// The number of tiles of a block.
    pub(super) fn len(&self, block: usize) -> usize {
        self.block.min(self.count - block / self.layers * self.block)
    }

    /// The tiles of a block, in their order.
    #[inline(always)]
    pub(super) fn runs(&self, block: usize) -> impl Iterator<Item = Run> + use<> {
        let Self { rows, columns, .. } = *self;
        let (begin, layer, len) = (block / self.layers * self.block, self.layer(block), self.len(block));
        let mut first = 0;
        std::iter::from_fn(move || {
            let (tile, left) = (begin + first, len - first);
            let column = tile % columns;
            let run = Run {
                image: tile / (rows * columns),
                layer,
                row: tile / columns % rows,
                columns: column..columns.min(column + left),
                first,
            };
            first += run.columns.len();
            (left > 0).then_some(run)
        })
    }
}

/// Images whose tiles are transformed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Images<'a> {
    pub(super) x: &'a [f32],
    pub(super) channels: usize,
    pub(super) layers: usize,
    pub(super) extent: [usize; 2],
    /// Zeros before the first row and column.
    pub(super) padding: [usize; 2],
}

/// The transforms of all tiles: blocks of `[frequency, tile, channel]`, with channels in whole vectors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spectrum<'a> {
    data: &'a [f32],
    block: usize,
    /// Channels, in whole vectors.
    pub(super) depth: usize,
}

impl Spectrum<'_> {
    /// Elements for `tiles` of so many channels.
    pub(super) fn len(tiles: &Tiles, channels: usize) -> usize {
        tiles.blocks() * FREQUENCIES * tiles.block * channels.next_multiple_of(LANES)
    }

    /// `[tile, channel]` of a block at one frequency.
    pub(super) fn matrix(&self, block: usize, frequency: usize) -> &[f32] {
        let len = self.block * self.depth;
        &self.data[(block * FREQUENCIES + frequency) * len..][..len]
    }
}

impl Images<'_> {
    /// Transforms all tiles into `data`, which may be longer: each is a square of `A` pixels a side, neighbours begin
    /// four apart.
    pub(super) fn transform<'s, const A: usize>(
        &self,
        tiles: &Tiles,
        line: impl Fn([f32; A]) -> [f32; 6] + Copy + Sync,
        data: &'s mut [f32],
        scratch: &Scratch,
    ) -> Spectrum<'s> {
        let depth = self.channels.next_multiple_of(LANES);
        let data = &mut data[..Spectrum::len(tiles, self.channels)];
        let arch = pulp::Arch::new();
        let pixels = A * (4 * tiles.columns + A - 4) * LANES;
        parallel_scratch(data, FREQUENCIES * tiles.block * depth, (scratch, pixels), &|block, to, pixels| {
            let (pixels, _) = pixels.as_chunks_mut();
            arch.dispatch(TransformBlock::<A, _> { images: *self, tiles, line, block, depth, pixels, to });
        });
        Spectrum { data, block: tiles.block, depth }
    }

    /// Pixels of up to sixteen channels as vectors, zero outside of the image: from the place `[row, column]` on,
    /// counted with the padding.
    #[inline(always)]
    fn line(&self, run: &Run, channel: usize, [row, column]: [usize; 2], vectors: &mut [Vector]) {
        let ([h, w], [top, left]) = (self.extent, self.padding);
        let outside = row < top || row >= top + h;
        let begin = if outside { vectors.len() } else { left.saturating_sub(column).min(vectors.len()) };
        let end = (left + w).saturating_sub(column).clamp(begin, vectors.len());
        vectors[..begin].fill([0.0; LANES]);
        vectors[end..].fill([0.0; LANES]);
        if begin < end {
            let x = &self.x[((run.image * self.channels + channel) * self.layers + run.layer) * h * w..];
            let planes = LANES.min(self.channels - channel);
            let start = (row - top) * w + column + begin - left;
            vectors::of_planes(x, (planes, self.layers * h * w), start, &mut vectors[begin..end]);
        }
    }
}

/// Transforms one block of tiles.
struct TransformBlock<'a, const A: usize, F> {
    images: Images<'a>,
    tiles: &'a Tiles,
    line: F,
    block: usize,
    depth: usize,
    pixels: &'a mut [Vector],
    to: &'a mut [f32],
}

impl<const A: usize, F: Fn([f32; A]) -> [f32; 6] + Copy> WithSimd for TransformBlock<'_, A, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { images, tiles, line, block, depth, pixels, to } = self;
        // Made once: clearing them takes as long as a transform.
        let (mut from, mut square) = (transform::empty::<A>(), transform::empty::<6>());
        for channel in (0..images.channels).step_by(LANES) {
            for run in tiles.runs(block) {
                let width = 4 * run.columns.len() + A - 4;
                for (i, pixels) in pixels.chunks_exact_mut(width).take(A).enumerate() {
                    images.line(&run, channel, [4 * run.row + i, 4 * run.columns.start], pixels);
                }
                for at in 0..run.columns.len() {
                    for (i, from) in from.iter_mut().enumerate() {
                        from.copy_from_slice(&pixels[i * width + 4 * at..][..A]);
                    }
                    transform::square(line, &from, &mut square);
                    for (frequency, vector) in square.as_flattened().iter().enumerate() {
                        let place = (frequency * tiles.block + run.first + at) * depth + channel;
                        to[place..place + LANES].copy_from_slice(vector);
                    }
                }
            }
        }
    }
}
