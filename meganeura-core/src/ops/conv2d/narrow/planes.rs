//! Variants of `conv2d_planes`: convolutions of few channels in a group, and gradients of their inputs, in `f32`.

use super::axis::{Axis, Tiled, defines};
use super::{APART, Group, cheapest, idleness, suits};
use crate::kernel::launch::{Launch, Variant, Workgroups, define};
use crate::ops::conv2d::ConvShape;
use crate::ops::conv2d::pass::Pass;

/// The most taps of a plane, whose weights are in registers.
pub(super) const TAPS: usize = 121;

/// Products of a tile, which are written one after the other.
const UNROLLED: usize = 1024;

/// The variant of a pass; `None` where there are too many channels or taps.
pub(in crate::ops::conv2d) fn variant(pass: Pass, g: &ConvShape) -> Option<Variant> {
    let (axes, taps) = (Axis::both(pass, g), g.kernel[0] * g.kernel[1]);
    let least = axes.each_ref().map(Axis::least);
    if !suits(g) || taps > TAPS || least.iter().any(|&least| least > APART) {
        return None;
    }
    let (group, depth) = (Group::new(pass, g), g.depth_of(pass));
    let (form, c, o) = if pass == Pass::GradInput { ("grad_input", g.o, g.c) } else { ("forward", g.c, g.o) };
    let cost = |tiled: &[Tiled; 2]| {
        let [p, q] = tiled;
        let products = p.products(g.kernel[0]) * q.products(g.kernel[1]);
        // In instructions: an input with its bounds, and a weight.
        let each = (products + 6 * p.positions * q.positions + 3 * taps) as f64 / (p.tile * q.tile) as f64 + 12.0;
        let invocations = g.n * o * depth.outputs * p.tiles * q.tiles;
        let is_least = p.tile == least[0];
        (is_least || products <= UNROLLED).then(|| each * p.waste() * q.waste() * idleness(invocations))
    };
    let tiled = cheapest(&axes, [&[1, 2, 3, 4, 6, 7, 8], &least[1..]], 8, cost)?;
    let elements = g.n * o * depth.outputs * tiled[0].tiles * tiled[1].tiles;
    let mut all = [defines(&axes, &tiled), depth.defines()].concat();
    all.extend(define![FORM: form, N: g.n, C: c, O: o, IN: group.input, OUT: group.output]);
    let workgroups = Workgroups::of_elements(elements).looping(group.input * depth.kernel + 1);
    Some(Variant::simple("planes", Launch::new("conv2d_planes", all, (2, 1), workgroups).stores_through_epilogue()))
}
