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
use std::time::Instant;

use clap::Parser;
use meganeura::data::{HorizontalFlip, Normalize};
use meganeura::optim::{Ema, Schedule, TrainStep};
use meganeura::prelude::*;
use meganeura::run::{Overview, Parts, Position, Run};
use meganeura::train::Progress;
use meganeura_examples::images::{self, Images};
use meganeura_examples::models::{UNet, UNetConfig};
use meganeura_examples::process::{Process, Sampler};
use meganeura_examples::training;
use meganeura_examples::{curve, pictures};
use serde_json::json;

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
    let world = options.training.world()?;
    let mut log = options.training.log(&world);
    let device = options.training.device(&world)?;
    writeln!(log, "Device: {device} — {}", device.reason())?;
    let seed = Seed::new(options.training.seed);

    let images = match &options.images.data {
        None => Images::digits(options.training.seed)?,
        Some(folder) => Images::open(folder, options.images.size, options.training.seed)?,
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
    let steps_per_epoch = training::steps_per_epoch(images.train.len(), options.batch)?;
    let process = Process::cosine(options.times);
    let config = UNetConfig { images: channels, channels: options.channels, groups: (options.channels / 4).min(32) };
    let mut net = UNet::init(&device, options.training.seed, config)?.recompute(options.recompute);
    if let (true, Some(folder)) = (options.draw, &options.training.run) {
        if !world.is_first() {
            return Ok(());
        }
        writeln!(log, "Weights of {}", load_average(options, folder, &mut net)?)?;
        for path in draw(options, &net, &process, shape, &device, folder)? {
            writeln!(log, "{}", path.display())?;
        }
        return Ok(());
    }
    options.training.load_weights(&mut net)?;
    world.share(&mut net)?;
    let mut average = Ema::new(&net, 0.999)?.warmup(true);
    let mut optimizer = AdamW::new(options.lr);
    let steps = options.epochs * steps_per_epoch as u64;
    let schedule = Schedule::cosine(options.lr, steps, 0.0).warmup(100.min(steps / 10));

    let mut run = options.training.open_run("diffusion", &device, &world, |run| {
        let run = run
            .setting("images", images.train.len())
            .setting("batch", options.batch)
            .setting("channels", options.channels);
        run.setting("times", options.times).setting("schedule", &schedule)
    })?;
    if let Some(mut parts) = run.restore_parts()? {
        parts.take_model("model", &mut net)?;
        parts.take_optimizer("optimizer", &mut optimizer, &net)?;
        parts.take_ema("average", &mut average)?;
        parts.finish()?;
    }
    writeln!(log, "{} parameters, {} images of {:?}", net.parameter_count(), images.train.len(), shape)?;
    writeln!(log, "{}, from {} on", run.folder().display(), run.position())?;

    let start = Instant::now();
    let mut progress = if world.is_first() { Progress::new(steps, run.step()) } else { Progress::hidden() };
    // Recorded with the first batch. The model may be sampled and saved in between.
    let mut step = TrainStep::new(&net, |net, [images, noise, image_share, noise_share, times]: &[Var; 5]| {
        let loss = net.forward(&(images * image_share + noise * noise_share), times).mse(noise);
        (loss.clone(), loss.all_mean(&world))
    })
    .gradients(|net, grads| grads.average(net, &world));
    let mut batches = images.train.batches(options.batch).shuffle(seed.field("order"));
    if images.may_be_flipped {
        batches = batches.transform(HorizontalFlip::new(0.5));
    }
    // Pixels are numbers from 0 to 1; noise lies around 0.
    let batches = batches.transform(Normalize::new(vec![0.5; channels], vec![0.5; channels]));
    let batches = batches.drop_last().workers(options.workers);
    'training: while let Some(batches) = run.next_epoch_of(&batches, options.epochs) {
        for batch in batches {
            let batch = batch?;
            schedule.set_lr(run.step(), &mut optimizer);
            let draw = run.step() as usize * world.size() + world.rank();
            let draw = process.draw(&batch.inputs, seed.field("draw").index(draw))?;
            let [image_share, noise_share] = &draw.shares;
            let inputs = [&batch.inputs, &draw.noise, image_share, noise_share, &draw.times];
            let (_, loss) = step.call(&mut optimizer, inputs)?;
            average.update(&net)?;
            run.advance();
            run.log(&[("loss", &loss)])?;
            if progress.is_due() {
                progress.show(run.step(), format!("loss {:.4}", loss.item()?));
            }
            if run.is_due() {
                checkpoint(&mut run, &net, &optimizer, &average)?;
            }
            if run.is_interrupted() {
                break 'training;
            }
        }
        run.end_epoch();
        if !world.is_first() {
            continue;
        }
        let epoch = run.position().epoch;
        if epoch.is_multiple_of(options.every) || epoch == options.epochs {
            let loss = training::recent_loss(&mut run, steps_per_epoch * options.every as usize)?;
            if !loss.is_finite() {
                return Err(run.fail("the loss is not finite")?.to_string().into());
            }
            progress.clear();
            writeln!(log, "epoch {epoch:3}   loss {loss:.4}")?;
            // The same noise each time, so that the pictures show the progress.
            let noise = Tensor::randn(&device, [SAMPLES, channels, height, width], seed.field("samples"))?;
            let samples = Sampler::Ddim.sample(
                |_, x, t| average.model().forward(x, t),
                &process,
                25,
                noise,
                seed,
                |_, _| Ok(()),
            )?;
            pictures::grid(&run.folder().join(format!("epoch-{epoch:04}.png")), &bright(&samples)?, shape, 8)?;
            checkpoint(&mut run, &net, &optimizer, &average)?;
        }
    }
    progress.clear();
    if run.is_interrupted() {
        writeln!(log, "\n{}", run.finish()?)?;
        return Ok(());
    }
    let seconds = start.elapsed().as_secs_f64();
    if !world.is_first() {
        return Ok(());
    }
    writeln!(log, "\ntrained for {seconds:.0} s")?;

    let folder = run.folder().to_owned();
    let [samples, denoising] = draw(options, average.model(), &process, shape, &device, &folder)?;
    let [loss, weights] = ["loss.svg", "unet.safetensors"].map(|name| folder.join(name));
    curve::draw(&loss, "Diffusion: training loss", &training::losses(&mut run)?, steps_per_epoch)?;
    average.model().save(&weights)?;
    for path in [samples, denoising, loss, weights] {
        writeln!(log, "{}", path.display())?;
    }
    let (steps, loss) = (run.step(), training::recent_loss(&mut run, steps_per_epoch)?);
    writeln!(log, "\n{}", run.finish()?)?;
    if options.training.json {
        let device = device.to_string();
        println!(
            "{}",
            json!({ "loss": loss, "device": device, "ranks": world.size(), "seconds": seconds, "steps": steps })
        );
    }
    Ok(())
}

fn checkpoint(run: &mut Run, net: &UNet, optimizer: &AdamW, average: &Ema<UNet>) -> meganeura::Result<()> {
    let mut parts = Parts::new();
    parts.put_model("model", net)?;
    parts.put_optimizer("optimizer", optimizer, net)?;
    parts.put_ema("average", average)?;
    run.save(parts)?;
    Ok(())
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
    let first = |x: &Tensor| Ok(bright(x)?[..images * channels * height * width].to_vec());
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
fn bright(images: &Tensor) -> meganeura::Result<Vec<f32>> {
    Ok(images.to_vec()?.iter().map(|x| 0.5 + 0.5 * x).collect())
}
