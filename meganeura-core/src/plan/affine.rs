//! Programs that begin as `activation(bound((x − m)·f + s + r))`, the work that follows most convolutions. An executor
//! decides which operands it takes as which of these.

use super::{Input, Program};
use crate::ops::Pointwise;

/// An instruction, or a few, on the result `x` of the one before.
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
    /// `x·clamp(x·factor + shift, low, high)`, multiplied or divided by a number.
    HardSwish {
        factor: Option<Input>,
        shift: Input,
        bounds: [Input; 2],
        scale: Option<Input>,
        divides: bool,
    },
    /// `x·σ(x)`
    Gated,
    LeakyRelu(Input),
    Sigmoid,
    Silu,
    Gelu,
    GeluTanh,
    Tanh,
}

impl Program {
    /// The first instructions that may be parts of the form, and how many each part is of. The first takes a kernel's
    /// result.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (Part, usize)> {
        let (mut before, mut row) = (Input::Kernel(0), 0);
        std::iter::from_fn(move || {
            let found = self.hard_swish(before, row).or_else(|| self.gated(before, row));
            let (part, count) = found.or_else(|| Some((self.part(before, row)?, 1)))?;
            row += count;
            before = Input::Result(row - 1);
            Some((part, count))
        })
    }

    /// The instruction in a row, on `x`.
    fn part(&self, x: Input, row: usize) -> Option<Part> {
        let (op, operands) = self.instructions.get(row)?;
        let is_first = operands[0] == x;
        let mut others = operands.iter().copied().filter(|operand| *operand != x);
        match (op, others.next(), others.next()) {
            (Pointwise::Sub, Some(m), None) if is_first => Some(Part::Minus(m)),
            (Pointwise::Mul, Some(f), None) => Some(Part::Times(f)),
            (Pointwise::Round, None, None) => Some(Part::Round),
            (Pointwise::Add, Some(s), None) => Some(Part::Plus(s)),
            (Pointwise::Relu, None, None) => Some(Part::Relu),
            (Pointwise::Clamp, Some(low), Some(high)) if is_first => Some(Part::Clamp(low, high)),
            (Pointwise::LeakyRelu, Some(slope), None) if is_first => Some(Part::LeakyRelu(slope)),
            (Pointwise::Sigmoid, None, None) => Some(Part::Sigmoid),
            (Pointwise::Silu, None, None) => Some(Part::Silu),
            (Pointwise::Gelu, None, None) => Some(Part::Gelu),
            (Pointwise::GeluTanh, None, None) => Some(Part::GeluTanh),
            (Pointwise::Tanh, None, None) => Some(Part::Tanh),
            _ => None,
        }
    }

    /// `x·σ(x)` from a row on.
    fn gated(&self, x: Input, row: usize) -> Option<(Part, usize)> {
        let is_sigmoid = self.part(x, row)? == Part::Sigmoid;
        (is_sigmoid && self.is_product(x, row + 1)).then_some((Part::Gated, 2))
    }

    /// A hard swish of `x` from a row on.
    fn hard_swish(&self, x: Input, first: usize) -> Option<(Part, usize)> {
        let (factor, row, scaled) = match self.part(x, first)? {
            Part::Times(factor) => (Some(factor), first + 1, Input::Result(first)),
            _ => (None, first, x),
        };
        let Part::Plus(shift) = self.part(scaled, row)? else { return None };
        let Part::Clamp(low, high) = self.part(Input::Result(row), row + 1)? else { return None };
        if !self.is_product(x, row + 2) {
            return None;
        }
        let (scale, divides) = match self.instructions.get(row + 3) {
            Some((op @ (Pointwise::Mul | Pointwise::Div), operands))
                if operands[0] == Input::Result(row + 2) && matches!(operands[1], Input::Const(_) | Input::Host(_)) =>
            {
                (Some(operands[1]), *op == Pointwise::Div)
            }
            _ => (None, false),
        };
        let count = row + 3 + usize::from(scale.is_some()) - first;
        Some((Part::HardSwish { factor, shift, bounds: [low, high], scale, divides }, count))
    }

    /// `true` if the instruction in a row is the product of `x` and the result of the row before.
    fn is_product(&self, x: Input, row: usize) -> bool {
        let before = Input::Result(row - 1);
        self.instructions.get(row).is_some_and(|(op, operands)| {
            *op == Pointwise::Mul && (operands[..] == [x, before] || operands[..] == [before, x])
        })
    }

    /// The program with an operand as a kernel's result.
    pub(crate) fn on(&self, operand: Input) -> Self {
        let mut program = self.clone();
        let inputs = program.instructions.iter_mut().flat_map(|(_, operands)| operands);
        inputs.filter(|input| **input == operand).for_each(|input| *input = Input::Kernel(0));
        program
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
