//! The page's logic: a reader and a drawer of digits, which learn from the same images.

use std::fmt;

use meganeura::data::Dataset;
use meganeura::metric::Confusion;
use meganeura::optim::Ema;
use meganeura::prelude::*;
use meganeura::{Error, ErrorKind, Result};
use meganeura_examples::digits;
use meganeura_examples::models::{Denoiser, DenoiserConfig, Digits};
use meganeura_examples::process::{Process, Sampler};

use crate::learner::Learner;
use crate::parts;

/// Images per step.
const BATCH: usize = 64;

/// Diffusion times between image and noise.
const TIMES: usize = 1000;

/// Steps from noise to a drawing.
const DRAWING_STEPS: usize = 25;

/// Numbers in a hidden layer of the drawer.
const WIDTH: usize = 128;

/// Decay of the average of the drawer's weights, which draws better than the weights themselves.
const DECAY: f64 = 0.995;

/// The initial learning rates.
const READER_LR: f64 = 2e-3;
const DRAWER_LR: f64 = 2e-3;

/// A model of the session.
#[cfg_attr(target_family = "wasm", wasm_bindgen::prelude::wasm_bindgen)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Model {
    /// Reads digits: a convolutional net.
    Reader,
    /// Draws digits: a diffusion model.
    Drawer,
}

/// Both models, with their training. The same seed and the same device give the same weights, in a page or natively;
/// the reader gets the weights of the example `digits`.
pub struct Session {
    device: Device,
    seed: u64,
    train: Dataset,
    test: Dataset,
    reader: Learner<Digits, (Var, Var)>,
    drawer: Learner<Denoiser, [Var; 6]>,
    average: Ema<Denoiser>,
    process: Process,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({}, {} and {} steps)", self.device, self.reader.steps(), self.drawer.steps())
    }
}

impl Session {
    /// Untrained models.
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub fn new(device: &Device, seed: u64) -> Result<Self> {
        let (train, test) = digits::load()?.split(0.8, seed)?;
        let reader = Learner::new(Digits::init(device, seed)?, READER_LR, |net: &Digits, (images, digits)| {
            net.forward(images).cross_entropy(digits)
        });
        let net = Denoiser::init(device, seed, DenoiserConfig { width: WIDTH })?;
        let average = Ema::new(&net, DECAY)?.warmup(true);
        let drawer = Learner::new(net, DRAWER_LR, |net: &Denoiser, batch: &[Var; 6]| {
            let [images, digits, noise, image, rest, times] = batch;
            // Pixels are numbers from 0 to 1; noise lies around 0.
            let noisy = (images * 2.0 - 1.0) * image + noise * rest;
            net.forward(&noisy, times, digits).mse(noise)
        });
        let process = Process::cosine(TIMES);
        Ok(Self { device: device.clone(), seed, train, test, reader, drawer, average, process })
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The number of steps that a model has taken.
    #[must_use]
    pub fn steps(&self, model: Model) -> u64 {
        match model {
            Model::Reader => self.reader.steps(),
            Model::Drawer => self.drawer.steps(),
        }
    }

    /// The learning rate of a model.
    #[must_use]
    pub fn lr(&self, model: Model) -> f64 {
        match model {
            Model::Reader => self.reader.lr(),
            Model::Drawer => self.drawer.lr(),
        }
    }

    /// Sets the learning rate of a model, from the next step on.
    ///
    /// # Errors
    ///
    /// If it is not a positive number.
    pub fn set_lr(&mut self, model: Model, lr: f64) -> Result<()> {
        if !(lr.is_finite() && lr > 0.0) {
            return Err(Error::new(ErrorKind::Argument, format!("learning rate {lr}: must be a positive number")));
        }
        match model {
            Model::Reader => self.reader.set_lr(lr),
            Model::Drawer => self.drawer.set_lr(lr),
        }
        Ok(())
    }

    /// Takes a number of steps. Returns the loss of each.
    ///
    /// # Errors
    ///
    /// Those of the device; if a loss is NaN.
    pub async fn train(&mut self, model: Model, steps: usize) -> Result<Vec<f32>> {
        let mut losses = Vec::new();
        for _ in 0..steps {
            losses.push(match model {
                Model::Reader => self.train_reader().await?,
                Model::Drawer => self.train_drawer().await?,
            });
        }
        let mut values = Vec::new();
        for loss in losses {
            let value = loss.item_async().await?;
            if !value.is_finite() {
                return Err(Error::new(
                    ErrorKind::NotFinite,
                    "the loss is NaN or infinite: reset, and take a lower learning rate",
                ));
            }
            values.push(value);
        }
        Ok(values)
    }

    async fn train_reader(&mut self) -> Result<Tensor> {
        let (images, digits) = self.batch(self.reader.steps(), |epoch| self.seed.wrapping_add(epoch).into())?;
        self.reader.advance((&images, &digits)).await
    }

    async fn train_drawer(&mut self) -> Result<Tensor> {
        let (seed, step) = (Seed::new(self.seed), self.drawer.steps());
        let (images, digits) = self.batch(step, |epoch| seed.field("order").index(epoch as usize))?;
        let draw = self.process.draw(&images, seed.field("draw").index(step as usize))?;
        let [image, rest] = &draw.shares;
        let loss = self.drawer.advance([&images, &digits, &draw.noise, image, rest, &draw.times]).await?;
        self.average.update(self.drawer.net())?;
        Ok(loss)
    }

    /// The batch of a step: images and digits.
    fn batch(&self, step: u64, order: impl Fn(u64) -> Seed) -> Result<(Tensor, Tensor)> {
        let per_epoch = (self.train.len() / BATCH) as u64;
        let (epoch, index) = (step / per_epoch, (step % per_epoch) as usize);
        let batches = self.train.batches(BATCH).shuffle(order(epoch)).epoch(epoch).drop_last();
        let batch = batches.skip(index).on(&self.device).next().expect("as many as an epoch has")?;
        Ok((batch.inputs, batch.targets))
    }

    /// The reader's answers for the unseen digits.
    ///
    /// # Errors
    ///
    /// Those of the device; if a score is NaN.
    pub async fn evaluate(&self) -> Result<Confusion> {
        let batch = self.test.batches(self.test.len()).on(&self.device).next().expect("one batch")?;
        let tape = Tape::inference(&self.device);
        let scores = self.reader.net().forward(&tape.input(&batch.inputs)).to_tensor()?;
        let mut confusion = Confusion::new(digits::CLASSES)?;
        confusion.update_async(&scores, &batch.targets).await?;
        Ok(confusion)
    }

    /// The probability of each digit, for each image `[1, 8, 8]` with 0 for paper and 1 for ink: rows of ten.
    ///
    /// # Errors
    ///
    /// If the numbers are not whole images; those of the device.
    pub async fn read(&self, images: &[f32]) -> Result<Vec<f32>> {
        let count = images.len() / 64;
        let images = Tensor::from_slice(&self.device, [count, 1, 8, 8], images)?;
        let tape = Tape::inference(&self.device);
        self.reader.net().forward(&tape.input(&images)).softmax(1).to_vec_async().await
    }

    /// A number of rows of drawings of the digits 0 to 9, `[1, 8, 8]` each, from 0 to 1. The initial noise is always
    /// the same, so that the drawings show the progress.
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub async fn draw(&self, rows: usize) -> Result<Vec<f32>> {
        let count = rows * digits::CLASSES;
        let seed = Seed::new(self.seed).field("drawings");
        let noise = Tensor::randn(&self.device, [count, 1, 8, 8], seed)?;
        let wanted: Vec<u32> = (0..count).map(|i| (i % digits::CLASSES) as u32).collect();
        let wanted = Tensor::indices(&self.device, [count], &wanted)?;
        let net = self.average.model();
        let noise_in = |tape: &Tape, x: &Var, t: &Var| net.forward(x, t, &tape.input(&wanted));
        let drawn = Sampler::Ddim.sample(noise_in, &self.process, DRAWING_STEPS, noise, seed, |_, _| Ok(()))?;
        Ok(drawn.to_vec_async().await?.iter().map(|x| (0.5 + 0.5 * x).clamp(0.0, 1.0)).collect())
    }

    /// The weights of a model as a safetensors file; for the drawer, the averaged weights.
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub async fn save(&self, model: Model) -> Result<Vec<u8>> {
        match model {
            Model::Reader => self.reader.net().to_safetensors_async().await,
            Model::Drawer => self.average.model().to_safetensors_async().await,
        }
    }

    /// Loads the weights of a safetensors file. Returns the file's model.
    ///
    /// # Errors
    ///
    /// If the file belongs to neither model, or is damaged. Nothing has changed then.
    pub fn load(&mut self, bytes: &[u8]) -> Result<Model> {
        let Err(not_the_reader) = self.reader.load(bytes) else { return Ok(Model::Reader) };
        match self.drawer.load(bytes) {
            Ok(()) => {
                self.average = Ema::new(self.drawer.net(), DECAY)?.warmup(true);
                Ok(Model::Drawer)
            }
            Err(not_the_drawer) if not_the_drawer.message() == not_the_reader.message() => Err(not_the_reader),
            Err(not_the_drawer) => Err(Error::new(
                ErrorKind::Checkpoint,
                format!(
                    "these are the weights of neither model\nthe reader: {not_the_reader}\nthe drawer: {not_the_drawer}"
                ),
            )),
        }
    }

    /// The state of the training, to continue on any device.
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub async fn snapshot(&self) -> Result<Vec<u8>> {
        let [reader, reader_state] = self.reader.snapshot().await?;
        let [drawer, drawer_state] = self.drawer.snapshot().await?;
        let average = self.average.model().to_safetensors_async().await?;
        let counts = [self.seed, self.reader.steps(), self.drawer.steps(), self.average.updates()];
        let counts = counts.map(u64::to_le_bytes).concat();
        Ok(parts::join(&[&counts, &reader, &reader_state, &drawer, &drawer_state, &average]))
    }

    /// Continues from a [`snapshot`](Self::snapshot), on this device.
    ///
    /// # Errors
    ///
    /// If it is not a snapshot; those of the device.
    pub fn restore(device: &Device, snapshot: &[u8]) -> Result<Self> {
        let [counts, reader, reader_state, drawer, drawer_state, average_weights] = parts::split(snapshot)?;
        let [seed, reader_steps, drawer_steps, updates] = parts::numbers(counts)?;
        let mut session = Self::new(device, seed)?;
        session.reader.restore(device, [reader, reader_state], reader_steps)?;
        session.drawer.restore(device, [drawer, drawer_state], drawer_steps)?;
        let mut average = session.drawer.net().clone();
        average.load_safetensors(average_weights)?.strict()?;
        session.average = Ema::resume(average, DECAY, updates)?.warmup(true);
        Ok(session)
    }
}
