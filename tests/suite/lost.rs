//! Lost devices: every call returns the error, nothing hangs, and training continues on another device from the last
//! checkpoint.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use meganeura::data::Dataset;
use meganeura::io::Checkpoint;
use meganeura::optim::{AdamW, Ema, Optimizer};
use meganeura::run::Run;
use meganeura::{Device, ErrorKind, ModuleExt, Precision, Result, Tape, Tensor};

use crate::Outcome;
use crate::adapter::{block_on, gpu_trial};
use crate::nets::{Tiny, bits, images, record, tensor};

/// The time after which a test counts as hanging: far more than any of these tests takes.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    let mut test = |name: &str, run: fn(&Device) -> Outcome| {
        trials.push(gpu_trial(format!("lost::gpu::{name}"), move |device| {
            // A separate device, so that other tests can continue.
            let name = device.to_string();
            unless_it_hangs(move || run(&Device::named(&name)?))
        }));
    };
    test("every_call_returns_the_error", every_call);
    test("a_lost_device_ends_a_training", in_the_middle);
    test("a_lost_device_wakes_waiting_threads", while_others_wait);
    test("training_resumes_from_the_last_checkpoint", resumes);
}

fn unless_it_hangs(test: impl FnOnce() -> Outcome + Send + 'static) -> Outcome {
    let (sender, receiver) = channel();
    let worker = thread::spawn(move || sender.send(test()));
    match receiver.recv_timeout(PATIENCE) {
        Ok(outcome) => outcome,
        Err(RecvTimeoutError::Timeout) => Err(format!("hangs: no answer within {PATIENCE:?}").into()),
        Err(RecvTimeoutError::Disconnected) => {
            worker.join().map(drop).map_err(|_| Failed::from("panicked; its message stands above"))
        }
    }
}

fn expect_lost<T>(what: &str, result: Result<T>) {
    match result.map(drop) {
        Ok(()) => panic!("{what}: succeeded on a lost device"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::DeviceLost, "{what}: {error}"),
    }
}

fn every_call(device: &Device) -> Outcome {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("net.safetensors");
    let mut net = Tiny::init(device, 1)?;
    net.save(&path)?;
    let (pixels, labels) = images(device, "lost", 4)?;
    let scalar = Tensor::full(device, [1], 3.0)?;
    let mut optimizer = AdamW::new(0.01);
    let mut average = Ema::new(&net, 0.9)?;
    let (_, grads) = record(&net, &pixels, &labels)?;
    optimizer.step(&mut net, &grads)?;
    let (loss, grads) = record(&net, &pixels, &labels)?;
    let compiled = device.compile([4, 1, 6, 6], |x| x.exp())?;
    let dataset = Dataset::new(vec![0.5; 8], [2], vec![0; 4])?;
    let on_host = Tensor::full(&Device::cpu(), [2], 1.0)?;
    let mut run = Run::at(folder.path().join("run"), device).create()?;

    device.lose(true);
    expect_lost("Device::wait", device.wait());
    expect_lost("Tensor::from_slice", Tensor::from_slice(device, [2], &[1.0, 2.0]));
    expect_lost("Tensor::from_f64", Tensor::from_f64(device, [2], &[1.0, 2.0]));
    expect_lost("Tensor::indices", Tensor::indices(device, [2], &[1, 2]));
    expect_lost("Tensor::full", Tensor::full(device, [2], 1.0));
    expect_lost("Tensor::zeros", Tensor::zeros(device, [2]));
    expect_lost("Tensor::to_vec", pixels.to_vec());
    expect_lost("Tensor::to_vec_async", block_on(pixels.to_vec_async()));
    expect_lost("Tensor::to_f64_vec", pixels.to_f64_vec());
    expect_lost("Tensor::to_u32_vec", labels.to_u32_vec());
    expect_lost("Tensor::to_u32_vec_async", block_on(labels.to_u32_vec_async()));
    expect_lost("Tensor::item", scalar.item());
    expect_lost("Tensor::item_async", block_on(scalar.item_async()));
    expect_lost("Tensor::to_device, away", pixels.to_device(&Device::cpu()));
    expect_lost("Tensor::to_device, there", on_host.to_device(device));
    expect_lost("Var::item", loss.item());
    expect_lost("Var::item_async", block_on(loss.item_async()));
    expect_lost("Var::to_tensor", loss.to_tensor());
    expect_lost("Var::to_vec", (loss * 2.0).to_vec());
    expect_lost("Optimizer::step", optimizer.step(&mut net, &grads));
    expect_lost("OptimizerState::to_safetensors", optimizer.state_of(&net).to_safetensors());
    expect_lost("Ema::update", average.update(&net));
    expect_lost("a new plan", Tape::new(device).input(&pixels).sin().to_vec());
    expect_lost("Compiled::call", compiled.call(&pixels));
    expect_lost("Checkpoint::save", net.save(&path));
    expect_lost("Checkpoint::load", net.load(&path));
    expect_lost("ModuleExt::to_device", net.to_device(&Device::cpu()));
    expect_lost("Net::init", Tiny::init(device, 1));
    expect_lost("Run::checkpoint", run.checkpoint(&net, &optimizer));
    expect_lost("Batches", dataset.batches(2).on(device).next().expect("two batches"));
    let fast = device.with_precision(Precision::Fast).map(|fast| Tensor::full(&fast, [2], 1.0));
    if let Ok(result) = fast {
        expect_lost("another precision of it", result);
    }
    Ok(())
}

/// The driver reports the loss when it is next polled. Calls in between may succeed, but none hangs or panics.
fn in_the_middle(device: &Device) -> Outcome {
    let mut net = Tiny::init(device, 1)?;
    let (pixels, labels) = images(device, "lost", 4)?;
    let mut optimizer = AdamW::new(0.01);
    let mut step = || {
        let (_, grads) = record(&net, &pixels, &labels)?;
        optimizer.step(&mut net, &grads)
    };
    (0..3).try_for_each(|_| step())?;
    device.lose(false);
    // Nothing is read, so only the limit on runs in flight makes the host wait.
    let ends = (0..100).find_map(|_| step().err()).expect("training on a lost device ends");
    assert_eq!(ends.kind(), ErrorKind::DeviceLost, "{ends}");
    assert!(ends.to_string().contains("was lost") && ends.to_string().contains("last checkpoint"), "{ends}");
    expect_lost("afterwards", step());
    Ok(())
}

fn while_others_wait(device: &Device) -> Outcome {
    let x = tensor(device, "x", [64, 64])?;
    let losses = thread::scope(|scope| {
        let read_on = || (0..1_000_000).find_map(|_| x.to_vec().err());
        let threads = [(); 3].map(|()| scope.spawn(read_on));
        thread::sleep(Duration::from_millis(20));
        device.lose(false);
        threads.map(|thread| thread.join().expect("no panic"))
    });
    for error in losses {
        let error = error.expect("a lost device cannot be read");
        assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
    }
    Ok(())
}

/// Trains six steps with a checkpoint after each. The device is lost after `lost_after` steps.
fn train(device: &Device, run: &mut Run, lost_after: Option<u64>) -> Result<Tiny> {
    let mut net = Tiny::init(device, 1)?;
    let mut optimizer = AdamW::new(0.01);
    run.restore(&mut net, &mut optimizer)?;
    let (pixels, labels) = images(device, "lost", 4)?;
    while run.step() < 6 {
        let (_, grads) = record(&net, &pixels, &labels)?;
        optimizer.step(&mut net, &grads)?;
        run.advance();
        if lost_after == Some(run.step()) {
            device.lose(false);
        }
        run.checkpoint(&net, &optimizer)?;
    }
    Ok(net)
}

fn resumes(device: &Device) -> Outcome {
    let folder = tempfile::tempdir()?;
    let name = device.to_string();
    let expected = bits(&train(device, &mut Run::at(folder.path().join("whole"), device).create()?, None)?)?;
    let path = folder.path().join("lost");
    let mut run = Run::at(&path, device).create()?;
    let error = train(device, &mut run, Some(3)).expect_err("the device is lost");
    assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
    drop(run);

    let device = Device::named(&name)?;
    let mut run = Run::at(&path, &device).resume()?;
    assert_eq!(run.step(), 2);
    assert_eq!(bits(&train(&device, &mut run, None)?)?, expected);
    Ok(())
}
