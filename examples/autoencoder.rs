//! Trains an autoencoder: encodes an image in a few numbers and reconstructs it from them.
//!
//! ```text
//! cargo run --release --example autoencoder                    # digits of 8×8 pixels in 8 numbers
//! cargo run --release --example autoencoder -- --data mnist --numbers 16
//! ```
//!
//! The numbers have no given meaning: the only goal is to reconstruct the image. The folder of the run holds unseen
//! images above their reconstructions (`drawn-again.png`), images decoded from codes between those of two images
//! (`between.png`), the loss curve and the weights. Ctrl-C saves and ends the training; `--resume` continues it.

use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use meganeura::data::Dataset;
use meganeura::optim::Schedule;
use meganeura::prelude::*;
use meganeura::run::Best;
use meganeura_examples::images::{self, Images};
use meganeura_examples::training::{self, Progress};
use meganeura_examples::{curve, pictures};
use serde_json::json;

/// Encodes an image in a few numbers, and decodes them.
#[derive(Module, Debug)]
#[module(sequential, config(
    /// Channels, height and width of an image; height and width are multiples of 4.
    image: [usize; 3],
    /// Channels after the first layer.
    width: usize,
    /// The numbers of the code.
    numbers: usize,
))]
struct Autoencoder {
    #[module(init = EncoderConfig { image, width, numbers })]
    encoder: Encoder,
    #[module(init = DecoderConfig { image, width, numbers })]
    decoder: Decoder,
}

/// Images `[N, C, H, W]` to `[N, numbers]`.
#[derive(Module, Debug)]
#[module(sequential, config(image: [usize; 3], width: usize, numbers: usize))]
struct Encoder {
    #[module(init = Conv2d::new(image[0], width, 3).padding(1), then = silu)]
    stem: Conv2d,
    #[module(init = Conv2d::new(width, 2 * width, 3).stride(2).padding(1), then = silu)]
    half: Conv2d,
    #[module(init = Conv2d::new(2 * width, 2 * width, 3).stride(2).padding(1), then = [silu, flatten])]
    quarter: Conv2d,
    #[module(init = Linear::new(2 * width * (image[1] / 4) * (image[2] / 4), numbers))]
    head: Linear,
}

/// `[N, numbers]` back to images `[N, C, H, W]`.
#[derive(Module, Debug)]
#[module(sequential, config(image: [usize; 3], width: usize, numbers: usize))]
struct Decoder {
    #[module(init = Linear::new(numbers, 2 * width * (image[1] / 4) * (image[2] / 4)), then = silu)]
    stem: Linear,
    #[module(init = Unflatten { height: image[1] / 4, width: image[2] / 4 })]
    unflatten: Unflatten,
    #[module(init = Upsample::nearest(2))]
    double: Upsample,
    #[module(init = Conv2d::new(2 * width, 2 * width, 3).padding(1), then = silu)]
    half: Conv2d,
    #[module(init = Upsample::nearest(2))]
    double_again: Upsample,
    #[module(init = Conv2d::new(2 * width, width, 3).padding(1), then = silu)]
    whole: Conv2d,
    #[module(init = Conv2d::new(width, image[0], 3).padding(1), then = sigmoid)]
    head: Conv2d,
}

/// Reshapes rows of numbers to images: `[N, C·height·width]` to `[N, C, height, width]`. A custom layer needs no more
/// than this.
#[derive(Module, Debug)]
struct Unflatten {
    #[module(skip)]
    height: usize,
    #[module(skip)]
    width: usize,
}

/// The layer is its own builder: it has no parameters.
impl Init for Unflatten {
    type Output = Self;

    fn build(self, _: &Device, _: Seed) -> meganeura::Result<Self> {
        Ok(self)
    }
}

impl Layer for Unflatten {
    fn forward(&self, x: &Var) -> Var {
        let channels = x.shape().elements() / (x.shape()[0] * self.height * self.width);
        x.reshape([x.shape()[0], channels, self.height, self.width])
    }
}

/// Trains an autoencoder: encodes an image in a few numbers and reconstructs it from them
#[derive(Parser, Debug)]
struct Options {
    #[command(flatten)]
    training: training::Options,
    #[command(flatten)]
    images: images::Options,
    /// Numbers that encode an image
    #[arg(long, default_value_t = 8)]
    numbers: usize,
    /// Channels after the first layer
    #[arg(long, default_value_t = 16)]
    width: usize,
    /// Passes over all images
    #[arg(long, default_value_t = 100)]
    epochs: u64,
    /// Images in one step
    #[arg(long, default_value_t = 64)]
    batch: usize,
    /// The initial learning rate; it falls to 0
    #[arg(long, default_value_t = 3e-3)]
    lr: f64,
    /// Threads that read images during training
    #[arg(long, default_value_t = 0)]
    workers: usize,
}

/// The number of unseen images in a row of the picture, and of pairs to interpolate.
const SHOWN: usize = 12;

fn main() -> ExitCode {
    meganeura_examples::run(train)
}

fn train(options: &Options) -> Result<(), Box<dyn Error>> {
    let world = options.training.world()?;
    let mut log = options.training.log(&world);
    let device = options.training.device(&world)?;
    writeln!(log, "Device: {device} — {}", device.reason())?;

    let images = match &options.images.data {
        None => Images::digits(options.training.seed)?,
        Some(folder) => Images::open(folder, options.images.size, options.training.seed)?,
    };
    let image @ [_, height, width] = images.shape()?;
    if !height.is_multiple_of(4) || !width.is_multiple_of(4) {
        return Err(
            format!("images of {height}×{width} pixels: both must be multiples of 4; --size scales pictures").into()
        );
    }
    training::expect_at_least("--numbers", 1, options.numbers as u64)?;
    training::expect_at_least("--width", 1, options.width as u64)?;
    let steps_per_epoch = training::steps_per_epoch(images.train.len(), options.batch)?;
    let config = AutoencoderConfig { image, width: options.width, numbers: options.numbers };
    let mut net = Autoencoder::init(&device, options.training.seed, config)?;
    let mut optimizer = AdamW::new(options.lr);
    let steps = options.epochs * steps_per_epoch as u64;
    let schedule = Schedule::cosine(options.lr, steps, 0.0);

    let mut run = options.training.open_run("autoencoder", &device, &world, |run| {
        let run =
            run.setting("images", images.train.len()).setting("batch", options.batch).setting("width", options.width);
        run.setting("numbers", options.numbers).setting("schedule", &schedule).keep_best("explained", Best::Highest)
    })?;
    run.restore(&mut net, &mut optimizer)?;
    world.share(&mut net)?;
    let pixels = image.iter().product::<usize>();
    writeln!(log, "{} parameters, {pixels} pixels in {} numbers", net.parameter_count(), options.numbers)?;
    writeln!(log, "{} images to train on, {} to test with", images.train.len(), images.test.len())?;
    writeln!(log, "{}, from {} on", run.folder().display(), run.position())?;

    let start = Instant::now();
    let mut progress = Progress::new(steps, run.step(), &world);
    let batches = images.train.batches(options.batch).shuffle(options.training.seed);
    let batches = batches.drop_last().workers(options.workers);
    'training: while let Some(batches) = run.next_epoch_of(&batches, options.epochs) {
        for batch in batches {
            let batch = batch?;
            schedule.set_lr(run.step(), &mut optimizer);
            let tape = Tape::new(&device);
            let x = tape.input(&batch.inputs);
            let loss = net.forward(&x).mse(&x);
            let grads = tape.backward(&loss)?.average(&net, &world)?;
            let loss = loss.all_mean(&world);
            optimizer.step(&mut net, &grads)?;

            run.advance();
            let loss = loss.to_tensor()?;
            run.log(&[("loss", &loss)])?;
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
        let explained = explained(&net, &images.test, &device)?;
        run.log(&[("explained", &explained)])?;
        let epoch = run.position().epoch;
        if epoch.is_multiple_of(10) || epoch == options.epochs {
            run.checkpoint(&net, &optimizer)?;
            let percent = 100.0 * explained;
            progress.suspend(|| writeln!(log, "epoch {epoch:3}   loss {loss:.5}   {percent:5.2} % explained"))?;
        }
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

    let explained = explained(&net, &images.test, &device)?;
    let (numbers, percent) = (options.numbers, 100.0 * explained);
    writeln!(log, "\n{numbers} numbers explain {percent:.1} % of the variance of unseen images, after {seconds:.0} s")?;
    let folder = run.folder().to_owned();
    let [again, between, loss, weights] =
        ["drawn-again.png", "between.png", "loss.svg", "autoencoder.safetensors"].map(|name| folder.join(name));
    let some = images.test.batches(2 * SHOWN).on(&device).next().ok_or("there are no images to test with")??.inputs;
    let some = Tape::inference(&device).input(&some);
    pictures::grid(&again, &drawn_again(&net, &some)?, image, some.shape()[0].div_ceil(2))?;
    pictures::grid(&between, &blended(&net, &some)?, image, SHOWN)?;
    curve::draw(&loss, "Autoencoder: training loss", &training::losses(&mut run)?, steps_per_epoch)?;
    net.save(&weights)?;
    for path in [again, between, loss, weights] {
        writeln!(log, "{}", path.display())?;
    }
    let steps = run.step();
    writeln!(log, "\n{}", run.finish()?)?;
    if options.training.json {
        let device = device.to_string();
        println!(
            "{}",
            json!({ "explained": explained, "device": device, "ranks": world.size(), "seconds": seconds, "steps": steps })
        );
    }
    Ok(())
}

/// The explained share of the variance between images: 0 for a model that always draws the mean image, 1 for perfect
/// reconstructions.
fn explained(net: &Autoencoder, dataset: &Dataset, device: &Device) -> Result<f64, meganeura::Error> {
    let (mut missed, mut sum, mut squares, mut count) = (0.0, Vec::new(), 0.0, 0.0);
    for batch in dataset.batches(250).on(device) {
        let images = batch?.inputs;
        let tape = Tape::inference(device);
        let x = tape.input(&images);
        let n = images.shape()[0] as f64;
        let pixels = images.shape().elements() as f64 / n;
        let (error, square, total) = (net.forward(&x).mse(&x), x.square().mean(), x.sum_over(&[0]).flatten());
        missed += f64::from(error.item()?) * n * pixels;
        squares += f64::from(square.item()?) * n * pixels;
        count += n;
        let total = total.to_vec()?;
        sum.resize(total.len(), 0.0);
        sum.iter_mut().zip(total).for_each(|(sum, total)| *sum += f64::from(total));
    }
    let differences = squares - sum.iter().map(|sum| sum * sum).sum::<f64>() / count;
    Ok(1.0 - missed / differences)
}

/// The first half of the images above their reconstructions, then the second half.
fn drawn_again(net: &Autoencoder, images: &Var) -> meganeura::Result<Vec<f32>> {
    let (before, after) = (images.to_vec()?, net.forward(images).to_vec()?);
    let half = images.shape()[0].div_ceil(2) * before.len() / images.shape()[0];
    let rows = before.chunks(half).zip(after.chunks(half));
    Ok(rows.flat_map(|(before, after)| [before, after]).flatten().copied().collect())
}

/// A row for each pair of images: decoded codes from the straight line between theirs.
fn blended(net: &Autoencoder, images: &Var) -> meganeura::Result<Vec<f32>> {
    let numbers = net.encoder.forward(images);
    let mut rows = Vec::new();
    for pair in 0..(images.shape()[0] / 2).min(6) {
        let [from, to] = [0, 1].map(|i| numbers.slice(0, 2 * pair + i..2 * pair + i + 1));
        for stage in 0..SHOWN {
            let share = stage as f64 / (SHOWN - 1) as f64;
            rows.extend(net.decoder.forward(&(&from * (1.0 - share) + &to * share)).to_vec()?);
        }
    }
    Ok(rows)
}
