//! What a run says of the best checkpoint, and which examples it sees after it was resumed in another way.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::checksum::in_format_2;
use super::json::sealed_by;
use super::{Best, Overview, Run, RunOptions};
use crate::data::{Batches, Dataset};
use crate::nn::Linear;
use crate::optim::Sgd;
use crate::{Device, Error, ErrorKind, Init, Result, Seed};

fn net() -> Linear {
    Linear::new(1, 2).init(&Device::cpu(), Seed::new(1)).unwrap()
}

fn save(run: &mut Run) -> Result<()> {
    run.checkpoint(&net(), &Sgd::new(0.0)).map(drop)
}

fn options(folder: &Path) -> RunOptions {
    Run::at(folder, &Device::cpu()).keep_last(1).keep_best("val_accuracy", Best::Highest)
}

#[track_caller]
fn says(error: &Error, parts: &[&str]) {
    assert_eq!(error.kind(), ErrorKind::Argument, "{error}");
    let line = std::panic::Location::caller().line();
    assert!(error.location().is_some_and(|at| at.file().ends_with("run/tests.rs")), "line {line}: {error:?}");
    for part in parts {
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
}

#[test]
fn a_metric_that_is_never_logged_is_an_error_of_the_first_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = options(folder.path()).open().unwrap();
    run.advance();
    run.end_epoch();
    run.log(&[("accuracy", &0.5), ("loss", &1.0)]).unwrap();
    let error = save(&mut run).unwrap_err();
    let parts = [
        "`val_accuracy` was never logged",
        "logged were `accuracy`, `loss`",
        "did you mean `accuracy`?",
        "step 1 is saved",
    ];
    says(&error, &parts);
    // Nothing is lost.
    let path = folder.path().join("checkpoints/step-00000001");
    assert!(path.join("model.safetensors").exists() && run.best().is_none());
    drop(run);
    let overview = Overview::of(folder.path()).unwrap();
    assert_eq!(overview.last.as_ref().map(|(path, _)| path), Some(&path));
    let line = "best  none: no checkpoint has a number `val_accuracy`; logged were `accuracy`, `loss`";
    assert!(overview.to_string().contains(line), "{overview}");
    // A resumed run says so again, and goes on once the metric is logged.
    let mut run = options(folder.path()).open().unwrap();
    run.restore(&mut net(), &mut Sgd::new(0.0)).unwrap();
    run.advance();
    says(&save(&mut run).unwrap_err(), &["logged were `accuracy`, `loss`"]);
    run.advance();
    run.log(&[("val_accuracy", &f64::NAN)]).unwrap();
    save(&mut run).unwrap();
    run.advance();
    save(&mut run).unwrap();
    assert!(Overview::of(folder.path()).unwrap().to_string().contains("best  none"));
    run.advance();
    run.log(&[("val_accuracy", &0.75)]).unwrap();
    save(&mut run).unwrap();
    assert!(run.best().unwrap().ends_with("step-00000005"));
    let overview = run.finish().unwrap().to_string();
    assert!(overview.contains("highest val_accuracy 0.75") && !overview.contains("best  none"), "{overview}");
}

#[test]
fn a_metric_that_is_logged_after_the_checkpoint_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    // At the end of an epoch, at once.
    let mut run = options(folder.path()).open().unwrap();
    run.advance();
    run.end_epoch();
    says(&save(&mut run).unwrap_err(), &["`val_accuracy` was never logged", "nothing was logged"]);
    // At steps where it is time to save, by the next checkpoint.
    let folder = tempfile::tempdir().unwrap();
    let mut run = options(folder.path()).every_steps(1).open().unwrap();
    run.advance();
    assert!(run.is_due());
    save(&mut run).unwrap();
    run.log(&[("val_accuracy", &0.5)]).unwrap();
    run.advance();
    says(&save(&mut run).unwrap_err(), &["logged after the checkpoint of step 1 was saved", "step 2, is saved"]);
    // At other steps than those of the checkpoints.
    let folder = tempfile::tempdir().unwrap();
    let mut run = options(folder.path()).open().unwrap();
    run.advance();
    run.log(&[("val_accuracy", &0.5)]).unwrap();
    run.advance();
    says(&save(&mut run).unwrap_err(), &["`val_accuracy` was logged at another step"]);
}

/// A due checkpoint in the first epoch may come before the first evaluation.
#[test]
fn checkpoints_before_the_first_evaluation_need_no_metric() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = options(folder.path()).every_steps(2).open().unwrap();
    for epoch in 0..2 {
        assert_eq!(run.next_epoch(2), Some(epoch));
        for _ in 0..4 {
            run.advance();
            run.log(&[("loss", &0.5)]).unwrap();
            if run.is_due() {
                save(&mut run).unwrap();
            }
        }
        run.end_epoch();
        // At the same step as a checkpoint in the epoch.
        run.log(&[("val_accuracy", &0.5)]).unwrap();
        save(&mut run).unwrap();
    }
    assert_eq!(run.finish().unwrap().best.map(|(_, _, value)| value), Some(0.5));
    // The second epoch is too late for the first number.
    let folder = tempfile::tempdir().unwrap();
    let mut run = options(folder.path()).every_steps(2).open().unwrap();
    for _ in 0..2 {
        run.advance();
    }
    save(&mut run).unwrap();
    run.end_epoch();
    for _ in 0..2 {
        run.advance();
    }
    assert!(run.is_due());
    says(&save(&mut run).unwrap_err(), &["`val_accuracy` was never logged"]);
}

fn data(examples: u8) -> Dataset {
    Dataset::new((0..examples).map(f32::from).collect(), [1], vec![0; usize::from(examples)]).unwrap()
}

/// The examples of an epoch in each of several processes: each takes a number of batches, then saves.
fn seen(folder: &Path, processes: &[(usize, &dyn Fn() -> Batches)]) -> Result<Vec<Vec<usize>>> {
    let device = Device::cpu();
    let each = processes.iter().map(|(count, batches)| {
        let mut run = Run::at(folder, &device).open()?;
        run.restore(&mut net(), &mut Sgd::new(0.0))?;
        let epoch = run.next_epoch(1).unwrap();
        let mut seen = Vec::new();
        for batch in batches().epoch(epoch).skip(run.batch()).on(&device).take(*count) {
            seen.extend(batch?.inputs.to_vec()?.iter().map(|x| *x as usize));
            run.advance();
        }
        save(&mut run)?;
        Ok(seen)
    });
    each.collect()
}

#[test]
fn each_example_comes_once_whatever_the_sizes_of_the_batches() {
    let data = data(100);
    let all: Vec<_> = (0..100).collect();
    for sizes in
        [&[(4, 10), (99, 20)][..], &[(4, 10), (99, 15)], &[(3, 7), (2, 16), (1, 3), (99, 40)], &[(4, 10), (99, 10)]]
    {
        for workers in [0, 2] {
            let make = |size| data.batches(size).shuffle(7).workers(workers);
            let makers: Vec<_> = sizes.iter().map(|&(_, size)| move || make(size)).collect();
            let processes: Vec<_> =
                sizes.iter().zip(&makers).map(|(&(count, _), make)| (count, make as &dyn Fn() -> Batches)).collect();
            let folder = tempfile::tempdir().unwrap();
            let parts = seen(folder.path(), &processes).unwrap();
            let whole = seen(tempfile::tempdir().unwrap().path(), &[(99, &|| data.batches(9).shuffle(7))]).unwrap();
            assert_eq!(parts.concat(), whole.concat(), "{sizes:?}: in the order of an uninterrupted epoch");
            let mut sorted = parts.concat();
            sorted.sort_unstable();
            assert_eq!(sorted, all, "{sizes:?}");
        }
    }
}

#[test]
fn the_last_batch_follows_its_setting_after_another_size() {
    let data = data(50);
    let after = |second: &dyn Fn() -> Batches| {
        let folder = tempfile::tempdir().unwrap();
        seen(folder.path(), &[(2, &|| data.batches(10)), (99, second)]).unwrap().pop().unwrap()
    };
    // From example 20 on: three batches of 12 fit into 30 examples twice.
    assert_eq!(after(&|| data.batches(12)), (20..50).collect::<Vec<_>>());
    assert_eq!(after(&|| data.batches(12).drop_last()), (20..44).collect::<Vec<_>>());
    assert_eq!(after(&|| data.batches(12).fill_last()), (20..50).chain(0..6).collect::<Vec<_>>());
    // An epoch that was over stays over.
    let folder = tempfile::tempdir().unwrap();
    let parts = seen(folder.path(), &[(99, &|| data.batches(12)), (99, &|| data.batches(9))]).unwrap();
    assert_eq!((parts[0].len(), parts[1].len()), (50, 0));
}

#[test]
fn another_order_of_the_examples_is_an_error() {
    let data = data(100);
    let (fewer, _) = data.split(0.5, 1).unwrap();
    let others: [(&str, &dyn Fn() -> Batches); 3] = [
        ("another seed", &|| data.batches(10).shuffle(8)),
        ("no shuffle", &|| data.batches(10)),
        ("other examples", &|| fewer.batches(10).shuffle(7)),
    ];
    for (what, other) in others {
        let folder = tempfile::tempdir().unwrap();
        let error = seen(folder.path(), &[(4, &|| data.batches(10).shuffle(7)), (99, other)]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Argument, "{what}: {error}");
        assert!(error.to_string().contains("the 4 batches that the run has taken from this epoch"), "{what}: {error}");
        // By its number, a batch is a batch.
        let device = Device::cpu();
        let run = Run::at(folder.path(), &device).open().unwrap();
        assert_eq!((run.batch() == 4, run.batch().to_string()), (true, "4".to_owned()));
        assert!(other().epoch(0).skip(run.batch().batches()).on(&device).all(|batch| batch.is_ok()));
    }
    // The next epoch may have another order.
    let folder = tempfile::tempdir().unwrap();
    let device = Device::cpu();
    for seed in [7, 8] {
        let mut run = Run::at(folder.path(), &device).open().unwrap();
        run.restore(&mut net(), &mut Sgd::new(0.0)).unwrap();
        let epoch = run.next_epoch(2).unwrap();
        for batch in data.batches(10).shuffle(seed).epoch(epoch).skip(run.batch()).on(&device) {
            batch.unwrap();
            run.advance();
        }
        run.end_epoch();
        save(&mut run).unwrap();
    }
}

#[test]
fn a_loop_that_begins_the_epoch_anew_is_refused() {
    let (data, device) = (data(100), Device::cpu());
    let batches = data.batches(10).shuffle(7);
    let folder = tempfile::tempdir().unwrap();
    let mut run = Run::at(folder.path(), &device).open().unwrap();
    let mut epoch = run.next_epoch_of(&batches, 3).unwrap();
    let mut seen: Vec<f32> = Vec::new();
    for batch in epoch.by_ref().take(4) {
        seen.extend(batch.unwrap().inputs.to_vec().unwrap());
        run.advance();
    }
    save(&mut run).unwrap();
    drop(run);
    let resumed = || {
        let mut run = Run::at(folder.path(), &device).resume().unwrap();
        run.restore(&mut net(), &mut Sgd::new(0.0)).unwrap();
        run
    };
    let mut run = resumed();
    let number = run.next_epoch(3).unwrap();
    for _ in batches.clone().epoch(number).on(&device).take(2) {
        run.advance();
    }
    for error in [run.log(&[("loss", &1.0)]).unwrap_err(), save(&mut run).unwrap_err()] {
        says(&error, &["resumed at step 4 (epoch 0, batch 4)", "`run.next_epoch_of(&batches, epochs)`"]);
    }
    drop(run);
    // A loop that does not count epochs has nothing to skip, and one that asks may do as it likes.
    let mut run = resumed();
    run.advance();
    run.log(&[("loss", &1.0)]).unwrap();
    drop(run);
    let mut run = resumed();
    run.next_epoch(3).unwrap();
    assert_eq!(run.batch().batches(), 4);
    run.advance();
    run.log(&[("loss", &1.0)]).unwrap();
    drop(run);
    // The rest of the epoch, and whole ones after it, each in an order of its own.
    let mut run = resumed();
    while let Some(epoch) = run.next_epoch_of(&batches, 3) {
        for batch in epoch {
            seen.extend(batch.unwrap().inputs.to_vec().unwrap());
            run.advance();
        }
    }
    let whole: Vec<f32> = batches
        .epochs(0..3)
        .flat_map(|epoch| epoch.on(&device))
        .flat_map(|x| x.unwrap().inputs.to_vec().unwrap())
        .collect();
    assert_eq!((seen, run.step()), (whole, 30));
}

/// A run with two datasets, as of real and of other images.
#[test]
fn several_datasets_keep_their_own_counts() {
    let (one, other) = (data(60), data(90));
    let device = Device::cpu();
    let folder = tempfile::tempdir().unwrap();
    let mut seen = [vec![], vec![]];
    for (sizes, count) in [([10, 15], 2), ([20, 10], 99)] {
        let mut run = Run::at(folder.path(), &device).open().unwrap();
        run.restore(&mut net(), &mut Sgd::new(0.0)).unwrap();
        let batches = [&one, &other].into_iter().zip(sizes).map(|(data, size)| data.batches(size).shuffle(1).epoch(0));
        let mut batches = batches.map(|batches| batches.skip(run.batch()).on(&device)).collect::<Vec<_>>();
        for _ in 0..count {
            let next: Vec<_> = batches.iter_mut().map(Iterator::next).collect();
            if next.iter().all(Option::is_none) {
                break;
            }
            for (seen, batch) in seen.iter_mut().zip(next) {
                seen.extend(batch.map_or_else(Vec::new, |batch| batch.unwrap().inputs.to_vec().unwrap()));
            }
            run.advance();
        }
        save(&mut run).unwrap();
    }
    for (seen, count) in seen.iter_mut().zip([60u8, 90]) {
        seen.sort_by(f32::total_cmp);
        assert_eq!(*seen, (0..count).map(f32::from).collect::<Vec<_>>());
    }
}

/// Rewrites the files of a run as format 2 had them.
fn age(folder: &Path) {
    let seal = |path: &Path, change: &dyn Fn(&mut Value)| {
        let mut object: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        object.as_object_mut().unwrap().remove("checksum");
        object["format"] = json!(2);
        change(&mut object);
        fs::write(path, sealed_by(&object, in_format_2)).unwrap();
    };
    seal(&folder.join("run.json"), &|_| {});
    let metrics = fs::read(folder.join("metrics.jsonl")).unwrap();
    for saved in fs::read_dir(folder.join("checkpoints")).unwrap().map(|entry| entry.unwrap().path()) {
        seal(&saved.join("state.json"), &|state| {
            for (name, file) in state["files"].as_object_mut().unwrap() {
                let bytes = fs::read(saved.join(format!("{name}.safetensors"))).unwrap();
                file["checksum"] = json!(in_format_2(&bytes));
            }
            let bytes = usize::try_from(state["metrics_bytes"].as_u64().unwrap()).unwrap();
            state["metrics_checksum"] = json!(in_format_2(&metrics[..bytes]));
        });
    }
}

#[test]
fn runs_of_format_2_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let options = || Run::at(folder.path(), &Device::cpu()).setting("width", 3);
    let mut run = options().create().unwrap();
    for loss in [2.0, 1.0] {
        run.advance();
        run.log(&[("loss", &loss)]).unwrap();
        save(&mut run).unwrap();
    }
    drop(run);
    age(folder.path());
    let state = |step: u64| folder.path().join(format!("checkpoints/step-{step:08}/state.json"));
    assert!(fs::read_to_string(state(2)).unwrap().contains("\"format\": 2"));
    let mut run = options().resume().unwrap();
    assert!(run.restore(&mut net(), &mut Sgd::new(0.0)).unwrap());
    assert_eq!((run.step(), run.metrics().unwrap().len()), (2, 2));
    run.advance();
    save(&mut run).unwrap();
    drop(run);
    // From then on in the new format.
    assert!(fs::read_to_string(state(3)).unwrap().contains("\"format\": 3"));
    options().resume().unwrap().restore(&mut net(), &mut Sgd::new(0.0)).unwrap();
    // Damage is found as before.
    fs::remove_dir_all(state(3).parent().unwrap()).unwrap();
    age(folder.path());
    let model = state(2).with_file_name("model.safetensors");
    for path in [model, state(2), folder.path().join("metrics.jsonl"), folder.path().join("run.json")] {
        let whole = fs::read(&path).unwrap();
        let mut other = whole.clone();
        let at = whole.len() - 4;
        other[at] ^= 1;
        fs::write(&path, other).unwrap();
        let resumed = options().resume().and_then(|mut run| run.restore(&mut net(), &mut Sgd::new(0.0)));
        let error = resumed.unwrap_err();
        assert!(error.to_string().contains("damaged"), "{}: {error}", path.display());
        fs::write(&path, whole).unwrap();
    }
    options().resume().unwrap().restore(&mut net(), &mut Sgd::new(0.0)).unwrap();
}
