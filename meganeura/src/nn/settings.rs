//! The parts that the configs of layers share: checks of settings, and the parameters of a product with a bias.

use crate::error::bail;
use crate::init::Initializer;
use crate::module::{Seed, init_field};
use crate::{Device, Param, Result, Shape, Var};

/// Checks the channels and groups of a convolution.
pub(super) fn expect_channels(layer: &str, [inputs, outputs]: [usize; 2], groups: usize) -> Result<()> {
    if inputs == 0 || outputs == 0 {
        bail!(Argument, "{layer}: from {inputs} to {outputs} channels; both must be at least 1");
    }
    if groups == 0 || inputs % groups != 0 || outputs % groups != 0 {
        bail!(Argument, "{layer}: {groups} groups must divide the {inputs} input and {outputs} output channels");
    }
    Ok(())
}

/// Refuses a setting that is 0 along any axis.
pub(super) fn expect_positive<const AXES: usize>(layer: &str, settings: &[(&str, [usize; AXES])]) -> Result<()> {
    match settings.iter().find(|(_, setting)| setting.contains(&0)) {
        Some((name, setting)) => match &setting[..] {
            [only] => bail!(Argument, "{layer}: {name} {only}; it must be at least 1"),
            [_, _] => bail!(Argument, "{layer}: {name} {setting:?}; both must be at least 1"),
            _ => bail!(Argument, "{layer}: {name} {setting:?}; all three must be at least 1"),
        },
        None => Ok(()),
    }
}

/// Draws a weight of this shape, and if there is to be a bias, that of `outputs` elements.
pub(super) fn weight_and_bias(
    device: &Device,
    seed: Seed,
    shape: Shape,
    weight_init: &Initializer,
    outputs: Option<usize>,
) -> Result<(Param, Option<Param>)> {
    let weight = weight_init.sample(device, shape, seed.field("weight"));
    let weight = Param::new(init_field("weight", weight)?);
    let draw = |outputs| Initializer::bias_beside(shape)?.sample(device, [outputs], seed.field("bias"));
    Ok((weight, outputs.map(draw).transpose()?.map(Param::new)))
}

/// A number for each channel, `[C]`, for values with `D` further axes.
#[track_caller]
pub(super) fn per_channel<const D: usize>(x: &Var) -> Var {
    x.reshape(&[&[x.shape().elements()], &[1; D][..]].concat()[..])
}
