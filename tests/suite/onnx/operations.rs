//! Every case of every operation as a file: a round trip gives the same results, or an error that names the operation.

use std::collections::BTreeSet;
use std::sync::Arc;

use libtest_mimic::Trial;
use meganeura::onnx::{Export, Onnx};
use meganeura::ops::case::{Case, Special};
use meganeura::prelude::*;
use meganeura::{ErrorKind, TensorType};

use super::round_trip;
use crate::Outcome;
use crate::numbers::operands;

pub(super) fn collect(trials: &mut Vec<Trial>) {
    for (number, case) in meganeura::ops::all_cases().into_iter().enumerate().filter(|(_, case)| !case.fails) {
        let case = Arc::new(case);
        trials.push(Trial::test(format!("onnx::ops::{}", case.name), move || operation(number, &case)));
    }
    trials.push(Trial::test("onnx::the_guide_lists_what_is_exported", the_guide));
}

/// The first result of a case, as a file: the others exist for gradients.
fn exported(case: &Case, types: Vec<TensorType>) -> Result<Onnx> {
    Export::new().record(&Device::cpu(), types, |x: &Vec<Var>| vec![(case.build)(x).swap_remove(0)])
}

/// The last column of the guide's table has the operators of the files that all operations become.
fn the_guide() -> Outcome {
    let mut found = BTreeSet::new();
    for case in meganeura::ops::all_cases().iter().filter(|case| !case.fails && !case.is(Special::WithoutOnnx)) {
        let types = operands(case).iter().map(|x| Ok(x.tensor(&Device::cpu())?.ty())).collect::<Result<_>>()?;
        found.extend(exported(case, types)?.operators().into_iter().map(str::to_owned));
    }
    let guide = include_str!("../../../meganeura/src/guide/onnx.md");
    let rows = guide.lines().filter(|line| line.starts_with("| "));
    let cells = rows.filter_map(|row| row.strip_suffix('|')?.split(" | ").nth(2));
    let listed: BTreeSet<_> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(str::to_owned).collect();
    let (missing, additional) = (&found - &listed, &listed - &found);
    if missing.is_empty() && additional.is_empty() {
        return Ok(());
    }
    Err(format!("guide/onnx.md lacks {missing:?}, and {additional:?} are in no exported file").into())
}

fn operation(number: usize, case: &Case) -> Outcome {
    let cpu = Device::cpu();
    let inputs = operands(case).iter().map(|x| x.tensor(&cpu)).collect::<Result<Vec<_>>>()?;
    let types: Vec<_> = inputs.iter().map(Tensor::ty).collect();
    let onnx = match exported(case, types.clone()) {
        Err(error) if case.is(Special::WithoutOnnx) => {
            assert_eq!(error.kind(), ErrorKind::Argument, "{error}");
            assert!(error.to_string().contains("this operation has no ONNX form"), "{error}");
            assert!(error.location().is_some(), "{error}");
            return Ok(());
        }
        result => result?,
    };
    assert!(!case.is(Special::WithoutOnnx), "{} has a form", case.op);
    let first = |x: &Vec<Var>| vec![(case.build)(x).swap_remove(0)];
    let expected = cpu.compile(types, first)?.call(&inputs.iter().collect::<Vec<_>>())?;
    // The tolerance of the operation's own tests, because sums may be in another order.
    let tolerance = case.tolerance.max(1e-5);
    round_trip(&format!("op {number} {}", case.name), &onnx, &inputs, &expected, &cpu, tolerance)
}
