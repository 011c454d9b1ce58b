//! Learns to draw handwritten digits from noise: a diffusion model (DDPM), in minutes on two CPU cores.
//!
//! ```text
//! cargo run --release --example diffusion
//! cargo run --release --example diffusion -- --data cifar-10-batches-bin --channels 128 --lr 2e-4 --epochs 500   # on a GPU
//! ```
//!
//! The model sees a noisy image, and learns to predict the noise. Drawing starts with pure noise, and repeatedly
//! removes a little of the predicted noise (`examples/src/process.rs`). The weights for drawing are a moving average of
//! the trained weights; `--draw` uses those of the last checkpoint, during the training or later. The folder of the run
//! holds samples from every few epochs, the final `samples.png`, the denoising steps of some of them in
//! `denoising.png`, the loss curve and the weights. Ctrl-C saves and ends the training; `--resume` continues it.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use meganeura::ErrorKind;
use meganeura::data::{HorizontalFlip, Normalize};
use meganeura::prelude::*;
use meganeura::run::{Overview, Position};
use meganeura_examples::images::{self, Images};
use meganeura_examples::models::{UNet, UNetConfig};
use meganeura_examples::pictures;
use meganeura_examples::process::{Process, Sampler};
use meganeura_examples::training;

/// Learns to draw images like its training data.
#[derive(Parser, Debug)]
struct Options {
    #[command(flatten)]
    training: training::Options,
    #[command(flatten)]
    images: images::Options,
    /// Channels of the first level of the model, a multiple of 8
    #[arg(long, default_value_t = 16)]
    channels: usize,
    /// Recompute the values inside each block in the backward pass: larger batches in the same memory
    #[arg(long)]
    recompute: bool,
    /// Passes over all images
    #[arg(long, default_value_t = 200)]
    epochs: u64,
    /// Images per step
    #[arg(long, default_value_t = 64)]
    batch: usize,
    /// The highest learning rate, reached after a warm-up of up to 100 steps; it then falls to 0
    #[arg(long, default_value_t = 2e-3)]
    lr: f64,
    /// The number of diffusion timesteps
    #[arg(long, default_value_t = 1000)]
    times: usize,
    /// The sampler of the final samples
    #[arg(long, default_value = "ddpm")]
    sampler: Sampler,
    /// Steps of the final samples [default: all timesteps for DDPM, 50 for DDIM]
    #[arg(long)]
    steps: Option<usize>,
    /// Do not train; draw with the weights of the last checkpoint of --run, also while another process trains there
    #[arg(long, requires = "run", conflicts_with_all = ["resume", "resume_from_last_good"])]
    draw: bool,
    /// Epochs between two pictures of samples
    #[arg(long, default_value_t = 20)]
    every: u64,
    /// Threads that read images during training
    #[arg(long, default_value_t = 0)]
    workers: usize,
}

/// Samples in a picture, in rows of eight.
const SAMPLES: usize = 64;

/// The number of images whose denoising is shown, and the number of its stages.
const STRIP: [usize; 2] = [6, 10];

fn main() -> ExitCode {
    meganeura_examples::run(train)
}

fn train(options: &Options) -> Result<(), Box<dyn Error>> {
    let session = options.training.begin()?;
    let seed = Seed::new(session.seed);
    let images = match &options.images.data {
        None => Images::digits(session.seed)?,
        Some(folder) => Images::open(folder, options.images.size, session.seed)?,
    };
    let shape @ [channels, height, width] = images.shape()?;
    if !height.is_multiple_of(4) || !width.is_multiple_of(4) {
        return Err(
            format!("images of {height}×{width} pixels: both must be multiples of 4; --size scales pictures").into()
        );
    }
    training::expect_at_least("--times", 1, options.times as u64)?;
    training::expect_at_least("--every", 1, options.every)?;
    training::expect_multiple("--channels", 8, options.channels)?;
    // Checked now, not after the training.
    if let Some(steps) = options.steps.filter(|steps| !(1..=options.times).contains(steps)) {
        return Err(format!("--steps {steps}: must be from 1 to {}, the value of --times", options.times).into());
    }
    let process = Process::cosine(options.times);
    let config = UNetConfig { images: channels, channels: options.channels, groups: (options.channels / 4).min(32) };
    let mut net = UNet::init(&session.device, session.seed, config)?.recompute(options.recompute);
    if let (true, Some(folder)) = (options.draw, &options.training.run) {
        if session.world.is_first() {
            session.say(format!("Weights of {}", load_average(options, folder, &mut net)?))?;
            for path in draw(options, &net, &process, shape, &session.device, folder)? {
                session.say(path.display())?;
            }
        }
        return Ok(());
    }
    session.load_weights(&mut net)?;
    let mut batches = session.batches(&images.train, options.batch)?.workers(options.workers);
    if images.may_be_flipped {
        batches = batches.transform(HorizontalFlip::new(0.5));
    }
    // Pixels are numbers from 0 to 1; noise lies around 0.
    let batches = batches.transform(Normalize::new(vec![0.5; channels], vec![0.5; channels])).map({
        let process = process.clone();
        move |image, _, seed| process.example(&image, seed)
    });
    session.say(format!("{} parameters, {} images of {shape:?}", net.parameter_count(), images.train.len()))?;

    let run = session.run("diffusion", |run| {
        let run = run.setting("images", images.train.len()).setting("batch", options.batch);
        run.setting("channels", options.channels).setting("times", options.times).setting("lr", options.lr)
    })?;
    let pictured = |net: &UNet, folder: &Path, epoch: u64| -> Result<(), Box<dyn Error>> {
        // The same noise each time, so that the pictures show the progress.
        let noise = Tensor::randn(&session.device, [SAMPLES, channels, height, width], seed.field("samples"))?;
        let samples = Sampler::Ddim.sample(|_, x, t| net.forward(x, t), &process, 25, noise, seed, |_, _| Ok(()))?;
        pictures::grid(&folder.join(format!("epoch-{epoch:04}.png")), &bright(&samples)?, shape, 8)
    };
    let report = Trainer::new(&mut net, batches, |net, (noisy, times), noise| net.forward(noisy, times).mse(noise))
        .epochs(options.epochs)
        .schedule(|steps| Schedule::cosine(options.lr, steps, 0.0).warmup(100.min(steps / 10)))
        .ema(0.999)
        .run(run)
        .save_every(options.every)
        .each_epoch(|at| {
            let epoch = at.position().epoch;
            match (at.average(), at.folder()) {
                (Some(net), Some(folder)) if at.is_first() && epoch.is_multiple_of(options.every) => {
                    pictured(net, folder, epoch)
                        .map_err(|error| meganeura::Error::new(ErrorKind::Io, error.to_string()))
                }
                _ => Ok(()),
            }
        })
        .log_to(session.log())
        .fit(&mut AdamW::new(options.lr))?;

    // The model now has the average's weights.
    session.conclude(&report, || {
        let folder = &report.overview.folder;
        for path in draw(options, &net, &process, shape, &session.device, folder)? {
            session.say(path.display())?;
        }
        net.save(folder.join("unet.safetensors"))?;
        // None, if nothing was left to train.
        let loss = report.metrics.get("epoch_loss").copied().unwrap_or(f64::NAN);
        Ok(vec![("loss", loss.into())])
    })
}

/// Gives the model the averaged weights of the last checkpoint, and returns the checkpoint's position. A run consists
/// of files, so reading them does not disturb the training.
fn load_average(options: &Options, folder: &Path, net: &mut UNet) -> Result<Position, Box<dyn Error>> {
    let run = Overview::of(folder)?;
    let program = ("program", "diffusion".to_owned());
    let sizes = [("channels", options.channels), ("times", options.times)].map(|(name, now)| (name, now.to_string()));
    for (name, now) in [program].into_iter().chain(sizes) {
        let then = run.settings.get(name).map_or("not set", String::as_str);
        if then != now {
            return Err(format!(
                "the run in {} was begun with other settings: `{name}` was {then} and is {now}",
                folder.display()
            )
            .into());
        }
    }
    let Some((checkpoint, position)) = run.last else {
        return Err(format!("{}: nothing is saved yet", folder.display()).into());
    };
    net.load(checkpoint.join("average.safetensors"))?.strict()?;
    Ok(position)
}

/// The two pictures: the final samples, and the denoising of the first of them.
fn draw(
    options: &Options,
    net: &UNet,
    process: &Process,
    shape: [usize; 3],
    device: &Device,
    folder: &Path,
) -> Result<[PathBuf; 2], Box<dyn Error>> {
    let [samples, denoising] = ["samples.png", "denoising.png"].map(|name| folder.join(name));
    let seed = Seed::new(options.training.seed).field("samples");
    let steps = options.steps.unwrap_or(match options.sampler {
        Sampler::Ddpm => options.times,
        Sampler::Ddim => 50,
    });
    let steps = steps.min(options.times);
    let [channels, height, width] = shape;
    let noise = Tensor::randn(device, [SAMPLES, channels, height, width], seed)?;

    let [images, stages] = STRIP;
    let first = |x: &Tensor| Ok::<_, meganeura::Error>(bright(x)?[..images * channels * height * width].to_vec());
    let mut seen: Vec<Vec<f32>> = vec![first(&noise)?];
    let drawn = options.sampler.sample(
        |_, x, t| net.forward(x, t),
        process,
        steps,
        noise,
        seed,
        |step, x| {
            if step * (stages - 1) / steps > (step - 1) * (stages - 1) / steps {
                seen.push(first(x)?);
            }
            Ok(())
        },
    )?;
    pictures::grid(&samples, &bright(&drawn)?, shape, 8)?;
    // A row for each image, from noise on the left to the result on the right.
    let size = channels * height * width;
    let rows: Vec<_> =
        (0..images).flat_map(|i| seen.iter().flat_map(move |x| &x[i * size..(i + 1) * size])).copied().collect();
    pictures::grid(&denoising, &rows, shape, seen.len())?;
    Ok([samples, denoising])
}

/// Converts numbers from -1 to 1 to brightness from 0 to 1.
fn bright(images: &Tensor) -> Result<Vec<f32>> {
    Ok(images.to_vec()?.iter().map(|x| 0.5 + 0.5 * x).collect())
}
