//! Runs that meet every possible failure while they write: a power failure after each file operation, an error of each
//! operation, a killed process before each operation, a failed memory reservation. Training resumes from what is left,
//! and ends with the same bits.

mod power;

use std::collections::HashMap;
use std::fs;
use std::io::ErrorKind::{Other, StorageFull};
use std::path::{Path, PathBuf};

use super::{Best, Run, read_metrics};
use crate::data::Dataset;
use crate::host::shortage;
use crate::io::Checkpoint;
use crate::io::disk::simulated::{Event, Fault, note, on_disk};
use crate::nn::{Dropout, Linear};
use crate::optim::{AdamW, Optimizer};
use crate::{Device, ErrorKind, Init, Layer, Result, Seed, Tape};
use power::{Disk, Tree};

/// The result of a training run.
#[derive(Clone, Debug, PartialEq)]
struct Outcome {
    model: Vec<u8>,
    losses: Vec<(u64, String)>,
}

/// Fourteen examples of three numbers in two classes: an epoch has three full batches and a smaller one.
struct Training {
    device: Device,
    data: Dataset,
    expected: Outcome,
}

/// The program's reaction to a failed save.
#[derive(Clone, Copy, PartialEq)]
enum Patience {
    GiveUp,
    GoOn,
}

type Saving<'a> = &'a mut dyn FnMut(&mut Run, &Linear, &AdamW) -> Result<PathBuf>;

impl Training {
    fn new() -> Self {
        let numbers = (0..14 * 3u16).map(|i| f32::from(i * 37 % 11) / 8.0).collect();
        let data = Dataset::new(numbers, [3], (0..14).map(|i| i % 2).collect::<Vec<_>>()).unwrap();
        let device = Device::cpu();
        let expected = Outcome { model: Vec::new(), losses: Vec::new() };
        let mut training = Self { device, data, expected };
        let folder = folder();
        training.run(&folder.path().join("whole"), Patience::GiveUp).unwrap();
        training.expected = training.outcome(&folder.path().join("whole"));
        assert_eq!(training.expected.losses.len(), 8);
        training
    }

    /// Creates or resumes the run, and trains to the end. Returns the step where it started.
    fn run(&self, folder: &Path, patience: Patience) -> Result<u64> {
        self.run_with(folder, patience, &mut |run, net, optimizer| run.checkpoint(net, optimizer))
    }

    fn run_with(&self, folder: &Path, patience: Patience, save: Saving<'_>) -> Result<u64> {
        let Self { device, data, .. } = self;
        device.set_seed(3);
        let run = Run::at(folder, device).setting("batch", 4).keep_last(2).keep_best("loss", Best::Lowest);
        let mut run = run.every_steps(2).open()?;
        let mut net = Linear::new(3, 2).init(device, Seed::new(1))?;
        let mut optimizer = AdamW::new(0.05);
        run.restore(&mut net, &mut optimizer)?;
        let (start, dropout) = (run.step(), Dropout::new(0.2));
        let mut failures = 0;
        let mut saved = |run: &mut Run, net: &Linear, optimizer: &AdamW| match save(run, net, optimizer) {
            Ok(_) => {
                note(run.step());
                Ok(())
            }
            Err(_) if patience == Patience::GoOn => {
                failures += 1;
                assert_eq!(failures, 1, "one failed operation made several saves fail");
                Ok(())
            }
            Err(error) => Err(error),
        };
        while let Some(epoch) = run.next_epoch(2) {
            for batch in data.batches(4).shuffle(7).epoch(epoch).skip(run.batch()).on(device) {
                let batch = batch?;
                let tape = Tape::new(device);
                let x = dropout.forward(&tape.input(&batch.inputs));
                let loss = net.forward(&x).cross_entropy(&batch.targets);
                let grads = tape.backward(&loss)?;
                optimizer.step(&mut net, &grads)?;
                run.advance();
                run.log(&[("loss", &loss.to_tensor()?)])?;
                if run.is_due() {
                    saved(&mut run, &net, &optimizer)?;
                }
            }
            run.end_epoch();
        }
        saved(&mut run, &net, &optimizer)?;
        net.save(folder.join("net.safetensors"))?;
        run.finish()?;
        Ok(start)
    }

    fn outcome(&self, folder: &Path) -> Outcome {
        let lines = read_metrics(folder).unwrap();
        let losses = lines.iter().map(|line| (line.step, format!("{:?}", line.values))).collect();
        Outcome { model: fs::read(folder.join("net.safetensors")).unwrap(), losses }
    }

    /// Resumes from the contents of a folder, and expects the same result. Returns the step from which it resumed.
    #[track_caller]
    fn expect_same(&self, folder: &Path, when: &str) -> u64 {
        let start = self.run(folder, Patience::GiveUp).unwrap_or_else(|error| panic!("{when}: {error}"));
        assert!(self.outcome(folder) == self.expected, "{when}: the results differ");
        let checkpoints = fs::read_dir(folder.join("checkpoints")).unwrap().map(|entry| entry.unwrap().file_name());
        let names: Vec<_> = checkpoints.map(|name| name.into_string().unwrap()).collect();
        assert!(names.len() <= 3 && names.iter().all(|name| !name.contains("partial")), "{when}: {names:?}");
        start
    }

    /// The same for the contents after a power failure.
    #[track_caller]
    fn expect_same_from(&self, tree: &Tree, when: &str) -> u64 {
        let root = folder();
        for (path, bytes) in tree {
            let path = root.path().join(path);
            match bytes {
                None => fs::create_dir_all(path).unwrap(),
                Some(bytes) => fs::write(path, bytes).unwrap(),
            }
        }
        self.expect_same(&root.path().join("run"), when)
    }
}

/// A folder in memory, if the system has such a place: these tests need no real disk.
fn folder() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap()
}

/// The last step that was saved without an error, according to the events.
fn acknowledged(events: &[Event]) -> u64 {
    let mut notes = events.iter().filter_map(|event| if let Event::Note(step) = event { Some(*step) } else { None });
    notes.next_back().unwrap_or(0)
}

#[test]
fn the_power_fails_after_each_operation() {
    let training = Training::new();
    let root = folder();
    let run = root.path().join("run");
    let (result, seen) = on_disk(None, || training.run(&run, Patience::GiveUp));
    assert_eq!(result.unwrap(), 0);
    assert!(training.outcome(&run) == training.expected, "the simulation changes nothing");
    let (mut disk, mut rng) = (Disk::new(root.path()), Seed::new(1).rng());
    // For each state of the disk, the step from which training resumes.
    let mut known: HashMap<Tree, u64> = HashMap::new();
    for (index, event) in seen.events.iter().enumerate() {
        disk.apply(event);
        let saved = acknowledged(&seen.events[..=index]);
        for tree in disk.leavings(&mut rng) {
            let when = format!("after {event:.60?}, event {index}");
            let start = *known.entry(tree).or_insert_with_key(|tree| training.expect_same_from(tree, &when));
            assert!(start >= saved, "{when}: step {saved} was saved, and it goes on from step {start}");
        }
    }
    println!("{} events, {} states", seen.events.len(), known.len());
    assert!(known.len() > 100, "{}", known.len());
}

/// Each operation fails in four ways. In turn, the program gives up at the error, or continues and saves later. Then
/// the power fails.
#[test]
fn each_operation_fails_once() {
    let training = Training::new();
    let mut cases = 0;
    let faults = [Fault::Refused(Other), Fault::Refused(StorageFull), Fault::Half(StorageFull), Fault::Done(Other)];
    for (turn, fault) in faults.into_iter().enumerate() {
        for number in 0.. {
            let patience = if (turn + number) % 2 == 0 { Patience::GiveUp } else { Patience::GoOn };
            let when = format!("operation {number}, {fault:?}");
            let root = folder();
            let run = root.path().join("run");
            let (result, seen) = on_disk(Some((number, fault)), || training.run(&run, patience));
            if !seen.has_failed {
                assert!(number == seen.operations && result.is_ok(), "{when}");
                break;
            }
            if let Err(error) = result {
                assert_eq!(error.kind(), ErrorKind::Io, "{when}: {error}");
            }
            let saved = acknowledged(&seen.events);
            let mut disk = Disk::new(root.path());
            seen.events.iter().for_each(|event| disk.apply(event));
            for start in [training.expect_same_from(&disk.least(), &when), training.expect_same(&run, &when)] {
                assert!(start >= saved, "{when}: step {saved} was saved, and it goes on from step {start}");
            }
            cases += 1;
        }
    }
    println!("{cases} failures");
    assert!(cases > 250, "{cases}");
}

/// After the kill, another process resumes from what is left, and the power fails.
#[test]
fn the_process_is_killed_before_each_operation() {
    let training = Training::new();
    for number in 0.. {
        let when = format!("killed before operation {number}");
        let root = folder();
        let run = root.path().join("run");
        let (_, seen) = on_disk(Some((number, Fault::Killed)), || training.run(&run, Patience::GiveUp));
        if !seen.has_failed {
            break;
        }
        let mut saved = acknowledged(&seen.events);
        let (start, then) = on_disk(None, || training.expect_same(&run, &when));
        assert!(start >= saved, "{when}: step {saved} was saved, and it goes on from step {start}");
        // The first operations create the folder.
        if number > 20 && number % 3 > 0 {
            continue;
        }
        let mut disk = Disk::new(root.path());
        seen.events.iter().for_each(|event| disk.apply(event));
        for event in then.events {
            disk.apply(&event);
            match event {
                Event::Note(step) => saved = step,
                // Only now may data that was already durable get its name.
                Event::Rename(..) | Event::SyncFolder(_) => {}
                _ => continue,
            }
            let start = training.expect_same_from(&disk.least(), &when);
            assert!(start >= saved, "{when}: step {saved} was saved, and it goes on from step {start}");
        }
    }
}

/// A save that runs out of memory is an error, and the next one succeeds.
#[test]
fn memory_runs_out_in_each_reservation_of_a_save() {
    let training = Training::new();
    let mut failed = 0;
    loop {
        let root = folder();
        let run = root.path().join("run");
        let (mut saves, mut is_short) = (0, false);
        let start = training.run_with(&run, Patience::GiveUp, &mut |run, net, optimizer| {
            saves += 1;
            if saves == 2 {
                let (result, struck) = shortage::at(failed, || run.checkpoint(net, optimizer));
                is_short = struck;
                match result {
                    Err(error) => assert!(struck && error.kind() == ErrorKind::OutOfMemory, "{error}"),
                    Ok(path) => assert!(!struck, "{}", path.display()),
                }
            }
            run.checkpoint(net, optimizer)
        });
        assert_eq!(start.unwrap(), 0);
        assert!(training.outcome(&run) == training.expected, "reservation {failed}");
        training.expect_same(&run, "afterwards");
        if !is_short {
            break;
        }
        failed += 1;
    }
    // Reservations for two files, two tensors of the model, and two moments of each.
    assert!(failed >= 8, "{failed}");
}
