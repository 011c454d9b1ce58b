//! Losses of metric learning: distances between vectors.

use super::Reduction;
use crate::dtype::is_positive;
use crate::{ErrorKind, Shape, Var};

/// The options of [`Var::cosine_embedding_with`]. The defaults are those of [`Var::cosine_embedding`].
#[derive(Clone, Copy, Debug, Default)]
pub struct CosineEmbeddingOptions {
    /// The cosine up to which unlike pairs cost nothing, m, between −1 and 1; 0 by default.
    pub margin: f64,
    /// The reduction of the losses of single pairs.
    pub reduction: Reduction,
}

/// The options of [`Var::triplet_margin_with`]. The defaults are those of [`Var::triplet_margin`].
#[derive(Clone, Copy, Debug)]
pub struct TripletMarginOptions {
    /// The margin by which the negative should be farther than the positive, m; 1 by default.
    pub margin: f64,
    /// The order of the norm for distances, p: at least 1; 2 by default.
    pub p: f64,
    /// The number added to each difference, so that the norm of equal vectors has a derivative; 1e-6 by default.
    pub eps: f64,
    /// `true` to use the distance from the positive to the negative where it is the shorter one; `false` by default.
    /// [Balntas et al., 2016](https://doi.org/10.5244/C.30.119).
    pub swap: bool,
    /// The reduction of the losses of single triplets.
    pub reduction: Reduction,
}

impl Default for TripletMarginOptions {
    fn default() -> Self {
        Self { margin: 1.0, p: 2.0, eps: 1e-6, swap: false, reduction: Reduction::Mean }
    }
}

impl Var {
    /// Cosine embedding loss: the mean of `1 − cos(x, y)` for pairs of vectors that are alike, and of
    /// `max(0, cos(x, y) − m)` with m = 0 for others
    ///
    /// 1e-12 is added to the squares of both norms, as in PyTorch.
    ///
    /// Shapes: both `[…, D]`, targets `[…]` → a scalar. Targets are 1 for pairs that are alike, else −1.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let tape = Tape::new(&device);
    /// let x = tape.input(&Tensor::from_slice(&device, [2, 2], &[3.0, 0.0, 1.0, 1.0])?);
    /// let y = tape.input(&Tensor::from_slice(&device, [2, 2], &[0.0, 2.0, -1.0, 1.0])?);
    /// let alike = tape.input(&Tensor::from_slice(&device, [2], &[1.0, -1.0])?);
    /// assert_eq!(x.cosine_embedding(&y, &alike).item()?, 0.5);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn cosine_embedding(&self, other: &Self, target: &Self) -> Self {
        self.cosine_embedding_with(other, target, &CosineEmbeddingOptions::default())
    }

    /// [`cosine_embedding`](Self::cosine_embedding) with another margin, or with another reduction. Another margin
    /// makes no new plan.
    ///
    /// Shapes: the same; unreduced `[…]`. Errors: also if the margin is not between −1 and 1.
    #[must_use]
    #[track_caller]
    pub fn cosine_embedding_with(&self, other: &Self, target: &Self, options: &CosineEmbeddingOptions) -> Self {
        const NAME: &str = "cosine_embedding";
        const EPS: f64 = 1e-12;
        let CosineEmbeddingOptions { margin, reduction } = *options;
        if !(-1.0..=1.0).contains(&margin) {
            return self.senseless(NAME, format!("the margin is {margin}, not between -1 and 1"));
        }
        if let Some(poisoned) = self.misfit(NAME, other) {
            return poisoned;
        }
        let axis = match *self.shape().dims() {
            [ref rows @ .., _] if target.shape() == Shape::new(rows) => rows.len(),
            _ => {
                let message = format!(
                    "the vectors must be […, D] and the targets […], they are {} and {}",
                    self.ty(),
                    target.ty()
                );
                return self.refuse(NAME, ErrorKind::Shape, message);
            }
        };
        let eps = self.constant(EPS);
        let own = self.square().sum_over(&[axis]) + &eps;
        let others = other.square().sum_over(&[axis]) + &eps;
        // Two roots: the product of the squares would overflow first.
        let cosine = (self * other).sum_over(&[axis]) * own.rsqrt() * others.rsqrt();
        let unlike = (&cosine - margin).relu();
        reduction.of(&target.gt(self.constant(0.0)).where_cond(&(self.constant(1.0) - cosine), &unlike))
    }

    /// Triplet loss with this value as the anchors: the mean of `max(0, ‖a − p‖ − ‖a − n‖ + m)` with m = 1.
    /// [Balntas et al., 2016](https://doi.org/10.5244/C.30.119),
    /// [Schroff et al., 2015](https://arxiv.org/abs/1503.03832).
    ///
    /// Shapes: anchors, positives and negatives `[…, D]` → a scalar.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let tape = Tape::new(&device);
    /// let at = |x: f32, y: f32| Tensor::from_slice(&device, [1, 2], &[x, y]).map(|tensor| tape.input(&tensor));
    /// let loss = at(0.0, 0.0)?.triplet_margin(&at(3.0, 4.0)?, &at(0.0, 4.0)?);
    /// assert!((loss.item()? - 2.0).abs() < 1e-5);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn triplet_margin(&self, positive: &Self, negative: &Self) -> Self {
        self.triplet_margin_with(positive, negative, &TripletMarginOptions::default())
    }

    /// [`triplet_margin`](Self::triplet_margin) in another norm, with another margin, with swapped negatives, or with
    /// another reduction. Distances are `(Σ |x − y + ε|ᵖ)^(1/p)`, as in PyTorch. Another margin makes no new plan.
    ///
    /// Shapes: the same; unreduced `[…]`. Errors: also if the margin is NaN or infinite, p below 1 or infinite, or ε
    /// negative.
    #[must_use]
    #[track_caller]
    pub fn triplet_margin_with(&self, positive: &Self, negative: &Self, options: &TripletMarginOptions) -> Self {
        const NAME: &str = "triplet_margin";
        let TripletMarginOptions { margin, p, eps, swap, reduction } = *options;
        if let Some(poisoned) = self.unbounded(NAME, margin) {
            return poisoned;
        }
        if !(1.0..f64::INFINITY).contains(&p) {
            return self.senseless(NAME, format!("p is {p}; the norm needs at least 1, and a finite number"));
        }
        if eps != 0.0 && !is_positive(eps) {
            return self.senseless(NAME, format!("ε is {eps:?}; it must be 0, or at least 1.2e-38"));
        }
        if let Some(poisoned) = self.misfit(NAME, positive).or(self.misfit(NAME, negative)) {
            return poisoned;
        }
        if self.shape().rank() == 0 {
            return self.refuse(NAME, ErrorKind::Shape, "the vectors must be […, D], they are scalars");
        }
        let near = self.distance(positive, p, eps);
        let far = self.distance(negative, p, eps);
        let far = if swap { far.minimum(positive.distance(negative, p, eps)) } else { far };
        reduction.of(&(near - far + margin).relu())
    }

    /// `(Σ |x − y + ε|ᵖ)^(1/p)` over the last axis.
    #[track_caller]
    fn distance(&self, other: &Self, p: f64, eps: f64) -> Self {
        let last = [self.shape().rank() - 1];
        let difference = self - other + self.constant(eps);
        difference.norm_over(&last, p)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::gradcheck;
    use crate::loss::tests::{assert_values, input, tape, tensor};

    const X: [f64; 6] = [0.5, -1.0, 2.0, 0.25, 3.0, -0.75];
    const Y: [f64; 6] = [1.5, 0.5, -2.0, 1.0, 0.125, 4.0];
    const Z: [f64; 6] = [0.75, -1.5, 2.5, -3.0, 2.0, 0.5];

    #[test]
    fn cosines_are_between_vectors_of_the_last_axis() {
        let tape = tape();
        // Cosines of 0.6 and −0.8.
        let x = input(&tape, &[2, 2], &[2.0, 0.0, 0.0, -5.0]);
        let y = input(&tape, &[2, 2], &[3.0, 4.0, 3.0, 4.0]);
        for (target, expected) in [([1.0, 1.0], [0.4, 1.8]), ([-1.0, -1.0], [0.35, 0.0])] {
            let options = CosineEmbeddingOptions { margin: 0.25, reduction: Reduction::None };
            let loss = x.cosine_embedding_with(&y, &input(&tape, &[2], &target), &options);
            let found = loss.to_tensor().unwrap().to_f64_vec().unwrap();
            // The 1e-12 added to the norms changes the result by a few 1e-13.
            assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{found:?}");
        }
        // A single pair has no leading axis.
        let loss = x.slice(0, 0..1).reshape([2]).cosine_embedding(&y.slice(0, 0..1).reshape([2]), &tape.scalar(1.0));
        assert!((loss.item().unwrap() - 0.4).abs() < 1e-6);
    }

    #[test]
    fn swapped_negatives_are_nearer() {
        let tape = tape();
        let row = |x: f64, y: f64| input(&tape, &[1, 2], &[x, y]);
        let (a, p, n) = (row(0.0, 0.0), row(3.0, 4.0), row(3.0, 8.0));
        let options = |p, swap| TripletMarginOptions { margin: 10.0, p, eps: 0.0, swap, reduction: Reduction::Sum };
        assert_values(&a.triplet_margin_with(&p, &n, &options(2.0, false)), &[15.0 - 73.0_f64.sqrt()]);
        assert_values(&a.triplet_margin_with(&p, &n, &options(2.0, true)), &[11.0]);
        assert_values(&a.triplet_margin_with(&p, &n, &options(1.0, false)), &[6.0]);
        let cubes = |x: f64, y: f64| (x.powi(3) + y.powi(3)).powf(1.0 / 3.0);
        assert_values(
            &a.triplet_margin_with(&p, &n, &options(3.0, false)),
            &[10.0 + cubes(3.0, 4.0) - cubes(3.0, 8.0)],
        );
    }

    #[test]
    fn gradients_are_right() {
        let x = [tensor(&[2, 3], &X), tensor(&[2, 3], &Y), tensor(&[2, 3], &Z)];
        for reduction in [Reduction::Mean, Reduction::Sum, Reduction::None] {
            let losses = |_: &(), x: &[Var]| {
                let target = input(x[0].tape(), &[2], &[1.0, -1.0]);
                let triplet = |p, swap| TripletMarginOptions { margin: 4.0, p, swap, reduction, ..Default::default() };
                vec![
                    x[0].cosine_embedding_with(&x[1], &target, &CosineEmbeddingOptions { margin: -0.9, reduction }),
                    x[0].triplet_margin_with(&x[1], &x[2], &triplet(2.0, false)),
                    x[0].triplet_margin_with(&x[1], &x[2], &triplet(1.0, true)),
                    x[0].triplet_margin_with(&x[1], &x[2], &triplet(2.5, false)),
                ]
            };
            gradcheck(&(), &x, losses).unwrap().ok().unwrap();
        }
    }

    #[test]
    fn equal_vectors_have_finite_gradients() {
        let tape = tape();
        let (x, y) = (input(&tape, &[2, 3], &X), input(&tape, &[2, 3], &X));
        let zeros = input(&tape, &[2, 3], &[0.0; 6]);
        let loss = x.triplet_margin(&y, &y) + zeros.cosine_embedding(&x, &input(&tape, &[2], &[1.0; 2]));
        let grads = tape.backward(&loss).unwrap();
        for dx in [grads.of(&x), grads.of(&y), grads.of(&zeros)] {
            let dx = dx.unwrap().to_tensor().unwrap().to_f64_vec().unwrap();
            assert!(dx.iter().all(|dx| dx.is_finite()), "{dx:?}");
        }
    }

    #[test]
    fn misuse_poisons() {
        let tape = tape();
        let (x, t) = (input(&tape, &[3, 1], &[0.0; 3]), input(&tape, &[3], &[0.0; 3]));
        for loss in [
            x.cosine_embedding(&t, &t),
            x.cosine_embedding(&x, &x),
            x.triplet_margin(&x, &t),
            x.triplet_margin(&t, &x),
            tape.scalar(1.0).triplet_margin(&tape.scalar(1.0), &tape.scalar(1.0)),
        ] {
            let error = loss.error().unwrap();
            assert_eq!(error.kind(), ErrorKind::Shape);
            assert!(error.location().unwrap().file().ends_with("metric.rs"), "{error}");
        }
        let plain = TripletMarginOptions::default();
        for options in [
            TripletMarginOptions { margin: f64::NAN, ..plain },
            TripletMarginOptions { p: 0.5, ..plain },
            TripletMarginOptions { p: f64::INFINITY, ..plain },
            TripletMarginOptions { eps: -1.0, ..plain },
        ] {
            assert_eq!(x.triplet_margin_with(&x, &x, &options).error().unwrap().kind(), ErrorKind::Argument);
        }
        let options = CosineEmbeddingOptions { margin: 1.5, ..Default::default() };
        assert_eq!(x.cosine_embedding_with(&x, &t, &options).error().unwrap().kind(), ErrorKind::Argument);
    }
}
