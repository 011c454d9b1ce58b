//! Resizing. Places are computed in `f32`, as `onnxruntime` does: a scale of 0.7 is the `f32` next to it, and ten
//! pixels become seven.

use super::call::Call;
use super::element::Kind;
use super::value::{Value, sound};
use crate::error::bail;
use crate::host::reserve;
use crate::{Result, Shape, Tensor, Var};

/// The most elements of an axis of a result.
const LONGEST: f32 = 16_777_216.0;

/// The mapping of a result's pixels along an axis to those of the operand.
struct Places<'a> {
    mode: &'a str,
    scale: f32,
    from: usize,
    to: usize,
    /// The extents' ratio is exactly the scale.
    is_even: bool,
    /// The part of the axis that is resized, for one of the modes.
    region: [f32; 2],
}

#[expect(clippy::cast_precision_loss, reason = "extents are at most 2^24")]
impl Places<'_> {
    fn at(&self, p: usize) -> Result<f32> {
        let (p, from, to) = (p as f32, self.from as f32, self.to as f32);
        let [start, end] = self.region;
        Ok(match self.mode {
            "asymmetric" => p / self.scale,
            "align_corners" if self.to == 1 => 0.0,
            "align_corners" => p * (from - 1.0) / (to - 1.0),
            "pytorch_half_pixel" if self.to == 1 => 0.0,
            "half_pixel" | "pytorch_half_pixel" => (p + 0.5) / self.scale - 0.5,
            "half_pixel_symmetric" => {
                // The pixels that the scale leaves out are left out at both ends.
                let offset = from / 2.0 * (1.0 - to / (self.scale * from));
                offset + (p + 0.5) / self.scale - 0.5
            }
            "tf_crop_and_resize" if self.to == 1 => 0.5 * (start + end) * (from - 1.0),
            "tf_crop_and_resize" => start * (from - 1.0) + p * (end - start) * (from - 1.0) / (to - 1.0),
            other => {
                bail!(Checkpoint, "the attribute `coordinate_transformation_mode` is {other:?}, which is not supported")
            }
        })
    }

    /// `true` for a place outside of the operand, whose pixel has a value of its own.
    fn is_outside(&self, at: f32) -> bool {
        self.mode == "tf_crop_and_resize" && !(0.0..=(self.from - 1) as f32).contains(&at)
    }
}

/// The weights of pixels by their distance from a place.
#[derive(Clone, Copy)]
struct Filter {
    /// The distance from which on they are 0.
    reach: f64,
    /// The parameter of the cubic one.
    cubic: f64,
    /// Where an axis shrinks, distances shrink with it.
    antialias: bool,
    /// Pixels outside count as 0, not as those at the edge.
    exclude_outside: bool,
}

impl Filter {
    fn weight(&self, distance: f64) -> f64 {
        let (x, a) = (distance.abs(), self.cubic);
        match x {
            _ if x >= self.reach => 0.0,
            _ if self.reach == 1.0 => 1.0 - x,
            ..=1.0 => ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0,
            _ => ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a,
        }
    }
}

/// `true` for a place in the middle between two pixels, up to roundings, by the tolerance of `onnxruntime`.
fn is_half(at: f32) -> bool {
    (f64::from(at - at.floor()) - 0.5).abs() <= 1e-6
}

/// A rule for choosing one of two neighbours.
fn nearest_rule(name: &str) -> Result<fn(f32, bool) -> f32> {
    Ok(match name {
        "round_prefer_floor" => |at, _| if is_half(at) { at.floor() } else { at.round() },
        "round_prefer_ceil" => |at, _| if is_half(at) { at.ceil() } else { at.round() },
        "floor" => |at, _| at.floor(),
        "ceil" => |at, _| at.ceil(),
        // Operator set 10 has no such attribute.
        "" => |at, shrinks| if shrinks { at.ceil() } else { at.trunc() },
        other => bail!(Checkpoint, "the attribute `nearest_mode` is {other:?}"),
    })
}

/// The numbers of an optional operand, unless it is empty.
fn given(call: &Call<'_>, k: usize) -> Result<Option<Vec<f64>>> {
    let numbers = call.optional(k).map(|_| call.known(k).map(|known| known.as_floats())).transpose()?;
    Ok(numbers.filter(|numbers| !numbers.is_empty()))
}

/// The axes to be resized.
#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "extents are at most 2^24")]
fn places<'a>(call: &Call<'a>, x: Shape) -> Result<Vec<(usize, Places<'a>)>> {
    let axes = match call.optional_list("axes")? {
        Some(list) => call.axes(&list, x.rank())?,
        None => (0..x.rank()).collect(),
    };
    let (sizes, scales) = match call.op() {
        "Upsample" if call.opset < 7 => {
            let [height, width] = [call.real("height_scale", 0.0)?, call.real("width_scale", 0.0)?];
            (None, Some(vec![1.0, 1.0, height, width]))
        }
        "Upsample" if call.opset < 9 => (None, call.reals("scales")?),
        "Upsample" => (None, given(call, 1)?),
        _ if call.opset < 11 => (None, given(call, 1)?),
        _ => (given(call, 3)?, given(call, 2)?),
    };
    let policy = call.text("keep_aspect_ratio_policy", "stretch")?;
    let mode =
        call.text("coordinate_transformation_mode", if call.opset < 11 { "asymmetric" } else { "half_pixel" })?;
    let numbers = match (&sizes, &scales) {
        (Some(_), Some(_)) => bail!(Checkpoint, "it has both sizes and scales"),
        (Some(numbers), _) | (None, Some(numbers)) if numbers.len() == axes.len() => numbers,
        _ => bail!(Checkpoint, "it needs a size or a scale for each of {} axes", axes.len()),
    };
    let ratios = axes.iter().zip(numbers).map(|(&axis, &size)| size / x[axis] as f64);
    let common = match policy {
        "stretch" => None,
        "not_larger" => Some(ratios.fold(f64::INFINITY, f64::min)),
        "not_smaller" => Some(ratios.fold(0.0, f64::max)),
        other => bail!(Checkpoint, "the attribute `keep_aspect_ratio_policy` is {other:?}"),
    }
    .filter(|_| sizes.is_some());
    let region = match mode {
        "tf_crop_and_resize" => given(call, 1)?.unwrap_or_default(),
        _ => [vec![0.0; axes.len()], vec![1.0; axes.len()]].concat(),
    };
    if region.len() != 2 * axes.len() {
        bail!(Checkpoint, "a region of {} numbers for {} axes", region.len(), axes.len());
    }
    let mut each = Vec::new();
    for (k, (&axis, &number)) in axes.iter().zip(numbers).enumerate() {
        let (from, number) = (x[axis], number as f32);
        let number = common.map_or(number, |ratio| (ratio * from as f64 + 0.5).floor() as f32);
        let size = if sizes.is_some() { number } else { (from as f32 * number).floor() };
        if !((1.0..=LONGEST).contains(&size) && from as f32 <= LONGEST) {
            bail!(Checkpoint, "axis {axis} of {x} to {size} elements");
        }
        #[expect(clippy::cast_sign_loss, reason = "a whole number that fits")]
        let to = size as usize;
        let (scale, is_even) = match sizes {
            Some(_) => (common.map_or(to as f32 / from as f32, |ratio| ratio as f32), true),
            None => (number, from as f64 * f64::from(number) == to as f64),
        };
        let region = [region[k] as f32, region[axes.len() + k] as f32];
        each.push((axis, Places { mode, scale, from, to, is_even, region }));
    }
    each.retain(|(_, places)| places.from != places.to || places.scale != 1.0 || places.region != [0.0, 1.0]);
    Ok(each)
}

pub(super) fn resize(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.stored(0)?;
    let each = places(call, x.shape())?;
    let mode = call.text("mode", "nearest")?;
    let (antialias, exclude_outside) = (call.flag("antialias", false)?, call.flag("exclude_outside", false)?);
    let (cubic, outside) = (call.real("cubic_coeff_a", -0.75)?, call.real("extrapolation_value", 0.0)?);
    let rule = call.text("nearest_mode", if call.opset < 11 { "" } else { "round_prefer_floor" })?;
    let filter = |reach| Filter { reach, cubic, antialias, exclude_outside };
    let filter = match mode {
        "nearest" => {
            let rule = nearest_rule(rule)?;
            let y = each.iter().try_fold(x, |x, (axis, places)| nearest(call, &x, *axis, places, rule, outside))?;
            return call.like(0, y);
        }
        _ if call.value(0)?.kind() != Kind::Float => {
            bail!(Checkpoint, "integers can only be resized with the mode \"nearest\"")
        }
        "linear" | "bilinear" => filter(1.0),
        "cubic" => filter(2.0),
        other => bail!(Checkpoint, "the attribute `mode` is {other:?}"),
    };
    // There is an operation for this on images.
    let is_usual = !(antialias || exclude_outside) && cubic == -0.75;
    let is_plain = x.shape().rank() == 4 && each.iter().all(|(axis, places)| *axis >= 2 && places.is_even);
    let corners = match each.first().map_or("half_pixel", |(_, places)| places.mode) {
        "half_pixel" => Some(false),
        // The two modes differ for a single pixel.
        "pytorch_half_pixel" if each.iter().all(|(_, places)| places.to > 1) => Some(false),
        "align_corners" => Some(true),
        _ => None,
    };
    if let (true, true, Some(corners)) = (is_usual, is_plain, corners) {
        let mut size = [x.shape()[2], x.shape()[3]];
        each.iter().for_each(|(axis, places)| size[axis - 2] = places.to);
        let y = if filter.reach == 1.0 { x.resize_bilinear(size, corners) } else { x.resize_bicubic(size, corners) };
        return call.floats(y);
    }
    call.floats(each.iter().try_fold(x, |x, (axis, places)| filtered(call, &x, *axis, places, &filter, outside))?)
}

/// Nearest-neighbour resizing: each element of the result is one of the operand's.
#[expect(clippy::cast_precision_loss, reason = "extents are at most 2^24")]
fn nearest(
    call: &Call<'_>,
    x: &Var,
    axis: usize,
    places: &Places<'_>,
    rule: fn(f32, bool) -> f32,
    outside: f64,
) -> Result<Var> {
    let last = (places.from - 1) as f32;
    call.budget.charge(places.to)?;
    let (mut index, mut kept) = (Vec::new(), Vec::new());
    reserve(&mut index, places.to)?;
    reserve(&mut kept, places.to)?;
    for p in 0..places.to {
        let at = places.at(p)?;
        kept.push(!places.is_outside(at));
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a place that is there")]
        index.push(rule(at, places.scale < 1.0).clamp(0.0, last) as u32);
    }
    if kept.contains(&false) {
        return extrapolated(&selected(x, axis, &index)?, axis, &kept, outside);
    }
    let times = places.to / places.from;
    let repeats = |(p, &at): (usize, &u32)| at as usize == p / times;
    if places.to.is_multiple_of(places.from) && index.iter().enumerate().all(repeats) {
        // A view suffices.
        let dims = x.shape();
        let dims = dims.dims();
        let apart = [&dims[..=axis], &[1], &dims[axis + 1..]].concat();
        let spread = [&dims[..=axis], &[times], &dims[axis + 1..]].concat();
        let (Some(apart), Some(spread)) = (Shape::try_new(&apart), Shape::try_new(&spread)) else {
            bail!(Checkpoint, "{} has too many axes", x.shape());
        };
        return Ok(x.reshape(apart).expand(spread).reshape(x.shape().with(axis, places.to)));
    }
    selected(x, axis, &index)
}

/// The elements at these places along an axis.
fn selected(x: &Var, axis: usize, index: &[u32]) -> Result<Var> {
    let index = Tensor::indices(&x.tape().device(), [index.len()], index)?;
    sound(x.index_select(axis, &x.tape().input(&index)))
}

/// `y` with another value at places along an axis that are not kept.
fn extrapolated(y: &Var, axis: usize, kept: &[bool], outside: f64) -> Result<Var> {
    if kept.iter().all(|&kept| kept) {
        return Ok(y.clone());
    }
    let kept = Tensor::from_bools(&y.tape().device(), along(y.shape(), axis, kept.len()), kept)?;
    sound(y.tape().input(&kept).where_cond(y, &y.constant(outside)))
}

/// Extents of 1, but for one axis.
fn along(x: Shape, axis: usize, extent: usize) -> Shape {
    let mut dims = vec![1; x.rank()];
    dims[axis] = extent;
    Shape::new(&dims)
}

/// The most neighbours of a place that are selected one by one; more are a product with a matrix.
const MOST_SELECTED: usize = 4;

/// Weighted means of the neighbours of each place along an axis.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "extents are at most 2^24, and places are clamped"
)]
fn filtered(call: &Call<'_>, x: &Var, axis: usize, places: &Places<'_>, filter: &Filter, outside: f64) -> Result<Var> {
    let last = (places.from - 1) as f64;
    let shrinks = if filter.antialias { f64::from(places.scale.min(1.0)) } else { 1.0 };
    let reach = filter.reach / shrinks;
    // A place has that many neighbours, of which each costs an index and a weight.
    call.budget.charge(places.to.saturating_mul(2 * (2.0 * reach) as usize + 2))?;
    let (mut rows, mut kept) = (Vec::new(), Vec::new());
    reserve(&mut rows, places.to)?;
    reserve(&mut kept, places.to)?;
    for p in 0..places.to {
        let at = places.at(p)?;
        kept.push(!places.is_outside(at));
        let at = f64::from(at);
        let (first, end) = ((at - reach).floor() as i64 + 1, (at + reach).ceil() as i64);
        let mut row = Vec::new();
        for neighbour in first..end {
            let weight = filter.weight((neighbour as f64 - at) * shrinks);
            let place = (neighbour as f64).clamp(0.0, last);
            if !(filter.exclude_outside && place != neighbour as f64) {
                row.push((place as usize, weight));
            }
        }
        let sum: f64 = row.iter().map(|(_, weight)| weight).sum();
        if (filter.antialias || filter.exclude_outside) && sum != 0.0 {
            row.iter_mut().for_each(|(_, weight)| *weight /= sum);
        }
        rows.push(row);
    }
    let device = x.tape().device();
    let most = rows.iter().map(Vec::len).max().unwrap_or(0);
    let y = if most <= MOST_SELECTED {
        let mut sum: Option<Var> = None;
        for k in 0..most {
            // A place with fewer neighbours has none with a weight of 0.
            let of = |row: &Vec<(usize, f64)>| row.get(k).or(row.first()).map_or(0, |(place, _)| *place as u32);
            let index: Vec<_> = rows.iter().map(of).collect();
            let weights: Vec<_> = rows.iter().map(|row| row.get(k).map_or(0.0, |(_, weight)| *weight)).collect();
            let weights = Tensor::from_f64(&device, along(x.shape(), axis, places.to), &weights)?;
            let part = selected(x, axis, &index)? * x.tape().input(&weights);
            sum = Some(sum.map_or_else(|| part.clone(), |sum| sum + &part));
        }
        sum.unwrap_or_else(|| x.constant(0.0).expand(x.shape().with(axis, places.to)))
    } else {
        call.budget.charge(places.to.saturating_mul(places.from))?;
        let mut matrix = Vec::new();
        reserve(&mut matrix, places.to * places.from)?;
        matrix.resize(places.to * places.from, 0.0);
        for (p, row) in rows.iter().enumerate() {
            row.iter().for_each(|(place, weight)| matrix[place * places.to + p] += weight);
        }
        let matrix = Tensor::from_f64(&device, [places.from, places.to], &matrix)?;
        let inner = x.shape().rank() - 1;
        let turned = if axis == inner { x.clone() } else { x.transpose(axis, inner) };
        let dims = turned.shape().with(inner, places.to);
        let y = turned.reshape([turned.shape().elements() / places.from, places.from]).matmul(&x.tape().input(&matrix));
        let y = sound(y)?.reshape(dims);
        if axis == inner { y } else { y.transpose(axis, inner) }
    };
    extrapolated(&sound(y)?, axis, &kept, outside)
}
