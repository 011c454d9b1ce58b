//! Images with any number of channels in bf16, whose last line of a pixel is padded: every kernel and every kind of
//! operand, forward and backward, against `f64`. Memory holds NaN before each run, so that padding that is read but not
//! written shows.

use libtest_mimic::Trial;
use meganeura::ops::Conv2dOptions;
use meganeura::{Device, Precision, Result, Tape, Tensor, Var};

use crate::Outcome;
use crate::adapter::gpu_trial;
use crate::rounded::{Function, numbers};

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    for subject in SUBJECTS {
        for &width in WIDTHS {
            let name = format!("widths::{}::{width}", subject.name);
            trials.push(gpu_trial(name, move |device| check(device, subject, width)));
        }
    }
    for values in [f64::NAN, f64::INFINITY] {
        trials.push(gpu_trial(format!("widths::{values}_stays_in_its_channel"), move |device| {
            not_finite(device, values)
        }));
    }
}

const WIDTHS: &[usize] = &[1, 3, 5, 7, 10, 60, 63, 65, 100];

/// A function of images with `c` channels, the first operand, and of other operands.
struct Subject {
    name: &'static str,
    shapes: fn(c: usize) -> Vec<Vec<usize>>,
    record: fn(x: &[Var], c: usize) -> Result<Var>,
    /// The width from which images are held as bf16 on devices without matrix units as well.
    held_from: usize,
}

const fn subject(
    name: &'static str,
    shapes: fn(usize) -> Vec<Vec<usize>>,
    record: fn(&[Var], usize) -> Result<Var>,
) -> Subject {
    Subject { name, shapes, record, held_from: 5 }
}

/// A subject of several groups, which the least widths do not have.
const fn of_groups(
    name: &'static str,
    shapes: fn(usize) -> Vec<Vec<usize>>,
    record: fn(&[Var], usize) -> Result<Var>,
) -> Subject {
    Subject { held_from: 10, ..subject(name, shapes, record) }
}

/// A subject that is held as bf16 where there are matrix units.
const fn product(
    name: &'static str,
    shapes: fn(usize) -> Vec<Vec<usize>>,
    record: fn(&[Var], usize) -> Result<Var>,
) -> Subject {
    Subject { held_from: usize::MAX, ..subject(name, shapes, record) }
}

fn images(c: usize) -> Vec<usize> {
    vec![2, c, 5, 7]
}

/// Images that are held as bf16, of operands without rounding.
fn held(x: &Var) -> Var {
    x.max_pool2d([2, 1], [1, 1], [1, 0], [1, 1]).slice(2, 0..5)
}

/// Likewise; the largest of rounded numbers may be another.
fn pooled(x: &Var) -> Var {
    x.max_pool2d([3, 3], [1, 1], [1, 1], [1, 1])
}

fn smooth(x: &Var) -> Var {
    x.avg_pool2d([3, 3], [1, 1], [1, 1], true)
}

fn options(stride: usize, padding: usize, groups: usize) -> Conv2dOptions {
    Conv2dOptions { stride: [stride; 2], padding: [padding; 2], dilation: [1; 2], groups }
}

/// A number that divides the channels, above 1 where there is one.
fn divisor(c: usize) -> usize {
    (2..=c).find(|by| c.is_multiple_of(*by)).unwrap_or(1)
}

const SUBJECTS: &[Subject] = &[
    subject(
        "pools",
        |c| vec![images(c)],
        |x, _| {
            let y = pooled(&x[0]);
            let small = y.max_pool2d([2, 3], [2, 2], [0, 1], [1, 1]) + y.avg_pool2d([2, 3], [2, 2], [0, 1], true);
            Ok(small.resize_bilinear([5, 3], true).square() + small.resize_bilinear([5, 3], false))
        },
    ),
    subject(
        "operands of every layout",
        |c| {
            vec![
                images(c),
                vec![c, 1, 1],
                vec![2, c, 1, 1],
                vec![2, 1, 1, 1],
                vec![5, 7],
                vec![2, 5, 7, c],
                vec![3, c + 2, 6, 7],
            ]
        },
        |x, c| {
            let part = x[6].slice(0, 1..3).slice(1, 2..c + 2).slice(2, 1..6);
            let y = pooled(&x[0]) * &x[1] + &x[2] * &x[4];
            Ok(smooth(&(y * &x[3] + part * x[5].permute(&[0, 3, 1, 2]))).tanh())
        },
    ),
    subject(
        "operands of groups",
        |c| vec![images(c), vec![2, divisor(c), 1, 1, 1], vec![c / divisor(c), 5, 7]],
        |x, c| {
            let (groups, each) = (divisor(c), c / divisor(c));
            let y = pooled(&x[0]).reshape([2, groups, each, 5, 7]) * &x[1] + &x[2];
            Ok(smooth(&y.reshape([2, c, 5, 7])).square())
        },
    ),
    subject(
        "shuffled channels",
        |c| vec![images(c)],
        |x, c| {
            let y = pooled(&x[0]).reshape([2, divisor(c), c / divisor(c), 35]).permute(&[0, 2, 1, 3]);
            Ok(smooth(&y.reshape([2, c, 5, 7])).square())
        },
    ),
    subject(
        "statistics of channels",
        |c| vec![images(c), vec![c], vec![c]],
        |x, _| {
            let y = pooled(&x[0]);
            let [mean, _, variance] = y.channel_moments();
            let factor = (variance + 0.1).sqrt().recip() * &x[1];
            Ok(smooth(&y.channel_affine(&mean, &factor, &x[2]).relu()))
        },
    ),
    subject(
        "statistics of sequences",
        |c| vec![images(c), vec![c], vec![c]],
        |x, c| {
            let y = pooled(&x[0]).reshape([2, c, 35]);
            let [mean, _, variance] = y.channel_moments();
            let factor = (variance + 0.1).sqrt().recip() * &x[1];
            Ok(smooth(&y.channel_affine(&mean, &factor, &x[2]).relu().reshape([2, c, 5, 7])))
        },
    ),
    product(
        "statistics of rows",
        |c| vec![vec![70, c], vec![c], vec![c]],
        |x, c| {
            let y = x[0].softmax(1) * c as f64;
            let [mean, _, variance] = y.channel_moments();
            let factor = (variance + 0.1).sqrt().recip() * &x[1];
            Ok(y.channel_affine(&mean, &factor, &x[2]).tanh().softmax(1) * c as f64)
        },
    ),
    subject(
        "groups of channels",
        |c| vec![images(c), vec![c], vec![c]],
        |x, c| {
            let y = pooled(&x[0]).group_norm(c / divisor(c), 0.1, &x[1], &x[2]).tanh();
            Ok(smooth(&y.group_norm(1, 0.1, &x[2], &x[1])))
        },
    ),
    subject(
        "each channel by itself",
        |c| vec![images(c), vec![c], vec![c]],
        |x, c| Ok(smooth(&pooled(&x[0]).group_norm(c, 0.1, &x[1], &x[2])).tanh()),
    ),
    subject(
        "sums and extrema",
        |c| vec![images(c)],
        |x, _| {
            let y = pooled(&x[0]) * 1.5;
            let of_channels = y.sum_over(&[0, 2, 3]).square().mean() + (&y * &y).max_over(&[0, 2, 3]).mean();
            let of_images =
                y.mean_over(&[2, 3]).square().sum() + y.variance_over(&[1], 0).mean() + y.min_over(&[1]).sum();
            Ok(y.sum_over(&[1]) + of_channels + of_images)
        },
    ),
    subject(
        "slices of channels",
        |c| vec![images(c), vec![2, 1, 5, 7]],
        |x, c| {
            let y = Var::concat(&[&pooled(&x[0]), &x[1].expand([2, 11, 5, 7])], 1) * 2.0;
            let y = smooth(&y);
            let part = |from: usize| smooth(&y.slice(1, from..from + c)) * y.slice(1, 11 - from..c + 11 - from);
            Ok([0, 3, 5, 8].map(part).into_iter().reduce(|a, b| a + b).expect("four"))
        },
    ),
    subject(
        "channels side by side",
        |c| vec![images(c), images(c), vec![2, 16, 5, 7]],
        |x, _| {
            let [y, z, w] = [&x[0], &x[1], &x[2]].map(pooled);
            let aligned = Var::concat(&[&w, &(&w * 0.5), &y.tanh()], 1);
            let shifted = Var::concat(&[&y, &z.sigmoid(), &w, &y], 1);
            Ok(smooth(&aligned).sum_over(&[1]) + smooth(&shifted).square().sum_over(&[1]))
        },
    ),
    subject(
        "padded and flipped",
        |c| vec![images(c)],
        |x, _| Ok(held(&x[0]).pad(&[(0, 0), (1, 2), (1, 0), (0, 1)], 0.5).flip(&[1, 3]).square()),
    ),
    subject(
        "depthwise",
        |c| vec![images(c), vec![c, 1, 3, 3], vec![2 * c, 1, 3, 2]],
        |x, c| {
            let y = x[0].conv2d(&x[1], options(1, 1, c)).tanh();
            Ok(y.conv2d(&x[2], options(2, 1, c)) * 0.5)
        },
    ),
    of_groups(
        "few channels of a group",
        |c| vec![images(c), vec![c, divisor(c), 3, 3], vec![3 * (c / divisor(c)), divisor(c), 2, 2]],
        |x, c| {
            let groups = c / divisor(c);
            Ok(x[0].conv2d(&x[1], options(1, 1, groups)).tanh().conv2d(&x[2], options(2, 0, groups)) * 0.5)
        },
    ),
    product(
        "convolutions",
        |c| vec![images(c), vec![c, c, 3, 3], vec![c + 4, c, 2, 3], vec![c, c + 4, 1, 1]],
        |x, _| {
            let y = x[0].conv2d(&x[1], options(1, 1, 1)).scale(0.1).relu();
            let y = y.conv2d(&x[2], options(2, 1, 1)).scale(0.1).tanh();
            Ok(y.conv2d(&x[3], options(1, 0, 1)) * 0.25)
        },
    ),
    product(
        "first and last convolutions",
        |c| vec![vec![2, 3, 9, 8], vec![c, 3, 3, 3], vec![3, c, 3, 3]],
        |x, _| {
            let y = x[0].conv2d(&x[1], options(2, 1, 1)).scale(0.2).tanh();
            Ok(y.conv2d(&x[2], options(1, 1, 1)) * 0.25)
        },
    ),
];

fn check(device: &Device, subject: &Subject, width: usize) -> Outcome {
    let shapes = (subject.shapes)(width);
    let function = Function { name: subject.name, shapes: &shapes, record: |x: &[Var]| (subject.record)(x, width) };
    let dumps = function.check(device, &format!("{} of {width}", subject.name))?;
    let is_held = dumps.contains(&format!(": bf16[2, {width}, 5, 7]"));
    assert!(is_held || width < subject.held_from, "no value is stored as bf16:\n{dumps}");
    Ok(())
}

/// A value that is not finite stays where it is: its channel's neighbours, the padding among them, do not see it.
fn not_finite(device: &Device, value: f64) -> Outcome {
    let fast = device.with_precision(Precision::Fast);
    for device in [Ok(device.for_testing_bf16(0)), fast].into_iter().flatten() {
        for &width in WIDTHS {
            let shape = [2, width, 5, 7];
            let mut x = numbers("not finite", &shape);
            // The last channel of the first image; all that reads other channels must be finite.
            x[35 * (width - 1)] = value;
            let tape = Tape::new(&device);
            let input = tape.input(&Tensor::from_f64(&device, shape, &x)?);
            let weight = |name: &str, shape: [usize; 4]| -> Result<Var> {
                Ok(tape.input(&Tensor::from_f64(&device, shape, &numbers(name, &shape))?))
            };
            let y = pooled(&input);
            let depthwise = y.conv2d(&weight("depthwise", [width, 1, 3, 3])?, options(1, 1, width));
            let dense = y.conv2d(&weight("dense", [width + 4, width, 3, 3])?, options(1, 1, 1));
            let sums = y.sum_over(&[2, 3]);
            let [mean, _, variance] = y.channel_moments();
            let loss = depthwise.sum() + dense.sum() + sums.sum() + mean.sum() + variance.sum();
            loss.item()?;
            let is_finite = |value: &Var| -> Result<Vec<bool>> {
                Ok(value.to_tensor()?.to_vec()?.iter().map(|x| x.is_finite()).collect())
            };
            let of_channels = [is_finite(&mean)?, is_finite(&variance)?];
            for (channel, finite) in of_channels.iter().flat_map(|all| all.iter().enumerate()) {
                assert_eq!(*finite, channel + 1 < width, "statistics of channel {channel} of {width} on {device}");
            }
            for (plane, finite) in is_finite(&sums)?.into_iter().enumerate() {
                assert_eq!(finite, plane + 1 != width, "sum of plane {plane} of {width} on {device}");
            }
            for (at, finite) in is_finite(&depthwise)?.into_iter().enumerate() {
                // The window of the pool and that of the convolution reach two pixels down and to the right.
                let [plane, row, column] = [at / 35, at % 35 / 7, at % 7];
                let reaches = plane + 1 == width && row <= 2 && column <= 2;
                assert_eq!(finite, !reaches, "{plane}, {row}, {column} of {width} on {device}");
            }
            for (at, finite) in is_finite(&dense)?.into_iter().enumerate() {
                let [image, row, column] = [at / (35 * (width + 4)), at % 35 / 7, at % 7];
                assert_eq!(
                    finite,
                    image > 0 || row > 2 || column > 2,
                    "{image}, {row}, {column} of {width} on {device}"
                );
            }
        }
    }
    Ok(())
}
