//! Gradients of values that are sliced many times: their values, and work proportional to the slices.

use std::ops::Range;

use libtest_mimic::Trial;
use meganeura::nn::{Gru, Lstm};
use meganeura::{Device, Init, Layer, Precision, Result, Seed, Tape, Tensor, Var};

use crate::Outcome;
use crate::adapter::gpu_trial;

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    let mut both = |name: &str, run: fn(&Device) -> Outcome| {
        trials.push(Trial::test(format!("slices::{name}"), move || run(&Device::cpu_with(Precision::Double))));
        trials.push(gpu_trial(format!("slices::gpu::{name}"), move |device| run(&device.for_testing(0))));
    };
    both("gradients_add_up_however_slices_lie", however_slices_lie);
    both("gradients_add_up_through_views_and_along_axes", through_views);
    trials.push(Trial::test("slices::work_is_proportional_to_the_slices", work));
    trials.push(Trial::test("slices::a_recurrent_layer_records_linearly", recurrent));
    trials.push(Trial::test("slices::tails_of_tails_record_linearly", tails));
}

/// Ranges of a length.
type Ranges = fn(usize) -> Vec<Range<usize>>;

/// Ranges of an axis of `n` elements, n of them or fewer.
const PATTERNS: [(&str, Ranges); 8] = [
    ("one after the other", |n| (0..n).map(|k| k..k + 1).collect()),
    ("backwards", |n| (0..n / 2).rev().map(|k| 2 * k..2 * k + 2).collect()),
    ("with gaps", |n| (0..n / 4).map(|k| 4 * k + 1..4 * k + 3).collect()),
    ("overlapping", |n| (0..n - 4).map(|k| k..k + 5).collect()),
    ("overlapping in any order", |n| (0..n - 4).map(|k| k * 7 % (n - 4)).map(|k| k..k + 5).collect()),
    ("equal", |n| vec![n / 2..n / 2 + 2; n]),
    ("one in another", |n| (0..n / 2 - 1).map(|k| k..n - k).collect()),
    ("with the whole and its ends", |n| (0..n / 2).map(|k| 2 * k..2 * k + 1).chain([0..n, 0..1, n - 1..n]).collect()),
];

/// `Σ_k c_k·Σ x[range_k]²` with factors `1, 2, …`, by slices along an axis.
fn loss(x: &Var, axis: usize, ranges: &[Range<usize>]) -> Var {
    let terms = ranges.iter().zip(1u16..).map(|(range, k)| x.slice(axis, range.clone()).square().sum() * f64::from(k));
    terms.reduce(|sum, term| sum + term).expect("there are slices")
}

/// For each element of the axis, the sum of the factors of the slices that it is in.
fn factors(n: usize, ranges: &[Range<usize>]) -> Vec<f64> {
    let mut factors = vec![0.0; n];
    for (range, k) in ranges.iter().zip(1u16..) {
        factors[range.clone()].iter_mut().for_each(|factor| *factor += f64::from(k));
    }
    factors
}

#[track_caller]
fn close(what: &str, found: &Tensor, wanted: &[f64]) -> Outcome {
    let found = found.to_f64_vec()?;
    // Sums of a few hundred terms in f32.
    let is_close = |(x, want): (&f64, &f64)| (x - want).abs() <= 1e-5 * want.abs().max(1.0);
    assert!(found.len() == wanted.len() && found.iter().zip(wanted).all(is_close), "{what}: {found:?}, not {wanted:?}");
    Ok(())
}

fn however_slices_lie(device: &Device) -> Outcome {
    const N: usize = 24;
    for (name, ranges) in PATTERNS {
        let ranges = ranges(N);
        let factors = factors(N, &ranges);
        for shape in [[N, 3, 2], [2, N, 3], [3, 1, N]] {
            let axis = shape.iter().position(|&extent| extent == N).expect("one of them");
            let inner: usize = shape[axis + 1..].iter().product();
            let tape = Tape::new(device);
            let count: usize = shape.iter().product();
            let numbers: Vec<_> = (0..count).map(|i| (i % 11) as f64 * 0.5 - 2.0).collect();
            let x = tape.input(&Tensor::from_f64(device, shape, &numbers)?);
            let dx = tape.backward(&loss(&x, axis, &ranges))?.of(&x).expect("depends on it");
            // The gradient's gradient.
            let twice = tape.backward(&(&dx * &dx * 0.5).sum())?.of(&x).expect("depends on it");
            let of = |i: usize| 2.0 * factors[i / inner % N];
            let wanted = |power| (0..count).map(|i| of(i).powi(power) * numbers[i]).collect::<Vec<_>>();
            close(name, &dx.to_tensor()?, &wanted(1))?;
            close(name, &twice.to_tensor()?, &wanted(2))?;
        }
    }
    Ok(())
}

fn through_views(device: &Device) -> Outcome {
    const N: usize = 6;
    let functions: [fn(&Var, usize, usize) -> Var; 5] = [
        |x, i, j| x.at((i, j)),
        |x, i, j| x.t().at((j, i)),
        |x, i, j| x.reshape([N * N]).slice(0, i * N + j..i * N + j + 1),
        |x, i, j| x.slice(1, j..j + 1).slice(0, i..i + 1),
        |x, i, j| x.slice(0, 0..i + 1).slice(1, j..N).at((i, 0)),
    ];
    let numbers: Vec<_> = (0..N * N).map(|i| (i % 7) as f64 - 2.0).collect();
    for (which, f) in functions.into_iter().enumerate() {
        let tape = Tape::new(device);
        let x = tape.input(&Tensor::from_f64(device, [N, N], &numbers)?);
        let terms = (0..N * N).map(|at| f(&x, at / N, at % N).square().sum() * (at + 1) as f64);
        let sum = terms.reduce(|sum, term| sum + term).expect("there are some") + x.sum();
        let dx = tape.backward(&sum)?.of(&x).expect("depends on it");
        let wanted: Vec<_> = numbers.iter().zip(1..).map(|(x, k)| 2.0 * f64::from(k) * x + 1.0).collect();
        close(&format!("function {which}"), &dx.to_tensor()?, &wanted)?;
    }
    Ok(())
}

/// The operands that all nodes of a tape have.
fn operands(tape: &Tape) -> usize {
    tape.to_string().matches('%').count()
}

/// The elements that the steps of a device's only plan compute.
fn computed(device: &Device) -> usize {
    let [plan] = &device.plan_dumps()[..] else { panic!("one plan") };
    let results = plan.lines().filter_map(|line| line.split_once(" = ")).flat_map(|(results, _)| {
        results.split("f64[").skip(1).map(|shape| shape.split_once(']').expect("a shape").0.to_owned())
    });
    let elements = |dims: String| dims.split(", ").filter_map(|dim| dim.parse::<usize>().ok()).product::<usize>();
    results.map(elements).sum()
}

/// Twice as many slices take at most 2.2 times as many operands, and the steps compute a bounded number of elements for
/// each element of a slice.
fn work() -> Outcome {
    for (name, ranges) in PATTERNS {
        let mut measured = Vec::new();
        for n in [64, 128, 256] {
            let device = Device::cpu_with(Precision::Double).for_testing(0);
            let tape = Tape::new(&device);
            let x = tape.input(&Tensor::zeros(&device, [n, 8])?);
            let ranges = ranges(n);
            let loss = loss(&x, 0, &ranges);
            let dx = tape.backward(&loss)?.of(&x).expect("depends on it");
            drop(loss);
            let operands = operands(&tape);
            dx.to_vec()?;
            let sliced: usize = ranges.iter().map(|range| 8 * range.len()).sum();
            measured.push((operands, computed(&device) as f64 / sliced as f64));
        }
        // If each slice had a sum as large as the value, there would be up to 256 for each element of a slice.
        assert!(measured.iter().all(|(_, each)| *each <= 8.0), "{name}: elements for each of a slice {measured:?}");
        for pair in measured.windows(2) {
            assert!(pair[1].0 as f64 <= 2.2 * pair[0].0 as f64, "{name}: operands {measured:?}");
        }
    }
    Ok(())
}

/// The operands of a step's tape, by the number of time steps.
fn of_steps(record: impl Fn(&Device, usize) -> Result<Tape>) -> Result<Vec<usize>> {
    let device = Device::cpu();
    [50, 100, 200].into_iter().map(|steps| Ok(operands(&record(&device, steps)?))).collect()
}

fn recurrent() -> Outcome {
    fn record<L: Layer>(device: &Device, layer: &L, steps: usize) -> Result<Tape> {
        let tape = Tape::new(device);
        let x = tape.input(&Tensor::zeros(device, [2, steps, 3])?);
        let loss = layer.forward(&x).square().mean();
        tape.backward(&loss)?;
        Ok(tape)
    }
    let counts = [
        of_steps(|device, steps| record(device, &Lstm::new(3, 4).init(device, Seed::new(1))?, steps))?,
        of_steps(|device, steps| record(device, &Gru::new(3, 4).init(device, Seed::new(1))?, steps))?,
    ];
    for counts in counts {
        assert!(counts[2] - counts[1] <= 2 * (counts[1] - counts[0]) + 64, "{counts:?}");
    }
    Ok(())
}

/// Each step takes the first element off what is left.
fn tails() -> Outcome {
    let counts = of_steps(|device, steps| {
        let tape = Tape::new(device);
        let x = tape.input(&Tensor::zeros(device, [steps, 2])?);
        let (mut rest, mut sum) = (x.clone(), tape.scalar(0.0));
        for _ in 1..steps {
            sum += rest.at(0).square().sum();
            rest = rest.at(1..);
        }
        tape.backward(&sum)?;
        Ok(tape)
    })?;
    assert!(counts[2] - counts[1] <= 2 * (counts[1] - counts[0]) + 64, "{counts:?}");
    Ok(())
}
