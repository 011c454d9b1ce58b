//! Fuzzers of every reader of foreign input: checkpoints, optimizer states, data files, images, patterns, schedules.
//!
//! Each [`Target`] starts from well-formed inputs and its corpus. An input is mutated a few times, sometimes in ways
//! that keep its framing intact (lengths, checksums, compression), and read. A fault is a panic, an abort, more than
//! [`limits::TIME`] or [`limits::MEMORY`], an error of an undocumented kind, or a broken promise, such as leaving the
//! model unchanged. The same seed gives the same inputs.
//!
//! The input that caused a fault is in `target/fuzz/`; `--replay FILE --target NAME` reads it again. Once the fault is
//! fixed, the input belongs in `corpus/`: the tests of this crate read the whole corpus.

mod limits;
mod mutate;
mod targets;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use fastrand::Rng;

use targets::Target;

#[global_allocator]
static ALLOCATOR: limits::Counting = limits::Counting;

/// The maximum length of an input: long enough for quadratic work to show.
const LONGEST: usize = 1 << 18;

/// The number of inputs that a target keeps for further mutation.
const KEPT: usize = 256;

#[derive(Parser, Debug)]
#[command(name = "fuzz", about = "Fuzz every reader and parser")]
struct Options {
    /// The total time for all targets
    #[arg(long, default_value_t = 60)]
    seconds: u64,

    /// The seed of the inputs
    #[arg(long, default_value_t = 1)]
    seed: u64,

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
        return chosen.iter().try_for_each(|target| read(&***target, &input));
    }
    fs::create_dir_all(&options.faults).map_err(|error| format!("{}: {error}", options.faults.display()))?;
    let share = Duration::from_secs(options.seconds) / u32::try_from(chosen.len()).expect("few targets");
    chosen.iter().try_for_each(|target| {
        let count = fuzz(&***target, options.seed, share, &options.faults)?;
        println!("{:<20} {count:>9} inputs, no fault", target.name());
        Ok(())
    })
}

/// Reads mutated inputs until the time is over. Returns their number.
fn fuzz(target: &dyn Target, seed: u64, time: Duration, faults: &Path) -> Result<u64, String> {
    let (start, mut rng, mut count) = (Instant::now(), Rng::with_seed(seed), 0);
    let path = faults.join(target.name());
    let mut inputs = target.seeds();
    for input in &inputs {
        // Otherwise, only the reader's first check would be fuzzed.
        target.accepts(input).map_err(|why| format!("{} refuses its own seed: {why}", target.name()))?;
    }
    inputs.extend(corpus(target.name()));
    let found = |what: String| format!("{}: {what}\n  the input is {}", target.name(), path.display());
    for input in &inputs {
        limits::remember(&path, input);
        read(target, input).map_err(found)?;
    }
    while start.elapsed() < time {
        let mut input = inputs[rng.usize(..inputs.len())].clone();
        for _ in 0..1 << rng.u32(..5) {
            match rng.u8(..4) {
                0 => target.reshape(&mut input, &mut rng),
                1 if !target.words().is_empty() => {
                    mutate::insert(&mut input, target.words()[rng.usize(..target.words().len())].as_bytes(), &mut rng);
                }
                2 => mutate::splice(&mut input, &inputs[rng.usize(..inputs.len())], &mut rng),
                _ => mutate::bytes(&mut input, &mut rng),
            }
            input.truncate(LONGEST);
        }
        // Saved before it is read, so that it survives an abort.
        limits::remember(&path, &input);
        read(target, &input).map_err(found)?;
        count += 1;
        // Some mutated inputs are kept for further mutation, whether or not they were accepted.
        if rng.u32(..64) == 0 {
            if inputs.len() < KEPT { inputs.push(input) } else { inputs[rng.usize(..KEPT)] = input }
        }
    }
    drop(fs::remove_file(&path));
    Ok(count)
}

/// Reads an input within the limits. The error is the fault that it found.
fn read(target: &dyn Target, input: &[u8]) -> Result<(), String> {
    let (result, used) = limits::within(|| catch_unwind(AssertUnwindSafe(|| target.read(input))));
    result.unwrap_or_else(|_| Err("the reader panicked; its message stands above".to_owned()))?;
    used.check()
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

    #[test]
    fn every_target_reads_its_seeds_its_corpus_and_a_few_changes_of_them() {
        let folder = tempfile::tempdir().unwrap();
        for target in targets::all() {
            assert!(!target.seeds().is_empty(), "{}", target.name());
            fuzz(&*target, 0, Duration::from_millis(50), folder.path()).unwrap();
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

        fn accepts(&self, _: &[u8]) -> Result<(), String> {
            Ok(())
        }

        fn read(&self, _: &[u8]) -> Result<(), String> {
            match self.0 {
                0 => panic!("as a reader might"),
                1 => return Err("a promise was broken".to_owned()),
                2 => drop(std::hint::black_box(vec![1_u8; limits::MEMORY + 1])),
                _ => std::thread::sleep(limits::TIME + Duration::from_millis(10)),
            }
            Ok(())
        }
    }

    #[test]
    fn faults_are_found() {
        for (fault, words) in [(0, "panicked"), (1, "promise"), (2, "bytes of memory"), (3, "seconds")] {
            let error = read(&Faulty(fault), &[]).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
