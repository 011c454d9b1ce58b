//! Losses between distributions: cross-entropy with probabilities as targets, and the Kullback–Leibler divergence.

use super::Reduction;
use crate::{ErrorKind, Tensor, Var};

/// The options of [`Var::soft_cross_entropy_with`]. The defaults are those of [`Var::soft_cross_entropy`].
#[derive(Clone, Debug, Default)]
pub struct SoftCrossEntropyOptions {
    /// The share of the probability that is spread evenly over all classes, between 0 and 1.
    pub label_smoothing: f64,
    /// The weight of each class, `[C]`, on the device of the scores.
    pub class_weights: Option<Tensor>,
    /// The reduction of the losses of single rows.
    pub reduction: Reduction,
}

/// The options of [`Var::kl_div_with`]. The defaults are those of [`Var::kl_div`].
#[derive(Clone, Copy, Debug, Default)]
pub struct KlDivOptions {
    /// `true` if the target holds log-probabilities, which stay precise where probabilities are tiny.
    pub log_target: bool,
    /// The reduction of the terms of single classes.
    pub reduction: Reduction,
}

impl Var {
    /// Cross-entropy of scores against probabilities of all classes: `−mean_n Σ_c t[n, c]·ln softmax(x)[n, c]`
    ///
    /// For targets that another model computed, or that mix two examples. For labels, see
    /// [`cross_entropy`](Self::cross_entropy).
    ///
    /// Shapes: scores and targets `[N, C, …]` → a scalar. Nothing checks that targets add up to 1.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let tape = Tape::new(&device);
    /// let scores = tape.input(&Tensor::zeros(&device, [1, 2])?);
    /// let target = tape.input(&Tensor::from_slice(&device, [1, 2], &[0.25, 0.75])?);
    /// assert_eq!(scores.soft_cross_entropy(&target).item()?, 2f32.ln());
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn soft_cross_entropy(&self, target: &Self) -> Self {
        self.soft_cross_entropy_with(target, &SoftCrossEntropyOptions::default())
    }

    /// [`soft_cross_entropy`](Self::soft_cross_entropy) with smoothed targets and class weights:
    /// `ℓ[n] = −Σ_c w[c]·((1 − s)·t[n, c] + s/C)·ln softmax(x)[n, c]`.
    ///
    /// The mean divides by the number of rows, not by weights, as in PyTorch.
    ///
    /// Shapes: the same; unreduced `[N, …]`. Errors: also if the label smoothing is not between 0 and 1, or the class
    /// weights are not `[C]`.
    #[must_use]
    #[track_caller]
    pub fn soft_cross_entropy_with(&self, target: &Self, options: &SoftCrossEntropyOptions) -> Self {
        const NAME: &str = "soft_cross_entropy";
        let SoftCrossEntropyOptions { label_smoothing: smoothing, class_weights, reduction } = options;
        if !(0.0..=1.0).contains(smoothing) {
            return self.senseless(NAME, format!("the label smoothing is {smoothing}, not between 0 and 1"));
        }
        if let Some(poisoned) = self.misfit(NAME, target) {
            return poisoned;
        }
        if self.shape().rank() < 2 {
            let message = format!("the scores must be [N, classes, …], they are {}", self.ty());
            return self.refuse(NAME, ErrorKind::Shape, message);
        }
        if let Some(poisoned) = self.misweighted(NAME, class_weights.as_ref()) {
            return poisoned;
        }
        #[expect(clippy::cast_precision_loss, reason = "there are fewer than 2^53 classes")]
        let even = smoothing / self.classes() as f64;
        let smoothed = if *smoothing > 0.0 { target * (1.0 - smoothing) + even } else { target.clone() };
        let weighted = match class_weights {
            Some(weights) => smoothed * self.tape().input(weights).reshape(self.kept_along(|axis| axis == 1)),
            None => smoothed,
        };
        reduction.of(&-(weighted * self.log_softmax(1)).sum_over(&[1]))
    }

    /// The Kullback–Leibler divergence of log-probabilities from a target's probabilities: `mean t·(ln t − x)`
    ///
    /// A target of 0 costs 0, or NaN if the other probability is 0 as well, as in PyTorch. The mean is over all
    /// elements, as in PyTorch. For the divergence per example, divide that of [`Reduction::Sum`] by the number of
    /// examples (PyTorch's `batchmean`). [Kullback and Leibler, 1951](https://doi.org/10.1214/aoms/1177729694).
    ///
    /// Shapes: log-probabilities and targets the same → a scalar.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let tape = Tape::new(&device);
    /// let x = tape.input(&Tensor::from_slice(&device, [2], &[-1.0, -2.0])?);
    /// let target = tape.input(&Tensor::from_slice(&device, [2], &[1.0, 0.0])?);
    /// assert_eq!(x.kl_div(&target).item()?, 0.5);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn kl_div(&self, target: &Self) -> Self {
        self.kl_div_with(target, &KlDivOptions::default())
    }

    /// [`kl_div`](Self::kl_div) with log-probabilities as the target, `eᵗ·(t − x)`, or with another reduction.
    ///
    /// Shapes: the same.
    #[must_use]
    #[track_caller]
    pub fn kl_div_with(&self, target: &Self, options: &KlDivOptions) -> Self {
        if let Some(poisoned) = self.misfit("kl_div", target) {
            return poisoned;
        }
        let terms = if options.log_target {
            target.exp() * (target - self)
        } else {
            // ln 1 in place of ln 0, so that the gradient of the target is finite, too.
            let none = target.eq(self.constant(0.0));
            let log = none.where_cond(&self.constant(1.0), target).log();
            target * (log - self)
        };
        options.reduction.of(&terms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::gradcheck;
    use crate::loss::tests::{assert_finite, assert_values, input, tape, tensor};

    #[test]
    fn probabilities_of_one_class_are_labels() {
        let tape = tape();
        let x = input(&tape, &[2, 3], &[1.0, 2.0, 3.0, 0.5, -1.0, 1000.0]);
        let target = input(&tape, &[2, 3], &[1.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
        let options = |label_smoothing| SoftCrossEntropyOptions { label_smoothing, ..Default::default() };
        assert_values(&x.soft_cross_entropy(&target), &[1.203_802_982_222_190_3]);
        assert_values(&x.soft_cross_entropy_with(&target, &options(0.1)), &[34.495_469_648_888_86]);
    }

    #[test]
    fn class_weights_do_not_divide_the_mean() {
        let tape = tape();
        let x = input(&tape, &[2, 2], &[0.0; 4]);
        let target = input(&tape, &[2, 2], &[0.5, 0.5, 0.0, 1.0]);
        let loss = |reduction| {
            let class_weights = Some(tensor(&[2], &[1.0, 3.0]));
            let options = SoftCrossEntropyOptions { class_weights, reduction, ..Default::default() };
            x.soft_cross_entropy_with(&target, &options)
        };
        let ln2 = std::f64::consts::LN_2;
        assert_values(&loss(Reduction::None), &[2.0 * ln2, 3.0 * ln2]);
        assert_values(&loss(Reduction::Mean), &[2.5 * ln2]);
    }

    #[test]
    fn a_divergence_is_0_where_both_are_equal() {
        let tape = tape();
        let (p, q) = ([0.25, 0.75, 0.0], [0.5, 0.25, 0.25_f64]);
        let x = input(&tape, &[3], &q.map(f64::ln));
        let expected = 0.25 * 0.5_f64.ln() + 0.75 * 3.0_f64.ln();
        let sum = |log_target| KlDivOptions { log_target, reduction: Reduction::Sum };
        assert_values(&x.kl_div_with(&input(&tape, &[3], &p), &sum(false)), &[expected]);
        let x = input(&tape, &[2], &[q[0].ln(), q[1].ln()]);
        assert_values(&x.kl_div_with(&input(&tape, &[2], &[p[0].ln(), p[1].ln()]), &sum(true)), &[expected]);
        assert_values(&x.kl_div_with(&x, &sum(true)), &[0.0]);
    }

    #[test]
    fn gradients_are_right() {
        let x = [tensor(&[2, 3], &[0.1, -1.3, 2.5, 0.7, -2.0, 4.0]), tensor(&[2, 3], &[0.1, 0.2, 0.3, 0.5, 0.4, 0.9])];
        for reduction in [Reduction::Mean, Reduction::Sum, Reduction::None] {
            let losses = |_: &(), x: &[Var]| {
                let class_weights = Some(tensor(&[3], &[3.0, 0.5, 1.0]));
                let options = SoftCrossEntropyOptions { label_smoothing: 0.2, class_weights, reduction };
                vec![
                    x[0].soft_cross_entropy_with(&x[1], &options),
                    x[0].kl_div_with(&x[1], &KlDivOptions { log_target: false, reduction }),
                    x[0].kl_div_with(&x[1], &KlDivOptions { log_target: true, reduction }),
                ]
            };
            gradcheck(&(), &x, losses).unwrap().ok().unwrap();
        }
    }

    #[test]
    fn the_gradient_of_a_target_of_0_is_finite() {
        let tape = tape();
        let (x, target) = (input(&tape, &[2], &[-1.0, -2.0]), input(&tape, &[2], &[0.0, 1.0]));
        let loss = x.kl_div_with(&target, &KlDivOptions { reduction: Reduction::Sum, ..Default::default() });
        let grads = tape.backward(&loss).unwrap();
        assert_values(&grads.of(&x).unwrap(), &[0.0, -1.0]);
        assert_values(&grads.of(&target).unwrap(), &[1.0, 3.0]);
    }

    #[test]
    fn huge_scores_stay_finite() {
        assert_finite(&[1e4, -1e4, 0.0, 1e4], |x| x.soft_cross_entropy(&(x * 0.0 + 0.5)));
    }

    #[test]
    fn misuse_poisons() {
        let tape = tape();
        let (x, t) = (input(&tape, &[3, 1], &[0.0; 3]), input(&tape, &[3], &[0.0; 3]));
        for loss in [x.soft_cross_entropy(&t), x.kl_div(&t), t.soft_cross_entropy(&t)] {
            let error = loss.error().unwrap();
            assert_eq!(error.kind(), ErrorKind::Shape);
            assert!(error.location().unwrap().file().ends_with("divergence.rs"), "{error}");
        }
        let weighted = SoftCrossEntropyOptions { class_weights: Some(tensor(&[2], &[1.0; 2])), ..Default::default() };
        for options in [weighted, SoftCrossEntropyOptions { label_smoothing: 2.0, ..Default::default() }] {
            let error = x.soft_cross_entropy_with(&x, &options).error().unwrap();
            assert_eq!(error.kind(), ErrorKind::Argument);
        }
    }
}
