//! Batch normalisation of images.

use std::panic::Location;

use meganeura_derive::Module;

use crate::dtype::check_eps;
use crate::error::bail;
use crate::module::{Init, Layer, ModuleExt, Seed};
use crate::ops::exchange;
use crate::world::{Collective, World};
use crate::{Buffer, Device, Error, ErrorKind, Param, Result, Tensor, Var};

/// Batch normalisation of images: `y = (x − mean)/√(variance + ε) · weight + bias`
///
/// On a training tape, mean and variance are those of each channel over the whole batch, the variance without Bessel's
/// correction, and the running ones move towards them by the share [`momentum`](Self::momentum), the variance with the
/// correction, when the step is taken: by the optimizer, in the same run, or by [`Tape::apply`](crate::Tape::apply). On an
/// inference tape, and in a part of the model that is [evaluated](crate::ModuleExt::evaluate), they are the running ones, which
/// stay, and examples do not see each other. Freezing the layer does not do that. As in PyTorch.
///
/// Shapes: `x [N, C, H, W]`, all others `[C]` → `y [N, C, H, W]`.
/// [Ioffe and Szegedy, 2015](https://arxiv.org/abs/1502.03167).
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let mut norm = BatchNorm2d::new(2).init(&device, Seed::new(42))?;
///
/// let x = Tensor::from_slice(&device, [2, 2, 1, 1], &[1.0, 0.0, 3.0, 0.0])?;
/// let tape = Tape::new(&device);
/// let grads = tape.backward(&norm.forward(&tape.input(&x)).square().sum())?;
/// Sgd::new(0.1).step(&mut norm, &grads)?; // and the running statistics
/// assert_eq!(norm.running_mean.value().to_vec()?, [0.2, 0.0]);
/// assert_eq!(norm.running_var.value().to_vec()?, [1.1, 0.9]);
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Module, Debug, Clone)]
pub struct BatchNorm2d {
    /// What each normalised channel is multiplied by, `[C]`; ones at first.
    pub weight: Option<Param>,
    /// What is then added, `[C]`; zeros at first.
    pub bias: Option<Param>,
    /// The mean for inference, `[C]`; zeros at first.
    pub running_mean: Buffer,
    /// The variance for inference, `[C]`; ones at first.
    pub running_var: Buffer,
    /// The share of the batch's statistics in the new running ones, from 0 to 1. May change from step to step.
    #[module(skip)]
    pub momentum: f64,
    /// What is added to the variance, so that a constant channel does not divide by 0.
    #[module(skip)]
    pub eps: f64,
    /// The world over whose ranks the statistics are taken, if they are synchronised.
    #[module(skip)]
    pub world: Option<World>,
}

impl BatchNorm2d {
    /// Normalises each of `channels` channels, with ε = 1e-5 and a momentum of 0.1.
    #[expect(clippy::new_ret_no_self, reason = "a layer needs a device and a seed; this describes one without")]
    pub fn new(channels: usize) -> BatchNorm2dConfig {
        BatchNorm2dConfig { channels, eps: 1e-5, momentum: 0.1, affine: true, world: None }
    }

    /// What is wrong with an input, if anything.
    fn misfit(&self, x: &Var) -> Option<String> {
        let channels = self.running_mean.shape().elements();
        Some(match *x.shape().dims() {
            _ if !x.ty().dtype.is_float() => format!("needs floats, the input holds {}", x.ty().dtype),
            [_, c, _, _] if c != channels => format!("normalises {channels} channels, the input has {c}"),
            [1, _, 1, 1] if self.is_training(x.tape()) && self.ranks() == 1 => {
                "each channel is a single number, which normalised is 0 whatever it was; train with more examples or pixels, \
                 or use the model on `Tape::inference` or in evaluation"
                    .to_owned()
            }
            [_, _, _, _] => return None,
            _ => format!("the input must be [N, {channels}, H, W], it is {}", x.shape()),
        })
    }

    /// Ranks over which the statistics are taken.
    fn ranks(&self) -> usize {
        self.world.as_ref().map_or(1, World::size)
    }

    /// The input moved near 0, and the batch's mean of that and variance, `[1, C, 1, 1]`. The running ones are told.
    #[track_caller]
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
    fn of_batch(&self, x: &Var) -> (Var, Var, Var) {
        let [n, _, h, w] = *x.shape().dims() else { unreachable!("`misfit` has seen it") };
        let axes = [0, 2, 3];
        // Less a number of each channel, which changes nothing that is normalised afterwards and no gradient. Where the mean is far
        // above the spread the difference is exact, and its mean is what the rounding of `rounded` left. No element decides alone.
        let rounded = x.mean_keep(&axes).detach();
        let (rounded, moved, mean, variance) = match self.world.as_ref().filter(|world| !world.is_alone()) {
            None => {
                let moved = x - &rounded;
                let mean = moved.mean_keep(&axes);
                let variance = (&moved - &mean).square().mean_keep(&axes);
                (rounded, moved, mean, variance)
            }
            Some(world) => {
                let rounded = rounded.all_mean(world);
                let moved = x - &rounded;
                // In one exchange. The mean is near 0, so that its square takes no digits.
                let own = [moved.mean_keep(&axes), moved.square().mean_keep(&axes)];
                let means = exchange(&own.each_ref(), world, Collective::AllMean);
                let variance = &means[1] - means[0].square();
                (rounded, moved, means[0].clone(), variance)
            }
        };
        let count = (n * h * w * self.ranks()) as f64;
        self.follow(&self.running_mean, &(&mean + rounded));
        self.follow(&self.running_var, &variance.scale(count / (count - 1.0)));
        (moved, mean, variance)
    }

    /// Moves a running statistic towards that of a batch.
    #[track_caller]
    fn follow(&self, running: &Buffer, batch: &Var) {
        let tape = batch.tape();
        let (kept, share) = (tape.scalar(1.0 - self.momentum), tape.scalar(self.momentum));
        let old = tape.latest(running);
        tape.assign(running, &old, &(&old * kept + batch.reshape(running.shape()) * share));
    }
}

/// A number of each channel, as what broadcasts to images.
#[track_caller]
fn channels(x: &Var) -> Var {
    x.reshape([x.shape().elements(), 1, 1])
}

impl Layer for BatchNorm2d {
    fn forward(&self, x: &Var) -> Var {
        if let Some(message) = self.misfit(x) {
            let error = Error::new(ErrorKind::Shape, message).in_op("batch_norm2d").operand(x.ty(), x.path());
            return x.fail(error.operand(self.running_mean.ty(), self.running_mean.path()).at(Location::caller()));
        }
        // The field may have changed since `init`.
        if let Err(message) = check_eps(self.eps) {
            return x.refuse("batch_norm2d", ErrorKind::Argument, message);
        }
        let (near, mean, variance) = match self.is_training(x.tape()) {
            true => {
                let (moved, mean, variance) = self.of_batch(x);
                (moved, Some(mean), variance)
            }
            false => (x - channels(&x.buffer(&self.running_mean)), None, channels(&x.buffer(&self.running_var))),
        };
        // A factor and an offset for each channel: centred numbers are only squared, which the reduction does as it loads.
        let factor = (variance + x.constant(self.eps)).rsqrt();
        let factor = match &self.weight {
            Some(weight) => factor * channels(&x.param(weight)),
            None => factor,
        };
        match (&self.bias, mean) {
            (Some(bias), Some(mean)) => {
                let (bias, below) = (channels(&x.param(bias)), mean * &factor);
                near * factor + (bias - below)
            }
            (Some(bias), None) => {
                let bias = channels(&x.param(bias));
                near * factor + bias
            }
            (None, Some(mean)) => {
                let below = mean * &factor;
                near * factor - below
            }
            (None, None) => near * factor,
        }
    }
}

/// Describes a [`BatchNorm2d`]; [`Init::init`] builds it.
#[derive(Debug, Clone)]
#[must_use]
pub struct BatchNorm2dConfig {
    channels: usize,
    eps: f64,
    momentum: f64,
    affine: bool,
    world: Option<World>,
}

impl BatchNorm2dConfig {
    /// The number added to the variance, at least 1.2e-38; 1e-5 by default.
    pub fn eps(self, eps: f64) -> Self {
        Self { eps, ..self }
    }

    /// The share of the batch's statistics in the new running ones; 0.1 by default.
    pub fn momentum(self, momentum: f64) -> Self {
        Self { momentum, ..self }
    }

    /// Synchronises mean and variance over the ranks of a [world](crate::world), each with an equal part of the batch. By default
    /// each rank uses its own batch. Ranks meet twice in each forward pass of the layer, and once in the backward pass.
    pub fn synchronized(self, world: &World) -> Self {
        Self { world: Some(world.clone()), ..self }
    }

    /// Whether there are a weight and a bias; there are by default.
    pub fn affine(self, affine: bool) -> Self {
        Self { affine, ..self }
    }
}

impl Init for BatchNorm2dConfig {
    type Output = BatchNorm2d;

    fn build(self, device: &Device, _: Seed) -> Result<BatchNorm2d> {
        let Self { channels, eps, momentum, affine, world } = self;
        if channels == 0 {
            bail!(Argument, "batch_norm2d: of 0 channels; there must be at least 1");
        }
        if let Err(message) = check_eps(eps) {
            bail!(Argument, "batch_norm2d: {message}");
        }
        if !(0.0..=1.0).contains(&momentum) {
            bail!(Argument, "batch_norm2d: momentum is {momentum}, not between 0 and 1");
        }
        let of = |value| Tensor::full(device, [channels], value);
        let param = |value| affine.then(|| of(value).map(Param::new)).transpose();
        let (weight, bias) = (param(1.0)?, param(0.0)?);
        let (running_mean, running_var) = (Buffer::new(of(0.0)?), Buffer::new(of(1.0)?));
        Ok(BatchNorm2d { weight, bias, running_mean, running_var, momentum, eps, world })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::{Optimizer, Sgd};
    use crate::{Shape, Tape};

    fn tensor(device: &Device, shape: &[usize], x: &[f32]) -> Tensor {
        Tensor::from_slice(device, Shape::new(shape), x).unwrap()
    }

    #[track_caller]
    fn assert_near(found: &[f32], expected: &[f32]) {
        let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 2e-6 * b.abs().max(1.0);
        assert!(found.len() == expected.len() && found.iter().zip(expected).all(near), "{found:?} is not {expected:?}");
    }

    fn running(norm: &BatchNorm2d) -> [Vec<f32>; 2] {
        [&norm.running_mean, &norm.running_var].map(|buffer| buffer.value().to_vec().unwrap())
    }

    /// Channel 0 holds 0, 6, 3, 3, with mean 3 and variance 4.5, or 6 corrected; channel 1 the constant 2.
    const X: [f32; 8] = [0.0, 6.0, 2.0, 2.0, 3.0, 3.0, 2.0, 2.0];

    fn norm(device: &Device) -> BatchNorm2d {
        let mut norm = BatchNorm2d::new(2).eps(0.25).init(device, Seed::new(0)).unwrap();
        norm.weight.as_mut().unwrap().set(tensor(device, &[2], &[2.0, 1.0])).unwrap();
        norm.bias.as_mut().unwrap().set(tensor(device, &[2], &[1.0, 10.0])).unwrap();
        norm
    }

    #[test]
    fn training_goes_by_the_batch_and_the_step_moves_the_running_statistics_in_the_same_run() {
        let device = Device::cpu();
        let mut norm = norm(&device);
        let tape = Tape::new(&device);
        let y = norm.forward(&tape.input(&tensor(&device, &[2, 2, 1, 2], &X)));
        // 3/√4.75 = 1.3764944
        let expected = [1.0 - 2.752_988_8, 1.0 + 2.752_988_8, 10.0, 10.0, 1.0, 1.0, 10.0, 10.0];
        assert_near(&y.to_vec().unwrap(), &expected);
        assert_eq!(running(&norm), [[0.0, 0.0], [1.0, 1.0]], "reading changes nothing");
        let grads = tape.backward(&y.sum()).unwrap();
        let runs = device.stats().runs;
        Sgd::new(0.0).step(&mut norm, &grads).unwrap();
        assert_eq!(device.stats().runs, runs + 1);
        let [mean, variance] = running(&norm);
        assert_near(&mean, &[0.3, 0.2]);
        assert_near(&variance, &[0.9 + 0.6, 0.9]);
    }

    #[test]
    fn inference_goes_by_the_running_statistics() {
        let device = Device::cpu();
        let mut norm = norm(&device);
        norm.running_mean.set(tensor(&device, &[2], &[3.0, 1.0])).unwrap();
        norm.running_var.set(tensor(&device, &[2], &[2.0, 0.75])).unwrap();
        let tape = Tape::inference(&device);
        let x = tape.input(&tensor(&device, &[1, 2, 1, 1], &[6.0, 3.0]));
        assert_near(&norm.forward(&x).to_vec().unwrap(), &[1.0 + 2.0 * 3.0 / 1.5, 12.0]);
        tape.apply().unwrap();
        assert_eq!(running(&norm), [[3.0, 1.0], [2.0, 0.75]]);
    }

    #[test]
    fn a_layer_that_is_used_twice_moves_twice_and_by_another_momentum_without_another_plan() {
        let device = Device::cpu();
        let mut norm = BatchNorm2d::new(1).affine(false).momentum(0.5).init(&device, Seed::new(0)).unwrap();
        assert!(norm.named_parameters().is_empty());
        for (momentum, expected) in [(0.5, 2.0 * 0.25 + 4.0 * 0.5), (1.0, 4.0)] {
            norm.momentum = momentum;
            let tape = Tape::new(&device);
            for middle in [2.0, 4.0] {
                let _ = norm.forward(&tape.input(&tensor(&device, &[2, 1, 1, 1], &[middle - 1.0, middle + 1.0])));
            }
            tape.apply().unwrap();
            assert_near(&running(&norm)[0], &[expected]);
        }
        assert_eq!(device.stats().plans, 1);
    }

    #[test]
    fn a_mean_far_from_0_costs_no_digits() {
        let device = Device::cpu();
        let norm = BatchNorm2d::new(1).eps(1e-9).init(&device, Seed::new(0)).unwrap();
        // Numbers that an f32 holds exactly, with deviation 1/8.
        let x = tensor(&device, &[4, 1, 1, 1], &[3000.125, 2999.875, 3000.125, 2999.875]);
        let y = norm.forward(&Tape::new(&device).input(&x)).to_vec().unwrap();
        assert_near(&y, &[1.0, -1.0, 1.0, -1.0]);
    }

    #[test]
    fn a_step_that_is_held_back_leaves_the_running_statistics_alone() {
        let device = Device::cpu();
        let mut norm = norm(&device);
        let tape = Tape::new(&device);
        let y = norm.forward(&tape.input(&tensor(&device, &[2, 2, 1, 2], &X)));
        let grads = tape.backward(&(y * f64::INFINITY).sum()).unwrap();
        let error = Sgd::new(0.1).check_finite(true).step(&mut norm, &grads).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFinite);
        assert_eq!(running(&norm), [[0.0, 0.0], [1.0, 1.0]]);
    }

    #[test]
    fn senseless_settings_are_errors() {
        let device = Device::cpu();
        let configs = [
            BatchNorm2d::new(0),
            BatchNorm2d::new(1).eps(0.0),
            BatchNorm2d::new(1).eps(1e-50),
            BatchNorm2d::new(1).momentum(1.5),
        ];
        for config in configs.into_iter().chain([BatchNorm2d::new(1).momentum(f64::NAN)]) {
            assert_eq!(config.init(&device, Seed::new(0)).unwrap_err().kind(), ErrorKind::Argument);
        }
    }

    #[test]
    fn what_does_not_fit_poisons() {
        let device = Device::cpu();
        let norm = norm(&device);
        let zeros = |tape: &Tape, shape: &[usize]| tape.input(&Tensor::zeros(&device, Shape::new(shape)).unwrap());
        for (shape, part) in [
            (&[1, 4, 2, 2][..], "normalises 2 channels, the input has 4"),
            (&[2, 2], "[N, 2, H, W], it is [2, 2]"),
            (&[1, 2, 1, 1], "single number"),
        ] {
            let (y, line) = (norm.forward(&zeros(&Tape::new(&device), shape)), line!());
            let error = y.error().unwrap();
            assert_eq!((error.kind(), error.location().unwrap().line()), (ErrorKind::Shape, line));
            assert!(error.to_string().starts_with("batch_norm2d: ") && error.to_string().contains(part), "{error}");
        }
        assert!(norm.forward(&zeros(&Tape::inference(&device), &[1, 2, 1, 1])).error().is_none());
    }
}
