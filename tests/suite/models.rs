//! A large model with every kind of part (ties, a frozen encoder, shared modules, an enum, maps): trained, averaged,
//! saved and loaded, bit for bit.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use libtest_mimic::Trial;
use meganeura::check::Gradcheck;
use meganeura::io::Checkpoint;
use meganeura::module::Role;
use meganeura::nn::{Conv2d, Gelu, GroupNorm, LayerNorm, Linear, MaxPool2d};
use meganeura::optim::{AdamW, Group, Optimizer, Sgd};
use meganeura::{
    Buffer, Device, ErrorKind, FromSeed, Grads, Init, Layer, Module, ModuleExt, Param, Precision, Result, Seed, Tape,
    Tensor, Var,
};

use crate::Outcome;
use crate::adapter::gpu_trial;
use crate::nets::{bits, images};
use crate::numbers::{Computed, Reference, compare};

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    trials.push(Trial::test("models::trained_saved_and_loaded", || whole(&Device::cpu(), &Device::cpu())));
    trials.push(gpu_trial("models::gpu::trained_saved_and_loaded", |device| {
        let device = device.for_testing(0);
        whole(&device, &device)
    }));
    trials.push(gpu_trial("models::gpu::saved_there_and_loaded_here", |device| {
        whole(&device.for_testing(0), &Device::cpu())
    }));
    trials.push(Trial::test("models::gradients", gradients));
    trials.push(Trial::test("models::tied_gradients_are_one_sum", || tied_gradient(&Device::cpu())));
    trials.push(gpu_trial("models::gpu::tied_gradients_are_one_sum", |device| tied_gradient(&device.for_testing(0))));
    trials.push(Trial::test("models::structures_are_compared", structures));
    trials.push(Trial::test("models::printed", printed));
}

/// Tokens per image.
const TOKENS: usize = 9;
const WIDTH: usize = 8;

#[derive(Module, Debug)]
struct Deep {
    /// Four convolutions and four normalisations.
    #[module(frozen)]
    encoder: Vec<(Conv2d, GroupNorm)>,
    pool: MaxPool2d,
    /// Its weight is also the weight of `unembed`.
    embed: Linear,
    /// Blocks of three layers each.
    blocks: VecDeque<Block>,
    /// One layer in two places here, and once more in `chain`.
    shared: [Arc<Linear>; 2],
    chain: Vec<Box<dyn Layer>>,
    unembed: Unembed,
    head: Head,
    heads: HashMap<String, Linear>,
    scales: BTreeMap<String, (Param, Option<Param>)>,
    mean: Buffer,
    positions: Buffer,
    #[module(skip)]
    slope: f64,
}

#[derive(Module, Debug)]
#[module(sequential)]
struct Block {
    #[module(init = LayerNorm::new([WIDTH]))]
    norm: LayerNorm,
    #[module(init = Linear::new(WIDTH, 2 * WIDTH), then = gelu)]
    widen: Linear,
    #[module(init = Linear::new(2 * WIDTH, WIDTH))]
    narrow: Linear,
}

#[derive(Module, Debug)]
struct Unembed {
    weight: Param,
}

#[derive(Module, Debug)]
enum Head {
    Linear(Linear),
    Mlp { hidden: Linear, out: Linear },
}

impl Deep {
    /// With ties, as intended, or with separate parameters in each place.
    fn new(device: &Device, seed: u64, tied: bool) -> Result<Self> {
        let seed = Seed::new(seed);
        let convs = (0..4).map(|k| (Conv2d::new(if k == 0 { 1 } else { 4 }, 4, 3).padding(1), GroupNorm::new(2, 4)));
        let linear = |name: &str| Linear::new(WIDTH, WIDTH).init(device, seed.field(name));
        let shared = Arc::new(linear("shared")?);
        let embed = Linear::new(4, WIDTH).init(device, seed.field("embed"))?;
        let own = Linear::new(4, WIDTH).init(device, seed.field("unembed"))?;
        let one = |value| Tensor::full(device, [WIDTH], value);
        let scales = [("attention", true), ("residual", false)];
        let scale = |(name, both): (&str, bool)| -> Result<_> {
            Ok((name.to_owned(), (Param::new(one(0.5)?), both.then(|| one(0.25).map(Param::new)).transpose()?)))
        };
        let chain: Vec<Box<dyn Layer>> =
            vec![Box::new(Gelu), Box::new(linear("chain")?), Box::new(Arc::clone(&shared))];
        let net = Self {
            encoder: convs.collect::<Vec<_>>().init(device, seed.field("encoder"))?,
            pool: MaxPool2d::new(2),
            unembed: Unembed { weight: if tied { embed.weight.tied() } else { own.weight } },
            embed,
            blocks: (0..5).map(|k| Block::from_seed(device, seed.field("blocks").index(k))).collect::<Result<_>>()?,
            shared: [Arc::clone(&shared), shared],
            chain,
            head: Head::Mlp { hidden: linear("hidden")?, out: linear("out")? },
            heads: ["rows", "columns", "all"]
                .map(|name| (name.to_owned(), Linear::new(TOKENS * 4, 3)))
                .into_iter()
                .collect::<HashMap<_, _>>()
                .init(device, seed.field("heads"))?,
            scales: scales.into_iter().map(scale).collect::<Result<_>>()?,
            mean: Buffer::new(Tensor::zeros(device, [WIDTH])?),
            positions: Buffer::constant(Tensor::from_slice(
                device,
                [TOKENS, 1],
                &std::array::from_fn::<f32, TOKENS, _>(|i| i as f32 / 9.0),
            )?),
            slope: 0.1,
        };
        net.name_parameters();
        Ok(net)
    }

    /// The logits of each head, by name.
    fn logits(&self, images: &Var) -> BTreeMap<&str, Var> {
        let y = self.encoder.iter().fold(images.clone(), |x, (conv, norm)| norm.forward(&conv.forward(&x)).relu());
        let y = self.pool.forward(&y);
        let batch = y.shape().dims()[0];
        // [N, C, H, W] to tokens.
        let y = self.embed.forward(&y.reshape([batch, 4, TOKENS]).permute(&[0, 2, 1]));
        let y = self.blocks.forward(&(y + images.buffer(&self.positions)));
        let y = self.shared[0].forward(&y).leaky_relu(self.slope) * images.param(&self.scales["attention"].0);
        let y = self.shared[1].forward(&self.chain.forward(&y));
        let y = match &self.head {
            Head::Linear(out) => out.forward(&y),
            Head::Mlp { hidden, out } => out.forward(&hidden.forward(&y).tanh()),
        };
        let (residual, attention) = (&self.scales["residual"].0, &self.scales["attention"].1);
        let y = (y - images.buffer(&self.mean)) * images.param(residual);
        let y = attention.as_ref().map_or(y.clone(), |scale| y + images.param(scale));
        let y =
            y.reshape([batch * TOKENS, WIDTH]).matmul(&images.param(&self.unembed.weight)).reshape([batch, TOKENS * 4]);
        self.heads.iter().map(|(name, head)| (name.as_str(), head.forward(&y))).collect()
    }

    fn record(&self, (images, labels): &(Tensor, Tensor)) -> Result<(Var, Grads)> {
        let tape = Tape::new(images.device());
        let losses = self.logits(&tape.input(images)).into_values().map(|logits| logits.cross_entropy(labels));
        let loss = losses.reduce(|a, b| a + b).expect("three heads");
        let grads = tape.backward(&loss)?;
        Ok((loss, grads))
    }
}

fn optimizer() -> AdamW {
    AdamW::new(0.01)
        .group(Group::new("**.bias").weight_decay(0.0))
        .group(Group::new("heads.**").lr_scale(0.5))
        .group(Group::by(|_, param| param.shape().rank() == 1).lr(0.002))
}

fn logits(net: &Deep, images: &Tensor) -> Result<Vec<f32>> {
    let logits = net.logits(&Tape::inference(images.device()).input(images)).into_values();
    Ok(logits.map(|logits| logits.to_vec()).collect::<Result<Vec<_>>>()?.concat())
}

fn whole(device: &Device, other: &Device) -> Outcome {
    let mut net = Deep::new(device, 1, true)?;
    // Counts layers with a weight.
    let layers = net.leaves().iter().filter(|leaf| leaf.path.ends_with("weight")).count();
    assert!(layers >= 30, "{layers} layers");
    let mut average = Deep::new(device, 2, true)?;
    average.copy_from(&net)?;
    let (before, batch, mut optimizer) = (bits(&net)?, images(device, "models", 6)?, optimizer());
    let mut losses = Vec::new();
    for _ in 0..6 {
        let (loss, grads) = net.record(&batch)?;
        optimizer.step(&mut net, &grads)?;
        net.mean.set(Tensor::full(device, [WIDTH], losses.len() as f32 * 0.01)?)?;
        average.zip_with(&net, |_, average, new| average * 0.5 + new * 0.5)?;
        losses.push(loss.item()?);
    }
    assert!(losses[5] < losses[0] - 0.1, "{losses:?}");
    assert_eq!(device.stats().plans, 2, "a step, and an average");
    let roles: HashMap<_, _> = net.leaves().into_iter().map(|leaf| (leaf.path, leaf.role)).collect();
    for ((path, now), (_, before)) in bits(&net)?.iter().zip(&before) {
        let moves = matches!(roles[path], Role::Trained | Role::Buffer);
        assert_eq!(now != before, moves, "{path} {:?}", roles[path]);
    }
    assert_eq!(device.plan_dumps()[0].matches("conv2d_grad").count(), 0, "the encoder is frozen");
    for net in [&net, &average] {
        round_trip(net, device, other)?;
    }
    Ok(())
}

/// Saves the model, and loads it into a model with ties and into one without.
fn round_trip(net: &Deep, device: &Device, other: &Device) -> Outcome {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("deep.safetensors");
    net.save(&path)?;
    let (trained, (images, _)) = (bits(net)?, images(device, "unseen", 3)?);
    for tied in [true, false] {
        let mut loaded = Deep::new(other, 3, tied)?;
        assert_ne!(bits(&loaded)?, trained);
        let report = loaded.load(&path)?;
        report.strict()?;
        assert_eq!(loaded.unembed.weight.is_tied_to(&loaded.embed.weight), tied, "a file makes no ties");
        if !tied {
            assert_eq!(report.shared, [["embed.weight", "unembed.weight"]]);
            loaded.unembed.weight = loaded.embed.weight.tied();
        }
        assert_eq!(bits(&loaded)?, trained);
        assert_eq!((loaded.counts(), loaded.leaves().len()), (net.counts(), net.leaves().len()));
        assert_eq!(loaded.to_safetensors()?, std::fs::read(&path)?, "the same bytes again");
        let (computed, expected) = (logits(&loaded, &images.to_device(other)?)?, logits(net, &images)?);
        if device.same(other) {
            assert_eq!(computed, expected);
        } else {
            // Forty layers, each a few units in the last place apart.
            let wide = |x: Vec<f32>| x.into_iter().map(f64::from).collect();
            compare("the logits", &Computed(wide(computed)), &Reference(wide(expected)), 1e-4)?;
        }
    }
    Ok(())
}

/// The paths of trained parameters.
fn trained(net: &Deep) -> Vec<String> {
    net.leaves().into_iter().filter(|leaf| leaf.role == Role::Trained).map(|leaf| leaf.path).collect()
}

/// A sample against finite differences: each tied parameter once, frozen ones not at all.
fn gradients() -> Outcome {
    let mut net = Deep::new(&Device::cpu_with(Precision::Double), 1, true)?;
    net.freeze("blocks.0.**")?;
    let device = Device::cpu_with(Precision::Double);
    let (images, labels) = images(&device, "models", 2)?;
    let check = Gradcheck::default().tolerance(1e-7, 1e-5).samples(3);
    let report = check.run(&net, &[images], |net, x| {
        net.logits(&x[0]).into_values().map(|logits| logits.cross_entropy(&labels)).collect()
    })?;
    report.ok()?;
    let names: Vec<_> = report.entries.iter().map(|entry| &*entry.name).collect();
    assert_eq!(names, trained(&net).iter().map(String::as_str).chain(["input 0"]).collect::<Vec<_>>());
    assert!(!names.iter().any(|name| name.starts_with("encoder") || name.starts_with("blocks.0")));
    assert!(names.contains(&"embed.weight") && !names.contains(&"unembed.weight"));
    Ok(())
}

/// The gradient of a tied parameter is the sum over its places, found under all of its paths. The parameter moves by
/// one step.
fn tied_gradient(device: &Device) -> Outcome {
    let (mut tied, mut apart) = (Deep::new(device, 1, true)?, Deep::new(device, 1, false)?);
    apart.copy_from(&tied)?;
    let batch = images(device, "models", 4)?;
    let (_, grads) = apart.record(&batch)?;
    let of = |grads: &Grads, path: &str| -> Result<Vec<f64>> {
        grads.by_path(path).unwrap_or_else(|| panic!("no gradient for {path}")).to_tensor()?.to_f64_vec()
    };
    let parts = of(&grads, "embed.weight")?.into_iter().zip(of(&grads, "unembed.weight")?);
    let sum: Vec<f64> = parts.map(|(a, b)| a + b).collect();
    let (_, grads) = tied.record(&batch)?;
    let found = of(&grads, "embed.weight")?;
    assert_eq!(found, of(&grads, "unembed.weight")?);
    let named: Vec<_> = grads.named(&tied)?.into_iter().map(|(path, _)| path).collect();
    assert_eq!(named, trained(&tied));
    assert_eq!(found, grads.get(&tied.unembed.weight).expect("trained").to_tensor()?.to_f64_vec()?);
    // Up to one rounding.
    compare("the sum", &Computed(found.clone()), &Reference(sum), 1e-5)?;
    let before = tied.embed.weight.value().to_f64_vec()?;
    Sgd::new(1.0).step(&mut tied, &grads)?;
    let expected = before.iter().zip(&found).map(|(w, dw)| w - dw).collect();
    compare("the step", &Computed(tied.unembed.weight.value().to_f64_vec()?), &Reference(expected), 1e-6)?;
    assert_eq!(tied.unembed.weight.value().to_vec()?, tied.embed.weight.value().to_vec()?);
    Ok(())
}

fn structures() -> Outcome {
    let device = Device::cpu();
    let new = || Deep::new(&device, 1, true);
    let linear = Linear::new(WIDTH, WIDTH).init(&device, Seed::new(1))?;
    let [own, wide] = [WIDTH, 4].map(|width| Tensor::zeros(&device, [width]).map(Param::new));
    let (own, wide) = (own?, wide?);
    let mut net = new()?;
    let before = bits(&net)?;
    type Change<'a> = Box<dyn Fn(&mut Deep) + 'a>;
    let changes: [(Change<'_>, &str); 7] = [
        (
            Box::new(|net| net.head = Head::Linear(linear.clone())),
            "`head` is the variant `Mlp` in the one model, `Linear` in the other",
        ),
        (Box::new(|net| net.embed.bias = None), "`embed.bias` is in the one model only"),
        (
            Box::new(|net| net.scales.get_mut("residual").expect("there").1 = Some(own.tied())),
            "`scales.residual.1` is in the other model only",
        ),
        (Box::new(|net| drop(net.heads.remove("rows"))), "`heads.rows.weight` is in the one model only"),
        (Box::new(|net| drop(net.blocks.pop_back())), "`blocks.4.norm.weight` is in the one model only"),
        (
            Box::new(|net| net.heads.get_mut("all").expect("there").bias = Some(wide.tied())),
            "`heads.all.bias` is [3] in the one model, [4] in the other",
        ),
        (
            Box::new(|net| net.unembed.weight = net.unembed.weight.clone()),
            "`unembed.weight` is tied to another place in the one model",
        ),
    ];
    for (change, message) in changes {
        let mut other = new()?;
        change(&mut other);
        let errors = [net.copy_from(&other), net.zip(&other).map(drop), net.zip_with(&other, |_, a, _| a.clone())];
        for error in errors.map(|result| result.expect_err(message)) {
            assert!(error.to_string().contains(message), "{error}");
        }
        assert_eq!(bits(&net)?, before);
    }
    let error = net.freeze("encoder.*.bias").expect_err("one segment too few");
    assert_eq!(error.kind(), ErrorKind::Argument);
    assert!(error.to_string().contains("near it are `encoder.0.0.bias`, `encoder.0.1.bias`"), "{error}");
    Ok(())
}

fn printed() -> Outcome {
    let net = Deep::new(&Device::cpu(), 1, true)?;
    let counts = net.counts();
    assert_eq!(counts.buffers, WIDTH + TOKENS);
    assert_eq!(counts.frozen, 4 * (9 + 1) + 3 * 4 * (4 * 9 + 1) + 4 * 2 * 4);
    let leaves = net.leaves();
    let elements =
        |role| leaves.iter().filter(|leaf| leaf.role == role).map(|leaf| leaf.ty().shape.elements()).sum::<usize>();
    assert_eq!((elements(Role::Trained), counts.parameters()), (counts.trained, net.parameter_count()));
    crate::golden::check("model_summary", &format!("{net}\n{net:#}\n"))
}
