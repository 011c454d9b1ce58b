//! Training: the same curve, the same initial weights and the same dropout on every device, and refused steps.

use libtest_mimic::{Failed, Trial};
use meganeura::nn::{Dropout, Linear};
use meganeura::optim::{AdamW, Optimizer, Sgd};
use meganeura::{Device, ErrorKind, Layer, Module, ModuleExt, Precision, Result, Tape, Tensor};

use crate::Outcome;
use crate::adapter::gpu_trial;
use crate::nets::{Tiny, bits, images, record, tensor};
use crate::numbers::{Computed, Reference, compare};

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    trials.push(Trial::test("training::the_loss_falls", || falls(&Device::cpu())));
    trials.push(Trial::test("training::precisions_agree", || curves_agree(&Device::cpu())));
    trials.push(gpu_trial("training::gpu::curves_agree", |device| curves_agree(&device.for_testing(0))));
    trials.push(gpu_trial("training::gpu::the_same_start", same_start));
    trials.push(gpu_trial("training::gpu::the_same_dropout", same_dropout));
    trials.push(Trial::test("training::not_finite", || not_finite(&Device::cpu().for_testing(0))));
    trials.push(gpu_trial("training::gpu::not_finite", |device| not_finite(&device.for_testing(0))));
    trials.push(Trial::test("training::moved_to_another_device", || moved(&Device::cpu_with(Precision::Double))));
    trials.push(gpu_trial("training::gpu::moved_to_another_device", |device| moved(&device.for_testing(0))));
}

/// The losses of 20 steps, and one more after the last step.
fn curve(device: &Device, optimizer: &mut dyn Optimizer) -> Result<Vec<f64>> {
    let mut net = Tiny::init(device, 7)?;
    let (images, labels) = images(device, "curve", 16)?;
    let mut losses = Vec::new();
    for _ in 0..20 {
        let (loss, grads) = record(&net, &images, &labels)?;
        optimizer.step(&mut net, &grads)?;
        losses.push(loss.to_tensor()?.to_f64_vec()?[0]);
    }
    let tape = Tape::inference(device);
    losses.push(net.forward(&tape.input(&images)).cross_entropy(&labels).to_tensor()?.to_f64_vec()?[0]);
    Ok(losses)
}

fn falls(device: &Device) -> Outcome {
    for optimizer in [&mut AdamW::new(0.02) as &mut dyn Optimizer, &mut Sgd::new(0.1).momentum(0.9)] {
        let losses = curve(device, optimizer)?;
        assert!(losses[20] < losses[0] / 2.0, "{losses:?}");
        // For an untrained model, three classes are about equally likely.
        assert!((losses[0] - 3f64.ln()).abs() < 0.5, "{losses:?}");
    }
    Ok(())
}

fn curves_agree(device: &Device) -> Outcome {
    let double = Device::cpu_with(Precision::Double);
    // Rounding errors accumulate over the steps. Adam divides by the gradient's size, so the rounding error of a
    // gradient near 0 becomes a step of full size: hence the larger tolerance.
    type New = fn() -> Box<dyn Optimizer>;
    let optimizers: [(New, f64); 2] =
        [(|| Box::new(AdamW::new(0.02)), 2e-3), (|| Box::new(Sgd::new(0.1).momentum(0.9)), 1e-4)];
    for (new, tolerance) in optimizers {
        let (reference, computed) = (curve(&double, &mut *new())?, curve(device, &mut *new())?);
        compare("the loss", &Computed(computed), &Reference(reference), tolerance)?;
    }
    Ok(())
}

fn same_start(device: &Device) -> Result<(), Failed> {
    let (native, other) = (Tiny::init(&Device::cpu(), 42)?, Tiny::init(device, 42)?);
    assert_eq!(bits(&native)?, bits(&other)?);
    assert_ne!(bits(&native)?, bits(&Tiny::init(device, 43)?)?);
    let double = Tiny::init(&Device::cpu_with(Precision::Double), 42)?;
    for ((_, wide), (_, narrow)) in double.named_parameters().into_iter().zip(native.named_parameters()) {
        let rounded: Vec<f32> = wide.value().to_f64_vec()?.into_iter().map(|x| x as f32).collect();
        assert_eq!(rounded, narrow.value().to_vec()?, "the same numbers, rounded");
    }
    Ok(())
}

fn same_dropout(device: &Device) -> Result<(), Failed> {
    let run = |device: &Device, seed| -> Result<[Vec<f32>; 3]> {
        let tape = Tape::with_seed(device, seed);
        let x = tape.input(&Tensor::full(device, [37, 53], 1.0)?);
        let [first, second, third] = [0.5, 0.1, 0.5].map(|p| Dropout::new(p).forward(&x));
        let sum = &first + &second * 2.0;
        let dx = tape.backward(&sum.sum())?.of(&x).expect("depends");
        assert_eq!(dx.to_vec()?, sum.to_vec()?, "for ones, both the output and the gradient are the mask");
        Ok([first.to_vec()?, second.to_vec()?, third.to_vec()?])
    };
    for seed in [0, 1, u64::MAX, 1 << 32] {
        let masks = run(&Device::cpu(), seed)?;
        assert_eq!(masks, run(device, seed)?, "seed {seed}");
        assert_ne!(masks[0], masks[2], "each layer has numbers of its own");
    }
    for seed in [1, 1 << 32] {
        assert_ne!(run(device, 0)?, run(device, seed)?, "all of the seed counts");
    }
    // Tapes without a seed draw theirs from the device's.
    let own = |device: &Device| -> Result<_> {
        device.set_seed(3);
        let draw = || Tape::new(device).input(&Tensor::full(device, [64], 1.0)?).random_uniform().to_vec();
        Ok([draw()?, draw()?])
    };
    let [first, second] = own(&Device::cpu())?;
    assert_ne!(first, second);
    assert_eq!([first, second], own(&device.for_testing(0))?);
    Ok(())
}

fn not_finite(device: &Device) -> Outcome {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut net = Tiny::init(device, 1)?;
        let (images, labels) = images(device, "finite", 3)?;
        let mut optimizer = AdamW::new(0.1).check_finite(true);
        let mut step = |net: &mut Tiny, factor: f32, offset: f32| -> Result<()> {
            let tape = Tape::new(device);
            let numbers = |x| Ok::<_, meganeura::Error>(tape.input(&Tensor::full(device, [], x)?));
            let loss = net.forward(&tape.input(&images)).cross_entropy(&labels) * numbers(factor)? + numbers(offset)?;
            let grads = tape.backward(&loss)?;
            optimizer.step_with_loss(net, &grads, &loss)
        };
        step(&mut net, 1.0, 0.0)?;
        let before = bits(&net)?;
        let error = step(&mut net, bad, 0.0).expect_err("gradients that are not finite");
        assert_eq!(error.kind(), ErrorKind::NotFinite);
        for name in ["`the loss`", "`stem.weight`", "`norm.bias`", "`head.weight`"] {
            assert!(error.to_string().contains(name), "{error}");
        }
        assert_eq!(bits(&net)?, before);
        let error = step(&mut net, 1.0, bad).expect_err("a loss that is not finite");
        assert!(error.to_string().contains("namely `the loss`;"), "{error}");
        assert_eq!(bits(&net)?, before);
        // The optimizer did not change either.
        step(&mut net, 0.5, 0.0)?;
        let mut twin = Tiny::init(device, 1)?;
        let mut other = AdamW::new(0.1).check_finite(true);
        for factor in [1.0, 0.5] {
            let tape = Tape::new(device);
            let factor = tape.input(&Tensor::full(device, [], factor)?);
            let zero = tape.input(&Tensor::full(device, [], 0.0)?);
            let loss = twin.forward(&tape.input(&images)).cross_entropy(&labels) * factor + zero;
            let grads = tape.backward(&loss)?;
            other.step_with_loss(&mut twin, &grads, &loss)?;
        }
        assert_eq!(bits(&net)?, bits(&twin)?);
    }
    Ok(())
}

#[derive(Module, Debug)]
#[module(sequential)]
struct Slope {
    #[module(init = Linear::new(3, 2).bias(false))]
    linear: Linear,
}

/// A model and its optimizer's state continue on another device.
fn moved(device: &Device) -> Outcome {
    let run = |devices: &[&Device]| -> Result<Vec<f64>> {
        let mut net = Slope::init(devices[0], 1)?;
        net.linear.weight.set(tensor(devices[0], "weight", [2, 3])?)?;
        let mut optimizer = AdamW::new(0.1);
        for device in devices {
            net.to_device(device)?;
            let tape = Tape::new(device);
            let loss = net.forward(&tape.input(&tensor(device, "x", [4, 3])?)).square().mean();
            let grads = tape.backward(&loss)?;
            optimizer.step(&mut net, &grads)?;
        }
        net.linear.weight.value().to_f64_vec()
    };
    let home = Device::cpu();
    let (stayed, moved) = (run(&[&home; 4])?, run(&[&home, device, device, &home])?);
    compare("the weight", &Computed(moved), &Reference(stayed), 1e-5)?;
    Ok(())
}
