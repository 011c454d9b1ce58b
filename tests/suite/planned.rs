//! Plans for absent GPUs: one with matrix units, and one with WebGPU's default limits. Networks and the cases of all
//! operations run on the CPU, and each run is also planned for such a GPU. Every kernel of these plans is checked
//! against the GPU's limits, and against the bindings, invocations and bytes of workgroup memory that its launch
//! states. Of kernels that differ only in numbers, one is validated and translated for Metal and
//! DirectX 12; if translations are saved, as for `cargo xtask kernels`, all are.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use libtest_mimic::Trial;
use meganeura::loss::CrossEntropyOptions;
use meganeura::nn::{
    AvgPool2d, BatchNorm2d, Conv2d, ConvTranspose2d, Gelu, GroupNorm, LayerNorm, Linear, MaxPool2d, MultiheadAttention,
    Relu, Silu,
};
use meganeura::ops::CustomOp;
use meganeura::ops::case::Case;
use meganeura::optim::{AdamW, Optimizer, Sgd};
use meganeura::{Device, Init, Layer, Module, PlannedKernel, Result, Seed, Shape, Tape, Tensor, TensorType, Var};
use meganeura_examples::models::{
    Gpt2, Gpt2Config, LstmLanguage, LstmLanguageConfig, MobileNetV2, MobileNetV2Config, ResNet18Gn, ResNet18GnConfig,
    ResNet50, ResNet50Config, UNet, UNetConfig, ViT, ViTConfig,
};
use meganeura_translate::{self as translate, BASELINE, Guard, Kernel, Needs};

use crate::nets::tensor;
use crate::numbers::operands;
use crate::{Outcome, ops};

/// A network's training step on a device.
type Train = fn(&Device) -> Outcome;

const NETWORKS: [(&str, Train); 11] = [
    ("residual_network", residual_network),
    ("batch_normalised", batch_normalised),
    ("u_net", u_net),
    ("attention", attention),
    ("odd_tokens_and_classes", odd),
    ("vision_transformer", vision_transformer),
    ("language_model", language_model),
    ("bottlenecks", bottlenecks),
    ("depthwise_network", depthwise_network),
    ("recurrent_network", recurrent_network),
    ("convolutions_of_every_kind", convolutions),
];

/// An absent GPU.
#[derive(Clone, Copy)]
struct Absent {
    name: &'static str,
    device: fn() -> Device,
    has: Needs,
}

const MATRIX_UNITS: Absent = Absent {
    name: "matrix_units",
    device: Device::for_testing_matrix_units,
    has: Needs { buffers: 16, workgroup_memory: 49_152, invocations: 1024, f16: true, subgroups: true, matrices: true },
};

const AT_BASELINE: Absent = Absent { name: "baseline", device: Device::for_testing_baseline, has: BASELINE };

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    for absent in [MATRIX_UNITS, AT_BASELINE] {
        for (network, train) in NETWORKS {
            let name = format!("planned::{}::{network}", absent.name);
            trials.push(Trial::test(name, move || absent.holds(train)));
        }
    }
    for case in meganeura::ops::all_cases().into_iter().filter(|case| !case.fails) {
        let case = Arc::new(case);
        // Networks have few attentions.
        let absent = [AT_BASELINE].into_iter().chain(case.op.starts_with("attention").then_some(MATRIX_UNITS));
        for absent in absent {
            let (name, case) = (format!("planned::{}::ops::{}", absent.name, case.name), Arc::clone(&case));
            trials.push(Trial::test(name, move || absent.holds(|device| record(&case, device))));
        }
    }
    trials.push(Trial::test("planned::wrong_statements_of_launches_are_found", misstates));
    trials.push(Trial::test("planned::kernels_beyond_the_limits_are_found", exceeds));
}

impl Absent {
    /// Runs on the CPU, then checks every kernel of the plans for this GPU.
    fn holds(&self, run: impl FnOnce(&Device) -> Outcome) -> Outcome {
        let device = (self.device)();
        run(&device)?;
        let planned = device.planned_kernels();
        assert!(!planned.is_empty(), "nothing was planned");
        planned.iter().try_for_each(|planned| self.hold(planned))
    }

    fn hold(&self, planned: &PlannedKernel) -> Outcome {
        /// The needs of kernels, by their text without numbers; if translations are saved, by their text.
        static READ: Mutex<BTreeMap<(bool, String), Needs>> = Mutex::new(BTreeMap::new());
        let PlannedKernel { kernel: name, wgsl, trusted, bindings, workgroup } = planned;
        let form = if translate::saves() { wgsl.clone() } else { translate::without_numbers(wgsl) };
        let form = (*trusted, form);
        let known = READ.lock().unwrap_or_else(PoisonError::into_inner).get(&form).copied();
        let needs = match known {
            Some(known) => known.with_sizes(name, wgsl)?,
            None => {
                let kernel = Kernel::read(name, wgsl)?;
                kernel.translate(&[Guard::of(*trusted)])?;
                READ.lock().unwrap_or_else(PoisonError::into_inner).insert(form, *kernel.needs());
                *kernel.needs()
            }
        };
        let found = (needs.buffers, needs.invocations, needs.workgroup_memory);
        let (invocations, memory) = workgroup.unwrap_or((found.1, found.2));
        let stated = (*bindings, invocations, memory);
        if found != stated {
            let of = "bindings, invocations and bytes of workgroup memory";
            return Err(format!("kernel {name} has {found:?} {of}, its launch states {stated:?}").into());
        }
        if !needs.within(&self.has) {
            return Err(format!("kernel {name} needs {needs:?}, the GPU has {:?}", self.has).into());
        }
        Ok(())
    }
}

/// Launches that state a wrong number of bindings, invocations, or bytes of workgroup memory.
fn misstates() -> Outcome {
    let device = (MATRIX_UNITS.device)();
    u_net(&device)?;
    for planned in device.planned_kernels() {
        MATRIX_UNITS.hold(&planned)?;
        let (invocations, memory) = planned.workgroup.expect("the network has no kernel of a user's");
        let wrong = [
            PlannedKernel { bindings: planned.bindings + 1, ..planned.clone() },
            PlannedKernel { workgroup: Some((invocations / 2, memory)), ..planned.clone() },
            PlannedKernel { workgroup: Some((invocations, memory + 16)), ..planned.clone() },
        ];
        for wrong in wrong {
            let error = MATRIX_UNITS.hold(&wrong).expect_err("the launch states a wrong number");
            assert!(error.message().is_some_and(|message| message.contains("its launch states")), "{error:?}");
        }
    }
    Ok(())
}

/// The results of a case and their gradients.
fn record(case: &Case, device: &Device) -> Outcome {
    let operands = operands(case);
    ops::results(case, device, &operands)?;
    ops::gradients(case, device, &operands)?;
    Ok(())
}

/// A user's kernel whose workgroups are too large.
#[derive(Debug)]
struct Large(usize);

impl CustomOp for Large {
    fn name(&self) -> &'static str {
        "large"
    }

    fn key(&self) -> String {
        format!("{self:?}")
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        Ok(vec![x[0].with_shape(Shape::new(&[1]))])
    }

    fn vjp(&self, x: &[Var], _: &[Var], _: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        Ok(vec![None; x.len()])
    }

    fn cpu(&self, _: &[TensorType], x: &[&[f64]], y: &mut [&mut [f64]]) {
        y[0][0] = x[0][0];
    }

    fn wgsl(&self, _: &[TensorType]) -> (String, usize) {
        let source = format!(
            "@group(0) @binding(0) var<storage, read> x: array<f32>;
             @group(0) @binding(1) var<storage, read_write> y: array<f32>;
             @compute @workgroup_size({})
             fn main(@builtin(local_invocation_index) lane: u32) {{ if lane == 0u {{ y[0] = x[0]; }} }}",
            self.0
        );
        (source, 1)
    }
}

/// Runs a kernel with a number of invocations per workgroup.
pub(crate) fn run_large(device: &Device, invocations: usize) -> Result<Vec<f32>> {
    let x = Tape::new(device).input(&tensor(device, "x", [3])?);
    x.custom(Large(invocations), &[]).to_vec()
}

fn exceeds() -> Outcome {
    let run = |invocations| AT_BASELINE.holds(|device| Ok(run_large(device, invocations).map(drop)?));
    run(256)?;
    let error = run(257).expect_err("257 invocations are more than 256");
    assert!(error.message().is_some_and(|message| message.contains("invocations: 257")), "{error:?}");
    Ok(())
}

/// One training step.
fn step<M: Module>(
    device: &Device,
    net: &mut M,
    optimizer: &mut dyn Optimizer,
    y: impl FnOnce(&M, &Tape) -> Var,
) -> Outcome {
    let tape = Tape::new(device);
    let y = y(net, &tape);
    let loss = (&y * &y).mean();
    let grads = tape.backward(&loss)?;
    optimizer.step(net, &grads)?;
    assert!(loss.item()?.is_finite());
    Ok(())
}

fn residual_network(device: &Device) -> Outcome {
    let config = ResNet18GnConfig { images: 3, width: 64, groups: 32, classes: 10 };
    let mut net = ResNet18Gn::init(device, 1, config)?;
    let x = tensor(device, "images", [4, 3, 32, 32])?;
    step(device, &mut net, &mut Sgd::new(0.1).momentum(0.9), |net, tape| net.forward(&tape.input(&x)))
}

/// Batch normalisation of images with many and few pixels. On matrix units it reads lines of bf16, as the convolutions
/// store them, and nothing of it is left to other sums.
fn batch_normalised(device: &Device) -> Outcome {
    for (images, side) in [(2, 8), (4, 96)] {
        let convolution = |channels| Conv2d::new(channels, 64, 3).padding(1).bias(false);
        let first = (convolution(3), BatchNorm2d::new(64), Relu);
        let second = (convolution(64), BatchNorm2d::new(64), Relu, convolution(64));
        let mut net = (first, second).init(device, Seed::new(1))?;
        let x = tensor(device, "images", [images, 3, side, side])?;
        step(device, &mut net, &mut Sgd::new(0.1).momentum(0.9), |net, tape| net.forward(&tape.input(&x)))?;
    }
    let planned = device.planned_kernels();
    let of = |kernel: &'static str| planned.iter().filter(move |planned| planned.kernel == kernel);
    for kernel in ["channel_moments", "channel_sums"] {
        let by_lines = of(kernel).filter(|planned| planned.wgsl.contains("alias Held = vec4<u32>")).count();
        assert_eq!(by_lines > 0, of("conv2d_taps").next().is_some(), "{kernel}: {by_lines} by lines");
    }
    assert_eq!(of("reduce_lines").count(), 0, "sums of channels besides those of batch normalisation");
    Ok(())
}

fn u_net(device: &Device) -> Outcome {
    let mut net = UNet::init(device, 1, UNetConfig { images: 3, channels: 64, groups: 32 })?;
    let x = tensor(device, "images", [2, 3, 32, 32])?;
    let t = Tensor::from_f64(device, [2], &[3.0, 700.0])?;
    step(device, &mut net, &mut AdamW::new(1e-3), |net, tape| net.forward(&tape.input(&x), &tape.input(&t)))
}

fn attention(device: &Device) -> Outcome {
    let layers = (
        Linear::new(256, 256),
        MultiheadAttention::new(256, 4),
        LayerNorm::new([256]),
        Linear::new(256, 1024),
        Gelu,
        Linear::new(1024, 10),
    );
    let mut net = layers.init(device, Seed::new(1))?;
    let x = tensor(device, "tokens", [8, 64, 256])?;
    step(device, &mut net, &mut AdamW::new(1e-3), |net, tape| net.forward(&tape.input(&x)))
}

/// Sequences of 131 tokens, so that rows of scores are no whole lines, and a vocabulary of 517.
fn odd(device: &Device) -> Outcome {
    let layers = (Linear::new(512, 512), MultiheadAttention::new(512, 8), LayerNorm::new([512]), Linear::new(512, 517));
    let mut net = layers.init(device, Seed::new(1))?;
    let x = tensor(device, "tokens", [4, 131, 512])?;
    let labels: Vec<_> = (0..524).map(|token| token * 7 % 517).collect();
    let labels = Tensor::indices(device, [524], &labels)?;
    let options = CrossEntropyOptions { label_smoothing: 0.1, ignored: Some(0), ..CrossEntropyOptions::default() };
    step(device, &mut net, &mut AdamW::new(1e-3), |net, tape| {
        net.forward(&tape.input(&x)).reshape([524, 517]).cross_entropy_with(&labels, &options)
    })
}

fn vision_transformer(device: &Device) -> Outcome {
    let config = ViTConfig { images: 3, side: 64, patch: 16, width: 128, heads: 2, layers: 2, classes: 100 };
    let mut net = ViT::init(device, 1, config)?;
    let x = tensor(device, "images", [8, 3, 64, 64])?;
    step(device, &mut net, &mut AdamW::new(1e-4), |net, tape| net.forward(&tape.input(&x)))
}

/// A vocabulary that is no multiple of anything, and more tokens than the gradient of a lookup compares one by one.
fn language_model(device: &Device) -> Outcome {
    let config = Gpt2Config { vocabulary: 1009, context: 300, width: 128, heads: 2, layers: 2 };
    let mut net = Gpt2::init(device, 1, config)?;
    let wrapped = |from: u32| {
        let tokens: Vec<u32> = (from..from + 1200).map(|token| token * token % 1009).collect();
        Tensor::indices(device, [4, 300], &tokens)
    };
    let (tokens, next) = (wrapped(0)?, wrapped(1)?);
    step(device, &mut net, &mut AdamW::new(1e-4), |net, tape| net.loss(&tape.input(&tokens), &tape.input(&next)))
}

fn bottlenecks(device: &Device) -> Outcome {
    let config = ResNet50Config { width: 16, depths: [2, 1, 1, 1], classes: 100 };
    let mut net = ResNet50::init(device, 1, config)?;
    let x = tensor(device, "images", [4, 3, 64, 64])?;
    step(device, &mut net, &mut Sgd::new(0.1).momentum(0.9), |net, tape| net.forward(&tape.input(&x)))
}

/// Widths that are no multiples of eight, too.
fn depthwise_network(device: &Device) -> Outcome {
    let stages = MobileNetV2::STAGES[..4].to_vec();
    let mut net = MobileNetV2::init(device, 1, MobileNetV2Config { first: 12, stages, last: 60, classes: 100 })?;
    let x = tensor(device, "images", [4, 3, 64, 64])?;
    step(device, &mut net, &mut Sgd::new(0.1), |net, tape| net.forward(&tape.input(&x)))
}

fn recurrent_network(device: &Device) -> Outcome {
    let mut net = LstmLanguage::init(device, 1, LstmLanguageConfig { vocabulary: 1009, width: 128, layers: 2 })?;
    let tokens: Vec<u32> = (0..64 * 5).map(|token| token * token % 1009).collect();
    let tokens = Tensor::indices(device, [64, 5], &tokens)?;
    step(device, &mut net, &mut AdamW::new(1e-3), |net, tape| net.loss(&tape.input(&tokens), &tape.input(&tokens)))
}

/// Strides, dilations, groups, and channels that do not fill a line.
fn convolutions(device: &Device) -> Outcome {
    let convolutions = [
        Conv2d::new(64, 64, 3).padding(1),
        Conv2d::new(64, 64, 3).padding(1).stride(2),
        Conv2d::new(64, 64, (1, 5)).padding((0, 2)).stride((1, 2)).bias(false),
        Conv2d::new(64, 64, 3).padding(2).dilation(2),
        Conv2d::new(64, 64, 7).padding(3).stride(4),
        Conv2d::new(64, 64, 1),
        Conv2d::new(64, 128, 3).padding(1).groups(4),
        Conv2d::new(64, 64, 3).padding(1).groups(64),
        Conv2d::new(64, 12, 3).padding(1),
    ];
    for images in [1, 3, 20] {
        let x = tensor(device, "images", [2, images, 32, 32])?;
        for convolution in &convolutions {
            let ends = (Conv2d::new(images, 64, 3).padding(1), GroupNorm::new(8, 64), Silu);
            let mut net = (ends, convolution.clone(), Relu).init(device, Seed::new(1))?;
            step(device, &mut net, &mut Sgd::new(0.1), |net, tape| net.forward(&tape.input(&x)))?;
        }
        let up = (ConvTranspose2d::new(64, 32, 2).stride(2), MaxPool2d::new(2), AvgPool2d::new(2));
        let mut net = (Conv2d::new(images, 64, 3).padding(1), up).init(device, Seed::new(1))?;
        step(device, &mut net, &mut Sgd::new(0.1), |net, tape| net.forward(&tape.input(&x)))?;
    }
    Ok(())
}
