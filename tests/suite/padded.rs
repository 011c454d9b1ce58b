//! Rows of bf16 that are padded to whole lines: every kernel and every kind of operand with odd lengths, forward and
//! backward, against `f64`. Memory holds NaN before each run, so that padding that is read but not written shows.

use libtest_mimic::Trial;
use meganeura::loss::{CrossEntropyOptions, Reduction};
use meganeura::{Device, Result, Shape, Tape, Tensor, Var};

use crate::Outcome;
use crate::adapter::gpu_trial;
use crate::rounded::{Function, numbers};

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    for subject in SUBJECTS {
        trials.push(gpu_trial(format!("padded::{}", subject.name), move |device| check(device, subject)));
    }
    for subject in PRODUCTS {
        trials.push(gpu_trial(format!("padded::products::{}", subject.name), move |device| check(device, subject)));
    }
    trials.push(gpu_trial("padded::rows_of_infinities_and_nan", not_finite));
}

type Record = fn(&[Var]) -> Result<Var>;

/// A function of a few operands.
struct Subject {
    name: &'static str,
    shapes: &'static [&'static [usize]],
    record: Record,
    /// The shape of a value that is stored in padded rows.
    padded: &'static [usize],
}

const fn subject(
    name: &'static str,
    shapes: &'static [&'static [usize]],
    padded: &'static [usize],
    record: Record,
) -> Subject {
    Subject { name, shapes, record, padded }
}

/// A loss of logits that a layer with a bias computes.
fn loss(x: &[Var], labels: &[u32], options: &CrossEntropyOptions) -> Result<Var> {
    let tape = x[0].tape();
    let labels = tape.input(&Tensor::indices(&tape.device(), [labels.len()], labels)?);
    Ok(((&x[0] + &x[1]) * 1.5).cross_entropy_with(&labels, options))
}

fn sums() -> CrossEntropyOptions {
    CrossEntropyOptions { reduction: Reduction::Sum, ..CrossEntropyOptions::default() }
}

const SUBJECTS: &[Subject] = &[
    subject("softmax", &[&[5, 23]], &[5, 23], |x| Ok(x[0].softmax(1).square())),
    subject("softmax of patches", &[&[2, 3, 7, 197]], &[2, 3, 7, 197], |x| Ok(x[0].softmax(3).square())),
    subject("softmax of long rows", &[&[3, 5003]], &[3, 5003], |x| Ok(x[0].softmax(1).sqrt())),
    subject("softmax of many rows", &[&[700, 15]], &[700, 15], |x| Ok(x[0].softmax(1).square())),
    subject("bias", &[&[6, 31], &[31]], &[6, 31], |x| Ok((&x[0] + &x[1]).tanh().softmax(1))),
    subject("operands of every layout", &[&[6, 31], &[31], &[6, 1], &[31, 6], &[1, 1], &[7, 35]], &[6, 31], |x| {
        let part = x[5].slice(0, 1..7).slice(1, 2..33);
        Ok((x[0].softmax(1) * &x[1] + &x[2] * part + x[3].t() * &x[4]).softmax(1).square())
    }),
    subject("operands of batches", &[&[2, 3, 23], &[2, 1, 23], &[3, 1], &[3, 2, 23]], &[2, 3, 23], |x| {
        Ok((x[0].softmax(2) * &x[1] + &x[2] * x[3].permute(&[1, 0, 2])).softmax(2).square())
    }),
    subject("operand of split rows", &[&[4, 45], &[4, 5, 9], &[5, 1]], &[4, 45], |x| {
        let factors = (&x[1] * &x[2]).permute(&[0, 2, 1]).reshape([4, 45]);
        Ok((x[0].softmax(1) * factors).softmax(1).square())
    }),
    subject("sums of columns", &[&[70, 47], &[70, 1]], &[70, 47], |x| {
        let y = (&x[0] * &x[1]).softmax(1);
        Ok(y.sum_over(&[0]) + (&y * &y).sum_over(&[0]))
    }),
    subject("sums of columns in batches", &[&[5, 40, 63]], &[5, 40, 63], |x| {
        Ok((x[0].softmax(2) * 3.0).sum_over(&[0, 1]))
    }),
    subject("sums, extrema and means of rows", &[&[9, 23]], &[9, 23], |x| {
        let y = x[0].softmax(1);
        let of_rows = (&y * &x[0]).sum_over(&[1]) + y.max_over(&[1]) + y.min_over(&[1]);
        Ok(of_rows + y.square().mean())
    }),
    subject("reshape that keeps rows", &[&[6, 23]], &[6, 23], |x| {
        Ok((x[0].softmax(1).reshape([2, 3, 23]) * 4.0).softmax(2).reshape([1, 6, 23]).square())
    }),
    subject("reshape that breaks rows", &[&[8, 23]], &[8, 23], |x| {
        Ok((x[0].softmax(1).reshape([4, 46]) * 4.0).softmax(1).square())
    }),
    subject("slices and transposition", &[&[24, 23]], &[24, 23], |x| {
        let y = x[0].softmax(1);
        Ok(y.slice(1, 0..15).softmax(1).slice(0, 0..23) + y.t().slice(1, 3..18))
    }),
    subject("concatenation, padding and sums along rows", &[&[5, 23]], &[5, 23], |x| {
        let y = x[0].softmax(1);
        Ok(Var::concat(&[&y, &(&y * 2.0)], 1) + y.cumsum(1).pad(&[(0, 0), (11, 12)], 0.5))
    }),
    subject("cross-entropy", &[&[9, 23], &[23]], &[9, 23], |x| loss(x, &[0, 22, 7, 8, 15, 16, 21, 3, 22], &sums())),
    subject("cross-entropy of whole lines", &[&[5, 24], &[24]], &[5, 24], |x| loss(x, &[0, 23, 7, 8, 16], &sums())),
    subject("cross-entropy of many classes", &[&[3, 5003], &[5003]], &[3, 5003], |x| {
        loss(x, &[5002, 0, 2601], &CrossEntropyOptions { label_smoothing: 0.2, ..sums() })
    }),
    subject("cross-entropy of many rows", &[&[513, 15], &[15]], &[513, 15], |x| {
        let labels: Vec<_> = (0..513).map(|at| at * 7 % 15).collect();
        loss(x, &labels, &sums())
    }),
    subject("cross-entropy with smoothing and ignored labels", &[&[6, 31], &[31]], &[6, 31], |x| {
        let options = CrossEntropyOptions { label_smoothing: 0.1, ignored: Some(99), ..sums() };
        loss(x, &[30, 99, 2, 24, 99, 0], &options)
    }),
    subject("cross-entropy with weights", &[&[4, 23], &[23]], &[4, 23], |x| {
        let weights = Tensor::from_f64(&x[0].tape().device(), [23], &(1..24).map(f64::from).collect::<Vec<_>>())?;
        loss(x, &[22, 5, 9, 0], &CrossEntropyOptions { class_weights: Some(weights), ..sums() })
    }),
];

/// Products large enough for matrix units: a head, one of extents that fill no tile and no step, and attention over a
/// picture's patches.
const PRODUCTS: &[Subject] = &[
    subject("head", &[&[512, 512], &[517], &[517, 512]], &[512, 517], |x| {
        let labels: Vec<_> = (0..512).map(|at| at * 11 % 517).collect();
        loss(&[x[0].matmul(&x[2].t()).scale(0.1), x[1].clone()], &labels, &sums())
    }),
    subject("head of a matrix that is not transposed", &[&[512, 512], &[517], &[512, 517]], &[512, 517], |x| {
        let logits = x[0].gelu().matmul(&x[2]).scale(0.1);
        let labels: Vec<_> = (0..512).map(|at| 516 - at).collect();
        loss(&[logits.reshape([2, 256, 517]).reshape([512, 517]), x[1].clone()], &labels, &sums())
    }),
    subject("uneven", &[&[300, 1032], &[1032, 517]], &[300, 517], |x| {
        Ok((x[0].gelu().matmul(&x[1]).scale(0.05).softmax(1) * 3.0).softmax(1).square())
    }),
    subject("attention", &[&[2, 197, 512], &[512, 768]], &[2, 4, 197, 197], |x| {
        let qkv = x[0].reshape([394, 512]).matmul(&x[1]).scale(0.1).reshape([2, 197, 768]);
        let heads =
            |part: usize| qkv.slice(2, 256 * part..256 * (part + 1)).reshape([2, 197, 4, 64]).permute(&[0, 2, 1, 3]);
        let [q, k, v] = [heads(0), heads(1), heads(2)];
        Ok(q.matmul(&k.t()).scale(0.125).softmax(3).matmul(&v))
    }),
];

fn check(device: &Device, subject: &Subject) -> Outcome {
    let function = Function { name: subject.name, shapes: subject.shapes, record: subject.record };
    let (dumps, padded) = (function.check(device, subject.name)?, format!(": bf16{}", Shape::new(subject.padded)));
    assert!(dumps.contains(&padded), "no value is stored as {padded}:\n{dumps}");
    Ok(())
}

/// A row of −∞, one with NaN and one with ∞ give NaN, and no other row does.
fn not_finite(device: &Device) -> Outcome {
    let device = device.for_testing_bf16(0);
    let mut x = numbers("not finite", &[5, 23]);
    x[23..46].fill(f64::NEG_INFINITY);
    x[2 * 23 + 22] = f64::NAN;
    x[3 * 23 + 22] = f64::INFINITY;
    x[4 * 23 + 22] = f64::NEG_INFINITY;
    let tape = Tape::new(&device);
    let input = tape.input(&Tensor::from_f64(&device, [5, 23], &x)?);
    let softmax = (&input * 1.0).softmax(1).square();
    let labels = tape.input(&Tensor::indices(&device, [5], &[1; 5])?);
    let losses = CrossEntropyOptions { reduction: Reduction::None, ..CrossEntropyOptions::default() };
    let loss = input.cross_entropy_with(&labels, &losses);
    let gradient = tape.backward(&loss.sum())?.of(&input).expect("the loss depends on it");
    for (value, width) in [(&softmax, 23), (&loss, 1), (&gradient, 23)] {
        let found = value.to_tensor()?.to_vec()?;
        for (row, found) in found.chunks(width).enumerate() {
            let nan = [1, 2, 3].contains(&row);
            assert!(found.iter().all(|x| x.is_nan() == nan && x.is_finite() != nan), "row {row}: {found:?}");
        }
    }
    let softmax = softmax.to_tensor()?.to_vec()?;
    assert_eq!(softmax[4 * 23 + 22], 0.0, "the weight of −∞");
    Ok(())
}
