//! A workload: a model with data and an optimizer.

use std::fmt;
use std::iter::Cycle;
use std::vec;

use clap::ValueEnum;
use meganeura::data::Batch;
use meganeura::optim::TrainStep;
use meganeura::prelude::*;
use meganeura::world::World;
use meganeura::{Outputs, Tensors};

use crate::language::NextToken;
use crate::models::{self, Gpt2, LstmLanguage, Mlp, MobileNetV2, ResNet18Gn, ResNet50, Tiny, UNet, ViT};
use crate::pictures::Pictures;
use crate::shapes::{self, Noisy};

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
    /// ViT-S/16, a transformer on 224×224 images
    Vit,
    /// The small GPT-2, a causal transformer on sequences of 1,024 tokens
    Gpt2,
    /// ResNet-50 with batch normalisation, on 224×224 images
    Resnet50,
    /// MobileNetV2 with batch normalisation, on 224×224 images: depthwise convolutions
    Mobilenet,
    /// Two recurrent layers on sequences of 128 tokens
    Lstm,
}

/// The name on the command line.
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_possible_value().map_or(Ok(()), |value| f.write_str(value.get_name()))
    }
}

/// The extents of a workload that are options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Examples per step.
    pub batch: usize,
    /// Channels of the first layer, or features of a token.
    pub channels: usize,
    /// Layers of a transformer.
    pub layers: usize,
    /// Tokens of a sequence.
    pub length: usize,
}

impl Name {
    /// The size of the reference; 0 for what the workload does not have, or has without an option.
    pub fn size(self) -> Size {
        let [batch, channels, layers, length] = match self {
            Self::Tiny => [64, 0, 0, 0],
            Self::Mlp => [1024, 0, 0, 0],
            Self::Resnet18gn => [128, 64, 0, 0],
            Self::Unet => [64, 128, 0, 0],
            Self::Vit => [64, 384, 12, 0],
            Self::Gpt2 => [8, 768, 12, 1024],
            Self::Resnet50 => [64, 64, 0, 0],
            Self::Mobilenet => [64, 0, 0, 0],
            Self::Lstm => [64, 512, 2, 128],
        };
        Size { batch, channels, layers, length }
    }

    /// The channels are a multiple of this number: the groups of normalisations, the features of a head, or a line.
    pub fn unit(self) -> usize {
        match self {
            Self::Vit | Self::Gpt2 => 64,
            Self::Resnet50 | Self::Lstm => 8,
            _ => 32,
        }
    }

    /// `true` if its blocks can be recomputed.
    pub fn has_blocks(self) -> bool {
        self == Self::Unet
    }

    /// `true` if it learns from images, which may be files.
    pub fn takes_pictures(self) -> bool {
        matches!(self, Self::Tiny | Self::Resnet18gn | Self::Vit | Self::Resnet50 | Self::Mobilenet)
    }

    /// The workload and its initial weights on the device, with its data, unless threads read it from files. A learning
    /// rate replaces the workload's own.
    ///
    /// Each rank trains on its own batch, with the batch size of a single process.
    #[expect(clippy::too_many_arguments, reason = "each is an option of the command line")]
    pub fn make(
        self,
        device: &Device,
        ranks: &Ranks,
        size: Size,
        data: Data,
        lr: Option<f64>,
        compile: bool,
        recompute: bool,
    ) -> Result<Box<dyn Workload>> {
        let Size { batch, channels, layers, length } = size;
        let adamw = |rate| AdamW::new(lr.unwrap_or(rate)).weight_decay(1e-2);
        let sgd = |rate| Sgd::new(lr.unwrap_or(rate)).momentum(0.9).weight_decay(5e-4);
        match self {
            Self::Tiny => {
                let net = Tiny::init(device, SEED)?;
                Classify::boxed(net, adamw(1e-3), [batch, 1, 8, 8].into(), CLASSES, data, compile, ranks)
            }
            Self::Mlp => {
                let net = Mlp::init(device, SEED)?;
                Classify::boxed(net, adamw(1e-3), [batch, 784].into(), CLASSES, data, compile, ranks)
            }
            Self::Resnet18gn => {
                let net = ResNet18Gn::init(device, SEED, models::resnet18gn(channels))?;
                Classify::boxed(net, sgd(0.1), [batch, 3, 32, 32].into(), CLASSES, data, compile, ranks)
            }
            Self::Unet => {
                let net = UNet::init(device, SEED, models::unet(channels))?.recompute(recompute);
                Denoise::boxed(net, adamw(1e-3), [batch, 3, 32, 32].into(), data, compile, ranks)
            }
            Self::Vit => {
                let config = models::vit(channels, layers);
                let (input, classes) = ([batch, config.images, config.side, config.side].into(), config.classes as u64);
                let net = ViT::init(device, SEED, config)?;
                Classify::boxed(net, adamw(1e-4), input, classes, data, compile, ranks)
            }
            Self::Gpt2 => {
                let net = Gpt2::init(device, SEED, models::gpt2(channels, layers, length))?;
                let loss = |net: &Gpt2, (tokens, next): &(Var, Var)| net.loss(tokens, next);
                NextToken::boxed(net, loss, adamw(1e-4), [batch, length], data, compile, ranks)
            }
            Self::Resnet50 => {
                let config = models::resnet50(channels);
                let classes = config.classes as u64;
                let net = ResNet50::init(device, SEED, config)?;
                Classify::boxed(net, sgd(0.01), [batch, 3, 224, 224].into(), classes, data, compile, ranks)
            }
            Self::Mobilenet => {
                let config = models::mobilenet();
                let classes = config.classes as u64;
                let net = MobileNetV2::init(device, SEED, config)?;
                Classify::boxed(net, sgd(0.01), [batch, 3, 224, 224].into(), classes, data, compile, ranks)
            }
            Self::Lstm => {
                let net = LstmLanguage::init(device, SEED, models::lstm(channels, layers))?;
                let loss = |net: &LstmLanguage, (tokens, next): &(Var, Var)| net.loss(tokens, next);
                NextToken::boxed(net, loss, adamw(1e-3), [batch, length], data, compile, ranks)
            }
        }
    }
}

/// The examples of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// One batch of random numbers, the same in each step.
    Noise,
    /// A number of batches of shapes, or of a play's text, used in turn, drawn from this seed.
    Several { batches: usize, seed: u64 },
    /// Images, read from files by a number of threads.
    Files { workers: usize },
}

pub const SEED: u64 = 42;
const CLASSES: u64 = 10;
const TIMES: u64 = 1000;

/// The ranks that train together.
#[derive(Clone)]
pub struct Ranks {
    pub world: World,
    /// `true` if the optimizer's state is sharded over the ranks.
    pub shard: bool,
    /// `true` if gradients are exchanged in bf16.
    pub bf16: bool,
}

impl Ranks {
    fn average<M: Module>(&self, net: &M, grads: Grads) -> Result<Grads> {
        match self {
            Self { shard: true, .. } => grads.average_to_owners(net, &self.world),
            Self { bf16: true, .. } => grads.average_bf16(net, &self.world),
            _ => grads.average(net, &self.world),
        }
    }
}

/// The bytes of an optimizer's state in this process.
pub fn state_bytes(optimizer: &dyn Optimizer, net: &dyn Module) -> usize {
    optimizer.state_of(net).tensors.values().map(|tensor| tensor.ty().bytes()).sum()
}

/// A training loop, one step at a time.
pub trait Workload {
    /// Takes a step, waits for it, and returns the loss before it.
    fn step(&mut self) -> Result<f32>;

    /// The number of trained parameters.
    fn parameter_count(&self) -> usize;

    /// The bytes of their optimizer state in this process.
    fn state_bytes(&self) -> usize;
}

/// A model, with its form of steps.
pub enum Steps<M, I> {
    /// A tape for each step.
    Taped(M, fn(&M, &I) -> Var, Ranks),
    /// A step that was recorded once.
    Compiled(TrainStep<'static, Box<M>, I, Var>),
}

impl<M: Module + 'static, I: Outputs + 'static> Steps<M, I> {
    pub fn new(net: M, loss: fn(&M, &I) -> Var, compile: bool, ranks: &Ranks) -> Self {
        let ranks = ranks.clone();
        if !compile {
            return Self::Taped(net, loss, ranks);
        }
        let step = TrainStep::new(Box::new(net), loss);
        Self::Compiled(step.gradients(move |net, grads| ranks.average(net, grads)))
    }

    /// Takes a step on a batch; `on` puts the batch on a tape.
    pub fn take(
        &mut self,
        optimizer: &mut dyn Optimizer,
        batch: <I::Tensors as Tensors>::Refs<'_>,
        on: impl FnOnce(&Tape) -> I,
        device: &Device,
    ) -> Result<f32> {
        match self {
            Self::Compiled(step) => step.call(optimizer, batch)?.item(),
            Self::Taped(net, loss, ranks) => {
                let tape = Tape::new(device);
                let loss = loss(net, &on(&tape));
                let grads = ranks.average(net, tape.backward(&loss)?)?;
                optimizer.step(net, &grads)?;
                loss.item()
            }
        }
    }

    pub fn module(&self) -> &M {
        match self {
            Self::Compiled(step) => step.module(),
            Self::Taped(net, ..) => net,
        }
    }
}

/// Learns to classify inputs.
struct Classify<M, O> {
    device: Device,
    steps: Steps<M, (Var, Var)>,
    optimizer: O,
    data: Inputs,
}

/// The training data.
enum Inputs {
    /// On the device from the start, used in turn.
    Made(Cycle<vec::IntoIter<Batch>>),
    Pictures(Box<Pictures>),
}

impl<M: Layer + 'static, O: Optimizer + 'static> Classify<M, O> {
    fn boxed(
        net: M,
        optimizer: O,
        input: Shape,
        classes: u64,
        data: Data,
        compile: bool,
        ranks: &Ranks,
    ) -> Result<Box<dyn Workload>> {
        let device = net.named_parameters()[0].1.value().device().clone();
        let made = |batches: Vec<_>| Inputs::Made(batches.into_iter().cycle());
        let data = match data {
            Data::Noise => made(vec![random(&device, input, classes)?]),
            Data::Several { batches, seed } => {
                made(shapes::batches(&device, input, batches, Seed::new(seed).field("data"))?)
            }
            Data::Files { workers } => {
                Inputs::Pictures(Box::new(Pictures::new(&device, input, classes as u32, workers)?))
            }
        };
        let steps = Steps::new(net, |net, (x, labels)| net.forward(x).cross_entropy(labels), compile, ranks);
        Ok(Box::new(Self { device, steps, optimizer, data }))
    }
}

fn random(device: &Device, input: Shape, classes: u64) -> Result<Batch> {
    let data = Seed::new(SEED).field("data");
    let inputs = Tensor::randn(device, input, data)?;
    let labels: Vec<_> = (0..input[0]).map(|example| (data.index(example).get() % classes) as u32).collect();
    Ok(Batch { inputs, targets: Tensor::indices(device, [input[0]], &labels)? })
}

impl<M: Layer + 'static, O: Optimizer> Workload for Classify<M, O> {
    fn step(&mut self) -> Result<f32> {
        let Batch { inputs, targets } = match &mut self.data {
            Inputs::Made(batches) => batches.next().expect("a cycle never ends"),
            Inputs::Pictures(pictures) => pictures.next()?,
        };
        let on = |tape: &Tape| (tape.input(&inputs), tape.input(&targets));
        self.steps.take(&mut self.optimizer, (&inputs, &targets), on, &self.device)
    }

    fn parameter_count(&self) -> usize {
        self.steps.module().parameter_count()
    }

    fn state_bytes(&self) -> usize {
        state_bytes(&self.optimizer, self.steps.module())
    }
}

/// Learns to predict noise.
struct Denoise<O> {
    device: Device,
    steps: Steps<UNet, (Var, Var, Var)>,
    optimizer: O,
    data: Cycle<vec::IntoIter<Noisy>>,
}

impl<O: Optimizer + 'static> Denoise<O> {
    fn boxed(
        net: UNet,
        optimizer: O,
        input: Shape,
        data: Data,
        compile: bool,
        ranks: &Ranks,
    ) -> Result<Box<dyn Workload>> {
        let device = net.named_parameters()[0].1.value().device().clone();
        let data = match data {
            Data::Several { batches, seed } => {
                let seed = Seed::new(seed).field("data");
                let noisy = |(at, batch): (usize, Batch)| Noisy::new(&batch.inputs, TIMES, seed.index(at));
                let batches = shapes::batches(&device, input, batches, seed)?;
                batches.into_iter().enumerate().map(noisy).collect::<Result<_>>()?
            }
            Data::Noise | Data::Files { .. } => vec![random_noise(&device, input)?],
        };
        let steps = Steps::new(net, |net, (x, t, noise)| net.forward(x, t).mse(noise), compile, ranks);
        Ok(Box::new(Self { device, steps, optimizer, data: data.into_iter().cycle() }))
    }
}

/// Noise that is independent of the input.
fn random_noise(device: &Device, input: Shape) -> Result<Noisy> {
    let data = Seed::new(SEED).field("data");
    let normal = |data| Tensor::randn(device, input, data);
    let (x, noise) = (normal(data.field("x"))?, normal(data.field("noise"))?);
    let times: Vec<_> = (0..input[0]).map(|example| (data.index(example).get() % TIMES) as f32).collect();
    Ok(Noisy { x, t: Tensor::from_slice(device, [input[0]], &times)?, noise })
}

impl<O: Optimizer> Workload for Denoise<O> {
    fn step(&mut self) -> Result<f32> {
        let Self { device, steps, optimizer, data } = self;
        let Noisy { x, t, noise } = &data.next().expect("a cycle never ends");
        let on = |tape: &Tape| (tape.input(x), tape.input(t), tape.input(noise));
        steps.take(optimizer, (x, t, noise), on, device)
    }

    fn parameter_count(&self) -> usize {
        self.steps.module().parameter_count()
    }

    fn state_bytes(&self) -> usize {
        state_bytes(&self.optimizer, self.steps.module())
    }
}
