//! The class weights of labels.

use super::Vjp;
use crate::ops::label_weights::LabelWeights;
use crate::{Result, Tape, Var};

impl Tape {
    /// The weight of each label's class; see [`LabelWeights`].
    #[track_caller]
    pub(crate) fn label_weights(&self, weights: &Var, labels: &Var, ignored: Option<u32>) -> Var {
        weights.record(LabelWeights { ignored }, &[weights, labels])
    }
}

impl Vjp for LabelWeights {
    fn vjp(&self, _x: &[Var], _y: &[Var], _dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        Ok(vec![None, None])
    }
}

#[cfg(feature = "testing")]
mod cases {
    use super::*;
    use crate::functions::case::{Array, Case, Tested};

    impl Tested for LabelWeights {
        fn cases() -> Vec<Case> {
            use crate::Shape;
            // The weights are inputs of the tape, not operands of the case, so there is no gradient to check. Values
            // that are only read are not rounded.
            let case = |shape: &'static [usize], classes: u32, ignored| {
                let count: usize = shape.iter().product();
                let labels: Vec<_> = (0..count as u32).map(|i| i * 7 % classes).collect();
                let weight = |label: &u32| if Some(*label) == ignored { 0.0 } else { f64::from(label + 1) };
                let expected: Vec<_> = labels.iter().map(weight).collect();
                let case = Case::recorded("label_weights", &[&[1]], move |x| {
                    let device = x[0].tape().device();
                    let data: Vec<_> = (0..classes).map(|c| f64::from(c + 1)).collect();
                    let weights = crate::Tensor::from_f64(&device, [data.len()], &data).expect("fits");
                    let labels = crate::Tensor::indices(&device, Shape::new(shape), &labels).expect("fits");
                    x[0].tape().label_weights(&x[0].tape().input(&weights), &x[0].tape().input(&labels), ignored)
                });
                let naive = move |_: &[Array]| vec![Array { shape: Shape::new(shape), data: expected.clone() }];
                case.naive(naive).tolerance(0.0)
            };
            vec![case(&[1], 1, None), case(&[67], 5, Some(3)), case(&[2, 3, 5], 4, None), case(&[9], 3, Some(900))]
        }
    }
}
