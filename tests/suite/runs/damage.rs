//! Runs whose folder is deleted or moved by others, or damaged byte by byte.

use std::fs;
use std::path::Path;

use libtest_mimic::{Failed, Trial};
use meganeura::nn::Linear;
use meganeura::optim::{AdamW, Sgd};
use meganeura::run::{Best, Overview, Run, RunOptions, read_metrics};
use meganeura::{Device, ErrorKind, Init, Seed};

use super::names;
use crate::Outcome;
use crate::nets::bits;

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    let mut test = |name: &str, run: fn() -> Outcome| trials.push(Trial::test(format!("runs::{name}"), run));
    if cfg!(unix) {
        test("a_recreated_folder_belongs_to_the_other_run", recreated);
        test("a_missing_folder_is_not_recreated", gone);
    }
    test("a_checkpoint_deleted_by_hand_is_not_missed", deleted);
    test("any_flipped_bit_is_reported", flipped);
    test("the_last_good_checkpoint_is_one_option_away", last_good);
}

fn options(folder: &Path) -> RunOptions {
    Run::at(folder, &Device::cpu()).setting("batch", 8).keep_last(2).keep_best("loss", Best::Lowest)
}

fn net() -> Result<Linear, Failed> {
    Ok(Linear::new(2, 1).init(&Device::cpu(), Seed::new(1))?)
}

/// Advances by one step, and saves.
fn save(run: &mut Run, loss: f64) -> Outcome {
    run.advance();
    run.log(&[("loss", &loss)])?;
    run.checkpoint(&net()?, &AdamW::new(0.1))?;
    Ok(())
}

#[track_caller]
fn expect_lost<T>(result: meganeura::Result<T>) {
    let Err(error) = result else { panic!("the run continued") };
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    assert!(error.to_string().contains("is no longer the folder that this run was opened in"), "{error}");
}

/// All files below a folder, with their bytes.
fn contents(folder: &Path) -> Result<Vec<(String, Vec<u8>)>, Failed> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            all.push((path.display().to_string(), Vec::new()));
            all.extend(contents(&path)?);
        } else {
            all.push((path.display().to_string(), fs::read(&path)?));
        }
    }
    all.sort();
    Ok(all)
}

/// Two runs at the same path: the first one detects the second before it writes anything.
fn recreated() -> Outcome {
    let directory = tempfile::tempdir()?;
    let folder = directory.path().join("run");
    let mut first = options(&folder).create()?;
    save(&mut first, 0.5)?;
    fs::remove_dir_all(&folder)?;
    let mut second = options(&folder).create()?;
    save(&mut second, 0.25)?;
    let before = contents(&folder)?;
    // The same step, so the files would have the same names.
    first.advance();
    expect_lost(first.checkpoint(&net()?, &AdamW::new(0.1)));
    first.log(&[("loss", &1.0)])?;
    expect_lost(first.metrics());
    expect_lost(first.finish());
    assert!(contents(&folder)? == before, "the other's files changed");
    save(&mut second, 0.125)?;
    assert_eq!(read_metrics(&folder)?.len(), 2);
    assert_eq!(second.finish()?.position.step, 2);
    Ok(())
}

fn gone() -> Outcome {
    let directory = tempfile::tempdir()?;
    let folder = directory.path().join("run");
    for leave in
        [|folder: &Path| fs::remove_dir_all(folder), |folder: &Path| fs::rename(folder, folder.with_file_name("moved"))]
    {
        let mut run = options(&folder).create()?;
        save(&mut run, 0.5)?;
        leave(&folder)?;
        run.advance();
        expect_lost(run.checkpoint(&net()?, &AdamW::new(0.1)));
        drop(run);
        assert!(!folder.exists(), "it was created again");
    }
    // The moved run can be resumed at its new place.
    let mut run = options(&directory.path().join("moved")).resume()?;
    assert!(run.restore(&mut net()?, &mut AdamW::new(0.1))?);
    save(&mut run, 0.25)?;
    assert_eq!(run.finish()?.position.step, 2);
    Ok(())
}

fn deleted() -> Outcome {
    let directory = tempfile::tempdir()?;
    let folder = directory.path();
    let mut run = options(folder).create()?;
    for loss in [0.1, 0.4, 0.2] {
        save(&mut run, loss)?;
    }
    assert_eq!(names(folder)?, ["step-00000001", "step-00000002", "step-00000003"]);
    // Deletes the best checkpoint, then the one that would be pruned next.
    fs::remove_dir_all(folder.join("checkpoints/step-00000001"))?;
    save(&mut run, 0.3)?;
    assert_eq!(names(folder)?, ["step-00000003", "step-00000004"]);
    assert_eq!(run.best(), Some(&*folder.join("checkpoints/step-00000003")), "the best of the remaining ones");
    fs::remove_dir_all(folder.join("checkpoints/step-00000004"))?;
    save(&mut run, 0.5)?;
    // Deletes all checkpoints with their folder.
    fs::remove_dir_all(folder.join("checkpoints"))?;
    save(&mut run, 0.6)?;
    assert_eq!(names(folder)?, ["step-00000006"]);
    assert_eq!(run.best(), Some(&*folder.join("checkpoints/step-00000006")));
    run.finish()?;
    Ok(())
}

/// Flips one bit of every byte of every file that a run resumes from.
fn flipped() -> Outcome {
    let directory = tempfile::tempdir()?;
    let folder = directory.path();
    let mut run = options(folder).setting("config", "{\"width\": 8}").create()?;
    save(&mut run, 0.5)?;
    run.finish()?;
    let expected = bits(&net()?)?;
    let last = folder.join("checkpoints/step-00000001");
    let files = ["model.safetensors", "optimizer.safetensors", "state.json"].map(|name| last.join(name));
    let mut harmless = 0;
    for path in files.iter().chain(&[folder.join("metrics.jsonl"), folder.join("run.json")]) {
        let whole = fs::read(path)?;
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            fs::write(path, bytes)?;
            match options(folder).resume() {
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Checkpoint, "{error}");
                    assert!(
                        error.to_string().contains(&path.display().to_string()),
                        "{}, {at}: {error}",
                        path.display()
                    );
                }
                Ok(mut run) => {
                    // The checksum does not cover its own key.
                    assert!(
                        path.ends_with("run.json") && at < 20,
                        "{}, byte {at}: nothing was noticed",
                        path.display()
                    );
                    assert_eq!((run.step(), run.setting("config")), (1, Some("{\"width\": 8}")));
                    let mut net = Linear::new(2, 1).init(&Device::cpu(), Seed::new(9))?;
                    assert!(run.restore(&mut net, &mut AdamW::new(0.0))? && bits(&net)? == expected);
                    harmless += 1;
                }
            }
        }
        fs::write(path, &whole)?;
    }
    assert!(harmless < 20, "{harmless}");
    // An overview reports the damaged metrics.
    let path = folder.join("metrics.jsonl");
    fs::write(&path, fs::read_to_string(&path)?.replace("0.5", "0.4"))?;
    let damaged = Overview::of(folder)?.damaged;
    assert!(damaged.len() == 1 && damaged[0].contains("metrics.jsonl is damaged: its first"), "{damaged:?}");
    Ok(())
}

fn last_good() -> Outcome {
    let directory = tempfile::tempdir()?;
    let folder = directory.path();
    let mut run = options(folder).keep_last(9).create()?;
    for loss in [0.4, 0.3, 0.2, 0.1] {
        save(&mut run, loss)?;
    }
    run.finish()?;
    let checkpoint = |step: u64| folder.join(format!("checkpoints/step-{step:08}"));
    // Damages the last two checkpoints: one in a file with a recorded checksum, one in the file with the checksums.
    let flip = |path: &Path| -> Outcome {
        let mut bytes = fs::read(path)?;
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        Ok(fs::write(path, bytes)?)
    };
    flip(&checkpoint(4).join("model.safetensors"))?;
    flip(&checkpoint(3).join("state.json"))?;
    let before = contents(folder)?;
    let error = options(folder).resume().expect_err("damaged").to_string();
    let remedy = format!("resume from {}: by `RunOptions::resume_from_last_good`", checkpoint(2).display());
    for part in ["step-00000004, cannot be used", "model.safetensors is damaged", "Nothing was changed", &remedy] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let now = contents(folder)?;
    assert!(
        before.iter().filter(|(name, _)| !name.ends_with("lock")).all(|file| now.contains(file)),
        "resuming changed the folder"
    );
    let good = || options(folder).keep_last(9).resume_from_last_good(true);
    let mut run = good().resume()?;
    assert_eq!(run.set_aside(), [3, 4].map(|step| checkpoint(step).with_extension("damaged")));
    assert!(run.set_aside().iter().all(|path| path.join("state.json").exists()), "nothing was deleted");
    assert!(run.restore(&mut net()?, &mut AdamW::new(0.0))?);
    assert_eq!((run.step(), read_metrics(folder)?.len()), (2, 4));
    // The steps are repeated under the same names. The damaged checkpoints cause no further errors.
    save(&mut run, 0.25)?;
    save(&mut run, 0.15)?;
    run.finish()?;
    assert_eq!(
        read_metrics(folder)?.iter().map(|line| line.values["loss"]).collect::<Vec<_>>(),
        [0.4, 0.3, 0.25, 0.15]
    );
    let mut run = options(folder).keep_last(9).resume()?;
    assert!(run.set_aside().is_empty() && run.restore(&mut net()?, &mut AdamW::new(0.0))?);
    assert_eq!((run.step(), run.best()), (4, Some(&*checkpoint(4))));
    drop(run);
    let events = fs::read_to_string(folder.join("events.jsonl"))?;
    assert_eq!(events.matches("not from the damaged checkpoint that is now").count(), 2);
    // If every checkpoint is damaged, the run cannot be resumed.
    for step in 1..=4 {
        flip(&checkpoint(step).join("state.json"))?;
    }
    let error = good().resume().expect_err("none is whole").to_string();
    assert!(error.contains("no other checkpoint is undamaged"), "{error}");
    // Resuming with another optimizer is a plain error: nothing is set aside.
    for step in 1..=4 {
        flip(&checkpoint(step).join("state.json"))?;
    }
    let mut run = good().resume()?;
    let error = run.restore(&mut net()?, &mut Sgd::new(0.1)).expect_err("another optimizer");
    assert!(error.to_string().contains("step-00000004, `optimizer`") && run.set_aside().is_empty(), "{error}");
    Ok(())
}
