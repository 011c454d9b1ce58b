//! Gradients of the weights of convolutions on the CPU in single precision, as products of pixels and cotangents, of
//! images: `dw[c·i·j, o] = Σ x[c·i·j, n·p·q] · dy[n·p·q, o]`. Pixels are read in the order of [`Sorted`], so no patches
//! are copied, and cotangents are turned, with channels innermost.

use super::ConvShape;
use super::sorted::Sorted;
use crate::kernel::native::{Accumulate, Apart, Block, STRIP, Scratch, Shared, tasks, transpose};

/// Cotangents of the images that are multiplied at once, unless a single image has more, and their least number of
/// pixels: they stay in the L2 cache, and sums are rarely loaded and stored.
const SEGMENT: usize = 1 << 17;
const PIXELS: usize = 512;

/// Rows of a task's product, unless a single channel has more.
const ROWS: usize = 128;

/// The fewest output channels of several groups for which vectors of them pay.
const FEWEST: usize = 8;

/// `true` if patches have several pixels, and vectors of output channels are worth it: copies of patches are few where
/// groups are small.
pub(super) fn pays(g: &ConvShape) -> bool {
    g.taps() > 1 && (g.groups == 1 || g.o / g.groups >= FEWEST)
}

/// `dw` of images `x` and cotangents `dy`.
pub(super) fn grad_weight(g: &ConvShape, x: &[f32], dy: &[f32], dw: &mut [f32], scratch: &Scratch) {
    let (sorted, arch) = (Sorted::new(g), pulp::Arch::new());
    let (channels, taps, inputs) = (g.c / g.groups, g.taps(), g.inputs());
    let (rows, columns, pixels) = (g.patch(), g.o / g.groups, g.outputs());
    let (strips, width) = (columns.div_ceil(STRIP), STRIP.min(columns.next_multiple_of(Block::COLUMNS)));
    let columns_of = |strip: usize| STRIP.min(columns - strip * STRIP);
    let segment = (SEGMENT / (g.groups * strips * width * pixels)).max(PIXELS.div_ceil(pixels)).min(g.n);
    // In the orders `[group, strip, image, pixel, channel]`, and `[group, strip, input channel and tap, channel]`.
    let (of_strip, of_sums) = (segment * pixels * width, rows * width);
    let cotangents = scratch.borrow::<f32>(g.groups * strips * of_strip);
    let (Some(mut cotangents), Some(mut sums)) = (cotangents, scratch.borrow::<f32>(g.groups * strips * of_sums))
    else {
        return;
    };
    // The sums of a few channels are a task.
    let parts = channels.div_ceil((ROWS / taps).max(1));
    let most = channels.div_ceil(parts);
    let of_channel = segment * sorted.len;
    let places: Vec<_> = (0..most * taps).map(|row| row / taps * of_channel + sorted.taps[row % taps]).collect();
    let of_output = |at: usize| at / pixels * sorted.len + sorted.output(at % pixels);
    let terms: Vec<_> = (0..segment * pixels).map(of_output).collect();
    for first in (0..g.n).step_by(segment) {
        let images = segment.min(g.n - first);
        let turned = Shared::new(&mut cotangents);
        tasks(g.groups * strips * images, width * pixels, &|| (), &|task, ()| {
            let (image, strip, group) = (task % images, task / images % strips, task / images / strips);
            // SAFETY: this strip of the image's cotangents belongs to this task alone.
            let to = unsafe { turned.part((task / images * segment + image) * pixels * width, pixels * width) };
            let dy = &dy[((first + image) * g.o + group * columns + strip * STRIP) * pixels..];
            transpose(dy, pixels, to, width, [pixels, columns_of(strip)]);
        });
        let of_segment = Shared::new(&mut sums);
        let work = rows.div_ceil(parts) * columns * images * pixels;
        tasks(g.groups * parts, work, &|| scratch.zeros::<f32>(most * of_channel), &|task, memory| {
            let Some(memory) = memory else { return };
            let (group, part) = (task / parts, task % parts);
            let own = channels * part / parts..channels * (part + 1) / parts;
            for (channel, to) in own.clone().zip(memory.chunks_exact_mut(of_channel)) {
                for (image, to) in (first..).zip(to.chunks_exact_mut(sorted.len).take(images)) {
                    let plane = image * g.c + group * channels + channel;
                    sorted.copy(&x[plane * inputs..][..inputs], to, arch);
                }
            }
            for strip in 0..strips {
                let (at, len) = (group * strips + strip, own.len() * taps);
                let product = Block {
                    extents: [len, columns_of(strip), images * pixels],
                    a: memory,
                    a_rows: &places[..],
                    a_terms: &terms[..],
                    b: &cotangents[at * of_strip..],
                    b_terms: Apart(width),
                    // SAFETY: the sums of these channels belong to this task alone.
                    c: unsafe { of_segment.part(at * of_sums + own.start * taps * width, len * width) },
                    c_stride: width,
                    accumulate: if first == 0 { Accumulate::No } else { Accumulate::Yes },
                };
                product.multiply(arch);
            }
        });
    }
    let dw = Shared::new(dw);
    tasks(g.groups * strips, STRIP * rows, &|| (), &|task, ()| {
        let (group, strip) = (task / strips, task % strips);
        let count = columns_of(strip);
        // SAFETY: the weights of these channels belong to this task alone.
        let to = unsafe { dw.part((group * columns + strip * STRIP) * rows, count * rows) };
        transpose(&sums[task * of_sums..], width, to, rows, [count, rows]);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shape;
    use crate::ops::Conv2dOptions;

    /// Small integers, so that every sum is exact.
    #[expect(clippy::cast_precision_loss, reason = "small integers")]
    fn numbers(len: usize) -> Vec<f32> {
        (0..len).map(|i| (i * 7919 % 7) as f32 - 3.0).collect()
    }

    /// The gradients of a batch of several segments are the sums of those of its images.
    #[test]
    fn segments_are_summed() {
        let geometry = |n: usize| {
            let options = Conv2dOptions { stride: [2, 1], padding: [1, 1], groups: 2, ..Conv2dOptions::default() };
            ConvShape::new(Shape::from([n, 6, 61, 50]), Shape::from([72, 3, 3, 3]), options).expect("fits")
        };
        let (g, scratch) = (geometry(3), Scratch::default());
        assert!(g.o * g.outputs() < SEGMENT && SEGMENT < g.n * g.o * g.outputs(), "images for several segments");
        let (image, cotangent) = (g.c * g.inputs(), g.o * g.outputs());
        let (x, dy) = (numbers(g.n * image), numbers(g.n * cotangent));
        let (mut all, mut sum) = (vec![f32::NAN; 72 * 27], vec![0.0; 72 * 27]);
        grad_weight(&g, &x, &dy, &mut all, &scratch);
        for (x, dy) in x.chunks(image).zip(dy.chunks(cotangent)) {
            let mut dw = vec![f32::NAN; sum.len()];
            grad_weight(&geometry(1), x, dy, &mut dw, &scratch);
            sum.iter_mut().zip(&dw).for_each(|(sum, dw)| *sum += dw);
        }
        assert_eq!(all, sum);
    }
}
