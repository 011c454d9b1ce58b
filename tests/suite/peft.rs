//! Adapters of PEFT: read and written, against PEFT's own results.

use std::fs;
use std::path::{Path, PathBuf};

use libtest_mimic::Trial;
use meganeura::io::{Names, load_tensors, save_tensors};
use meganeura::module::At;
use meganeura::optim::{Optimizer, Sgd};
use meganeura::prelude::*;
use meganeura::{ErrorKind, Param};

use crate::Outcome;
use crate::nets::{bits, randomise, tensor};

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    trials.push(Trial::test("peft::adapters_compute_what_they_did", computed));
    trials.push(Trial::test("peft::files_are_those_of_peft", written));
    trials.push(Trial::test("peft::saved_adapters_compute_the_same", saved));
    trials.push(Trial::test("peft::magnitudes_and_biases", magnitudes_and_biases));
    trials.push(Trial::test("peft::rules_rename_split_and_join", renamed));
    trials.push(Trial::test("peft::weights_of_a_transposed_layer", transposed));
    trials.push(Trial::test("peft::nothing_is_ignored", refused));
    trials.push(Trial::test("peft::damaged_files_change_nothing", damaged));
    trials.push(Trial::test("peft::dropout", dropout));
    trials.push(Trial::test("peft::dropout_with_magnitudes", dropout_with_magnitudes));
}

/// A layer of each kind that PEFT adapts: `Adapted` in `make_golden.py`.
#[derive(Module, Debug, Clone)]
struct Net {
    #[module(init = Embedding::new(7, 8))]
    embed: Embedding,
    #[module(init = Conv1d::new(8, 6, 3).padding(1))]
    conv: Conv1d,
    #[module(init = Conv2d::new(6, 9, (1, 3)).padding((0, 1)).groups(3))]
    grouped: Conv2d,
    #[module(init = Linear::new(9, 5))]
    mix: Linear,
    #[module(init = Linear::new(5, 3))]
    head: Linear,
}

impl Layer for Net {
    fn forward(&self, x: &Var) -> Var {
        let x = self.conv.forward(&self.embed.forward(x).permute(&[0, 2, 1]));
        let [n, c, t] = *x.shape().dims() else { return x };
        let x = self.grouped.forward(&x.reshape([n, c, 1, t])).reshape([n, 9, t]).permute(&[0, 2, 1]);
        self.head.forward(&self.mix.forward(&x).tanh())
    }
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("pytorch/peft").join(name)
}

fn answer(name: &str) -> Result<Tensor, meganeura::Error> {
    load_tensors(folder("answers.safetensors"), &Device::cpu())?.tensor(name).cloned()
}

fn base() -> Result<Net, meganeura::Error> {
    let mut net = Net::init(&Device::cpu(), 1)?;
    let names = Names::new().rename("base.**", "**").ignore("*.output").ignore("ids").ignore("output");
    net.load_with(folder("answers.safetensors"), &names)?.strict()?;
    Ok(net)
}

fn output(net: &Net) -> Result<Tensor, meganeura::Error> {
    net.forward(&Tape::inference(&Device::cpu()).input(&answer("ids")?)).to_tensor()
}

fn computed() -> Outcome {
    output(&base()?)?.expect_close(&answer("base.output")?, 1e-5, 1e-6)?;
    for name in ["plain", "patterns"] {
        let mut net = base()?;
        assert_eq!(Lora::load_peft(&mut net, folder(name), &Names::new())?, 4);
        // Sums of a few dozen terms of about 1.
        output(&net)?.expect_close(&answer(&format!("{name}.output"))?, 1e-5, 1e-5)?;
        let trained: Vec<_> =
            net.named_parameters().into_iter().filter(|(_, param)| !param.is_frozen()).map(|(name, _)| name).collect();
        let of_whole = trained.iter().filter(|name| !name.contains("lora_")).count();
        assert_eq!(of_whole, if name == "plain" { 5 } else { 0 }, "three biases and the head: {trained:?}");
        // By the file itself as well.
        let mut again = base()?;
        Lora::load_peft(&mut again, folder(name).join("adapter_model.safetensors"), &Names::new())?;
        assert_eq!(bits(&again)?, bits(&net)?);
        let error = Lora::merge(&mut net).expect_err("it has no sum with the kernel");
        assert!(error.to_string().contains("acts across the groups"), "{error}");
    }
    Ok(())
}

fn settings(folder: &Path) -> Result<serde_json::Value, Box<dyn std::error::Error>> {
    Ok(serde_json::from_slice(&fs::read(folder.join("adapter_config.json"))?)?)
}

fn written() -> Outcome {
    for (name, targets) in [
        ("plain", &["conv", "embed", "grouped", "mix"][..]),
        ("patterns", &["conv", "embed", "grouped", "mix"]),
        ("magnitudes", &["conv", "embed", "mix"]),
        ("biased", &["conv", "grouped", "mix"]),
    ] {
        let mut net = base()?;
        Lora::load_peft(&mut net, folder(name), &Names::new())?;
        let place = tempfile::tempdir()?;
        let place = place.path().join("new/folder");
        Lora::save_peft(&net, &place, &Names::new())?;
        let file = |folder: &Path| load_tensors(folder.join("adapter_model.safetensors"), &Device::cpu());
        let (ours, theirs) = (file(&place)?, file(&folder(name))?);
        assert!(ours.keys().eq(theirs.keys()), "{:?}", ours.keys());
        for (key, tensor) in &theirs {
            assert_eq!(ours[key].ty(), tensor.ty(), "{key}");
            ours[key].expect_close(tensor, 0.0, 0.0)?;
        }
        let (ours, theirs) = (settings(&place)?, settings(&folder(name))?);
        let keys = ["peft_type", "bias", "lora_dropout", "modules_to_save", "use_dora", "fan_in_fan_out"];
        for key in keys {
            assert_eq!(ours[key], theirs[key], "{key}");
        }
        assert_eq!(ours["lora_bias"], serde_json::json!(name == "biased"));
        assert_eq!(ours["target_modules"], serde_json::json!(targets));
        if name == "plain" {
            assert_eq!((&ours["r"], &ours["lora_alpha"]), (&serde_json::json!(3), &serde_json::json!(6)));
            assert_eq!(ours["alpha_pattern"], serde_json::json!({}));
        }
        let mut again = base()?;
        Lora::load_peft(&mut again, &place, &Names::new())?;
        assert_eq!(bits(&again)?, bits(&net)?);
    }
    Ok(())
}

/// `DoRA` and `lora_bias`: results and gradients are PEFT's, whose magnitudes have no gradient through the norm.
fn magnitudes_and_biases() -> Outcome {
    let gradients = load_tensors(folder("gradients.safetensors"), &Device::cpu())?;
    for (name, part) in [("magnitudes", "lora_magnitude"), ("biased", "lora_bias")] {
        let mut net = base()?;
        assert_eq!(Lora::load_peft(&mut net, folder(name), &Names::new())?, 3);
        output(&net)?.expect_close(&answer(&format!("{name}.output"))?, 1e-5, 1e-5)?;
        let tape = Tape::new(&Device::cpu());
        let grads = tape.backward(&net.forward(&tape.input(&answer("ids")?)).square().mean())?;
        let prefix = format!("{name}.");
        let mut compared = 0;
        for (key, expected) in gradients.iter().filter_map(|(key, tensor)| Some((key.strip_prefix(&*prefix)?, tensor)))
        {
            let (module, of_peft) = key.split_once('.').expect("a module and a part");
            // The factors of an embedding are those of the transposed weight.
            let (own, is_transposed) = match of_peft {
                "lora_A.weight" => ("lora_a", false),
                "lora_B.weight" => ("lora_b", false),
                "lora_embedding_A" => ("lora_b", true),
                "lora_embedding_B" => ("lora_a", true),
                _ => (part, false),
            };
            let gradient = grads.by_path(&format!("{module}.weight.{own}")).expect("it is trained");
            let gradient = if is_transposed { gradient.t() } else { gradient };
            let gradient = gradient.reshape(expected.shape()).to_tensor()?;
            gradient.expect_close(expected, 1e-4, 1e-6).map_err(|error| error.context(format_args!("{name} {key}")))?;
            compared += 1;
        }
        assert_eq!(compared, 9);
        // Files of this framework have them, too.
        let place = tempfile::tempdir()?;
        let file = place.path().join("own.safetensors");
        Adapters::of(&net).save(&file)?;
        let mut again = base()?;
        assert_eq!(Lora::load(&mut again, &file)?, 3);
        assert_eq!(bits(&again)?, bits(&net)?);
        // Rules alone have no place for them.
        let mut attached = base()?;
        Lora::new(2).attach(&mut attached, "**.weight", 1)?;
        let error = attached.load(folder(name).join("adapter_model.safetensors")).expect_err("another adapter");
        let setting = if name == "magnitudes" { "`use_dora` is true" } else { "`lora_bias` is true" };
        assert!(error.to_string().contains(setting), "{error}");
    }
    let mut net = base()?;
    Lora::load_peft(&mut net, folder("biased"), &Names::new())?;
    let before = bits(&net)?;
    Lora::merge(&mut net).expect_err("a bias has no place in a weight");
    assert_eq!(bits(&net)?, before);
    let mut net = base()?;
    Lora::load_peft(&mut net, folder("magnitudes"), &Names::new())?;
    let (holder, before) = (net.clone(), output(&net)?);
    Lora::merge(&mut net)?;
    output(&net)?.expect_close(&before, 1e-5, 1e-5)?;
    output(&holder)?.expect_close(&before, 1e-5, 1e-5)?;
    Ok(())
}

/// In training, elements are dropped of the input of all but the frozen weight.
fn dropout_with_magnitudes() -> Outcome {
    let device = Device::cpu();
    let place = tempfile::tempdir()?;
    let (a, b, m) = (tensor(&device, "a", [2, 3])?, tensor(&device, "b", [2, 2])?, tensor(&device, "m", [2])?);
    let name = |part: &str| format!("base_model.model.0.{part}");
    let tensors = [("lora_A.weight", &a), ("lora_B.weight", &b), ("lora_magnitude_vector", &m)];
    save_tensors(place.path().join("adapter_model.safetensors"), tensors.map(|(part, tensor)| (name(part), tensor)))?;
    let config = r#"{"peft_type":"LORA","r":2,"lora_alpha":2,"lora_dropout":0.25,"use_dora":true}"#;
    fs::write(place.path().join("adapter_config.json"), config)?;
    let mut linear = (Linear::new(3, 2),).init(&device, Seed::new(1))?;
    Lora::load_peft(&mut linear, place.path(), &Names::new())?;
    let x = Tensor::full(&device, [20_000, 3], 1.0)?;
    let mean = |tape: &Tape| linear.0.forward(&tape.input(&x)).mean_over(&[0]).to_tensor().and_then(|y| y.to_vec());
    let (dropped, whole) = (mean(&Tape::with_seed(&device, 3))?, mean(&Tape::inference(&device))?);
    // As in `dropout`.
    assert!(dropped.iter().zip(&whole).all(|(a, b)| (a - b).abs() < 0.05), "{dropped:?} {whole:?}");
    assert_ne!(dropped, whole);
    Ok(())
}

/// Sets the factors that start as 0.
fn fill(net: &mut Net) -> Result<(), meganeura::Error> {
    let mut result = Ok(());
    net.visit_mut(At::root(), &mut |at, mut slot| {
        if at.path().ends_with("lora_b") && result.is_ok() {
            let old = slot.value();
            result = tensor(old.device(), &at.path(), old.shape()).and_then(|fresh| slot.set(fresh));
        }
    });
    result
}

/// Adapters that are attached here, that of a convolution in groups too.
fn saved() -> Outcome {
    let mut net = base()?;
    Lora::new(2).alpha(3.0).attach(&mut net, "**.weight", 5)?;
    fill(&mut net)?;
    let before = output(&net)?;
    let place = tempfile::tempdir()?;
    Lora::save_peft(&net, place.path(), &Names::new())?;
    let mut other = net.clone();
    Lora::detach(&mut other)?;
    assert_eq!(Lora::load_peft(&mut other, place.path(), &Names::new())?, 5);
    assert_eq!(other.grouped.weight.shape(), net.grouped.weight.shape());
    output(&other)?.expect_close(&before, 1e-5, 1e-5)?;
    let settings = settings(place.path())?;
    assert_eq!(settings["rank_pattern"], serde_json::json!({"^grouped": 6}));
    assert_eq!(settings["alpha_pattern"], serde_json::json!({"^grouped": 9}));
    assert_eq!((&settings["r"], &settings["bias"]), (&serde_json::json!(2), &serde_json::json!("none")));
    Ok(())
}

#[derive(Module, Debug, Clone)]
struct Attention {
    #[module(init = Linear::new(4, 4))]
    query: Linear,
    #[module(init = Linear::new(4, 4))]
    key: Linear,
}

fn renamed() -> Outcome {
    let device = Device::cpu();
    let place = tempfile::tempdir()?;
    let (a, b) = (tensor(&device, "a", [2, 4])?, tensor(&device, "b", [8, 2])?);
    let name = |part: &str| format!("base_model.model.h.0.qkv.{part}.weight");
    save_tensors(place.path().join("adapter_model.safetensors"), [(name("lora_A"), &a), (name("lora_B"), &b)])?;
    fs::write(place.path().join("adapter_config.json"), r#"{"peft_type":"LORA","r":2,"lora_alpha":3}"#)?;
    let names = Names::new().split("h.0.qkv.*", ["query.*", "key.*"]);
    let mut net = Attention::init(&device, 1)?;
    let base = net.clone();
    assert_eq!(Lora::load_peft(&mut net, place.path(), &names)?, 2);
    // W + 1.5·B·A, with the upper rows of B for the queries.
    let sum = |param: &Param, rows: usize| {
        let product = Tape::inference(&device);
        let b = product.input(&b).at((rows..rows + 4, ..)).matmul(&product.input(&a));
        (product.input(&param.value()) + b * 1.5).to_tensor()
    };
    let expected = [sum(&base.query.weight, 0)?, sum(&base.key.weight, 4)?];
    let again = tempfile::tempdir()?;
    Lora::save_peft(&net, again.path(), &names)?;
    let tensors = load_tensors(again.path().join("adapter_model.safetensors"), &device)?;
    assert_eq!(tensors.len(), 2);
    tensors[&*name("lora_A")].expect_close(&a, 0.0, 0.0)?;
    tensors[&*name("lora_B")].expect_close(&b, 0.0, 0.0)?;
    Lora::merge(&mut net)?;
    net.query.weight.value().expect_close(&expected[0], 1e-6, 1e-6)?;
    net.key.weight.value().expect_close(&expected[1], 1e-6, 1e-6)?;
    // Apart, they have no common factor.
    let mut apart = base.clone();
    Lora::new(2).attach(&mut apart, "*.weight", 1)?;
    let error = Lora::save_peft(&apart, again.path(), &names).expect_err("two factors");
    assert!(error.to_string().contains("their adapters differ in the factor `A`"), "{error}");
    Ok(())
}

/// `[in, out]`, as in GPT-2.
fn transposed() -> Outcome {
    let device = Device::cpu();
    let place = tempfile::tempdir()?;
    let (a, b) = (tensor(&device, "a", [2, 4])?, tensor(&device, "b", [3, 2])?);
    let name = |part: &str| format!("base_model.model.up.{part}.weight");
    save_tensors(place.path().join("adapter_model.safetensors"), [(name("lora_A"), &a), (name("lora_B"), &b)])?;
    let config = r#"{"peft_type":"LORA","r":2,"lora_alpha":2,"fan_in_fan_out":true}"#;
    fs::write(place.path().join("adapter_config.json"), config)?;
    let names = Names::new().rename("up.weight", "0");
    let mut net = (Param::new(Tensor::zeros(&device, [4, 3])?),);
    Lora::load_peft(&mut net, place.path(), &names)?;
    Lora::merge(&mut net)?;
    let tape = Tape::inference(&device);
    let expected = tape.input(&b).matmul(&tape.input(&a)).t().to_tensor()?;
    net.0.value().expect_close(&expected, 1e-6, 1e-6)?;
    // A linear layer has [out, in] all the same.
    let mut linear = (Linear::new(4, 3),).init(&device, Seed::new(1))?;
    Lora::load_peft(&mut linear, place.path(), &Names::new().rename("up.weight", "0.weight"))?;
    Ok(())
}

fn refused() -> Outcome {
    let device = Device::cpu();
    let place = tempfile::tempdir()?;
    let file = place.path().join("adapter_model.safetensors");
    let config = |rest: &str| {
        let text = format!(r#"{{"peft_type":"LORA","r":2,"lora_alpha":2{rest}}}"#);
        fs::write(place.path().join("adapter_config.json"), text)
    };
    let mix = "base_model.model.mix";
    let (a, b) = (tensor(&device, "a", [2, 9])?, tensor(&device, "b", [5, 2])?);
    let extra = tensor(&device, "extra", [5])?;
    let write = |rest: &[(&str, &Tensor)]| {
        let factors = [("lora_A.weight", &a), ("lora_B.weight", &b)].map(|(name, x)| (format!("{mix}.{name}"), x));
        save_tensors(&file, factors.into_iter().chain(rest.iter().map(|&(name, x)| ((*name).to_owned(), x))))
    };
    let try_load = |part: &str| -> Outcome {
        let mut net = base()?;
        let before = (bits(&net)?, net.counts());
        let error = Lora::load_peft(&mut net, place.path(), &Names::new()).expect_err(part);
        assert!(error.to_string().contains(part), "{part}: {error}");
        assert!(error.location().is_some_and(|at| at.file().ends_with("peft.rs")), "{error}");
        assert_eq!((bits(&net)?, net.counts()), before, "{part}");
        Ok(())
    };
    write(&[])?;
    try_load("no `adapter_config.json` beside it")?;
    for (rest, part) in [
        (r#","use_dora":true"#, "`use_dora` is true, and the adapter of `mix` lacks its tensor"),
        (r#","lora_bias":true"#, "`lora_bias` is true, and the adapter of `mix` lacks its tensor"),
        (r#","target_parameters":["mix"]"#, "`target_parameters` is"),
        (r#","init_lora_weights":"pissa""#, "`init_lora_weights` is \"pissa\""),
        (r#","trainable_token_indices":[3]"#, "`trainable_token_indices`"),
        (r#","rank_pattern":{"mix":3}"#, "the adapter of `mix` has rank 2, 3 in its settings"),
        (r#","lora_dropout":1.0"#, "`lora_dropout` is 1; it must be at least 0 and below 1"),
        (r#","tomorrow":1"#, "`tomorrow` is 1"),
    ] {
        config(rest)?;
        try_load(part)?;
    }
    config("")?;
    for (name, part) in [
        ("base_model.model.mix.lora_magnitude_vector", "`use_dora` is false, and the adapter of `mix` has its tensor"),
        ("base_model.model.mix.lora_B.bias", "`lora_bias` is false, and the adapter of `mix` has its tensor"),
        ("base_model.model.mix.lora_gates", "`base_model.model.mix.lora_gates` changes what the adapter computes"),
        ("base_model.model.other.lora_A.weight", "the adapter of `other` is incomplete"),
        ("base_model.model.mix.gain", "`mix.gain` was trained with the adapters"),
        ("base_model.model.head.bias", "`head.bias` is f64[5], and `head.bias` in the model is f32[3]"),
    ] {
        write(&[(name, &extra)])?;
        try_load(part)?;
    }
    config(r#","use_dora":true"#)?;
    let short = tensor(&device, "short", [4])?;
    write(&[("base_model.model.mix.lora_magnitude_vector", &short)])?;
    try_load("its magnitudes f64[4] are not the 5 of `mix.weight` f32[5, 9]")?;
    config("")?;
    write(&[("base_model.model.mix.gain", &extra)])?;
    assert_eq!(Lora::load_peft(&mut base()?, place.path(), &Names::new().ignore("mix.gain"))?, 1);
    let missing = Names::new().rename("mix.*", "mixed.*").ignore("mixed.gain");
    let error = Lora::load_peft(&mut base()?, place.path(), &missing).expect_err("no place");
    assert!(error.to_string().contains("the model has no parameter `mixed.weight`"), "{error}");
    // Layers that PEFT computes in another way, or not at all.
    let mut net =
        (Conv2d::new(2, 2, 3).dilation(2), ConvTranspose2d::new(2, 2, 2), Linear::new(2, 2)).init(&device, 1)?;
    Lora::new(1).attach(&mut net, "**.weight", 1)?;
    for (pattern, part) in [("0", "ignore dilation"), ("1", "transposed convolutions")] {
        let mut other = net.clone();
        Lora::detach(&mut other)?;
        Lora::new(1).attach(&mut other, &format!("{pattern}.weight"), 1)?;
        let error = Lora::save_peft(&other, place.path(), &Names::new()).expect_err(part);
        assert!(error.kind() == ErrorKind::Checkpoint && error.to_string().contains(part), "{error}");
    }
    let error = Lora::save_peft(&base()?, place.path(), &Names::new()).expect_err("none");
    assert_eq!(error.message(), "lora: no parameter of the module has an adapter");
    Ok(())
}

fn damaged() -> Outcome {
    let place = tempfile::tempdir()?;
    for file in ["adapter_model.safetensors", "adapter_config.json"] {
        for name in ["adapter_model.safetensors", "adapter_config.json"] {
            fs::copy(folder("plain").join(name), place.path().join(name))?;
        }
        let bytes = fs::read(place.path().join(file))?;
        for end in 0..bytes.len() {
            fs::write(place.path().join(file), &bytes[..end])?;
            let mut net = base()?;
            let error = Lora::load_peft(&mut net, place.path(), &Names::new()).expect_err("it is cut");
            assert!(error.to_string().contains(file), "{end}: {error}");
            assert_eq!(net.counts().frozen, 0);
        }
    }
    Ok(())
}

fn dropout() -> Outcome {
    let device = Device::cpu();
    let mut net = base()?;
    Lora::new(2).dropout(0.5).attach(&mut net, "**.weight", 5)?;
    randomise(&mut net)?;
    let ids = answer("ids")?;
    let run = |net: &Net, tape: &Tape| net.forward(&tape.input(&ids)).to_tensor().and_then(|y| y.to_vec());
    let still = run(&net, &Tape::inference(&device))?;
    let train = |seed| run(&net, &Tape::with_seed(&device, seed));
    assert_eq!(train(1)?, train(1)?);
    assert!(train(1)? != train(2)? && train(1)? != still);
    net.evaluate("**")?;
    assert_eq!(run(&net, &Tape::with_seed(&device, 1))?, still);
    net.train("**")?;
    // The first factor alone reads what is left: over many masks, the mean is the output without dropout.
    let mut linear = (Linear::new(3, 2),).init(&device, Seed::new(1))?;
    Lora::new(2).dropout(0.25).attach(&mut linear, "**.weight", 5)?;
    randomise(&mut linear)?;
    let x = Tensor::full(&device, [20_000, 3], 1.0)?;
    let mean = |tape: &Tape| linear.0.forward(&tape.input(&x)).mean_over(&[0]).to_tensor().and_then(|y| y.to_vec());
    let (dropped, whole) = (mean(&Tape::with_seed(&device, 3))?, mean(&Tape::inference(&device))?);
    // Six standard errors of about √(1/3 · 3 / 20,000).
    assert!(dropped.iter().zip(&whole).all(|(a, b)| (a - b).abs() < 0.05), "{dropped:?} {whole:?}");
    assert_ne!(dropped, whole);
    // It trains.
    let tape = Tape::new(&device);
    let grads = tape.backward(&net.forward(&tape.input(&ids)).square().mean())?;
    Sgd::new(0.1).step(&mut net, &grads)?;
    // Where no layer multiplies its input by the factors, and for probabilities that are none.
    let mut bare = (Param::new(Tensor::zeros(&device, [4, 3])?),);
    let error = Lora::new(1).dropout(0.5).attach(&mut bare, "0", 1).expect_err("no input");
    assert!(error.to_string().contains("`0` is not the weight of a linear layer"), "{error}");
    for p in [-0.1, 1.0, f64::NAN] {
        assert_eq!(
            Lora::new(1).dropout(p).attach(&mut base()?, "**.weight", 1).expect_err("p").kind(),
            ErrorKind::Argument
        );
    }
    Ok(())
}
