//! Elementwise work merged into kernels: the number of launches, the values kept for the backward pass, and results and
//! gradients, with and without merging, against the native executor in `f64`.

mod native;

use libtest_mimic::Trial;
use meganeura::{Device, Precision, Result, Tape, Tensor, Var};

use crate::adapter::{adapter, gpu_trial, is_software};
use crate::nets::normal;
use crate::numbers::{Computed, Reference, compare};
use crate::ops::offered;
use crate::{Outcome, golden};

type Activation = (&'static str, fn(&Var) -> Var);

const ACTIVATIONS: [Activation; 7] = [
    ("identity", Var::clone),
    ("relu", Var::relu),
    ("gelu", Var::gelu),
    ("gelu_tanh", Var::gelu_tanh),
    ("silu", Var::silu),
    ("sigmoid", Var::sigmoid),
    ("tanh", Var::tanh),
];

/// A kernel with parameters, as layers record it.
struct Layer {
    name: &'static str,
    x: &'static [usize],
    parameters: [&'static [usize]; 2],
    y: &'static [usize],
    record: fn(&[Var]) -> Var,
}

const LAYERS: [Layer; 5] = [
    Layer {
        name: "linear",
        x: &[33, 17],
        parameters: [&[40, 17], &[40]],
        y: &[33, 40],
        record: |x| x[0].matmul(&x[1].t()) + &x[2],
    },
    Layer {
        name: "linear of few long rows",
        x: &[2, 300],
        parameters: [&[3, 300], &[3]],
        y: &[2, 3],
        record: |x| (&x[0] * 0.1).matmul(&x[1].t()) + &x[2],
    },
    Layer {
        name: "linear on more axes",
        x: &[2, 3, 5],
        parameters: [&[4, 5], &[4]],
        y: &[2, 3, 4],
        record: |x| (x[0].reshape([6, 5]).matmul(&x[1].t()) + &x[2]).reshape([2, 3, 4]),
    },
    Layer {
        name: "conv2d",
        x: &[2, 3, 6, 5],
        parameters: [&[4, 3, 3, 3], &[4, 1, 1]],
        y: &[2, 4, 4, 3],
        record: |x| x[0].conv2d(&x[1], meganeura::ops::Conv2dOptions::default()) + &x[2],
    },
    Layer {
        name: "group_norm",
        x: &[2, 6, 3, 5],
        parameters: [&[6], &[6]],
        y: &[2, 6, 3, 5],
        record: |x| x[0].group_norm(3, 1e-5, &x[1], &x[2]),
    },
];

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    // A driver that compiles for the CPU would take minutes for all combinations.
    let slow = adapter().is_ok_and(is_software);
    for layer in &LAYERS {
        for activation in if slow { &ACTIVATIONS[..4] } else { &ACTIVATIONS } {
            for residual in if slow && activation.0 != "gelu" { &[false][..] } else { &[false, true] } {
                let (activation, residual) = (*activation, *residual);
                let plus = if residual { " + residual" } else { "" };
                let name = format!("merge::{} {}{plus}", layer.name, activation.0);
                trials.push(gpu_trial(name, move |device| block(&Block { layer, activation, residual }, device)));
            }
        }
    }
    native::collect(trials);
    trials.push(gpu_trial("merge::golden_linear", golden_linear));
    trials.push(gpu_trial("merge::golden_group_norm", golden_group_norm));
    trials.push(gpu_trial("merge::reductions_load_through_elementwise_work", reductions));
    trials.push(gpu_trial("merge::values_with_other_readers_are_stored_too", read_elsewhere));
    trials.push(gpu_trial("merge::a_detour_separates", detour));
    trials.push(gpu_trial("merge::golden_concat", golden_concat));
}

/// A layer, an activation, and optionally a residual.
struct Block {
    layer: &'static Layer,
    activation: Activation,
    residual: bool,
}

impl Block {
    /// The numbers of the operands. With `nan`, the first one is NaN.
    fn operands(&self, nan: bool) -> Vec<(&'static [usize], Vec<f64>)> {
        let [w, b] = self.layer.parameters;
        let shapes = [self.layer.x, w, b, self.layer.y];
        let elements = |shape: &[usize]| shape.iter().product();
        let mut operands: Vec<_> =
            shapes.iter().enumerate().map(|(k, &shape)| (shape, normal(&k.to_string(), elements(shape)))).collect();
        if nan {
            operands[0].1[0] = f64::NAN;
        }
        operands
    }

    fn record(&self, x: &[Var]) -> Var {
        let y = (self.activation.1)(&(self.layer.record)(x));
        if self.residual { y + &x[3] } else { y }
    }

    /// The result, and the gradients of all operands.
    fn compute(&self, device: &Device, nan: bool) -> Result<Vec<Vec<f64>>> {
        let tape = Tape::new(device);
        let operands = self.operands(nan);
        let inputs = operands.iter().map(|(shape, data)| input(&tape, shape, data)).collect::<Result<Vec<_>>>()?;
        let y = self.record(&inputs);
        let cotangent = input(&tape, self.layer.y, &normal("cotangent", y.shape().elements()))?;
        let grads = tape.backward_with(&y, &cotangent)?;
        let operands = if self.residual { &inputs[..] } else { &inputs[..3] };
        let gradients: Vec<_> = operands.iter().map(|x| grads.of(x).expect("the result depends on it")).collect();
        std::iter::once(&y).chain(&gradients).map(|var| var.to_tensor()?.to_f64_vec()).collect()
    }
}

fn input(tape: &Tape, shape: &[usize], data: &[f64]) -> Result<Var> {
    Ok(tape.input(&Tensor::from_f64(&tape.device(), meganeura::Shape::new(shape), data)?))
}

fn block(block: &Block, device: &Device) -> Outcome {
    let hold = |what: &str, device: &Device, nan: bool| -> Outcome {
        let reference = block.compute(&Device::cpu_with(Precision::Double), nan)?;
        let computed = block.compute(device, nan)?;
        for (k, (computed, reference)) in computed.iter().zip(reference).enumerate() {
            // Sums of at most 300 terms, and elementary functions of GPUs that are some units off.
            compare(&format!("{what}, result {k}"), &Computed(computed.clone()), &Reference(reference), 2e-5)?;
        }
        let bits = |all: Vec<Vec<f64>>| all.into_iter().flatten().map(f64::to_bits).collect::<Vec<_>>();
        assert_eq!(bits(computed), bits(block.compute(device, nan)?), "{what}: the same run gives the same bits");
        Ok(())
    };
    let (mut variant, mut variants) = (0, 1);
    while variant < variants {
        let device = device.for_testing(variant);
        hold(&format!("variant {variant}"), &device, false)?;
        variants = if is_software(&device) && block.activation.0 != "gelu" { 1 } else { offered(&device) };
        variant += 1;
    }
    hold("apart", &device.for_testing_apart(0), false)?;
    hold("not a number", &device.for_testing(0), true)?;

    let device = device.for_testing(0);
    let tape = Tape::new(&device);
    let inputs =
        block.operands(false).iter().map(|(shape, data)| input(&tape, shape, data)).collect::<Result<Vec<_>>>()?;
    block.record(&inputs).to_vec()?;
    // The operand with long rows needs a launch that scales it first.
    let before = u64::from(block.layer.name == "linear of few long rows");
    assert_eq!(device.stats().launches, 1 + before, "{}", device.plan_dumps()[0]);
    Ok(())
}

/// The plan of a result and its gradients, in a chain of two linear layers.
fn golden_linear(device: &Device) -> Outcome {
    let device = device.for_testing(0);
    let tape = Tape::new(&device);
    let of = |name: &str, shape: &[usize]| input(&tape, shape, &normal(name, shape.iter().product()));
    let (x, w1, b1) = (of("x", &[8, 5])?, of("w1", &[7, 5])?, of("b1", &[7])?);
    let (w2, b2, r, dy) = (of("w2", &[6, 7])?, of("b2", &[6])?, of("r", &[8, 6])?, of("dy", &[8, 6])?);
    let h = (x.matmul(&w1.t()) + &b1).gelu();
    let y = (h.matmul(&w2.t()) + &b2).silu() + &r;
    drop(h);
    let grads = tape.backward_with(&y, &dy)?;
    let held: Vec<_> = [&x, &w1, &b1, &w2, &b2].iter().map(|x| grads.of(x).expect("y depends on it")).collect();
    y.to_vec()?;
    drop(held);
    let dump = &device.plan_dumps()[0];
    // Forward, a launch for each layer; backward, a product for each operand and a sum for each bias.
    assert_eq!(device.stats().launches, 2 + 4 + 2, "{dump}");
    golden::check_plan("plan_linear_gpu", dump)
}

fn golden_group_norm(device: &Device) -> Outcome {
    let device = device.for_testing(0);
    let tape = Tape::new(&device);
    let of = |name: &str, shape: &[usize]| input(&tape, shape, &normal(name, shape.iter().product()));
    let (a, x, r) = (of("a", &[2, 6, 4, 4])?, of("x", &[2, 6, 4, 4])?, of("r", &[2, 6, 4, 4])?);
    let (w, b, dy) = (of("w", &[6])?, of("b", &[6])?, of("dy", &[2, 6, 4, 4])?);
    let sum = &x.conv2d(&of("c", &[6, 6, 1, 1])?, meganeura::ops::Conv2dOptions::default()) + &a;
    let y = sum.group_norm(3, 1e-5, &w, &b).silu() + &r;
    drop(sum);
    let grads = tape.backward_with(&y, &dy)?;
    let held: Vec<_> = [&x, &w, &b].iter().map(|x| grads.of(x).expect("y depends on it")).collect();
    y.to_vec()?;
    drop(held);
    let dump = &device.plan_dumps()[0];
    let forward = dump.lines().find(|line| line.contains("group_norm {")).expect("there is one");
    // Of results as large as the input, only the caller's is stored.
    assert_eq!(forward.split(" = ").next().unwrap_or("").matches("f32[2, 6, 4, 4]").count(), 1, "{dump}");
    // Forward, the convolution with the sum, and the block; backward, the block's gradient, its sums over the batch,
    // and the convolution's gradient.
    assert_eq!(device.stats().launches, 5, "{dump}");
    golden::check_plan("plan_group_norm_gpu", dump)
}

fn reductions(device: &Device) -> Outcome {
    let run = |device: &Device| -> Result<Vec<Vec<f64>>> {
        let tape = Tape::new(device);
        let (a, b) = (input(&tape, &[9, 70], &normal("a", 630))?, input(&tape, &[9, 70], &normal("b", 630))?);
        let results = [
            (&a - &b).square().mean(),
            (&a * 2.0).exp().sum_over(&[0]).log(),
            (&a * &b).t().max_over(&[0]),
            (&a + &b).reshape([630]).slice(0, 0..600).sum(),
        ];
        results.iter().map(|y| y.to_tensor()?.to_f64_vec()).collect()
    };
    let reference = run(&Device::cpu_with(Precision::Double))?;
    let (mut variant, mut variants) = (0, 1);
    while variant < variants {
        for device in [device.for_testing(variant), device.for_testing_apart(variant)] {
            for (computed, reference) in run(&device)?.into_iter().zip(&reference) {
                compare("a reduction", &Computed(computed), &Reference(reference.clone()), 1e-5)?;
            }
            variants = offered(&device).max(variants);
        }
        variant += 1;
    }
    let device = device.for_testing(0);
    let tape = Tape::new(&device);
    let (a, b) = (input(&tape, &[9, 70], &normal("a", 630))?, input(&tape, &[9, 70], &normal("b", 630))?);
    let y = (&a - &b).square().mean() + 1.0;
    y.to_vec()?;
    assert_eq!(device.stats().launches, 1, "{}", device.plan_dumps()[0]);
    Ok(())
}

/// The product has two more readers: a transposition and the caller.
fn read_elsewhere(device: &Device) -> Outcome {
    let run = |device: &Device| -> Result<Vec<Vec<f64>>> {
        let tape = Tape::new(device);
        let x = input(&tape, &[6, 6], &normal("x", 36))?;
        let product = x.matmul(&x);
        let y = product.tanh();
        let z = product.t().matmul(&y);
        [&y, &z, &product].iter().map(|var| var.to_tensor()?.to_f64_vec()).collect()
    };
    let reference = run(&Device::cpu_with(Precision::Double))?;
    let device = device.for_testing(0);
    for (computed, reference) in run(&device)?.into_iter().zip(reference) {
        compare("a result", &Computed(computed), &Reference(reference), 1e-5)?;
    }
    // One run computes all held values: two launches, and the first one stores two results of the caller's.
    assert_eq!(device.stats().launches, 2, "{}", device.plan_dumps()[0]);
    Ok(())
}

/// The kernel that computes an operand of a concatenation stores it directly into the result. The second operand has
/// another reader, so it is copied.
fn golden_concat(device: &Device) -> Outcome {
    let run = |device: &Device| -> Result<Vec<f64>> {
        let tape = Tape::new(device);
        let (x, w) = (input(&tape, &[2, 8, 4, 4], &normal("x", 256))?, input(&tape, &[8, 8], &normal("w", 64))?);
        let mixed = (x.reshape([16, 16]).matmul(&x.reshape([16, 16])).reshape([2, 8, 4, 4]) + 1.0).relu();
        let t = x.tanh();
        let both = Var::concat(&[&mixed, &t, &(&t * &x).exp()], 1);
        let y = w.matmul(&both.slice(1, 0..8).reshape([2, 8, 16])) + both.slice(1, 16..24).reshape([2, 8, 16]);
        drop((mixed, t, both));
        y.to_tensor()?.to_f64_vec()
    };
    let reference = run(&Device::cpu_with(Precision::Double))?;
    // bf16 has eight significant bits.
    let devices =
        [(device.for_testing(0), 1e-5), (device.for_testing_apart(0), 1e-5), (device.for_testing_bf16(0), 2e-2)];
    for (device, tolerance) in devices {
        compare("the concatenation", &Computed(run(&device)?), &Reference(reference.clone()), tolerance)?;
    }
    let device = device.for_testing(0);
    run(&device)?;
    golden::check_plan("plan_concat_gpu", &device.plan_dumps()[0])
}

/// The difference reads the product and a reduction of it, so the whole product must be stored first.
fn detour(device: &Device) -> Outcome {
    let run = |device: &Device| -> Result<Vec<f64>> {
        let tape = Tape::new(device);
        let x = input(&tape, &[6, 6], &normal("x", 36))?;
        let product = x.matmul(&x);
        let y = &product - product.max_keep(&[1]);
        drop(product);
        y.to_tensor()?.to_f64_vec()
    };
    let reference = run(&Device::cpu_with(Precision::Double))?;
    let device = device.for_testing(0);
    compare("the difference", &Computed(run(&device)?), &Reference(reference), 1e-5)?;
    assert_eq!(device.stats().launches, 3, "{}", device.plan_dumps()[0]);
    Ok(())
}
