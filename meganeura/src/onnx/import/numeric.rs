//! Functions of numbers with definitions of their own: gates, products along an axis, windows, normalisation over
//! neighbours.

use super::call::{Call, Operators, condition, known};
use super::element::{Element, Kind};
use super::images::padded;
use super::value::{Array, Data, Value, sound};
use crate::error::bail;
use crate::host::reserve;
use crate::{Result, Shape, Var};

pub(super) const OPERATORS: Operators = &[
    ("Acos", |call| of_float(call, |x| atan(&((x.constant(1.0) - x) / (x + x.constant(1.0))).sqrt()).scale(2.0))),
    // Accurate near 0, and for large numbers.
    ("Acosh", |call| of_float(call, |x| (x + ((x - x.constant(1.0)) * (x + x.constant(1.0))).sqrt()).log())),
    ("Asin", |call| {
        of_float(call, |x| {
            let one = x.constant(1.0);
            atan(&(x / ((&one - x) * (&one + x)).sqrt()))
        })
    }),
    ("Asinh", |call| {
        of_float(call, |x| {
            let size = x.abs();
            let square = size.square();
            let y = log1p(&(&size + &square / ((&square + x.constant(1.0)).sqrt() + x.constant(1.0))));
            // The square overflows where the logarithm of twice the number is exact.
            let large = size.gt(x.constant(1e9)).where_cond(&(size.log() + x.constant(2f64.ln())), &y);
            x.sign() * large
        })
    }),
    ("Atan", |call| of_float(call, atan)),
    ("Atanh", |call| of_float(call, |x| (log1p(x) - log1p(&-x)).scale(0.5))),
    ("BlackmanWindow", |call| window(call, [0.42, 0.5, 0.08])),
    ("CumProd", |call| accumulated(call, Var::cumprod, 1.0)),
    ("EyeLike", eye_like),
    ("HammingWindow", |call| window(call, [25.0 / 46.0, 21.0 / 46.0, 0.0])),
    ("HannWindow", |call| window(call, [0.5, 0.5, 0.0])),
    ("Hardmax", hardmax),
    ("IsInf", |call| {
        let x = call.float(0)?;
        let (negative, positive) = (call.flag("detect_negative", true)?, call.flag("detect_positive", true)?);
        let is = |wanted: bool, bound: f64| x.eq(x.constant(bound)) * x.constant(f64::from(u8::from(wanted)));
        condition(is(negative, f64::NEG_INFINITY) + is(positive, f64::INFINITY))
    }),
    ("LRN", |call| {
        let x = call.float(0)?;
        let Ok(size @ 1..=1024) = usize::try_from(call.required("size")?) else {
            bail!(Checkpoint, "the attribute `size` is not between 1 and 1024");
        };
        let (alpha, beta) = (call.real("alpha", 1e-4)?, call.real("beta", 0.75)?);
        let bias = call.real("bias", 1.0)?;
        let shape = x.shape();
        let [n, c, rest @ ..] = shape.dims() else { bail!(Checkpoint, "{shape} has no channels") };
        // Channels as rows of an image, which a mean slides along.
        let squares = x.square().reshape([*n, 1, *c, rest.iter().product()]);
        let squares = padded(&squares, &[(0, 0), (0, 0), ((size - 1) / 2, size / 2), (0, 0)], 0.0);
        let means = sound(squares.avg_pool2d([size, 1], [1, 1], [0, 0], true))?.reshape(shape);
        let scale = means.scale(alpha) + x.constant(bias);
        call.floats(&x * scale.powf(-beta))
    }),
    ("MeanVarianceNormalization", |call| {
        let x = call.float(0)?;
        let axes = call.optional_list("axes")?.unwrap_or_else(|| vec![0, 2, 3]);
        let axes = call.axes(&axes, x.shape().rank())?;
        if axes.is_empty() {
            bail!(Checkpoint, "the attribute `axes` is empty");
        }
        let apart = &x - x.mean_keep(&axes);
        let deviation = apart.square().mean_keep(&axes).sqrt();
        call.floats(apart / (deviation + x.constant(1e-9)))
    }),
    ("MelWeightMatrix", mel_weights),
    ("Shrink", |call| {
        let (lambda, offset) = (call.real("lambd", 0.5)?, call.real("bias", 0.0)?);
        let x = call.float(0)?;
        let (zero, far, bias) = (x.constant(0.0), x.constant(lambda), x.constant(offset));
        let below = x.lt(&-&far).where_cond(&(&x + &bias), &zero);
        let y = x.gt(&far).where_cond(&(&x - &bias), &below);
        let y = call.value(0)?.element().integer_dtype().map_or_else(|| y.clone(), |dtype| y.cast(dtype));
        call.computed(&y)
    }),
    ("SwiGLU", |call| {
        let (gate, x) = (call.float(0)?, call.float(1)?);
        if gate.shape() != x.shape() {
            bail!(Checkpoint, "a gate {} of {}", gate.shape(), x.shape());
        }
        let alpha = call.real("alpha", 1.0)?;
        call.floats(&gate * gate.scale(alpha).sigmoid() * x)
    }),
];

fn of_float(call: &Call<'_>, f: impl FnOnce(&Var) -> Var) -> Result<Vec<Value>> {
    call.floats(f(&call.float(0)?))
}

/// The angle whose tangent is `x`: that of `1/x` beyond 1, then a quarter of it by halving twice, whose tangent is at
/// most 0.2, by its series.
fn atan(x: &Var) -> Var {
    let one = x.constant(1.0);
    let is_large = x.abs().gt(&one);
    let inverse = is_large.where_cond(x, &one).recip();
    let half = |x: Var| &x / ((x.square() + &one).sqrt() + &one);
    let quarter = half(half(is_large.where_cond(&inverse, x)));
    let square = quarter.square();
    let series = (0..12).rev().fold(x.constant(0.0), |sum, k| {
        let sign = if k % 2 == 0 { 1.0 } else { -1.0 };
        sum * &square + x.constant(sign / f64::from(2 * k + 1))
    });
    let angle = (series * quarter).scale(4.0);
    is_large.where_cond(&(x.sign().scale(std::f64::consts::FRAC_PI_2) - &angle), &angle)
}

/// `ln(1 + x)`: the logarithm of the rounded sum, corrected by what the rounding lost.
fn log1p(x: &Var) -> Var {
    let sum = x + x.constant(1.0);
    let kept = &sum - x.constant(1.0);
    let is_lost = kept.eq(x.constant(0.0));
    let kept = is_lost.where_cond(&x.constant(1.0), &kept);
    is_lost.where_cond(x, &(sum.log() * (x / kept)))
}

/// The results of a function along an axis, with each element's own part or without it, from the first or the last.
pub(super) fn along(
    call: &Call<'_>,
    x: &Var,
    axis: usize,
    f: impl Fn(&Var, usize) -> Var,
    neutral: f64,
) -> Result<Var> {
    let x = if call.flag("reverse", false)? { x.flip(&[axis]) } else { x.clone() };
    let count = x.shape()[axis];
    let x = match call.flag("exclusive", false)? {
        true if count == 1 => x.constant(neutral).expand(x.shape()),
        true => {
            let mut widths = vec![(0, 0); x.shape().rank()];
            widths[axis].0 = 1;
            x.slice(axis, 0..count - 1).pad(&widths, neutral)
        }
        false => x,
    };
    let y = f(&x, axis);
    Ok(if call.flag("reverse", false)? { y.flip(&[axis]) } else { y })
}

fn accumulated(call: &Call<'_>, f: impl Fn(&Var, usize) -> Var, neutral: f64) -> Result<Vec<Value>> {
    if call.value(0)?.kind() == Kind::Int {
        bail!(Checkpoint, "products of {} are not supported", call.value(0)?.element().name());
    }
    let x = call.float(0)?;
    let [axis] = call.ints(1)?[..] else { bail!(Checkpoint, "operand 1 is not one axis") };
    let axis = call.axis(axis, x.shape().rank())?;
    call.floats(along(call, &x, axis, f, neutral)?)
}

/// The first of the largest elements along an axis is 1, the others are 0.
fn hardmax(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.float(0)?;
    let rank = x.shape().rank();
    let axis = call.axis(call.int("axis", if call.opset < 13 { 1 } else { -1 })?, rank)?;
    if call.opset < 13 {
        let dims = x.shape();
        let rows = [dims.dims()[..axis].iter().product(), dims.dims()[axis..].iter().product()];
        let rows: Shape = rows.into();
        return call.floats(highest(&x.reshape(rows), 1).reshape(x.shape()));
    }
    call.floats(highest(&x, axis))
}

fn highest(x: &Var, axis: usize) -> Var {
    let classes = x.shape()[axis];
    let rows = x.argmax(axis).one_hot(classes);
    let rank = x.shape().rank();
    let mut axes: Vec<_> = (0..rank).collect();
    axes[axis..].rotate_right(1);
    rows.permute(&axes)
}

/// The type in an attribute.
pub(super) fn named_type(call: &Call<'_>, name: &str, default: Element) -> Result<Element> {
    let Some(number) = call.optional_int(name)? else { return Ok(default) };
    match i32::try_from(number).ok().and_then(Element::of) {
        Some(element) => Ok(element),
        None => bail!(Checkpoint, "the attribute `{name}` is {number}, a type that is not supported"),
    }
}

/// Numbers of a type that were computed as floats.
fn numbers(dims: Vec<usize>, element: Element, floats: Vec<f64>) -> Array {
    #[expect(clippy::cast_possible_truncation, reason = "casts cut to integers")]
    let data = match element.kind() {
        Kind::Float => Data::Floats(floats.into_iter().map(|x| element.rounded(x)).collect()),
        Kind::Int | Kind::Bool | Kind::Text => Data::Ints(floats.into_iter().map(|x| x as i64).collect()),
    };
    Array { dims, element, data }
}

fn eye_like(call: &Call<'_>) -> Result<Vec<Value>> {
    let value = call.value(0)?;
    let element = named_type(call, "dtype", value.element())?;
    let [rows, columns] = value.dims()[..] else { bail!(Checkpoint, "{:?} is no matrix", value.dims()) };
    let diagonal = call.int("k", 0)?;
    call.budget.charge(rows.saturating_mul(columns))?;
    let mut floats = Vec::new();
    reserve(&mut floats, rows * columns)?;
    for row in 0..rows {
        let one = i64::try_from(row).unwrap_or(i64::MAX).saturating_add(diagonal);
        floats.extend((0..columns).map(|column| f64::from(u8::from(i64::try_from(column) == Ok(one)))));
    }
    known(numbers(vec![rows, columns], element, floats))
}

/// `a − b·cos(2πk/n) + c·cos(4πk/n)`, of a periodic window, or of one that ends as it begins.
fn window(call: &Call<'_>, [a, b, c]: [f64; 3]) -> Result<Vec<Value>> {
    let element = named_type(call, "output_datatype", Element::F32)?;
    let size = match call.ints(0)?[..] {
        [size] => usize::try_from(size).unwrap_or(0),
        _ => 0,
    };
    if size == 0 {
        bail!(Checkpoint, "operand 0 is not the size of a window");
    }
    call.budget.charge(size)?;
    let period = if call.flag("periodic", true)? { size } else { (size - 1).max(1) } as f64;
    let mut floats = Vec::new();
    reserve(&mut floats, size)?;
    floats.extend((0..size).map(|k| {
        let angle = std::f64::consts::TAU * k as f64 / period;
        a - b * angle.cos() + c * (2.0 * angle).cos()
    }));
    known(numbers(vec![size], element, floats))
}

/// Triangles of frequencies that are evenly spaced on the mel scale.
fn mel_weights(call: &Call<'_>) -> Result<Vec<Value>> {
    let element = named_type(call, "output_datatype", Element::F32)?;
    let number = |k: usize| match call.ints(k)?[..] {
        [number] if (1..1 << 20).contains(&number) => Ok(number),
        _ => bail!(Checkpoint, "operand {k} is not a number of bins, of samples, or a rate"),
    };
    let (bins, length, rate) = (number(0)?, number(1)?, number(2)?);
    let (low, high) = (call.number(3)?, call.number(4)?);
    let spectrum = length / 2 + 1;
    let mel = |hertz: f64| 2595.0 * (1.0 + hertz / 700.0).log10();
    let step = (mel(high) - mel(low)) / (bins + 2) as f64;
    // The bin of the spectrum at an edge of the triangles.
    #[expect(clippy::cast_possible_truncation, reason = "the bin below")]
    let edge = |k: i64| {
        let hertz = 700.0 * (10f64.powf((k as f64 * step + mel(low)) / 2595.0) - 1.0);
        ((length + 1) as f64 * hertz / rate as f64).floor() as i64
    };
    let (rows, columns) = (usize::try_from(spectrum).unwrap_or(0), usize::try_from(bins).unwrap_or(0));
    call.budget.charge(rows.saturating_mul(columns))?;
    let mut floats = Vec::new();
    reserve(&mut floats, rows * columns)?;
    for row in 0..spectrum {
        for column in 0..bins {
            let [left, centre, right] = [edge(column), edge(column + 1), edge(column + 2)];
            floats.push(match row {
                _ if row == centre && left == centre => 1.0,
                row if (left..=centre).contains(&row) => (row - left) as f64 / (centre - left) as f64,
                row if (centre..right).contains(&row) => (right - row) as f64 / (right - centre) as f64,
                _ => 0.0,
            });
        }
    }
    known(numbers(vec![rows, columns], element, floats))
}
