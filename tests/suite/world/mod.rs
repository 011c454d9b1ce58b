//! Ranks that train together through MPI: this program starts itself under `mpirun`, and each rank runs one of the
//! [`programs`].
//!
//! Without `mpirun` these tests show as ignored, and fail in CI.

mod programs;
mod rounded;

use std::path::Path;
use std::process::{Command, Output};
use std::{env, fs};

use libtest_mimic::{Failed, Trial};
use meganeura::io::load_tensors;
use meganeura::world::World;
use meganeura::{Device, Precision, Tensor};

use crate::Outcome;
use crate::adapter::gpu_trial;
use programs::{How, train};

/// The argument that makes this program a rank. The folder, the program's name and its options follow.
const RANK: &str = "be-a-rank";

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    for ranks in [2, 4] {
        for how in How::ALL {
            let double = How { precision: "double", ..how };
            trials.push(trial(format!("{ranks}_ranks_equal_one::{double}"), move |_| equal_one(ranks, double, 1e-12)));
        }
        let single = How { precision: "full", ..How::ALL[0] };
        trials.push(trial(format!("{ranks}_ranks_equal_one::{single}"), move |_| equal_one(ranks, single, 1e-5)));
        for how in [How::ALL[0], How::ALL[3], How::ALL[4], How::ALL[5], How::ALL[7]] {
            let name = format!("world::gpu::{ranks}_ranks_equal_one::{how}");
            let test = move |device: &Device| {
                // One word of the adapter's name: the last one before the driver's name.
                let name = device.to_string();
                let name = name.split(" (").next().and_then(|name| name.split(' ').next_back()).expect("a name");
                equal_one(ranks, How { precision: "full", device: name.to_owned().leak(), ..how }, 1e-5)
            };
            trials.push(gpu_trial(name, test).with_ignored_flag(!has_mpirun()));
        }
    }
    trials.push(trial("the_same_run_gives_the_same_bits", same_bits));
    trials.push(trial("ranks_agree_whether_a_run_is_resumed", |folder| succeed(folder, 2, &["open"])));
    for kind in ["all", "owned"] {
        let name = format!("a_run_resumes_with_another_number_of_ranks::{kind}");
        trials.push(trial(name, move |folder| resumed(folder, kind)));
        let name = format!("a_non_finite_value_on_one_rank_fails_the_step_on_all::{kind}");
        trials.push(trial(name, move |folder| succeed(folder, 2, &["not_finite", kind])));
    }
    trials.push(trial("gradients_of_the_mean_over_ranks", |folder| succeed(folder, 3, &["gradients"])));
    trials.push(trial("means_in_bf16", |folder| succeed(folder, 2, &["rounded", "cpu"])));
    trials.push(trial("owners_are_those_of_trained_parameters", |folder| succeed(folder, 2, &["owners"])));
    trials.push(trial("random_numbers_differ", |folder| succeed(folder, 2, &["random"])));
    trials.push(trial("models_are_shared", |folder| succeed(folder, 3, &["shared"])));
    trials.push(trial("metrics_over_ranks", |folder| succeed(folder, 3, &["metrics"])));
    trials.push(trial("ranks_that_disagree_get_an_error", |folder| succeed(folder, 2, &["disagree"])));
    trials.push(trial("a_rank_that_leaves_is_named", left));
    trials.push(trial("a_rank_that_does_not_answer_is_named", stopped));
    trials.push(trial("a_killed_rank_ends_all", killed));
}

fn has_mpirun() -> bool {
    let is_required = env::var_os("CI").is_some_and(|value| value == "true");
    is_required
        || env::var_os("PATH").is_some_and(|path| env::split_paths(&path).any(|dir| dir.join("mpirun").is_file()))
}

/// A test with its own folder.
fn trial(name: impl Into<String>, test: impl FnOnce(&Path) -> Outcome + Send + 'static) -> Trial {
    let run = move || test(tempfile::tempdir()?.path());
    Trial::test(format!("world::{}", name.into()), run).with_ignored_flag(!has_mpirun())
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

/// Runs this program under `mpirun`. More ranks than cores, and running as root in a container, are intended.
fn ranks(folder: &Path, ranks: usize, program: &[&str]) -> std::io::Result<Output> {
    // Ranks that create the same folder at the same time would fail.
    let sessions = tempfile::tempdir()?;
    let mut command = Command::new("mpirun");
    command.env("OMPI_MCA_orte_tmpdir_base", sessions.path());
    command.args(["-n", &ranks.to_string()]).arg(env::current_exe()?).arg(RANK).arg(folder).args(program);
    for name in ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "OMPI_MCA_rmaps_base_oversubscribe"] {
        command.env(name, "1");
    }
    command.env("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe");
    command
        .env("OMPI_MCA_hwloc_base_binding_policy", "none")
        .env("RAYON_NUM_THREADS", "1")
        .env("MEGANEURA_CACHE", "off");
    command.output()
}

/// Runs a program that checks its own results.
fn succeed(folder: &Path, number: usize, program: &[&str]) -> Outcome {
    let output = ranks(folder, number, program)?;
    if output.status.success() { Ok(()) } else { Err(Failed::from(said(&output))) }
}

fn said(output: &Output) -> String {
    format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr))
}

/// Compares the model that the ranks trained with the one that a single rank trains here.
fn equal_one(number: usize, how: How, tolerance: f64) -> Outcome {
    let folder = tempfile::tempdir()?;
    succeed(folder.path(), number, &["train", &how.to_string()])?;
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
        succeed(&folder, 3, &["train", &How { batch: 12, ..how }.to_string()])?;
        Ok(fs::read(folder.join(programs::WEIGHTS))?)
    };
    assert!(trained("first")? == trained("second")?);
    Ok(())
}

/// A run is started by two ranks, continued by four, and finished by one.
fn resumed(folder: &Path, kind: &str) -> Outcome {
    for (number, epochs) in [(2, "1"), (4, "2"), (1, "3")] {
        succeed(folder, number, &["run", epochs, kind])?;
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

fn left(folder: &Path) -> Outcome {
    let output = ranks(folder, 3, &["leave"])?;
    assert!(!output.status.success(), "{}", said(&output));
    for rank in [0, 2] {
        let error = fs::read_to_string(folder.join(format!("rank-{rank}")))?;
        assert!(
            error.contains("rank 1 on ") && error.contains(&format!(" left while rank {rank} waited for it")),
            "{error}"
        );
    }
    assert!(said(&output).contains("why rank 1 left"), "{}", said(&output));
    Ok(())
}

fn stopped(folder: &Path) -> Outcome {
    let output = ranks(folder, 3, &["stop"])?;
    assert!(!output.status.success(), "{}", said(&output));
    for rank in [0, 2] {
        let error = fs::read_to_string(folder.join(format!("rank-{rank}")))?;
        assert!(error.contains("rank 1 on ") && error.contains(" has not answered for 3 s while"), "{error}");
    }
    Ok(())
}

fn killed(folder: &Path) -> Outcome {
    for rank in ["0", "1", "2"] {
        let output = ranks(folder, 3, &["kill", rank])?;
        assert!(!output.status.success(), "{}", said(&output));
        assert!(!folder.join("finished").exists());
    }
    Ok(())
}
