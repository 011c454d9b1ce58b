//! Every layer, every loss and a model: gradients against finite differences, and outputs and gradients in `f32`,
//! natively and on the GPU, against `f64`.

use std::sync::Arc;

use libtest_mimic::{Failed, Trial};
use meganeura::check::Gradcheck;
use meganeura::loss::{BceWithLogitsOptions, CrossEntropyOptions, KlDivOptions, Reduction};
use meganeura::module::Role;
use meganeura::nn::*;
use meganeura::ops::{Mask, Padding};
use meganeura::{Device, FromSeed, Init, Layer, Module, ModuleExt, Param, Precision, Result, Seed, Tape, Tensor, Var};

use crate::adapter::gpu_trial;
use crate::nets::{Nested, Pool, Tiny, randomise, tensor};
use crate::numbers::{Computed, Reference, compare};

pub(crate) type Build = Box<dyn Fn(&Device) -> Result<Box<dyn Layer>> + Send + Sync>;

/// A layer and the shape of its input.
pub(crate) struct Subject {
    pub(crate) name: String,
    pub(crate) x: Vec<usize>,
    pub(crate) build: Build,
    /// Sums of K rounded terms lose about √K units in the last place, and no subject sums more than 200. The 1/σ of a
    /// normalisation, and elementary functions of GPUs that are some units off, multiply that by a few.
    tolerance: f64,
}

impl Subject {
    fn within(self, tolerance: f64) -> Self {
        Self { tolerance, ..self }
    }
}

/// A layer that is built by `builder`.
fn of<I>(name: &str, x: &[usize], builder: I) -> Subject
where
    I: Init<Output: Layer + 'static> + Clone + Send + Sync + 'static,
{
    built(name, x, move |device| Ok(Box::new(builder.clone().init(device, Seed::new(1))?)))
}

fn built(
    name: &str,
    x: &[usize],
    build: impl Fn(&Device) -> Result<Box<dyn Layer>> + Send + Sync + 'static,
) -> Subject {
    Subject { name: format!("{name} {x:?}"), x: x.to_vec(), build: Box::new(build), tolerance: 1e-5 }
}

pub(crate) fn subjects() -> Vec<Subject> {
    vec![
        of("linear", &[4, 5], Linear::new(5, 3)),
        of("linear without bias", &[2, 7], Linear::new(7, 4).bias(false)),
        of("linear on a vector", &[5], Linear::new(5, 3)),
        of("linear on more axes", &[2, 3, 5], Linear::new(5, 3)),
        of("linear on many axes", &[2, 1, 3, 2, 4], Linear::new(4, 1)),
        of("linear from one to one", &[3, 1], Linear::new(1, 1)),
        of("conv1d", &[2, 3, 9], Conv1d::new(3, 5, 3).padding(1)),
        of("conv1d strided", &[3, 4, 8], Conv1d::new(4, 6, 3).stride(2).padding(2).dilation(2).groups(2).bias(false)),
        of("conv_transpose1d", &[2, 3, 5], ConvTranspose1d::new(3, 2, 3).stride(2).padding(1).output_padding(1)),
        of("conv2d", &[2, 3, 7, 6], Conv2d::new(3, 5, 3)),
        of("conv2d without bias", &[3, 2, 5, 5], Conv2d::new(2, 3, 3).padding(1).bias(false)),
        of("conv2d more padding than half", &[2, 2, 4, 5], Conv2d::new(2, 3, 3).padding(2)),
        of("conv2d unequal kernel", &[2, 2, 6, 7], Conv2d::new(2, 3, (2, 3)).stride((2, 1)).padding((1, 0))),
        of("conv2d even kernel", &[2, 2, 5, 5], Conv2d::new(2, 2, 4).padding(1)),
        of("conv2d stride with a rest", &[2, 2, 9, 8], Conv2d::new(2, 3, 3).stride(3).padding(1)),
        of("conv2d stride past the kernel", &[2, 2, 9, 9], Conv2d::new(2, 3, 2).stride(4)),
        of("conv2d dilated", &[2, 2, 7, 9], Conv2d::new(2, 3, 3).dilation((2, 3)).padding(2)),
        of("conv2d dilated and strided", &[2, 2, 9, 9], Conv2d::new(2, 3, 3).dilation(2).stride(2).padding((2, 1))),
        of("conv2d groups", &[2, 4, 5, 6], Conv2d::new(4, 6, 3).groups(2).padding(1)),
        of("conv2d depthwise", &[2, 3, 5, 5], Conv2d::new(3, 6, 3).groups(3).stride(2)),
        of("conv2d 1×1", &[3, 4, 3, 2], Conv2d::new(4, 5, 1)),
        of("conv2d 1×1 strided", &[2, 3, 5, 4], Conv2d::new(3, 2, 1).stride(2)),
        of("conv2d whole image", &[2, 3, 4, 5], Conv2d::new(3, 4, (4, 5))),
        of("conv2d width 41", &[2, 1, 3, 41], Conv2d::new(1, 2, 3).padding(1)),
        of("conv2d reflecting", &[2, 2, 4, 5], Conv2d::new(2, 3, 3).padding(2).padding_mode(Padding::Reflect)),
        of("conv2d replicating", &[1, 2, 3, 4], Conv2d::new(2, 2, 3).padding((1, 4)).padding_mode(Padding::Replicate)),
        of("conv2d on a torus", &[2, 1, 3, 4], Conv2d::new(1, 2, 3).padding(1).padding_mode(Padding::Circular)),
        of("conv3d", &[2, 2, 4, 5, 3], Conv3d::new(2, 3, 3).padding(1)),
        of(
            "conv3d of all options",
            &[1, 4, 5, 4, 5],
            Conv3d::new(4, 2, (2, 1, 3)).stride((2, 1, 2)).padding((1, 0, 1)).dilation((2, 1, 1)).groups(2).bias(false),
        ),
        of("conv_transpose2d", &[2, 3, 4, 5], ConvTranspose2d::new(3, 2, 3)),
        of(
            "conv_transpose2d doubling",
            &[2, 3, 4, 3],
            ConvTranspose2d::new(3, 2, 3).stride(2).padding(1).output_padding(1),
        ),
        of("conv_transpose2d groups", &[2, 4, 3, 3], ConvTranspose2d::new(4, 6, 2).groups(2).stride(2).bias(false)),
        of(
            "conv_transpose2d unequal",
            &[2, 2, 3, 4],
            ConvTranspose2d::new(2, 3, (2, 3)).stride((1, 2)).padding((0, 1)).output_padding((1, 0)).dilation((2, 1)),
        ),
        of("batch_norm2d", &[3, 2, 3, 2], BatchNorm2d::new(2)),
        of("batch_norm2d without pixels", &[5, 3, 1, 1], BatchNorm2d::new(3).eps(0.1)),
        of("batch_norm2d without affine", &[1, 3, 4, 3], BatchNorm2d::new(3).affine(false)),
        of("batch_norm3d", &[2, 3, 2, 3, 2], BatchNorm3d::new(3)),
        of("batch_norm1d", &[5, 3], BatchNorm1d::new(3)),
        of("batch_norm1d of sequences", &[2, 3, 4], BatchNorm1d::new(3).eps(0.1)),
        of("group_norm 1 group", &[2, 4, 3, 5], GroupNorm::new(1, 4)),
        of("group_norm as many groups as channels", &[2, 3, 4, 3], GroupNorm::new(3, 3)),
        of("group_norm 2 groups", &[3, 6, 2, 3], GroupNorm::new(2, 6)),
        of("group_norm without pixels", &[3, 6], GroupNorm::new(2, 6)),
        of("group_norm on 1 axis", &[2, 4, 7], GroupNorm::new(2, 4).eps(0.1)),
        of("group_norm on 3 axes", &[2, 4, 2, 3, 2], GroupNorm::new(4, 4)),
        of("layer_norm", &[4, 7], LayerNorm::new([7])),
        of("layer_norm on a vector", &[6], LayerNorm::new([6])),
        of("layer_norm of two", &[3, 4, 2], LayerNorm::new([2]).eps(0.1)),
        of("layer_norm of images", &[2, 3, 2, 5], LayerNorm::new([3, 2, 5])),
        of("layer_norm without affine", &[2, 3, 5], LayerNorm::new([3, 5]).affine(false)),
        of("rms_norm", &[4, 7], RmsNorm::new([7])),
        of("rms_norm of images", &[2, 3, 2, 5], RmsNorm::new([2, 5]).eps(0.1)),
        of("rms_norm without affine", &[2, 3, 5], RmsNorm::new([3, 5]).affine(false)),
        of("instance_norm2d", &[2, 3, 4, 3], InstanceNorm2d::new(3)),
        of("instance_norm2d affine", &[1, 3, 5, 2], InstanceNorm2d::new(3).affine(true)),
        of("max_pool1d", &[2, 3, 8], MaxPool1d::new(3).stride(2).padding(1).dilation(2)),
        of("avg_pool1d", &[2, 3, 7], AvgPool1d::new(3).stride(2).padding(1).count_include_pad(false)),
        of("adaptive_avg_pool1d", &[2, 3, 7], AdaptiveAvgPool1d::new(3)),
        of("max_pool2d", &[2, 3, 6, 4], MaxPool2d::new(2)),
        of("max_pool2d with a rest", &[2, 2, 7, 5], MaxPool2d::new((3, 2))),
        of("max_pool2d overlapping", &[2, 2, 7, 6], MaxPool2d::new(3).stride(2).padding(1)),
        of("max_pool2d dilated", &[2, 2, 7, 8], MaxPool2d::new((2, 3)).stride(1).dilation(2).padding((1, 0))),
        of("avg_pool2d", &[2, 3, 6, 4], AvgPool2d::new(2)),
        of("avg_pool2d with a rest", &[2, 2, 7, 5], AvgPool2d::new((3, 2))),
        of("avg_pool2d overlapping", &[2, 2, 7, 6], AvgPool2d::new(3).stride(2).padding(1)),
        of("avg_pool2d without padding", &[2, 2, 5, 6], AvgPool2d::new(3).padding(1).count_include_pad(false)),
        of("adaptive_avg_pool2d", &[2, 3, 7, 5], AdaptiveAvgPool2d::new((3, 2))),
        of("adaptive_avg_pool2d equal windows", &[2, 3, 6, 4], AdaptiveAvgPool2d::new(2)),
        of("adaptive_avg_pool2d growing", &[2, 1, 2, 3], AdaptiveAvgPool2d::new((5, 3))),
        of("max_pool3d", &[2, 2, 4, 5, 4], MaxPool3d::new(2).stride((1, 2, 1)).padding((1, 0, 0)).dilation((2, 1, 1))),
        of("avg_pool3d", &[2, 2, 3, 5, 4], AvgPool3d::new((2, 3, 2)).stride(2).padding(1).count_include_pad(false)),
        of("global_avg_pool2d", &[2, 3, 5, 3], GlobalAvgPool2d),
        of("upsample nearest", &[2, 3, 3, 4], Upsample::nearest(2)),
        of("upsample nearest unequal", &[1, 2, 1, 5], Upsample::nearest((3, 1))),
        of("upsample bilinear", &[2, 3, 3, 4], Upsample::bilinear(2)),
        of("upsample bilinear unequal", &[2, 1, 1, 5], Upsample::bilinear((2, 3))),
        of("upsample bilinear aligned", &[2, 2, 3, 4], Upsample::bilinear((3, 2)).align_corners(true)),
        of("upsample bicubic", &[2, 3, 3, 4], Upsample::bicubic((2, 3))),
        of("upsample bicubic aligned", &[1, 2, 4, 3], Upsample::bicubic(2).align_corners(true)),
        of("pixel_shuffle", &[2, 8, 2, 3], PixelShuffle::new(2)),
        of("pixel_unshuffle", &[1, 2, 6, 3], PixelUnshuffle::new(3)),
        of("sinusoidal_embedding", &[5], SinusoidalEmbedding::new(6)),
        of("sinusoidal_embedding of two", &[1], SinusoidalEmbedding::new(2)),
        of("rnn", &[2, 4, 3], Rnn::new(3, 5)),
        of("rnn relu", &[2, 3, 3], Rnn::new(3, 2).nonlinearity(RnnNonlinearity::Relu).bias(false).layers(2)),
        of("lstm", &[2, 4, 3], Lstm::new(3, 5)),
        of("transformer_encoder_layer", &[2, 5, 6], TransformerEncoderLayer::new(6, 3).feed_forward(4)),
        of("lstm of all options", &[2, 3, 3], Lstm::new(3, 4).layers(2).bidirectional(true).dropout(0.3)),
        of("gru", &[2, 4, 3], Gru::new(3, 5)),
        of("gru of all options", &[2, 3, 3], Gru::new(3, 4).layers(2).bidirectional(true).dropout(0.3)),
        built("lstm from a state", &[2, 4, 3], |device| {
            let lstm = Lstm::new(3, 2).bidirectional(true).init(device, Seed::new(1))?;
            Ok(Box::new(Remembering { lstm, h: target(device, &[2, 2, 2])?, c: target(device, &[2, 2, 2])? }))
        }),
        // A constant added to all scores of a query has no effect, so the gradient of the keys' bias is pure rounding
        // error.
        of("multihead_attention", &[2, 5, 6], MultiheadAttention::new(6, 2)).within(5e-5),
        of("multihead_attention of one head", &[2, 2, 3], MultiheadAttention::new(3, 1).bias(false)),
        built("cross attention", &[2, 3, 4], |device| {
            let attention = MultiheadAttention::new(4, 2).init(device, Seed::new(1))?;
            Ok(Box::new(Across { attention, context: target(device, &[2, 5, 4])?, mask: target(device, &[3, 5])? }))
        }),
        of("self_attention2d", &[2, 6, 3, 5], SelfAttention2d::new(6, 3)),
        of("self_attention2d of one head", &[1, 4, 2, 2], SelfAttention2d::new(4, 1).bias(false)),
        of("glu", &[5, 6], Glu::new()),
        of("glu of channels", &[2, 4, 3], Glu::new().axis(1)),
        of("swi_glu", &[2, 3, 4], SwiGlu::new(4, 6)),
        of("rotary_embedding", &[2, 3, 5, 6], RotaryEmbedding::new(6)),
        of("dropout", &[5, 7], Dropout::new(0.3)),
        of("stochastic_depth", &[5, 7], StochasticDepth::new(0.3)),
        of("flatten", &[2, 3, 2, 2], Flatten),
        of("relu", &[5, 7], Relu),
        of("leaky_relu", &[5, 7], LeakyRelu { slope: 0.2 }),
        of("elu", &[5, 7], Elu { alpha: 1.3 }),
        of("gelu", &[5, 7], Gelu),
        of("gelu_tanh", &[5, 7], GeluTanh),
        of("silu", &[5, 7], Silu),
        of("sigmoid", &[5, 7], Sigmoid),
        of("tanh", &[5, 7], Tanh),
        of("softplus", &[5, 7], Softplus),
        of("relu6", &[5, 7], Relu6),
        of("hardsigmoid", &[5, 7], Hardsigmoid),
        of("hardswish", &[5, 7], Hardswish),
        of("mish", &[5, 7], Mish),
        of("selu", &[5, 7], Selu),
        of("identity", &[5, 7], Identity),
        of("softmax", &[2, 3, 4], Softmax::new(1)),
        of("log_softmax", &[2, 3, 4], LogSoftmax::new(-1)),
        of("prelu", &[5, 7], PRelu::new(1)),
        of("prelu of channels", &[2, 3, 4], PRelu::new(3)),
        of("layer_norm2d", &[2, 5, 3, 2], LayerNorm2d::new(5).eps(0.1)),
        built("embedding", &[4, 3], |device| Ok(Box::new(Words::new(Embedding::new(5, 3), device)?))),
        built("embedding with padding", &[4, 3], |device| {
            Ok(Box::new(Words::new(Embedding::new(5, 3).padding(1), device)?))
        }),
        built("cross_entropy", &[5, 4], |_| Ok(Box::new(CrossEntropy::new(&[5], 4, 0.0)))),
        built("cross_entropy smoothed", &[5, 4], |_| Ok(Box::new(CrossEntropy::new(&[5], 4, 0.2)))),
        built("cross_entropy of pixels", &[2, 3, 2, 3], |_| Ok(Box::new(CrossEntropy::new(&[2, 2, 3], 3, 0.1)))),
        built("cross_entropy weighted", &[5, 4], |_| {
            Ok(Box::new(CrossEntropy::new(&[5], 4, 0.0).weighted().unreduced()))
        }),
        built("cross_entropy of all options", &[2, 3, 2, 3], |_| {
            Ok(Box::new(CrossEntropy::new(&[2, 2, 3], 3, 0.2).weighted().ignoring(1)))
        }),
        built("cross_entropy ignoring", &[5, 4], |_| Ok(Box::new(CrossEntropy::new(&[5], 4, 0.0).ignoring(3)))),
        targeted("mse", |x, target| x.mse(target)),
        targeted("l1", |x, target| x.l1(target)),
        targeted("huber", |x, target| x.huber_with(target, 0.7, Reduction::None)),
        targeted("smooth_l1", |x, target| x.smooth_l1_with(target, 1.3, Reduction::Sum)),
        targeted("bce_with_logits", |x, target| x.bce_with_logits(target)),
        targeted("bce_with_logits weighted", weighted_bce),
        targeted("nll", |x, target| (x * target).log_softmax(1).nll(&labels(x))),
        targeted("soft_cross_entropy", |x, target| x.soft_cross_entropy(target)),
        targeted("kl_div", |x, target| x.kl_div(&target.softmax(1))),
        targeted("kl_div of log-probabilities", |x, target| {
            x.kl_div_with(target, &KlDivOptions { log_target: true, reduction: Reduction::None })
        }),
        targeted("hinge_embedding", |x, target| (x * target).hinge_embedding(&signs(x, &[3, 5]))),
        targeted("multi_margin", |x, target| (x * target).multi_margin(&labels(x))),
        targeted("cosine_embedding", |x, target| x.cosine_embedding(target, &signs(x, &[3]))),
        targeted("triplet_margin", |x, target| x.triplet_margin(target, &(target * 0.5))),
        targeted("dice", |x, target| x.sigmoid().reshape([3, 1, 5]).dice(&target.sigmoid().reshape([3, 1, 5]))),
        targeted("focal_bce", |x, target| x.focal_bce(&target.sigmoid())),
        targeted("focal_cross_entropy", |x, target| (x * target).focal_cross_entropy(&labels(x))),
        // Chains of four layers, two of them normalisations.
        built("tiny", &[2, 1, 6, 6], |device| Ok(Box::new(Tiny::init(device, 1)?))).within(5e-5),
        built("nested", &[2, 2, 5, 5], |device| Ok(Box::new(Nested::from_seed(device, Seed::new(1))?))).within(5e-5),
        built("nested, the other variant", &[2, 2, 2, 2], |device| {
            let mut net = Nested::from_seed(device, Seed::new(1))?;
            net.pool = Pool::Weighted { weight: target(device, &[2, 3, 2, 2])? };
            Ok(Box::new(net))
        })
        .within(5e-5),
    ]
}

fn targeted(name: &'static str, loss: fn(&Var, &Var) -> Var) -> Subject {
    built(name, &[3, 5], move |device| Ok(Box::new(Targeted { target: target(device, &[3, 5])?, loss })))
}

fn target(device: &Device, shape: &[usize]) -> Result<Param> {
    tensor(device, "target", meganeura::Shape::new(shape)).map(Param::new)
}

/// A loss as a layer, to check it like one. Its target is a parameter, which therefore has a gradient too.
#[derive(Module)]
struct Targeted {
    target: Param,
    #[module(skip)]
    loss: fn(&Var, &Var) -> Var,
}

impl Layer for Targeted {
    fn forward(&self, x: &Var) -> Var {
        (self.loss)(x, &x.param(&self.target))
    }
}

/// A label for each of three rows of five classes.
fn labels(x: &Var) -> Tensor {
    Tensor::indices(&x.tape().device(), [3], &[4, 0, 2]).expect("three")
}

/// Alternates 1 and −1.
fn signs(x: &Var, shape: &[usize]) -> Var {
    let shape = meganeura::Shape::new(shape);
    let signs: Vec<_> = (0..shape.elements()).map(|i| if i % 2 == 0 { 1.0 } else { -1.0 }).collect();
    x.tape().input(&Tensor::from_f64(&x.tape().device(), shape, &signs).expect("as many as elements"))
}

fn weighted_bce(x: &Var, target: &Var) -> Var {
    let weight = Tensor::from_f64(&x.tape().device(), [5], &[0.5, 1.0, 2.0, 3.0, 0.25]).expect("fits");
    x.bce_with_logits_with(target, &BceWithLogitsOptions { positive_weight: Some(weight), reduction: Reduction::Sum })
}

/// Attention to another sequence, with a mask.
#[derive(Module)]
struct Across {
    attention: MultiheadAttention,
    context: Param,
    mask: Param,
}

impl Layer for Across {
    fn forward(&self, x: &Var) -> Var {
        self.attention.attend(x, &x.param(&self.context), Some(Mask::Bias(&x.param(&self.mask))))
    }
}

/// An LSTM with an initial state, over sequences of different lengths. The final state is added to the outputs.
#[derive(Module)]
struct Remembering {
    lstm: Lstm,
    h: Param,
    c: Param,
}

impl Layer for Remembering {
    fn forward(&self, x: &Var) -> Var {
        let lengths = Tensor::indices(&x.tape().device(), [2], &[2, 4]).expect("two");
        let start = LstmState { h: x.param(&self.h), c: x.param(&self.c) };
        let (y, last) = self.lstm.forward_with(x, Some(&start), Steps::Lengths(&x.tape().input(&lengths)));
        y + (last.h * last.c).reshape([2, 1, 4])
    }
}

/// Multiplies the input by embeddings of fixed indices, one of them repeated.
#[derive(Module)]
struct Words {
    embedding: Embedding,
}

impl Words {
    fn new(config: EmbeddingConfig, device: &Device) -> Result<Self> {
        Ok(Self { embedding: config.init(device, Seed::new(1))? })
    }
}

impl Layer for Words {
    fn forward(&self, x: &Var) -> Var {
        let numbers = Tensor::indices(&x.tape().device(), [4], &[3, 1, 0, 3]).expect("four");
        x * self.embedding.forward(&x.tape().input(&numbers))
    }
}

/// Cross-entropy with the options that need no device.
#[derive(Module)]
struct CrossEntropy {
    #[module(skip)]
    shape: Vec<usize>,
    #[module(skip)]
    classes: usize,
    #[module(skip)]
    weights: Vec<f64>,
    #[module(skip)]
    options: CrossEntropyOptions,
}

impl CrossEntropy {
    fn new(shape: &[usize], classes: usize, label_smoothing: f64) -> Self {
        let options = CrossEntropyOptions { label_smoothing, ..Default::default() };
        Self { shape: shape.to_vec(), classes, weights: Vec::new(), options }
    }

    fn ignoring(mut self, label: u32) -> Self {
        self.options.ignored = Some(label);
        self
    }

    fn weighted(mut self) -> Self {
        self.weights = (0..self.classes).map(|c| 0.5 + c as f64).collect();
        self
    }

    fn unreduced(mut self) -> Self {
        self.options.reduction = Reduction::None;
        self
    }
}

impl Layer for CrossEntropy {
    fn forward(&self, x: &Var) -> Var {
        let device = x.tape().device();
        let shape = meganeura::Shape::new(&self.shape);
        let labels: Vec<_> = (0..shape.elements()).map(|i| (i * 7 % self.classes) as u32).collect();
        let labels = Tensor::indices(&device, shape, &labels).expect("as many labels as rows");
        let weights = Tensor::from_f64(&device, [self.weights.len()], &self.weights).ok();
        x.cross_entropy_with(&labels, &CrossEntropyOptions { class_weights: weights, ..self.options.clone() })
    }
}

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    for subject in subjects() {
        let subject = Arc::new(subject);
        let name = |part: &str| format!("layers::{part}::{}", subject.name);
        let shared = Arc::clone(&subject);
        trials.push(Trial::test(name("gradient"), move || gradient(&shared)));
        let shared = Arc::clone(&subject);
        trials.push(Trial::test(name("second"), move || second(&shared)));
        let shared = Arc::clone(&subject);
        trials.push(Trial::test(name("lines"), move || lines(&shared)));
        let shared = Arc::clone(&subject);
        trials.push(Trial::test(name("native"), move || agrees(&shared, &Device::cpu().for_testing(0))));
        let shared = Arc::clone(&subject);
        trials.push(gpu_trial(name("gpu"), move |device| agrees(&shared, &device.for_testing(0))));
    }
}

fn gradient(subject: &Subject) -> Result<(), Failed> {
    let device = Device::cpu_with(Precision::Double);
    let mut layer = (subject.build)(&device)?;
    randomise(&mut *layer)?;
    let x = tensor(&device, "x", meganeura::Shape::new(&subject.x))?;
    // Central differences have errors of ε², about 1e-12, and of rounding, 1e-16/ε: far below these tolerances.
    let check = Gradcheck::default().tolerance(1e-7, 1e-6).samples(60);
    let report = check.run(&layer, &[x], |layer, x| vec![layer.forward(&x[0])])?;
    let trained = layer.leaves().into_iter().filter(|leaf| leaf.role == Role::Trained).count();
    assert_eq!(report.entries.len(), trained + 1, "the trained parameters and the input");
    // A check that compares zeros proves nothing.
    for entry in &report.entries {
        assert!(entry.analytic != 0.0 || entry.numeric != 0.0 || entry.largest_absolute > 0.0, "{report}");
    }
    Ok(report.ok()?)
}

/// Second derivatives with respect to parameters, input and cotangent.
fn second(subject: &Subject) -> Result<(), Failed> {
    let device = Device::cpu_with(Precision::Double);
    let mut layer = (subject.build)(&device)?;
    randomise(&mut *layer)?;
    let x = tensor(&device, "x", meganeura::Shape::new(&subject.x))?;
    // Ten times the tolerance of first derivatives: second ones of a normalisation over few elements are 1/σ larger.
    let check = Gradcheck::default().tolerance(1e-6, 1e-5).samples(25);
    let report = check.gradgrad(&layer, &[x], |layer, x| vec![layer.forward(&x[0])])?;
    let trained = layer.leaves().into_iter().filter(|leaf| leaf.role == Role::Trained).count();
    assert_eq!(report.entries.len(), trained + 2, "the trained parameters, the input and the cotangent");
    // The gradients are linear in the cotangent.
    let cotangent = &report.entries[trained + 1];
    assert!(cotangent.analytic != 0.0 || cotangent.largest_absolute > 0.0, "only zeros were compared: {report}");
    Ok(report.ok()?)
}

/// Every operation of both passes, and of a second backward pass, has a line of the caller. None is recorded in a
/// closure, which would lose it.
fn lines(subject: &Subject) -> Result<(), Failed> {
    let device = Device::cpu();
    let layer = (subject.build)(&device)?;
    let tape = Tape::new(&device);
    let x = tape.input(&tensor(&device, "x", meganeura::Shape::new(&subject.x))?);
    let y = layer.forward(&x);
    let gradient = tape.backward(&y.square().sum())?.of(&x).expect("depends");
    tape.backward(&gradient.square().sum())?;
    for at in tape.lines() {
        assert!(at.file().starts_with("tests/") || at.file().starts_with("tests\\"), "{at}");
    }
    Ok(())
}

/// Outputs and gradients by name, in order.
type Pass = Vec<(String, Vec<f64>)>;

/// One forward and backward pass with a random cotangent.
fn pass(subject: &Subject, device: &Device) -> Result<Pass> {
    let mut layer = (subject.build)(device)?;
    randomise(&mut *layer)?;
    let tape = Tape::with_seed(device, 5);
    let x = tape.input(&tensor(device, "x", meganeura::Shape::new(&subject.x))?);
    let y = layer.forward(&x);
    let cotangent = tape.input(&tensor(device, "cotangent", y.shape())?);
    let grads = tape.backward_with(&y, &cotangent)?;
    let mut pass =
        vec![("the output".to_owned(), y), ("the input's gradient".to_owned(), grads.of(&x).expect("depends"))];
    for (path, param) in layer.named_parameters() {
        let gradient = grads.get(param).unwrap_or_else(|| panic!("no gradient for {path}"));
        pass.push((format!("the gradient of {path}"), gradient));
    }
    pass.into_iter().map(|(name, value)| Ok((name, value.to_tensor()?.to_f64_vec()?))).collect()
}

fn agrees(subject: &Subject, device: &Device) -> Result<(), Failed> {
    let reference = pass(subject, &Device::cpu_with(Precision::Double))?;
    let computed = pass(subject, device)?;
    assert_eq!(computed.len(), reference.len());
    for ((name, computed), (_, reference)) in computed.into_iter().zip(reference) {
        compare(&name, &Computed(computed), &Reference(reference), subject.tolerance)?;
    }
    Ok(())
}
