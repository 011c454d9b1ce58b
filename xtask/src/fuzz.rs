//! `cargo xtask fuzz`: fuzzers of every reader and parser, for a given time and from a given seed.

use clap::Args;

use crate::{Done, process, test};

const BINARY: &str = "meganeura-fuzz";

/// The defaults, as in CI: one minute from a fixed seed.
#[derive(Args, Debug)]
pub struct Options {
    /// The total time for all readers
    #[arg(long, default_value_t = Self::default().seconds)]
    seconds: u64,

    /// The seed of the inputs
    #[arg(long, default_value_t = Self::default().seed)]
    seed: u64,

    /// Passed on, for example `-- --target idx --replay target/fuzz/idx`
    #[arg(last = true, value_name = "ARGS")]
    args: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self { seconds: 60, seed: 1, args: Vec::new() }
    }
}

pub fn run(options: &Options) -> Done {
    let mut fuzzer = test::program(BINARY)?;
    fuzzer.args(["--seconds", &options.seconds.to_string(), "--seed", &options.seed.to_string()]);
    let done = process::run(fuzzer.args(&options.args));
    done.map_err(|failed| format!("{failed}; the last input of the target is in target/fuzz/, under its name"))
}
