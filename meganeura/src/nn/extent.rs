//! Output extents of layers along one axis, and the error for two operands that do not fit.

use std::panic::Location;

use crate::{Error, ErrorKind, Var};

/// The geometry of a window along one axis.
#[derive(Clone, Copy)]
pub(super) struct Window {
    pub(super) kernel: usize,
    pub(super) stride: usize,
    pub(super) padding: usize,
    pub(super) dilation: usize,
}

impl Window {
    /// `⌊(extent + 2·pad − d·(K − 1) − 1)/s⌋ + 1`, or the error if there is no such extent.
    pub(super) fn slide(self, axis: &str, extent: usize) -> Result<usize, String> {
        let Self { kernel, stride, padding, .. } = self;
        let reach = self.reach(axis)?;
        let Some(padded) = padding.checked_mul(2).and_then(|both| extent.checked_add(both)) else {
            return Err(format!("{axis}: padding {padding} is too large"));
        };
        if padded < reach {
            return Err(format!(
                "{axis}: a kernel of {kernel} spans {reach} elements, but the padded input has only {padded}"
            ));
        }
        Ok((padded - reach) / stride + 1)
    }

    /// `(extent − 1)·s − 2·pad + d·(K − 1) + more + 1`, the extent that [`slide`](Self::slide) maps back, or the error
    /// if there is none.
    pub(super) fn spread(self, axis: &str, extent: usize, more: usize) -> Result<usize, String> {
        let Self { stride, padding, dilation, .. } = self;
        let reach = self.reach(axis)?;
        if more >= stride && more >= dilation {
            return Err(format!(
                "{axis}: the output padding, {more}, must be less than the stride, {stride}, or the dilation, {dilation}"
            ));
        }
        let full = stride.checked_mul(extent - 1).and_then(|steps| steps.checked_add(reach)?.checked_add(more));
        match (full, padding.checked_mul(2)) {
            (Some(full), Some(cut)) if full > cut => Ok(full - cut),
            (Some(full), Some(cut)) => {
                Err(format!("{axis}: the padding cuts off {cut} elements, the output has {full} before that"))
            }
            _ => Err(format!("{axis}: stride {stride} or padding {padding} is too large")),
        }
    }

    /// The number of elements from a window's first to its last.
    fn reach(self, axis: &str) -> Result<usize, String> {
        let Self { kernel, stride, dilation, .. } = self;
        if kernel == 0 || stride == 0 || dilation == 0 {
            return Err(format!("{axis}: kernel {kernel}, stride {stride} and dilation {dilation} must be at least 1"));
        }
        let reach = dilation.checked_mul(kernel - 1).and_then(|gaps| gaps.checked_add(1));
        reach.ok_or_else(|| format!("{axis}: kernel {kernel} or dilation {dilation} is too large"))
    }
}

/// Checks a convolution's channels: those of the input against the weight's first two axes, `[O, C/groups, …]`.
pub(super) fn check_channels(c: usize, [o, per_group]: [usize; 2], groups: usize) -> Result<(), String> {
    if groups == 0 || !c.is_multiple_of(groups) || !o.is_multiple_of(groups) {
        return Err(format!("{groups} groups do not divide {c} input channels and {o} output channels"));
    }
    match per_group * groups {
        expected if expected == c => Ok(()),
        expected => Err(format!("the input has {c} channels, the weight expects {expected}")),
    }
}

/// `x`, poisoned because it and another operand do not fit.
#[track_caller]
pub(super) fn misfit(op: &'static str, x: &Var, other: &Var, message: String) -> Var {
    let error = Error::new(ErrorKind::Shape, message).in_op(op).at(Location::caller());
    x.fail(error.operand(x.ty(), x.path()).operand(other.ty(), other.path()))
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
            let out = window.slide("length", extent).unwrap();
            let rest = extent - window.spread("length", out, 0).unwrap();
            assert!(rest < stride, "{kernel} {stride} {padding} {dilation}");
        }
    }

    #[test]
    fn impossible_extents_say_why() {
        let fails = |result: Result<usize, String>, why: &str| {
            let message = result.unwrap_err();
            assert!(message.starts_with("length: ") && message.contains(why), "{message}");
        };
        fails(window(3, 1, 0, 2).slide("length", 4), "spans 5 elements, but the padded input has only 4");
        fails(window(3, 0, 0, 1).slide("length", 4), "at least 1");
        fails(window(3, 1, usize::MAX, 1).slide("length", 4), "too large");
        fails(window(usize::MAX, 1, 0, 2).slide("length", 4), "too large");
        fails(window(3, 1, 0, 1).spread("length", 4, 1), "output padding");
        fails(window(1, 1, 2, 1).spread("length", 3, 0), "cuts off 4 elements, the output has 3");
        fails(window(1, usize::MAX, 2, 1).spread("length", 3, 0), "too large");
    }
}
