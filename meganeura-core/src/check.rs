//! Gradient checks: every derivative against finite differences, in double precision. [`gradcheck`] checks first
//! derivatives, [`gradgradcheck`] second ones.
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

mod report;

pub use self::report::{Entry, Report};
use crate::error::{bail, here};
use crate::init::Initializer;
use crate::module::{Module, ModuleExt, Role, Seed};
use crate::{DType, Device, Grads, Precision, Result, Tape, Tensor, Var};

/// Checks the gradients of a function of a module and some inputs; [`Gradcheck`] has settings.
///
/// The module may be on any device and in any precision. Its parameters are read once, and the check runs on the CPU in
/// double precision, without changing the module. Frozen parameters are left out.
///
/// Labels and other integers that `f` captures may be on any CPU device. Floats that it captures must be on the CPU in
/// double precision: pass them as inputs instead, which are converted. An input that `f` detaches has no gradient, and
/// fails the check unless it is a [constant](Gradcheck::constant):
///
/// ```
/// use meganeura::check::Gradcheck;
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let layer = Linear::new(3, 2).init(&device, Seed::new(1))?;
/// let (x, target) = (Tensor::randn(&device, [4, 3], 1)?, Tensor::randn(&device, [4, 2], 2)?);
/// let loss = |layer: &Linear, x: &[Var]| vec![layer.forward(&x[0]).mse(&x[1].detach())];
/// Gradcheck::default().constant(1).run(&layer, &[x, target], loss)?.ok()?;
/// # Ok::<(), meganeura::Error>(())
/// ```
///
/// # Errors
///
/// Fails if `f` records operands that do not fit, or an operation without a gradient rule. Fails with
/// [`NoGradient`](crate::ErrorKind::NoGradient) if the module has trained parameters and `f` uses none of them, for
/// example because it uses another module's.
#[track_caller]
pub fn gradcheck<M: Module + ?Sized>(
    module: &M,
    inputs: &[Tensor],
    f: impl Fn(&M, &[Var]) -> Vec<Var>,
) -> Result<Report> {
    Gradcheck::default().run(module, inputs, f)
}

/// Checks the gradients of the gradients of a function of a module and some inputs.
///
/// Each output gets a random cotangent. The checked function maps parameters, inputs and these cotangents to the
/// gradients of all parameters and inputs: the path of a gradient penalty or a Hessian-vector product. Its gradients
/// are checked like those of [`gradcheck`]. See [`Gradcheck::gradgrad`] for settings.
///
/// ```
/// use meganeura::check::gradgradcheck;
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let layer = GroupNorm::new(2, 4).init(&device, Seed::new(1))?;
/// let x = Tensor::randn(&device, [3, 4, 2, 2], 1)?;
/// gradgradcheck(&layer, &[x], |layer, x| vec![layer.forward(&x[0])])?.ok()?;
/// # Ok::<(), meganeura::Error>(())
/// ```
///
/// # Errors
///
/// Fails like [`gradcheck`], and if none of the outputs depends on an input or a trained parameter.
#[track_caller]
pub fn gradgradcheck<M: Module + ?Sized>(
    module: &M,
    inputs: &[Tensor],
    f: impl Fn(&M, &[Var]) -> Vec<Var>,
) -> Result<Report> {
    Gradcheck::default().gradgrad(module, inputs, f)
}

/// The settings of a gradient check.
///
/// Each output gets a random normal cotangent `c`. The function `L = Σ c·y` is differentiated once by the tape, and for
/// each element of each parameter and input by central differences `(L(x+ε) − L(x−ε)) / 2ε`. The two must agree within
/// `atol + rtol·|numeric|`.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradcheck {
    eps: f64,
    atol: f64,
    rtol: f64,
    samples: usize,
    seed: u64,
    /// The inputs that are not checked, by their index.
    constants: Vec<usize>,
}

/// PyTorch's settings: ε 1e-6, absolute tolerance 1e-5, relative 1e-3; every element; seed 0.
impl Default for Gradcheck {
    fn default() -> Self {
        Self { eps: 1e-6, atol: 1e-5, rtol: 1e-3, samples: usize::MAX, seed: 0, constants: Vec::new() }
    }
}

impl Gradcheck {
    /// The step of the central differences; 1e-6 by default.
    #[must_use]
    pub fn eps(self, eps: f64) -> Self {
        Self { eps, ..self }
    }

    /// The allowed difference between the two derivatives, `atol + rtol·|numeric|`; 1e-5 and 1e-3 by default.
    #[must_use]
    pub fn tolerance(self, atol: f64, rtol: f64) -> Self {
        Self { atol, rtol, ..self }
    }

    /// Checks at most this many elements of each tensor, evenly spread; all of them by default.
    #[must_use]
    pub fn samples(self, samples: usize) -> Self {
        Self { samples, ..self }
    }

    /// The seed of the cotangents and of the tape's random numbers; 0 by default.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Leaves out an input: a target that the function detaches, or one at whose values the function has no
    /// derivative. `f` gets it in double precision like the others. May be called several times.
    #[must_use]
    pub fn constant(mut self, input: usize) -> Self {
        self.constants.push(input);
        self
    }

    /// Runs the check; see [`gradcheck`].
    ///
    /// # Errors
    ///
    /// Fails like [`gradcheck`], and if there is no input for a [constant](Self::constant).
    #[track_caller]
    pub fn run<M: Module + ?Sized>(
        &self,
        module: &M,
        inputs: &[Tensor],
        f: impl Fn(&M, &[Var]) -> Vec<Var>,
    ) -> Result<Report> {
        here(|| {
            let (subjects, x) = Subjects::of(module, inputs, self)?;
            let (loss, _) = self.weighted_sum(&subjects, "cotangents", f(module, &x))?;
            let grads = subjects.differentiate(&loss)?;
            self.report(&loss, &grads, subjects.all)
        })
    }

    /// Runs a check of second derivatives; see [`gradgradcheck`].
    ///
    /// # Errors
    ///
    /// Fails like [`gradgradcheck`].
    #[track_caller]
    pub fn gradgrad<M: Module + ?Sized>(
        &self,
        module: &M,
        inputs: &[Tensor],
        f: impl Fn(&M, &[Var]) -> Vec<Var>,
    ) -> Result<Report> {
        here(|| {
            let (mut subjects, x) = Subjects::of(module, inputs, self)?;
            let (first, cotangents) = self.weighted_sum(&subjects, "cotangents", f(module, &x))?;
            let grads = subjects.differentiate(&first)?;
            let gradients: Vec<_> = subjects.all.iter().filter_map(|subject| grads.of(&subject.var)).collect();
            if gradients.is_empty() {
                bail!(
                    NoGradient,
                    "the outputs depend on no input and no trained parameter, so nothing would be checked"
                );
            }
            subjects.all.extend(cotangents);
            let (loss, _) = self.weighted_sum(&subjects, "second cotangents", gradients)?;
            let grads = subjects.tape.backward(&loss)?;
            self.report(&loss, &grads, subjects.all)
        })
    }

    fn report(&self, loss: &Var, grads: &Grads, subjects: Vec<Subject>) -> Result<Report> {
        let entries = subjects.into_iter().map(|subject| self.compare(loss, subject, grads)).collect::<Result<_>>()?;
        Ok(Report { entries })
    }

    /// `Σ c·y` with random normal cotangents `c`, and the cotangents.
    fn weighted_sum(&self, subjects: &Subjects, name: &str, outputs: Vec<Var>) -> Result<(Var, Vec<Subject>)> {
        let seed = Seed::new(self.seed).field(name);
        let normal = Initializer::Normal { mean: 0.0, std: 1.0 };
        let (mut total, mut cotangents): (Option<Var>, _) = (None, Vec::new());
        let differentiable = |y: &Var| y.error().is_some() || y.ty().dtype == DType::F64;
        for (k, y) in outputs.into_iter().filter(differentiable).enumerate() {
            let value = normal.sample(&subjects.device, y.shape(), seed.index(k))?;
            let cotangent = subjects.tape.input(&value);
            let term = (y * &cotangent).sum();
            total = Some(match total {
                Some(total) => total + term,
                None => term,
            });
            cotangents.push(Subject { name: format!("cotangent {k}"), var: cotangent, value });
        }
        match total {
            Some(total) => total.id().map(|_| (total, cotangents)),
            None => bail!(Argument, "a gradient check needs an output"),
        }
    }

    fn compare(&self, loss: &Var, subject: Subject, grads: &Grads) -> Result<Entry> {
        let Subject { name, var, value } = subject;
        let analytic = match grads.of(&var) {
            Some(gradient) => gradient.to_tensor()?.to_f64_vec()?,
            None => vec![0.0; value.shape().elements()],
        };
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
            // NaN is worse than any difference.
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

/// A tensor whose derivative is checked.
struct Subject {
    name: String,
    var: Var,
    value: Tensor,
}

/// Parameters and inputs, on a tape of their own in double precision.
struct Subjects {
    device: Device,
    tape: Tape,
    all: Vec<Subject>,
    /// The number of parameters, which come first.
    parameters: usize,
}

impl Subjects {
    /// The subjects for a check of a module, and all inputs on the tape.
    fn of<M: Module + ?Sized>(module: &M, inputs: &[Tensor], check: &Gradcheck) -> Result<(Self, Vec<Var>)> {
        if let Some(missing) = check.constants.iter().find(|&&index| index >= inputs.len()) {
            bail!(Argument, "input {missing} is to be constant, but there are {} inputs", inputs.len());
        }
        let device = Device::cpu_with(Precision::Double);
        let tape = Tape::with_seed(&device, check.seed);
        let mut all = Vec::new();
        for leaf in module.leaves() {
            let cell = leaf.cell();
            let value = leaf.value().to_device(&device)?;
            tape.substitute(cell, value.clone());
            let var = tape.cell(cell);
            if leaf.role == Role::Trained {
                all.push(Subject { name: leaf.path, var, value });
            }
        }
        let (parameters, mut x) = (all.len(), Vec::with_capacity(inputs.len()));
        for (k, input) in inputs.iter().enumerate() {
            let value = input.to_device(&device)?;
            let var = tape.input(&value);
            x.push(var.clone());
            if value.ty().dtype.is_float() && !check.constants.contains(&k) {
                all.push(Subject { name: format!("input {k}"), var, value });
            }
        }
        Ok((Self { device, tape, all, parameters }, x))
    }

    /// The gradients of the checked function, which must depend on one of the module's parameters if there are any.
    fn differentiate(&self, loss: &Var) -> Result<Grads> {
        let grads = self.tape.backward(loss)?;
        let parameters = &self.all[..self.parameters];
        if !parameters.is_empty() && parameters.iter().all(|subject| grads.of(&subject.var).is_none()) {
            bail!(
                NoGradient,
                "the outputs depend on none of the module's parameters, so nothing of it would be checked"
            );
        }
        Ok(grads)
    }
}

fn nan_max(a: f64, b: f64) -> f64 {
    if b.is_nan() || b > a { b } else { a }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorKind, Param};

    #[test]
    fn an_unused_module_is_an_error() {
        let device = Device::cpu();
        let layers = [1, 2].map(|seed| Param::new(Tensor::randn(&device, [3, 2], seed).unwrap()));
        let x = [Tensor::full(&device, [4, 3], 0.5).unwrap()];
        let error = gradcheck(&layers, &x, |_, x| vec![x[0].square()]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoGradient, "{error}");
        // Part of the parameters may be unused, and a check may cover inputs only.
        gradcheck(&layers, &x, |layers, x| vec![x[0].matmul(&x[0].tape().param(&layers[0]))]).unwrap().ok().unwrap();
        gradcheck(&(), &x, |(), x| vec![x[0].square()]).unwrap().ok().unwrap();
        let error = gradgradcheck(&layers, &x, |_, x| vec![x[0].square()]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoGradient, "{error}");
        let error = gradgradcheck(&(), &x, |(), x| vec![x[0].tape().scalar(1.0)]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoGradient, "{error}");
        let elsewhere = |(): &(), _: &[Var]| vec![Tape::new(&Device::cpu_with(Precision::Double)).scalar(1.0)];
        let error = gradgradcheck(&(), &x, elsewhere).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Argument, "{error}");
    }

    #[test]
    fn captured_tensors_and_constants() {
        let device = Device::cpu();
        let x = || [1, 2].map(|seed| Tensor::randn(&device, [4, 3], seed).unwrap());
        // Labels of any CPU device, floats of the double-precision one alone.
        let labels = Tensor::indices(&device, [4], &[0, 2, 1, 0]).unwrap();
        gradcheck(&(), &x(), |(), x| vec![(&x[0] * &x[1]).cross_entropy(&labels)]).unwrap().ok().unwrap();
        let [_, captured] = x();
        let weighted = |captured: &Tensor, x: &Var| vec![x * x.tape().input(captured)];
        let error = gradcheck(&(), &x()[..1], |(), x| weighted(&captured, &x[0])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Device, "{error}");
        let captured = captured.to_device(&Device::cpu_with(Precision::Double)).unwrap();
        gradcheck(&(), &x()[..1], |(), x| weighted(&captured, &x[0])).unwrap().ok().unwrap();
        // A detached input fails, unless it is left out.
        let detached = |(): &(), x: &[Var]| vec![&x[0] * x[1].detach()];
        let report = gradcheck(&(), &x(), detached).unwrap();
        assert!(!report.passed(), "{report}");
        let check = Gradcheck::default().constant(1);
        for report in [check.run(&(), &x(), detached).unwrap(), check.gradgrad(&(), &x(), detached).unwrap()] {
            assert!(report.passed() && report.entries.iter().all(|entry| entry.name != "input 1"), "{report}");
        }
        let error = check.constant(2).run(&(), &x(), detached).unwrap_err();
        assert!(error.to_string().contains("input 2 is to be constant, but there are 2 inputs"), "{error}");
    }

    /// `x³` whose first derivative is right, but detached: the second derivative is 0.
    fn cube(x: &Var) -> Var {
        let slope = x.square().scale(3.0).detach();
        &slope * x + (x * x * x - &slope * x).detach()
    }

    #[test]
    fn a_wrong_second_derivative_fails() {
        let x = [Tensor::from_slice(&Device::cpu(), [3], &[0.5, -1.5, 2.0]).unwrap()];
        let right = |(): &(), x: &[Var]| vec![&x[0] * &x[0] * &x[0]];
        let report = gradgradcheck(&(), &x, right).unwrap();
        assert!(report.passed(), "{report}");
        let names: Vec<_> = report.entries.iter().map(|entry| &entry.name[..]).collect();
        assert_eq!(names, ["input 0", "cotangent 0"]);
        let report = gradgradcheck(&(), &x, |(), x| vec![cube(&x[0])]).unwrap();
        assert!(!report.entries[0].passed && report.entries[1].passed, "{report}");
    }
}
