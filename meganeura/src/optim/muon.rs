//! Muon: orthogonalised momentum, for matrices.

use std::fmt;

use super::adam::Moments;
use super::group::stamp;
use super::rule::{Given, Rule, expect_share};
use super::{Settings, Stepper};
use crate::module::Leaf;
use crate::{Param, Result, Shape, Var};

/// Muon for matrices, [`AdamW`](super::AdamW) for the rest, with decoupled weight decay λ for both:
///
/// ```text
/// m ← µ·m + (1 − µ)·dw
/// u ← µ·m + (1 − µ)·dw         or, without Nesterov's momentum, m
/// w ← w·(1 − lr·λ) − lr·0.2·√max(rows, columns) · orthogonal(u)
/// ```
///
/// `orthogonal` moves the singular values of a matrix close to 1, by five steps of a Newton–Schulz iteration. A tensor
/// with more axes, such as the weight of a convolution, is a matrix of its first axis by all others. The factor makes
/// steps the size of AdamW's ([Liu et al., 2025](https://arxiv.org/abs/2502.16982)), so that one learning rate is right
/// for both; PyTorch calls this `match_rms_adamw`. The other defaults are PyTorch's: µ = 0.95, λ = 0.1.
/// [Jordan et al., 2024](https://kellerjordan.github.io/posts/muon/) leave the first and the last layer to Adam:
/// [`adam_for`](Self::adam_for).
///
/// ```
/// use meganeura::optim::Muon;
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let mut net = [Linear::new(4, 8), Linear::new(8, 2)].init(&device, Seed::new(1))?;
/// let mut optimizer = Muon::new(1e-3).adam_for(|path, _| path.starts_with("1."));
/// let tape = Tape::new(&device);
/// let x = tape.input(&Tensor::full(&device, [16, 4], 1.0)?);
/// let grads = tape.backward(&net.forward(&x).square().mean())?;
/// optimizer.step(&mut net, &grads)?;
/// let state = optimizer.state_of(&net);
/// assert!(state.tensors.contains_key("0.weight.momentum") && state.tensors.contains_key("1.weight.m"));
/// # Ok::<(), meganeura::Error>(())
/// ```
#[must_use]
pub struct Muon {
    momentum: f64,
    nesterov: bool,
    moments: Moments,
    adam_for: Choice,
    /// The identity of this choice.
    choice: u64,
    stepper: Stepper,
}

/// Accepts a parameter, given one of its paths.
type Choice = Box<dyn Fn(&str, &Param) -> bool + Send + Sync>;

impl Muon {
    /// Muon with this learning rate.
    pub fn new(lr: f64) -> Self {
        let (moments, adam_for) = (Moments::default(), Box::new(|_: &str, _: &Param| false));
        Self { momentum: 0.95, nesterov: true, moments, adam_for, choice: 0, stepper: Stepper::new(lr, 0.1) }
    }

    /// The momentum µ, the decay rate of the gradient's moving average: at least 0 and below 1; 0.95 by default.
    pub fn momentum(self, momentum: f64) -> Self {
        Self { momentum, ..self }
    }

    /// Uses Nesterov's momentum if `true`, the default.
    pub fn nesterov(self, nesterov: bool) -> Self {
        Self { nesterov, ..self }
    }

    /// The weight decay, λ: the share of a parameter that a step with learning rate 1 subtracts; 0.1 by default.
    pub fn weight_decay(self, weight_decay: f64) -> Self {
        Self { stepper: self.stepper.with_weight_decay(weight_decay), ..self }
    }

    /// The betas of AdamW; (0.9, 0.999) by default.
    pub fn adam_betas(self, first: f64, second: f64) -> Self {
        Self { moments: Moments { betas: (first, second), ..self.moments }, ..self }
    }

    /// Selects matrices that AdamW steps, besides everything that is not a matrix, given their paths: embeddings and
    /// heads.
    pub fn adam_for(self, rule: impl Fn(&str, &Param) -> bool + Send + Sync + 'static) -> Self {
        Self { adam_for: Box::new(rule), choice: stamp(), ..self }
    }

    fn is_for_adam(&self, leaf: &Leaf<'_>) -> bool {
        let chosen = |param: &Param| leaf.paths().any(|path| (self.adam_for)(path, param));
        leaf.ty().shape.rank() < 2 || leaf.param().is_some_and(chosen)
    }
}

/// The count of numbers that are not Adam's.
const OWN: usize = 4;

impl Rule for Muon {
    fn name(&self) -> &'static str {
        "muon"
    }

    fn stepper(&self) -> &Stepper {
        &self.stepper
    }

    fn stepper_mut(&mut self) -> &mut Stepper {
        &mut self.stepper
    }

    fn check(&self) -> Result<()> {
        expect_share(self.name(), "momentum", self.momentum)?;
        self.moments.check(self.name())
    }

    fn state(&self, leaf: &Leaf<'_>) -> &'static [&'static str] {
        if self.is_for_adam(leaf) { Moments::STATE } else { &["momentum"] }
    }

    fn numbers(&self, settings: Settings, t: u64) -> Vec<f64> {
        let own: [f64; OWN] = [settings.kept(), settings.lr, self.momentum, 1.0 - self.momentum];
        [&own[..], &self.moments.numbers(settings.lr, t)].concat()
    }

    fn variant(&self) -> u64 {
        self.choice << 1 | u64::from(self.nesterov)
    }

    fn update(&self, given: &Given<'_>) -> (Var, Vec<Var>) {
        let ([kept, lr, old, fresh, ..], adam) = given.numbers.split_at(OWN) else { unreachable!("OWN numbers") };
        if self.is_for_adam(given.leaf) {
            let (step, moments) = Moments::step(&given.dw, &given.state, adam);
            return (&given.w * kept - step, moments);
        }
        let ([m], dw) = (given.state(), &given.dw);
        let m = old * m + fresh * dw;
        let direction = if self.nesterov { old * &m + fresh * dw } else { m.clone() };
        let shape = dw.shape();
        let rows = shape.dims()[0];
        let columns = shape.elements() / rows;
        #[expect(clippy::cast_precision_loss, reason = "no matrix has 2^53 rows")]
        let size = 0.2 * (rows.max(columns) as f64).sqrt();
        let step = orthogonal(&direction.reshape(Shape::from([rows, columns]))).scale(size);
        (&given.w * kept - lr * step.reshape(shape), vec![m])
    }
}

/// A matrix with the same singular vectors, and singular values between about 0.7 and 1.2: five steps of
/// `x ← a·x + (b·A + c·A²)·x`, `A = x·xᵀ`, from a matrix of norm 1, whose singular values are below 1.
fn orthogonal(x: &Var) -> Var {
    const STEPS: usize = 5;
    const COEFFICIENTS: (f64, f64, f64) = (3.4445, -4.7750, 2.0315);
    let is_tall = x.shape().dims()[0] > x.shape().dims()[1];
    // The smaller of both products.
    let wide = if is_tall { x.t() } else { x.clone() };
    let norm = wide.norm().maximum(x.constant(1e-7));
    let mut y = wide / norm;
    let (a, b, c) = COEFFICIENTS;
    for _ in 0..STEPS {
        let square = y.matmul(&y.t());
        let polynomial = square.scale(b) + square.matmul(&square).scale(c);
        y = y.scale(a) + polynomial.matmul(&y);
    }
    if is_tall { y.t() } else { y }
}

impl fmt::Debug for Muon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { momentum, nesterov, moments, stepper, .. } = self;
        write!(f, "Muon {{ momentum: {momentum}, nesterov: {nesterov}, {moments:?}, {stepper:?} }}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::tests::{after_three_steps, assert_close, assert_senseless};
    use crate::optim::{AdamW, Optimizer};
    use crate::{Device, Precision, Tape, Tensor};

    type Matrix = Vec<Vec<f64>>;

    fn product(a: &Matrix, b: &Matrix) -> Matrix {
        let entry = |row: &Vec<f64>, j: usize| row.iter().zip(b).map(|(a, b)| a * b[j]).sum();
        a.iter().map(|row| (0..b[0].len()).map(|j| entry(row, j)).collect()).collect()
    }

    fn transposed(a: &Matrix) -> Matrix {
        (0..a[0].len()).map(|j| a.iter().map(|row| row[j]).collect()).collect()
    }

    /// Works on rows, one element at a time, whatever the shape.
    fn naive_orthogonal(x: &Matrix) -> Matrix {
        let norm = x.iter().flatten().map(|x| x * x).sum::<f64>().sqrt();
        let mut y: Matrix = x.iter().map(|row| row.iter().map(|x| x / norm).collect()).collect();
        for _ in 0..5 {
            let cubic = product(&product(&y, &transposed(&y)), &y);
            let quintic = product(&product(&y, &transposed(&y)), &cubic);
            for (i, row) in y.iter_mut().enumerate() {
                for (j, y) in row.iter_mut().enumerate() {
                    *y = 3.4445 * *y - 4.7750 * cubic[i][j] + 2.0315 * quintic[i][j];
                }
            }
        }
        y
    }

    fn numbers(count: usize, factor: f64) -> Vec<f64> {
        (0..count).map(|i| (i as f64 * factor).sin()).collect()
    }

    /// Three steps on `Σ c·w²/2` from a matrix of this shape, or from a weight of a convolution.
    fn assert_steps(shape: &[usize], nesterov: bool) {
        let device = Device::cpu_with(Precision::Double);
        let (rows, count) = (shape[0], shape.iter().product());
        let columns = count / rows;
        let tensor = |data: &[f64]| Tensor::from_f64(&device, Shape::new(shape), data).unwrap();
        let (mut expected, c) = (numbers(count, 1.3), numbers(count, 2.1));
        let mut m = vec![0.0; count];
        let mut w = Param::new(tensor(&expected));
        let mut muon = Muon::new(0.0).momentum(0.9).nesterov(nesterov).weight_decay(0.3);
        for lr in [0.1, 0.1, 0.05] {
            muon.set_lr(lr);
            let tape = Tape::new(&device);
            let loss = (tape.input(&tensor(&c)) * tape.param(&w).square()).sum() * 0.5;
            let grads = tape.backward(&loss).unwrap();
            muon.step(&mut w, &grads).unwrap();

            let dw: Vec<_> = expected.iter().zip(&c).map(|(w, c)| w * c).collect();
            for (m, dw) in m.iter_mut().zip(&dw) {
                *m = 0.9 * *m + 0.1 * dw;
            }
            let u = |i: usize| if nesterov { 0.9 * m[i] + 0.1 * dw[i] } else { m[i] };
            let u = (0..rows).map(|row| (0..columns).map(|j| u(row * columns + j)).collect()).collect();
            let step = naive_orthogonal(&u).concat();
            let size = 0.2 * (rows.max(columns) as f64).sqrt();
            for (w, step) in expected.iter_mut().zip(step) {
                *w = *w * (1.0 - lr * 0.3) - lr * size * step;
            }
        }
        let found = w.value().to_f64_vec().unwrap();
        let close = found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-12);
        assert!(close, "{shape:?}: {found:?} is not {expected:?}");
    }

    #[test]
    fn steps_are_those_of_an_obvious_reference() {
        for shape in [&[3, 5][..], &[5, 3], &[4, 4], &[1, 6], &[6, 1], &[4, 2, 3, 3]] {
            assert_steps(shape, true);
            assert_steps(shape, false);
        }
    }

    #[test]
    fn singular_values_come_near_to_1() {
        let tape = Tape::new(&Device::cpu_with(Precision::Double));
        let x = tape.input(&Tensor::from_f64(&tape.device(), [3, 8], &numbers(24, 1.7)).unwrap());
        let y = orthogonal(&x);
        // The trace of y·yᵀ is the sum of their squares.
        let trace = f64::from(y.square().sum().item().unwrap());
        assert!((3.0 * 0.45..3.0 * 1.5).contains(&trace), "{trace}");
    }

    #[test]
    fn vectors_are_adams() {
        let adamw = after_three_steps(AdamW::new(0.0).weight_decay(0.1));
        assert_close(&after_three_steps(Muon::new(0.0)), &adamw);
    }

    #[test]
    fn a_gradient_of_0_gives_no_nan() {
        let device = Device::cpu();
        let mut w = Param::new(Tensor::full(&device, [2, 2], 1.0).unwrap());
        let tape = Tape::new(&device);
        let grads = tape.backward(&(tape.param(&w) * 0.0).sum()).unwrap();
        Muon::new(0.5).weight_decay(0.0).step(&mut w, &grads).unwrap();
        assert_eq!(w.value().to_vec().unwrap(), [1.0; 4]);
    }

    #[test]
    fn senseless_settings_are_errors_of_the_step() {
        assert_senseless(Muon::new(-1.0));
        assert_senseless(Muon::new(0.1).momentum(1.0));
        assert_senseless(Muon::new(0.1).adam_betas(0.9, 1.0));
    }
}
