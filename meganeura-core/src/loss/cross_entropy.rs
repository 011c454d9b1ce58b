//! Cross-entropy of classifications.

use super::{Labels, Reduction};
use crate::{Tensor, Var};

const NAME: &str = "cross_entropy";

/// The options of [`Var::cross_entropy_with`]. The defaults are those of [`Var::cross_entropy`].
#[derive(Clone, Debug, Default)]
pub struct CrossEntropyOptions {
    /// The share of the probability that is spread evenly over all classes instead of being on the label, between 0 and
    /// 1. [Szegedy et al., 2015](https://arxiv.org/abs/1512.00567).
    pub label_smoothing: f64,
    /// The weight of each class, `[C]`, on the device of the scores: larger for rare classes, for example.
    pub class_weights: Option<Tensor>,
    /// The ignored label, which costs nothing: for pixels at an edge, for padding. Any number, below `C` or not.
    pub ignored: Option<u32>,
    /// The reduction of the losses of single labels.
    pub reduction: Reduction,
}

impl Var {
    /// Cross-entropy of a classification: `−mean ln softmax(x)[n, label[n]]`
    ///
    /// Shapes: scores `[N, C, …]`, not yet normalised; labels `[N, …]`, each below `C`, a tensor or a value on the tape
    /// → a scalar. A label out of range is an error; one that only the device knows makes the loss NaN.
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
    pub fn cross_entropy(&self, labels: &(impl Labels + ?Sized)) -> Self {
        self.cross_entropy_with(labels, &CrossEntropyOptions::default())
    }

    /// [`cross_entropy`](Self::cross_entropy) with smoothed labels, class weights and an ignored label:
    ///
    /// ```text
    /// ℓ[n] = −Σ_c w[c]·q[n, c]·ln softmax(x)[n, c]     with  q[n, c] = (1 − s)·[c = label[n]] + s/C
    /// mean = Σ_n ℓ[n] / Σ_n w[label[n]]                over the n that are not ignored
    /// ```
    ///
    /// The mean of ignored labels alone is NaN, as in PyTorch.
    ///
    /// Shapes: the same; unreduced `[N, …]`.
    ///
    /// ```
    /// use meganeura::loss::CrossEntropyOptions;
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let scores = Tape::new(&device).input(&Tensor::zeros(&device, [3, 2])?);
    /// let labels = Tensor::indices(&device, [3], &[0, 1, 255])?;
    /// let options = CrossEntropyOptions { ignored: Some(255), ..Default::default() };
    /// assert_eq!(scores.cross_entropy_with(&labels, &options).item()?, 2f32.ln());
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn cross_entropy_with(&self, labels: &(impl Labels + ?Sized), options: &CrossEntropyOptions) -> Self {
        let CrossEntropyOptions { label_smoothing: smoothing, class_weights, ignored, reduction } = options;
        if !(0.0..=1.0).contains(smoothing) {
            return self.senseless(NAME, format!("the label smoothing is {smoothing}, not between 0 and 1"));
        }
        let labels = &labels.on(self.tape());
        let Some(weights) = class_weights else {
            let losses = self.cross_entropy_rows(labels, *smoothing, *ignored);
            return match (reduction, ignored) {
                (Reduction::Mean, Some(_)) if losses.error().is_none() => {
                    reduction.of_weighted(&losses, &self.present(labels, *ignored))
                }
                _ => reduction.of(&losses),
            };
        };
        if let Some(poisoned) = self.misweighted(NAME, Some(weights)) {
            return poisoned;
        }
        // The share on the label itself. The evenly spread share is weighted by each class, not by the label's.
        let rows = self.cross_entropy_rows(labels, 0.0, *ignored);
        if rows.error().is_some() {
            return rows;
        }
        let weights = self.tape().input(weights);
        let row_weights = self.tape().label_weights(&weights, labels, *ignored);
        let mut losses = rows * &row_weights;
        if *smoothing > 0.0 {
            #[expect(clippy::cast_precision_loss, reason = "there are fewer than 2^53 classes")]
            let share = smoothing / self.classes() as f64;
            let even = self.weighted_surprise(&weights, labels, *ignored);
            losses = losses.scale(1.0 - smoothing) + even.scale(share);
        }
        reduction.of_weighted(&losses, &row_weights)
    }

    /// `−Σ_c w[c]·ln softmax(x)[n, c]`; 0 where the label is ignored.
    #[track_caller]
    fn weighted_surprise(&self, weights: &Self, labels: &Self, ignored: Option<u32>) -> Self {
        let weights = weights.reshape(self.kept_along(|axis| axis == 1));
        if ignored.is_none() {
            return -(weights * self.log_softmax(1)).sum_over(&[1]);
        }
        let present = self.present(labels, ignored);
        // Selected before anything is computed: scores of ignored labels may be anything, and 0·NaN is not 0.
        let scores = present.reshape(self.kept_along(|axis| axis != 1)).where_cond(self, &self.constant(0.0));
        -(weights * scores.log_softmax(1)).sum_over(&[1]) * present
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::gradcheck;
    use crate::loss::tests::{assert_finite, assert_values, device, input, tape, tensor};
    use crate::{Device, ErrorKind, Tape};

    fn labels(labels: &[u32]) -> Tensor {
        Tensor::indices(&device(), [labels.len()], labels).unwrap()
    }

    /// The loss of each row and the mean over all rows, directly from the formula.
    fn naive(x: &[f64], classes: usize, labels: &[u32], w: &[f64], s: f64, ignored: Option<u32>) -> (Vec<f64>, f64) {
        let (mut losses, mut total) = (Vec::new(), 0.0);
        for (x, &label) in x.chunks(classes).zip(labels) {
            let lse = x.iter().map(|x| x.exp()).sum::<f64>().ln();
            let q = |c: usize| s / classes as f64 + if c == label as usize { 1.0 - s } else { 0.0 };
            let present = Some(label) != ignored;
            let loss: f64 = x.iter().enumerate().map(|(c, x)| w[c] * q(c) * (lse - x)).sum();
            losses.push(if present { loss } else { 0.0 });
            total += if present { w[label as usize] } else { 0.0 };
        }
        let mean = losses.iter().sum::<f64>() / total;
        (losses, mean)
    }

    const X: [f64; 12] = [1.0, 2.0, 3.0, 0.5, -1.0, 1.5, 0.25, 0.0, -2.0, -1.0, 4.0, 0.125];

    #[test]
    fn values_are_pytorchs() {
        let tape = tape();
        let x = input(&tape, &[2, 3], &[1.0, 2.0, 3.0, 0.5, -1.0, 1000.0]);
        let own = labels(&[0, 2]);
        assert_values(&x.cross_entropy(&own), &[1.203_802_982_222_190_3]);
        let options = CrossEntropyOptions { label_smoothing: 0.1, ..Default::default() };
        assert_values(&x.cross_entropy_with(&own, &options), &[34.495_469_648_888_86]);
    }

    #[test]
    fn weights_ignored_labels_and_smoothing_go_together() {
        let tape = tape();
        let x = input(&tape, &[4, 3], &X);
        for (own, ignored) in [([0, 2, 1, 1], None), ([0, 255, 1, 2], Some(255)), ([0, 2, 1, 2], Some(2))] {
            for weights in [None, Some([0.5, 2.0, 3.0])] {
                for label_smoothing in [0.0, 0.3, 1.0] {
                    let all = weights.unwrap_or([1.0; 3]);
                    let (rows, mean) = naive(&X, 3, &own, &all, label_smoothing, ignored);
                    let class_weights = weights.map(|weights| tensor(&[3], &weights));
                    let options = |reduction| CrossEntropyOptions {
                        label_smoothing,
                        class_weights: class_weights.clone(),
                        ignored,
                        reduction,
                    };
                    let loss = |reduction| x.cross_entropy_with(&labels(&own), &options(reduction));
                    let close = |loss: Var, expected: &[f64]| {
                        let found = loss.to_tensor().unwrap().to_f64_vec().unwrap();
                        let close = found.iter().zip(expected).all(|(a, b)| (a - b).abs() <= 1e-13 * b.abs());
                        assert!(close && found.len() == expected.len(), "{found:?} is not {expected:?}");
                    };
                    close(loss(Reduction::None), &rows);
                    close(loss(Reduction::Sum), &[rows.iter().sum()]);
                    close(loss(Reduction::Mean), &[mean]);
                }
            }
        }
    }

    #[test]
    fn gradients_are_right_also_of_pixels() {
        let x = [tensor(&[2, 3, 2], &X)];
        let own = Tensor::indices(&device(), [2, 2], &[0, 9, 2, 1]).unwrap();
        for reduction in [Reduction::Mean, Reduction::Sum, Reduction::None] {
            for class_weights in [None, Some(tensor(&[3], &[0.5, 2.0, 3.0]))] {
                let options = CrossEntropyOptions { label_smoothing: 0.2, class_weights, ignored: Some(9), reduction };
                let losses = |_: &(), x: &[Var]| vec![x[0].cross_entropy_with(&own, &options)];
                gradcheck(&(), &x, losses).unwrap().ok().unwrap();
            }
        }
    }

    #[test]
    fn huge_scores_stay_finite_and_ignored_rows_may_hold_anything() {
        let device = Device::cpu();
        let weights = Tensor::from_slice(&device, [2], &[1.0, 2.0]).unwrap();
        let own = Tensor::indices(&device, [3], &[0, 1, 7]).unwrap();
        for class_weights in [None, Some(weights)] {
            let options =
                CrossEntropyOptions { label_smoothing: 0.1, class_weights, ignored: Some(7), ..Default::default() };
            assert_finite(&[1e4, -1e4, 1e4, -1e4, 0.0, 1e4], |x| x.cross_entropy_with(&own, &options));
            assert_finite(&[0.0, 1.0, 1.0, 2.0, f32::NAN, f32::INFINITY], |x| x.cross_entropy_with(&own, &options));
        }
    }

    #[test]
    fn the_mean_of_nothing_is_nan() {
        let tape = tape();
        let options = CrossEntropyOptions { ignored: Some(1), ..Default::default() };
        let loss = input(&tape, &[2, 3], &X[..6]).cross_entropy_with(&labels(&[1, 1]), &options);
        assert!(loss.item().unwrap().is_nan());
    }

    #[test]
    fn misuse_poisons() {
        let tape = Tape::new(&device());
        let x = input(&tape, &[3, 1], &[0.0; 3]);
        assert!(x.cross_entropy(&labels(&[0, 0, 1])).error().is_some(), "a label past the classes");
        assert!(x.cross_entropy(&labels(&[0, 0])).error().is_some(), "fewer labels than rows");
        // An invalid label is found even after ignored ones.
        let weights = Some(tensor(&[1], &[1.0]));
        for class_weights in [None, weights] {
            let options = CrossEntropyOptions { ignored: Some(255), class_weights, ..Default::default() };
            let error = x.cross_entropy_with(&labels(&[0, 255, 3]), &options).error().unwrap();
            assert!(error.to_string().contains("label 3 is out of range"), "{error}");
        }
        let options = CrossEntropyOptions { class_weights: Some(tensor(&[2], &[1.0; 2])), ..Default::default() };
        let error = x.cross_entropy_with(&labels(&[0; 3]), &options).error().unwrap();
        assert_eq!(error.kind(), ErrorKind::Argument);
        for label_smoothing in [-0.1, 1.1, f64::NAN] {
            let options = CrossEntropyOptions { label_smoothing, ..Default::default() };
            let error = x.cross_entropy_with(&labels(&[0; 3]), &options).error().unwrap();
            assert_eq!(error.kind(), ErrorKind::Argument);
        }
    }
}
