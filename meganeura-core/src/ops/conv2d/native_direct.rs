//! Convolutions of images on the CPU in single precision, as products of weights and pixels that are read in place: see
//! [`Sorted`]. A product's columns are neighbouring pixels, its terms the taps of a group's channels. For images of few
//! pixels, the columns are output channels instead, if the weights stay the same and need that order only once. Both
//! give the same bits.

use std::sync::Arc;

use super::ConvShape;
use super::sorted::Sorted;
use crate::host::HostBuffer;
use crate::kernel::native::{Accumulate, Apart, Block, Real, Scratch, Shared, parallel, tasks};

/// The most pixels of a panel: the sums of a few hundred channels stay in the L2 cache.
const PIXELS: usize = 112;

/// The most pixels of an image for which weights are worth another order: there are few columns to a product.
const FEW: usize = 256;

/// Output channels of a strip.
const STRIP: usize = 2 * Block::COLUMNS;

/// Images and groups from which each is a task of its own.
const TASKS: usize = 8;

/// `y` of images `x` with the weights `w`.
pub(super) fn forward(g: &ConvShape, x: &[f32], w: &[f32], y: &mut [f32], scratch: &Scratch) {
    let direct = Direct::new(g);
    let (terms, inputs) = (g.c / g.groups, g.inputs());
    let len = terms * direct.sorted.len;
    let y = Shared::new(y);
    let images = g.n * g.groups;
    let sums = |parts: usize| direct.rows.div_ceil(parts) * direct.panel;
    if images >= TASKS {
        let memory = || [len, sums(1)].map(|len| scratch.borrow::<f32>(len));
        return tasks(images, g.patch() * direct.rows * g.outputs(), &memory, &|image, memory| {
            let [Some(pixels), Some(sums)] = memory else { return };
            for (channel, to) in pixels.chunks_exact_mut(direct.sorted.len).enumerate() {
                direct.sorted.copy(&x[(image * terms + channel) * inputs..][..inputs], to);
            }
            (0..direct.panels()).for_each(|panel| direct.panel(image, (panel, 0, 1), w, pixels, sums, &y));
        });
    }
    let Some(mut pixels) = scratch.borrow::<f32>(len) else { return };
    let strips = direct.strips(w, scratch);
    let strips = strips.as_deref().map(f32::slice);
    // The rows of a few panels are divided, for threads. The order of each sum is the same however they are.
    let parts = (2 * rayon::current_num_threads()).div_ceil(direct.panels()).min(direct.rows.div_ceil(Block::ROWS));
    for image in 0..images {
        let channels = Shared::new(&mut pixels);
        tasks(terms, inputs, &|| scratch.borrow::<f32>(direct.sorted.len), &|channel, to| {
            let Some(to) = to else { return };
            direct.sorted.copy(&x[(image * terms + channel) * inputs..][..inputs], to);
            // SAFETY: this channel belongs to this task alone.
            unsafe { channels.write(channel * direct.sorted.len, to) };
        });
        if let Some(strips) = strips {
            direct.in_strips(image, strips, &pixels, scratch, &y);
            continue;
        }
        let work = g.patch() * direct.rows.div_ceil(parts) * direct.panel;
        tasks(direct.panels() * parts, work, &|| scratch.borrow::<f32>(sums(parts)), &|task, sums| {
            let Some(sums) = sums else { return };
            direct.panel(image, (task / parts, task % parts, parts), w, &pixels, sums, &y);
        });
    }
}

/// The products of a convolution.
struct Direct<'a> {
    g: &'a ConvShape,
    sorted: Sorted,
    /// Where each term of the first output is.
    places: Vec<usize>,
    /// Output channels of a group.
    rows: usize,
    /// Pixels of an image, in the order of [`Sorted`], and of a panel.
    pixels: usize,
    panel: usize,
}

impl<'a> Direct<'a> {
    fn new(g: &'a ConvShape) -> Self {
        let sorted = Sorted::new(g);
        let places = (0..g.c / g.groups).flat_map(|c| sorted.taps.iter().map(move |tap| c * sorted.len + tap));
        let places = places.collect();
        let pixels = (g.p - 1) * sorted.width + g.q;
        // Panels of nearly one size.
        let panel = pixels.div_ceil(pixels.div_ceil(PIXELS)).next_multiple_of(Block::COLUMNS);
        Self { g, sorted, places, rows: g.o / g.groups, pixels, panel }
    }

    fn panels(&self) -> usize {
        self.pixels.div_ceil(self.panel)
    }

    /// Computes a panel of an image and group: one of so many parts of the rows.
    fn panel(
        &self,
        image: usize,
        (panel, part, parts): (usize, usize, usize),
        w: &[f32],
        pixels: &[f32],
        sums: &mut [f32],
        y: &Shared<'_, f32>,
    ) {
        let Self { g, rows, .. } = *self;
        let (depth, first) = (self.places.len(), panel * self.panel);
        let columns = self.panel.min(self.pixels - first);
        let rows_here = rows * part / parts..rows * (part + 1) / parts;
        let product = Block {
            extents: [rows_here.len(), columns, depth],
            a: &w[(image % g.groups * rows + rows_here.start) * depth..],
            a_rows: Apart(depth),
            a_terms: Apart(1),
            b: &pixels[first..],
            b_terms: &self.places[..],
            c: sums,
            c_stride: self.panel,
            accumulate: Accumulate::No,
        };
        product.multiply(pulp::Arch::new());
        for (row, sums) in rows_here.zip(sums.chunks_exact(self.panel)) {
            let mut pixel = first;
            while pixel < first + columns {
                let (p, q) = (pixel / self.sorted.width, pixel % self.sorted.width);
                let end = (pixel - q + self.sorted.width).min(first + columns);
                let len = (end - pixel).min(g.q.saturating_sub(q));
                // SAFETY: these pixels of these channels belong to this task alone.
                unsafe { y.write(((image * rows + row) * g.p + p) * g.q + q, &sums[pixel - first..][..len]) };
                pixel = end;
            }
        }
    }

    /// Elements of a strip of weights.
    fn strip(&self) -> usize {
        self.places.len() * STRIP
    }

    /// Weights that stay the same, for images of few pixels: `[group, strip, term, channel]`.
    fn strips(&self, w: &[f32], scratch: &Scratch) -> Option<Arc<HostBuffer>> {
        if self.g.outputs() > FEW {
            return None;
        }
        let (depth, strips) = (self.places.len(), self.rows.div_ceil(STRIP));
        scratch.prepared::<f32>(1, self.g.groups * strips * self.strip(), |all| {
            parallel(all, self.strip(), &|at, strip| {
                let (group, first) = (at / self.strip() / strips, at / self.strip() % strips * STRIP);
                for (term, strip) in strip.chunks_exact_mut(STRIP).enumerate() {
                    for (row, to) in (first..).zip(strip) {
                        *to = if row < self.rows { w[(group * self.rows + row) * depth + term] } else { 0.0 };
                    }
                }
            });
        })
    }

    /// Computes an image and group with output channels as a product's columns, which read weights one after the other.
    fn in_strips(&self, image: usize, strips: &[f32], pixels: &[f32], scratch: &Scratch, y: &Shared<'_, f32>) {
        let Self { g, rows, .. } = *self;
        let (outputs, count) = (g.outputs(), rows.div_ceil(STRIP));
        let outputs_at: Vec<_> = (0..outputs).map(|at| at / g.q * self.sorted.width + at % g.q).collect();
        let memory = || [outputs * STRIP, outputs].map(|len| scratch.borrow::<f32>(len));
        tasks(count, self.strip() * outputs, &memory, &|strip, memory| {
            let [Some(sums), Some(channel)] = memory else { return };
            let columns = STRIP.min(rows - strip * STRIP);
            let product = Block {
                extents: [outputs, columns, self.places.len()],
                a: pixels,
                a_rows: &outputs_at[..],
                a_terms: &self.places[..],
                b: &strips[(image % g.groups * count + strip) * self.strip()..][..self.strip()],
                b_terms: Apart(STRIP),
                c: sums,
                c_stride: STRIP,
                accumulate: Accumulate::No,
            };
            product.multiply(pulp::Arch::new());
            for column in 0..columns {
                channel.iter_mut().zip(sums[column..].iter().step_by(STRIP)).for_each(|(y, &sum)| *y = sum);
                // SAFETY: this channel belongs to this task alone.
                unsafe { y.write((image * rows + strip * STRIP + column) * outputs, channel) };
            }
        });
    }
}
