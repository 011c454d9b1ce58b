//! Residual branches that are left out at random.

use std::panic::Location;

use meganeura_derive::Module;

use crate::error::bail;
use crate::module::{Init, Layer, Mode, ModuleExt, Seed};
use crate::{Device, Error, Result, Var};

/// Leaves out whole examples at random: `y = x/(1−p)` for a share of `1−p` of the examples, and 0 for the others
///
/// At the end of a residual branch it leaves out the branch, another one for each example. On an inference tape, and in
/// a part of the model that is [evaluated](crate::ModuleExt::evaluate), it returns its input.
///
/// Shapes: `[N, ..]`, kept. [Huang et al., 2016](https://arxiv.org/abs/1603.09382).
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let x = Tensor::full(&device, [100, 2], 1.0)?;
/// let y = StochasticDepth::new(0.5).forward(&Tape::with_seed(&device, 42).input(&x)).to_vec()?;
/// assert!(y.chunks(2).all(|example| example == [0.0; 2] || example == [2.0; 2]));
/// # Ok::<(), meganeura::Error>(())
/// ```
#[doc(alias = "DropPath")]
#[derive(Module, Debug, Clone)]
#[must_use]
pub struct StochasticDepth {
    /// The probability of leaving out an example, at least 0 and below 1.
    #[module(skip)]
    pub p: f64,
    mode: Mode,
}

impl StochasticDepth {
    /// Leaves out examples with probability `p`, at least 0 and below 1.
    pub const fn new(p: f64) -> Self {
        Self { p, mode: Mode::new() }
    }

    fn check(&self) -> Result<()> {
        match self.p {
            0.0..1.0 => Ok(()),
            p => bail!(Argument, "stochastic_depth: the probability {p} is not at least 0 and below 1"),
        }
    }
}

/// Checks the probability, like [`forward`](Layer::forward).
impl Init for StochasticDepth {
    type Output = Self;

    fn build(self, _: &Device, _: Seed) -> Result<Self> {
        self.check().map(|()| self)
    }
}

impl Layer for StochasticDepth {
    fn forward(&self, x: &Var) -> Var {
        let _entered = crate::module::enter(self, x);
        if let Err(error) = self.check() {
            return x.fail(Error::at(error, Location::caller()));
        }
        let (tape, shape) = (x.tape(), x.shape());
        if !self.is_training(tape) || self.p == 0.0 || shape.rank() == 0 {
            return x.clone();
        }
        let examples = (1..shape.rank()).fold(shape, |shape, axis| shape.with(axis, 1));
        let kept = tape.constant(0.0).expand(examples).random_uniform().ge(tape.scalar(self.p));
        // A selection rather than a product: an infinity that is left out becomes 0.
        kept.where_cond(&(x * tape.scalar((1.0 - self.p).recip())), &tape.constant(0.0))
    }

    fn flow(&self) -> crate::module::Flow {
        crate::module::Flow::kept()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorKind, Tape, Tensor};

    fn apply(p: f64, tape: &Tape) -> Var {
        let ones = Tensor::full(&tape.device(), [2048, 3, 2], 1.0).unwrap();
        StochasticDepth::new(p).forward(&tape.input(&ones))
    }

    #[test]
    fn leaves_out_the_asked_share_of_examples_and_scales_the_rest() {
        let device = Device::cpu();
        let y = apply(0.2, &Tape::with_seed(&device, 7)).to_vec().unwrap();
        assert!(y.chunks(6).all(|example| example == [0.0; 6] || example == [1.25; 6]));
        let dropped = y.chunks(6).filter(|example| example[0] == 0.0).count() as f64 / 2048.0;
        // Four standard errors, √(0.2·0.8/2048) each.
        assert!((dropped - 0.2).abs() < 0.036, "left out {dropped}");
        let again = apply(0.2, &Tape::with_seed(&device, 8)).to_vec().unwrap();
        assert_ne!(y, again);
    }

    #[test]
    fn keeps_everything_on_inference_tapes_and_at_0() {
        let device = Device::cpu();
        assert!(apply(0.5, &Tape::inference(&device)).to_vec().unwrap().iter().all(|&y| y == 1.0));
        assert!(apply(0.0, &Tape::new(&device)).to_vec().unwrap().iter().all(|&y| y == 1.0));
    }

    #[test]
    fn senseless_probabilities_are_errors() {
        let device = Device::cpu();
        for p in [-0.1, 1.0, f64::NAN] {
            let error = StochasticDepth::new(p).init(&device, Seed::new(0)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Argument);
            let (y, line) = (apply(p, &Tape::new(&device)), line!());
            assert!(y.error().is_some(), "{line}");
        }
    }
}
