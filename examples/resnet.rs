//! Learns to classify images with a ResNet-18: coloured shapes that it draws itself, MNIST, CIFAR, or your own
//! pictures.
//!
//! ```text
//! cargo run --release --example resnet                                          # coloured shapes
//! cargo run --release --example resnet -- --data mnist                          # a folder with MNIST's files
//! cargo run --release --features images --example resnet -- --data pets --size 64   # pets/cat/1.png, pets/dog/1.jpg, …
//! cargo run --release --example resnet -- --data cifar-10-batches-bin --width 64 --epochs 50 --batch 128 --workers 4   # on a GPU
//! ```
//!
//! Training images are shifted by a padded random crop, and flipped if a mirror image has the same class; `--workers`
//! sets the threads. The run's folder holds some augmented images, the images that the final model got wrong, the loss
//! curve, and the weights. Ctrl-C saves and ends the training; `--resume` continues it.

use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use meganeura::data::{Batches, Dataset, HorizontalFlip, Normalize, RandomCrop};
use meganeura::optim::{Schedule, TrainStep};
use meganeura::prelude::*;
use meganeura::run::Best;
use meganeura_examples::images::{self, Images};
use meganeura_examples::models::{ResNet18Gn, ResNet18GnConfig};
use meganeura_examples::training::{self, Progress};
use meganeura_examples::{curve, pictures};
use serde_json::json;

/// Trains a ResNet-18 to classify images
#[derive(Parser, Debug)]
struct Options {
    #[command(flatten)]
    training: training::Options,
    #[command(flatten)]
    images: images::Options,
    /// The number of shapes to draw for training
    #[arg(long, default_value_t = 8000, conflicts_with = "data")]
    shapes: usize,
    /// Channels after the first layer, an even number; the last blocks have 8 times as many
    #[arg(long, default_value_t = 16)]
    width: usize,
    /// Passes over all images
    #[arg(long, default_value_t = 5)]
    epochs: u64,
    /// Images per step
    #[arg(long, default_value_t = 64)]
    batch: usize,
    /// The highest learning rate; the rate rises to it and then falls to 0
    #[arg(long, default_value_t = 2e-3)]
    lr: f64,
    /// Threads that read images during training; useful if the GPU would otherwise wait for data
    #[arg(long, default_value_t = 0)]
    workers: usize,
}

fn main() -> ExitCode {
    meganeura_examples::run(train)
}

fn train(options: &Options) -> Result<(), Box<dyn Error>> {
    let world = options.training.world()?;
    let mut log = options.training.log(&world);
    let device = options.training.device(&world)?;
    writeln!(log, "Device: {device} — {}", device.reason())?;

    let images = match &options.images.data {
        // A quarter as many are drawn for testing.
        None if options.shapes < 4 => return Err(format!("--shapes {}: must be at least 4", options.shapes).into()),
        None => Images::shapes(options.shapes, options.training.seed)?,
        Some(folder) => Images::open(folder, options.images.size, options.training.seed)?,
    };
    let shape @ [channels, height, width] = images.shape()?;
    training::expect_multiple("--width", 2, options.width)?;
    let steps_per_epoch = training::steps_per_epoch(images.train.len(), options.batch)?;
    let groups = (options.width / 2).min(32);
    let config = ResNet18GnConfig { images: channels, width: options.width, groups, classes: images.classes };
    let mut net = ResNet18Gn::init(&device, options.training.seed, config)?;
    let mut optimizer = AdamW::new(options.lr).weight_decay(5e-2);
    let steps = options.epochs * steps_per_epoch as u64;
    let schedule = Schedule::one_cycle(options.lr, steps);

    let mut run = options.training.open_run("resnet", &device, &world, |run| {
        let run = run
            .setting("images", images.train.len())
            .setting("batch", options.batch)
            .setting("width", options.width)
            .setting("schedule", &schedule);
        run.keep_best("accuracy", Best::Highest)
    })?;
    run.restore(&mut net, &mut optimizer)?;
    world.share(&mut net)?;
    writeln!(log, "{} parameters, {shape:?} to {} classes", net.parameter_count(), images.classes)?;
    writeln!(log, "{} images to train on, {} to test with", images.train.len(), images.test.len())?;
    writeln!(log, "{}, from {} on", run.folder().display(), run.position())?;

    // Both have the same range of numbers; training images are also augmented.
    let normalise = Normalize::new(vec![0.5; channels], vec![0.25; channels]);
    let train = || {
        let batches = images.train.batches(options.batch).shuffle(options.training.seed).workers(options.workers);
        let batches = batches.drop_last().transform(RandomCrop::new(height, width).padding(height / 12));
        if images.may_be_flipped { batches.transform(HorizontalFlip::new(0.5)) } else { batches }
    };
    if world.is_first() {
        let first = train().epoch(0).on(&device).next().expect("an epoch has batches")?;
        let pixels = channels * height * width;
        let some: Vec<_> = first.inputs.to_vec()?.into_iter().take(48 * pixels).collect();
        pictures::grid(&run.folder().join("images.png"), &some, shape, 12)?;
    }

    let start = Instant::now();
    let mut progress = Progress::new(steps, run.step(), &world);
    // Recorded with the first batch. The model may be evaluated and saved in between.
    let mut step = TrainStep::new(&net, |net, (x, labels): &(Var, Var)| {
        let loss = net.forward(x).cross_entropy(labels);
        (loss.clone(), loss.all_mean(&world))
    })
    .gradients(|net, grads| grads.average(net, &world));
    let batches = train().transform(normalise.clone());
    'training: while let Some(batches) = run.next_epoch_of(&batches, options.epochs) {
        for batch in batches {
            let batch = batch?;
            schedule.set_lr(run.step(), &mut optimizer);
            let (_, loss) = step.call(&mut optimizer, (&batch.inputs, &batch.targets))?;
            run.advance();
            run.log(&[("loss", &loss), ("lr", &optimizer.lr())])?;
            progress.advance(&loss)?;
            if run.is_due() {
                run.checkpoint(&net, &optimizer)?;
            }
            if run.is_interrupted() {
                break 'training;
            }
        }
        run.end_epoch();
        if !world.is_first() {
            continue;
        }
        let loss = training::recent_loss(&mut run, steps_per_epoch)?;
        if !loss.is_finite() {
            return Err(run.fail("the loss is not finite")?.to_string().into());
        }
        let wrong = mistakes(&net, test(&images.test, &normalise), &device)?;
        let accuracy = share_right(&wrong, &images.test);
        run.log(&[("accuracy", &accuracy)])?;
        run.checkpoint(&net, &optimizer)?;
        let percent = 100.0 * accuracy;
        let epoch = run.position().epoch;
        progress.suspend(|| writeln!(log, "epoch {epoch:2}   loss {loss:.4}   test accuracy {percent:5.2} %"))?;
    }
    progress.finish();
    if run.is_interrupted() {
        writeln!(log, "\n{}", run.finish()?)?;
        return Ok(());
    }
    let seconds = start.elapsed().as_secs_f64();
    if !world.is_first() {
        return Ok(());
    }

    let wrong = mistakes(&net, test(&images.test, &normalise), &device)?;
    let accuracy = share_right(&wrong, &images.test);
    writeln!(log, "\n{:.2} % of unseen images are classified correctly, after {seconds:.0} s", 100.0 * accuracy)?;
    let folder = run.folder().to_owned();
    let [mistaken, loss, weights] = ["mistakes.png", "loss.svg", "resnet.safetensors"].map(|name| folder.join(name));
    let mut pixels = Vec::new();
    for &index in wrong.iter().take(48) {
        pixels.extend(images.test.get(index)?.0.values());
    }
    pictures::grid(&mistaken, &pixels, shape, 12)?;
    curve::draw(&loss, "ResNet-18: training loss", &training::losses(&mut run)?, steps_per_epoch)?;
    net.save(&weights)?;
    for path in [mistaken, loss, weights].iter().filter(|path| path.exists()) {
        writeln!(log, "{}", path.display())?;
    }
    let steps = run.step();
    writeln!(log, "\n{}", run.finish()?)?;
    if options.training.json {
        let device = device.to_string();
        println!(
            "{}",
            json!({ "test_accuracy": accuracy, "device": device, "ranks": world.size(), "seconds": seconds, "steps": steps })
        );
    }
    Ok(())
}

fn test(dataset: &Dataset, normalise: &Normalize) -> Batches {
    dataset.batches(250).transform(normalise.clone())
}

/// The positions of the misclassified images in the batches.
fn mistakes(net: &ResNet18Gn, batches: Batches, device: &Device) -> meganeura::Result<Vec<usize>> {
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for batch in batches.on(device) {
        let batch = batch?;
        let tape = Tape::inference(device);
        let taken_for = net.forward(&tape.input(&batch.inputs)).argmax(1).to_tensor()?;
        for (taken_for, label) in taken_for.to_u32_vec()?.into_iter().zip(batch.targets.to_u32_vec()?) {
            if taken_for != label {
                wrong.push(seen);
            }
            seen += 1;
        }
    }
    Ok(wrong)
}

fn share_right(wrong: &[usize], dataset: &Dataset) -> f64 {
    1.0 - wrong.len() as f64 / dataset.len().max(1) as f64
}
