//! Every case of every operation as a file: it is the same after a round trip, or an error that names the operation.

use std::sync::Arc;

use libtest_mimic::Trial;
use meganeura::ErrorKind;
use meganeura::onnx::Export;
use meganeura::ops::case::Case;
use meganeura::prelude::*;

use super::round_trip;
use crate::Outcome;
use crate::numbers::operands;

/// Operations that ONNX has no form of: gradients, the losses of sequences, exchanges between
/// ranks, and random numbers.
const WITHOUT_FORM: [&str; 11] = [
    "all_mean",
    "attention_grad",
    "avg_pool2d_grad",
    "conv2d_grad_weight",
    "cross_entropy_grad",
    "ctc",
    "ctc_grad",
    "embedding_grad",
    "group_norm_grad",
    "max_pool2d_grad",
    "random_uniform",
];

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
    // The first result: others are kept for gradients.
    let first = |x: &Vec<Var>| vec![(case.build)(x).swap_remove(0)];
    let op = case.name.split(['{', ' ']).next().unwrap_or_default();
    let onnx = match Export::new().record(&cpu, types.clone(), first) {
        Err(error) if WITHOUT_FORM.contains(&op) => {
            assert_eq!(error.kind(), ErrorKind::Argument, "{error}");
            assert!(error.to_string().contains("this operation has no ONNX form"), "{error}");
            assert!(error.location().is_some(), "{error}");
            return Ok(());
        }
        result => result?,
    };
    assert!(!WITHOUT_FORM.contains(&op), "{op} has a form");
    let expected = cpu.compile(types, first)?.call(&inputs.iter().collect::<Vec<_>>())?;
    // The tolerance of the tests of operations, for sums in another order.
    let tolerance = case.tolerance.max(1e-5);
    round_trip(&format!("op {number} {}", case.name), &onnx, &inputs, &expected, &cpu, tolerance)
}
