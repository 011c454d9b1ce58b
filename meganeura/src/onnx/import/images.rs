//! Convolutions, pooling and resizing, of sequences `[N, C, L]`, images `[N, C, H, W]` and volumes `[N, C, D, H, W]`.

use super::call::{Call, Operators};
use super::element::Element;
use super::quantize::convolution_of_bytes;
use super::resize::resize;
use super::value::{Value, sound};
use crate::error::bail;
use crate::ops::{Bytes, ConvOptions, ConvTransposeOptions, Divisor, Pool};
use crate::{DType, Result, Shape, Var};

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
    ("Upsample", resize),
];

/// A sliding window: its kernel, stride, dilation and padding along each axis.
pub(super) struct Window<const D: usize> {
    kernel: [usize; D],
    pub(super) stride: [usize; D],
    pub(super) dilation: [usize; D],
    pub(super) before: [usize; D],
    after: [usize; D],
}

/// Calls a function for as many axes as there are, or fails.
macro_rules! by_axes {
    ($axes:expr, $function:ident($($argument:expr),*)) => {
        match $axes {
            1 => $function::<1>($($argument),*),
            2 => $function::<2>($($argument),*),
            3 => $function::<3>($($argument),*),
            other => bail!(Checkpoint, "windows over {other} axes; only those over one, two and three are supported"),
        }
    };
}

/// `D` numbers, of a list of as many.
fn of_axes<const D: usize>(list: &[usize]) -> [usize; D] {
    std::array::from_fn(|axis| list[axis])
}

impl<const D: usize> Window<D> {
    /// The window of a node whose kernel has these extents.
    pub(super) fn of(call: &Call<'_>, kernel: [usize; D], x: Shape) -> Result<Self> {
        if x.rank() != D + 2 {
            bail!(Checkpoint, "a kernel of {D} dimensions on {x}");
        }
        let (stride, dilation) = (call.sizes("strides", D, 1)?, call.sizes("dilations", D, 1)?);
        let pads = call.sizes("pads", 2 * D, 0)?;
        if stride.iter().chain(&dilation).chain(&kernel).any(|&number| number == 0 || number > 1 << 30) {
            bail!(Checkpoint, "kernel {kernel:?}, strides {stride:?}, dilations {dilation:?}; each must be at least 1");
        }
        let (stride, dilation): ([_; D], [_; D]) = (of_axes(&stride), of_axes(&dilation));
        let (mut before, mut after): ([_; D], [_; D]) = (of_axes(&pads[..D]), of_axes(&pads[D..]));
        match call.text("auto_pad", "NOTSET")? {
            "NOTSET" | "" => {}
            "VALID" => (before, after) = ([0; D], [0; D]),
            same @ ("SAME_UPPER" | "SAME_LOWER") => {
                for axis in 0..D {
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
        Ok(Self { kernel, stride, dilation, before, after })
    }

    /// The number of places of the window along each axis; `None` if the padded input is smaller than the window.
    pub(super) fn places(&self, x: Shape) -> Option<[usize; D]> {
        let mut places = [0; D];
        for (axis, count) in places.iter_mut().enumerate() {
            let reach = self.dilation[axis] * (self.kernel[axis] - 1) + 1;
            let free = (x[axis + 2] + self.before[axis] + self.after[axis]).checked_sub(reach)?;
            *count = free / self.stride[axis] + 1;
        }
        Some(places)
    }

    /// Increases the padding at the end until the last windows that start inside the input are complete.
    fn round_up(&mut self, x: Shape) {
        for axis in 0..D {
            let padded = x[axis + 2] + self.before[axis] + self.after[axis];
            let reach = self.dilation[axis] * (self.kernel[axis] - 1) + 1;
            let Some(steps) = padded.checked_sub(reach).map(|far| far.div_ceil(self.stride[axis])) else { continue };
            // No window starts past the end of the input.
            let begins = steps * self.stride[axis] < x[axis + 2] + self.before[axis];
            let steps = if begins { steps } else { steps - 1 };
            self.after[axis] += (steps * self.stride[axis] + reach).saturating_sub(padded);
        }
    }

    /// The padding, if it is the same at both ends and an operation supports it.
    fn symmetric(&self, most: [usize; D]) -> Option<[usize; D]> {
        let fits = self.before == self.after && self.before.iter().zip(most).all(|(&width, most)| width <= most);
        fits.then_some(self.before)
    }

    fn padded(&self, x: &Var, value: f64) -> Var {
        let widths = self.before.into_iter().zip(self.after);
        padded(x, &[(0, 0); 2].into_iter().chain(widths).collect::<Vec<_>>(), value)
    }

    /// The sums over windows without padding: products with ones.
    fn sums(&self, x: &Var) -> Result<Var> {
        let shape = sound(x.clone())?.shape();
        let channels = shape[0] * shape[1];
        let alone = |dims: &[usize]| [&[channels, 1], dims].concat();
        let ones = x.constant(1.0).expand(&[&[1, 1], &self.kernel[..]].concat()[..]);
        let options = ConvOptions { stride: self.stride, padding: [0; D], dilation: self.dilation, groups: 1 };
        let sums = sound(x.reshape(&alone(&shape.dims()[2..])[..]).convolve(&ones, options))?;
        let dims = [&shape.dims()[..2], &sums.shape().dims()[2..]].concat();
        Ok(sums.reshape(&dims[..]))
    }

    /// The window as a pooling's, with this padding.
    fn pool(&self, padding: [usize; D]) -> Pool<D> {
        let &Self { kernel, stride, dilation, .. } = self;
        Pool { kernel, stride, padding, dilation, ceil_mode: false }
    }
}

/// Pads unless every width is 0.
pub(super) fn padded(x: &Var, widths: &[(usize, usize)], value: f64) -> Var {
    if widths.iter().all(|&widths| widths == (0, 0)) { x.clone() } else { x.pad(widths, value) }
}

/// The extents of a weight after its first two axes; there must be one to three.
pub(super) fn kernel(call: &Call<'_>, weight: &Var) -> Result<Vec<usize>> {
    match weight.shape().dims() {
        [_, _, kernel @ ..] if (1..=3).contains(&kernel.len()) => {
            let named = call.optional_list("kernel_shape")?;
            if let Some(named) = named.filter(|named| !named.iter().copied().eq(kernel.iter().map(|&k| k as i64))) {
                bail!(Checkpoint, "the attribute `kernel_shape` is {named:?}, and the weight is {}", weight.shape());
            }
            Ok(kernel.to_vec())
        }
        _ => bail!(Checkpoint, "a weight {}; only those of one to three dimensions are supported", weight.shape()),
    }
}

pub(super) fn groups(call: &Call<'_>) -> Result<usize> {
    match usize::try_from(call.int("group", 1)?) {
        Ok(groups) if groups > 0 => Ok(groups),
        _ => bail!(Checkpoint, "the attribute `group` must be at least 1"),
    }
}

/// Adds operand `k`, a number for each channel, if there is one.
pub(super) fn with_bias(call: &Call<'_>, k: usize, y: Var) -> Result<Var> {
    let y = sound(y)?;
    if call.optional(k).is_none() {
        return Ok(y);
    }
    let channels = y.shape()[1];
    let axes: Vec<_> = (0..y.shape().rank()).map(|axis| if axis == 1 { channels } else { 1 }).collect();
    Ok(y + call.vector(k, channels)?.reshape(&axes[..]))
}

fn conv(call: &Call<'_>) -> Result<Vec<Value>> {
    let y = match convolution_of_bytes(call)? {
        Some(y) => y,
        None => convolved(call, &call.float(0)?, &call.float(1)?)?,
    };
    call.floats(with_bias(call, 2, y)?)
}

/// A convolution by the node's attributes.
pub(super) fn convolved(call: &Call<'_>, x: &Var, weight: &Var) -> Result<Var> {
    let kernel = kernel(call, weight)?;
    by_axes!(kernel.len(), convolved_over(call, x, weight, &kernel))
}

fn convolved_over<const D: usize>(call: &Call<'_>, x: &Var, weight: &Var, kernel: &[usize]) -> Result<Var> {
    let groups = groups(call)?;
    let window = Window::<D>::of(call, of_axes(kernel), x.shape())?;
    let Window { stride, dilation, .. } = window;
    let options = |padding| ConvOptions { stride, padding, dilation, groups };
    sound(match window.symmetric([usize::MAX; D]) {
        Some(padding) => x.convolve(weight, options(padding)),
        None => window.padded(x, 0.0).convolve(weight, options([0; D])),
    })
}

/// The same of bytes, with the zero points of both, a bias, and sums of this type.
pub(super) fn convolved_bytes(
    call: &Call<'_>,
    [x, weight]: [&Var; 2],
    others: [&Var; 3],
    bytes: [Bytes; 2],
    result: DType,
) -> Result<Var> {
    let kernel = kernel(call, weight)?;
    by_axes!(kernel.len(), convolved_bytes_over(call, [x, weight], &kernel, others, bytes, result))
}

fn convolved_bytes_over<const D: usize>(
    call: &Call<'_>,
    [x, weight]: [&Var; 2],
    kernel: &[usize],
    others: [&Var; 3],
    bytes: [Bytes; 2],
    result: DType,
) -> Result<Var> {
    let groups = groups(call)?;
    let window = Window::<D>::of(call, of_axes(kernel), x.shape())?;
    let Window { stride, dilation, .. } = window;
    let options = |padding| ConvOptions { stride, padding, dilation, groups };
    sound(match window.symmetric([usize::MAX; D]) {
        Some(padding) => x.convolve_integer(weight, others, options(padding), bytes, result),
        None => {
            // Padding is the zero point.
            let zero = others[0].reshape([]);
            let padded = window.padded(&(x - &zero), 0.0) + zero;
            padded.convolve_integer(weight, others, options([0; D]), bytes, result)
        }
    })
}

fn conv_transpose(call: &Call<'_>) -> Result<Vec<Value>> {
    let weight = call.float(1)?;
    let kernel = kernel(call, &weight)?;
    by_axes!(kernel.len(), conv_transpose_over(call, &weight, &kernel))
}

fn conv_transpose_over<const D: usize>(call: &Call<'_>, weight: &Var, kernel: &[usize]) -> Result<Vec<Value>> {
    let x = call.float(0)?;
    let mut window = Window::<D>::of(call, of_axes(kernel), x.shape())?;
    let output_padding = call.sizes("output_padding", D, 0)?;
    let extents = transposed_extents(call, &window, x.shape())?;
    for (axis, &extent) in extents.iter().flatten().enumerate() {
        let reach = window.dilation[axis] * (window.kernel[axis] - 1) + 1;
        let all =
            (window.stride[axis] * (x.shape()[axis + 2] - 1) + reach + output_padding[axis]).saturating_sub(extent);
        let less = all / 2;
        (window.before[axis], window.after[axis]) =
            if call.text("auto_pad", "NOTSET")? == "SAME_UPPER" { (less, all - less) } else { (all - less, less) };
    }
    // The excess of one side's cut over the other's is cut afterwards.
    let common = std::array::from_fn(|axis| window.before[axis].min(window.after[axis]));
    let options = ConvTransposeOptions {
        stride: window.stride,
        padding: common,
        output_padding: of_axes(&output_padding),
        dilation: window.dilation,
        groups: groups(call)?,
    };
    let mut y = sound(x.convolve_transposed(weight, options))?;
    for (axis, common) in common.into_iter().enumerate() {
        let (first, last) = (window.before[axis] - common, window.after[axis] - common);
        if (first, last) != (0, 0) {
            y = sound(y.slice(axis + 2, first..y.shape()[axis + 2].saturating_sub(last)))?;
        }
    }
    if let Some(extents) = extents {
        // Past the last window there are zeros.
        let after = |(axis, extent): (usize, &usize)| (0, extent.saturating_sub(y.shape()[axis + 2]));
        let widths: Vec<_> = [(0, 0); 2].into_iter().chain(extents.iter().enumerate().map(after)).collect();
        y = sound(padded(&y, &widths, 0.0))?;
    }
    call.floats(with_bias(call, 2, y)?)
}

/// The extents of a transposed convolution's result, if the node says them.
fn transposed_extents<const D: usize>(call: &Call<'_>, window: &Window<D>, x: Shape) -> Result<Option<Vec<usize>>> {
    if let Some(list) = call.optional_list("output_shape")? {
        let extents: Vec<_> = list.iter().filter_map(|&extent| usize::try_from(extent).ok()).collect();
        // Some files also list examples and channels.
        return match extents.len().checked_sub(D) {
            Some(0 | 2)
                if extents.len() == list.len() && extents.iter().all(|extent| (1..1 << 30).contains(extent)) =>
            {
                Ok(Some(extents[extents.len() - D..].to_vec()))
            }
            _ => bail!(Checkpoint, "the attribute `output_shape` is {list:?}, for {D} axes"),
        };
    }
    let is_same = matches!(call.text("auto_pad", "NOTSET")?, "SAME_UPPER" | "SAME_LOWER");
    let extent = |axis: usize| x[axis + 2].saturating_mul(window.stride[axis]);
    Ok(is_same.then(|| (0..D).map(extent).collect()))
}

/// The window of a pooling operator.
fn pooling<const D: usize>(call: &Call<'_>, x: &Var) -> Result<Window<D>> {
    let kernel = call.sizes("kernel_shape", D, 0)?;
    let mut window = Window::of(call, of_axes(&kernel), x.shape())?;
    if call.flag("ceil_mode", false)? {
        window.round_up(x.shape());
    }
    Ok(window)
}

fn max_pool(call: &Call<'_>) -> Result<Vec<Value>> {
    // Integers have 8 bits.
    let x = call.float(0)?;
    by_axes!(x.shape().rank().saturating_sub(2), max_pool_over(call, &x))
}

fn max_pool_over<const D: usize>(call: &Call<'_>, x: &Var) -> Result<Vec<Value>> {
    let window = pooling::<D>(call, x)?;
    let (padded, padding) = match window.symmetric(window.kernel.map(|extent| extent / 2)) {
        Some(padding) => (x.clone(), padding),
        None => (window.padded(x, f64::NEG_INFINITY), [0; D]),
    };
    let [y, place] = padded.max_pool_of(window.pool(padding));
    let mut results = call.like(0, sound(y)?)?;
    // Counts columns first.
    let by_columns = call.flag("storage_order", false)?;
    if call.wants(1) {
        let before = if padding == [0; D] { window.before } else { [0; D] };
        let own: [usize; D] = of_axes(&x.shape().dims()[2..]);
        // The coordinates in what was pooled, and from them the place in the operand.
        let mut left = place.cast(DType::I64);
        let area = own.iter().product::<usize>() as f64;
        let dims = place.shape();
        let plane = call.tape.iota([dims[0] * dims[1]], 0).cast(DType::I64) * area;
        let mut ones = dims.dims().to_vec();
        ones[2..].fill(1);
        let mut at = plane.reshape(&ones[..]).expand(dims);
        for axis in (0..D).rev() {
            let extent = left.constant(padded.shape()[axis + 2] as f64);
            let coordinate = left.modulo(&extent) - before[axis] as f64;
            left /= extent;
            let below = if by_columns { &own[..axis] } else { &own[axis + 1..] };
            at += coordinate * below.iter().product::<usize>() as f64;
        }
        results.push(Value::Var(sound(at)?, Element::I64));
    }
    Ok(results)
}

/// `(Σ |x|ᵖ)^(1/p)` over each window.
fn lp_pool(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, p) = (call.float(0)?, call.real_or_int("p", 2.0)?);
    let powers = match p {
        1.0 => x.abs(),
        2.0 => x.square(),
        p if p > 0.0 => x.abs().powf(p),
        p => bail!(Checkpoint, "the attribute `p` is {p}"),
    };
    let sums = by_axes!(x.shape().rank().saturating_sub(2), sums_over(call, &powers))?;
    call.floats(match p {
        1.0 => sums,
        2.0 => sums.sqrt(),
        p => sums.powf(p.recip()),
    })
}

/// The sums over windows, padded with zeros.
fn sums_over<const D: usize>(call: &Call<'_>, x: &Var) -> Result<Var> {
    let window = pooling::<D>(call, x)?;
    window.sums(&window.padded(x, 0.0))
}

fn average_pool(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.float(0)?;
    let y = by_axes!(x.shape().rank().saturating_sub(2), average_pool_over(call, &x))?;
    call.floats(y)
}

fn average_pool_over<const D: usize>(call: &Call<'_>, x: &Var) -> Result<Var> {
    let window = pooling::<D>(call, x)?;
    let counts = call.flag("count_include_pad", false)?;
    let ceils = call.flag("ceil_mode", false)?;
    let most = window.kernel.map(|extent| extent / 2);
    let is_dilated = window.dilation != [1; D];
    Ok(match window.symmetric(most).filter(|_| !(is_dilated || ceils && counts)) {
        Some(padding) => x.avg_pool_of(window.pool(padding), if counts { Divisor::Padded } else { Divisor::Inside }),
        // Sums divided by the number of averaged elements.
        None => {
            let ones = x.constant(1.0).expand(x.shape().with(0, 1).with(1, 1));
            let ones = if counts { window_ones(call, &window, &ones)? } else { window.padded(&ones, 0.0) };
            if is_dilated {
                return Ok(window.sums(&window.padded(x, 0.0))? / window.sums(&ones)?);
            }
            let pool = window.pool([0; D]);
            let means = |x: &Var| x.avg_pool_of(pool, Divisor::Padded);
            means(&window.padded(x, 0.0)) / means(&ones)
        }
    })
}

/// 1 for elements that count: those in the input and in the padding that the node declares, but not in padding from
/// rounding up.
fn window_ones<const D: usize>(call: &Call<'_>, window: &Window<D>, ones: &Var) -> Result<Var> {
    let named = Window::of(call, window.kernel, ones.shape())?;
    let counted = named.padded(ones, 1.0);
    let after = std::array::from_fn(|axis| window.after[axis] - named.after[axis]);
    let added = Window { before: [0; D], after, ..named };
    Ok(added.padded(&counted, 0.0))
}

fn global(call: &Call<'_>, fold: fn(&Var, &[usize]) -> Var) -> Result<Vec<Value>> {
    let x = call.float(0)?;
    call.floats(fold(&x, &(2..x.shape().rank()).collect::<Vec<_>>()))
}
