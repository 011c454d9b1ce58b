//! Adagrad: gradients divided by the magnitude of all gradients so far.

use super::rule::{Given, Rule, expect_eps, expect_not_negative};
use super::{Settings, Stepper};
use crate::module::Leaf;
use crate::{Result, Var};

/// Adagrad with weight decay λ and a learning rate that decays by η, at a parameter's update number `t`:
///
/// ```text
/// g ← dw + λ·w
/// s ← s + g²                   from s = a on
/// w ← w − lr/(1 + (t − 1)·η) · g/(√s + ε)
/// ```
///
/// PyTorch's formula, with its defaults η = 0, a = 0, ε = 1e-10, λ = 0. Suits parameters that few examples touch, such
/// as embeddings; the steps of all others only ever get shorter.
/// [Duchi et al., 2011](https://jmlr.org/papers/v12/duchi11a.html).
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let mut w = Param::new(Tensor::from_slice(&device, [2], &[1.0, -100.0])?);
/// let mut optimizer = Adagrad::new(0.5);
/// let tape = Tape::new(&device);
/// let grads = tape.backward(&tape.param(&w).square().sum())?;
/// optimizer.step(&mut w, &grads)?; // the first step is of size `lr`, however large the gradient
/// assert_eq!(w.value().to_vec()?, [0.5, -99.5]);
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct Adagrad {
    lr_decay: f64,
    initial: f64,
    eps: f64,
    stepper: Stepper,
}

impl Adagrad {
    /// Adagrad with this learning rate.
    pub fn new(lr: f64) -> Self {
        Self { lr_decay: 0.0, initial: 0.0, eps: 1e-10, stepper: Stepper::new(lr, 0.0) }
    }

    /// The decay of the learning rate with the updates, η: 0 or above; 0 by default. A [`Schedule`](super::Schedule)
    /// can do more.
    pub fn lr_decay(self, lr_decay: f64) -> Self {
        Self { lr_decay, ..self }
    }

    /// The initial sum of squares, a: 0 or above; 0 by default.
    pub fn initial(self, initial: f64) -> Self {
        Self { initial, ..self }
    }

    /// The number added to the denominator, at least 1.2e-38; 1e-10 by default.
    pub fn eps(self, eps: f64) -> Self {
        Self { eps, ..self }
    }

    /// The weight decay, λ: the share of each parameter that is added to its gradient; 0 by default.
    pub fn weight_decay(self, weight_decay: f64) -> Self {
        Self { stepper: self.stepper.with_weight_decay(weight_decay), ..self }
    }
}

impl Rule for Adagrad {
    fn name(&self) -> &'static str {
        "adagrad"
    }

    fn stepper(&self) -> &Stepper {
        &self.stepper
    }

    fn stepper_mut(&mut self) -> &mut Stepper {
        &mut self.stepper
    }

    fn check(&self) -> Result<()> {
        expect_not_negative(self.name(), "decay of the learning rate", self.lr_decay)?;
        expect_not_negative(self.name(), "initial sum", self.initial)?;
        expect_eps(self.name(), self.eps)
    }

    fn state(&self, _: &Leaf<'_>) -> &'static [&'static str] {
        &["sum"]
    }

    fn numbers(&self, Settings { lr, weight_decay }: Settings, t: u64) -> Vec<f64> {
        #[expect(clippy::cast_precision_loss, reason = "nobody makes 2^53 steps")]
        let before = (t - 1) as f64;
        // State starts as zeros, so the first update adds the initial value.
        let initial = if t == 1 { self.initial } else { 0.0 };
        vec![lr / (1.0 + before * self.lr_decay), weight_decay, initial, self.eps]
    }

    fn update(&self, given: &Given<'_>) -> (Var, Vec<Var>) {
        let [lr, decay, initial, eps] = given.numbers();
        let [sum] = given.state();
        let g = given.decayed_gradient(decay);
        let sum = sum + initial + g.square();
        (&given.w - lr * g / (sum.sqrt() + eps), vec![sum])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::tests::assert_senseless;

    #[test]
    fn senseless_settings_are_errors_of_the_step() {
        assert_senseless(Adagrad::new(f64::NAN));
        assert_senseless(Adagrad::new(0.1).lr_decay(-1.0));
        assert_senseless(Adagrad::new(0.1).initial(f64::INFINITY));
        assert_senseless(Adagrad::new(0.1).eps(1e-50));
    }
}
