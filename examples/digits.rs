//! Learns to read handwritten digits, in seconds: `cargo run --release --example digits`
//!
//! The model is in `examples/src/models/digits.rs`; the page of `examples/web` trains it in a browser. Checkpoints, the
//! curve of the loss and the weights go into a folder in `target/digits`, or into that of `--run`. Ctrl-C saves and
//! ends the training; `--resume` continues it, to the same weights as without the interruption.
use clap::Parser;
use meganeura::metric::{Accuracy, Confusion};
use meganeura::{prelude::*, train::evaluate};
use meganeura_examples::{digits, models::Digits, training};

/// Learns to read handwritten digits
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
}

fn main() -> std::process::ExitCode {
    meganeura_examples::run(|options: &Options| {
        let session = options.training.begin()?;
        let (train, test) = digits::load()?.split(0.8, session.seed)?; // a fifth of the images is held out
        let batches = session.batches(&train, options.batch)?;
        let mut net = Digits::init(&session.device, session.seed)?;
        session.load_weights(&mut net)?;

        let run =
            session.run("digits", |run| run.setting("batch", options.batch).keep_best("accuracy", Best::Highest))?;
        let report = Trainer::new(&mut net, batches, |net, x, labels| net.forward(x).cross_entropy(labels))
            .epochs(options.epochs)
            .run(run)
            .validate(test.batches(512), |net, x, labels| (net.forward(x), labels.clone()))
            .measure("accuracy", Accuracy::new())
            .log_to(session.log())
            .fit(&mut AdamW::new(2e-3))?;

        session.conclude(&report, || {
            let confusion = Confusion::new(digits::CLASSES)?;
            let confusion = evaluate(&net, test.batches(512), confusion, |net, x, t| (net.forward(x), t.clone()))?;
            session.say(format!("\nConfusion matrix (row: the digit, column: the answer):\n{confusion}\n{net:#}"))?;
            net.save(report.overview.folder.join("digits.safetensors"))?;
            Ok(vec![("test_accuracy", confusion.accuracy()?.into())])
        })
    })
}
