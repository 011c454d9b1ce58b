//! The mask of an attention, and its two kinds.

use crate::ErrorKind;
use crate::ops::{Op, Pointwise};
use crate::tape::Var;

/// The mask of an attention: a boolean one, or numbers that are added to its scores.
///
/// Zeros and ones could be either, so the kind is a part of the type. A query that sees no key gets 0, and so do all
/// gradients that flow through it, as in PyTorch's `scaled_dot_product_attention`.
///
/// ```
/// use meganeura::ops::Mask;
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let tape = Tape::new(&device);
/// let x = tape.input(&Tensor::randn(&device, [2, 3, 8], 1)?);
/// // Each query sees itself and its left neighbour, apart from the last, which sees nothing.
/// let sees = [true, false, false, true, true, false, false, false, false];
/// let sees = tape.input(&Tensor::from_bools(&device, [3, 3], &sees)?);
/// let y = x.attention(&x, &x, Some(Mask::Visible(&sees)));
/// assert_eq!(y.at((0, 0)).to_vec()?, x.at((0, 0)).to_vec()?);
/// assert_eq!(y.at((0, 2)).to_vec()?, [0.0; 8]);
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Mask<'a> {
    /// A boolean mask: a query sees a key where this is not 0, and does not see it where this is 0. It may hold floats,
    /// like the result of a comparison or [`Tensor::from_bools`](crate::Tensor::from_bools), or `u32`.
    ///
    /// This is the sense of a boolean `attn_mask` in PyTorch's `scaled_dot_product_attention`. It is the opposite of
    /// [`Var::masked_fill`], which replaces what is not 0, of `AttentionMask::padding`, and of
    /// the masks of PyTorch's `nn.MultiheadAttention` and `nn.TransformerEncoderLayer`.
    ///
    /// A negative number gives NaN: a mask of 0 and −∞ is a [`Bias`](Self::Bias).
    Visible(&'a Var),
    /// Numbers that are added to the scores: a learned bias, or distances. −∞ hides a key.
    ///
    /// The result of a comparison is refused: 1 would be added where a key is meant to be visible, and nothing would be
    /// hidden.
    Bias(&'a Var),
}

impl Mask<'_> {
    /// The numbers to add to the scores.
    #[track_caller]
    #[doc(hidden)]
    pub fn scores(self) -> Var {
        match self {
            Self::Visible(mask) => {
                let mask = if mask.ty().dtype.is_float() { mask.clone() } else { mask.to_float() };
                let [zero, hidden, undefined] = [0.0, f64::NEG_INFINITY, f64::NAN].map(|x| mask.tape().scalar(x));
                mask.where_cond(&mask.ge(&zero).where_cond(&zero, &undefined), &hidden)
            }
            Self::Bias(bias) if !bias.ty().dtype.is_float() || is_boolean(bias) => {
                let message = "a boolean mask is `Mask::Visible`; `Mask::Bias` adds its numbers to the scores";
                bias.refuse("attention", ErrorKind::Argument, message)
            }
            Self::Bias(bias) => bias.clone(),
        }
    }
}

/// `true` for the result of comparisons: zeros and ones.
fn is_boolean(x: &Var) -> bool {
    use Pointwise::{Eq, Ge, Gt, Le, Lt, Max, Min, Mul, Ne};
    // `true` if the result is boolean where all operands are.
    let joins = |op: &Op| match op {
        Op::View(_) | Op::Pointwise(Mul | Min | Max) => Some(true),
        Op::Pointwise(Eq | Ne | Lt | Le | Gt | Ge) => Some(false),
        _ => None,
    };
    let mut open = vec![x.clone()];
    // A bound: operands may be shared.
    for _ in 0..64 {
        let Some(x) = open.pop() else { return true };
        match x.made_by(joins) {
            Some((true, operands)) => open.extend(operands),
            Some((false, _)) => {}
            None => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Result;
    use crate::{Device, ErrorKind, Tape, Tensor};

    #[test]
    fn a_boolean_mask_is_no_bias() -> Result<()> {
        let device = Device::cpu();
        let tape = Tape::new(&device);
        let x = tape.input(&Tensor::randn(&device, [2, 3, 4], 1)?);
        let (rows, columns) = (tape.iota([3, 1], 0), tape.iota([1, 3], 0));
        let band = rows.ge(&columns) * (&rows - 1.0).le(&columns);
        let whole = tape.input(&Tensor::indices(&device, [3, 3], &[1; 9])?);
        for mask in [rows.ge(&columns), band.t().reshape([1, 3, 3]), rows.lt(&columns).maximum(&band), whole.clone()] {
            let (y, line) = (x.attention(&x, &x, Some(Mask::Bias(&mask))), line!());
            let error = y.error().expect("a boolean mask");
            assert_eq!((error.kind(), error.location().expect("a line").line()), (ErrorKind::Argument, line));
            assert!(error.to_string().contains("attention: a boolean mask is `Mask::Visible`"), "{error}");
            assert!(x.attention(&x, &x, Some(Mask::Visible(&mask))).to_vec()?.iter().all(|y| y.is_finite()));
        }
        // Numbers that only begin with a comparison are a bias.
        let bias = band * -0.5;
        assert!(x.attention(&x, &x, Some(Mask::Bias(&bias))).to_vec()?.iter().all(|y| y.is_finite()));
        Ok(())
    }

    #[test]
    fn the_kinds_say_the_same() -> Result<()> {
        let device = Device::cpu();
        let tape = Tape::new(&device);
        let x = tape.input(&Tensor::randn(&device, [2, 3, 4], 1)?);
        let sees = [true, false, true, false, false, false, true, true, false];
        let added = sees.map(|sees| if sees { 0.0 } else { f32::NEG_INFINITY });
        let floats = tape.input(&Tensor::from_bools(&device, [3, 3], &sees)?);
        let integers = tape.input(&Tensor::indices(&device, [3, 3], &sees.map(u32::from))?);
        let added = tape.input(&Tensor::from_slice(&device, [3, 3], &added)?);
        let of = |mask: Mask<'_>| x.attention(&x, &x, Some(mask)).to_vec();
        let expected = of(Mask::Bias(&added))?;
        assert_eq!(of(Mask::Visible(&floats))?, expected);
        assert_eq!(of(Mask::Visible(&(&floats * 3.0)))?, expected);
        assert_eq!(of(Mask::Visible(&integers))?, expected);
        // Numbers to add are no boolean mask: rows that would be read the wrong way round are NaN.
        assert!(of(Mask::Visible(&added))?.iter().all(|y| y.is_nan()));
        Ok(())
    }
}
