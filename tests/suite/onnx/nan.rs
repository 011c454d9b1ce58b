//! NaN and infinities in files: exports give them where the framework does. The files are kept for `onnxruntime`, whose
//! reductions pass over NaN unless it is a row's first element.

use libtest_mimic::Trial;
use meganeura::onnx::Export;
use meganeura::ops::Mask;
use meganeura::prelude::*;

use super::round_trip;
use crate::Outcome;

const NAN: f32 = f32::NAN;
const INF: f32 = f32::INFINITY;

pub(super) fn collect(trials: &mut Vec<Trial>) {
    type Test = fn() -> Outcome;
    let all: [(&str, Test); 4] = [
        ("reductions", reductions),
        ("elementwise_and_rows", others),
        ("attention", attention),
        ("conditions_are_not_marked", conditions),
    ];
    for (name, test) in all {
        trials.push(Trial::test(format!("onnx::nan::{name}"), test));
    }
}

/// Rows with NaN at each place, with infinities beside it, and without any.
const ROWS: [[f32; 5]; 9] = [
    [NAN, 1.0, 2.0, 3.0, 4.0],
    [4.0, 1.0, NAN, 3.0, 2.0],
    [1.0, 2.0, 3.0, 4.0, NAN],
    [NAN; 5],
    [INF, -INF, 0.0, NAN, 1.0],
    [INF, -INF, 0.0, 2.0, 1.0],
    [-INF; 5],
    [INF; 5],
    [-0.5, 3.0, -7.0, 2.0, 1.0],
];

/// Compares a function of [`ROWS`] with its file, exported for nine rows and for any number of them.
fn compared(name: &str, f: impl Fn(&Var) -> Vec<Var>) -> Outcome {
    let cpu = Device::cpu();
    let x = Tensor::from_slice(&cpu, [9, 5], ROWS.as_flattened())?;
    let expected = cpu.compile(vec![x.ty()], |x: &Vec<Var>| f(&x[0]))?.call(&[&x])?;
    for (export, batch) in [(Export::new(), ""), (Export::new().batch("N"), " of any batch")] {
        let onnx = export.record(&cpu, vec![x.ty()], |x| f(&x[0]))?;
        round_trip(&format!("nan {name}{batch}"), &onnx, std::slice::from_ref(&x), &expected, &cpu, 1e-6)?;
    }
    Ok(())
}

fn reductions() -> Outcome {
    let of_rows = |x: &Var| {
        let all = [x.max_over(&[1]), x.min_over(&[1]), x.sum_over(&[1]), x.mean_over(&[1]), x.logsumexp(&[1])];
        [&all[..], &[x.argmax(1), x.argmin(1)]].concat()
    };
    compared("rows", of_rows)?;
    // Columns, and several axes at once.
    let turned = |x: &Var| {
        let cube = x.reshape([3, 3, 5]);
        vec![x.t().max_over(&[0]), x.min_over(&[0]), cube.max_over(&[0, 2]), cube.min_keep(&[1, 2]), x.max()]
    };
    let cpu = Device::cpu();
    let x = Tensor::from_slice(&cpu, [9, 5], ROWS.as_flattened())?;
    let expected = cpu.compile(&x, turned)?.call(&x)?;
    let onnx = Export::new().record(&cpu, &x, turned)?;
    round_trip("nan columns", &onnx, &[x], &expected, &cpu, 1e-6)?;
    // What another reader computes: NaN is looked for, rather than left to its maximum.
    for fold in [Var::max_over, Var::min_over] {
        let onnx = Export::new().record(&cpu, [2, 3], |x| fold(x, &[1]))?;
        assert!(has_operator(&onnx.to_bytes()?, "IsNaN"));
    }
    Ok(())
}

fn others() -> Outcome {
    compared("elementwise and rows", |x| {
        let bound = x.tape().scalar(1.5).expand(x.shape());
        let elementwise = [x.maximum(&bound), bound.minimum(x), x.clamp(-1.0, 2.0), x.relu(), x.sign()];
        let (sorted, places) = x.sort(1, false);
        let (most, of_most) = x.topk(2, 1);
        let rows = [x.softmax(1), x.log_softmax(1), x.cumsum(1), sorted, places, most, of_most];
        [&elementwise[..], &rows[..]].concat()
    })
}

/// The weights of a query that sees no key are 0, and those of one with a score of NaN are not.
fn attention() -> Outcome {
    let cpu = Device::cpu();
    let bias = [[-INF, -INF, -INF], [-INF, -INF, NAN], [NAN, -INF, -INF], [0.5, -INF, NAN], [0.5, -INF, 1.0]];
    let bias = Tensor::from_slice(&cpu, [5, 3], bias.as_flattened())?;
    let (q, k) = (Tensor::full(&cpu, [1, 5, 2], 0.5)?, Tensor::full(&cpu, [1, 3, 2], 0.25)?);
    let inputs = [q, k, bias];
    let f = |x: &Vec<Var>| x[0].attention(&x[1], &x[1], Some(Mask::Bias(&x[2])));
    let types: Vec<_> = inputs.iter().map(Tensor::ty).collect();
    let expected = cpu.compile(types.clone(), f)?.call(&inputs.iter().collect::<Vec<_>>())?;
    let found: Vec<_> = expected.to_vec()?.chunks(2).map(|row| row[0].is_nan()).collect();
    assert_eq!(found, [false, true, true, true, false], "{expected:?}");
    let onnx = Export::new().record(&cpu, types, f)?;
    round_trip("nan attention", &onnx, &inputs, &[expected], &cpu, 1e-6)?;
    assert!(has_operator(&onnx.to_bytes()?, "ReduceSum"), "`ReduceMax` alone passes over NaN");
    Ok(())
}

/// The extremum of conditions, which are 0 or 1, stays a single operator.
fn conditions() -> Outcome {
    let onnx = Export::new().record(&Device::cpu(), [2, 3], |x| x.gt(x.tape().scalar(0.0)).max_over(&[1]))?;
    let bytes = onnx.to_bytes()?;
    assert!(has_operator(&bytes, "ReduceMax") && !has_operator(&bytes, "IsNaN"));
    Ok(())
}

/// `true` if a file names an operator.
fn has_operator(bytes: &[u8], op: &str) -> bool {
    bytes.windows(op.len()).any(|window| window == op.as_bytes())
}
