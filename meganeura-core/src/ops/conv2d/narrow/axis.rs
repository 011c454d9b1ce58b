//! An axis of the tiles of outputs that an invocation computes, and of the inputs that it reads for them.

use crate::kernel::launch::{Define, define};
use crate::ops::conv2d::ConvShape;
use crate::ops::conv2d::pass::Pass;

/// An axis of a pass as a convolution, before it is cut into tiles.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    pub(super) kernel: usize,
    stride: usize,
    /// The distance between neighbouring inputs, with zeros in between: the stride of the convolution of which this is
    /// the gradient. The stride or this is 1.
    up: usize,
    /// The padding before the first input; negative where that many inputs are never read.
    padding: isize,
    dilation: usize,
    pub(super) inputs: usize,
    pub(super) outputs: usize,
}

/// An axis whose outputs are computed by tiles.
///
/// The outputs of a tile are so far apart that they share inputs whatever the dilation is. Tap `i` of output `k` reads
/// position `v` where `up · v + phase = stride · k + dilation · i`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tiled {
    /// Outputs of a tile.
    pub(super) tile: usize,
    /// The distance between neighbouring outputs of a tile.
    every: usize,
    /// Tiles along the axis.
    pub(super) tiles: usize,
    /// The distance between neighbouring positions.
    step: usize,
    /// Positions that a tile reads.
    pub(super) positions: usize,
    up: usize,
    phase: usize,
    stride: usize,
    dilation: usize,
    /// The first output of a tile, in strides, less this is its first position.
    offset: isize,
    /// Outputs along the axis.
    outputs: usize,
}

impl Axis {
    /// Both axes of a pass as a convolution of the images that it reads, vertical and horizontal. The gradient of a
    /// weight reads images as the convolution does.
    pub(super) fn both(pass: Pass, g: &ConvShape) -> [Self; 2] {
        let options = g.options();
        let (inputs, outputs) = ([g.h, g.w], [g.p, g.q]);
        [0, 1].map(|axis| {
            let [kernel, stride, padding, dilation] =
                [g.kernel, options.stride, options.padding, options.dilation].map(|of| of[axis]);
            // A single tap is dilated by nothing.
            let dilation = if kernel == 1 { 1 } else { dilation };
            if pass == Pass::GradInput {
                let padding = g.gaps()[axis].cast_signed() - padding.cast_signed();
                let (inputs, outputs) = (outputs[axis], inputs[axis]);
                Self { kernel, stride: 1, up: stride, padding, dilation, inputs, outputs }
            } else {
                let (inputs, outputs) = (inputs[axis], outputs[axis]);
                Self { kernel, stride, up: 1, padding: padding.cast_signed(), dilation, inputs, outputs }
            }
        })
    }

    /// The axis for so many of its taps.
    pub(super) fn with_taps(self, kernel: usize) -> Self {
        Self { kernel, ..self }
    }

    /// The axis with tiles of so many outputs; `None` if they are no multiple of the distance between inputs.
    pub(super) fn tiled(&self, tile: usize) -> Option<Tiled> {
        let &Self { kernel, stride, up, padding, dilation, outputs, .. } = self;
        if up == 1 {
            let common = gcd(stride, dilation);
            let every = if tile == 1 { 1 } else { dilation / common };
            let stride = stride / common;
            return Some(Tiled {
                tile,
                every,
                tiles: every * outputs.div_ceil(every * tile),
                step: dilation,
                positions: (tile - 1) * stride + kernel,
                up,
                phase: 0,
                stride,
                dilation: 1,
                offset: padding,
                outputs,
            });
        }
        let phase = padding.rem_euclid(up.cast_signed());
        let span = (kernel - 1) * dilation + tile - 1;
        let phase = phase.cast_unsigned();
        tile.is_multiple_of(up).then(|| Tiled {
            tile,
            every: 1,
            tiles: outputs.div_ceil(tile),
            step: 1,
            positions: (span - phase) / up + 1,
            up,
            phase,
            stride: 1,
            dilation,
            offset: (padding - phase.cast_signed()) / up.cast_signed(),
            outputs,
        })
    }

    /// The fewest outputs of a tile.
    pub(super) fn least(&self) -> usize {
        self.up
    }

    /// The stride by which the first output of a tile counts inputs, and the distance between inputs.
    fn ratio(&self) -> [usize; 2] {
        [self.stride, self.up]
    }
}

impl Tiled {
    /// Outputs with those beyond the image, for each output.
    pub(super) fn waste(&self) -> f64 {
        (self.tiles * self.tile) as f64 / self.outputs as f64
    }

    /// `true` if some tiles have outputs beyond the image.
    pub(super) fn overhangs(&self) -> bool {
        self.tiles * self.tile != self.outputs
    }

    /// `true` if the next output's inputs begin more than one position away.
    pub(super) fn is_strided(&self) -> bool {
        self.stride > 1
    }

    /// The pairs of an output and a tap, of all of a tile, that read a position: the products along the axis.
    pub(super) fn products(&self, kernel: usize) -> usize {
        let reads = |k: usize, i: usize| {
            let at = self.stride * k + self.dilation * i;
            at >= self.phase && (at - self.phase).is_multiple_of(self.up)
        };
        (0..self.tile).map(|k| (0..kernel).filter(|&i| reads(k, i)).count()).sum()
    }
}

/// The defines of both axes.
pub(super) fn defines(axes: &[Axis; 2], tiled: &[Tiled; 2]) -> Vec<Define> {
    let [[sp, up], [sq, uq]] = axes.each_ref().map(Axis::ratio);
    let [p, q] = tiled;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "shaders count modulo 2³²")]
    let [offset_p, offset_q] = [p.offset as u32, q.offset as u32];
    let of_p = define![
        H: axes[0].inputs, P: axes[0].outputs, KH: axes[0].kernel,
        TILE_P: p.tile, EVERY_P: p.every, TILES_P: p.tiles, STEP_P: p.step, ROWS: p.positions, FROM_P: offset_p,
        UP_P: p.up, PHASE_P: p.phase, APART_P: p.stride, WIDE_P: p.dilation, RATIO_P: sp, UNDER_P: up,
    ];
    let of_q = define![
        W: axes[1].inputs, Q: axes[1].outputs, KW: axes[1].kernel,
        TILE_Q: q.tile, EVERY_Q: q.every, TILES_Q: q.tiles, STEP_Q: q.step, COLUMNS: q.positions, FROM_Q: offset_q,
        UP_Q: q.up, PHASE_Q: q.phase, APART_Q: q.stride, WIDE_Q: q.dilation, RATIO_Q: sq, UNDER_Q: uq,
    ];
    [of_p, of_q].concat()
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shape;
    use crate::ops::Conv2dOptions;

    /// Every pair of an output and an input that the definition names meets in exactly one tile, at the right tap; and
    /// no other pair does.
    #[test]
    fn tiles_hold_every_term_once() {
        let all =
            (1..4).flat_map(|s| (1..4).flat_map(move |d| (1..5).flat_map(move |k| (0..4).map(move |p| (s, d, k, p)))));
        for (stride, dilation, kernel, padding) in all {
            let options =
                Conv2dOptions { stride: [stride; 2], padding: [padding; 2], dilation: [dilation; 2], groups: 1 };
            let Ok(g) = ConvShape::new(Shape::from([1, 1, 11, 11]), Shape::from([1, 1, kernel, kernel]), options)
            else {
                continue;
            };
            for (pass, tile) in [Pass::Forward, Pass::GradInput].into_iter().flat_map(|p| (1..5).map(move |t| (p, t))) {
                let axis = Axis::both(pass, &g)[0];
                let Some(tiled) = axis.tiled(tile) else { continue };
                let mut found = Vec::new();
                for (t, k) in (0..tiled.tiles).flat_map(|t| (0..tile).map(move |k| (t, k))) {
                    let first = t / tiled.every * (tiled.every * tile) + t % tiled.every;
                    let from = (first * axis.stride / axis.up).cast_signed() - tiled.offset;
                    let output = first + k * tiled.every;
                    for (v, i) in (0..tiled.positions).flat_map(|v| (0..kernel).map(move |i| (v, i))) {
                        let input = from + (v * tiled.step).cast_signed();
                        let meets = tiled.up * v + tiled.phase == tiled.stride * k + tiled.dilation * i;
                        if meets && output < axis.outputs && (0..axis.inputs.cast_signed()).contains(&input) {
                            found.push((output, input.cast_unsigned(), i));
                        }
                    }
                }
                let mut expected = Vec::new();
                for (output, input, i) in
                    (0..g.p).flat_map(|o| (0..g.h).flat_map(move |x| (0..kernel).map(move |i| (o, x, i))))
                {
                    if output * stride + i * dilation == input + padding {
                        let flipped = (input, output, kernel - 1 - i);
                        expected.push(if pass == Pass::GradInput { flipped } else { (output, input, i) });
                    }
                }
                found.sort_unstable();
                expected.sort_unstable();
                assert_eq!(found, expected, "{pass:?}, tiles of {tile}, kernel {kernel}, {options:?}");
            }
        }
    }
}
