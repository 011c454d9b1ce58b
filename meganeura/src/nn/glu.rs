//! Gated linear units.

use meganeura_derive::Module;

use super::{Linear, LinearConfig};
use crate::error::bail;
use crate::module::{Init, Layer, Seed, init_field};
use crate::{Device, ErrorKind, Result, Var};

/// The gated linear unit: `y = a·σ(b)`, where `a` is the first half of the input along an axis and `b` the second
///
/// Shapes: `x [.., 2D, ..]` → `y [.., D, ..]`; along the last axis unless [`axis`](Self::axis) sets another.
/// [Dauphin et al., 2017](https://arxiv.org/abs/1612.08083).
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let x = Tape::new(&device).input(&Tensor::from_slice(&device, [1, 4], &[3.0, 5.0, 0.0, 100.0])?);
/// assert_eq!(Glu::new().forward(&x).to_vec()?, [1.5, 5.0]);
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Module, Debug, Clone, Copy, Default, PartialEq, Eq)]
#[must_use]
pub struct Glu {
    #[module(skip)]
    axis: Option<usize>,
}

impl Glu {
    /// Splits the last axis.
    pub const fn new() -> Self {
        Self { axis: None }
    }

    /// Splits this axis, counted from 0: 1 for channels.
    pub const fn axis(self, axis: usize) -> Self {
        Self { axis: Some(axis) }
    }
}

impl Init for Glu {
    type Output = Self;

    fn build(self, _: &Device, _: Seed) -> Result<Self> {
        Ok(self)
    }
}

impl Layer for Glu {
    fn forward(&self, x: &Var) -> Var {
        let _entered = crate::module::enter(self, x);
        let rank = x.shape().rank();
        let axis = self.axis.unwrap_or(rank.saturating_sub(1));
        match x.shape().dims().get(axis) {
            Some(&extent) if extent % 2 == 0 && x.ty().dtype.is_float() => {
                let half = extent / 2;
                x.slice(axis, 0..half) * x.slice(axis, half..extent).sigmoid()
            }
            _ => {
                let message = format!(
                    "splits axis {axis} into halves, so its extent must be even and its elements floats; the input is {}",
                    x.ty()
                );
                x.refuse("glu", ErrorKind::Shape, message)
            }
        }
    }
}

/// A feed-forward layer with a gate, as in the Llama family: `y = W_down·(silu(W_gate·x)·(W_up·x))`
///
/// Parameters have the names used in these models. Normalisation and residual are up to the caller.
///
/// Shapes: `x [.., width]` → `y [.., width]`, with `hidden` features in between.
/// [Shazeer, 2020](https://arxiv.org/abs/2002.05202).
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let feed_forward = SwiGlu::new(64, 172).init(&device, Seed::new(42))?;
///
/// let x = Tape::new(&device).input(&Tensor::zeros(&device, [2, 10, 64])?);
/// assert_eq!(feed_forward.forward(&x).shape(), x.shape());
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Module, Debug, Clone)]
pub struct SwiGlu {
    /// The projection of the input to the gates.
    pub gate_proj: Linear,
    /// The projection of the input to the values that the gates multiply.
    pub up_proj: Linear,
    /// The projection of the products to the result.
    pub down_proj: Linear,
}

impl SwiGlu {
    /// A layer over vectors of `width` features, with `hidden` features in between.
    #[expect(clippy::new_ret_no_self, reason = "a layer needs a device and a seed; this describes one without")]
    pub fn new(width: usize, hidden: usize) -> SwiGluConfig {
        SwiGluConfig { width, hidden, bias: false }
    }
}

impl Layer for SwiGlu {
    fn forward(&self, x: &Var) -> Var {
        let _entered = crate::module::enter(self, x);
        let gate = self.gate_proj.forward(x).silu();
        self.down_proj.forward(&(gate * self.up_proj.forward(x)))
    }

    fn flow(&self) -> crate::module::Flow {
        crate::module::Flow::kept().takes_features(self.gate_proj.weight.shape()[1])
    }
}

/// Describes a [`SwiGlu`]; [`Init::init`] builds it.
#[derive(Debug, Clone)]
#[must_use]
pub struct SwiGluConfig {
    width: usize,
    hidden: usize,
    bias: bool,
}

impl SwiGluConfig {
    /// Gives the projections biases if `true`; `false` by default.
    pub fn bias(self, bias: bool) -> Self {
        Self { bias, ..self }
    }
}

impl Init for SwiGluConfig {
    type Output = SwiGlu;

    fn build(self, device: &Device, seed: Seed) -> Result<SwiGlu> {
        let Self { width, hidden, bias } = self;
        if width == 0 || hidden == 0 {
            bail!(Argument, "swiglu: {width} features, {hidden} in between; both must be at least 1");
        }
        let project = |name, inputs, outputs| {
            let linear: LinearConfig = Linear::new(inputs, outputs).bias(bias);
            init_field(name, linear.build(device, seed.field(name)))
        };
        Ok(SwiGlu {
            gate_proj: project("gate_proj", width, hidden)?,
            up_proj: project("up_proj", width, hidden)?,
            down_proj: project("down_proj", hidden, width)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ModuleExt, Shape, Tape, Tensor};

    fn input(shape: &[usize]) -> Var {
        let device = Device::cpu();
        let x: Vec<_> = (0..shape.iter().product::<usize>()).map(|i| i as f32).collect();
        Tape::new(&device).input(&Tensor::from_slice(&device, Shape::new(shape), &x).unwrap())
    }

    #[test]
    fn an_axis_can_be_named() {
        let y = Glu::new().axis(1).forward(&(input(&[1, 2, 3]) - 3.0));
        assert_eq!(y.shape(), Shape::from([1, 1, 3]));
        assert_eq!(y.to_vec().unwrap()[0], -1.5);
    }

    #[test]
    fn odd_extents_and_missing_axes_are_errors() {
        for (y, line) in [
            (Glu::new().forward(&input(&[2, 3])), line!()),
            (Glu::new().axis(2).forward(&input(&[2, 4])), line!()),
            (Glu::new().forward(&input(&[])), line!()),
        ] {
            let error = y.error().unwrap();
            assert_eq!((error.kind(), error.location().unwrap().line()), (ErrorKind::Shape, line));
            assert!(error.to_string().starts_with("glu: splits axis"), "{error}");
        }
    }

    #[test]
    fn parameters_have_the_names_of_llama() {
        let layer = SwiGlu::new(2, 3).init(&Device::cpu(), Seed::new(0)).unwrap();
        let paths: Vec<_> = layer.named_parameters().into_iter().map(|(path, _)| path).collect();
        assert_eq!(paths, ["gate_proj.weight", "up_proj.weight", "down_proj.weight"]);
        assert_eq!(SwiGlu::new(0, 3).init(&Device::cpu(), Seed::new(0)).unwrap_err().kind(), ErrorKind::Argument);
    }

    #[test]
    fn a_misfit_names_the_callers_line() {
        let layer = SwiGlu::new(2, 3).init(&Device::cpu(), Seed::new(0)).unwrap();
        let (y, line) = (layer.forward(&input(&[2, 3])), line!());
        assert_eq!(y.error().unwrap().location().unwrap().line(), line);
    }
}
