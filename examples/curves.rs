//! Compares training runs in full precision with the same runs in fast precision: draws the loss curves of each pair
//! in one chart, and prints the final losses as a Markdown table.
//!
//! ```text
//! cargo run --release --example bench -- --device gpu --batches 500 --warmup 0 --steps 499 --losses full.csv
//! cargo run --release --example bench -- --device gpu --batches 500 --warmup 0 --steps 499 --losses fast.csv --precision fast
//! cargo run --release --example resnet -- --run target/full
//! cargo run --release --example resnet -- --run target/fast --precision fast
//! cargo run --release --example curves -- tiny=full.csv,fast.csv resnet=target/full,target/fast
//! ```

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use clap::Parser;
use meganeura_examples::losses::{self, Training};
use meganeura_examples::{curve, training};

/// Compares training runs in full precision with the same runs in fast precision.
#[derive(Parser, Debug)]
struct Options {
    /// Two training runs: each a file that `bench --losses` wrote, or the folder of a run
    #[arg(required = true, value_name = "NAME=FULL,FAST")]
    pairs: Vec<Pair>,
    /// The folder for the charts, NAME.svg for each pair
    #[arg(long, default_value = "target/curves")]
    out: PathBuf,
    /// Draw the running mean of this number of steps
    #[arg(long, default_value_t = 10)]
    window: usize,
    /// The final loss is the mean of this number of steps
    #[arg(long, default_value_t = 50)]
    last: usize,
}

/// A training run in both precisions.
#[derive(Clone, Debug)]
struct Pair {
    name: String,
    full: PathBuf,
    fast: PathBuf,
}

impl FromStr for Pair {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = text.split_once('=').and_then(|(name, paths)| Some((name, paths.split_once(',')?)));
        match parts {
            Some((name, (full, fast))) if !name.is_empty() => {
                Ok(Self { name: name.into(), full: full.into(), fast: fast.into() })
            }
            _ => Err("write NAME=FULL,FAST"),
        }
    }
}

fn main() -> ExitCode {
    meganeura_examples::run(compare)
}

fn compare(options: &Options) -> Result<(), Box<dyn Error>> {
    for (option, value) in [("--window", options.window), ("--last", options.last)] {
        training::expect_at_least(option, 1, value as u64)?;
    }
    std::fs::create_dir_all(&options.out).map_err(|error| format!("{}: {error}", options.out.display()))?;
    let mut rows = Vec::new();
    for Pair { name, full, fast } in &options.pairs {
        let (full, fast) = (Training::read(full)?, Training::read(fast)?);
        let steps = [&full, &fast].map(|training| training.losses.len());
        if steps[0] != steps[1] {
            return Err(format!("{name}: {} steps in full precision and {} in fast", steps[0], steps[1]).into());
        }
        let smooth = |training: &Training| losses::running_mean(&training.losses, options.window);
        let chart = options.out.join(format!("{name}.svg"));
        curve::compare(&chart, name, [("full", &smooth(&full)), ("fast", &smooth(&fast))])?;
        eprintln!("{}", chart.display());
        rows.push(losses::row(name, &full, &fast, options.last));
    }
    println!("{}\n{}", losses::TABLE, rows.join("\n"));
    Ok(())
}
