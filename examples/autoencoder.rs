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

use clap::Parser;
use meganeura::metric::Measure;
use meganeura::prelude::*;
use meganeura::train::evaluate;
use meganeura_examples::images::{self, Images};
use meganeura_examples::{pictures, training};

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

    fn build(self, _: &Device, _: Seed) -> Result<Self> {
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
    let session = options.training.begin()?;
    let images = match &options.images.data {
        None => Images::digits(session.seed)?,
        Some(folder) => Images::open(folder, options.images.size, session.seed)?,
    };
    let image @ [_, height, width] = images.shape()?;
    if !height.is_multiple_of(4) || !width.is_multiple_of(4) {
        return Err(
            format!("images of {height}×{width} pixels: both must be multiples of 4; --size scales pictures").into()
        );
    }
    training::expect_at_least("--numbers", 1, options.numbers as u64)?;
    training::expect_at_least("--width", 1, options.width as u64)?;
    let config = AutoencoderConfig { image, width: options.width, numbers: options.numbers };
    let mut net = Autoencoder::init(&session.device, session.seed, config)?;
    session.load_weights(&mut net)?;
    let pixels = image.iter().product::<usize>();
    session.say(format!("{} parameters, {pixels} pixels in {} numbers", net.parameter_count(), options.numbers))?;
    session.say(format!("{} images to train on, {} to test with", images.train.len(), images.test.len()))?;

    let batches = session.batches(&images.train, options.batch)?.workers(options.workers);
    let run = session.run("autoencoder", |run| {
        let run = run.setting("images", images.train.len()).setting("batch", options.batch);
        run.setting("width", options.width).setting("numbers", options.numbers).keep_best("explained", Best::Highest)
    })?;
    let report = Trainer::new(&mut net, batches, |net, x, _| net.forward(x).mse(x))
        .epochs(options.epochs)
        .schedule(|steps| Schedule::cosine(options.lr, steps, 0.0))
        .run(run)
        .save_every(10)
        .validate(images.test.batches(250), |net, x, _| (net.forward(x), x.clone()))
        .measure("explained", Explained::default())
        .log_to(session.log())
        .fit(&mut AdamW::new(options.lr))?;

    session.conclude(&report, || {
        let (folder, test) = (&report.overview.folder, &images.test);
        let some =
            test.batches(2 * SHOWN).on(&session.device).next().ok_or("there are no images to test with")??.inputs;
        let some = Tape::inference(&session.device).input(&some);
        let columns = some.shape()[0].div_ceil(2);
        pictures::grid(&folder.join("drawn-again.png"), &drawn_again(&net, &some)?, image, columns)?;
        pictures::grid(&folder.join("between.png"), &blended(&net, &some)?, image, SHOWN)?;
        net.save(folder.join("autoencoder.safetensors"))?;
        let explained =
            evaluate(&net, test.batches(250), Explained::default(), |net, x, _| (net.forward(x), x.clone()))?;
        let (numbers, explained) = (options.numbers, explained.value()?);
        session
            .say(format!("\n{numbers} numbers explain {:.1} % of the variance of unseen images", 100.0 * explained))?;
        Ok(vec![("explained", explained.into())])
    })
}

/// The explained share of the variance between images: 0 for a model that always draws the mean image, 1 for perfect
/// reconstructions.
#[derive(Clone, Default)]
struct Explained {
    images: f64,
    /// The sum of all squared errors, and that of all squared pixels.
    missed: f64,
    squares: f64,
    /// The sum of the images.
    sum: Vec<f64>,
}

impl Measure for Explained {
    fn update(&mut self, drawn: &Tensor, images: &Tensor) -> Result<()> {
        let (drawn, pixels) = (drawn.to_f64_vec()?, images.to_f64_vec()?);
        self.images += images.shape()[0] as f64;
        self.missed += drawn.iter().zip(&pixels).map(|(y, x)| (y - x) * (y - x)).sum::<f64>();
        self.squares += pixels.iter().map(|x| x * x).sum::<f64>();
        let size = pixels.len() / images.shape()[0];
        self.sum.resize(size, 0.0);
        pixels.iter().enumerate().for_each(|(at, x)| self.sum[at % size] += x);
        Ok(())
    }

    fn gather(&mut self, world: &World) -> Result<()> {
        let all = world.sum(&[&[self.images, self.missed, self.squares], &self.sum[..]].concat())?;
        (self.images, self.missed, self.squares, self.sum) = (all[0], all[1], all[2], all[3..].to_vec());
        Ok(())
    }

    fn value(&self) -> Result<f64> {
        let mean = self.sum.iter().map(|sum| sum * sum).sum::<f64>() / self.images;
        Ok(1.0 - self.missed / (self.squares - mean))
    }
}

/// The first half of the images above their reconstructions, then the second half.
fn drawn_again(net: &Autoencoder, images: &Var) -> Result<Vec<f32>> {
    let (before, after) = (images.to_vec()?, net.forward(images).to_vec()?);
    let half = images.shape()[0].div_ceil(2) * before.len() / images.shape()[0];
    let rows = before.chunks(half).zip(after.chunks(half));
    Ok(rows.flat_map(|(before, after)| [before, after]).flatten().copied().collect())
}

/// A row for each pair of images: decoded codes from the straight line between theirs.
fn blended(net: &Autoencoder, images: &Var) -> Result<Vec<f32>> {
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
