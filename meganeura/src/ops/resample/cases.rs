//! What tests hold resampling to: the formulas in floating point, as matrices.

use super::{Axis, Resample, Rule};
use crate::ops::case::{Array, Case};

/// Growing, shrinking, neither; by whole factors and not; single pixels.
const SIZES: [([usize; 4], [usize; 2]); 9] = [
    ([2, 3, 4, 5], [8, 10]),
    ([1, 2, 3, 4], [7, 5]),
    ([2, 1, 7, 9], [3, 4]),
    ([1, 1, 5, 41], [5, 13]),
    ([2, 2, 1, 1], [3, 2]),
    ([1, 3, 6, 2], [1, 1]),
    ([1, 1, 1, 6], [1, 6]),
    ([3, 1, 2, 3], [9, 1]),
    ([2, 24, 5, 6], [7, 4]),
];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for rule in [Rule::Mean, Rule::Linear { corners: false }, Rule::Linear { corners: true }] {
        for ([n, c, h, w], size) in SIZES {
            let op = Resample::new(rule, [h, w], size);
            let back = Resample { transposed: true, ..op.clone() };
            for (op, shape) in [(op, [n, c, h, w]), (back, [n, c, size[0], size[1]])] {
                let reference = op.clone();
                cases.push(Case::new(op).input(&shape).naive(move |x| vec![naive(&reference, &x[0])]));
            }
        }
    }
    // Between others, of channels that fall into lines.
    cases.push(Case::recorded("resize_bilinear", &[&[2, 24, 5, 4]], |x| {
        let y = (&x[0] * -2.0).resize_bilinear([7, 9], false);
        (y * 4.0).adaptive_avg_pool2d([3, 4]).square().sum_over(&[2, 3])
    }));
    cases.push(Case::recorded("upsample_nearest", &[&[2, 3, 4, 5]], |x| x[0].upsample_nearest([2, 3])));
    cases.push(Case::recorded("upsample_nearest", &[&[1, 1, 1, 7]], |x| x[0].upsample_nearest([1, 2]).square()));
    cases.push(Case::recorded("adaptive_avg_pool2d", &[&[2, 3, 6, 4]], |x| x[0].adaptive_avg_pool2d([3, 1])));
    cases.push(Case::recorded("adaptive_avg_pool2d", &[&[2, 3, 7, 5]], |x| x[0].adaptive_avg_pool2d([1, 1])));
    cases.push(Case::recorded("adaptive_avg_pool2d", &[&[2, 3]], |x| x[0].adaptive_avg_pool2d([1, 1])).expect_error());
    cases.push(
        Case::recorded("resize_bilinear", &[&[1, 1, 3, 3]], |x| x[0].resize_bilinear([0, 2], false)).expect_error(),
    );
    cases.push(Case::recorded("upsample_nearest", &[&[1, 1, 3, 3]], |x| x[0].upsample_nearest([2, 0])).expect_error());
    cases
}

/// As a matrix `[made][taken]`, by the formulas in floating point.
fn matrix(rule: Rule, axis: Axis) -> Vec<Vec<f64>> {
    let (taken, made) = (axis.taken as f64, axis.made as f64);
    let row = |p: usize| {
        let mut row = vec![0.0; axis.taken];
        let at = match rule {
            Rule::Mean => {
                let window = p * axis.taken / axis.made..((p + 1) * axis.taken).div_ceil(axis.made);
                let share = 1.0 / window.len() as f64;
                window.for_each(|h| row[h] = share);
                return row;
            }
            Rule::Linear { corners: true } if axis.made == 1 => 0.0,
            Rule::Linear { corners: true } => p as f64 * (taken - 1.0) / (made - 1.0),
            Rule::Linear { corners: false } => ((p as f64 + 0.5) * taken / made - 0.5).max(0.0),
        };
        let low = (at.floor() as usize).min(axis.taken - 1);
        row[low] += 1.0 - (at - at.floor());
        row[(low + 1).min(axis.taken - 1)] += at - at.floor();
        row
    };
    (0..axis.made).map(row).collect()
}

fn naive(op: &Resample, x: &Array) -> Array {
    let ([h, w], [p, q]) = op.extents();
    let [rows, columns] = op.axes.map(|axis| matrix(op.rule, axis));
    let share =
        |matrix: &[Vec<f64>], out: usize, at: usize| if op.transposed { matrix[at][out] } else { matrix[out][at] };
    let mut data = Vec::new();
    for plane in x.data.chunks_exact(h * w) {
        for out in 0..p * q {
            let term = |at: usize| plane[at] * share(&rows, out / q, at / w) * share(&columns, out % q, at % w);
            data.push((0..h * w).map(term).sum());
        }
    }
    Array { shape: x.shape.with(2, p).with(3, q), data }
}
