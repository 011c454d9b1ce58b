//! Low-rank adapters: attached to every kind of layer, trained alone, saved alone, and merged.

use std::sync::Arc;

use libtest_mimic::Trial;
use meganeura::check::{gradcheck, gradgradcheck};
use meganeura::io::{Names, save_tensors};
use meganeura::nn::{Conv2d, ConvTranspose2d, GroupNorm, Linear, MultiheadAttention};
use meganeura::ops::Padding;
use meganeura::optim::{Adam, AdamW, Ema, Optimizer, Sgd, TrainStep};
use meganeura::prelude::{Adapters, Checkpoint, Lora};
use meganeura::{Device, ErrorKind, Init, Layer, Module, ModuleExt, Param, Precision, Result, Seed, Tape, Tensor, Var};
use safetensors::SafeTensors;

use crate::Outcome;
use crate::adapter::gpu_trial;
use crate::nets::{bits, randomise, tensor};
use crate::numbers::{Computed, Reference, compare};

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    let mut both = |name: &str, run: fn(&Device) -> Outcome| {
        trials.push(Trial::test(format!("lora::{name}"), move || run(&Device::cpu().for_testing(0))));
        trials.push(gpu_trial(format!("lora::gpu::{name}"), move |device| run(&device.for_testing(0))));
    };
    both("attaching_changes_nothing", attached);
    both("merged_equals_adapted", merged);
    both("other_holders_of_merged_adapters_add_nothing", held_elsewhere);
    both("trains_alone", trains);
    both("is_saved_alone", saved);
    both("a_compiled_step_trains_it", compiled_step);
    trials.push(Trial::test("lora::gradients", gradients));
    trials.push(Trial::test("lora::the_weight_has_no_gradient_of_its_size", cheap));
    trials.push(Trial::test("lora::clones_averages_and_summaries_have_it", leaves));
    trials.push(Trial::test("lora::a_tied_weight_has_one", tied));
    trials.push(Trial::test("lora::bad_input_changes_nothing", bad_input));
    trials.push(Trial::test("lora::nothing_of_a_peft_file_is_ignored", peft));
}

/// A model with layers of both kinds: those that apply the factors one by one, and those that add up the weight.
#[derive(Module, Debug, Clone)]
#[module(sequential)]
struct Net {
    #[module(init = Conv2d::new(2, 6, 3).stride(2).padding(1).padding_mode(Padding::Reflect))]
    stem: Conv2d,
    #[module(init = Conv2d::new(6, 4, (2, 3)).padding((1, 0)).dilation((1, 2)).groups(2))]
    grouped: Conv2d,
    #[module(init = GroupNorm::new(2, 4), then = silu)]
    norm: GroupNorm,
    #[module(init = ConvTranspose2d::new(4, 6, 2), then = self::flatten_pixels)]
    up: ConvTranspose2d,
    #[module(init = MultiheadAttention::new(6, 2))]
    attention: MultiheadAttention,
    #[module(init = Linear::new(6, 3))]
    head: Linear,
}

/// `[N, C, H, W]` as `[N, H·W, C]`.
fn flatten_pixels(x: &Var) -> Var {
    let [n, c, h, w] = *x.shape().dims() else { return x.clone() };
    x.reshape([n, c, h * w]).permute(&[0, 2, 1])
}

fn net(device: &Device) -> Result<Net> {
    let mut net = Net::init(device, 3)?;
    randomise(&mut net)?;
    Ok(net)
}

fn images(device: &Device) -> Result<Tensor> {
    tensor(device, "images", [2, 2, 8, 9])
}

fn forward(net: &Net, tape: &Tape) -> Result<Var> {
    Ok(net.forward(&tape.input(&images(&tape.device())?)))
}

fn output(net: &Net, device: &Device) -> Result<Vec<f64>> {
    forward(net, &Tape::inference(device))?.to_tensor()?.to_f64_vec()
}

/// With adapters whose factors are not 0.
fn adapted(device: &Device) -> Result<Net> {
    let mut net = net(device)?;
    Lora::new(2).alpha(3.0).attach(&mut net, "**.weight", 5)?;
    randomise(&mut net)?;
    Ok(net)
}

fn attached(device: &Device) -> Outcome {
    let mut net = net(device)?;
    let before = output(&net, device)?;
    let weights =
        net.leaves().iter().filter(|leaf| leaf.path.ends_with("weight") && leaf.ty().shape.rank() > 1).count();
    assert_eq!(Lora::new(3).attach(&mut net, "**", 5)?, weights);
    compare("the output", &Computed(output(&net, device)?), &Reference(before), 1e-5)?;
    // PEFT's distribution: different numbers in each adapter, the same for the same seed.
    let a = |path: &str| net.leaves().into_iter().find(|leaf| leaf.path == path).expect("there").value().to_f64_vec();
    let (stem, head) = (a("stem.weight.lora_a")?, a("head.weight.lora_a")?);
    assert_eq!((stem.len(), head.len()), (3 * 2 * 9, 3 * 6));
    assert!(stem.iter().all(|x| x.abs() <= 1.0 / 18f64.sqrt()) && stem.iter().any(|x| x.abs() > 0.1), "{stem:?}");
    assert!(a("head.weight.lora_b")?.iter().all(|x| *x == 0.0));
    let mut again = super::lora::net(device)?;
    Lora::new(3).attach(&mut again, "**", 5)?;
    assert_eq!(bits(&again)?, bits(&net)?);
    Ok(())
}

fn merged(device: &Device) -> Outcome {
    for (device, tolerance) in [(device.clone(), 1e-5), (Device::cpu_with(Precision::Double), 1e-12)] {
        let mut net = adapted(&device)?;
        let (before, base) = (output(&net, &device)?, {
            let mut base = net.clone();
            Lora::detach(&mut base)?;
            output(&base, &device)?
        });
        assert!(compare("", &Computed(before.clone()), &Reference(base), 0.05).is_err(), "the adapters do nothing");
        let count = net.leaves().len();
        let adapters = Lora::merge(&mut net)?;
        assert_eq!(net.leaves().len(), count - 3 * adapters);
        assert!(net.counts().trained == 0 && !net.head.weight.is_adapted());
        compare("the output", &Computed(output(&net, &device)?), &Reference(before), tolerance)?;
    }
    Ok(())
}

fn held_elsewhere(device: &Device) -> Outcome {
    let mut net = (Linear::new(4, 3),).init(device, Seed::new(1))?;
    Lora::new(2).attach(&mut net, "**", 1)?;
    randomise(&mut net)?;
    let x = tensor(device, "x", [5, 4])?;
    let compiled = device.compile([5, 4], |x| net.0.forward(x))?;
    let other = (net.0.weight.tied(),);
    let before = compiled.call(&x)?.to_f64_vec()?;
    Lora::merge(&mut net)?;
    compare("compiled", &Computed(compiled.call(&x)?.to_f64_vec()?), &Reference(before), 1e-5)?;
    let sum = Tape::inference(device).param(&other.0).to_tensor()?.to_f64_vec()?;
    assert_eq!(sum, net.0.weight.value().to_f64_vec()?);
    Ok(())
}

fn step(net: &mut Net, optimizer: &mut dyn Optimizer, device: &Device) -> Result<f64> {
    let tape = Tape::new(device);
    let loss = (forward(net, &tape)? - 0.5).square().mean();
    let grads = tape.backward(&loss)?;
    optimizer.step(net, &grads)?;
    Ok(loss.to_tensor()?.to_f64_vec()?[0])
}

/// Bits by path.
type Bits = Vec<(String, Vec<u64>)>;

/// The bits of the model without its adapters, and of the adapters.
fn parts(net: &Net) -> Result<[Bits; 2]> {
    let (factors, base) = bits(net)?.into_iter().partition(|(path, _)| path.contains(".lora_"));
    Ok([base, factors])
}

fn trains(device: &Device) -> Outcome {
    let mut net = net(device)?;
    Lora::new(2).attach(&mut net, "**.weight", 5)?;
    let [base, factors] = parts(&net)?;
    let mut optimizer = AdamW::new(0.02);
    let losses = (0..30).map(|_| step(&mut net, &mut optimizer, device)).collect::<Result<Vec<_>>>()?;
    assert!(losses[29] < 0.8 * losses[0], "{losses:?}");
    let [after, changed] = parts(&net)?;
    assert_eq!(base, after, "frozen");
    for ((path, before), (_, after)) in factors.iter().zip(&changed) {
        assert_eq!(before == after, path.ends_with("lora_scale"), "{path}");
    }
    // The optimizer's state covers only the factors.
    let tensors = optimizer.state_of(&net).tensors;
    assert!(!tensors.is_empty() && tensors.keys().all(|name| name.contains(".lora_")), "{:?}", tensors.keys());
    // Other parameters may be trained as well.
    net.thaw("head.bias")?;
    step(&mut net, &mut Sgd::new(0.1), device)?;
    let moved: Vec<_> = parts(&net)?[0].iter().zip(&after).filter(|(a, b)| a != b).map(|(a, _)| a.0.clone()).collect();
    assert_eq!(moved, ["head.bias"]);
    Ok(())
}

fn saved(device: &Device) -> Outcome {
    let net = adapted(device)?;
    let bytes = Adapters::of(&net).to_safetensors()?;
    let names: Vec<_> = SafeTensors::deserialize(&bytes)?.names().iter().map(|name| (*name).to_owned()).collect();
    assert!(names.len() > 3 && names.iter().all(|name| name.contains(".weight.lora_")), "{names:?}");
    assert_eq!(Adapters::of(&net).parameter_count(), net.counts().trained);

    let mut other = super::lora::net(device)?;
    Lora::new(2).attach(&mut other, "**.weight", 6)?;
    other.copy_from(&net)?;
    randomise(&mut other)?;
    Lora::detach(&mut other)?;
    // Starts with another factor α/r, which the file replaces.
    Lora::new(2).alpha(9.0).attach(&mut other, "**.weight", 6)?;
    Adapters::of(&other).load_safetensors(&bytes)?.strict()?;
    assert_eq!(bits(&other)?, bits(&net)?);

    // Attached to a model without adapters, from nothing but the file.
    let (folder, mut loaded) = (tempfile::tempdir()?, super::lora::net(device)?);
    let file = |name: &str| folder.path().join(name);
    Adapters::of(&net).save(file("adapters"))?;
    assert_eq!(Lora::load(&mut loaded, file("adapters"))?, names.len() / 3);
    assert_eq!(parts(&loaded)?[1], parts(&net)?[1]);
    assert_eq!(loaded.counts(), net.counts());

    // A model without adapters has nowhere to load them; adapters of another rank do not fit.
    let mut base = super::lora::net(device)?;
    let error = Adapters::of(&base).load_safetensors(&bytes).expect_err("no adapters");
    assert!(error.kind() == ErrorKind::Checkpoint && error.to_string().contains("has no place for it"), "{error}");
    Lora::new(3).attach(&mut base, "**.weight", 6)?;
    let before = bits(&base)?;
    let error = Adapters::of(&base).load_safetensors(&bytes).expect_err("rank 3");
    assert!(error.kind() == ErrorKind::Checkpoint && error.to_string().contains("lora_a"), "{error}");
    assert_eq!(bits(&base)?, before);
    let mut small = Linear::new(6, 3).init(device, Seed::new(1))?;
    let a = Tensor::zeros(device, [2, 5])?;
    save_tensors(file("half"), [("weight.lora_a", &a)])?;
    save_tensors(file("wide"), [("weight.lora_a", &a), ("weight.lora_b", &a), ("weight.lora_scale", &a)])?;
    net.save(file("whole"))?;
    let before = bits(&small)?;
    for (name, message) in [
        ("half", "the adapter of `weight` is incomplete"),
        ("wide", "an adapter of [2, 5], [2, 5] and [2, 5] does not fit `weight` f32[3, 6]"),
        ("whole", "does not belong to an adapter of the module"),
        ("adapters", "does not belong to an adapter of the module"),
    ] {
        let error = Lora::load(&mut small, file(name)).expect_err(message);
        assert!(error.kind() == ErrorKind::Checkpoint && error.to_string().contains(message), "{error}");
        assert!(error.location().is_some_and(|at| at.file().ends_with("lora.rs")), "{error}");
    }
    assert!(Lora::load(&mut loaded, file("adapters")).expect_err("twice").to_string().contains("has an adapter"));
    assert!(bits(&small)? == before && small.counts().frozen == 0);
    // The whole model with its adapters can be saved, too.
    let mut whole = adapted(device)?;
    whole.head.bias.as_mut().expect("there").set(Tensor::zeros(device, [3])?)?;
    whole.load_safetensors(&net.to_safetensors()?)?.strict()?;
    assert_eq!(bits(&whole)?, bits(&net)?);
    Ok(())
}

fn compiled_step(device: &Device) -> Outcome {
    let [mut net, mut other] = [adapted(device)?, adapted(device)?];
    let (mut rule, mut other_rule) = (Adam::new(0.01), Adam::new(0.01));
    let images = images(device)?;
    let mut compiled = TrainStep::new(&mut other, |net: &Net, x: &Var| (net.forward(x) - 0.5).square().mean());
    for _ in 0..3 {
        step(&mut net, &mut rule, device)?;
        compiled.call(&mut other_rule, &images)?;
    }
    assert_eq!(compiled.recorded(), 1);
    // Adapters that are attached later are noticed.
    Lora::merge(compiled.module_mut())?;
    Lora::new(1).attach(compiled.module_mut(), "head.weight", 1)?;
    compiled.call(&mut Adam::new(0.01), &images)?;
    assert_eq!(compiled.recorded(), 2);
    Lora::merge(&mut net)?;
    Lora::new(1).attach(&mut net, "head.weight", 1)?;
    step(&mut net, &mut Adam::new(0.01), device)?;
    assert_eq!(bits(&net)?, bits(&other)?);
    Ok(())
}

fn gradients() -> Outcome {
    let device = Device::cpu_with(Precision::Double);
    let mut net = adapted(&device)?;
    let x = [images(&device)?];
    let report = gradcheck(&net, &x, |net, x| vec![net.forward(&x[0])])?;
    report.ok()?;
    assert_eq!(report.entries.len(), Adapters::of(&net).leaves().len() / 3 * 2 + 1, "both factors, and the input");
    assert!(report.entries.iter().all(|entry| entry.analytic != 0.0 || entry.largest_absolute > 0.0), "{report}");
    // The weight may be trained as well.
    net.thaw("**.weight")?;
    gradcheck(&net, &x, |net, x| vec![net.forward(&x[0])])?.ok()?;
    let linear = Linear::new(4, 3).init(&device, Seed::new(1))?;
    let mut linear = (linear,);
    Lora::new(2).attach(&mut linear, "**", 1)?;
    randomise(&mut linear)?;
    let x = [tensor(&device, "x", [5, 4])?];
    gradgradcheck(&linear, &x, |linear, x| vec![linear.0.forward(&x[0]).tanh()])?.ok()?;
    // The Hessian-vector product for a vector on the weight alone is not zero.
    linear.thaw("0.weight")?;
    let tape = Tape::new(&device);
    let loss = linear.0.forward(&tape.input(&x[0])).tanh().square().sum();
    let v = tape.input(&tensor(&device, "v", [3, 4])?);
    let product = tape.module_hvp(&loss, &linear, &[("0.weight".to_owned(), v)])?;
    assert!(product.get(&linear.0.weight).expect("it is trained").to_tensor()?.to_f64_vec()?.iter().all(|x| *x != 0.0));
    Ok(())
}

/// No step of the plan produces anything of a weight's size.
fn cheap() -> Outcome {
    let device = Device::cpu().for_testing(0);
    let mut net = (Conv2d::new(5, 7, 3), Linear::new(13, 11)).init(&device, Seed::new(1))?;
    Lora::new(2).attach(&mut net, "*.weight", 1)?;
    let tape = Tape::new(&device);
    let y = net.0.forward(&tape.input(&Tensor::full(&device, [1, 5, 5, 15], 0.5)?));
    let grads = tape.backward(&net.1.forward(&y).square().sum())?;
    assert_eq!(grads.named(&net)?.len(), 4, "two factors each");
    Sgd::new(0.1).step(&mut net, &grads)?;
    let plan = device.plan_dumps().concat();
    let made = |shape: &str| plan.lines().any(|line| line.split(" = ").next().is_some_and(|made| made.contains(shape)));
    for shape in ["[7, 5, 3, 3]", "[7, 45]", "[11, 13]", "[13, 11]"] {
        assert!(!made(shape), "{plan}");
    }
    assert!(made("[2, 13]") && made("[2, 45]"), "{plan}");
    Ok(())
}

fn leaves() -> Outcome {
    let device = Device::cpu();
    let net = adapted(&device)?;
    let copy = net.clone();
    assert_eq!(bits(&copy)?, bits(&net)?);
    assert!(!copy.head.weight.is_tied_to(&net.head.weight));
    let mut moved = net.clone();
    step(&mut moved, &mut Sgd::new(0.1), &device)?;
    assert_eq!(bits(&copy)?, bits(&net)?, "a clone's adapters are its own");
    let mut average = Ema::new(&net, 0.5)?;
    average.update(&moved)?;
    assert_ne!(parts(average.model())?[1], parts(&net)?[1]);
    let error = moved.copy_from(&super::lora::net(&device)?).expect_err("one has adapters");
    assert!(error.to_string().contains("`stem.weight.lora_a` is in the one model only"), "{error}");
    let text = net.summary().to_string();
    for line in ["weight  ", "lora_a  ", "lora_b  ", "lora_scale  "] {
        assert!(text.contains(line), "{text}");
    }
    Ok(())
}

/// One weight in two places.
#[derive(Module, Debug, Clone)]
struct Tied {
    input: Linear,
    output: Linear,
}

fn tied() -> Outcome {
    let device = Device::cpu();
    let input = Linear::new(4, 4).init(&device, Seed::new(1))?;
    let mut output = Linear::new(4, 4).init(&device, Seed::new(2))?;
    output.weight = input.weight.tied();
    let mut net = Tied { input, output };
    assert_eq!(Lora::new(2).attach(&mut net, "output.weight", 1)?, 1);
    assert!(net.input.weight.is_adapted() && net.output.weight.is_adapted());
    assert_eq!(net.leaves().iter().filter(|leaf| leaf.path.contains(".lora_")).count(), 3);
    randomise(&mut net)?;
    let run = |net: &Tied| {
        let x = Tape::inference(&device).input(&tensor(&device, "x", [3, 4])?);
        net.output.forward(&net.input.forward(&x).tanh()).to_tensor()?.to_f64_vec()
    };
    let before = run(&net)?;
    assert_eq!(
        run(&{
            let mut copy = net.clone();
            copy.tie_like(&net)?;
            copy.load_safetensors(&net.to_safetensors()?)?.strict()?;
            copy
        })?,
        before
    );
    // A clone of a model without adapters gets one at a tied weight.
    let mut plain = net.clone();
    plain.tie_like(&net)?;
    Lora::detach(&mut plain)?;
    let mut apart = plain.clone();
    Lora::new(2).attach(&mut apart, "output.weight", 1)?;
    let error = apart.tie_like(&plain).expect_err("one has an adapter");
    assert!(error.to_string().contains("one of them has an adapter, the other has none"), "{error}");
    assert_eq!(Lora::merge(&mut net)?, 1);
    assert!(net.input.weight.is_tied_to(&net.output.weight) && !net.output.weight.is_adapted());
    compare("the output", &Computed(run(&net)?), &Reference(before), 1e-5)?;
    Ok(())
}

/// Adapters under PEFT's names, with its settings beside them.
fn peft() -> Outcome {
    let device = Device::cpu();
    let base = (Linear::new(6, 5), Linear::new(5, 4)).init(&device, Seed::new(1))?;
    let folder = tempfile::tempdir()?;
    let file = |name: &str| folder.path().join(name);
    let [a, b] = [tensor(&device, "a", [4, 6])?, tensor(&device, "b", [5, 4])?];
    let (magnitude, bias) = (tensor(&device, "magnitude", [5])?, tensor(&device, "bias", [5])?);
    let (name_a, name_b) = ("base_model.model.0.lora_A.weight", "base_model.model.0.lora_B.weight");
    let names = Names::new()
        .rename("base_model.model.**.lora_A.weight", "**.weight.lora_a")
        .rename("base_model.model.**.lora_B.weight", "**.weight.lora_b")
        .rename("base_model.model.**", "**");
    let adapted = || {
        let mut net = base.clone();
        Lora::new(4).attach(&mut net, "0.weight", 7).map(|_| net)
    };
    let scale = |net: &(Linear, Linear)| -> Result<f64> {
        let leaves = net.leaves();
        leaves
            .iter()
            .find(|leaf| leaf.path.ends_with("lora_scale"))
            .expect("adapted")
            .value()
            .to_f64_vec()
            .map(|x| x[0])
    };
    save_tensors(file("plain"), [(name_a, &a), (name_b, &b)])?;
    // Without settings, α is the caller's, and the report says that the file has no scale.
    let net = adapted()?;
    assert_eq!(Adapters::of(&net).load_with(file("plain"), &names)?.missing, ["0.weight.lora_scale"]);
    assert_eq!(scale(&net)?, 1.0);
    for (settings, expected) in [(r#""use_rslora":false"#, 4.0), (r#""use_rslora":true,"bias":"none""#, 8.0)] {
        std::fs::write(
            file("adapter_config.json"),
            format!(r#"{{"peft_type":"LORA","r":4,"lora_alpha":16,{settings}}}"#),
        )?;
        let net = adapted()?;
        Adapters::of(&net).load_with(file("plain"), &names)?.strict()?;
        assert_eq!(scale(&net)?, expected);
    }
    let dora = r#"{"peft_type":"LORA","r":4,"lora_alpha":16,"use_dora":true}"#;
    std::fs::write(file("adapter_config.json"), dora)?;
    let mut net = adapted()?;
    let before = bits(&net)?;
    let error = net.load_with(file("plain"), &names).expect_err("DoRA");
    assert!(error.to_string().contains("`use_dora` is true: load the adapters by `Lora::load_peft`"), "{error}");
    std::fs::remove_file(file("adapter_config.json"))?;
    let (magnitudes, biases) = ("base_model.model.0.lora_magnitude_vector", "base_model.model.0.bias");
    save_tensors(file("dora"), [(name_a, &a), (name_b, &b), (magnitudes, &magnitude)])?;
    save_tensors(file("biases"), [(name_a, &a), (name_b, &b), (biases, &bias)])?;
    for (name, part) in [("dora", magnitudes), ("biases", biases)] {
        let error = Adapters::of(&net).load_with(file(name), &names).expect_err(part);
        assert!(error.kind() == ErrorKind::Checkpoint && error.to_string().contains(&format!("`{part}`")), "{error}");
        assert!(error.to_string().contains("no place"), "{error}");
        assert!(error.location().is_some_and(|at| at.file().ends_with("lora.rs")), "{error}");
        assert_eq!(bits(&net)?, before);
        let mut net = adapted()?;
        let allowed = names.clone().ignore("0.lora_magnitude_vector").ignore("0.bias");
        assert_eq!(Adapters::of(&net).load_with(file(name), &allowed)?.ignored, [part]);
        // The bias has a place in the whole model.
        let whole = net.load_with(file(name), &names);
        assert_eq!(whole.is_ok(), name == "biases");
    }
    // Factors of integers.
    let integers = Tensor::indices(&device, [4, 6], &[1; 24])?;
    let one = Tensor::full(&device, [], 1.0)?;
    save_tensors(
        file("integers"),
        [("0.weight.lora_a", &integers), ("0.weight.lora_b", &b), ("0.weight.lora_scale", &one)],
    )?;
    let mut plain = base.clone();
    let error = Lora::load(&mut plain, file("integers")).expect_err("integers");
    assert!(error.to_string().contains("the adapter of `0.weight` has a part u32[4, 6]"), "{error}");
    assert_eq!((bits(&plain)?, plain.counts().frozen), (bits(&base)?, 0));
    Ok(())
}

fn bad_input() -> Outcome {
    let device = Device::cpu();
    let mut net = net(&device)?;
    let before = bits(&net)?;
    let lora = Lora::new(2);
    for (result, message) in [
        (
            lora.attach(&mut net, "haed.weight", 1),
            "the pattern `haed.weight` selects no parameter; near it are `head.weight`",
        ),
        (
            lora.attach(&mut net, "*.bias", 1),
            "lora: the pattern `*.bias` selects no matrix and no kernel; `stem.bias` is f32[6]",
        ),
        (Lora::new(0).attach(&mut net, "**", 1), "lora: of rank 0 and α 0; the rank must be at least 1"),
        (lora.alpha(f64::NAN).attach(&mut net, "**", 1), "lora: of rank 2 and α NaN"),
        (Lora::merge(&mut net), "lora: no parameter of the module has an adapter"),
        (Lora::detach(&mut net), "lora: no parameter of the module has an adapter"),
    ] {
        let error = result.expect_err(message);
        assert_eq!(error.kind(), ErrorKind::Argument, "{error}");
        assert!(error.to_string().starts_with(message), "{error}");
        assert!(error.location().is_some_and(|at| at.file().ends_with("lora.rs")), "{error}");
    }
    assert!(net.counts().frozen == 0 && bits(&net)? == before);
    lora.attach(&mut net, "head.weight", 1)?;
    let before = bits(&net)?;
    for (pattern, message) in [
        ("**.weight", "lora: `head.weight` has an adapter; merge or detach it before it gets another"),
        ("head.weight.lora_a", "lora: `head.weight.lora_a` is a factor of an adapter itself"),
    ] {
        let error = lora.attach(&mut net, pattern, 1).expect_err(message);
        assert!(error.to_string().starts_with(message), "{error}");
    }
    assert!(bits(&net)? == before, "nothing changed");
    // Weights that have no adapter yet.
    lora.attach(&mut net, "stem.weight", 1)?;
    assert_eq!(net.counts().trained, 2 * (3 + 6) + 2 * (6 + 18));
    let mut shared = (Arc::new(Param::new(Tensor::zeros(&device, [2, 2])?)),);
    let error = lora.attach(&mut shared, "0", 1).expect_err("shared");
    assert!(error.to_string().starts_with("lora: `0` is in a module that is shared by `Arc`"), "{error}");
    assert!(!shared.0.is_frozen());
    Ok(())
}
