//! A causal language model whose head is its embedding: one parameter with two uses, which gets the sum of both
//! gradients, and is trained, saved, loaded and counted once.

use libtest_mimic::Trial;
use meganeura::check::Gradcheck;
use meganeura::io::Checkpoint;
use meganeura::nn::{AttentionMask, Embedding, FeedForwardActivation, LayerNorm, Linear, TransformerEncoderLayer};
use meganeura::optim::{AdamW, Optimizer, TrainStep};
use meganeura::{
    DType, Device, Grads, Init, Layer, Module, ModuleExt, Precision, Result, Seed, Shape, Tape, Tensor, TensorType, Var,
};

use crate::Outcome;
use crate::adapter::gpu_trial;
use crate::nets::bits;
use crate::numbers::{Computed, Reference, compare};

pub(crate) fn collect(trials: &mut Vec<Trial>) {
    trials.push(Trial::test("tied::finite_differences", finite_differences));
    trials.push(Trial::test("tied::counted_once", counted_once));
    type Test = fn(&Device) -> Outcome;
    let tests: [(&str, Test); 3] =
        [("gradient_is_the_sum", gradient), ("trains_in_one_step", trains), ("saved_and_continued", continued)];
    for (name, test) in tests {
        trials.push(Trial::test(format!("tied::cpu::{name}"), move || test(&Device::cpu())));
        trials.push(gpu_trial(format!("tied::gpu::{name}"), move |device| test(&device.for_testing(0))));
    }
}

const TOKENS: usize = 13;
const WIDTH: usize = 8;
/// Sequences, and the tokens of each.
const SHAPE: [usize; 2] = [3, 7];

#[derive(Module, Debug, Clone)]
struct Language {
    tokens: Embedding,
    layer: TransformerEncoderLayer,
    norm: LayerNorm,
    head: Linear,
}

type Sequences = (Var, Var);

impl Language {
    fn new(device: &Device, seed: u64, tied: bool) -> Result<Self> {
        let seed = Seed::new(seed);
        let layer = TransformerEncoderLayer::new(WIDTH, 2).feed_forward(12).dropout(0.0).norm_first(true);
        let mut net = Self {
            tokens: Embedding::new(TOKENS, WIDTH).init(device, seed.field("tokens"))?,
            layer: layer.activation(FeedForwardActivation::Gelu).init(device, seed.field("layer"))?,
            norm: LayerNorm::new([WIDTH]).init(device, seed.field("norm"))?,
            head: Linear::new(WIDTH, TOKENS).bias(false).init(device, seed.field("head"))?,
        };
        if tied {
            net.head.weight = net.tokens.weight.tied();
        }
        net.name_parameters();
        Ok(net)
    }

    fn forward(&self, tokens: &Var) -> Var {
        let causal = AttentionMask { causal: true, ..AttentionMask::default() };
        self.head.forward(&self.norm.forward(&self.layer.forward_with(&self.tokens.forward(tokens), causal)))
    }

    fn loss(&self, (tokens, next): &Sequences) -> Var {
        let count = next.shape().elements();
        self.forward(tokens).reshape([count, TOKENS]).cross_entropy(&next.reshape([count]))
    }

    fn record(&self, (tokens, next): &(Tensor, Tensor)) -> Result<(Var, Grads)> {
        let tape = Tape::new(tokens.device());
        let loss = self.loss(&(tape.input(tokens), tape.input(next)));
        let grads = tape.backward(&loss)?;
        Ok((loss, grads))
    }
}

/// Sequences in which some tokens are frequent and others never occur, and their next tokens.
fn sequences(device: &Device) -> Result<(Tensor, Tensor)> {
    let token = |place: usize| (place * place % (TOKENS - 2)) as u32;
    let part = |from: usize| {
        let tokens: Vec<_> = (from..from + SHAPE[0] * SHAPE[1]).map(token).collect();
        Tensor::indices(device, SHAPE, &tokens)
    };
    Ok((part(0)?, part(1)?))
}

fn of(grads: &Grads, path: &str) -> Result<Vec<f64>> {
    grads.by_path(path).unwrap_or_else(|| panic!("no gradient for {path}")).to_tensor()?.to_f64_vec()
}

/// In double precision, for every element of every parameter.
fn finite_differences() -> Outcome {
    let device = Device::cpu_with(Precision::Double);
    let net = Language::new(&device, 1, true)?;
    let (tokens, next) = sequences(&device)?;
    // A factor, which also brings the tape.
    let factor = Tensor::from_f64(&device, [1], &[1.5])?;
    let report = Gradcheck::default().tolerance(1e-7, 1e-6).run(&net, &[factor], |net, x| {
        let tape = x[0].tape();
        vec![net.loss(&(tape.input(&tokens), tape.input(&next))) * &x[0]]
    })?;
    report.ok()?;
    let names: Vec<_> = report.entries.iter().map(|entry| &*entry.name).collect();
    assert!(names.contains(&"tokens.weight") && !names.contains(&"head.weight"), "{names:?}");
    Ok(())
}

/// The same model with two parameters of equal numbers has a gradient for each use.
fn gradient(device: &Device) -> Outcome {
    let (tied, mut apart) = (Language::new(device, 1, true)?, Language::new(device, 2, false)?);
    apart.copy_from(&tied)?;
    assert_eq!(apart.head.weight.value().to_vec()?, apart.tokens.weight.value().to_vec()?);
    let batch = sequences(device)?;
    let (expected_loss, parts) = apart.record(&batch)?;
    let (loss, grads) = tied.record(&batch)?;
    let (lookup, product) = (of(&parts, "tokens.weight")?, of(&parts, "head.weight")?);
    let found = of(&grads, "tokens.weight")?;
    assert_eq!(found, of(&grads, "head.weight")?, "one gradient under both paths");
    assert_eq!(loss.item()?.to_bits(), expected_loss.item()?.to_bits());
    // Of a token that never occurs, the head alone has a gradient.
    let absent = (TOKENS - 1) * WIDTH..TOKENS * WIDTH;
    assert!(lookup[absent.clone()].iter().all(|&x| x == 0.0) && product[absent].iter().all(|&x| x != 0.0));
    let sum: Vec<f64> = lookup.iter().zip(&product).map(|(a, b)| a + b).collect();
    // Up to one rounding.
    compare("the sum", &Computed(found.clone()), &Reference(sum), 1e-6)?;
    for (what, part) in [("the lookup", lookup), ("the product", product)] {
        assert!(compare(what, &Computed(found.clone()), &Reference(part), 1e-2).is_err(), "{what} alone is not it");
    }
    Ok(())
}

/// Trains a step at a time on tapes.
fn on_tapes(net: &mut Language, optimizer: &mut AdamW, batch: &(Tensor, Tensor), steps: usize) -> Result<Vec<f32>> {
    let step = |_| {
        let (loss, grads) = net.record(batch)?;
        optimizer.step(net, &grads)?;
        loss.item()
    };
    (0..steps).map(step).collect()
}

/// A step that is recorded once trains to the same bits as tapes; the parameter stays one, with one state.
fn trains(device: &Device) -> Outcome {
    let batch = sequences(device)?;
    let (mut by_tape, mut optimizer) = (Language::new(device, 1, true)?, AdamW::new(0.01));
    let expected = on_tapes(&mut by_tape, &mut optimizer, &batch, 8)?;
    let (net, mut optimizer) = (Language::new(device, 1, true)?, AdamW::new(0.01));
    let mut step = TrainStep::new(&net, |net: &Language, batch: &Sequences| net.loss(batch));
    for expected in &expected {
        let loss = step.call(&mut optimizer, (&batch.0, &batch.1))?.item()?;
        assert_eq!(loss.to_bits(), expected.to_bits());
    }
    assert!(expected[7] < expected[0] - 0.1, "{expected:?}");
    assert_eq!((step.recorded(), bits(&net)?), (1, bits(&by_tape)?));
    assert!(net.head.weight.is_tied_to(&net.tokens.weight));
    assert_eq!(net.head.weight.value().to_vec()?, net.tokens.weight.value().to_vec()?);
    let state = optimizer.state_of(&net).tensors;
    assert!(state.keys().any(|key| key.contains("tokens.weight")), "{:?}", state.keys());
    assert!(!state.keys().any(|key| key.contains("head.weight")), "{:?}", state.keys());
    Ok(())
}

/// Saved after three steps, then continued in another model, whose head is tied before or after loading.
fn continued(device: &Device) -> Outcome {
    let batch = sequences(device)?;
    let (mut whole, mut optimizer) = (Language::new(device, 1, true)?, AdamW::new(0.01));
    on_tapes(&mut whole, &mut optimizer, &batch, 3)?;
    let (file, state) = (whole.to_safetensors()?, optimizer.state_of(&whole));
    let losses = on_tapes(&mut whole, &mut optimizer, &batch, 3)?;
    for tied in [true, false] {
        let mut net = Language::new(device, 2, tied)?;
        let report = net.load_safetensors(&file)?;
        report.strict()?;
        if !tied {
            assert_eq!(report.shared, [["tokens.weight", "head.weight"]]);
            net.head.weight = net.tokens.weight.tied();
        }
        let mut other = AdamW::new(0.01);
        other.load_state(&net, &state)?;
        let found = on_tapes(&mut net, &mut other, &batch, 3)?;
        let same = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(same(&found, &losses), "tied before loading: {tied}; {found:?}, not {losses:?}");
        assert_eq!(bits(&net)?, bits(&whole)?);
        assert_eq!(net.to_safetensors()?, whole.to_safetensors()?, "the same bytes");
    }
    Ok(())
}

fn counted_once() -> Outcome {
    let device = Device::cpu();
    let [tied, apart] = [true, false].map(|tied| Language::new(&device, 1, tied));
    let (tied, apart) = (tied?, apart?);
    assert_eq!(apart.parameter_count() - tied.parameter_count(), TOKENS * WIDTH);
    assert_eq!(apart.leaves().len() - tied.leaves().len(), 1);
    let summary = tied.summary().to_string();
    assert!(summary.contains("tokens.weight") && summary.contains(&tied.parameter_count().to_string()), "{summary}");
    let forward = |net: &Language| {
        net.summary_by(TensorType::new(DType::U32, Shape::from(SHAPE)), |net, tokens: &Var| net.forward(tokens))
    };
    let (tied, apart) = (forward(&tied)?, forward(&apart)?);
    assert_eq!(apart.counts().trained - tied.counts().trained, TOKENS * WIDTH, "{tied}");
    assert_eq!(apart.multiply_adds(), tied.multiply_adds(), "the product is computed in both");
    Ok(())
}
