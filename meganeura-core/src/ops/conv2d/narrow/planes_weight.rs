//! Variants of `conv2d_grad_weight_planes`: gradients of the weights of few channels in a group, in `f32`.

use super::axis::{Axis, Tiled, defines};
use super::planes::TAPS;
use super::suits;
use crate::kernel::gemm::sum_parts;
use crate::kernel::launch::{Binding, Launch, Multiprocessors, Variant, Workgroups, define};
use crate::ops::conv2d::ConvShape;
use crate::ops::conv2d::pass::Pass;

/// Invocations of a workgroup, and those workgroups of a multiprocessor that keep its memory busy.
const GROUP: usize = 256;
const RESIDENT: usize = 4;

/// Products of a tile, which are written one after the other.
const UNROLLED: usize = 512;

/// The variant; `None` where there are too many channels or taps.
pub(in crate::ops::conv2d) fn variant(g: &ConvShape) -> Option<Variant> {
    let (axes, taps) = (Axis::both(Pass::GradWeight, g), g.kernel[0] * g.kernel[1]);
    if !suits(g) || taps > TAPS {
        return None;
    }
    let input = g.c / g.groups;
    let columns = axes[1].tiled(1)?;
    let cost = |tiled: &Tiled| tiled.waste() * (1.0 + (tiled.positions * g.kernel[1]) as f64 / tiled.tile as f64);
    let tiles = [1, 2, 3, 4, 6, 7, 8].into_iter().filter(|tile| *tile == 1 || tile * taps <= UNROLLED);
    let rows = tiles.filter_map(|tile| axes[0].tiled(tile)).min_by(|a, b| cost(a).total_cmp(&cost(b)))?;
    let (count, pairs) = (g.planes() * rows.tiles * columns.tiles, g.o * input * g.depth.kernel);
    let results = pairs * taps;
    let parts = (Multiprocessors::LARGE.enough(RESIDENT) / pairs).clamp(1, count.div_ceil(GROUP));
    let batches = taps.div_ceil(8);
    let mut all = [defines(&axes, &[rows, columns]), g.depth.defines()].concat();
    all.extend(define![
        N: g.n, C: g.c, O: g.o, IN: input, OUT: g.o / g.groups, TILES: count, PARTS: parts, BATCHES: batches,
        SUMS: if parts == 1 { "whole" } else { "parts" },
    ]);
    if rows.overhangs() {
        all.extend(define![OVERHANG: 1]);
    }
    let workgroups = Workgroups::new(pairs * parts, GROUP)
        .with_memory(&[32 * GROUP, 4 * GROUP, GROUP])
        .looping(count.div_ceil(GROUP * parts) + 1);
    let kernel = "conv2d_grad_weight_planes";
    if parts == 1 {
        return Some(Variant::simple("planes", Launch::new(kernel, all, (2, 1), workgroups).stores_through_epilogue()));
    }
    let bindings = vec![Binding::Input(0), Binding::Input(1), Binding::Scratch(0)];
    let launch = Launch { bindings, ..Launch::new(kernel, all, (0, 0), workgroups) };
    let launches = vec![launch, sum_parts(parts, results, 0)];
    Some(Variant { name: "planes", launches, scratch: vec![parts * results] })
}
