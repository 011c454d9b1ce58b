//! Adam, and Adam with decoupled weight decay.

use super::rule::{Given, Rule, exactly, expect_eps, expect_share};
use super::{Settings, Stepper};
use crate::module::Leaf;
use crate::{Result, Var};

/// Adam, with weight decay λ added to the gradient, at a parameter's update number `t`:
///
/// ```text
/// g ← dw + λ·w
/// m ← m + (1 − β₁)·(g − m)
/// v ← β₂·v + (1 − β₂)·g²
/// w ← w − lr/(1 − β₁ᵗ) · m / (√v/√(1 − β₂ᵗ) + ε)
/// ```
///
/// PyTorch's formula, with its defaults β = (0.9, 0.999), ε = 1e-8, λ = 0. With weight decay, [`AdamW`] is usually the
/// better choice. [Kingma and Ba, 2014](https://arxiv.org/abs/1412.6980); with [`amsgrad`](Self::amsgrad),
/// [Reddi et al., 2018](https://arxiv.org/abs/1904.09237).
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let mut w = Param::new(Tensor::from_slice(&device, [2], &[1.0, -100.0])?);
/// let mut optimizer = Adam::new(0.5);
/// let tape = Tape::new(&device);
/// let grads = tape.backward(&tape.param(&w).square().sum())?;
/// optimizer.step(&mut w, &grads)?; // the first step is of size `lr`, however large the gradient
/// let w = w.value().to_vec()?;
/// assert!((w[0] - 0.5).abs() < 1e-6 && (w[1] + 99.5).abs() < 1e-4);
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct Adam {
    moments: Moments,
    stepper: Stepper,
}

/// Adam with decoupled weight decay λ, at a parameter's update number `t`:
///
/// ```text
/// w ← w·(1 − lr·λ)
/// m ← m + (1 − β₁)·(dw − m)
/// v ← β₂·v + (1 − β₂)·dw²
/// w ← w − lr/(1 − β₁ᵗ) · m / (√v/√(1 − β₂ᵗ) + ε)
/// ```
///
/// PyTorch's formula, with its defaults β = (0.9, 0.999), ε = 1e-8, λ = 0.01. Each parameter counts its own updates, so
/// one that is thawed later starts with its own bias correction.
/// [Loshchilov and Hutter, 2017](https://arxiv.org/abs/1711.05101).
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let mut net = Linear::new(2, 1).init(&device, Seed::new(1))?;
/// let mut optimizer = AdamW::new(1e-3).betas(0.9, 0.95).weight_decay(0.1);
/// let tape = Tape::new(&device);
/// let x = tape.input(&Tensor::full(&device, [4, 2], 1.0)?);
/// let grads = tape.backward(&net.forward(&x).square().mean())?;
/// optimizer.step(&mut net, &grads)?;
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct AdamW {
    moments: Moments,
    stepper: Stepper,
}

impl Adam {
    /// Adam with this learning rate.
    pub fn new(lr: f64) -> Self {
        Self { moments: Moments::default(), stepper: Stepper::new(lr, 0.0) }
    }

    /// The decay rates of the moments, as for [`AdamW::betas`].
    pub fn betas(self, first: f64, second: f64) -> Self {
        Self { moments: Moments { betas: (first, second), ..self.moments }, ..self }
    }

    /// The number added to the denominator, at least 1.2e-38; 1e-8 by default.
    pub fn eps(self, eps: f64) -> Self {
        Self { moments: Moments { eps, ..self.moments }, ..self }
    }

    /// The weight decay, λ: the share of each parameter that is added to its gradient; 0 by default.
    pub fn weight_decay(self, weight_decay: f64) -> Self {
        Self { stepper: self.stepper.with_weight_decay(weight_decay), ..self }
    }

    /// Uses the largest `v` so far in the step if `true`, as for [`AdamW::amsgrad`].
    pub fn amsgrad(self, amsgrad: bool) -> Self {
        Self { moments: Moments { amsgrad, ..self.moments }, ..self }
    }
}

impl AdamW {
    /// AdamW with this learning rate.
    pub fn new(lr: f64) -> Self {
        Self { moments: Moments::default(), stepper: Stepper::new(lr, 0.01) }
    }

    /// The decay rates of the moments: that of the gradient and that of its square, each at least 0 and below 1; (0.9,
    /// 0.999) by default.
    pub fn betas(self, first: f64, second: f64) -> Self {
        Self { moments: Moments { betas: (first, second), ..self.moments }, ..self }
    }

    /// The number added to the denominator, at least 1.2e-38; 1e-8 by default.
    pub fn eps(self, eps: f64) -> Self {
        Self { moments: Moments { eps, ..self.moments }, ..self }
    }

    /// The weight decay, λ: the share of a parameter that a step with learning rate 1 subtracts; 0.01 by default.
    pub fn weight_decay(self, weight_decay: f64) -> Self {
        Self { stepper: self.stepper.with_weight_decay(weight_decay), ..self }
    }

    /// Uses the largest `v` so far in the step if `true`, so that steps do not grow again after rare large gradients;
    /// `false` by default.
    ///
    /// The state keeps it beside the moments, as `v_max`. [Reddi et al., 2018](https://arxiv.org/abs/1904.09237).
    pub fn amsgrad(self, amsgrad: bool) -> Self {
        Self { moments: Moments { amsgrad, ..self.moments }, ..self }
    }
}

/// The moments of a gradient and of its square, and the resulting step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moments {
    pub(super) betas: (f64, f64),
    pub(super) eps: f64,
    /// `true` if the step uses the largest second moment so far.
    pub(super) amsgrad: bool,
}

impl Default for Moments {
    fn default() -> Self {
        Self { betas: (0.9, 0.999), eps: 1e-8, amsgrad: false }
    }
}

impl Moments {
    pub(super) const STATE: &[&str] = &["m", "v"];

    fn state(&self) -> &'static [&'static str] {
        if self.amsgrad { &["m", "v", "v_max"] } else { Self::STATE }
    }

    pub(super) fn check(&self, optimizer: &str) -> Result<()> {
        expect_share(optimizer, "first beta", self.betas.0)?;
        expect_share(optimizer, "second beta", self.betas.1)?;
        expect_eps(optimizer, self.eps)
    }

    pub(super) fn numbers(&self, lr: f64, t: u64) -> [f64; 6] {
        let Self { betas: (beta1, beta2), eps, .. } = *self;
        #[expect(clippy::cast_precision_loss, reason = "nobody makes 2^53 steps")]
        let t = t as f64;
        let (corrected_lr, root_scale) = (lr / (1.0 - beta1.powf(t)), (1.0 - beta2.powf(t)).sqrt());
        [1.0 - beta1, beta2, 1.0 - beta2, eps, corrected_lr, root_scale]
    }

    /// The amount to subtract from the parameter, and the new moments.
    pub(super) fn step(g: &Var, state: &[Var], numbers: &[Var]) -> (Var, Vec<Var>) {
        let [fresh1, old2, fresh2, eps, corrected_lr, root_scale] = exactly(numbers, "numbers");
        let [m, v, largest @ ..] = state else { unreachable!("`state` names both") };
        let m = m + fresh1 * (g - m);
        let v = old2 * v + fresh2 * g.square();
        let mut state = vec![m.clone(), v.clone()];
        let v = match largest {
            [] => v,
            [largest, ..] => largest.maximum(&v),
        };
        let step = corrected_lr * m / (v.sqrt() / root_scale + eps);
        if !largest.is_empty() {
            state.push(v);
        }
        (step, state)
    }
}

impl Rule for Adam {
    fn name(&self) -> &'static str {
        "adam"
    }

    fn stepper(&self) -> &Stepper {
        &self.stepper
    }

    fn stepper_mut(&mut self) -> &mut Stepper {
        &mut self.stepper
    }

    fn check(&self) -> Result<()> {
        self.moments.check(self.name())
    }

    fn state(&self, _: &Leaf<'_>) -> &'static [&'static str] {
        self.moments.state()
    }

    fn numbers(&self, Settings { lr, weight_decay }: Settings, t: u64) -> Vec<f64> {
        [&[weight_decay][..], &self.moments.numbers(lr, t)].concat()
    }

    fn variant(&self) -> u64 {
        u64::from(self.moments.amsgrad)
    }

    fn update(&self, given: &Given<'_>) -> (Var, Vec<Var>) {
        let g = given.decayed_gradient(&given.numbers[0]);
        let (step, moments) = Moments::step(&g, &given.state, &given.numbers[1..]);
        (&given.w - step, moments)
    }
}

impl Rule for AdamW {
    fn name(&self) -> &'static str {
        "adamw"
    }

    fn stepper(&self) -> &Stepper {
        &self.stepper
    }

    fn stepper_mut(&mut self) -> &mut Stepper {
        &mut self.stepper
    }

    fn check(&self) -> Result<()> {
        self.moments.check(self.name())
    }

    fn state(&self, _: &Leaf<'_>) -> &'static [&'static str] {
        self.moments.state()
    }

    fn numbers(&self, settings: Settings, t: u64) -> Vec<f64> {
        [&[settings.kept()][..], &self.moments.numbers(settings.lr, t)].concat()
    }

    fn variant(&self) -> u64 {
        u64::from(self.moments.amsgrad)
    }

    fn update(&self, given: &Given<'_>) -> (Var, Vec<Var>) {
        let (step, moments) = Moments::step(&given.dw, &given.state, &given.numbers[1..]);
        (&given.w * &given.numbers[0] - step, moments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::Optimizer;
    use crate::optim::tests::{after_three_steps, assert_close, assert_senseless};
    use crate::{Device, Param, Precision, Tape, Tensor};

    #[test]
    fn steps_are_pytorchs() {
        // PyTorch's rule, computed in f64.
        let expected = [0.748_715_106_452_236_2, -1.745_608_553_420_608_5, 3.242_468_648_713_194];
        assert_close(&after_three_steps(AdamW::new(0.0)), &expected);
        let expected = [0.750_999_252_108_376_6, -1.750_394_940_987_643_8, 3.250_166_673_662_898];
        assert_close(&after_three_steps(AdamW::new(0.0).weight_decay(0.0)), &expected);
        assert_close(&after_three_steps(Adam::new(0.0)), &expected);
        let other = AdamW::new(0.0).betas(0.8, 0.95).eps(0.1).weight_decay(0.5);
        let expected = [0.664_877_889_870_664_3, -1.543_573_664_246_958, 2.875_798_071_075_187];
        assert_close(&after_three_steps(other), &expected);
    }

    #[test]
    fn amsgrad_uses_the_largest_second_moment_so_far() {
        // A gradient of 4, then 0 until `v` has forgotten it, then 1.
        let last = |amsgrad: bool| {
            let device = Device::cpu_with(Precision::Double);
            let mut w = Param::new(Tensor::from_f64(&device, [1], &[0.0]).unwrap());
            let mut optimizer = Adam::new(1.0).betas(0.0, 0.5).amsgrad(amsgrad);
            let mut before = 0.0;
            for factor in [[4.0; 1].as_slice(), &[0.0; 60], &[1.0; 1]].concat() {
                before = w.value().to_f64_vec().unwrap()[0];
                let tape = Tape::new(&device);
                let grads = tape.backward(&(tape.param(&w).sum() * factor)).unwrap();
                optimizer.step(&mut w, &grads).unwrap();
            }
            before - w.value().to_f64_vec().unwrap()[0]
        };
        // v = 1/2 and v = 16/2; the bias correction is 1 by now.
        assert!((last(false) - 2.0_f64.sqrt()).abs() < 1e-6, "{}", last(false));
        assert!((last(true) - 1.0 / 8.0_f64.sqrt()).abs() < 1e-6, "{}", last(true));
    }

    #[test]
    fn parameters_count_their_own_updates() {
        // With β = (0.5, 0.5), a gradient of 1 and a correct bias correction, each update is the whole learning rate.
        let device = Device::cpu_with(Precision::Double);
        let mut params = [0.0, 0.0].map(|w| Param::new(Tensor::from_f64(&device, [1], &[w]).unwrap()));
        let mut optimizer = AdamW::new(1.0).betas(0.5, 0.5).weight_decay(0.0);
        for step in 0..4 {
            let tape = Tape::new(&device);
            let loss = tape.param(&params[0]).sum() + tape.param(&params[1]).sum();
            let grads = tape.backward(&loss).unwrap();
            match step {
                0 | 1 => optimizer.step(&mut params[0], &grads).unwrap(),
                _ => optimizer.step(&mut params, &grads).unwrap(),
            }
        }
        let values = params.map(|param| param.value().to_f64_vec().unwrap()[0]);
        assert!((values[0] + 4.0).abs() < 1e-6 && (values[1] + 2.0).abs() < 1e-6, "{values:?}");
    }

    #[test]
    fn senseless_settings_are_errors_of_the_step() {
        let adamw = || AdamW::new(0.1);
        for optimizer in [
            AdamW::new(f64::INFINITY),
            adamw().betas(1.0, 0.9),
            adamw().betas(0.9, -0.1),
            adamw().eps(f64::NAN),
            adamw().eps(0.0),
            adamw().eps(1e-50),
            adamw().weight_decay(-1.0),
        ] {
            assert_senseless(optimizer);
        }
        assert_senseless(Adam::new(0.1).betas(1.0, 0.9));
        assert_senseless(Adam::new(0.1).eps(1e-50));
    }
}
