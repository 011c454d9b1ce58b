//! A WGAN-GP ([Gulrajani et al., 2017](https://arxiv.org/abs/1704.00028)): the gradient penalty trains the critic
//! through second derivatives of its normalisations.

use libtest_mimic::Trial;
use meganeura::nn::{GroupNorm, LayerNorm, Linear, Relu, Silu};
use meganeura::optim::{AdamW, Optimizer};
use meganeura::{Device, Layer, Module, ModuleExt, Result, Tape, Tensor, Var};

use crate::Outcome;
use crate::adapter::gpu_trial;
use crate::nets::normal;

const BATCH: usize = 64;

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    trials.push(Trial::test("second::wgan_gp_trains", || trains(&Device::cpu())));
    trials.push(gpu_trial("second::gpu::wgan_gp_trains", trains));
}

#[derive(Module, Debug)]
#[module(sequential)]
struct Critic {
    #[module(init = Linear::new(2, 32))]
    first: Linear,
    #[module(init = LayerNorm::new([32]))]
    layer_norm: LayerNorm,
    #[module(init = Silu)]
    activation: Silu,
    #[module(init = Linear::new(32, 32))]
    second: Linear,
    #[module(init = GroupNorm::new(4, 32), then = silu)]
    group_norm: GroupNorm,
    #[module(init = Linear::new(32, 1))]
    last: Linear,
}

#[derive(Module, Debug)]
#[module(sequential)]
struct Generator {
    #[module(init = Linear::new(2, 32))]
    first: Linear,
    #[module(init = Relu)]
    activation: Relu,
    #[module(init = Linear::new(32, 2))]
    last: Linear,
}

type Point = [f64; 2];

fn noise(name: &str) -> Vec<Point> {
    normal(name, 2 * BATCH).chunks_exact(2).map(|x| [x[0], x[1]]).collect()
}

/// Points of the distribution to learn: an ellipse away from the origin.
fn real(name: &str) -> Vec<Point> {
    noise(name).into_iter().map(|[x, y]| [1.5 + 0.6 * x, -1.0 + 0.3 * y + 0.2 * x]).collect()
}

fn input(tape: &Tape, points: &[Point]) -> Result<Var> {
    Ok(tape.input(&Tensor::from_f64(&tape.device(), [points.len(), 2], points.as_flattened())?))
}

/// `2·E‖x − y‖ − E‖x − x'‖ − E‖y − y'‖`, which is 0 only for equal distributions.
fn energy_distance(x: &[Point], y: &[Point]) -> f64 {
    let mean = |x: &[Point], y: &[Point]| {
        let distances = x.iter().flat_map(|a| y.iter().map(move |b| (a[0] - b[0]).hypot(a[1] - b[1])));
        distances.sum::<f64>() / (x.len() * y.len()) as f64
    };
    2.0 * mean(x, y) - mean(x, x) - mean(y, y)
}

fn generate(generator: &Generator, device: &Device, name: &str) -> Result<Vec<Point>> {
    let tape = Tape::inference(device);
    let points = generator.forward(&input(&tape, &noise(name))?).to_tensor()?.to_f64_vec()?;
    Ok(points.chunks_exact(2).map(|x| [x[0], x[1]]).collect())
}

/// The norms of the critic's gradient at points between real and fake ones.
fn slopes(critic: &Critic, tape: &Tape, real: &[Point], fake: &[Point], name: &str) -> Result<Var> {
    let between = |((a, b), mix): ((&Point, &Point), f64)| [0, 1].map(|k| a[k] + (b[k] - a[k]) * mix.rem_euclid(1.0));
    let points: Vec<_> = real.iter().zip(fake).zip(normal(name, BATCH)).map(between).collect();
    let x = input(tape, &points)?;
    let gradient = tape.backward(&critic.forward(&x).sum())?.of(&x).expect("the critic looks at its input");
    Ok((gradient.square().sum_over(&[1]) + 1e-12).sqrt())
}

fn trains(device: &Device) -> Outcome {
    let (mut critic, mut generator) = (Critic::init(device, 1)?, Generator::init(device, 2)?);
    let rule = || AdamW::new(4e-3).betas(0.5, 0.9).weight_decay(0.0);
    let (mut of_critic, mut of_generator) = (rule(), rule());
    let measure = |critic: &Critic, generator: &Generator| -> Result<(f64, f64)> {
        let (real, fake) = (real("held out"), generate(generator, device, "held out too")?);
        let slope = slopes(critic, &Tape::inference(device), &real, &fake, "mix")?.mean().item()?;
        Ok((energy_distance(&real, &fake), f64::from(slope)))
    };
    let (start, slope_at_start) = measure(&critic, &generator)?;
    for step in 0..60 {
        for turn in 0..5 {
            let name = format!("{step} {turn}");
            let (real, fake) = (real(&name), generate(&generator, device, &format!("fake {name}"))?);
            let tape = Tape::new(device);
            let wasserstein =
                critic.forward(&input(&tape, &fake)?).mean() - critic.forward(&input(&tape, &real)?).mean();
            let penalty = (slopes(&critic, &tape, &real, &fake, &name)? - 1.0).square().mean();
            let grads = tape.backward(&(wasserstein + penalty * 10.0))?;
            of_critic.step(&mut critic, &grads)?;
        }
        critic.freeze("**")?;
        let tape = Tape::new(device);
        let fake = generator.forward(&input(&tape, &noise(&format!("noise {step}")))?);
        let grads = tape.backward(&-critic.forward(&fake).mean())?;
        of_generator.step(&mut generator, &grads)?;
        critic.thaw("**")?;
    }
    let (end, slope) = measure(&critic, &generator)?;
    let story = format!("distance {start:.3} to {end:.3}, slope {slope_at_start:.3} to {slope:.3}");
    assert!(end < 0.2 * start, "{story}");
    assert!((slope - 1.0).abs() < 0.2 && (slope_at_start - 1.0).abs() > 2.0 * (slope - 1.0).abs(), "{story}");
    Ok(())
}
