//! Fuzzers of every reader of foreign input: checkpoints, optimizer states, data files, images, patterns, schedules.
//!
//! Each [`Target`] starts from well-formed inputs and its corpus. An input is mutated a few times, sometimes in ways
//! that keep its framing intact (lengths, checksums, compression), and read. A fault is a panic, an abort, more time
//! than [`limits::TIME`], more memory or work than the target's [`limits::Limits`], an error of an undocumented kind,
//! or a broken promise, such as leaving the model unchanged. The same seed gives the same inputs.
//!
//! A target that refuses all of its mutated inputs fuzzes only the reader's first check, and fails.
//!
//! The input that caused a fault is in `target/fuzz/`; `--replay FILE --target NAME` reads it again. Once the fault is
//! fixed, the input belongs in `corpus/`: the tests of this crate read the whole corpus.

mod limits;
mod mutate;
mod protobuf;
mod targets;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use fastrand::Rng;

use targets::{Target, last_refusal};

#[global_allocator]
static ALLOCATOR: limits::Counting = limits::Counting;

/// The maximum length of an input: long enough for quadratic work to show.
const LONGEST: usize = 1 << 18;

/// The number of mutated inputs that a target keeps for further mutation.
const KEPT: usize = 256;

/// One of so many accepted inputs is kept, and one of so many refused ones. Most mutations of a refused input fail at
/// the same check, so that a target which keeps them as often soon reads nothing else.
const KEEPS: [u32; 2] = [4, 1024];

/// The number of inputs that are read even if there is no time left.
const FEWEST: u64 = 2048;

#[derive(Parser, Debug)]
#[command(name = "fuzz", about = "Fuzz every reader and parser")]
struct Options {
    /// The total time for all targets
    #[arg(long, default_value_t = 60)]
    seconds: u64,

    /// The seed of the inputs
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// The number of inputs of each target, instead of the time
    #[arg(long, value_name = "N")]
    inputs: Option<u64>,

    /// Run only this target
    #[arg(long, value_name = "NAME")]
    target: Option<String>,

    /// Read one input instead
    #[arg(long, value_name = "FILE", requires = "target")]
    replay: Option<PathBuf>,

    /// The folder for the input of a fault
    #[arg(long, value_name = "DIR", default_value = "target/fuzz")]
    faults: PathBuf,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("fuzz: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), String> {
    let all = targets::all();
    let chosen: Vec<_> =
        all.iter().filter(|target| options.target.as_ref().is_none_or(|name| name == target.name())).collect();
    if chosen.is_empty() {
        let names: Vec<_> = all.iter().map(|target| target.name()).collect();
        return Err(format!("no such target; there are {}", names.join(", ")));
    }
    if let Some(path) = &options.replay {
        let input = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
        return chosen.iter().try_for_each(|target| {
            let is_accepted = read(&***target, &input)?;
            println!("{}", if is_accepted { "accepted".to_owned() } else { format!("refused: {}", last_refusal()) });
            Ok(())
        });
    }
    fs::create_dir_all(&options.faults).map_err(|error| format!("{}: {error}", options.faults.display()))?;
    let until = match options.inputs {
        Some(inputs) => Until::Inputs(inputs),
        None => Until::Time(Duration::from_secs(options.seconds) / u32::try_from(chosen.len()).expect("few targets")),
    };
    chosen.iter().try_for_each(|target| {
        let Count { inputs, accepted } = fuzz(&***target, options.seed, until, &options.faults)?;
        println!("{:<20} {inputs:>9} inputs, {accepted:>9} accepted, no fault", target.name());
        Ok(())
    })
}

/// The number of mutated inputs, and of those that the reader accepted.
#[derive(Default)]
struct Count {
    inputs: u64,
    accepted: u64,
}

/// When a target has read enough.
#[derive(Clone, Copy, Debug)]
enum Until {
    /// After this time.
    Time(Duration),
    /// After this number of inputs.
    Inputs(u64),
}

/// Reads mutated inputs until there are enough.
fn fuzz(target: &dyn Target, seed: u64, until: Until, faults: &Path) -> Result<Count, String> {
    let (start, mut rng, mut count) = (Instant::now(), Rng::with_seed(seed), Count::default());
    let path = faults.join(target.name());
    let unwritable = |error| format!("{}: {error}", path.display());
    let mut saved = limits::Saved::create(&path).map_err(unwritable)?;
    let (mut inputs, mut kept) = (target.seeds(), Vec::new());
    let found = |what: String| format!("{}: {what}\n  the input is {}", target.name(), path.display());
    for input in &inputs {
        // Otherwise, only the reader's first check would be fuzzed.
        saved.save(input).map_err(unwritable)?;
        if !read(target, input).map_err(found)? {
            return Err(format!("{} refuses its own seed: {}", target.name(), last_refusal()));
        }
    }
    for input in corpus(target.name()) {
        saved.save(&input).map_err(unwritable)?;
        read(target, &input).map_err(found)?;
        inputs.push(input);
    }
    while match until {
        Until::Time(time) => count.inputs < FEWEST || start.elapsed() < time,
        Until::Inputs(inputs) => count.inputs < inputs,
    } {
        // Every other one is a well-formed input: those are never replaced.
        let from = if kept.is_empty() || rng.bool() { &inputs } else { &kept };
        let mut input = from[rng.usize(..from.len())].clone();
        // Half of them are changed once, so that some remain well-formed.
        for _ in 0..1 << rng.u32(..10).saturating_sub(5) {
            match rng.u8(..6) {
                0..=2 => target.reshape(&mut input, &mut rng),
                3 if !target.words().is_empty() => {
                    mutate::insert(&mut input, target.words()[rng.usize(..target.words().len())].as_bytes(), &mut rng);
                }
                4 => mutate::splice(&mut input, &inputs[rng.usize(..inputs.len())], &mut rng),
                _ => mutate::bytes(&mut input, &mut rng),
            }
            input.truncate(LONGEST);
        }
        // Saved before it is read, so that it survives an abort.
        saved.save(&input).map_err(unwritable)?;
        let is_accepted = read(target, &input).map_err(found)?;
        count.accepted += u64::from(is_accepted);
        count.inputs += 1;
        if rng.u32(..KEEPS[usize::from(!is_accepted)]) == 0 {
            if kept.len() < KEPT { kept.push(input) } else { kept[rng.usize(..KEPT)] = input }
        }
    }
    drop(saved);
    drop(fs::remove_file(&path));
    if count.accepted == 0 {
        let Count { inputs, .. } = count;
        return Err(format!("{} accepts none of {inputs} mutated inputs, so it fuzzes very little", target.name()));
    }
    Ok(count)
}

/// Reads an input within the limits. `true` if it was accepted; the error is the fault that it found.
fn read(target: &dyn Target, input: &[u8]) -> Result<bool, String> {
    let (result, used) = limits::within(|| catch_unwind(AssertUnwindSafe(|| target.read(input))));
    let is_accepted = result.unwrap_or_else(|_| Err("the reader panicked; its message stands above".to_owned()))?;
    used.check(target.limits(input.len()))?;
    Ok(is_accepted)
}

/// The inputs in `corpus/`, sorted by name.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let mut paths: Vec<_> = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).expect("files of the corpus can be read")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;

    #[test]
    fn every_target_reads_its_seeds_its_corpus_and_a_few_changes_of_them() {
        let folder = tempfile::tempdir().unwrap();
        for target in targets::all() {
            assert!(!target.seeds().is_empty(), "{}", target.name());
            fuzz(&*target, 0, Until::Time(Duration::from_millis(50)), folder.path()).unwrap();
        }
    }

    #[test]
    fn every_folder_of_the_corpus_has_a_target() {
        let names: Vec<_> = targets::all().iter().map(|target| target.name()).collect();
        for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")).unwrap() {
            let name = entry.unwrap().file_name();
            assert!(names.iter().any(|known| **known == *name), "{name:?}");
        }
    }

    /// A target with every kind of fault.
    struct Faulty(u8);

    impl Target for Faulty {
        fn name(&self) -> &'static str {
            "faulty"
        }

        fn seeds(&self) -> Vec<Vec<u8>> {
            vec![vec![0]]
        }

        fn limits(&self, length: usize) -> Limits {
            Limits::linear(1 << 16, length, 16, 64)
        }

        fn read(&self, input: &[u8]) -> Result<bool, String> {
            match self.0 {
                0 => panic!("as a reader might"),
                1 => return Err("a promise was broken".to_owned()),
                2 => drop(std::hint::black_box(vec![1_u8; (1 << 16) + 16 * input.len() + 1])),
                // A copy of the rest at every byte: quadratic work in linear memory.
                3 => (0..input.len()).for_each(|at| drop(std::hint::black_box(input[at..].to_vec()))),
                _ => std::thread::sleep(limits::TIME + Duration::from_millis(10)),
            }
            Ok(true)
        }
    }

    #[test]
    fn faults_are_found() {
        for (fault, words) in [(0, "panicked"), (1, "promise"), (2, "of memory"), (3, "in sum"), (4, "seconds")] {
            let error = read(&Faulty(fault), &[0; 1000]).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        // Work that is in proportion is no fault.
        assert!(read(&Faulty(3), &[0; 100]).unwrap());
    }

    /// A target that accepts its seed, and nothing after it.
    struct Narrow(std::cell::Cell<bool>);

    impl Target for Narrow {
        fn name(&self) -> &'static str {
            "narrow"
        }

        fn seeds(&self) -> Vec<Vec<u8>> {
            vec![vec![0]]
        }

        fn read(&self, _: &[u8]) -> Result<bool, String> {
            Ok(!self.0.replace(true))
        }
    }

    #[test]
    fn targets_that_accept_only_their_seeds_fail() {
        let folder = tempfile::tempdir().unwrap();
        let error = fuzz(&Narrow(false.into()), 0, Until::Inputs(512), folder.path()).err().unwrap();
        assert!(error.contains("accepts none of 512"), "{error}");
        let error = fuzz(&Narrow(true.into()), 0, Until::Inputs(512), folder.path()).err().unwrap();
        assert!(error.contains("refuses its own seed"), "{error}");
    }
}
