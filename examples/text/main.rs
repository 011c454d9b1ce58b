//! Trains a small GPT on a text, by characters or by tokens, and continues a prompt. Shakespeare's "As You Like It"
//! takes minutes on two cores.
//!
//! ```text
//! cargo run --release --example text
//! cargo run --release --example text -- --text novel.txt --epochs 3
//! cargo run --release --features tokenizers --example text -- --tokens 512
//! ```
//!
//! The model sees up to `--context` characters and learns to predict the next one. With `--tokens`, it learns tokens of
//! several characters, byte pairs, which the crate `tokenizers` finds in the text. The folder of the run holds the
//! result (`written.txt`), the loss curve, the weights and the vocabulary (`tokenizer.json`). Ctrl-C saves and ends the
//! training; `--resume` continues it. `torch_twin.py` beside this file trains the same model in PyTorch.

mod corpus;
#[cfg_attr(not(feature = "tokenizers"), path = "no_tokens.rs")]
mod tokens;
mod writer;

use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use meganeura::metric::MeanOf;
use meganeura::prelude::*;
use meganeura_examples::training;

use corpus::{Corpus, Vocabulary};
use writer::{Writer, WriterConfig};

/// Trains a small GPT on a text, by characters or by tokens, and continues a prompt
#[derive(Parser, Debug)]
struct Options {
    #[command(flatten)]
    training: training::Options,
    /// A UTF-8 text to learn from [default: the built-in "As You Like It"]
    #[arg(long)]
    text: Option<PathBuf>,
    /// Learn this many tokens of several characters from the text, and write with them [default: single characters]
    #[arg(long)]
    tokens: Option<usize>,
    /// Passes over the text; each character is in four windows per pass
    #[arg(long, default_value_t = 8)]
    epochs: u64,
    /// Windows per step
    #[arg(long, default_value_t = 32)]
    batch: usize,
    /// Characters or tokens that the model sees at once
    #[arg(long, default_value_t = 64)]
    context: usize,
    /// Features of a character or token
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
    /// The number of characters or tokens to write
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
    if let Some(count) = options.tokens {
        training::expect_at_least("--tokens", tokens::BYTES as u64, count as u64)?;
    }
    let text = match &options.text {
        Some(path) => corpus::read(path).map_err(|error| format!("{}: {error}", path.display()))?,
        None => corpus::embedded(),
    };
    let corpus = Corpus::new(&text, options.tokens)?;
    let vocabulary = corpus.vocabulary();
    let prompt = check(options, &corpus)?;
    let session = options.training.begin()?;
    let (train, test) = corpus.windows(options.context)?;
    let batches = session.batches(&train, options.batch)?;
    let config = WriterConfig {
        vocabulary: vocabulary.count(),
        context: options.context,
        width: options.width,
        heads: options.heads,
        layers: options.layers,
        dropout: options.dropout,
    };
    let sizes = format!("{config:?}");
    let mut net = config.init(&session.device, session.seed)?;
    session.load_weights(&mut net)?;
    let (count, codes) = (vocabulary.count(), vocabulary.name());
    session.say(format!("\n{net:#}\n\n{} {codes}, {count} different ones", corpus.len()))?;

    let run = session.run("text", |run| {
        let run = run.setting("text", corpus.digest()).setting("batch", options.batch).setting("model", sizes);
        run.keep_best("test_loss", Best::Lowest)
    })?;
    let report = Trainer::new(&mut net, batches, |net, x, next| Writer::loss(&net.forward(x), next))
        .epochs(options.epochs)
        .schedule(|steps| Schedule::cosine(options.lr, steps, options.lr / 10.0))
        .run(run)
        .validate(test.batches(64), |net, x, next| (net.forward(x), next.clone()))
        .measure("test_loss", MeanOf::new(Writer::loss))
        .log_to(session.log())
        .fit(&mut AdamW::new(options.lr))?;

    session.conclude(&report, || {
        let mut codes = prompt;
        net.write(&mut codes, options.length, options.temperature, session.seed, &session.device)?;
        let written = vocabulary.decode(&codes)?;
        session.say(format!("\n{written}\n"))?;
        let [weights, text] = ["writer.safetensors", "written.txt"].map(|name| report.overview.folder.join(name));
        net.save(&weights)?;
        fs::write(&text, &written).map_err(|error| format!("{}: {error}", text.display()))?;
        if let Vocabulary::Tokens(tokens) = vocabulary {
            tokens.save(&report.overview.folder.join("tokenizer.json"))?;
        }
        let test_loss = report.metrics.get("test_loss").copied().unwrap_or(f64::NAN) / corpus.characters_per_code();
        session.say(format!("The loss on unseen text is {test_loss:.4} nats a character"))?;
        Ok(vec![("test_loss", test_loss.into()), ("written", written.into())])
    })
}

/// Checks that the options fit each other and the text. Returns the codes of the prompt.
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
        let codes = corpus.vocabulary().name();
        return Err(
            format!("the text has {} {codes}; --context {} takes {least}", corpus.len(), options.context).into()
        );
    }
    if options.prompt.is_empty() {
        return Err("--prompt: must have a character".into());
    }
    corpus.vocabulary().encode(&options.prompt).map_err(|error| format!("--prompt: {error}").into())
}
