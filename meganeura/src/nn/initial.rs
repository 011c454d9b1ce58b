//! Initial values, compared with PyTorch's: each layer's `reset_parameters`, as the distribution of each tensor.

use std::collections::BTreeMap;

use super::*;
use crate::Device;
use crate::module::{Init, Module, ModuleExt, Seed};

/// The distribution of a tensor.
#[derive(Clone, Copy, Debug)]
enum Drawn {
    /// Uniform in ± this bound.
    Within(f64),
    /// Gaussian with mean 0 and standard deviation 1.
    Normal,
    Always(f64),
}

use Drawn::{Always, Normal, Within};

/// The number of values that are compared, at least: standard deviations within 2%, bounds within 0.1%.
const ENOUGH: usize = 20_000;

/// Uniform in ±1/√n.
fn inverse_root(n: usize) -> Drawn {
    Within((n as f64).sqrt().recip())
}

/// The values of each tensor in as many models as give enough of them.
fn drawn<M: Module>(build: impl Fn(Seed) -> M) -> BTreeMap<String, Vec<f64>> {
    let mut values: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for seed in 0.. {
        let module = build(Seed::new(seed));
        for leaf in module.leaves() {
            let known = values.entry(leaf.path.clone()).or_default();
            if known.len() < ENOUGH {
                known.extend(leaf.value().to_f64_vec().unwrap());
            }
        }
        if values.values().all(|values| values.len() >= ENOUGH) {
            return values;
        }
    }
    unreachable!("seeds do not end")
}

/// The reason why the values are not of the distribution, if they are not.
fn misfit(values: &[f64], expected: Drawn) -> Option<String> {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let std = (values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n).sqrt();
    let largest = values.iter().fold(0f64, |largest, x| largest.max(x.abs()));
    // Five standard errors of each estimate, from the distribution's kurtosis: 9/5 and 3.
    let moments = |expected: f64, kurtosis: f64| {
        let close = mean.abs() < 5.0 * expected / n.sqrt();
        close && (std / expected - 1.0).abs() < 5.0 * ((kurtosis - 1.0) / (4.0 * n)).sqrt()
    };
    let fits = match expected {
        Always(value) => values.iter().all(|&x| x == value),
        // The largest of n values is near the bound; the rounding to f32 may exceed it.
        Within(bound) => {
            (1.0 - 12.0 / n..=1.0 + 1e-6).contains(&(largest / bound)) && moments(bound / 3f64.sqrt(), 1.8)
        }
        Normal => moments(1.0, 3.0) && (3.5..6.5).contains(&largest),
    };
    (!fits).then(|| format!("mean {mean}, standard deviation {std}, largest {largest} of {n}, expected {expected:?}"))
}

#[track_caller]
#[expect(clippy::needless_pass_by_value, reason = "builders are written where they are passed")]
fn check<C: Init<Output: Module> + Clone>(config: C, expected: &[(&str, Drawn)]) {
    check_built(|seed| config.clone().init(&Device::cpu(), seed).unwrap(), expected);
}

#[track_caller]
fn check_built<M: Module>(build: impl Fn(Seed) -> M, expected: &[(&str, Drawn)]) {
    let drawn = drawn(build);
    let paths: Vec<_> = drawn.keys().map(String::as_str).collect();
    let mut known: Vec<_> = expected.iter().map(|(path, _)| *path).collect();
    known.sort_unstable();
    assert_eq!(paths, known);
    for (path, expected) in expected {
        if let Some(misfit) = misfit(&drawn[*path], *expected) {
            panic!("{}: `{path}` starts unlike PyTorch's: {misfit}", std::any::type_name::<M>());
        }
    }
    // No two tensors have the same draws.
    let random: Vec<_> = expected.iter().filter(|(_, drawn)| !matches!(drawn, Always(_))).collect();
    for (at, (a, _)) in random.iter().enumerate() {
        for (b, _) in &random[at + 1..] {
            let first = |path: &str| drawn[path][1] / drawn[path][0];
            assert!((first(a) - first(b)).abs() > 1e-5, "`{a}` and `{b}` have the same draws");
        }
    }
}

#[test]
fn linear_maps_and_convolutions_start_as_in_pytorch() {
    let of = |fan| [("weight", inverse_root(fan)), ("bias", inverse_root(fan))];
    check(Linear::new(48, 96), &of(48));
    check(Linear::new(48, 96).bias(false), &of(48)[..1]);
    check(Conv1d::new(12, 32, 5), &of(12 * 5));
    check(Conv2d::new(12, 36, [3, 2]), &of(12 * 3 * 2));
    check(Conv2d::new(12, 36, [3, 2]).groups(3), &of(4 * 3 * 2));
    check(Conv3d::new(4, 16, [3, 2, 1]), &of(4 * 3 * 2));
    // PyTorch's weight is `[in, out/groups, …]`, and its fan is that of the second axis.
    check(ConvTranspose1d::new(12, 32, 5), &of(32 * 5));
    check(ConvTranspose2d::new(12, 36, [3, 2]), &of(36 * 3 * 2));
    check(ConvTranspose2d::new(12, 36, [3, 2]).groups(3), &of(12 * 3 * 2));
    let maps = ["gate_proj.weight", "up_proj.weight"].map(|path| (path, inverse_root(48)));
    check(SwiGlu::new(48, 64), &[&maps[..], &[("down_proj.weight", inverse_root(64))]].concat());
}

#[test]
fn normalisations_start_as_the_identity() {
    let affine = [("weight", Always(1.0)), ("bias", Always(0.0))];
    let running = [("running_mean", Always(0.0)), ("running_var", Always(1.0))];
    check(BatchNorm1d::new(512), &[affine, running].concat());
    check(BatchNorm2d::new(512), &[affine, running].concat());
    check(BatchNorm3d::new(512), &[affine, running].concat());
    check(GroupNorm::new(4, 512), &affine);
    check(LayerNorm::new([512]), &affine);
    check(InstanceNorm2d::new(512).affine(true), &affine);
    check(RmsNorm::new([512]), &affine[..1]);
}

#[test]
fn embeddings_start_normal_and_padding_as_zeros() {
    check(Embedding::new(100, 16), &[("weight", Normal)]);
    let embedding = Embedding::new(50, 16).padding(3).init(&Device::cpu(), 1).unwrap();
    let plain = Embedding::new(50, 16).init(&Device::cpu(), 1).unwrap();
    let rows = |embedding: &Embedding| {
        let values = embedding.weight.value().to_vec().unwrap();
        values.chunks(16).map(<[f32]>::to_vec).collect::<Vec<_>>()
    };
    let (rows, mut expected) = (rows(&embedding), rows(&plain));
    expected[3].fill(0.0);
    assert_eq!(rows, expected);
}

#[test]
fn recurrent_layers_start_as_in_pytorch() {
    let names = ["weight_ih", "weight_hh", "bias_ih", "bias_hh"];
    let of_cell = names.map(|name| (name, inverse_root(32)));
    check(RnnCell::new(20, 32), &of_cell);
    check(LstmCell::new(20, 32), &of_cell);
    check(GruCell::new(20, 32), &of_cell);
    let suffixes = ["_l0", "_l0_reverse", "_l1", "_l1_reverse"];
    let paths: Vec<_> = suffixes.iter().flat_map(|suffix| names.map(|name| format!("{name}{suffix}"))).collect();
    let all: Vec<_> = paths.iter().map(|path| (&**path, inverse_root(32))).collect();
    check(Lstm::new(20, 32).layers(2).bidirectional(true), &all);
    check(Gru::new(20, 32), &all[..4]);
    check(Rnn::new(20, 32), &all[..4]);
}

/// Attention at a path: Xavier's bound for `[3·width, width]`, a linear map, and biases of 0.
fn attention(at: &str, width: usize, bias: bool) -> Vec<(String, Drawn)> {
    let xavier = Within((6.0 / (4 * width) as f64).sqrt());
    let maps = [("query", xavier), ("key", xavier), ("value", xavier), ("output", inverse_root(width))];
    let of_map = |(name, drawn): (&str, Drawn)| {
        let bias = bias.then(|| (format!("{at}{name}.bias"), Always(0.0)));
        std::iter::once((format!("{at}{name}.weight"), drawn)).chain(bias)
    };
    maps.into_iter().flat_map(of_map).collect()
}

fn borrowed(expected: &[(String, Drawn)]) -> Vec<(&str, Drawn)> {
    expected.iter().map(|(path, drawn)| (&**path, *drawn)).collect()
}

#[test]
fn attention_starts_as_in_pytorch() {
    for bias in [true, false] {
        check(MultiheadAttention::new(48, 4).bias(bias), &borrowed(&attention("", 48, bias)));
    }
    let rest = |norms: &[&str]| -> Vec<(String, Drawn)> {
        let maps = [("linear1", 48), ("linear2", 96)].into_iter().flat_map(|(name, fan)| {
            ["weight", "bias"].map(|leaf| (format!("feed_forward.{name}.{leaf}"), inverse_root(fan)))
        });
        let norms = norms.iter().flat_map(|norm| {
            [("weight", 1.0), ("bias", 0.0)].map(|(leaf, value)| (format!("{norm}.{leaf}"), Always(value)))
        });
        maps.chain(norms).collect()
    };
    let encoder = [attention("attention.", 48, true), rest(&["norm1", "norm2"])].concat();
    check(TransformerEncoderLayer::new(48, 4).feed_forward(96), &borrowed(&encoder));
    let attentions = [attention("attention.", 48, true), attention("cross_attention.", 48, true)].concat();
    let decoder = [attentions, rest(&["norm1", "norm2", "norm3"])].concat();
    check(TransformerDecoderLayer::new(48, 4).feed_forward(96), &borrowed(&decoder));
}

/// The comparison notices a few percent.
#[test]
fn other_distributions_are_noticed() {
    let values = |drawn: Drawn| drawn_of(drawn, 1.0);
    assert_eq!(misfit(&values(Within(0.5)), Within(0.5)), None);
    assert_eq!(misfit(&values(Normal), Normal), None);
    for wrong in [Within(0.51), Within(0.49), Normal, Always(0.0)] {
        assert!(misfit(&values(Within(0.5)), wrong).is_some(), "{wrong:?}");
    }
    for scale in [0.97, 1.03] {
        assert!(misfit(&drawn_of(Normal, scale), Normal).is_some(), "{scale}");
    }
    assert!(misfit(&[0.0, 1e-30], Always(0.0)).is_some());
    let shifted: Vec<_> = values(Normal).into_iter().map(|x| x + 0.05).collect();
    assert!(misfit(&shifted, Normal).is_some());
}

fn drawn_of(drawn: Drawn, scale: f64) -> Vec<f64> {
    use crate::init::Initializer;
    let initializer = match drawn {
        Within(bound) => Initializer::Uniform { low: -bound, high: bound },
        Normal => Initializer::Normal { mean: 0.0, std: 1.0 },
        Always(value) => Initializer::Constant(value),
    };
    let values = initializer.sample(&Device::cpu(), [ENOUGH], 5).unwrap().to_f64_vec().unwrap();
    values.into_iter().map(|x| x * scale).collect()
}
