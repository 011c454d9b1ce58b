//! Parts of models in evaluation mode.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::module::{At, Mode};
use crate::nn::{BatchNorm2d, Conv2d, Dropout};
use crate::optim::{Ema, Optimizer, Sgd};
use crate::{Buffer, Device, ErrorKind, Init, Layer, Module, ModuleExt, Param, Seed, Tape, Tensor, Var};

fn param() -> Param {
    Param::new(Tensor::zeros(&Device::cpu(), [1]).unwrap())
}

/// The paths of everything in evaluation mode.
fn evaluated(module: &(impl Module + ?Sized)) -> Vec<String> {
    let mut paths = Vec::new();
    module.visit(At::root(), &mut |at, slot| {
        if slot.mode().is_some_and(Mode::is_evaluated) {
            paths.push(at.path());
        }
    });
    paths
}

type Net = BTreeMap<String, Vec<(Param, Dropout)>>;

fn net() -> Net {
    ["encoder", "head"].map(|key| (key.to_owned(), vec![(param(), Dropout::new(0.5)); 2])).into()
}

#[test]
fn patterns_name_parts() {
    let encoder = ["encoder.0.0", "encoder.0.1.mode", "encoder.1.0", "encoder.1.1.mode"];
    let head = ["head.0.0", "head.0.1.mode", "head.1.0", "head.1.1.mode"];
    let all = [encoder, head].concat();
    for (pattern, expected) in [
        ("encoder", &encoder[..]),
        ("encoder.**", &encoder),
        ("encoder.*", &encoder),
        ("encoder.1", &encoder[2..]),
        ("head.1.1", &head[3..]),
        ("*.0", &["encoder.0.0", "encoder.0.1.mode", "head.0.0", "head.0.1.mode"]),
        ("**", &all),
        ("**.1.1", &["encoder.1.1.mode", "head.1.1.mode"]),
    ] {
        let mut net = net();
        net.evaluate(pattern).unwrap();
        assert_eq!(evaluated(&net), expected, "{pattern}");
        net.train(pattern).unwrap();
        assert_eq!(evaluated(&net), [] as [&str; 0], "{pattern}");
    }
}

#[test]
fn the_last_call_decides() {
    let mut net = net();
    net.evaluate("encoder").unwrap();
    net.train("encoder.1").unwrap();
    net.evaluate("head.0.1").unwrap();
    assert_eq!(evaluated(&net), ["encoder.0.0", "encoder.0.1.mode", "head.0.1.mode"]);
    // A change to a part shows in the whole.
    net.get_mut("head").unwrap().evaluate("**").unwrap();
    assert_eq!(evaluated(&net).len(), 6);
    net.train("**").unwrap();
    assert_eq!(evaluated(&net), [] as [&str; 0]);
}

#[test]
fn a_pattern_without_a_part_is_an_error_that_names_some() {
    let mut net = net();
    let mut fail = |pattern: &str| {
        let error = net.evaluate(pattern).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Argument);
        assert_eq!(net.train(pattern).unwrap_err().message(), error.message());
        error.message().to_owned()
    };
    assert_eq!(
        fail("encodr"),
        "the pattern `encodr` names no part of the model; there are `encoder`, `encoder.0`, `encoder.1`, `encoder.0.1`, `**`"
    );
    let error = fail("encoder.1.0");
    assert!(error.contains("what it names is a leaf, whose part is `encoder.1`"), "{error}");
    assert_eq!(fail("h").as_str().split("there are ").nth(1).unwrap(), "`head`, `head.0`, `head.1`, `head.0.1`, `**`");
    assert!(().evaluate("**").unwrap_err().to_string().contains("no parameters, buffers or modes"));
    assert_eq!(evaluated(&net), [] as [&str; 0]);
    param().evaluate("**").unwrap();
}

#[test]
fn a_part_is_evaluated_if_all_of_it_is() {
    let tape = Tape::new(&Device::cpu());
    let mut pair = (param(), param());
    assert!(pair.is_training(&tape) && ().is_training(&tape));
    pair.0.evaluate("**").unwrap();
    assert!(pair.is_training(&tape) && !pair.0.is_training(&tape));
    pair.1.evaluate("**").unwrap();
    assert!(!pair.is_training(&tape));
    pair.train("**").unwrap();
    assert!(pair.is_training(&tape) && !pair.is_training(&Tape::inference(&Device::cpu())));
}

#[test]
fn tied_tensors_have_a_mode_per_place_and_shared_modules_have_one() {
    let w = param();
    let mut tied = [w.tied(), w];
    tied[1].evaluate("**").unwrap();
    assert_eq!(evaluated(&tied), ["1"]);
    // After tying, each place keeps its mode.
    let mut copy = tied.clone();
    copy.tie_like(&tied).unwrap();
    assert!(copy[0].is_tied_to(&copy[1]));
    assert_eq!(evaluated(&copy), ["1"]);

    let shared = Arc::new((param(), Dropout::new(0.5)));
    let mut holders = (Arc::clone(&shared), vec![Some(shared), None]);
    holders.evaluate("1.0").unwrap();
    assert_eq!(evaluated(&holders), ["0.0", "0.1.mode", "1.0.0", "1.0.1.mode"]);
}

#[derive(Module, Debug, Clone)]
#[module(sequential)]
struct Encoder {
    #[module(init = Conv2d::new(1, 3, 1))]
    conv: Conv2d,
    #[module(init = BatchNorm2d::new(3), then = Dropout::new(0.5))]
    norm: BatchNorm2d,
    #[module(init = Dropout::new(0.5))]
    dropout: Dropout,
}

#[derive(Module, Debug, Clone)]
#[module(sequential)]
struct FineTuned {
    #[module(init)]
    encoder: Encoder,
    #[module(init = BatchNorm2d::new(3))]
    norm: BatchNorm2d,
}

fn input(device: &Device) -> Tensor {
    let numbers: Vec<f32> = (0..36_u16).map(|i| f32::from(i * i % 11) - 4.0).collect();
    Tensor::from_slice(device, [4, 1, 3, 3], &numbers).unwrap()
}

fn step(net: &mut FineTuned) -> Vec<f32> {
    let device = net.norm.running_mean.value().device().clone();
    let tape = Tape::new(&device);
    let y = net.forward(&tape.input(&input(&device)));
    let grads = tape.backward(&y.square().mean()).unwrap();
    Sgd::new(0.1).step(net, &grads).unwrap();
    y.to_vec().unwrap()
}

fn statistics(norm: &BatchNorm2d) -> [Vec<f32>; 2] {
    [&norm.running_mean, &norm.running_var].map(|buffer| buffer.value().to_vec().unwrap())
}

#[test]
fn evaluated_norms_use_and_keep_their_statistics_while_the_rest_trains() {
    let mut net = FineTuned::init(&Device::cpu(), 42).unwrap();
    // Give the encoder running statistics that differ from those of any batch.
    step(&mut net);
    net.freeze("encoder.**").unwrap();
    // If the encoder is frozen but not evaluated, its statistics still move.
    let before = statistics(&net.encoder.norm);
    step(&mut net);
    assert_ne!(statistics(&net.encoder.norm), before);

    net.evaluate("encoder").unwrap();
    let (encoder, head) = (statistics(&net.encoder.norm), statistics(&net.norm));
    let device = Device::cpu();
    let expected = net.encoder.forward(&Tape::inference(&device).input(&input(&device))).to_vec().unwrap();
    let trained = net.encoder.forward(&Tape::new(&device).input(&input(&device))).to_vec().unwrap();
    assert_eq!(trained, expected, "nothing is dropped, and nothing is normalised by batch statistics");
    step(&mut net);
    assert_eq!(statistics(&net.encoder.norm), encoder);
    assert_ne!(statistics(&net.norm), head);

    net.train("**").unwrap();
    step(&mut net);
    assert_ne!(statistics(&net.encoder.norm), encoder);
}

#[test]
fn gradients_go_through_an_evaluated_part() {
    let mut net = FineTuned::init(&Device::cpu(), 42).unwrap();
    // Moves the statistics away from means of 0 and variances of 1.
    step(&mut net);
    net.evaluate("encoder").unwrap();
    let forward = |net: &FineTuned, x: &[Var]| vec![net.forward(&x[0])];
    crate::check::gradcheck(&net, &[input(&Device::cpu())], forward).unwrap().ok().unwrap();
}

#[test]
fn steps_of_a_chain_have_the_mode_of_their_field() {
    #[derive(Module)]
    #[module(sequential, then = Dropout::new(0.5))]
    struct Chain {
        #[module(then = Dropout::new(0.5))]
        first: Scale,
        #[module(before = Dropout::new(0.5))]
        second: Scale,
        #[module(then = Dropout::new(0.5))]
        nothing: Nothing,
    }

    #[derive(Module)]
    struct Nothing;

    #[derive(Module)]
    struct Scale(Param);

    impl Layer for Scale {
        fn forward(&self, x: &Var) -> Var {
            x.clone()
        }
    }

    impl Layer for Nothing {
        fn forward(&self, x: &Var) -> Var {
            x.clone()
        }
    }

    let device = Device::cpu();
    let mut chain = Chain { first: Scale(param()), second: Scale(param()), nothing: Nothing };
    let x = Tensor::full(&device, [4096], 1.0).unwrap();
    // The number of elements that are kept: each active dropout halves it.
    let mut kept = |pattern: &str| {
        chain.train("**").unwrap();
        if !pattern.is_empty() {
            chain.evaluate(pattern).unwrap();
        }
        let y = chain.forward(&Tape::with_seed(&device, 7).input(&x)).to_vec().unwrap();
        y.iter().filter(|&&y| y != 0.0).count()
    };
    // At most six standard errors, √(4096·p·(1 − p)) each.
    let near = |count: usize, expected: usize| count.abs_diff(expected) <= 120;
    assert!(near(kept(""), 256), "{}", kept(""));
    assert!(near(kept("first"), 512), "{}", kept("first"));
    assert_eq!(kept("**"), 4096);
}

#[test]
fn copies_and_averages_have_the_mode_and_files_leave_it() {
    use crate::io::Checkpoint;
    let mut net = FineTuned::init(&Device::cpu(), 42).unwrap();
    net.evaluate("encoder").unwrap();
    let expected = evaluated(&net);
    assert_eq!(expected.len(), 7);
    net.to_device(&Device::cpu()).unwrap();
    assert_eq!(evaluated(&net), expected);
    assert_eq!(evaluated(&net.clone()), expected);
    let ema = Ema::new(&net, 0.5).unwrap();
    assert_eq!(evaluated(ema.model()), expected);
    let mut other = FineTuned::init(&Device::cpu(), 7).unwrap();
    other.load_safetensors(&net.to_safetensors().unwrap()).unwrap().strict().unwrap();
    other.copy_from(&net).unwrap();
    assert_eq!(evaluated(&other), [] as [&str; 0]);
    net.load_safetensors(&other.to_safetensors().unwrap()).unwrap().strict().unwrap();
    assert_eq!(evaluated(&net), expected);
}

#[test]
fn a_buffer_alone_has_a_mode() {
    let mut seen = Buffer::new(Tensor::zeros(&Device::cpu(), [1]).unwrap());
    seen.evaluate("**").unwrap();
    assert!(!seen.is_training(&Tape::new(&Device::cpu())));
}

#[test]
fn a_batch_of_one_number_may_be_evaluated() {
    let device = Device::cpu();
    let mut norm = BatchNorm2d::new(1).init(&device, Seed::new(0)).unwrap();
    let x = Tensor::full(&device, [1, 1, 1, 1], 3.0).unwrap();
    assert!(norm.forward(&Tape::new(&device).input(&x)).error().is_some());
    norm.evaluate("**").unwrap();
    assert!(norm.forward(&Tape::new(&device).input(&x)).error().is_none());
}
