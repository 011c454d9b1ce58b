//! Recomputed regions: the same bits in less memory, and side effects only once.

use std::cell::Cell;

use libtest_mimic::Trial;
use meganeura::nn::{BatchNorm2d, Conv2d, Dropout, GroupNorm, Linear, MultiheadAttention, Silu};
use meganeura::optim::{AdamW, Optimizer, Sgd, TrainStep};
use meganeura::{Device, Init, Layer, Module, ModuleExt, Param, Precision, Result, Seed, Tape, Tensor, Var};

use crate::Outcome;
use crate::adapter::{gpu_trial, is_encoded_by_wgpu, is_software};
use crate::nets::{bits, tensor};
use crate::numbers::{Computed, Reference, compare};

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    type Test = fn(&Device) -> Outcome;
    let tests: [(&str, Test); 12] = [
        ("gradients_are_the_same_to_the_bit", same_bits),
        ("a_training_is_the_same_to_the_bit", same_training),
        ("values_between_are_not_kept", less_memory),
        ("side_effects_happen_once", side_effects),
        ("a_region_inside_of_another_is_part_of_it", nested),
        ("held_values_and_values_read_between_stay", held),
        ("a_tape_may_be_used_again", used_again),
        ("gradients_of_gradients", twice),
        ("a_field_of_a_sequential_struct", derived),
        ("copies_that_wait_for_values_of_other_sizes", sizes),
        ("random_numbers_are_drawn_again", masks),
        ("a_backward_pass_inside_of_a_region", inside),
    ];
    for (name, test) in tests {
        trials.push(Trial::test(format!("recompute::cpu::{name}"), move || test(&Device::cpu())));
        trials.push(gpu_trial(format!("recompute::gpu::{name}"), move |device| test(&device.for_testing(0))));
    }
    trials.push(gpu_trial("recompute::gpu::in_fast_precision", close));
}

/// A block with random numbers, running statistics, and both kinds of normalisation.
#[derive(Module, Debug)]
struct Block {
    norm: GroupNorm,
    conv: Conv2d,
    batch_norm: BatchNorm2d,
    dropout: Dropout,
    last: Conv2d,
}

impl Layer for Block {
    fn forward(&self, x: &Var) -> Var {
        let h = self.conv.forward(&self.norm.forward(x).silu());
        let h = self.dropout.forward(&self.batch_norm.forward(&h).gelu());
        x + self.last.forward(&h).relu()
    }
}

#[derive(Module, Debug)]
struct Net {
    stem: Conv2d,
    blocks: Vec<Block>,
    attention: MultiheadAttention,
    head: Linear,
    #[module(skip)]
    recomputed: bool,
}

/// Channels of a [`Net`].
const WIDTH: usize = 8;

impl Net {
    fn new(device: &Device, blocks: usize, recomputed: bool) -> Result<Self> {
        let conv = || Conv2d::new(WIDTH, WIDTH, 3).padding(1);
        let block = |index: usize| {
            Ok(Block {
                norm: GroupNorm::new(2, WIDTH).init(device, 0)?,
                conv: conv().init(device, Seed::new(1).index(index))?,
                batch_norm: BatchNorm2d::new(WIDTH).init(device, 0)?,
                dropout: Dropout::new(0.25).init(device, 0)?,
                last: conv().init(device, Seed::new(2).index(index))?,
            })
        };
        Ok(Self {
            stem: Conv2d::new(3, WIDTH, 3).padding(1).init(device, 3)?,
            blocks: (0..blocks).map(block).collect::<Result<_>>()?,
            attention: MultiheadAttention::new(WIDTH, 2).init(device, 4)?,
            head: Linear::new(WIDTH, 3).init(device, 5)?,
            recomputed,
        })
    }
}

impl Layer for Net {
    fn forward(&self, x: &Var) -> Var {
        let x = self.stem.forward(x);
        let x = if self.recomputed { self.blocks.recompute(&x) } else { self.blocks.forward(&x) };
        let [batch, channels, height, width] = *x.shape().dims() else { panic!("images") };
        let attention = || {
            let sequence = x.reshape([batch, channels, height * width]).t();
            self.attention.forward(&sequence).tanh()
        };
        let x = if self.recomputed { x.tape().recompute(attention) } else { attention() };
        self.head.forward(&x.mean_over(&[1]))
    }
}

fn images(device: &Device) -> Result<Tensor> {
    tensor(device, "recompute", [4, 3, 7, 6])
}

/// The bits of a loss and of all gradients.
fn gradients(device: &Device, net: &Net) -> Result<Vec<(String, Vec<f32>)>> {
    let tape = Tape::with_seed(device, 7);
    let loss = net.forward(&tape.input(&images(device)?)).square().mean();
    let grads = tape.backward(&loss)?;
    let named = grads.named(net)?;
    let mut all = vec![("loss".to_owned(), loss.to_vec()?)];
    for (path, gradient) in named {
        all.push((path, gradient.to_vec()?));
    }
    Ok(all)
}

fn same_bits(device: &Device) -> Outcome {
    let [kept, recomputed] = [false, true].map(|recomputed| gradients(device, &Net::new(device, 3, recomputed)?));
    let (kept, recomputed) = (kept?, recomputed?);
    assert!(kept.len() > 20 && kept.iter().all(|(_, gradient)| gradient.iter().all(|x| x.is_finite())));
    for ((path, kept), (_, recomputed)) in kept.iter().zip(&recomputed) {
        same(device, path, recomputed, kept, 2e-5)?;
    }
    Ok(())
}

/// Expects the same bits, unless wgpu encodes a GPU's launches: then its driver may contract a multiplication and an
/// addition in one kernel but not in another, and numbers agree up to rounding.
fn same(device: &Device, what: &str, recomputed: &[f32], kept: &[f32], tolerance: f64) -> Outcome {
    if device.to_string().starts_with("CPU") || is_software(device) || !is_encoded_by_wgpu(device) {
        let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(recomputed), bits(kept), "{what}");
    }
    let double = |values: &[f32]| values.iter().copied().map(f64::from).collect();
    compare(what, &Computed(double(recomputed)), &Reference(double(kept)), tolerance).map(|_| ())
}

/// Fast precision rounds stored values to bf16, and recomputation stores fewer values.
fn close(device: &Device) -> Outcome {
    let fast = device.with_precision(Precision::Fast).unwrap_or_else(|_| device.for_testing_bf16(0));
    let [kept, recomputed] = [false, true].map(|recomputed| gradients(&fast, &Net::new(&fast, 3, recomputed)?));
    for ((path, kept), (_, recomputed)) in kept?.into_iter().zip(recomputed?) {
        let double = |values: Vec<f32>| values.into_iter().map(f64::from).collect();
        // bf16 has 8 significant bits, and several layers are chained.
        compare(&path, &Computed(double(recomputed)), &Reference(double(kept)), 0.03)?;
    }
    Ok(())
}

/// Trains with a tape for each step, and with a step that is recorded once.
fn same_training(device: &Device) -> Outcome {
    let x = images(device)?;
    let mut all = Vec::new();
    for recomputed in [false, true] {
        device.set_seed(11);
        let mut net = Net::new(device, 2, recomputed)?;
        let mut optimizer = AdamW::new(1e-2);
        for _ in 0..3 {
            let tape = Tape::new(device);
            let loss = net.forward(&tape.input(&x)).square().mean();
            optimizer.step(&mut net, &tape.backward(&loss)?)?;
        }
        all.push(weights(&net)?);
        device.set_seed(11);
        let net = Net::new(device, 2, recomputed)?;
        let (mut optimizer, mut step) =
            (AdamW::new(1e-2), TrainStep::new(&net, |net, x: &Var| net.forward(x).square().mean()));
        for _ in 0..3 {
            step.call(&mut optimizer, &x)?.item()?;
        }
        all.push(weights(&net)?);
    }
    // AdamW divides by the gradient's size, so the rounding error of a small gradient is a fraction of the learning
    // rate.
    same(device, "with tapes", &all[2], &all[0], 1e-2)?;
    same(device, "recorded once", &all[3], &all[1], 1e-2)?;
    assert_eq!(all[0], all[1], "a recorded step and tapes agree");
    Ok(())
}

/// The numbers of every parameter and buffer.
fn weights(net: &Net) -> Result<Vec<f32>> {
    let leaves = net.leaves().into_iter().map(|leaf| leaf.value().to_vec());
    Ok(leaves.collect::<Result<Vec<_>>>()?.concat())
}

/// The bytes of the slots of a training step on a device that has run nothing yet.
fn slots<M: Layer>(device: &Device, mut net: M) -> Result<usize> {
    let tape = Tape::with_seed(device, 7);
    let x = tape.input(&tensor(device, "slots", [8, 3, 16, 16])?);
    let grads = tape.backward(&net.forward(&x).square().mean())?;
    Sgd::new(0.1).step(&mut net, &grads)?;
    let [memory] = &device.plan_memory()[..] else { panic!("one plan") };
    Ok(memory.slots.iter().sum())
}

fn less_memory(device: &Device) -> Outcome {
    let mut bytes = Vec::new();
    for recomputed in [false, true] {
        let device = device.for_testing(0);
        bytes.push(slots(&device, Net::new(&device, 8, recomputed)?)?);
    }
    let [kept, recomputed] = bytes[..] else { panic!("two plans") };
    assert!(2 * recomputed < kept, "{recomputed} bytes with recomputation, {kept} without");
    Ok(())
}

fn side_effects(device: &Device) -> Outcome {
    let calls = Cell::new(0);
    let (once, plain) = (Net::new(device, 1, false)?, Net::new(device, 1, false)?);
    let x = tensor(device, "effects", [2, WIDTH, 5, 4])?;
    for (net, recomputed) in [(&once, true), (&plain, false)] {
        let tape = Tape::with_seed(device, 3);
        let x = tape.input(&x);
        let forward = || {
            calls.set(calls.get() + 1);
            net.blocks[0].forward(&x)
        };
        let y = if recomputed { tape.recompute(forward) } else { forward() };
        let grads = tape.backward(&y.square().sum())?;
        grads.get(&net.blocks[0].conv.weight).expect("it has one").to_vec()?;
        tape.apply()?;
    }
    assert_eq!(calls.get(), 2, "one call of each");
    // Running statistics moved only once, to the same values.
    assert_eq!(bits(&once)?, bits(&plain)?);
    assert_ne!(bits(&once)?, bits(&Net::new(device, 1, false)?)?);
    Ok(())
}

fn nested(device: &Device) -> Outcome {
    let w = Param::new(tensor(device, "nested", [5, 7])?);
    let gradient = |regions: usize| -> Result<Vec<f32>> {
        let tape = Tape::new(device);
        let x = tape.param(&w);
        let inner = |x: &Var| (x * x).tanh().exp();
        let y = match regions {
            0 => inner(&inner(&x)).matmul(&x.t()),
            1 => tape.recompute(|| inner(&inner(&x)).matmul(&x.t())),
            _ => tape.recompute(|| {
                let y = tape.recompute(|| inner(&x));
                tape.recompute(|| inner(&y)).matmul(&x.t())
            }),
        };
        tape.backward(&y.square().sum())?.get(&w).expect("it has one").to_vec()
    };
    assert_eq!(gradient(1)?, gradient(0)?);
    assert_eq!(gradient(2)?, gradient(0)?);
    Ok(())
}

fn held(device: &Device) -> Outcome {
    let w = Param::new(tensor(device, "held", [6, 6])?);
    let run = |recomputed: bool| -> Result<Vec<Vec<f32>>> {
        let tape = Tape::new(device);
        let x = tape.param(&w);
        let mut between = None;
        let mut f = || {
            let h = x.matmul(&x).tanh();
            between = Some(h.clone());
            h.matmul(&x).sin()
        };
        let y = if recomputed { tape.recompute(f) } else { f() };
        let between = between.expect("it was called");
        // The intermediate value is read before the backward pass, and used outside of the region.
        let (loss, seen) = ((&y * &between).sum(), between.to_vec()?);
        let grads = tape.backward(&loss)?;
        let of_between = grads.of(&between).expect("it is held").to_vec()?;
        Ok(vec![seen, of_between, grads.get(&w).expect("it has one").to_vec()?, y.to_vec()?])
    };
    assert_eq!(run(true)?, run(false)?);
    Ok(())
}

fn used_again(device: &Device) -> Outcome {
    let w = Param::new(tensor(device, "again", [8, 8])?);
    let run = |recomputed: bool| -> Result<Vec<Vec<f32>>> {
        let tape = Tape::new(device);
        let mut all = Vec::new();
        for pass in 0..12 {
            let x = tape.input(&tensor(device, &format!("pass {pass}"), [8, 8])?);
            let f = || x.matmul(&tape.param(&w)).tanh().matmul(&x).exp();
            let y = if recomputed { tape.recompute(f) } else { f() };
            all.push(y.mean().to_vec()?);
            let grads = tape.backward(&y.mean())?;
            all.push(grads.get(&w).expect("it has one").to_vec()?);
        }
        Ok(all)
    };
    assert_eq!(run(true)?, run(false)?);
    Ok(())
}

/// The gradient of the squared norm of a gradient.
fn twice(device: &Device) -> Outcome {
    let layers = (Linear::new(4, 6), Silu, Linear::new(6, 1)).init(device, 8)?;
    let run = |recomputed: bool| -> Result<Vec<f64>> {
        let tape = Tape::new(device);
        let x = tape.input(&tensor(device, "twice", [3, 4])?);
        let y = if recomputed { tape.recompute(|| layers.forward(&x)) } else { layers.forward(&x) };
        let gradient = tape.backward(&y.sum())?.of(&x).expect("it is held");
        let grads = tape.backward(&gradient.square().sum())?;
        grads.get(&layers.0.weight).expect("it has one").to_tensor()?.to_f64_vec()
    };
    compare("the gradient", &Computed(run(true)?), &Reference(run(false)?), 1e-6)?;
    Ok(())
}

/// A layer with many intermediate values.
type Wide = (Silu, Conv2d, Silu, Conv2d);

#[derive(Module)]
#[module(sequential)]
struct Kept {
    #[module(init = Conv2d::new(3, WIDTH, 3).padding(1))]
    stem: Conv2d,
    #[module(init = vec![(Silu, Conv2d::new(WIDTH, WIDTH, 3).padding(1), Silu, Conv2d::new(WIDTH, WIDTH, 1)); 6])]
    blocks: Vec<Wide>,
}

#[derive(Module)]
#[module(sequential)]
struct Recomputed {
    #[module(init = Conv2d::new(3, WIDTH, 3).padding(1))]
    stem: Conv2d,
    #[module(init = vec![(Silu, Conv2d::new(WIDTH, WIDTH, 3).padding(1), Silu, Conv2d::new(WIDTH, WIDTH, 1)); 6], recompute)]
    blocks: Vec<Wide>,
}

fn derived(device: &Device) -> Outcome {
    let (one, other) = (device.for_testing(0), device.for_testing(0));
    let (kept, recomputed) = (slots(&one, Kept::init(&one, 1)?)?, slots(&other, Recomputed::init(&other, 1)?)?);
    assert!(recomputed < kept, "{recomputed} bytes with recomputation, {kept} without");
    Ok(())
}

/// Recomputed elementwise work waits for a bare product of another size.
fn sizes(device: &Device) -> Outcome {
    for [rows, inputs, between] in [[24, 8, 64], [24, 64, 8], [3, 70, 70]] {
        let weights = [("first", [inputs, between]), ("second", [between, 5])];
        let [first, second] = weights.map(|(name, shape)| tensor(device, name, shape).map(Param::new));
        let (first, second) = (first?, second?);
        let x = tensor(device, "sizes", [rows, inputs])?;
        let run = |recomputed: bool| -> Result<Vec<Vec<f32>>> {
            let tape = Tape::new(device);
            let x = tape.input(&x);
            let f = || x.silu().matmul(&tape.param(&first));
            let y = if recomputed { tape.recompute(f) } else { f() };
            let grads = tape.backward(&y.matmul(&tape.param(&second)).sum())?;
            let gradients = [&first, &second].map(|weight| grads.get(weight).expect("it has one").to_vec());
            gradients.into_iter().collect()
        };
        assert_eq!(run(true)?, run(false)?, "{rows}x{inputs}x{between}");
    }
    Ok(())
}

/// Dropout masks would take as much memory as the values that they mask.
fn masks(device: &Device) -> Outcome {
    let mut bytes = Vec::new();
    for recomputed in [false, true] {
        let device = device.for_testing(0);
        let layer = || (Conv2d::new(3, 3, 3).padding(1), Dropout::new(0.5));
        let layers = (0..12).map(|index| layer().init(&device, index)).collect::<Result<Vec<_>>>()?;
        bytes.push(slots(&device, Chain { layers, recomputed })?);
    }
    assert!(3 * bytes[1] < 2 * bytes[0], "{} bytes with recomputation, {} without", bytes[1], bytes[0]);
    Ok(())
}

#[derive(Module)]
struct Chain<L> {
    layers: Vec<L>,
    #[module(skip)]
    recomputed: bool,
}

impl<L: Layer> Layer for Chain<L> {
    fn forward(&self, x: &Var) -> Var {
        if self.recomputed { self.layers.recompute(x) } else { self.layers.forward(x) }
    }
}

/// A gradient penalty that is recorded in a region, with layers before and after it.
fn inside(device: &Device) -> Outcome {
    let layers = (Linear::new(4, 6), Silu, Linear::new(6, 4)).init(device, 8)?;
    let run = |recomputed: bool| -> Result<Vec<f64>> {
        let tape = Tape::new(device);
        let x = tape.input(&tensor(device, "inside", [3, 4])?);
        let f = || -> Result<Var> {
            let y = layers.forward(&x).tanh();
            let gradient = tape.backward(&y.sum())?.of(&x).expect("it is held");
            Ok(layers.forward(&(y + gradient.square())).tanh())
        };
        let y = if recomputed { tape.recompute(f) } else { f() }?;
        let grads = tape.backward(&y.square().sum())?;
        grads.get(&layers.0.weight).expect("it has one").to_tensor()?.to_f64_vec()
    };
    compare("the gradient", &Computed(run(true)?), &Reference(run(false)?), 1e-6)?;
    Ok(())
}
