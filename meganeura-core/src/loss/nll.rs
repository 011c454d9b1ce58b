//! Negative log-likelihood of probabilities that the model computes itself.

use super::{Labels, Reduction};
use crate::{Tensor, Var};

const NAME: &str = "nll";

/// The options of [`Var::nll_with`]. The defaults are those of [`Var::nll`].
#[derive(Clone, Debug, Default)]
pub struct NllOptions {
    /// The weight of each class, `[C]`, on the device of the log-probabilities.
    pub class_weights: Option<Tensor>,
    /// The ignored label, which costs nothing. Any number, below `C` or not.
    pub ignored: Option<u32>,
    /// The reduction of the losses of single labels.
    pub reduction: Reduction,
}

impl Var {
    /// Negative log-likelihood of log-probabilities: `−mean x[n, label[n]]`
    ///
    /// For a model that ends in [`log_softmax`](Var::log_softmax), or computes log-probabilities in another way. For
    /// scores, [`cross_entropy`](Var::cross_entropy) computes the same in one pass.
    ///
    /// Shapes: log-probabilities `[N, C, …]`, labels `[N, …]`, each below `C`, a tensor or a value on the tape → a
    /// scalar. A label out of range is an error; one that only the device knows makes the loss NaN.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let x = Tape::new(&device).input(&Tensor::from_slice(&device, [2, 2], &[-0.5, -1.0, -2.0, -0.25])?);
    /// let labels = Tensor::indices(&device, [2], &[0, 1])?;
    /// assert_eq!(x.nll(&labels).item()?, 0.375);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    #[doc(alias = "nll_loss")]
    #[must_use]
    #[track_caller]
    pub fn nll(&self, labels: &(impl Labels + ?Sized)) -> Self {
        self.nll_with(labels, &NllOptions::default())
    }

    /// [`nll`](Self::nll) with class weights and an ignored label:
    ///
    /// ```text
    /// ℓ[n] = −w[label[n]]·x[n, label[n]]
    /// mean = Σ_n ℓ[n] / Σ_n w[label[n]]       over the n that are not ignored
    /// ```
    ///
    /// The mean of ignored labels alone is NaN, as in PyTorch.
    ///
    /// Shapes: the same; unreduced `[N, …]`. Errors: also if the class weights are not `[C]`.
    #[must_use]
    #[track_caller]
    pub fn nll_with(&self, labels: &(impl Labels + ?Sized), options: &NllOptions) -> Self {
        let NllOptions { class_weights, ignored, reduction } = options;
        let labels = &labels.on(self.tape());
        if let Some(poisoned) = self.mislabelled(NAME, labels, *ignored) {
            return poisoned;
        }
        if let Some(poisoned) = self.misweighted(NAME, class_weights.as_ref()) {
            return poisoned;
        }
        let weights = self.row_weights(labels, class_weights.as_ref(), *ignored);
        // Selected, not multiplied: elements that are not the label's may be anything, and 0·∞ is not 0.
        let own = self.is_label(labels, *ignored).where_cond(&-self, &self.constant(0.0)).sum_over(&[1]);
        reduction.of_weighted(&(own * &weights), &weights)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::gradcheck;
    use crate::loss::tests::{assert_values, device, input, tape, tensor};
    use crate::{Device, ErrorKind, Tape};

    fn labels(shape: &[usize], labels: &[u32]) -> Tensor {
        Tensor::indices(&device(), crate::Shape::new(shape), labels).unwrap()
    }

    const X: [f64; 12] = [-1.0, -2.0, -3.0, -0.5, -1.5, -0.25, 0.0, -4.0, -6.0, -0.125, -5.0, -7.0];

    #[test]
    fn values_are_those_of_the_labels() {
        let tape = tape();
        let x = input(&tape, &[4, 3], &X);
        let own = labels(&[4], &[0, 2, 1, 2]);
        assert_values(&x.nll(&own), &[(1.0 + 0.25 + 4.0 + 7.0) / 4.0]);
        let with = |reduction, ignored| {
            let class_weights = Some(tensor(&[3], &[0.5, 2.0, 3.0]));
            x.nll_with(&own, &NllOptions { class_weights, ignored, reduction })
        };
        assert_values(&with(Reduction::None, None), &[0.5, 0.75, 8.0, 21.0]);
        assert_values(&with(Reduction::Sum, Some(2)), &[8.5]);
        assert_values(&with(Reduction::Mean, Some(2)), &[8.5 / 2.5]);
        // With pixels, the class is the second axis.
        let x = input(&tape, &[2, 3, 2], &X);
        let options = NllOptions { reduction: Reduction::None, ..NllOptions::default() };
        assert_values(&x.nll_with(&labels(&[2, 2], &[0, 1, 2, 0]), &options), &[1.0, 0.5, 5.0, 4.0]);
    }

    #[test]
    fn gradients_are_right() {
        let x = [tensor(&[2, 3, 2], &X)];
        let own = labels(&[2, 2], &[0, 9, 2, 1]);
        for reduction in [Reduction::Mean, Reduction::Sum, Reduction::None] {
            let class_weights = Some(tensor(&[3], &[0.5, 2.0, 3.0]));
            let options = NllOptions { class_weights, ignored: Some(9), reduction };
            gradcheck(&(), &x, |_: &(), x: &[Var]| vec![x[0].nll_with(&own, &options)]).unwrap().ok().unwrap();
        }
    }

    #[test]
    fn unread_values_may_be_anything() {
        let device = Device::cpu();
        let tape = Tape::new(&device);
        let x = [-1.0, f32::NEG_INFINITY, f32::NAN, f32::INFINITY];
        let x = tape.input(&Tensor::from_slice(&device, [2, 2], &x).unwrap());
        let own = Tensor::indices(&device, [2], &[0, 7]).unwrap();
        let loss = x.nll_with(&own, &NllOptions { ignored: Some(7), ..NllOptions::default() });
        let dx = tape.backward(&loss).unwrap().of(&x).unwrap();
        assert_eq!(loss.item().unwrap(), 1.0);
        assert_eq!(dx.to_vec().unwrap(), [-1.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn the_mean_of_nothing_is_nan() {
        let options = NllOptions { ignored: Some(1), ..NllOptions::default() };
        let loss = input(&tape(), &[2, 3], &X[..6]).nll_with(&labels(&[2], &[1, 1]), &options);
        assert!(loss.item().unwrap().is_nan());
    }

    #[test]
    fn misuse_poisons() {
        let tape = tape();
        let x = input(&tape, &[3, 2], &[0.0; 6]);
        for (loss, kind, message) in [
            (
                x.nll(&labels(&[3], &[0, 1, 2])),
                ErrorKind::Argument,
                "nll: label 2 is out of range, the scores have 2 classes",
            ),
            (
                x.nll(&labels(&[2], &[0, 1])),
                ErrorKind::Shape,
                "nll: the labels must be integers [3] for scores f64[3, 2]",
            ),
            (x.nll(&x), ErrorKind::Shape, "they are f64[3, 2]"),
            (
                input(&tape, &[3], &[0.0; 3]).nll(&labels(&[3], &[0; 3])),
                ErrorKind::Shape,
                "[N, classes, …], they are f64[3]",
            ),
        ] {
            let error = loss.error().unwrap();
            assert_eq!(error.kind(), kind);
            assert!(error.to_string().contains(message), "{error}");
            assert!(error.location().unwrap().file().ends_with("nll.rs"), "{error}");
        }
        let options = NllOptions { class_weights: Some(tensor(&[3], &[1.0; 3])), ..NllOptions::default() };
        let error = x.nll_with(&labels(&[3], &[0; 3]), &options).error().unwrap();
        assert!(error.to_string().contains("the class weights must be [2]"), "{error}");
    }
}
