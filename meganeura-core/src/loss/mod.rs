//! Losses: from predictions and targets to the one number that training minimizes.
//!
//! | for | use |
//! |---|---|
//! | numbers | [`mse`](Var::mse), [`l1`](Var::l1), [`huber`](Var::huber), [`smooth_l1`](Var::smooth_l1) |
//! | binary labels, one or several | [`bce_with_logits`](Var::bce_with_logits), [`focal_bce`](Var::focal_bce) |
//! | one class of many | [`cross_entropy`](Var::cross_entropy), [`focal_cross_entropy`](Var::focal_cross_entropy), [`multi_margin`](Var::multi_margin); for log-probabilities [`nll`](Var::nll) |
//! | label sequences without alignment | [`ctc`](Var::ctc) |
//! | distributions | [`soft_cross_entropy`](Var::soft_cross_entropy), [`kl_div`](Var::kl_div) |
//! | regions of images | [`dice`](Var::dice) |
//! | vectors that should be close or far apart | [`cosine_embedding`](Var::cosine_embedding), [`triplet_margin`](Var::triplet_margin); for distances [`hinge_embedding`](Var::hinge_embedding) |
//!
//! All are methods of [`Var`] and return the mean. Each has a variant that ends in `_with`, which takes another
//! [`Reduction`] and all other options. All but those of labels and `ctc`, which have kernels of their own, are written
//! with `Var`'s operations; you write a loss of your own in the same way.

mod binary;
mod cross_entropy;
mod ctc;
mod dice;
mod divergence;
mod focal;
mod hinge;
mod labels;
mod metric;
mod nll;
mod regression;

pub use binary::BceWithLogitsOptions;
pub use cross_entropy::CrossEntropyOptions;
pub use ctc::CtcOptions;
pub use dice::DiceOptions;
pub use divergence::{KlDivOptions, SoftCrossEntropyOptions};
pub use focal::{FocalBceOptions, FocalCrossEntropyOptions};
pub use hinge::{HingeEmbeddingOptions, MultiMarginOptions};
pub use labels::Labels;
pub use metric::{CosineEmbeddingOptions, TripletMarginOptions};
pub use nll::NllOptions;

use crate::{Error, ErrorKind, Var};

/// The reduction of the losses of single elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// Their mean, a scalar. With class weights, `cross_entropy`, `nll` and `focal_cross_entropy` divide by the sum of
    /// the weights.
    #[default]
    Mean,
    /// Their sum, a scalar.
    Sum,
    /// No reduction: to weight them, for example.
    None,
}

impl Reduction {
    #[track_caller]
    fn of(self, losses: &Var) -> Var {
        match self {
            Self::Mean => losses.mean(),
            Self::Sum => losses.sum(),
            Self::None => losses.clone(),
        }
    }
}

impl Var {
    /// The value, poisoned, if the target has another shape.
    ///
    /// It takes no closure for the other case: a closure would not know the caller's line.
    #[track_caller]
    fn misfit(&self, name: &'static str, target: &Self) -> Option<Self> {
        if self.shape() == target.shape() {
            return None;
        }
        let message = "predictions and targets must have the same shape; `reshape` one of them";
        let error = Error::new(ErrorKind::Shape, message).in_op(name).operand(self.ty(), None);
        Some(self.fail(error.operand(target.ty(), None)))
    }

    /// The value, poisoned by an invalid setting.
    #[track_caller]
    fn senseless(&self, name: &'static str, message: String) -> Self {
        self.fail(Error::new(ErrorKind::Argument, message).in_op(name))
    }
}

#[cfg(test)]
mod tests {
    use crate::{Device, Precision, Shape, Tape, Tensor, Var};

    pub(super) fn device() -> Device {
        Device::cpu_with(Precision::Double)
    }

    pub(super) fn tape() -> Tape {
        Tape::new(&device())
    }

    pub(super) fn tensor(shape: &[usize], data: &[f64]) -> Tensor {
        Tensor::from_f64(&device(), Shape::new(shape), data).unwrap()
    }

    pub(super) fn input(tape: &Tape, shape: &[usize], data: &[f64]) -> Var {
        tape.input(&Tensor::from_f64(&tape.device(), Shape::new(shape), data).unwrap())
    }

    /// Compares a loss in `f64` with values from an independent computation.
    #[track_caller]
    pub(super) fn assert_values(loss: &Var, expected: &[f64]) {
        let values = loss.to_tensor().unwrap().to_f64_vec().unwrap();
        let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-14 * b.abs();
        assert!(values.len() == expected.len(), "{values:?}, not {expected:?}");
        assert!(values.iter().zip(expected).all(close), "{values:?}, not {expected:?}");
    }

    /// A loss of huge logits and its gradient, computed in `f32`.
    pub(super) fn assert_finite(x: &[f32], loss: impl Fn(&Var) -> Var) {
        let tape = Tape::new(&Device::cpu());
        let rows = x.len() / 2;
        let x = tape.input(&Tensor::from_slice(&tape.device(), [rows, 2], x).unwrap());
        let loss = loss(&x);
        let dx = tape.backward(&loss).unwrap().of(&x).unwrap();
        let numbers = [loss.to_vec().unwrap(), dx.to_vec().unwrap()].concat();
        assert!(numbers.iter().all(|number| number.is_finite()), "{numbers:?}");
    }
}
