//! Elementwise work inside of native kernels: the same bits as in a step of its own, for every way to convolve and to
//! normalise.

use libtest_mimic::Trial;
use meganeura::ops::{Conv2dOptions, Conv3dOptions};
use meganeura::{Buffer, Device, Precision, Result, Shape, Tape, Tensor, Var};

use crate::Outcome;
use crate::nets::normal;

pub(super) fn collect(trials: &mut Vec<Trial>) {
    trials.push(Trial::test("merge::native::every_convolution_finishes_its_results", convolutions));
    trials.push(Trial::test("merge::native::every_convolution_finishes_with_an_activation", activations));
    trials.push(Trial::test("merge::native::every_normalisation_finishes_its_results", normalisations));
    trials.push(Trial::test("merge::native::joined_values_have_the_same_bits", joined));
    trials.push(Trial::test("merge::native::a_buffer_is_read_before_it_is_written", buffers));
}

fn of(stride: usize, padding: usize, groups: usize) -> Conv2dOptions {
    Conv2dOptions { stride: [stride; 2], padding: [padding; 2], groups, ..Conv2dOptions::default() }
}

/// Images, weights and options: 1×1 in one panel and in several, with more channels than are computed at once, in
/// groups; strided; depthwise, with several outputs for a channel; read in place, in one panel and in several, with
/// gaps between rows of outputs and without; in many groups; by Winograd's algorithm; many small images.
fn planes() -> [([usize; 4], [usize; 4], Conv2dOptions); 13] {
    [
        ([2, 5, 6, 7], [9, 5, 1, 1], of(1, 0, 1)),
        ([1, 40, 25, 27], [115, 40, 1, 1], of(1, 0, 1)),
        ([2, 6, 23, 21], [14, 3, 1, 1], of(1, 0, 2)),
        ([1, 7, 9, 11], [13, 7, 1, 1], of(2, 0, 1)),
        ([2, 6, 19, 17], [6, 1, 3, 3], of(2, 1, 6)),
        ([1, 3, 11, 18], [9, 1, 5, 5], of(1, 2, 3)),
        ([1, 3, 37, 35], [20, 3, 7, 7], of(2, 3, 1)),
        ([2, 3, 31, 63], [14, 3, 3, 3], of(2, 1, 1)),
        ([3, 4, 13, 40], [10, 2, 2, 5], of(1, 2, 2)),
        ([2, 4, 9, 8], [10, 4, 3, 2], of(1, 1, 1)),
        ([5, 8, 6, 5], [12, 2, 3, 3], of(1, 1, 4)),
        ([2, 21, 13, 15], [35, 21, 3, 3], of(1, 1, 1)),
        ([40, 2, 8, 8], [3, 2, 3, 3], of(1, 1, 1)),
    ]
}

/// Elementwise work on a result.
type Work<'a> = &'a dyn Fn(&Var) -> Result<Var>;

/// Functions that follow such work in the same pass, with some that are left for another.
const ACTIVATIONS: [fn(&Var) -> Var; 13] = [
    |x| x * (x.scale(1.0 / 6.0) + x.constant(0.5)).clamp(0.0, 1.0),
    |x| x * (x + 3.0).clamp(0.0, 6.0) * (1.0 / 6.0),
    |x| (x + 3.0).clamp(0.0, 6.0) * x / 6.0,
    |x| x.leaky_relu(0.1),
    Var::sigmoid,
    Var::silu,
    |x| x.sigmoid() * x,
    Var::gelu,
    Var::gelu_tanh,
    Var::tanh,
    |x| x.relu().tanh(),
    |x| x.silu().square() + 0.5,
    |x| x * (x * 0.5 + 0.5).clamp(0.0, 1.0).square(),
];

fn input(tape: &Tape, name: &str, shape: &[usize]) -> Result<Var> {
    let data = normal(name, shape.iter().product());
    Ok(tape.input(&Tensor::from_f64(&tape.device(), Shape::new(shape), &data)?))
}

/// Factors and shifts of channels, a residual and an activation, of a convolution's result.
fn affine(y: &Var) -> Result<Var> {
    let (tape, dims) = (y.tape(), y.shape());
    let mut of_channels = vec![1; dims.rank()];
    of_channels[1] = dims[1];
    let scaled = y * input(tape, "scale", &of_channels)? + input(tape, "shift", &of_channels)?;
    Ok((scaled + input(tape, "residual", dims.dims())?).clamp(-1.5, 2.0))
}

/// Likewise, and more: one row for all channels.
fn more(y: &Var) -> Result<Var> {
    let columns = y.shape()[y.shape().rank() - 1];
    Ok(affine(y)? * 0.7 - input(y.tape(), "row", &[columns])?)
}

fn convolutions() -> Outcome {
    every_convolution(&[("affine", &affine), ("more", &more)])
}

/// Each activation after a shift of channels, every other one after a residual as well.
fn activations() -> Outcome {
    let work = |at: usize| {
        move |y: &Var| {
            let (tape, dims) = (y.tape(), y.shape());
            let mut of_channels = vec![1; dims.rank()];
            of_channels[1] = dims[1];
            let shifted = y + input(tape, "shift", &of_channels)?;
            let x = if at.is_multiple_of(2) { shifted } else { shifted + input(tape, "residual", dims.dims())? };
            Ok(ACTIVATIONS[at](&x))
        }
    };
    let works: Vec<_> = (0..ACTIVATIONS.len()).map(work).collect();
    let names: Vec<_> = (0..works.len()).map(|at| format!("activation {at}")).collect();
    let works: Vec<(&str, Work<'_>)> =
        names.iter().zip(&works).map(|(name, work)| (&name[..], work as Work<'_>)).collect();
    every_convolution(&works)
}

fn every_convolution(works: &[(&str, Work<'_>)]) -> Outcome {
    let volumes = |x: &Var, w: &Var| x.conv3d(w, Conv3dOptions { padding: [1; 3], ..Conv3dOptions::default() });
    for device in [Device::cpu(), Device::cpu_with(Precision::Double)] {
        for (case, &(name, work)) in (0..=planes().len()).flat_map(|case| works.iter().map(move |work| (case, work))) {
            hold(&device, &format!("{name}, case {case}"), work, &|tape| {
                let Some((x, w, options)) = planes().get(case).copied() else {
                    return Ok(volumes(&input(tape, "x", &[2, 3, 4, 5, 18])?, &input(tape, "w", &[7, 3, 3, 3, 3])?));
                };
                Ok(input(tape, "x", &x)?.conv2d(&input(tape, "w", &w)?, options))
            })?;
        }
    }
    Ok(())
}

/// Groups that are finished one by one, several at a time, and after all of a large image.
fn normalisations() -> Outcome {
    let cases: [(&[usize], usize); 5] =
        [(&[37, 1, 192], 1), (&[700, 1, 3], 1), (&[2, 6, 4, 5], 3), (&[3, 700], 2), (&[1, 2, 100, 90], 1)];
    for device in [Device::cpu(), Device::cpu_with(Precision::Double)] {
        for (shape, groups) in cases {
            hold(&device, &format!("{shape:?}"), &affine, &|tape| {
                let [weight, bias] = [input(tape, "weight", &shape[1..2])?, input(tape, "bias", &shape[1..2])?];
                Ok(input(tape, "x", shape)?.group_norm(groups, 1e-5, &weight, &bias))
            })?;
        }
    }
    Ok(())
}

/// Values that are stored where they are joined, beside those that a step joins.
fn joined() -> Outcome {
    for device in [Device::cpu(), Device::cpu_with(Precision::Double)] {
        let run = |held: bool| -> Result<Vec<u64>> {
            let tape = Tape::new(&device);
            let (y, parts) = {
                let (x, w) = (input(&tape, "x", &[1, 5, 9, 8])?, input(&tape, "w", &[7, 5, 3, 3])?);
                let product = x.reshape([5, 72]).matmul(&input(&tape, "v", &[72, 72])?).reshape([1, 5, 9, 8]);
                let pooled = x.flip(&[1]).max_pool2d([3; 2], [1; 2], [1; 2], [1; 2]);
                let parts = [affine(&x.conv2d(&w, of(1, 1, 1)))?, pooled, x.tanh(), product.exp()];
                (Var::concat(&parts.each_ref(), 1).softmax(1), parts)
            };
            let parts = held.then_some(parts);
            let y = y.to_tensor()?.to_f64_vec()?;
            let plan = device.plan_dumps().pop().expect("a plan was made");
            assert_eq!(plan.contains("concat"), parts.is_some(), "{plan}");
            Ok(y.into_iter().map(f64::to_bits).collect())
        };
        assert_eq!(run(false)?, run(true)?, "{device}");
    }
    Ok(())
}

/// Compares work inside of a kernel with the same work as a step of its own.
fn hold(device: &Device, what: &str, work: Work<'_>, record: &dyn Fn(&Tape) -> Result<Var>) -> Outcome {
    let tape = Tape::new(device);
    let y = {
        let own = record(&tape)?;
        work(&own)?
    };
    let merged = y.to_tensor()?;
    let plan = device.plan_dumps().pop().expect("a plan was made");
    assert_eq!(steps(&plan), 1, "{plan}");

    // The kernel's own result is a result of the run, so the work is a step of its own.
    let tape = Tape::new(device);
    let own = record(&tape)?;
    let y = work(&own)?;
    let apart = y.to_tensor()?;
    let plan = device.plan_dumps().pop().expect("a plan was made");
    assert_eq!(steps(&plan), 2, "{plan}");
    drop(own);
    let bits = |y: &Tensor| -> Result<Vec<u64>> { Ok(y.to_f64_vec()?.into_iter().map(f64::to_bits).collect()) };
    assert_eq!(bits(&merged)?, bits(&apart)?, "{what} on {device}");
    Ok(())
}

/// The steps of a plan's dump: the lines that compute something.
fn steps(plan: &str) -> usize {
    plan.lines().filter(|line| line.contains(" = ")).count()
}

/// A buffer that is read by the elementwise work on a convolution, and gets its result.
fn buffers() -> Outcome {
    let device = Device::cpu();
    let seen = Buffer::new(Tensor::full(&device, [1, 1, 3, 3], 10.0)?);
    let (x, w) = (Tensor::full(&device, [1, 2, 3, 3], 2.0)?, Tensor::full(&device, [1, 2, 1, 1], 0.5)?);
    for expected in [7.0, 5.5] {
        let tape = Tape::new(&device);
        let y = tape.input(&x).conv2d(&tape.input(&w), Conv2dOptions::default());
        tape.update_buffer(&seen, |old| old * 0.5 + y);
        tape.apply()?;
        assert_eq!(seen.value().to_vec()?, [expected; 9]);
    }
    Ok(())
}
