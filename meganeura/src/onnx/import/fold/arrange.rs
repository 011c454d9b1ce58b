//! Constants in other arrangements: reshapes, concatenations, selections, copies.

use super::constants::spread;
use super::small;
use crate::Result;
use crate::error::bail;
use crate::host::reserve;
use crate::onnx::import::call::Call;
use crate::onnx::import::shapes;
use crate::onnx::import::value::{Array, Data};

/// The result of a node, if its operator rearranges elements and can be folded.
pub(super) fn fold(call: &Call<'_>, x: &[Option<&Array>], first: &Array) -> Result<Option<Array>> {
    let reshaped_to = |dims: Vec<usize>| {
        call.budget.charge(first.len())?;
        Ok(Some(Array { dims, ..first.clone() }))
    };
    match (call.op(), x) {
        ("Trilu", _) if first.len() == 0 => {
            call.ignore(&["upper"]);
            Ok(Some(first.clone()))
        }
        ("Unsqueeze", _) => reshaped_to(shapes::unsqueezed(call, &first.dims)?),
        ("Squeeze", _) => reshaped_to(shapes::squeezed(call, &first.dims)?),
        ("Reshape", [_, Some(_)]) => {
            reshaped_to(reshaped(&first.dims, &call.ints(1)?, call.flag("allowzero", false)?)?)
        }
        ("Concat", _) => concat(call, x),
        ("Gather", [_, Some(index)]) if first.dims.len() == 1 => gather(call, first, index).map(Some),
        ("Slice", _) => slice(call, first).map(Some),
        ("Transpose", _) => transpose(call, first).map(Some),
        ("Expand", [_, Some(_)]) if first.len() == 1 => {
            let dims = shapes::sizes(&call.ints(1)?)?;
            let Some(count) = small(&dims).filter(|_| dims.len() >= first.dims.len()) else { return Ok(None) };
            call.budget.charge(count)?;
            spread(first, dims, count).map(Some)
        }
        _ => Ok(None),
    }
}

/// The extents of `Reshape`: 0 keeps an extent, −1 is inferred.
pub(in crate::onnx::import) fn reshaped(from: &[usize], to: &[i64], zero_is_zero: bool) -> Result<Vec<usize>> {
    let mut open = None;
    let mut dims = Vec::with_capacity(to.len());
    for (axis, &extent) in to.iter().enumerate() {
        dims.push(match extent {
            0 if !zero_is_zero => match from.get(axis) {
                Some(&extent) => extent,
                None => bail!(Checkpoint, "the shape {to:?} keeps axis {axis}, which {from:?} does not have"),
            },
            -1 if open.is_none() => {
                open = Some(axis);
                1
            }
            extent => match usize::try_from(extent) {
                Ok(extent) => extent,
                Err(_) => bail!(Checkpoint, "the shape {to:?} has an extent that is negative"),
            },
        });
    }
    let count = |dims: &[usize]| dims.iter().try_fold(1usize, |n, &extent| n.checked_mul(extent));
    let (Some(all), Some(known)) = (count(from), count(&dims)) else {
        bail!(Checkpoint, "a shape {to:?}, which is too large");
    };
    if let Some(axis) = open {
        if known == 0 || all % known != 0 {
            bail!(Checkpoint, "{from:?} cannot have the shape {to:?}");
        }
        dims[axis] = all / known;
    }
    if dims.iter().product::<usize>() != all {
        bail!(Checkpoint, "{from:?} cannot have the shape {to:?}");
    }
    Ok(dims)
}

/// The concatenation of vectors.
fn concat(call: &Call<'_>, x: &[Option<&Array>]) -> Result<Option<Array>> {
    let x: Vec<_> = x.iter().flatten().collect();
    if x.iter().any(|array| array.dims.len() != 1) {
        return Ok(None);
    }
    call.axis(call.required("axis")?, 1)?;
    let Some(count) = x.iter().try_fold(0usize, |n, array| n.checked_add(array.len())) else { return Ok(None) };
    call.budget.charge(count)?;
    let data = if x.iter().all(|array| array.as_ints().is_some()) {
        let mut ints = Vec::new();
        reserve(&mut ints, count)?;
        x.iter().filter_map(|array| array.as_ints()).for_each(|part| ints.extend_from_slice(part));
        Data::Ints(ints)
    } else {
        let mut floats = Vec::new();
        reserve(&mut floats, count)?;
        x.iter().for_each(|array| floats.extend(array.as_floats()));
        Data::Floats(floats)
    };
    let Some(first) = x.first() else { return Ok(None) };
    Ok(Some(Array { dims: vec![count], element: first.element, data }))
}

/// Selected elements of a vector.
fn pick(x: &Array, places: &[usize], dims: Vec<usize>) -> Array {
    let data = match &x.data {
        Data::Floats(numbers) => Data::Floats(places.iter().map(|&at| numbers[at]).collect()),
        Data::Ints(numbers) => Data::Ints(places.iter().map(|&at| numbers[at]).collect()),
    };
    Array { dims, element: x.element, data }
}

fn gather(call: &Call<'_>, x: &Array, index: &Array) -> Result<Array> {
    call.axis(call.int("axis", 0)?, 1)?;
    call.budget.charge(index.len())?;
    let Some(ints) = index.as_ints() else { bail!(Checkpoint, "floats cannot be indices") };
    let count = i64::try_from(x.len()).unwrap_or(i64::MAX);
    let place = |&index: &i64| {
        let at = if index < 0 { index.saturating_add(count) } else { index };
        match usize::try_from(at) {
            Ok(at) if at < x.len() => Ok(at),
            _ => bail!(Checkpoint, "element {index} of {}", x.len()),
        }
    };
    Ok(pick(x, &ints.iter().map(place).collect::<Result<Vec<_>>>()?, index.dims.clone()))
}

fn slice(call: &Call<'_>, x: &Array) -> Result<Array> {
    // An array without elements may have large extents.
    call.budget.charge(x.dims.iter().fold(0, |sum: usize, &extent| sum.saturating_add(extent)))?;
    let mut places: Vec<Vec<usize>> = x.dims.iter().map(|&extent| (0..extent).collect()).collect();
    for (axis, range) in shapes::ranges(call, &x.dims)? {
        places[axis] = range.places().collect();
    }
    let dims: Vec<_> = places.iter().map(Vec::len).collect();
    call.budget.charge(dims.iter().product())?;
    Ok(arranged(x, dims, |axis, at| (axis, places[axis][at])))
}

fn transpose(call: &Call<'_>, x: &Array) -> Result<Array> {
    let rank = x.dims.len();
    let axes = shapes::permutation(call, rank)?;
    call.budget.charge(x.len())?;
    let dims = axes.iter().map(|&axis| x.dims[axis]).collect();
    Ok(arranged(x, dims, |axis, at| (axes[axis], at)))
}

/// Elements in another order. For an axis of the result and a place along it, `from` returns the axis of `x` and the
/// place along that.
fn arranged(x: &Array, dims: Vec<usize>, from: impl Fn(usize, usize) -> (usize, usize)) -> Array {
    let mut strides = vec![1; x.dims.len()];
    (1..strides.len()).rev().for_each(|axis| strides[axis - 1] = strides[axis] * x.dims[axis]);
    let place = |mut at: usize| {
        let mut place = 0;
        for axis in (0..dims.len()).rev() {
            let (own, number) = from(axis, at % dims[axis]);
            place += number * strides[own];
            at /= dims[axis];
        }
        place
    };
    let places: Vec<_> = (0..dims.iter().product()).map(place).collect();
    pick(x, &places, dims)
}
