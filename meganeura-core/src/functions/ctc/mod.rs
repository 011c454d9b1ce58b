//! Connectionist temporal classification: the method, and the gradient rules, which are those of the recorded loss.

mod recorded;

use std::panic::Location;

use crate::functions::{Vjp, named};
use crate::ops::ctc::{Ctc, CtcGrad};
use crate::{Error, ErrorKind, Result, Var};

impl Var {
    /// The loss of each example, `[N]`; see [`Ctc`]. With `zero_infinity`, targets without a path cost 0 and have no
    /// gradient.
    #[track_caller]
    pub(crate) fn ctc_losses(
        &self,
        targets: &Self,
        [input_lengths, target_lengths]: [&Self; 2],
        blank: u32,
        zero_infinity: bool,
    ) -> Self {
        let extents = |x: &Self| x.shape().dims().to_vec();
        if let ([steps, _, classes], [_, labels]) = (&*extents(self), &*extents(targets)) {
            for (what, indices, end) in [
                ("label", targets, *classes),
                ("input length", input_lengths, steps + 1),
                ("target length", target_lengths, labels + 1),
            ] {
                if let Some(index) = indices.largest_index(None).filter(|&index| index as usize >= end) {
                    let message = format!("{} is out of range, it must be below {end}", named(what, index));
                    let error = Error::new(ErrorKind::Argument, message).in_op("ctc").operand(self.ty(), self.path());
                    return self.fail(error.operand(indices.ty(), None).at(Location::caller()));
                }
                indices.note_range("ctc", end, None);
            }
        }
        let operands = [self, targets, input_lengths, target_lengths];
        let [losses, _] = self.record_many(Ctc { blank, zero_infinity }, &operands);
        losses
    }
}

impl Vjp for Ctc {
    fn vjp(&self, x: &[Var], y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let Some(dy) = &dy[0] else { return Ok(vec![None; 4]) };
        let grad = CtcGrad { forward: self.clone() };
        Ok(vec![Some(dy.record(grad, &[&x[0], &x[1], &x[2], &x[3], &y[1], dy])), None, None, None])
    }
}

impl Vjp for CtcGrad {
    fn vjp(&self, x: &[Var], y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>> {
        let none = Ok(vec![None; x.len()]);
        let Some(u) = &dy[0] else { return none };
        let tape = u.tape();
        let first = tape.with_graph(|graph| graph.nodes().len());
        let Some(losses) = self.forward.recorded(&x[..4]) else { return none };
        let (x, d_loss) = (&x[0], &x[5]);
        let [Some(dx)] = tape.pull_back(first, &[(&losses, d_loss)], [x])? else { return none };
        let [of_x, of_loss] = tape.pull_back(first, &[(&dx, u)], [x, d_loss])?;
        // For a label or a length out of range, or a target without a path.
        let of_x = of_x.map(|of_x| of_x + &y[0] * y[0].constant(0.0));
        Ok(vec![of_x, None, None, None, None, of_loss])
    }
}

#[cfg(feature = "testing")]
mod cases {
    use super::*;
    use crate::functions::case::{Array, Case, Special, Tested};

    pub(super) fn cases() -> Vec<Case> {
        // Targets below the blank, and all kinds of lengths; those without a path cost 0.
        let case = |[steps, examples, classes, labels]: [usize; 4], blank: usize| {
            let op = Ctc { blank: blank as u32, zero_infinity: true };
            let case = Case::new(op).input(&[steps, examples, classes]).labels(&[examples, labels], classes - 1);
            // Sums of `steps` rounded terms; those of a row are relative to its largest.
            case.labels(&[examples], steps + 1).labels(&[examples], labels + 1).tolerance(1e-5)
        };
        // Enumerates every path through a few steps.
        let naive = |x: &[Array]| {
            let [steps, _, classes] = *x[0].shape.dims() else { unreachable!("three axes") };
            let of_example = |n: usize, targets: &[usize]| {
                let mut sum = 0.0;
                for path in 0..classes.pow(steps as u32) {
                    let class = |t: usize| path / classes.pow(t as u32) % classes;
                    let mut merged: Vec<_> = (0..steps).map(class).collect();
                    merged.dedup();
                    merged.retain(|&class| class != 2);
                    let total: f64 = (0..steps).map(|t| x[0].data[(t * 3 + n) * classes + class(t)]).sum();
                    sum += if merged == targets { total.exp() } else { 0.0 };
                }
                -f64::ln(sum)
            };
            let data = vec![of_example(0, &[0, 1]), of_example(1, &[1, 1]), of_example(2, &[])];
            vec![Array { shape: crate::Shape::from([3]), data }]
        };
        let recorded = Case::recorded("ctc", &[&[5, 3, 3]], |x| {
            let tape = x[0].tape();
            let input = |shape: &[usize], indices: &[u32]| {
                tape.input(&crate::Tensor::indices(&tape.device(), crate::Shape::new(shape), indices).expect("fits"))
            };
            let targets = input(&[3, 2], &[0, 1, 1, 1, 0, 0]);
            x[0].ctc_losses(&targets, [&input(&[3], &[5, 5, 5]), &input(&[3], &[2, 2, 0])], 2, false)
        });
        vec![
            recorded.naive(naive),
            case([1, 1, 2, 1], 1),
            case([7, 3, 4, 2], 3),
            case([12, 5, 3, 3], 0),
            case([40, 4, 30, 9], 29),
            // more states than invocations in a workgroup, and more classes
            case([9, 2, 300, 140], 299),
            case([300, 2, 6, 100], 5),
        ]
    }

    impl Tested for Ctc {
        fn special() -> &'static [Special] {
            &[Special::Statistics, Special::WithoutOnnx]
        }

        fn cases() -> Vec<Case> {
            cases()
        }
    }

    impl Tested for CtcGrad {
        fn special() -> &'static [Special] {
            &[Special::WithoutOnnx]
        }

        fn cases() -> Vec<Case> {
            // Tested on every device through the gradients of `ctc`'s cases.
            Vec::new()
        }
    }
}
