//! Short training runs with each optimizer: one plan for any schedule, resuming from a saved state, accumulation over
//! micro-batches, averaging.

use std::collections::BTreeMap;

use libtest_mimic::Trial;
use meganeura::loss::{CrossEntropyOptions, Reduction};
use meganeura::optim::{
    Accumulate, Adagrad, Adam, AdamW, Ema, Group, Lion, Muon, NAdam, Optimizer, OptimizerState, RAdam, RmsProp,
    Schedule, Sgd,
};
use meganeura::{Device, Layer, ModuleExt, Precision, Result, Tape, Tensor};

use crate::Outcome;
use crate::adapter::gpu_trial;
use crate::nets::{Tiny, bits, images, record};
use crate::numbers::{Computed, Reference, compare};

type New = fn() -> Box<dyn Optimizer>;

const OPTIMIZERS: [(&str, New); 12] = [
    ("sgd", || Box::new(Sgd::new(0.0).momentum(0.9).nesterov(true).weight_decay(1e-3))),
    ("adam", || Box::new(Adam::new(0.0).weight_decay(1e-3))),
    ("adamw", || Box::new(AdamW::new(0.0))),
    ("adamw in groups", || {
        let biases = Group::by(|_, param| param.shape().rank() < 2).weight_decay(0.0);
        Box::new(AdamW::new(0.0).group(Group::new("stem.**").lr_scale(0.1)).group(biases))
    }),
    ("lion", || Box::new(Lion::new(0.0).weight_decay(1e-2))),
    ("rms_prop", || Box::new(RmsProp::new(0.0))),
    ("rms_prop centered", || Box::new(RmsProp::new(0.0).centered(true).momentum(0.5))),
    ("adamw with amsgrad", || Box::new(AdamW::new(0.0).amsgrad(true))),
    ("adagrad", || Box::new(Adagrad::new(0.0).initial(0.1))),
    ("nadam", || Box::new(NAdam::new(0.0).weight_decay(1e-2).decoupled(true))),
    ("radam", || Box::new(RAdam::new(0.0).weight_decay(1e-2))),
    ("muon", || Box::new(Muon::new(0.0).adam_for(|path, _| path.starts_with("head.")))),
];

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    for (name, new) in OPTIMIZERS {
        trials.push(Trial::test(format!("steps::{name}"), move || resumed(&Device::cpu().for_testing(0), new)));
        trials.push(gpu_trial(format!("steps::gpu::{name}"), move |device| resumed(&device.for_testing(0), new)));
    }
    let mut both = |name: &str, run: fn(&Device, f64) -> Outcome| {
        let double = move || run(&Device::cpu_with(Precision::Double).for_testing(0), 1e-13);
        trials.push(Trial::test(format!("steps::{name}"), double));
        // A few steps of some hundred roundings each.
        let single = move |device: &Device| run(&device.for_testing(0), 2e-5);
        trials.push(gpu_trial(format!("steps::gpu::{name}"), single));
    };
    both("micro_batches_are_the_batch", accumulated);
    both("micro_batches_may_be_sums", summed);
    both("an_average_follows", averaged);
}

/// Steps `from..to` of a training run, on one plan.
fn train(net: &mut Tiny, optimizer: &mut dyn Optimizer, from: u64, to: u64) -> Result<()> {
    let device = net.stem.weight.value().device().clone();
    let schedule = Schedule::cosine(0.02, 6, 1e-3).warmup(2);
    let (images, labels) = images(&device, "steps", 5)?;
    for step in from..to {
        schedule.set_lr(step, optimizer);
        let (_, grads) = record(net, &images, &labels)?;
        let grads = grads.clip_norm(net, 1.0)?;
        optimizer.step(net, &grads)?;
        assert_eq!(device.stats().plans, 1, "step {step}");
    }
    Ok(())
}

/// The state, copied through host memory as if through a file.
fn through_host(device: &Device, state: &OptimizerState) -> Result<OptimizerState> {
    let copy = |(name, tensor): (&String, &Tensor)| {
        Ok((name.clone(), Tensor::from_f64(device, tensor.shape(), &tensor.to_f64_vec()?)?))
    };
    let tensors = state.tensors.iter().map(copy).collect::<Result<BTreeMap<_, _>>>()?;
    Ok(OptimizerState { tensors, ..state.clone() })
}

fn resumed(device: &Device, new: New) -> Outcome {
    let (mut net, mut optimizer) = (Tiny::init(device, 1)?, new());
    let start = bits(&net)?;
    train(&mut net, &mut *optimizer, 0, 3)?;
    let state = through_host(device, &optimizer.state_of(&net))?;
    let (mut twin, mut taken_up) = (Tiny::init(device, 2)?, new());
    twin.copy_from(&net)?;
    taken_up.load_state(&twin, &state)?;
    train(&mut net, &mut *optimizer, 3, 7)?;
    train(&mut twin, &mut *taken_up, 3, 7)?;
    assert_eq!(bits(&net)?, bits(&twin)?);
    assert!(bits(&net)?.iter().zip(&start).all(|(now, before)| now != before), "every parameter was trained");
    // Without the state, the training differs, so restoring it matters.
    let mut forgetful = Tiny::init(device, 2)?;
    let mut optimizer = new();
    train(&mut forgetful, &mut *optimizer, 0, 3)?;
    train(&mut forgetful, &mut *new(), 3, 7)?;
    assert_ne!(bits(&net)?, bits(&forgetful)?);
    Ok(())
}

/// The images in micro-batches of four.
fn micro_batches(images: &Tensor, labels: &Tensor) -> Result<Vec<(Tensor, Tensor)>> {
    let device = images.device();
    let (pixels, labels) = (images.to_f64_vec()?, labels.to_u32_vec()?);
    let parts = pixels.chunks(4 * 36).zip(labels.chunks(4));
    let part =
        |(x, l): (&[f64], &[u32])| Ok((Tensor::from_f64(device, [4, 1, 6, 6], x)?, Tensor::indices(device, [4], l)?));
    parts.map(part).collect()
}

fn assert_same(name: &str, computed: &Tiny, reference: &Tiny, tolerance: f64) -> Outcome {
    for (computed, reference) in computed.zip(reference)? {
        let values = (computed.value().to_f64_vec()?, reference.value().to_f64_vec()?);
        compare(&format!("{name}: {}", computed.path), &Computed(values.0), &Reference(values.1), tolerance)?;
    }
    Ok(())
}

fn accumulated(device: &Device, tolerance: f64) -> Outcome {
    let (mut large, mut small) = (Tiny::init(device, 1)?, Tiny::init(device, 1)?);
    let mut optimizers = [(); 2].map(|()| Sgd::new(0.1).momentum(0.9));
    let mut plans = 0;
    for step in 0..3 {
        let (images, labels) = images(device, &format!("batch {step}"), 12)?;
        let (_, grads) = record(&large, &images, &labels)?;
        let grads = grads.clip_norm(&large, 0.3)?;
        optimizers[0].step(&mut large, &grads)?;
        for (images, labels) in micro_batches(&images, &labels)? {
            let (loss, grads) = record(&small, &images, &labels)?;
            if let Some(grads) = optimizers[1].accumulate(&small, grads, Accumulate::mean(3))? {
                let grads = grads.clip_norm(&small, 0.3)?;
                optimizers[1].step(&mut small, &grads)?;
            }
            loss.item()?; // computed by the same run
        }
        assert_same(&format!("step {step}"), &small, &large, tolerance)?;
        let now = device.stats().plans;
        assert!(now == 3 && (step == 0 || now == plans), "one of the batch, two of micro-batches, not {now}");
        plans = now;
    }
    Ok(())
}

/// If losses are sums, micro-batches may differ in size and in the number of ignored labels.
fn summed(device: &Device, tolerance: f64) -> Outcome {
    let (mut large, mut small) = (Tiny::init(device, 1)?, Tiny::init(device, 1)?);
    let options =
        CrossEntropyOptions { ignored: Some(1), reduction: Reduction::Sum, label_smoothing: 0.1, ..Default::default() };
    let record = |net: &Tiny, images: &Tensor, labels: &Tensor| {
        let tape = Tape::new(device);
        tape.backward(&net.forward(&tape.input(images)).cross_entropy_with(labels, &options))
    };
    let (images, labels) = images(device, "summed", 8)?;
    let grads = record(&large, &images, &labels)?;
    Sgd::new(0.01).step(&mut large, &grads)?;
    let (mut sgd, how) = (Sgd::new(0.01), Accumulate::sum(100));
    let parts = micro_batches(&images, &labels)?;
    assert!(sgd.accumulate(&small, record(&small, &parts[0].0, &parts[0].1)?, how)?.is_none());
    let grads = sgd.accumulate_last(&small, record(&small, &parts[1].0, &parts[1].1)?, how)?;
    sgd.step(&mut small, &grads)?;
    assert_same("sums", &small, &large, tolerance)
}

fn averaged(device: &Device, tolerance: f64) -> Outcome {
    let mut net = Tiny::init(device, 1)?;
    let mut ema = Ema::new(&net, 0.9)?.warmup(true);
    let weights = |net: &Tiny| net.head.weight.value().to_f64_vec();
    let mut expected = weights(&net)?;
    let (images, labels) = images(device, "averaged", 5)?;
    let mut sgd = Sgd::new(0.5);
    let mut plans = 0;
    for step in 0..5_u8 {
        let (_, grads) = record(&net, &images, &labels)?;
        sgd.step(&mut net, &grads)?;
        ema.update(&net)?;
        let decay = 0.9_f64.min((1.0 + f64::from(step)) / (10.0 + f64::from(step)));
        for (average, w) in expected.iter_mut().zip(weights(&net)?) {
            *average = decay * *average + (1.0 - decay) * w;
        }
        let computed = Computed(weights(ema.model())?);
        compare(&format!("update {step}"), &computed, &Reference(expected.clone()), tolerance)?;
        let now = device.stats().plans;
        assert!(step == 0 || now == plans, "{plans} plans, then {now}");
        plans = now;
    }
    let before = [bits(&net)?, bits(ema.model())?];
    ema.swap(&mut net)?;
    assert_eq!([bits(ema.model())?, bits(&net)?], before);
    Ok(())
}
