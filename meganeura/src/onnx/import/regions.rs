//! Operators on regions of images: crops between pixels, grids, and windows that are put back.

use super::call::{Call, Operators};
use super::images::padded;
use super::shapes::sizes;
use super::value::{Value, sound};
use crate::error::bail;
use crate::host::reserve;
use crate::ops::ConvTransposeOptions;
use crate::{Result, Tensor, Var};

pub(super) const OPERATORS: Operators =
    &[("AffineGrid", affine_grid), ("Col2Im", windows_to_images), ("MaxUnpool", max_unpool), ("RoiAlign", roi_align)];

/// Points of an image that an affine map moves: `[N, D, D + 1]` and a size `[N, C, …]` → `[N, …, D]`
fn affine_grid(call: &Call<'_>) -> Result<Vec<Value>> {
    let (theta, size) = (call.float(0)?, sizes(&call.ints(1)?)?);
    let [n, _, extents @ ..] = &size[..] else { bail!(Checkpoint, "a size of {size:?}") };
    let axes = extents.len();
    if !matches!(axes, 2 | 3) || theta.shape().dims() != [*n, axes, axes + 1] {
        bail!(Checkpoint, "maps {} for a size of {size:?}", theta.shape());
    }
    let points = extents.iter().try_fold(1usize, |count, &extent| count.checked_mul(extent)).unwrap_or(usize::MAX);
    call.budget.charge(points.saturating_mul(axes + 1))?;
    let corners = call.flag("align_corners", false)?;
    let mut numbers = Vec::new();
    reserve(&mut numbers, points * (axes + 1))?;
    for point in 0..points {
        // The last axis comes first.
        let mut left = point;
        for &extent in extents.iter().rev() {
            let at = (left % extent) as f64;
            left /= extent;
            numbers.push(match corners {
                true if extent == 1 => 0.0,
                true => 2.0 * at / (extent - 1) as f64 - 1.0,
                false => (2.0 * at + 1.0) / extent as f64 - 1.0,
            });
        }
        numbers.push(1.0);
    }
    call.shape(&[points])?;
    let base = Tensor::from_f64(&call.tape.device(), [1, points, 1, axes + 1], &numbers)?;
    let moved = call.tape.input(&base) * theta.reshape([*n, 1, axes, axes + 1]);
    let to = [&[*n], extents, &[axes]].concat();
    call.floats(sound(moved)?.sum_over(&[3]).reshape(call.shape(&to)?))
}

/// The sums of windows at their places: `[N, C·K, L]` → `[N, C, …]`
fn windows_to_images(call: &Call<'_>) -> Result<Vec<Value>> {
    let (image, block) = (sizes(&call.ints(1)?)?, sizes(&call.ints(2)?)?);
    if image.len() != block.len() {
        bail!(Checkpoint, "blocks of {block:?} of images of {image:?}");
    }
    match image.len() {
        1 => windows_over::<1>(call, &image, &block),
        2 => windows_over::<2>(call, &image, &block),
        3 => windows_over::<3>(call, &image, &block),
        other => bail!(Checkpoint, "images of {other} axes; only those of one, two and three are supported"),
    }
}

fn windows_over<const D: usize>(call: &Call<'_>, image: &[usize], block: &[usize]) -> Result<Vec<Value>> {
    let x = call.float(0)?;
    let (stride, dilation) = (call.sizes("strides", D, 1)?, call.sizes("dilations", D, 1)?);
    let pads = call.sizes("pads", 2 * D, 0)?;
    let all = stride.iter().chain(&dilation).chain(block).chain(image);
    if all.chain(&pads).any(|&number| number > 1 << 30) || stride.iter().chain(&dilation).chain(block).any(|&k| k == 0)
    {
        bail!(Checkpoint, "blocks {block:?}, strides {stride:?}, dilations {dilation:?}, pads {pads:?}");
    }
    let reach = |axis: usize| dilation[axis] * (block[axis] - 1) + 1;
    let steps = |axis: usize| {
        let extent = image[axis] + pads[axis] + pads[D + axis];
        extent.checked_sub(reach(axis)).map_or(0, |left| left / stride[axis] + 1)
    };
    let counts: Vec<_> = (0..D).map(steps).collect();
    let area = block.iter().try_fold(1usize, |count, &extent| count.checked_mul(extent)).unwrap_or(usize::MAX);
    let [n, columns, places] = *x.shape().dims() else { bail!(Checkpoint, "{} is no list of windows", x.shape()) };
    if columns % area != 0 || counts.iter().product::<usize>() != places {
        bail!(Checkpoint, "{} holds no windows {block:?} at {counts:?} places", x.shape());
    }
    // A transposed convolution whose kernels each have a single 1.
    let channels = columns / area;
    call.budget.charge(area.saturating_mul(area))?;
    let ones: Vec<_> = (0..area * area).map(|at| f64::from(u8::from(at / area == at % area))).collect();
    let ones = Tensor::from_f64(&call.tape.device(), call.shape(&[&[area, 1], block].concat())?, &ones)?;
    let x = x.reshape(call.shape(&[&[n * channels, area][..], &counts].concat())?);
    let options = ConvTransposeOptions {
        stride: std::array::from_fn(|axis| stride[axis]),
        dilation: std::array::from_fn(|axis| dilation[axis]),
        padding: [0; D],
        output_padding: [0; D],
        groups: 1,
    };
    let mut y = sound(x.convolve_transposed(&call.tape.input(&ones), options))?;
    for axis in 0..D {
        let (first, extent) = (pads[axis], y.shape()[axis + 2]);
        y = sound(y.slice(axis + 2, first..extent.min(first + image[axis])))?;
    }
    // Pixels past the last window are 0.
    let after = |axis: usize| (0, image[axis].saturating_sub(y.shape()[axis + 2]));
    let widths: Vec<_> = [(0, 0); 2].into_iter().chain((0..D).map(after)).collect();
    call.floats(sound(padded(&y, &widths, 0.0))?.reshape(call.shape(&[&[n, channels], image].concat())?))
}

/// Maxima at the places that they had before they were pooled; 0 elsewhere.
fn max_unpool(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, index) = (call.float(0)?, call.own(1)?.to_index());
    let rank = x.shape().rank();
    let Some(axes @ 1..) = rank.checked_sub(2) else { bail!(Checkpoint, "{} has no pixels", x.shape()) };
    if index.shape() != x.shape() {
        bail!(Checkpoint, "indices {} of maxima {}", index.shape(), x.shape());
    }
    let kernel = call.sizes("kernel_shape", axes, 0)?;
    let (stride, pads) = (call.sizes("strides", axes, 1)?, call.sizes("pads", 2 * axes, 0)?);
    let mut dims = x.shape().dims().to_vec();
    for axis in 0..axes {
        let extent = (dims[axis + 2] - 1).checked_mul(stride[axis]).and_then(|all| all.checked_add(kernel[axis]));
        let extent = extent.and_then(|all| all.checked_sub(pads[axis].checked_add(pads[axes + axis])?));
        match extent {
            Some(extent @ 1..) => dims[axis + 2] = extent,
            _ => bail!(Checkpoint, "windows {kernel:?} with strides {stride:?} and pads {pads:?}"),
        }
    }
    let whole = call.shape(&dims)?;
    let (flat, count) = (whole.elements(), x.shape().elements());
    call.budget.charge(flat)?;
    let y = x.constant(0.0).expand([flat]).scatter(0, &index.reshape([count]), &x.reshape([count]));
    let y = sound(y)?.reshape(whole);
    if call.optional(2).is_none() {
        return call.floats(y);
    }
    let to = sizes(&call.ints(2)?)?;
    if to.len() != rank || to.iter().zip(&dims).any(|(to, from)| to < from) {
        bail!(Checkpoint, "a result of {to:?}, of which the windows cover {dims:?}");
    }
    let widths: Vec<_> = to.iter().zip(&dims).map(|(to, from)| (0, to - from)).collect();
    call.floats(padded(&y, &widths, 0.0))
}

/// Points between pixels along an axis: the two pixels, and the weight of the second; `None` outside of the image.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "places inside of an image"
)]
fn between(at: f32, extent: usize) -> Option<([usize; 2], f32)> {
    let last = extent - 1;
    if !(-1.0..=extent as f32).contains(&at) {
        return None;
    }
    let at = at.max(0.0);
    let low = at as usize;
    Some(if low >= last { ([last, last], 0.0) } else { ([low, low + 1], at - low as f32) })
}

/// Means or maxima of points in the parts of regions: `x [N, C, H, W]`, regions `[R, 4]`, their images `[R]` →
/// `[R, C, P, Q]`
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "extents, and numbers of points, which are charged for"
)]
fn roi_align(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, regions, images) = (call.float(0)?, call.known(1)?, call.ints(2)?);
    let [n, c, h, w] = *x.shape().dims() else { bail!(Checkpoint, "{} holds no images", x.shape()) };
    if regions.dims != [images.len(), 4] || images.is_empty() {
        bail!(Checkpoint, "regions {:?} of {} images", regions.dims, images.len());
    }
    let size = |name: &str| match call.int(name, 1)? {
        size @ 1..=4096 => Ok(size as usize),
        size => bail!(Checkpoint, "the attribute `{name}` is {size}"),
    };
    let (rows, columns) = (size("output_height")?, size("output_width")?);
    let (ratio, scale) = (call.int("sampling_ratio", 0)?, call.real("spatial_scale", 1.0)? as f32);
    let usual = if call.opset < 16 { "output_half_pixel" } else { "half_pixel" };
    let is_half = match call.text("coordinate_transformation_mode", usual)? {
        "half_pixel" => true,
        "output_half_pixel" => false,
        other => bail!(Checkpoint, "the attribute `coordinate_transformation_mode` is {other:?}"),
    };
    let is_mean = match call.text("mode", "avg")? {
        "avg" => true,
        "max" => false,
        other => bail!(Checkpoint, "the attribute `mode` is {other:?}"),
    };
    // The pixels of each part, and their weights.
    let mut parts: Vec<Vec<(u32, f32)>> = Vec::new();
    for (corners, &image) in regions.as_floats().chunks(4).zip(&images) {
        let Some(image) = usize::try_from(image).ok().filter(|&image| image < n) else {
            bail!(Checkpoint, "a region of image {image}, of {n}");
        };
        let [left, top, right, bottom] =
            [0, 1, 2, 3].map(|k| corners[k] as f32 * scale - if is_half { 0.5 } else { 0.0 });
        let least = if is_half { f32::MIN } else { 1.0 };
        let (width, height) = ((right - left).max(least), (bottom - top).max(least));
        let steps = |length: f32, parts: usize| match usize::try_from(ratio) {
            Ok(ratio @ 1..) => ratio,
            _ => (length / parts as f32).ceil().clamp(0.0, 1e6) as usize,
        };
        let (down, across) = (steps(height, rows), steps(width, columns));
        call.budget.charge((rows * columns).saturating_mul(down.saturating_mul(across).saturating_mul(8)))?;
        let point = |start: f32, length: f32, parts: usize, part: usize, steps: usize, step: usize| {
            let part_length = length / parts as f32;
            start + part as f32 * part_length + (step as f32 + 0.5) * part_length / steps as f32
        };
        for part in 0..rows * columns {
            let mut pixels = Vec::new();
            for step in 0..down * across {
                let y = between(point(top, height, rows, part / columns, down, step / across), h);
                let x = between(point(left, width, columns, part % columns, across, step % across), w);
                let (Some((y, low)), Some((x, near))) = (y, x) else {
                    pixels.push((0, 0.0));
                    continue;
                };
                for (y, of_y) in [(y[0], 1.0 - low), (y[1], low)] {
                    for (x, of_x) in [(x[0], 1.0 - near), (x[1], near)] {
                        pixels.push((u32::try_from((image * h + y) * w + x).unwrap_or(u32::MAX), of_y * of_x));
                    }
                }
            }
            if is_mean {
                let count = (down * across).max(1) as f32;
                pixels.iter_mut().for_each(|(_, weight)| *weight /= count);
            }
            parts.push(pixels);
        }
    }
    let most = parts.iter().map(Vec::len).max().unwrap_or(0).max(1);
    call.budget.charge(parts.len().saturating_mul(most))?;
    // Parts with fewer pixels repeat their first one; in a mean, with no weight.
    let filled = |part: &Vec<(u32, f32)>, k: usize| match (part.get(k), part.first()) {
        (Some(&pixel), _) => pixel,
        (None, Some(&(place, weight))) => (place, if is_mean { 0.0 } else { weight }),
        (None, None) => (0, 0.0),
    };
    let pixels = || parts.iter().flat_map(|part| (0..most).map(|k| filled(part, k)));
    let device = call.tape.device();
    let places = call.shape(&[parts.len() * most])?;
    let index = Tensor::indices(&device, places, &pixels().map(|(place, _)| place).collect::<Vec<_>>())?;
    let weights: Vec<_> = pixels().map(|(_, weight)| f64::from(weight)).collect();
    let weights = Tensor::from_f64(&device, [parts.len(), most, 1], &weights)?;
    let table = x.permute(&[0, 2, 3, 1]).reshape([n * h * w, c]);
    let values = sound(table.embedding(&call.tape.input(&index)))?.reshape([parts.len(), most, c]);
    let values = values * call.tape.input(&weights);
    let y: Var = if is_mean { values.sum_over(&[1]) } else { values.max_over(&[1]) };
    call.floats(sound(y)?.reshape([images.len(), rows, columns, c]).permute(&[0, 3, 1, 2]))
}
