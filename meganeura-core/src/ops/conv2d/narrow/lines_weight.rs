//! Variants of `conv2d_grad_weight_lines`: gradients of the weights of few channels in a group, of images in bf16.

use super::axis::{Axis, defines};
use super::lines::{Reads, blocks};
use super::{idleness, suits};
use crate::kernel::gemm::{Parts, sum_parts_at};
use crate::kernel::launch::{Binding, Caps, LINE, Launch, Variant, Workgroups, define};
use crate::ops::conv2d::ConvShape;
use crate::ops::conv2d::pass::Pass;

/// Invocations of a workgroup, if lines, taps and tiles divide them: of so many, three workgroups reside on a
/// multiprocessor, whose registers hold the sums.
const GROUP: usize = 128;
const RESIDENT: usize = 3;

/// A workgroup twice as large is better if lines, taps and tiles fill so many times as large a part of it.
const FULLER: f64 = 1.2;

/// The most lines of sums that an invocation has registers for.
const SUMS: usize = 11;

/// The most lines that an invocation reads in a row of several outputs.
const READ: usize = 10;

/// The most chunks of taps.
const CHUNKS: usize = 128;

/// The most taps that the sum of parts can take in the order of the result.
const MOST_TAPS: usize = 256;

/// Tiles that an invocation should at least go over.
const LEAST: usize = 2;

/// How lines are divided among workgroups.
struct Division {
    blocks: usize,
    /// Lines of a block.
    across: usize,
    /// Tiles of a workgroup at a time.
    slots: usize,
}

impl Division {
    fn of(lines: usize, chunks: usize) -> Self {
        let of_group = |group: usize| {
            let [blocks, across] = blocks(lines, (group / chunks).clamp(1, 32));
            let slots = (group / (across * chunks)).max(1);
            (Self { blocks, across, slots }, (across * chunks * slots) as f64 / group as f64)
        };
        let ((one, full), (twice, fuller)) = (of_group(GROUP), of_group(2 * GROUP));
        if fuller > FULLER * full { twice } else { one }
    }
}

/// The variant, if both images are in lines; `None` where there are too many channels or taps.
pub(in crate::ops::conv2d) fn variant(g: &ConvShape, caps: &Caps) -> Option<Variant> {
    if !suits(g) {
        return None;
    }
    let ([kh, kw], lines, reads) = (g.kernel, g.o.div_ceil(LINE), Reads::new(Pass::GradWeight, g));
    // The taps of an invocation: several rows, or a part of one.
    let most = (SUMS / reads.at_once()).max(1);
    let chunks_j = kw.div_ceil(most);
    let chunk_j = kw.div_ceil(chunks_j);
    let chunks_i = kh.div_ceil((most / kw).max(1));
    let chunk_i = kh.div_ceil(chunks_i);
    let chunks = g.depth.kernel * chunks_i * chunks_j * reads.turns();
    if chunks > CHUNKS {
        return None;
    }
    let [vertical, horizontal] = Axis::both(Pass::GradWeight, g);
    let axes = [vertical.with_taps(chunk_i), horizontal.with_taps(chunk_j)];
    let cost = |tile: usize| {
        let tiled = axes[1].tiled(tile).expect("inputs are neighbours");
        let columns = tiled.positions * reads.lines_read();
        let reads = 1.0 + (chunk_i * columns) as f64 / tile as f64;
        // Neighbouring outputs that share few of their inputs need registers for them all.
        let crowded = if columns > READ { 1.3 } else { 1.0 } * if tile > 2 && tiled.is_strided() { 2.0 } else { 1.0 };
        let invocations = lines * chunks * g.planes() * axes[0].outputs * tiled.tiles;
        reads * tiled.waste() * crowded * idleness(invocations / 2)
    };
    let tile = [1, 2, 4, 8].into_iter().min_by(|&a, &b| cost(a).total_cmp(&cost(b)))?;
    let tiled = [axes[0].tiled(1)?, axes[1].tiled(tile)?];
    let Division { blocks, across, slots } = Division::of(lines, chunks);
    let count = g.planes() * tiled[0].tiles * tiled[1].tiles;
    let parts = (RESIDENT * caps.multiprocessors.count / blocks).clamp(1, count.div_ceil(slots * LEAST));
    let each = count.div_ceil(parts);
    let parts = count.div_ceil(each);
    let mut all = [defines(&axes, &tiled), g.depth.defines(), reads.defines(g.c, g.o)].concat();
    all.extend(define![
        N: g.n, LINES: lines, ACROSS: across, BLOCKS: blocks, SLOTS: slots, PARTS: parts, TILES: count, EACH: each,
        KERNEL_H: kh, KERNEL_W: kw, CHUNK_I: chunk_i, CHUNK_J: chunk_j, CHUNKS_I: chunks_i, CHUNKS_J: chunks_j, CHUNKS: chunks,
    ]);
    if tiled[1].overhangs() {
        all.extend(define![OVERHANG: 1]);
    }
    let invocations = across * chunks * slots;
    let workgroups = Workgroups::new(blocks * parts, invocations)
        .with_memory(&[32 * invocations])
        .looping(each.div_ceil(slots) + 2 + chunk_i * chunk_j * reads.at_once() * (slots + 1));
    let bindings = vec![Binding::Input(0), Binding::Input(1), Binding::Scratch(0)];
    let launch = Launch::new("conv2d_grad_weight_lines", all, (0, 0), workgroups);
    let (taps, input, channels) = (g.taps(), g.c / g.groups, lines * LINE);
    let at = format!("(i % {taps}u * {input}u + i / {taps}u % {input}u) * {channels}u + i / {}u", taps * input);
    let part = Parts { elements: taps * input * channels, taps: if taps > MOST_TAPS { 1 } else { taps }, at };
    let launches = vec![Launch { bindings, ..launch }, sum_parts_at(parts, part.elements, 0, &part)];
    Variant { name: "lines", launches, scratch: vec![parts * part.elements] }.bounded()
}
