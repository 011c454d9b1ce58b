//! Different elements, or different slices along an axis. Their number depends on the numbers.

use std::cmp::Ordering;
use std::sync::Arc;

use super::call::{Call, Operators};
use super::element::Element;
use super::value::{Array, Data, Value};
use crate::Result;

pub(super) const OPERATORS: Operators = &[("Unique", unique)];

/// The numbers of a slice, and the order of two slices. NaN differs from every number, and comes last.
fn compare(array: &Array, a: &[usize], b: &[usize]) -> Ordering {
    let highest = if array.element == Element::U64 { i64::MIN } else { 0 };
    let each = |(&a, &b): (&usize, &usize)| match &array.data {
        Data::Ints(ints) => (ints[a] ^ highest).cmp(&(ints[b] ^ highest)),
        Data::Floats(floats) => {
            floats[a].partial_cmp(&floats[b]).unwrap_or_else(|| floats[a].is_nan().cmp(&floats[b].is_nan()))
        }
    };
    a.iter().zip(b).map(each).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
}

/// The different slices, the place of the first of each, the number of each slice among them, and how many there are.
fn unique(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.known(0)?;
    call.budget.charge(x.len().saturating_mul(4))?;
    let axis = match call.optional_int("axis")? {
        Some(axis) => Some(call.axis(axis, x.dims.len())?),
        None => None,
    };
    let (outer, count, inner) = match axis {
        None => (1, x.len(), 1),
        Some(axis) => {
            (x.dims[..axis].iter().product::<usize>(), x.dims[axis], x.dims[axis + 1..].iter().product::<usize>())
        }
    };
    let slice = |k: usize| -> Vec<usize> {
        (0..outer).flat_map(|row| (0..inner).map(move |column| (row * count + k) * inner + column)).collect()
    };
    let slices: Vec<_> = (0..count).map(slice).collect();
    let mut order: Vec<_> = (0..count).collect();
    order.sort_by(|&a, &b| compare(&x, &slices[a], &slices[b]));
    // Groups of equal slices, by the first of each.
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let has_nan = |k: usize| match &x.data {
        Data::Floats(floats) => slices[k].iter().any(|&at| floats[at].is_nan()),
        Data::Ints(_) => false,
    };
    for k in order {
        match groups.last_mut() {
            Some(group) if compare(&x, &slices[group[0]], &slices[k]).is_eq() && !has_nan(k) => group.push(k),
            _ => groups.push(vec![k]),
        }
    }
    if !call.flag("sorted", true)? {
        groups.sort_by_key(|group| group[0]);
    }
    let mut inverse = vec![0; count];
    for (number, group) in groups.iter().enumerate() {
        group.iter().for_each(|&k| inverse[k] = i64::try_from(number).unwrap_or(i64::MAX));
    }
    let places: Vec<usize> = (0..outer)
        .flat_map(|row| {
            let slices = &slices;
            groups.iter().flat_map(move |group| slices[group[0]][row * inner..(row + 1) * inner].iter().copied())
        })
        .collect();
    let data = match &x.data {
        Data::Floats(floats) => Data::Floats(places.iter().map(|&at| floats[at]).collect()),
        Data::Ints(ints) => Data::Ints(places.iter().map(|&at| ints[at]).collect()),
    };
    let dims = match axis {
        None => vec![groups.len()],
        Some(axis) => [&x.dims[..axis], &[groups.len()], &x.dims[axis + 1..]].concat(),
    };
    let first = groups.iter().map(|group| i64::try_from(group[0]).unwrap_or(i64::MAX)).collect();
    let counts = groups.iter().map(|group| i64::try_from(group.len()).unwrap_or(i64::MAX)).collect();
    let known = |array: Array| Value::Known(Arc::new(array));
    let element: Element = x.element;
    let found = known(Array { dims, element, data });
    Ok(vec![found, known(Array::ints(first)), known(Array::ints(inverse)), known(Array::ints(counts))])
}
