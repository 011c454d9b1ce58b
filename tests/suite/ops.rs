//! Every operation, through its cases: the shape rule against the results, the native kernel in both precisions, the
//! gradient rule against finite differences, every WGSL variant against the native `f64` results, and gradients on the GPU.

use std::sync::Arc;

use libtest_mimic::{Failed, Trial};
use meganeura::check::Gradcheck;
use meganeura::ops::case::{Array, Case};
use meganeura::{DType, Device, Error, Precision, Result, Tape, Tensor, Var};

use crate::adapter::gpu_trial;
use crate::numbers::{self, Computed, Numbers, Reference, compare, operands};

/// No operation has more variants than this.
const VARIANTS: usize = 5;

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    for case in meganeura::ops::all_cases() {
        let case = Arc::new(case);
        let name = |part: &str| format!("ops::{part}::{}", case.name);
        if case.fails {
            let case = Arc::clone(&case);
            trials.push(Trial::test(name("refuses"), move || refuses(&case)));
            continue;
        }
        let on = |run: fn(&Case) -> Result<(), Failed>| {
            let case = Arc::clone(&case);
            move || run(&case)
        };
        trials.push(Trial::test(name("native"), on(native)));
        trials.push(Trial::test(name("gradient"), on(gradient)));
        let shared = Arc::clone(&case);
        trials.push(gpu_trial(name("wgsl"), move |device| wgsl(&shared, device)));
        let shared = Arc::clone(&case);
        trials.push(gpu_trial(name("wgsl_gradient"), move |device| wgsl_gradient(&shared, device)));
    }
}

/// Whether results after the first are statistics for the gradient, not differentiable themselves.
fn has_statistics(case: &Case) -> bool {
    ["group_norm", "cross_entropy"].iter().any(|op| case.name.starts_with(op))
}

#[expect(clippy::needless_pass_by_value, reason = "stands in `map_err`")]
fn failed(error: Error) -> Failed {
    Failed::from(error.to_string())
}

/// The case's results on a device, which it records on the given tape.
fn record(case: &Case, tape: &Tape, operands: &[Numbers]) -> Result<(Vec<Var>, Vec<Var>)> {
    let x =
        operands.iter().map(|numbers| Ok(tape.input(&numbers.tensor(&tape.device())?))).collect::<Result<Vec<_>>>()?;
    let y = (case.build)(&x);
    Ok((x, y))
}

fn numbers_of(tensor: &Tensor) -> Result<Vec<f64>> {
    match tensor.ty().dtype {
        DType::U32 => Ok(tensor.to_u32_vec()?.into_iter().map(f64::from).collect()),
        _ => tensor.to_f64_vec(),
    }
}

fn results(case: &Case, device: &Device, operands: &[Numbers]) -> Result<Vec<Vec<f64>>> {
    let (_, y) = record(case, &Tape::with_seed(device, 3), operands)?;
    y.iter()
        .map(|y| {
            let tensor = y.to_tensor()?;
            assert_eq!(tensor.ty(), y.ty(), "the shape rule and the result agree");
            numbers_of(&tensor)
        })
        .collect()
}

/// The gradients of `Σ c·y`, with fixed random cotangents, for every operand that has one.
fn gradients(case: &Case, device: &Device, operands: &[Numbers]) -> Result<Vec<Option<Vec<f64>>>> {
    let tape = Tape::with_seed(device, 3);
    let (x, y) = record(case, &tape, operands)?;
    let mut terms = Vec::new();
    for (k, y) in y.iter().enumerate().filter(|(_, y)| y.ty().dtype.is_float()) {
        if k > 0 && has_statistics(case) {
            continue;
        }
        let cotangent = Case::new(meganeura::ops::Pointwise::Neg).input(y.shape().dims());
        let cotangent = &numbers::operands(&cotangent)[0];
        terms.push((y * tape.input(&cotangent.tensor(device)?)).sum());
    }
    let loss = terms.into_iter().reduce(|a, b| a + b).expect("every operation has a float result");
    let grads = tape.backward(&loss)?;
    let read = |x: &Var| match grads.of(x) {
        Some(gradient) if x.ty().dtype.is_float() => Ok(Some(gradient.to_tensor()?.to_f64_vec()?)),
        _ => Ok(None),
    };
    x.iter().map(read).collect()
}

fn refuses(case: &Case) -> Result<(), Failed> {
    let operands = operands(case);
    let (_, y) = record(case, &Tape::new(&Device::cpu()), &operands).map_err(failed)?;
    match Case::error(&y) {
        Some(_) => Ok(()),
        None => Err("recorded without complaint".into()),
    }
}

/// `f64` against the obvious reference where there is one, `f32` against `f64`; all memory holds NaN before it is written.
fn native(case: &Case) -> Result<(), Failed> {
    let operands = operands(case);
    let on = |precision| Device::cpu_with(precision).for_testing(0).map_err(failed);
    let reference = results(case, &on(Precision::Double)?, &operands).map_err(failed)?;
    if let Some(naive) = &case.naive {
        let arrays: Vec<Array> = operands
            .iter()
            .map(|numbers| match numbers {
                Numbers::Floats(array) => array.clone(),
                Numbers::Labels(..) => unreachable!("references take floats"),
            })
            .collect();
        for (k, (array, computed)) in naive(&arrays).into_iter().zip(&reference).enumerate() {
            compare(&format!("f64 result {k}"), &Computed(computed.clone()), &Reference(array.data), 1e-12)?;
        }
    }
    let computed = results(case, &on(Precision::Full)?, &operands).map_err(failed)?;
    for (k, (computed, reference)) in computed.into_iter().zip(reference).enumerate() {
        compare(&format!("f32 result {k}"), &Computed(computed), &Reference(reference), case.tolerance)?;
    }
    Ok(())
}

/// The gradient rule against finite differences.
fn gradient(case: &Case) -> Result<(), Failed> {
    let device = Device::cpu_with(Precision::Double);
    let inputs =
        operands(case).iter().map(|numbers| numbers.tensor(&device)).collect::<Result<Vec<_>>>().map_err(failed)?;
    let first_only = has_statistics(case);
    let build = |(): &(), x: &[Var]| {
        let mut y = (case.build)(x);
        if first_only {
            y.truncate(1);
        }
        y
    };
    // Finite differences of large cases are slow and show nothing that a part does not.
    let report = Gradcheck::default().samples(80).run(&(), &inputs, build).map_err(failed)?;
    report.ok().map_err(failed)
}

/// Every WGSL variant against the native `f64` results.
fn wgsl(case: &Case, device: &Device) -> Result<(), Failed> {
    let operands = operands(case);
    let reference = results(case, &Device::cpu_with(Precision::Double), &operands).map_err(failed)?;
    for variant in 0..VARIANTS {
        let computed = results(case, &device.for_testing(variant).map_err(failed)?, &operands).map_err(failed)?;
        for (k, (computed, reference)) in computed.into_iter().zip(&reference).enumerate() {
            let what = format!("variant {variant}, result {k}");
            compare(&what, &Computed(computed), &Reference(reference.clone()), case.tolerance)?;
        }
    }
    Ok(())
}

/// Gradients on the GPU against those of the native executor in `f64`, which `gradient` holds to finite differences.
fn wgsl_gradient(case: &Case, device: &Device) -> Result<(), Failed> {
    let operands = operands(case);
    let reference = gradients(case, &Device::cpu_with(Precision::Double), &operands).map_err(failed)?;
    for variant in 0..VARIANTS {
        let computed = gradients(case, &device.for_testing(variant).map_err(failed)?, &operands).map_err(failed)?;
        for (k, pair) in computed.into_iter().zip(&reference).enumerate() {
            let (Some(computed), Some(reference)) = pair else { continue };
            let what = format!("variant {variant}, gradient {k}");
            // A gradient chains a few operations of the case's own precision.
            compare(&what, &Computed(computed), &Reference(reference.clone()), 10.0 * case.tolerance.max(1e-6))?;
        }
    }
    Ok(())
}
