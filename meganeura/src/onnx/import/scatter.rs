//! Gathering and scattering by tuples of positions, and selections whose sizes depend on numbers.

use super::call::{Call, Operators, known};
use super::element::Element;
use super::value::{Array, Data, Value, sound};
use crate::error::bail;
use crate::host::reserve;
use crate::{DType, Result, Tensor, Var};

pub(super) const OPERATORS: Operators = &[
    ("Compress", compress),
    ("GatherND", gather_nd),
    ("NonMaxSuppression", non_max_suppression),
    ("NonZero", non_zero),
    ("ReverseSequence", reverse_sequence),
    ("ScatterND", scatter_nd),
    ("TensorScatter", tensor_scatter),
];

/// The number of each tuple in the last axis of operand `k`, counted through axes of these extents, on the tape:
/// `[tuples]`.
fn tuples(call: &Call<'_>, k: usize, extents: &[usize]) -> Result<Var> {
    let dims = call.value(k)?.dims();
    let Some((_, outer)) = dims.split_last() else { bail!(Checkpoint, "operand {k} is no list of tuples") };
    let rows = outer.iter().product::<usize>();
    if let Value::Known(array) = call.value(k)? {
        let Some(ints) = array.as_ints() else { bail!(Checkpoint, "operand {k} holds floats, not indices") };
        call.budget.charge(ints.len())?;
        let mut numbers = Vec::new();
        reserve(&mut numbers, rows)?;
        for tuple in ints.chunks(extents.len().max(1)).take(rows) {
            let mut number = 0;
            for (&place, &extent) in tuple.iter().zip(extents) {
                let from_start = if place < 0 { place.saturating_add_unsigned(extent as u64) } else { place };
                match usize::try_from(from_start) {
                    Ok(place) if place < extent => number = number * extent + place,
                    _ => bail!(Checkpoint, "index {place} of an axis with {extent} elements"),
                }
            }
            numbers.push(u32::try_from(number).unwrap_or(u32::MAX));
        }
        let index = Tensor::indices(&call.tape.device(), call.shape(&[rows])?, &numbers)?;
        return sound(call.tape.input(&index));
    }
    let x = call.own(k)?.cast(DType::I64).reshape([rows, extents.len()]);
    let mut number: Option<Var> = None;
    for (k, &extent) in extents.iter().enumerate() {
        let place = x.slice(1, k..k + 1).reshape([rows]);
        let extent = x.constant(extent as f64);
        let place = place.lt(x.constant(0.0)).where_cond(&(&place + &extent), &place);
        number = Some(number.map_or_else(|| place.clone(), |number| number * extent + &place));
    }
    match number {
        Some(number) => sound(number.to_index()),
        None => bail!(Checkpoint, "operand {k} holds empty tuples"),
    }
}

/// Slices at tuples of positions: `x [B…, I…, R…]`, indices `[B…, J…, k]` → `[B…, J…, R…]`
fn gather_nd(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.stored(0)?;
    let (dims, places) = (x.shape(), call.value(1)?.dims());
    let Ok(batch) = usize::try_from(call.int("batch_dims", 0)?) else {
        bail!(Checkpoint, "the attribute `batch_dims` is negative");
    };
    let width = places.last().copied().unwrap_or(0);
    if batch >= places.len() || batch + width > dims.rank() || width == 0 || dims.dims()[..batch] != places[..batch] {
        bail!(Checkpoint, "tuples {places:?} into {dims}, with {batch} axes of examples");
    }
    let examples = places[..batch].iter().product::<usize>();
    let (inner, rest) = dims.dims()[batch..].split_at(width);
    let rows = inner.iter().product::<usize>();
    let mut index = tuples(call, 1, inner)?;
    if examples > 1 {
        // The rows of earlier examples come first.
        let each = index.shape().elements() / examples;
        let first = call.tape.iota([examples, each], 0).cast(DType::I64) * rows as f64;
        index = (index.cast(DType::I64) + first.reshape([examples * each])).to_index();
    }
    let table = x.reshape([examples * rows, rest.iter().product()]);
    let y = sound(table.embedding(&index))?;
    let to = [&places[..places.len() - 1], rest].concat();
    call.like(0, y.reshape(call.shape(&to)?))
}

/// Updates of slices at tuples of positions.
fn scatter_nd(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, source) = (call.own(0)?, call.own(2)?);
    let (dims, places) = (x.shape(), call.value(1)?.dims());
    let width = places.last().copied().unwrap_or(0);
    if width == 0 || width > dims.rank() {
        bail!(Checkpoint, "tuples {places:?} into {dims}");
    }
    let (inner, rest) = dims.dims().split_at(width);
    let expected = [&places[..places.len() - 1], rest].concat();
    if source.shape().dims() != expected {
        bail!(Checkpoint, "updates {}, not {expected:?}", source.shape());
    }
    let (rows, columns) = (inner.iter().product::<usize>(), rest.iter().product::<usize>());
    let index = tuples(call, 1, inner)?;
    let count = index.shape().elements();
    let index = index.reshape([count, 1]).expand([count, columns]);
    let table = x.reshape([rows, columns]);
    let source = source.reshape([count, columns]);
    let y = reduced(call, &table, 0, &index, &source)?;
    call.computed(&sound(y)?.reshape(dims))
}

/// `x` with the elements of a source at these places along an axis, by the node's reduction.
pub(super) fn reduced(call: &Call<'_>, x: &Var, axis: usize, index: &Var, source: &Var) -> Result<Var> {
    let is_float = x.ty().dtype.is_float();
    let combine: fn(&Var, &Var) -> Var = match call.text("reduction", "none")? {
        "none" => return replaced(x, axis, index, source),
        "add" if is_float => return Ok(x.scatter_add(axis, index, source)),
        "max" if is_float => return Ok(x.scatter_max(axis, index, source)),
        "min" if is_float => return Ok(-(-x).scatter_max(axis, index, &-source)),
        "add" => |a, b| a + b,
        "mul" => |a, b| a * b,
        "max" => |a, b| a.maximum(b),
        "min" => |a, b| a.minimum(b),
        other => bail!(Checkpoint, "the attribute `reduction` is {other:?}, which is not supported"),
    };
    // One source after the other: the last one of several at a place would win.
    let mut y = x.clone();
    for k in 0..source.shape()[axis] {
        call.budget.charge(64)?;
        let (index, source) = (index.slice(axis, k..k + 1), source.slice(axis, k..k + 1));
        let combined = combine(&y.gather(axis, &index), &source);
        y = sound(replaced(&y, axis, &index, &combined)?)?;
    }
    Ok(y)
}

/// `x` with the elements of a source at these places along an axis.
fn replaced(x: &Var, axis: usize, index: &Var, source: &Var) -> Result<Var> {
    if x.ty().dtype.is_float() {
        return sound(x.scatter(axis, index, source));
    }
    // The number of the source that each place gets, or −1.
    let tape = x.tape();
    let numbers = tape.iota(source.shape(), axis);
    let taken = sound(tape.constant(-1.0).expand(x.shape()).scatter(axis, index, &numbers))?;
    let has_source = taken.ge(taken.constant(0.0));
    sound(has_source.where_cond(&source.gather(axis, &taken.relu().to_index()), x))
}

/// A cache `[N, …, S, …]` with new values at the places of each example.
fn tensor_scatter(call: &Call<'_>) -> Result<Vec<Value>> {
    let (cache, update) = (call.own(0)?, call.own(1)?);
    let dims = cache.shape();
    let axis = call.axis(call.int("axis", -2)?, dims.rank())?;
    let (Some(&n), true) = (dims.dims().first(), update.shape().rank() == dims.rank() && axis > 0) else {
        bail!(Checkpoint, "an update {} of {dims} along axis {axis}", update.shape());
    };
    let (length, count) = (dims[axis], update.shape()[axis]);
    let mut extents = vec![1; dims.rank()];
    extents[axis] = count;
    let places = call.tape.iota(&extents[..], axis);
    let mut of_examples = vec![1; dims.rank()];
    of_examples[0] = n;
    let places = match call.optional(2) {
        Some(_) => places + call.vector(2, n)?.reshape(&of_examples[..]),
        None => places,
    };
    let places = match call.text("mode", "linear")? {
        "linear" => places,
        "circular" => {
            let length = places.constant(length as f64);
            places.ge(&length).where_cond(&(&places - &length), &places)
        }
        other => bail!(Checkpoint, "the attribute `mode` is {other:?}"),
    };
    let index = sound(places.expand(update.shape()))?.to_index();
    call.like(0, replaced(&cache, axis, &index, &update)?)
}

/// The elements at these places along an axis.
fn selected(call: &Call<'_>, x: &Var, axis: usize, places: &[u32]) -> Result<Value> {
    let element = call.value(0)?.element();
    if places.is_empty() {
        let mut dims = x.shape().dims().to_vec();
        dims[axis] = 0;
        return Ok(Value::Known(Array::empty(dims, element).into()));
    }
    let index = Tensor::indices(&call.tape.device(), [places.len()], places)?;
    Ok(Value::Var(sound(x.index_select(axis, &call.tape.input(&index)))?, element))
}

/// The slices for which a condition holds.
fn compress(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, condition) = (call.stored(0)?, call.known(1)?);
    let (x, axis) = match call.optional_int("axis")? {
        Some(axis) => (x.clone(), call.axis(axis, x.shape().rank())?),
        None => (x.reshape([x.shape().elements()]), 0),
    };
    let truths = condition.as_floats();
    if truths.len() > x.shape()[axis] {
        bail!(Checkpoint, "{} conditions for {} slices", truths.len(), x.shape()[axis]);
    }
    call.budget.charge(truths.len())?;
    let places: Vec<_> = (0u32..).zip(&truths).filter(|(_, truth)| **truth != 0.0).map(|(k, _)| k).collect();
    Ok(vec![selected(call, &x, axis, &places)?])
}

/// The positions of all elements other than 0: `[rank, count]`
fn non_zero(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.known(0)?;
    let rank = x.dims.len();
    call.budget.charge(x.len().saturating_mul(rank.max(1)))?;
    let places: Vec<_> = x.as_floats().iter().enumerate().filter(|(_, x)| **x != 0.0).map(|(at, _)| at).collect();
    let mut ints = Vec::new();
    reserve(&mut ints, places.len() * rank)?;
    for axis in 0..rank {
        let below = x.dims[axis + 1..].iter().product::<usize>();
        ints.extend(places.iter().map(|at| i64::try_from(at / below % x.dims[axis]).unwrap_or(i64::MAX)));
    }
    known(Array { dims: vec![rank, places.len()], element: Element::I64, data: Data::Ints(ints) })
}

/// Reverses the first elements of each example.
fn reverse_sequence(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.stored(0)?;
    let rank = x.shape().rank();
    let (batch, time) = (call.axis(call.int("batch_axis", 1)?, rank)?, call.axis(call.int("time_axis", 0)?, rank)?);
    let (n, steps) = (x.shape()[batch], x.shape()[time]);
    if batch == time {
        bail!(Checkpoint, "the axes of examples and of time are the same");
    }
    let of =
        |axis: usize, extent: usize| -> Vec<usize> { (0..rank).map(|k| if k == axis { extent } else { 1 }).collect() };
    let lengths = call.vector(1, n)?.reshape(&of(batch, n)[..]);
    let step = call.tape.iota(&of(time, steps)[..], time);
    let place = step.lt(&lengths).where_cond(&(&lengths - &step - lengths.constant(1.0)), &step);
    let index = sound(place.expand(x.shape()))?.to_index();
    call.like(0, x.gather(time, &index))
}

/// A box by its corners, `[low y, low x, high y, high x]`.
type Corners = [f64; 4];

/// The overlap of two boxes, as a part of what both cover.
fn overlap(a: Corners, b: Corners) -> f64 {
    let length = |k: usize| (a[k + 2].min(b[k + 2]) - a[k].max(b[k])).max(0.0);
    let area = |c: Corners| (c[2] - c[0]) * (c[3] - c[1]);
    let both = length(0) * length(1);
    if both > 0.0 { both / (area(a) + area(b) - both) } else { 0.0 }
}

/// The best boxes of each class that do not overlap better ones: `[count, 3]`, of example, class and box.
fn non_max_suppression(call: &Call<'_>) -> Result<Vec<Value>> {
    let (boxes, scores) = (call.known(0)?, call.known(1)?);
    let ([n, count, 4], &[m, classes, of_scores]) = (&boxes.dims[..], &scores.dims[..]) else {
        bail!(Checkpoint, "boxes {:?} and scores {:?}", boxes.dims, scores.dims);
    };
    if (*n, *count) != (m, of_scores) {
        bail!(Checkpoint, "boxes {:?} and scores {:?}", boxes.dims, scores.dims);
    }
    let number = |k: usize, usual: f64| if call.optional(k).is_some() { call.number(k) } else { Ok(usual) };
    let (most, limit) = (number(2, 0.0)?, number(3, 0.0)?);
    let least = number(4, f64::NEG_INFINITY)?;
    let by_centre = call.flag("center_point_box", false)?;
    call.budget.charge(scores.len().saturating_mul(8))?;
    let (numbers, scores) = (boxes.as_floats(), scores.as_floats());
    let corners = |k: usize| -> Corners {
        let [a, b, c, d] = [0, 1, 2, 3].map(|part| numbers[4 * k + part]);
        match by_centre {
            true => [b - d / 2.0, a - c / 2.0, b + d / 2.0, a + c / 2.0],
            false => [a.min(c), b.min(d), a.max(c), b.max(d)],
        }
    };
    let mut found = Vec::new();
    for example in 0..*n {
        for class in 0..classes {
            let of = &scores[(example * classes + class) * count..][..*count];
            let mut order: Vec<_> = (0..*count).filter(|&k| of[k] > least).collect();
            order.sort_by(|&a, &b| of[b].total_cmp(&of[a]));
            let mut kept: Vec<usize> = Vec::new();
            for k in order {
                if kept.len() as f64 >= most {
                    break;
                }
                call.budget.charge(kept.len())?;
                let place = |k: usize| corners(example * count + k);
                if kept.iter().all(|&other| overlap(place(k), place(other)) <= limit) {
                    kept.push(k);
                }
            }
            for k in kept {
                found.extend([example, class, k].map(|place| i64::try_from(place).unwrap_or(i64::MAX)));
            }
        }
    }
    known(Array { dims: vec![found.len() / 3, 3], element: Element::I64, data: Data::Ints(found) })
}
