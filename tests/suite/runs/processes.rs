//! Runs whose process is killed, asked to end, or has a full disk. Signals and limits need Unix.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use meganeura::run::{Overview, Run, Status, read_metrics};
use meganeura::{Device, Seed};
use rand_distr::{Distribution, Uniform};

use super::training_program::{BATCHES, TrainingProgram};
use crate::Outcome;

/// The number of kills, the length of the killed training, and the length of the training that is asked to end.
const KILLS: usize = 20;
const EPOCHS: u64 = 40;
const FEWER: u64 = 12;

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    trials.push(Trial::test("runs::survives_being_killed", survives_being_killed));
    trials.push(Trial::test("runs::ctrl_c_saves_and_says_how_to_resume", interrupted));
    trials.push(Trial::test("runs::a_second_ctrl_c_ends_at_once", interrupted_twice));
    trials.push(Trial::test("runs::an_ignored_signal_does_not_end_it", left_alone));
    trials.push(Trial::test("runs::ctrl_c_saves_under_nohup_too", interrupted_under_nohup));
    trials.push(Trial::test("runs::a_lock_dies_with_its_process", locked));
    trials.push(Trial::test("runs::a_full_disk_leaves_the_last_checkpoint", file_limit));
    if cfg!(target_os = "linux") {
        trials.push(Trial::test("runs::metrics_behind_a_link_are_an_error", linked_metrics));
        let can_mount =
            Command::new("unshare").args(["-rm", "true"]).output().is_ok_and(|output| output.status.success());
        let trial = Trial::test("runs::a_full_file_system_leaves_the_last_checkpoint", full_file_system);
        trials.push(trial.with_ignored_flag(!can_mount));
    }
}

/// `true` if a save is in progress in the folder, and the last saved step.
fn look(folder: &Path) -> (bool, u64) {
    let entries = fs::read_dir(folder.join("checkpoints")).into_iter().flatten().flatten();
    let names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    let step = |name: &String| name.strip_prefix("step-")?.split('.').next()?.parse().ok();
    let whole = names.iter().filter(|name| !name.ends_with(".partial"));
    (names.iter().any(|name| name.ends_with(".partial")), whole.filter_map(step).max().unwrap_or(0))
}

/// The result of a training run: the model, its average, and the log without times.
fn outcome(program: &TrainingProgram) -> Result<(Vec<Vec<u8>>, String), Failed> {
    let files = program.results().iter().map(fs::read).collect::<Result<_, _>>()?;
    let lines = read_metrics(&program.folder)?;
    Ok((files, lines.iter().map(|line| format!("{} {} {:?}\n", line.step, line.epoch, line.values)).collect()))
}

fn undisturbed(folder: &Path, epochs: u64) -> Result<(Vec<Vec<u8>>, String), Failed> {
    let program = TrainingProgram::new(&folder.join("undisturbed"), epochs);
    program.train(&Device::cpu()).map_err(|error| error.to_string())?;
    outcome(&program)
}

/// Waits for up to a minute.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) -> Outcome {
    let start = Instant::now();
    while !is_so() {
        if start.elapsed() > Duration::from_secs(60) {
            return Err(format!("waited a minute for {what}").into());
        }
        sleep(Duration::from_micros(100));
    }
    Ok(())
}

/// Kills the child when dropped.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn survives_being_killed() -> Outcome {
    let directory = tempfile::tempdir()?;
    let expected = undisturbed(directory.path(), EPOCHS)?;
    let program = TrainingProgram::new(&directory.path().join("killed"), EPOCHS);
    let mut rng = Seed::new(20).rng();
    // The saved step at which to kill, so that the test is the same on fast and slow machines.
    let steps = Uniform::new(0, EPOCHS * BATCHES - 30)?;
    let mut moments: Vec<u64> = (0..KILLS).map(|_| steps.sample(&mut rng)).collect();
    moments.sort_unstable();
    let later = Uniform::new(0, 2_000)?;
    let mut in_saves = 0;
    for (kill, moment) in moments.into_iter().enumerate() {
        let mut child = Guard(program.command().stdout(Stdio::null()).spawn()?);
        // Every other kill happens while a save is in progress.
        let in_a_save = kill % 2 == 0;
        wait_until("the moment to kill", || {
            let (is_saving, step) = look(&program.folder);
            step >= moment && (is_saving || !in_a_save)
        })?;
        let most = if in_a_save { 400 } else { 2_000 };
        sleep(Duration::from_micros(later.sample(&mut rng) * most / 2_000));
        child.0.kill()?;
        let status = child.0.wait()?;
        assert_eq!(status.signal(), Some(9), "the process ended by itself: {status}");
        in_saves += usize::from(look(&program.folder).0);
        assert_eq!(Overview::of(&program.folder)?.status, Status::Died);
    }
    println!("killed {KILLS} times, {in_saves} of them inside of a save or a deletion");
    assert!(in_saves > 0, "no kill struck a save");
    let last = program.command().output()?;
    assert!(last.status.success(), "{last:?}");
    let found = outcome(&program)?;
    assert_eq!(found.1, expected.1, "the metrics");
    assert_eq!(found.0, expected.0, "the weights, bit for bit");
    assert!(!look(&program.folder).0, "nothing is left over");
    // The best checkpoint and the last three.
    assert!(fs::read_dir(program.folder.join("checkpoints"))?.count() <= 4);
    let events = fs::read_to_string(program.folder.join("events.jsonl"))?;
    assert_eq!(events.matches("\"resumed\"").count() + events.matches("\"began\"").count(), KILLS + 1);
    Ok(())
}

/// Sends a signal several times in a row.
fn signal(child: &Child, name: &str, times: usize) -> Outcome {
    let pid = child.id().to_string();
    let status = Command::new("kill").arg(format!("-{name}")).args(vec![pid; times]).status()?;
    if status.success() { Ok(()) } else { Err(format!("kill: {status}").into()) }
}

/// The program, started as with `nohup` in the background of a script.
fn under_nohup(program: &TrainingProgram) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP INT; exec \"$@\"", "sh"]).arg(std::env::current_exe().expect("a path"));
    command.args(program.arguments()).env("RAYON_NUM_THREADS", "1");
    command
}

/// A child process and its remaining output.
type Waiting = (Guard, BufReader<ChildStdout>);

/// The program, paused in a step until its input is closed, by a drop or by `wait`.
fn waiting(mut command: Command) -> Result<Waiting, Failed> {
    let mut child = Guard(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?);
    let (mut line, mut said) = (String::new(), BufReader::new(child.0.stdout.take().expect("piped")));
    said.read_line(&mut line)?;
    assert_eq!(line, "waits\n");
    Ok((child, said))
}

/// Lets a paused program continue to its end. Returns its status and output.
fn ended((mut child, said): Waiting) -> Result<(ExitStatus, String), Failed> {
    drop(child.0.stdin.take());
    let said = std::io::read_to_string(said)?;
    Ok((child.0.wait()?, said))
}

/// A signal that `nohup` ignores stays ignored, and the training ends normally.
fn left_alone() -> Outcome {
    let directory = tempfile::tempdir()?;
    let expected = undisturbed(directory.path(), FEWER)?;
    let program =
        TrainingProgram { catch: true, wait_at: 20, ..TrainingProgram::new(&directory.path().join("nohup"), FEWER) };
    let child = waiting(under_nohup(&program))?;
    signal(&child.0.0, "HUP", 1)?;
    let (status, _) = ended(child)?;
    assert!(status.success(), "{status}");
    assert_eq!(Overview::of(&program.folder)?.status, Status::Finished);
    assert_eq!(outcome(&program)?, expected);
    Ok(())
}

fn interrupted() -> Outcome {
    let directory = tempfile::tempdir()?;
    let expected = undisturbed(directory.path(), FEWER)?;
    for name in ["INT", "TERM", "HUP"] {
        let program =
            TrainingProgram { catch: true, wait_at: 20, ..TrainingProgram::new(&directory.path().join(name), FEWER) };
        saves_and_ends(&program, program.command_by_default(), name, &expected)?;
    }
    Ok(())
}

/// Without a terminal, the program can still be asked to end.
fn interrupted_under_nohup() -> Outcome {
    let directory = tempfile::tempdir()?;
    let expected = undisturbed(directory.path(), FEWER)?;
    for name in ["INT", "TERM"] {
        let program =
            TrainingProgram { catch: true, wait_at: 20, ..TrainingProgram::new(&directory.path().join(name), FEWER) };
        saves_and_ends(&program, under_nohup(&program), name, &expected)?;
    }
    Ok(())
}

/// At this signal, the program saves, says so and exits. Resumed, it gives the same result.
fn saves_and_ends(
    program: &TrainingProgram,
    command: Command,
    name: &str,
    expected: &(Vec<Vec<u8>>, String),
) -> Outcome {
    let child = waiting(command)?;
    // Some programs send a signal twice.
    signal(&child.0.0, name, 2)?;
    let (status, said) = ended(child)?;
    assert!(status.success(), "SIG{name}: {status}");
    assert!(said.contains("interrupted, step") && said.contains("to resume: the same command"), "{said}");
    let overview = Overview::of(&program.folder)?;
    assert_eq!(overview.status, Status::Interrupted);
    // The last checkpoint is at the step where it stopped.
    assert_eq!(overview.last.expect("a checkpoint").1, overview.position);
    assert!((20..FEWER * BATCHES).contains(&overview.position.step), "it ended by itself");
    assert!(program.command().stdin(Stdio::null()).output()?.status.success());
    assert_eq!(outcome(program)?, *expected);
    Ok(())
}

fn interrupted_twice() -> Outcome {
    let directory = tempfile::tempdir()?;
    let program = TrainingProgram { catch: true, wait_at: 5, ..TrainingProgram::new(&directory.path().join("run"), 2) };
    let (mut child, _said) = waiting(program.command_by_default())?;
    signal(&child.0, "INT", 1)?;
    // Long enough that the next signal counts as a second request, not as an echo.
    sleep(Duration::from_millis(300));
    assert!(child.0.try_wait()?.is_none(), "the first one waits for the step");
    signal(&child.0, "INT", 1)?;
    let mut code = None;
    wait_until("the end", || {
        code = child.0.try_wait().ok().flatten();
        code.is_some()
    })?;
    assert_eq!(code.and_then(|code| code.code()), Some(130));
    Ok(())
}

fn locked() -> Outcome {
    let directory = tempfile::tempdir()?;
    let program = TrainingProgram { wait_at: 5, ..TrainingProgram::new(&directory.path().join("run"), 2) };
    let (mut child, _said) = waiting(program.command_by_default())?;
    let second = program.command().output()?;
    assert_eq!(second.status.code(), Some(1));
    let said = String::from_utf8(second.stderr)?;
    assert!(said.contains(&format!("another process (process {}) trains there", child.0.id())), "{said}");
    assert_eq!(Overview::of(&program.folder)?.status, Status::Running);
    child.0.kill()?;
    child.0.wait()?;
    assert_eq!(Overview::of(&program.folder)?.status, Status::Died);
    Run::at(&program.folder, &Device::cpu()).resume()?;
    Ok(())
}

/// A finished run. One more epoch will not fit on the disk.
fn before(folder: &Path) -> Result<(TrainingProgram, Overview), Failed> {
    let program = TrainingProgram::new(&folder.join("run"), 2);
    program.train(&Device::cpu()).map_err(|error| error.to_string())?;
    let overview = Overview::of(&program.folder)?;
    // The schedule depends on the number of epochs.
    let text = super::unsealed(&fs::read_to_string(program.folder.join("run.json"))?);
    let longer = text.replace("cosine(0.02, 16,", "cosine(0.02, 32,");
    assert_ne!(text, longer);
    fs::write(program.folder.join("run.json"), longer)?;
    Ok((TrainingProgram { epochs: 4, ..program }, overview))
}

/// The program failed because a file could not be written, and the last checkpoint is unchanged.
fn is_as_before(output: &Output, cause: &str, program: &TrainingProgram, before: &Overview) -> Outcome {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let last = &before.last.as_ref().expect("a checkpoint").0;
    assert!(said.contains(&format!("could not be saved; the last one is still there, {}", last.display())), "{said}");
    assert!(said.contains(cause), "{said}");
    assert!(!look(&program.folder).0, "no partial checkpoint is left");
    let after = Overview::of(&program.folder)?;
    assert!(matches!(after.status, Status::Failed(_)), "{after}");
    assert_eq!((&after.last, &after.best), (&before.last, &before.best));
    // With free space again, the run resumes.
    let output = program.command().output()?;
    assert!(output.status.success(), "{output:?}");
    assert_eq!(Overview::of(&program.folder)?.position.epoch, 4);
    Ok(())
}

/// Files may not grow beyond 32 or 64 KiB, depending on the shell's units. The signal for this is ignored, so writes
/// fail instead.
fn file_limit() -> Outcome {
    let directory = tempfile::tempdir()?;
    let (program, overview) = before(directory.path())?;
    let limited = "trap '' XFSZ; ulimit -f 64; exec \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", limited, "sh"]).arg(std::env::current_exe()?).args(program.arguments());
    is_as_before(&command.output()?, "File too large", &program, &overview)
}

/// A separate file system that is too small by one checkpoint.
fn full_file_system() -> Outcome {
    let directory = tempfile::tempdir()?;
    let (program, overview) = before(directory.path())?;
    let kept = directory.path().join("kept");
    // The run is copied there, where it has no room for another checkpoint, and copied back afterwards.
    let script = "mv \"$1\" \"$2\" && mkdir \"$1\" && mount -t tmpfs -o size=$(($(du -sk \"$2\" | cut -f1) + 60))k tmpfs \"$1\" && \
                  cp -r \"$2\"/. \"$1\" && { shift 2; \"$@\"; code=$?; } && rm -rf \"$KEPT\" && cp -r \"$RUN\" \"$KEPT\"; exit $code";
    let mut command = Command::new("unshare");
    command.args(["-rm", "sh", "-c", script, "sh"]).arg(&program.folder).arg(&kept);
    command.env("RUN", &program.folder).env("KEPT", &kept);
    command.arg(std::env::current_exe()?).args(program.arguments());
    let output = command.output()?;
    fs::remove_dir(&program.folder)?;
    fs::rename(&kept, &program.folder)?;
    is_as_before(&output, "No space left on device", &program, &overview)
}

/// A link in the place of the metrics may lead to a file of somebody else: nothing is written through it.
fn linked_metrics() -> Outcome {
    let directory = tempfile::tempdir()?;
    std::os::unix::fs::symlink("/dev/full", directory.path().join("metrics.jsonl"))?;
    let error = Run::at(directory.path(), &Device::cpu()).create().map(drop).expect_err("a link");
    assert!(error.to_string().contains("metrics.jsonl could not be opened: it is a symbolic link"), "{error}");
    Ok(())
}
