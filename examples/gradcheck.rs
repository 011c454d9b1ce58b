//! Checks the gradients of every layer with a single input, or the second derivatives, against finite differences in
//! double precision, and prints the largest errors.
//!
//! ```text
//! cargo run --release --example gradcheck
//! cargo run --release --example gradcheck -- --only conv --json
//! cargo run --release --example gradcheck -- --second --samples 20
//! ```
//!
//! To check your own layer, give `Gradcheck` the layer, inputs, and a function that calls it: [`check_layer`] is the
//! whole code. Choose awkward settings: odd sizes, strides that leave a remainder, padding of more than half a kernel,
//! groups, a batch above 1. Many errors show only there. Avoid kinks (`relu` at 0), where there is no derivative;
//! random inputs hit none. Labels and indices cannot be checked: put them on the tape inside the function, or wrap the
//! layer like [`Words`].

use std::num::NonZeroUsize;
use std::process::ExitCode;

use clap::Parser;
use meganeura::Result;
use meganeura::check::{Gradcheck, Report};
use meganeura::prelude::*;
use serde_json::json;

/// Checks the gradients of every layer.
#[derive(Parser, Debug)]
struct Options {
    /// Check only layers with this in their name
    #[arg(long, default_value = "")]
    only: String,
    /// Check at most this number of elements of each parameter and input [default: all]
    #[arg(long)]
    samples: Option<NonZeroUsize>,
    /// Check the second derivatives, which a gradient penalty needs
    #[arg(long)]
    second: bool,
    /// The seed of parameters, inputs and cotangents
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The absolute tolerance between derivative and finite difference
    #[arg(long, default_value_t = 1e-5)]
    atol: f64,
    /// The relative tolerance, added to the absolute one
    #[arg(long, default_value_t = 1e-3)]
    rtol: f64,
    /// Print a line of JSON for each layer
    #[arg(long)]
    json: bool,
}

/// A layer and its constructor: the layers form a list of `Box<dyn Layer>`.
struct Subject {
    name: &'static str,
    /// The awkward part of the setting.
    setting: String,
    input: Vec<usize>,
    layer: Box<dyn Layer>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// `true` if all passed.
fn run(options: &Options) -> Result<bool> {
    let check = Gradcheck::default().tolerance(options.atol, options.rtol).seed(options.seed);
    let check = match options.samples {
        Some(samples) => check.samples(samples.get()),
        None => check,
    };
    let wanted = |subject: &Subject| subject.name.to_lowercase().contains(&options.only.to_lowercase());
    let all = subjects(Seed::new(options.seed))?;
    let names = all.iter().map(|subject| subject.name).collect::<Vec<_>>().join(", ");
    let subjects: Vec<_> = all.into_iter().filter(wanted).collect();
    if subjects.is_empty() {
        eprintln!("error: --only {}: no layer has this in its name; there are {names}", options.only);
        return Ok(false);
    }
    if !options.json {
        println!("{:23} {:71} {:>8} {:>10} {:>10}", "layer", "setting", "checked", "absolute", "relative");
    }
    let mut failed = 0;
    for subject in &subjects {
        let report = check_layer(&check, subject, options)?;
        failed += usize::from(!report.passed());
        print(subject, &report, options.json);
    }
    if !options.json {
        println!("{} layers, {failed} failed", subjects.len());
    }
    Ok(failed == 0)
}

/// A complete gradient check. The layer may be on any device: the check reads its parameters, and computes on the CPU
/// in `f64`.
fn check_layer(check: &Gradcheck, subject: &Subject, options: &Options) -> Result<Report> {
    let device = Device::cpu_with(Precision::Double);
    let x = Tensor::randn(&device, Shape::new(&subject.input), Seed::new(options.seed).field(&subject.setting))?;
    match options.second {
        false => check.run(&subject.layer, &[x], |layer, x| vec![layer.forward(&x[0])]),
        true => check.gradgrad(&subject.layer, &[x], |layer, x| vec![layer.forward(&x[0])]),
    }
}

fn print(subject: &Subject, report: &Report, as_json: bool) {
    let checked: usize = report.entries.iter().map(|entry| entry.checked).sum();
    // A NaN must not get lost among smaller numbers.
    let largest = |error: fn(&meganeura::check::Entry) -> f64| {
        report.entries.iter().map(error).fold(0.0, |a: f64, b| if b.is_nan() || b > a { b } else { a })
    };
    let (absolute, relative) = (largest(|entry| entry.largest_absolute), largest(|entry| entry.largest_relative));
    if as_json {
        let line = json!({
            "layer": subject.name, "setting": subject.setting, "input": subject.input, "tensors": report.entries.len(),
            "checked": checked, "absolute": absolute, "relative": relative, "passed": report.passed(),
        });
        println!("{line}");
        return;
    }
    let verdict = if report.passed() { "ok" } else { "FAIL" };
    let Subject { name, setting, .. } = subject;
    println!("{name:23} {setting:71} {checked:>8} {absolute:>10.1e} {relative:>10.1e}  {verdict}");
    if !report.passed() {
        print!("{report}"); // each parameter, with the element that is worst
    }
}

/// Every layer of `meganeura::nn` that maps one input to one output.
fn subjects(seed: Seed) -> Result<Vec<Subject>> {
    let device = Device::cpu();
    let mut all = Vec::new();
    /// Each row: the layer's name, its setting, an input's shape.
    macro_rules! layers {
        ($($name:literal, [$($input:literal),*], $builder:expr;)+) => {$(
            all.push(Subject {
                name: $name,
                setting: setting(stringify!($builder)),
                input: vec![$($input),*],
                layer: Box::new(Init::init($builder, &device, seed.field($name))?),
            });
        )+};
    }
    layers! {
        "Linear", [2, 3, 5], Linear::new(5, 3);
        "Conv2d", [2, 4, 9, 8], Conv2d::new(4, 6, (3, 2)).stride(2).padding((2, 1)).dilation((1, 2)).groups(2);
        "ConvTranspose2d", [2, 2, 3, 4], ConvTranspose2d::new(2, 3, (2, 3)).stride((2, 1)).padding((0, 1)).dilation((2, 1));
        "Conv1d", [2, 4, 9], Conv1d::new(4, 6, 3).stride(2).padding(2).dilation(2).groups(2);
        "ConvTranspose1d", [2, 2, 4], ConvTranspose1d::new(2, 3, 3).stride(2).padding(1);
        "ConvTranspose3d", [1, 2, 2, 3, 2], ConvTranspose3d::new(2, 3, (2, 3, 2)).stride((2, 1, 1)).padding((0, 1, 0));
        "Conv3d", [1, 2, 4, 3, 4], Conv3d::new(2, 3, (2, 3, 2)).stride((2, 1, 1)).padding((1, 0, 1));
        "BatchNorm1d", [4, 3, 2], BatchNorm1d::new(3).eps(0.1);
        "BatchNorm2d", [3, 2, 3, 2], BatchNorm2d::new(2).eps(0.1);
        "BatchNorm3d", [2, 2, 1, 3, 2], BatchNorm3d::new(2).eps(0.1);
        "GroupNorm", [2, 6, 3, 5], GroupNorm::new(3, 6);
        "LayerNorm", [3, 2, 5], LayerNorm::new([2, 5]);
        "LayerNorm2d", [2, 5, 3, 2], LayerNorm2d::new(5).eps(0.1);
        "RmsNorm", [3, 2, 5], RmsNorm::new([5]).eps(0.1);
        "InstanceNorm2d", [2, 3, 4, 3], InstanceNorm2d::new(3).affine(true);
        "MultiheadAttention", [2, 5, 6], MultiheadAttention::new(6, 3);
        "TransformerEncoderLayer", [2, 5, 6], TransformerEncoderLayer::new(6, 3).feed_forward(4).norm_first(true);
        "Rnn", [2, 4, 3], Rnn::new(3, 4);
        "Lstm", [2, 3, 3], Lstm::new(3, 4).layers(2).bidirectional(true);
        "Gru", [2, 4, 3], Gru::new(3, 5);
        "Glu", [5, 6], Glu::new();
        "SwiGlu", [2, 3, 4], SwiGlu::new(4, 6);
        "RotaryEmbedding", [2, 3, 5, 6], RotaryEmbedding::new(6);
        "SelfAttention2d", [2, 6, 3, 5], SelfAttention2d::new(6, 3);
        "SinusoidalEmbedding", [5], SinusoidalEmbedding::new(6);
        "MaxPool1d", [2, 3, 9], MaxPool1d::new(3).stride(2).padding(1);
        "AvgPool1d", [2, 3, 9], AvgPool1d::new(3).padding(1);
        "AdaptiveAvgPool1d", [2, 3, 7], AdaptiveAvgPool1d::new(3);
        "MaxPool3d", [2, 2, 4, 5, 4], MaxPool3d::new(2).stride((1, 2, 1)).padding((1, 0, 0));
        "AvgPool3d", [2, 2, 4, 5, 4], AvgPool3d::new((2, 3, 2));
        "MaxPool2d", [2, 2, 7, 6], MaxPool2d::new(3).stride(2).padding(1);
        "AvgPool2d", [2, 2, 5, 6], AvgPool2d::new(3).padding(1).count_include_pad(false);
        "AdaptiveAvgPool3d", [2, 2, 4, 3, 5], AdaptiveAvgPool3d::new((2, 3, 2));
        "AdaptiveMaxPool1d", [2, 3, 7], AdaptiveMaxPool1d::new(3);
        "AdaptiveMaxPool2d", [2, 3, 7, 5], AdaptiveMaxPool2d::new((3, 2));
        "AdaptiveMaxPool3d", [2, 2, 4, 3, 5], AdaptiveMaxPool3d::new((2, 3, 2));
        "AdaptiveAvgPool2d", [2, 3, 7, 5], AdaptiveAvgPool2d::new((3, 2));
        "GlobalAvgPool2d", [2, 3, 5, 3], GlobalAvgPool2d;
        "Upsample", [2, 2, 3, 4], Upsample::bilinear((3, 2)).align_corners(true);
        "PixelShuffle", [2, 18, 1, 3], PixelShuffle::new(3);
        "PixelUnshuffle", [1, 2, 6, 3], PixelUnshuffle::new(3);
        "Dropout", [5, 7], Dropout::new(0.3);
        "StochasticDepth", [5, 7], StochasticDepth::new(0.3);
        "Flatten", [2, 3, 2, 2], Flatten;
        "Relu", [5, 7], Relu;
        "LeakyRelu", [5, 7], LeakyRelu { slope: 0.2 };
        "Elu", [5, 7], Elu { alpha: 1.3 };
        "Gelu", [5, 7], Gelu;
        "GeluTanh", [5, 7], GeluTanh;
        "Silu", [5, 7], Silu;
        "Sigmoid", [5, 7], Sigmoid;
        "Tanh", [5, 7], Tanh;
        "Softplus", [5, 7], Softplus;
        "Relu6", [5, 7], Relu6;
        "Hardsigmoid", [5, 7], Hardsigmoid;
        "Hardswish", [5, 7], Hardswish;
        "Mish", [5, 7], Mish;
        "Selu", [5, 7], Selu;
        "Identity", [5, 7], Identity;
        "Softmax", [2, 3, 4], Softmax::new(1);
        "LogSoftmax", [2, 3, 4], LogSoftmax::new(-1);
        "PRelu", [2, 3, 4], PRelu::new(3);
    }
    all.push(Subject {
        name: "Embedding",
        setting: "new(5, 3).padding(1)".into(),
        input: vec![6, 3],
        layer: Box::new(Words { table: Embedding::new(5, 3).padding(1).init(&device, seed)? }),
    });
    Ok(all)
}

/// The text after the layer's name, in one line.
fn setting(builder: &str) -> String {
    let setting = builder.split_once("::").map_or("", |(_, setting)| setting);
    setting.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// An embedding as a differentiable function of numbers: they are multiplied by the rows of its table.
#[derive(Module, Debug)]
struct Words {
    table: Embedding,
}

impl Layer for Words {
    fn forward(&self, x: &Var) -> Var {
        // A repeated row, an unused row, and the padding.
        let words = Tensor::indices(&x.tape().device(), [6], &[3, 1, 0, 4, 3, 0]);
        match words {
            Ok(words) => self.table.forward(&x.tape().input(&words)) * x,
            Err(error) => unreachable!("six numbers for six: {error}"),
        }
    }
}
