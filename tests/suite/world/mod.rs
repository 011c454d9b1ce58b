//! Ranks that train together: this program starts itself, and each rank runs one of the [`programs`].
//!
//! The tests through MPI need the feature `mpi` and `mpirun`. Without it they show as ignored, and fail in CI. Those
//! through NCCL show as ignored unless `MEGANEURA_NCCL` names its library; their ranks share an NVIDIA GPU.

mod programs;
mod rounded;
mod starter;

use std::path::Path;
use std::{env, fs};

use libtest_mimic::{Failed, Trial};
use meganeura::io::load_tensors;
use meganeura::world::World;
use meganeura::{Device, Precision, Tensor};

use crate::Outcome;
use crate::adapter::gpu_trial;
use programs::{How, train};
use starter::Starter;

/// The argument that makes this program a rank. The folder, the program's name and its options follow.
const RANK: &str = "be-a-rank";

const MPI: Starter = Starter::Mpirun;
const NCCL: Starter = Starter::Hosts;

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    let equal = |ranks: usize, how: How, tolerance: f64| {
        trial(MPI, format!("{ranks}_ranks_equal_one::{how}"), move |_| equal_one(MPI, ranks, how, tolerance))
    };
    for ranks in [2, 4] {
        trials.extend(How::ALL.map(|how| equal(ranks, how, 1e-12)));
        trials.push(equal(ranks, How { precision: "full", ..How::ALL[0] }, 1e-5));
        for how in [How::ALL[0], How::ALL[3], How::ALL[4], How::ALL[5], How::ALL[7]] {
            let name = format!("world::gpu::{ranks}_ranks_equal_one::{how}");
            let test = move |device: &Device| {
                // One word of the adapter's name: the last one before the driver's name.
                let name = device.to_string();
                let name = name.split(" (").next().and_then(|name| name.split(' ').next_back()).expect("a name");
                equal_one(MPI, ranks, How { precision: "full", device: name.to_owned().leak(), ..how }, 1e-5)
            };
            trials.push(gpu_trial(name, test).with_ignored_flag(!MPI.is_here()));
        }
    }
    trials.extend([How::ALL[2], How::ALL[5]].map(|how| equal(8, how, 1e-12)));
    for ranks in [2, 3, 8] {
        for how in [How::ALL[0], How::ALL[5], How::ALL[7]] {
            // Three ranks have four examples each.
            let batch = if ranks == 3 { 12 } else { 16 };
            let how = How { precision: "full", device: "gpu", batch, ..how };
            let name = format!("{ranks}_ranks_equal_one::{how}");
            trials.push(trial(NCCL, name, move |_| equal_one(NCCL, ranks, how, 1e-5)));
        }
        let rounded = move |folder: &Path| succeed(NCCL, folder, ranks, &["rounded", "gpu"]);
        trials.push(trial(NCCL, format!("means_of_{ranks}_ranks_in_bf16"), rounded));
    }
    for (starter, ranks) in [(MPI, 3), (NCCL, 8)] {
        let test = |test: fn(Starter, &Path, usize) -> Outcome| move |folder: &Path| test(starter, folder, ranks);
        trials.push(trial(starter, "a_rank_that_leaves_is_named", test(left)));
        trials.push(trial(starter, "a_rank_that_does_not_answer_is_named", test(stopped)));
        trials.push(trial(starter, "a_killed_rank_ends_all", test(killed)));
    }
    trials.push(trial(MPI, "the_same_run_gives_the_same_bits", same_bits));
    for kind in ["all", "owned"] {
        let name = format!("a_run_resumes_with_another_number_of_ranks::{kind}");
        trials.push(trial(MPI, name, move |folder| resumed(folder, kind)));
        let name = format!("a_non_finite_value_on_one_rank_fails_the_step_on_all::{kind}");
        trials.push(trial(MPI, name, move |folder| succeed(MPI, folder, 2, &["not_finite", kind])));
    }
    let checked: [(_, _, &[_]); 8] = [
        ("ranks_agree_whether_a_run_is_resumed", 2, &["open"]),
        ("gradients_of_the_mean_over_ranks", 3, &["gradients"]),
        ("means_in_bf16", 2, &["rounded", "cpu"]),
        ("owners_are_those_of_trained_parameters", 2, &["owners"]),
        ("random_numbers_differ", 2, &["random"]),
        ("models_are_shared", 3, &["shared"]),
        ("metrics_over_ranks", 3, &["metrics"]),
        ("ranks_that_disagree_get_an_error", 2, &["disagree"]),
    ];
    for (name, ranks, program) in checked {
        for starter in [MPI, NCCL] {
            trials.push(trial(starter, name, move |folder| succeed(starter, folder, ranks, program)));
        }
    }
}

/// A test with its own folder.
fn trial(starter: Starter, name: impl Into<String>, test: impl FnOnce(&Path) -> Outcome + Send + 'static) -> Trial {
    let (name, run) = (name.into(), move || test(tempfile::tempdir()?.path()));
    let trial = match starter {
        Starter::Mpirun => Trial::test(format!("world::{name}"), run),
        Starter::Hosts => gpu_trial(format!("world::nccl::{name}"), move |_| run()),
    };
    trial.with_ignored_flag(!starter.is_here())
}

/// Runs a program as a rank, if the arguments say so.
pub(crate) fn run_if_asked() -> bool {
    let arguments: Vec<_> = env::args().collect();
    let [_, rank, folder, program, options @ ..] = &arguments[..] else { return false };
    if rank != RANK {
        return false;
    }
    if let Err(error) = programs::run(Path::new(folder), program, options) {
        eprintln!("{error}");
        std::process::exit(1);
    }
    true
}

/// Runs a program that checks its own results.
fn succeed(starter: Starter, folder: &Path, ranks: usize, program: &[&str]) -> Outcome {
    let ended = starter.run(folder, ranks, program)?;
    if ended.is_success { Ok(()) } else { Err(Failed::from(ended.said)) }
}

/// Compares the model that the ranks trained with the one that a single rank trains here.
fn equal_one(starter: Starter, number: usize, how: How, tolerance: f64) -> Outcome {
    let folder = tempfile::tempdir()?;
    succeed(starter, folder.path(), number, &["train", &how.to_string()])?;
    let trained = weights(&folder.path().join(programs::WEIGHTS))?;
    let alone = folder.path().join("alone");
    fs::create_dir(&alone)?;
    train(&World::alone(), how, &alone)?;
    let expected = weights(&alone.join(programs::WEIGHTS))?;
    assert!(trained.len() == expected.len() && trained.len() > 100);
    let largest = trained.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(largest <= tolerance, "{number} ranks are off by {largest:e}, more than {tolerance:e}");
    Ok(())
}

/// Every number of a file, sorted by name.
fn weights(path: &Path) -> Result<Vec<f64>, Failed> {
    let tensors = load_tensors(path, &Device::cpu_with(Precision::Double))?;
    let values = tensors.values().map(Tensor::to_f64_vec).collect::<meganeura::Result<Vec<_>>>()?;
    Ok(values.concat())
}

fn same_bits(folder: &Path) -> Outcome {
    let how = How { precision: "full", ..How::ALL[0] };
    let trained = |name: &str| -> Result<Vec<u8>, Failed> {
        let folder = folder.join(name);
        fs::create_dir(&folder)?;
        succeed(MPI, &folder, 3, &["train", &How { batch: 12, ..how }.to_string()])?;
        Ok(fs::read(folder.join(programs::WEIGHTS))?)
    };
    assert!(trained("first")? == trained("second")?);
    Ok(())
}

/// A run is started by two ranks, continued by four, and finished by one.
fn resumed(folder: &Path, kind: &str) -> Outcome {
    for (number, epochs) in [(2, "1"), (4, "2"), (1, "3")] {
        succeed(MPI, folder, number, &["run", epochs, kind])?;
    }
    let trained = weights(&folder.join(programs::WEIGHTS))?;
    let alone = folder.join("alone");
    fs::create_dir(&alone)?;
    programs::in_run(&World::alone(), &alone, 3, kind)?;
    let expected = weights(&alone.join(programs::WEIGHTS))?;
    let largest = trained.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(largest <= 1e-12, "off by {largest:e}");
    let logged = |folder: &Path| -> Result<Vec<_>, Failed> {
        Ok(meganeura::run::read_metrics(folder)?.into_iter().map(|line| (line.step, line.values["loss"])).collect())
    };
    let (lines, expected): (Vec<(u64, f64)>, _) = (logged(folder)?, logged(&alone)?);
    assert_eq!(lines.len(), expected.len());
    for (line, expected) in lines.iter().zip(&expected) {
        assert!(line.0 == expected.0 && (line.1 - expected.1).abs() <= 1e-12, "{line:?} {expected:?}");
    }
    Ok(())
}

fn left(starter: Starter, folder: &Path, number: usize) -> Outcome {
    let ended = starter.run(folder, number, &["leave"])?;
    assert!(!ended.is_success && ended.stayed == 0, "{}", ended.said);
    for rank in (0..number).filter(|&rank| rank != 1) {
        let error = fs::read_to_string(folder.join(format!("rank-{rank}")))?;
        assert!(
            error.contains("rank 1 on ") && error.contains(&format!(" left while rank {rank} waited for it")),
            "{error}"
        );
    }
    assert!(ended.said.contains("why rank 1 left"), "{}", ended.said);
    Ok(())
}

fn stopped(starter: Starter, folder: &Path, number: usize) -> Outcome {
    let ended = starter.run(folder, number, &["stop"])?;
    assert!(!ended.is_success, "{}", ended.said);
    for rank in (0..number).filter(|&rank| rank != 1) {
        let error = fs::read_to_string(folder.join(format!("rank-{rank}")))?;
        assert!(error.contains("rank 1 on ") && error.contains(" has not answered for 3 s while"), "{error}");
    }
    // None but the one that hangs.
    assert!(ended.stayed <= 1, "{}", ended.said);
    Ok(())
}

fn killed(starter: Starter, folder: &Path, number: usize) -> Outcome {
    for rank in ["0", "1", "2"] {
        let ended = starter.run(folder, number, &["kill", rank])?;
        assert!(!ended.is_success && ended.stayed == 0, "{}", ended.said);
        assert!(!folder.join("finished").exists());
    }
    Ok(())
}
