//! Operators that rearrange elements: reshapes, transpositions, slices and concatenations.

use std::sync::Arc;

use super::call::{Call, Operators};
use super::fold::reshaped;
use super::images::padded;
use super::value::{Array, Value, sound};
use crate::error::bail;
use crate::ops::Padding;
use crate::{Result, Shape, Var};

/// An operator with one operand, and a result of the same type.
fn moved(call: &Call<'_>, f: impl FnOnce(&Var) -> Result<Var>) -> Result<Vec<Value>> {
    call.like(0, f(&call.stored(0)?)?)
}

pub(super) const OPERATORS: Operators = &[
    ("CenterCropPad", centre_crop_pad),
    ("Concat", |call| {
        // It had a default once.
        let axis = if call.opset < 4 { call.int("axis", 1)? } else { call.required("axis")? };
        Ok(vec![concatenated(call, &call.inputs.iter().flatten().collect::<Vec<_>>(), axis)?])
    }),
    ("DepthToSpace", depth_to_space),
    ("Expand", |call| {
        let dims = sizes(&call.ints(1)?)?;
        moved(call, |x| {
            let shape = call.shape(&dims)?;
            let Some(shape) = x.shape().broadcast(&shape) else {
                bail!(Checkpoint, "{} does not broadcast to {shape}", x.shape());
            };
            Ok(x.expand(shape))
        })
    }),
    ("Flatten", |call| {
        let dims = call.value(0)?.dims();
        let count = i64::try_from(dims.len()).unwrap_or(i64::MAX);
        let axis = call.int("axis", 1)?;
        let axis = usize::try_from(if axis < 0 { axis.saturating_add(count) } else { axis }).unwrap_or(usize::MAX);
        let (Some(before), Some(after)) = (dims.get(..axis), dims.get(axis..)) else {
            bail!(Checkpoint, "axis {axis} of {dims:?}");
        };
        moved(call, |x| Ok(x.reshape([before.iter().product(), after.iter().product()])))
    }),
    ("Pad", pad),
    ("Reshape", |call| {
        let to = call.optional_list("shape")?.map_or_else(|| call.ints(1), Ok)?;
        let dims = reshaped(&call.value(0)?.dims(), &to, call.flag("allowzero", false)?)?;
        moved(call, |x| Ok(x.reshape(call.shape(&dims)?)))
    }),
    ("Slice", |call| {
        let ranges = ranges(call, &call.value(0)?.dims())?;
        moved(call, |x| sliced(call, x, &ranges))
    }),
    ("SpaceToDepth", space_to_depth),
    ("Split", split),
    ("Squeeze", |call| {
        let dims = call.value(0)?.dims();
        let left = squeezed(call, &dims)?;
        moved(call, |x| Ok(x.reshape(call.shape(&left)?)))
    }),
    ("Tile", |call| {
        let times = sizes(&call.ints(1)?)?;
        if times.len() != call.value(0)?.dims().len() {
            bail!(Checkpoint, "{} numbers of copies for {:?}", times.len(), call.value(0)?.dims());
        }
        moved(call, |x| Ok(x.tile(&times)))
    }),
    ("Transpose", |call| {
        let axes = permutation(call, call.value(0)?.dims().len())?;
        moved(call, |x| Ok(x.permute(&axes)))
    }),
    ("Trilu", |call| {
        let diagonal = match call.optional(1) {
            Some(_) => match call.ints(1)?[..] {
                // Past any matrix, all diagonals are the same.
                [number] => isize::try_from(number.clamp(-(1 << 40), 1 << 40)).unwrap_or(0),
                ref numbers => bail!(Checkpoint, "{} diagonals, not one", numbers.len()),
            },
            None => 0,
        };
        let upper = call.flag("upper", true)?;
        let kept = |x: &Var| if upper { x.triu(diagonal) } else { x.tril(diagonal) };
        moved(call, |x| {
            if x.ty().dtype.is_float() {
                return Ok(kept(x));
            }
            Ok(kept(&call.tape.constant(1.0).expand(x.shape())).where_cond(x, &x.constant(0.0)))
        })
    }),
    ("Unsqueeze", |call| {
        let dims = unsqueezed(call, &call.value(0)?.dims())?;
        moved(call, |x| Ok(x.reshape(call.shape(&dims)?)))
    }),
];

/// Tensors one after the other along an axis.
pub(super) fn concatenated(call: &Call<'_>, values: &[&Value], axis: i64) -> Result<Value> {
    let is_empty = |value: &&&Value| matches!(value, Value::Known(array) if array.len() == 0);
    let given = values.iter().filter(|value| !is_empty(value));
    let x = given.map(|value| value.own(call.tape)).collect::<Result<Vec<_>>>()?;
    let (Some(first), Some(value)) = (x.first(), values.first()) else {
        bail!(Checkpoint, "there are no operands with elements");
    };
    let axis = call.axis(axis, first.shape().rank())?;
    Ok(Value::Var(sound(Var::concat(&x.iter().collect::<Vec<_>>(), axis))?, value.element()))
}

/// Crops around the centre, or pads with zeros around it.
fn centre_crop_pad(call: &Call<'_>) -> Result<Vec<Value>> {
    let to = sizes(&call.ints(1)?)?;
    moved(call, |x| {
        let rank = x.shape().rank();
        let axes = match call.optional_list("axes")? {
            Some(axes) => call.axes(&axes, rank)?,
            None => (0..rank).collect(),
        };
        if axes.len() != to.len() {
            bail!(Checkpoint, "{} extents for {} axes", to.len(), axes.len());
        }
        let mut y = x.clone();
        let mut widths = vec![(0, 0); rank];
        for (&axis, &extent) in axes.iter().zip(&to) {
            let own = x.shape()[axis];
            if extent < own {
                let first = (own - extent) / 2;
                y = sound(y.slice(axis, first..first + extent))?;
            } else {
                let before = (extent - own) / 2;
                widths[axis] = (before, extent - own - before);
            }
        }
        Ok(padded(&y, &widths, 0.0))
    })
}

/// The extents with additional ones of 1.
pub(super) fn unsqueezed(call: &Call<'_>, dims: &[usize]) -> Result<Vec<usize>> {
    let list = call.optional_list("axes")?.map_or_else(|| call.ints(1), Ok)?;
    let mut dims = dims.to_vec();
    let mut axes = call.axes(&list, dims.len() + list.len())?;
    axes.sort_unstable();
    axes.into_iter().for_each(|axis| dims.insert(axis, 1));
    Ok(dims)
}

/// The extents without some of 1.
pub(super) fn squeezed(call: &Call<'_>, dims: &[usize]) -> Result<Vec<usize>> {
    let axes = call.optional_axes(1, dims.len())?;
    if let Some(axis) = axes.iter().flatten().find(|&&axis| dims[axis] != 1) {
        bail!(Checkpoint, "axis {axis} of {dims:?} has an extent other than 1");
    }
    let goes = |axis: &usize| axes.as_ref().map_or(dims[*axis] == 1, |axes| axes.contains(axis));
    Ok((0..dims.len()).filter(|axis| !goes(axis)).map(|axis| dims[axis]).collect())
}

/// The axes of a transposition; reversed unless the node says otherwise.
pub(super) fn permutation(call: &Call<'_>, rank: usize) -> Result<Vec<usize>> {
    let Some(list) = call.optional_list("perm")? else { return Ok((0..rank).rev().collect()) };
    if list.len() != rank {
        bail!(Checkpoint, "the attribute `perm` is {list:?}, for {rank} axes");
    }
    call.axes(&list, rank)
}

/// Converts to numbers that must be at least 0.
pub(super) fn sizes(ints: &[i64]) -> Result<Vec<usize>> {
    match ints.iter().map(|&number| usize::try_from(number)).collect() {
        Ok(sizes) => Ok(sizes),
        Err(_) => bail!(Checkpoint, "{ints:?}, one of which is below 0"),
    }
}

/// Positions along an axis: the first, their number, and the step.
#[derive(Clone, Copy)]
pub(super) struct Range {
    first: usize,
    count: usize,
    step: i64,
}

impl Range {
    pub(super) fn places(self) -> impl Iterator<Item = usize> {
        let step = isize::try_from(self.step).unwrap_or(0);
        (0..self.count).map(move |k| self.first.wrapping_add_signed(step.wrapping_mul(k.cast_signed())))
    }
}

/// The positions that `Slice` takes, by axis.
pub(super) fn ranges(call: &Call<'_>, dims: &[usize]) -> Result<Vec<(usize, Range)>> {
    let (starts, ends, axes, steps) = if call.opset < 10 {
        let list = |name: &str| call.optional_list(name).map(Option::unwrap_or_default);
        (list("starts")?, list("ends")?, call.optional_list("axes")?, None)
    } else {
        (call.ints(1)?, call.ints(2)?, call.optional_ints(3)?, call.optional_ints(4)?)
    };
    let axes = match axes {
        Some(axes) => call.axes(&axes, dims.len())?,
        None => (0..starts.len()).collect(),
    };
    let steps = steps.unwrap_or_else(|| vec![1; starts.len()]);
    if steps.contains(&0) {
        bail!(Checkpoint, "a step must not be 0");
    }
    if [ends.len(), axes.len(), steps.len()] != [starts.len(); 3] || axes.iter().any(|&axis| axis >= dims.len()) {
        bail!(
            Checkpoint,
            "{} starts, {} ends, axes {axes:?} of {dims:?}, {} steps",
            starts.len(),
            ends.len(),
            steps.len()
        );
    }
    let range = |((&start, &end), (&axis, &step)): ((&i64, &i64), (&usize, &i64))| {
        let extent = i64::try_from(dims[axis]).unwrap_or(i64::MAX);
        if extent == 0 {
            return Ok((axis, Range { first: 0, count: 0, step }));
        }
        let from_start = |at: i64| if at < 0 { at.saturating_add(extent) } else { at };
        let (lowest, highest) = if step > 0 { (0, extent) } else { (-1, extent - 1) };
        let first = from_start(start).clamp(lowest.max(0), highest);
        let last = from_start(end).clamp(lowest, highest);
        let count = match step {
            0 => bail!(Checkpoint, "the step must not be 0"),
            1.. => {
                last.saturating_sub(first).max(0).div_euclid(step)
                    + i64::from(last.saturating_sub(first).max(0) % step != 0)
            }
            _ => {
                let far = first.saturating_sub(last).max(0);
                let step = step.saturating_neg();
                far / step + i64::from(far % step != 0)
            }
        };
        let (first, count) = (usize::try_from(first).unwrap_or(0), usize::try_from(count).unwrap_or(0));
        Ok((axis, Range { first, count, step }))
    };
    starts.iter().zip(&ends).zip(axes.iter().zip(&steps)).map(range).collect()
}

fn sliced(call: &Call<'_>, x: &Var, ranges: &[(usize, Range)]) -> Result<Var> {
    let mut y = x.clone();
    for &(axis, range) in ranges {
        if range.count == 0 {
            bail!(Checkpoint, "no element is taken from axis {axis}, whose extent is {}", y.shape()[axis]);
        }
        y = match range.step {
            1 => y.slice(axis, range.first..range.first + range.count),
            -1 => y.slice(axis, range.first + 1 - range.count..range.first + 1).flip(&[axis]),
            _ => {
                call.budget.charge(range.count)?;
                let mut places = Vec::new();
                crate::host::reserve(&mut places, range.count)?;
                places.extend(range.places().map(|place| u32::try_from(place).unwrap_or(u32::MAX)));
                let index = crate::Tensor::indices(&y.tape().device(), [places.len()], &places)?;
                y.index_select(axis, &y.tape().input(&index))
            }
        };
        y = sound(y)?;
    }
    Ok(y)
}

fn split(call: &Call<'_>) -> Result<Vec<Value>> {
    let dims = call.value(0)?.dims();
    let axis = call.axis(call.int("axis", 0)?, dims.len())?;
    let (extent, results) = (dims[axis], call.results());
    let given = match call.optional_list("split")? {
        None => call.optional_ints(1)?,
        list => list,
    };
    let count = call.optional_int("num_outputs")?;
    if count.is_some_and(|count| given.is_some() || usize::try_from(count) != Ok(results)) {
        bail!(Checkpoint, "the attribute `num_outputs` does not fit {results} results");
    }
    let extents = match given {
        Some(list) => sizes(&list)?,
        None => {
            let part = extent.div_ceil(results.max(1));
            if count.is_none() && part.saturating_mul(results) != extent {
                bail!(Checkpoint, "axis {axis} of {dims:?} cannot be split into {results} equal parts");
            }
            (0..results).map(|k| extent.saturating_sub(k * part).min(part)).collect()
        }
    };
    if extents.len() != results {
        bail!(Checkpoint, "axis {axis} of {dims:?} into parts {extents:?}, for {results} results");
    }
    parts(call, axis, &extents)
}

/// Operand 0 in parts along an axis.
pub(super) fn parts(call: &Call<'_>, axis: usize, extents: &[usize]) -> Result<Vec<Value>> {
    let (value, mut dims) = (call.value(0)?, call.value(0)?.dims());
    if extents.iter().try_fold(0usize, |sum, &part| sum.checked_add(part)) != Some(dims[axis]) {
        bail!(Checkpoint, "axis {axis} of {dims:?} into parts {extents:?}");
    }
    let element = value.element();
    if matches!(value, Value::Known(array) if array.len() == 0) {
        let part = |&extent: &usize| {
            dims[axis] = extent;
            Value::Known(Arc::new(Array::empty(dims.clone(), element)))
        };
        return Ok(extents.iter().map(part).collect());
    }
    let x = call.stored(0)?;
    let mut start = 0;
    let part = |&len: &usize| {
        start += len;
        if len == 0 {
            dims[axis] = 0;
            return Value::Known(Arc::new(Array::empty(dims.clone(), element)));
        }
        Value::Var(x.slice(axis, start - len..start), element)
    };
    Ok(extents.iter().map(part).collect())
}

fn pad(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.own(0)?;
    let rank = x.shape().rank();
    let (widths, value) = if call.opset < 11 {
        (call.optional_list("pads")?.unwrap_or_default(), call.real("value", 0.0)?)
    } else {
        (call.ints(1)?, if call.optional(2).is_some() { call.number(2)? } else { 0.0 })
    };
    let axes = match call.optional_ints(3)? {
        Some(axes) => call.axes(&axes, rank)?,
        None => (0..rank).collect(),
    };
    if widths.len() != 2 * axes.len() {
        bail!(Checkpoint, "{} widths for {} axes", widths.len(), axes.len());
    }
    let mut both = vec![(0, 0); rank];
    let mut cut = x.clone();
    for (k, &axis) in axes.iter().enumerate() {
        let [mut before, mut after] = [widths[k], widths[axes.len() + k]];
        // Negative widths crop.
        if before < 0 || after < 0 {
            let lost = |width: i64| usize::try_from(width.min(0).unsigned_abs()).unwrap_or(usize::MAX);
            let (first, end) = (lost(before), cut.shape()[axis].saturating_sub(lost(after)));
            cut = sound(cut.slice(axis, first..end))?;
            (before, after) = (before.max(0), after.max(0));
        }
        both[axis] = (usize::try_from(before).unwrap_or(0), usize::try_from(after).unwrap_or(0));
    }
    let y = match call.text("mode", "constant")? {
        _ if both.iter().all(|&widths| widths == (0, 0)) => cut,
        "constant" => padded(&cut, &both, value),
        "reflect" => repeated(call, &cut, &both, Padding::Reflect)?,
        "edge" => repeated(call, &cut, &both, Padding::Replicate)?,
        "wrap" => repeated(call, &cut, &both, Padding::Circular)?,
        other => bail!(Checkpoint, "the attribute `mode` is {other:?}"),
    };
    call.like(0, y)
}

/// Padding with elements of the value itself.
fn repeated(call: &Call<'_>, x: &Var, widths: &[(usize, usize)], padding: Padding) -> Result<Var> {
    if x.ty().dtype.is_float() {
        return sound(x.pad_with(widths, padding));
    }
    let mut y = x.clone();
    for (axis, &(before, after)) in widths.iter().enumerate().filter(|(_, widths)| **widths != (0, 0)) {
        // The places of the elements, padded as they are.
        let places = call.tape.iota([x.shape()[axis]], 0);
        let index = sound(places.pad_with(&[(before, after)], padding))?.to_index();
        y = sound(y.index_select(axis, &index))?;
    }
    Ok(y)
}

/// The extents of images, and the size of a block.
fn blocks(call: &Call<'_>, x: Shape) -> Result<([usize; 4], usize)> {
    let block = usize::try_from(call.int("blocksize", 0)?).unwrap_or(0);
    match *x.dims() {
        [n, c, h, w] if (1..1 << 15).contains(&block) => Ok(([n, c, h, w], block)),
        _ => bail!(Checkpoint, "blocks of {block} need a shape [N, C, H, W], it is {x}"),
    }
}

fn depth_to_space(call: &Call<'_>) -> Result<Vec<Value>> {
    moved(call, |x| {
        let ([n, c, h, w], block) = blocks(call, x.shape())?;
        if c % (block * block) != 0 {
            bail!(Checkpoint, "blocks of {block}×{block} of {c} channels");
        }
        let left = c / (block * block);
        let y = match call.text("mode", "DCR")? {
            "CRD" => x.reshape([n, left, block, block, h, w]).permute(&[0, 1, 4, 2, 5, 3]),
            "DCR" => x.reshape([n, block, block, left, h, w]).permute(&[0, 3, 4, 1, 5, 2]),
            other => bail!(Checkpoint, "the attribute `mode` is {other:?}"),
        };
        Ok(y.reshape([n, left, h * block, w * block]))
    })
}

fn space_to_depth(call: &Call<'_>) -> Result<Vec<Value>> {
    moved(call, |x| {
        let ([n, c, h, w], block) = blocks(call, x.shape())?;
        if h % block != 0 || w % block != 0 {
            bail!(Checkpoint, "blocks of {block}×{block} of images of {h}×{w}");
        }
        let apart = x.reshape([n, c, h / block, block, w / block, block]);
        let y = match call.text("mode", "DCR")? {
            "CRD" if call.opset >= 28 => apart.permute(&[0, 1, 3, 5, 2, 4]),
            "DCR" => apart.permute(&[0, 3, 5, 1, 2, 4]),
            other => bail!(Checkpoint, "the attribute `mode` is {other:?}"),
        };
        Ok(y.reshape([n, c * block * block, h / block, w / block]))
    })
}
