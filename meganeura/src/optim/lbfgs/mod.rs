//! L-BFGS: steps along an estimate of the inverse Hessian, for losses that can be evaluated repeatedly.

mod search;
mod state;

use std::collections::VecDeque;

use self::search::{Search, Trial};
use super::rule::expect_not_negative;
use crate::error::{bail, here};
use crate::grad::trained::{Trained, expect_gradients};
use crate::module::{Leaf, Module, ModuleExt};
use crate::{Result, Tensor, Var};

/// L-BFGS: Newton's method with an inverse Hessian `H` estimated from the last changes of parameters and gradients.
///
/// ```text
/// d = −H·g                 by the two-loop recursion over pairs (s, y) of changes
/// w ← w + t·d              with t = lr, or as a line search finds it
/// ```
///
/// One [`step`](Self::step) makes up to 20 such iterations, each of which evaluates the loss anew. So it is not an
/// [`Optimizer`](super::Optimizer): it takes a closure, not gradients. It suits losses without noise: full batches,
/// dropout off, a few thousand to a few million parameters. Its `2·history + 5` vectors are in host memory, in double
/// precision; [`Parts::put_lbfgs`](crate::run::Parts::put_lbfgs) saves them.
///
/// PyTorch's algorithm, with its defaults. [Liu and Nocedal, 1989](https://doi.org/10.1007/BF01589116); the line search
/// for the strong Wolfe conditions: [Nocedal and Wright, 2006](https://doi.org/10.1007/978-0-387-40065-5), algorithms
/// 3.5 and 3.6.
///
/// ```
/// use meganeura::optim::Lbfgs;
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let mut w = Param::new(Tensor::from_slice(&device, [2], &[-1.5, 2.0])?);
/// // Rosenbrock's valley, whose lowest point is (1, 1).
/// let loss = |w: &Param| {
///     let w = Tape::new(&device).param(w);
///     let (x, y) = (w.slice(0, 0..1), w.slice(0, 1..2));
///     Ok(((y - x.square()).square() * 100.0 + (1.0 - x).square()).sum())
/// };
/// let mut lbfgs = Lbfgs::new(1.0).line_search(true);
/// for _ in 0..5 {
///     lbfgs.step(&mut w, loss)?;
/// }
/// assert!(w.value().to_vec()?.iter().all(|w| (w - 1.0).abs() < 1e-3));
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct Lbfgs {
    lr: f64,
    iterations: u64,
    evaluations: Option<u64>,
    gradient_tolerance: f64,
    change_tolerance: f64,
    history: usize,
    line_search: bool,
    memory: History,
}

/// The memory from one iteration to the next.
#[derive(Debug, Default)]
struct History {
    /// Changes of parameters and of gradients, with `1/(s·y)`; the oldest first.
    pairs: VecDeque<(Vec<f64>, Vec<f64>, f64)>,
    /// `s·y/(y·y)` of the last pair: the assumed inverse Hessian along all other directions.
    scale: f64,
    /// The last iteration: its direction, its step length, and the gradient before it.
    last: Option<(Vec<f64>, f64, Vec<f64>)>,
}

/// The loss and its gradient at some parameters.
#[derive(Clone, Debug)]
struct Point {
    loss: f64,
    gradient: Vec<f64>,
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn largest(x: &[f64]) -> f64 {
    x.iter().fold(0.0, |largest, x| if x.is_nan() { f64::NAN } else { f64::max(largest, x.abs()) })
}

/// `y ← y + a·x`
fn add(y: &mut [f64], a: f64, x: &[f64]) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y += a * x);
}

impl History {
    /// Records the change since the last iteration, and returns the direction from a point.
    fn direction(&mut self, gradient: &[f64], history: usize) -> Vec<f64> {
        let Some((mut change, length, before)) = self.last.take() else {
            return gradient.iter().map(|g| -g).collect();
        };
        let of_gradient: Vec<_> = gradient.iter().zip(&before).map(|(new, old)| new - old).collect();
        change.iter_mut().for_each(|s| *s *= length);
        let curvature = dot(&of_gradient, &change);
        // A loss that curves downwards teaches nothing.
        if curvature > 1e-10 {
            while self.pairs.len() >= history {
                self.pairs.pop_front();
            }
            self.scale = curvature / dot(&of_gradient, &of_gradient);
            self.pairs.push_back((change, of_gradient, 1.0 / curvature));
        }
        let mut q: Vec<_> = gradient.iter().map(|g| -g).collect();
        let mut shares = Vec::with_capacity(self.pairs.len());
        for (s, y, inverse) in self.pairs.iter().rev() {
            let share = dot(s, &q) * inverse;
            add(&mut q, -share, y);
            shares.push(share);
        }
        if !self.pairs.is_empty() {
            q.iter_mut().for_each(|q| *q *= self.scale);
        }
        for ((s, y, inverse), share) in self.pairs.iter().zip(shares.into_iter().rev()) {
            let back = dot(y, &q) * inverse;
            add(&mut q, share - back, s);
        }
        q
    }
}

impl Lbfgs {
    /// L-BFGS with this step length, usually 1: a direction already has the length estimated to be right.
    pub fn new(lr: f64) -> Self {
        Self {
            lr,
            iterations: 20,
            evaluations: None,
            gradient_tolerance: 1e-7,
            change_tolerance: 1e-9,
            history: 100,
            line_search: false,
            memory: History::default(),
        }
    }

    /// The maximum number of iterations in a step; 20 by default.
    pub fn iterations(self, iterations: u64) -> Self {
        Self { iterations, ..self }
    }

    /// The number of evaluations in a step after which no further iteration starts; by default 5/4 of the iterations.
    pub fn evaluations(self, evaluations: u64) -> Self {
        Self { evaluations: Some(evaluations), ..self }
    }

    /// The largest gradient element at which a step ends; 1e-7 by default.
    pub fn gradient_tolerance(self, tolerance: f64) -> Self {
        Self { gradient_tolerance: tolerance, ..self }
    }

    /// A step ends if no parameter changes by more than this, or the loss changes by less; 1e-9 by default.
    pub fn change_tolerance(self, tolerance: f64) -> Self {
        Self { change_tolerance: tolerance, ..self }
    }

    /// The number of changes that the inverse Hessian is estimated from, at least 1; 100 by default.
    pub fn history(self, history: usize) -> Self {
        Self { history, ..self }
    }

    /// Searches for the length of each step if `true`: one that lowers the loss and the slope enough (the strong Wolfe
    /// conditions). `false` by default. A search costs evaluations, and ensures that the loss never rises.
    pub fn line_search(self, line_search: bool) -> Self {
        Self { line_search, ..self }
    }

    /// Iterates from the current parameters, and returns the loss before the first iteration, like PyTorch.
    ///
    /// `loss` records a forward pass on a tape of its own and returns the loss. It is called for each evaluation, and
    /// must give the same loss for the same parameters. Running statistics of batch normalisation do not change.
    ///
    /// # Errors
    ///
    /// Fails if `loss` or the backward pass fails; with [`NoGradient`](crate::ErrorKind::NoGradient), as for
    /// [`step`](super::Optimizer::step); with [`NotFinite`](crate::ErrorKind::NotFinite) if the loss or its gradient is
    /// NaN or infinite at the start, or the loss after an iteration; with [`Argument`](crate::ErrorKind::Argument) if a
    /// setting is invalid, or if the number of trained elements has changed. The parameters are then as before the
    /// step. The history is forgotten, unless a setting was invalid.
    #[track_caller]
    pub fn step<M: Module>(&mut self, module: &mut M, mut loss: impl FnMut(&M) -> Result<Var>) -> Result<f64> {
        here(|| {
            self.check()?;
            let start: Vec<_> = module.leaves().iter().map(Leaf::value).collect();
            let result = self.iterate(module, &mut loss);
            if result.is_err() {
                self.memory = History::default();
                for (leaf, value) in module.leaves().iter().zip(start) {
                    leaf.cell().set(value);
                }
            }
            result
        })
    }

    fn check(&self) -> Result<()> {
        const NAME: &str = "lbfgs";
        expect_not_negative(NAME, "learning rate", self.lr)?;
        expect_not_negative(NAME, "tolerance of the gradient", self.gradient_tolerance)?;
        expect_not_negative(NAME, "tolerance of changes", self.change_tolerance)?;
        if self.iterations == 0 || self.history == 0 {
            let Self { iterations, history, .. } = self;
            bail!(Argument, "{NAME}: {iterations} iterations with a history of {history}; both must be at least 1");
        }
        Ok(())
    }

    fn iterate<M: Module>(&mut self, module: &M, loss: &mut impl FnMut(&M) -> Result<Var>) -> Result<f64> {
        let mut count = 1;
        let mut point = evaluate(module, loss)?;
        let first = point.loss;
        if !first.is_finite() || !largest(&point.gradient).is_finite() {
            bail!(NotFinite, "lbfgs: the loss is {first}, or its gradient is not finite");
        }
        if let Some((direction, ..)) = self.memory.last.as_ref().filter(|(d, ..)| d.len() != point.gradient.len()) {
            let (before, now) = (direction.len(), point.gradient.len());
            bail!(Argument, "lbfgs: {now} elements are trained, and {before} were before");
        }
        let most = self.evaluations.unwrap_or(self.iterations.saturating_add(self.iterations / 4));
        let mut parameters = read(module)?;
        for iteration in 1..=self.iterations {
            if largest(&point.gradient) <= self.gradient_tolerance {
                break;
            }
            let is_first = self.memory.last.is_none() && self.memory.pairs.is_empty();
            let direction = self.memory.direction(&point.gradient, self.history);
            let sum: f64 = point.gradient.iter().map(|g| g.abs()).sum();
            let mut length = if is_first { f64::min(1.0, 1.0 / sum) * self.lr } else { self.lr };
            let slope = dot(&point.gradient, &direction);
            let before = point.clone();
            if slope > -self.change_tolerance {
                self.memory.last = Some((direction, length, before.gradient));
                break;
            }
            if self.line_search {
                let mut at = |length: f64| {
                    let mut trial = parameters.clone();
                    add(&mut trial, length, &direction);
                    write(module, &trial)?;
                    count += 1;
                    let point = evaluate(module, loss)?;
                    let slope = dot(&point.gradient, &direction);
                    Ok(Trial { length, slope, loss: point.loss, gradient: point.gradient })
                };
                let search = Search { tolerance: self.change_tolerance, largest: largest(&direction) };
                let start = Trial { length: 0.0, slope, loss: point.loss, gradient: point.gradient };
                let found = search.run(start, length, &mut at)?;
                length = found.length;
                point = Point { loss: found.loss, gradient: found.gradient };
            }
            add(&mut parameters, length, &direction);
            write(module, &parameters)?;
            // The last evaluation would be the first one of the next step.
            if !self.line_search && iteration != self.iterations {
                point = evaluate(module, loss)?;
                count += 1;
                if !point.loss.is_finite() {
                    bail!(NotFinite, "lbfgs: the loss becomes {} after {iteration} iterations", point.loss);
                }
            }
            let change = length * largest(&direction);
            self.memory.last = Some((direction, length, before.gradient));
            let is_still = change <= self.change_tolerance || (point.loss - before.loss).abs() < self.change_tolerance;
            if count >= most || is_still {
                break;
            }
        }
        Ok(first)
    }
}

/// The loss and its gradient at the current parameters.
fn evaluate<M: Module>(module: &M, loss: &mut impl FnMut(&M) -> Result<Var>) -> Result<Point> {
    let loss = loss(module)?;
    let grads = loss.tape().backward(&loss)?;
    let trained = expect_gradients(&module.leaves(), &grads)?;
    let mut gradient = Vec::new();
    for Trained { dw, .. } in &trained {
        gradient.extend(dw.to_tensor()?.to_f64_vec()?);
    }
    match loss.to_tensor()?.to_f64_vec()?[..] {
        [loss] => Ok(Point { loss, gradient }),
        _ => bail!(Shape, "lbfgs: the loss is {}; it must be a scalar", loss.ty()),
    }
}

/// All trained elements.
fn read<M: Module>(module: &M) -> Result<Vec<f64>> {
    let mut numbers = Vec::new();
    for leaf in trained(module) {
        numbers.extend(leaf.value().to_f64_vec()?);
    }
    Ok(numbers)
}

fn write<M: Module>(module: &M, mut numbers: &[f64]) -> Result<()> {
    for leaf in trained(module) {
        let value = leaf.value();
        let (own, others) = numbers.split_at(value.shape().elements());
        leaf.cell().set(Tensor::from_f64(value.device(), value.shape(), own)?);
        numbers = others;
    }
    Ok(())
}

fn trained<M: Module>(module: &M) -> impl Iterator<Item = Leaf<'_>> {
    module.leaves().into_iter().filter(|leaf| leaf.role == crate::module::Role::Trained)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, ErrorKind, Param, Precision, Tape};

    fn device() -> Device {
        Device::cpu_with(Precision::Double)
    }

    fn param(w: &[f64]) -> Param {
        Param::new(Tensor::from_f64(&device(), [w.len()], w).unwrap())
    }

    fn values(w: &Param) -> Vec<f64> {
        w.value().to_f64_vec().unwrap()
    }

    /// `½·Σ c·w²`, with condition number 100.
    fn bowl(w: &Param) -> Result<Var> {
        let tape = Tape::new(&device());
        let c = Tensor::from_f64(&device(), [3], &[1.0, 10.0, 100.0])?;
        Ok((tape.input(&c) * tape.param(w).square()).sum() * 0.5)
    }

    #[test]
    fn a_quadratic_bowl_is_minimised() {
        for line_search in [false, true] {
            let mut w = param(&[3.0, -2.0, 1.0]);
            let mut lbfgs = Lbfgs::new(1.0).line_search(line_search).iterations(60).evaluations(200);
            assert_eq!(lbfgs.step(&mut w, bowl).unwrap(), 0.5 * (9.0 + 40.0 + 100.0));
            assert!(values(&w).iter().all(|w| w.abs() < 1e-6), "{line_search}: {:?}", values(&w));
        }
    }

    #[test]
    fn a_line_search_never_goes_uphill() {
        let mut w = param(&[-1.5, 2.0]);
        let valley = |w: &Param| {
            let w = Tape::new(&device()).param(w);
            let (x, y) = (w.slice(0, 0..1), w.slice(0, 1..2));
            Ok(((y - x.square()).square() * 100.0 + (1.0 - x).square()).sum())
        };
        let mut lbfgs = Lbfgs::new(1.0).line_search(true).iterations(1);
        let losses: Vec<_> = (0..60).map(|_| lbfgs.step(&mut w, valley).unwrap()).collect();
        assert!(losses.windows(2).all(|pair| pair[1] <= pair[0]), "{losses:?}");
        assert!(values(&w).iter().all(|w| (w - 1.0).abs() < 1e-5), "{:?}", values(&w));
    }

    #[test]
    fn the_history_carries_over_steps_and_is_bounded() {
        let (mut one, mut many) = (param(&[3.0, -2.0, 1.0]), param(&[3.0, -2.0, 1.0]));
        let new = || Lbfgs::new(0.5).history(2).evaluations(100).change_tolerance(0.0).gradient_tolerance(0.0);
        let (mut long, mut short) = (new().iterations(6), new().iterations(1));
        long.step(&mut one, bowl).unwrap();
        for _ in 0..6 {
            short.step(&mut many, bowl).unwrap();
        }
        assert_eq!(values(&one), values(&many));
        assert_eq!((long.memory.pairs.len(), short.memory.pairs.len()), (2, 2));
    }

    #[test]
    fn frozen_parameters_stay() {
        let mut pair = (param(&[3.0, -2.0, 1.0]), param(&[5.0]));
        pair.freeze("1").unwrap();
        let loss = |pair: &(Param, Param)| Ok(bowl(&pair.0)? * 2.0);
        Lbfgs::new(1.0).line_search(true).step(&mut pair, loss).unwrap();
        assert_eq!(values(&pair.1), [5.0]);
        assert_ne!(values(&pair.0), [3.0, -2.0, 1.0]);
    }

    #[test]
    fn errors_leave_the_parameters() {
        let mut w = param(&[3.0, -2.0, 1.0]);
        let mut calls = 0;
        let fails = |w: &Param| {
            calls += 1;
            if calls == 4 { bail!(Argument, "enough") } else { bowl(w) }
        };
        let error = Lbfgs::new(1.0).step(&mut w, fails).unwrap_err();
        assert!(error.to_string().contains("enough"), "{error}");
        let error = Lbfgs::new(1.0).step(&mut w, |w| Ok(bowl(w)? * f64::NAN)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFinite);
        let error = Lbfgs::new(1.0).step(&mut w, |w| Ok(bowl(w)?.detach())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoGradient);
        for lbfgs in [
            Lbfgs::new(f64::NAN),
            Lbfgs::new(-1.0),
            Lbfgs::new(1.0).iterations(0),
            Lbfgs::new(1.0).history(0),
            Lbfgs::new(1.0).gradient_tolerance(-1.0),
            Lbfgs::new(1.0).change_tolerance(f64::INFINITY),
        ] {
            let mut lbfgs = lbfgs;
            assert_eq!(lbfgs.step(&mut w, bowl).unwrap_err().kind(), ErrorKind::Argument);
        }
        assert_eq!(values(&w), [3.0, -2.0, 1.0]);
        let mut lbfgs = Lbfgs::new(1.0).iterations(2);
        lbfgs.step(&mut w, bowl).unwrap();
        let other = |w: &Param| Ok(Tape::new(&device()).param(w).square().sum());
        let error = lbfgs.step(&mut param(&[1.0]), other).unwrap_err();
        assert!(error.to_string().contains("1 elements are trained, and 3 were before"), "{error}");
    }
}
