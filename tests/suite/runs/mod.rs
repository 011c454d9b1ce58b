//! Runs: they resume bit for bit, keep the right checkpoints, and refuse mismatches without losing anything.

mod damage;
mod micro_batches;
#[cfg(unix)]
mod processes;
mod training_program;

use std::fs;
use std::path::Path;

use libtest_mimic::{Failed, Trial};
use meganeura::nn::Linear;
use meganeura::optim::{Adam, AdamW, Optimizer, Sgd};
use meganeura::run::{Best, Interrupt, Overview, Run, RunOptions, Status, read_metrics};
use meganeura::{Device, Error, ErrorKind, FromSeed, Init, Layer, Module, Seed, Tape};

use crate::Outcome;
use crate::adapter::gpu_trial;
use crate::nets::{Tiny, bits};
use training_program::{Net, data};

pub(crate) use training_program::train_if_asked;

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    let mut test = |name: &str, run: fn() -> Outcome| trials.push(Trial::test(format!("runs::{name}"), run));
    test("resume_bit_for_bit", || goes_on(&Device::cpu()));
    test("keep_the_last_and_the_best", kept);
    test("another_model_or_optimizer_is_refused", another);
    test("other_settings_are_refused", settings);
    test("folders_that_are_not_right_are_refused", folders);
    test("damage_is_reported_and_nothing_deleted", damage);
    test("metrics_are_those_of_the_checkpoint", metrics);
    test("forgotten_restores_are_reported", forgotten);
    test("are_due", due);
    // A separate device, so that no other test draws its random numbers.
    trials.push(gpu_trial("runs::gpu::resume_bit_for_bit", |device| goes_on(&device.for_testing(0))));
    trials.push(gpu_trial("runs::gpu::running_out_of_memory_changes_nothing", no_room));
    damage::collect(trials);
    micro_batches::collect(trials);
    #[cfg(unix)]
    processes::collect(trials);
}

/// Trains until the run has this many steps, and saves.
fn train(run: &mut Run, device: &Device, net: &mut Net, optimizer: &mut dyn Optimizer, steps: u64) -> Outcome {
    let batches = data()?.batches(8).shuffle(1);
    while let Some(epoch) = run.next_epoch_of(&batches, 100) {
        for batch in epoch {
            let batch = batch?;
            let tape = Tape::new(device);
            let loss = net.forward(&tape.input(&batch.inputs)).cross_entropy(&batch.targets);
            let grads = tape.backward(&loss)?;
            optimizer.step(net, &grads)?;
            run.advance();
            run.log(&[("loss", &loss.to_tensor()?)])?;
            if run.step() == steps {
                run.checkpoint(net, optimizer)?;
                return Ok(());
            }
        }
    }
    Err("the epochs ended".into())
}

/// A folder with a run of some steps.
fn trained(folder: &Path, steps: u64) -> Result<(Net, AdamW), Failed> {
    let device = Device::cpu();
    let mut run = Run::at(folder, &device).setting("batch", 8).create()?;
    let (mut net, mut optimizer) = (Net::init(&device, 1)?, AdamW::new(0.01));
    train(&mut run, &device, &mut net, &mut optimizer, steps)?;
    run.finish()?;
    Ok((net, optimizer))
}

fn goes_on(device: &Device) -> Outcome {
    let directory = tempfile::tempdir()?;
    device.set_seed(5);
    let mut run = Run::at(directory.path().join("whole"), device).create()?;
    let (mut expected, mut optimizer) = (Net::init(device, 1)?, AdamW::new(0.01));
    train(&mut run, device, &mut expected, &mut optimizer, 21)?;
    let folder = directory.path().join("parts");
    for (steps, seed) in [(3, 5), (10, 99), (21, 0)] {
        // The new process has another random state.
        device.set_seed(seed);
        let (mut net, mut optimizer) = (Net::init(device, 1 + seed)?, AdamW::new(0.01));
        if steps == 3 {
            net = Net::init(device, 1)?;
        }
        let mut run = Run::at(&folder, device).open()?;
        assert_eq!(run.restore(&mut net, &mut optimizer)?, steps > 3);
        train(&mut run, device, &mut net, &mut optimizer, steps)?;
        if steps == 21 {
            assert_eq!(bits(&net)?, bits(&expected)?);
        }
    }
    let lines =
        |folder: &Path| read_metrics(folder).map(|lines| lines.into_iter().map(|line| (line.step, line.values)));
    assert!(lines(&folder)?.eq(lines(&directory.path().join("whole"))?));
    Ok(())
}

/// The names of the checkpoints.
fn names(folder: &Path) -> Result<Vec<String>, Failed> {
    let entries = fs::read_dir(folder.join("checkpoints"))?;
    let mut names: Vec<_> =
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect::<Result<_, Failed>>()?;
    names.sort();
    Ok(names)
}

fn kept() -> Outcome {
    let directory = tempfile::tempdir()?;
    let folder = directory.path();
    let device = Device::cpu();
    let net = Linear::new(2, 1).init(&device, Seed::new(1))?;
    let options =
        || Run::at(folder, &device).keep_last(2).keep_best("accuracy", Best::Highest).resume_command("train --resume");
    let mut run = options().create()?;
    for accuracy in [0.5, 0.9, f64::NAN, 0.9, 0.7] {
        run.advance();
        run.log(&[("accuracy", &accuracy)])?;
        run.checkpoint(&net, &Sgd::new(0.1))?;
    }
    assert_eq!(names(folder)?, ["step-00000002", "step-00000004", "step-00000005"]);
    // A metric belongs to the step where it was logged, not to later ones.
    run.advance();
    run.checkpoint(&net, &Sgd::new(0.1))?;
    assert_eq!(names(folder)?, ["step-00000002", "step-00000005", "step-00000006"]);
    let overview = run.finish()?;
    let (path, position, value) = overview.best.clone().expect("a best one");
    assert_eq!((path, position.step, value), (folder.join("checkpoints/step-00000002"), 2, 0.9));
    let said = overview.to_string();
    for part in
        ["finished, step 6", "last  step 6", "best  step 2", "highest accuracy 0.9", "to resume: train --resume"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
    // The same after a restart.
    let mut run = options().resume()?;
    assert_eq!(run.best(), Some(&*folder.join("checkpoints/step-00000002")));
    let (mut net, mut sgd) = (net.clone(), Sgd::new(0.0));
    assert!(run.restore(&mut net, &mut sgd)?);
    assert_eq!(sgd.lr(), 0.1);
    run.advance();
    run.log(&[("accuracy", &0.95)])?;
    run.checkpoint(&net, &sgd)?;
    run.checkpoint(&net, &sgd)?;
    assert_eq!(names(folder)?, ["step-00000007", "step-00000007.1"]);
    Ok(())
}

/// The error of resuming, which says how to continue. The checkpoint stays unchanged.
fn refused(folder: &Path, net: &mut dyn Module, optimizer: &mut dyn Optimizer) -> Result<String, Failed> {
    let contents = || Ok::<_, Failed>((names(folder)?, fs::read(folder.join("run.json"))?));
    let before = contents()?;
    let device = Device::cpu();
    let mut restore = || Run::at(folder, &device).resume_command("another program").resume()?.restore(net, optimizer);
    let error = restore().expect_err("it does not fit");
    assert_eq!(error.kind(), ErrorKind::Checkpoint, "{error}");
    assert!(contents()? == before, "{error}");
    Ok(error.to_string())
}

fn another() -> Outcome {
    let directory = tempfile::tempdir()?;
    let folder = directory.path();
    let device = Device::cpu();
    drop(trained(folder, 4)?);
    let mut other = Tiny::from_seed(&device, Seed::new(1))?;
    let before = bits(&other)?;
    let said = refused(folder, &mut other, &mut AdamW::new(0.1))?;
    assert!(said.contains("step-00000004, `model`: the file is of another model; nothing was loaded"), "{said}");
    assert_eq!(bits(&other)?, before);
    // A model that shares some names, with the same shapes.
    let mut larger = (Net::init(&device, 1)?, Linear::new(1, 1).init(&device, Seed::new(1))?);
    assert!(refused(folder, &mut larger, &mut AdamW::new(0.1))?.contains("missing"));
    let mut net = Net::init(&device, 1)?;
    let optimizers: [(&mut dyn Optimizer, &str); 3] = [
        (&mut Adam::new(0.1), "of the optimizer `adamw`, and this one is `adam`"),
        (&mut Sgd::new(0.1), "of the optimizer `adamw`, and this one is `sgd`"),
        (&mut Sgd::new(0.1).momentum(0.9), "of the optimizer `adamw`, and this one is `sgd`"),
    ];
    let before = bits(&net)?;
    for (optimizer, message) in optimizers {
        let said = refused(folder, &mut net, optimizer)?;
        assert!(said.contains("step-00000004, `optimizer`: ") && said.contains(message), "{said}");
        assert_eq!(bits(&net)?, before, "the model is unchanged");
    }
    // A file of another format version.
    for (path, name) in [("run.json", "run.json"), ("checkpoints/step-00000004/state.json", "state.json")] {
        let text = fs::read_to_string(folder.join(path))?;
        for format in ["1", "4"] {
            let other = unsealed(&text).replacen("\"format\": 3", &format!("\"format\": {format}"), 1);
            fs::write(folder.join(path), other)?;
            let said = refused(folder, &mut net, &mut AdamW::new(0.1))?;
            let expected = format!("is of format {format}, by meganeura 0.1");
            assert!(said.contains(name) && said.contains(&expected), "{said}");
        }
        fs::write(folder.join(path), text)?;
    }
    // With the right model and optimizer, the run still resumes.
    let mut run = Run::at(folder, &device).resume_command("the right program").resume()?;
    assert!(run.restore(&mut net, &mut AdamW::new(0.1))?);
    run.advance();
    run.checkpoint(&net, &AdamW::new(0.1))?;
    assert_eq!(run.finish()?.resume_command.as_deref(), Some("the right program"));
    Ok(())
}

/// A file without its checksum line.
fn unsealed(text: &str) -> String {
    text.split_inclusive('\n').filter(|line| !line.starts_with("  \"checksum\": ")).collect()
}

#[track_caller]
fn expect_error(options: Result<Run, Error>, kind: ErrorKind, parts: &[&str]) {
    let error = options.expect_err("an error");
    assert_eq!(error.kind(), kind, "{error}");
    for part in parts {
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
}

fn settings() -> Outcome {
    let directory = tempfile::tempdir()?;
    drop(trained(directory.path(), 2)?);
    let run = || Run::at(directory.path(), &Device::cpu());
    let other = run().setting("batch", 16).setting("seed", 1).resume();
    let message = "begun with other settings: `batch` was 8 and is 16, `seed` was not set and is 1";
    expect_error(other, ErrorKind::Argument, &[message]);
    let same = run().setting("batch", 8).resume()?;
    assert_eq!((same.setting("batch"), same.setting("seed")), (Some("8"), None));
    assert!(same.is_resumed());
    drop(same);
    // A program can read a setting that it does not set.
    assert_eq!(run().resume()?.setting("batch"), Some("8"));
    assert_eq!(Overview::of(directory.path())?.settings, [("batch".to_owned(), "8".to_owned())].into());
    Ok(())
}

fn folders() -> Outcome {
    let directory = tempfile::tempdir()?;
    let at = |name: &str| Run::at(directory.path().join(name), &Device::cpu());
    expect_error(
        at("absent").resume(),
        ErrorKind::Argument,
        &["there is no run to resume in", "absent", "run.json is missing"],
    );
    assert!(!directory.path().join("absent").exists(), "nothing was made");
    fs::write(directory.path().join("file"), "")?;
    expect_error(at("file").create(), ErrorKind::Io, &["file could not be created"]);
    expect_error(at("zero").keep_last(0).create(), ErrorKind::Argument, &["at least 1 checkpoint"]);
    expect_error(at("zero").every_steps(0).create(), ErrorKind::Argument, &["every 1 or more steps"]);
    drop(trained(&directory.path().join("run"), 2)?);
    let before = fs::read(directory.path().join("run/run.json"))?;
    expect_error(at("run").create(), ErrorKind::Argument, &["there is a run in", "already", "finished, step 2"]);
    assert_eq!(fs::read(directory.path().join("run/run.json"))?, before);
    // `create` accepts a folder that it left behind in a crash, but not a folder that lost its description.
    fs::create_dir(directory.path().join("half"))?;
    fs::write(directory.path().join("half/lock"), "")?;
    at("half").create()?;
    fs::remove_file(directory.path().join("run/run.json"))?;
    for run in [at("run").create(), at("run").open()] {
        expect_error(run, ErrorKind::Checkpoint, &["has parts of a run but no run.json"]);
    }
    fs::write(directory.path().join("run/run.json"), &before[..before.len() / 2])?;
    expect_error(at("run").resume(), ErrorKind::Checkpoint, &["run.json is damaged: EOF"]);
    fs::write(directory.path().join("run/run.json"), before)?;
    assert_eq!(at("run").resume()?.step(), 2);
    // If the checkpoints are missing, the run is not restarted over the metrics.
    fs::rename(directory.path().join("run/checkpoints"), directory.path().join("elsewhere"))?;
    for run in [at("run").resume(), at("run").open()] {
        expect_error(run, ErrorKind::Checkpoint, &["run was saved, but there is no checkpoint in", "put them back"]);
    }
    assert_eq!(read_metrics(directory.path().join("run"))?.len(), 2);
    fs::rename(directory.path().join("elsewhere"), directory.path().join("run/checkpoints"))?;
    assert_eq!(at("run").resume()?.step(), 2);
    Ok(())
}

fn damage() -> Outcome {
    let directory = tempfile::tempdir()?;
    let folder = directory.path();
    let device = Device::cpu();
    let (mut net, mut optimizer) = trained(folder, 2)?;
    let mut run = Run::at(folder, &device).resume()?;
    run.restore(&mut net, &mut optimizer)?;
    train(&mut run, &device, &mut net, &mut optimizer, 5)?;
    drop(run);
    let last = folder.join("checkpoints/step-00000005");
    for file in ["model.safetensors", "optimizer.safetensors", "state.json"] {
        let (path, bytes) = (last.join(file), fs::read(last.join(file))?);
        for damaged in [None, Some(&bytes[..0]), Some(&bytes[..bytes.len() / 2])] {
            match damaged {
                None => fs::remove_file(&path)?,
                Some(bytes) => fs::write(&path, bytes)?,
            }
            let error = Run::at(folder, &device).resume().expect_err("damaged").to_string();
            let remedy =
                format!("resume from {}: by `RunOptions::resume", folder.join("checkpoints/step-00000002").display());
            for part in ["the last checkpoint, ", "step-00000005, cannot be used", file, "Nothing was changed", &remedy]
            {
                assert!(error.contains(part), "{part}: {error}");
            }
            assert_eq!(names(folder)?, ["step-00000002", "step-00000005"]);
            assert_eq!(read_metrics(folder)?.len(), 5, "metrics are kept");
        }
        fs::write(&path, bytes)?;
    }
    assert_eq!(Run::at(folder, &device).resume()?.step(), 5, "with the file back, it resumes");
    fs::remove_file(last.join("state.json"))?;
    assert!(Overview::of(folder)?.damaged[0].contains("step-00000005"), "the overview reports it");
    // Follows the error's advice.
    fs::rename(&last, folder.join("away"))?;
    let mut run = Run::at(folder, &device).resume()?;
    let mut again = Net::init(&device, 3)?;
    assert!(run.restore(&mut again, &mut AdamW::new(0.0))?);
    assert_eq!(run.step(), 2);
    Ok(())
}

fn metrics() -> Outcome {
    let directory = tempfile::tempdir()?;
    let folder = directory.path();
    let device = Device::cpu();
    let (net, optimizer) = trained(folder, 4)?;
    let path = folder.join("metrics.jsonl");
    let whole = fs::read(&path)?;
    // Lines that a killed process logged after its last checkpoint, truncated anywhere, are replaced.
    let more = b"{\"batch\":5,\"epoch\":0,\"step\":5,\"time\":1}\n{\"batch\":6,\"epoch\":0,\"step\":6,\"time\":1}\n";
    for cut in 0..=more.len() {
        fs::write(&path, [&whole[..], &more[..cut]].concat())?;
        assert_eq!(read_metrics(folder)?.len(), 4 + more[..cut].iter().filter(|&&byte| byte == b'\n').count());
        let mut run = Run::at(folder, &device).resume()?;
        let (mut net, mut optimizer) = (net.clone(), AdamW::new(0.01));
        run.restore(&mut net, &mut optimizer)?;
        run.advance();
        run.log(&[("loss", &f64::INFINITY)])?;
        let lines = run.metrics()?;
        assert_eq!(lines.iter().map(|line| line.step).collect::<Vec<_>>(), [1, 2, 3, 4, 5], "cut at {cut}");
        assert_eq!(lines[4].values["loss"], f64::INFINITY);
        assert_eq!(Overview::of(folder)?.position, run.position(), "the position of the last line");
    }
    // Truncated further than any crash can.
    for cut in [0, 1, whole.len() - 1] {
        fs::write(&path, &whole[..cut])?;
        let error = Run::at(folder, &device).resume().expect_err("cut");
        assert_eq!(error.kind(), ErrorKind::Checkpoint);
        for part in ["metrics.jsonl has", &format!("{cut} bytes"), "something cut it off", "rename it"] {
            assert!(error.to_string().contains(part), "{part}: {error}");
        }
        assert_eq!(fs::read(&path)?, &whole[..cut]);
        assert!(Overview::of(folder)?.last.is_some(), "the overview still works");
    }
    // Follows the error's advice.
    fs::rename(&path, folder.join("metrics.old"))?;
    let mut run = Run::at(folder, &device).resume()?;
    assert!(run.restore(&mut net.clone(), &mut AdamW::new(0.0))?);
    run.checkpoint(&net, &optimizer)?;
    assert!(read_metrics(folder)?.is_empty());
    Ok(())
}

fn forgotten() -> Outcome {
    let directory = tempfile::tempdir()?;
    let device = Device::cpu();
    let (mut net, mut optimizer) = trained(directory.path(), 2)?;
    let resume = || Run::at(directory.path(), &device).resume();
    let mut run = resume()?;
    let error = run.checkpoint(&net, &optimizer).expect_err("nothing was restored");
    assert!(error.to_string().contains("goes on from step 2 (epoch 0, batch 2), but nothing was restored"), "{error}");
    let mut parts = run.restore_parts()?.expect("parts");
    assert_eq!(run.restore_parts().expect_err("twice").kind(), ErrorKind::Argument);
    parts.take_model("model", &mut net)?;
    let error = parts.take_model("average", &mut net).expect_err("not saved");
    assert!(error.to_string().contains("has no part called `average`; there is `optimizer`"), "{error}");
    let error = parts.finish().expect_err("the optimizer is left");
    assert!(error.to_string().contains("has parts that the program did not take: `optimizer`"), "{error}");
    drop(run);
    // A process that ends without `finish` is recorded.
    let overview = Overview::of(directory.path())?;
    assert!(matches!(&overview.status, Status::Failed(why) if why.contains("left early")), "{overview}");
    let mut run = resume()?;
    run.restore(&mut net, &mut optimizer)?;
    let said = run.fail("the loss is NaN")?.to_string();
    assert!(said.contains("failed, step 2 (epoch 0, batch 2): the loss is NaN"), "{said}");
    Ok(())
}

/// Restores with a growing memory limit: either the whole checkpoint is restored, or nothing.
fn no_room(device: &Device) -> Outcome {
    let directory = tempfile::tempdir()?;
    // A separate adapter, because the limit applies to the whole adapter.
    let device = Device::named(&device.to_string())?;
    let saved = trained(directory.path(), 3)?.0;
    let (mut net, mut optimizer) = (Net::init(&device, 9)?, AdamW::new(0.5));
    let before = bits(&net)?;
    let held = device.stats().peak_bytes;
    device.set_seed(7);
    let mut run = Run::at(directory.path(), &device).resume()?;
    let mut refused = 0;
    loop {
        device.limit_memory(held + refused * 4096);
        match run.restore(&mut net, &mut optimizer) {
            Ok(restored) => break assert!(restored),
            Err(error) => assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}"),
        }
        assert_eq!((bits(&net)?, optimizer.lr(), device.seed()), (before.clone(), 0.5, 7));
        assert!(optimizer.state_of(&net).tensors.is_empty());
        assert!(run.checkpoint(&net, &optimizer).is_err(), "it would replace the training");
        refused += 1;
        assert!(refused < 1000);
    }
    // One weight alone takes 36,864 bytes, and has two moments.
    assert!(refused > 20, "only {refused} tries were too few bytes");
    assert_eq!((bits(&net)?, optimizer.lr()), (bits(&saved)?, 0.01));
    Ok(())
}

fn due() -> Outcome {
    let directory = tempfile::tempdir()?;
    let device = Device::cpu();
    let net = Linear::new(1, 1).init(&device, Seed::new(1))?;
    let interrupt = Interrupt::new();
    let options = |name: &str| -> RunOptions { Run::at(directory.path().join(name), &device).interrupt(&interrupt) };
    let mut run = options("steps").every_steps(3).create()?;
    let mut due = Vec::new();
    for step in 1..=10 {
        run.advance();
        // A save for another reason does not shift the multiples of 3.
        if step == 4 || run.is_due() {
            due.push(step);
            run.checkpoint(&net, &Sgd::new(0.1))?;
        }
        assert!(!run.is_due(), "saved");
    }
    assert_eq!(due, [3, 4, 6, 9]);
    let mut timed = options("time").every(std::time::Duration::ZERO).create()?;
    assert!(!timed.is_due(), "there is nothing to save");
    timed.advance();
    assert!(timed.is_due() && !run.is_interrupted());
    let mut run = options("asked").create()?;
    run.advance();
    assert!(!run.is_due(), "the loop does not save");
    interrupt.request();
    assert!(!run.is_interrupted(), "a request in mid-step has no effect yet");
    run.advance();
    assert!(run.is_due() && run.is_interrupted());
    assert_eq!(run.finish()?.status, Status::Interrupted);
    Ok(())
}
