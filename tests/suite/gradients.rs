//! The reverse sweep: sums over uses, several losses, several sweeps, higher derivatives, and the choice of gradients.

use libtest_mimic::Trial;
use meganeura::check::Gradcheck;
use meganeura::ops::{Conv2dOptions, ConvTranspose2dOptions};
use meganeura::optim::{AdamW, Optimizer, Sgd};
use meganeura::{Device, ErrorKind, Layer, Module, ModuleExt, Param, Precision, Result, Tape, Tensor, Var};

use crate::Outcome;
use crate::adapter::gpu_trial;
use crate::nets::{FrozenStem, Tiny, bits, images, record, tensor};
use crate::numbers::{Computed, Reference, compare};

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    let mut both = |name: &str, run: fn(&Device) -> Outcome| {
        trials.push(Trial::test(format!("gradients::{name}"), move || run(&Device::cpu().for_testing(0))));
        trials.push(gpu_trial(format!("gradients::gpu::{name}"), move |device| run(&device.for_testing(0))));
    };
    both("of_many_uses_are_summed", many_uses);
    both("of_losses_on_one_tape", several_losses);
    both("stop_at_detach", detach);
    both("do_not_accumulate", second_sweep);
    both("have_gradients", cubic);
    both("through_matmul_and_conv2d_twice", penalties_agree);
    both("by_parameter_path_and_input", lookup);
    both("missing_are_named_and_nothing_changes", missing);
    for (name, f) in PENALTIES {
        trials.push(Trial::test(format!("gradients::penalty::{name}"), move || penalty(f)));
    }
    trials.push(Trial::test("gradients::of_recomputed_values", made_again));
}

fn of(grads: &meganeura::Grads, x: &Var) -> Result<Vec<f32>> {
    grads.of(x).expect("the loss depends on it").to_vec()
}

fn many_uses(device: &Device) -> Outcome {
    let tape = Tape::new(device);
    let x = tape.input(&Tensor::from_slice(device, [2, 2], &[1.0, 2.0, -3.0, 0.5])?);
    // Used in 40 operations, as both operands of one, and through a view: Σ 40x + x² + x·xᵀ.
    let sum = (1..40).fold(x.clone(), |sum, _| sum + &x);
    let y = sum + &x * &x + &x * x.t();
    let dx = of(&tape.backward(&y.sum())?, &x)?;
    // 40 + 2x + 2xᵀ
    assert_eq!(dx, [44.0, 38.0, 38.0, 42.0]);
    // A parameter is one value, however often it is put on the tape.
    let w = Param::new(Tensor::from_slice(device, [1], &[3.0])?);
    let grads = tape.backward(&(tape.param(&w) * tape.param(&w) * tape.param(&w)).sum())?;
    assert_eq!(grads.get(&w).expect("used").item()?, 27.0);
    Ok(())
}

fn several_losses(device: &Device) -> Outcome {
    let tape = Tape::new(device);
    let w = tape.input(&tensor(device, "w", [3, 3])?);
    let x = tape.input(&tensor(device, "x", [2, 3])?);
    let shared = x.matmul(&w).tanh();
    let losses = [shared.square().mean(), shared.exp().sum() * 0.25];
    let first = tape.backward(&losses[0])?;
    let second = tape.backward(&losses[1])?;
    let both = tape.backward(&(&losses[0] + &losses[1]))?;
    for value in [&w, &x] {
        let (a, b) = (of(&first, value)?, of(&second, value)?);
        let separately = a.iter().zip(&b).map(|(a, b)| f64::from(*a) + f64::from(*b)).collect();
        let together = of(&both, value)?.into_iter().map(f64::from).collect();
        compare("the gradient of the sum", &Computed(together), &Reference(separately), 1e-6)?;
        assert_ne!(a, b);
    }
    Ok(())
}

fn detach(device: &Device) -> Outcome {
    let tape = Tape::new(device);
    let x = tape.input(&Tensor::from_slice(device, [2], &[3.0, -2.0])?);
    let grads = tape.backward(&(&x * x.detach()).sum())?;
    assert_eq!(of(&grads, &x)?, [3.0, -2.0], "x·x would give 2x");
    let stopped = tape.backward(&x.exp().detach().sum())?;
    assert!(stopped.of(&x).is_none(), "nothing passes");
    assert_eq!(x.detach().to_vec()?, [3.0, -2.0]);
    Ok(())
}

fn second_sweep(device: &Device) -> Outcome {
    let net = Tiny::init(device, 3)?;
    let (images, labels) = images(device, "sweep", 4)?;
    let (loss, first) = record(&net, &images, &labels)?;
    let second = loss.tape().backward(&loss)?;
    for (path, param) in net.named_parameters() {
        let (a, b) = (first.get(param).expect("trained").to_vec()?, second.get(param).expect("trained").to_vec()?);
        assert_eq!(a, b, "{path}");
        assert!(a.iter().any(|&x| x != 0.0), "{path}");
    }
    // Nor do gradients accumulate on a new tape.
    let (_, third) = record(&net, &images, &labels)?;
    let weight = &net.stem.weight;
    assert_eq!(first.get(weight).expect("trained").to_vec()?, third.get(weight).expect("trained").to_vec()?);
    Ok(())
}

/// `x³`, three times differentiated.
fn cubic(device: &Device) -> Outcome {
    for x in [2.0, -1.5, 0.0] {
        let tape = Tape::new(device);
        let x_var = tape.input(&Tensor::from_slice(device, [1], &[x])?);
        let mut y = &x_var * &x_var * &x_var;
        for expected in [3.0 * x * x, 6.0 * x, 6.0] {
            y = tape.backward(&y.sum())?.of(&x_var).expect("depends");
            assert_eq!(y.item()?, expected);
        }
        assert!(tape.backward(&y.sum())?.of(&x_var).is_none_or(|zero| zero.item().is_ok_and(|zero| zero == 0.0)));
    }
    Ok(())
}

type Penalised = fn(&[Var]) -> Var;

/// Functions whose gradient norm is differentiated again: every gradient rule consists of operations with rules.
const PENALTIES: [(&str, Penalised); 10] = [
    ("matmul", |x| x[0].matmul(&x[1]).tanh()),
    ("matmul_transposed", |x| x[1].t().matmul(&x[0].t()).square()),
    ("conv2d", |x| image(&x[0]).conv2d(&kernel(&x[1]), Conv2dOptions::default()).square()),
    ("conv2d_strided", |x| {
        let options = Conv2dOptions { stride: [2, 1], padding: [1, 2], dilation: [1, 2], groups: 1 };
        image(&x[0]).conv2d(&kernel(&x[1]), options).sigmoid()
    }),
    ("conv_transpose2d", |x| {
        let options = ConvTranspose2dOptions { stride: [2, 1], output_padding: [1, 0], ..Default::default() };
        image(&x[0]).conv_transpose2d(&kernel(&x[1]).reshape([1, 2, 3, 2]), options).tanh()
    }),
    ("softmax", |x| x[0].softmax(1) * x[0].log_softmax(0)),
    ("normalised", |x| (&x[0] - x[0].mean_keep(&[1])) / (x[0].variance_keep(&[1], 0) + 0.1).sqrt()),
    ("avg_pool2d", |x| image(&x[0]).square().avg_pool2d([2, 2], [1, 1], [1, 1], false).tanh()),
    ("activations", |x| x[0].gelu() + x[0].silu() * x[0].softplus() + x[0].elu(0.7).square() + x[0].gelu_tanh()),
    ("views", |x| Var::concat(&[&x[0].t().slice(0, 1..3), &x[0].slice(0, 0..2).t().slice(0, 0..2)], 1).exp()),
];

fn image(x: &Var) -> Var {
    x.reshape([1, 1, 4, 6])
}

fn kernel(w: &Var) -> Var {
    w.slice(1, 0..2).reshape([2, 1, 3, 2])
}

/// The squared norm of the gradients of `Σ f²`.
fn penalise(f: Penalised, x: &[Var]) -> Var {
    let tape = x[0].tape();
    let grads = tape.backward(&f(x).square().sum()).expect("every rule is there");
    let square = |x: &Var| grads.of(x).map(|dx| dx.square().sum());
    x.iter().filter_map(square).reduce(|a, b| a + b).expect("depends on something")
}

fn operands(device: &Device) -> Result<[Tensor; 2]> {
    Ok([tensor(device, "a", [4, 6])?, tensor(device, "b", [6, 4])?])
}

fn penalty(f: Penalised) -> Outcome {
    let device = Device::cpu_with(Precision::Double);
    let check = Gradcheck::default().tolerance(1e-5, 1e-5);
    let report = check.run(&(), &operands(&device)?, |(), x| vec![penalise(f, x)])?;
    assert!(report.entries[0].largest_absolute > 0.0, "only zeros were compared: {report}");
    Ok(report.ok()?)
}

/// The activation's rule gets a normalisation that is recomputed from its operands and statistics. A derivative of that
/// rule's gradient must reach those operands as if the rule had got the value itself.
fn made_again() -> Outcome {
    let device = Device::cpu_with(Precision::Double);
    let check = Gradcheck::default().tolerance(1e-5, 1e-5);
    let report = check.run(&(), &operands(&device)?, |(), x| {
        let parameter = |column: usize| x[1].slice(1, column..column + 1).reshape([6]);
        let y = x[0].group_norm(3, 1e-5, &parameter(0), &parameter(1));
        let grads = y.tape().backward(&y.silu().square().sum()).expect("every rule is there");
        vec![grads.of(&y).expect("the sum depends on it").square()]
    })?;
    Ok(report.ok()?)
}

/// Checks the derivatives of [`penalty`], which compares them with finite differences in `f64`, in `f32` on this
/// device.
fn penalties_agree(device: &Device) -> Outcome {
    let run = |device: &Device, f: Penalised| -> Result<Vec<Vec<f64>>> {
        let tape = Tape::new(device);
        let x = operands(device)?.map(|x| tape.input(&x));
        let grads = tape.backward(&penalise(f, &x))?;
        x.iter().filter_map(|x| grads.of(x)).map(|dx| dx.to_tensor()?.to_f64_vec()).collect()
    };
    for (name, f) in PENALTIES {
        let reference = run(&Device::cpu_with(Precision::Double), f)?;
        for (computed, reference) in run(device, f)?.into_iter().zip(reference) {
            // A chain of some twenty operations, each with its own rounding error.
            compare(name, &Computed(computed), &Reference(reference), 1e-4)?;
        }
    }
    Ok(())
}

fn lookup(device: &Device) -> Outcome {
    let net = Tiny::init(device, 3)?;
    let tape = Tape::new(device);
    let (images, labels) = images(device, "lookup", 2)?;
    let x = tape.input(&images);
    let features = net.stem.forward(&x);
    let loss = net.head.forward(&net.down.forward(&net.norm.forward(&features)).flatten()).cross_entropy(&labels);
    let grads = tape.backward(&loss)?;
    let weight = grads.get(&net.stem.weight).expect("trained");
    assert_eq!(weight.shape(), net.stem.weight.shape());
    assert_eq!(grads.by_path("stem.weight").expect("named").to_vec()?, weight.to_vec()?);
    assert_ne!(grads.by_path("down.weight").expect("named").shape(), weight.shape());
    assert!(grads.by_path("stem").is_none() && grads.by_path("").is_none());
    // Any value has a gradient: inputs and intermediate values. The bias's is the sum over its channel.
    assert_eq!(grads.of(&x).expect("depends").shape(), images.shape());
    let sums = grads.of(&features).expect("between").sum_over(&[0, 2, 3]).to_tensor()?.to_f64_vec()?;
    let bias = net.stem.bias.as_ref().and_then(|bias| grads.get(bias)).expect("trained").to_tensor()?.to_f64_vec()?;
    compare("the bias's gradient", &Computed(bias), &Reference(sums), 1e-6)?;
    // A value that does not affect the loss has no gradient.
    assert!(grads.of(&tape.scalar(1.0)).is_none());
    assert!(grads.get(&Param::new(images)).is_none());
    Ok(())
}

#[derive(Module, Debug)]
struct Partly {
    used: Tiny,
    left_out: FrozenStem,
}

fn missing(device: &Device) -> Outcome {
    let (images, labels) = images(device, "missing", 3)?;
    let optimizers: [fn() -> Box<dyn Optimizer>; 2] =
        [|| Box::new(AdamW::new(0.1)), || Box::new(Sgd::new(0.1).momentum(0.9))];
    for new in optimizers {
        let mut net = Partly { used: Tiny::init(device, 1)?, left_out: FrozenStem::init(device, 2)? };
        let (before, mut optimizer) = (bits(&net)?, new());
        let (_, grads) = record(&net.used, &images, &labels)?;
        let error = optimizer.step(&mut net, &grads).expect_err("half of the model has no gradient");
        assert_eq!(error.kind(), ErrorKind::NoGradient);
        let message = error.to_string();
        for path in ["norm.weight", "norm.bias", "down.weight", "head.bias"] {
            assert!(message.contains(&format!("`left_out.{path}`")), "{message}");
        }
        assert!(!message.contains("stem") && !message.contains("used."), "frozen, or trained: {message}");
        assert_eq!(bits(&net)?, before, "nothing changes");
        // Nor did the optimizer change: its next step is a first step.
        optimizer.step(&mut net.used, &grads)?;
        let mut fresh = Tiny::init(device, 1)?;
        let (_, grads) = record(&fresh, &images, &labels)?;
        new().step(&mut fresh, &grads)?;
        assert_eq!(bits(&net.used)?, bits(&fresh)?);
    }
    Ok(())
}
