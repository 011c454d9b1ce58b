//! Quantised operators: integers that stand for floats by a scale and a zero point.
//!
//! Quantised numbers are whole floats on the tape. Products of integers of 8 bits are summed in parts that floats hold
//! exactly.

use super::call::{Call, Operators};
use super::element::{Element, Kind};
use super::images::convolved;
use super::matrices::product;
use super::narrow::Rounding;
use super::numeric::named_type;
use super::value::{Value, sound};
use crate::error::bail;
use crate::{DType, Precision, Result, Var};

pub(super) const OPERATORS: Operators = &[
    ("ConvInteger", |call| {
        let sums = convolution(call, [0, 1], [2, 3])?;
        Ok(vec![Value::Var(sums.cast(DType::I32), Element::I32)])
    }),
    ("DequantizeLinear", |call| {
        let element = named_type(call, "output_dtype", call.value(1)?.element())?;
        let x = Quantised { x: 0, scale: 1, zero: 2 }.float(call)?;
        Ok(vec![Value::Var(sound(x)?, element)])
    }),
    ("DynamicQuantizeLinear", |call| {
        let (y, scale, zero) = dynamic(&call.float(0)?);
        let scale = Value::Var(scale, call.value(0)?.element());
        Ok(vec![Value::Var(y, Element::U8), scale, Value::Var(zero, Element::U8)])
    }),
    ("MatMulInteger", |call| {
        let (a, b) = (shifted(call, 0, 2, Side::Left)?, shifted(call, 1, 3, Side::Right)?);
        Ok(vec![Value::Var(products(&a, &b)?.cast(DType::I32), Element::I32)])
    }),
    ("QLinearConv", |call| {
        let sums = convolution(call, [0, 3], [2, 5])?;
        let sums = match call.optional(8) {
            Some(_) => sums.cast(DType::I32) + of_channels(&call.own(8)?, sums.shape().rank())?,
            None => sums,
        };
        let sums = floats(sums);
        let scale = call.float(1)?.reshape([]) * of_channels(&call.float(4)?, sums.shape().rank())?;
        requantised(call, sums * scale, 6, 7)
    }),
    ("QLinearMatMul", |call| {
        let (a, b) = (shifted(call, 0, 2, Side::Left)?, shifted(call, 3, 5, Side::Right)?);
        let scale = along(&call.float(1)?, a.shape().rank(), Side::Left)?
            * along(&call.float(4)?, b.shape().rank(), Side::Right)?;
        requantised(call, floats(products(&a, &b)?) * scale, 6, 7)
    }),
    ("QuantizeLinear", quantize_linear),
];

/// The operands of a quantised value.
pub(super) struct Quantised {
    pub(super) x: usize,
    pub(super) scale: usize,
    pub(super) zero: usize,
}

impl Quantised {
    /// The floats that it stands for.
    pub(super) fn float(&self, call: &Call<'_>) -> Result<Var> {
        self.scaled(call, spread)
    }

    /// The same of an operator without an axis: there is one scale and one zero point.
    pub(super) fn float_alone(&self, call: &Call<'_>) -> Result<Var> {
        self.scaled(call, |_, parameter, _| sound(parameter.reshape([])))
    }

    fn scaled(&self, call: &Call<'_>, shaped: impl Fn(&Call<'_>, &Var, &Var) -> Result<Var>) -> Result<Var> {
        // Integers of more than 16 bits have no exact floats.
        let is_wide = call.value(self.x)?.element().integer().is_some_and(|(bits, _)| bits > 16);
        let operand = |k: usize| if is_wide { call.own(k) } else { call.float(k) };
        let x = operand(self.x)?;
        let shift = match call.optional(self.zero) {
            Some(_) => &x - shaped(call, &operand(self.zero)?, &x)?,
            None => x.clone(),
        };
        sound(floats(shift) * shaped(call, &call.float(self.scale)?, &x)?)
    }
}

/// Sums of integers as floats, rounded to the nearest.
pub(super) fn floats(sums: Var) -> Var {
    if sums.ty().dtype.is_float() { sums } else { sums.to_float() }
}

/// A scale or a zero point in the shape of `x`, or one that broadcasts to it: one number, one for each place along an
/// axis, or one for each block of places.
fn spread(call: &Call<'_>, parameter: &Var, x: &Var) -> Result<Var> {
    let (axis, block) = (call.int("axis", 1)?, call.int("block_size", 0)?);
    let dims = parameter.shape().dims().to_vec();
    if dims.iter().product::<usize>() == 1 && (dims.len() <= 1 || block == 0) {
        return Ok(parameter.reshape([]));
    }
    let axis = call.axis(axis, x.shape().rank())?;
    let extent = x.shape()[axis];
    match dims[..] {
        [count] if block == 0 && count == extent => {
            let mut dims = vec![1; x.shape().rank()];
            dims[axis] = count;
            Ok(parameter.reshape(&dims[..]))
        }
        _ => {
            let block = usize::try_from(block).unwrap_or(0);
            let fits = |k: usize| dims[k] == if k == axis { extent.div_ceil(block) } else { x.shape()[k] };
            if block == 0 || dims.len() != x.shape().rank() || !(0..dims.len()).all(fits) {
                bail!(Checkpoint, "a scale or zero point of extents {dims:?}, for {} in blocks of {block}", x.shape());
            }
            Ok(sound(parameter.repeat_interleave(block, axis).slice(axis, 0..extent))?)
        }
    }
}

/// The nearest integers of a type, which must be one of at most 16 bits.
pub(super) fn rounded(x: &Var, zero: Option<&Var>, element: Element) -> Result<Value> {
    let [low, high] = match element.integer() {
        Some((..=16, _)) => element.bounds(),
        _ => bail!(Checkpoint, "quantised numbers of type {} are not supported", element.name()),
    };
    let x = x.round();
    let x = zero.map_or_else(|| x.clone(), |zero| &x + zero);
    Ok(Value::Var(sound(x.clamp(low, high))?, element))
}

pub(super) fn quantize_linear(call: &Call<'_>) -> Result<Vec<Value>> {
    // Of integers, all saturate; quotients have the precision of the device.
    call.ignore(&["saturate", "precision"]);
    let x = call.float(0)?;
    let scale = spread(call, &call.float(1)?, &x)?;
    let zero = call.optional(2).map(|_| spread(call, &call.float(2)?, &x)).transpose()?;
    let usual = call.optional(2).map_or(Element::U8, Value::element);
    let named = match call.int("output_dtype", 0)? {
        0 => usual,
        _ => named_type(call, "output_dtype", usual)?,
    };
    if call.optional(2).is_some() && named != usual {
        bail!(
            Checkpoint,
            "the attribute `output_dtype` is {}, and the zero point holds {}",
            named.name(),
            usual.name()
        );
    }
    let quotients = x / scale;
    if let Element::Narrow(format) = named {
        let x = zero.map_or_else(|| quotients.clone(), |zero| &quotients + zero);
        return Ok(vec![Value::Var(Rounding::of_call(call, format)?.record(&sound(x)?), named)]);
    }
    Ok(vec![rounded(&quotients, zero.as_ref(), named)?])
}

/// Bytes, their scale and their zero point, such that the range of `x` and 0 is covered.
pub(super) fn dynamic(x: &Var) -> (Var, Var, Var) {
    let zero = x.constant(0.0);
    let (low, high) = (x.min().minimum(&zero), x.max().maximum(&zero));
    let scale = (high - &low).scale(1.0 / 255.0);
    // Of zeros alone, any scale is right.
    let divisor = scale.eq(&zero).where_cond(&x.constant(1.0), &scale);
    let point = (-low / &divisor).clamp(0.0, 255.0).round();
    let y = ((x / divisor).round() + &point).clamp(0.0, 255.0);
    (y, scale, point)
}

/// The place of a factor in a product of matrices.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// Its scales and zero points are those of rows.
    Left,
    /// Its scales and zero points are those of columns.
    Right,
}

/// Scales or zero points, shaped for a factor with this many axes.
fn along(x: &Var, rank: usize, side: Side) -> Result<Var> {
    let count = x.shape().elements();
    match x.shape().rank() {
        0 | 1 if count == 1 => Ok(x.reshape([])),
        1 if side == Side::Left && rank > 1 => Ok(x.reshape([count, 1])),
        1 if side == Side::Right => Ok(x.clone()),
        // [.., M, 1] or [.., 1, N]
        _ => sound(x.clone()),
    }
}

/// A factor without its zero point.
pub(super) fn shifted(call: &Call<'_>, k: usize, zero: usize, side: Side) -> Result<Var> {
    let x = call.float(k)?;
    Ok(match call.optional(zero) {
        Some(_) => &x - along(&call.float(zero)?, x.shape().rank(), side)?,
        None => x,
    })
}

/// The most products of two differences of bytes whose sum is exact in single precision.
fn most_terms(x: &Var) -> usize {
    // Every whole number up to this one is a float.
    let limit = if x.ty().dtype == DType::F64 { 2f64.powi(53) } else { 2f64.powi(24) };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small whole number")]
    let most = (limit / (255.0 * 255.0)) as usize;
    most
}

/// Refuses products in 16 bits, which would round.
fn expect_exact(x: &Var) -> Result<()> {
    match x.tape().device().precision() {
        Precision::Fast => bail!(Checkpoint, "products of integers are not supported in fast precision"),
        _ => Ok(()),
    }
}

/// The sum of exact parts: floats if there is one, else `i32`, which wraps around.
fn total(parts: &[Var]) -> Result<Var> {
    match parts {
        [] => bail!(Checkpoint, "there is nothing to sum"),
        [part] => sound(part.clone()),
        [first, rest @ ..] => sound(rest.iter().fold(first.cast(DType::I32), |sum, part| sum + part.cast(DType::I32))),
    }
}

/// A product of matrices of integers of at most 9 bits.
pub(super) fn products(a: &Var, b: &Var) -> Result<Var> {
    expect_exact(a)?;
    let (x, y) = (sound(a.clone())?.shape(), sound(b.clone())?.shape());
    let (Some(&count), true) = (x.dims().last(), y.rank() > 0) else {
        bail!(Checkpoint, "a product of {x} and {y}");
    };
    let (of_a, of_b) = (x.rank() - 1, y.rank().saturating_sub(2));
    if y[of_b] != count {
        bail!(Checkpoint, "a product of {x} and {y}");
    }
    let most = most_terms(a);
    let part = |first: usize| {
        let range = first..(first + most).min(count);
        product(&a.slice(of_a, range.clone()), &b.slice(of_b, range))
    };
    total(&(0..count).step_by(most).map(part).collect::<Result<Vec<_>>>()?)
}

/// A number for each channel, or one for all.
fn of_channels(x: &Var, rank: usize) -> Result<Var> {
    let count = x.shape().elements();
    if count == 1 {
        return Ok(x.reshape([]));
    }
    let mut dims = vec![1; rank];
    dims[1] = count;
    sound(x.reshape(&dims[..]))
}

/// A convolution of operand `x` with operand `w`, without their zero points.
fn convolution(call: &Call<'_>, [x, w]: [usize; 2], zeros: [usize; 2]) -> Result<Var> {
    let x = shifted(call, x, zeros[0], Side::Right)?;
    let weight = call.float(w)?;
    let weight = match call.optional(zeros[1]) {
        Some(_) => {
            let zero = call.float(zeros[1])?;
            let mut dims = vec![1; weight.shape().rank()];
            dims[0] = zero.shape().elements();
            &weight - sound(zero.reshape(call.shape(&dims)?))?
        }
        None => weight,
    };
    expect_exact(&x)?;
    let most = most_terms(&x);
    let dims = sound(weight.clone())?.shape();
    let [_, channels, kernel @ ..] = dims.dims() else { bail!(Checkpoint, "a weight {dims}") };
    let area = kernel.iter().product::<usize>().max(1);
    if channels * area <= most {
        return convolved(call, &x, &weight);
    }
    if call.int("group", 1)? != 1 || area > most || x.shape().dims().get(1) != Some(channels) {
        bail!(Checkpoint, "sums of {} products of integers in groups are not supported", channels * area);
    }
    let step = most / area;
    let part = |first: usize| {
        let range = first..(first + step).min(*channels);
        convolved(call, &x.slice(1, range.clone()), &weight.slice(1, range))
    };
    total(&(0..*channels).step_by(step).map(part).collect::<Result<Vec<_>>>()?)
}

/// Floats as quantised numbers of a scale and a zero point, as the only result.
pub(super) fn requantised(call: &Call<'_>, x: Var, scale: usize, zero: usize) -> Result<Vec<Value>> {
    let own = call.float(scale)?;
    let own = if own.shape().elements() == 1 { own.reshape([]) } else { own };
    let (point, element) = match call.optional(zero) {
        Some(value) if value.kind() == Kind::Int => {
            let point = call.float(zero)?;
            (Some(if point.shape().elements() == 1 { point.reshape([]) } else { point }), value.element())
        }
        Some(value) => bail!(Checkpoint, "a zero point of {}", value.element().name()),
        None => (None, Element::U8),
    };
    Ok(vec![rounded(&(sound(x)? / own), point.as_ref(), element)?])
}
