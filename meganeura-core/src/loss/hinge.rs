//! Losses with a margin: predictions that are right by more than the margin cost nothing.

use super::{Labels, Reduction};
use crate::{Tensor, Var};

/// The options of [`Var::hinge_embedding_with`]. The defaults are those of [`Var::hinge_embedding`].
#[derive(Clone, Copy, Debug)]
pub struct HingeEmbeddingOptions {
    /// The distance from which unlike pairs cost nothing, m; 1 by default.
    pub margin: f64,
    /// The reduction of the losses of single distances.
    pub reduction: Reduction,
}

impl Default for HingeEmbeddingOptions {
    fn default() -> Self {
        Self { margin: 1.0, reduction: Reduction::Mean }
    }
}

/// The options of [`Var::multi_margin_with`]. The defaults are those of [`Var::multi_margin`].
#[derive(Clone, Debug)]
pub struct MultiMarginOptions {
    /// The margin of the label's score over all others, m; 1 by default.
    pub margin: f64,
    /// `true` to square the shortfall from the margin; `false` by default.
    pub squared: bool,
    /// The weight of each class, `[C]`, on the device of the scores.
    pub class_weights: Option<Tensor>,
    /// The reduction of the losses of single labels.
    pub reduction: Reduction,
}

impl Default for MultiMarginOptions {
    fn default() -> Self {
        Self { margin: 1.0, squared: false, class_weights: None, reduction: Reduction::Mean }
    }
}

impl Var {
    /// Hinge loss of distances: the mean of `x` for pairs that are alike, and of `max(0, m − x)` with m = 1 for others
    ///
    /// Shapes: distances and targets the same → a scalar. Targets are 1 for pairs that are alike, else −1.
    /// [Hadsell et al., 2006](https://doi.org/10.1109/CVPR.2006.100), without their squares.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let tape = Tape::new(&device);
    /// let distance = tape.input(&Tensor::from_slice(&device, [3], &[0.5, 0.5, 7.0])?);
    /// let alike = tape.input(&Tensor::from_slice(&device, [3], &[1.0, -1.0, -1.0])?);
    /// assert_eq!(distance.hinge_embedding(&alike).item()?, 1.0 / 3.0);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn hinge_embedding(&self, target: &Self) -> Self {
        self.hinge_embedding_with(target, &HingeEmbeddingOptions::default())
    }

    /// [`hinge_embedding`](Self::hinge_embedding) with another margin, or with another reduction. Another margin makes
    /// no new plan.
    ///
    /// Shapes: the same. Errors: also if the margin is NaN or infinite.
    #[must_use]
    #[track_caller]
    pub fn hinge_embedding_with(&self, target: &Self, options: &HingeEmbeddingOptions) -> Self {
        const NAME: &str = "hinge_embedding";
        let HingeEmbeddingOptions { margin, reduction } = *options;
        if let Some(poisoned) = self.unbounded(NAME, margin).or(self.misfit(NAME, target)) {
            return poisoned;
        }
        let unlike = (self.tape().scalar(margin) - self).relu();
        reduction.of(&target.gt(self.constant(0.0)).where_cond(self, &unlike))
    }

    /// Multi-class hinge loss: the mean over `n` of `1/C · Σ_{c ≠ label} max(0, m − x[n, label] + x[n, c])` with m = 1.
    ///
    /// The loss of [Crammer and Singer, 2001](https://jmlr.org/papers/v2/crammer01a.html), with the sum in place of
    /// their maximum.
    ///
    /// Shapes: scores `[N, C, …]`, labels `[N, …]`, each below `C`, a tensor or a value on the tape → a scalar. A label
    /// out of range is an error; one that only the device knows makes the loss NaN.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let scores = Tape::new(&device).input(&Tensor::from_slice(&device, [1, 4], &[0.25, 2.0, 1.5, -3.0])?);
    /// let labels = Tensor::indices(&device, [1], &[1])?;
    /// assert_eq!(scores.multi_margin(&labels).item()?, 0.5 / 4.0);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn multi_margin(&self, labels: &(impl Labels + ?Sized)) -> Self {
        self.multi_margin_with(labels, &MultiMarginOptions::default())
    }

    /// [`multi_margin`](Self::multi_margin) with another margin, squares, class weights, or another reduction.
    ///
    /// Each term has the weight of its label's class. The mean divides by the number of labels, not by weights, as in
    /// PyTorch.
    ///
    /// Shapes: the same; unreduced `[N, …]`. Errors: also if the margin is NaN or infinite, or the class weights are
    /// not `[C]`.
    #[must_use]
    #[track_caller]
    pub fn multi_margin_with(&self, labels: &(impl Labels + ?Sized), options: &MultiMarginOptions) -> Self {
        const NAME: &str = "multi_margin";
        let MultiMarginOptions { margin, squared, class_weights, reduction } = options;
        let labels = &labels.on(self.tape());
        if let Some(poisoned) = self.unbounded(NAME, *margin).or(self.mislabelled(NAME, labels, None)) {
            return poisoned;
        }
        if let Some(poisoned) = self.misweighted(NAME, class_weights.as_ref()) {
            return poisoned;
        }
        let (is_label, zero) = (self.is_label(labels, None), self.constant(0.0));
        let own = is_label.where_cond(self, &zero).sum_keep(&[1]);
        let missing = (self - own + *margin).relu();
        let missing = if *squared { missing.square() } else { missing };
        // Weights of 1 as well: labels out of range have NaN.
        let weights = self.row_weights(labels, class_weights.as_ref(), None);
        reduction.of(&(is_label.where_cond(&zero, &missing).mean_over(&[1]) * weights))
    }

    /// The value, poisoned, if the margin is not finite.
    #[track_caller]
    pub(super) fn unbounded(&self, name: &'static str, margin: f64) -> Option<Self> {
        if margin.is_finite() {
            return None;
        }
        Some(self.senseless(name, format!("the margin is {margin}; it must be finite")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::gradcheck;
    use crate::loss::tests::{assert_values, device, input, tape, tensor};
    use crate::{ErrorKind, Shape};

    fn labels(shape: &[usize], labels: &[u32]) -> Tensor {
        Tensor::indices(&device(), Shape::new(shape), labels).unwrap()
    }

    #[test]
    fn unlike_pairs_cost_nothing_beyond_the_margin() {
        let tape = tape();
        let x = input(&tape, &[4], &[0.5, 0.5, 3.0, 2.0]);
        let target = input(&tape, &[4], &[1.0, -1.0, 1.0, -1.0]);
        let loss = |margin, reduction| x.hinge_embedding_with(&target, &HingeEmbeddingOptions { margin, reduction });
        assert_values(&loss(1.0, Reduction::None), &[0.5, 0.5, 3.0, 0.0]);
        assert_values(&loss(2.5, Reduction::Sum), &[0.5 + 2.0 + 3.0 + 0.5]);
    }

    #[test]
    fn the_label_does_not_compete_with_itself() {
        let tape = tape();
        let x = input(&tape, &[2, 3], &[1.0, 2.0, 3.0, 0.5, 4.0, 3.5]);
        let loss = |squared, reduction| {
            let class_weights = Some(tensor(&[3], &[1.0, 2.0, 0.5]));
            let options = MultiMarginOptions { margin: 0.75, squared, class_weights, reduction };
            x.multi_margin_with(&labels(&[2], &[0, 1]), &options)
        };
        assert_values(&loss(false, Reduction::None), &[4.5 / 3.0, 2.0 * 0.25 / 3.0]);
        assert_values(&loss(true, Reduction::Sum), &[(1.75 * 1.75 + 2.75 * 2.75 + 2.0 * 0.0625) / 3.0]);
        assert_values(&x.multi_margin(&labels(&[2], &[0, 1])), &[(5.0 / 3.0 + 0.5 / 3.0) / 2.0]);
    }

    #[test]
    fn gradients_are_right() {
        let x =
            [tensor(&[2, 3], &[0.1, -1.3, 2.5, 0.7, 0.2, 4.0]), tensor(&[2, 3], &[1.0, -1.0, -1.0, 1.0, -1.0, 1.0])];
        for reduction in [Reduction::Mean, Reduction::Sum, Reduction::None] {
            let losses = |_: &(), x: &[Var]| {
                let (class_weights, squared) = (Some(tensor(&[3], &[3.0, 0.5, 1.0])), true);
                let squared = MultiMarginOptions { margin: 2.0, squared, class_weights, reduction };
                vec![
                    x[0].hinge_embedding_with(&x[1].detach(), &HingeEmbeddingOptions { margin: 1.5, reduction }),
                    x[0].multi_margin_with(&labels(&[2], &[2, 1]), &squared),
                    x[0].multi_margin(&labels(&[2], &[0, 1])),
                ]
            };
            gradcheck(&(), &x[..1], |m, own| losses(m, &[own[0].clone(), own[0].tape().input(&x[1])]))
                .unwrap()
                .ok()
                .unwrap();
        }
    }

    #[test]
    fn misuse_poisons() {
        let tape = tape();
        let (x, t) = (input(&tape, &[3, 1], &[0.0; 3]), input(&tape, &[3], &[0.0; 3]));
        assert_eq!(x.hinge_embedding(&t).error().unwrap().kind(), ErrorKind::Shape);
        let own = labels(&[3], &[0; 3]);
        assert_eq!(t.multi_margin(&own).error().unwrap().kind(), ErrorKind::Shape);
        assert_eq!(x.multi_margin(&labels(&[3], &[1; 3])).error().unwrap().kind(), ErrorKind::Argument);
        for margin in [f64::NAN, f64::INFINITY] {
            let hinge = x.hinge_embedding_with(&x, &HingeEmbeddingOptions { margin, ..Default::default() });
            let multi = x.multi_margin_with(&own, &MultiMarginOptions { margin, ..Default::default() });
            for loss in [hinge, multi] {
                let error = loss.error().unwrap();
                assert!(error.to_string().contains("the margin is"), "{error}");
                assert!(error.location().unwrap().file().ends_with("hinge.rs"), "{error}");
            }
        }
        let options = MultiMarginOptions { class_weights: Some(tensor(&[2], &[1.0; 2])), ..Default::default() };
        assert!(x.multi_margin_with(&own, &options).error().is_some());
    }
}
