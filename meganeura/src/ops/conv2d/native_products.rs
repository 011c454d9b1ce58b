//! Convolutions on the CPU as matrix products with the patches of images as columns (im2col). Small images are taken several at once, since
//! a product of few columns costs more than its arithmetic.

use super::Geometry;
use crate::kernel::native::{self, Accumulate, Matrix, Real, Scratch, Threads};

/// Columns that are worth a product.
const COLUMNS: usize = 128;
/// Into how many parts the images are divided where there are as many: work for threads. It does not depend on how many threads there are,
/// so that the bits do not.
const PARTS: usize = 8;
/// Elements of the sums of all parts: what may lie in caches beside the images.
const SUMS: usize = 1 << 20;

/// The images of one product.
fn at_once(g: &Geometry) -> usize {
    (COLUMNS / (g.p * g.q)).clamp(1, g.n.div_ceil(PARTS))
}

/// `y = w · patches`, for each group.
pub(super) fn forward<T: Real>(g: &Geometry, x: &[T], w: &[T], y: &mut [T], scratch: &Scratch) {
    let (rows, depth, pixels) = (g.o / g.groups, g.patch(), g.p * g.q);
    let weights = |group: usize| Matrix::new(&w[group * rows * depth..], (rows, depth), (depth, 1));
    let at_once = at_once(g);
    if at_once == 1 {
        return native::parallel_scratch(y, rows * pixels, (scratch, g.scratch()), |at, y, patches| {
            let patches = g.columns(g.image(x, at / g.groups, at % g.groups), patches);
            let patches = Matrix::new(patches, (depth, pixels), (pixels, 1));
            native::gemm(weights(at % g.groups), patches, y, Accumulate::No, Threads::One);
        });
    }
    let of_image = g.o * pixels;
    native::parallel_scratch(y, at_once * of_image, (scratch, (depth + rows) * at_once * pixels), |at, y, scratch| {
        let width = y.len() / g.o;
        let (patches, scratch) = scratch.split_at_mut(depth * width);
        let product = &mut scratch[..rows * width];
        for group in 0..g.groups {
            for image in 0..y.len() / of_image {
                g.gather(g.image(x, at * at_once + image, group), patches, (image * pixels, width));
            }
            let patches = Matrix::new(patches, (depth, width), (width, 1));
            native::gemm(weights(group), patches, product, Accumulate::No, Threads::One);
            for (image, y) in y.chunks_exact_mut(of_image).enumerate() {
                let y = y[group * rows * pixels..].chunks_exact_mut(pixels);
                y.zip(product.chunks_exact(width))
                    .for_each(|(y, row)| y.copy_from_slice(&row[image * pixels..][..pixels]));
            }
        }
    });
}

/// `dx`: the columns of `wᵀ · dy`, added into place.
pub(super) fn grad_input<T: Real>(g: &Geometry, dy: &[T], w: &[T], dx: &mut [T], scratch: &Scratch) {
    let (depth, rows, pixels) = (g.o / g.groups, g.patch(), g.p * g.q);
    let (at_once, of_group) = (at_once(g), g.c / g.groups * g.h * g.w);
    // A task is a group of an image, or all groups of several images.
    let groups = if at_once == 1 { 1 } else { g.groups };
    let (of_image, of_task) = (groups * of_group, at_once * groups * of_group);
    native::parallel_scratch(dx, of_task, (scratch, (depth + rows) * at_once * pixels), |task, dx, scratch| {
        let first = task * groups / g.groups * at_once;
        let images = first..first + dx.len() / of_image;
        let width = images.len() * pixels;
        let (patches, scratch) = scratch.split_at_mut(rows * width);
        for at in 0..groups {
            let group = task * groups % g.groups + at;
            let cotangents = g.cotangents(dy, images.clone(), group, &mut scratch[..depth * width]);
            let weights = Matrix::new(&w[group * depth * rows..], (rows, depth), (1, rows));
            let cotangents = Matrix::new(cotangents, (depth, width), (width, 1));
            native::gemm(weights, cotangents, patches, Accumulate::No, Threads::One);
            for (image, dx) in dx.chunks_exact_mut(of_image).enumerate() {
                let dx = &mut dx[at * of_group..][..of_group];
                dx.fill(T::ZERO);
                g.add_columns(patches, (image * pixels, width), dx);
            }
        }
    });
}

/// `dw = dy · patchesᵀ`, summed over the images of each part, and over the parts, in their order.
pub(super) fn grad_weight<T: Real>(g: &Geometry, x: &[T], dy: &[T], dw: &mut [T], scratch: &Scratch) {
    if g.n < PARTS || PARTS * dw.len() > SUMS {
        return grad_of_large_weight(g, x, dy, dw, scratch);
    }
    let (rows, columns, pixels) = (g.o / g.groups, g.patch(), g.p * g.q);
    let (at_once, len) = (at_once(g), dw.len());
    let Some(mut sums) = scratch.borrow(PARTS * len) else { return };
    native::parallel_scratch(&mut sums, len, (scratch, (rows + columns) * at_once * pixels), |part, sums, scratch| {
        let (first, end) = (part * g.n / PARTS, (part + 1) * g.n / PARTS);
        for (group, sums) in sums.chunks_exact_mut(rows * columns).enumerate() {
            for begin in (first..end).step_by(at_once) {
                let images = begin..end.min(begin + at_once);
                let width = images.len() * pixels;
                let (patches, scratch) = scratch.split_at_mut(columns * width);
                for (at, image) in images.clone().enumerate() {
                    g.gather(g.image(x, image, group), patches, (at * pixels, width));
                }
                let cotangents = g.cotangents(dy, images, group, &mut scratch[..rows * width]);
                let cotangents = Matrix::new(cotangents, (rows, width), (width, 1));
                let patches = Matrix::new(patches, (width, columns), (1, width));
                let accumulate = if begin == first { Accumulate::No } else { Accumulate::Yes };
                native::gemm(cotangents, patches, sums, accumulate, Threads::One);
            }
        }
    });
    dw.copy_from_slice(&sums[..len]);
    for sums in sums[len..].chunks_exact(len) {
        dw.iter_mut().zip(sums).for_each(|(dw, &sum)| *dw += sum);
    }
}

/// The same, one product an image, whose rows threads share.
fn grad_of_large_weight<T: Real>(g: &Geometry, x: &[T], dy: &[T], dw: &mut [T], scratch: &Scratch) {
    let (rows, columns, pixels) = (g.o / g.groups, g.patch(), g.p * g.q);
    let Some(mut patches) = scratch.borrow(g.scratch()) else { return };
    for (group, dw) in dw.chunks_exact_mut(rows * columns).enumerate() {
        for n in 0..g.n {
            let patches = g.columns(g.image(x, n, group), &mut patches);
            let cotangents = Matrix::new(&dy[(n * g.o + group * rows) * pixels..], (rows, pixels), (pixels, 1));
            let patches = Matrix::new(patches, (pixels, columns), (1, pixels));
            let accumulate = if n == 0 { Accumulate::No } else { Accumulate::Yes };
            native::gemm(cotangents, patches, dw, accumulate, Threads::All);
        }
    }
}
