//! Operators that use or return the positions of elements: gathering, scattering, sorting.

use super::call::{Call, Operators, float, of};
use super::value::{Kind, Value};
use crate::error::bail;
use crate::ops::{GridSampleMode, GridSampleOptions, GridSamplePadding};
use crate::{Result, Shape, Var};

pub(super) const OPERATORS: Operators = &[
    ("ArgMax", |call| extremum(call, Var::argmax)),
    ("ArgMin", |call| extremum(call, Var::argmin)),
    ("CumSum", |call| {
        let x = call.float(0)?;
        let axis = call.axis(call.ints(1)?.first().copied().unwrap_or(0), x.shape().rank())?;
        call.only("exclusive", 0, 0)?;
        call.like(
            0,
            match call.flag("reverse", false)? {
                false => x.cumsum(axis),
                true => x.flip(&[axis]).cumsum(axis).flip(&[axis]),
            },
        )
    }),
    ("Gather", gather),
    ("GatherElements", |call| {
        let x = call.float(0)?;
        let axis = call.axis(call.int("axis", 0)?, x.shape().rank())?;
        let index = call.indices(1, x.shape()[axis])?;
        // The indices may be shorter along other axes.
        let mut part = x;
        for (k, &extent) in index.shape().dims().iter().enumerate().filter(|(k, _)| *k != axis) {
            if part.shape().dims().get(k).is_some_and(|&whole| extent < whole) {
                part = part.slice(k, 0..extent);
            }
        }
        call.like(0, part.gather(axis, &index))
    }),
    ("GridSample", |call| {
        let mode = match call.text("mode", "linear")? {
            "linear" | "bilinear" => GridSampleMode::Bilinear,
            "nearest" => GridSampleMode::Nearest,
            other => bail!(Checkpoint, "the mode {other:?} is not supported"),
        };
        let padding = match call.text("padding_mode", "zeros")? {
            "zeros" => GridSamplePadding::Zeros,
            "border" => GridSamplePadding::Border,
            other => bail!(Checkpoint, "the padding {other:?} is not supported"),
        };
        let options = GridSampleOptions { mode, padding, align_corners: call.flag("align_corners", false)? };
        float(call.float(0)?.grid_sample(&call.float(1)?, options))
    }),
    ("OneHot", one_hot),
    ("ScatterElements", scatter),
    ("TopK", |call| {
        let x = call.float(0)?;
        let axis = call.axis(call.int("axis", -1)?, x.shape().rank())?;
        let Ok(k) = usize::try_from(call.ints(1)?.first().copied().unwrap_or(0)) else {
            bail!(Checkpoint, "the number of elements is negative");
        };
        if !(1..=x.shape()[axis]).contains(&k) {
            bail!(Checkpoint, "{k} elements of axis {axis} of {}", x.shape());
        }
        let order = x.argsort(axis, call.flag("largest", true)?).slice(axis, 0..k);
        Ok(vec![Value::Var(x.gather(axis, &order), call.value(0)?.kind()), Value::Var(order, Kind::Int)])
    }),
];

fn extremum(call: &Call<'_>, find: fn(&Var, usize) -> Var) -> Result<Vec<Value>> {
    let x = call.float(0)?;
    let axis = call.axis(call.int("axis", 0)?, x.shape().rank())?;
    call.only("select_last_index", 0, 0)?;
    let place = find(&x, axis);
    of(Kind::Int, if call.flag("keepdims", true)? { place.reshape(x.shape().with(axis, 1)) } else { place })
}

/// Slices along an axis: `[A…, R, B…]` and indices `[I…]` → `[A…, I…, B…]`
fn gather(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.float(0)?;
    let rank = x.shape().rank();
    let axis = call.axis(call.int("axis", 0)?, rank)?;
    let (index, kind) = (call.indices(1, x.shape()[axis])?, call.value(0)?.kind());
    let mut axes: Vec<_> = (0..rank).collect();
    axes[..=axis].rotate_right(1);
    let rows = if axis == 0 { x } else { x.permute(&axes) };
    let rows = rows.embedding(&index);
    if axis == 0 {
        return of(kind, rows);
    }
    // [I…, A…, B…]
    let count = index.shape().rank();
    let axes: Vec<_> = (count..count + axis).chain(0..count).chain(count + axis..count + rank - 1).collect();
    of(kind, rows.permute(&axes))
}

fn one_hot(call: &Call<'_>) -> Result<Vec<Value>> {
    let classes = match usize::try_from(call.ints(1)?.first().copied().unwrap_or(0)) {
        Ok(classes) if (1..1 << 24).contains(&classes) => classes,
        _ => bail!(Checkpoint, "the depth is not a positive number"),
    };
    let [off, on] = call.known(2)?.as_floats()[..] else { bail!(Checkpoint, "operand 2 must hold two numbers") };
    let index = call.indices(0, classes)?;
    let rank = index.shape().rank();
    let axis = call.axis(call.int("axis", -1)?, rank + 1)?;
    let rows = index.one_hot(classes);
    let mut axes: Vec<_> = (0..=rank).collect();
    axes[axis..].rotate_right(1);
    let rows = rows.permute(&axes);
    let kind = call.value(2)?.kind();
    of(kind, rows.scale(on - off) + rows.constant(off))
}

fn scatter(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, source) = (call.float(0)?, call.float(2)?);
    let axis = call.axis(call.int("axis", 0)?, x.shape().rank())?;
    let index = call.indices(1, x.shape()[axis])?;
    let rest = |shape: Shape| if axis < shape.rank() { Some(shape.with(axis, 1)) } else { None };
    if rest(index.shape()) != rest(x.shape()) {
        bail!(Checkpoint, "indices {} into {}, which may differ only along axis {axis}", index.shape(), x.shape());
    }
    let y = match call.text("reduction", "none")? {
        "none" => x.scatter(axis, &index, &source),
        "add" => x.scatter_add(axis, &index, &source),
        "max" => x.scatter_max(axis, &index, &source),
        other => bail!(Checkpoint, "the attribute `reduction` is {other:?}, which is not supported"),
    };
    call.like(0, y)
}
