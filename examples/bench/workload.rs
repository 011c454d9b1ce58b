//! A workload: a model with data to learn and an optimizer.

use std::fmt;

use clap::ValueEnum;
use meganeura::data::Batch;
use meganeura::init::Initializer;
use meganeura::prelude::*;

use crate::models::{self, Mlp, ResNet18Gn, Tiny, UNet};
use crate::pictures::Pictures;

/// The reference workloads.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// Two convolutions on 8×8 images: all overhead
    Tiny,
    /// 784-1024-1024-10: matrix multiplication
    Mlp,
    /// ResNet-18 with group normalisation, on 32×32 images
    Resnet18gn,
    /// The U-Net of a diffusion model, on 32×32 images
    Unet,
}

/// As it is written on the command line.
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_possible_value().map_or(Ok(()), |value| f.write_str(value.get_name()))
    }
}

impl Name {
    /// Examples in a step of the reference.
    pub fn default_batch(self) -> usize {
        match self {
            Self::Tiny | Self::Unet => 64,
            Self::Mlp => 1024,
            Self::Resnet18gn => 128,
        }
    }

    /// Channels of the first layer of the reference, where they may be chosen.
    pub fn default_channels(self) -> Option<usize> {
        match self {
            Self::Tiny | Self::Mlp => None,
            Self::Resnet18gn => Some(64),
            Self::Unet => Some(128),
        }
    }

    /// Whether it learns from images, which may be files.
    pub fn takes_pictures(self) -> bool {
        matches!(self, Self::Tiny | Self::Resnet18gn)
    }

    /// The workload and its first weights on the device; its data, too, unless threads read them from files. So many channels, where
    /// they may be chosen.
    pub fn make(
        self,
        device: &Device,
        batch: usize,
        channels: usize,
        workers: Option<usize>,
    ) -> meganeura::Result<Box<dyn Workload>> {
        let adamw = || AdamW::new(1e-3).weight_decay(1e-2);
        match self {
            Self::Tiny => Classify::boxed(Tiny::init(device, SEED)?, adamw(), [batch, 1, 8, 8].into(), workers),
            Self::Mlp => Classify::boxed(Mlp::init(device, SEED)?, adamw(), [batch, 784].into(), None),
            Self::Resnet18gn => {
                let net = ResNet18Gn::init(device, SEED, models::resnet18gn(channels))?;
                let sgd = Sgd::new(0.1).momentum(0.9).weight_decay(5e-4);
                Classify::boxed(net, sgd, [batch, 3, 32, 32].into(), workers)
            }
            Self::Unet => {
                let net = UNet::init(device, SEED, models::unet(channels))?;
                Denoise::boxed(net, adamw(), Shape::from([batch, 3, 32, 32]))
            }
        }
    }
}

const SEED: u64 = 42;
const CLASSES: u64 = 10;
const TIMES: u64 = 1000;

/// Something to train, a step at a time.
pub trait Workload {
    /// One step; waits for it and returns the loss before it.
    fn step(&mut self) -> meganeura::Result<f32>;

    /// How many numbers are trained.
    fn parameter_count(&self) -> usize;
}

/// Learns to tell inputs apart.
struct Classify<M, O> {
    device: Device,
    net: M,
    optimizer: O,
    data: Inputs,
}

/// What is learned from.
enum Inputs {
    /// Random numbers, the same in each step.
    Random(Batch),
    Pictures(Pictures),
}

impl<M: Layer + 'static, O: Optimizer + 'static> Classify<M, O> {
    fn boxed(net: M, optimizer: O, input: Shape, workers: Option<usize>) -> meganeura::Result<Box<dyn Workload>> {
        let device = net.named_parameters()[0].1.value().device().clone();
        let data = match workers {
            Some(workers) => Inputs::Pictures(Pictures::new(&device, input, CLASSES as u32, workers)?),
            None => Inputs::Random(random(&device, input)?),
        };
        Ok(Box::new(Self { device, net, optimizer, data }))
    }
}

fn random(device: &Device, input: Shape) -> meganeura::Result<Batch> {
    let data = Seed::new(SEED).field("data");
    let inputs = Initializer::Normal { mean: 0.0, std: 1.0 }.sample(device, input, data)?;
    let labels: Vec<_> = (0..input[0]).map(|example| (data.index(example).get() % CLASSES) as u32).collect();
    Ok(Batch { inputs, targets: Tensor::indices(device, [input[0]], &labels)? })
}

impl<M: Layer, O: Optimizer> Workload for Classify<M, O> {
    fn step(&mut self) -> meganeura::Result<f32> {
        let Batch { inputs, targets } = match &mut self.data {
            Inputs::Random(batch) => batch.clone(),
            Inputs::Pictures(pictures) => pictures.next()?,
        };
        let tape = Tape::new(&self.device);
        let loss = self.net.forward(&tape.input(&inputs)).cross_entropy(&targets);
        let grads = tape.backward(&loss)?;
        self.optimizer.step(&mut self.net, &grads)?;
        loss.item()
    }

    fn parameter_count(&self) -> usize {
        self.net.parameter_count()
    }
}

/// Learns to predict noise.
struct Denoise<O> {
    device: Device,
    net: UNet,
    optimizer: O,
    x: Tensor,
    t: Tensor,
    noise: Tensor,
}

impl<O: Optimizer + 'static> Denoise<O> {
    fn boxed(net: UNet, optimizer: O, input: Shape) -> meganeura::Result<Box<dyn Workload>> {
        let device = net.named_parameters()[0].1.value().device().clone();
        let data = Seed::new(SEED).field("data");
        let normal = |data| Initializer::Normal { mean: 0.0, std: 1.0 }.sample(&device, input, data);
        let (x, noise) = (normal(data.field("x"))?, normal(data.field("noise"))?);
        let times: Vec<_> = (0..input[0]).map(|example| (data.index(example).get() % TIMES) as f32).collect();
        let t = Tensor::from_slice(&device, [input[0]], &times)?;
        Ok(Box::new(Self { device, net, optimizer, x, t, noise }))
    }
}

impl<O: Optimizer> Workload for Denoise<O> {
    fn step(&mut self) -> meganeura::Result<f32> {
        let tape = Tape::new(&self.device);
        let predicted = self.net.forward(&tape.input(&self.x), &tape.input(&self.t));
        let loss = predicted.mse(&tape.input(&self.noise));
        let grads = tape.backward(&loss)?;
        self.optimizer.step(&mut self.net, &grads)?;
        loss.item()
    }

    fn parameter_count(&self) -> usize {
        self.net.parameter_count()
    }
}
