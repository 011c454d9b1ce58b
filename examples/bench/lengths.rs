//! Training on sequences of varying length, compared with each length on its own.

use std::time::Instant;

use meganeura::prelude::*;
use meganeura::{Error, ErrorKind, HostTimes, Result};

use crate::{median, milliseconds};

const CHARACTERS: usize = 64;
const WIDTH: usize = 128;
/// The length of the shortest sequence.
const SHORTEST: usize = 17;
/// The lengths that are also timed on their own.
const SAMPLED: usize = 10;

/// A transformer of two layers that predicts the next character.
#[derive(Module, Debug)]
struct Writer {
    #[module(init = Embedding::new(CHARACTERS, WIDTH))]
    character: Embedding,
    #[module(init = vec![TransformerEncoderLayer::new(WIDTH, 4).feed_forward(4 * WIDTH).dropout(0.0); 2])]
    layers: Vec<TransformerEncoderLayer>,
    #[module(init = Linear::new(WIDTH, CHARACTERS))]
    head: Linear,
}

impl Writer {
    fn loss(&self, codes: &Var) -> Var {
        let mut x = self.character.forward(codes);
        for layer in &self.layers {
            x = layer.forward(&x);
        }
        let count = codes.shape().elements();
        self.head.forward(&x).reshape([count, CHARACTERS]).cross_entropy(&codes.reshape([count]))
    }
}

/// What an epoch of varying lengths costs.
pub struct Times {
    /// The median of a step whose length was never seen before, in milliseconds, after the first tenth of them.
    pub first: f64,
    /// The kernels that were compiled, in each tenth of the lengths.
    pub kernels: Vec<u64>,
    /// A step of sampled lengths in later epochs, in random order, over a step that repeats the same length on a device
    /// that knows no other.
    pub ratio: f64,
    /// Likewise, of a step that repeats the length on the device that knows them all: what its kernels cost.
    pub ratio_of_kernels: f64,
    /// The host's milliseconds for a step in later epochs, without waiting: looking up, binding, encoding, submitting.
    pub host: [f64; 4],
    /// The same for steps that repeat a length.
    pub host_repeated: [f64; 4],
    /// The plans that the device keeps at the end.
    pub plans: usize,
    /// The median of the steps of later epochs.
    pub steady: f64,
}

/// A model in training on one device.
struct Training {
    device: Device,
    net: Writer,
    optimizer: AdamW,
    batch: usize,
}

impl Training {
    fn new(device: Device, batch: usize) -> Result<Self> {
        Ok(Self { net: Writer::init(&device, 42)?, device, optimizer: AdamW::new(1e-4), batch })
    }

    /// The milliseconds of a step.
    fn step(&mut self, length: usize) -> Result<f64> {
        let codes: Vec<u32> = (0..self.batch * length).map(|i| (i * i % CHARACTERS) as u32).collect();
        let codes = Tensor::indices(&self.device, [self.batch, length], &codes)?;
        let start = Instant::now();
        let tape = Tape::new(&self.device);
        let loss = self.net.loss(&tape.input(&codes));
        let grads = tape.backward(&loss)?;
        self.optimizer.step(&mut self.net, &grads)?;
        loss.item()?;
        Ok(milliseconds(start.elapsed()))
    }
}

/// Trains on `lengths` different lengths in random order, in several epochs. `open` opens the device anew: with a
/// device of its own, a length has kernels of its own.
pub fn run(open: impl Fn() -> Result<Device>, lengths: usize, batch: usize, epochs: u32) -> Result<Times> {
    if lengths < SAMPLED {
        return Err(Error::new(ErrorKind::Argument, format!("--lengths {lengths}: must be {SAMPLED} or more")));
    }
    let mut training = Training::new(open()?, batch)?;
    let mut random = fastrand::Rng::with_seed(7);
    let mut order: Vec<usize> = (SHORTEST..SHORTEST + lengths).collect();
    random.shuffle(&mut order);
    let (mut first, mut kernels) = (Vec::new(), Vec::new());
    for tenth in order.chunks(lengths.div_ceil(10)) {
        let before = training.device.stats().pipelines;
        first.push(tenth.iter().map(|&length| training.step(length)).collect::<Result<Vec<_>>>()?);
        kernels.push(training.device.stats().pipelines - before);
    }
    let mut varying = vec![Vec::new(); SHORTEST + lengths];
    let before = training.device.stats().host;
    for _ in 0..epochs {
        random.shuffle(&mut order);
        for &length in &order {
            varying[length].push(training.step(length)?);
        }
    }
    let mut all = varying.concat();
    let host = per_step(training.device.stats().host.since(&before), all.len());
    let repeat = |training: &mut Training, length| {
        let repeated = (0..epochs + 3).map(|_| training.step(length)).collect::<Result<Vec<_>>>()?;
        Ok::<_, Error>(of(&mut repeated[3..].to_vec()))
    };
    let (mut own, mut known, mut mixed) = (0.0, 0.0, 0.0);
    let before = training.device.stats().host;
    for sample in 0..SAMPLED {
        let length = SHORTEST + sample * (lengths - 1) / (SAMPLED - 1);
        mixed += of(&mut varying[length]);
        known += repeat(&mut training, length)?;
    }
    let host_repeated = per_step(training.device.stats().host.since(&before), SAMPLED * (epochs as usize + 3));
    for sample in 0..SAMPLED {
        let length = SHORTEST + sample * (lengths - 1) / (SAMPLED - 1);
        own += repeat(&mut Training::new(open()?, batch)?, length)?;
    }
    Ok(Times {
        first: of(&mut first[1..].concat()),
        kernels,
        plans: training.device.plan_dumps().len(),
        ratio: mixed / own,
        ratio_of_kernels: known / own,
        host,
        host_repeated,
        steady: of(&mut all),
    })
}

fn per_step(host: HostTimes, steps: usize) -> [f64; 4] {
    [host.look_up, host.bind, host.encode, host.submit].map(|time| milliseconds(time) / steps as f64)
}

fn of(times: &mut [f64]) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    median(times)
}
