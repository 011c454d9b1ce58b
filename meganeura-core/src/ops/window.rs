//! Windows that slide over one, two or three axes: the extents of the results of convolutions and pooling.

use std::ops::Range;

use crate::Shape;
use crate::kernel::launch::{Define, define};

/// The one of three names that belongs to so many axes: `conv1d`, `conv2d` or `conv3d`.
#[doc(hidden)]
pub fn named<const D: usize>(names: [&'static str; 3]) -> &'static str {
    names[D.clamp(1, 3) - 1]
}

/// The name of an axis of `D` in messages.
pub(crate) fn axis_name<const D: usize>(axis: usize) -> &'static str {
    if D == 1 { "length" } else { ["depth", "height", "width"][(axis + 3 - D).min(2)] }
}

/// The extents of a shape with two leading axes and `D` more; otherwise the error, with the `D`-th form.
pub(crate) fn expect_axes<const D: usize>(
    what: &str,
    shape: &Shape,
    forms: [&'static str; 3],
) -> Result<([usize; 2], [usize; D]), String> {
    if let &[a, b, ref rest @ ..] = shape.dims()
        && let Ok(rest) = rest.try_into()
    {
        return Ok(([a, b], rest));
    }
    Err(format!("the {what} must be {}, it is {shape}", named::<D>(forms)))
}

/// Inputs of one, two and three axes, as messages name them.
pub(crate) const INPUTS: [&str; 3] = ["[N, C, L]", "[N, C, H, W]", "[N, C, D, H, W]"];

/// The numbers of `D` axes as those of three; `leading` for those that are missing.
pub(crate) fn with_leading<const D: usize>(of: [usize; D], leading: usize) -> [usize; 3] {
    let mut all = [leading; 3];
    all[3 - D..].copy_from_slice(&of);
    all
}

/// The last `D` numbers of those of three axes.
pub(crate) fn last<const D: usize>(of: [usize; 3]) -> [usize; D] {
    std::array::from_fn(|axis| of[3 - D + axis])
}

/// The extents of a shape after its first two axes as those of three axes; 1 for those that are missing.
pub(crate) fn spatial(shape: Shape) -> [usize; 3] {
    let mut all = [1; 3];
    all[5 - shape.rank()..].copy_from_slice(&shape.dims()[2..]);
    all
}

/// A window along one axis.
#[derive(Clone, Copy)]
pub(crate) struct Window {
    pub(crate) kernel: usize,
    pub(crate) stride: usize,
    pub(crate) padding: usize,
    pub(crate) dilation: usize,
}

/// `true` if kernels, which compute places in signed 32-bit integers, can count to this.
fn fits(number: &usize) -> bool {
    i32::try_from(*number).is_ok()
}

impl Window {
    /// The number of windows: `⌊(extent + 2·pad − d·(K − 1) − 1)/s⌋ + 1`, or why there are none.
    ///
    /// `ceil_mode` rounds up instead, so that the last window may reach past the padding. No window begins there, as in
    /// PyTorch.
    pub(crate) fn slide(self, axis: &str, extent: usize, ceil_mode: bool) -> Result<usize, String> {
        let Self { kernel, stride, padding, dilation } = self;
        let reach = self.reach(axis)?;
        let padded = padding.checked_mul(2).and_then(|both| extent.checked_add(both)).filter(fits);
        let (Some(padded), Some(reach), true, true) = (padded, reach, fits(&stride), fits(&dilation)) else {
            return Err(format!(
                "{axis}: kernel {kernel}, stride {stride}, padding {padding} or dilation {dilation} is too large: \
                 elements are counted to 2³¹"
            ));
        };
        let most = if ceil_mode { padded + (stride - 1) } else { padded };
        let Some(far) = most.checked_sub(reach) else {
            return Err(format!(
                "{axis}: a kernel of {kernel} spans {reach} elements, but the padded input has only {padded}"
            ));
        };
        let last = far / stride;
        let begins_inside = !ceil_mode || last * stride < extent + padding;
        Ok(if begins_inside { last + 1 } else { last })
    }

    /// The windows of which a tap is inside an axis, not in the padding, and the first element that it reads.
    pub(crate) fn inside(self, tap: usize, extent: usize, windows: usize) -> (Range<usize>, usize) {
        let Self { stride, padding, dilation, .. } = self;
        let shift = tap * dilation;
        let first = padding.saturating_sub(shift).div_ceil(stride).min(windows);
        let end = (extent + padding).saturating_sub(shift).div_ceil(stride).min(windows);
        (first..end.max(first), (first * stride + shift).saturating_sub(padding))
    }

    /// The elements past the padding that so many windows reach.
    #[cfg(any(feature = "onnx", test))]
    pub(crate) fn beyond(self, extent: usize, windows: usize) -> usize {
        let end = (windows - 1) * self.stride + self.dilation * (self.kernel - 1) + 1;
        end.saturating_sub(extent + 2 * self.padding)
    }

    /// `(extent − 1)·s − 2·pad + d·(K − 1) + more + 1`, an extent that [`slide`](Self::slide) maps back, or why there
    /// is none.
    pub(crate) fn spread(self, axis: &str, extent: usize, more: usize) -> Result<usize, String> {
        let Self { kernel, stride, padding, dilation } = self;
        let reach = self.reach(axis)?;
        if more >= stride && more >= dilation {
            return Err(format!(
                "{axis}: the output padding, {more}, must be less than the stride, {stride}, or the dilation, {dilation}"
            ));
        }
        let full = stride.checked_mul(extent - 1).and_then(|steps| steps.checked_add(reach?)?.checked_add(more));
        match (full, padding.checked_mul(2)) {
            (Some(full), Some(cut)) if full > cut => Ok(full - cut),
            (Some(full), Some(cut)) => {
                Err(format!("{axis}: the padding cuts off {cut} elements, the output has {full} before that"))
            }
            _ => Err(format!(
                "{axis}: kernel {kernel}, stride {stride}, padding {padding} or dilation {dilation} is too large"
            )),
        }
    }

    /// The number of elements from a window's first to its last, unless it is too large to be counted.
    fn reach(self, axis: &str) -> Result<Option<usize>, String> {
        let Self { kernel, stride, dilation, .. } = self;
        if kernel == 0 || stride == 0 || dilation == 0 {
            return Err(format!("{axis}: kernel {kernel}, stride {stride} and dilation {dilation} must be at least 1"));
        }
        Ok(dilation.checked_mul(kernel - 1).and_then(|gaps| gaps.checked_add(1)).filter(fits))
    }
}

/// The planes of a volume, as a window of the kernel's planes slides over them. Plane `k` of the kernel meets, for
/// plane `z` of the result, plane `(z·stride + k·dilation − padding)/apart` of the input, if there is such a plane.
///
/// An image or a sequence has one plane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Depth {
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    pub(crate) kernel: usize,
    pub(crate) stride: usize,
    /// Negative where that many planes at the beginning are never met.
    pub(crate) padding: isize,
    pub(crate) dilation: usize,
    /// More than 1 in the gradient of the input: the stride of the convolution.
    pub(crate) apart: usize,
}

impl Depth {
    /// `true` if there is no depth: one plane that one plane of the kernel meets.
    pub(crate) fn is_flat(&self) -> bool {
        [self.inputs, self.outputs, self.kernel] == [1; 3] && self.padding == 0
    }

    /// The depth of the gradient of the input, which convolves the cotangents with the kernel's planes in reverse
    /// order.
    pub(crate) fn transposed(&self) -> Self {
        let &Self { inputs, outputs, kernel, stride, padding, dilation, .. } = self;
        let padding = ((kernel - 1) * dilation).cast_signed() - padding;
        Self { inputs: outputs, outputs: inputs, kernel, stride: 1, padding, dilation, apart: stride }
    }

    /// The plane of the input that plane `k` of the kernel meets for plane `z` of the result.
    pub(crate) fn met(&self, z: usize, k: usize) -> Option<usize> {
        let at = (z * self.stride + k * self.dilation).checked_add_signed(-self.padding)?;
        (at % self.apart == 0 && at / self.apart < self.inputs).then_some(at / self.apart)
    }

    /// The kernels' defines.
    pub(crate) fn defines(&self) -> Vec<Define> {
        if self.is_flat() {
            return Vec::new();
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "shaders count modulo 2³²")]
        let before = self.padding as u32;
        define![
            VOLUMES: 1, IN_D: self.inputs, OUT_D: self.outputs, KD: self.kernel, SD: self.stride, PD: before,
            DD: self.dilation, UD: self.apart,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(kernel: usize, stride: usize, padding: usize, dilation: usize) -> Window {
        Window { kernel, stride, padding, dilation }
    }

    #[test]
    fn spreading_leads_back() {
        for (kernel, stride, padding, dilation, extent) in
            [(3, 2, 1, 1, 9), (4, 3, 0, 2, 13), (1, 1, 0, 1, 1), (2, 5, 1, 3, 20)]
        {
            let window = window(kernel, stride, padding, dilation);
            let out = window.slide("length", extent, false).unwrap();
            let rest = extent - window.spread("length", out, 0).unwrap();
            assert!(rest < stride, "{kernel} {stride} {padding} {dilation}");
        }
    }

    #[test]
    fn rounding_up_adds_windows_that_begin_in_the_input_or_before_it() {
        // Kernel, stride, padding, dilation and extent; windows rounded down (0 for none) and up; elements beyond.
        for (numbers, down, up, beyond) in [
            ([2, 2, 0, 1, 5], 2, 3, 1),
            ([2, 2, 0, 1, 4], 2, 2, 0),
            ([3, 2, 1, 1, 6], 3, 4, 1),
            // A third window would begin in the padding on the right.
            ([2, 3, 1, 1, 4], 2, 2, 0),
            ([1, 3, 0, 1, 4], 2, 2, 0),
            // Windows larger than the padded input.
            ([3, 2, 0, 1, 2], 0, 1, 1),
            ([2, 4, 0, 3, 2], 0, 1, 2),
            ([3, 1, 0, 1, 2], 0, 0, 0),
        ] {
            let [kernel, stride, padding, dilation, extent] = numbers;
            let window = window(kernel, stride, padding, dilation);
            let of = |ceil_mode| window.slide("length", extent, ceil_mode).unwrap_or(0);
            assert_eq!((of(false), of(true)), (down, up), "{numbers:?}");
            if up > 0 {
                assert_eq!(window.beyond(extent, up), beyond, "{numbers:?}");
            }
        }
    }

    #[test]
    fn impossible_extents_say_why() {
        let fails = |result: Result<usize, String>, why: &str| {
            let message = result.unwrap_err();
            assert!(message.starts_with("length: ") && message.contains(why), "{message}");
        };
        fails(window(3, 1, 0, 2).slide("length", 4, false), "spans 5 elements, but the padded input has only 4");
        fails(window(3, 0, 0, 1).slide("length", 4, false), "at least 1");
        for huge in [usize::MAX, 1 << 31] {
            fails(window(3, 1, huge, 1).slide("length", 4, false), "too large");
            fails(window(3, huge, 1, 1).slide("length", 4, true), "too large");
            fails(window(huge, 1, 0, 2).slide("length", 4, false), "too large");
        }
        fails(window(3, 1, 0, 1).spread("length", 4, 1), "output padding");
        fails(window(1, 1, 2, 1).spread("length", 3, 0), "cuts off 4 elements, the output has 3");
        fails(window(1, usize::MAX, 2, 1).spread("length", 3, 0), "too large");
    }
}
