//! Losses for regression.

use super::Reduction;
use crate::Var;
use crate::dtype::is_positive;

impl Var {
    /// Mean squared error: `mean (x − target)²`
    ///
    /// Shapes: both the same → a scalar. They are not broadcast: `[N, 1]` against `[N]` would silently compare every
    /// element with every other.
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
    #[doc(alias = "mse_loss")]
    #[must_use]
    #[track_caller]
    pub fn mse(&self, target: &Self) -> Self {
        self.mse_with(target, Reduction::Mean)
    }

    /// Like [`mse`](Self::mse), with another reduction.
    #[must_use]
    #[track_caller]
    pub fn mse_with(&self, target: &Self, reduction: Reduction) -> Self {
        match self.misfit("mse", target) {
            Some(poisoned) => poisoned,
            None => reduction.of(&(self - target).square()),
        }
    }

    /// Mean absolute error: `mean |x − target|`, with gradient 0 where both are equal.
    ///
    /// Shapes: both the same → a scalar.
    #[doc(alias = "l1_loss")]
    #[must_use]
    #[track_caller]
    pub fn l1(&self, target: &Self) -> Self {
        self.l1_with(target, Reduction::Mean)
    }

    /// Like [`l1`](Self::l1), with another reduction.
    #[must_use]
    #[track_caller]
    pub fn l1_with(&self, target: &Self, reduction: Reduction) -> Self {
        match self.misfit("l1", target) {
            Some(poisoned) => poisoned,
            None => reduction.of(&(self - target).abs()),
        }
    }

    /// Huber's loss: the mean of `½d²` where `|d| ≤ δ` and of `δ·(|d| − ½δ)` beyond, for `d = x − target`
    ///
    /// Outliers pull with force δ, however far away they are. [Huber, 1964](https://doi.org/10.1214/aoms/1177703732).
    ///
    /// Shapes: both the same → a scalar. Errors: if δ is not above 0. Another δ makes no new plan.
    ///
    /// ```
    /// use meganeura::loss::Reduction;
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let tape = Tape::new(&device);
    /// let x = tape.input(&Tensor::from_slice(&device, [2], &[1.0, 7.0])?);
    /// let target = tape.input(&Tensor::zeros(&device, [2])?);
    /// assert_eq!(x.huber_with(&target, 2.0, Reduction::None).to_vec()?, [0.5, 12.0]);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    #[doc(alias = "huber_loss")]
    #[must_use]
    #[track_caller]
    pub fn huber(&self, target: &Self, delta: f64) -> Self {
        self.huber_with(target, delta, Reduction::Mean)
    }

    /// Like [`huber`](Self::huber), with another reduction.
    #[must_use]
    #[track_caller]
    pub fn huber_with(&self, target: &Self, delta: f64, reduction: Reduction) -> Self {
        if !(delta > 0.0 && delta.is_finite()) {
            return self.senseless("huber", format!("δ is {delta}; it must be above 0"));
        }
        if let Some(poisoned) = self.misfit("huber", target) {
            return poisoned;
        }
        let (slope, distance) = self.capped(target, delta);
        reduction.of(&(&slope * (distance - slope.scale(0.5))))
    }

    /// Smooth L1: the mean of `½d²/β` where `|d| ≤ β` and of `|d| − ½β` beyond
    ///
    /// It is [`huber`](Self::huber) divided by its δ, here called β. With β = 0 it is [`l1`](Self::l1).
    /// [Girshick, 2015](https://arxiv.org/abs/1504.08083), with β = 1.
    ///
    /// Shapes: both the same → a scalar. Errors: if β is negative, or positive but 0 in `f32`.
    #[doc(alias = "smooth_l1_loss")]
    #[must_use]
    #[track_caller]
    pub fn smooth_l1(&self, target: &Self, beta: f64) -> Self {
        self.smooth_l1_with(target, beta, Reduction::Mean)
    }

    /// Like [`smooth_l1`](Self::smooth_l1), with another reduction.
    #[must_use]
    #[track_caller]
    pub fn smooth_l1_with(&self, target: &Self, beta: f64, reduction: Reduction) -> Self {
        // β is a divisor.
        if beta != 0.0 && !is_positive(beta) {
            return self.senseless("smooth_l1", format!("β is {beta:?}; it must be 0, or at least 1.2e-38"));
        }
        if let Some(poisoned) = self.misfit("smooth_l1", target) {
            return poisoned;
        }
        if beta == 0.0 {
            return reduction.of(&(self - target).abs());
        }
        let (slope, distance) = self.capped(target, beta);
        reduction.of(&((&slope / beta) * (distance - slope.scale(0.5))))
    }

    /// `min(|d|, cap)` and `|d|`. Their product, minus half the square of the first, is Huber's loss. The rule of
    /// `minimum` then gives the exact gradient, `min(|d|, cap)·sign d`, even where the two are equal.
    #[track_caller]
    fn capped(&self, target: &Self, cap: f64) -> (Self, Self) {
        let distance = (self - target).abs();
        (distance.minimum(self.tape().scalar(cap)), distance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::gradcheck;
    use crate::loss::tests::{assert_finite, assert_values, input, tape, tensor};
    use crate::{ErrorKind, Tape};

    fn pair(tape: &Tape) -> (Var, Var) {
        // Differences of 1, −1, 0.5 and −2.
        let x = input(tape, &[2, 2], &[1.0, -2.0, 3.5, 0.0]);
        (x, input(tape, &[2, 2], &[0.0, -1.0, 3.0, 2.0]))
    }

    #[test]
    fn values_are_pytorchs() {
        let tape = tape();
        let (x, t) = pair(&tape);
        type Loss = fn(&Var, &Var, Reduction) -> Var;
        let losses: [(Loss, [f64; 4]); 6] = [
            (|x, t, r| x.mse_with(t, r), [1.0, 1.0, 0.25, 4.0]),
            (|x, t, r| x.l1_with(t, r), [1.0, 1.0, 0.5, 2.0]),
            (|x, t, r| x.huber_with(t, 0.75, r), [0.468_75, 0.468_75, 0.125, 1.218_75]),
            (|x, t, r| x.huber_with(t, 1.0, r), [0.5, 0.5, 0.125, 1.5]),
            (|x, t, r| x.smooth_l1_with(t, 0.75, r), [0.625, 0.625, 0.125 / 0.75, 1.625]),
            (|x, t, r| x.smooth_l1_with(t, 0.0, r), [1.0, 1.0, 0.5, 2.0]),
        ];
        for (loss, expected) in losses {
            let sum: f64 = expected.iter().sum();
            assert_values(&loss(&x, &t, Reduction::None), &expected);
            assert_values(&loss(&x, &t, Reduction::Sum), &[sum]);
            assert_values(&loss(&x, &t, Reduction::Mean), &[sum / 4.0]);
        }
        assert_values(&x.mse(&t), &[1.5625]);
        assert_values(&x.l1(&t), &[1.125]);
        assert_values(&x.huber(&t, 1.0), &[0.656_25]);
        assert_values(&x.smooth_l1(&t, 1.0), &[0.656_25]);
    }

    #[test]
    fn gradients_are_right() {
        let x = [tensor(&[3, 2], &[0.1, -1.3, 2.5, 0.7, -0.2, 4.0]), tensor(&[3, 2], &[1.0, 0.2, 0.3, 0.5, -3.0, 4.5])];
        for reduction in [Reduction::Mean, Reduction::Sum, Reduction::None] {
            let losses = |_: &(), x: &[Var]| {
                let (x, t) = (&x[0], &x[1]);
                vec![
                    x.mse_with(t, reduction),
                    x.l1_with(t, reduction),
                    x.huber_with(t, 0.6, reduction),
                    x.smooth_l1_with(t, 1.7, reduction),
                ]
            };
            gradcheck(&(), &x, losses).unwrap().ok().unwrap();
        }
    }

    #[test]
    fn the_gradient_is_exact_where_the_pieces_meet() {
        let tape = tape();
        let (x, t) = (input(&tape, &[3], &[1.0, -1.0, 0.0]), input(&tape, &[3], &[0.0; 3]));
        for loss in [x.huber_with(&t, 1.0, Reduction::Sum), x.smooth_l1_with(&t, 1.0, Reduction::Sum)] {
            assert_values(&tape.backward(&loss).unwrap().of(&x).unwrap(), &[1.0, -1.0, 0.0]);
        }
    }

    #[test]
    fn large_distances_stay_finite() {
        assert_finite(&[1e30, -1e30], |x| x.huber(&(x * 0.0), 1.0) + x.smooth_l1(&(x * 0.0), 1.0));
    }

    #[test]
    fn misuse_poisons() {
        let tape = tape();
        let (x, t) = (input(&tape, &[3, 1], &[0.0; 3]), input(&tape, &[3], &[0.0; 3]));
        for loss in [x.mse(&t), x.l1(&t), x.huber(&t, 1.0), x.smooth_l1(&t, 1.0)] {
            let error = loss.error().unwrap();
            assert_eq!(error.kind(), ErrorKind::Shape);
            assert!(error.to_string().contains("f64[3, 1]"), "{error}");
            assert!(error.location().unwrap().file().ends_with("regression.rs"), "{error}");
        }
        for loss in [
            x.huber(&x, 0.0),
            x.huber(&x, f64::NAN),
            x.smooth_l1(&x, -1.0),
            x.smooth_l1(&x, 1e-50),
            x.smooth_l1(&x, f64::INFINITY),
        ] {
            assert_eq!(loss.error().unwrap().kind(), ErrorKind::Argument);
        }
    }
}
