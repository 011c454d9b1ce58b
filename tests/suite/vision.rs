//! Layers of vision models in combination: second derivatives, the launches that views cost, and the training of a
//! small diffusion U-Net and a small residual net with batch normalisation.

use libtest_mimic::Trial;
use meganeura::check::Gradcheck;
use meganeura::prelude::*;

use crate::Outcome;
use crate::adapter::gpu_trial;
use crate::nets::{randomise, tensor};

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    let mut both = |name: &str, run: fn(&Device) -> Outcome| {
        trials.push(Trial::test(format!("vision::{name}"), move || run(&Device::cpu())));
        trials.push(gpu_trial(format!("vision::gpu::{name}"), move |device| run(&device.for_testing(0))));
    };
    both("nearest_upsampling_is_one_launch_each_way", launches);
    both("batch_norm_is_few_launches", batch_norm);
    both("a_diffusion_unet_learns", unet);
    both("a_residual_net_with_batch_norm_learns", resnet);
    trials.push(Trial::test("vision::second_derivatives", second_derivatives));
}

/// The gradient of `Σ c·layer(x)²` with respect to the input. The weights `c` are needed because the squares of
/// normalised values have a constant sum.
fn gradient(layer: &(dyn Layer + 'static), x: &[Var]) -> Vec<Var> {
    let y = layer.forward(&x[0]);
    let weights = tensor(&y.tape().device(), "weights", y.shape()).expect("fits");
    let loss = (y.square() * y.tape().input(&weights)).sum();
    match y.tape().backward(&loss).map(|grads| grads.of(&x[0])) {
        Ok(Some(dx)) => vec![dx],
        other => panic!("no gradient: {:?}", other.err()),
    }
}

/// Gradients of gradients by the input and the parameters.
fn second_derivatives() -> Outcome {
    let device = Device::cpu_with(Precision::Double);
    let boxed: [(Box<dyn Layer>, &[usize]); 7] = [
        (Box::new(Upsample::nearest((2, 3))), &[2, 2, 3, 2]),
        (Box::new(Upsample::bilinear(2)), &[1, 2, 3, 4]),
        (Box::new(Upsample::bilinear((3, 2)).align_corners(true)), &[1, 1, 2, 3]),
        (Box::new(AdaptiveAvgPool2d::new((2, 3))), &[2, 1, 5, 4]),
        (Box::new(PixelShuffle::new(2)), &[1, 4, 2, 3]),
        (Box::new(BatchNorm2d::new(2).init(&device, Seed::new(1))?), &[3, 2, 2, 2]),
        (Box::new(SelfAttention2d::new(4, 2).init(&device, Seed::new(1))?), &[1, 4, 2, 3]),
    ];
    for (mut layer, shape) in boxed {
        randomise(&mut *layer)?;
        let x = tensor(&device, "x", Shape::new(shape))?;
        let report = Gradcheck::default().samples(24).run(&*layer, &[x], gradient)?;
        assert!(report.entries.iter().any(|entry| entry.numeric != 0.0), "{report}");
        report.ok()?;
    }
    // The second derivative of an embedding's table: ∂²/∂w² of Σ w³ over the rows that are used.
    let words = Embedding::new(4, 2).init(&device, Seed::new(1))?;
    let twice = |words: &Embedding, x: &[Var]| {
        let tape = x[0].tape();
        let index = Tensor::indices(&tape.device(), [3], &[2, 0, 2]).expect("three");
        let loss = words.forward(&tape.input(&index)).square().square().sum();
        vec![tape.backward(&loss).expect("differentiable").get(&words.weight).expect("depends") * &x[0]]
    };
    Ok(Gradcheck::default().run(&words, &[tensor(&device, "factor", [4, 2])?], twice)?.ok()?)
}

fn launches(device: &Device) -> Outcome {
    let tape = Tape::new(device);
    let x = tape.input(&tensor(device, "x", [2, 3, 4, 5])?);
    let before = device.stats().launches;
    let y = x.upsample_nearest([2, 2]);
    y.to_vec()?;
    assert_eq!(device.stats().launches - before, 1, "forward");
    let dy = tape.input(&tensor(device, "dy", y.shape())?);
    let dx = tape.backward_with(&y, &dy)?.of(&x).expect("depends");
    let before = device.stats().launches;
    dx.to_vec()?;
    assert_eq!(device.stats().launches - before, 1, "backward");
    Ok(())
}

/// A convolution, batch normalisation and an activation: the launches of inference, and of a forward pass in training.
fn batch_norm(device: &Device) -> Outcome {
    let net = (Conv2d::new(3, 4, 1), BatchNorm2d::new(4), Relu).init(device, Seed::new(1))?;
    let x = tensor(device, "x", [2, 3, 4, 5])?;
    let launches = |tape: Tape| -> Result<u64> {
        let before = device.stats().launches;
        net.forward(&tape.input(&x)).to_vec()?;
        Ok(device.stats().launches - before)
    };
    let counts = (launches(Tape::inference(device))?, launches(Tape::new(device))?);
    // Inference computes two numbers per channel, and everything else inside of the convolution. Training reads the
    // convolution's result for its moments, and to apply them; a GPU stores the moments as these numbers.
    assert_eq!(counts, (2, if device.is_gpu() { 3 } else { 4 }));
    Ok(())
}

/// A U-Net of one level with a time embedding.
#[derive(Module, Debug)]
struct Unet {
    #[module(init = SinusoidalEmbedding::new(8))]
    time: SinusoidalEmbedding,
    #[module(init = Linear::new(8, 8))]
    shift: Linear,
    #[module(init = Conv2d::new(1, 8, 3).padding(1))]
    stem: Conv2d,
    #[module(init = Conv2d::new(8, 8, 3).stride(2).padding(1))]
    down: Conv2d,
    #[module(init = GroupNorm::new(2, 8))]
    norm: GroupNorm,
    #[module(init = SelfAttention2d::new(8, 2))]
    attention: SelfAttention2d,
    #[module(init = (Upsample::nearest(2), Conv2d::new(8, 8, 3).padding(1)))]
    up: (Upsample, Conv2d),
    #[module(init = Conv2d::new(16, 1, 3).padding(1))]
    head: Conv2d,
}

impl Unet {
    fn forward(&self, x: &Var, t: &Var) -> Var {
        let time = self.shift.forward(&self.time.forward(t).silu());
        let time = time.reshape([time.shape()[0], 8, 1, 1]);
        let skip = (self.stem.forward(x) + time).silu();
        let y = self.down.forward(&skip);
        let y = &y + self.attention.forward(&self.norm.forward(&y));
        self.head.forward(&Var::concat(&[&self.up.forward(&y), &skip], 1))
    }
}

fn unet(device: &Device) -> Outcome {
    let mut net = Unet::init(device, 1)?;
    let mut optimizer = AdamW::new(0.01);
    let (x, noise) = (tensor(device, "x", [4, 1, 6, 6])?, tensor(device, "noise", [4, 1, 6, 6])?);
    let t = Tensor::from_slice(device, [4], &[0.0, 1.0, 10.0, 500.0])?;
    let mut losses = Vec::new();
    for _ in 0..40 {
        let tape = Tape::new(device);
        let loss = net.forward(&tape.input(&x), &tape.input(&t)).mse(&tape.input(&noise));
        let grads = tape.backward(&loss)?;
        optimizer.step(&mut net, &grads)?;
        losses.push(loss.item()?);
    }
    assert_eq!(device.stats().plans, 1);
    assert!(losses[39] < 0.7 * losses[0], "{losses:?}");
    Ok(())
}

/// A stem, a block with a shortcut, and a head.
#[derive(Module, Debug)]
struct Resnet {
    #[module(init = (Conv2d::new(1, 8, 3).padding(1).bias(false), BatchNorm2d::new(8), Relu))]
    stem: (Conv2d, BatchNorm2d, Relu),
    #[module(init = (Conv2d::new(8, 8, 3).padding(1).bias(false), BatchNorm2d::new(8)))]
    block: (Conv2d, BatchNorm2d),
    #[module(init = (GlobalAvgPool2d, Linear::new(8, 2)))]
    head: (GlobalAvgPool2d, Linear),
}

impl Resnet {
    fn forward(&self, x: &Var) -> Var {
        let y = self.stem.forward(x);
        self.head.forward(&(self.block.forward(&y) + &y).relu())
    }
}

fn resnet(device: &Device) -> Outcome {
    let mut net = Resnet::init(device, 1)?;
    let mut optimizer = AdamW::new(0.02);
    // Images with a brighter top or a brighter bottom.
    let image =
        |k: usize, i: usize| f32::from(u8::from((i / 4 < 2) == k.is_multiple_of(2))) + ((k * 16 + i) as f32).sin();
    let x: Vec<_> = (0..8).flat_map(|k| (0..16).map(move |i| image(k, i))).collect();
    let (x, labels) =
        (Tensor::from_slice(device, [8, 1, 4, 4], &x)?, Tensor::indices(device, [8], &[0, 1, 0, 1, 0, 1, 0, 1])?);
    let mut losses = Vec::new();
    for _ in 0..40 {
        let tape = Tape::new(device);
        let loss = net.forward(&tape.input(&x)).cross_entropy(&labels);
        let grads = tape.backward(&loss)?;
        optimizer.step(&mut net, &grads)?;
        losses.push(loss.item()?);
    }
    assert!(losses[39] < 0.5 * losses[0], "{losses:?}");
    // There is only one batch, so by now the running statistics are nearly the batch's.
    let tape = Tape::inference(device);
    let learnt = net.forward(&tape.input(&x)).cross_entropy(&labels).item()?;
    assert!(learnt < losses[0], "{learnt} {losses:?}");
    let statistics = net.stem.1.running_var.value().to_vec()?;
    assert!(statistics.iter().all(|&v| v > 0.0 && v != 1.0), "{statistics:?}");
    Ok(())
}
