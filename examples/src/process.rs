//! From images to noise and back: the training data of a diffusion model, and its samplers.
//!
//! `x_t = √ᾱ_t · image + √(1 − ᾱ_t) · noise`, where `ᾱ` falls from nearly 1 to nearly 0 over the timesteps. The model
//! learns to predict the noise from `x_t` and `t`. Ho et al., 2020 (<https://arxiv.org/abs/2006.11239>).

use std::f64::consts::FRAC_PI_2;

use meganeura::Result;
use meganeura::prelude::*;

/// The share of the image that is left at each time.
#[derive(Clone, Debug)]
pub struct Process {
    /// `ᾱ` at timesteps 0, 1, …
    kept: Vec<f64>,
}

/// The random values of a training step.
#[derive(Debug)]
pub struct Draw {
    /// The noise in each image.
    pub noise: Tensor,
    /// The timestep of each image, `f32 [N]`.
    pub times: Tensor,
    /// The factors of each image and of its noise, `f32 [N, 1, 1, 1]`.
    pub shares: [Tensor; 2],
}

/// An image with noise in it and its timestep; and the noise.
pub type Example = ((Array<f32>, f32), Array<f32>);

impl Process {
    /// `ᾱ` falls like a squared cosine, so that small images do not spend many timesteps as almost pure noise: Nichol
    /// and Dhariwal, 2021 (<https://arxiv.org/abs/2102.09672>).
    #[must_use]
    pub fn cosine(times: usize) -> Self {
        let level = |t: usize| ((t as f64 / times as f64 + 0.008) / 1.008 * FRAC_PI_2).cos().powi(2);
        let mut kept = 1.0;
        let fall = |t| {
            // Never removes everything in one step: the reverse process divides by the share that is kept.
            kept *= (level(t + 1) / level(t)).max(1e-3);
            kept
        };
        Self { kept: (0..times).map(fall).collect() }
    }

    /// The number of timesteps.
    #[must_use]
    pub fn times(&self) -> usize {
        self.kept.len()
    }

    /// An example to learn from, made of an image `[C, H, W]`. The same for the same seed.
    ///
    /// # Errors
    ///
    /// If there is no memory for it.
    pub fn example(&self, image: &Array<f32>, seed: Seed) -> Result<Example> {
        let time = (seed.field("time").get() % self.times() as u64) as usize;
        let (mut rng, shares) = (seed.field("noise").rng(), [self.kept[time].sqrt(), (1.0 - self.kept[time]).sqrt()]);
        let [image_share, noise_share] = shares.map(|share| share as f32);
        let (mut noisy, mut noise) = (Array::zeros(image.shape())?, Array::zeros(image.shape())?);
        noise.values_mut().iter_mut().for_each(|noise| *noise = rng.normal() as f32);
        let both = image.values().iter().zip(noise.values());
        noisy
            .values_mut()
            .iter_mut()
            .zip(both)
            .for_each(|(x, (image, noise))| *x = image_share * image + noise_share * noise);
        Ok(((noisy, time as f32), noise))
    }

    /// Noise in the shape of these images, and a time for each. The same for the same seed.
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub fn draw(&self, images: &Tensor, seed: Seed) -> Result<Draw> {
        let (count, device) = (images.shape()[0], images.device());
        let time = |i| (seed.field("time").index(i).get() % self.times() as u64) as usize;
        let times: Vec<usize> = (0..count).map(time).collect();
        let column = |of: &dyn Fn(usize) -> f64, shape: Shape| {
            let values: Vec<_> = times.iter().map(|&t| of(t) as f32).collect();
            Tensor::from_slice(device, shape, &values)
        };
        Ok(Draw {
            noise: Tensor::randn(device, images.shape(), seed.field("noise"))?,
            times: column(&|t| t as f64, [count].into())?,
            shares: [
                column(&|t| self.kept[t].sqrt(), [count, 1, 1, 1].into())?,
                column(&|t| (1.0 - self.kept[t]).sqrt(), [count, 1, 1, 1].into())?,
            ],
        })
    }
}

/// The sampler that turns noise into images.
#[cfg_attr(not(target_family = "wasm"), derive(clap::ValueEnum))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampler {
    /// New noise in every step, which needs many steps
    Ddpm,
    /// Only the initial noise: good images in a few steps, the same for the same noise
    Ddim,
}

impl Sampler {
    /// Images from noise `x` in `steps` steps, with values from -1 to 1. `noise_in` is the model: it maps images and
    /// timesteps `[N]` to the noise in the images. `watch` sees `x` after each step.
    ///
    /// Both samplers are one formula, (12) of Song et al., 2020 (<https://arxiv.org/abs/2010.02502>): they differ in
    /// `σ`, the share of new noise. With one step for each time and the full `σ`, it is the DDPM.
    ///
    /// # Errors
    ///
    /// Those of the model, of the device and of `watch`.
    pub fn sample(
        self,
        noise_in: impl Fn(&Tape, &Var, &Var) -> Var,
        process: &Process,
        steps: usize,
        mut x: Tensor,
        seed: Seed,
        mut watch: impl FnMut(usize, &Tensor) -> Result<()>,
    ) -> Result<Tensor> {
        let (device, shape) = (x.device().clone(), x.shape());
        let steps = steps.clamp(1, process.times());
        // The steps are spread over all timesteps; the last one leads to the image itself.
        let kept = |step: usize| if step == 0 { 1.0 } else { process.kept[step * process.times() / steps - 1] };
        for step in (1..=steps).rev() {
            let t = step * process.times() / steps - 1;
            let (now, next) = (kept(step), kept(step - 1));
            let sigma = match self {
                Self::Ddpm => ((1.0 - next) / (1.0 - now) * (1.0 - now / next)).sqrt(),
                Self::Ddim => 0.0,
            };
            let tape = Tape::inference(&device);
            let times = Tensor::full(&device, [shape[0]], t as f32)?;
            let noisy = tape.input(&x);
            let noise = noise_in(&tape, &noisy, &tape.input(&times));
            // The predicted image, clamped so that no pixel is brighter than white, and the noise that follows from it.
            let image = ((&noisy - &noise * (1.0 - now).sqrt()) * now.sqrt().recip()).clamp(-1.0, 1.0);
            let noise = (&noisy - &image * now.sqrt()) * (1.0 - now).sqrt().recip();
            let mut less = image * next.sqrt() + noise * (1.0 - next - sigma * sigma).max(0.0).sqrt();
            if self == Self::Ddpm {
                less += tape.input(&Tensor::randn(&device, shape, seed.index(step))?) * sigma;
            }
            x = less.to_tensor()?;
            watch(steps - step + 1, &x)?;
        }
        Ok(x)
    }
}
