//! Cross-entropy of logits with integer labels.

use std::panic::Location;

use super::{Vjp, named};
use crate::graph::Exact;
use crate::ops::cross_entropy::{CrossEntropy, CrossEntropyGrad};
use crate::ops::gather::Gather;
use crate::{Error, ErrorKind, Result, Var};

impl Var {
    /// The cross-entropy of each row of logits `[N, classes, …]` with labels `u32 [N, …]`; 0 where the label is
    /// `ignored`.
    #[track_caller]
    pub(crate) fn cross_entropy_rows(&self, labels: &Self, smoothing: f64, ignored: Option<u32>) -> Self {
        let classes = self.shape().dims().get(1).copied().unwrap_or(0);
        if let Some(label) = labels.largest_index(ignored).filter(|&label| label as usize >= classes) {
            let message = format!("{} is out of range, the logits have {classes} classes", named("label", label));
            let error = Error::new(ErrorKind::Argument, message).in_op("cross_entropy").operand(self.ty(), self.path());
            return self.fail(error.operand(labels.ty(), None).at(Location::caller()));
        }
        // Labels of an input that is bound later are checked then.
        labels.note_range("cross_entropy", classes, ignored);
        let [loss, _, _] = self.record_many(CrossEntropy { smoothing: Exact(smoothing), ignored }, &[self, labels]);
        loss
    }
}

impl Vjp for CrossEntropy {
    fn vjp(&self, x: &[Var], y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let Some(dy) = &dy[0] else { return Ok(vec![None, None]) };
        let grad = CrossEntropyGrad { smoothing: self.smoothing, ignored: self.ignored };
        Ok(vec![Some(dy.record(grad, &[&x[0], &x[1], &y[1], &y[2], dy])), None])
    }
}

impl Vjp for CrossEntropyGrad {
    fn vjp(&self, x: &[Var], _y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let ([x, labels, _, _, d_loss], Some(u)) = (x, &dy[0]) else { return Ok(vec![None; x.len()]) };
        let (rows, kept) = (d_loss.shape(), x.shape().with(1, 1));
        let (labels, d_loss) = (labels.reshape(kept), d_loss.reshape(kept));
        let (zero, smoothing) = (x.constant(0.0), self.smoothing.0);
        let ignored = self.ignored.map(|ignored| labels.to_float().eq(x.constant(f64::from(ignored))));
        let unless_ignored = |value: Var| match &ignored {
            Some(ignored) => ignored.where_cond(&zero, &value),
            None => value,
        };
        // Ignored rows may contain anything.
        let p = unless_ignored(x.clone()).softmax(1);
        let mean = (u * &p).sum_keep(&[1]);
        let of_label = u.record(Gather { axis: 1, permutation: false }, &[u, &labels]).scale(1.0 - smoothing);
        let of_all = u.sum_keep(&[1]).scale(smoothing / x.shape()[1] as f64);
        let of_loss = unless_ignored(&mean - of_label - of_all);
        let of_x = unless_ignored(d_loss * (p * (u - mean)));
        Ok(vec![Some(of_x), None, None, None, Some(of_loss.reshape(rows))])
    }
}

#[cfg(feature = "testing")]
mod cases {
    use super::*;
    use crate::Shape;
    use crate::functions::case::{Case, Special, Tested};
    use crate::ops::cross_entropy::rows;

    impl Tested for CrossEntropy {
        fn special() -> &'static [Special] {
            &[Special::Statistics]
        }

        fn cases() -> Vec<Case> {
            let ignoring = |x: &[usize], smoothing, ignored| {
                let labels = rows(Shape::new(x)).expect("cases fit");
                let case = Case::new(Self { smoothing: Exact(smoothing), ignored }).input(x);
                // The serial form adds up a mass of this many terms one by one: ε·√K.
                let tolerance = (f64::from(f32::EPSILON) * (x[1] as f64).sqrt()).max(1e-5);
                case.labels(labels.dims(), x[1]).tolerance(tolerance).scale(3.0)
            };
            let case = |x: &[usize], smoothing| ignoring(x, smoothing, None);
            vec![
                ignoring(&[7, 3], 0.0, Some(1)),
                ignoring(&[2, 2, 3, 5], 0.2, Some(0)),
                ignoring(&[9, 300], 0.1, Some(u32::MAX)),
                ignoring(&[5, 16_500], 0.1, Some(2)),
                case(&[1, 2], 0.0),
                case(&[5, 3], 0.0),
                case(&[4, 10], 0.1),
                case(&[2, 7, 3, 2], 0.3),
                case(&[3, 300], 0.0),
                case(&[133, 10], 0.1),
                case(&[2, 40, 3, 5], 0.2),
                // enough classes to be split
                case(&[3, 16_500], 0.1),
                case(&[1, 1100, 7], 0.3),
            ]
        }
    }

    impl Tested for CrossEntropyGrad {
        fn special() -> &'static [Special] {
            &[Special::WithoutOnnx]
        }

        fn cases() -> Vec<Case> {
            // Peak and mass are not independent operands. The gradients of `cross_entropy`'s cases test this, on every
            // device.
            Vec::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Device, Result, Tape, Tensor};

    #[test]
    fn masked_classes_cost_nothing() -> Result<()> {
        let device = Device::cpu();
        let tape = Tape::new(&device);
        let x = tape.input(&Tensor::from_slice(&device, [1, 3], &[0.0, 1.0, f32::NEG_INFINITY])?);
        let labels = tape.input(&Tensor::indices(&device, [1], &[0])?);
        let loss = x.cross_entropy_rows(&labels, 0.0, None);
        assert!((loss.to_vec()?[0] - 1.313_261_7).abs() < 1e-6);
        let grads = tape.backward(&loss.sum())?;
        assert!(grads.of(&x).expect("the loss depends on x").to_vec()?.iter().all(|dx| dx.is_finite()));
        Ok(())
    }

    #[test]
    fn equal_scores_share_the_gradient_at_any_magnitude() -> Result<()> {
        let device = Device::cpu();
        // The lowest class has a probability of at most e⁻¹⁰⁰.
        let close = |x: &[f32], y: [f32; 6]| x.iter().zip(y).all(|(x, y)| (x - y).abs() < 1e-40);
        for large in [1e2, 1e4, 1e6, 1e7, 1e30] {
            let tape = Tape::new(&device);
            // The same row twice: with its label far below the other scores, and among them.
            let x = tape.input(&Tensor::from_slice(&device, [2, 3], &[0.0, large, large, 0.0, large, large])?);
            let losses = x.cross_entropy_rows(&tape.input(&Tensor::indices(&device, [2], &[0, 1])?), 0.0, None);
            let grads = tape.backward(&losses.sum())?;
            let dx = grads.of(&x).expect("the loss depends on x").to_vec()?;
            let ln2 = std::f32::consts::LN_2;
            assert_eq!(losses.to_vec()?, [large + ln2, ln2], "{large}");
            assert!(close(&dx, [-1.0, 0.5, 0.5, 0.0, -0.5, 0.5]), "{large}: {dx:?}");
            // Rows along the other axis.
            let y = x.t().softmax(0).to_vec()?;
            assert!(close(&y, [0.0, 0.0, 0.5, 0.5, 0.5, 0.5]), "{large}: {y:?}");
        }
        Ok(())
    }
}
