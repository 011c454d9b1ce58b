//! Values of compiled functions that depend on parameters, captured tensors and numbers alone: computed once, and anew
//! after a change.

use std::thread;

use libtest_mimic::Trial;
use meganeura::io::Checkpoint;
use meganeura::nn::{BatchNorm2d, Conv2d, Relu};
use meganeura::ops::Conv2dOptions;
use meganeura::optim::{Optimizer, Sgd, TrainStep};
use meganeura::{
    Buffer, Compiled, Device, Init, Layer, Module, Param, Precision, Result, Seed, Shape, Tape, Tensor, Var,
};

use crate::Outcome;
use crate::adapter::gpu_trial;
use crate::nets::{randomise, tensor};

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    let mut both = |name: &str, run: fn(&Device) -> Outcome| {
        trials.push(Trial::test(format!("once::{name}"), move || run(&Device::cpu())));
        trials.push(gpu_trial(format!("once::gpu::{name}"), move |device| run(&device.for_testing(0))));
    };
    both("gives_the_bits_of_a_tape", kinds);
    both("computes_anew_after_a_change", changes);
    both("dumps_the_steps_that_run_once", dumps);
    both("counts_what_it_keeps", memory);
    both("keeps_no_random_numbers", random);
    both("is_shared_by_threads", threads);
    both("leaves_training_steps_alone", training);
    trials.push(Trial::test("once::in_double_precision", || kinds(&Device::cpu().with_precision(Precision::Double)?)));
}

fn bits(tensor: &Tensor) -> Result<Vec<u64>> {
    Ok(tensor.to_f64_vec()?.into_iter().map(f64::to_bits).collect())
}

/// The runs and the launches of a call.
fn cost(device: &Device, function: &Compiled, x: &Tensor) -> Result<(u64, u64)> {
    let before = device.stats();
    function.call(x)?;
    let after = device.stats();
    Ok((after.runs - before.runs, after.launches - before.launches))
}

/// Parameters of several shapes, and a buffer.
#[derive(Module, Debug)]
struct Weights {
    row: Param,
    matrix: Param,
    kernel: Param,
    shift: Buffer,
}

impl Weights {
    fn new(device: &Device) -> Result<Self> {
        Ok(Self {
            row: Param::new(tensor(device, "row", [6])?),
            matrix: Param::new(tensor(device, "matrix", [6, 6])?),
            kernel: Param::new(tensor(device, "kernel", [3, 2, 3, 2])?),
            shift: Buffer::new(tensor(device, "shift", [6])?),
        })
    }
}

/// A function of an input and of weights.
type Function = fn(&Var, &Weights) -> Var;

/// Functions of `x [4, 6]`, and whether they have values to keep on the CPU.
const FUNCTIONS: &[(&str, bool, Function)] = &[
    ("scaled weights", true, |x, w| x * (x.param(&w.row) * 2.0).exp()),
    ("a buffer", true, |x, w| x + (x.buffer(&w.shift) + 1.0).square().rsqrt()),
    ("a mask", true, |x, _| {
        let place = |axis| x.tape().iota([4, 6], axis);
        place(1).le(place(0)).where_cond(x, &x.constant(f64::NEG_INFINITY)).softmax(1)
    }),
    ("a product of weights", true, |x, w| x.matmul(&x.param(&w.matrix).matmul(&x.param(&w.matrix).t()))),
    ("a copied weight", true, |x, w| {
        let kernel = x.param(&w.kernel).permute(&[1, 3, 0, 2]);
        let options = Conv2dOptions { padding: [1, 1], groups: 2, ..Conv2dOptions::default() };
        x.reshape([1, 2, 3, 4]).conv2d(&kernel.reshape([4, 1, 3, 3]), options)
    }),
    ("one of two results", true, |x, w| {
        let sorted = x.param(&w.row).argsort(0, false);
        x + x.param(&w.row).gather(0, &sorted)
    }),
    ("a reduction", true, |x, w| x - x.param(&w.matrix).square().sum_over(&[0]).sqrt()),
    ("a constant result", true, |x, w| x.param(&w.row) * 3.0),
    ("a view of a weight", false, |x, w| x * x.param(&w.matrix).t().slice(0, 1..2)),
    ("a weight as the result", false, |x, w| x.param(&w.row)),
    ("arithmetic of numbers", false, |x, _| x * (x.constant(2.0) + x.constant(3.0)).sqrt()),
    ("no weights", false, |x, _| x.square().softmax(1)),
];

fn kinds(device: &Device) -> Outcome {
    let mut weights = Weights::new(device)?;
    let x = tensor(device, "x", [4, 6])?;
    for &(name, keeps, function) in FUNCTIONS {
        let compiled = device.compile(&x, |x| function(x, &weights))?;
        assert_eq!(compiled.memory().kept > 0, keeps, "{name}: {:?}", compiled.memory());
        for change in 0..3 {
            let tape = Tape::inference(device);
            let expected = bits(&function(&tape.input(&x), &weights).to_tensor()?)?;
            for call in 0..3 {
                let found = bits(&compiled.call(&x)?)?;
                assert_eq!(found, expected, "{name}: call {call} after {change} changes");
            }
            randomise(&mut weights)?;
            weights.shift.set(tensor(device, &format!("shift {change}"), [6])?)?;
        }
    }
    Ok(())
}

type Net = (Conv2d, BatchNorm2d, Relu, Conv2d);

fn net(device: &Device) -> Result<(Net, Tensor)> {
    let builder = (Conv2d::new(2, 4, 3), BatchNorm2d::new(4), Relu, Conv2d::new(4, 3, 3));
    let mut net = builder.init(device, Seed::new(1))?;
    randomise(&mut net)?;
    net.1.running_var.set(Tensor::full(device, [4], 0.5)?)?;
    Ok((net, tensor(device, "x", [3, 2, 7, 7])?))
}

/// By an optimizer's step, by a loaded file, and by hand.
fn changes(device: &Device) -> Outcome {
    let (mut net, x) = net(device)?;
    let function = device.compile(&x, |x| net.forward(x))?;
    let saved = net.to_safetensors()?;
    let mut seen = Vec::new();
    let mut check = |net: &dyn Layer, is_new: bool| -> Outcome {
        let expected = bits(&net.forward(&Tape::inference(device).input(&x)).to_tensor()?)?;
        assert_eq!(!seen.contains(&expected), is_new);
        seen.push(expected.clone());
        let before = device.stats();
        for _ in 0..3 {
            assert_eq!(bits(&function.call(&x)?)?, expected);
        }
        assert_eq!(device.stats().runs - before.runs, 4, "three calls, and what they keep");
        Ok(())
    };
    check(&net, true)?;
    let tape = Tape::new(device);
    let loss = net.forward(&tape.input(&x)).square().mean();
    let grads = tape.backward(&loss)?;
    Sgd::new(0.1).step(&mut net, &grads)?;
    check(&net, true)?;
    net.load_safetensors(&saved)?.strict()?;
    check(&net, false)?;
    net.1.running_var.set(Tensor::full(device, [4], 2.0)?)?;
    check(&net, true)
}

fn dumps(device: &Device) -> Outcome {
    let (net, x) = net(device)?;
    let function = device.compile(&x, |x| net.forward(x))?;
    let dumps = device.plan_dumps();
    let [.., once, each] = &dumps[..] else { panic!("two plans") };
    assert!(once.contains("rsqrt") && once.contains("once for each version of its leaves"), "{once}");
    assert!(!each.contains("rsqrt") && !each.contains("once"), "{each}");
    let (runs, first) = cost(device, &function, &x)?;
    let (later, each) = cost(device, &function, &x)?;
    assert_eq!((runs, later), (2, 1));
    assert!(each < first);
    Ok(())
}

fn memory(device: &Device) -> Outcome {
    let weight = Param::new(tensor(device, "w", [8])?);
    let of = |x: &Var, shape: [usize; 2]| (x.param(&weight).exp().expand(shape) + 1.0).sqrt();
    let x = tensor(device, "x", [1 << 17, 8])?;
    let memory = device.compile(&x, |x| x + of(x, [1 << 17, 8]))?.memory();
    assert_eq!((memory.kept, memory.leaves), (4 * 8, x.ty().bytes() + 4 * 8), "not what is broadcast: {memory:?}");
    let x = tensor(device, "x", [3, 8])?;
    let function = device.compile(&x, |x| x + of(x, [3, 8]))?;
    let memory = function.memory();
    assert_eq!((memory.kept, memory.leaves), (4 * 3 * 8, 4 * (3 * 8 + 8)), "{memory:?}");
    assert_eq!(memory.total(), memory.slots.iter().sum::<usize>() + memory.outputs + memory.kept + memory.leaves);
    Ok(())
}

fn random(device: &Device) -> Outcome {
    let weight = Param::new(tensor(device, "w", [8])?);
    let x = Shape::from([8]);
    let function = device.compile(x, |x| x + x.param(&weight).random_uniform())?;
    assert_eq!(function.memory().kept, 0);
    Ok(())
}

/// Clones whose first calls begin at the same time, while parameters change.
fn threads(device: &Device) -> Outcome {
    let (mut net, x) = net(device)?;
    let function = device.compile(&x, |x| net.forward(x))?;
    let variance = |k: u16| Tensor::full(device, [4], f32::from(k % 4 + 1));
    let mut expected = Vec::new();
    for k in 0..4 {
        net.1.running_var.set(variance(k)?)?;
        expected.push(bits(&net.forward(&Tape::inference(device).input(&x)).to_tensor()?)?);
    }
    let call = |function: Compiled| -> Result<()> {
        for _ in 0..20 {
            let found = bits(&function.call(&x)?)?;
            assert!(expected.contains(&found));
        }
        Ok(())
    };
    thread::scope(|scope| -> Outcome {
        let clones = [function.clone(), function.clone()];
        let threads = clones.map(|function| scope.spawn(|| call(function)));
        for k in 0..16 {
            net.1.running_var.set(variance(k)?)?;
        }
        threads.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))?;
        assert_eq!(bits(&function.call(&x)?)?, expected[3], "the last");
        Ok(())
    })
}

fn training(device: &Device) -> Outcome {
    let (net, x) = net(device)?;
    let mut sgd = Sgd::new(0.1);
    let mut step = TrainStep::new(&net, |net, x: &Var| net.forward(x).square().mean());
    for _ in 0..3 {
        step.call(&mut sgd, &x)?;
    }
    assert!(device.plan_dumps().iter().all(|dump| !dump.contains("once for each")));
    Ok(())
}
