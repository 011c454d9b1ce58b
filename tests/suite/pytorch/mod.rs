//! PyTorch's results, number for number: outputs, every gradient, and the updated buffers and parameters.
//!
//! `tests/pytorch/make_golden.py` writes the files, in double precision, under PyTorch's own keys. Each case here has
//! the name of a case there, which is the expression that PyTorch evaluated. Its numbers go into the layer through
//! [`Checkpoint::load_safetensors_with`], and its gradients come out through [`Checkpoint::to_safetensors_with`], again
//! under PyTorch's keys.

mod agreement;
mod attention;
mod compare;
mod functions;
mod golden;
mod layers;
mod losses;
mod models;
mod optimizers;
mod penalties;
mod sequences;
mod torchvision;
mod transformers;
mod windows;

use std::collections::BTreeMap;
use std::sync::Arc;

use libtest_mimic::{Failed, Trial};
use meganeura::io::{Checkpoint, Names};
use meganeura::module::At;
use meganeura::{Device, Grads, Module, ModuleExt, Precision, Result, Tape, Tensor, Var};
use safetensors::SafeTensors;

use crate::adapter::gpu_trial;
use crate::numbers::{Computed, Reference};

pub(crate) use agreement::print;
use compare::relative_error;
use golden::{Array, Golden, cases_of};

/// An equivalent of a golden case.
struct Case {
    /// The file that has the golden case.
    file: &'static str,
    /// Its name: the expression that PyTorch evaluated.
    torch: String,
    run: Box<Run>,
}

/// Computes the golden case's results, under its keys.
type Run = dyn Fn(&Device, &Golden) -> Result<Numbers, Failed> + Send + Sync;

type Numbers = BTreeMap<String, Array>;

/// The tolerance between PyTorch's numbers and ours, relative to the largest number of a tensor.
fn tolerance(file: &str, torch: &str, precision: Precision) -> f64 {
    match precision {
        // Gradients of models are stored in single precision, 6e-8 of each number.
        Precision::Double if file == "models" => 1e-7,
        // PyTorch's gradient has a slope of 1/6 in single precision.
        Precision::Double if torch == "nn.Hardsigmoid()" => 5e-8,
        // Some ten roundings of 1e-16 in sums that nearly cancel.
        Precision::Double => 1e-12,
        // Operands of products are rounded to 11 bits, and images to 8 bits after each of a model's operations.
        Precision::Fast if file == "models" => 5e-2,
        // A line search turns differences of losses into steps.
        Precision::Fast if torch.contains("LBFGS") => 5e-2,
        // Everything that attention reads has 8 bits, and gradients of biases are sums of it that nearly cancel.
        Precision::Fast if attends(file, torch) => 6e-2,
        Precision::Fast => 1e-2,
        // Sums of thousands of roundings of 6e-8, through seventeen layers in the deepest model.
        _ => 1e-4,
    }
}

/// `true` if attention is part of a case.
fn attends(file: &str, torch: &str) -> bool {
    file == "attention" || ["Attention", "attention", "Transformer"].iter().any(|part| torch.contains(part))
}

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    compare::collect(trials);
    trials.push(Trial::test("pytorch::a_wrong_setting_is_noticed", wrong_settings));
    models::collect(trials);
    optimizers::collect_schedules(trials);
    let values =
        [layers::cases(), sequences::cases(), transformers::cases(), losses::cases(), functions::cases()].concat();
    let all = [values, windows::cases(), attention::cases(), penalties::cases(), optimizers::cases(), models::cases()]
        .concat();
    let files =
        ["layers", "sequences", "windows", "losses", "functions", "attention", "penalties", "optimizers", "models"];
    for file in files {
        let own: Vec<_> = all.iter().filter(|case| case.file == file).map(|case| case.torch.clone()).collect();
        trials.push(Trial::test(format!("pytorch::every_case_of_{file}_is_compared"), move || complete(file, &own)));
    }
    for case in all {
        let name = |executor: &str| format!("pytorch::{executor}::{}", case.torch);
        for (executor, precision) in [("f64", Precision::Double), ("native", Precision::Full)] {
            let case = Arc::clone(&case);
            let run = move || agrees(&case, &Device::cpu_with(precision).for_testing(0));
            trials.push(Trial::test(name(executor), run));
        }
        let shared = Arc::clone(&case);
        trials.push(gpu_trial(name("gpu"), move |device| agrees(&shared, &device.for_testing(0))));
        let shared = Arc::clone(&case);
        trials.push(gpu_trial(name("fast"), move |device| match device.with_precision(Precision::Fast) {
            Ok(fast) => agrees(&shared, &fast.for_testing(0)),
            // `devices::fast` checks the reason against the known ones.
            Err(_) => Ok(()),
        }));
    }
}

/// Both sides have the same cases.
fn complete(file: &str, own: &[String]) -> Result<(), Failed> {
    let golden: Vec<_> = cases_of(file)?.into_iter().map(|golden| golden.name).collect();
    let only = |a: &[String], b: &[String]| a.iter().filter(|name| !b.contains(name)).cloned().collect::<Vec<_>>();
    let (theirs, ours) = (only(&golden, own), only(own, &golden));
    if !theirs.is_empty() || !ours.is_empty() {
        return Err(format!("only in {file}.safetensors: {theirs:#?}; only here: {ours:#?}").into());
    }
    Ok(())
}

/// Compares a case with PyTorch's results.
fn agrees(case: &Case, device: &Device) -> Result<(), Failed> {
    let errors = errors(case, device)?;
    for (_, error) in &errors {
        agreement::note(case.file, &case.torch, device, *error);
    }
    // Rounding images to eight bits can flip the sign of values that nearly cancel, at every ReLU. So gradients of
    // these small models are noted, but not checked.
    let is_held = |key: &str| device.precision() != Precision::Fast || case.file != "models" || key == "output";
    let errors: Vec<_> = errors.into_iter().filter(|(key, _)| is_held(key)).collect();
    within(&errors, tolerance(case.file, &case.torch, device.precision()))
}

fn within(errors: &[(String, f64)], allowed: f64) -> Result<(), Failed> {
    match errors.iter().find(|(_, error)| *error > allowed) {
        Some((key, error)) => {
            Err(format!("{key} is off by {error:.1e} of its largest number, allowed are {allowed:.1e}").into())
        }
        None => Ok(()),
    }
}

/// The errors of all results of a golden case. There may be no other results.
fn errors(case: &Case, device: &Device) -> Result<Vec<(String, f64)>, Failed> {
    let golden = golden::case_of(case.file, &case.torch)?;
    let computed = (case.run)(device, &golden)?;
    let expected = golden.results()?;
    if let Some(key) = computed.keys().find(|key| !expected.contains_key(*key)) {
        return Err(format!("{key} was computed, and PyTorch has none").into());
    }
    let compare = |(key, expected): (String, Array)| {
        let found = computed.get(&key).ok_or_else(|| format!("{key} was not computed"))?;
        if found.shape != expected.shape {
            return Err(format!("{key} is {:?}, PyTorch's {:?}", found.shape, expected.shape).into());
        }
        let error = relative_error(&Computed(found.data.clone()), &Reference(expected.data));
        Ok((key, error))
    };
    expected.into_iter().map(compare).collect()
}

/// Slight deviations from PyTorch's expression, which the comparison must detect.
fn wrong_settings() -> Result<(), Failed> {
    for (case, keys) in layers::wrong().into_iter().chain(optimizers::wrong()) {
        for precision in [Precision::Double, Precision::Full] {
            let device = Device::cpu_with(precision).for_testing(0);
            let (errors, allowed) = (errors(&case, &device)?, tolerance(case.file, &case.torch, precision));
            let wrong: Vec<_> = errors.iter().filter(|(_, error)| *error > allowed).map(|(key, _)| &**key).collect();
            assert_eq!(wrong, keys, "{}, {errors:?}", case.torch);
            assert!(within(&errors, allowed).is_err());
        }
    }
    Ok(())
}

/// A case of a module from `build`, with the golden case's state under `names`.
fn module<M: Module + 'static>(
    file: &'static str,
    torch: impl Into<String>,
    names: Names,
    build: impl Fn(&Device) -> Result<M> + Send + Sync + 'static,
    forward: impl Fn(&M, &Inputs) -> Var + Send + Sync + 'static,
) -> Arc<Case> {
    let torch = torch.into();
    let is_training = !torch.ends_with(".eval()");
    let run = move |device: &Device, golden: &Golden| {
        let mut net = build(device)?;
        net.load_safetensors_with(&golden.state()?, &names)?.strict()?;
        let tape = if is_training { Tape::new(device) } else { Tape::inference(device) };
        let inputs = Inputs::new(&tape, golden)?;
        let y = forward(&net, &inputs);
        let cotangent = tape.input(&golden.tensor(device, "cotangent")?.reshape(y.shape())?);
        let grads = tape.backward_with(&y, &cotangent)?;
        let of_inputs: Vec<_> = inputs.vars.iter().filter_map(|(name, x)| Some((name, grads.of(x)?))).collect();
        let of_parameters = gradients(&net, &grads)?;
        // The first one that is read computes all, because they are held.
        let mut numbers = Numbers::from([("output".to_owned(), Array::read(&y.to_tensor()?)?)]);
        for (name, dx) in of_inputs {
            numbers.insert(format!("input_grad.{name}"), Array::read(&dx.to_tensor()?)?);
        }
        let of_parameters = of_parameters.into_iter().map(|(path, gradient)| Ok((path, gradient.to_tensor()?)));
        let of_parameters = of_parameters.collect::<Result<BTreeMap<_, _>>>()?;
        if is_training {
            tape.apply()?;
            let after = saved(&net, &names)?.into_iter().map(|(key, array)| (format!("after.{key}"), array));
            numbers.extend(after.filter(|(key, _)| golden.has(key)));
        }
        numbers.extend(under_their_names(&mut net, of_parameters, &names, golden)?);
        Ok(numbers)
    };
    Arc::new(Case { file, torch, run: Box::new(run) })
}

/// A function without parameters.
fn function(
    file: &'static str,
    torch: impl Into<String>,
    f: impl Fn(&Inputs) -> Var + Send + Sync + 'static,
) -> Arc<Case> {
    module(file, torch, Names::new(), |_| Ok(()), move |(), inputs| f(inputs))
}

/// The gradient of every parameter, by path.
fn gradients<M: Module>(net: &M, grads: &Grads) -> Result<BTreeMap<String, Var>, Failed> {
    let of = |(path, param)| {
        let gradient = grads.get(param).ok_or_else(|| format!("{path} has no gradient"))?;
        Ok((path, gradient))
    };
    net.named_parameters().into_iter().map(of).collect()
}

/// The gradients under PyTorch's names: put in place of their parameters, then saved.
fn under_their_names<M: Module>(
    net: &mut M,
    mut gradients: BTreeMap<String, Tensor>,
    names: &Names,
    golden: &Golden,
) -> Result<Numbers, Failed> {
    let mut result = Ok(());
    net.visit_mut(At::root(), &mut |at, mut slot| {
        if let Some(gradient) = gradients.remove(&at.path()) {
            result = result.clone().and(slot.set(gradient));
        }
    });
    result?;
    let all = saved(net, names)?.into_iter().map(|(key, array)| (format!("grad.{key}"), array));
    // Buffers have no gradient.
    Ok(all.filter(|(key, _)| golden.has(key)).collect())
}

/// The contents of a file of the model.
fn saved<M: Module>(net: &M, names: &Names) -> Result<Numbers, Failed> {
    let bytes = net.to_safetensors_with(names)?;
    let file = SafeTensors::deserialize(&bytes)?;
    file.iter().map(|(name, view)| Ok((name.to_owned(), Array::decode(&view)?))).collect()
}

/// The inputs of a golden case, on a tape.
struct Inputs {
    tape: Tape,
    tensors: BTreeMap<String, Tensor>,
    vars: BTreeMap<String, Var>,
}

impl Inputs {
    fn new(tape: &Tape, golden: &Golden) -> Result<Self, Failed> {
        let named = |name: String| Ok((name.clone(), golden.tensor(&tape.device(), &format!("input.{name}"))?));
        let tensors: BTreeMap<_, _> = golden.inputs().map(named).collect::<Result<_, Failed>>()?;
        let vars = tensors.iter().map(|(name, tensor)| (name.clone(), tape.input(tensor))).collect();
        Ok(Self { tape: tape.clone(), tensors, vars })
    }

    fn var(&self, name: &str) -> &Var {
        self.vars.get(name).unwrap_or_else(|| panic!("the golden case has no input {name}"))
    }

    fn tensor(&self, name: &str) -> &Tensor {
        self.tensors.get(name).unwrap_or_else(|| panic!("the golden case has no input {name}"))
    }

    /// Whole numbers as floats.
    fn as_floats(&self, name: &str) -> Var {
        let tensor = self.tensor(name);
        let data: Vec<_> = tensor.to_u32_vec().expect("whole numbers").into_iter().map(f64::from).collect();
        self.tape.input(&Tensor::from_f64(&self.tape.device(), tensor.shape(), &data).expect("as before"))
    }

    /// A setting computed from an input, in double precision.
    fn setting(&self, name: &str, f: fn(f64) -> f64) -> Tensor {
        let tensor = self.tensor(name);
        let data: Vec<_> = tensor.to_f64_vec().expect("floats").into_iter().map(f).collect();
        Tensor::from_f64(&self.tape.device(), tensor.shape(), &data).expect("as before")
    }
}
