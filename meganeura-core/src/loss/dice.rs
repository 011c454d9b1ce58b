//! Dice loss: the overlap of regions.

use super::Reduction;
use crate::{ErrorKind, Var};

/// The options of [`Var::dice_with`]. The defaults are those of [`Var::dice`].
#[derive(Clone, Copy, Debug)]
pub struct DiceOptions {
    /// The number added to numerator and denominator, so that two empty regions agree, s: at least 0; 1 by default.
    pub smooth: f64,
    /// `true` for squares in the denominator, `Σ x² + Σ t² + s`; `false` by default.
    pub squared: bool,
    /// The reduction of the losses of single regions.
    pub reduction: Reduction,
}

impl Default for DiceOptions {
    fn default() -> Self {
        Self { smooth: 1.0, squared: false, reduction: Reduction::Mean }
    }
}

impl Var {
    /// Dice loss of probabilities: the mean over all regions of `1 − (2·Σ x·t + s)/(Σ x + Σ t + s)`
    ///
    /// Sums are over the pixels of a region, and s = 1. Unlike losses of single pixels, this one gives small regions
    /// the weight of large ones. [Milletari et al., 2016](https://arxiv.org/abs/1606.04797).
    ///
    /// Shapes: probabilities, after `sigmoid` or `softmax(1)`, and targets `[N, C, …]` → a scalar. Each class of each
    /// example is a region.
    ///
    /// ```
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let tape = Tape::new(&device);
    /// let x = tape.input(&Tensor::from_slice(&device, [1, 1, 3], &[1.0, 0.5, 0.0])?);
    /// let target = tape.input(&Tensor::from_slice(&device, [1, 1, 3], &[1.0, 1.0, 0.0])?);
    /// assert!((x.dice(&target).item()? - (1.0 - 4.0 / 4.5)).abs() < 1e-6);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn dice(&self, target: &Self) -> Self {
        self.dice_with(target, &DiceOptions::default())
    }

    /// [`dice`](Self::dice) with another s, with squares in the denominator as in the paper, or with another reduction.
    ///
    /// Shapes: the same; unreduced `[N, C]`. Errors: also if s is negative, NaN or infinite. With s = 0, two empty
    /// regions give NaN.
    #[must_use]
    #[track_caller]
    pub fn dice_with(&self, target: &Self, options: &DiceOptions) -> Self {
        const NAME: &str = "dice";
        let DiceOptions { smooth, squared, reduction } = *options;
        if !(smooth >= 0.0 && smooth.is_finite()) {
            return self.senseless(NAME, format!("s is {smooth}; it must be 0 or above"));
        }
        if let Some(poisoned) = self.misfit(NAME, target) {
            return poisoned;
        }
        let axes: Vec<_> = (2..self.shape().rank()).collect();
        if axes.is_empty() {
            let message = format!("the probabilities must be [N, C, …] with an axis of pixels, they are {}", self.ty());
            return self.refuse(NAME, ErrorKind::Shape, message);
        }
        let smooth = self.tape().scalar(smooth);
        let both = if squared { self.square() + target.square() } else { self + target };
        let shared = (self * target).sum_over(&axes).scale(2.0) + &smooth;
        reduction.of(&(self.constant(1.0) - shared / (both.sum_over(&axes) + smooth)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::gradcheck;
    use crate::loss::tests::{assert_values, input, tape, tensor};

    #[test]
    fn every_class_of_every_example_is_a_region() {
        let tape = tape();
        let x = input(&tape, &[2, 2, 1, 2], &[0.5, 0.25, 0.0, 0.0, 1.0, 1.0, 0.25, 0.0]);
        let t = input(&tape, &[2, 2, 1, 2], &[1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0]);
        let loss = |smooth, squared, reduction| x.dice_with(&t, &DiceOptions { smooth, squared, reduction });
        let expected = [1.0 - 2.0 / 2.75, 0.0, 0.0, 1.0 - 1.0 / 2.25];
        assert_values(&loss(1.0, false, Reduction::None), &expected);
        assert_values(&loss(1.0, false, Reduction::Mean), &[expected.iter().sum::<f64>() / 4.0]);
        let squares = [1.0 - 1.5 / (1.3125 + 0.5), 0.0, 0.0, 1.0 - 0.5 / (1.0625 + 0.5)];
        assert_values(&loss(0.5, true, Reduction::None), &squares);
    }

    #[test]
    fn gradients_are_right() {
        let x =
            [tensor(&[1, 2, 3], &[0.1, 0.3, 0.5, 0.7, 0.2, 0.4]), tensor(&[1, 2, 3], &[1.0, 0.2, 0.3, 0.5, 0.9, 0.1])];
        for reduction in [Reduction::Mean, Reduction::Sum, Reduction::None] {
            for squared in [false, true] {
                let options = DiceOptions { smooth: 0.3, squared, reduction };
                gradcheck(&(), &x, |_: &(), x: &[Var]| vec![x[0].dice_with(&x[1], &options)]).unwrap().ok().unwrap();
            }
        }
    }

    #[test]
    fn misuse_poisons() {
        let tape = tape();
        let (x, t) = (input(&tape, &[3, 1, 1], &[0.0; 3]), input(&tape, &[3, 1], &[0.0; 3]));
        for loss in [x.dice(&t), t.dice(&t)] {
            let error = loss.error().unwrap();
            assert_eq!(error.kind(), ErrorKind::Shape);
            assert!(error.location().unwrap().file().ends_with("dice.rs"), "{error}");
        }
        for smooth in [-1.0, f64::NAN, f64::INFINITY] {
            let error = x.dice_with(&x, &DiceOptions { smooth, ..Default::default() }).error().unwrap();
            assert_eq!(error.kind(), ErrorKind::Argument);
        }
    }
}
