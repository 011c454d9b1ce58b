//! Losses and softmax of scores far from 0, in every form of the kernels: values and gradients lose no digits, whatever
//! the magnitude of the scores. `--nocapture` prints the largest errors.

use std::cell::Cell;

use libtest_mimic::Trial;
use meganeura::loss::{BceWithLogitsOptions, CrossEntropyOptions, Reduction};
use meganeura::{Device, Precision, Result, Shape, Tape, Tensor, Var};

use crate::Outcome;
use crate::adapter::gpu_trial;
use crate::ops::{each_variant, offered};

/// ε·√K for sums of up to 100 terms, whatever the magnitude.
const LIMIT: f64 = 10.0 * f32::EPSILON as f64;

/// The unit in the last place of 1e7 is 1.
const MAGNITUDES: [f64; 5] = [1.0, 1e2, 1e4, 1e6, 1e7];

/// The number of classes, and of elements behind the class axis. Every form computes all of them: one invocation per
/// row, several per row, split rows.
const ROWS: [(usize, usize); 4] = [(3, 1), (3, 5), (70, 3), (100, 1)];

/// The number of examples: two of each magnitude.
const EXAMPLES: usize = 2 * MAGNITUDES.len();

/// The unreduced losses of scores `[N, C, I]`, given labels `[N, I]` and class weights `[C]`.
type Formula = fn(&Var, Tensor, Tensor) -> Var;

const FORMULAS: [(&str, Formula); 7] = [
    ("cross_entropy", |x, labels, _| x.cross_entropy_with(&labels, &options(0.0))),
    ("cross_entropy, smoothed", |x, labels, _| x.cross_entropy_with(&labels, &options(0.25))),
    ("cross_entropy, ignoring", |x, labels, _| {
        x.cross_entropy_with(&labels, &CrossEntropyOptions { ignored: Some(1), ..options(0.25) })
    }),
    ("cross_entropy, weighted", |x, labels, weights| {
        x.cross_entropy_with(&labels, &CrossEntropyOptions { class_weights: Some(weights), ..options(0.25) })
    }),
    ("softmax", |x, _, _| x.softmax(1)),
    ("log_softmax", |x, _, _| x.log_softmax(1)),
    ("bce_with_logits", |x, _, weights| {
        let target = x.tape().input(&weights).reshape([x.shape()[1], 1]).expand(x.shape()) * 0.25;
        x.bce_with_logits_with(
            &target,
            &BceWithLogitsOptions { reduction: Reduction::None, ..BceWithLogitsOptions::default() },
        )
    }),
];

fn options(label_smoothing: f64) -> CrossEntropyOptions {
    CrossEntropyOptions { label_smoothing, reduction: Reduction::None, ..CrossEntropyOptions::default() }
}

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    let name = |device: &str| format!("large_scores::{device}values_and_gradients_keep_their_digits");
    trials.push(Trial::test(name(""), || digits(&Device::cpu())));
    trials.push(gpu_trial(name("gpu::"), digits));
}

/// The result of a formula, and its gradient with respect to the scores.
fn results(device: &Device, formula: Formula, classes: usize, inner: usize) -> Result<[Vec<f64>; 2]> {
    let count = EXAMPLES * classes * inner;
    let place = |at: usize| (at / (classes * inner), at / inner % classes, at % inner);
    // A third of the scores are 0; the others are large and close to each other.
    let score = |at| match place(at) {
        (_, c, _) if c % 3 == 0 => 0.0,
        (n, c, i) => MAGNITUDES[n / 2] - ((7 * c + 3 * i + n) % 5) as f64,
    };
    let floats = |shape: &[usize], f: &dyn Fn(usize) -> f64| {
        let shape = Shape::new(shape);
        Tensor::from_f64(device, shape, &(0..shape.elements()).map(f).collect::<Vec<_>>())
    };
    // Labels both far below the largest score and near it.
    let labels: Vec<_> = (0..EXAMPLES * inner).map(|row| (row % 3) as u32).collect();
    let tape = Tape::new(device);
    let x = tape.input(&floats(&[EXAMPLES, classes, inner], &score)?);
    let weights = floats(&[classes], &|c| 1.0 + (c % 4) as f64 / 4.0)?;
    let y = formula(&x, Tensor::indices(device, [EXAMPLES, inner], &labels)?, weights);
    // Cotangents of a row add up to at most 1.
    let each = (y.shape().elements() / (EXAMPLES * inner)) as f64;
    let cotangent = tape.input(&floats(y.shape().dims(), &|at| ((5 * at + 3) % count) as f64 / count as f64 / each)?);
    let dx = tape.backward_with(&y, &cotangent)?.of(&x).expect("all depend on the scores");
    Ok([y.to_tensor()?.to_f64_vec()?, dx.to_tensor()?.to_f64_vec()?])
}

/// The largest difference, relative to numbers above 1.
fn error(computed: &[f64], reference: &[f64]) -> f64 {
    assert_eq!(computed.len(), reference.len());
    let each = computed.iter().zip(reference).map(|(x, want)| (x - want).abs() / want.abs().max(1.0));
    each.fold(0.0, |worst, error| larger([worst, 0.0], [error, 0.0])[0])
}

/// The larger of each pair, or NaN if either is NaN, which `f64::max` would ignore.
fn larger(a: [f64; 2], b: [f64; 2]) -> [f64; 2] {
    [0, 1].map(|part| if b[part] <= a[part] || a[part].is_nan() { a[part] } else { b[part] })
}

/// The largest error of each magnitude.
fn errors(computed: &[f64], reference: &[f64]) -> [f64; MAGNITUDES.len()] {
    let each = reference.len() / MAGNITUDES.len();
    std::array::from_fn(|k| error(&computed[k * each..(k + 1) * each], &reference[k * each..(k + 1) * each]))
}

fn digits(device: &Device) -> Outcome {
    let double = Device::cpu_with(Precision::Double);
    let mut worst = [[0.0; 2]; MAGNITUDES.len()];
    let mut wrong = String::new();
    for (name, formula) in FORMULAS {
        for (classes, inner) in ROWS {
            let reference = results(&double, formula, classes, inner)?;
            let largest = Cell::new([[0.0; 2]; MAGNITUDES.len()]);
            each_variant(device, |device| {
                let found = results(device, formula, classes, inner)?;
                let [values, gradients] = [0, 1].map(|part| errors(&found[part], &reference[part]));
                let before = largest.get();
                largest.set(std::array::from_fn(|k| larger(before[k], [values[k], gradients[k]])));
                Ok(offered(device))
            })?;
            for ((magnitude, largest), worst) in MAGNITUDES.iter().zip(largest.get()).zip(&mut worst) {
                if !largest.iter().all(|&error| error <= LIMIT) {
                    let [value, gradient] = largest;
                    let what = format!("{name} of {classes} classes, {inner} of each, at {magnitude:.0e}");
                    wrong += &format!("{what}: value {value:.1e}, gradient {gradient:.1e}\n");
                }
                *worst = larger(*worst, largest);
            }
        }
    }
    let rows = MAGNITUDES.iter().zip(worst);
    let rows = rows.map(|(magnitude, [value, gradient])| format!("{magnitude:<7.0e}  {value:.1e}  {gradient:.1e}\n"));
    let table = format!("scores   values   gradients\n{}", rows.collect::<String>());
    if std::env::args().any(|argument| argument == "--nocapture") {
        println!("{device}\n{table}");
    }
    if wrong.is_empty() { Ok(()) } else { Err(format!("more than {LIMIT:.1e} off:\n{wrong}{table}").into()) }
}
