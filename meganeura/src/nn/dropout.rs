//! Dropout.

use std::panic::Location;

use meganeura_derive::Module;

use crate::error::bail;
use crate::module::{Init, Layer, Mode, Module, ModuleExt, Seed};
use crate::param::Adapter;
use crate::{Device, Error, Param, Result, Var};

/// Dropout: `y = x·mask/(1 − p)`; each element of the mask is 0 with probability `p`, else 1
///
/// It does nothing on an inference tape, and in a part of the model that is [evaluated](crate::ModuleExt::evaluate).
/// The mask comes from the tape's seed and is the same on every device. Dividing by `1 − p` keeps the expected value,
/// so inference needs no factor. `p` may change from step to step.
/// [Srivastava et al., 2014](https://jmlr.org/papers/v15/srivastava14a.html).
///
/// Shapes: any, kept.
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let dropout = Dropout::new(0.5);
///
/// let x = Tensor::full(&device, [100], 1.0)?;
/// let y = dropout.forward(&Tape::with_seed(&device, 42).input(&x)).to_vec()?;
/// assert!(y.contains(&0.0) && y.contains(&2.0));
/// assert_eq!(dropout.forward(&Tape::inference(&device).input(&x)).to_vec()?, [1.0; 100]);
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Module, Debug, Clone)]
#[must_use]
pub struct Dropout {
    /// The probability of dropping an element, at least 0 and below 1.
    #[module(skip)]
    pub p: f64,
    mode: Mode,
}

impl Dropout {
    /// Drops elements with probability `p`, at least 0 and below 1.
    pub const fn new(p: f64) -> Self {
        Self { p, mode: Mode::new() }
    }

    fn check(&self) -> Result<()> {
        match self.p {
            0.0..1.0 => Ok(()),
            p => bail!(Argument, "dropout: the probability {p} is not at least 0 and below 1"),
        }
    }
}

/// Checks the probability, like [`forward`](Layer::forward).
impl Init for Dropout {
    type Output = Self;

    fn build(self, _: &Device, _: Seed) -> Result<Self> {
        self.check().map(|()| self)
    }
}

impl Layer for Dropout {
    fn forward(&self, x: &Var) -> Var {
        let _entered = crate::module::enter(self, x);
        if let Err(error) = self.check() {
            return x.fail(Error::at(error, Location::caller()));
        }
        let tape = x.tape();
        if !self.is_training(tape) || self.p == 0.0 {
            return x.clone();
        }
        dropped(x, self.p)
    }

    fn flow(&self) -> crate::module::Flow {
        crate::module::Flow::kept()
    }
}

#[track_caller]
fn dropped(x: &Var, p: f64) -> Var {
    let tape = x.tape();
    // A selection rather than a product: a dropped infinity becomes 0, and the mask needs no gradient.
    let kept = x.random_uniform().ge(tape.scalar(p));
    kept.where_cond(&(x * tape.scalar((1.0 - p).recip())), &tape.constant(0.0))
}

/// The input of the first factor of a layer's adapter, from which training drops elements.
#[track_caller]
pub(super) fn adapter_input<L: Module>(x: &Var, p: f64, layer: &L) -> Var {
    if p > 0.0 && layer.is_training(x.tape()) { dropped(x, p) } else { x.clone() }
}

/// The weight of a layer whose adapter has magnitudes. In training with dropout, the frozen weight, and its difference
/// to the adapted one with the input for that: as in PEFT, all that differs reads what is left.
#[track_caller]
pub(super) fn with_magnitudes<L: Module>(
    x: &Var,
    weight: &Param,
    adapter: &Adapter,
    layer: &L,
) -> (Var, Option<(Var, Var)>) {
    let weight = x.tape().cell(weight.cell());
    let adapted = adapter.add_to(&weight);
    if adapter.dropout == 0.0 || !layer.is_training(x.tape()) {
        return (adapted, None);
    }
    let difference = adapted - &weight;
    (weight, Some((dropped(x, adapter.dropout), difference)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorKind, Tape, Tensor};

    fn apply(p: f64, tape: &Tape) -> Var {
        let ones = Tensor::full(&tape.device(), [64, 64], 1.0).unwrap();
        Dropout::new(p).forward(&tape.input(&ones))
    }

    #[test]
    fn drops_the_asked_share_and_scales_the_rest() {
        let device = Device::cpu();
        let y = apply(0.2, &Tape::with_seed(&device, 7)).to_vec().unwrap();
        assert!(y.iter().all(|&y| y == 0.0 || y == 1.25));
        let dropped = y.iter().filter(|&&y| y == 0.0).count() as f64 / 4096.0;
        // Four standard errors, √(0.2·0.8/4096) each.
        assert!((dropped - 0.2).abs() < 0.025, "dropped {dropped}");
    }

    #[test]
    fn masks_follow_the_seed_and_differ_between_layers() {
        let device = Device::cpu();
        let mask = |seed| apply(0.5, &Tape::with_seed(&device, seed)).to_vec().unwrap();
        assert_eq!(mask(1), mask(1));
        assert_ne!(mask(1), mask(2));
        let tape = Tape::with_seed(&device, 1);
        let (first, second) = (apply(0.5, &tape), apply(0.5, &tape));
        assert_ne!(first.to_vec().unwrap(), second.to_vec().unwrap());
    }

    #[test]
    fn does_nothing_on_inference_tapes_and_at_0() {
        let device = Device::cpu();
        assert_eq!(apply(0.5, &Tape::inference(&device)).to_vec().unwrap(), [1.0; 4096]);
        assert_eq!(apply(0.0, &Tape::new(&device)).to_vec().unwrap(), [1.0; 4096]);
    }

    #[test]
    fn other_probabilities_are_errors() {
        let device = Device::cpu();
        for p in [-0.1, 1.0, 1.5, f64::NAN] {
            assert_eq!(Dropout::new(p).init(&device, Seed::new(0)).unwrap_err().kind(), ErrorKind::Argument);
            let x = Tape::inference(&device).scalar(1.0);
            let (y, line) = (Dropout::new(p).forward(&x), line!());
            assert_eq!(y.error().unwrap().location().unwrap().line(), line);
        }
    }
}
