//! Normalisations of difficult inputs: a mean far above the spread, groups of two elements and of many.

use libtest_mimic::Trial;
use meganeura::check::Gradcheck;
use meganeura::nn::{GroupNorm, InstanceNorm2d, LayerNorm};
use meganeura::{Device, Init, Layer, Precision, Result, Seed, Shape, Tape, Tensor, Var};

use crate::Outcome;
use crate::adapter::gpu_trial;
use crate::nets::{normal, tensor};
use crate::numbers::{Computed, Reference, compare};

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    let mut both = |name: &str, run: fn(&Device) -> Outcome| {
        trials.push(Trial::test(format!("norms::{name}"), move || run(&Device::cpu().for_testing(0))));
        trials.push(gpu_trial(format!("norms::gpu::{name}"), move |device| run(&device.for_testing(0))));
    };
    both("keep_digits_where_the_mean_is_large", large_mean);
    both("of_groups_of_all_sizes", sizes);
    both("of_equal_numbers", constant);
    trials.push(gpu_trial("norms::gpu::nan_and_infinity_stay_in_their_group", |device| {
        (0..2).try_for_each(|variant| poisoned(&device.for_testing(variant)))
    }));
    trials.push(Trial::test("norms::have_gradients_where_the_mean_is_large", gradients));
}

type Build = fn(&Device) -> Result<Box<dyn Layer>>;

/// A layer, the shape of its input, and the number of neighbours that are normalised together.
struct Subject {
    name: &'static str,
    shape: [usize; 4],
    group: usize,
    build: Build,
}

/// Batches of one, groups of two elements, groups of a whole image with odd extents.
const SUBJECTS: [Subject; 11] = [
    subject("group_norm", [2, 6, 5, 7], 70, |device| boxed(GroupNorm::new(3, 6), device)),
    subject("group_norm of two", [1, 4, 2, 1], 2, |device| boxed(GroupNorm::new(4, 4), device)),
    subject("group_norm without pixels", [64, 70, 1, 1], 35, |device| boxed(GroupNorm::new(2, 70), device)),
    subject("group_norm huge", [1, 4, 128, 65], 16_640, |device| boxed(GroupNorm::new(2, 4), device)),
    subject("layer_norm", [3, 2, 5, 64], 64, |device| boxed(LayerNorm::new([64]), device)),
    subject("layer_norm of images", [1, 3, 7, 5], 105, |device| boxed(LayerNorm::new([3, 7, 5]), device)),
    subject("layer_norm of two", [1, 3, 7, 2], 2, |device| boxed(LayerNorm::new([2]), device)),
    subject("layer_norm huge", [1, 2, 128, 129], 33_024, |device| boxed(LayerNorm::new([2, 128, 129]), device)),
    subject("instance_norm2d", [2, 3, 9, 11], 99, |device| boxed(InstanceNorm2d::new(3), device)),
    subject("instance_norm2d of two", [1, 5, 2, 1], 2, |device| boxed(InstanceNorm2d::new(5).affine(true), device)),
    subject("instance_norm2d huge", [1, 2, 128, 129], 16_512, |device| boxed(InstanceNorm2d::new(2), device)),
];

const fn subject(name: &'static str, shape: [usize; 4], group: usize, build: Build) -> Subject {
    Subject { name, shape, group, build }
}

fn boxed<I: Init<Output: Layer + 'static>>(config: I, device: &Device) -> Result<Box<dyn Layer>> {
    Ok(Box::new(config.init(device, Seed::new(1))?))
}

/// `mean + spread·normal`, rounded to `f32`.
fn numbers(subject: &Subject, mean: f64, spread: f64) -> Vec<f64> {
    let count = Shape::from(subject.shape).elements();
    normal(subject.name, count).into_iter().map(|x| f64::from((mean + spread * x) as f32)).collect()
}

/// The output of a layer with its initial weights of 1 and biases of 0, and the gradients of the input, weights and
/// biases for a random cotangent.
fn pass(subject: &Subject, device: &Device, x: &[f64]) -> Result<Vec<(String, Vec<f64>)>> {
    let layer = (subject.build)(device)?;
    let tape = Tape::new(device);
    let x = tape.input(&Tensor::from_f64(device, subject.shape, x)?);
    let y = layer.forward(&x);
    let grads = tape.backward_with(&y, &tape.input(&tensor(device, "cotangent", subject.shape)?))?;
    let dx = grads.of(&x).expect("depends");
    let named = grads.named(&layer)?.into_iter().map(|(path, value)| (format!("d{path}"), value));
    let values = [("y".to_owned(), y), ("dx".to_owned(), dx)].into_iter().chain(named);
    values.map(|(what, value)| Ok((what, value.to_tensor()?.to_f64_vec()?))).collect()
}

/// The definition.
fn naive(subject: &Subject, x: &[f64]) -> Vec<f64> {
    let normalise = |group: &[f64]| {
        let count = group.len() as f64;
        let mean = group.iter().sum::<f64>() / count;
        let variance = group.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
        group.iter().map(|x| (x - mean) / (variance + 1e-5).sqrt()).collect::<Vec<_>>()
    };
    x.chunks_exact(subject.group).flat_map(normalise).collect()
}

fn agree(device: &Device, subject: &Subject, x: &[f64], tolerance: f64) -> Outcome {
    let reference = pass(subject, &Device::cpu_with(Precision::Double), x)?;
    compare(subject.name, &Computed(reference[0].1.clone()), &Reference(naive(subject, x)), 1e-9)?;
    for ((what, computed), (_, reference)) in pass(subject, device, x)?.into_iter().zip(reference) {
        compare(&format!("{what} of {}", subject.name), &Computed(computed), &Reference(reference), tolerance)?;
    }
    Ok(())
}

fn large_mean(device: &Device) -> Outcome {
    for subject in &SUBJECTS {
        // Four digits remain: at 1000, neighbouring floats are 6e-4 of the spread apart.
        agree(device, subject, &numbers(subject, 1000.0, 0.1), 1e-4)?;
    }
    Ok(())
}

fn sizes(device: &Device) -> Outcome {
    for subject in &SUBJECTS {
        agree(device, subject, &numbers(subject, 0.5, 2.0), 1e-5)?;
    }
    Ok(())
}

/// A group of equal numbers has variance 0, even if their mean is rounded.
fn constant(device: &Device) -> Outcome {
    for subject in &SUBJECTS {
        agree(device, subject, &numbers(subject, 100_000.1, 0.0), 1e-5)?;
    }
    Ok(())
}

/// A non-finite value makes its group NaN, forward and backward, and changes no bit of other groups.
fn poisoned(device: &Device) -> Outcome {
    for (shape, groups) in [([3, 4, 3, 5], 2), ([4, 2, 40, 60], 1), ([2, 6, 1, 1], 1), ([2, 2, 129, 33], 2)] {
        let count = Shape::from(shape).elements();
        let group = count / (shape[0] * groups);
        let run = |x: &[f64], dy: &[f64]| -> Result<[Vec<f64>; 2]> {
            let tape = Tape::new(device);
            let input = |data: &[f64]| Ok::<_, meganeura::Error>(tape.input(&Tensor::from_f64(device, shape, data)?));
            let parameter = |name: &str| Ok::<_, meganeura::Error>(tape.input(&tensor(device, name, [shape[1]])?));
            let x = input(x)?;
            let y = x.group_norm(groups, 1e-5, &parameter("weight")?, &parameter("bias")?);
            let grads = tape.backward_with(&y, &input(dy)?)?;
            let read = |value: &Var| value.to_tensor()?.to_f64_vec();
            Ok([read(&y)?, read(&grads.of(&x).expect("depends"))?])
        };
        let (x, dy) = (normal("x", count), normal("dy", count));
        let clean = run(&x, &dy)?;
        // Places: in the middle of the last group, and its first element.
        let poisons = [(f64::NAN, true), (f64::INFINITY, true), (f64::NAN, false)];
        let places = [count - group / 2 - 1, count - group];
        for ((value, in_x), at) in poisons.into_iter().flat_map(|poison| places.map(|at| (poison, at))) {
            let (mut x, mut dy) = (x.clone(), dy.clone());
            *(if in_x { &mut x[at] } else { &mut dy[at] }) = value;
            let found = run(&x, &dy)?;
            for (k, (found, clean)) in found.iter().zip(&clean).enumerate() {
                let poisoned = |i: usize| i / group == at / group && (in_x || k == 1);
                for (i, (found, clean)) in found.iter().zip(clean).enumerate() {
                    let holds = if poisoned(i) { found.is_nan() } else { found.to_bits() == clean.to_bits() };
                    assert!(holds, "{shape:?}, {value} at {at}, result {k}: {found} for {clean} at {i}");
                }
            }
        }
    }
    Ok(())
}

fn gradients() -> Outcome {
    let device = Device::cpu_with(Precision::Double);
    for subject in &SUBJECTS {
        let layer = (subject.build)(&device)?;
        let x = Tensor::from_f64(&device, subject.shape, &numbers(subject, 1000.0, 0.1))?;
        let report = Gradcheck::default().samples(20).run(&layer, &[x], |layer, x| vec![layer.forward(&x[0])])?;
        report.ok()?;
    }
    Ok(())
}
