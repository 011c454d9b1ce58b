//! Learns to read handwritten digits, in seconds.
//!
//! ```text
//! cargo run --release --example digits
//! ```
//!
//! Read it from top to bottom: a model is a struct, a step is five lines, and the rest is for looking at what came of it. The
//! loss curve and the trained weights are left in `target/digits`.

use std::error::Error;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use meganeura::data::Dataset;
use meganeura::prelude::*;
use meganeura_examples::confusion::Confusion;
use meganeura_examples::{curve, digits};
use serde_json::json;

/// The model: an image `[N, 1, 8, 8]` goes through the fields in order, and a score for each digit `[N, 10]` comes out.
#[derive(Module, Debug)]
#[module(sequential)]
struct Digits {
    #[module(init = Conv2d::new(1, 32, 3).padding(1))]
    stem: Conv2d,
    #[module(init = GroupNorm::new(8, 32), then = relu)]
    norm: GroupNorm,
    #[module(init, then = [MaxPool2d::new(2), flatten])]
    block: Residual,
    #[module(init = Linear::new(32 * 4 * 4, 10))]
    head: Linear,
}

/// Adds its input to what its layers make of it.
#[derive(Module, Debug)]
#[module(sequential, residual, then = relu)]
struct Residual {
    #[module(init = Conv2d::new(32, 32, 3).padding(1))]
    conv: Conv2d,
    #[module(init = GroupNorm::new(8, 32))]
    norm: GroupNorm,
}

/// Learns to read handwritten digits.
#[derive(Parser, Debug)]
struct Options {
    /// What to compute on: auto, cpu, gpu, or part of an adapter's name
    #[arg(long, default_value = "auto")]
    device: String,
    /// How often every image is seen
    #[arg(long, default_value_t = 12)]
    epochs: usize,
    /// Images in one step
    #[arg(long, default_value_t = 64)]
    batch: usize,
    /// For the first weights, for which images are held out, and for the order of the others
    #[arg(long, default_value_t = 42)]
    seed: u64,
    /// Where the loss curve and the weights go
    #[arg(long, default_value = "target/digits")]
    out: PathBuf,
    /// Print the result as one line of JSON, and everything else to stderr
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let mut log: Box<dyn Write> = if options.json { Box::new(std::io::stderr()) } else { Box::new(std::io::stdout()) };
    let device = meganeura_examples::device(&options.device)?;
    writeln!(log, "Device: {device} — {}", device.reason())?;
    writable(&options.out)?;

    // A fifth of the images is never trained on, and tells how well unseen ones are read.
    let (test, train) = digits::load()?.split(0.2, options.seed)?;
    if options.batch == 0 || options.batch > train.len() {
        return Err(format!("--batch {}: there are 1 to {} images for a step", options.batch, train.len()).into());
    }
    let mut net = Digits::init(&device, options.seed)?;
    writeln!(log, "\n{net:#}\n\n{} images to train on, {} to test with", train.len(), test.len())?;

    let start = Instant::now();
    let mut optimizer = AdamW::new(2e-3);
    let mut losses = Vec::new();
    // Whole batches only: with one shape, all steps share one plan.
    let steps_per_epoch = train.len() / options.batch;
    let bar = progress_bar(options.epochs * steps_per_epoch);
    for epoch in 0..options.epochs {
        let mut unread = Vec::new();
        for batch in
            train.batches(options.batch).shuffle(options.seed.wrapping_add(epoch as u64)).drop_last().on(&device)
        {
            let batch = batch?;
            let tape = Tape::new(&device);
            let loss = net.forward(&tape.input(&batch.images)).cross_entropy(&batch.labels);
            let grads = tape.backward(&loss)?;
            optimizer.step(&mut net, &grads)?;
            // Reading the number would wait for the device; that is left for the end of the epoch.
            unread.push(loss.to_tensor()?);
            bar.inc(1);
        }
        for loss in unread {
            losses.push(loss.item()?);
        }
        let mean = losses[epoch * steps_per_epoch..].iter().sum::<f32>() / steps_per_epoch as f32;
        let accuracy = 100.0 * evaluate(&net, &test, &device)?.accuracy();
        bar.suspend(|| writeln!(log, "epoch {:2}   loss {mean:.4}   test accuracy {accuracy:5.2} %", epoch + 1))?;
    }
    bar.finish_and_clear();
    let seconds = start.elapsed().as_secs_f64();

    let confusion = evaluate(&net, &test, &device)?;
    let accuracy = confusion.accuracy();
    writeln!(log, "\n{confusion}\n")?;
    writeln!(log, "{:.2} % of unseen digits are read correctly, after {seconds:.1} s", 100.0 * accuracy)?;

    let (curve, weights) = (options.out.join("loss.svg"), options.out.join("digits.safetensors"));
    curve::draw(&curve, "Digits: training loss", &losses, steps_per_epoch)?;
    net.save(&weights)?;
    writeln!(log, "{}\n{}", curve.display(), weights.display())?;
    if options.json {
        let (device, steps) = (device.to_string(), losses.len());
        let result = json!({ "test_accuracy": accuracy, "device": device, "seconds": seconds, "steps": steps });
        println!("{result}");
    }
    Ok(())
}

/// What the model takes each image of a dataset for.
fn evaluate(net: &Digits, dataset: &Dataset, device: &Device) -> Result<Confusion, meganeura::Error> {
    let mut confusion = Confusion::default();
    for batch in dataset.batches(512).on(device) {
        let batch = batch?;
        let tape = Tape::inference(device);
        let scores = net.forward(&tape.input(&batch.images));
        confusion.count(&scores.to_vec()?, &batch.labels.to_u32_vec()?);
    }
    Ok(confusion)
}

/// Makes the folder and tries to write there: better to hear now than after the training that there is no way.
fn writable(out: &Path) -> Result<(), String> {
    let probe = out.join(".writable");
    let tried = fs::create_dir_all(out).and_then(|()| fs::write(&probe, "")).and_then(|()| fs::remove_file(&probe));
    tried.map_err(|error| format!("--out {}: cannot write there: {error}", out.display()))
}

fn progress_bar(steps: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} step {pos}/{len}, {eta} left").expect("a valid template");
    ProgressBar::new(steps as u64).with_style(style)
}
