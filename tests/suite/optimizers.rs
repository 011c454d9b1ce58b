//! Optimizers against literal reimplementations on plain numbers.

use libtest_mimic::Trial;
use meganeura::optim::{Adam, AdamW, Lion, Muon, Optimizer, RmsProp, Sgd};
use meganeura::{Device, ErrorKind, Layer, ModuleExt, Param, Precision, Result, Tape, Tensor, Var};

use crate::Outcome;
use crate::adapter::gpu_trial;
use crate::nets::{Tiny, bits, images, normal, record, tensor};
use crate::numbers::{Computed, Reference, compare};

const STEPS: usize = 5;
const N: usize = 4;

/// The update of one number: from `(w, dw, t)` to the new `w`.
type Rule = Box<dyn FnMut(usize, f64, f64, usize) -> f64>;

/// An optimizer and its expected update, at the learning rate of each step.
struct Subject {
    name: &'static str,
    optimizer: fn() -> Box<dyn Optimizer>,
    rule: fn() -> Rule,
}

fn rates(step: usize) -> f64 {
    [0.1, 0.1, 0.05, 0.2, 0.0][step]
}

fn sgd(momentum: f64, nesterov: bool, decay: f64) -> Rule {
    let mut velocity = [0.0; 2 * N];
    Box::new(move |i, w, dw, t| {
        let g = dw + decay * w;
        velocity[i] = if t == 1 { g } else { momentum * velocity[i] + g };
        let direction = if nesterov { g + momentum * velocity[i] } else { velocity[i] };
        w - rates(t - 1) * if momentum == 0.0 { g } else { direction }
    })
}

fn adamw(beta1: f64, beta2: f64, eps: f64, decay: f64) -> Rule {
    let mut moments = [(0.0, 0.0); 2 * N];
    Box::new(move |i, w, dw, t| {
        let (m, v) = &mut moments[i];
        *m = beta1 * *m + (1.0 - beta1) * dw;
        *v = beta2 * *v + (1.0 - beta2) * dw * dw;
        let (m_hat, v_hat) = (*m / (1.0 - beta1.powi(t as i32)), *v / (1.0 - beta2.powi(t as i32)));
        let w = w - rates(t - 1) * decay * w;
        w - rates(t - 1) * m_hat / (v_hat.sqrt() + eps)
    })
}

fn adam(beta1: f64, beta2: f64, eps: f64, decay: f64) -> Rule {
    let mut moments = [(0.0, 0.0); 2 * N];
    Box::new(move |i, w, dw, t| {
        let (m, v) = &mut moments[i];
        let g = dw + decay * w;
        *m = beta1 * *m + (1.0 - beta1) * g;
        *v = beta2 * *v + (1.0 - beta2) * g * g;
        let (m_hat, v_hat) = (*m / (1.0 - beta1.powi(t as i32)), *v / (1.0 - beta2.powi(t as i32)));
        w - rates(t - 1) * m_hat / (v_hat.sqrt() + eps)
    })
}

fn lion(beta1: f64, beta2: f64, decay: f64) -> Rule {
    let mut momenta = [0.0; 2 * N];
    Box::new(move |i, w, dw, t| {
        let direction = (beta1 * momenta[i] + (1.0 - beta1) * dw).signum();
        momenta[i] = beta2 * momenta[i] + (1.0 - beta2) * dw;
        w - rates(t - 1) * (direction + decay * w)
    })
}

fn rms_prop(alpha: f64, eps: f64, centered: bool, momentum: f64, decay: f64) -> Rule {
    let mut kept = [(0.0, 0.0, 0.0); 2 * N];
    Box::new(move |i, w, dw, t| {
        let (v, mean, velocity) = &mut kept[i];
        let g = dw + decay * w;
        *v = alpha * *v + (1.0 - alpha) * g * g;
        *mean = alpha * *mean + (1.0 - alpha) * g;
        let variance = if centered { *v - *mean * *mean } else { *v };
        *velocity = momentum * *velocity + g / (variance.sqrt() + eps);
        w - rates(t - 1) * *velocity
    })
}

const SUBJECTS: [Subject; 14] = [
    Subject { name: "sgd", optimizer: || Box::new(Sgd::new(0.0)), rule: || sgd(0.0, false, 0.0) },
    Subject {
        name: "sgd with decay",
        optimizer: || Box::new(Sgd::new(0.0).weight_decay(0.05)),
        rule: || sgd(0.0, false, 0.05),
    },
    Subject {
        name: "sgd with momentum",
        optimizer: || Box::new(Sgd::new(0.0).momentum(0.9)),
        rule: || sgd(0.9, false, 0.0),
    },
    Subject {
        name: "sgd with momentum and decay",
        optimizer: || Box::new(Sgd::new(0.0).momentum(0.8).weight_decay(0.1)),
        rule: || sgd(0.8, false, 0.1),
    },
    Subject {
        name: "sgd with nesterov",
        optimizer: || Box::new(Sgd::new(0.0).momentum(0.9).nesterov(true).weight_decay(0.01)),
        rule: || sgd(0.9, true, 0.01),
    },
    Subject { name: "adamw", optimizer: || Box::new(AdamW::new(0.0)), rule: || adamw(0.9, 0.999, 1e-8, 0.01) },
    Subject {
        name: "adam",
        optimizer: || Box::new(AdamW::new(0.0).weight_decay(0.0)),
        rule: || adamw(0.9, 0.999, 1e-8, 0.0),
    },
    Subject {
        name: "adamw otherwise",
        optimizer: || Box::new(AdamW::new(0.0).betas(0.7, 0.9).eps(1e-2).weight_decay(0.3)),
        rule: || adamw(0.7, 0.9, 1e-2, 0.3),
    },
    Subject {
        name: "adam with decay",
        optimizer: || Box::new(Adam::new(0.0).betas(0.8, 0.99).weight_decay(0.2)),
        rule: || adam(0.8, 0.99, 1e-8, 0.2),
    },
    Subject { name: "lion", optimizer: || Box::new(Lion::new(0.0)), rule: || lion(0.9, 0.99, 0.0) },
    Subject {
        name: "lion otherwise",
        optimizer: || Box::new(Lion::new(0.0).betas(0.6, 0.8).weight_decay(0.3)),
        rule: || lion(0.6, 0.8, 0.3),
    },
    Subject {
        name: "rms_prop",
        optimizer: || Box::new(RmsProp::new(0.0).alpha(0.9)),
        rule: || rms_prop(0.9, 1e-8, false, 0.0, 0.0),
    },
    Subject {
        name: "rms_prop with momentum and decay",
        optimizer: || Box::new(RmsProp::new(0.0).alpha(0.8).eps(1e-3).momentum(0.5).weight_decay(0.1)),
        rule: || rms_prop(0.8, 1e-3, false, 0.5, 0.1),
    },
    Subject {
        name: "rms_prop centered",
        optimizer: || Box::new(RmsProp::new(0.0).alpha(0.9).eps(1e-2).centered(true).momentum(0.3)),
        rule: || rms_prop(0.9, 1e-2, true, 0.3, 0.0),
    },
];

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    for subject in &SUBJECTS {
        let double = || agrees(subject, &Device::cpu_with(Precision::Double).for_testing(0), 1e-13);
        trials.push(Trial::test(format!("optimizers::{}", subject.name), double));
        // Five steps of some ten roundings each.
        let single = |device: &Device| agrees(subject, &device.for_testing(0), 3e-6);
        trials.push(gpu_trial(format!("optimizers::gpu::{}", subject.name), single));
    }
    trials.push(Trial::test("optimizers::muon", || muon(&Device::cpu().for_testing(0))));
    trials.push(gpu_trial("optimizers::gpu::muon", |device| muon(&device.for_testing(0))));
    trials.push(Trial::test("optimizers::the_norm_of_all_is_clipped", || clip(&Device::cpu().for_testing(0))));
    trials.push(gpu_trial("optimizers::gpu::the_norm_of_all_is_clipped", |device| clip(&device.for_testing(0))));
    trials.push(Trial::test("optimizers::step_parts_of_a_model", || parts(&Device::cpu())));
    trials.push(gpu_trial("optimizers::gpu::step_parts_of_a_model", |device| parts(&device.for_testing(0))));
    trials.push(Trial::test("optimizers::copies_are_left_alone", || copies(&Device::cpu())));
    trials.push(gpu_trial("optimizers::gpu::copies_are_left_alone", |device| copies(&device.for_testing(0))));
}

/// The derivative of [`loss`] with respect to number `i`.
fn derivative(i: usize, w: f64) -> f64 {
    // d/dw of c·(w³/3 − w), with number `i`'s own c.
    factors()[i] * (w * w - 1.0)
}

fn factors() -> Vec<f64> {
    normal("factors", 2 * N)
}

/// `Σ c·(w³/3 − w)` over both parameters, joined.
fn loss(tape: &Tape, w: &[Param; 2]) -> Result<Var> {
    let factors = tape.input(&Tensor::from_f64(&tape.device(), [2 * N], &factors())?);
    let w = Var::concat(&[&tape.param(&w[0]), &tape.param(&w[1])], 0);
    Ok((factors * (&w * &w * &w / 3.0 - &w)).sum())
}

fn start(device: &Device) -> Result<[Param; 2]> {
    let start = normal("start", 2 * N);
    let param = |part: &[f64]| Ok::<_, meganeura::Error>(Param::new(Tensor::from_f64(device, [N], part)?));
    Ok([param(&start[..N])?, param(&start[N..])?])
}

fn agrees(subject: &Subject, device: &Device, tolerance: f64) -> Outcome {
    let (mut w, mut optimizer) = (start(device)?, (subject.optimizer)());
    let (mut expected, mut rule) = (normal("start", 2 * N), (subject.rule)());
    for step in 0..STEPS {
        optimizer.set_lr(rates(step));
        let tape = Tape::new(device);
        let grads = tape.backward(&loss(&tape, &w)?)?;
        optimizer.step(&mut w, &grads)?;
        for (i, w) in expected.iter_mut().enumerate() {
            *w = rule(i, *w, derivative(i, *w), step + 1);
        }
        let computed = [w[0].value().to_f64_vec()?, w[1].value().to_f64_vec()?].concat();
        compare(&format!("step {}", step + 1), &Computed(computed), &Reference(expected.clone()), tolerance)?;
    }
    Ok(())
}

/// Against `f64`, which the optimizer's own tests compare with plain matrices. Each iteration sums ten products and
/// multiplies the error of a small singular value by up to 3.4445; two steps have ten iterations.
fn muon(device: &Device) -> Outcome {
    let after = |device: &Device| -> Result<Vec<f64>> {
        let shapes = [&[6, 10][..], &[10, 6], &[5, 3, 2, 2]].map(meganeura::Shape::new);
        let mut w =
            shapes.iter().map(|&shape| Ok(Param::new(tensor(device, "w", shape)?))).collect::<Result<Vec<_>>>()?;
        let mut muon = Muon::new(0.1);
        for _ in 0..2 {
            let tape = Tape::new(device);
            let mut loss = tape.scalar(0.0);
            for (w, &shape) in w.iter().zip(&shapes) {
                loss += (tape.input(&tensor(device, "c", shape)?) * tape.param(w).square()).sum();
            }
            let grads = tape.backward(&loss)?;
            muon.step(&mut w, &grads)?;
        }
        let values = w.iter().map(|w| w.value().to_f64_vec()).collect::<Result<Vec<_>>>()?;
        Ok(values.concat())
    };
    let (computed, reference) = (after(device)?, after(&Device::cpu_with(Precision::Double))?);
    compare("two steps", &Computed(computed), &Reference(reference), 1e-4)?;
    Ok(())
}

fn clip(device: &Device) -> Outcome {
    let start = normal("start", 2 * N);
    let dw: Vec<f64> = start.iter().enumerate().map(|(i, &w)| derivative(i, w)).collect();
    let norm = dw.iter().map(|dw| dw * dw).sum::<f64>().sqrt();
    for max_norm in [norm / 3.0, norm * 3.0] {
        let mut w = self::start(device)?;
        let tape = Tape::new(device);
        let grads = tape.backward(&loss(&tape, &w)?)?;
        let before = grads.norm(&w);
        let grads = grads.clip_norm(&w, max_norm)?;
        Sgd::new(0.5).step(&mut w, &grads)?;
        compare("the norm", &Computed(vec![f64::from(before.item()?)]), &Reference(vec![norm]), 1e-6)?;
        let factor = (max_norm / norm).min(1.0);
        let expected = start.iter().zip(&dw).map(|(w, dw)| w - 0.5 * factor * dw).collect();
        let computed = [w[0].value().to_f64_vec()?, w[1].value().to_f64_vec()?].concat();
        compare("after the step", &Computed(computed), &Reference(expected), 2e-6)?;
    }
    Ok(())
}

/// Updates are written in place, but never into memory with another reader.
fn copies(device: &Device) -> Outcome {
    let mut net = Tiny::init(device, 1)?;
    let read = |net: &Tiny| -> Result<Vec<Vec<f32>>> {
        net.named_parameters().into_iter().map(|(_, param)| param.value().to_vec()).collect()
    };
    let (tensor, clone) = (net.stem.weight.value(), net.stem.clone());
    let (before, all) = (tensor.to_vec()?, read(&net)?);
    let (images, labels) = images(device, "copies", 3)?;
    let mut optimizer = AdamW::new(0.1);
    for _ in 0..2 {
        let (_, grads) = record(&net, &images, &labels)?;
        optimizer.step(&mut net, &grads)?;
    }
    assert_ne!(net.stem.weight.value().to_vec()?, before);
    assert_eq!((tensor.to_vec()?, clone.weight.value().to_vec()?), (before.clone(), before));
    assert!(read(&net)?.iter().zip(&all).all(|(new, old)| new != old), "every parameter was trained");
    // The copy is a separate parameter.
    let tape = Tape::new(device);
    let grads = tape.backward(&net.stem.forward(&tape.input(&images)).sum())?;
    assert!(grads.get(&clone.weight).is_none() && grads.get(&net.stem.weight).is_some());
    Ok(())
}

/// Two optimizers that step parts of a model with the same gradients act like one that steps the whole.
fn parts(device: &Device) -> Outcome {
    let mut net = Tiny::init(device, 1)?;
    let mut whole = net.clone();
    whole.name_parameters();
    let (images, labels) = images(device, "parts", 3)?;
    let changed = |net: &Tiny, before: &[(String, Vec<u64>)]| -> Result<Vec<String>> {
        let pairs = bits(net)?.into_iter().zip(before);
        Ok(pairs.filter(|(now, before)| now != *before).map(|((path, _), _)| path).collect())
    };
    let mut optimizers = [(); 5].map(|()| Sgd::new(0.1).momentum(0.9));
    for _ in 0..3 {
        let (_, grads) = record(&whole, &images, &labels)?;
        let grads = grads.clip_norm(&whole, 0.5)?;
        optimizers[4].step(&mut whole, &grads)?;

        let before = bits(&net)?;
        let (loss, grads) = record(&net, &images, &labels)?;
        let grads = grads.clip_norm(&net, 0.5)?;
        optimizers[0].step(&mut net.stem, &grads)?;
        assert_eq!(changed(&net, &before)?, ["stem.weight", "stem.bias"]);
        optimizers[1].step(&mut net.head, &grads)?;
        assert_eq!(changed(&net, &before)?, ["stem.weight", "stem.bias", "head.weight", "head.bias"]);
        let error = Sgd::new(0.1).step(&mut net.stem, &grads).expect_err("it was stepped along these");
        assert_eq!(error.kind(), ErrorKind::StaleTape);
        optimizers[2].step(&mut net.norm, &grads)?;
        optimizers[3].step(&mut net.down, &grads)?;
        assert!(loss.item()?.is_finite());
        for (part, whole) in net.zip(&whole)? {
            let (part_values, whole_values) = (part.value().to_f64_vec()?, whole.value().to_f64_vec()?);
            // Updates may be fused with gradients in one case and not in the other: a few roundings of numbers of about
            // 1.
            compare(&part.path, &Computed(part_values), &Reference(whole_values), 1e-6)?;
        }
    }
    Ok(())
}
