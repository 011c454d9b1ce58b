//! Quantised operators: integers that stand for floats by a scale and a zero point.
//!
//! Quantised numbers are whole floats on the tape. Products of those of 8 bits are summed as `i32`.

use super::call::{Call, Operators};
use super::element::{Element, Kind};
use super::images::{convolved, convolved_bytes};
use super::matrices::as_matrices;
use super::narrow::Rounding;
use super::numeric::named_type;
use super::value::{Value, sound};
use crate::error::bail;
use crate::onnx::proto;
use crate::ops::Bytes;
use crate::{DType, Precision, Result, Tape, Var};

pub(super) const OPERATORS: Operators = &[
    ("ConvInteger", |call| {
        let sums = convolution(call, [0, 1], [2, 3], None, DType::I32)?;
        Ok(vec![Value::Var(sums, Element::I32)])
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
        let (a, b) = (Factor::of(call, 0, 2, Side::Left)?, Factor::of(call, 1, 3, Side::Right)?);
        Ok(vec![Value::Var(a.times(&b, DType::I32)?, Element::I32)])
    }),
    ("QLinearConv", |call| {
        let sums = convolution(call, [0, 3], [2, 5], Some(8), call.tape.device().precision().dtype())?;
        let scale = call.float(1)?.reshape([]) * of_channels(&call.float(4)?, sums.shape().rank())?;
        requantised_sums(call, &sums, scale, 6, 7)
    }),
    ("QLinearMatMul", |call| {
        let (a, b) = (Factor::of(call, 0, 2, Side::Left)?, Factor::of(call, 3, 5, Side::Right)?);
        let scale = along(&call.float(1)?, a.x.shape().rank(), Side::Left)?
            * along(&call.float(4)?, b.x.shape().rank(), Side::Right)?;
        requantised_sums(call, &a.times_float(&b)?, scale, 6, 7)
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

/// A factor of a product of bytes.
pub(super) struct Factor {
    pub(super) x: Var,
    /// Its zero points, which broadcast to it.
    zero: Var,
    bytes: Bytes,
}

impl Factor {
    /// Operand `k`, with the zero points of operand `zero`, if there are any.
    pub(super) fn of(call: &Call<'_>, k: usize, zero: usize, side: Side) -> Result<Self> {
        let x = call.float(k)?;
        let zero = match call.optional(zero) {
            Some(_) => along(&call.float(zero)?, x.shape().rank(), side)?,
            None => x.constant(0.0),
        };
        Ok(Self { x, zero, bytes: bytes(call, k)? })
    }

    /// Bytes without a sign that were computed, and their zero point.
    pub(super) fn computed(x: Var, zero: Var) -> Self {
        Self { x, zero, bytes: Bytes::Unsigned }
    }

    /// The transpose of one with a single zero point, or one for each column afterwards.
    pub(super) fn t(self) -> Self {
        Self { x: self.x.t(), ..self }
    }

    /// The product as floats.
    pub(super) fn times_float(&self, other: &Self) -> Result<Var> {
        self.times(other, self.x.ty().dtype)
    }

    /// The product, as sums of this type.
    pub(super) fn times(&self, other: &Self, result: DType) -> Result<Var> {
        as_matrices(&self.x, &other.x, |a, b| {
            a.matmul_integer(b, [&self.zero, &other.zero], [self.bytes, other.bytes], result)
        })
    }
}

/// The bytes that operand `k` holds.
fn bytes(call: &Call<'_>, k: usize) -> Result<Bytes> {
    match call.value(k)?.element() {
        Element::I8 => Ok(Bytes::Signed),
        Element::U8 => Ok(Bytes::Unsigned),
        other => bail!(Checkpoint, "products of {} are not supported, only of int8 and uint8", other.name()),
    }
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

/// `true` if operand `k` is missing, or a constant whose elements are all 0.
fn is_zero(call: &Call<'_>, k: usize) -> bool {
    match call.optional(k) {
        Some(Value::Known(array)) => array.as_floats().iter().all(|&x| x == 0.0),
        Some(_) => false,
        None => true,
    }
}

/// The most taps whose sum of products of bytes is exact in single precision.
const EXACT: usize = 256;

/// A convolution of operand `x` with operand `w` and perhaps a bias, without their zero points, as sums of this type.
fn convolution(call: &Call<'_>, [x, w]: [usize; 2], at: [usize; 2], bias: Option<usize>, result: DType) -> Result<Var> {
    let bytes = [bytes(call, x)?, bytes(call, w)?];
    let (x, weight) = (call.float(x)?, sound(call.float(w)?)?);
    let extents = weight.shape();
    let [channels, of_group, kernel @ ..] = extents.dims() else {
        bail!(Checkpoint, "a weight {extents}");
    };
    let zero = |k: usize| if call.optional(k).is_some() { call.float(k) } else { Ok(x.constant(0.0)) };
    let (zero, zeros) = (zero(at[0])?, zero(at[1])?);
    if zero.shape().elements() != 1 || ![1, *channels].contains(&zeros.shape().elements()) {
        bail!(Checkpoint, "zero points of extents {} and {}", zero.shape(), zeros.shape());
    }
    let zeros = zeros.reshape([zeros.shape().elements()]);
    let bias = bias.filter(|&bias| call.optional(bias).is_some());
    // A channel alone leaves most of a word of bytes empty; and floats hold its sums exactly.
    if *of_group == 1 && kernel.iter().product::<usize>() <= EXACT && x.tape().device().precision() != Precision::Fast {
        let mut dims = vec![1; weight.shape().rank()];
        dims[0] = zeros.shape().elements();
        let x = if is_zero(call, at[0]) { x.clone() } else { &x - zero.reshape([]) };
        let weight = if is_zero(call, at[1]) { weight } else { &weight - zeros.reshape(call.shape(&dims)?) };
        let sums = convolved(call, &sound(x)?, &sound(weight)?)?;
        return Ok(match bias {
            Some(bias) => &sums + of_channels(&call.float(bias)?, sums.shape().rank())?,
            None if result == DType::I32 => sums.cast(result),
            None => sums,
        });
    }
    let bias = match bias {
        Some(bias) => call.own(bias)?,
        None => x.constant(0.0).cast(DType::I32).expand([*channels]),
    };
    let [zero, zeros] = [zero.reshape([1]), zeros.expand([*channels])];
    convolved_bytes(call, [&x, &weight], [&zero, &zeros, &bias], bytes, result)
}

/// What a `DequantizeLinear` takes: bytes, and their scales and zero points, one or those along an axis.
///
/// On the CPU, products of what it gives are products of the bytes, with their scales afterwards: they are faster.
#[derive(Clone)]
pub(super) struct Dequantised {
    x: Value,
    scale: Value,
    zero: Option<Value>,
    axis: i64,
}

impl Dequantised {
    /// `None` for other nodes.
    pub(super) fn of(node: &proto::Node, inputs: &[Option<Value>]) -> Option<Self> {
        let [Some(x), Some(scale), rest @ ..] = inputs else { return None };
        if node.op_type != "DequantizeLinear" || !matches!(x.element(), Element::I8 | Element::U8) {
            return None;
        }
        let int = |name: &str| node.attribute.iter().find(|attribute| attribute.name == name).map(|found| found.i);
        let is_blocked = int("block_size").flatten().is_some_and(|size| size != 0);
        let axis = int("axis").flatten().unwrap_or(1);
        let zero = rest.first().cloned().flatten();
        (!is_blocked).then(|| Self { x: x.clone(), scale: scale.clone(), zero, axis })
    }

    fn bytes(&self) -> Bytes {
        if self.x.element() == Element::I8 { Bytes::Signed } else { Bytes::Unsigned }
    }

    fn zero(&self, tape: &Tape) -> Result<Var> {
        self.zero.as_ref().map_or_else(|| Ok(tape.constant(0.0)), |zero| zero.float(tape))
    }

    fn factor(&self, tape: &Tape) -> Result<Factor> {
        Ok(Factor { x: self.x.float(tape)?, zero: flat(&self.zero(tape)?), bytes: self.bytes() })
    }

    /// `true` if there is one scale.
    fn is_even(&self) -> bool {
        self.scale.dims().iter().product::<usize>() == 1
    }

    /// `true` if there is one scale, or if they lie along this axis.
    fn is_along(&self, axis: usize) -> bool {
        let rank = self.x.dims().len();
        let named = if self.axis < 0 { self.axis.checked_add_unsigned(rank as u64) } else { Some(self.axis) };
        self.is_even() || (self.scale.dims().len() == 1 && named == i64::try_from(axis).ok())
    }
}

/// The operands of a product on the CPU, if both were bytes.
fn both<'c>(call: &'c Call<'_>) -> Option<[&'c Dequantised; 2]> {
    let device = call.tape.device();
    let [Some(a), Some(b), ..] = &call.origins[..] else { return None };
    (!device.is_gpu() && device.precision() == Precision::Full && a.is_even()).then_some([a, b])
}

/// The convolution of a node whose operands were bytes, without its bias.
pub(super) fn convolution_of_bytes(call: &Call<'_>) -> Result<Option<Var>> {
    let Some([x, w]) = both(call).filter(|[_, w]| w.is_along(0)) else { return Ok(None) };
    let (tape, weight) = (call.tape, w.x.float(call.tape)?);
    let [channels, of_group, ..] = *weight.shape().dims() else { return Ok(None) };
    if of_group == 1 {
        return Ok(None);
    }
    let zeros = w.zero(tape)?;
    let zeros = zeros.reshape([zeros.shape().elements()]).expand([channels]);
    let bias = tape.constant(0.0).cast(DType::I32).expand([channels]);
    let others = [&x.zero(tape)?.reshape([1]), &zeros, &bias];
    let sums = convolved_bytes(call, [&x.x.float(tape)?, &weight], others, [x.bytes(), w.bytes()], DType::F32)?;
    let scale = of_channels(&w.scale.float(tape)?, sums.shape().rank())?;
    Ok(Some(sums * (x.scale.float(tape)?.reshape([]) * scale)))
}

/// The product of a node whose operands were bytes; `is_transposed` tells whether the second one is to be transposed.
pub(super) fn product_of_bytes(call: &Call<'_>, is_transposed: bool) -> Result<Option<Var>> {
    let Some([a, b]) = both(call) else { return Ok(None) };
    let rank = b.x.dims().len();
    if rank < 2 || !b.is_along(rank - if is_transposed { 2 } else { 1 }) {
        return Ok(None);
    }
    let tape = call.tape;
    let (x, y) = (a.factor(tape)?, b.factor(tape)?);
    let sums = x.times_float(&if is_transposed { y.t() } else { y })?;
    Ok(Some(sums * (flat(&a.scale.float(tape)?) * flat(&b.scale.float(tape)?))))
}

/// One number, or those along the last axis.
fn flat(x: &Var) -> Var {
    if x.shape().elements() == 1 { x.reshape([]) } else { x.clone() }
}

/// Floats as quantised numbers of a scale and a zero point, as the only result.
pub(super) fn requantised(call: &Call<'_>, x: Var, scale: usize, zero: usize) -> Result<Vec<Value>> {
    let (own, point, element) = target(call, scale, zero)?;
    Ok(vec![rounded(&(sound(x)? / own), point.as_ref(), element)?])
}

/// The same of sums that have a scale, by one factor.
pub(super) fn requantised_sums(
    call: &Call<'_>,
    sums: &Var,
    factor: Var,
    scale: usize,
    zero: usize,
) -> Result<Vec<Value>> {
    let (own, point, element) = target(call, scale, zero)?;
    Ok(vec![rounded(&sound(sums * (factor / own))?, point.as_ref(), element)?])
}

/// A quantised value without an axis as numbers of another scale and zero point.
pub(super) fn requantised_part(call: &Call<'_>, x: &Quantised, scale: usize, zero: usize) -> Result<(Var, Element)> {
    let (own, point, element) = target(call, scale, zero)?;
    let shift = match call.optional(x.zero) {
        Some(_) => call.float(x.x)? - call.float(x.zero)?.reshape([]),
        None => call.float(x.x)?,
    };
    let factor = call.float(x.scale)?.reshape([]) / own;
    let y = rounded(&sound(shift * factor)?, point.as_ref(), element)?;
    Ok((y.float(call.tape)?, y.element()))
}

/// A scale, perhaps a zero point, and the type of the quantised numbers.
fn target(call: &Call<'_>, scale: usize, zero: usize) -> Result<(Var, Option<Var>, Element)> {
    let own = call.float(scale)?;
    let own = if own.shape().elements() == 1 { own.reshape([]) } else { own };
    Ok(match call.optional(zero) {
        Some(value) if value.kind() == Kind::Int => {
            let point = call.float(zero)?;
            (own, Some(if point.shape().elements() == 1 { point.reshape([]) } else { point }), value.element())
        }
        Some(value) => bail!(Checkpoint, "a zero point of {}", value.element().name()),
        None => (own, None, Element::U8),
    })
}
