//! Compiled functions: results, captured values, refused inputs, and sharing between threads.

use std::thread;

use libtest_mimic::Trial;
use meganeura::data::{Array, Dataset};
use meganeura::nn::{BatchNorm2d, Conv2d, ConvTranspose2d, Dropout, Embedding, Gelu, Hardswish, Linear, Relu, Silu};
use meganeura::optim::{Optimizer, Sgd, TrainStep};
use meganeura::serve::Batched;
use meganeura::train::Trainer;
use meganeura::{
    Compiled, DType, Device, Error, ErrorKind, Init, Layer, ModuleExt, Precision, Result, Seed, Shape, Tape, Tensor,
    TensorType, Var, onnx,
};

use crate::Outcome;
use crate::adapter::{block_on, gpu_trial};
use crate::nets::{Tiny, images, randomise, record, tensor};

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    let mut both = |name: &str, run: fn(&Device) -> Outcome| {
        trials.push(Trial::test(format!("compiled::{name}"), move || run(&Device::cpu())));
        trials.push(gpu_trial(format!("compiled::gpu::{name}"), move |device| run(&device.for_testing(0))));
    };
    both("gives_the_same_bits_as_a_tape", same_as_a_tape);
    both("takes_and_gives_several", several);
    both("sees_updates_and_a_clone_does_not", updates);
    both("prepares_weights_anew_after_a_change", weights_that_change);
    both("multiplies_by_weights_that_stay_the_same", products);
    both("keeps_no_activations", memory);
    both("is_shared_by_threads", threads);
    both("serves_while_it_is_trained", while_training);
    both("is_read_without_blocking", asynchronous);
    both("refuses_undeclared_inputs", other_inputs);
    trials.push(Trial::test("compiled::reports_recording_errors_at_once", recording_errors));
    trials.push(Trial::test("compiled::may_be_a_function_that_fails", fallible));
    trials.push(Trial::test("compiled::checks_indices_when_they_are_there", indices));
    trials.push(Trial::test("compiled::is_called_by_tasks_that_wait_for_tasks", nested_tasks));
    trials.push(gpu_trial("compiled::gpu::parameters_that_moved_are_an_error", moved));
}

fn bits(tensor: &Tensor) -> Result<Vec<u32>> {
    Ok(tensor.to_vec()?.into_iter().map(f32::to_bits).collect())
}

/// A model with every kind of layer that behaves differently in training, and its inputs.
fn served(device: &Device) -> Result<(impl Layer + Clone + Send + Sync + use<>, Tensor)> {
    let builder = (Conv2d::new(1, 4, 3).padding(1), BatchNorm2d::new(4), Relu, Dropout::new(0.5), Conv2d::new(4, 3, 3));
    let mut net = builder.init(device, Seed::new(1))?;
    randomise(&mut net)?;
    net.1.running_var.set(Tensor::full(device, [4], 0.5)?)?;
    Ok((net, tensor(device, "x", [3, 1, 6, 6])?))
}

fn same_as_a_tape(device: &Device) -> Outcome {
    let (net, x) = served(device)?;
    let expected = net.forward(&Tape::inference(device).input(&x)).to_tensor()?;
    let function = device.compile(&x, |x| net.forward(x))?;
    assert_eq!((function.input_types(), function.output_types()), (vec![x.ty()], vec![expected.ty()]));
    let before = device.stats();
    for _ in 0..3 {
        assert_eq!(bits(&function.call(&x)?)?, bits(&expected)?);
    }
    let after = device.stats();
    // The first call also computes what the normalisation makes of its parameters.
    assert_eq!((after.plans - before.plans, after.runs - before.runs), (0, 4));
    // It owns its plan, which the device's other plans do not evict.
    for n in 1..70 {
        (Tape::new(device).input(&Tensor::full(device, [n], 1.0)?) * 2.0).to_vec()?;
    }
    let before = device.stats().plans;
    assert_eq!(bits(&function.clone().call(&x)?)?, bits(&expected)?);
    assert_eq!(device.stats().plans, before);
    Ok(())
}

/// Layers whose native kernels prepare their weights: by Winograd's algorithm, and in strips of channels, grouped,
/// strided, 1×1 and transposed; some with an activation.
fn weights_that_change(device: &Device) -> Outcome {
    let layers = (
        Conv2d::new(3, 40, 3).padding(1),
        Conv2d::new(40, 50, 3).padding(1),
        Conv2d::new(50, 36, 3).stride(2).groups(2),
        (Hardswish, Conv2d::new(36, 38, 1).groups(2), Relu, Conv2d::new(38, 36, 1), Silu),
        ConvTranspose2d::new(36, 20, 3).padding(1),
    );
    let mut net = layers.init(device, Seed::new(1))?;
    let x = tensor(device, "x", [2, 3, 13, 14])?;
    let function = device.compile(&x, |x| net.forward(x))?;
    let mut seen = Vec::new();
    for change in 0..4 {
        if change > 0 {
            randomise(&mut net)?;
            let weight = &mut net.1.weight;
            weight.set(Tensor::randn(device, weight.shape(), Seed::new(change))?)?;
            let weight = &mut net.2.weight;
            weight.set(Tensor::randn(device, weight.shape(), Seed::new(change + 10))?)?;
        }
        let expected = bits(&net.forward(&Tape::inference(device).input(&x)).to_tensor()?)?;
        for _ in 0..3 {
            assert_eq!(bits(&function.call(&x)?)?, expected, "after {change} changes");
        }
        assert!(!seen.contains(&expected));
        seen.push(expected);
    }
    Ok(())
}

/// Products whose right factor the native kernels put into another order: of many and few rows, with long sums, columns
/// in no whole vector, and work on their results with and without a function that is no bound.
fn products(device: &Device) -> Outcome {
    let layers = (Linear::new(23, 300), Relu, Linear::new(300, 41), Gelu, Linear::new(41, 5));
    let mut net = layers.init(device, Seed::new(1))?;
    let factor = tensor(device, "factor", [5, 77])?;
    for shape in [vec![3, 29, 23], vec![130, 23], vec![7, 23], vec![2, 23]] {
        let x = tensor(device, "x", Shape::new(&shape))?;
        let forward = |net: &dyn Fn(&Var) -> Var, x: &Var| {
            let y = net(x);
            let product = (&y * 2.0).matmul(&x.tape().input(&factor));
            (&product + &y.matmul(&x.tape().input(&factor))).sigmoid()
        };
        let function = device.compile(&x, |x| forward(&|x| net.forward(x), x))?;
        for change in 0..2 {
            let weight = &mut net.2.weight;
            weight.set(Tensor::randn(device, weight.shape(), Seed::new(change))?)?;
            let expected = forward(&|x| net.forward(x), &Tape::inference(device).input(&x)).to_vec()?;
            let function =
                if change == 0 { &function } else { &device.compile(&x, |x| forward(&|x| net.forward(x), x))? };
            for _ in 0..2 {
                let found = function.call(&x)?.to_vec()?;
                let worst = found.iter().zip(&expected).fold(0.0, |worst: f32, (a, b)| worst.max((a - b).abs()));
                assert!(worst < 1e-5, "{shape:?}: {worst}");
            }
        }
    }
    Ok(())
}

fn several(device: &Device) -> Outcome {
    let (a, b) = (tensor(device, "a", [2, 3])?, tensor(device, "b", [3])?);
    let scale = Tensor::full(device, [3], 3.0)?;
    let function: Compiled<(Tensor, Tensor), [Tensor; 4]> = device.compile((&a, Shape::from([3])), |(a, b)| {
        let sum = a + b;
        // Outputs: one result twice, an input, and a captured tensor.
        [sum.clone(), sum, b.clone(), a.tape().input(&scale)]
    })?;
    let [sum, again, input, captured] = function.call((&a, &b))?;
    let tape = Tape::inference(device);
    assert_eq!(bits(&sum)?, bits(&(tape.input(&a) + tape.input(&b)).to_tensor()?)?);
    assert_eq!(bits(&sum)?, bits(&again)?);
    assert_eq!((bits(&input)?, captured.to_vec()?), (bits(&b)?, vec![3.0; 3]));

    let gradient = device.compile((&a, [2, 3], [2, 3]), |(x, y, z)| {
        let loss = (x * y).mse(z);
        let slope = x.tape().backward(&loss).map(|grads| grads.of(x).expect("the loss depends on x"));
        (loss, slope.unwrap_or_else(|error| panic!("{error}")))
    })?;
    let (loss, slope) = gradient.call((&a, &a, &a))?;
    let x = a.to_vec()?;
    let expected = x.iter().map(|x| (x * x - x).powi(2)).sum::<f32>() / 6.0;
    assert!((loss.item()? - expected).abs() < 1e-5 * expected.abs().max(1.0));
    for (slope, x) in slope.to_vec()?.into_iter().zip(x) {
        let expected = (x * x - x) * x / 3.0;
        assert!((slope - expected).abs() < 1e-5 * expected.abs().max(1.0), "{slope} {expected}");
    }
    Ok(())
}

fn updates(device: &Device) -> Outcome {
    let mut net = Tiny::init(device, 1)?;
    let (images, labels) = images(device, "compiled", 4)?;
    let seen = device.compile(&images, |x| net.forward(x))?;
    let frozen = net.clone();
    let kept = device.compile(&images, |x| frozen.forward(x))?;
    let before = bits(&seen.call(&images)?)?;
    let (_, grads) = record(&net, &images, &labels)?;
    Sgd::new(0.1).step(&mut net, &grads)?;
    let now = bits(&net.forward(&Tape::inference(device).input(&images)).to_tensor()?)?;
    assert_ne!(before, now);
    assert_eq!(bits(&seen.call(&images)?)?, now, "parameters are read when it is called");
    assert_eq!(bits(&kept.call(&images)?)?, before, "a clone has parameters of its own");
    Ok(())
}

/// Ten layers, whose activations training keeps for the gradients.
fn memory(device: &Device) -> Outcome {
    let layers: Vec<_> = (0..10).map(|_| (Linear::new(64, 64), Relu)).collect();
    let mut net = layers.init(device, Seed::new(1))?;
    let x = tensor(device, "x", [256, 64])?;
    let last = || device.plan_memory().pop().expect("a plan was made");

    net.forward(&Tape::inference(device).input(&x)).to_tensor()?;
    let evaluation = last();
    let function = device.compile(&x, |x| net.forward(x))?;
    let compiled = function.memory();
    let tape = Tape::new(device);
    let loss = net.forward(&tape.input(&x)).square().mean();
    let grads = tape.backward(&loss)?;
    Sgd::new(0.1).step(&mut net, &grads)?;
    let training = last();

    let activation = 256 * 64 * 4;
    let slots = |memory: &meganeura::Memory| memory.slots.iter().sum::<usize>();
    println!("slots: training {}, evaluation {}, compiled {}", slots(&training), slots(&evaluation), slots(&compiled));
    assert_eq!(compiled, evaluation);
    // A layer's input and its result. The last result is an output.
    assert!(slots(&compiled) <= 3 * activation, "{compiled:?}");
    assert!(slots(&training) >= 9 * activation, "{training:?}");
    assert_eq!(compiled.outputs, activation);
    assert_eq!(compiled.leaves, activation + 10 * (64 * 64 + 64) * 4, "the input and the parameters");
    assert_eq!(compiled.total(), slots(&compiled) + compiled.outputs + compiled.leaves);
    Ok(())
}

/// Requires that a value can be shared between threads.
fn shared<T: Send + Sync>(value: T) -> T {
    value
}

fn threads(device: &Device) -> Outcome {
    let (net, _) = served(device)?;
    let net = shared(net);
    let function = shared(device.compile([3, 1, 6, 6], |x| net.forward(x))?);
    let other = shared(device.compile([1, 1, 9, 9], |x| net.forward(x).tanh())?);
    let mut inputs = Vec::new();
    for k in 0..6 {
        let (x, y) = (tensor(device, &format!("x{k}"), [3, 1, 6, 6])?, tensor(device, &format!("y{k}"), [1, 1, 9, 9])?);
        inputs.push((bits(&function.call(&x)?)?, bits(&other.call(&y)?)?, x, y));
    }
    let serve = |offset: usize| -> Result<()> {
        for k in 0..24 {
            let (expected, others, x, y) = &inputs[(k * 5 + offset) % inputs.len()];
            assert_eq!(&bits(&function.call(x)?)?, expected);
            assert_eq!(&bits(&other.call(y)?)?, others);
            // Meanwhile, this thread records the model itself.
            let tape = Tape::inference(device);
            assert_eq!(&bits(&net.forward(&tape.input(x)).to_tensor()?)?, expected);
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|offset| scope.spawn(move || serve(offset))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))
    })?;
    Ok(())
}

/// A call sees a training step as a whole or not at all: all parameters are equal before and after each step.
fn while_training(device: &Device) -> Outcome {
    let layers: Vec<_> = (0..8).map(|_| Linear::new(1, 1).bias(false)).collect();
    let mut net = layers.init(device, Seed::new(1))?;
    for layer in &mut net {
        layer.weight.set(Tensor::full(device, [1, 1], 0.0)?)?;
    }
    let function = device.compile([1], |x| {
        let weights: Vec<_> = net.iter().rev().map(|layer| x.param(&layer.weight).reshape([1])).collect();
        Var::concat(&weights.iter().collect::<Vec<_>>(), 0) + x
    })?;
    let zero = Tensor::zeros(device, [1])?;
    let mut optimizer = Sgd::new(1.0);
    thread::scope(|scope| -> Outcome {
        let serving = scope.spawn(|| -> Result<()> {
            let mut last = 0.0;
            while last > -50.0 {
                let seen = function.call(&zero)?.to_vec()?;
                assert!(seen.iter().all(|weight| *weight == seen[0]) && seen[0] <= last, "{seen:?} after {last}");
                last = seen[0];
            }
            Ok(())
        });
        for _ in 0..50 {
            let tape = Tape::new(device);
            let loss = net.iter().map(|layer| tape.param(&layer.weight).sum()).reduce(|a, b| a + b).expect("eight");
            let grads = tape.backward(&loss)?;
            optimizer.step(&mut net, &grads)?;
        }
        Ok(serving.join().expect("the thread does not panic")?)
    })
}

fn asynchronous(device: &Device) -> Outcome {
    let (net, x) = served(device)?;
    let function = device.compile(&x, |x| net.forward(x))?;
    let y = function.call(&x)?;
    assert_eq!(block_on(y.to_vec_async())?, y.to_vec()?);
    Ok(())
}

fn other_inputs(device: &Device) -> Outcome {
    let net = Tiny::init(device, 1)?;
    let function = device.compile([2, 1, 6, 6], |x| net.forward(x))?;
    let plans = device.stats().plans;
    let error = function.call(&Tensor::zeros(device, [3, 1, 6, 6])?).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Shape);
    for part in ["f32[2, 1, 6, 6]", "f32[3, 1, 6, 6]", "input 0", "compile it for each type and shape"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    let labels = Tensor::indices(device, [2, 1, 6, 6], &[0; 72])?;
    assert_eq!(function.call(&labels).unwrap_err().kind(), ErrorKind::Shape);
    if device.is_gpu() {
        let error = function.call(&Tensor::zeros(&Device::cpu(), [2, 1, 6, 6])?).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Device, "{error}");
    }
    assert_eq!(device.stats().plans, plans, "a refused call makes no plan");
    Ok(())
}

fn recording_errors() -> Outcome {
    let device = Device::cpu();
    let net = Tiny::init(&device, 1)?;
    let line = line!() + 1;
    let error = device.compile([2, 1, 9, 9], |x| net.forward(x).square()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Shape);
    assert!(error.to_string().contains("head.weight"), "{error}");
    let error2 = device.compile([2, 3], |x| x.reshape([7])).unwrap_err();
    assert_eq!(error2.location().map(|at| (at.line(), at.file())), Some((line + 3, file!())), "{error2}");

    let mut read = Vec::new();
    let compiled = device.compile([2], |x| {
        let zero = x.tape().input(&Tensor::zeros(&device, [1]).expect("one number"));
        // Neither values that depend on an input nor constants can be read.
        read.extend([(x * 2.0).to_vec(), zero.square().to_vec(), zero.to_vec(), x.param(&net.head.weight).to_vec()]);
        zero
    });
    assert!(compiled.is_ok());
    assert_eq!(read.len(), 4, "the function ran");
    for error in read.into_iter().map(Result::unwrap_err) {
        assert!(
            error.to_string().contains("a value cannot be read here: the function is only being recorded"),
            "{error}"
        );
    }

    let elsewhere = Tape::new(&device).input(&Tensor::zeros(&device, [1])?);
    let error = device.compile([1], |_| elsewhere.clone()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Argument, "{error}");
    assert_eq!(device.compile([0], |x| x.square()).unwrap_err().kind(), ErrorKind::Shape);
    let double = TensorType::new(DType::F64, Shape::from([1]));
    assert_eq!(device.compile(double, |x| x.square()).unwrap_err().kind(), ErrorKind::Argument);
    let on_double = Device::cpu_with(Precision::Double);
    assert_eq!(on_double.compile(double, |x| x.square())?.call(&Tensor::zeros(&on_double, [1])?)?.item()?, 0.0);
    Ok(())
}

/// A function that returns a `Result` is recorded like its values, or its error is returned.
fn fallible() -> Outcome {
    let device = Device::cpu();
    let net = Linear::new(2, 1).init(&device, Seed::new(1))?;
    let x = Tensor::full(&device, [3, 2], 0.5)?;
    let halves = |x: &Var, wanted: usize| match x.shape()[1] {
        columns if columns == wanted => Ok((x.square(), net.forward(x))),
        columns => Err(Error::new(ErrorKind::Argument, format!("{columns} columns"))),
    };
    let function = device.compile(&x, |x| halves(x, 2))?;
    let (squares, y) = function.call(&x)?;
    assert_eq!((squares.to_vec()?, y.shape()), (vec![0.25; 6], Shape::from([3, 1])));

    let expected = |error: Error| assert_eq!((error.kind(), error.message()), (ErrorKind::Argument, "2 columns"));
    expected(device.compile(&x, |x| halves(x, 3)).unwrap_err());
    expected(onnx::export(&device, &x, |x| halves(x, 3)).unwrap_err());
    expected(net.summary_by(&x, |_, x| halves(x, 3)).unwrap_err());
    let example = || Array::new(vec![0.5; 2], [2]);
    expected(Batched::compile(&device, [1], example()?, |x| halves(x, 3)).unwrap_err());
    let mut step = TrainStep::new(&net, |_, x: &Var| halves(x, 3).map(|(_, y)| y.sum()));
    expected(step.call(&mut Sgd::new(0.1), &x).unwrap_err());
    let data = Dataset::new(vec![0.5; 6], [2], vec![1.0; 3])?;
    let mut trained = net.clone();
    let trainer = Trainer::new(&mut trained, data.batches(3), |_, x, _| halves(x, 3).map(|(_, y)| y.sum()));
    expected(trainer.quiet().fit(&mut Sgd::new(0.1)).unwrap_err());

    let batched = Batched::compile(&device, [2], example()?, |x| halves(x, 2))?;
    let (squares, y) = batched.call(vec![example()?])?.swap_remove(0);
    assert_eq!((squares.values(), y.shape()), (&[0.25; 2][..], Shape::from([1])));
    let mut step = TrainStep::new(&net, |_, x: &Var| halves(x, 2).map(|(_, y)| y.sum()));
    assert_eq!(step.call(&mut Sgd::new(0.0), &x)?.item()?, function.call(&x)?.1.to_vec()?.iter().sum::<f32>());
    onnx::export(&device, &x, |x| halves(x, 2))?.to_bytes()?;
    Ok(())
}

fn indices() -> Outcome {
    let device = Device::cpu();
    let words = Embedding::new(5, 2).init(&device, Seed::new(1))?;
    let function =
        device.compile(TensorType::new(DType::U32, Shape::from([2, 2])), |x| words.forward(&x.reshape([4])))?;
    let rows = words.weight.value().to_vec()?;
    let y = function.call(&Tensor::indices(&device, [2, 2], &[4, 0, 4, 1])?)?;
    assert_eq!(y.to_vec()?, [&rows[8..10], &rows[0..2], &rows[8..10], &rows[2..4]].concat());
    let error = function.call(&Tensor::indices(&device, [2, 2], &[4, 0, 5, 1])?).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Argument);
    assert!(
        error.to_string().starts_with("embedding: input 0 holds 5, which is out of range: there are 5 classes or rows"),
        "{error}"
    );
    Ok(())
}

/// Calls from tasks of a thread pool, whose threads start other calls while they wait.
fn nested_tasks() -> Outcome {
    use rayon::prelude::*;
    let device = Device::cpu();
    let net = (Linear::new(256, 256), Relu, Linear::new(256, 256)).init(&device, Seed::new(1))?;
    let x = tensor(&device, "x", [256, 256])?;
    let function = device.compile(&x, |x| net.forward(x))?;
    let expected = bits(&function.call(&x)?)?;
    let same =
        (0..64).into_par_iter().map(|_| Ok(bits(&function.call(&x)?)? == expected)).collect::<Result<Vec<_>>>()?;
    assert!(same.into_iter().all(|same| same));
    Ok(())
}

fn moved(device: &Device) -> Outcome {
    let mut net = Tiny::init(device, 1)?;
    let (images, _) = images(device, "compiled", 2)?;
    let function = device.compile(&images, |x| net.forward(x))?;
    net.to_device(&Device::cpu())?;
    let error = function.call(&images).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Device);
    assert!(error.to_string().contains("`stem.weight` was moved to CPU"), "{error}");
    Ok(())
}
