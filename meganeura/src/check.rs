//! Gradient checks: every derivative against finite differences, in double precision.
//!
//! ```
//! use meganeura::check::gradcheck;
//! use meganeura::prelude::*;
//!
//! let device = Device::cpu();
//! let layer = Linear::new(3, 2).init(&device, Seed::new(1))?;
//! let x = Tensor::from_slice(&device, [4, 3], &[0.1; 12])?;
//! let report = gradcheck(&layer, &[x], |layer, x| vec![layer.forward(&x[0]).tanh()])?;
//! println!("{report}"); // one line for each parameter and input
//! report.ok()?;
//! # Ok::<(), meganeura::Error>(())
//! ```

use std::fmt;

use crate::error::{bail, here};
use crate::init::Initializer;
use crate::module::{Module, ModuleExt, Role, Seed};
use crate::{DType, Device, Precision, Result, Shape, Tape, Tensor, Var};

/// Checks the gradients of a function of a module and some inputs; see [`Gradcheck`] for what can be set.
///
/// The module may live on any device and in any precision: its parameters are read once and the check itself runs on the
/// CPU in double precision, without changing the module. Frozen parameters are left out. Tensors that `f` captures (labels)
/// must be on a CPU device.
///
/// # Errors
///
/// If `f` records something that does not fit, or an operation without a gradient rule;
/// [`NoGradient`](crate::ErrorKind::NoGradient) if the module has trained parameters and `f` uses none of them, as it uses another's.
#[track_caller]
pub fn gradcheck<M: Module + ?Sized>(
    module: &M,
    inputs: &[Tensor],
    f: impl Fn(&M, &[Var]) -> Vec<Var>,
) -> Result<Report> {
    Gradcheck::default().run(module, inputs, f)
}

/// How gradients are checked.
///
/// With a random normal cotangent `c` for each output, the function `L = Σ c·y` is differentiated once by the tape and, for
/// each element of each parameter and input, by central differences `(L(x+ε) − L(x−ε)) / 2ε`. The two must agree within
/// `atol + rtol·|numeric|`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gradcheck {
    eps: f64,
    atol: f64,
    rtol: f64,
    samples: usize,
    seed: u64,
}

/// PyTorch's settings: ε 1e-6, absolute tolerance 1e-5, relative 1e-3; every element; seed 0.
impl Default for Gradcheck {
    fn default() -> Self {
        Self { eps: 1e-6, atol: 1e-5, rtol: 1e-3, samples: usize::MAX, seed: 0 }
    }
}

impl Gradcheck {
    /// The step of the central differences.
    #[must_use]
    pub fn eps(self, eps: f64) -> Self {
        Self { eps, ..self }
    }

    /// How far the two may be apart: `atol + rtol·|numeric|`.
    #[must_use]
    pub fn tolerance(self, atol: f64, rtol: f64) -> Self {
        Self { atol, rtol, ..self }
    }

    /// Checks at most this many elements of each tensor, evenly spread.
    #[must_use]
    pub fn samples(self, samples: usize) -> Self {
        Self { samples, ..self }
    }

    /// The seed of the cotangents and of the tape's random numbers.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Runs the check; see [`gradcheck`].
    ///
    /// # Errors
    ///
    /// As [`gradcheck`].
    #[track_caller]
    pub fn run<M: Module + ?Sized>(
        &self,
        module: &M,
        inputs: &[Tensor],
        f: impl Fn(&M, &[Var]) -> Vec<Var>,
    ) -> Result<Report> {
        here(|| self.entries(module, inputs, f)).map(|entries| Report { entries })
    }

    fn entries<M: Module + ?Sized>(
        &self,
        module: &M,
        inputs: &[Tensor],
        f: impl Fn(&M, &[Var]) -> Vec<Var>,
    ) -> Result<Vec<Entry>> {
        let device = Device::cpu_with(Precision::Double);
        let tape = Tape::with_seed(&device, self.seed);
        let mut subjects = Vec::new();
        for leaf in module.leaves() {
            let cell = leaf.cell();
            let value = leaf.value().to_device(&device)?;
            tape.substitute(cell, value.clone());
            let var = tape.cell(cell);
            if leaf.role == Role::Trained {
                subjects.push((leaf.path, var, value));
            }
        }
        let (mut x, mut floats) = (Vec::with_capacity(inputs.len()), 0);
        for (k, input) in inputs.iter().enumerate() {
            let value = input.to_device(&device)?;
            x.push(tape.input(&value));
            if value.ty().dtype.is_float() {
                floats += 1;
                subjects.push((format!("input {k}"), x[k].clone(), value));
            }
        }
        let loss = self.weighted_sum(&device, &tape, f(module, &x))?;
        let grads = tape.backward(&loss)?;
        let parameters = &subjects[..subjects.len() - floats];
        if !parameters.is_empty() && parameters.iter().all(|(_, var, _)| grads.of(var).is_none()) {
            bail!(
                NoGradient,
                "the outputs depend on none of the module's parameters, so nothing of it would be checked"
            );
        }
        let mut entries = Vec::with_capacity(subjects.len());
        for (name, var, value) in subjects {
            let analytic = match grads.of(&var) {
                Some(gradient) => gradient.to_tensor()?.to_f64_vec()?,
                None => vec![0.0; value.shape().elements()],
            };
            entries.push(self.compare(&loss, name, &var, &value, &analytic)?);
        }
        Ok(entries)
    }

    fn weighted_sum(&self, device: &Device, tape: &Tape, outputs: Vec<Var>) -> Result<Var> {
        let seed = Seed::new(self.seed).field("cotangents");
        let normal = Initializer::Normal { mean: 0.0, std: 1.0 };
        let mut total: Option<Var> = None;
        let differentiable = |y: &Var| y.error().is_some() || y.ty().dtype == DType::F64;
        for (k, y) in outputs.into_iter().filter(differentiable).enumerate() {
            let cotangent = normal.sample(device, y.shape(), seed.index(k))?;
            let term = (y * tape.input(&cotangent)).sum();
            total = Some(match total {
                Some(total) => total + term,
                None => term,
            });
        }
        match total {
            Some(total) => total.id().map(|_| total),
            None => bail!(Argument, "a gradient check needs an output"),
        }
    }

    fn compare(&self, loss: &Var, name: String, var: &Var, value: &Tensor, analytic: &[f64]) -> Result<Entry> {
        let (id, output) = (var.id()?, loss.id()?);
        let mut data = value.to_f64_vec()?;
        let mut entry = Entry {
            name,
            shape: value.shape(),
            checked: 0,
            largest_absolute: 0.0,
            largest_relative: 0.0,
            worst: 0,
            analytic: 0.0,
            numeric: 0.0,
            passed: true,
        };
        let at = |data: &[f64]| -> Result<f64> {
            let moved = Tensor::from_f64(value.device(), value.shape(), data)?;
            Ok(loss.tape().evaluate_with(&[output], &[(id, moved)])?[0].to_f64_vec()?[0])
        };
        let mut worst_excess = f64::NEG_INFINITY;
        for i in (0..data.len()).step_by(data.len().div_ceil(self.samples.max(1))) {
            let x = data[i];
            data[i] = x + self.eps;
            let above = at(&data)?;
            data[i] = x - self.eps;
            let below = at(&data)?;
            data[i] = x;
            let numeric = (above - below) / (2.0 * self.eps);
            let error = (analytic[i] - numeric).abs();
            let allowed = self.atol + self.rtol * numeric.abs();
            // A NaN is worse than everything.
            let excess = if error.is_nan() { f64::INFINITY } else { error - allowed };
            entry.checked += 1;
            entry.passed &= excess <= 0.0;
            entry.largest_absolute = nan_max(entry.largest_absolute, error);
            entry.largest_relative = nan_max(entry.largest_relative, error / (numeric.abs() + self.atol));
            if excess > worst_excess {
                worst_excess = excess;
                (entry.worst, entry.analytic, entry.numeric) = (i, analytic[i], numeric);
            }
        }
        Ok(entry)
    }
}

fn nan_max(a: f64, b: f64) -> f64 {
    if b.is_nan() || b > a { b } else { a }
}

/// What a gradient check found.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// One entry for each parameter that is trained, in the module's order, then one for each input.
    pub entries: Vec<Entry>,
}

/// What a gradient check found for one tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The parameter's path, or `input k`.
    pub name: String,
    /// The tensor's extents.
    pub shape: Shape,
    /// How many elements were checked.
    pub checked: usize,
    /// The largest difference of the two derivatives.
    pub largest_absolute: f64,
    /// The largest difference relative to the numeric derivative.
    pub largest_relative: f64,
    /// The row-major number of the element that agrees worst …
    pub worst: usize,
    /// … its derivative by the tape …
    pub analytic: f64,
    /// … and by finite differences.
    pub numeric: f64,
    /// Whether all elements agree.
    pub passed: bool,
}

impl Report {
    /// Whether every derivative agrees.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.entries.iter().all(|entry| entry.passed)
    }

    /// An error with the whole report unless every derivative agrees.
    ///
    /// # Errors
    ///
    /// If a derivative disagrees.
    #[track_caller]
    pub fn ok(&self) -> Result<()> {
        here(|| {
            if !self.passed() {
                bail!(Argument, "gradients disagree with finite differences\n{self}");
            }
            Ok(())
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Entry { name, shape, checked, largest_absolute, largest_relative, worst, analytic, numeric, passed } in
            &self.entries
        {
            let verdict = if *passed { "ok  " } else { "FAIL" };
            writeln!(
                f,
                "{verdict} {name} {shape}: {checked} checked, largest error {largest_absolute:.1e} absolute, \
                 {largest_relative:.1e} relative; worst at {worst}: {analytic:.6e}, numerically {numeric:.6e}"
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorKind, Init, Layer, nn::Linear};

    #[test]
    fn a_module_that_is_not_used_is_an_error() {
        let device = Device::cpu();
        let layers = [1, 2].map(|seed| Linear::new(3, 2).init(&device, Seed::new(seed)).unwrap());
        let x = [Tensor::full(&device, [4, 3], 0.5).unwrap()];
        let error = gradcheck(&layers, &x, |_, x| vec![x[0].square()]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoGradient, "{error}");
        // One of several parameters may be left out, and inputs alone may be checked.
        gradcheck(&layers, &x, |layers, x| vec![layers[0].forward(&x[0])]).unwrap().ok().unwrap();
        gradcheck(&(), &x, |(), x| vec![x[0].square()]).unwrap().ok().unwrap();
    }
}
