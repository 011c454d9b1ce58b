//! `init` compares neighbouring layers; with `input`, it also records the whole model.

use meganeura::prelude::*;
use meganeura::{ErrorKind, Result};

mod fits {
    use super::*;

    #[derive(Module)]
    #[module(sequential, residual = shortcut)]
    pub struct Block {
        #[module(init = Conv2d::new(8, 16, 3).padding(1), then = [relu, MaxPool2d::new(3).stride(1).padding(1)])]
        conv: Conv2d,
        #[module(init = BatchNorm2d::new(16))]
        norm: BatchNorm2d,
        #[module(init = Some(Conv2d::new(8, 16, 1)))]
        shortcut: Option<Conv2d>,
    }

    #[derive(Module)]
    #[module(sequential, input = [_, 3, 8, 8])]
    pub struct Net {
        #[module(init = Conv2d::new(3, 8, 3).padding(1), then = relu)]
        stem: Conv2d,
        #[module(init)]
        block: Block,
        #[module(init = (Dropout::new(0.5), Flatten))]
        flatten: (Dropout, Flatten),
        #[module(init = Linear::new(16 * 8 * 8, 10))]
        head: Linear,
    }
}

#[derive(Module)]
#[module(sequential, input = u32 [_, 5], config(words: usize, width: usize))]
struct Words {
    #[module(init = Embedding::new(words, width))]
    table: Embedding,
    #[module(init = Linear::new(width, words))]
    head: Linear,
}

/// With a hand-written `forward`.
#[derive(Module)]
#[module(input = [_, size])]
#[module(config(size: usize))]
struct ByHand {
    #[module(init = Linear::new(4, 4))]
    linear: Linear,
}

impl Layer for ByHand {
    fn forward(&self, x: &Var) -> Var {
        self.linear.forward(x)
    }
}

#[test]
fn fitting_models_are_built_without_running_anything() {
    let device = Device::cpu();
    device.set_seed(3);
    let net = fits::Net::init(&device, 1).unwrap();
    assert_eq!((device.stats().runs, device.stats().plans, device.seed()), (0, 0, 3));
    assert!(net.leaves().iter().all(|leaf| leaf.param().is_none() || leaf.role == meganeura::module::Role::Trained));
    assert_eq!(net.summary_with([4, 3, 8, 8]).unwrap().rows()[0].output.shape, Shape::from([4, 10]));
    Words::init(&device, 1, WordsConfig { words: 7, width: 3 }).unwrap();
    ByHand::init(&device, 1, ByHandConfig { size: 4 }).unwrap();
}

fn error<M>(built: Result<M>) -> (ErrorKind, String, Option<u32>) {
    let error = built.err().expect("a model that cannot run");
    (error.kind(), error.to_string(), error.location().map(std::panic::Location::line))
}

#[derive(Module)]
#[module(sequential)]
struct Neighbours {
    #[module(init = Conv2d::new(3, 32, 3), then = relu)]
    conv1: Conv2d,
    #[module(init = [Relu, Relu])]
    activations: [Relu; 2],
    #[module(init = Conv2d::new(64, 8, 3))]
    conv2: Conv2d,
}
/// The line of the type of `conv2`.
const CONV2: u32 = line!() - 3;

#[derive(Module)]
#[module(sequential, residual)]
struct Sum {
    #[module(init = Linear::new(4, 8))]
    linear: Linear,
}

#[derive(Module)]
#[module(sequential)]
struct Outer {
    #[module(init = Linear::new(2, 4))]
    first: Linear,
    #[module(init = [Box::new(Linear::new(4, 5)), Box::new(Linear::new(6, 1))])]
    rest: [Box<Linear>; 2],
}
/// The line of the type of `rest`.
const REST: u32 = line!() - 3;

#[test]
fn neighbours_that_do_not_fit_are_an_error_of_init() {
    let device = Device::cpu();
    let (kind, said, line) = error(Neighbours::init(&device, 1));
    assert_eq!((kind, line), (ErrorKind::Shape, Some(CONV2)), "{said}");
    assert!(said.starts_with("`conv1` gives 32 channels, `conv2` takes 64"), "{said}");
    let (_, said, _) = error(Sum::init(&device, 1));
    assert!(said.contains("`linear` gives 8 features, and the input that is added to it has 4"), "{said}");
    let (_, said, line) = error(Outer::init(&device, 1));
    assert!(said.contains("`rest`: `0` gives 5 features, `1` takes 6"), "{said}");
    assert_eq!(line, Some(REST), "{said}");
}

#[derive(Module)]
#[module(sequential, input = [_, 3, 8, 8])]
struct Head {
    #[module(init = Conv2d::new(3, 4, 3), then = [relu, flatten])]
    stem: Conv2d,
    #[module(init = Linear::new(4 * 8 * 8, 10))]
    head: Linear,
}
/// The line of the type of `head`.
const HEAD: u32 = line!() - 3;

#[test]
fn an_input_that_does_not_fit_names_the_layer() {
    let device = Device::cpu();
    let (kind, said, line) = error(Head::init(&device, 1));
    assert_eq!((kind, line), (ErrorKind::Shape, Some(HEAD)), "{said}");
    for part in ["`head`, with an input f32[2, 3, 8, 8] of the model", "(parameter head.weight)", "f32[2, 144]"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    // With a hand-written `forward`, only `input` finds the misfit.
    let (_, said, _) = error(ByHand::init(&device, 1, ByHandConfig { size: 5 }));
    assert!(said.contains("`linear`, with an input f32[2, 5] of the model"), "{said}");
    let (_, said, line) = error(ByHand::init(&device, 1, ByHandConfig { size: 0 }));
    assert!(said.contains("needs at least one element") && line.is_some(), "{said}");
}
