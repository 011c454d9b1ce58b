//! Every case of every operation as a file: a round trip gives the same results, or an error that names the operation.

use std::sync::Arc;

use libtest_mimic::Trial;
use meganeura::ErrorKind;
use meganeura::onnx::Export;
use meganeura::ops::case::{Case, Special};
use meganeura::prelude::*;

use super::round_trip;
use crate::Outcome;
use crate::numbers::operands;

pub(super) fn collect(trials: &mut Vec<Trial>) {
    for (number, case) in meganeura::ops::all_cases().into_iter().enumerate().filter(|(_, case)| !case.fails) {
        let case = Arc::new(case);
        trials.push(Trial::test(format!("onnx::ops::{}", case.name), move || operation(number, &case)));
    }
}

fn operation(number: usize, case: &Case) -> Outcome {
    let cpu = Device::cpu();
    let inputs = operands(case).iter().map(|x| x.tensor(&cpu)).collect::<meganeura::Result<Vec<_>>>()?;
    let types: Vec<_> = inputs.iter().map(Tensor::ty).collect();
    // Only the first result: the others exist for gradients.
    let first = |x: &Vec<Var>| vec![(case.build)(x).swap_remove(0)];
    let onnx = match Export::new().record(&cpu, types.clone(), first) {
        Err(error) if case.is(Special::WithoutOnnx) => {
            assert_eq!(error.kind(), ErrorKind::Argument, "{error}");
            assert!(error.to_string().contains("this operation has no ONNX form"), "{error}");
            assert!(error.location().is_some(), "{error}");
            return Ok(());
        }
        result => result?,
    };
    assert!(!case.is(Special::WithoutOnnx), "{} has a form", case.op);
    let expected = cpu.compile(types, first)?.call(&inputs.iter().collect::<Vec<_>>())?;
    // The tolerance of the operation's own tests, because sums may be in another order.
    let tolerance = case.tolerance.max(1e-5);
    round_trip(&format!("op {number} {}", case.name), &onnx, &inputs, &expected, &cpu, tolerance)
}
