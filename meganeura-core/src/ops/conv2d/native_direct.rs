//! Convolutions of images on the CPU in single precision, as products of weights and pixels that are read in place: see
//! [`Sorted`]. A product's columns are neighbouring pixels, its terms the taps of a group's channels. Images of few
//! pixels have output channels as columns instead, if the weights stay the same: see [`Strips`]. Both give the same
//! bits.

use super::ConvShape;
use super::sorted::Sorted;
use super::strips::{Pixels, Strips};
use crate::kernel::native::{Accumulate, Apart, Block, Finish, Real, Run, Scratch, Shared, tasks};

/// The most pixels of a panel: the sums of a few hundred channels stay in the L2 cache.
const PIXELS: usize = 112;

/// Images and groups from which each is a task of its own.
const TASKS: usize = 8;

/// `y` of images `x` with the weights `w`.
pub(super) fn forward(g: &ConvShape, x: &[f32], w: &[f32], y: &mut [f32], finish: &dyn Finish<f32>, scratch: &Scratch) {
    let (direct, arch) = (Direct::new(g, finish), pulp::Arch::new());
    let (terms, inputs) = (g.c / g.groups, g.inputs());
    let len = terms * direct.sorted.len;
    let y = Shared::new(y);
    let images = g.n * g.groups;
    let sums = |parts: usize| direct.rows.div_ceil(parts) * direct.panel;
    if images >= TASKS {
        let memory = || [scratch.zeros(len), scratch.borrow(sums(1))];
        return tasks(images, g.patch() * direct.rows * g.outputs(), &memory, &|image, memory| {
            let [Some(pixels), Some(sums)] = memory else { return };
            for (channel, to) in pixels.chunks_exact_mut(direct.sorted.len).enumerate() {
                direct.sorted.copy(&x[(image * terms + channel) * inputs..][..inputs], to, arch);
            }
            (0..direct.panels()).for_each(|panel| direct.panel(image, (panel, 0, 1), w, pixels, sums, &y));
        });
    }
    let Some(mut pixels) = scratch.borrow::<f32>(len) else { return };
    let strips = Strips::new(g);
    let weights = strips.prepared(w, scratch);
    let outputs_at: Vec<_> = (0..g.outputs()).map(|at| at / g.q * direct.sorted.width + at % g.q).collect();
    // The rows of a few panels are divided, for threads. The order of each sum is the same however they are.
    let parts = (2 * rayon::current_num_threads()).div_ceil(direct.panels()).min(direct.rows.div_ceil(Block::ROWS));
    for image in 0..images {
        let channels = Shared::new(&mut pixels);
        tasks(terms, inputs, &|| (), &|channel, ()| {
            // SAFETY: this channel belongs to this task alone.
            let to = unsafe { channels.part(channel * direct.sorted.len, direct.sorted.len) };
            to.fill(0.0);
            direct.sorted.copy(&x[(image * terms + channel) * inputs..][..inputs], to, arch);
        });
        if let Some(weights) = &weights {
            let pixels = Pixels { x: &pixels, outputs: &outputs_at[..], terms: &direct.places[..] };
            strips.multiply(image, f32::slice(weights), &pixels, &y, finish, scratch);
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
    finish: &'a dyn Finish<f32>,
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
    fn new(g: &'a ConvShape, finish: &'a dyn Finish<f32>) -> Self {
        let sorted = Sorted::new(g);
        let places = (0..g.c / g.groups).flat_map(|c| sorted.taps.iter().map(move |tap| c * sorted.len + tap));
        let places = places.collect();
        let pixels = (g.p - 1) * sorted.width + g.q;
        // Panels of nearly one size.
        let panel = pixels.div_ceil(pixels.div_ceil(PIXELS)).next_multiple_of(Block::COLUMNS);
        Self { g, finish, sorted, places, rows: g.o / g.groups, pixels, panel }
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
        let lines = self.sorted.lines(g.q, first, columns);
        let mut runs = rows_here.enumerate().flat_map(|(at, row)| {
            let plane = (image * rows + row) * g.p * g.q;
            lines.iter().map(move |line| Run { first: plane + line.first, at: at * self.panel + line.at, ..*line })
        });
        // SAFETY: these pixels of these channels belong to this task alone.
        unsafe { self.finish.store(sums, &mut runs, y) };
    }
}
