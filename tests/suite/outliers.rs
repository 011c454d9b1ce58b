//! Normalisations of numbers with one outlier at any position. The results of the other numbers must be precise
//! relative to themselves, not to the outlier.

use libtest_mimic::{Failed, Trial};
use meganeura::check::Gradcheck;
use meganeura::nn::{BatchNorm2d, GroupNorm, InstanceNorm2d, LayerNorm};
use meganeura::{Device, Init, Layer, Precision, Result, Seed, Shape, Tape, Tensor};

use crate::Outcome;
use crate::adapter::gpu_trial;
use crate::nets::{normal, tensor};
use crate::numbers::{Computed, Reference, compare};

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    let mut both = |name: &'static str, run: fn(&Device) -> Outcome| {
        trials.push(Trial::test(format!("outliers::{name}"), move || run(&Device::cpu().for_testing(0))));
        trials.push(gpu_trial(format!("outliers::gpu::{name}"), move |device| run(&device.for_testing(0))));
    };
    both("spoil_no_other_element", everywhere);
    both("spoil_no_running_statistics", running);
    both("leave_the_variance_a_number", extremes);
    both("cost_sums_and_variances_no_digits", reductions);
    both("spoil_no_sum_in_any_form", every_form);
    trials.push(Trial::test("outliers::have_gradients", gradients));
    trials.push(gpu_trial("outliers::gpu::spoil_nothing_in_the_other_form", other_form));
}

/// The other form of the kernels: groups and channels that are normally computed at once are split, and vice versa.
fn other_form(device: &Device) -> Outcome {
    let device = device.for_testing(1);
    SUBJECTS.iter().try_for_each(|subject| everywhere_in(&device, subject))?;
    SUBJECTS.iter().try_for_each(|subject| extremes_in(&device, subject))
}

type Build = fn(&Device) -> Result<Box<dyn Layer>>;

/// Elements that are normalised together.
#[derive(Clone, Copy)]
enum Group {
    Neighbours(usize),
    Channels,
}

/// A layer, the shape of its input, and its groups.
struct Subject {
    name: &'static str,
    shape: [usize; 4],
    group: Group,
    build: Build,
}

/// Groups of a few elements, groups that fill a workgroup's registers, and longer ones; powers of two and odd extents.
const SUBJECTS: [Subject; 13] = [
    neighbours("group_norm", [2, 6, 5, 7], 70, |device| boxed(GroupNorm::new(3, 6), device)),
    neighbours("group_norm, aligned", [2, 4, 32, 32], 2048, |device| boxed(GroupNorm::new(2, 4), device)),
    neighbours("group_norm without pixels", [64, 70, 1, 1], 35, |device| boxed(GroupNorm::new(2, 70), device)),
    neighbours("group_norm, huge", [1, 4, 128, 65], 16_640, |device| boxed(GroupNorm::new(2, 4), device)),
    neighbours("layer_norm", [3, 2, 5, 64], 64, |device| boxed(LayerNorm::new([64]), device)),
    neighbours("layer_norm of images", [1, 3, 7, 5], 105, |device| boxed(LayerNorm::new([3, 7, 5]), device)),
    neighbours("layer_norm, huge", [1, 2, 128, 129], 33_024, |device| boxed(LayerNorm::new([2, 128, 129]), device)),
    neighbours("instance_norm2d", [2, 3, 9, 11], 99, |device| boxed(InstanceNorm2d::new(3), device)),
    neighbours("instance_norm2d, aligned", [1, 2, 64, 64], 4096, |device| boxed(InstanceNorm2d::new(2), device)),
    channels("batch_norm2d", [4, 3, 5, 7], |device| boxed(BatchNorm2d::new(3), device)),
    channels("batch_norm2d without pixels", [300, 6, 1, 1], |device| boxed(BatchNorm2d::new(6), device)),
    channels("batch_norm2d, aligned", [8, 2, 16, 16], |device| boxed(BatchNorm2d::new(2), device)),
    channels("batch_norm2d, huge", [3, 2, 90, 91], |device| boxed(BatchNorm2d::new(2), device)),
];

const fn neighbours(name: &'static str, shape: [usize; 4], len: usize, build: Build) -> Subject {
    Subject { name, shape, group: Group::Neighbours(len), build }
}

const fn channels(name: &'static str, shape: [usize; 4], build: Build) -> Subject {
    Subject { name, shape, group: Group::Channels, build }
}

fn boxed<I: Init<Output: Layer + 'static>>(config: I, device: &Device) -> Result<Box<dyn Layer>> {
    Ok(Box::new(config.init(device, Seed::new(1))?))
}

impl Subject {
    /// The indices of each group's elements, in order.
    fn groups(&self) -> Vec<Vec<usize>> {
        let count = Shape::from(self.shape).elements();
        let [_, c, h, w] = self.shape;
        match self.group {
            Group::Neighbours(len) => (0..count / len).map(|g| (g * len..(g + 1) * len).collect()).collect(),
            Group::Channels => (0..c).map(|g| (0..count).filter(|i| i / (h * w) % c == g).collect()).collect(),
        }
    }

    /// Places for an outlier, each with some of the distributions, which take turns. Layers of many elements get one
    /// distribution at each place, the others as many as there are `turns`.
    fn outliers(&self, turns: &[usize]) -> Vec<(usize, Distribution)> {
        let is_large = Shape::from(self.shape).elements() > 16_384;
        let turns = if is_large { &turns[..1] } else { turns };
        let places = places(self.groups()[0].len()).into_iter().enumerate();
        let of = |(turn, at)| turns.iter().map(move |k| (at, DISTRIBUTIONS[(turn + k) % DISTRIBUTIONS.len()]));
        places.flat_map(of).collect()
    }

    /// The output with the initial weights of 1 and biases of 0, the gradient of the input, and the gradients of
    /// weights and biases, concatenated, for a random cotangent.
    fn pass(&self, device: &Device, x: &[f64]) -> Result<[Vec<f64>; 3]> {
        let layer = (self.build)(device)?;
        let tape = Tape::new(device);
        let x = tape.input(&Tensor::from_f64(device, self.shape, x)?);
        let y = layer.forward(&x);
        let grads = tape.backward_with(&y, &tape.input(&tensor(device, "cotangent", self.shape)?))?;
        let (dx, of_parameters) = (grads.of(&x).expect("depends"), grads.named(&*layer)?);
        let y = y.to_tensor()?.to_f64_vec()?;
        let mut dw = Vec::new();
        for (_, gradient) in of_parameters {
            dw.extend(gradient.to_tensor()?.to_f64_vec()?);
        }
        Ok([y, dx.to_tensor()?.to_f64_vec()?, dw])
    }
}

/// A result in `f64`, and the magnitude of the terms of its sum: errors are a few roundings of that.
struct Expected {
    value: f64,
    terms: f64,
    /// The number that a possibly subnormal factor is multiplied by, or 0.
    factored: f64,
}

fn mean(x: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = x.len() as f64;
    x.sum::<f64>() / count
}

/// Normalised elements of a group, and the gradient of the input for cotangents `t`.
fn normalise(x: &[f64], t: &[f64]) -> Vec<[Expected; 2]> {
    let centre = mean(x.iter().copied());
    let rstd = 1.0 / (mean(x.iter().map(|x| (x - centre).powi(2))) + 1e-5).sqrt();
    let z: Vec<_> = x.iter().map(|x| (x - centre) * rstd).collect();
    let products = || z.iter().zip(t).map(|(z, t)| z * t);
    let (mean_t, mean_tz) = (mean(t.iter().copied()), mean(products()));
    let (size_z, size_t) = (mean(z.iter().map(|z| z.abs())), mean(t.iter().map(|t| t.abs())));
    let size_tz = mean(products().map(f64::abs));
    let element = |(z, t): (&f64, &f64)| {
        let y = Expected { value: *z, terms: z.abs() + size_z, factored: 0.0 };
        let terms = rstd * (t.abs() + size_t + (z.abs() + size_z) * size_tz);
        [y, Expected { value: rstd * (t - mean_t - z * mean_tz), terms, factored: z.abs() / rstd }]
    };
    z.iter().zip(t).map(element).collect()
}

/// Unit roundoff of an `f32`.
const ROUNDING: f64 = 5.960_464_477_539_063e-8;

/// The number of roundings in tree sums of thousands of terms, and in a few operations after them.
const ROUNDINGS: f64 = 24.0;

/// Compares the output and the input's gradient with the definition, element by element, and the gradients of weights
/// and biases with those in `f64`.
fn agree(device: &Device, subject: &Subject, x: &[f64], what: &str) -> Result<(), Failed> {
    let found = subject.pass(device, x)?;
    let [_, _, dw] = subject.pass(&Device::cpu_with(Precision::Double), x)?;
    // Sums over up to 25,000 examples and pixels.
    compare(&format!("{}, {what}: dw", subject.name), &Computed(found[2].clone()), &Reference(dw), 2e-6)?;
    let cotangent = normal("cotangent", x.len());
    // Batch normalisation multiplies deviations by the gradient of the variance, which falls with their third power.
    // GPUs may flush a subnormal factor to 0.
    let flushed = match subject.group {
        Group::Channels => 2.0 * f64::from(f32::MIN_POSITIVE),
        Group::Neighbours(_) => 0.0,
    };
    for group in subject.groups() {
        let of = |data: &[f64]| group.iter().map(|&i| data[i]).collect::<Vec<_>>();
        for (i, expected) in group.iter().zip(normalise(&of(x), &of(&cotangent))) {
            for ((found, expected), result) in found.iter().zip(expected).zip(["y", "dx"]) {
                let error = (found[*i] - expected.value).abs();
                if error.is_nan() || error > ROUNDINGS * ROUNDING * expected.terms + flushed * expected.factored {
                    return Err(format!(
                        "{}, {what}: {result}[{i}] is {:e}, not {:e}: {:.1} roundings of its terms",
                        subject.name,
                        found[*i],
                        expected.value,
                        error / (ROUNDING * expected.terms)
                    )
                    .into());
                }
            }
        }
    }
    Ok(())
}

/// The mean and spread of the numbers, and the outlier's distance from the mean.
type Distribution = (f64, f64, f64);

const DISTRIBUTIONS: [Distribution; 8] = [
    (0.0, 1.0, 1e4),
    (1e3, 1.0, -1e5),
    (0.0, 1.0, 1e8),
    (1e6, 0.1, 1e4),
    (1e6, 0.1, 0.0),
    (-1e6, 1e4, 1e7),
    (3.0, 1e-4, 1.0),
    (0.0, 1e4, -1e9),
];

/// The first and last element, and the boundaries of vectors, invocations, workgroups and parts.
fn places(len: usize) -> Vec<usize> {
    let inside = [1, 7, 31, 32, 63, 64, 255, 256, 2047, 2048, 4095, 4096, 8191, len / 2, len - 2, len - 1];
    let mut places: Vec<_> = [0].into_iter().chain(inside).filter(|&at| at < len).collect();
    places.sort_unstable();
    places.dedup();
    places
}

/// `mean + spread·normal` rounded to `f32`, with an outlier at index `at` of each group.
fn numbers(subject: &Subject, (mean, spread, outlier): Distribution, at: usize) -> Vec<f64> {
    let count = Shape::from(subject.shape).elements();
    let round = |x: f64| f64::from(x as f32);
    let mut x: Vec<_> = normal(subject.name, count).into_iter().map(|x| round(mean + spread * x)).collect();
    if outlier != 0.0 {
        subject.groups().iter().for_each(|group| x[group[at]] = round(mean + outlier));
    }
    x
}

fn everywhere(device: &Device) -> Outcome {
    SUBJECTS.iter().try_for_each(|subject| everywhere_in(device, subject))
}

fn everywhere_in(device: &Device, subject: &Subject) -> Outcome {
    for (at, distribution) in subject.outliers(&[0, 2, 5]) {
        let (mean, spread, outlier) = distribution;
        let what = format!("{outlier:e} at {at} among {mean:e} ± {spread:e}");
        agree(device, subject, &numbers(subject, distribution, at), &what)?;
    }
    Ok(())
}

/// Gradients against finite differences.
fn gradients() -> Outcome {
    let device = Device::cpu_with(Precision::Double);
    for subject in &SUBJECTS {
        // Closer outliers: otherwise, gradients would be below the resolution of finite differences.
        for (at, distribution) in [(0, (0.0, 1.0, 1e2)), (1, (1e3, 1.0, -1e3)), (0, (1e3, 0.1, 10.0))] {
            let layer = (subject.build)(&device)?;
            let x = Tensor::from_f64(&device, subject.shape, &numbers(subject, distribution, at))?;
            let report = Gradcheck::default().samples(10).run(&layer, &[x], |layer, x| vec![layer.forward(&x[0])])?;
            report.ok()?;
        }
    }
    Ok(())
}

/// The running statistics of batch normalisation. With a momentum of 1, they are the batch's.
fn running(device: &Device) -> Outcome {
    for subject in SUBJECTS.iter().filter(|subject| matches!(subject.group, Group::Channels)) {
        for (at, distribution) in subject.outliers(&[0, 1, 2, 3, 4, 5, 6, 7]) {
            let x = numbers(subject, distribution, at);
            let norm = BatchNorm2d::new(subject.shape[1]).momentum(1.0).init(device, Seed::new(1))?;
            let tape = Tape::new(device);
            let _y = norm.forward(&tape.input(&Tensor::from_f64(device, subject.shape, &x)?));
            tape.apply()?;
            let means = norm.running_mean.value().to_f64_vec()?;
            let variances = norm.running_var.value().to_f64_vec()?;
            for (group, (found_mean, found_variance)) in subject.groups().iter().zip(means.iter().zip(variances)) {
                let of = || group.iter().map(|&i| x[i]);
                let centre = mean(of());
                let freedom = (group.len() - 1) as f64;
                let variance = of().map(|x| (x - centre).powi(2)).sum::<f64>() / freedom;
                let terms = centre.abs() + mean(of().map(|x| (x - centre).abs()));
                let errors = [(found_mean - centre).abs() / terms, (found_variance - variance).abs() / variance];
                assert!(
                    errors.iter().all(|error| *error <= ROUNDINGS * ROUNDING),
                    "{}, {distribution:?} at {at}: {found_mean:e} for {centre:e}, {found_variance:e} for {variance:e}",
                    subject.name
                );
            }
        }
    }
    Ok(())
}

/// A sequence of numbers, by index in a group.
type Pattern = (&'static str, fn(usize) -> f64);

/// Finite numbers below 1e18: constants, all magnitudes, numbers that cancel. Neither their mean nor the sum of a few
/// hundred of their squares overflows, but more may. A negative variance would show as NaN, or as a far too large
/// factor.
fn extremes(device: &Device) -> Outcome {
    SUBJECTS.iter().try_for_each(|subject| extremes_in(device, subject))
}

fn extremes_in(device: &Device, subject: &Subject) -> Outcome {
    let patterns: [Pattern; 9] = [
        ("constant", |_| 123_456.7),
        ("constant and large", |_| 0.999e18),
        ("constant and tiny", |_| 1e-38),
        ("one step apart", |i| f64::from(if i % 97 == 5 { 16_777_217.0f32.next_up() } else { 16_777_216.0 })),
        ("around a power of two", |i| f64::from(if i % 2 == 0 { 1024.0f32 } else { 1024.0f32.next_down() })),
        ("cancelling", |i| if i % 2 == 0 { 0.9e18 } else { -0.9e18 }),
        ("of all sizes", |i| 10f64.powi((i * 7 % 56) as i32 - 38) * if i % 3 == 0 { -1.0 } else { 1.0 }),
        ("large and small", |i| if i % 35 == 0 { 0.9e18 } else { 1e-18 }),
        ("zeros and a large one", |i| if i % 105 == 0 { -0.9e18 } else { 0.0 }),
    ];
    let groups = subject.groups();
    for (what, pattern) in patterns {
        let mut x = vec![0.0; Shape::from(subject.shape).elements()];
        groups.iter().for_each(|group| group.iter().enumerate().for_each(|(k, &i)| x[i] = pattern(k)));
        x.iter_mut().for_each(|x| *x = f64::from(*x as f32));
        let of_group = || groups[0].iter().map(|&i| x[i]);
        let centre = mean(of_group().collect::<Vec<_>>().into_iter());
        let squares: f64 = of_group().map(|x| (x - centre).powi(2)).sum();
        if groups[0].len() <= 300 || x.iter().all(|x| x.abs() < 1e15) {
            agree(device, subject, &x, what)?;
        } else {
            // More squares overflow, and all results are NaN.
            let found = subject.pass(device, &x)?;
            let mut numbers = found[..2].iter().flatten();
            let name = subject.name;
            if squares > 2.0 * f64::from(f32::MAX) {
                assert!(numbers.all(|x| x.is_nan()), "{name}, {what}: not NaN");
            } else if squares < 0.5 * f64::from(f32::MAX) {
                assert!(numbers.all(|x| x.is_finite()), "{name}, {what}: not finite");
            }
        }
    }
    Ok(())
}

/// Variances of numbers with a mean far above their spread or with an outlier. Also sums of many numbers of one sign,
/// whose roundings would add up in a sequential sum.
fn reductions(device: &Device) -> Outcome {
    let subject = &SUBJECTS[0];
    for at in places(70) {
        for distribution in DISTRIBUTIONS {
            let x = numbers(subject, distribution, at);
            let tape = Tape::new(device);
            let groups = tape.input(&Tensor::from_f64(device, [6, 70], &x)?);
            let found = groups.variance_over(&[1], 1).to_tensor()?.to_f64_vec()?;
            for (group, found) in x.chunks_exact(70).zip(found) {
                let centre = mean(group.iter().copied());
                let variance = group.iter().map(|x| (x - centre).powi(2)).sum::<f64>() / 69.0;
                let error = (found - variance).abs() / variance;
                assert!(error <= ROUNDINGS * ROUNDING, "{distribution:?} at {at}: {found:e}, not {variance:e}");
            }
        }
    }
    // So many results that each gets one invocation.
    let (rows, columns) = (40, 65_537);
    for &(centre, spread, outlier) in &DISTRIBUTIONS[1..3] {
        let round = |x: f64| f64::from(x as f32);
        let mut x: Vec<_> = normal("columns", rows * columns).iter().map(|x| round(centre + spread * x)).collect();
        x[..columns].fill(round(centre + outlier));
        let tape = Tape::new(device);
        let found = tape.input(&Tensor::from_f64(device, [rows, columns], &x)?).variance_over(&[0], 1);
        for (column, found) in found.to_tensor()?.to_f64_vec()?.into_iter().enumerate() {
            let of = || (0..rows).map(|row| x[row * columns + column]);
            let centre = mean(of());
            let variance = of().map(|x| (x - centre).powi(2)).sum::<f64>() / (rows - 1) as f64;
            let error = (found - variance).abs() / variance;
            assert!(error <= ROUNDINGS * ROUNDING, "{outlier:e}, column {column}: {found:e}, not {variance:e}");
        }
    }
    for (shape, axes) in [([16_384, 300, 1], &[0][..]), ([8192, 300, 2], &[0, 2]), ([1, 1, 3_000_001], &[2])] {
        let tape = Tape::new(device);
        let tenths = tape.input(&Tensor::full(device, shape, 0.1)?);
        let count: usize = axes.iter().map(|&axis| shape[axis]).product();
        let sum = f64::from(0.1f32) * count as f64;
        for found in tenths.sum_over(axes).to_tensor()?.to_f64_vec()? {
            let error = (found - sum).abs() / sum;
            // Up to 256 sequential additions, each of which rounds by at most half a unit.
            assert!(error <= 256.0 * ROUNDING, "{shape:?} over {axes:?}: {found}, not {sum}");
        }
    }
    Ok(())
}

/// Sums of an outlier followed by ones, which a sequential sum would lose: in every form of the kernel, over rows and
/// columns, and with so many results that each gets one invocation.
fn every_form(device: &Device) -> Outcome {
    for (form, outs, len) in (0..6).map(|form| (form, 70, 5001)).chain([(0, 65_536, 1000)]) {
        let device = device.for_testing(form);
        let tape = Tape::new(&device);
        let mut elements = vec![1.0; len];
        elements[0] = 1e8;
        let elements = tape.input(&Tensor::from_f64(&device, [len, 1], &elements)?);
        let ones = tape.input(&Tensor::full(&device, [1, outs], 1.0)?);
        // Nobody holds the product, so it is not stored.
        let product = || &elements * &ones;
        let columns = (product().sum_over(&[0]), "columns");
        let rows = (outs < 1000).then(|| (product().t().sum_over(&[1]), "rows"));
        for (sums, what) in [columns].into_iter().chain(rows) {
            let (sum, allowed) = (1e8 + (len - 1) as f64, ROUNDINGS * ROUNDING * 1e8);
            for found in sums.to_tensor()?.to_f64_vec()? {
                let error = (found - sum).abs();
                assert!(error <= allowed, "form {form}, {outs} {what} of {len}: {found}, not {sum}");
            }
        }
    }
    Ok(())
}
