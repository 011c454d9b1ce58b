//! Programs on a kernel's results as passes of the form [`Affine`]. The results have the bits of the instructions one
//! by one.

use std::borrow::Cow;

use super::pointwise::Source;
use crate::host::HostWord;
use crate::kernel::native::{Activation, Affine, Bound, HardSwish, NONE, Number, Real};
use crate::plan::{Input, Part, Program};

/// Elements of a channel from which a pass is worth its start.
const LEAST: usize = 8;

/// Elements of a result from which looking for the form is worth it.
const LEAST_STEP: usize = 1024;

/// The parts of the form, in their order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Result,
    Offset,
    Factor,
    Rounded,
    Shift,
    Residual,
    Bound,
    Activation,
}

/// Several of them, one after the other.
pub(super) type Chain<'a, T> = Vec<Affine<'a, T>>;

impl<'a, T: Real> Affine<'a, T> {
    /// A program on a kernel's result as passes of this form, and what remains of it, if anything does.
    pub(super) fn chain<'p>(
        program: &'p Program,
        inputs: &[Source<'a, T>],
        host: &[HostWord],
    ) -> (Chain<'a, T>, Option<Cow<'p, Program>>) {
        let (mut chain, mut rest) = (Chain::new(), Some(Cow::Borrowed(program)));
        while let Some(program) = &rest {
            let Some((affine, after)) = Self::split(program, inputs, host) else { break };
            chain.push(affine);
            rest = after.map(Cow::Owned);
        }
        (chain, rest)
    }

    /// The beginning of a program on a kernel's result that has this form, and what remains of the program, if anything
    /// does.
    fn split(program: &Program, inputs: &[Source<'a, T>], host: &[HostWord]) -> Option<(Self, Option<Program>)> {
        let mut most = usize::MAX;
        loop {
            let mut found = Self::nothing();
            let (mut stage, mut parts, mut count) = (Stage::Result, 0, 0);
            for (part, instructions) in program.parts().take(most) {
                let Some(next) = found.take(stage, part, inputs, host) else { break };
                (stage, parts, count) = (next, parts + 1, count + instructions);
            }
            if count == 0 {
                return None;
            }
            match program.after(count) {
                Some(rest) => return Some((found, (!rest.instructions.is_empty()).then_some(rest))),
                // The rest needs a result before the last.
                None => most = parts - 1,
            }
        }
    }

    /// A program in a step of its own as one pass of this form over an operand, which is updated in place if it is
    /// `None`. Others are numbers of channels, which would have to be gathered otherwise.
    pub(super) fn over_operand(
        program: &Program,
        inputs: &[Source<'a, T>],
        host: &[HostWord],
    ) -> Option<(Self, Option<&'a [T]>)> {
        if program.shape.elements() < LEAST_STEP || program.results.len() != 1 {
            return None;
        }
        let (_, operands) = program.instructions.first()?;
        operands.iter().find_map(|input| {
            let Input::Operand(k) = *input else { return None };
            let x = match inputs[k] {
                Source::View(_) => Some(dense(*input, inputs)?),
                Source::Updated(_) => None,
            };
            let (affine, rest) = Self::split(&program.on(*input), inputs, host)?;
            (rest.is_none() && affine.channels != NONE).then_some((affine, x))
        })
    }

    /// Takes a part on the result of those before, if the form goes on with it.
    fn take(&mut self, stage: Stage, part: Part, inputs: &[Source<'a, T>], host: &[HostWord]) -> Option<Stage> {
        match part {
            Part::Minus(m) if stage < Stage::Offset => {
                self.numbers[0] = self.number(m, inputs, host)?;
                Some(Stage::Offset)
            }
            Part::Times(f) if stage < Stage::Factor => {
                self.numbers[1] = self.number(f, inputs, host)?;
                Some(Stage::Factor)
            }
            Part::Round if stage < Stage::Rounded => {
                self.is_rounded = true;
                Some(Stage::Rounded)
            }
            Part::Plus(s) if stage < Stage::Residual => match self.number(s, inputs, host) {
                Some(number) if stage < Stage::Shift => {
                    self.numbers[2] = number;
                    Some(Stage::Shift)
                }
                _ => {
                    self.residual = Some(dense(s, inputs)?);
                    Some(Stage::Residual)
                }
            },
            Part::Relu if stage < Stage::Bound => {
                self.bound = Bound::Relu;
                Some(Stage::Bound)
            }
            Part::Clamp(low, high) if stage < Stage::Bound => {
                self.bound = Bound::Clamp(number(low, host)?, number(high, host)?);
                Some(Stage::Bound)
            }
            part if stage < Stage::Activation => {
                self.activation = Some(activation(part, host)?);
                Some(Stage::Activation)
            }
            _ => None,
        }
    }

    /// An operand that is a number of each channel.
    fn number(&mut self, input: Input, inputs: &[Source<'a, T>], host: &[HostWord]) -> Option<Number<'a, T>> {
        let Input::Operand(k) = input else { return number(input, host).map(Number::One) };
        let Source::View(view) = &inputs[k] else { return None };
        let layout = view.layout().collapse();
        let data = &view.floats()[layout.offset()..];
        let [count, inner, step] = match (layout.shape().dims(), layout.strides()) {
            (&[], _) | (&[_], &[0]) => return Some(Number::One(data[0])),
            (&[count, inner], &[step, 0]) | (&[_, count, inner], &[0, step, 0]) => [count, inner, step],
            (&[_, columns], &[0, 1]) => [columns, 1, 1],
            _ => return None,
        };
        let channels = [count, inner];
        let fits =
            (inner >= LEAST || inner == 1 && count >= LEAST) && (self.channels == NONE || self.channels == channels);
        fits.then(|| self.channels = channels).map(|()| Number::Channels(data, step))
    }
}

/// A part that is a function of one number.
fn activation<T: Real>(part: Part, host: &[HostWord]) -> Option<Activation<T>> {
    Some(match part {
        Part::HardSwish { factor, shift, bounds: [low, high], scale, divides } => {
            let or_one = |input: Option<Input>| input.map_or(Some(T::ONE), |input| number(input, host));
            Activation::HardSwish(HardSwish {
                factor: or_one(factor)?,
                shift: number(shift, host)?,
                low: number(low, host)?,
                high: number(high, host)?,
                scale: or_one(scale)?,
                divides,
            })
        }
        Part::Gated => Activation::Gated,
        Part::LeakyRelu(slope) => Activation::LeakyRelu(number(slope, host)?),
        Part::Sigmoid => Activation::Sigmoid,
        Part::Silu => Activation::Silu,
        Part::Gelu => Activation::Gelu,
        Part::GeluTanh => Activation::GeluTanh,
        Part::Tanh => Activation::Tanh,
        _ => return None,
    })
}

/// A number that is the same for all elements.
fn number<T: Real>(input: Input, host: &[HostWord]) -> Option<T> {
    match input {
        Input::Const(value) => Some(T::from_f64(value.0)),
        Input::Host(at) => match host[at] {
            HostWord::Float(value) => Some(T::from_f64(value)),
            HostWord::Word(_) => None,
        },
        Input::Operand(_) | Input::Result(_) | Input::Kernel(_) => None,
    }
}

/// An operand that lies as the result does.
fn dense<'a, T: Real>(input: Input, inputs: &[Source<'a, T>]) -> Option<&'a [T]> {
    let Input::Operand(k) = input else { return None };
    let Source::View(view) = &inputs[k] else { return None };
    view.layout().is_contiguous().then(|| view.floats())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::pointwise::Epilogue;
    use crate::kernel::launch::Format;
    use crate::kernel::native::{Finish, Run, Shared, Slice, View};
    use crate::ops::{Exact, Pointwise};
    use crate::{Layout, Shape};

    const SHAPE: [usize; 4] = [2, 3, 3, 5];

    #[expect(clippy::cast_precision_loss, reason = "small integers")]
    fn numbers(seed: usize, len: usize) -> Vec<f32> {
        (0..len).map(|i| ((i + seed) * 7919 % 1013) as f32 / 97.0 - 5.0).collect()
    }

    type Instruction = (Pointwise, Vec<Input>);

    /// Whether a program begins so, and if it does, its results beside those of its instructions alone.
    fn split(instructions: Vec<Instruction>) -> Option<(bool, [Vec<f32>; 3])> {
        let shape = Shape::from(SHAPE);
        let last = instructions.len() - 1;
        let program = Program {
            shape,
            order: Format::Full,
            instructions,
            results: vec![Input::Result(last)],
            formats: vec![Format::Full],
            places: vec![None],
        };
        // Operands 0 to 2 are of channels, 3 is of elements, 4 is of columns.
        let (channels, dense) = (numbers(1, 9), numbers(2, shape.elements()));
        let of_channel = Layout::contiguous(Shape::from([3, 3, 1, 1]));
        let of_channel = |k: usize| of_channel.slice(0, k, 1).expand(shape);
        let of_column = Layout::contiguous(Shape::from([5])).expand(shape);
        let view = |data, layout| Source::View(View::new(Slice::Float(data), layout));
        let mut inputs: Vec<_> = (0..3).map(|k| view(&channels[..], of_channel(k))).collect();
        inputs.extend([view(&dense[..], Layout::contiguous(shape)), view(&dense[..], of_column)]);
        let mut x = numbers(3, shape.elements());
        x.iter_mut().zip([f32::NAN, -0.0, f32::INFINITY, -f32::INFINITY, 0.0]).for_each(|(x, value)| *x = value);
        let is_all = Affine::split(&program, &inputs, &[])?.1.is_none();
        let (affine, rest) = Affine::chain(&program, &inputs, &[]);
        let fast = Epilogue::new(affine, rest.as_deref(), &inputs, &[]);
        let slow = Epilogue::new(Chain::new(), Some(&program), &inputs, &[]);
        let mut results = [x.clone(), x.clone(), vec![f32::NAN; x.len()]];
        // A part that begins and ends inside of channels.
        let (begin, end) = (7, x.len() - 4);
        slow.finish(begin, &mut results[0][begin..end]);
        fast.finish(begin, &mut results[1][begin..end]);
        results[2][..begin].copy_from_slice(&x[..begin]);
        results[2][end..].copy_from_slice(&x[end..]);
        let runs = [(begin, 30), (begin + 30, end - begin - 30)];
        let mut runs = runs.into_iter().map(|(first, len)| Run { first, at: first, len });
        // SAFETY: there are no other threads.
        unsafe { fast.store(&x, &mut runs, &Shared::new(&mut results[2])) };
        Some((is_all, results))
    }

    fn hold(instructions: Vec<Instruction>, is_all: bool) {
        let what = format!("{instructions:?}");
        let (found, [slow, results @ ..]) = split(instructions).unwrap_or_else(|| panic!("{what} has another form"));
        assert_eq!(found, is_all, "{what}");
        let bits = |x: &[f32]| x.iter().map(|x| if x.is_nan() { u32::MAX } else { x.to_bits() }).collect::<Vec<_>>();
        results.iter().for_each(|found| assert_eq!(bits(found), bits(&slow), "{what}"));
    }

    fn constant(value: f64) -> Input {
        Input::Const(Exact(value))
    }

    #[test]
    fn the_form_gives_the_results_of_its_instructions() {
        let before = |row: usize| if row == 0 { Input::Kernel(0) } else { Input::Result(row - 1) };
        let parts: [fn(Input) -> Instruction; 7] = [
            |x| (Pointwise::Sub, vec![x, Input::Operand(0)]),
            |x| (Pointwise::Mul, vec![Input::Operand(1), x]),
            |x| (Pointwise::Round, vec![x]),
            |x| (Pointwise::Add, vec![x, Input::Operand(2)]),
            |x| (Pointwise::Add, vec![Input::Operand(3), x]),
            |x| (Pointwise::Relu, vec![x]),
            |x| (Pointwise::Clamp, vec![x, constant(0.0), constant(6.0)]),
        ];
        for taken in 1..1 << parts.len() {
            let parts = parts.iter().enumerate().filter(|(at, _)| taken >> at & 1 == 1);
            let instructions: Vec<_> = parts.enumerate().map(|(row, (_, part))| part(before(row))).collect();
            // One bound; another is the rest of the program.
            hold(instructions, taken >> 5 != 3);
        }
        let scaled = (Pointwise::Mul, vec![Input::Kernel(0), constant(0.5)]);
        hold(vec![scaled.clone(), (Pointwise::Exp, vec![Input::Result(0)])], false);
        hold(vec![scaled, (Pointwise::Add, vec![Input::Result(0), Input::Operand(4)])], false);
    }

    #[test]
    fn an_activation_ends_the_form() {
        let x = Input::Result(1);
        let next = |k: usize| Input::Result(2 + k);
        let gate = |first: Vec<Instruction>| {
            let at = first.len();
            let mut all = first;
            let sum = if at == 0 { x } else { next(at - 1) };
            all.push((Pointwise::Add, vec![sum, constant(0.5)]));
            all.push((Pointwise::Clamp, vec![next(at), constant(0.0), constant(1.0)]));
            all.push((Pointwise::Mul, vec![next(at + 1), x]));
            all
        };
        let factor = || vec![(Pointwise::Mul, vec![x, constant(0.25)])];
        let activations: Vec<Vec<Instruction>> = vec![
            gate(vec![]),
            gate(factor()),
            [gate(vec![]), vec![(Pointwise::Mul, vec![next(2), constant(0.3)])]].concat(),
            [gate(factor()), vec![(Pointwise::Div, vec![next(3), constant(0.3)])]].concat(),
            vec![(Pointwise::LeakyRelu, vec![x, constant(0.1)])],
            vec![(Pointwise::Sigmoid, vec![x])],
            vec![(Pointwise::Sigmoid, vec![x]), (Pointwise::Mul, vec![x, next(0)])],
            vec![(Pointwise::Silu, vec![x])],
            vec![(Pointwise::Gelu, vec![x])],
            vec![(Pointwise::GeluTanh, vec![x])],
            vec![(Pointwise::Tanh, vec![x])],
        ];
        for activation in activations {
            let first = |shift| {
                vec![
                    (Pointwise::Sub, vec![Input::Kernel(0), Input::Operand(0)]),
                    (Pointwise::Add, vec![Input::Result(0), shift]),
                ]
            };
            // The shift is that of a channel, or a residual.
            hold([first(Input::Operand(1)), activation.clone()].concat(), true);
            hold([first(Input::Operand(3)), activation.clone()].concat(), true);
            // More follows, or the activation reads more.
            let last = Input::Result(activation.len() + 1);
            let more = vec![(Pointwise::Mul, vec![last, Input::Operand(2)])];
            hold([first(Input::Operand(1)), activation.clone(), more].concat(), false);
            let more = vec![(Pointwise::Sub, vec![last, x])];
            hold([first(Input::Operand(1)), activation, more].concat(), false);
        }
    }

    #[test]
    fn other_programs_have_another_form() {
        let (x, of_channel, of_column) = (Input::Kernel(0), Input::Operand(0), Input::Operand(4));
        let others = [
            vec![(Pointwise::Sub, vec![of_channel, x])],
            vec![(Pointwise::Mul, vec![x, x])],
            vec![(Pointwise::Mul, vec![x, of_column])],
            vec![(Pointwise::Exp, vec![x]), (Pointwise::Relu, vec![Input::Result(0)])],
            vec![(Pointwise::Clamp, vec![x, of_channel, constant(1.0)])],
            // The kernel's own result is needed again.
            vec![(Pointwise::Relu, vec![x]), (Pointwise::Mul, vec![Input::Result(0), x])],
        ];
        others.into_iter().for_each(|program| assert!(split(program.clone()).is_none(), "{program:?}"));
    }

    #[test]
    fn results_that_are_needed_again_end_the_form() {
        let program = vec![
            (Pointwise::Mul, vec![Input::Kernel(0), Input::Operand(0)]),
            (Pointwise::Relu, vec![Input::Result(0)]),
            (Pointwise::Sub, vec![Input::Result(1), Input::Result(0)]),
        ];
        hold(program, false);
    }

    #[test]
    fn a_step_of_its_own_is_a_pass_over_an_operand() {
        let shape = Shape::from([2, 3, 20, 19]);
        let (x, gates) = (numbers(1, shape.elements()), numbers(2, 6));
        let view = |data, layout| Source::View(View::new(Slice::Float(data), layout));
        let dense = || view(&x[..], Layout::contiguous(shape));
        let gate = || view(&gates[..], Layout::contiguous(Shape::from([2, 3, 1, 1])).expand(shape));
        let program = |second| Program {
            shape,
            order: Format::Full,
            instructions: vec![(Pointwise::Mul, vec![Input::Operand(0), second])],
            results: vec![Input::Result(0)],
            formats: vec![Format::Full],
            places: vec![None],
        };
        let gated = program(Input::Operand(1));
        let wanted: Vec<_> = x.iter().enumerate().map(|(at, x)| x * gates[at / 380]).collect();
        for inputs in [[dense(), gate()], [gate(), dense()]] {
            let (affine, from) = Affine::over_operand(&gated, &inputs, &[]).expect("the form");
            let mut y = vec![f32::NAN; x.len()];
            affine.run(7, from.map(|x| &x[7..]), &mut y[7..]);
            assert_eq!(y[7..], wanted[7..]);
        }
        let inputs = [Source::Updated(0), gate()];
        let (affine, from) = Affine::over_operand(&gated, &inputs, &[]).expect("the form");
        let mut y = x.clone();
        affine.run(0, from, &mut y);
        assert_eq!(y, wanted);
        // Nothing would be gathered.
        assert!(Affine::over_operand(&program(constant(2.0)), &[dense()], &[]).is_none());
        assert!(Affine::over_operand(&gated, &[dense(), dense()], &[]).is_none());
    }

    #[test]
    fn numbers_may_be_of_columns() {
        let shape = Shape::from([3, 19]);
        let (columns, dense, x) = (numbers(1, 19), numbers(2, 57), numbers(3, 57));
        let view = |data, layout| Source::View(View::new(Slice::Float(data), layout));
        let of_column = || view(&columns[..], Layout::contiguous(Shape::from([19])).expand(shape));
        let inputs = [of_column(), of_column(), view(&dense[..], Layout::contiguous(shape))];
        let program = |instructions: Vec<Instruction>| Program {
            shape,
            order: Format::Full,
            results: vec![Input::Result(instructions.len() - 1)],
            instructions,
            formats: vec![Format::Full],
            places: vec![None],
        };
        let [first, second] = [Input::Result(0), Input::Result(1)];
        for program in [
            program(vec![(Pointwise::Add, vec![Input::Kernel(0), Input::Operand(0)])]),
            program(vec![
                (Pointwise::Mul, vec![Input::Kernel(0), constant(0.5)]),
                (Pointwise::Add, vec![first, Input::Operand(1)]),
                (Pointwise::Add, vec![second, Input::Operand(2)]),
                (Pointwise::Relu, vec![Input::Result(2)]),
            ]),
        ] {
            let (affine, rest) = Affine::chain(&program, &inputs, &[]);
            assert!(affine.len() == 1 && rest.is_none());
            let fast = Epilogue::new(affine, None, &inputs, &[]);
            let slow = Epilogue::new(Chain::new(), Some(&program), &inputs, &[]);
            let mut results = [x.clone(), x.clone(), vec![f32::NAN; x.len()]];
            // A part that begins and ends inside of rows.
            let (begin, end) = (5, x.len() - 2);
            slow.finish(begin, &mut results[0][begin..end]);
            fast.finish(begin, &mut results[1][begin..end]);
            let mut runs = [Run { first: begin, at: begin, len: end - begin }].into_iter();
            // SAFETY: there are no other threads.
            unsafe { fast.store(&x, &mut runs, &Shared::new(&mut results[2])) };
            let [slow, fast, stored] = &results;
            assert_eq!((&slow[begin..end], &slow[begin..end]), (&fast[begin..end], &stored[begin..end]));
        }
    }
}
