//! Convolutions, pooling and resizing. Sequences `[N, C, L]` are treated as images with one row.

use super::call::{Call, Operators};
use super::resize::resize;
use super::value::{Value, sound};
use crate::error::bail;
use crate::ops::{Conv2dOptions, ConvTranspose2dOptions};
use crate::{Result, Shape, Var};

pub(super) const OPERATORS: Operators = &[
    ("AveragePool", average_pool),
    ("Conv", conv),
    ("ConvTranspose", conv_transpose),
    ("GlobalAveragePool", |call| global(call, Var::mean_keep)),
    ("GlobalMaxPool", |call| global(call, Var::max_keep)),
    ("GlobalLpPool", |call| {
        let (x, p) = (call.float(0)?, call.real_or_int("p", 2.0)?);
        let axes: Vec<_> = (2..x.shape().rank()).collect();
        let norm = x.norm_over(&axes, p);
        let kept = axes.iter().fold(x.shape(), |shape, &axis| shape.with(axis, 1));
        call.floats(norm.reshape(kept))
    }),
    ("LpPool", lp_pool),
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
    sound(x.clone())?;
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
        padded(x, &widths, value)
    }
}

/// Pads unless every width is 0.
pub(super) fn padded(x: &Var, widths: &[(usize, usize)], value: f64) -> Var {
    if widths.iter().all(|&widths| widths == (0, 0)) { x.clone() } else { x.pad(widths, value) }
}

/// The extents of a weight after its first two axes; there must be one or two.
fn kernel(call: &Call<'_>, weight: &Var) -> Result<Vec<usize>> {
    match weight.shape().dims() {
        [_, _, kernel @ ..] if (1..=2).contains(&kernel.len()) => {
            let named = call.optional_list("kernel_shape")?;
            if let Some(named) = named.filter(|named| !named.iter().copied().eq(kernel.iter().map(|&k| k as i64))) {
                bail!(Checkpoint, "the attribute `kernel_shape` is {named:?}, and the weight is {}", weight.shape());
            }
            Ok(kernel.to_vec())
        }
        _ => bail!(Checkpoint, "a weight {}; only those of one and two dimensions are supported", weight.shape()),
    }
}

fn groups(call: &Call<'_>) -> Result<usize> {
    match usize::try_from(call.int("group", 1)?) {
        Ok(groups) if groups > 0 => Ok(groups),
        _ => bail!(Checkpoint, "the attribute `group` must be at least 1"),
    }
}

/// Adds operand 2, a number for each channel.
pub(super) fn with_bias(call: &Call<'_>, y: Var) -> Result<Var> {
    let y = sound(y)?;
    if call.optional(2).is_none() {
        return Ok(y);
    }
    let channels = y.shape()[1];
    let mut dims = vec![1; y.shape().rank()];
    dims[1] = channels;
    Ok(y + call.vector(2, channels)?.reshape(&dims[..]))
}

fn conv(call: &Call<'_>) -> Result<Vec<Value>> {
    let y = convolved(call, &call.float(0)?, &call.float(1)?)?;
    call.floats(with_bias(call, y)?)
}

/// A convolution by the node's attributes.
pub(super) fn convolved(call: &Call<'_>, x: &Var, weight: &Var) -> Result<Var> {
    let kernel = kernel(call, weight)?;
    let x = expect_rank(x, kernel.len())?;
    let window = Window::of(call, &kernel, x.shape())?;
    let weight = images(weight)?;
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
    Ok(back(&sound(y)?, window.is_line))
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
    let kernel = kernel(call, &weight)?;
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
    let mut y = sound(x.conv_transpose2d(&weight, options))?;
    for (axis, common) in common.into_iter().enumerate() {
        let (first, last) = (window.before[axis] - common, window.after[axis] - common);
        if (first, last) != (0, 0) {
            y = sound(y.slice(axis + 2, first..y.shape()[axis + 2].saturating_sub(last)))?;
        }
    }
    call.floats(back(&with_bias(call, y)?, window.is_line))
}

/// The window of a pooling operator, and its operand as images.
fn pooling(call: &Call<'_>) -> Result<(Var, Window)> {
    let x = call.exact(0)?;
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
    // The order of the indices.
    call.ignore(&["storage_order"]);
    let (x, window) = pooling(call)?;
    let most = window.kernel.map(|extent| extent / 2);
    let Window { kernel, stride, dilation, .. } = window;
    let y = match window.symmetric(most) {
        Some(padding) => x.max_pool2d(kernel, stride, padding, dilation),
        None => window.padded(&x, f64::NEG_INFINITY).max_pool2d(kernel, stride, [0; 2], dilation),
    };
    call.like(0, back(&y, window.is_line))
}

/// `(Σ |x|ᵖ)^(1/p)` over each window.
fn lp_pool(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, window) = pooling(call)?;
    let p = call.real_or_int("p", 2.0)?;
    let Window { kernel, stride, dilation, .. } = window;
    let powers = match p {
        1.0 => x.abs(),
        2.0 => x.square(),
        p if p > 0.0 => x.abs().powf(p),
        p => bail!(Checkpoint, "the attribute `p` is {p}"),
    };
    let powers = sound(window.padded(&powers, 0.0))?;
    let dims = powers.shape();
    // Sums over windows are products with ones.
    let alone = powers.reshape([dims[0] * dims[1], 1, dims[2], dims[3]]);
    let ones = x.constant(1.0).expand([1, 1, kernel[0], kernel[1]]);
    let options = Conv2dOptions { stride, padding: [0; 2], dilation, groups: 1 };
    let sums = sound(alone.conv2d(&ones, options))?;
    let sums = sums.reshape([dims[0], dims[1], sums.shape()[2], sums.shape()[3]]);
    let y = match p {
        1.0 => sums,
        2.0 => sums.sqrt(),
        p => sums.powf(p.recip()),
    };
    call.floats(back(&y, window.is_line))
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
    call.floats(back(&y, is_line))
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
    call.floats(fold(&x, &(2..x.shape().rank()).collect::<Vec<_>>()))
}
