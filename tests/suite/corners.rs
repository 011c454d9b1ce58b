//! Corners of functions of numbers: roots at 0, squares beyond the range of floats, large angles, and constants for
//! which WGSL has no literal.

use libtest_mimic::Trial;
use meganeura::loss::{Reduction, TripletMarginOptions};
use meganeura::onnx::{Export, Model};
use meganeura::ops::Conv2dOptions;
use meganeura::optim::Muon;
use meganeura::prelude::*;
use meganeura::{ErrorKind, Result};

use crate::Outcome;
use crate::adapter::gpu_trial;

const INF: f32 = f32::INFINITY;

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    let mut both = |name: &str, run: fn(&Device) -> Outcome| {
        trials.push(Trial::test(format!("corners::{name}"), move || run(&Device::cpu().for_testing(0))));
        trials.push(gpu_trial(format!("corners::gpu::{name}"), move |device| run(&device.for_testing(0))));
    };
    both("roots_of_squares_have_no_slope_at_0", roots_at_zero);
    both("a_plain_root_has_an_infinite_slope_at_0", plain_root);
    both("norms_of_huge_and_tiny_numbers", norms);
    both("deviations_of_huge_and_tiny_numbers", deviations);
    both("normalisations_of_huge_numbers_are_not_0", normalisations);
    both("huge_and_tiny_gradients_are_clipped", clipping);
    both("infinite_gradients_are_seen_after_clipping", infinite_gradients);
    both("muon_steps_by_huge_gradients", muon);
    both("large_angles", angles);
    both("erfinv_towards_its_ends", ends);
    both("constants_without_a_literal", constants);
    both("infinite_padding", padding);
    trials.push(Trial::test("corners::more_channels_than_a_panel_holds", || many_channels(&Device::cpu())));
}

fn input(tape: &Tape, x: &[f32]) -> Result<Var> {
    Ok(tape.input(&Tensor::from_slice(&tape.device(), [x.len()], x)?))
}

type Function = fn(&Var) -> Var;

/// Square roots of sums of squares, each with vectors at which it is 0. The gradients are PyTorch's, and so are the
/// second derivatives, except that PyTorch's are NaN for some norms.
const ROOTS: [(&str, Function, &[f32]); 11] = [
    ("std", |x| x.std(1), &[2.0; 3]),
    ("std of the population", |x| x.std(0), &[-0.5]),
    ("std_over", |x| x.std_over(&[0], 1), &[1e-3; 7]),
    ("norm", Var::norm, &[0.0; 3]),
    ("norm of the centred", |x| (x - x.mean_keep(&[0])).norm(), &[0.75; 4]),
    ("norm 1", |x| x.norm_over(&[0], 1.0), &[0.0; 3]),
    ("norm ∞", |x| x.norm_over(&[0], f64::INFINITY), &[0.0; 3]),
    ("norm 3", |x| x.norm_over(&[0], 3.0), &[0.0; 3]),
    ("norm 1.5", |x| x.norm_over(&[0], 1.5), &[0.0, -0.0]),
    ("norm 0.5", |x| x.norm_over(&[0], 0.5), &[0.0; 5]),
    ("distance of equal vectors", |x| distance(x, &x.detach()), &[1.0, -2.0, 3.0]),
];

/// The distance of two vectors, as the loss of triplets computes it.
fn distance(x: &Var, y: &Var) -> Var {
    let options = TripletMarginOptions { margin: 0.0, eps: 0.0, reduction: Reduction::None, ..Default::default() };
    x.triplet_margin_with(y, x, &options)
}

fn roots_at_zero(device: &Device) -> Outcome {
    for (name, root, at) in ROOTS {
        let tape = Tape::new(device);
        let x = input(&tape, at)?;
        let y = root(&x);
        // The cotangent is not 1, and there is another path to the input.
        let dx = tape.backward(&(&y * 3.0 + x.sum()))?.of(&x).expect("depends on it");
        let weights = input(&tape, &(1u8..).take(at.len()).map(f32::from).collect::<Vec<_>>())?;
        let twice = tape.backward(&(&dx * weights + &x * 0.0).sum())?.of(&x).expect("depends on it");
        assert_eq!(y.item()?, 0.0, "{name}");
        assert_eq!(dx.to_vec()?, vec![1.0; at.len()], "{name}");
        assert_eq!(twice.to_vec()?, vec![0.0; at.len()], "the second derivative of {name}");
    }
    // Other rows keep their gradients: of (1, 2, 4), they are those of PyTorch.
    let tape = Tape::new(device);
    let x = tape.input(&Tensor::from_slice(device, [2, 3], &[2.0, 2.0, 2.0, 1.0, 2.0, 4.0])?);
    let grads = tape.backward(&x.std_over(&[1], 1).sum())?;
    let dx = grads.of(&x).expect("depends on it").to_vec()?;
    close("std of rows", &dx, &[0.0, 0.0, 0.0, -0.436_435_76, -0.109_108_92, 0.545_544_74]);
    Ok(())
}

/// Here the derivative is infinite, as in PyTorch: `√x` is not a distance.
fn plain_root(device: &Device) -> Outcome {
    let tape = Tape::new(device);
    let x = input(&tape, &[0.0, 4.0])?;
    let dx = tape.backward(&x.sqrt().sum())?.of(&x).expect("depends on it");
    assert_eq!(dx.to_vec()?, [INF, 0.25]);
    Ok(())
}

/// Relative to the largest. 3e-6 stands for the driver's `exp2` and `log2` in powers.
#[track_caller]
fn close(what: &str, found: &[f32], wanted: &[f64]) {
    let scale = wanted.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
    let is_close = |(x, want): (&f32, &f64)| (f64::from(*x) - want).abs() <= 3e-6 * scale;
    assert!(found.len() == wanted.len() && found.iter().zip(wanted).all(is_close), "{what}: {found:?}, not {wanted:?}");
}

/// Powers of ten at which squares or cubes of floats are infinite or 0, and an ordinary one.
const SIZES: [f32; 9] = [1e-35, 1e-30, 1e-23, 1e-13, 1.0, 1e13, 1e19, 1e30, 1e37];

fn norms(device: &Device) -> Outcome {
    const X: [f64; 4] = [3.0, -4.0, 0.0, 0.25];
    for size in SIZES {
        for p in [0.5, 1.0, 1.5, 2.0, 3.0, 7.0, f64::INFINITY] {
            let tape = Tape::new(device);
            let x = input(&tape, &X.map(|x| x as f32 * size))?;
            let y = x.norm_over(&[0], p);
            let dx = tape.backward(&y)?.of(&x).expect("depends on it");
            let norm = match p {
                f64::INFINITY => 4.0,
                p => X.iter().map(|x| x.abs().powf(p)).sum::<f64>().powf(p.recip()),
            };
            let slope = |x: f64| match p {
                _ if x == 0.0 => 0.0,
                f64::INFINITY => {
                    if x.abs() == 4.0 {
                        x.signum()
                    } else {
                        0.0
                    }
                }
                p => x.signum() * (x.abs() / norm).powf(p - 1.0),
            };
            let what = format!("norm {p} of numbers of {size:e}");
            close(&what, &[y.item()?], &[norm * f64::from(size)]);
            close(&what, &dx.to_vec()?, &X.map(slope));
        }
    }
    // Infinite and NaN stay; so does a norm beyond the range.
    let tape = Tape::new(device);
    for (x, wanted) in [([INF, 1.0], INF), ([-INF, INF], INF), ([3e38, 3e38], INF), ([f32::NAN, 1e30], f32::NAN)] {
        for p in [2.0, 3.0, 1.0] {
            let y = input(&tape, &x)?.norm_over(&[0], p).item()?;
            assert!(y == wanted || (y.is_nan() && wanted.is_nan()), "norm {p} of {x:?}: {y}");
        }
    }
    // Many small elements beside a large one.
    let mut x = vec![1e17; 10_000];
    x[77] = 1e19;
    close("many", &[input(&tape, &x)?.norm().item()?], &[(1e38 + 9_999.0 * 1e34f64).sqrt()]);
    Ok(())
}

fn deviations(device: &Device) -> Outcome {
    for size in SIZES {
        let tape = Tape::new(device);
        let x = input(&tape, &[size, 2.0 * size, 4.0 * size])?;
        let y = x.std(1);
        let dx = tape.backward(&y)?.of(&x).expect("depends on it");
        let what = format!("std of numbers of {size:e}");
        close(&what, &[y.item()?], &[(7.0 / 3.0f64).sqrt() * f64::from(size)]);
        close(&what, &dx.to_vec()?, &[-0.436_435_780, -0.109_108_945, 0.545_544_726]);
    }
    Ok(())
}

type Norm<'a> = dyn Fn(&Var) -> Var + 'a;

/// Numbers whose squares overflow are normalised to NaN, not to 0.
fn normalisations(device: &Device) -> Outcome {
    let seed = Seed::new(0);
    let group = GroupNorm::new(1, 4).init(device, seed)?;
    let layer = LayerNorm::new([4]).init(device, seed)?;
    let rms = RmsNorm::new([4]).init(device, seed)?;
    let batch = BatchNorm1d::new(1).init(device, seed)?;
    let norms: [(&str, &Norm<'_>); 4] = [
        ("group_norm", &|x| group.forward(&x.reshape([1, 4, 1, 1])).reshape([4])),
        ("layer_norm", &|x| layer.forward(x)),
        ("rms_norm", &|x| rms.forward(x)),
        ("batch_norm", &|x| batch.forward(&x.reshape([4, 1])).reshape([4])),
    ];
    for (name, norm) in norms {
        for size in [1e10, 1e17, 1e20, 1e30] {
            let tape = Tape::new(device);
            let x = input(&tape, &[size, -size, 2.0 * size, 0.5 * size])?;
            let y = norm(&x);
            let dx = tape.backward(&(&y * &x.detach()).sum())?.of(&x).expect("depends on it").to_vec()?;
            let y = y.to_vec()?;
            if size > 1e18 {
                let found = format!("{name} of numbers of {size:e}: {y:?}, gradient {dx:?}");
                assert!(y.iter().chain(&dx).all(|y| y.is_nan()), "{found}");
            } else if name == "rms_norm" {
                close(name, &y, &[0.8, -0.8, 1.6, 0.4]);
            } else {
                close(name, &y, &[0.346_410_16, -1.501_110_7, 1.270_170_6, -0.115_470_06]);
            }
        }
    }
    Ok(())
}

/// Two parameters whose gradients are these numbers.
fn with_gradients(device: &Device, a: f32, b: f32) -> Result<((Param, Param), Grads)> {
    let param = || Ok::<_, meganeura::Error>(Param::new(Tensor::zeros(device, [1])?));
    let net = (param()?, param()?);
    let tape = Tape::new(device);
    let [a, b] = [input(&tape, &[a])?, input(&tape, &[b])?];
    let grads = tape.backward(&(tape.param(&net.0) * a + tape.param(&net.1) * b).sum())?;
    Ok((net, grads))
}

fn clipping(device: &Device) -> Outcome {
    for (a, b, limit, wanted) in [
        (3.0, 4.0, 1.0, [0.6, 0.8]),
        (3e24, 4e24, 1.0, [0.6, 0.8]),
        (3e24, -4e24, 1e-3, [0.6e-3, -0.8e-3]),
        // Their norm is no float.
        (3e38, 3e38, 2.0, [std::f64::consts::SQRT_2; 2]),
        (3e30, 0.0, 1e36, [3e30, 0.0]),
        (3e-30, 4e-30, 1.0, [3e-30, 4e-30]),
        (3e-30, 4e-30, f64::INFINITY, [3e-30, 4e-30]),
    ] {
        let (net, grads) = with_gradients(device, a, b)?;
        let norm = grads.norm(&net);
        let clipped = grads.clip_norm(&net, limit)?;
        let gradients = [&net.0, &net.1].map(|param| clipped.get(param).expect("it has one"));
        let found: Vec<_> = gradients.iter().map(Var::to_vec).collect::<Result<Vec<_>>>()?.concat();
        close(&format!("({a:e}, {b:e})"), &found, &wanted);
        let wanted = f64::from(a).hypot(f64::from(b));
        assert!((f64::from(norm.item()?) / wanted - 1.0).abs() < 1e-6 || wanted > f64::from(f32::MAX), "{wanted}");
    }
    // Gradients of 0 stay 0, and the norm's own gradient is 0 there.
    let (net, grads) = with_gradients(device, 0.0, 0.0)?;
    let clipped = grads.clip_norm(&net, 1.0)?;
    assert_eq!(clipped.get(&net.0).expect("it has one").to_vec()?, [0.0]);
    Ok(())
}

/// One that is not finite makes all NaN: zeros would look like gradients.
fn infinite_gradients(device: &Device) -> Outcome {
    for bad in [INF, -INF, f32::NAN] {
        let (mut net, grads) = with_gradients(device, 2.0, bad)?;
        let grads = grads.clip_norm(&net, 1.0)?;
        let error = Sgd::new(0.1).check_finite(true).step(&mut net, &grads).expect_err("a gradient is not finite");
        assert_eq!(error.kind(), ErrorKind::NotFinite);
        assert!(error.to_string().contains("namely `0`, `1`;"), "{error}");
        assert_eq!(net.0.value().to_vec()?, [0.0]);
    }
    Ok(())
}

/// The step does not depend on the size of the gradient.
fn muon(device: &Device) -> Outcome {
    let steps = [1.0, 1e25].map(|size| -> Result<Vec<f32>> {
        let mut weight = Param::new(Tensor::zeros(device, [2, 2])?);
        let tape = Tape::new(device);
        let x = tape.input(&Tensor::from_slice(device, [2, 2], &[3.0 * size, size, -size, 2.0 * size])?);
        let grads = tape.backward(&(tape.param(&weight) * x).sum())?;
        Muon::new(0.1).weight_decay(0.0).step(&mut weight, &grads)?;
        weight.value().to_vec()
    });
    let [ordinary, huge] = steps;
    let (ordinary, huge) = (ordinary?, huge?);
    assert!(ordinary.iter().any(|w| w.abs() > 1e-3), "{ordinary:?}");
    close("huge", &huge, &ordinary.into_iter().map(f64::from).collect::<Vec<_>>());
    Ok(())
}

/// Sines, cosines and tangents of angles of all sizes, against those of the same angles in `f64`.
fn angles(device: &Device) -> Outcome {
    let mut x = vec![0.0, -0.0, 1e-30, 8192.0, -8192.0, 8192.001, 1.7e9, 1_751_155_200.0, f32::MAX, -f32::MAX];
    // The float nearest to a multiple of π/2, relative to its size: 16,367,173·2⁷².
    x.push(16_367_173.0 * 2f32.powi(72));
    for exponent in -20..128 {
        for k in 0..24u16 {
            let x_k = 2f32.powi(exponent) * (1.0 + f32::from(k * 2731 % 65_521) / 65_536.0);
            x.push(if k % 2 == 0 { x_k } else { -x_k });
        }
    }
    // Near multiples of π/2, where cosines or tangents are small or large.
    x.extend((1..6000u16).step_by(7).map(|n| (f64::from(n) * std::f64::consts::FRAC_PI_2) as f32));
    let tape = Tape::new(device);
    let angle = input(&tape, &x)?;
    let (sines, cosines, tangents) = (angle.sin(), angle.cos(), angle.tan());
    let (sines, cosines, tangents) = (sines.to_vec()?, cosines.to_vec()?, tangents.to_vec()?);
    for (i, &x) in x.iter().enumerate() {
        let (sin, cos) = f64::from(x).sin_cos();
        let [sine, cosine, tangent] = [sines[i], cosines[i], tangents[i]].map(f64::from);
        assert!((sine - sin).abs() < 4e-7, "sin {x:e} is {sine:e}, not {sin:e}");
        assert!((cosine - cos).abs() < 4e-7, "cos {x:e} is {cosine:e}, not {cos:e}");
        // The reduced angle has a relative error, and below 8192 an absolute one. The slope is 1 + tan².
        let (tan, absolute) = (sin / cos, if x.abs() <= 8192.0 { 3e-11 } else { 0.0 });
        let most = (1e-6 + 3e-11 * tan.abs()) * tan.abs().max(1e-30) + absolute * (1.0 + tan * tan);
        assert!((tangent - tan).abs() < most, "tan {x:e} is {tangent:e}, not {tan:e}");
    }
    for f in [Var::sin, Var::cos, Var::tan] {
        assert!(f(&input(&tape, &[INF, -INF, f32::NAN])?).to_vec()?.iter().all(|y| y.is_nan()));
    }
    Ok(())
}

/// `erfinv` where it is tiny, at the seam of two approximations, up to the last float below 1, at 1 and beyond.
fn ends(device: &Device) -> Outcome {
    const LAST: f32 = 1.0 - f32::EPSILON / 2.0;
    let known: [(f32, f32); 6] = [
        (1e-30, 8.862_269e-31),
        (0.25, 0.225_312_06),
        (0.5, 0.476_936_28),
        (0.75, 0.813_419_9),
        (0.937_5, 1.317_150_3),
        (LAST, 3.832_507),
    ];
    let tape = Tape::new(device);
    let x: Vec<_> = known.iter().flat_map(|(x, _)| [*x, -x]).collect();
    let y = input(&tape, &x)?.erfinv();
    for ((x, y), (_, want)) in x.iter().zip(y.to_vec()?).zip(known.iter().flat_map(|pair| [pair; 2])) {
        // 3e-7 of it stands for the driver's logarithm, root and quotients.
        assert!((y / want.copysign(*x) - 1.0).abs() < 9e-7, "{x:e}: {y:e}, not {want:e}");
    }
    let y = input(&tape, &[1.0, -1.0, 1.000_000_1, -2.0, INF, -INF, f32::NAN])?.erfinv().to_vec()?;
    assert_eq!(y[..2], [INF, -INF]);
    assert!(y[2..].iter().all(|y| y.is_nan()), "{y:?}");
    // The approximations meet, and are the inverse of `erf`.
    let x: Vec<_> = (8_490u16..8_510).map(|i| f32::from(i) / 1e4).collect();
    let back = input(&tape, &x)?.erfinv().erf().to_vec()?;
    assert!(x.iter().zip(&back).all(|(x, back)| (x - back).abs() < 1e-6), "{back:?}");
    Ok(())
}

/// A constant operand of every kind of number. Files hold such constants; a scalar of a tape would be a host word.
fn constants(device: &Device) -> Outcome {
    const X: [f32; 6] = [-2.0, -0.0, 0.0, 0.5, f32::MAX, 3e38];
    let cpu = Device::cpu();
    for number in [INF, -INF, f32::NAN, f32::MAX, f32::MIN, f32::MIN_POSITIVE, -0.0, 1e-40, 16_777_217.0] {
        let f = |x: &Var| {
            let number = || x.tape().scalar(f64::from(number));
            let is_positive = x.gt(&(x * 0.0));
            vec![
                x.maximum(number()),
                x.minimum(number()),
                x + number(),
                number() - x,
                x * number(),
                is_positive.where_cond(&number(), x),
                x.lt(number()),
                number().expand([6]) + x * 0.0,
            ]
        };
        let x = Tensor::from_slice(&cpu, [X.len()], &X)?;
        let expected = cpu.compile(&x, f)?.call(&x)?;
        let onnx = Export::new().record(&cpu, &x, f)?;
        let model = Model::from_bytes(device, &onnx.to_bytes()?)?;
        let tape = Tape::new(device);
        let results = model.record(&tape, &[input(&tape, &X)?])?;
        assert_eq!(results.len(), expected.len());
        for (row, (found, wanted)) in results.iter().zip(&expected).enumerate() {
            let (found, wanted) = (found.to_vec()?, wanted.to_vec()?);
            // Devices may take a subnormal for 0, also as a factor.
            let flushed = if number.is_subnormal() { f32::MAX * number.abs() } else { 0.0 };
            let is_same = |(y, want): (&f32, &f32)| {
                y == want || (y.is_nan() && want.is_nan()) || (y - want).abs() <= flushed.max(1e-38)
            };
            // Row 6 compares with the number.
            let is_told = row != 6 || !number.is_subnormal();
            assert!(
                !is_told || found.iter().zip(&wanted).all(is_same),
                "{number:e}, row {row}: {found:?}, not {wanted:?}"
            );
        }
    }
    Ok(())
}

fn padding(device: &Device) -> Outcome {
    for value in [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, f64::from(f32::MAX)] {
        let tape = Tape::new(device);
        let x = input(&tape, &[1.0, 2.0])?;
        let y = x.pad(&[(1, 2)], value);
        let dx = tape.backward(&(y.slice(0, 0..3) * 2.0).slice(0, 1..3).sum())?.of(&x).expect("depends on it");
        let y = y.to_vec()?;
        let same = |y: f32| y == value as f32 || (y.is_nan() && value.is_nan());
        assert!(same(y[0]) && same(y[3]) && same(y[4]) && y[1..3] == [1.0, 2.0], "{value}: {y:?}");
        assert_eq!(dx.to_vec()?, [2.0, 2.0]);
    }
    Ok(())
}

fn many_channels(device: &Device) -> Outcome {
    const CHANNELS: usize = 40_000;
    let x = Tensor::from_slice(device, [1, CHANNELS, 2, 1], &[0.0, 1.0].repeat(CHANNELS))?;
    let w = Tensor::from_slice(device, [2, CHANNELS, 1, 1], &[[1.0; CHANNELS], [-0.5; CHANNELS]].concat())?;
    let tape = Tape::inference(device);
    let y = tape.input(&x).conv2d(&tape.input(&w), Conv2dOptions::default()).to_vec()?;
    assert_eq!(y, [0.0, 40_000.0, 0.0, -20_000.0]);
    Ok(())
}
