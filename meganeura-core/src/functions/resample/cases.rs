//! Test cases of resampling: the formulas in floating point, as matrices.

use crate::functions::case::{Array, Case, Tested};
use crate::ops::resample::{Axis, Resample, Rule};

/// Growing, shrinking and neither; by integer factors and others; single pixels.
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

impl Tested for Resample {
    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        let interpolated = [false, true].map(|corners| [Rule::Linear { corners }, Rule::Cubic { corners }]);
        for &rule in [Rule::Mean].iter().chain(interpolated.as_flattened()) {
            for ([n, c, h, w], size) in SIZES {
                let op = Resample::new(rule, [h, w], size);
                let back = Resample { transposed: true, ..op.clone() };
                for (op, shape) in [(op, [n, c, h, w]), (back, [n, c, size[0], size[1]])] {
                    let reference = op.clone();
                    // Sums of sixteen products; weights from a cubic polynomial, at a rounded position.
                    let tolerance = if matches!(rule, Rule::Cubic { .. }) { 4e-6 } else { 1e-6 };
                    let case = Case::new(op).input(&shape).tolerance(tolerance);
                    cases.push(case.naive(move |x| vec![naive(&reference, &x[0])]));
                }
            }
        }
        cases.push(Case::recorded("resize_bicubic", &[&[2, 3, 5, 4]], |x| {
            (&x[0] * 2.0).resize_bicubic([3, 9], true).square()
        }));
        cases.push(Case::recorded("resize_bicubic", &[&[3, 4]], |x| x[0].resize_bicubic([3, 9], true)).expect_error());
        // Between other operations, with channels that divide into lines.
        cases.push(Case::recorded("resize_bilinear", &[&[2, 24, 5, 4]], |x| {
            let y = (&x[0] * -2.0).resize_bilinear([7, 9], false);
            (y * 4.0).adaptive_avg_pool2d([3, 4]).square().sum_over(&[2, 3])
        }));
        cases.push(Case::recorded("upsample_nearest", &[&[2, 3, 4, 5]], |x| x[0].upsample_nearest([2, 3])));
        cases.push(Case::recorded("upsample_nearest", &[&[1, 1, 1, 7]], |x| x[0].upsample_nearest([1, 2]).square()));
        cases.push(Case::recorded("adaptive_avg_pool2d", &[&[2, 3, 6, 4]], |x| x[0].adaptive_avg_pool2d([3, 1])));
        cases.push(Case::recorded("adaptive_avg_pool2d", &[&[2, 3, 7, 5]], |x| x[0].adaptive_avg_pool2d([1, 1])));
        cases.push(
            Case::recorded("adaptive_avg_pool2d", &[&[2, 3]], |x| x[0].adaptive_avg_pool2d([1, 1])).expect_error(),
        );
        cases.push(
            Case::recorded("resize_bilinear", &[&[1, 1, 3, 3]], |x| x[0].resize_bilinear([0, 2], false)).expect_error(),
        );
        cases.push(
            Case::recorded("upsample_nearest", &[&[1, 1, 3, 3]], |x| x[0].upsample_nearest([2, 0])).expect_error(),
        );
        cases
    }
}

/// The resampling of an axis as a matrix `[outputs][inputs]`, by the formulas in floating point.
fn matrix(rule: Rule, axis: Axis) -> Vec<Vec<f64>> {
    let (inputs, outputs) = (axis.inputs as f64, axis.outputs as f64);
    let row = |p: usize| {
        let mut row = vec![0.0; axis.inputs];
        let at = match rule {
            Rule::Mean => {
                let window = p * axis.inputs / axis.outputs..((p + 1) * axis.inputs).div_ceil(axis.outputs);
                let share = 1.0 / window.len() as f64;
                window.for_each(|h| row[h] = share);
                return row;
            }
            Rule::Linear { corners: true } | Rule::Cubic { corners: true } if axis.outputs == 1 => 0.0,
            Rule::Linear { corners: true } | Rule::Cubic { corners: true } => {
                p as f64 * (inputs - 1.0) / (outputs - 1.0)
            }
            Rule::Linear { corners: false } => ((p as f64 + 0.5) * inputs / outputs - 0.5).max(0.0),
            Rule::Cubic { corners: false } => (p as f64 + 0.5) * inputs / outputs - 0.5,
        };
        if let Rule::Cubic { .. } = rule {
            let (low, part) = (at.floor(), at - at.floor());
            // With a = −¾, as polynomials of the fraction.
            let (t, s) = (part, 1.0 - part);
            let weights = [
                -0.75 * t * s * s,
                1.25 * t * t * t - 2.25 * t * t + 1.0,
                1.25 * s * s * s - 2.25 * s * s + 1.0,
                -0.75 * s * t * t,
            ];
            for (k, weight) in weights.into_iter().enumerate() {
                row[(low + k as f64 - 1.0).clamp(0.0, inputs - 1.0) as usize] += weight;
            }
            return row;
        }
        let low = (at.floor() as usize).min(axis.inputs - 1);
        row[low] += 1.0 - (at - at.floor());
        row[(low + 1).min(axis.inputs - 1)] += at - at.floor();
        row
    };
    (0..axis.outputs).map(row).collect()
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
