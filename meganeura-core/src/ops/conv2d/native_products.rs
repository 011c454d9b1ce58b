//! Convolutions on the CPU as matrix products with the patches of images as columns (im2col).
//!
//! Small images are processed several at once, interleaved: each pixel is followed by the same pixel of the next image.
//! So patches are copied in runs of several elements, however short an image's rows are, and products have enough
//! columns to be worth their overhead.

use super::ConvShape;
use crate::kernel::native::{self, Accumulate, Matrix, Real, Scratch, Threads};

/// Pixels from which an image is worth a product of its own.
pub(super) const PIXELS: usize = 128;
/// The most interleaved images: a vector or two …
const SIDE: usize = 16;
/// … and the fewest that are worth interleaving.
const FEW: usize = 4;
/// Parts that the images are divided into, for threads. It does not depend on the number of threads, so results do not.
const PARTS: usize = 8;
/// The most elements of the sums of all parts: they should stay in caches beside the images.
const SUMS: usize = 1 << 20;

/// The number of images that are processed at once.
fn at_once(g: &ConvShape) -> usize {
    let side = g.n.div_ceil(PARTS).min(SIDE);
    if g.outputs() < PIXELS && side >= FEW { side } else { 1 }
}

/// `true` if images are small enough to be processed several at once.
pub(super) fn interleaves(g: &ConvShape) -> bool {
    at_once(g) > 1
}

/// Interleaves `side` images.
fn side_by_side<'a, T: Real>(images: &'a [T], side: usize, out: &'a mut [T]) -> &'a [T] {
    if side == 1 {
        return images;
    }
    let len = images.len() / side;
    for (at, pixels) in out.chunks_exact_mut(side).enumerate() {
        pixels.iter_mut().zip(images[at..].iter().step_by(len)).for_each(|(out, &x)| *out = x);
    }
    out
}

/// Separates `side` interleaved images.
fn apart<T: Real>(pixels: &[T], side: usize, images: &mut [T]) {
    let len = images.len() / side;
    for (at, image) in images.chunks_exact_mut(len).enumerate() {
        image.iter_mut().zip(pixels[at..].iter().step_by(side)).for_each(|(out, &x)| *out = x);
    }
}

/// `y = w · patches`, for each group.
pub(super) fn forward<T: Real>(g: &ConvShape, x: &[T], w: &[T], y: &mut [T], scratch: &Scratch) {
    let (rows, depth, pixels) = (g.o / g.groups, g.patch(), g.outputs());
    let weights = |group: usize| Matrix::new(&w[group * rows * depth..], (rows, depth), (depth, 1));
    let at_once = at_once(g);
    if at_once == 1 {
        return native::parallel_scratch(y, rows * pixels, (scratch, g.scratch()), &|at, y, patches| {
            let patches = g.columns(g.image(x, at / g.groups, at % g.groups), patches);
            let patches = Matrix::new(patches, (depth, pixels), (pixels, 1));
            native::gemm(weights(at % g.groups), patches, y, Accumulate::No, Threads::One);
        });
    }
    let (of_image, read) = (g.o * pixels, g.c * g.inputs());
    let elements = (read + depth * pixels + of_image) * at_once;
    native::parallel_scratch(y, at_once * of_image, (scratch, elements), &|at, y, scratch| {
        let side = y.len() / of_image;
        let width = pixels * side;
        let (images, scratch) = scratch.split_at_mut(read * side);
        let (patches, products) = scratch.split_at_mut(depth * width);
        let images = side_by_side(&x[at * at_once * read..][..images.len()], side, images);
        let products = &mut products[..y.len()];
        for (group, product) in products.chunks_exact_mut(rows * width).enumerate() {
            g.gather(&images[group * read / g.groups * side..], side, patches);
            let patches = Matrix::new(patches, (depth, width), (width, 1));
            native::gemm(weights(group), patches, product, Accumulate::No, Threads::One);
        }
        apart(products, side, y);
    });
}

/// `dx`: the columns of `wᵀ · dy`, added into place.
pub(super) fn grad_input<T: Real>(g: &ConvShape, dy: &[T], w: &[T], dx: &mut [T], scratch: &Scratch) {
    let (depth, rows, pixels) = (g.o / g.groups, g.patch(), g.outputs());
    let weights = |group: usize| Matrix::new(&w[group * depth * rows..], (rows, depth), (1, rows));
    let at_once = at_once(g);
    if at_once == 1 {
        let of_group = g.c / g.groups * g.inputs();
        return native::parallel_scratch(dx, of_group, (scratch, rows * pixels), &|at, dx, patches| {
            let cotangents = Matrix::new(&dy[at * depth * pixels..], (depth, pixels), (pixels, 1));
            native::gemm(weights(at % g.groups), cotangents, patches, Accumulate::No, Threads::One);
            dx.fill(T::ZERO);
            g.add_columns(patches, 1, dx);
        });
    }
    let (of_image, read) = (g.c * g.inputs(), g.o * pixels);
    let elements = (read + rows * pixels + of_image) * at_once;
    native::parallel_scratch(dx, at_once * of_image, (scratch, elements), &|at, dx, scratch| {
        let side = dx.len() / of_image;
        let width = pixels * side;
        let (cotangents, scratch) = scratch.split_at_mut(read * side);
        let (patches, sums) = scratch.split_at_mut(rows * width);
        let cotangents = side_by_side(&dy[at * at_once * read..][..cotangents.len()], side, cotangents);
        let sums = &mut sums[..dx.len()];
        sums.fill(T::ZERO);
        for (group, sums) in sums.chunks_exact_mut(dx.len() / g.groups).enumerate() {
            let cotangents = Matrix::new(&cotangents[group * depth * width..], (depth, width), (width, 1));
            native::gemm(weights(group), cotangents, patches, Accumulate::No, Threads::One);
            g.add_columns(patches, side, sums);
        }
        apart(sums, side, dx);
    });
}

/// `dw = dy · patchesᵀ`, summed over the images of each part, and over the parts, in their order.
pub(super) fn grad_weight<T: Real>(g: &ConvShape, x: &[T], dy: &[T], dw: &mut [T], scratch: &Scratch) {
    if g.n < PARTS || PARTS * dw.len() > SUMS {
        return grad_of_large_weight(g, x, dy, dw, scratch);
    }
    let (rows, columns, pixels) = (g.o / g.groups, g.patch(), g.outputs());
    let (at_once, len, read) = (at_once(g), dw.len(), g.c * g.inputs());
    let Some(mut sums) = scratch.borrow(PARTS * len) else { return };
    let elements = (read + columns * pixels + g.o * pixels) * at_once;
    native::parallel_scratch(&mut sums, len, (scratch, elements), &|part, sums, scratch| {
        let (first, end) = (part * g.n / PARTS, (part + 1) * g.n / PARTS);
        for begin in (first..end).step_by(at_once) {
            let side = at_once.min(end - begin);
            let width = pixels * side;
            let (images, scratch) = scratch.split_at_mut(read * side);
            let (patches, cotangents) = scratch.split_at_mut(columns * width);
            let cotangents = &mut cotangents[..g.o * width];
            let images = side_by_side(&x[begin * read..][..images.len()], side, images);
            let cotangents = side_by_side(&dy[begin * g.o * pixels..][..cotangents.len()], side, cotangents);
            for (group, sums) in sums.chunks_exact_mut(rows * columns).enumerate() {
                g.gather(&images[group * read / g.groups * side..], side, patches);
                let cotangents = Matrix::new(&cotangents[group * rows * width..], (rows, width), (width, 1));
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

/// [`grad_weight`] with one product for each image, whose rows threads share.
fn grad_of_large_weight<T: Real>(g: &ConvShape, x: &[T], dy: &[T], dw: &mut [T], scratch: &Scratch) {
    let (rows, columns, pixels) = (g.o / g.groups, g.patch(), g.outputs());
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
