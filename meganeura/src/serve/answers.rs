//! What a function gives for each example.

use crate::data::Array;
use crate::tape::Outputs;
use crate::{Error, Var};

/// The results of a function that is [served](super::Batched): a [`Var`], or a tuple, an array or a `Vec` of them. A
/// function that can fail returns a `Result` of these.
pub trait Answers: Outputs {
    /// The results for one example: an [`Array`], or a tuple, an array or a `Vec` of them.
    type Arrays: Send + 'static;

    /// Builds the results from as many arrays as there are, in order.
    #[doc(hidden)]
    fn arrays(arrays: &mut dyn Iterator<Item = Array<f32>>) -> Self::Arrays;
}

/// The next array; the type guarantees that there are enough.
fn next(arrays: &mut dyn Iterator<Item = Array<f32>>) -> Array<f32> {
    arrays.next().expect("there are as many as the function gives")
}

impl Answers for Var {
    type Arrays = Array<f32>;

    fn arrays(arrays: &mut dyn Iterator<Item = Array<f32>>) -> Array<f32> {
        next(arrays)
    }
}

impl Answers for (Var, Var) {
    type Arrays = (Array<f32>, Array<f32>);

    fn arrays(arrays: &mut dyn Iterator<Item = Array<f32>>) -> Self::Arrays {
        (next(arrays), next(arrays))
    }
}

impl Answers for (Var, Var, Var) {
    type Arrays = (Array<f32>, Array<f32>, Array<f32>);

    fn arrays(arrays: &mut dyn Iterator<Item = Array<f32>>) -> Self::Arrays {
        (next(arrays), next(arrays), next(arrays))
    }
}

impl<const N: usize> Answers for [Var; N] {
    type Arrays = [Array<f32>; N];

    fn arrays(arrays: &mut dyn Iterator<Item = Array<f32>>) -> Self::Arrays {
        [0; N].map(|_| next(arrays))
    }
}

impl Answers for Vec<Var> {
    type Arrays = Vec<Array<f32>>;

    fn arrays(arrays: &mut dyn Iterator<Item = Array<f32>>) -> Self::Arrays {
        arrays.collect()
    }
}

impl<A: Answers> Answers for Result<A, Error> {
    type Arrays = A::Arrays;

    fn arrays(arrays: &mut dyn Iterator<Item = Array<f32>>) -> Self::Arrays {
        A::arrays(arrays)
    }
}
