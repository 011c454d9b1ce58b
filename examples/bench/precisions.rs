//! Fast precision must not be slower than full: every workload and every standard kernel in both, and their ratio.
//!
//! Each measurement is a process of its own, so that none finds the memory or the kernels of another.

use std::env;
use std::process::{Command, Output};

use clap::ValueEnum;
use meganeura::{Error, ErrorKind};
use meganeura_examples::precisions::Pair;
use serde_json::Value;

use crate::kernel::Kernels;
use crate::workload::Name;
use crate::{Accuracy, Failure, Options, Report, json, rounded};

/// What is measured: a step, or the passes of a kernel.
struct Measured {
    name: String,
    args: Vec<String>,
}

impl Measured {
    /// All whose names contain a text: workloads, then kernels.
    fn all(filter: &str) -> Result<Vec<Self>, Failure> {
        let args = |option: &str, name: &str| vec![option.to_owned(), name.to_owned()];
        let steps = Name::value_variants().iter().map(ToString::to_string).map(|name| {
            let args = [args("--workload", &name), vec!["--compile".to_owned()]].concat();
            Self { name, args }
        });
        let kernels = Kernels::Standard(String::new()).list().map_err(Failure::Unsupported)?;
        let kernels = kernels.iter().map(ToString::to_string);
        let kernels = kernels.map(|name| Self { args: args("--kernel", &name), name });
        let found: Vec<_> = steps.chain(kernels).filter(|measured| measured.name.contains(filter)).collect();
        if found.is_empty() {
            return Err(Failure::Unsupported(format!("no workload and no standard kernel contains {filter}")));
        }
        Ok(found)
    }

    /// The milliseconds of each pass, by its name; a step is one.
    fn times(&self, options: &Options, precision: Accuracy) -> Result<Vec<(String, f64)>, Failure> {
        let program = env::current_exe().map_err(|error| failed(&self.name, &error.to_string()))?;
        let mut command = Command::new(program);
        command.args(&self.args).args(["--json", "--device", &options.device, "--precision", &precision.to_string()]);
        command.args(["--steps", &options.steps.to_string(), "--warmup", &options.warmup.to_string()]);
        let output = command.output().map_err(|error| failed(&self.name, &error.to_string()))?;
        times(&self.name, &output)
    }
}

/// The times in the output of a process.
fn times(name: &str, output: &Output) -> Result<Vec<(String, f64)>, Failure> {
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.trim().trim_start_matches("error: ").to_owned();
        let is_unsupported = output.status.code() == Some(2);
        return Err(if is_unsupported { Failure::Unsupported(said) } else { failed(name, &said) });
    }
    let said = String::from_utf8_lossy(&output.stdout);
    let time = |line: &str| -> Option<(String, f64)> {
        let report: Value = serde_json::from_str(line).ok()?;
        let ms = report.get("ms").or(report.get("ms_per_step_median"))?.as_f64()?;
        Some((report.get("pass").and_then(Value::as_str).unwrap_or("step").to_owned(), ms))
    };
    said.lines().map(|line| time(line).ok_or_else(|| failed(name, &format!("printed {line}")))).collect()
}

fn failed(name: &str, why: &str) -> Failure {
    Failure::Failed(Error::new(ErrorKind::Device, format!("{name}: {why}")))
}

/// The line of a pair.
fn report(name: &str, pair: &Pair) -> Report {
    vec![
        ("what", name.into()),
        ("pass", pair.pass.as_str().into()),
        ("full_ms", rounded(pair.full, 6).into()),
        ("fast_ms", rounded(pair.fast, 6).into()),
        ("ratio", rounded(pair.ratio(), 3).into()),
        ("slower", pair.is_slower().into()),
    ]
}

/// Measures all that contain `filter` in both precisions, one after the other, and what seems slower once more.
/// Prints a line for each.
///
/// Fails if something is slower in fast precision.
pub fn run(filter: &str, options: &Options) -> Result<(), Failure> {
    if !options.json {
        println!("| what | pass | full, ms | fast, ms | ratio |\n|---|---|---|---|---|");
    }
    let mut slower = Vec::new();
    for measured in Measured::all(filter)? {
        let both = |before: &[Pair]| -> Result<_, Failure> {
            let fast = measured.times(options, Accuracy::Fast)?;
            Ok(Pair::of(measured.times(options, Accuracy::Full)?, fast, before))
        };
        let mut found = both(&[])?;
        if found.iter().any(Pair::is_slower) {
            found = both(&found)?;
        }
        for pair in found {
            let name = &measured.name;
            if options.json {
                println!("{}", json(&report(name, &pair)));
            } else {
                let Pair { pass, full, fast } = &pair;
                println!("| {name} | {pass} | {full:.4} | {fast:.4} | {:.3} |", pair.ratio());
            }
            if pair.is_slower() {
                slower.push(format!("{name} {} ({:.2})", pair.pass, pair.ratio()));
            }
        }
    }
    if slower.is_empty() {
        return Ok(());
    }
    let message = format!("slower in fast than in full precision, by more than 5 %: {}", slower.join(", "));
    Err(Failure::Failed(Error::new(ErrorKind::Device, message)))
}
