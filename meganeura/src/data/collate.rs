//! Collation: examples become a batch, stacked or by a function of the user's.

use std::fmt;
use std::sync::Arc;

use super::Fields;
use crate::error::bail;
use crate::host::reserve;
use crate::{Result, TensorType};

/// An example to be collated.
#[derive(Debug)]
pub struct Example<I, T> {
    /// The example's index in the source, for messages.
    number: usize,
    inputs: I,
    targets: T,
}

impl<I, T> Example<I, T> {
    pub(super) fn new(number: usize, (inputs, targets): (I, T)) -> Self {
        Self { number, inputs, targets }
    }
}

/// A function that makes a batch of examples: [`Stack`], or that of [`Batches::collate`](super::Batches::collate).
pub trait Collate<I, T>: Clone + Send + Sync + 'static {
    /// The inputs of a batch on the host.
    type Inputs: Fields;

    /// The targets of a batch on the host.
    type Targets: Fields;

    /// A batch of the next `count` examples; `None` if it is no longer wanted.
    #[doc(hidden)]
    fn collate(
        &self,
        examples: &mut dyn Iterator<Item = Result<Option<Example<I, T>>>>,
        count: usize,
    ) -> Result<Option<(Self::Inputs, Self::Targets)>>;
}

/// Stacks examples of equal shapes along a new first axis.
#[derive(Clone, Copy, Debug)]
pub struct Stack;

impl<I: Fields, T: Fields> Collate<I, T> for Stack {
    type Inputs = I::Stacked;
    type Targets = T::Stacked;

    fn collate(
        &self,
        examples: &mut dyn Iterator<Item = Result<Option<Example<I, T>>>>,
        count: usize,
    ) -> Result<Option<(I::Stacked, T::Stacked)>> {
        let Some(Example { number: first, inputs, targets }) = examples.next().transpose()?.flatten() else {
            return Ok(None);
        };
        let of_first = [inputs.types(), targets.types()];
        let of_example = |number| move |error: crate::Error| error.context(format_args!("example {number}"));
        let mut inputs = inputs.stack(count).map_err(of_example(first))?;
        let mut targets = targets.stack(count).map_err(of_example(first))?;
        for example in examples {
            let Some(example) = example? else { return Ok(None) };
            let of_this = [example.inputs.types(), example.targets.types()];
            if of_this != of_first {
                bail!(
                    Shape,
                    "example {} has {}, and example {first}, the first of its batch, {}; to batch examples that \
                     differ, give `Batches::collate` a function",
                    example.number,
                    shown(&of_this),
                    shown(&of_first)
                );
            }
            example.inputs.push_onto(&mut inputs).map_err(of_example(example.number))?;
            example.targets.push_onto(&mut targets).map_err(of_example(example.number))?;
        }
        Ok(Some((inputs, targets)))
    }
}

/// The types of an example, for messages: `inputs f32[3], u32[] and no targets`.
fn shown([inputs, targets]: &[Vec<TensorType>; 2]) -> String {
    let side = |name, types: &[TensorType]| match types {
        [] => format!("no {name}"),
        _ => format!("{name} {}", types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
    };
    format!("{} and {}", side("inputs", inputs), side("targets", targets))
}

type Function<I, T, A, B> = dyn Fn(Vec<(I, T)>) -> Result<(A, B)> + Send + Sync;

/// The function of [`Batches::collate`](super::Batches::collate), from examples `(I, T)` to a batch `(A, B)`.
pub struct Collated<I, T, A, B>(Arc<Function<I, T, A, B>>);

impl<I, T, A, B> Collated<I, T, A, B> {
    pub(super) fn new(function: impl Fn(Vec<(I, T)>) -> Result<(A, B)> + Send + Sync + 'static) -> Self {
        Self(Arc::new(function))
    }
}

impl<I, T, A, B> Clone for Collated<I, T, A, B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<I, T, A, B> fmt::Debug for Collated<I, T, A, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Collated")
    }
}

impl<I: Fields, T: Fields, A: Fields, B: Fields> Collate<I, T> for Collated<I, T, A, B> {
    type Inputs = A;
    type Targets = B;

    fn collate(
        &self,
        examples: &mut dyn Iterator<Item = Result<Option<Example<I, T>>>>,
        count: usize,
    ) -> Result<Option<(A, B)>> {
        let mut all = Vec::new();
        reserve(&mut all, count)?;
        for example in examples {
            let Some(Example { inputs, targets, .. }) = example? else { return Ok(None) };
            all.push((inputs, targets));
        }
        (self.0)(all).map(Some)
    }
}
