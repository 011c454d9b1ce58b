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

use clap::Parser;
use meganeura::data::{HorizontalFlip, Normalize, RandomCrop};
use meganeura::metric::Accuracy;
use meganeura::prelude::*;
use meganeura_examples::images::{self, Images};
use meganeura_examples::models::{ResNet18Gn, ResNet18GnConfig};
use meganeura_examples::{pictures, training};

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
    let session = options.training.begin()?;
    let images = match &options.images.data {
        // A quarter as many are drawn for testing.
        None if options.shapes < 4 => return Err(format!("--shapes {}: must be at least 4", options.shapes).into()),
        None => Images::shapes(options.shapes, session.seed)?,
        Some(folder) => Images::open(folder, options.images.size, session.seed)?,
    };
    let shape @ [channels, height, width] = images.shape()?;
    training::expect_multiple("--width", 2, options.width)?;
    let groups = (options.width / 2).min(32);
    let config = ResNet18GnConfig { images: channels, width: options.width, groups, classes: images.classes };
    let mut net = ResNet18Gn::init(&session.device, session.seed, config)?;
    session.load_weights(&mut net)?;
    session.say(format!("{} parameters, {shape:?} to {} classes", net.parameter_count(), images.classes))?;
    session.say(format!("{} images to train on, {} to test with", images.train.len(), images.test.len()))?;

    // Both have the same range of numbers; training images are also augmented.
    let normalise = Normalize::new(vec![0.5; channels], vec![0.25; channels]);
    let mut batches = session.batches(&images.train, options.batch)?.workers(options.workers);
    batches = batches.transform(RandomCrop::new(height, width).padding(height / 12));
    if images.may_be_flipped {
        batches = batches.transform(HorizontalFlip::new(0.5));
    }
    let test = images.test.batches(250).transform(normalise.clone());
    let run = session.run("resnet", |run| {
        let run = run.setting("images", images.train.len()).setting("batch", options.batch);
        run.setting("width", options.width).keep_best("accuracy", Best::Highest)
    })?;
    if session.world.is_first() {
        let first = batches.clone().epoch(0).on(&session.device).next().expect("an epoch has batches")?;
        let pixels: Vec<_> = first.inputs.to_vec()?.into_iter().take(48 * channels * height * width).collect();
        pictures::grid(&run.folder().join("images.png"), &pixels, shape, 12)?;
    }
    let batches = batches.transform(normalise);
    let report = Trainer::new(&mut net, batches, |net, x, labels| net.forward(x).cross_entropy(labels))
        .epochs(options.epochs)
        .schedule(|steps| Schedule::one_cycle(options.lr, steps))
        .run(run)
        .validate(test.clone(), |net, x, labels| (net.forward(x), labels.clone()))
        .measure("accuracy", Accuracy::new())
        .log_to(session.log())
        .fit(&mut AdamW::new(options.lr).weight_decay(5e-2))?;

    session.conclude(&report, || {
        let folder = &report.overview.folder;
        let wrong = mistakes(&net, test, &session.device)?;
        let accuracy = 1.0 - wrong.len() as f64 / images.test.len().max(1) as f64;
        session.say(format!("\n{:.2} % of unseen images are classified correctly", 100.0 * accuracy))?;
        let mut pixels = Vec::new();
        for &index in wrong.iter().take(48) {
            pixels.extend(images.test.get(index)?.0.values());
        }
        pictures::grid(&folder.join("mistakes.png"), &pixels, shape, 12)?;
        net.save(folder.join("resnet.safetensors"))?;
        Ok(vec![("test_accuracy", accuracy.into())])
    })
}

/// The positions of the misclassified images in the batches.
fn mistakes(net: &ResNet18Gn, batches: Batches, device: &Device) -> Result<Vec<usize>> {
    let mut wrong = Vec::new();
    for (number, batch) in batches.on(device).enumerate() {
        let batch = batch?;
        let taken_for = net.forward(&Tape::inference(device).input(&batch.inputs)).argmax(1).to_tensor()?;
        let answers = taken_for.to_u32_vec()?.into_iter().zip(batch.targets.to_u32_vec()?).enumerate();
        wrong.extend(answers.filter(|(_, (found, label))| found != label).map(|(index, _)| 250 * number + index));
    }
    Ok(wrong)
}
