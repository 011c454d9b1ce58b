//! Scans: the type rule, the launches, and long axes.
//!
//! A long axis is scanned in parts: the scan of each part is joined with the scan of the parts' last elements. So
//! rounding errors grow with the length of a part, and no invocation of a GPU loops for long.

use super::softmax::around;
use crate::TensorType;
use crate::kernel::launch::{Launch, Variant, Workgroups, define, tree};

/// The type rule of a scan along an axis.
pub(super) fn outputs(x: &[TensorType], axis: usize) -> Result<Vec<TensorType>, String> {
    let [x] = x else { return Err(format!("takes one operand, not {}", x.len())) };
    if axis >= x.shape.rank() {
        return Err(format!("axis {axis} is out of range: the shape has {} axes", x.shape.rank()));
    }
    Ok(vec![*x])
}

/// The launches of a scan: an invocation or a workgroup for each line. The state of the scan has so many words.
pub(super) fn variants(
    (kernel, words): (&'static str, usize),
    x: TensorType,
    axis: usize,
    reverse: bool,
) -> Vec<Variant> {
    const GROUP: usize = 256;
    let (outer, len, inner) = around(x.shape, axis);
    let lines = outer * inner;
    let shared = define![REVERSE: u32::from(reverse), LINES: lines, LEN: len, INNER: inner, ELEMENT: x.dtype];
    let launch = |by: &str, workgroups| {
        let defines = [define![BY: by], shared.clone()].concat();
        Launch::new(kernel, defines, (1, 1), workgroups).stores_through_epilogue()
    };
    let of_workgroups = Workgroups::new(lines, GROUP)
        .with_memory(&[4 * words * GROUP])
        .looping(len.div_ceil(GROUP).saturating_mul(1 + tree(GROUP)).saturating_add(1));
    let of_invocations = Workgroups::of_elements(lines).looping(len.saturating_add(1));
    let serial = Variant::simple("serial", launch("invocation", of_invocations));
    let tree = Variant::simple("shared", launch("workgroup", of_workgroups));
    if len <= 32 || lines >= 1 << 14 { vec![serial, tree] } else { vec![tree, serial] }
}
