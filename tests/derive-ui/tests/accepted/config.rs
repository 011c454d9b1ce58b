//! Every `init` sees the arguments of `config`, which are passed by name.

use std::marker::PhantomData;

use meganeura::prelude::*;
use meganeura::{Device, FromConfig, Init, Result};
use meganeura_derive_ui::{Scale, Shift, apply, device, leaves};
use serde::{Deserialize, Serialize};

#[derive(Module)]
#[module(sequential, config(width: usize, factor: f32))]
struct Block {
    #[module(init = Scale::new(factor).wide(width))]
    scale: Scale,
    #[module(skip, init = width)]
    width: usize,
}

/// A model whose parts get the model's own arguments.
#[derive(Module)]
#[module(sequential, config(
    /// The number of blocks.
    depth: usize,
    factors: Vec<f32>,
    last: Option<f32>,
))]
pub struct Net {
    #[module(init = vec![BlockConfig { width: 1, factor: factors[0] }; depth])]
    blocks: Vec<Block>,
    #[module(init = last.into_iter().map(Shift::new).collect::<Vec<_>>())]
    shifts: Vec<Shift>,
}

/// A hand-written config type, with generics and derives.
#[derive(Debug, Clone, PartialEq)]
struct Settings<const N: usize> {
    factors: [f32; N],
    block: Nested,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Nested {
    offset: f32,
}

impl Default for Nested {
    fn default() -> Self {
        Self { offset: 1.0 }
    }
}

#[derive(Module)]
#[module(sequential, config = Settings<N>)]
struct Configured<const N: usize> {
    #[module(init = config.factors.map(Scale::new))]
    scales: [Scale; N],
    #[module(init = config.block)]
    inner: Inner,
}

#[derive(Module)]
#[module(sequential, config = Nested)]
struct Inner(#[module(init = Shift::new(config.offset))] Shift);

trait Family {
    type Factor: Copy + Into<f32>;
}

struct Bytes;

impl Family for Bytes {
    type Factor = u8;
}

/// The generated config has only the generics that its fields use.
#[derive(Module)]
#[module(config(factors: [F::Factor; N], label: &'a str))]
struct Generic<'a, L, F, const N: usize = 2>
where
    F: Family,
    L: Clone,
{
    #[module(init = factors.map(|factor| Scale::new(factor.into())))]
    scales: [Scale; N],
    #[module(init)]
    layer: PhantomData<L>,
    #[module(skip, init = PhantomData)]
    _family: PhantomData<F>,
    #[module(skip, init = label)]
    label: &'a str,
}

/// A config with all of the model's generics is a builder.
#[derive(Module)]
#[module(sequential, config(factors: [f32; N]))]
struct Chain<const N: usize>(#[module(init = factors.map(Scale::new))] [Scale; N]);

#[test]
fn a_config_has_only_the_generics_that_it_needs() -> Result<()> {
    let device = device();
    let config = GenericConfig::<'_, Bytes, 2> { factors: [3, 4], label: "label" };
    let mut net = Generic::<'_, u8, Bytes>::init(&device, 42, config)?;
    assert_eq!((leaves(&mut net).len(), net.label), (2, "label"));
    assert_eq!(apply(&ChainConfig { factors: [3.0, 4.0] }.init(&device, Seed::new(1))?, 2.0)?, 24.0);
    Ok(())
}

/// The config does not determine `L`, so only `init` can build it.
#[derive(Module)]
#[module(sequential, config(offset: f32))]
struct Over<L> {
    #[module(init)]
    layer: L,
    #[module(init = Shift::new(offset))]
    shift: Shift,
}

#[derive(Module)]
#[module(sequential)]
struct Two(#[module(init = Scale::new(2.0))] Scale);

#[derive(Module)]
#[module(sequential)]
struct Outer {
    #[module(init = |device, seed| Over::init(device, seed, OverConfig { offset: 5.0 }))]
    over: Over<Two>,
}

fn build<M: FromConfig>(config: M::Config, device: &Device) -> Result<M> {
    M::from_config(config, device, Seed::new(42))
}

#[test]
fn values_are_given_by_name() -> Result<()> {
    let device = device();
    let config = NetConfig { depth: 3, factors: vec![2.0], last: Some(1.0) };
    assert_eq!(format!("{config:?}"), "NetConfig { depth: 3, factors: [2.0], last: Some(1.0) }");
    let mut net = Net::init(&device, 42, config.clone())?;
    assert_eq!(
        leaves(&mut net),
        ["blocks.0.scale.weight", "blocks.1.scale.weight", "blocks.2.scale.weight", "shifts.0.offset (buffer)"]
    );
    assert_eq!(apply(&net, 1.0)?, 9.0);
    assert_eq!(net.blocks[0].width, 1);
    assert_eq!(net.named_parameters()[2].1.path().as_deref(), Some("blocks.2.scale.weight"));

    assert_eq!(apply(&config.init(&device, Seed::new(1))?, 1.0)?, 9.0, "a config is a builder");
    assert_eq!(apply(&build::<Block>(BlockConfig { width: 1, factor: 4.0 }, &device)?, 1.0)?, 4.0);
    Ok(())
}

#[test]
fn a_hand_written_config_is_called_config() -> Result<()> {
    let device = device();
    let config = Settings { factors: [2.0, 3.0], block: Nested::default() };
    assert_eq!(apply(&Configured::init(&device, 42, config)?, 1.0)?, 7.0);
    Ok(())
}

/// Serde support comes from the config type, not from the framework.
#[test]
fn a_config_is_saved_with_the_model() -> Result<()> {
    let device = device();
    let mut saved = Inner::init(&device, 42, Nested { offset: 7.0 })?;
    saved.0 = Shift::new(9.0).init(&device, Seed::new(0))?;
    let (json, bytes) = (serde_json::to_string(&Nested { offset: 7.0 }).unwrap(), saved.to_safetensors()?);

    let mut loaded = Inner::init(&device, 1, serde_json::from_str(&json).unwrap())?;
    assert_eq!(apply(&loaded, 1.0)?, 8.0);
    loaded.load_safetensors(&bytes)?.strict()?;
    assert_eq!(apply(&loaded, 1.0)?, 10.0);
    Ok(())
}

#[test]
fn type_parameters_supply_what_the_config_omits() -> Result<()> {
    let device = device();
    assert_eq!(apply(&Over::<Two>::init(&device, 42, OverConfig { offset: 1.0 })?, 1.0)?, 3.0);
    let outer = Outer::init(&device, 42)?;
    assert_eq!(apply(&outer, 1.0)?, 7.0);
    assert_eq!(outer.named_parameters()[0].1.path().as_deref(), Some("over.layer.0.weight"));
    Ok(())
}
