//! The recording of a tape as text, and the errors of a tape with the line of the mistake.

use std::panic::Location;

use libtest_mimic::{Failed, Trial};
use meganeura::ops::{Conv2dOptions, CustomOp};
use meganeura::optim::{AdamW, Optimizer, Sgd};
use meganeura::{
    Buffer, Device, Error, ErrorKind, Init, Layer, ModuleExt, Param, Precision, Result, Seed, Tape, Tensor, TensorType,
    Var,
};

use crate::adapter::gpu_trial;
use crate::nets::{Tiny, images, record, tensor};
use crate::{Outcome, golden};

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    let mut test = |name: &str, run: fn() -> Outcome| trials.push(Trial::test(format!("tape::{name}"), run));
    test("golden_step", golden_step);
    test("golden_operations", golden_operations);
    test("a_poisoned_var_names_everything", poisoned);
    test("the_first_error_is_the_one_reported", first_error);
    test("a_rule_that_fails_names_the_operations_line", failing_rule);
    test("paths_are_those_of_the_model", paths);
    test("stale_after_a_step", || stale(&Device::cpu()));
    test("stale_after_set_and_moves", stale_after_set);
    test("what_is_held_is_of_before_the_step", || held(&Device::cpu().for_testing(0)));
    test("operands_of_two_tapes_are_refused", two_tapes);
    test("operands_of_two_devices_are_refused", || two_devices(&Device::cpu_with(Precision::Double)));
    test("labels_are_viewed_like_floats", || labels(&Device::cpu()));
    trials.push(gpu_trial("tape::gpu::stale_after_a_step", |device| stale(&device.for_testing(0))));
    trials.push(gpu_trial("tape::gpu::held_values_are_those_before_the_step", |device| held(&device.for_testing(0))));
    trials.push(gpu_trial("tape::gpu::operands_of_two_devices_are_refused", two_devices));
    trials.push(gpu_trial("tape::gpu::labels_are_viewed_like_floats", labels));
}

fn golden_step() -> Outcome {
    let device = Device::cpu();
    let net = Tiny::init(&device, 1)?;
    let (images, labels) = images(&device, "golden", 2)?;
    let (loss, _) = record(&net, &images, &labels)?;
    golden::check("tape_step", &loss.tape().to_string())
}

/// Every kind of node: inputs, parameters, buffers, host scalars and constants, views, kernels.
fn golden_operations() -> Outcome {
    let device = Device::cpu();
    let model = (Param::new(tensor(&device, "w", [3, 4])?), Buffer::new(tensor(&device, "b", [4])?));
    model.name_parameters();
    let tape = Tape::with_seed(&device, 7);
    let (w, b) = (tape.param(&model.0), tape.buffer(&model.1));
    let x = tape.input(&tensor(&device, "x", [2, 3])?);
    let y = x.matmul(&w) + b;
    let dropped = meganeura::nn::Dropout::new(0.25).forward(&y);
    let parts = [dropped.slice(1, 0..2), dropped.slice(1, 2..4).detach().leaky_relu(0.1)];
    let z = Var::concat(&parts.each_ref(), 1).pad(&[(0, 1), (1, 0)], 0.5).t().softmax(1);
    let grads = tape.backward(&z.clamp(0.1, 0.9).max_over(&[0]).mean())?;
    assert!(grads.get(&model.0).is_some());
    golden::check("tape_operations", &tape.to_string())
}

/// The error of a poisoned value, by every call that needs the value.
fn errors(poisoned: &Var, optimizer_of: &mut Param) -> Vec<Error> {
    let tape = poisoned.tape();
    let grads = tape.backward(&tape.param(optimizer_of).sum()).expect("this one is fine");
    let step = Sgd::new(1.0).check_finite(true).step_with_loss(optimizer_of, &grads, &poisoned.sum());
    vec![
        poisoned.error().expect("poisoned"),
        poisoned.to_tensor().map(drop).expect_err("to_tensor"),
        poisoned.to_vec().map(drop).expect_err("to_vec"),
        poisoned.sum().item().map(drop).expect_err("item"),
        (poisoned.exp() * 2.0).matmul(poisoned).to_vec().map(drop).expect_err("later operations"),
        tape.backward(&poisoned.sum()).map(drop).expect_err("backward"),
        step.expect_err("step"),
    ]
}

fn expect_at(error: &Error, file: &str, line: u32) {
    let at: &Location<'_> = error.location().unwrap_or_else(|| panic!("no location: {error}"));
    assert!(at.file().ends_with(file) && at.line() == line, "not at {file}:{line}: {error}");
    assert!(error.to_string().contains(&at.to_string()), "{error}");
}

fn poisoned() -> Outcome {
    let device = Device::cpu();
    let mut other = Param::new(tensor(&device, "other", [2])?);
    let model: (Vec<Param>, Param) = (vec![Param::new(tensor(&device, "w", [4, 5])?)], other.clone());
    model.name_parameters();
    let tape = Tape::new(&device);
    let x = tape.input(&tensor(&device, "x", [2, 3])?);
    let (y, line) = (x.matmul(&tape.param(&model.0[0])), line!());
    // A poisoned value has its first operand's shape, which later operations do not change.
    assert_eq!(y.shape(), x.shape());
    for error in errors(&y, &mut other) {
        assert_eq!(error.kind(), ErrorKind::Shape, "{error}");
        let message = error.to_string();
        for part in ["matmul", "f32[2, 3]", "f32[4, 5]", "(parameter 0.0)", "3", "4"] {
            assert!(message.contains(part), "{part:?} is not in {message}");
        }
        expect_at(&error, "tape.rs", line);
    }
    assert_eq!(other.value().to_vec()?, tensor(&device, "other", [2])?.to_vec()?, "a failed step changes nothing");
    Ok(())
}

fn first_error() -> Outcome {
    let device = Device::cpu();
    let tape = Tape::new(&device);
    let x = tape.input(&tensor(&device, "x", [2, 3])?);
    let (first, line) = (x.reshape([7]), line!());
    let second = x.softmax(5);
    for y in [&first + &second, first.conv2d(&second, Conv2dOptions::default()), Var::concat(&[&x, &first, &second], 9)]
    {
        expect_at(&y.error().expect("poisoned"), "tape.rs", line);
    }
    // The tape itself still works.
    assert_eq!(x.sum_over(&[1]).to_vec()?.len(), 2);
    Ok(())
}

/// An operation without a gradient.
#[derive(Debug)]
struct Rounded;

impl CustomOp for Rounded {
    fn name(&self) -> &'static str {
        "rounded"
    }

    fn key(&self) -> String {
        String::new()
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        Ok(x.to_vec())
    }

    fn vjp(&self, _x: &[Var], _y: &[Var], _dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        Err(Error::new(ErrorKind::NotDifferentiable, "has no derivative"))
    }

    fn cpu(&self, _types: &[TensorType], x: &[&[f64]], y: &mut [&mut [f64]]) {
        y[0].iter_mut().zip(x[0]).for_each(|(y, x)| *y = x.round());
    }

    fn wgsl(&self, _types: &[TensorType]) -> (String, usize) {
        unreachable!("the test records on the CPU")
    }
}

fn failing_rule() -> Outcome {
    let device = Device::cpu();
    let tape = Tape::new(&device);
    let x = tape.input(&tensor(&device, "x", [1, 2, 4, 4])?);
    let (y, line) = (x.custom(Rounded, &[]), line!());
    let error = tape.backward(&y.square().sum()).expect_err("its rule is an error");
    assert_eq!(error.kind(), ErrorKind::NotDifferentiable);
    assert!(error.to_string().starts_with("rounded: has no derivative"), "{error}");
    expect_at(&error, "tape.rs", line);

    let (vector, line) = (tape.backward(&x).expect_err("no scalar"), line!());
    assert_eq!(vector.kind(), ErrorKind::Shape);
    assert!(vector.to_string().contains("[1, 2, 4, 4]"), "{vector}");
    expect_at(&vector, "tape.rs", line);
    Ok(())
}

/// A mistake inside a layer is reported at the layer's call, with the parameter's path in the model.
fn paths() -> Outcome {
    let device = Device::cpu();
    let net = Tiny::init(&device, 1)?;
    let x = Tape::new(&device).input(&tensor(&device, "x", [2, 3, 6, 6])?);
    let (y, line) = (net.stem.forward(&x), line!());
    let error = y.error().expect("3 channels, not 1");
    assert!(error.to_string().contains("(parameter stem.weight)"), "{error}");
    expect_at(&error, "tape.rs", line);
    // A model that is assembled by hand has no names until `name_parameters`.
    let by_hand = (meganeura::nn::Linear::new(4, 2).init(&device, Seed::new(1))?,);
    assert!(!by_hand.0.forward(&x).error().expect("6, not 4").to_string().contains("(parameter"));
    by_hand.name_parameters();
    let error = by_hand.0.forward(&x).error().expect("6, not 4");
    assert!(error.to_string().contains("(parameter 0.weight)"), "{error}");
    Ok(())
}

#[track_caller]
fn expect_stale(result: Result<impl Sized>) {
    let error = result.err().expect("the tape is stale");
    assert_eq!(error.kind(), ErrorKind::StaleTape, "{error}");
    assert!(error.to_string().contains("stem.weight"), "{error}");
}

fn stale(device: &Device) -> Outcome {
    let mut net = Tiny::init(device, 1)?;
    let (images, labels) = images(device, "stale", 3)?;
    let (loss, grads) = record(&net, &images, &labels)?;
    let tape = loss.tape().clone();
    let weight = tape.param(&net.stem.weight);
    let held = grads.get(&net.head.weight).expect("trained");
    AdamW::new(0.1).step(&mut net, &grads)?;
    // The held value was computed in the same run, from the parameters before the step.
    assert!(loss.item()?.is_finite());
    assert_eq!(held.to_vec()?.len(), net.head.weight.shape().elements());
    // Everything else would need the old parameters, which are gone.
    expect_stale(grads.get(&net.norm.bias).expect("trained").to_vec());
    expect_stale(weight.to_vec());
    expect_stale((&weight * 2.0).to_vec());
    expect_stale(tape.param(&net.stem.weight).sum().item());
    let again = tape.backward(&loss)?;
    expect_stale(AdamW::new(0.1).step(&mut net, &again));
    // A new tape works.
    let (_, grads) = record(&net, &images, &labels)?;
    Ok(AdamW::new(0.1).step(&mut net, &grads)?)
}

/// Updates happen in place, after everything that reads the old values.
fn held(device: &Device) -> Outcome {
    let mut w = Param::new(Tensor::from_slice(device, [2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])?);
    let old = w.value();
    let before = old.to_vec()?;
    let tape = Tape::new(device);
    // The same memory serves as a parameter and as an input, an anchor that pulls the parameter back.
    let (x, anchor) = (tape.param(&w), tape.input(&old));
    let loss = (&x - &anchor).square().sum() + x.square().sum();
    let grads = tape.backward(&loss)?;
    let (same, doubled) = (x.detach(), &x + &anchor);
    let views = [x.t(), x.slice(1, 1..3), x.reshape([6]), x.expand([2, 2, 3])];
    let dw = grads.get(&w).expect("trained");
    Sgd::new(0.25).step(&mut w, &grads)?;
    // dw = 2(w − anchor) + 2w = 2w
    assert_eq!(w.value().to_vec()?, before.iter().map(|w| w - 0.5 * w).collect::<Vec<_>>());
    assert_eq!(dw.to_vec()?, before.iter().map(|w| 2.0 * w).collect::<Vec<_>>());
    assert_eq!((old.to_vec()?, same.to_vec()?), (before.clone(), before.clone()));
    assert_eq!(doubled.to_vec()?, before.iter().map(|w| 2.0 * w).collect::<Vec<_>>());
    let [transposed, slice, flat, expanded] = views;
    assert_eq!(transposed.to_vec()?, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    assert_eq!(slice.to_vec()?, [2.0, 3.0, 5.0, 6.0]);
    assert_eq!((flat.to_vec()?, expanded.to_vec()?), (before.clone(), before.repeat(2)));
    assert_eq!(loss.item()?, 91.0);
    Ok(())
}

fn stale_after_set() -> Outcome {
    let device = Device::cpu();
    let mut net = Tiny::init(&device, 1)?;
    let (images, labels) = images(&device, "stale", 3)?;
    let (loss, _) = record(&net, &images, &labels)?;
    net.stem.weight.set(tensor(&device, "new", net.stem.weight.shape())?)?;
    expect_stale(loss.item());
    let (loss, _) = record(&net, &images, &labels)?;
    net.to_device(&Device::cpu_with(Precision::Double))?;
    expect_stale(loss.item());
    Ok(())
}

#[track_caller]
fn expect_refused(result: Result<impl Sized>, kind: ErrorKind, parts: &[&str]) {
    let error = result.err().expect("refused");
    assert_eq!(error.kind(), kind, "{error}");
    for part in parts {
        assert!(error.to_string().contains(part), "{part:?} is not in {error}");
    }
}

fn two_tapes() -> Outcome {
    let device = Device::cpu();
    let w = Param::new(tensor(&device, "w", [2, 2])?);
    let (one, two) = (Tape::new(&device), Tape::new(&device));
    let x = two.input(&tensor(&device, "x", [2, 2])?);
    let (a, b) = (one.param(&w).exp(), two.param(&w).exp() * &x);
    let argument = ErrorKind::Argument;
    expect_refused((&a + &b).to_vec(), argument, &["add", "tape", "tape.rs"]);
    expect_refused(a.matmul(&b).to_vec(), argument, &["matmul", "tape", "tape.rs"]);
    expect_refused(Var::concat(&[&a, &a, &b], 0).to_vec(), argument, &["concat", "tape"]);
    // A tape identifies values by number, so another tape's value must not pass for its own.
    expect_refused(one.backward(&b.sum()), argument, &["tape"]);
    expect_refused(one.backward_with(&a, &b), argument, &["tape"]);
    let grads = one.backward(&a.sum())?;
    assert!(grads.of(&x).is_none(), "a value of another tape has no gradient here");
    assert!(grads.get(&w).is_some());
    Ok(())
}

fn two_devices(other: &Device) -> Outcome {
    let device = Device::cpu();
    let tape = Tape::new(&device);
    let elsewhere = tensor(other, "x", [2, 3])?;
    let param = Param::new(elsewhere.clone());
    param.set_path("head.weight");
    let (kind, shape) = (ErrorKind::Device, elsewhere.ty().to_string());
    expect_refused(tape.input(&elsewhere).to_vec(), kind, &["input", &shape, "tape.rs"]);
    expect_refused(tape.param(&param).to_vec(), kind, &["param", &shape, "head.weight", "tape.rs"]);
    let mut here = Param::new(tensor(&device, "x", [2, 3])?);
    let set = here.set(elsewhere);
    assert!(set.is_err() && here.value().device().same(&device), "the old value stays");
    // Moving to another device is explicit.
    here.to_device(other)?;
    assert_eq!(Tape::new(other).param(&here).to_vec()?, tensor(&device, "x", [2, 3])?.to_vec()?);
    Ok(())
}

fn labels(device: &Device) -> Result<(), Failed> {
    let tape = Tape::new(device);
    let x = tape.input(&Tensor::indices(device, [2, 3], &[1, 2, 3, 4, 5, u32::MAX])?);
    assert_eq!(x.t().to_tensor()?.to_u32_vec()?, [1, 4, 2, 5, 3, u32::MAX]);
    assert_eq!(x.slice(1, 1..3).reshape([4]).to_tensor()?.to_u32_vec()?, [2, 3, 5, u32::MAX]);
    assert_eq!(x.slice(0, 1..2).expand([2, 3]).to_tensor()?.to_u32_vec()?, [4, 5, u32::MAX, 4, 5, u32::MAX]);
    let exp = x.exp().error().expect("labels are no floats");
    assert_eq!(exp.kind(), ErrorKind::Shape, "{exp}");
    Ok(())
}
