//! The steps that exist in the sequences of a batch.

use std::panic::Location;

use crate::{Error, ErrorKind, Shape, Tensor, Var};

/// The steps that exist in the sequences of a batch `[N, T, I]`; the others are padding.
///
/// Padding leaves states as they are and gives zeros. Its contents do not matter and may be NaN. The reverse direction
/// of a bidirectional layer starts at each sequence's own end.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub enum Steps<'a> {
    /// All steps.
    #[default]
    All,
    /// The first steps of each sequence, as many as its length: integers `[N]`. A sequence of
    /// length 0 keeps its initial state.
    Lengths(&'a Var),
    /// The steps where this mask, `[N, T]`, is not 0, wherever they are.
    Mask(&'a Var),
}

impl Steps<'_> {
    /// The mask `[N, T]`, `None` if all steps exist, or `x` poisoned.
    #[track_caller]
    pub(super) fn mask(self, name: &'static str, x: &Var, [n, t]: [usize; 2]) -> Result<Option<Var>, Var> {
        let (given, kind, message) = match self {
            Steps::All => return Ok(None),
            Steps::Mask(mask) if mask.shape() == Shape::from([n, t]) && mask.ty().dtype.is_float() => {
                return Ok(Some(mask.clone()));
            }
            Steps::Mask(mask) => {
                (mask, ErrorKind::Shape, format!("the mask must be floats [{n}, {t}], it is {}", mask.ty()))
            }
            Steps::Lengths(lengths) if lengths.shape() != Shape::from([n]) || lengths.ty().dtype.is_float() => {
                let message =
                    format!("the lengths must be integers [{n}], from `Tensor::indices`, they are {}", lengths.ty());
                (lengths, ErrorKind::Shape, message)
            }
            Steps::Lengths(lengths) => match lengths.largest_index(None) {
                Some(largest) if largest as usize > t => {
                    (lengths, ErrorKind::Argument, format!("a length of {largest}, the sequences have {t} steps"))
                }
                _ => return from_lengths(x, lengths, t).map(Some),
            },
        };
        let error = Error::new(kind, message).in_op(name).operand(given.ty(), given.path());
        let error = given.error().unwrap_or(error);
        Err(x.fail(error.at(Location::caller())))
    }
}

/// Ones in the first places of each row, as many as its length, then zeros.
#[track_caller]
#[expect(clippy::cast_precision_loss, reason = "steps are far below 2^24, up to which `f32` counts exactly")]
fn from_lengths(x: &Var, lengths: &Var, t: usize) -> Result<Var, Var> {
    let numbers: Vec<_> = (0..=t).map(|step| step as f64).collect();
    let numbers = match Tensor::from_f64(&x.tape().device(), [t + 1], &numbers) {
        Ok(numbers) => x.tape().input(&numbers),
        Err(error) => return Err(x.fail(error)),
    };
    let n = lengths.shape().elements();
    Ok(numbers.slice(0, 0..t).lt(numbers.embedding(lengths).reshape([n, 1])))
}
