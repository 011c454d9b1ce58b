//! Learns to read handwritten digits, in seconds.
//!
//! ```text
//! cargo run --release --example digits
//! ```
//!
//! The model is a struct in `examples/src/models/digits.rs`; the page of `examples/web` trains the same model in a
//! browser. A step is five lines; the rest shows the results. Checkpoints, the loss of each step, its curve and the
//! trained weights go into a folder in `target/digits`, or into the folder of `--run`. Ctrl-C saves and ends the
//! training; `--resume` continues it, to the same weights as without the interruption. `--weights FILE` reads the
//! unseen digits with weights from an earlier training, of this program or of the page.

use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use meganeura::data::Dataset;
use meganeura::metric::Confusion;
use meganeura::prelude::*;
use meganeura::run::Best;
use meganeura_examples::models::Digits;
use meganeura_examples::training::{self, Progress};
use meganeura_examples::{curve, digits};
use serde_json::json;

/// Learns to read handwritten digits.
#[derive(Parser, Debug)]
struct Options {
    #[command(flatten)]
    training: training::Options,
    /// Passes over all images
    #[arg(long, default_value_t = 12)]
    epochs: u64,
    /// Images per step
    #[arg(long, default_value_t = 64)]
    batch: usize,
    /// Do not train; read the unseen digits with the weights in this file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["run", "ranks"])]
    weights: Option<PathBuf>,
}

fn main() -> ExitCode {
    meganeura_examples::run(train)
}

fn train(options: &Options) -> Result<(), Box<dyn Error>> {
    let world = options.training.world()?;
    let mut log = options.training.log(&world);
    let device = options.training.device(&world)?;
    writeln!(log, "Device: {device} — {}", device.reason())?;

    // A fifth of the images is held out for testing.
    let (train, test) = digits::load()?.split(0.8, options.training.seed)?;
    // Whole batches only: with one shape, all steps share one plan.
    let steps_per_epoch = training::steps_per_epoch(train.len(), options.batch)?;
    let mut net = Digits::init(&device, options.training.seed)?;
    if let Some(path) = &options.weights {
        net.load(path)?.strict()?;
        let accuracy = report(&mut log, &evaluate(&net, &test, &device)?)?;
        if options.training.json {
            println!("{}", json!({ "test_accuracy": accuracy, "device": device.to_string() }));
        }
        return Ok(());
    }
    let mut optimizer = AdamW::new(2e-3);
    let mut run = options.training.open_run("digits", &device, &world, |run| {
        run.setting("batch", options.batch).keep_best("accuracy", Best::Highest)
    })?;
    run.restore(&mut net, &mut optimizer)?;
    world.share(&mut net)?;
    writeln!(log, "\n{net:#}\n\n{} images to train on, {} to test with", train.len(), test.len())?;
    writeln!(log, "{}, from {} on", run.folder().display(), run.position())?;

    let start = Instant::now();
    let mut progress = Progress::new(options.epochs * steps_per_epoch as u64, run.step(), &world);
    let batches = train.batches(options.batch).shuffle(options.training.seed).drop_last();
    'training: while let Some(batches) = run.next_epoch_of(&batches, options.epochs) {
        for batch in batches {
            let batch = batch?;
            let tape = Tape::new(&device);
            let loss = net.forward(&tape.input(&batch.inputs)).cross_entropy(&batch.targets);
            let grads = tape.backward(&loss)?.average(&net, &world)?;
            let loss = loss.all_mean(&world);
            optimizer.step(&mut net, &grads)?;

            run.advance();
            let loss = loss.to_tensor()?;
            run.log(&[("loss", &loss)])?;
            progress.advance(&loss)?;
            if run.is_due() {
                run.checkpoint(&net, &optimizer)?;
            }
            if run.is_interrupted() {
                break 'training;
            }
        }
        run.end_epoch();
        if !world.is_first() {
            continue;
        }
        let loss = training::recent_loss(&mut run, steps_per_epoch)?;
        if !loss.is_finite() {
            return Err(run.fail("the loss is not finite")?.to_string().into());
        }
        let accuracy = evaluate(&net, &test, &device)?.accuracy()?;
        run.log(&[("accuracy", &accuracy)])?;
        run.checkpoint(&net, &optimizer)?;
        let percent = 100.0 * accuracy;
        let epoch = run.position().epoch;
        progress.suspend(|| writeln!(log, "epoch {epoch:2}   loss {loss:.4}   test accuracy {percent:5.2} %"))?;
    }
    progress.finish();
    if run.is_interrupted() {
        writeln!(log, "\n{}", run.finish()?)?;
        return Ok(());
    }
    let seconds = start.elapsed().as_secs_f64();
    if !world.is_first() {
        return Ok(());
    }

    let accuracy = report(&mut log, &evaluate(&net, &test, &device)?)?;
    writeln!(log, "trained for {seconds:.1} s")?;

    let (curve, weights) = (run.folder().join("loss.svg"), run.folder().join("digits.safetensors"));
    curve::draw(&curve, "Digits: training loss", &training::losses(&mut run)?, steps_per_epoch)?;
    net.save(&weights)?;
    let steps = run.step();
    writeln!(log, "{}\n{}\n\n{}", curve.display(), weights.display(), run.finish()?)?;
    if options.training.json {
        let device = device.to_string();
        let result = json!({
            "test_accuracy": accuracy, "device": device, "ranks": world.size(), "seconds": seconds, "steps": steps,
        });
        println!("{result}");
    }
    Ok(())
}

/// Reports on the unseen digits, and returns the share of correct answers.
fn report(log: &mut dyn Write, confusion: &Confusion) -> Result<f64, Box<dyn Error>> {
    let accuracy = confusion.accuracy()?;
    writeln!(log, "\nConfusion matrix (row: the digit, column: the answer):\n{confusion}\n")?;
    writeln!(log, "{:.2} % of unseen digits are read correctly", 100.0 * accuracy)?;
    Ok(accuracy)
}

/// The model's answer for each image of a dataset.
fn evaluate(net: &Digits, dataset: &Dataset, device: &Device) -> Result<Confusion, meganeura::Error> {
    let mut confusion = Confusion::new(digits::CLASSES)?;
    for batch in dataset.batches(512).on(device) {
        let batch = batch?;
        let tape = Tape::inference(device);
        let scores = net.forward(&tape.input(&batch.inputs));
        confusion.update(&scores.to_tensor()?, &batch.targets)?;
    }
    Ok(confusion)
}
