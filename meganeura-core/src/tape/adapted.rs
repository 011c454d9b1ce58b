//! Parameters with adapters on a tape.

use super::{Tape, Var};
use crate::param::Adapter;
use crate::{ErrorKind, Param};

impl Adapter {
    /// `W + s·B·A`, with these magnitudes if there are any.
    #[track_caller]
    pub fn add_to(&self, weight: &Var) -> Var {
        if self.is_across_groups() {
            let message =
                "the adapter acts across the groups of a convolution, as PEFT's do: it has no sum with the kernel";
            return weight.refuse("lora", ErrorKind::Argument, message.to_owned());
        }
        let tape = weight.tape();
        let (a, b) = (tape.param(&self.a), tape.param(&self.b));
        let sum = weight + (b.matmul(&a) * tape.buffer(&self.scale)).reshape(weight.shape());
        let (Some(magnitude), Some(matrix)) = (&self.magnitude, Self::matrix(weight.shape())) else { return sum };
        let sum = sum.reshape(matrix);
        // The norm of what shares a magnitude.
        let axes: Vec<_> = (0..2).filter(|&axis| magnitude.shape()[axis] == 1).collect();
        let norm = sum.detach().norm_over(&axes, 2.0).reshape(magnitude.shape());
        (&sum * (tape.param(magnitude) / norm)).reshape(weight.shape())
    }

    /// The result of a layer, whose outputs are followed by axes of these extents, with the bias times `s`.
    #[track_caller]
    pub fn add_bias_to(&self, y: &Var, after: &[usize]) -> Var {
        let Some(bias) = &self.bias else { return y.clone() };
        let tape = y.tape();
        let bias = tape.param(bias) * tape.buffer(&self.scale);
        y + bias.reshape(&[&[bias.shape()[0]], after].concat()[..])
    }

    /// `W`, the parameter that this adapts, `A`, `B` and `s`.
    #[track_caller]
    pub fn parts(&self, tape: &Tape, weight: &Param) -> [Var; 4] {
        [tape.cell(weight.cell()), tape.param(&self.a), tape.param(&self.b), tape.buffer(&self.scale)]
    }
}
