//! Convolutions of few channels in each group, above all depthwise ones, without matrix products. Such a convolution
//! does so little with each number that memory bounds it.
//!
//! * Of images in bf16, with channels innermost ([`lines`], [`lines_weight`]): an invocation has a line of eight
//!   channels.
//! * Of images in `f32` ([`planes`], [`planes_weight`]): an invocation has a column of outputs.
//!
//! Either computes a tile of outputs, so that an input serves several of them. The gradient of an input convolves the
//! cotangents; with a stride they have zeros in between, and no tap that reads one is multiplied.

mod axis;
pub(super) mod lines;
pub(super) mod lines_weight;
pub(super) mod planes;
pub(super) mod planes_weight;

use super::ConvShape;
use super::pass::Pass;
use axis::{Axis, Tiled};

/// The most channels of a group.
const CHANNELS: usize = 16;

/// The most distance between inputs of a gradient's convolution, along each axis.
const APART: usize = 4;

/// Channels of a group that a pass reads, and that it computes. The gradient of a weight counts as the convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Group {
    input: usize,
    output: usize,
}

impl Group {
    fn new(pass: Pass, g: &ConvShape) -> Self {
        let [c, o] = [g.c, g.o].map(|channels| channels / g.groups);
        if pass == Pass::GradInput { Self { input: o, output: c } } else { Self { input: c, output: o } }
    }
}

/// `true` if a convolution has so few channels in each group that these kernels compute it.
fn suits(g: &ConvShape) -> bool {
    let [c, o] = [g.c, g.o].map(|channels| channels / g.groups);
    g.groups > 1 && (c.max(o) <= CHANNELS || c.min(o) <= 2 && c.max(o) <= 4 * CHANNELS)
}

/// `true` if these kernels are faster than products, whose tiles would be mostly empty.
pub(super) fn pays(g: &ConvShape) -> bool {
    suits(g) && (g.c / g.groups).min(g.o / g.groups) < 8
}

/// Tiles of at most so many outputs along each axis, of those that `fits` lets pass, with the least `cost` of an
/// output.
fn cheapest(
    axes: &[Axis; 2],
    most: [&[usize]; 2],
    outputs: usize,
    cost: impl Fn(&[Tiled; 2]) -> Option<f64>,
) -> Option<[Tiled; 2]> {
    let least = axes[0].least() * axes[1].least();
    let [down, across] = [0, 1].map(|axis| most[axis].iter().filter_map(move |&tile| axes[axis].tiled(tile)));
    let across: Vec<_> = across.collect();
    let all = down.flat_map(|p| across.iter().map(move |&q| [p, q]));
    let offered = all.filter(|[p, q]| p.tile * q.tile <= outputs.max(least));
    let priced = offered.filter_map(|tiled| Some((cost(&tiled)?, tiled)));
    priced.min_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, tiled)| tiled)
}

/// The factor by which so few invocations take longer than many: each waits for memory alone.
fn idleness(invocations: usize) -> f64 {
    /// Invocations that keep a large GPU's memory busy.
    const BUSY: f64 = 131_072.0;
    (BUSY / invocations.max(1) as f64).max(1.0).sqrt()
}

#[cfg(test)]
mod tests {
    use crate::Shape;
    use crate::kernel::launch::{Access, Caps};
    use crate::ops::conv2d::launch::{bf16, variants};
    use crate::ops::conv2d::{ConvShape, Pass};
    use crate::ops::{Conv2dOptions, Stores};

    const PASSES: [Pass; 3] = [Pass::Forward, Pass::GradInput, Pass::GradWeight];

    fn convolution(c: usize, o: usize, groups: usize, kernel: usize, stride: usize) -> ConvShape {
        let options =
            Conv2dOptions { stride: [stride; 2], padding: [kernel / 2; 2], groups, ..Conv2dOptions::default() };
        let weight = Shape::from([o, c / groups, kernel, kernel]);
        ConvShape::new(Shape::from([4, c, 28, 28]), weight, options).expect("the shapes fit")
    }

    fn first(pass: Pass, g: &ConvShape, caps: &Caps) -> &'static str {
        variants(pass, g, caps)[0].name
    }

    #[test]
    fn depthwise_convolutions_read_and_store_lines() {
        for caps in [Caps { bf16: true, ..Caps::DISCRETE }, Caps { matrix: true, bf16: true, ..Caps::DISCRETE }] {
            for (channels, kernel, stride) in [(8, 3, 1), (96, 3, 2), (384, 7, 1), (960, 5, 3), (64, 11, 1)] {
                let g = convolution(channels, channels, channels, kernel, stride);
                for pass in PASSES {
                    let form = bf16(pass, &g, &caps).expect("channels are lines");
                    assert!(form.wanted && first(pass, &g, &caps) == "lines", "{pass:?}, {g:?}");
                    if pass != Pass::GradWeight {
                        assert_eq!((form.operands, form.stores), (&[0][..], Stores::Lines));
                        let variants = variants(pass, &g, &caps);
                        assert_eq!((variants[0].launches.len(), variants[0].launches[0].access), (1, Access::Lines));
                    }
                }
            }
        }
    }

    #[test]
    fn full_groups_are_left_to_products() {
        let caps = Caps { matrix: true, bf16: true, ..Caps::DISCRETE };
        for pass in PASSES {
            for (each, name, full) in [(1, "lines", "planes"), (4, "lines", "planes"), (32, "", "")] {
                let g = convolution(128, 128, 128 / each, 3, 1);
                assert!(name.is_empty() != (first(pass, &g, &caps) == name), "{pass:?}, {each}");
                assert!(full.is_empty() != (first(pass, &g, &Caps::DISCRETE) == full), "{pass:?}, {each}");
            }
        }
    }

    /// Too few channels for lines, and strides beyond a tile, have other variants.
    #[test]
    fn what_does_not_fit_has_other_variants() {
        let caps = Caps { bf16: true, ..Caps::DISCRETE };
        let odd = convolution(60, 60, 60, 3, 1);
        assert_eq!(PASSES.map(|pass| first(pass, &odd, &caps)), ["lines"; 3]);
        let few = convolution(3, 3, 3, 3, 1);
        assert_eq!(PASSES.map(|pass| first(pass, &few, &caps)), ["planes"; 3]);
        let apart = convolution(64, 64, 64, 5, 5);
        assert_eq!(PASSES.map(|pass| first(pass, &apart, &caps)), ["lines", "gather", "lines"]);
        let software = Caps { tiles: false, ..Caps::DISCRETE };
        assert_eq!(PASSES.map(|pass| first(pass, &odd, &software)), ["direct", "gather", "each"]);
    }
}
