//! Batches of coloured shapes, for loss curves: a batch of noise is memorised within a few hundred steps, shapes are
//! not.

use std::f64::consts::FRAC_PI_2;
use std::thread;

use meganeura::data::{Array, Batch, Examples};
use meganeura::prelude::*;
use meganeura::{Error, ErrorKind, Result};
use meganeura_examples::shapes::Shapes;

/// The side length in pixels, before resizing.
const SIDE: usize = 32;

/// `count` batches of this shape, `[N, C, H, W]` with square images of at most three channels, or `[N, H·W]`. No two
/// batches share an image. Host threads draw them.
pub fn batches(device: &Device, batch: Shape, count: usize, seed: Seed) -> Result<Vec<Batch>> {
    let (size, input) = (batch[0], Shape::new(&batch.dims()[1..]));
    let images =
        size.checked_mul(count).ok_or_else(|| Error::new(ErrorKind::OutOfMemory, "too many batches".to_owned()))?;
    let dataset = Dataset::of(Resized { shapes: Shapes::new(images, seed), input })?;
    let threads = thread::available_parallelism().map_or(1, usize::from);
    dataset.batches(size).workers(threads).on(device).collect()
}

/// Shapes, resized by nearest neighbour, cut to the first channels, with brightness from -2 to 2.
struct Resized {
    shapes: Shapes,
    input: Shape,
}

impl Examples for Resized {
    type Inputs = Array<f32>;
    type Targets = u32;

    fn len(&self) -> usize {
        self.shapes.len()
    }

    fn read(&self, index: usize) -> Result<(Array<f32>, u32)> {
        let (image, label) = self.shapes.read(index)?;
        let mut input = Array::zeros(self.input)?;
        let side = match *self.input.dims() {
            [_, _, width] => width,
            _ => self.input.elements().isqrt(),
        };
        for (at, value) in input.values_mut().iter_mut().enumerate() {
            let (channel, row, column) = (at / (side * side), at / side % side, at % side);
            let (row, column) = (row * SIDE / side, column * SIDE / side);
            *value = 4.0 * image.values()[(channel * SIDE + row) * SIDE + column] - 2.0;
        }
        Ok((input, label))
    }
}

/// Input and target of a diffusion model.
#[derive(Clone)]
pub struct Noisy {
    /// `cos φ · image + sin φ · noise`, where `φ` reaches a quarter turn at the last time.
    pub x: Tensor,
    /// The time of each image.
    pub t: Tensor,
    /// The noise.
    pub noise: Tensor,
}

impl Noisy {
    /// Adds noise to images `[N, C, H, W]`, computed on the host in double precision.
    pub fn new(images: &Tensor, times: u64, seed: Seed) -> Result<Self> {
        let (device, shape) = (images.device(), images.shape());
        let noise = Tensor::randn(device, shape, seed.field("noise"))?;
        let t: Vec<_> = (0..shape[0]).map(|image| (seed.index(image).get() % times) as f64).collect();
        let mut x = images.to_f64_vec()?;
        let pixels = shape.elements() / shape[0];
        for ((x, noise), t) in x.chunks_mut(pixels).zip(noise.to_f64_vec()?.chunks(pixels)).zip(&t) {
            let (sin, cos) = ((t + 0.5) / times as f64 * FRAC_PI_2).sin_cos();
            x.iter_mut().zip(noise).for_each(|(x, noise)| *x = cos * *x + sin * noise);
        }
        Ok(Self { x: Tensor::from_f64(device, shape, &x)?, t: Tensor::from_f64(device, [shape[0]], &t)?, noise })
    }
}
