//! Batch normalisation in training: its launches in networks, and its statistics of images in bf16.

use libtest_mimic::Trial;
use meganeura::nn::{BatchNorm2d, Conv2d, Conv2dConfig, Relu};
use meganeura::optim::{Optimizer, Sgd};
use meganeura::{Device, Grads, Init, Layer, Module, Result, Seed, Tape, Tensor, Var};

use crate::adapter::gpu_trial;
use crate::nets::{normal, tensor};
use crate::{Outcome, golden};

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    let mut gpu = |name: &str, run: fn(&Device) -> Outcome| {
        trials.push(gpu_trial(format!("batch_norm::{name}"), move |device| run(&device.for_testing(0))));
    };
    gpu("golden_plan", golden_plan);
    gpu("a_layer_adds_few_launches", launches);
    gpu("statistics_of_lines_are_precise", lines);
}

/// Two convolutions, each with batch normalisation, and the sum with the input.
#[derive(Module, Debug)]
struct Block {
    #[module(init = convolution())]
    first: Conv2d,
    #[module(init = BatchNorm2d::new(16))]
    norm: BatchNorm2d,
    #[module(init = convolution())]
    second: Conv2d,
    #[module(init = BatchNorm2d::new(16))]
    last: BatchNorm2d,
}

fn convolution() -> Conv2dConfig {
    Conv2d::new(16, 16, 3).padding(1).bias(false)
}

impl Layer for Block {
    fn forward(&self, x: &Var) -> Var {
        let y = self.norm.forward(&self.first.forward(x)).relu();
        (self.last.forward(&self.second.forward(&y)) + x).relu()
    }
}

/// The plan of a step of two blocks.
fn step(device: &Device) -> Result<String> {
    let mut net = (Block::init(device, Seed::new(1))?, Block::init(device, Seed::new(2))?);
    let tape = Tape::new(device);
    let x = tape.input(&tensor(device, "x", [2, 16, 6, 5])?);
    let loss = net.forward(&x).square().mean();
    let grads = tape.backward(&loss)?;
    drop(x);
    Sgd::new(0.1).momentum(0.9).step(&mut net, &grads)?;
    loss.item()?;
    Ok(device.plan_dumps().remove(0))
}

fn golden_plan(device: &Device) -> Outcome {
    golden::check_plan("plan_batch_norm_gpu", &step(device)?)
}

/// The launches of a forward pass, and those of a step, with and without the layer in between.
fn launches(device: &Device) -> Outcome {
    let build = || (convolution(), BatchNorm2d::new(16), Relu, convolution());
    for (shape, forward, step) in [([2, 16, 6, 5], 2, 4), ([8, 16, 66, 66], 3, 6)] {
        let counts = |net: &mut dyn Net| -> Result<[u64; 2]> {
            let x = tensor(device, "x", shape)?;
            let before = device.stats().launches;
            let tape = Tape::new(device);
            net.layer().forward(&tape.input(&x)).to_vec()?;
            let between = device.stats().launches;
            let tape = Tape::new(device);
            let loss = net.layer().forward(&tape.input(&x)).square().mean();
            let grads = tape.backward(&loss)?;
            net.step(&grads)?;
            loss.item()?;
            Ok([between - before, device.stats().launches - between])
        };
        let with = counts(&mut build().init(device, Seed::new(1))?)?;
        let without = counts(&mut (convolution(), Relu, convolution()).init(device, Seed::new(1))?)?;
        let added = [0, 1].map(|k| with[k] - without[k]);
        assert_eq!(added, [forward, step], "{shape:?}: {with:?} instead of {without:?}");
    }
    Ok(())
}

/// A network that can be trained.
trait Net {
    fn layer(&self) -> &dyn Layer;

    fn step(&mut self, grads: &Grads) -> Result<()>;
}

impl<M: Layer + Module> Net for M {
    fn layer(&self) -> &dyn Layer {
        self
    }

    fn step(&mut self, grads: &Grads) -> Result<()> {
        Sgd::new(0.1).momentum(0.9).step(self, grads)
    }
}

/// Statistics of images with channels innermost, whose numbers are exact in bf16: with a mean far above the spread, and
/// with an outlier at any place.
fn lines(device: &Device) -> Outcome {
    let device = device.for_testing_bf16(0);
    let shape @ [n, c, h, w] = [3, 24, 31, 33];
    let count = n * h * w;
    for (mean, step, outlier) in [(384.0, 2.0, 0.0), (0.0, 0.125, 1e6), (-384.0, 2.0, 1e8), (1.0, 0.0078125, 64.0)] {
        for at in [0, 1, 63, 64, 255, 256, 1023, 1024, count / 2, count - 1] {
            let mut x: Vec<f64> = normal("lines", n * c * h * w);
            // At most 40 steps away.
            x.iter_mut().for_each(|x| *x = mean + step * (8.0 * *x).round().clamp(-40.0, 40.0));
            for channel in 0..c {
                let place = (at / (h * w) * c + channel) * h * w + at % (h * w);
                if outlier != 0.0 {
                    x[place] = f64::from(f32::from_bits((outlier as f32).to_bits() & 0xffff_0000));
                }
            }
            let norm = BatchNorm2d::new(c).momentum(1.0).init(&device, Seed::new(1))?;
            let tape = Tape::new(&device);
            let _y = norm.forward(&tape.input(&Tensor::from_f64(&device, shape, &x)?));
            tape.apply()?;
            let means = norm.running_mean.value().to_f64_vec()?;
            let variances = norm.running_var.value().to_f64_vec()?;
            for (channel, (found_mean, found_variance)) in means.into_iter().zip(variances).enumerate() {
                let of = || x.iter().enumerate().filter(|(i, _)| i / (h * w) % c == channel).map(|(_, x)| *x);
                let centre = of().sum::<f64>() / count as f64;
                let variance = of().map(|x| (x - centre).powi(2)).sum::<f64>() / (count - 1) as f64;
                let size = centre.abs() + of().map(|x| (x - centre).abs()).sum::<f64>() / count as f64;
                let errors = [(found_mean - centre).abs() / size, (found_variance - variance).abs() / variance];
                // As for any form: a few dozen roundings.
                assert!(
                    errors.iter().all(|error| *error <= 24.0 * 6e-8),
                    "{outlier} at {at} among {mean} ± {step}: {found_mean:e} for {centre:e}, {found_variance:e} for \
                     {variance:e}"
                );
            }
        }
    }
    let dump = device.plan_dumps().join("");
    assert!(dump.contains("lines: channel_moments×"), "not in lines: {dump}");
    Ok(())
}
