//! NaN, infinities, zeros of both signs and subnormal numbers in every row of the elementwise table, alone and combined
//! with themselves, including all gradients, on a GPU and on the native executor.

use libtest_mimic::Trial;
use meganeura::ops::Pointwise;
use meganeura::ops::case::Case;
use meganeura::{Device, Result, Tape, Tensor, Var};

use crate::Outcome;
use crate::adapter::gpu_trial;

/// The largest error of finite results, relative to those above 1: elementary functions of shaders may be several units
/// off, and gradients cancel.
const LIMIT: f32 = 1e-5;

/// A subnormal number: shaders may flush it to 0, or round it up to the smallest normal number.
const TINY: f32 = 1e-40;

const SPECIAL: [f32; 9] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, TINY, -TINY, 1.5, -0.75];

/// A value combined with itself. A compiler that assumes finite numbers folds these without computing them.
type Formula = fn(&Var) -> Var;

#[expect(clippy::eq_op, reason = "the tests combine a value with itself")]
const ITSELF: [(&str, Formula); 9] = [
    ("x − x", |x| x - x),
    ("x / x", |x| x / x),
    ("2x − 2x", |x| x * 2.0 - x * 2.0),
    ("eˣ / eˣ", |x| x.exp() / x.exp()),
    ("x + (−x)", |x| x + -x),
    ("−x + x", |x| -x + x),
    ("x·(1/x)", |x| x * x.recip()),
    ("0·x", |x| x * 0.0),
    ("x = x", |x| x.eq(x)),
];

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    for &op in Pointwise::ALL {
        let case = Case::new(op);
        let name = format!("not_finite::gpu::{}", case.name);
        trials.push(gpu_trial(name, move |device| {
            let build = &case.build;
            agrees(device, op.arity(), usize::MAX, &|x| build(x).swap_remove(0))
        }));
    }
    for (name, formula) in ITSELF {
        // The gradient of x·(1/x) is the difference of two equal terms, which drivers may cancel.
        let parts = if name == "x·(1/x)" { 1 } else { usize::MAX };
        let test = move |device: &Device| agrees(device, 1, parts, &|x| formula(&x[0]));
        trials.push(gpu_trial(format!("not_finite::gpu::{name}"), test));
    }
}

type Build<'a> = &'a dyn Fn(&[Var]) -> Var;

/// Every combination of special numbers, as one column per operand.
fn grid(arity: usize, number: impl Fn(f32) -> f32) -> Vec<Vec<f32>> {
    let count = SPECIAL.len();
    let column = |operand: usize| (0..count.pow(arity as u32)).map(move |row| row / count.pow(operand as u32) % count);
    (0..arity).map(|operand| column(operand).map(|at| number(SPECIAL[at])).collect()).collect()
}

/// The result, and the gradient with respect to each operand that has one.
fn results(device: &Device, columns: &[Vec<f32>], build: Build<'_>) -> Result<Vec<Vec<f32>>> {
    let tape = Tape::new(device);
    let input = |column: &Vec<f32>| Ok(tape.input(&Tensor::from_slice(device, [column.len()], column)?));
    let x = columns.iter().map(input).collect::<Result<Vec<_>>>()?;
    let y = build(&x);
    let grads = tape.backward(&y.sum())?;
    let values = [Some(y)].into_iter().chain(x.iter().map(|x| grads.of(x))).flatten();
    // Reads one value after another: read together, they could share computations.
    values.map(|value| value.to_vec()).collect()
}

/// Compares the first `parts` of a device's results with the native executor's. If an operand is subnormal, only NaN
/// must agree, either with the result for this operand or with the result for 0.
fn agrees(device: &Device, arity: usize, parts: usize, build: Build<'_>) -> Outcome {
    let columns = grid(arity, |x| x);
    let flushed = grid(arity, |x| if x.abs() == TINY { x * 0.0 } else { x });
    let native = Device::cpu();
    let references = [results(&native, &columns, build)?, results(&native, &flushed, build)?];
    let mut wrong = String::new();
    for (part, found) in results(&device.for_testing(0), &columns, build)?.into_iter().take(parts).enumerate() {
        for (row, &y) in found.iter().enumerate() {
            let wanted = [0, 1].map(|which| references[which][part][row]);
            let x: Vec<_> = columns.iter().map(|column| column[row]).collect();
            let is_same = |&want: &f32| match x.iter().any(|x| x.abs() == TINY) {
                true => y.is_nan() == want.is_nan(),
                false => is_close(y, want),
            };
            if !wanted.iter().any(is_same) {
                let what = if part == 0 { "value".to_owned() } else { format!("gradient {}", part - 1) };
                wrong += &format!("{what} of {x:?} is {y:e}, not {:e}\n", wanted[0]);
            }
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.into()) }
}

fn is_close(y: f32, want: f32) -> bool {
    if !want.is_finite() || !y.is_finite() {
        return y == want || (y.is_nan() && want.is_nan());
    }
    (y - want).abs() <= LIMIT * want.abs().max(1.0)
}
