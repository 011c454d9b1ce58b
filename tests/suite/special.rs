//! NaN, infinities and ties in operations on rows or windows, in every form of the kernels.

use libtest_mimic::Trial;
use meganeura::loss::{CrossEntropyOptions, Reduction};
use meganeura::ops::Conv2dOptions;
use meganeura::{Buffer, Device, Precision, Result, Tape, Tensor, Var};

use crate::Outcome;
use crate::adapter::gpu_trial;
use crate::ops::{each_variant, offered};

const NAN: f32 = f32::NAN;
const INF: f32 = f32::INFINITY;

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    let mut both = |name: &str, run: fn(&Device) -> Outcome| {
        trials.push(Trial::test(format!("special::{name}"), move || run(&Device::cpu().for_testing(0))));
        trials.push(gpu_trial(format!("special::gpu::{name}"), move |device| {
            (0..5).try_for_each(|variant| run(&device.for_testing(variant)))
        }));
    };
    both("nan_stays_in_its_row", nan);
    both("infinities", infinities);
    both("the_first_extremum_of_a_line_has_its_index", extrema);
    both("sums_of_exponentials_run_past_infinities", running);
    both("nan_wins_a_window", windows);
    both("the_first_of_ties_gets_the_gradient", ties);
    both("rows_past_the_end_are_nan", rows_past_the_end);
    both("many_rows_past_the_end_get_no_gradient", many_rows_past_the_end);
    trials.push(gpu_trial("special::gpu::non_finite_elements_do_not_spread_in_fast_products", fast_products));
    trials.push(gpu_trial("special::gpu::late_large_elements_fit_fast_convolutions", late));
    trials.push(gpu_trial("special::gpu::infinity_in_depthwise_convolutions_stays_where_it_is_read", depthwise));
    trials.push(gpu_trial("special::gpu::outliers_in_fast_convolutions_cost_other_tiles_no_digits", outliers));
}

fn cross_entropy(x: &Var, labels: &Tensor, label_smoothing: f64) -> Var {
    let options = CrossEntropyOptions { label_smoothing, reduction: Reduction::None, ..Default::default() };
    x.cross_entropy_with(labels, &options)
}

/// A matrix of small numbers with a special one in row 2 of 5, column `at`.
fn matrix(device: &Device, columns: usize, at: usize, special: f32) -> Result<Var> {
    let mut x: Vec<_> = (0..5 * columns).map(|i| (i % 7) as f32 - 3.0).collect();
    x[2 * columns + at] = special;
    Ok(Tape::new(device).input(&Tensor::from_slice(device, [5, columns], &x)?))
}

/// Rows from a single element to so many that they are split.
const COLUMNS: [(usize, usize); 4] = [(1, 0), (9, 8), (70, 0), (3_000, 2_999)];

fn nan(device: &Device) -> Outcome {
    type Fold = fn(&Var, &[usize]) -> Var;
    let folds: [(&str, Fold); 3] = [("sum", Var::sum_over), ("max", Var::max_over), ("min", Var::min_over)];
    for (columns, at) in COLUMNS {
        let x = matrix(device, columns, at, NAN)?;
        for (name, fold) in folds {
            let only = |y: Var, place: usize| -> Outcome {
                let y = y.to_vec()?;
                assert!(y.iter().enumerate().all(|(i, y)| y.is_nan() == (i == place)), "{name} of {columns}: {y:?}");
                Ok(())
            };
            only(fold(&x, &[1]), 2)?;
            only(fold(&x, &[0]), at)?;
            only(fold(&x.t(), &[0]), 2)?;
        }
        assert!(x.sum().item()?.is_nan() && x.max().item()?.is_nan() && x.min().item()?.is_nan());
        let labels = Tensor::indices(device, [5], &[0; 5])?;
        let loss = cross_entropy(&x, &labels, 0.1).to_vec()?;
        assert!(loss.iter().enumerate().all(|(row, loss)| loss.is_nan() == (row == 2)), "{columns}: {loss:?}");
        for y in [x.softmax(1), x.log_softmax(1), x.t().softmax(0).t()] {
            let y = y.to_vec()?;
            assert!(y.iter().enumerate().all(|(i, y)| y.is_nan() == (i / columns == 2)), "{columns}: {y:?}");
        }
    }
    Ok(())
}

fn infinities(device: &Device) -> Outcome {
    for (columns, at) in COLUMNS {
        let (least, most) = (matrix(device, columns, at, -INF)?, matrix(device, columns, at, INF)?);
        assert_eq!(most.max_over(&[1]).to_vec()?[2], INF);
        assert_eq!(least.min_over(&[1]).to_vec()?[2], -INF);
        assert_eq!(least.max_over(&[1]).to_vec()?[2], if columns == 1 { -INF } else { largest_of(columns, at) });
        assert_eq!([least.sum_over(&[1]).to_vec()?[2], most.sum().item()?], [-INF, INF]);
        // The maximum of nothing but −∞ is −∞, not the fold's initial value.
        let all = Tape::new(device).input(&Tensor::full(device, [3, columns], -INF)?);
        assert_eq!(all.max_over(&[1]).to_vec()?, [-INF; 3]);
        assert_eq!((&all * -1.0).min_over(&[0]).to_vec()?, vec![INF; columns]);
        // The softmax of +∞, or of nothing but −∞, is undefined.
        let labels = Tensor::indices(device, [5], &[0; 5])?;
        assert!(most.softmax(1).to_vec()?[2 * columns..3 * columns].iter().all(|y| y.is_nan()), "{columns}");
        assert!(cross_entropy(&most, &labels, 0.0).to_vec()?[2].is_nan(), "{columns}");
        assert!(all.softmax(1).to_vec()?.iter().all(|y| y.is_nan()), "{columns}");
        if columns > 1 {
            // A masked class has no probability and does not disturb the others.
            let y = least.softmax(1);
            assert_eq!(y.to_vec()?[2 * columns + at], 0.0);
            assert!(y.sum_over(&[1]).to_vec()?.iter().all(|sum| (sum - 1.0).abs() < 1e-4), "{columns}");
        }
    }
    Ok(())
}

/// The indices of extrema along rows and along columns, in one part and in several, as in PyTorch.
fn extrema(device: &Device) -> Outcome {
    // `(index, number)` of the elements that are not 0.5, then the indices of the largest and the smallest.
    type Row<'a> = (&'a [(usize, f32)], [usize; 2]);
    for columns in [9, 70, 20_011] {
        let last = columns - 1;
        let rows: [Row<'_>; 8] = [
            (&[], [0, 0]),
            (&[(3, 7.0), (last, 7.0), (2, -7.0), (last - 1, -7.0)], [3, 2]),
            (&[(last, 7.0), (last - 1, -7.0)], [last, last - 1]),
            (&[(1, INF), (5, -INF), (last, INF)], [1, 5]),
            (&[(1, INF), (2, -INF), (6, NAN), (last, NAN)], [6, 6]),
            (&[(0, NAN), (4, INF)], [0, 0]),
            (&[(last, f32::from_bits(0xffc0_0000))], [last, last]),
            (&[(2, 1e-40), (3, 1.0), (4, f32::from_bits(0x3f80_0001)), (6, -1e-40), (7, -1e-39)], [4, 7]),
        ];
        let filled = |numbers: &[(usize, f32)]| {
            let mut row = vec![0.5; columns];
            numbers.iter().for_each(|&(place, number)| row[place] = number);
            row
        };
        let data: Vec<_> = rows.iter().flat_map(|(numbers, _)| filled(numbers)).collect();
        let x = Tape::new(device).input(&Tensor::from_slice(device, [rows.len(), columns], &data)?);
        let transposed = Tape::new(device).input(&x.t().to_tensor()?);
        for (k, find) in [Var::argmax, Var::argmin].into_iter().enumerate() {
            let expected: Vec<_> = rows.iter().map(|(_, places)| u32::try_from(places[k])).collect::<Result<_, _>>()?;
            for y in [find(&x, 1), find(&x.t(), 0), find(&transposed, 0)] {
                assert_eq!(y.to_tensor()?.to_u32_vec()?, expected, "{k} of {columns}");
            }
        }
        for number in [-INF, INF, NAN] {
            let all = Tape::new(device).input(&Tensor::full(device, [2, columns], number)?);
            for y in [all.argmax(1), all.argmin(1)] {
                assert_eq!(y.to_tensor()?.to_u32_vec()?, [0, 0], "{number} alone, {columns} times");
            }
        }
        // Zeros of both signs are equal.
        let zeros: Vec<_> = (0..columns).map(|i| if i % 2 == 0 { 0.0 } else { -0.0 }).collect();
        let zeros = Tape::new(device).input(&Tensor::from_slice(device, [columns], &zeros)?);
        for y in [zeros.argmax(0), zeros.argmin(0), (-&zeros).argmax(0)] {
            assert_eq!(y.to_tensor()?.to_u32_vec()?, [0], "zeros");
        }
    }
    Ok(())
}

/// Running sums of exponentials along a short and a long line, as in PyTorch.
fn running(device: &Device) -> Outcome {
    for repeats in [1, 90] {
        // Repeats each number.
        let line = |numbers: [f32; 4]| -> Result<Vec<f32>> {
            let x: Vec<_> = numbers.iter().flat_map(|&x| vec![x; repeats]).collect();
            let x = Tape::new(device).input(&Tensor::from_slice(device, [4 * repeats], &x)?);
            let y = x.logcumsumexp(0).to_vec()?;
            Ok((1..=4).map(|run| y[run * repeats - 1]).collect())
        };
        let count = (repeats as f32).ln();
        let close = |y: f32, want: f32| (y - want).abs() < 1e-5 * want.abs().max(1.0);
        let y = line([-INF, -1.0, -INF, 1e4])?;
        assert!(
            y[0] == -INF && close(y[1], count - 1.0) && close(y[2], count - 1.0) && close(y[3], count + 1e4),
            "{y:?}"
        );
        let y = line([1.0, INF, -INF, 2.0])?;
        assert!(close(y[0], count + 1.0) && y[1..] == [INF; 3], "{y:?}");
        let y = line([1.0, NAN, INF, 2.0])?;
        assert!(close(y[0], count + 1.0) && y[1..].iter().all(|y| y.is_nan()), "{y:?}");
    }
    // −∞ adds nothing, so its gradient is 0; the first element is its own sum.
    let tape = Tape::new(device);
    let x = tape.input(&Tensor::from_slice(device, [4], &[0.0, -INF, 0.0, -INF])?);
    let grads = tape.backward(&x.logcumsumexp(0).sum())?;
    let dx = grads.of(&x).expect("depends").to_vec()?;
    assert!(dx.iter().zip([3.0, 0.0, 1.0, 0.0]).all(|(dx, want)| (dx - want).abs() < 1e-5), "{dx:?}");
    Ok(())
}

/// The largest element of row 2 of [`matrix`] except the special one.
fn largest_of(columns: usize, at: usize) -> f32 {
    let row = (0..columns).filter(|&c| c != at).map(|c| ((2 * columns + c) % 7) as f32 - 3.0);
    row.fold(-INF, f32::max)
}

fn windows(device: &Device) -> Outcome {
    let tape = Tape::new(device);
    let x = [1.0, NAN, 3.0, NAN, 5.0, -INF, -INF, -INF, INF];
    let x = tape.input(&Tensor::from_slice(device, [1, 1, 3, 3], &x)?);
    let y = x.max_pool2d([2, 2], [1, 1], [0, 0], [1, 1]);
    let values = y.to_vec()?;
    assert!(values[..3].iter().all(|y| y.is_nan()) && values[3] == INF, "{values:?}");
    let average = x.avg_pool2d([2, 2], [1, 1], [0, 0], true).to_vec()?;
    // The last window holds both infinities' neighbours: 5 and three others, one of them +∞, two −∞.
    assert!(average.iter().all(|y| y.is_nan()), "{average:?}");
    Ok(())
}

fn ties(device: &Device) -> Outcome {
    let tape = Tape::new(device);
    // Overlapping windows whose largest number occurs at least twice, and a window with NaN.
    let x = [2.0, 2.0, 0.0, 2.0, 1.0, 2.0, 0.0, 0.0, 0.0, 0.0, NAN, NAN];
    let x = tape.input(&Tensor::from_slice(device, [1, 1, 3, 4], &x)?);
    let y = x.max_pool2d([2, 2], [1, 1], [0, 0], [1, 1]);
    let dy = tape.input(&Tensor::from_slice(device, [1, 1, 2, 3], &[1.0, 10.0, 100.0, 1e3, 1e4, 1e5])?);
    let grads = tape.backward_with(&y, &dy)?;
    let dx = grads.of(&x).expect("depends").to_vec()?;
    assert_eq!(dx, [1.0, 10.0, 0.0, 100.0, 0.0, 1e3, 0.0, 0.0, 0.0, 0.0, 1.1e5, 0.0]);
    // If all elements are equal, the first of each window wins.
    let x = tape.input(&Tensor::zeros(device, [1, 1, 3, 3])?);
    let y = x.max_pool2d([3, 3], [1, 1], [1, 1], [1, 1]);
    let grads = tape.backward(&y.sum())?;
    assert_eq!(grads.of(&x).expect("depends").to_vec()?, [4.0, 2.0, 0.0, 2.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
    Ok(())
}

/// Indices from a buffer are not checked when they are recorded.
fn rows_past_the_end(device: &Device) -> Outcome {
    let tape = Tape::new(device);
    let table = tape.input(&Tensor::from_slice(device, [3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])?);
    let index = Buffer::constant(Tensor::indices(device, [4], &[2, 3, 0, u32::MAX])?);
    let y = table.embedding(&tape.buffer(&index));
    let grads = tape.backward(&y.sum())?;
    let rows = y.to_vec()?;
    assert_eq!((&rows[..2], &rows[4..6]), (&[5.0, 6.0][..], &[1.0, 2.0][..]));
    assert!([2, 3, 6, 7].iter().all(|&at: &usize| rows[at].is_nan()), "{rows:?}");
    assert_eq!(grads.of(&table).expect("depends on it").to_vec()?, [1.0, 1.0, 0.0, 0.0, 1.0, 1.0]);
    Ok(())
}

/// Hundreds of indices, so that they may be sorted: below and past the end, like floats that are negative or NaN, and
/// all the same. The sums have the same bits in every run.
fn many_rows_past_the_end(device: &Device) -> Outcome {
    const COUNT: usize = 1300;
    const ROWS: usize = 5;
    let mixed = |i: usize| match i % 4 {
        0 => (i / 4 % ROWS) as u32,
        1 => u32::MAX - (i % 3) as u32,
        2 => 0x8000_0000 + (i % ROWS) as u32,
        _ => (ROWS + i % 2) as u32,
    };
    let all: [&dyn Fn(usize) -> u32; 4] = [&mixed, &|_| 3, &|_| 0x7fc0_0000, &|i| (i % 2) as u32 * 4];
    for index in all {
        let index: Vec<u32> = (0..COUNT).map(index).collect();
        // Whole numbers, whose sums are exact, and others.
        for scale in [1.0, 0.37] {
            let dy: Vec<f32> = (0..COUNT * 2).map(|i| ((i * 31 + 5) % 17) as f32 * scale).collect();
            let mut expected = vec![0.0; ROWS * 2];
            for (place, &row) in index.iter().enumerate().filter(|&(_, &row)| (row as usize) < ROWS) {
                (0..2).for_each(|column| expected[row as usize * 2 + column] += dy[place * 2 + column]);
            }
            let run = || -> Result<Vec<f32>> {
                let tape = Tape::new(device);
                let table = tape.input(&Tensor::zeros(device, [ROWS, 2])?);
                let index = Buffer::constant(Tensor::indices(device, [COUNT], &index)?);
                let y = table.embedding(&tape.buffer(&index));
                let grads = tape.backward_with(&y, &tape.input(&Tensor::from_slice(device, [COUNT, 2], &dy)?))?;
                grads.of(&table).expect("depends on it").to_vec()
            };
            let found = run()?;
            let is_close = |(a, b): (&f32, &f32)| (a - b).abs() <= if scale == 1.0 { 0.0 } else { 1e-5 * b.abs() };
            assert!(found.iter().zip(&expected).all(is_close), "{found:?}, not {expected:?}, {:?}", &index[..8]);
            assert_eq!(found, run()?);
        }
    }
    Ok(())
}

/// Small numbers, none of them zero.
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 37 + seed) % 13) as f32 / 4.0 - 1.6).collect()
}

/// The same numbers, rounded towards zero to bf16, so that matrix units get them without loss.
fn bf16(numbers: Vec<f32>) -> Vec<f32> {
    numbers.into_iter().map(|x| f32::from_bits(x.to_bits() & 0xffff_0000)).collect()
}

/// Compares finite results with full precision, up to a thousandth of the largest.
fn hold(found: &[f32], wanted: &[f32], what: &str) {
    hold_to(1e-3, found, wanted, what);
}

/// The same for operands rounded to eight bits.
fn hold_rounded(found: &[f32], wanted: &[f32], what: &str) {
    hold_to(6e-3, found, wanted, what);
}

fn hold_to(tolerance: f32, found: &[f32], wanted: &[f32], what: &str) {
    let largest = wanted.iter().fold(0.0, |largest: f32, y| largest.max(y.abs()));
    let off = found.iter().zip(wanted).position(|(y, reference)| {
        let close = (y - reference).abs() <= tolerance * largest;
        !close
    });
    assert_eq!(off, None, "{what}: {:?}, not {:?}", off.map(|at| found[at]), off.map(|at| wanted[at]));
}

/// Kernels choose the powers of two that make numbers fit f16 from the first numbers that they read. Here those are 0,
/// or up to 2²⁵ times smaller than later ones: along channels, over which a convolution sums, and along rows, over
/// which the gradient of its weights sums.
fn late(device: &Device) -> Outcome {
    let Ok(fast) = device.with_precision(Precision::Fast) else { return Ok(()) };
    const X: [usize; 4] = [8, 32, 32, 32];
    const W: [usize; 4] = [40, 32, 3, 3];
    const Y: [usize; 4] = [8, 40, 32, 32];
    let growing = |shape: [usize; 4], seed: usize| -> Vec<f32> {
        let [_, channels, height, width] = shape;
        let mut x = bf16(numbers(shape.iter().product(), seed));
        for (at, x) in x.iter_mut().enumerate() {
            let (image, channel, row) =
                (at / (channels * height * width), at / (height * width) % channels, at / width % height);
            let exponent = (row % 16) as i32 + if channel < 16 { -8 } else { 2 };
            *x *= 2f32.powi(exponent);
            if image < 2 && (row < 8 || channel < 16) {
                *x = 0.0;
            }
        }
        x
    };
    let (x, w, dy) = (growing(X, 1), bf16(numbers(W.iter().product(), 2)), growing(Y, 3));
    let options = Conv2dOptions { padding: [1; 2], ..Conv2dOptions::default() };
    let run = |device: &Device| -> Result<[Vec<f32>; 3]> {
        let tape = Tape::new(device);
        let x = tape.input(&Tensor::from_slice(device, X, &x)?);
        let w = tape.input(&Tensor::from_slice(device, W, &w)?);
        let y = x.conv2d(&w, options);
        let grads = tape.backward_with(&y, &tape.input(&Tensor::from_slice(device, Y, &dy)?))?;
        let of = |operand| grads.of(operand).expect("it leads to the result").to_tensor()?.to_vec();
        Ok([y.to_tensor()?.to_vec()?, of(&x)?, of(&w)?])
    };
    let reference = run(&Device::cpu())?;
    each_variant(&fast, |device| {
        for (found, wanted) in run(device)?.iter().zip(&reference) {
            hold(found, wanted, "late large elements");
        }
        Ok(offered(device))
    })?;
    Ok(())
}

/// An outlier pixel is handled anywhere in a tile, and costs no digits in tiles that do not read it.
fn outliers(device: &Device) -> Outcome {
    let Ok(fast) = device.with_precision(Precision::Fast) else { return Ok(()) };
    let options = Conv2dOptions { padding: [1; 2], ..Conv2dOptions::default() };
    let dy = numbers(2 * 32 * 7 * 7, 1);
    for pixel in 0..49 {
        let mut x = vec![1.0; 2 * 32 * 49];
        x.iter_mut().skip(32 * 49 + pixel).step_by(49).for_each(|x| *x = 4096.0);
        let gradient = |device: &Device| -> Result<Vec<f32>> {
            let tape = Tape::new(device);
            let x = tape.input(&Tensor::from_slice(device, [2, 32, 7, 7], &x)?);
            let w = tape.input(&Tensor::zeros(device, [32, 32, 3, 3])?);
            let dy = tape.input(&Tensor::from_slice(device, [2, 32, 7, 7], &dy)?);
            let grads = tape.backward_with(&x.conv2d(&w, options), &dy)?;
            grads.of(&w).expect("it leads to the result").to_tensor()?.to_vec()
        };
        hold_rounded(&gradient(&fast)?, &gradient(&Device::cpu())?, &format!("pixel {pixel}"));
    }

    let (mut x, w) = (numbers(4 * 32 * 256, 2), numbers(32 * 32 * 9, 3));
    x[0] = 2f32.powi(40);
    let result = |device: &Device| -> Result<Vec<f32>> {
        let tape = Tape::new(device);
        let x = tape.input(&Tensor::from_slice(device, [4, 32, 16, 16], &x)?);
        x.conv2d(&tape.input(&Tensor::from_slice(device, [32, 32, 3, 3], &w)?), options).to_vec()
    };
    let reference = result(&Device::cpu())?;
    each_variant(&fast, |device| {
        hold_rounded(&result(device)?[3 * 32 * 256..], &reference[3 * 32 * 256..], "the last image");
        Ok(offered(device))
    })?;
    Ok(())
}

/// The scale of a block ignores non-finite elements, so the other elements keep their digits.
fn fast_products(device: &Device) -> Outcome {
    let Ok(fast) = device.with_precision(Precision::Fast) else { return Ok(()) };
    let (a, b) = (numbers(72 * 64, 1), numbers(64 * 136, 2));
    let (x, w) = (bf16(numbers(2 * 16 * 8 * 8, 3)), bf16(numbers(16 * 16 * 9, 4)));
    let product = |device: &Device, a: &[f32]| -> Result<Vec<f32>> {
        let tape = Tape::new(device);
        let a = tape.input(&Tensor::from_slice(device, [72, 64], a)?);
        a.matmul(&tape.input(&Tensor::from_slice(device, [64, 136], &b)?)).to_vec()
    };
    let convolution = |device: &Device, x: &[f32]| -> Result<Vec<f32>> {
        let tape = Tape::new(device);
        let x = tape.input(&Tensor::from_slice(device, [2, 16, 8, 8], x)?);
        let w = tape.input(&Tensor::from_slice(device, [16, 16, 3, 3], &w)?);
        x.conv2d(&w, Conv2dOptions { padding: [1; 2], ..Conv2dOptions::default() }).to_vec()
    };
    let (of_rows, of_images) = (product(&Device::cpu(), &a)?, convolution(&Device::cpu(), &x)?);
    let (mut a, mut x) = (a, x);
    (a[3 * 64 + 5], a[10 * 64 + 40]) = (INF, NAN);
    // In the second image, at row and column 4 of channel 3.
    x[(16 + 3) * 64 + 4 * 8 + 4] = INF;
    each_variant(&fast, |device| {
        let y = product(device, &a)?;
        assert!(y[3 * 136..4 * 136].iter().all(|y| !y.is_finite()) && y[10 * 136..11 * 136].iter().all(|y| y.is_nan()));
        for rows in [0..3, 4..10, 11..72] {
            let elements = rows.start * 136..rows.end * 136;
            hold(&y[elements.clone()], &of_rows[elements], &format!("rows {rows:?}"));
        }
        Ok(offered(device))
    })?;
    each_variant(&fast, |device| {
        let y = convolution(device, &x)?;
        assert!((0..16).all(|o| !y[(16 + o) * 64 + 4 * 8 + 4].is_finite()));
        hold(&y[..16 * 64], &of_images[..16 * 64], "the other image");
        Ok(offered(device))
    })?;
    Ok(())
}

/// Infinite inputs and cotangents reach the results that they are terms of, and no others: not through outputs of a
/// tile that are not there.
fn depthwise(device: &Device) -> Outcome {
    const H: usize = 7;
    const W: usize = 7;
    let w = Tensor::from_slice(device, [8, 1, 3, 3], &bf16(numbers(72, 2)))?;
    let run = |device: &Device, stride: usize, infinite: [Option<usize>; 2]| -> Result<[Vec<f32>; 3]> {
        let options = Conv2dOptions { stride: [stride; 2], groups: 8, ..Conv2dOptions::default() };
        let (p, q) = ((H - 3) / stride + 1, (W - 3) / stride + 1);
        let of = |[rows, columns]: [usize; 2], seed, infinite: Option<usize>| {
            let mut x = bf16(numbers(2 * 8 * rows * columns, seed));
            if let Some(pixel) = infinite {
                x[(8 + 3) * rows * columns + pixel] = INF;
            }
            Tensor::from_slice(device, [2, 8, rows, columns], &x)
        };
        let tape = Tape::new(device);
        let (x, w) = (tape.input(&of([H, W], 1, infinite[0])?), tape.input(&w.to_device(device)?));
        let y = x.conv2d(&w, options);
        let grads = tape.backward_with(&y, &tape.input(&of([p, q], 3, infinite[1])?))?;
        let gradient = |operand| grads.of(operand).expect("it leads to the result").to_tensor()?.to_vec();
        Ok([y.to_tensor()?.to_vec()?, gradient(&x)?, gradient(&w)?])
    };
    for (device, stride) in
        [1, 2].into_iter().flat_map(|stride| [device.for_testing(0), device.for_testing_bf16(0)].map(|d| (d, stride)))
    {
        let (p, q) = ((H - 3) / stride + 1, (W - 3) / stride + 1);
        let reads = |tap: usize, out: usize, pixel: usize| {
            let at = [out / q * stride + tap / 3, out % q * stride + tap % 3];
            at == [pixel / W, pixel % W]
        };
        let hold = |found: &[f32], image: usize, expected: &dyn Fn(usize) -> bool, what: &str| {
            let first = found.len() - (8 - 3) * image;
            for (at, found) in found.iter().enumerate() {
                let is_read = (first..first + image).contains(&at) && expected(at - first);
                assert_eq!(!found.is_finite(), is_read, "{what}, stride {stride}: element {at} is {found}");
            }
        };
        for pixel in 0..H * W {
            let [y, _, dw] = run(&device, stride, [Some(pixel), None])?;
            hold(&y, p * q, &|out| (0..9).any(|tap| reads(tap, out, pixel)), "the result");
            hold(&dw, 9, &|tap| (0..p * q).any(|out| reads(tap, out, pixel)), "the weight's gradient");
        }
        for out in 0..p * q {
            let [_, dx, _] = run(&device, stride, [None, Some(out)])?;
            hold(&dx, H * W, &|pixel| (0..9).any(|tap| reads(tap, out, pixel)), "the input's gradient");
        }
    }
    Ok(())
}
