//! Attention of every kind against a loop in `f64`, forward and backward: odd lengths, masks, causality, queries that
//! see no key, features of all widths, and groups of heads that share keys. Native, and on the GPU in full and in fast
//! precision.

use libtest_mimic::{Failed, Trial};
use meganeura::ops::{AttentionOptions, Mask};
use meganeura::{Device, Precision, Result, Tape, Tensor, Var};

use crate::Outcome;
use crate::adapter::{gpu_trial, is_software};
use crate::nets::normal;
use crate::numbers::{Computed, Reference, compare};
use crate::ops::{each_variant, offered};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    All,
    Causal,
    /// A boolean mask of queries and keys; some queries see no key.
    Visible,
    /// Numbers for each head, query and key, some of them −∞, with a gradient.
    Bias,
    /// A boolean mask of keys; one sequence sees none.
    Padding,
    CausalVisible,
}

const KINDS: [Kind; 6] = [Kind::All, Kind::Causal, Kind::Visible, Kind::Bias, Kind::Padding, Kind::CausalVisible];

const FEATURES: [usize; 11] = [8, 20, 32, 33, 64, 100, 128, 136, 160, 192, 256];

/// Queries and keys.
const LENGTHS: [[usize; 2]; 9] =
    [[7, 13], [64, 64], [65, 129], [130, 67], [1, 1], [197, 197], [1, 300], [300, 31], [20, 256]];

/// Heads of keys, and the heads of queries for each.
const HEADS: [[usize; 2]; 5] = [[2, 1], [2, 2], [1, 4], [1, 8], [3, 2]];

/// Sequences.
const BATCH: usize = 2;

#[derive(Clone, Copy, Debug)]
struct Subject {
    kind: Kind,
    l: usize,
    s: usize,
    d: usize,
    e: usize,
    own: usize,
    group: usize,
    /// Later keys have larger scores.
    grows: bool,
}

impl Subject {
    fn heads(self) -> usize {
        self.own * self.group
    }

    /// `true` if a query sees a key.
    fn sees(self, n: usize, i: usize, j: usize) -> bool {
        let Self { l, s, .. } = self;
        let visible = || i % 7 != 3 && (i * 5 + j * 3) % 4 != 1 && (!i.is_multiple_of(3) || j < s - s / 3);
        match self.kind {
            Kind::All | Kind::Bias => true,
            Kind::Causal => j + l <= i + s,
            Kind::Visible => visible(),
            Kind::Padding => n == 0 && j < s - s / 3,
            Kind::CausalVisible => j + l <= i + s && visible(),
        }
    }

    fn scale(self) -> f64 {
        0.9 / (self.d as f64).sqrt()
    }

    fn shapes(self) -> [Vec<usize>; 5] {
        let Self { l, s, d, e, own, .. } = self;
        let heads = self.heads();
        [
            vec![BATCH, l, heads, d],
            vec![BATCH, s, own, d],
            vec![BATCH, s, own, e],
            vec![heads, l, s],
            vec![BATCH, l, heads, e],
        ]
    }

    /// Queries, keys, values, the bias and the cotangent: numbers that are exact in bf16.
    fn numbers(self) -> [Vec<f64>; 5] {
        let shapes = self.shapes();
        let mut operand = 0;
        let mut numbers = shapes.map(|shape| {
            operand += 1;
            let round = |x: f64| (x * 32.0).round().clamp(-127.0, 127.0) / 32.0;
            let numbers = normal(&format!("attention {operand}"), shape.iter().product());
            numbers.into_iter().map(round).collect::<Vec<_>>()
        });
        let of_key = self.own * self.d;
        let factor = |j: usize| if self.grows { 2f64.powi((j / 64) as i32) } else { 1.0 };
        numbers[1].iter_mut().enumerate().for_each(|(at, k)| *k *= factor(at / of_key % self.s));
        // A row of −∞, and some places of others.
        for (at, bias) in numbers[3].iter_mut().enumerate() {
            let (i, j) = (at / self.s % self.l, at % self.s);
            if i % 11 == 2 || (i + 2 * j) % 9 == 4 {
                *bias = f64::NEG_INFINITY;
            }
        }
        numbers
    }
}

/// The result and the gradients, by a loop over heads and queries.
fn reference(subject: Subject) -> Vec<Vec<f64>> {
    let Subject { kind, l, s, d, e, own, group, .. } = subject;
    let heads = subject.heads();
    let [q, k, v, bias, dy] = subject.numbers();
    let [mut y, mut dq, mut dk, mut dv, mut dbias] =
        [dy.len(), q.len(), k.len(), v.len(), bias.len()].map(|len| vec![0.0; len]);
    for (n, h, i) in (0..BATCH * heads * l).map(|at| (at / l / heads, at / l % heads, at % l)) {
        let of_query = |width: usize| ((n * l + i) * heads + h) * width;
        let of_key = |j: usize, width: usize| ((n * s + j) * own + h / group) * width;
        let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
        let (query, slope) = (&q[of_query(d)..][..d], &dy[of_query(e)..][..e]);
        let score = |j: usize| {
            let product = dot(query, &k[of_key(j, d)..][..d]) * subject.scale();
            product + if kind == Kind::Bias { bias[(h * l + i) * s + j] } else { 0.0 }
        };
        let scores = (0..s).map(|j| if subject.sees(n, i, j) { score(j) } else { f64::NEG_INFINITY });
        let scores: Vec<_> = scores.collect();
        let peak = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if peak == f64::NEG_INFINITY {
            continue;
        }
        let mut weights: Vec<_> = scores.iter().map(|score| (score - peak).exp()).collect();
        let mass: f64 = weights.iter().sum();
        weights.iter_mut().for_each(|weight| *weight /= mass);
        let slopes: Vec<_> = (0..s).map(|j| dot(slope, &v[of_key(j, e)..][..e])).collect();
        let mean = dot(&weights, &slopes);
        for (j, weight) in weights.into_iter().enumerate() {
            let of_score = weight * (slopes[j] - mean);
            dbias[(h * l + i) * s + j] += of_score;
            for x in 0..e {
                y[of_query(e) + x] += weight * v[of_key(j, e) + x];
                dv[of_key(j, e) + x] += weight * slope[x];
            }
            for x in 0..d {
                dq[of_query(d) + x] += of_score * subject.scale() * k[of_key(j, d) + x];
                dk[of_key(j, d) + x] += of_score * subject.scale() * query[x];
            }
        }
    }
    let mut results = vec![y, dq, dk, dv];
    results.extend((kind == Kind::Bias).then_some(dbias));
    results
}

fn evaluate(device: &Device, subject: Subject) -> Result<Vec<Vec<f64>>> {
    let Subject { kind, l, s, .. } = subject;
    let tape = Tape::new(device);
    let (shapes, numbers) = (subject.shapes(), subject.numbers());
    let input = |at: usize| {
        Ok::<_, meganeura::Error>(tape.input(&Tensor::from_f64(device, shapes[at].as_slice(), &numbers[at])?))
    };
    let [q, k, v, bias, dy] = [input(0)?, input(1)?, input(2)?, input(3)?, input(4)?];
    let heads = |x: &Var| x.permute(&[0, 2, 1, 3]);
    let bools = |shape: &[usize], sees: Vec<bool>| {
        Ok::<_, meganeura::Error>(tape.input(&Tensor::from_bools(device, shape, &sees)?))
    };
    let visible = match kind {
        Kind::Visible | Kind::CausalVisible => {
            // Causality is a setting.
            let mask = Subject { kind: Kind::Visible, ..subject };
            Some(bools(&[l, s], (0..l * s).map(|at| mask.sees(0, at / s, at % s)).collect())?)
        }
        Kind::Padding => {
            Some(bools(&[BATCH, 1, 1, s], (0..BATCH * s).map(|at| subject.sees(at / s, 0, at % s)).collect())?)
        }
        Kind::All | Kind::Causal | Kind::Bias => None,
    };
    let mask = if kind == Kind::Bias { Some(Mask::Bias(&bias)) } else { visible.as_ref().map(Mask::Visible) };
    let causal = matches!(kind, Kind::Causal | Kind::CausalVisible);
    let options = AttentionOptions { mask, causal, scale: Some(subject.scale()), grouped: true };
    let y = heads(&heads(&q).attention_with(&heads(&k), &heads(&v), options));
    let grads = tape.backward(&(&y * dy).sum())?;
    let mut results = vec![y];
    let operands = [Some(&q), Some(&k), Some(&v), (kind == Kind::Bias).then_some(&bias)];
    results.extend(operands.into_iter().flatten().map(|x| grads.of(x).expect("the result depends on it")));
    results.iter().map(|result| result.to_tensor()?.to_f64_vec()).collect()
}

fn hold(
    device: &Device,
    subject: Subject,
    expected: &[Vec<f64>],
    tolerance: f64,
) -> std::result::Result<usize, Failed> {
    let found = evaluate(device, subject)?;
    assert_eq!(found.len(), expected.len());
    for (name, (found, expected)) in ["y", "dq", "dk", "dv", "dbias"].iter().zip(found.into_iter().zip(expected)) {
        // One query has few gradients to sum, so they may all be small.
        let scale = expected.iter().fold(0.05f64, |max, x| max.max(x.abs()));
        let scaled = |data: &[f64]| data.iter().map(|x| x / scale).collect::<Vec<_>>();
        let what = format!("{name} of {subject:?} on {device}");
        compare(&what, &Computed(scaled(&found)), &Reference(scaled(expected)), tolerance)?;
    }
    Ok(offered(device))
}

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    trials.push(gpu_trial("attention::fast::rounds_weights_to_the_nearest", rounds_weights));
    let mut number = 0;
    for d in FEATURES {
        for kind in KINDS {
            let ([l, s], [own, group]) = (LENGTHS[number % LENGTHS.len()], HEADS[number % HEADS.len()]);
            // Values as wide as keys, or not.
            let e = if number % 4 == 3 { FEATURES[(number / 4) % FEATURES.len()] } else { d };
            number += 1;
            let subject = Subject { kind, l, s, d, e, own, group, grows: number % 2 == 0 };
            let name = format!("{d}_{e}::{kind:?}_{l}_{s}_{own}x{group}");
            trials.push(Trial::test(format!("attention::native::{name}"), move || {
                let expected = reference(subject);
                hold(&Device::cpu_with(Precision::Double), subject, &expected, 1e-10)?;
                hold(&Device::cpu(), subject, &expected, 1e-4).map(|_| ())
            }));
            // A software driver takes long for many features and tokens.
            let is_large = d.max(e) > 64 || l * s > 2000;
            trials.push(gpu_trial(format!("attention::gpu::{name}"), move |device| {
                if is_software(device) && is_large {
                    return Ok(());
                }
                full(device, subject)
            }));
            trials.push(gpu_trial(format!("attention::fast::{name}"), move |device| fast(device, subject, number)));
        }
    }
}

fn full(device: &Device, subject: Subject) -> Outcome {
    let expected = reference(subject);
    hold(&device.for_testing(0), subject, &expected, 1e-4).map(|_| ())
}

/// Weights are multiplied as bf16. Were they truncated, all would be too small, by 2⁻⁹ on the average.
fn rounds_weights(device: &Device) -> Outcome {
    const N: usize = 64;

    let Ok(device) = device.with_precision(Precision::Fast) else { return Ok(()) };
    let unit = |at: usize| if at / N == at % N { 1.0 } else { 0.0 };
    // Scores are single numbers that bf16 holds. The first key's weight is 1, of which others are shares.
    let eighths = |x: f64| (x.abs() * 256.0).round() / 256.0;
    let score = |(at, x): (usize, f64)| if at < N { 0.0 } else { -eighths(x).min(0.5) };
    let scores: Vec<f64> = normal("weights", N * N).into_iter().enumerate().map(score).collect();
    let units: Vec<f64> = (0..N * N).map(unit).collect();
    each_variant(&device, |device| {
        let tape = Tape::new(device);
        let input = |x: &[f64]| Ok::<_, meganeura::Error>(tape.input(&Tensor::from_f64(device, [1, 1, N, N], x)?));
        let [q, k, v] = [input(&units)?, input(&scores)?, input(&units)?];
        let options = AttentionOptions { scale: Some(1.0), ..AttentionOptions::default() };
        let shares = q.attention_with(&k, &v, options).to_tensor()?.to_f64_vec()?;
        let error = |at: usize| shares[at] / shares[at / N * N] / scores[at % N * N + at / N].exp() - 1.0;
        let mean = (0..N * N).map(error).sum::<f64>() / (N * N) as f64;
        assert!(mean.abs() < 2e-4, "weights are wrong by {mean:e} of them on the average on {device}");
        Ok(offered(device))
    })
}

/// Where there are matrix units; elsewhere, `devices::fast` checks the reason.
fn fast(device: &Device, subject: Subject, number: usize) -> Outcome {
    let Ok(device) = device.with_precision(Precision::Fast) else { return Ok(()) };
    let expected = reference(subject);
    if number.is_multiple_of(3) {
        return each_variant(&device, |device| hold(device, subject, &expected, 0.03));
    }
    hold(&device.for_testing(0), subject, &expected, 0.03).map(|_| ())
}
