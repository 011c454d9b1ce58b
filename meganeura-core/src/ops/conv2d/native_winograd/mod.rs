//! Convolutions by Winograd's F(4×4, 3×3) in single precision: 3×3 without stride, a quarter of the multiplications.
//!
//! A tile of 4×4 outputs depends on 6×6 inputs. Both are transformed, so that the convolution of a tile becomes 36
//! products of numbers, one at each frequency; and since sums over channels commute with the transforms, 36 products of
//! matrices:
//!
//! ```text
//! forward, dx:  m[f][tile, o] = Σ_c    v[f][tile, c] · u[f][c, o]      v: inputs, u: weights, m: back to outputs
//! dw:           u[f][o, c]    = Σ_tile z[f][tile, o] · v[f][tile, c]   z: cotangents, u: back to weights
//! ```
//!
//! Volumes are layers of images: a layer of outputs is the sum of the convolutions of the layers of inputs that the
//! planes of the weights meet. Layers are transformed once, and such sums are made of products, too.
//!
//! Channels are the last axis everywhere, sixteen side by side (a vector). Transforms are vectorised over them, and
//! products read their operands in that order, without another copy. Inputs are transformed first, in blocks of tiles.
//! A task then takes some output channels. It transforms their weights, which stay in its core's cache. For each block,
//! it multiplies at all frequencies and transforms the results back while they are in the cache. The memory for
//! transforms is bounded, whatever the batch.
//!
//! Each sum is made by one task in the order of its terms, so results do not depend on threads. Double precision, the
//! reference of all tests, does not use this algorithm.

mod tiles;
mod transform;
mod vectors;

use pulp::{Simd, WithSimd};

use self::tiles::{Images, Spectrum, Tiles};
use self::transform::{LANES, Square};
use super::ConvShape;
use crate::kernel::native::{Accumulate, Apart, Block, Real, Scratch, Shared, parallel, parallel_scratch, tasks};
use crate::ops::window::Depth;

/// Products of a tile.
const FREQUENCIES: usize = 36;

/// The most elements that are transformed at once, unless a single image has more.
const SEGMENT: usize = 1 << 23;

/// Output channels of a task: the columns of a product's tile on the widest vectors.
const CHANNELS: usize = 32;

/// The fewest tasks that the output channels of a weight's gradient are divided into.
const TASKS: usize = 8;

/// The fewest tiles of all images for which the transform of the weights pays, and those of a layer, which are the rows
/// or terms of a product.
const FEWEST: usize = 9;
const OF_LAYER: usize = 2;

/// `true` if Winograd's algorithm applies, with enough channels and tiles for the transforms to pay.
pub(super) fn pays(g: &ConvShape) -> bool {
    let tiles = g.n * g.p.div_ceil(4) * g.q.div_ceil(4);
    let are_many = tiles >= OF_LAYER && g.depth.outputs * tiles >= FEWEST;
    g.suits_winograd() && g.c.min(g.o) >= LANES && g.p.min(g.q) >= 3 && are_many
}

/// `y` of images `x` with the weights `w`.
pub(super) fn forward(g: &ConvShape, x: &[f32], w: &[f32], y: &mut [f32], scratch: &Scratch) {
    let x = &x[..g.n * g.c * g.inputs()];
    let (extent, padding) = ([g.h, g.w], g.options().padding);
    let images = Images { x, channels: g.c, layers: g.depth.inputs, extent, padding };
    let weights = Weights { w, depth: g.depth, strides: [g.taps() * g.c, g.taps()], turned: false };
    convolve(&images, &weights, g.o, [g.p, g.q], y, scratch);
}

/// `dx` of the cotangents `dy`: their convolution with taps in reverse order and channels exchanged.
pub(super) fn grad_input(g: &ConvShape, dy: &[f32], w: &[f32], dx: &mut [f32], scratch: &Scratch) {
    let padding = g.options().padding.map(|zeros| 2 - zeros);
    let dy = &dy[..g.n * g.o * g.outputs()];
    let images = Images { x: dy, channels: g.o, layers: g.depth.outputs, extent: [g.p, g.q], padding };
    let weights = Weights { w, depth: g.depth.transposed(), strides: [g.taps(), g.taps() * g.c], turned: true };
    convolve(&images, &weights, g.c, [g.h, g.w], dx, scratch);
}

/// `dw` of images `x` and cotangents `dy`.
pub(super) fn grad_weight(g: &ConvShape, x: &[f32], dy: &[f32], dw: &mut [f32], scratch: &Scratch) {
    let arch = pulp::Arch::new();
    let (image, cotangent) = (g.c * g.inputs(), g.o * g.outputs());
    let (depth, taps) = (g.depth, g.taps());
    // Those of inputs and of outputs.
    let tiles = |n: usize| [depth.inputs, depth.outputs].map(|layers| Tiles::new(n, layers, [g.p, g.q]));
    let lens = |[of_x, of_y]: [Tiles; 2]| [Spectrum::len(&of_x, g.c), Spectrum::len(&of_y, g.o)];
    let segment = at_once(lens(tiles(1)).iter().sum()).min(g.n);
    let [v, z] = lens(tiles(segment)).map(|len| scratch.borrow(len));
    let (Some(mut v), Some(mut z)) = (v, z) else { return };
    let rows = g.o.div_ceil(TASKS).clamp(LANES.min(g.o), CHANNELS);
    for first in (0..g.n).step_by(segment) {
        let n = segment.min(g.n - first);
        let [of_x, of_y] = tiles(n);
        let inputs = Images {
            x: &x[first * image..][..n * image],
            channels: g.c,
            layers: depth.inputs,
            extent: [g.h, g.w],
            padding: g.options().padding,
        };
        let cotangents = Images {
            x: &dy[first * cotangent..][..n * cotangent],
            channels: g.o,
            layers: depth.outputs,
            extent: [g.p, g.q],
            padding: [0, 0],
        };
        let v = inputs.transform(&of_x, transform::of_input, &mut v, scratch);
        let z = cotangents.transform(&of_y, transform::of_output, &mut z, scratch);
        let products = FREQUENCIES * rows * v.depth;
        parallel_scratch(dw, rows * g.patch(), (scratch, products), &|at, dw, u| {
            for plane in 0..depth.kernel {
                let mut is_first = true;
                for block in 0..of_y.blocks() {
                    let Some(layer) = depth.met(of_y.layer(block), plane) else { continue };
                    for (frequency, u) in u.chunks_exact_mut(rows * v.depth).enumerate() {
                        let product = Block {
                            extents: [dw.len() / g.patch(), v.depth, of_y.len(block)],
                            a: &z.matrix(block, frequency)[at * rows..],
                            a_rows: Apart(1),
                            a_terms: Apart(z.depth),
                            b: v.matrix(of_y.in_layer(block, &of_x, layer), frequency),
                            b_terms: Apart(v.depth),
                            c: u,
                            c_stride: v.depth,
                            accumulate: if is_first { Accumulate::No } else { Accumulate::Yes },
                        };
                        product.multiply(arch);
                    }
                    is_first = false;
                }
                if is_first {
                    u.fill(0.0);
                }
                let accumulate = if first == 0 { Accumulate::No } else { Accumulate::Yes };
                arch.dispatch(ToWeights { u, rows, depth: v.depth, channels: g.c, plane, taps, dw, accumulate });
            }
        });
    }
}

/// Images whose transforms, so many elements each, fit into a segment.
fn at_once(of_image: usize) -> usize {
    (SEGMENT / of_image).max(1)
}

/// Weights of pairs of channels, nine of each for every plane.
#[derive(Clone, Copy)]
struct Weights<'a> {
    w: &'a [f32],
    /// The layers that planes meet.
    depth: Depth,
    /// Distances of neighbouring output channels of the product, and of neighbouring terms.
    strides: [usize; 2],
    /// `true` if taps and planes are in reverse order.
    turned: bool,
}

fn convolve(
    images: &Images<'_>,
    weights: &Weights<'_>,
    channels: usize,
    outputs: [usize; 2],
    y: &mut [f32],
    scratch: &Scratch,
) {
    let arch = pulp::Arch::new();
    let depth = weights.depth;
    let pixels = depth.outputs * outputs[0] * outputs[1];
    let image = images.channels * images.layers * images.extent[0] * images.extent[1];
    let n = images.x.len() / image;
    let len = |n: usize| Spectrum::len(&Tiles::new(n, images.layers, outputs), images.channels);
    let segment = at_once(len(1)).min(n);
    let Some(mut v) = scratch.borrow(len(segment)) else { return };
    // Weights that stay the same are transformed once, all of them.
    let of_channel = depth.kernel * FREQUENCIES * images.channels;
    let (of_task, whole) = (of_channel * CHANNELS, of_channel * channels.next_multiple_of(LANES));
    let of_weights = |begin: usize, u: &mut [f32]| {
        let width = CHANNELS.min((channels - begin).next_multiple_of(LANES));
        arch.dispatch(OfWeights { weights, first: begin, channels, width, terms: images.channels, u });
    };
    let kept =
        scratch.prepared::<f32>(1, whole, |u| parallel(u, of_task, &|at, u| of_weights(at / of_task * CHANNELS, u)));
    let kept = kept.as_deref().map(f32::slice);
    for first in (0..n).step_by(segment) {
        let n = segment.min(n - first);
        let [of_x, tiles] = [depth.inputs, depth.outputs].map(|layers| Tiles::new(n, layers, outputs));
        let images = Images { x: &images.x[first * image..][..n * image], ..*images };
        let v = images.transform(&of_x, transform::of_input, &mut v, scratch);
        let y = Shared::new(&mut y[first * channels * pixels..][..n * channels * pixels]);
        // Tasks take some channels and some blocks of tiles. Each result is the same however many there are.
        let parts = (2 * rayon::current_num_threads()).div_ceil(channels.div_ceil(CHANNELS)).min(tiles.blocks());
        let work = tiles.blocks().div_ceil(parts) * tiles.block * of_task;
        let memory = || {
            let u = if kept.is_some() { 0 } else { of_task };
            (scratch.borrow::<f32>(u), scratch.borrow::<f32>(FREQUENCIES * tiles.block * CHANNELS))
        };
        tasks(channels.div_ceil(CHANNELS) * parts, work, &memory, &|task, (u, m)| {
            let (Some(u), Some(m)) = (u.as_deref_mut(), m.as_deref_mut()) else { return };
            let (begin, part) = (task / parts * CHANNELS, task % parts);
            let width = CHANNELS.min((channels - begin).next_multiple_of(LANES));
            let u = match kept {
                Some(all) => &all[of_channel * begin..],
                None => {
                    of_weights(begin, u);
                    u
                }
            };
            for block in tiles.blocks() * part / parts..tiles.blocks() * (part + 1) / parts {
                let met = |plane: usize| Some((plane, depth.met(tiles.layer(block), plane)?));
                let mut is_first = true;
                for (plane, layer) in (0..depth.kernel).filter_map(met) {
                    for frequency in 0..FREQUENCIES {
                        let product = Block {
                            extents: [tiles.len(block), width, images.channels],
                            a: v.matrix(tiles.in_layer(block, &of_x, layer), frequency),
                            a_rows: Apart(v.depth),
                            a_terms: Apart(1),
                            b: &u[(plane * FREQUENCIES + frequency) * images.channels * width..],
                            b_terms: Apart(width),
                            c: &mut m[frequency * tiles.block * width..],
                            c_stride: width,
                            accumulate: if is_first { Accumulate::No } else { Accumulate::Yes },
                        };
                        product.multiply(arch);
                    }
                    is_first = false;
                }
                if is_first {
                    m.fill(0.0);
                }
                let layers = depth.outputs;
                arch.dispatch(ToOutputs {
                    m,
                    tiles: &tiles,
                    block,
                    first: begin,
                    width,
                    channels,
                    layers,
                    outputs,
                    y: &y,
                });
            }
        });
    }
}

/// Transforms the weights of some output channels: `u[plane, frequency, term, channel]`.
struct OfWeights<'a> {
    weights: &'a Weights<'a>,
    first: usize,
    /// The number of all of them.
    channels: usize,
    /// Channels of `u`, in whole vectors.
    width: usize,
    terms: usize,
    u: &'a mut [f32],
}

impl WithSimd for OfWeights<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Weights { w, depth: Depth { kernel, .. }, strides: [stride, term_stride], turned } = *self.weights;
        let (mut taps, mut square) = ([[0.0; LANES]; 9], transform::empty::<6>());
        for vector in (0..self.width).step_by(LANES) {
            let channel = self.first + vector;
            let planes = (LANES.min(self.channels - channel), stride);
            for (plane, term) in (0..kernel).flat_map(|plane| (0..self.terms).map(move |term| (plane, term))) {
                let first = term * term_stride + 9 * if turned { kernel - 1 - plane } else { plane };
                vectors::of_planes(&w[channel * stride..], planes, first, &mut taps);
                if turned {
                    taps.reverse();
                }
                let (rows, _) = taps.as_chunks::<3>();
                transform::square(transform::of_weight, rows.as_array().expect("three"), &mut square);
                for (frequency, numbers) in square.as_flattened().iter().enumerate() {
                    let place = ((plane * FREQUENCIES + frequency) * self.terms + term) * self.width + vector;
                    self.u[place..place + LANES].copy_from_slice(numbers);
                }
            }
        }
    }
}

/// Transforms products of a block back to outputs: from `m[frequency, tile, channel]`.
struct ToOutputs<'a> {
    m: &'a [f32],
    tiles: &'a Tiles,
    block: usize,
    first: usize,
    width: usize,
    channels: usize,
    layers: usize,
    outputs: [usize; 2],
    y: &'a Shared<'a, f32>,
}

impl WithSimd for ToOutputs<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let ([p, q], layers) = (self.outputs, self.layers);
        let (mut from, mut square) = (transform::empty(), transform::empty());
        for run in self.tiles.runs(self.block) {
            for (at, tile_column) in run.columns.enumerate() {
                for vector in (0..self.width).step_by(LANES) {
                    let (channel, place) = (self.first + vector, (run.first + at) * self.width + vector);
                    gather(self.m, place, self.tiles.block * self.width, &mut from);
                    transform::square(transform::to_output, &from, &mut square);
                    let planes = LANES.min(self.channels - channel);
                    let plane = (run.image * self.channels + channel) * layers + run.layer;
                    let (row, column) = (4 * run.row, 4 * tile_column);
                    for (i, vectors) in square.iter().enumerate().take(p - row) {
                        let place = (plane * p + row + i) * q + column;
                        vectors::to_planes(&vectors[..4.min(q - column)], planes, |plane, at, numbers| {
                            // SAFETY: the pixels of this tile in these channels belong to this task alone.
                            unsafe { self.y.write(place + plane * layers * p * q + at, numbers) }
                        });
                    }
                }
            }
        }
    }
}

/// Transforms products back to weights: from `u[frequency, output channel, input channel]`.
struct ToWeights<'a> {
    u: &'a [f32],
    /// Output channels of `u`, of which `dw` may have fewer.
    rows: usize,
    /// Input channels of `u`, in whole vectors, and of `dw`.
    depth: usize,
    channels: usize,
    /// The plane of these weights, and taps of all planes.
    plane: usize,
    taps: usize,
    dw: &'a mut [f32],
    accumulate: Accumulate,
}

impl WithSimd for ToWeights<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let (mut from, mut square) = (transform::empty(), transform::empty());
        for (row, dw) in self.dw.chunks_exact_mut(self.taps * self.channels).enumerate() {
            for channel in (0..self.channels).step_by(LANES) {
                gather(self.u, row * self.depth + channel, self.rows * self.depth, &mut from);
                transform::square(transform::to_weight, &from, &mut square);
                let planes = LANES.min(self.channels - channel);
                vectors::to_planes(square.as_flattened(), planes, |plane, at, numbers| {
                    let to = &mut dw[self.taps * (channel + plane) + 9 * self.plane + at..][..numbers.len()];
                    match self.accumulate {
                        Accumulate::Yes => to.iter_mut().zip(numbers).for_each(|(to, &x)| *to += x),
                        Accumulate::No => to.copy_from_slice(numbers),
                    }
                });
            }
        }
    }
}

/// The vectors of all frequencies at one place, `stride` apart.
#[inline(always)]
fn gather(x: &[f32], place: usize, stride: usize, square: &mut Square<6>) {
    for (frequency, vector) in square.as_flattened_mut().iter_mut().enumerate() {
        *vector = *x[frequency * stride + place..].first_chunk().expect("a vector");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shape;
    use crate::ops::Conv3dOptions;

    /// The geometry of `n` volumes with 16 channels in and out, of square layers, or of images if there is one.
    fn geometry(n: usize, layers: usize, side: usize) -> ConvShape {
        let planes = if layers > 1 { 3 } else { 1 };
        let options = Conv3dOptions { padding: [planes / 2, 1, 1], ..Conv3dOptions::default() };
        let (x, w) = (Shape::from([n, 16, layers, side, side]), Shape::from([16, 16, planes, 3, 3]));
        ConvShape::new(x, w, options).expect("fits")
    }

    /// Numbers from −1 to 1, in an irregular order.
    #[expect(clippy::cast_precision_loss, reason = "small integers")]
    fn numbers(len: usize) -> Vec<f32> {
        (0..len).map(|i| ((i * 7919) % 2003) as f32 / 1001.5 - 1.0).collect()
    }

    /// A batch of several segments, the last one smaller, gives the same bits as each image alone.
    #[test]
    fn segments_are_the_images_of_a_batch() {
        for (layers, side) in [(1, 288), (2, 204)] {
            let n = 3;
            assert_eq!(at_once(Spectrum::len(&Tiles::new(1, layers, [side; 2]), 16)), 2, "images for another segment");
            let (image, scratch) = (16 * layers * side * side, Scratch::default());
            let (x, w) = (numbers(n * image), numbers(16 * 16 * 27));
            let (mut together, mut alone) = (vec![f32::NAN; n * image], vec![f32::NAN; n * image]);
            for pass in [forward, grad_input] {
                pass(&geometry(n, layers, side), &x, &w, &mut together, &scratch);
                for (x, y) in x.chunks(image).zip(alone.chunks_mut(image)) {
                    pass(&geometry(1, layers, side), x, &w, y, &scratch);
                }
                assert!(together == alone);
            }
        }
    }

    /// The gradients of the weights add up over segments.
    #[test]
    fn segments_are_summed() {
        for (layers, side) in [(1, 192), (3, 112)] {
            let n = 4;
            assert_eq!(at_once(Spectrum::len(&Tiles::new(1, layers, [side; 2]), 32)), 3, "images for another segment");
            let (image, scratch) = (16 * layers * side * side, Scratch::default());
            let (x, dy) = (numbers(n * image), numbers(n * image + 1));
            let weights = 16 * geometry(n, layers, side).patch();
            let (mut sum, mut parts) = (vec![f32::NAN; weights], vec![0.0; weights]);
            grad_weight(&geometry(n, layers, side), &x, &dy[1..], &mut sum, &scratch);
            for (x, dy) in x.chunks(image).zip(dy[1..].chunks(image)) {
                let mut dw = vec![f32::NAN; parts.len()];
                grad_weight(&geometry(1, layers, side), x, dy, &mut dw, &scratch);
                parts.iter_mut().zip(&dw).for_each(|(part, dw)| *part += dw);
            }
            let largest = sum.iter().fold(0.0, |max: f32, x| max.max(x.abs()));
            for (sum, part) in sum.iter().zip(&parts) {
                // Sums of 9,216 products per image and more, added in blocks: errors of a few units in the last place
                // of the largest sum.
                assert!((sum - part).abs() <= 5e-6 * largest, "{sum} is not {part}");
            }
        }
    }
}
