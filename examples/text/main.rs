//! Trains a small GPT on a text, character by character, and continues a prompt. Shakespeare's "As You Like It" takes
//! minutes on two cores.
//!
//! ```text
//! cargo run --release --example text
//! cargo run --release --example text -- --text novel.txt --epochs 3
//! ```
//!
//! The model sees up to `--context` characters and learns to predict the next one. The folder of the run holds the
//! result (`written.txt`), the loss curve and the weights. Ctrl-C saves and ends the training; `--resume` continues it.
//! `torch_twin.py` beside this file trains the same model in PyTorch.

mod corpus;
mod writer;

use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use meganeura::optim::Schedule;
use meganeura::prelude::*;
use meganeura::run::Best;
use meganeura_examples::curve;
use meganeura_examples::training::{self, Progress};
use serde_json::json;

use corpus::{Corpus, Windows};
use writer::{Writer, WriterConfig};

/// Trains a small GPT on a text, character by character, and continues a prompt
#[derive(Parser, Debug)]
struct Options {
    #[command(flatten)]
    training: training::Options,
    /// A UTF-8 text to learn from [default: the built-in "As You Like It"]
    #[arg(long)]
    text: Option<PathBuf>,
    /// Passes over the text; each character is in four windows per pass
    #[arg(long, default_value_t = 8)]
    epochs: u64,
    /// Windows per step
    #[arg(long, default_value_t = 32)]
    batch: usize,
    /// Characters that the model sees at once
    #[arg(long, default_value_t = 64)]
    context: usize,
    /// Features of a character
    #[arg(long, default_value_t = 128)]
    width: usize,
    /// Heads of each attention
    #[arg(long, default_value_t = 4)]
    heads: usize,
    /// Layers of attention and feed-forward
    #[arg(long, default_value_t = 3)]
    layers: usize,
    /// The dropout probability in training
    #[arg(long, default_value_t = 0.1)]
    dropout: f64,
    /// The initial learning rate; it falls to a tenth along half a cosine
    #[arg(long, default_value_t = 2e-3)]
    lr: f64,
    /// The beginning of the text to continue
    #[arg(long, default_value = "ROSALIND\t")]
    prompt: String,
    /// The number of characters to write
    #[arg(long, default_value_t = 600)]
    length: usize,
    /// The sampling temperature: below 1 favours likely characters
    #[arg(long, default_value_t = 0.8)]
    temperature: f64,
}

fn main() -> ExitCode {
    meganeura_examples::run(train)
}

fn train(options: &Options) -> Result<(), Box<dyn Error>> {
    let corpus = match &options.text {
        Some(path) => Corpus::read(path).map_err(|error| format!("{}: {error}", path.display()))?,
        None => Corpus::embedded(),
    };
    let prompt = check(options, &corpus)?;
    let world = options.training.world()?;
    let mut log = options.training.log(&world);
    let device = options.training.device(&world)?;
    writeln!(log, "Device: {device} — {}", device.reason())?;

    let (train, test) = corpus.windows(options.context)?;
    let steps_per_epoch = training::steps_per_epoch(train.len(), options.batch)?;
    let config = WriterConfig {
        characters: corpus.characters(),
        context: options.context,
        width: options.width,
        heads: options.heads,
        layers: options.layers,
        dropout: options.dropout,
    };
    let sizes = format!("{config:?}");
    let mut net = config.init(&device, options.training.seed)?;
    let mut optimizer = AdamW::new(options.lr);
    let steps = options.epochs * steps_per_epoch as u64;
    let schedule = Schedule::cosine(options.lr, steps, options.lr / 10.0);
    let mut run = options.training.open_run("text", &device, &world, |run| {
        let run = run.setting("text", corpus.digest()).setting("batch", options.batch).setting("model", sizes);
        run.setting("schedule", &schedule).keep_best("test_loss", Best::Lowest)
    })?;
    run.restore(&mut net, &mut optimizer)?;
    world.share(&mut net)?;
    writeln!(log, "\n{net:#}\n\n{} characters, {} different ones", corpus.len(), corpus.characters())?;
    writeln!(log, "{}, from {} on", run.folder().display(), run.position())?;

    let start = Instant::now();
    let mut progress = Progress::new(steps, run.step(), &world);
    let batches = train.batches(options.batch).shuffle(options.training.seed).drop_last();
    'training: while let Some(batches) = run.next_epoch_of(&batches, options.epochs) {
        for batch in batches {
            let batch = batch?;
            let tape = Tape::new(&device);
            let loss = net.loss(&tape.input(&batch.inputs), &tape.input(&batch.targets));
            let grads = tape.backward(&loss)?.average(&net, &world)?;
            let loss = loss.all_mean(&world);
            schedule.set_lr(run.step(), &mut optimizer);
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
        let test_loss = evaluate(&net, &test, &device)?;
        run.log(&[("test_loss", &test_loss)])?;
        run.checkpoint(&net, &optimizer)?;
        let epoch = run.position().epoch;
        progress.suspend(|| writeln!(log, "epoch {epoch:2}   loss {loss:.4}   test loss {test_loss:.4}"))?;
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

    let mut codes = prompt;
    net.write(&mut codes, options.length, options.temperature, options.training.seed, &device)?;
    let written = corpus.decode(&codes);
    writeln!(log, "\n{written}\n")?;
    let [curve, weights, text] = ["loss.svg", "writer.safetensors", "written.txt"].map(|name| run.folder().join(name));
    curve::draw(&curve, "Text: training loss", &training::losses(&mut run)?, steps_per_epoch)?;
    net.save(&weights)?;
    fs::write(&text, &written).map_err(|error| format!("{}: {error}", text.display()))?;
    let test_loss = evaluate(&net, &test, &device)?;
    writeln!(log, "The loss on unseen text is {test_loss:.4} nats a character, after {seconds:.1} s")?;
    let steps = run.step();
    writeln!(log, "{}\n{}\n{}\n\n{}", text.display(), curve.display(), weights.display(), run.finish()?)?;
    if options.training.json {
        let device = device.to_string();
        let result = json!({
            "test_loss": test_loss, "device": device, "ranks": world.size(), "seconds": seconds, "steps": steps,
            "written": written,
        });
        println!("{result}");
    }
    Ok(())
}

/// Checks that the options fit each other and the text. Returns the numbers of the prompt's characters.
fn check(options: &Options, corpus: &Corpus) -> Result<Vec<u32>, Box<dyn Error>> {
    training::expect_at_least("--context", 2, options.context as u64)?;
    training::expect_at_least("--epochs", 1, options.epochs)?;
    training::expect_at_least("--layers", 1, options.layers as u64)?;
    training::expect_at_least("--heads", 1, options.heads as u64)?;
    training::expect_multiple("--width", options.heads, options.width)?;
    if !(options.temperature > 0.0 && options.temperature.is_finite()) {
        return Err(format!("--temperature {}: must be above 0", options.temperature).into());
    }
    // A tenth of the text is for testing, and must have at least one window.
    let least = 10 * (options.context + 2);
    if corpus.len() < least {
        return Err(
            format!("the text has {} characters; --context {} takes {least}", corpus.len(), options.context).into()
        );
    }
    if options.prompt.is_empty() {
        return Err("--prompt: must have a character".into());
    }
    Ok(corpus.encode(&options.prompt).map_err(|c| format!("--prompt: {c:?} is not in the text"))?)
}

/// The mean loss on windows of unseen text.
fn evaluate(net: &Writer, windows: &Windows, device: &Device) -> Result<f64, meganeura::Error> {
    let (mut sum, mut count) = (0.0, 0);
    for batch in windows.batches(64).on(device) {
        let batch = batch?;
        let tape = Tape::inference(device);
        let windows = batch.inputs.shape()[0];
        let loss = net.loss(&tape.input(&batch.inputs), &tape.input(&batch.targets)).item()?;
        sum += f64::from(loss) * windows as f64;
        count += windows;
    }
    Ok(sum / count as f64)
}
