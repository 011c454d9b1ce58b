//! Focal losses: cross-entropy that gives little weight to predictions that are already right.

use super::{Labels, Reduction};
use crate::{Tensor, Var};

/// The options of [`Var::focal_bce_with`]. The defaults are those of [`Var::focal_bce`].
#[derive(Clone, Copy, Debug)]
pub struct FocalBceOptions {
    /// The focusing exponent, γ, which reduces the weight of right predictions: 0 or above; 2 by default.
    pub gamma: f64,
    /// The weight of positive targets, α, between 0 and 1; that of negative ones is `1 − α`. 0.25 by default; `None`
    /// weights neither.
    pub alpha: Option<f64>,
    /// The reduction of the losses of single scores.
    pub reduction: Reduction,
}

impl Default for FocalBceOptions {
    fn default() -> Self {
        Self { gamma: 2.0, alpha: Some(0.25), reduction: Reduction::Mean }
    }
}

/// The options of [`Var::focal_cross_entropy_with`]. The defaults are those of [`Var::focal_cross_entropy`].
#[derive(Clone, Debug)]
pub struct FocalCrossEntropyOptions {
    /// The focusing exponent, γ, which reduces the weight of right predictions: 0 or above; 2 by default.
    pub gamma: f64,
    /// The weight of each class, `[C]`, on the device of the scores.
    pub class_weights: Option<Tensor>,
    /// The ignored label, which costs nothing. Any number, below `C` or not.
    pub ignored: Option<u32>,
    /// The reduction of the losses of single labels.
    pub reduction: Reduction,
}

impl Default for FocalCrossEntropyOptions {
    fn default() -> Self {
        Self { gamma: 2.0, class_weights: None, ignored: None, reduction: Reduction::Mean }
    }
}

impl Var {
    /// Focal loss of binary scores: `mean α_t·(1 − p_t)^γ·(−ln p_t)` with γ = 2, α = 0.25
    ///
    /// `p_t` is the probability that the score gives to the target, by `σ(x)`. This is torchvision's
    /// `sigmoid_focal_loss` with `reduction="mean"`; torchvision's default is none. [Lin et al.,
    /// 2017](https://arxiv.org/abs/1708.02002).
    ///
    /// Shapes: scores and targets the same → a scalar. Targets are 0 or 1, or between: then `1 − p_t` is
    /// `t·(1 − σ(x)) + (1 − t)·σ(x)`, and the logarithm is that of [`bce_with_logits`](Self::bce_with_logits).
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let tape = Tape::new(&device);
    /// let scores = tape.input(&Tensor::zeros(&device, [3])?);
    /// let target = tape.input(&Tensor::full(&device, [3], 1.0)?);
    /// let loss = scores.focal_bce(&target).item()?;
    /// assert!((loss - 0.25 * 0.25 * 2f32.ln()).abs() < 1e-7);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn focal_bce(&self, target: &Self) -> Self {
        self.focal_bce_with(target, &FocalBceOptions::default())
    }

    /// [`focal_bce`](Self::focal_bce) with another γ or α, or with another reduction. Another γ or α makes no new plan.
    ///
    /// Shapes: the same. Errors: also if γ is negative, NaN or infinite, or α not between 0 and 1.
    #[must_use]
    #[track_caller]
    pub fn focal_bce_with(&self, target: &Self, options: &FocalBceOptions) -> Self {
        const NAME: &str = "focal_bce";
        let FocalBceOptions { gamma, alpha, reduction } = *options;
        if let Some(poisoned) = self.unfocused(NAME, gamma) {
            return poisoned;
        }
        if let Some(alpha) = alpha.filter(|alpha| !(0.0..=1.0).contains(alpha)) {
            return self.senseless(NAME, format!("α is {alpha}, not between 0 and 1"));
        }
        if let Some(poisoned) = self.misfit(NAME, target) {
            return poisoned;
        }
        let other = self.constant(1.0) - target;
        // Like `bce_with_logits_with`; and 1 − σ(x) = σ(−x), which does not cancel.
        let negated = -self;
        let surprise = target * negated.softplus() + &other * self.softplus();
        let wrong = target * negated.sigmoid() + &other * self.sigmoid();
        let losses = wrong.focus(gamma) * surprise;
        reduction.of(&match alpha {
            Some(alpha) => (target * alpha + other * (1.0 - alpha)) * losses,
            None => losses,
        })
    }

    /// Focal loss of a classification: `mean (1 − p)^γ·(−ln p)`, where `p = softmax(x)[n, label[n]]` and γ = 2. It is
    /// the loss of [Lin et al., 2017](https://arxiv.org/abs/1708.02002) for several classes.
    ///
    /// Shapes: scores `[N, C, …]`, labels `[N, …]`, as for [`cross_entropy`](Self::cross_entropy) → a scalar.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let scores = Tape::new(&device).input(&Tensor::zeros(&device, [2, 4])?);
    /// let labels = Tensor::indices(&device, [2], &[0, 3])?;
    /// let loss = scores.focal_cross_entropy(&labels).item()?;
    /// assert!((loss - 0.75 * 0.75 * 4f32.ln()).abs() < 1e-6);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn focal_cross_entropy(&self, labels: &(impl Labels + ?Sized)) -> Self {
        self.focal_cross_entropy_with(labels, &FocalCrossEntropyOptions::default())
    }

    /// [`focal_cross_entropy`](Self::focal_cross_entropy) with another γ, class weights and an ignored label:
    ///
    /// ```text
    /// ℓ[n] = −w[label[n]]·(1 − p[n])^γ·ln p[n]
    /// mean = Σ_n ℓ[n] / Σ_n w[label[n]]         over the n that are not ignored
    /// ```
    ///
    /// With γ = 0 it is [`cross_entropy_with`](Self::cross_entropy_with). Another γ makes no new plan.
    ///
    /// Shapes: the same; unreduced `[N, …]`. Errors: also if γ is negative, NaN or infinite, or the class weights are
    /// not `[C]`.
    #[must_use]
    #[track_caller]
    pub fn focal_cross_entropy_with(
        &self,
        labels: &(impl Labels + ?Sized),
        options: &FocalCrossEntropyOptions,
    ) -> Self {
        const NAME: &str = "focal_cross_entropy";
        let FocalCrossEntropyOptions { gamma, class_weights, ignored, reduction } = options;
        let labels = &labels.on(self.tape());
        if let Some(poisoned) = self.unfocused(NAME, *gamma).or(self.mislabelled(NAME, labels, *ignored)) {
            return poisoned;
        }
        if let Some(poisoned) = self.misweighted(NAME, class_weights.as_ref()) {
            return poisoned;
        }
        let surprise = self.cross_entropy_rows(labels, 0.0, *ignored);
        // 1 − p = 1 − e^(ln p), which loses no digits where p is close to 1.
        let wrong = -(-&surprise).expm1();
        let weights = self.row_weights(labels, class_weights.as_ref(), *ignored);
        reduction.of_weighted(&(wrong.focus(*gamma) * surprise * &weights), &weights)
    }

    /// `xᵞ` of a probability. A probability at or close to 0 counts as the least normal `f32`: for γ below 1, the
    /// derivative at 0 is infinite.
    #[track_caller]
    fn focus(&self, gamma: f64) -> Self {
        self.maximum(self.constant(f64::from(f32::MIN_POSITIVE))).powf(gamma)
    }

    /// The scores, poisoned, if γ is invalid.
    #[track_caller]
    fn unfocused(&self, name: &'static str, gamma: f64) -> Option<Self> {
        if gamma >= 0.0 && gamma.is_finite() {
            return None;
        }
        Some(self.senseless(name, format!("γ is {gamma}; it must be 0 or above")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::gradcheck;
    use crate::loss::CrossEntropyOptions;
    use crate::loss::tests::{assert_finite, assert_values, device, input, tape, tensor};
    use crate::{Device, ErrorKind};

    fn labels(labels: &[u32]) -> Tensor {
        Tensor::indices(&device(), [labels.len()], labels).unwrap()
    }

    #[track_caller]
    fn assert_near(a: &Var, b: &Var) {
        let [a, b] = [a, b].map(|x| x.to_tensor().unwrap().to_f64_vec().unwrap());
        let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-13 * b.abs();
        assert!(a.len() == b.len() && a.iter().zip(&b).all(near), "{a:?} is not {b:?}");
    }

    #[test]
    fn without_focus_they_are_cross_entropy() {
        let tape = tape();
        let x = input(&tape, &[4], &[-2.0, 0.0, 0.5, 3.0]);
        let target = input(&tape, &[4], &[0.0, 1.0, 0.25, 1.0]);
        let options = FocalBceOptions { gamma: 0.0, alpha: None, ..Default::default() };
        assert_near(&x.focal_bce_with(&target, &options), &x.bce_with_logits(&target));
        let x = input(&tape, &[3, 2], &[1.0, 2.0, 0.5, -1.0, 3.0, 0.0]);
        let class_weights = Some(tensor(&[2], &[2.0, 0.5]));
        for reduction in [Reduction::Mean, Reduction::Sum, Reduction::None] {
            let (class_weights, ignored) = (class_weights.clone(), Some(9));
            let focal =
                FocalCrossEntropyOptions { gamma: 0.0, class_weights: class_weights.clone(), ignored, reduction };
            let plain = CrossEntropyOptions { class_weights, ignored, reduction, ..Default::default() };
            let own = labels(&[1, 9, 0]);
            assert_near(&x.focal_cross_entropy_with(&own, &focal), &x.cross_entropy_with(&own, &plain));
        }
    }

    #[test]
    fn two_classes_are_yes_or_no() {
        let tape = tape();
        let scores = [-2.0, 0.3, 0.5, 4.0];
        let two: Vec<_> = scores.iter().flat_map(|&x| [0.0, x]).collect();
        let (one, two) = (input(&tape, &[4], &scores), input(&tape, &[4, 2], &two));
        let options = FocalBceOptions { gamma: 1.5, alpha: None, reduction: Reduction::None };
        let binary = one.focal_bce_with(&input(&tape, &[4], &[0.0, 1.0, 0.0, 1.0]), &options);
        let options = FocalCrossEntropyOptions { gamma: 1.5, reduction: Reduction::None, ..Default::default() };
        assert_near(&two.focal_cross_entropy_with(&labels(&[0, 1, 0, 1]), &options), &binary);
    }

    #[test]
    fn positive_targets_weigh_alpha() {
        let tape = tape();
        let x = input(&tape, &[2], &[0.0, 0.0]);
        let options = FocalBceOptions { gamma: 1.0, alpha: Some(0.75), reduction: Reduction::None };
        let ln2 = std::f64::consts::LN_2;
        let loss = x.focal_bce_with(&input(&tape, &[2], &[1.0, 0.0]), &options);
        assert_values(&loss, &[0.75 * 0.5 * ln2, 0.25 * 0.5 * ln2]);
    }

    #[test]
    fn gradients_are_right() {
        let x = [tensor(&[3, 2], &[0.1, -1.3, 2.5, 0.7, -2.0, 4.0]), tensor(&[3, 2], &[1.0, 0.2, 0.3, 0.5, 0.1, 0.9])];
        for (gamma, reduction) in [(2.0, Reduction::Mean), (0.5, Reduction::Sum), (0.0, Reduction::None)] {
            let losses = |_: &(), x: &[Var]| {
                let class_weights = Some(tensor(&[2], &[3.0, 0.5]));
                let options = FocalCrossEntropyOptions { gamma, class_weights, ignored: Some(7), reduction };
                vec![
                    x[0].focal_bce_with(&x[1], &FocalBceOptions { gamma, alpha: Some(0.3), reduction }),
                    x[0].focal_cross_entropy_with(&labels(&[0, 7, 1]), &options),
                ]
            };
            gradcheck(&(), &x, losses).unwrap().ok().unwrap();
        }
    }

    #[test]
    fn huge_scores_stay_finite() {
        for gamma in [0.0, 0.5, 1.0, 2.0] {
            let options = FocalBceOptions { gamma, ..Default::default() };
            for target in [0.0, 1.0] {
                assert_finite(&[1e4, -1e4], |x| x.focal_bce_with(&(x * 0.0 + target), &options));
            }
            let options = FocalCrossEntropyOptions { gamma, ignored: Some(7), ..Default::default() };
            let own = Tensor::indices(&Device::cpu(), [3], &[0, 1, 7]).unwrap();
            let scores = [1e4, -1e4, 1e4, -1e4, f32::NAN, f32::INFINITY];
            assert_finite(&scores, |x| x.focal_cross_entropy_with(&own, &options));
        }
    }

    #[test]
    fn misuse_poisons() {
        let tape = tape();
        let (x, t) = (input(&tape, &[3, 1], &[0.0; 3]), input(&tape, &[3], &[0.0; 3]));
        assert_eq!(x.focal_bce(&t).error().unwrap().kind(), ErrorKind::Shape);
        assert_eq!(t.focal_cross_entropy(&labels(&[0; 3])).error().unwrap().kind(), ErrorKind::Shape);
        for gamma in [-1.0, f64::NAN, f64::INFINITY] {
            let binary = x.focal_bce_with(&x, &FocalBceOptions { gamma, ..Default::default() });
            let options = FocalCrossEntropyOptions { gamma, ..Default::default() };
            for loss in [binary, x.focal_cross_entropy_with(&labels(&[0; 3]), &options)] {
                let error = loss.error().unwrap();
                assert_eq!(error.kind(), ErrorKind::Argument);
                assert!(error.location().unwrap().file().ends_with("focal.rs"), "{error}");
            }
        }
        let error = x.focal_bce_with(&x, &FocalBceOptions { alpha: Some(1.5), ..Default::default() }).error().unwrap();
        assert!(error.to_string().contains("α is 1.5"), "{error}");
    }
}
