//! ONNX's backend suite on the importer: each case is loaded, run, and compared with the suite's outputs.
//!
//! `cargo xtask onnx-suite` writes the cases to files and starts this program. `expected.txt` lists the cases that are
//! refused, each under the reason that the error must give. The program fails if a case gives wrong numbers, panics, is
//! refused without naming a node and its operator, or does not do what the list says.

mod case;
mod expected;

use std::collections::BTreeMap;
use std::fs;
use std::panic;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use meganeura::Device;
use rayon::prelude::*;

use self::case::{Case, Outcome};
use self::expected::{Expected, is_disputed};

#[derive(Parser, Debug)]
#[command(name = "onnx-suite", about = "Run ONNX's backend suite")]
struct Options {
    /// The folder that `suite.py` wrote
    folder: PathBuf,

    /// The device: `cpu`, `gpu`, or a part of an adapter's name
    #[arg(long, default_value = "cpu")]
    device: String,

    /// Run only cases with this in their names, and print what each does
    #[arg(long, value_name = "NAME")]
    only: Option<String>,

    /// Rewrite the list of refused cases
    #[arg(long)]
    bless: bool,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("onnx-suite: {message}");
            ExitCode::FAILURE
        }
    }
}

/// The list of refused cases.
fn list() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("expected.txt")
}

/// `true` if every case does what is expected.
fn run(options: &Options) -> Result<bool, String> {
    let start = Instant::now();
    let mut cases = Case::all(&options.folder)?;
    if let Some(only) = &options.only {
        cases.retain(|case| case.name.contains(&only[..]));
    }
    if cases.is_empty() {
        return Err(format!("no cases in {}", options.folder.display()));
    }
    let expected = Expected::read(&list())?;
    let is_cpu = options.device == "cpu";
    // Panics are counted, not printed.
    panic::set_hook(Box::new(|_| {}));
    let open = || Device::named(&options.device).map_err(|error| error.to_string());
    let outcome = |device: &mut Result<Device, String>, case: &Case| match device {
        // What the CPU refuses, any device refuses.
        Ok(_) if !is_cpu && expected.reason(&case.name).is_some() => Ok(None),
        Ok(device) => Ok(Some(case.run(device))),
        Err(error) => Err(error.clone()),
    };
    // A device of its own for each thread: software drivers compute on one thread for each.
    let outcomes = cases.par_iter().map_init(open, outcome).collect::<Result<Vec<_>, _>>()?;
    let _ = panic::take_hook();
    let found: Vec<_> = cases.iter().zip(outcomes).filter_map(|(case, found)| Some((case, found?))).collect();
    if options.only.is_some() {
        found.iter().for_each(|(case, outcome)| println!("{}: {outcome}", case.name));
    }
    if options.bless {
        if !is_cpu || options.only.is_some() {
            return Err("the list is written from all cases on the CPU".to_owned());
        }
        let refused = found.iter().filter_map(|(case, outcome)| Some((case.name.clone(), outcome.reason()?)));
        fs::write(list(), Expected::of(refused).to_string())
            .map_err(|error| format!("{}: {error}", list().display()))?;
        println!("{}: read the difference before you commit it", list().display());
    }
    let expected = if options.bless { Expected::read(&list())? } else { expected };
    print(&found);
    let faults: Vec<_> = found.iter().filter_map(|(case, outcome)| expected.fault(&case.name, outcome)).collect();
    faults.iter().for_each(|fault| println!("{fault}"));
    let gone = match &options.only {
        Some(_) => Vec::new(),
        None => expected.names().filter(|name| !cases.iter().any(|case| case.name == *name)).collect(),
    };
    gone.iter().for_each(|name| println!("{name}: listed, and there is no such case"));
    println!("{} cases, {} not as expected, {:.0?}", found.len(), faults.len() + gone.len(), start.elapsed());
    Ok(faults.is_empty() && gone.is_empty())
}

/// The number of cases of each kind by their outcome, and the most frequent reasons of refusals.
fn print(found: &[(&Case, Outcome)]) {
    let mut kinds: BTreeMap<&str, [usize; 7]> = BTreeMap::new();
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    for (case, outcome) in found {
        let counts = kinds.entry(case.kind()).or_default();
        counts[0] += 1;
        counts[match outcome {
            Outcome::Right => 1,
            Outcome::Refused(_) => 2,
            Outcome::Wrong(_) if is_disputed(&case.name) => 3,
            Outcome::Wrong(_) => 4,
            Outcome::Panicked(_) => 5,
            Outcome::Unclear(_) => 6,
        }] += 1;
        if let Some(reason) = outcome.reason() {
            *reasons.entry(reason).or_default() += 1;
        }
    }
    let heads = ["cases", "right", "refused", "disputed", "wrong", "panicked", "unclear"];
    println!("{:18}{}", "", heads.map(|head| format!("{head:>9}")).concat());
    for (kind, counts) in kinds {
        println!("{kind:18}{}", counts.map(|count| format!("{count:>9}")).concat());
    }
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    reasons.iter().take(20).for_each(|(reason, count)| println!("{count:>6} refused: {reason}"));
    println!();
}
