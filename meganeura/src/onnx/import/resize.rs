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
}

#[expect(clippy::cast_precision_loss, reason = "extents are at most 2^24")]
impl Places<'_> {
    fn at(&self, p: usize) -> Result<f32> {
        let (p, from, to) = (p as f32, self.from as f32, self.to as f32);
        Ok(match self.mode {
            "asymmetric" => p / self.scale,
            "align_corners" if self.to == 1 => 0.0,
            "align_corners" => p * (from - 1.0) / (to - 1.0),
            "pytorch_half_pixel" if self.to == 1 => 0.0,
            "half_pixel" | "pytorch_half_pixel" => (p + 0.5) / self.scale - 0.5,
            other => {
                bail!(Checkpoint, "the attribute `coordinate_transformation_mode` is {other:?}, which is not supported")
            }
        })
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
    let numbers = call.optional(k).map(|_| Ok(call.known(k)?.as_floats())).transpose()?;
    Ok(numbers.filter(|numbers| !numbers.is_empty()))
}

/// The axes to be resized.
#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "extents are at most 2^24")]
fn places<'a>(call: &Call<'a>, x: Shape) -> Result<Vec<(usize, Places<'a>)>> {
    let axes = match call.optional_list("axes")? {
        Some(list) => call.axes(&list, x.rank())?,
        None => (0..x.rank()).collect(),
    };
    let (sizes, scales) = if call.opset < 11 { (None, given(call, 1)?) } else { (given(call, 3)?, given(call, 2)?) };
    let mode =
        call.text("coordinate_transformation_mode", if call.opset < 11 { "asymmetric" } else { "half_pixel" })?;
    let numbers = match (&sizes, &scales) {
        (Some(_), Some(_)) => bail!(Checkpoint, "it has both sizes and scales"),
        (Some(numbers), _) | (None, Some(numbers)) if numbers.len() == axes.len() => numbers,
        _ => bail!(Checkpoint, "it needs a size or a scale for each of {} axes", axes.len()),
    };
    let mut each = Vec::new();
    for (&axis, &number) in axes.iter().zip(numbers) {
        let (from, number) = (x[axis], number as f32);
        let size = if sizes.is_some() { number } else { (from as f32 * number).floor() };
        if !((1.0..=LONGEST).contains(&size) && from as f32 <= LONGEST) {
            bail!(Checkpoint, "axis {axis} of {x} to {size} elements");
        }
        #[expect(clippy::cast_sign_loss, reason = "a whole number that fits")]
        let to = size as usize;
        let (scale, is_even) = match sizes {
            Some(_) => (to as f32 / from as f32, true),
            None => (number, from as f64 * f64::from(number) == to as f64),
        };
        each.push((axis, Places { mode, scale, from, to, is_even }));
    }
    each.retain(|(_, places)| places.from != places.to || places.scale != 1.0);
    Ok(each)
}

pub(super) fn resize(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.stored(0)?;
    // Only for places outside of the operand, in a mode that is refused.
    call.ignore(&["extrapolation_value"]);
    let each = places(call, x.shape())?;
    let mode = call.text("mode", "nearest")?;
    if call.text("keep_aspect_ratio_policy", "stretch")? != "stretch" || call.flag("antialias", false)? {
        bail!(Checkpoint, "antialiasing and fixed aspect ratios are not supported");
    }
    call.only("exclude_outside", 0, 0)?;
    if mode != "cubic" {
        call.ignore(&["cubic_coeff_a"]);
    } else if call.real("cubic_coeff_a", -0.75)? != -0.75 {
        bail!(Checkpoint, "the attribute `cubic_coeff_a` must be -0.75");
    }
    if mode == "nearest" {
        let rule = nearest_rule(call.text("nearest_mode", if call.opset < 11 { "" } else { "round_prefer_floor" })?)?;
        let mut y = x;
        for (axis, places) in &each {
            y = sound(nearest(call, &y, *axis, places, rule)?)?;
        }
        return call.like(0, y);
    }
    call.ignore(&["nearest_mode"]);
    if call.value(0)?.kind() != Kind::Float {
        bail!(Checkpoint, "integers can only be resized with the mode \"nearest\"");
    }
    // There is an operation for this on images.
    let is_plain = x.shape().rank() == 4 && each.iter().all(|(axis, places)| *axis >= 2 && places.is_even);
    let corners = match each.first().map_or("half_pixel", |(_, places)| places.mode) {
        "half_pixel" => Some(false),
        // The two modes differ for a single pixel.
        "pytorch_half_pixel" if each.iter().all(|(_, places)| places.to > 1) => Some(false),
        "align_corners" => Some(true),
        _ => None,
    };
    if let (true, Some(corners), "linear" | "cubic") = (is_plain, corners, mode) {
        let mut size = [x.shape()[2], x.shape()[3]];
        each.iter().for_each(|(axis, places)| size[axis - 2] = places.to);
        let y = if mode == "linear" { x.resize_bilinear(size, corners) } else { x.resize_bicubic(size, corners) };
        return call.floats(y);
    }
    let mut y = x;
    for (axis, places) in &each {
        y = match mode {
            "linear" => sound(linear(call, &y, *axis, places)?)?,
            other => bail!(Checkpoint, "the attribute `mode` is {other:?}, which is not supported here"),
        };
    }
    call.floats(y)
}

/// Nearest-neighbour resizing: each element of the result is one of the operand's.
#[expect(clippy::cast_precision_loss, reason = "extents are at most 2^24")]
fn nearest(call: &Call<'_>, x: &Var, axis: usize, places: &Places<'_>, rule: fn(f32, bool) -> f32) -> Result<Var> {
    let last = (places.from - 1) as f32;
    call.budget.charge(places.to)?;
    let mut index = Vec::new();
    reserve(&mut index, places.to)?;
    for p in 0..places.to {
        let at = rule(places.at(p)?, places.scale < 1.0);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a place that is there")]
        index.push(at.clamp(0.0, last) as u32);
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

/// Linear interpolation along an axis, between two neighbours of each place.
#[expect(clippy::cast_precision_loss, reason = "extents are at most 2^24")]
fn linear(call: &Call<'_>, x: &Var, axis: usize, places: &Places<'_>) -> Result<Var> {
    let last = (places.from - 1) as f32;
    call.budget.charge(places.to.saturating_mul(4))?;
    let (mut low, mut high, mut parts) = (Vec::new(), Vec::new(), Vec::new());
    reserve(&mut low, places.to)?;
    reserve(&mut high, places.to)?;
    reserve(&mut parts, places.to)?;
    for p in 0..places.to {
        let at = places.at(p)?.clamp(0.0, last);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a place that is there")]
        low.push(at as u32);
        high.push(low[p].saturating_add(1).min(u32::try_from(places.from - 1).unwrap_or(u32::MAX)));
        parts.push(f64::from(at - at.floor()));
    }
    let mut dims = vec![1; x.shape().rank()];
    dims[axis] = places.to;
    let part = Tensor::from_f64(&x.tape().device(), Shape::new(&dims), &parts)?;
    let part = sound(x.tape().input(&part))?;
    let (low, high) = (selected(x, axis, &low)?, selected(x, axis, &high)?);
    Ok(low * (part.constant(1.0) - &part) + high * part)
}
