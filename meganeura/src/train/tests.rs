//! Trainings against loops that are written out, and their ends.

use std::cell::{Cell, RefCell};
use std::path::Path;

use super::*;
use crate::data::{Array, Batches, Dataset};
use crate::metric::{Accuracy, MeanOf};
use crate::module::{Module, ModuleExt};
use crate::nn::{Dropout, Linear, Relu};
use crate::optim::{Accumulate, AdamW, Ema, Optimizer, Plateau, Schedule, Sgd, TrainStep};
use crate::run::{Best, Interrupt, Run, Status, read_metrics};
use crate::{Device, ErrorKind, Init, Layer, Result, Seed, Tensor, Var};

type Net = (Linear, Relu, Dropout, Linear);

fn net(device: &Device) -> Net {
    (Linear::new(2, 8), Relu, Dropout::new(0.2), Linear::new(8, 2)).init(device, Seed::new(3)).unwrap()
}

/// Points, and the side of a line that they lie on.
fn data() -> Dataset {
    let points: Vec<f32> = (0..80u16).map(|i| (f32::from(i) * 0.37).sin()).collect();
    let labels = points.chunks(2).map(|point| u32::from(point[0] > point[1])).collect::<Vec<_>>();
    Dataset::new(points, [2], labels).unwrap()
}

fn batches() -> Batches {
    data().batches(8).shuffle(7)
}

fn loss(net: &Net, x: &Var, labels: &Var) -> Var {
    net.forward(x).cross_entropy(labels)
}

fn scores(net: &Net, x: &Var, labels: &Var) -> (Var, Var) {
    (net.forward(x), labels.clone())
}

fn bits(net: &dyn Module) -> Vec<u32> {
    net.leaves().iter().flat_map(|leaf| leaf.value().to_vec().unwrap()).map(f32::to_bits).collect()
}

/// A device whose random numbers no other test draws.
fn device() -> Device {
    let device = Device::cpu().for_testing(0);
    device.set_seed(11);
    device
}

#[test]
fn a_training_is_the_loop_that_it_stands_for() {
    let device = device();
    let mut by_hand = net(&device);
    let mut optimizer = AdamW::new(1.0);
    let mut average = Ema::new(&by_hand, 0.9).unwrap().warmup(true);
    let schedule = Schedule::cosine(1e-2, 15, 0.0);
    let mut step = TrainStep::new(&by_hand, |net: &Net, (x, t): &(Var, Var)| loss(net, x, t))
        .gradients(|net, grads| grads.clip_norm(net, 0.5))
        .accumulate(Accumulate::mean(2));
    let (mut number, mut losses) = (0, Vec::new());
    for epoch in batches().epochs(0..6) {
        for batch in epoch.on(&device) {
            let batch = batch.unwrap();
            schedule.set_lr(number / 2, &mut optimizer);
            losses.push(step.call(&mut optimizer, (&batch.inputs, &batch.targets)).unwrap().item().unwrap());
            number += 1;
            if number % 2 == 0 {
                average.update(&by_hand).unwrap();
            }
        }
    }
    drop(step);
    average.apply(&mut by_hand).unwrap();

    device.set_seed(11);
    let mut trained = net(&device);
    let seen = RefCell::new(Vec::new());
    let report = Trainer::new(&mut trained, batches(), loss)
        .epochs(6)
        .schedule(|steps| {
            assert_eq!(steps, 15);
            Schedule::cosine(1e-2, steps, 0.0)
        })
        .clip_norm(0.5)
        .accumulate(2)
        .ema(0.9)
        .each_step(|at| {
            seen.borrow_mut().push(at.results()[0].item()?);
            Ok(())
        })
        .quiet()
        .fit(&mut AdamW::new(1.0))
        .unwrap();
    assert_eq!((*seen.borrow()).len(), 30);
    assert_eq!(*seen.borrow(), losses);
    assert_eq!(bits(&trained), bits(&by_hand));
    let mean = losses[25..].iter().copied().map(f64::from).sum::<f64>() / 5.0;
    assert_eq!(report.metrics["epoch_loss"], mean);
    assert_eq!((report.position().step, report.position().epoch), (30, 6));
    assert_eq!((report.is_stopped, report.overview.status.clone()), (false, Status::Finished));
    let metrics: Vec<_> = report.metrics.iter().map(|(name, metric)| format!("{name} {metric:.4}")).collect();
    let shown = format!("{}\na run that is not kept: finished, step 30", metrics.join("   "));
    assert!(report.metrics.contains_key("epoch_loss") && report.to_string().starts_with(&shown), "{report}");
}

/// Trains in a folder, up to an epoch, and optionally stops in the middle of one.
fn train(folder: &Path, epochs: u64, interrupted_at: Option<u64>) -> (Net, Report) {
    let (device, interrupt) = (device(), Interrupt::new());
    let mut net = net(&device);
    let run = Run::at(folder, &device).interrupt(&interrupt).keep_best("accuracy", Best::Highest).open().unwrap();
    let report = Trainer::new(&mut net, batches(), loss)
        .epochs(epochs)
        .schedule(|_| Schedule::cosine(1e-2, 20, 0.0))
        .ema(0.9)
        .run(run)
        .validate(data().batches(16), scores)
        .measure("accuracy", Accuracy::new())
        .each_step(|at| {
            if Some(at.position().step) == interrupted_at {
                interrupt.request();
            }
            Ok(())
        })
        .quiet()
        .fit(&mut AdamW::new(1.0))
        .unwrap();
    (net, report)
}

#[test]
fn an_interrupted_training_ends_with_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let [whole, parts] = ["whole", "parts"].map(|name| folder.path().join(name));
    let (expected, report) = train(&whole, 4, None);
    assert!(!report.is_interrupted());
    let (_, report) = train(&parts, 4, Some(7));
    // The request is noticed after the next step.
    assert!(report.is_interrupted() && report.position().step == 8, "{report}");
    let (found, report) = train(&parts, 4, None);
    assert_eq!(bits(&found), bits(&expected));
    assert_eq!(report.position().step, 20);
    let lines = |folder: &Path| read_metrics(folder).unwrap().into_iter().map(|line| line.values).collect::<Vec<_>>();
    let (whole, parts) = (lines(&whole), lines(&parts));
    assert_eq!(whole.len(), 24);
    // The mean of the interrupted epoch is that of its second part.
    for (name, whole, parts) in whole
        .iter()
        .zip(&parts)
        .flat_map(|(whole, parts)| whole.iter().zip(parts.values()).map(|((name, whole), parts)| (name, whole, parts)))
    {
        assert!(whole == parts || name == "epoch_loss", "{name}: {whole} {parts}");
    }
}

#[test]
fn a_training_is_prolonged_on_purpose_only() {
    let folder = tempfile::tempdir().unwrap();
    let device = device();
    let train = |epochs, may_prolong| -> Result<Report> {
        let mut net = net(&device);
        let run = Run::at(folder.path(), &device).open()?;
        let trainer = Trainer::new(&mut net, batches(), loss).epochs(epochs).run(run).prolong(may_prolong).quiet();
        trainer.schedule(|steps| Schedule::cosine(1e-2, steps, 0.0)).fit(&mut Sgd::new(0.0))
    };
    assert_eq!(train(2, false).unwrap().position().step, 10);
    assert_eq!(train(2, false).unwrap().position().step, 10);
    let error = train(4, false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Argument);
    assert!(error.to_string().contains("it was cosine(0.01, 10, 0.0), and is cosine(0.01, 20, 0.0)"), "{error}");
    assert!(error.to_string().contains("`prolong(true)`"), "{error}");
    assert_eq!(train(4, true).unwrap().position().step, 20);
    // From then on, it is the schedule of the run.
    assert_eq!(train(4, false).unwrap().position().step, 20);
    let events = std::fs::read_to_string(folder.path().join("events.jsonl")).unwrap();
    assert_eq!(events.matches("`schedule` was cosine(0.01, 10, 0.0)").count(), 1, "{events}");
}

#[test]
fn the_best_weights_are_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let device = device();
    let mut net = net(&device);
    let kept = RefCell::new(Vec::new());
    let run = Run::at(folder.path(), &device).keep_best("score", Best::Highest).open().unwrap();
    let report = Trainer::new(&mut net, batches(), loss)
        .epochs(5)
        .run(run)
        .each_epoch(|at| {
            let score = [1.0, 3.0, 2.0, f64::NAN, 2.5][at.position().epoch as usize - 1];
            kept.borrow_mut().push(bits(at.model()));
            at.log(&[("score", &score)])
        })
        .load_best()
        .quiet()
        .fit(&mut Sgd::new(0.1))
        .unwrap();
    assert_eq!(bits(&net), kept.borrow()[1]);
    assert_eq!((report.overview.best.unwrap().2, report.metrics["score"]), (3.0, 2.5));
}

#[test]
fn a_training_ends_when_it_stops_improving() {
    let folder = tempfile::tempdir().unwrap();
    let device = device();
    let train = |epochs| {
        let mut net = net(&device);
        let lrs = RefCell::new(Vec::new());
        let report = Trainer::new(&mut net, batches(), loss)
            .epochs(epochs)
            .run(Run::at(folder.path(), &device).open().unwrap())
            .each_step(|at| {
                lrs.borrow_mut().push(at.optimizer().lr());
                Ok(())
            })
            .each_epoch(|at| {
                let score = [0.5, 0.4, 0.6, 0.6, 0.55, 0.7][at.position().epoch as usize - 1];
                at.log(&[("score", &score)])
            })
            .stop_early("score", Best::Lowest, 3)
            .plateau("score", Plateau::new(0.1).factor(0.5).patience(1))
            .quiet()
            .fit(&mut Sgd::new(0.1))
            .unwrap();
        (report.position().epoch, report.is_stopped, lrs.into_inner())
    };
    let (epoch, is_stopped, lrs) = train(4);
    assert_eq!((epoch, is_stopped), (4, false));
    assert_eq!(lrs.iter().step_by(5).copied().collect::<Vec<_>>(), [0.1; 4]);
    // A resumed training remembers that 0.4 was the best, and when the learning rate is due to fall.
    let (epoch, is_stopped, lrs) = train(6);
    assert_eq!((epoch, is_stopped), (5, true));
    assert_eq!(lrs, [0.05; 5]);
    let (epoch, is_stopped, lrs) = train(6);
    assert_eq!((epoch, is_stopped, lrs.len()), (5, true, 0));
}

#[test]
fn a_callback_ends_the_training_with_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let device = device();
    let mut net = net(&device);
    let report = Trainer::new(&mut net, batches(), loss)
        .epochs(5)
        .run(Run::at(folder.path(), &device).open().unwrap())
        .each_step(|at| {
            if at.position().step == 7 {
                at.stop();
            }
            Ok(())
        })
        .quiet()
        .fit(&mut Sgd::new(0.1))
        .unwrap();
    let (last, position) = report.overview.last.unwrap();
    assert_eq!((position.step, position.batch, report.is_stopped), (7, 2, true));
    let mut same = net.clone();
    crate::io::Checkpoint::load(&mut same, last.join("model.safetensors")).unwrap().strict().unwrap();
    assert_eq!(bits(&same), bits(&net));
}

#[test]
fn a_loss_that_is_not_finite_ends_the_training() {
    let folder = tempfile::tempdir().unwrap();
    let device = device();
    let mut net = net(&device);
    let train = |net: &mut Net, optimizer: &mut dyn Optimizer, run: Run, bad: u64| {
        let step = Cell::new(0_u64);
        let source = data().batches(8).map(move |x: Array<f32>, t: u32, _| Ok(((x, 1.0_f32), t)));
        Trainer::new(net, source, |net: &Net, (x, one), t| (loss(net, x, t) * one.mean(), one.mean()))
            .results(["one"])
            .epochs(2)
            .run(run)
            .each_step(|at| {
                step.set(step.get() + 1);
                if step.get() == bad {
                    let nan = Tensor::full(at.device(), [2], f32::NAN)?;
                    at.model_mut().3.bias.as_mut().unwrap().set(nan)?;
                }
                Ok(())
            })
            .quiet()
            .fit(optimizer)
    };
    let run = Run::at(folder.path(), &device).create().unwrap();
    let error = train(&mut net, &mut Sgd::new(0.1), run, 2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFinite);
    assert!(error.to_string().contains("(epoch 1, batch 0): the loss is not finite"), "{error}");
    assert!(!folder.path().join("checkpoints").exists(), "nothing of it is kept");
    // Steps that the optimizer skips are no reason to stop, unless no other is left.
    let unkept = || Run::unkept(&device).open().unwrap();
    let mut net = self::net(&device);
    let error = train(&mut net, &mut Sgd::new(0.1).skip_not_finite(true), unkept(), 5).unwrap_err();
    assert!(error.to_string().contains("(epoch 2, batch 0): the loss is not finite"), "{error}");
    let mut net = self::net(&device);
    let mut skipping = Sgd::new(0.1).skip_not_finite(true);
    assert!(train(&mut net, &mut skipping, unkept(), 8).is_ok());
    assert_eq!(skipping.skipped(), 2);
}

#[test]
fn validations_count_every_example_once() {
    let device = device();
    let mut net = net(&device);
    let mut log = Vec::new();
    // 40 examples, of which the last batch has 8.
    let test = || data().batches(16);
    let report = Trainer::new(&mut net, batches(), loss)
        .validate(test(), scores)
        .measure("accuracy", Accuracy::new())
        .measure("test_loss", MeanOf::new(|y, t| y.cross_entropy(t)))
        .measure("perplexity", MeanOf::new(|y, t| y.cross_entropy(t)).exp())
        .validate(test(), |net, x, t| (net.forward(x).softmax(1), t.clone()))
        .measure("most", MeanOf::new(|y, _| y.max_over(&[1])))
        .log_to(&mut log)
        .fit(&mut Sgd::new(0.1))
        .unwrap();
    let whole = evaluate(&net, data().batches(40), MeanOf::new(|y, t| y.cross_entropy(t)), scores).unwrap();
    assert!((report.metrics["test_loss"] - whole.value().unwrap()).abs() < 1e-6);
    assert!((report.metrics["perplexity"].ln() - report.metrics["test_loss"]).abs() < 1e-12);
    let accuracy = evaluate(&net, data().batches(3), Accuracy::new(), scores).unwrap();
    assert_eq!(report.metrics["accuracy"], accuracy.value().unwrap());
    assert!((0.5..1.0).contains(&report.metrics["most"]));
    let log = String::from_utf8(log).unwrap();
    let (loss, most) = (report.metrics["epoch_loss"], report.metrics["most"]);
    let expected =
        format!("epoch  1   loss {loss:.4}   accuracy {:.4}   most {most:.4}   perplexity", accuracy.value().unwrap());
    assert!(log.starts_with(&expected) && log.ends_with(" s\n"), "{log}");
}

#[test]
fn misuse_is_an_error() {
    let device = device();
    let mut net = net(&device);
    let folder = tempfile::tempdir().unwrap();
    let run = || Run::at(folder.path(), &device).open().unwrap();
    let refused = |configure: &dyn Fn(Trainer<'static, Net>) -> Trainer<'static, Net>| {
        let net = Box::leak(Box::new(net.clone()));
        let error = configure(Trainer::new(net, batches(), loss).quiet()).fit(&mut Sgd::new(0.1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Argument, "{error}");
        error.to_string()
    };
    let message = refused(&|trainer| trainer.measure("accuracy", Accuracy::new()));
    assert!(message.contains("`validate` comes before `measure`"), "{message}");
    let message = refused(&|trainer| trainer.accumulate(0));
    assert!(message.contains("`accumulate` takes at least 1 batch"), "{message}");
    let message = refused(&|trainer| trainer.load_best().run(run()));
    assert!(message.contains("`RunOptions::keep_best`"), "{message}");
    let message = refused(&|trainer| trainer.stop_early("accuracy", Best::Highest, 2));
    assert!(
        message.contains("`stop_early` follows `accuracy`, and the metrics of an epoch are `epoch_loss`"),
        "{message}"
    );
    let message =
        refused(&|trainer| trainer.schedule(|_| Schedule::constant(0.1)).plateau("epoch_loss", Plateau::new(0.1)));
    assert!(message.contains("cannot both set the learning rate"), "{message}");
    let message = refused(&|trainer| trainer.validate(data().batches(8), scores).measure("loss", Accuracy::new()));
    assert!(message.contains("two metrics are called `loss`"), "{message}");
    let message = refused(&|trainer| trainer.validate(data().batches(0), scores).measure("a", Accuracy::new()));
    assert!(message.contains("batch"), "{message}");
    let error =
        Trainer::new(&mut net, data().batches(64).drop_last(), loss).quiet().fit(&mut Sgd::new(0.1)).unwrap_err();
    assert!(error.to_string().contains("`drop_last` leaves no batch"), "{error}");
}

#[test]
fn a_search_for_the_learning_rate_changes_nothing() {
    let device = device();
    let mut net = net(&device);
    let (before, seed) = (bits(&net), device.seed());
    let whole = data().batches(40);
    let curve = Trainer::new(&mut net, whole, loss).clip_norm(1.0).accumulate(2).find_lr(Sgd::new(0.0)).unwrap();
    assert_eq!((bits(&net), device.seed()), (before, seed));
    let points = curve.points();
    assert!(points.len() > 50 && points.is_sorted_by(|a, b| a.0 < b.0), "{curve}");
    // The points are separable: some rate learns.
    let lr = curve.suggestion().unwrap();
    assert!((1e-2..10.0).contains(&lr), "{curve}");
}
