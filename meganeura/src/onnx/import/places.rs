//! Operators that use or return the positions of elements: gathering, scattering, sorting.

use super::call::{Call, Operators};
use super::element::{Element, Kind};
use super::elementwise::ordered;
use super::numeric::along;
use super::scatter::reduced;
use super::value::{Array, Data, Value};
use crate::error::bail;
use crate::{DType, Result, Shape, Var};

pub(super) const OPERATORS: Operators = &[
    ("ArgMax", |call| extremum(call, Var::argmax)),
    ("ArgMin", |call| extremum(call, Var::argmin)),
    ("CumSum", |call| {
        let x = call.own(0)?;
        let axis = call.axis(single(call, 1)?, x.shape().rank())?;
        call.computed(&along(call, &x, axis, Var::cumsum, 0.0)?)
    }),
    ("Gather", gather),
    ("GatherElements", |call| {
        let x = call.stored(0)?;
        let axis = call.axis(call.int("axis", 0)?, x.shape().rank())?;
        let index = call.indices(1, x.shape()[axis])?;
        if index.shape().rank() != x.shape().rank() {
            bail!(Checkpoint, "indices {} into {}", index.shape(), x.shape());
        }
        // The indices may be shorter along other axes.
        let mut part = x;
        for (k, &extent) in index.shape().dims().iter().enumerate().filter(|(k, _)| *k != axis) {
            if part.shape().dims().get(k).is_some_and(|&whole| extent < whole) {
                part = part.slice(k, 0..extent);
            }
        }
        call.like(0, part.gather(axis, &index))
    }),
    ("OneHot", one_hot),
    ("Scatter", scatter),
    ("ScatterElements", scatter),
    ("TopK", |call| {
        let x = ordered(call, &call.own(0)?)?;
        let axis = call.axis(call.int("axis", -1)?, x.shape().rank())?;
        // The result is sorted in any case.
        call.ignore(&["sorted"]);
        let count = if call.opset < 10 { call.required("k")? } else { single(call, 1)? };
        let Ok(k) = usize::try_from(count) else {
            bail!(Checkpoint, "the number of elements is negative");
        };
        if !(1..=x.shape()[axis]).contains(&k) {
            bail!(Checkpoint, "{k} elements of axis {axis} of {}", x.shape());
        }
        let order = x.argsort(axis, call.flag("largest", true)?).slice(axis, 0..k);
        Ok(vec![
            Value::Var(ordered(call, &x.gather(axis, &order))?, call.value(0)?.element()),
            Value::Var(order, Element::I64),
        ])
    }),
];

/// An operand of one integer.
fn single(call: &Call<'_>, k: usize) -> Result<i64> {
    match call.ints(k)?[..] {
        [number] => Ok(number),
        ref numbers => bail!(Checkpoint, "operand {k} has {} numbers, not one", numbers.len()),
    }
}

fn extremum(call: &Call<'_>, find: fn(&Var, usize) -> Var) -> Result<Vec<Value>> {
    let x = ordered(call, &call.own(0)?)?;
    let axis = call.axis(call.int("axis", 0)?, x.shape().rank())?;
    let place = match call.flag("select_last_index", false)? {
        true => {
            let place = find(&x.flip(&[axis]), axis).cast(DType::I64);
            place.constant((x.shape()[axis] - 1) as f64) - place
        }
        false => find(&x, axis),
    };
    let place = if call.flag("keepdims", true)? { place.reshape(x.shape().with(axis, 1)) } else { place };
    Ok(vec![Value::Var(place, Element::I64)])
}

/// Slices along an axis: `[A…, R, B…]` and indices `[I…]` → `[A…, I…, B…]`
fn gather(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.stored(0)?;
    let rank = x.shape().rank();
    let axis = call.axis(call.int("axis", 0)?, rank)?;
    if let Some(part) = call.known_indices(1, x.shape()[axis])?.and_then(|index| slice(&x, axis, &index)) {
        return call.like(0, part);
    }
    let index = call.indices(1, x.shape()[axis])?;
    let mut axes: Vec<_> = (0..rank).collect();
    axes[..=axis].rotate_right(1);
    let rows = if axis == 0 { x } else { x.permute(&axes) };
    let rows = rows.embedding(&index);
    if axis == 0 || rows.error().is_some() {
        return call.like(0, rows);
    }
    // [I…, A…, B…]
    let count = index.shape().rank();
    let axes: Vec<_> = (count..count + axis).chain(0..count).chain(count + axis..count + rank - 1).collect();
    call.like(0, rows.permute(&axes))
}

/// The slices of an index, or of neighbouring ones in order: a view.
fn slice(x: &Var, axis: usize, index: &Array) -> Option<Var> {
    let ints = index.as_ints()?;
    let first = usize::try_from(*ints.first()?).ok()?;
    if index.dims.len() > 1 || ints.windows(2).any(|pair| pair[1] != pair[0] + 1) {
        return None;
    }
    let part = x.slice(axis, first..first + ints.len());
    let mut dims = x.shape().dims().to_vec();
    dims.remove(axis);
    Some(if index.dims.is_empty() { part.reshape(Shape::new(&dims)) } else { part })
}

fn one_hot(call: &Call<'_>) -> Result<Vec<Value>> {
    // Floats are allowed, too.
    let classes = match call.number(1)? {
        depth if depth >= 1.0 && depth < f64::from(1 << 24) && depth.fract() == 0.0 => depth as usize,
        depth => bail!(Checkpoint, "the depth is {depth}, not a positive whole number"),
    };
    let values = call.own(2)?;
    if values.shape().dims() != [2] {
        bail!(Checkpoint, "operand 2 must hold two numbers");
    }
    let index = match call.value(0)? {
        Value::Known(array) if array.kind() == Kind::Int => {
            let count = i64::try_from(classes).unwrap_or(i64::MAX);
            // Out of range, every element is off.
            let place = |&index: &i64| match if index < 0 { index.saturating_add(count) } else { index } {
                place if (0..count).contains(&place) => place,
                _ => i64::from(u32::MAX),
            };
            let data = Data::Ints(array.as_ints().unwrap_or_default().iter().map(place).collect());
            Array { data, ..(**array).clone() }.indices(call.tape)?
        }
        _ => {
            let x = call.own(0)?;
            let count = x.constant(classes as f64);
            let (low, is_low) = (&x + &count, x.lt(x.constant(0.0)));
            // Out of range, every element is off: the index past every end.
            is_low.where_cond(&low, &x).to_index()
        }
    };
    let rank = index.shape().rank();
    let axis = call.axis(call.int("axis", -1)?, rank + 1)?;
    let rows = super::value::sound(index.one_hot(classes))?;
    let mut axes: Vec<_> = (0..=rank).collect();
    axes[axis..].rotate_right(1);
    let rows = rows.permute(&axes);
    let number = |k: usize| values.slice(0, k..k + 1).reshape([]);
    call.like(2, rows.ne(rows.constant(0.0)).where_cond(&number(1), &number(0)))
}

fn scatter(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, source) = (call.own(0)?, call.own(2)?);
    let axis = call.axis(call.int("axis", 0)?, x.shape().rank())?;
    let index = call.indices(1, x.shape()[axis])?;
    let rest = |shape: Shape| if axis < shape.rank() { Some(shape.with(axis, 1)) } else { None };
    if rest(index.shape()) != rest(x.shape()) {
        bail!(Checkpoint, "indices {} into {}, which may differ only along axis {axis}", index.shape(), x.shape());
    }
    let y = reduced(call, &x, axis, &index, &source)?;
    call.computed(&y)
}
