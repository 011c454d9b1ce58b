//! Generated code beyond visiting: seeds, errors that name fields, and the lines of errors.

use meganeura::prelude::*;
use meganeura::{Device, Error, ErrorKind, Param, Result, Tensor, Var};
use meganeura_derive_ui::{Scale, Shift, apply, device};

/// A module that remembers its seed.
#[derive(Module, Debug)]
struct Seeded {
    #[module(skip)]
    seed: Seed,
}

/// Builds a [`Seeded`], or fails.
#[derive(Clone)]
struct Builder {
    fails: bool,
}

impl Init for Builder {
    type Output = Seeded;

    fn build(self, _: &Device, seed: Seed) -> Result<Seeded> {
        if self.fails { Err(Error::new(ErrorKind::Argument, "0 channels")) } else { Ok(Seeded { seed }) }
    }
}

#[derive(Module, Debug)]
struct Inner<const FAILS: bool> {
    #[module(init = Builder { fails: FAILS })]
    part: Seeded,
}

#[derive(Module, Debug)]
struct Outer<const FAILS: bool> {
    #[module(init = vec![Builder { fails: false }; 2])]
    blocks: Vec<Seeded>,
    #[module(init, rename = "inner")]
    nested: Inner<FAILS>,
}

#[test]
fn a_seed_follows_the_path() {
    let net = Outer::<false>::init(&device(), 42).unwrap();
    let seed = Seed::new(42);
    assert_eq!(net.blocks[1].seed, seed.field("blocks").index(1));
    assert_eq!(net.nested.part.seed, seed.field("inner").field("part"));
}

#[test]
fn an_error_of_building_names_the_field() {
    let error = Outer::<true>::init(&device(), 42).unwrap_err();
    assert!(error.to_string().contains("inner: part: 0 channels"), "{error}");
}

fn recorded_at(layer: &impl Layer) -> u32 {
    let device = device();
    let x = Tensor::zeros(&device, [3]).unwrap();
    let error = layer.forward(&Tape::new(&device).input(&x)).error().expect("2 and 3 do not broadcast");
    let location = error.location().expect("an operation was recorded");
    assert!(location.file().ends_with("behaviour.rs"), "{location}");
    location.line()
}

const FIRST_LINE: u32 = line!();

#[derive(Module, Debug)]
#[module(sequential)]
struct AtField {
    #[module(init = Scale::new(1.0))]
    fits: Scale,
    #[module(init = vec![Scale::new(1.0).wide(2)], then = relu)]
    does_not: Vec<Scale>, // line 8
}

#[derive(Module, Debug)]
#[module(sequential)]
struct AtClosure {
    #[module(
        init = Scale::new(1.0),
        then = |x| x.clone() + x.param(&Param::new(
            Tensor::zeros(&device(), [2]).unwrap()
        )),
    )]
    fits: Scale,
}

#[derive(Module, Debug)]
#[module(sequential)]
struct Nested {
    #[module(init)]
    inner: AtField,
}

#[test]
fn an_error_of_applying_is_at_the_line_of_the_field() {
    let device = device();
    assert_eq!(recorded_at(&AtField::init(&device, 42).unwrap()), FIRST_LINE + 8);
    assert_eq!(recorded_at(&AtClosure::init(&device, 42).unwrap()), FIRST_LINE + 16);
    assert_eq!(recorded_at(&Nested::init(&device, 42).unwrap()), FIRST_LINE + 8);
}

#[test]
fn layers_are_applied_in_order() -> Result<()> {
    let device = device();
    let scale = || Scale::new(3.0).init(&device, Seed::new(0));
    let shift = || Shift::new(1.0).init(&device, Seed::new(0));
    assert_eq!(apply(&(scale()?, shift()?), 2.0)?, 7.0);
    assert_eq!(apply(&(shift()?, scale()?), 2.0)?, 9.0);
    assert_eq!(apply(&[scale()?, scale()?], 2.0)?, 18.0);
    assert_eq!(apply(&Vec::<Scale>::new(), 2.0)?, 2.0);
    let boxed: Vec<Box<dyn Layer>> = vec![Box::new(shift()?), Box::new((scale()?, shift()?))];
    assert_eq!(apply(&boxed, 2.0)?, 10.0);
    Ok(())
}

#[derive(Module, Debug)]
enum Activation {
    Relu,
    Scale(Scale),
}

impl Layer for Activation {
    fn forward(&self, x: &Var) -> Var {
        match self {
            Self::Relu => x.relu(),
            Self::Scale(scale) => scale.forward(x),
        }
    }
}

#[test]
fn a_models_parts_may_be_moved_and_counted() -> Result<()> {
    let device = device();
    let scale = Scale::new(3.0).wide(5).init(&device, Seed::new(0))?;
    let mut net = (vec![Activation::Relu, Activation::Scale(scale)], Shift::new(1.0).init(&device, Seed::new(0))?);
    net.to_device(&device)?;
    assert_eq!(net.parameter_count(), 5);
    assert_eq!(net.named_parameters()[0].0, "0.1.0.weight");
    assert_eq!(net.named_buffers()[0].0, "1.offset");
    Ok(())
}
