//! Programs that begin as `bound((x − m)·f + s + r)`, the work that follows most convolutions. An executor decides
//! which operands it takes as which of these.

use super::{Input, Program};
use crate::ops::Pointwise;

/// An instruction on the result `x` of the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    /// `x − m`
    Minus(Input),
    /// `x·f`
    Times(Input),
    /// `x` rounded
    Round,
    /// `x + s`
    Plus(Input),
    Relu,
    Clamp(Input, Input),
}

impl Program {
    /// The first instructions that may be parts of the form. The first takes a kernel's result.
    pub(crate) fn parts(&self) -> impl Iterator<Item = Part> {
        let mut before = Input::Kernel(0);
        self.instructions.iter().enumerate().map_while(move |(row, (op, operands))| {
            let is_first = operands[0] == before;
            let mut others = operands.iter().copied().filter(|operand| *operand != before);
            let part = match (op, others.next(), others.next()) {
                (Pointwise::Sub, Some(m), None) if is_first => Part::Minus(m),
                (Pointwise::Mul, Some(f), None) => Part::Times(f),
                (Pointwise::Round, None, None) => Part::Round,
                (Pointwise::Add, Some(s), None) => Part::Plus(s),
                (Pointwise::Relu, None, None) => Part::Relu,
                (Pointwise::Clamp, Some(low), Some(high)) if is_first => Part::Clamp(low, high),
                _ => return None,
            };
            before = Input::Result(row);
            Some(part)
        })
    }

    /// The program after its first instructions, on their last result as the kernel's; `None` if it needs another of
    /// their results, or the kernel's own.
    pub(crate) fn after(&self, count: usize) -> Option<Self> {
        let renumbered = |input: &Input| match *input {
            Input::Result(row) if row + 1 == count => Some(Input::Kernel(0)),
            Input::Result(row) => row.checked_sub(count).map(Input::Result),
            Input::Kernel(_) => None,
            input => Some(input),
        };
        let rest = self.instructions[count..].iter();
        let instructions =
            rest.map(|(op, operands)| Some((*op, operands.iter().map(renumbered).collect::<Option<_>>()?)));
        let instructions = instructions.collect::<Option<_>>()?;
        let results = self.results.iter().map(renumbered).collect::<Option<_>>()?;
        Some(Self { instructions, results, ..self.clone() })
    }
}
