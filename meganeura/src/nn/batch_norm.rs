//! The common part of batch normalisations, whatever their inputs are.

use std::panic::Location;

use crate::dtype::check_eps;
use crate::error::bail;
use crate::ops::all_mean;
use crate::world::World;
use crate::{Buffer, Device, Error, ErrorKind, Param, Result, Tensor, Var};

/// The differences between batch normalisations.
pub(super) struct Kind {
    /// The layer's name in messages.
    pub(super) name: &'static str,
    /// The axes after the channels, for messages.
    pub(super) behind: &'static str,
    /// The numbers of axes that inputs may have.
    pub(super) ranks: &'static [usize],
    /// The word for the elements of a channel in one example, for messages.
    pub(super) places: &'static str,
}

/// A layer in a forward pass.
pub(super) struct Pass<'a> {
    pub(super) kind: &'static Kind,
    pub(super) weight: Option<&'a Param>,
    pub(super) bias: Option<&'a Param>,
    pub(super) running_mean: &'a Buffer,
    pub(super) running_var: &'a Buffer,
    pub(super) momentum: f64,
    pub(super) eps: f64,
    pub(super) world: Option<&'a World>,
    pub(super) is_training: bool,
}

impl Pass<'_> {
    /// The reason why an input does not fit, if it does not.
    fn misfit(&self, x: &Var) -> Option<String> {
        let Kind { behind, ranks, places, .. } = self.kind;
        let (channels, dims) = (self.running_mean.shape().elements(), x.shape());
        Some(match *dims.dims() {
            _ if !x.ty().dtype.is_float() => format!("needs floats, the input holds {}", x.ty().dtype),
            [_, c, ..] if ranks.contains(&dims.rank()) => {
                if c != channels {
                    format!("normalises {channels} channels, the input has {c}")
                } else if dims.elements() == channels && self.is_training && self.ranks() == 1 {
                    format!(
                        "each channel is a single number, which normalised is 0 whatever it was; train with more examples or {places}, \
                         or use the model on `Tape::inference` or in evaluation"
                    )
                } else {
                    return None;
                }
            }
            _ => format!("the input must be [N, {channels}{behind}, it is {dims}"),
        })
    }

    /// The number of ranks over which the statistics are taken.
    fn ranks(&self) -> usize {
        self.world.map_or(1, World::size)
    }

    /// A number of each channel near the batch's mean, without a gradient, the mean's difference from it, and the
    /// variance; each `[C]`. Updates the running statistics.
    #[track_caller]
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
    fn of_batch(&self, x: &Var) -> [Var; 3] {
        // A number per channel is subtracted, which changes no normalised value and no gradient. Where the mean is far
        // larger than the spread, the difference is exact.
        let [mean, rest, variance] = x.channel_moments();
        let (centre, near, variance) = match self.world.filter(|world| !world.is_alone()) {
            None => {
                let centre = mean.detach();
                let near = (mean - &centre) + rest;
                (centre, near, variance)
            }
            Some(world) => {
                let centre = mean.detach().all_mean(world);
                let near = (mean - &centre) + rest;
                // One exchange for both. The mean of the means is near 0, so its square costs no digits.
                let own = [near.clone(), variance + near.square()];
                let means = all_mean(&own.each_ref(), world, false);
                let variance = &means[1] - means[0].square();
                (centre, means[0].clone(), variance)
            }
        };
        let count = (x.shape().elements() / x.shape()[1] * self.ranks()) as f64;
        self.follow(self.running_mean, &(&near + &centre));
        self.follow(self.running_var, &variance.scale(count / (count - 1.0)));
        [centre, near, variance]
    }

    /// Moves a running statistic towards that of a batch.
    #[track_caller]
    fn follow(&self, running: &Buffer, batch: &Var) {
        let tape = batch.tape();
        let (kept, share) = (tape.scalar(1.0 - self.momentum), tape.scalar(self.momentum));
        let old = tape.latest(running);
        tape.assign(running, &old, &(&old * kept + batch * share));
    }

    #[track_caller]
    pub(super) fn forward(&self, x: &Var) -> Var {
        let name = self.kind.name;
        if let Some(message) = self.misfit(x) {
            let error = Error::new(ErrorKind::Shape, message).in_op(name).operand(x.ty(), x.path());
            return x.fail(error.operand(self.running_mean.ty(), self.running_mean.path()).at(Location::caller()));
        }
        // The field may have changed since `init`.
        if let Err(message) = check_eps(self.eps) {
            return x.refuse(name, ErrorKind::Argument, message);
        }
        let (centre, near, variance) = if self.is_training {
            let [centre, near, variance] = self.of_batch(x);
            (centre, Some(near), variance)
        } else {
            (x.buffer(self.running_mean), None, x.buffer(self.running_var))
        };
        let factor = variance.reciprocal_deviation(self.eps);
        let factor = match self.weight {
            Some(weight) => factor * x.param(weight),
            None => factor,
        };
        // A closure would lose the caller's line.
        let shift = match (self.bias, near) {
            (Some(bias), Some(near)) => x.param(bias) - near * &factor,
            (Some(bias), None) => x.param(bias),
            (None, Some(near)) => -(near * &factor),
            (None, None) => factor.constant(0.0).expand(factor.shape()),
        };
        x.channel_affine(&centre, &factor, &shift)
    }
}

/// The initial weight, bias and running statistics.
pub(super) struct Start {
    pub(super) weight: Option<Param>,
    pub(super) bias: Option<Param>,
    pub(super) running_mean: Buffer,
    pub(super) running_var: Buffer,
}

impl Start {
    pub(super) fn new(
        name: &str,
        device: &Device,
        (channels, eps, momentum, affine): (usize, f64, f64, bool),
    ) -> Result<Self> {
        if channels == 0 {
            bail!(Argument, "{name}: of 0 channels; there must be at least 1");
        }
        if let Err(message) = check_eps(eps) {
            bail!(Argument, "{name}: {message}");
        }
        if !(0.0..=1.0).contains(&momentum) {
            bail!(Argument, "{name}: momentum is {momentum}, not between 0 and 1");
        }
        let of = |value| Tensor::full(device, [channels], value);
        let param = |value| affine.then(|| of(value).map(Param::new)).transpose();
        let (weight, bias) = (param(1.0)?, param(0.0)?);
        Ok(Self { weight, bias, running_mean: Buffer::new(of(0.0)?), running_var: Buffer::new(of(1.0)?) })
    }
}

/// A batch normalisation and its config: one type per kind of input, so that a model states which inputs it takes.
macro_rules! batch_norm {
    ($(#[$doc:meta])* $Layer:ident $Config:ident $kind:expr;) => {
        $(#[$doc])*
        #[derive(meganeura_derive::Module, Debug, Clone)]
        pub struct $Layer {
            /// The factor of each normalised channel, `[C]`; initially ones.
            pub weight: Option<$crate::Param>,
            /// The offset of each channel, added last, `[C]`; initially zeros.
            pub bias: Option<$crate::Param>,
            /// The mean for inference, `[C]`; initially zeros.
            pub running_mean: $crate::Buffer,
            /// The variance for inference, `[C]`; initially ones.
            pub running_var: $crate::Buffer,
            /// The weight of the batch's statistics in the new running ones, from 0 to 1. May change from step to step.
            #[module(skip)]
            pub momentum: f64,
            /// The number added to the variance, so that a constant channel causes no division by 0.
            #[module(skip)]
            pub eps: f64,
            /// The world whose ranks share their statistics, if they are synchronised.
            #[module(skip)]
            pub world: Option<$crate::world::World>,
        }

        impl $Layer {
            const KIND: &$crate::nn::batch_norm::Kind = &$kind;

            /// Normalises each of `channels` channels, with ε = 1e-5 and a momentum of 0.1.
            #[expect(clippy::new_ret_no_self, reason = "a layer needs a device and a seed; this describes one without")]
            pub fn new(channels: usize) -> $Config {
                $Config { channels, eps: 1e-5, momentum: 0.1, affine: true, world: None }
            }
        }

        impl $crate::module::Layer for $Layer {
            fn forward(&self, x: &$crate::Var) -> $crate::Var {
                let _entered = $crate::module::enter(self, x);
                let pass = $crate::nn::batch_norm::Pass {
                    kind: Self::KIND,
                    weight: self.weight.as_ref(),
                    bias: self.bias.as_ref(),
                    running_mean: &self.running_mean,
                    running_var: &self.running_var,
                    momentum: self.momentum,
                    eps: self.eps,
                    world: self.world.as_ref(),
                    is_training: $crate::module::ModuleExt::is_training(self, x.tape()),
                };
                pass.forward(x)
            }

            fn flow(&self) -> $crate::module::Flow {
                $crate::module::Flow::kept().takes_channels(self.running_mean.shape()[0])
            }
        }

        #[doc = concat!("Describes a [`", stringify!($Layer), "`]; [`Init::init`](crate::module::Init::init) builds it.")]
        #[derive(Debug, Clone)]
        #[must_use]
        pub struct $Config {
            channels: usize,
            eps: f64,
            momentum: f64,
            affine: bool,
            world: Option<$crate::world::World>,
        }

        impl $Config {
            /// The number added to the variance, at least 1.2e-38; 1e-5 by default.
            pub fn eps(self, eps: f64) -> Self {
                Self { eps, ..self }
            }

            /// The weight of the batch's statistics in the new running ones; 0.1 by default.
            pub fn momentum(self, momentum: f64) -> Self {
                Self { momentum, ..self }
            }

            /// Synchronises mean and variance over the ranks of a [world](crate::world), each of which has an equal
            /// part of the batch.
            ///
            /// By default each rank uses its own batch. Ranks exchange data twice in each forward pass of the layer,
            /// and once in the backward pass.
            pub fn synchronized(self, world: &$crate::world::World) -> Self {
                Self { world: Some(world.clone()), ..self }
            }

            /// Gives the layer a weight and a bias if `true`, the default.
            pub fn affine(self, affine: bool) -> Self {
                Self { affine, ..self }
            }
        }

        impl $crate::module::Init for $Config {
            type Output = $Layer;

            fn build(self, device: &$crate::Device, _: $crate::module::Seed) -> $crate::Result<$Layer> {
                let Self { channels, eps, momentum, affine, world } = self;
                let numbers = (channels, eps, momentum, affine);
                let start = $crate::nn::batch_norm::Start::new($Layer::KIND.name, device, numbers)?;
                let $crate::nn::batch_norm::Start { weight, bias, running_mean, running_var } = start;
                Ok($Layer { weight, bias, running_mean, running_var, momentum, eps, world })
            }
        }
    };
}

pub(super) use batch_norm;
