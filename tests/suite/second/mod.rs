//! Second derivatives: of every operation's cases, products with vectors, and a penalty that training minimises.

mod edges;
mod vectors;
mod wgan;

use libtest_mimic::{Failed, Trial};
use meganeura::check::Gradcheck;
use meganeura::ops::Pointwise;
use meganeura::ops::case::{Case, Special};
use meganeura::{Device, ErrorKind, Precision, Result, Tape, Var};

use crate::numbers::{Computed, Numbers, Reference, compare, operands};
use crate::ops::{elements, failed, record, sample_of};

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    edges::collect(trials);
    vectors::collect(trials);
    wgan::collect(trials);
}

/// `true` if second derivatives take a software driver reasonable time: they are ten times the work, in many kernels.
pub(crate) fn is_small(case: &Case) -> bool {
    elements(case) <= 400
}

/// The case's differentiable results.
fn differentiable(case: &Case, mut y: Vec<Var>) -> Vec<Var> {
    if case.is(Special::Statistics) {
        y.truncate(1);
    }
    y
}

/// Checks second derivatives by operands and cotangents against finite differences, and those in `f32` against `f64`.
pub(crate) fn native(case: &Case) -> Result<(), Failed> {
    let double = Device::cpu_with(Precision::Double);
    let numbers = operands(case);
    let inputs = numbers.iter().map(|numbers| numbers.tensor(&double)).collect::<Result<Vec<_>>>().map_err(failed)?;
    let check = Gradcheck::default().samples(sample_of(case, 30));
    let report = check.gradgrad(&(), &inputs, |(), x| differentiable(case, (case.build)(x)));
    match report {
        // The first derivatives are zero, which their own test checks.
        Err(error) if error.kind() == ErrorKind::NoGradient => return Ok(()),
        report => report.map_err(failed)?.ok().map_err(failed)?,
    }
    let on = |precision| Device::cpu_with(precision).for_testing(0);
    let reference = derivatives(case, &on(Precision::Double), &numbers).map_err(failed)?;
    hold(case, &on(Precision::Full), &numbers, reference)
}

/// Second derivatives on the GPU against the native executor's in `f64`, which `native` compares with finite
/// differences.
pub(crate) fn wgsl(case: &Case, device: &Device) -> Result<(), Failed> {
    let numbers = operands(case);
    let reference = derivatives(case, &Device::cpu_with(Precision::Double), &numbers).map_err(failed)?;
    hold(case, &device.for_testing(0), &numbers, reference)
}

fn hold(case: &Case, device: &Device, numbers: &[Numbers], reference: Vec<Vec<f64>>) -> Result<(), Failed> {
    let computed = derivatives(case, device, numbers).map_err(failed)?;
    assert_eq!(computed.len(), reference.len());
    // A chain of a few tens of operations, each with the case's rounding error.
    let tolerance = 30.0 * case.tolerance.max(1e-6);
    for (k, (computed, reference)) in computed.into_iter().zip(reference).enumerate() {
        compare(&format!("second derivative {k}"), &Computed(computed), &Reference(reference), tolerance)?;
    }
    Ok(())
}

/// Random numbers of a value's shape, the same for every device.
fn cotangent(y: &Var, op: Pointwise) -> Result<Var> {
    let numbers = &operands(&Case::new(op).input(y.shape().dims()))[0];
    Ok(y.tape().input(&numbers.tensor(&y.tape().device())?))
}

/// The gradients of `Σ d·dx` with respect to all operands and the cotangents, where `dx` are the gradients of `Σ c·y`.
fn derivatives(case: &Case, device: &Device, operands: &[Numbers]) -> Result<Vec<Vec<f64>>> {
    let tape = Tape::with_seed(device, 3);
    let (mut x, y) = record(case, &tape, operands)?;
    x.retain(|x| x.ty().dtype.is_float());
    let weigh = |values: &[Var], op| -> Result<(Var, Vec<Var>)> {
        let floats: Vec<_> = values.iter().filter(|y| y.ty().dtype.is_float()).collect();
        let cotangents = floats.iter().map(|y| cotangent(y, op)).collect::<Result<Vec<_>>>()?;
        let terms = floats.iter().zip(&cotangents).map(|(y, c)| (*y * c).sum());
        Ok((terms.reduce(|a, b| a + b).expect("at least one is a float"), cotangents))
    };
    let (loss, cotangents) = weigh(&differentiable(case, y), Pointwise::Neg)?;
    let grads = tape.backward(&loss)?;
    let gradients: Vec<_> = x.iter().filter_map(|x| grads.of(x)).collect();
    if gradients.is_empty() {
        return Ok(Vec::new());
    }
    let (loss, _) = weigh(&gradients, Pointwise::Exp)?;
    let grads = tape.backward(&loss)?;
    let second: Vec<_> = x.iter().chain(&cotangents).filter_map(|x| grads.of(x)).collect();
    second.iter().map(|dx| dx.to_tensor()?.to_f64_vec()).collect()
}
