//! Parameters with adapters on a tape.

use super::{Tape, Var};
use crate::param::Adapter;
use crate::{ErrorKind, Param};

impl Adapter {
    /// `W + s·B·A`
    #[track_caller]
    pub(crate) fn add_to(&self, weight: &Var) -> Var {
        if self.is_across_groups() {
            let message =
                "the adapter acts across the groups of a convolution, as PEFT's do: it has no sum with the kernel";
            return weight.refuse("lora", ErrorKind::Argument, message.to_owned());
        }
        let tape = weight.tape();
        let (a, b) = (tape.param(&self.a), tape.param(&self.b));
        let product = b.matmul(&a) * tape.buffer(&self.scale);
        weight + product.reshape(weight.shape())
    }

    /// `W`, the parameter that this adapts, `A`, `B` and `s`.
    #[track_caller]
    pub fn parts(&self, tape: &Tape, weight: &Param) -> [Var; 4] {
        [tape.cell(weight.cell()), tape.param(&self.a), tape.param(&self.b), tape.buffer(&self.scale)]
    }
}
