//! Convolutions with 1×1 weights on the CPU in single precision: products of weights and pixels, `y = w · x` of each
//! image and group. Pixels are the columns, copied a panel at a time, which then stays in a core's cache for all output
//! channels. Images of few pixels have output channels as columns instead, if the weights stay the same: see
//! [`Strips`]. Both give the same bits.

use super::ConvShape;
use super::strips::{Pixels, Strips};
use crate::kernel::native::{
    Accumulate, Apart, Block, Finish, Finished, Real, Run, Scratch, Shared, tasks, threads_for,
};

/// The most elements of a panel: a part of the L2 cache, beside weights and sums.
const PANEL: usize = 1 << 15;

/// The most pixels of a panel.
const WIDEST: usize = 256;

/// The most pixels of an image that has output channels as columns; and if there are more of them than input channels
/// and results are finished in registers, so that what counts is how they are stored.
const FEW: usize = 256;
const FEW_TO_WIDEN: usize = 64;

/// Panels that an image is divided into where it has the pixels, for threads.
const PANELS: usize = 8;

/// Output channels that are computed at once: whole tiles, whose sums stay in the L1 cache with a panel's rows.
const ROWS: usize = 2 * Block::ROWS;

/// `y` of images `x` with the weights `w`.
pub(super) fn forward(g: &ConvShape, x: &[f32], w: &[f32], y: &mut [f32], finish: &dyn Finish<f32>, scratch: &Scratch) {
    let (rows, depth, pixels) = (g.o / g.groups, g.c / g.groups, g.outputs());
    let (images, y) = (g.n * g.groups, Shared::new(y));
    let finished = finish.affine().and_then(|affine| Some((affine, Finished::rows(affine, [g.o, pixels], &y)?)));
    let strips = Strips::new(g);
    let few = if rows > depth && finished.is_some() { FEW_TO_WIDEN } else { FEW };
    if pixels <= few
        && let Some(weights) = strips.prepared(w, scratch)
    {
        for image in 0..images {
            let x = &x[image * depth * pixels..][..depth * pixels];
            let pixels = Pixels { x, outputs: Apart(1), terms: Apart(pixels) };
            strips.multiply(image, f32::slice(&weights), &pixels, &y, finish, scratch);
        }
        return;
    }
    let most = (PANEL / depth).clamp(1, WIDEST).min(pixels.div_ceil(PANELS));
    let panel = most.next_multiple_of(2 * Block::COLUMNS).min(pixels.next_multiple_of(Block::COLUMNS));
    let panels = pixels.div_ceil(panel);
    // The rows of a few panels are divided, for threads. The order of each sum is the same however they are.
    let parts = (2 * threads_for(images * rows * depth * pixels)).div_ceil(images * panels).min(rows.div_ceil(ROWS));
    let memory = || [depth * panel, ROWS.min(rows) * panel].map(|len| scratch.borrow::<f32>(len));
    tasks(images * panels * parts, depth * rows.div_ceil(parts) * panel, &memory, &|task, memory| {
        let [Some(copy), Some(sums)] = memory else { return };
        let (image, first, part) = (task / parts / panels, task / parts % panels * panel, task % parts);
        let columns = panel.min(pixels - first);
        for (term, to) in copy.chunks_exact_mut(panel).enumerate() {
            to[..columns].copy_from_slice(&x[(image * depth + term) * pixels + first..][..columns]);
            to[columns..].fill(0.0);
        }
        let end = rows * (part + 1) / parts;
        for row in (rows * part / parts..end).step_by(ROWS) {
            let count = ROWS.min(end - row);
            let product = Block {
                extents: [count, columns, depth],
                a: &w[(image % g.groups * rows + row) * depth..],
                a_rows: Apart(depth),
                a_terms: Apart(1),
                b: copy,
                b_terms: Apart(panel),
                c: sums,
                c_stride: panel,
                accumulate: Accumulate::No,
            };
            if let Some((affine, finished)) = finished {
                let finished = finished.at(affine, (image * rows + row) * pixels + first, columns);
                // SAFETY: these pixels of these channels belong to this task alone.
                unsafe { product.multiply_finished(pulp::Arch::new(), finished) };
                continue;
            }
            product.multiply(pulp::Arch::new());
            let of_row = |k| Run { first: (image * rows + row + k) * pixels + first, at: k * panel, len: columns };
            // SAFETY: these pixels of these channels belong to this task alone.
            unsafe { finish.store(sums, &mut (0..count).map(of_row), &y) };
        }
    });
}
