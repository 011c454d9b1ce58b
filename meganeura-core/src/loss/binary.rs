//! Binary cross-entropy.

use super::Reduction;
use crate::{Tensor, Var};

/// The options of [`Var::bce_with_logits_with`]. The defaults are those of [`Var::bce_with_logits`].
#[derive(Clone, Debug, Default)]
pub struct BceWithLogitsOptions {
    /// The weight of a positive target relative to a negative one, p: of a shape that broadcasts to that of the scores,
    /// `[C]` for scores `[N, C]`.
    pub positive_weight: Option<Tensor>,
    /// The reduction of the losses of single scores.
    pub reduction: Reduction,
}

impl Var {
    /// Binary cross-entropy of scores: `−mean (t·ln σ(x) + (1 − t)·ln(1 − σ(x)))`
    ///
    /// Precise for large scores of either sign, where taking the logarithm of a sigmoid is not.
    ///
    /// Shapes: scores and targets the same → a scalar. Targets are probabilities, from 0 to 1.
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
    #[doc(alias = "binary_cross_entropy_with_logits")]
    #[must_use]
    #[track_caller]
    pub fn bce_with_logits(&self, target: &Self) -> Self {
        self.bce_with_logits_with(target, &BceWithLogitsOptions::default())
    }

    /// [`bce_with_logits`](Self::bce_with_logits) with weights for positive targets, or with another reduction:
    /// `−(p·t·ln σ(x) + (1 − t)·ln(1 − σ(x)))`.
    ///
    /// The mean divides by the number of scores, not by the weights, as in PyTorch.
    ///
    /// Shapes: the same. Errors: also if the weights do not broadcast to the shape of the scores.
    #[must_use]
    #[track_caller]
    pub fn bce_with_logits_with(&self, target: &Self, options: &BceWithLogitsOptions) -> Self {
        const NAME: &str = "bce_with_logits";
        let fits = |weight: &Tensor| weight.shape().broadcast(&self.shape()) == Some(self.shape());
        if let Some(weight) = options.positive_weight.as_ref().filter(|weight| !fits(weight)) {
            let message = format!("the weights of positive targets are {}, for scores {}", weight.ty(), self.ty());
            return self.senseless(NAME, message);
        }
        if let Some(poisoned) = self.misfit(NAME, target) {
            return poisoned;
        }
        // −ln σ(x) = softplus(−x) and −ln(1 − σ(x)) = softplus(x): neither cancels where it is small.
        let positive = target * (-self).softplus();
        let positive = match &options.positive_weight {
            Some(weight) => self.tape().input(weight) * positive,
            None => positive,
        };
        options.reduction.of(&(positive + (self.constant(1.0) - target) * self.softplus()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::gradcheck;
    use crate::loss::tests::{assert_finite, assert_values, input, tape, tensor};
    use crate::{Device, ErrorKind, Param, Tape};

    #[test]
    fn values_are_pytorchs() {
        let tape = tape();
        let x = input(&tape, &[4], &[-2.0, 0.0, 0.5, 3.0]);
        let target = input(&tape, &[4], &[0.0, 1.0, 0.25, 1.0]);
        assert_values(&x.bce_with_logits(&target), &[0.429_434_881_839_191_65]);
        // Tiny losses of confident, correct predictions do not round to 0.
        let x = input(&tape, &[2], &[40.0, -40.0]);
        assert_values(&x.bce_with_logits(&input(&tape, &[2], &[1.0, 0.0])), &[4.248_354_255_291_589e-18]);
        // Huge scores do not overflow.
        let x = input(&tape, &[2], &[1e6, -1e6]);
        assert_values(&x.bce_with_logits(&input(&tape, &[2], &[0.0, 1.0])), &[1e6]);
    }

    #[test]
    fn positive_targets_may_weigh_more() {
        let tape = tape();
        let x = input(&tape, &[2, 2], &[0.0, 0.0, 0.0, 100.0]);
        let target = input(&tape, &[2, 2], &[1.0, 1.0, 0.0, 0.5]);
        let options = |reduction| BceWithLogitsOptions { positive_weight: Some(tensor(&[2], &[3.0, 0.5])), reduction };
        let ln2 = std::f64::consts::LN_2;
        assert_values(&x.bce_with_logits_with(&target, &options(Reduction::None)), &[3.0 * ln2, 0.5 * ln2, ln2, 50.0]);
        assert_values(&x.bce_with_logits_with(&target, &options(Reduction::Sum)), &[4.5 * ln2 + 50.0]);
        assert_values(&x.bce_with_logits_with(&target, &options(Reduction::Mean)), &[(4.5 * ln2 + 50.0) / 4.0]);
    }

    #[test]
    fn gradients_are_right() {
        let x = [tensor(&[2, 3], &[0.1, -1.3, 2.5, 0.7, -9.0, 4.0]), tensor(&[2, 3], &[1.0, 0.2, 0.3, 0.5, 0.0, 0.9])];
        for reduction in [Reduction::Mean, Reduction::Sum, Reduction::None] {
            let options = BceWithLogitsOptions { positive_weight: Some(tensor(&[3], &[3.0, 0.5, 1.0])), reduction };
            let losses = |_: &(), x: &[Var]| vec![x[0].bce_with_logits_with(&x[1], &options)];
            gradcheck(&(), &x, losses).unwrap().ok().unwrap();
        }
    }

    #[test]
    fn the_gradient_at_a_score_of_0_is_exact() {
        let device = Device::cpu();
        let tape = Tape::new(&device);
        let score = Param::new(Tensor::zeros(&device, [1]).unwrap());
        let loss = tape.param(&score).bce_with_logits(&input(&tape, &[1], &[0.25]));
        let grads = tape.backward(&loss).unwrap();
        assert_eq!(grads.get(&score).unwrap().to_vec().unwrap(), [0.25]);
    }

    #[test]
    fn huge_scores_stay_finite() {
        let weight = Tensor::full(&Device::cpu(), [2], 3.0).unwrap();
        let options = BceWithLogitsOptions { positive_weight: Some(weight), ..Default::default() };
        for target in [0.0, 1.0] {
            assert_finite(&[1e4, -1e4], |x| x.bce_with_logits_with(&(x * 0.0 + target), &options));
        }
    }

    #[test]
    fn misuse_poisons() {
        let tape = tape();
        let x = input(&tape, &[3, 1], &[0.0; 3]);
        let error = x.bce_with_logits(&input(&tape, &[3], &[0.0; 3])).error().unwrap();
        assert_eq!(error.kind(), ErrorKind::Shape);
        let options = BceWithLogitsOptions { positive_weight: Some(tensor(&[2], &[1.0; 2])), ..Default::default() };
        let error = x.bce_with_logits_with(&x, &options).error().unwrap();
        assert!(error.to_string().contains("f64[2], for scores f64[3, 1]"), "{error}");
    }
}
