//! Learns to read handwritten digits, in seconds.
//!
//! ```text
//! cargo run --release --example digits
//! ```
//!
//! Read it from top to bottom: a model is a struct, a step is five lines, and the rest is for looking at what came of it. The
//! checkpoints, the loss of each step, its curve and the trained weights are left in a folder of `target/digits`, or that of
//! `--run`. Ctrl-C saves and ends; with `--resume` the training goes on, to the same weights as if nothing had happened.

use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use meganeura::data::Dataset;
use meganeura::prelude::*;
use meganeura::run::{Best, Interrupt, Run};
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
    epochs: u64,
    /// Images in one step
    #[arg(long, default_value_t = 64)]
    batch: usize,
    /// For the first weights, for which images are held out, and for the order of the others
    #[arg(long, default_value_t = 42)]
    seed: u64,
    /// Where checkpoints, metrics, the loss curve and the weights go [default: a new folder in target/digits]
    #[arg(long)]
    run: Option<PathBuf>,
    /// Go on with the training in the folder of --run
    #[arg(long, requires = "run")]
    resume: bool,
    /// Print the result as one line of JSON, and everything else to stderr
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match train(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn train(options: &Options) -> Result<(), Box<dyn Error>> {
    let mut log: Box<dyn Write> = if options.json { Box::new(std::io::stderr()) } else { Box::new(std::io::stdout()) };
    let device = meganeura_examples::device(&options.device)?;
    writeln!(log, "Device: {device} — {}", device.reason())?;

    // A fifth of the images is never trained on, and tells how well unseen ones are read.
    let (test, train) = digits::load()?.split(0.2, options.seed)?;
    if options.batch == 0 || options.batch > train.len() {
        return Err(format!("--batch {}: there are 1 to {} images for a step", options.batch, train.len()).into());
    }
    let mut net = Digits::init(&device, options.seed)?;
    let mut optimizer = AdamW::new(2e-3);
    let mut run = open_run(options, &device)?;
    run.restore(&mut net, &mut optimizer)?;
    writeln!(log, "\n{net:#}\n\n{} images to train on, {} to test with", train.len(), test.len())?;
    writeln!(log, "{}, from {} on", run.folder().display(), run.position())?;

    let start = Instant::now();
    // Whole batches only: with one shape, all steps share one plan.
    let steps_per_epoch = train.len() / options.batch;
    let bar = progress_bar(options.epochs * steps_per_epoch as u64, run.step());
    'training: while let Some(epoch) = run.next_epoch(options.epochs) {
        let batches = train.batches(options.batch).shuffle(options.seed.wrapping_add(epoch)).drop_last();
        for batch in batches.skip(run.batch()).on(&device) {
            let batch = batch?;
            let tape = Tape::new(&device);
            let loss = net.forward(&tape.input(&batch.images)).cross_entropy(&batch.labels);
            let grads = tape.backward(&loss)?;
            optimizer.step(&mut net, &grads)?;

            run.advance();
            run.log(&[("loss", &loss.to_tensor()?)])?;
            bar.inc(1);
            if run.is_due() {
                run.checkpoint(&net, &optimizer)?;
            }
            if run.is_interrupted() {
                break 'training;
            }
        }
        run.end_epoch();
        let accuracy = evaluate(&net, &test, &device)?.accuracy();
        run.log(&[("accuracy", &accuracy)])?;
        run.checkpoint(&net, &optimizer)?;
        let losses = losses(&mut run)?;
        let recent = &losses[losses.len().saturating_sub(steps_per_epoch)..];
        let (mean, percent) = (recent.iter().sum::<f32>() / recent.len() as f32, 100.0 * accuracy);
        bar.suspend(|| writeln!(log, "epoch {:2}   loss {mean:.4}   test accuracy {percent:5.2} %", epoch + 1))?;
    }
    bar.finish_and_clear();
    if run.is_interrupted() {
        writeln!(log, "\n{}", run.finish()?)?;
        return Ok(());
    }
    let seconds = start.elapsed().as_secs_f64();

    let confusion = evaluate(&net, &test, &device)?;
    let accuracy = confusion.accuracy();
    writeln!(log, "\n{confusion}\n")?;
    writeln!(log, "{:.2} % of unseen digits are read correctly, after {seconds:.1} s", 100.0 * accuracy)?;

    let (curve, weights) = (run.folder().join("loss.svg"), run.folder().join("digits.safetensors"));
    curve::draw(&curve, "Digits: training loss", &losses(&mut run)?, steps_per_epoch)?;
    net.save(&weights)?;
    let steps = run.step();
    writeln!(log, "{}\n{}\n\n{}", curve.display(), weights.display(), run.finish()?)?;
    if options.json {
        let device = device.to_string();
        let result = json!({ "test_accuracy": accuracy, "device": device, "seconds": seconds, "steps": steps });
        println!("{result}");
    }
    Ok(())
}

/// The run in the folder that was asked for, begun or taken up. What must not change in between are its settings.
fn open_run(options: &Options, device: &Device) -> Result<Run, Box<dyn Error>> {
    let folder = options.run.clone().unwrap_or_else(|| new_folder(Path::new("target/digits")));
    // The same command once more, for who comes back to a run that ended early.
    let mut command: Vec<_> = std::env::args().filter(|argument| argument != "--resume").collect();
    if options.run.is_none() {
        command.extend(["--run".into(), folder.display().to_string()]);
    }
    command.push("--resume".into());
    let run = Run::at(&folder, device)
        .setting("batch", options.batch)
        .setting("seed", options.seed)
        .keep_best("accuracy", Best::Highest)
        .go_on_with(command.join(" "))
        .interrupt(&Interrupt::on_ctrl_c()?);
    Ok(if options.resume { run.resume()? } else { run.create()? })
}

/// The first of `run-1`, `run-2`, … that is not there yet.
fn new_folder(parent: &Path) -> PathBuf {
    let mut names = (1..).map(|number: u64| parent.join(format!("run-{number}")));
    names.find(|folder| !folder.exists()).expect("numbers do not end")
}

/// The loss of each step, also of those before the run was taken up.
fn losses(run: &mut Run) -> Result<Vec<f32>, meganeura::Error> {
    Ok(run.metrics()?.iter().filter_map(|line| Some(*line.values.get("loss")? as f32)).collect())
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

fn progress_bar(steps: u64, done: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} step {pos}/{len}, {eta} left").expect("a valid template");
    ProgressBar::new(steps).with_style(style).with_position(done)
}
