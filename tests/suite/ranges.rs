//! The range of fast precision: tiny, large, growing and mixed magnitudes through every operation of a network, forward
//! and backward. Images lie in memory as bf16 and products are computed in f16, so a result may lose digits but not its
//! magnitude. A result beyond the range of `f32` is infinite or NaN, as in full precision, and the training step is
//! refused.
//!
//! References are computed in `f64`. Operands and cotangents are exact in bf16, so storing them as bf16 changes
//! nothing.

use libtest_mimic::{Failed, Trial};
use meganeura::loss::{CrossEntropyOptions, Reduction};
use meganeura::nn::{BatchNorm2d, Conv2d, LayerNorm};
use meganeura::ops::case::Array;
use meganeura::ops::{Conv2dOptions, ConvTranspose2dOptions};
use meganeura::optim::{Optimizer, Sgd, TrainStep};
use meganeura::{Device, ErrorKind, Init, Layer, ModuleExt, Precision, Result, Seed, Shape, Tape, Tensor, Var};

use crate::Outcome;
use crate::adapter::gpu_trial;
use crate::nets::{bits, normal};
use crate::numbers::{Computed, Numbers, Reference, compare};
use crate::ops::{each_variant, offered};

/// The unit roundoff of bf16, which has eight significant bits.
const ROUNDING: f64 = 1.0 / 256.0;

/// Sixteen roundings of `f32`, relative to terms that may cancel, as in `1 − tanh²(x)` or `p − 1`.
const CANCELLED: f64 = 1.0 / (1 << 20) as f64;

/// The smallest magnitude that products keep, relative to the largest element of a tile, since a tile has a single
/// power of two for each operand (`shared/fit`). With magnitudes from 2⁻³⁰ to 2³⁰, results of small elements alone may
/// become 0.
const FLOOR: f64 = 1.0 / (1 << 30) as f64;

/// The same for Winograd's kernels in `f32`. Their transforms add up the pixels of a tile, with factors of up to 48
/// along each axis: 2¹¹ in all, times a few roundings.
const WINOGRAD: f64 = 1.0 / (1 << 10) as f64;

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    for subject in SUBJECTS {
        trials.push(gpu_trial(format!("ranges::{}", subject.name), move |device| check(device, subject)));
    }
    trials.push(Trial::test("ranges::the_range_of_f16_would_fail", too_short));
    trials.push(gpu_trial("ranges::a_step_that_overflows_is_refused", steps));
}

type Record = fn(&[Var]) -> Result<Var>;

type Shapes = &'static [&'static [usize]];

/// The magnitude that the error of a result is relative to.
#[derive(Clone, Copy, PartialEq)]
enum Size {
    /// The sum of the magnitudes of its terms.
    Terms,
    /// Its own magnitude: nothing cancels.
    Itself,
    /// The largest magnitude in the same image or row, since normalisations mix these; for the gradient of a parameter,
    /// in all of it.
    Largest,
}

/// An operation or a small network.
struct Subject {
    name: &'static str,
    shapes: Shapes,
    record: Record,
    size: Size,
    /// Applied to the magnitudes of operands and cotangents, this function and its gradients give sums of magnitudes of
    /// terms.
    terms: Option<Record>,
    /// The largest number of roundings to bf16 on the way to a result.
    roundings: f64,
    /// The number of operands whose magnitudes vary; the others are parameters of about 1.
    inputs: usize,
    /// `true` if it multiplies matrices.
    multiplies: bool,
}

/// An operation that is linear in each operand, so it is its own sum of magnitudes. Two roundings: of the result, and
/// of a summand before.
const fn linear(name: &'static str, shapes: Shapes, record: Record) -> Subject {
    let (size, terms, inputs) = (Size::Terms, Some(record), usize::MAX);
    Subject { name, shapes, record, size, terms, roundings: 2.0, inputs, multiplies: false }
}

const fn product(name: &'static str, shapes: Shapes, record: Record) -> Subject {
    Subject { multiplies: true, ..linear(name, shapes, record) }
}

/// An elementwise function with slopes up to about 1.
const fn activation(name: &'static str, record: Record) -> Subject {
    Subject { size: Size::Itself, terms: Some(|x| Ok(&x[0] * 1.0)), ..linear(name, &[IMAGES], record) }
}

const fn mixing(name: &'static str, shapes: Shapes, roundings: f64, record: Record) -> Subject {
    Subject { size: Size::Largest, terms: None, roundings, ..linear(name, shapes, record) }
}

/// Probabilities are at most 1, so a term of a gradient is at most a cotangent of the same row.
const fn softmax(name: &'static str, shapes: Shapes, record: Record) -> Subject {
    let terms: Record = |x| Ok(x[0].sum_keep(&[1]).expand(x[0].shape()));
    Subject { terms: Some(terms), ..mixing(name, shapes, 4.0, record) }
}

const IMAGES: &[usize] = &[2, 8, 3, 5];

fn conv(x: &Var, w: &Var, stride: usize, padding: usize) -> Var {
    x.conv2d(w, Conv2dOptions { stride: [stride; 2], padding: [padding; 2], ..Conv2dOptions::default() })
}

const SUBJECTS: &[Subject] = &[
    product("conv2d 3×3", &[&[3, 16, 6, 7], &[24, 16, 3, 3]], |x| Ok(conv(&x[0], &x[1], 1, 1))),
    product("conv2d 3×3 with a stride", &[&[3, 16, 7, 9], &[16, 16, 3, 3]], |x| Ok(conv(&x[0], &x[1], 2, 1))),
    product("conv2d 1×1", &[&[2, 24, 5, 6], &[8, 24, 1, 1]], |x| Ok(conv(&x[0], &x[1], 1, 0))),
    product("conv2d of odd channels", &[&[2, 5, 6, 7], &[7, 5, 3, 3]], |x| Ok(conv(&x[0], &x[1], 1, 1))),
    product("conv2d in groups, dilated", &[&[2, 32, 7, 7], &[16, 16, 3, 3]], |x| {
        let options = Conv2dOptions { padding: [2; 2], dilation: [2; 2], groups: 2, ..Conv2dOptions::default() };
        Ok(x[0].conv2d(&x[1], options))
    }),
    product("conv2d of each channel", &[&[2, 8, 5, 6], &[8, 1, 3, 3]], |x| {
        Ok(x[0].conv2d(&x[1], Conv2dOptions { padding: [1; 2], groups: 8, ..Conv2dOptions::default() }))
    }),
    product("conv_transpose2d", &[&[2, 16, 4, 5], &[16, 8, 3, 3]], |x| {
        let (stride, padding, output_padding) = ([2; 2], [1; 2], [1; 2]);
        let options = ConvTranspose2dOptions { stride, padding, output_padding, ..ConvTranspose2dOptions::default() };
        Ok(x[0].conv_transpose2d(&x[1], options))
    }),
    product("conv2d, bias and residual", &[&[2, 16, 5, 6], &[16, 16, 3, 3], &[16, 1, 1]], |x| {
        Ok(conv(&x[0], &x[1], 1, 1) + &x[2] + &x[0])
    }),
    product("linear", &[&[12, 40], &[24, 40], &[24]], |x| Ok(x[0].matmul(&x[1].t()) + &x[2])),
    product("matmul in batches", &[&[3, 17, 24], &[3, 24, 20]], |x| Ok(x[0].matmul(&x[1]))),
    linear("product with a factor for each channel", &[IMAGES, &[8, 1, 1]], |x| Ok(&x[0] * &x[1])),
    linear("concat and slice", &[IMAGES, &[2, 16, 3, 5]], |x| Ok(Var::concat(&[&x[0], &x[1]], 1).slice(1, 0..16))),
    linear("concat and slice across lines", &[IMAGES, &[2, 5, 3, 5]], |x| {
        Ok(Var::concat(&[&x[0], &x[1]], 1).slice(1, 3..11))
    }),
    linear("pad", &[IMAGES], |x| Ok(x[0].pad(&[(0, 0), (0, 0), (1, 2), (0, 1)], 0.0))),
    linear("avg_pool2d", &[&[2, 8, 6, 7]], |x| Ok(x[0].avg_pool2d([3, 3], [2, 2], [1, 1], true))),
    linear("adaptive_avg_pool2d", &[&[2, 8, 5, 7]], |x| Ok(x[0].adaptive_avg_pool2d([2, 3]))),
    linear("upsample_nearest", &[IMAGES], |x| Ok(x[0].upsample_nearest([2, 3]))),
    linear("resize_bilinear", &[IMAGES], |x| Ok(x[0].resize_bilinear([7, 8], false))),
    linear("embedding", &[&[9, 16]], |x| {
        let (tape, index) = (x[0].tape(), [3, 0, 8, 3, 3, 5, 0, 1]);
        Ok(x[0].embedding(&tape.input(&Tensor::indices(&tape.device(), [2, 4], &index)?)))
    }),
    linear("sum over pixels", &[IMAGES], |x| Ok(x[0].sum_over(&[2, 3]))),
    linear("sum over images", &[IMAGES], |x| Ok(x[0].sum_over(&[0]))),
    linear("mean over channels", &[IMAGES], |x| Ok(x[0].mean_over(&[1]))),
    linear("mean of rows", &[&[12, 40]], |x| Ok(x[0].mean_over(&[1]))),
    linear("mean of columns", &[&[12, 40]], |x| Ok(x[0].mean_over(&[0]))),
    activation("relu", |x| Ok(x[0].relu())),
    activation("gelu", |x| Ok(x[0].gelu())),
    activation("silu", |x| Ok(x[0].silu())),
    activation("sigmoid", |x| Ok(x[0].sigmoid())),
    activation("tanh", |x| Ok(x[0].tanh())),
    activation("softplus", |x| Ok(x[0].softplus())),
    activation("exp", |x| Ok((x[0].abs() * -1.0).exp())),
    // Windows do not overlap, so a gradient is a single cotangent.
    Subject { terms: None, ..activation("max_pool2d", |x| Ok(x[0].max_pool2d([1, 5], [1, 5], [0, 0], [1, 1]))) },
    mixing("variance over pixels", &[IMAGES], 4.0, |x| Ok(x[0].variance_over(&[2, 3], 1))),
    mixing("group_norm and silu", &[&[2, 16, 3, 5], &[16], &[16]], 4.0, |x| {
        Ok(x[0].group_norm(4, 1e-5, &x[1], &x[2]).silu())
    }),
    mixing("layer_norm", &[&[6, 40], &[40], &[40]], 4.0, |x| {
        let norm = LayerNorm::new([40]).affine(false).init(&x[0].tape().device(), Seed::new(1))?;
        Ok(norm.forward(&x[0]) * &x[1] + &x[2])
    }),
    // Elementwise operations around reductions: several of their results may be bf16.
    mixing("batch_norm2d", &[IMAGES, &[8, 1, 1], &[8, 1, 1]], 6.0, |x| {
        let norm = BatchNorm2d::new(8).affine(false).init(&x[0].tape().device(), Seed::new(1))?;
        Ok(norm.forward(&x[0]) * &x[1] + &x[2])
    }),
    softmax("softmax", &[IMAGES], |x| Ok(x[0].softmax(1))),
    softmax("log_softmax", &[&[6, 40]], |x| Ok(x[0].log_softmax(1))),
    Subject {
        terms: Some(|x| Ok(x[0].sum_over(&[1]))),
        ..softmax("cross_entropy", &[IMAGES], |x| {
            let labels: Vec<_> = (0..30).map(|at| at * 5 % 8).collect();
            let labels = Tensor::indices(&x[0].tape().device(), [2, 3, 5], &labels)?;
            let options = CrossEntropyOptions { reduction: Reduction::None, ..CrossEntropyOptions::default() };
            Ok(x[0].cross_entropy_with(&labels, &options))
        })
    },
    // Probabilities are at most 1, so sums over all keys and all values bound the terms of gradients.
    Subject {
        terms: Some(|x| Ok(x[0].matmul(&x[1].sum_keep(&[1]).t()).matmul(&x[2].sum_keep(&[1])))),
        multiplies: true,
        ..mixing("attention", &[&[2, 7, 16], &[2, 9, 16], &[2, 9, 16]], 4.0, |x| Ok(x[0].attention(&x[1], &x[2], None)))
    },
    // Up to four intermediate values may be bf16, and as many cotangents.
    Subject {
        inputs: 1,
        multiplies: true,
        ..mixing("residual network", NETWORK, 8.0, |x| {
            let inside = conv(&x[0], &x[1], 1, 1).group_norm(4, 1e-5, &x[2], &x[3]).silu();
            Ok((conv(&inside, &x[4], 1, 1) + &x[0]).mean_over(&[2, 3]).matmul(&x[5].t()))
        })
    },
];

const NETWORK: Shapes = &[&[2, 16, 5, 6], &[16, 16, 3, 3], &[16], &[16], &[16, 16, 3, 3], &[10, 16]];

/// The factors that random operands are multiplied by.
#[derive(Clone, Copy, Debug)]
enum Magnitude {
    Uniform(f64),
    /// Powers of two from 2^−span to 2^span: one for each index along an axis, or for each element.
    Mixed {
        span: usize,
        axis: Option<usize>,
    },
    /// 1 for the first image, row or batch, and 1e30 for everything else, so that products overflow.
    Beyond,
}

/// The index of element `at` along an axis, or along the last one if there are fewer.
fn along(shape: Shape, axis: usize, at: usize) -> usize {
    let axis = axis.min(shape.rank() - 1);
    at / shape.dims()[axis + 1..].iter().product::<usize>() % shape[axis]
}

impl Magnitude {
    fn factor(self, operand: usize, shape: Shape, at: usize, images: usize) -> f64 {
        match self {
            Self::Uniform(factor) => factor,
            Self::Mixed { span, axis } => {
                let at = axis.map_or(at, |axis| along(shape, axis, at));
                // Steps of 37 visit every power before one repeats.
                2f64.powi(((at * 37 + operand * 11) % (2 * span + 1)) as i32 - span as i32)
            }
            Self::Beyond if shape[0] == images && along(shape, 0, at) == 0 => 1.0,
            Self::Beyond => 1e30,
        }
    }
}

impl Subject {
    /// From 1e-9 up to 1e6 and down again by factors of 1000, since no run may depend on an earlier one. Then tiny
    /// magnitudes, larger ones if results have room for them, and mixed ones.
    fn magnitudes(&self) -> Vec<Magnitude> {
        let growing = (0..6).chain((0..5).rev()).map(|step| Magnitude::Uniform(1e-9 * 1e3f64.powi(step)));
        let mut magnitudes: Vec<_> = growing.chain([Magnitude::Uniform(1e-10)]).collect();
        if self.size == Size::Terms {
            magnitudes.push(Magnitude::Uniform(1e12));
        }
        // If a softmax or a normalisation follows, an element below the floor may decide a result, so no bound holds
        // for a span of 30.
        let bounded = !self.multiplies || self.size == Size::Terms;
        let spans = [10, 30].into_iter().filter(|&span| span == 10 || bounded);
        magnitudes.extend(spans.flat_map(|span| [None, Some(0), Some(1)].map(|axis| Magnitude::Mixed { span, axis })));
        magnitudes
    }

    /// The shape of the result.
    fn output(&self) -> Result<Shape> {
        let device = Device::cpu();
        let tape = Tape::new(&device);
        let zeros = |&shape: &&[usize]| Ok(tape.input(&Tensor::zeros(&device, Shape::new(shape))?));
        Ok((self.record)(&self.shapes.iter().map(zeros).collect::<Result<Vec<_>>>()?)?.shape())
    }

    /// Random operands, then a random cotangent, all of them exact in bf16.
    fn operands(&self, magnitude: Magnitude) -> Result<Vec<Array>> {
        let (last, images) = (self.shapes.len(), self.shapes[0][0]);
        let shapes = self.shapes.iter().map(|shape| Shape::new(shape)).chain([self.output()?]);
        let draw = |(operand, shape): (usize, Shape)| {
            let is_constant = match magnitude {
                // In a normalisation, a cotangent far above the others may cancel, which leaves far smaller results.
                Magnitude::Mixed { axis, .. } if operand == last => self.size == Size::Largest && axis != Some(0),
                _ => operand >= self.inputs && operand != last,
            };
            let factor = |at| if is_constant { 1.0 } else { magnitude.factor(operand, shape, at, images) };
            let numbers = normal(&format!("{} {operand}", self.name), shape.elements());
            let data = numbers.into_iter().enumerate().map(|(at, x)| x * factor(at)).collect();
            match (Numbers::Floats(Array { shape, data })).rounded_to_bf16() {
                Numbers::Floats(array) => array,
                Numbers::Labels(..) => unreachable!("floats stay floats"),
            }
        };
        Ok(shapes.enumerate().map(draw).collect())
    }
}

/// The result, and the gradients with respect to all operands for the cotangent, which is the last array. All are held
/// when the first is read, so a single run computes both passes.
fn evaluate(device: &Device, record: Record, operands: &[Array]) -> Result<Vec<Vec<f64>>> {
    let tape = Tape::new(device);
    let input = |array: &Array| Ok(tape.input(&Tensor::from_f64(device, array.shape, &array.data)?));
    let inputs = operands.iter().map(input).collect::<Result<Vec<_>>>()?;
    let (cotangent, x) = inputs.split_last().expect("a cotangent");
    let y = record(x)?;
    let grads = tape.backward_with(&y, cotangent)?;
    let gradients = x.iter().map(|x| grads.of(x).expect("the result depends on each operand"));
    let values: Vec<_> = [y].into_iter().chain(gradients).collect();
    values.iter().map(|value| value.to_tensor()?.to_f64_vec()).collect()
}

/// A number in `f64`, and its largest allowed error.
struct Expected {
    value: f64,
    allowed: f64,
    /// The sum of magnitudes of terms with one operand replaced by its largest element, summed over the operands. A
    /// further error of [`FLOOR`] times this is allowed.
    largest: f64,
}

/// The operands and expected results of a run.
struct Run {
    what: String,
    operands: Vec<Array>,
    expected: Vec<Vec<Expected>>,
}

impl Run {
    fn new(subject: &Subject, magnitude: Magnitude, double: &Device) -> Result<Self> {
        let operands = subject.operands(magnitude)?;
        let values = evaluate(double, subject.record, &operands)?;
        let zeros = || values.iter().map(|values| vec![0.0; values.len()]).collect::<Vec<_>>();
        let mut magnitudes = operands.clone();
        magnitudes.iter_mut().flat_map(|array| &mut array.data).for_each(|x| *x = x.abs());
        let terms = subject.terms.map_or_else(|| Ok(zeros()), |terms| evaluate(double, terms, &magnitudes))?;
        let mut largest = zeros();
        if let (true, Size::Terms, Some(record)) = (subject.multiplies, subject.size, subject.terms) {
            for operand in 0..operands.len() {
                let mut filled = magnitudes.clone();
                let data = &mut filled[operand].data;
                let peak = data.iter().fold(0.0, |peak: f64, &x| peak.max(x));
                data.fill(peak);
                let terms = evaluate(double, record, &filled)?;
                largest.iter_mut().flatten().zip(terms.iter().flatten()).for_each(|(sum, terms)| *sum += terms);
            }
        }
        // The cotangent has the result's shape.
        let shapes = operands.iter().cycle().skip(operands.len() - 1).map(|array| array.shape);
        let of_result = |(result, shape): (usize, Shape)| {
            let (values, terms) = (&values[result], &terms[result]);
            let is_of_images = shape.rank() > 1 && shape[0] == operands[0].shape[0];
            let together = values.len() / if is_of_images { shape[0] } else { 1 };
            let expected = |at: usize| {
                let size = match subject.size {
                    Size::Terms => terms[at],
                    Size::Itself => values[at].abs(),
                    Size::Largest => {
                        let group = &values[at / together * together..][..together];
                        group.iter().fold(0.0, |largest: f64, x| largest.max(x.abs()))
                    }
                };
                let allowed =
                    subject.roundings * ROUNDING * size + CANCELLED * terms[at] + f64::from(f32::MIN_POSITIVE);
                Expected { value: values[at], allowed, largest: largest[result][at] }
            };
            (0..values.len()).map(expected).collect()
        };
        let expected = shapes.take(values.len()).enumerate().map(of_result).collect();
        Ok(Self { what: format!("{}, {magnitude:?}", subject.name), operands, expected })
    }

    /// Compares the result and the gradients with the expected ones.
    fn hold(&self, device: &dyn std::fmt::Display, found: &[Vec<f64>], floor: f64) -> Outcome {
        for (result, (found, expected)) in found.iter().zip(&self.expected).enumerate() {
            assert_eq!(found.len(), expected.len(), "{}: result {result}", self.what);
            for (at, (x, expected)) in found.iter().zip(expected).enumerate() {
                let Expected { value, allowed, largest } = expected;
                let (error, allowed) = ((x - value).abs(), allowed + floor * largest);
                if error.is_nan() || error > allowed {
                    let part = if result == 0 { "result".to_owned() } else { format!("gradient {}", result - 1) };
                    return Err(Failed::from(format!(
                        "{} on {device}: {part}[{at}] is {x:e}, not {value:e} ± {allowed:.1e}",
                        self.what
                    )));
                }
            }
        }
        Ok(())
    }
}

/// The devices on which images are bf16: one without matrix units, and one in fast precision if there are matrix
/// units.
fn devices(device: &Device) -> Result<Vec<Device>> {
    let bf16 = device.for_testing_bf16(0);
    Ok([bf16].into_iter().chain(device.with_precision(Precision::Fast)).collect())
}

fn check(device: &Device, subject: &Subject) -> Outcome {
    let double = Device::cpu_with(Precision::Double);
    let runs = subject.magnitudes().into_iter().map(|magnitude| Run::new(subject, magnitude, &double));
    let runs = runs.collect::<Result<Vec<_>>>()?;
    let hold = |device: &Device| -> Result<usize, Failed> {
        let mut plans = None;
        for run in &runs {
            let found = evaluate(device, subject.record, &run.operands)?;
            let is_winograd = device.kernel_choices().concat().iter().any(|kernel| kernel.variant == "winograd");
            let floor = match device.precision() {
                _ if is_winograd => WINOGRAD,
                Precision::Fast => FLOOR,
                _ => 0.0,
            };
            run.hold(device, &found, floor)?;
            assert_eq!(device.stats().plans, *plans.get_or_insert(device.stats().plans), "a plan for a magnitude");
        }
        Ok(offered(device))
    };
    for device in devices(device)? {
        match device.precision() {
            Precision::Fast => each_variant(&device, hold)?,
            _ => hold(&device).map(drop)?,
        }
    }
    if subject.size == Size::Terms { overflows(device, subject) } else { Ok(()) }
}

/// Exactly the results that are finite in full precision are finite.
fn overflows(device: &Device, subject: &Subject) -> Outcome {
    let operands = subject.operands(Magnitude::Beyond)?;
    let full = evaluate(&device.for_testing(0), subject.record, &operands)?;
    for device in devices(device)? {
        let found = evaluate(&device, subject.record, &operands)?;
        for (result, (found, full)) in found.iter().zip(&full).enumerate() {
            let differs = found.iter().zip(full).position(|(x, full)| x.is_finite() != full.is_finite());
            if let Some(at) = differs {
                let (x, full) = (found[at], full[at]);
                let what = format!("{} on {device}: element {at} of result {result}", subject.name);
                return Err(Failed::from(format!("{what} is {x:e}, in full precision {full:e}")));
            }
        }
    }
    Ok(())
}

/// The comparison itself can fail: numbers that overflow or become 0, as in f16 without scales, do not pass.
fn too_short() -> Outcome {
    let in_f16 = |x: &f64| match x.abs() {
        size if size >= 65_520.0 => x * f64::INFINITY,
        size if size <= 2f64.powi(-25) => 0.0,
        _ => *x,
    };
    let double = Device::cpu_with(Precision::Double);
    for subject in SUBJECTS {
        let large = (subject.size == Size::Terms).then_some(1e6);
        for magnitude in [1e-10].into_iter().chain(large) {
            let run = Run::new(subject, Magnitude::Uniform(magnitude), &double)?;
            let exact = evaluate(&double, subject.record, &run.operands)?;
            run.hold(&double, &exact, 0.0)?;
            let cut: Vec<Vec<_>> = exact.iter().map(|values| values.iter().map(in_f16).collect()).collect();
            assert!(run.hold(&double, &cut, FLOOR).is_err(), "{} passes in f16", run.what);
        }
    }
    Ok(())
}

type Net = (Conv2d, Conv2d);

fn loss(net: &Net, x: &Var) -> Var {
    net.forward(x).square().mean()
}

/// Activations of 1e6 train. With 1e25, the loss and its gradients overflow `f32`: an error or a skipped step, and no
/// parameter changes.
fn steps(device: &Device) -> Outcome {
    let net = |device: &Device| -> Result<Net> {
        (Conv2d::new(8, 16, 3).padding(1), Conv2d::new(16, 8, 3).padding(1)).init(device, Seed::new(1))
    };
    let images = |device: &Device, magnitude: f64| {
        let pixels: Vec<_> = normal("steps", 2 * 8 * 6 * 5).into_iter().map(|x| x * magnitude).collect();
        Tensor::from_f64(device, [2, 8, 6, 5], &pixels)
    };
    let step = |net: &mut Net, optimizer: &mut Sgd, magnitude: f64| -> Result<()> {
        let device = net.0.weight.value().device().clone();
        let tape = Tape::new(&device);
        let loss = loss(net, &tape.input(&images(&device, magnitude)?));
        let grads = tape.backward(&loss)?;
        optimizer.step_with_loss(net, &grads, &loss)
    };
    // Gradients for 1e6 are about 1e10, so weights become about 10.
    let sgd = || Sgd::new(1e-9);
    let mut reference = net(&Device::cpu_with(Precision::Double))?;
    step(&mut reference, &mut sgd(), 1e6)?;
    for device in devices(device)? {
        let mut net = net(&device)?;
        let before = bits(&net)?;
        let (mut checked, mut skipping) = (sgd().check_finite(true), sgd().skip_not_finite(true));
        let error = step(&mut net, &mut checked, 1e25).expect_err("the loss is infinite");
        assert_eq!((error.kind(), bits(&net)?), (ErrorKind::NotFinite, before.clone()), "{device}");
        step(&mut net, &mut skipping, 1e25)?;
        TrainStep::new(&net, loss).call(&mut skipping, &images(&device, 1e25)?)?;
        assert_eq!((skipping.skipped(), bits(&net)?), (2, before), "{device}");
        step(&mut net, &mut checked, 1e6)?;
        for (found, wanted) in net.leaves().into_iter().zip(reference.leaves()) {
            let what = format!("{} on {device}", found.path);
            let (found, wanted) = (found.value().to_f64_vec()?, wanted.value().to_f64_vec()?);
            // Up to five values on the way are bf16, cotangents included.
            compare(&what, &Computed(found), &Reference(wanted), 5.0 * ROUNDING)?;
        }
    }
    Ok(())
}
