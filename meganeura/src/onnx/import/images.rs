//! Convolutions, pooling and resizing. Sequences `[N, C, L]` are treated as images with one row.

use super::call::{Call, Operators, float};
use super::value::Value;
use crate::error::bail;
use crate::ops::{Conv2dOptions, ConvTranspose2dOptions};
use crate::{Result, Shape, Tensor, Var};

pub(super) const OPERATORS: Operators = &[
    ("AveragePool", average_pool),
    ("Conv", conv),
    ("ConvTranspose", conv_transpose),
    ("GlobalAveragePool", |call| global(call, Var::mean_keep)),
    ("GlobalMaxPool", |call| global(call, Var::max_keep)),
    ("MaxPool", max_pool),
    ("Resize", resize),
];

/// Numbers for the vertical and the horizontal axis.
type Pair = [usize; 2];

/// A sliding window over images: its kernel, stride, dilation and padding.
struct Window {
    /// `true` if the values are sequences.
    is_line: bool,
    kernel: Pair,
    stride: Pair,
    dilation: Pair,
    before: Pair,
    after: Pair,
}

/// Images, or sequences as images with one row.
fn images(x: &Var) -> Result<Var> {
    match *x.shape().dims() {
        [n, c, l] => Ok(x.reshape([n, c, 1, l])),
        [_, _, _, _] => Ok(x.clone()),
        _ => bail!(
            Checkpoint,
            "{} is neither images [N, C, H, W] nor sequences [N, C, L]; others are not supported",
            x.shape()
        ),
    }
}

/// Returns a result to the form of the operand.
fn back(y: &Var, is_line: bool) -> Var {
    match *y.shape().dims() {
        [n, c, _, l] if is_line && y.error().is_none() => y.reshape([n, c, l]),
        _ => y.clone(),
    }
}

/// The numbers for one or two axes as a pair; `one` for the missing axis.
fn pair(list: &[usize], one: usize) -> Pair {
    match *list {
        [a, b] => [a, b],
        [a] => [one, a],
        _ => [one, one],
    }
}

impl Window {
    /// The window of a node whose kernel has these extents.
    fn of(call: &Call<'_>, kernel: &[usize], x: Shape) -> Result<Self> {
        let axes = kernel.len();
        let (stride, dilation) = (call.sizes("strides", axes, 1)?, call.sizes("dilations", axes, 1)?);
        let pads = call.sizes("pads", 2 * axes, 0)?;
        if stride.iter().chain(&dilation).chain(kernel).any(|&number| number == 0 || number > 1 << 30) {
            bail!(Checkpoint, "kernel {kernel:?}, strides {stride:?}, dilations {dilation:?}; each must be at least 1");
        }
        let (mut before, mut after) = (pair(&pads[..axes], 0), pair(&pads[axes..], 0));
        let [kernel, stride, dilation] = [kernel, &stride, &dilation].map(|list| pair(list, 1));
        match call.text("auto_pad", "NOTSET")? {
            "NOTSET" | "" => {}
            "VALID" => (before, after) = ([0; 2], [0; 2]),
            same @ ("SAME_UPPER" | "SAME_LOWER") => {
                for axis in 0..2 {
                    let extent = x[axis + 2];
                    let reach = dilation[axis] * (kernel[axis] - 1) + 1;
                    let all = ((extent.div_ceil(stride[axis]) - 1) * stride[axis] + reach).saturating_sub(extent);
                    let less = all / 2;
                    (before[axis], after[axis]) =
                        if same == "SAME_UPPER" { (less, all - less) } else { (all - less, less) };
                }
            }
            other => bail!(Checkpoint, "the attribute `auto_pad` is {other:?}"),
        }
        if before.iter().chain(&after).any(|&width| width > 1 << 30) {
            bail!(Checkpoint, "pads {before:?} and {after:?}, which are too large");
        }
        Ok(Self { is_line: axes == 1, kernel, stride, dilation, before, after })
    }

    /// Increases the padding at the end until the last windows that start inside the images are complete.
    fn round_up(&mut self, x: Shape) {
        for axis in 0..2 {
            let padded = x[axis + 2] + self.before[axis] + self.after[axis];
            let reach = self.dilation[axis] * (self.kernel[axis] - 1) + 1;
            let Some(steps) = padded.checked_sub(reach).map(|far| far.div_ceil(self.stride[axis])) else { continue };
            // No window starts past the end of the images.
            let begins = steps * self.stride[axis] < x[axis + 2] + self.before[axis];
            let steps = if begins { steps } else { steps - 1 };
            self.after[axis] += (steps * self.stride[axis] + reach).saturating_sub(padded);
        }
    }

    /// The padding, if it is the same at both ends and an operation supports it.
    fn symmetric(&self, most: Pair) -> Option<Pair> {
        (self.before == self.after && self.before[0] <= most[0] && self.before[1] <= most[1]).then_some(self.before)
    }

    fn padded(&self, x: &Var, value: f64) -> Var {
        let widths = [(0, 0), (0, 0), (self.before[0], self.after[0]), (self.before[1], self.after[1])];
        if widths.iter().all(|&widths| widths == (0, 0)) { x.clone() } else { x.pad(&widths, value) }
    }
}

/// The extents of a weight after its first two axes; there must be one or two.
fn kernel(weight: &Var) -> Result<Vec<usize>> {
    match weight.shape().dims() {
        [_, _, kernel @ ..] if (1..=2).contains(&kernel.len()) => Ok(kernel.to_vec()),
        _ => bail!(Checkpoint, "a weight {}; only those of one and two dimensions are supported", weight.shape()),
    }
}

fn groups(call: &Call<'_>) -> Result<usize> {
    match usize::try_from(call.int("group", 1)?) {
        Ok(groups) if groups > 0 => Ok(groups),
        _ => bail!(Checkpoint, "the attribute `group` must be at least 1"),
    }
}

fn with_bias(call: &Call<'_>, y: Var) -> Result<Var> {
    let Some(bias) = call.optional_float(2)? else { return Ok(y) };
    let channels = bias.shape().elements();
    Ok(y + bias.reshape([1, channels, 1, 1]))
}

fn conv(call: &Call<'_>) -> Result<Vec<Value>> {
    let weight = call.float(1)?;
    let kernel = kernel(&weight)?;
    let x = expect_rank(&call.float(0)?, kernel.len())?;
    let window = Window::of(call, &kernel, x.shape())?;
    let weight = images(&weight)?;
    let options = |padding| Conv2dOptions {
        stride: window.stride,
        padding,
        dilation: window.dilation,
        groups: groups(call).unwrap_or(1),
    };
    groups(call)?;
    let y = match window.symmetric([usize::MAX; 2]) {
        Some(padding) => x.conv2d(&weight, options(padding)),
        None => window.padded(&x, 0.0).conv2d(&weight, options([0; 2])),
    };
    float(back(&with_bias(call, y)?, window.is_line))
}

/// Images with as many dimensions as a kernel.
fn expect_rank(x: &Var, kernel: usize) -> Result<Var> {
    if x.shape().rank() != kernel + 2 {
        bail!(Checkpoint, "a kernel of {kernel} dimensions on {}", x.shape());
    }
    images(x)
}

fn conv_transpose(call: &Call<'_>) -> Result<Vec<Value>> {
    let weight = call.float(1)?;
    let kernel = kernel(&weight)?;
    let x = expect_rank(&call.float(0)?, kernel.len())?;
    let window = Window::of(call, &kernel, x.shape())?;
    if call.attribute("output_shape")?.is_some() || !matches!(call.text("auto_pad", "NOTSET")?, "NOTSET" | "" | "VALID")
    {
        bail!(Checkpoint, "the attributes `output_shape` and `auto_pad` are not supported");
    }
    let more = pair(&call.sizes("output_padding", kernel.len(), 0)?, 0);
    let weight = images(&weight)?;
    // The excess of one side's cut over the other's is cut afterwards.
    let common = [0, 1].map(|axis| window.before[axis].min(window.after[axis]));
    let options = ConvTranspose2dOptions {
        stride: window.stride,
        padding: common,
        output_padding: more,
        dilation: window.dilation,
        groups: groups(call)?,
    };
    let mut y = x.conv_transpose2d(&weight, options);
    for (axis, common) in common.into_iter().enumerate() {
        let (first, last) = (window.before[axis] - common, window.after[axis] - common);
        if (first, last) != (0, 0) && y.error().is_none() {
            y = y.slice(axis + 2, first..y.shape()[axis + 2].saturating_sub(last));
        }
    }
    float(back(&with_bias(call, y)?, window.is_line))
}

/// The window of a pooling operator, and its operand as images.
fn pooling(call: &Call<'_>) -> Result<(Var, Window)> {
    let x = call.float(0)?;
    let axes = x.shape().rank().saturating_sub(2);
    let kernel = call.sizes("kernel_shape", axes, 0)?;
    let x = expect_rank(&x, kernel.len())?;
    let mut window = Window::of(call, &kernel, x.shape())?;
    if call.flag("ceil_mode", false)? {
        window.round_up(x.shape());
    }
    Ok((x, window))
}

fn max_pool(call: &Call<'_>) -> Result<Vec<Value>> {
    if call.wants(1) {
        bail!(Checkpoint, "its second result, the indices of the maxima, is not supported");
    }
    let (x, window) = pooling(call)?;
    let most = window.kernel.map(|extent| extent / 2);
    let Window { kernel, stride, dilation, .. } = window;
    let y = match window.symmetric(most) {
        Some(padding) => x.max_pool2d(kernel, stride, padding, dilation),
        None => window.padded(&x, f64::from(f32::MIN)).max_pool2d(kernel, stride, [0; 2], dilation),
    };
    float(back(&y, window.is_line))
}

fn average_pool(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, window) = pooling(call)?;
    let (counts, is_line) = (call.flag("count_include_pad", false)?, window.is_line);
    let Window { kernel, stride, dilation, .. } = window;
    if dilation != [1; 2] {
        bail!(Checkpoint, "dilated averages are not supported");
    }
    let ceils = call.flag("ceil_mode", false)?;
    let most = kernel.map(|extent| extent / 2);
    let y = match window.symmetric(most).filter(|_| !(ceils && counts)) {
        Some(padding) => x.avg_pool2d(kernel, stride, padding, counts),
        // Sums divided by the number of averaged elements.
        None => {
            let ones = x.constant(1.0).expand(x.shape().with(0, 1).with(1, 1));
            let ones = if counts { window_ones(call, &window, &ones)? } else { window.padded(&ones, 0.0) };
            let sums = window.padded(&x, 0.0).avg_pool2d(kernel, stride, [0; 2], true);
            sums / ones.avg_pool2d(kernel, stride, [0; 2], true)
        }
    };
    float(back(&y, is_line))
}

/// 1 for elements that count: those in the images and in the padding that the node declares, but not in padding from
/// rounding up.
fn window_ones(call: &Call<'_>, window: &Window, ones: &Var) -> Result<Var> {
    let kernel = if window.is_line { vec![window.kernel[1]] } else { window.kernel.to_vec() };
    let named = Window::of(call, &kernel, ones.shape())?;
    let counted = named.padded(ones, 1.0);
    let added = Window { before: [0; 2], after: [0, 1].map(|axis| window.after[axis] - named.after[axis]), ..named };
    Ok(added.padded(&counted, 0.0))
}

fn global(call: &Call<'_>, fold: fn(&Var, &[usize]) -> Var) -> Result<Vec<Value>> {
    let x = call.float(0)?;
    float(fold(&x, &(2..x.shape().rank()).collect::<Vec<_>>()))
}

/// The mapping of a result's pixels to those of the operand.
struct Places<'a> {
    mode: &'a str,
    scale: f64,
    from: usize,
    to: usize,
}

impl Places<'_> {
    fn at(&self, p: usize) -> Result<f64> {
        let (p, from, to) = (p as f64, self.from as f64, self.to as f64);
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

fn resize(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.float(0)?;
    let rank = x.shape().rank();
    let axes = match call.optional_list("axes")? {
        Some(list) => call.axes(&list, rank)?,
        None => (0..rank).collect(),
    };
    let given = |k: usize| -> Result<Option<Vec<f64>>> {
        let numbers = call.optional(k).map(|_| call.known(k).map(super::value::Array::as_floats)).transpose()?;
        Ok(numbers.filter(|numbers| !numbers.is_empty()))
    };
    let (sizes, scales) = (given(3)?, given(2)?);
    let mode = call.text("mode", "nearest")?;
    let places = call.text("coordinate_transformation_mode", "half_pixel")?;
    if call.text("keep_aspect_ratio_policy", "stretch")? != "stretch" || call.flag("antialias", false)? {
        bail!(Checkpoint, "antialiasing and fixed aspect ratios are not supported");
    }
    call.only("exclude_outside", 0, 0)?;
    let numbers = match (&sizes, &scales) {
        (Some(numbers), _) | (None, Some(numbers)) if numbers.len() == axes.len() => numbers,
        _ => bail!(Checkpoint, "it needs a size or a scale for each of {} axes", axes.len()),
    };
    let mut each = Vec::new();
    for (&axis, &number) in axes.iter().zip(numbers) {
        let from = x.shape()[axis];
        let size = if sizes.is_some() { number } else { (from as f64 * number).floor() };
        if !(size >= 1.0 && size <= f64::from(1 << 24)) {
            bail!(Checkpoint, "axis {axis} of {} to {size} elements", x.shape());
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a whole number that fits")]
        let to = size as usize;
        let scale = if sizes.is_some() { to as f64 / from as f64 } else { number };
        each.push((axis, Places { mode: places, scale, from, to }));
    }
    each.retain(|(_, places)| places.from != places.to || places.scale != 1.0);
    // There is an operation for this on images.
    let is_even = |places: &Places<'_>| (places.from as f64 * places.scale - places.to as f64).abs() < 1e-9;
    let is_plain = rank == 4 && each.iter().all(|(axis, places)| *axis >= 2 && is_even(places));
    let corners = match places {
        "half_pixel" => Some(false),
        // The two modes differ for a single pixel.
        "pytorch_half_pixel" if each.iter().all(|(_, places)| places.to > 1) => Some(false),
        "align_corners" => Some(true),
        _ => None,
    };
    if let (true, Some(corners), "linear" | "cubic") = (is_plain, corners, mode) {
        let mut size = [x.shape()[2], x.shape()[3]];
        each.iter().for_each(|(axis, places)| size[axis - 2] = places.to);
        return match mode {
            "linear" => float(x.resize_bilinear(size, corners)),
            _ if call.real("cubic_coeff_a", -0.75)? == -0.75 => float(x.resize_bicubic(size, corners)),
            _ => bail!(Checkpoint, "the attribute `cubic_coeff_a` must be -0.75"),
        };
    }
    let mut y = x;
    for (axis, places) in &each {
        y = match mode {
            "nearest" => nearest(&y, *axis, places, call.text("nearest_mode", "round_prefer_floor")?)?,
            "linear" => linear(&y, *axis, places)?,
            other => bail!(Checkpoint, "the attribute `mode` is {other:?}, which is not supported here"),
        };
    }
    float(y)
}

/// Nearest-neighbour resizing: each element of the result is one of the operand's.
fn nearest(x: &Var, axis: usize, places: &Places<'_>, rounding: &str) -> Result<Var> {
    let last = places.from as f64 - 1.0;
    let mut index = Vec::new();
    crate::host::reserve(&mut index, places.to)?;
    for p in 0..places.to {
        let at = places.at(p)?;
        let at = match rounding {
            "round_prefer_floor" => (at - 0.5).ceil(),
            "round_prefer_ceil" => (at + 0.5).floor(),
            "floor" => at.floor(),
            "ceil" => at.ceil(),
            other => bail!(Checkpoint, "the attribute `nearest_mode` is {other:?}"),
        };
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
    let index = Tensor::indices(&x.tape().device(), [index.len()], &index)?;
    Ok(x.index_select(axis, &x.tape().input(&index)))
}

/// Linear interpolation along an axis: a product with a matrix.
fn linear(x: &Var, axis: usize, places: &Places<'_>) -> Result<Var> {
    let Some(count) = places.from.checked_mul(places.to).filter(|&count| count <= 1 << 22) else {
        bail!(Checkpoint, "{} elements between {} are too many", places.to, places.from);
    };
    let last = places.from as f64 - 1.0;
    let mut shares = crate::host::try_filled(count, 0.0)?;
    for p in 0..places.to {
        let at = places.at(p)?.clamp(0.0, last);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a place that is there")]
        let low = at.floor() as usize;
        let part = at - at.floor();
        shares[low * places.to + p] += 1.0 - part;
        if part > 0.0 {
            shares[(low + 1) * places.to + p] += part;
        }
    }
    let matrix = x.tape().input(&Tensor::from_f64(&x.tape().device(), [places.from, places.to], &shares)?);
    let mut axes: Vec<_> = (0..x.shape().rank()).collect();
    let end = axes.len() - 1;
    axes.swap(axis, end);
    let moved = x.permute(&axes);
    let rows = moved.shape().elements() / places.from;
    let y = moved.reshape([rows, places.from]).matmul(&matrix);
    Ok(y.reshape(moved.shape().with(end, places.to)).permute(&axes))
}
