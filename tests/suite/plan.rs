//! The plan of a step: the number of plans and submissions, fusion, memory, and determinism.

use libtest_mimic::Trial;
use meganeura::data::Dataset;
use meganeura::nn::{Conv2d, Dropout, GroupNorm, LayerNorm, Linear};
use meganeura::optim::{AdamW, Optimizer, Sgd};
use meganeura::{Device, FromSeed, Init, Layer, Module, ModuleExt, Result, Seed, Tape, Tensor};

use crate::adapter::gpu_trial;
use crate::nets::{FrozenStem, Tiny, bits, images, normal, record, tensor};
use crate::{Outcome, golden};

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    let mut both = |name: &str, run: fn(&Device) -> Outcome| {
        // Separate devices, so that their counts are only this test's.
        trials.push(Trial::test(format!("plan::{name}"), move || run(&Device::cpu())));
        trials.push(gpu_trial(format!("plan::gpu::{name}"), move |device| run(&device.for_testing(0))));
    };
    both("is_made_once_for_each_batch_size", one_plan);
    both("golden_step", golden_step);
    both("fuses_elementwise_work", fusion);
    both("reuses_memory", reuse);
    both("updates_in_place", in_place);
    both("writes_a_constant_out_once", constants);
    both("multiplies_all_rows_by_a_shared_factor_at_once", shared_factors);
    both("leaves_out_frozen_parameters", frozen);
    both("leaves_out_unread_values", unread);
    both("gives_the_same_bits_again", same_bits);
    both("gives_the_same_bits_of_long_sums", same_bits_of_long_sums);
    trials.push(Trial::test("plan::is_kept_beside_many", many_plans));
}

#[derive(Module, Debug)]
#[module(sequential)]
struct Dropped {
    #[module(init = Linear::new(36, 8), before = flatten, then = relu)]
    hidden: Linear,
    #[module(init = Dropout::new(0.5))]
    dropout: Dropout,
    #[module(init = Linear::new(8, 3))]
    head: Linear,
}

fn one_plan(device: &Device) -> Outcome {
    let labels: Vec<_> = (0..20).map(|i| i % 3).collect();
    let pixels = normal("pixels", 20 * 36).into_iter().map(|x| x as f32).collect();
    let dataset = Dataset::new(pixels, [1, 6, 6], labels)?;
    let mut net = Dropped::init(device, 1)?;
    let mut optimizer = AdamW::new(0.01);
    let (mut steps, mut losses) = (0u64, Vec::new());
    for epoch in 0..35 {
        for batch in dataset.batches(8).shuffle(7).epoch(epoch).on(device) {
            let batch = batch?;
            // Changes that need no new plan: the rate, dropout, the norm, each tape's seed, the order of examples.
            optimizer.set_lr(0.01 / (1 + steps) as f64);
            net.dropout.p = 0.5 / (1 + epoch) as f64;
            let (loss, grads) = record(&net, &batch.inputs, &batch.targets)?;
            let grads = grads.clip_norm(&net, 1.0 + epoch as f64)?;
            optimizer.step(&mut net, &grads)?;
            losses.push(loss.item()?);
            steps += 1;
            assert_eq!(device.stats().plans, if steps < 3 { 1 } else { 2 }, "after {steps} steps");
        }
    }
    let stats = device.stats();
    assert!(steps > 100 && losses.iter().all(|loss| loss.is_finite()));
    assert_eq!(stats.runs, steps, "one run a step: forward, backward and update");
    assert_eq!(stats.submissions, if device.is_gpu() { steps } else { 0 });
    assert_eq!(device.plan_dumps().len(), 2);
    Ok(())
}

/// The plan of a model's training step on a device without earlier plans.
fn step_of<M: FromSeed + Layer>(device: &Device, optimizer: &mut dyn Optimizer) -> Result<String> {
    let mut net = M::from_seed(device, Seed::new(1))?;
    let (images, labels) = images(device, "plan", 4)?;
    let (loss, grads) = record(&net, &images, &labels)?;
    optimizer.step(&mut net, &grads)?;
    loss.item()?;
    let mut dumps = device.plan_dumps();
    assert_eq!(dumps.len(), 1, "a step is one plan, and reading a held loss needs no other");
    Ok(dumps.remove(0))
}

fn golden_step(device: &Device) -> Outcome {
    let dump = step_of::<Tiny>(device, &mut AdamW::new(0.01))?;
    golden::check_plan(if device.is_gpu() { "plan_step_gpu" } else { "plan_step_cpu" }, &dump)
}

/// The steps in a dump: the places of their results with their bytes, and their work.
fn steps(dump: &str) -> Vec<(Vec<(&str, usize)>, &str)> {
    let numbered = |line: &&str| line.trim_start().starts_with(|c: char| c.is_ascii_digit());
    dump.lines().filter(numbered).map(step).collect()
}

fn step(line: &str) -> (Vec<(&str, usize)>, &str) {
    let (results, work) = line.split_once(" = ").expect("a step computes something");
    let results = results.trim_start().trim_start_matches(|c: char| c.is_ascii_digit()).trim_start();
    (results.split_inclusive(']').map(place_and_bytes).collect(), work)
}

/// `slot0: f32[4, 3]`, perhaps after a comma.
fn place_and_bytes(text: &str) -> (&str, usize) {
    let (place, ty) = text.trim_start_matches([',', ' ']).split_once(": ").expect("a place and a type");
    let dims = ty.trim_end_matches(']').split_once('[').expect("a shape").1;
    let dims = dims.split(", ").filter(|extent| !extent.is_empty());
    (place, 4 * dims.map(|extent| extent.parse::<usize>().expect("an extent")).product::<usize>())
}

fn fusion(device: &Device) -> Outcome {
    let tape = Tape::new(device);
    let x = tape.input(&tensor(device, "x", [5, 7])?);
    let bias = tape.input(&tensor(device, "bias", [7])?);
    let y = (((&x * 2.0 + &bias).relu() * &x).tanh() - 0.5).square();
    drop((x, bias));
    y.to_vec()?;
    let dumps = device.plan_dumps();
    assert_eq!(steps(&dumps[0]).len(), 1, "{}", dumps[0]);
    assert_eq!(device.stats().launches, 1);
    // In a whole training step, everything between two kernels is one launch.
    let device = if device.is_gpu() { device.for_testing(0) } else { Device::cpu() };
    let dump = step_of::<Tiny>(&device, &mut AdamW::new(0.01))?;
    let fused = |(_, work): &&(Vec<_>, &str)| work.starts_with("fused");
    let all = steps(&dump);
    let elementwise = all.iter().filter(fused).count();
    let operations = dump.matches("; t").count() + elementwise;
    assert!(operations > 3 * elementwise, "{operations} operations in {elementwise} steps:\n{dump}");
    Ok(())
}

fn reuse(device: &Device) -> Outcome {
    let dump = step_of::<Tiny>(device, &mut AdamW::new(0.01))?;
    let all = steps(&dump);
    let temporary = all.iter().flat_map(|(results, _)| results).filter(|(place, _)| place.starts_with("slot"));
    let written: usize = temporary.map(|(_, bytes)| bytes).sum();
    let line = dump.lines().find(|line| line.starts_with("slots: ")).expect("dumps say it");
    let total = line.rsplit_once(" bytes, ").and_then(|(_, rest)| rest.split(' ').next()).expect("dumps say it");
    let total: usize = total.parse().expect("a number");
    // If kernels do the elementwise work, fewer values are stored in the first place.
    let most = if device.is_gpu() { written * 7 / 8 } else { written * 3 / 4 };
    assert!(total > 0 && total < most, "{total} bytes for {written}:\n{dump}");
    Ok(())
}

fn in_place(device: &Device) -> Outcome {
    for (optimizer, tensors) in [
        (&mut AdamW::new(0.01) as &mut dyn Optimizer, 3),
        (&mut Sgd::new(0.01).momentum(0.9), 2),
        (&mut Sgd::new(0.01), 1),
    ] {
        let device = if device.is_gpu() { device.for_testing(0) } else { Device::cpu() };
        let dump = step_of::<Tiny>(&device, optimizer)?;
        let all = steps(&dump);
        let updates = all.iter().filter(|(results, _)| results[0].0.starts_with("leaf"));
        let mut parameters = 0;
        for (results, work) in updates {
            // One step writes a parameter and its state, and nothing else. A step without instructions would be a copy.
            assert!(results.len() == tensors && results.iter().all(|(place, _)| place.starts_with("leaf")), "{dump}");
            assert!(work.contains("t0 = "), "{dump}");
            parameters += 1;
        }
        // Four layers with a weight and a bias each.
        assert_eq!(parameters, 8, "{dump}");
    }
    Ok(())
}

fn frozen(device: &Device) -> Outcome {
    let other = if device.is_gpu() { device.for_testing(0) } else { Device::cpu() };
    let whole = step_of::<Tiny>(device, &mut Sgd::new(0.01))?;
    let part = step_of::<FrozenStem>(&other, &mut Sgd::new(0.01))?;
    let count = |dump: &str, op: &str| steps(dump).iter().filter(|(_, work)| work.starts_with(op)).count();
    for (op, with, without) in [
        ("conv2d(", 2, 2),
        ("conv2d_grad_weight {", 2, 1),
        ("conv2d_grad_input {", 1, 1),
        // This kernel computes the parameters' gradients as well.
        ("group_norm_grad {", 1, 1),
    ] {
        assert_eq!((count(&whole, op), count(&part, op)), (with, without), "{op}\n{whole}\n{part}");
    }
    assert!(other.stats().launches < device.stats().launches);
    Ok(())
}

fn unread(device: &Device) -> Outcome {
    let tape = Tape::new(device);
    let x = tape.input(&tensor(device, "x", [3, 3])?);
    let wanted = x.exp();
    drop(x.matmul(&x).softmax(1));
    wanted.to_vec()?;
    assert!(!device.plan_dumps()[0].contains("matmul"));
    assert_eq!(device.stats().launches, 1);
    // Known values are not computed again.
    wanted.to_vec()?;
    assert_eq!(device.stats().runs, 1);
    Ok(())
}

fn same_bits(device: &Device) -> Outcome {
    let run = || -> Result<_> {
        device.set_seed(5);
        let (mut net, mut dropped) = (Tiny::init(device, 1)?, Dropped::init(device, 1)?);
        let (mut optimizer, mut other) = (AdamW::new(0.01), Sgd::new(0.1).momentum(0.9));
        let (images, labels) = images(device, "bits", 7)?;
        let mut losses = Vec::new();
        for _ in 0..3 {
            let (loss, grads) = record(&net, &images, &labels)?;
            optimizer.step(&mut net, &grads)?;
            losses.push(loss.item()?.to_bits());
            let (loss, grads) = record(&dropped, &images, &labels)?;
            other.step(&mut dropped, &grads)?;
            losses.push(loss.item()?.to_bits());
        }
        Ok((losses, bits(&net)?, bits(&dropped)?))
    };
    let first = run()?;
    assert_eq!(first, run()?);
    // The losses do change.
    assert!(first.0.iter().collect::<std::collections::HashSet<_>>().len() == first.0.len());
    Ok(())
}

/// The product of rows in several axes, and the gradient of the factor, a sum over all of them.
fn shared_factors(device: &Device) -> Outcome {
    let tape = Tape::new(device);
    let [x, w] = [("x", &[6, 2, 40][..]), ("w", &[40, 36])].map(|(name, shape)| tensor(device, name, shape));
    let (x, w) = (tape.input(&x?), tape.input(&w?));
    let grads = tape.backward(&x.matmul(&w).square().sum())?;
    grads.of(&w).expect("depends").to_vec()?;
    let plan = device.plan_dumps().pop().expect("a plan was made");
    assert_eq!(plan.matches("= matmul").count(), 2, "{plan}");
    assert!(plan.contains("f32[40, 36] = matmul(leaf0~[40, 12]"), "{plan}");
    Ok(())
}

/// Normalisations read their weights from memory. Without weights, all of them share constant ones and zeros.
fn constants(device: &Device) -> Outcome {
    let norm = LayerNorm::new([7]).affine(false).init(device, Seed::new(0))?;
    let tape = Tape::new(device);
    let x = tape.input(&tensor(device, "x", [5, 7])?);
    let y = [&norm; 4].iter().fold(x.clone(), |x, norm| norm.forward(&x).tanh());
    let dx = tape.backward(&y.sum())?.of(&x).expect("depends");
    dx.to_vec()?;
    let dumps = device.plan_dumps();
    let fills: Vec<_> = steps(&dumps[0])
        .into_iter()
        .filter(|(results, work)| results[0].1 == 4 && work.starts_with("fused { 1 }"))
        .collect();
    assert_eq!(fills.len(), 1, "{}", dumps[0]);
    Ok(())
}

/// A model with sums so long that they are split: in groups, in channels and over the batch.
#[derive(Module, Debug)]
#[module(sequential)]
struct Large {
    #[module(init = Conv2d::new(1, 8, 3).padding(1))]
    stem: Conv2d,
    #[module(init = GroupNorm::new(2, 8), then = relu)]
    norm: GroupNorm,
    #[module(init = Linear::new(8 * 40 * 40, 3), before = flatten)]
    head: Linear,
}

/// Steps from the same state give the same loss, gradients, parameters and optimizer state.
fn same_bits_of_long_sums(device: &Device) -> Outcome {
    let images = tensor(device, "images", [16, 1, 40, 40])?;
    let labels = Tensor::indices(device, [16], &std::array::from_fn::<u32, 16, _>(|i| i as u32 % 3))?;
    let to_bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let run = || -> Result<_> {
        let mut net = Large::init(device, 1)?;
        let mut optimizer = Sgd::new(0.1).momentum(0.9);
        let (loss, grads) = record(&net, &images, &labels)?;
        let gradients: Vec<_> =
            net.named_parameters().into_iter().map(|(_, param)| grads.get(param).expect("trained")).collect();
        optimizer.step(&mut net, &grads)?;
        let gradients = gradients.iter().map(|x| Ok(to_bits(&x.to_vec()?))).collect::<Result<Vec<_>>>()?;
        let once = bits(&net)?;
        // The second step depends on the optimizer's state.
        let (_, grads) = record(&net, &images, &labels)?;
        optimizer.step(&mut net, &grads)?;
        Ok((loss.item()?.to_bits(), gradients, once, bits(&net)?))
    };
    let first = run()?;
    assert_eq!(first, run()?);
    assert!(first.1.iter().all(|gradient| gradient.iter().any(|&bits| bits << 1 != 0)), "no gradient is 0");
    assert_ne!(first.2, first.3);
    if device.is_gpu() {
        let dumps = device.plan_dumps().concat();
        let is_split = |line: &str| line.contains("sum {") && line.matches("reduce×").count() > 1;
        assert!(dumps.lines().any(is_split), "no sum was split: {dumps}");
    }
    Ok(())
}

/// The number of small plans is not limited.
fn many_plans() -> Outcome {
    let device = Device::cpu();
    let run = |n: usize| -> Result<Vec<f32>> {
        let x = tensor(&device, "x", [n])?;
        Tape::new(&device).input(&x).abs().to_vec()
    };
    for n in 1..=70 {
        run(n)?;
    }
    assert_eq!((device.stats().plans, device.plan_dumps().len()), (70, 70));
    assert_eq!((run(70)?.len(), device.stats().plans), (70, 70));
    assert_eq!((run(1)?.len(), device.stats().plans), (1, 70));
    Ok(())
}
