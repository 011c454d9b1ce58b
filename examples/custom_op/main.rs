//! A custom operation: checked, compared on the GPU with double precision, and trained through.
//!
//! ```text
//! cargo run --release --example custom_op
//! ```
//!
//! The operation is in `cumsum.rs`; it uses only the crate's public interface. The model is a curve that can only rise:
//! running sums of positive steps, fitted to noisy points.

mod cumsum;

use std::process::ExitCode;

use clap::Parser;
use cumsum::CumSum;
use meganeura::Result;
use meganeura::check::gradcheck;
use meganeura::prelude::*;

/// Checks a custom operation, and trains a model that contains it.
#[derive(Parser, Debug)]
struct Options {
    /// The device: auto, cpu, gpu, or part of an adapter's name
    #[arg(long, default_value = "auto")]
    device: String,
}

const POINTS: usize = 48;

/// `y[i] = start + Σ softplus(steps[j])` over `j ≤ i`
#[derive(Module, Debug)]
struct Rising {
    #[module(init = Initializer::Zeros.param([1]))]
    start: Param,
    #[module(init = Initializer::Constant(-4.0).param([POINTS]))]
    steps: Param,
}

impl Rising {
    fn curve(&self, tape: &Tape) -> Var {
        tape.param(&self.start) + tape.param(&self.steps).softplus().custom(CumSum { backwards: false }, &[])
    }
}

fn main() -> ExitCode {
    meganeura_examples::run(run)
}

fn run(options: &Options) -> Result<()> {
    let device = meganeura_examples::device(&options.device)?;
    println!("Device: {device} — {}\n", device.reason());

    let noise = |shape: [usize; 2]| Tensor::randn(&device, shape, Seed::new(1));
    let x = noise([3, 5])?;
    for backwards in [false, true] {
        let report = gradcheck(&(), std::slice::from_ref(&x), |(), x| vec![x[0].custom(CumSum { backwards }, &[])])?;
        print!("{report}");
        report.ok()?;
    }
    println!("largest error against double precision: {:.1e}\n", largest_difference(&noise([130, 257])?)?);

    let mut net = Rising::init(&device, 42)?;
    let mut optimizer = Adam::new(0.05);
    let target = (0..POINTS).map(|i| (i as f32 / POINTS as f32).sqrt() + 0.2 * (i as f32 * 12.9).sin());
    let target = Tensor::from_slice(&device, [POINTS], &target.collect::<Vec<_>>())?;
    for step in 0..=400 {
        let tape = Tape::new(&device);
        let loss = net.curve(&tape).mse(&tape.input(&target));
        let grads = tape.backward(&loss)?;
        optimizer.step(&mut net, &grads)?;
        if step % 100 == 0 {
            println!("step {step:3}   loss {:.4}", loss.item()?);
        }
    }
    let curve = net.curve(&Tape::inference(&device)).to_vec()?;
    let rises = curve.windows(2).all(|pair| pair[0] <= pair[1]);
    println!("\nfrom {:.2} to {:.2}, and {}", curve[0], curve[POINTS - 1], if rises { "it rises" } else { "it falls" });
    Ok(())
}

/// The difference between the device's kernel and the native one in double precision, relative to the largest sum.
fn largest_difference(x: &Tensor) -> Result<f64> {
    let sums = |device: &Device| {
        let x = Tape::inference(device).input(&x.to_device(device)?);
        x.custom(CumSum { backwards: false }, &[]).to_tensor()?.to_f64_vec()
    };
    let (computed, reference) = (sums(x.device())?, sums(&Device::cpu_with(Precision::Double))?);
    let scale = reference.iter().fold(0.0, |largest: f64, x| largest.max(x.abs()));
    let differences = computed.iter().zip(&reference).map(|(x, y)| (x - y).abs() / scale);
    Ok(differences.fold(0.0, f64::max))
}
