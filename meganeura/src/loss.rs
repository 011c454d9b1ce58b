//! Losses: from predictions and targets to the one number that training makes small.
//!
//! All are means over the batch, methods of [`Var`], and written with its operations; a loss of your own is written the same
//! way.

use std::panic::Location;

use crate::{Error, ErrorKind, Tensor, Var};

/// How [`Var::cross_entropy_with`] differs from [`Var::cross_entropy`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CrossEntropyOptions {
    /// The share of the probability that is spread evenly over all classes instead of standing on the label, between 0
    /// and 1. [Szegedy et al., 2015](https://arxiv.org/abs/1512.00567).
    pub label_smoothing: f64,
}

impl Var {
    /// Cross-entropy of a classification: `−mean ln softmax(x)[n, label[n]]`
    ///
    /// Shapes: scores `[N, C]`, not yet normalised; labels `[N]`, each below `C` → a scalar.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let scores = Tape::new(&device).input(&Tensor::zeros(&device, [2, 4])?);
    /// let labels = Tensor::indices(&device, [2], &[0, 3])?;
    /// assert_eq!(scores.cross_entropy(&labels).item()?, 4f32.ln());
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn cross_entropy(&self, labels: &Tensor) -> Self {
        self.cross_entropy_with(labels, CrossEntropyOptions::default())
    }

    /// [`cross_entropy`](Self::cross_entropy) with smoothed labels:
    /// `−mean Σ_c q[n, c]·ln softmax(x)[n, c]` with `q[n, c] = (1 − s)·[c = label[n]] + s/C`
    ///
    /// Shapes: as there.
    #[must_use]
    #[track_caller]
    pub fn cross_entropy_with(&self, labels: &Tensor, options: CrossEntropyOptions) -> Self {
        let smoothing = options.label_smoothing;
        if !(0.0..=1.0).contains(&smoothing) {
            let error = Error::new(ErrorKind::Argument, format!("label smoothing is {smoothing}, not between 0 and 1"));
            return self.fail(error.in_op("cross_entropy").at(Location::caller()));
        }
        self.cross_entropy_rows(labels, smoothing).mean()
    }

    /// Mean squared error: `mean (x − target)²`
    ///
    /// Shapes: both the same → a scalar. They are not broadcast, because `[N, 1]` against `[N]` would silently compare
    /// everything with everything.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let tape = Tape::new(&device);
    /// let x = tape.input(&Tensor::from_slice(&device, [2], &[1.0, 4.0])?);
    /// let target = tape.input(&Tensor::from_slice(&device, [2], &[0.0, 2.0])?);
    /// assert_eq!(x.mse(&target).item()?, 2.5);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn mse(&self, target: &Self) -> Self {
        match self.misfit("mse", target) {
            Some(poisoned) => poisoned,
            None => (self - target).square().mean(),
        }
    }

    /// Binary cross-entropy of scores: `−mean (t·ln σ(x) + (1 − t)·ln(1 − σ(x)))`
    ///
    /// Precise for large scores of either sign, where taking the logarithm of a sigmoid is not.
    ///
    /// Shapes: scores and targets the same → a scalar. Targets are probabilities: 0, 1, or between.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let tape = Tape::new(&device);
    /// let scores = tape.input(&Tensor::from_slice(&device, [2], &[100.0, -100.0])?);
    /// let target = tape.input(&Tensor::from_slice(&device, [2], &[0.0, 0.0])?);
    /// assert_eq!(scores.bce_with_logits(&target).item()?, 50.0);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn bce_with_logits(&self, target: &Self) -> Self {
        if let Some(poisoned) = self.misfit("bce_with_logits", target) {
            return poisoned;
        }
        // −ln σ(x) = softplus(−x) and −ln(1 − σ(x)) = softplus(x): neither cancels where it is small.
        let positive = target * (-self).softplus();
        let negative = (self.constant(1.0) - target) * self.softplus();
        (positive + negative).mean()
    }

    /// This value poisoned, if the target has another shape.
    #[track_caller]
    fn misfit(&self, loss: &'static str, target: &Self) -> Option<Self> {
        let message = "predictions and targets must have the same shape; `reshape` one of them";
        let error = || Error::new(ErrorKind::Shape, message).in_op(loss).operand(self.ty(), None);
        let location = Location::caller();
        (self.shape() != target.shape()).then(|| self.fail(error().operand(target.ty(), None).at(location)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, Precision, Shape, Tape};

    fn input(tape: &Tape, shape: &[usize], data: &[f64]) -> Var {
        tape.input(&Tensor::from_f64(&tape.device(), Shape::new(shape), data).unwrap())
    }

    /// In `f64`, against values computed by other means.
    fn assert_value(loss: &Var, expected: f64) {
        let value = loss.to_tensor().unwrap().to_f64_vec().unwrap();
        assert!(value.len() == 1 && (value[0] - expected).abs() <= 1e-14 * expected.abs(), "{value:?}, not {expected}");
    }

    fn tape() -> Tape {
        Tape::new(&Device::cpu_with(Precision::Double))
    }

    #[test]
    fn cross_entropy() {
        let tape = tape();
        let scores = input(&tape, &[2, 3], &[1.0, 2.0, 3.0, 0.5, -1.0, 1000.0]);
        let labels = Tensor::indices(&tape.device(), [2], &[0, 2]).unwrap();
        assert_value(&scores.cross_entropy(&labels), 1.203_802_982_222_190_3);
        let options = CrossEntropyOptions { label_smoothing: 0.1 };
        assert_value(&scores.cross_entropy_with(&labels, options), 34.495_469_648_888_86);
    }

    #[test]
    fn mse() {
        let tape = tape();
        let x = input(&tape, &[2, 2], &[1.0, -2.0, 3.5, 0.0]);
        let target = input(&tape, &[2, 2], &[0.0, -1.0, 3.0, 2.0]);
        assert_value(&x.mse(&target), 1.5625);
    }

    #[test]
    fn bce_with_logits() {
        let tape = tape();
        let x = input(&tape, &[4], &[-2.0, 0.0, 0.5, 3.0]);
        let target = input(&tape, &[4], &[0.0, 1.0, 0.25, 1.0]);
        assert_value(&x.bce_with_logits(&target), 0.429_434_881_839_191_65);
        // Tiny losses of confident, right predictions are not lost.
        let x = input(&tape, &[2], &[40.0, -40.0]);
        assert_value(&x.bce_with_logits(&input(&tape, &[2], &[1.0, 0.0])), 4.248_354_255_291_589e-18);
        // Huge scores do not overflow.
        let x = input(&tape, &[2], &[1e6, -1e6]);
        assert_value(&x.bce_with_logits(&input(&tape, &[2], &[0.0, 1.0])), 1e6);
    }

    #[test]
    fn the_gradient_at_a_score_of_0_is_exact() {
        let device = Device::cpu_with(Precision::Double);
        let tape = Tape::new(&device);
        let score = crate::Param::new(Tensor::zeros(&device, [1]).unwrap());
        let loss = tape.param(&score).bce_with_logits(&input(&tape, &[1], &[0.25]));
        let grads = tape.backward(&loss).unwrap();
        assert_eq!(grads.get(&score).unwrap().to_vec().unwrap(), [0.25]);
    }

    #[test]
    fn misuse_poisons() {
        let tape = tape();
        let x = input(&tape, &[3, 1], &[0.0; 3]);
        let target = input(&tape, &[3], &[0.0; 3]);
        for loss in [x.mse(&target), x.bce_with_logits(&target)] {
            let error = loss.error().unwrap();
            assert_eq!(error.kind(), ErrorKind::Shape);
            assert!(error.to_string().contains("f64[3, 1]"), "{error}");
            assert!(error.location().unwrap().file().ends_with("loss.rs"), "{error}");
        }
        let labels = |labels: &[u32]| Tensor::indices(&tape.device(), [labels.len()], labels).unwrap();
        let smooth = |label_smoothing| {
            input(&tape, &[1, 2], &[0.0; 2]).cross_entropy_with(&labels(&[0]), CrossEntropyOptions { label_smoothing })
        };
        for smoothing in [-0.1, 1.1, f64::NAN] {
            assert_eq!(smooth(smoothing).error().unwrap().kind(), ErrorKind::Argument);
        }
        assert!(x.cross_entropy(&labels(&[0, 0, 1])).error().is_some(), "a label past the classes");
        assert!(x.cross_entropy(&labels(&[0, 0])).error().is_some(), "fewer labels than rows");
    }
}
