//! Depthwise convolutions with small square windows on the CPU in single precision: see
//! [`Plane`](crate::kernel::native::Plane).

use pulp::{Simd, WithSimd};

use super::ConvShape;
use crate::kernel::native::{Finish, Plane, Shared, Window, tasks};
use crate::ops::Conv2dOptions;

/// Outputs of a task, about: they stay in the L1 cache until they are finished.
const TASK: usize = 4096;

/// Multiply-adds of a product that take as long as one here.
const COST: usize = 2;

/// `true` for depthwise convolutions of images whose windows have a loop here.
pub(super) fn applies(g: &ConvShape) -> bool {
    let Conv2dOptions { stride, dilation, .. } = g.options();
    let is_square = g.kernel[0] == g.kernel[1] && stride[0] == stride[1];
    g.depth.is_flat()
        && is_square
        && dilation == [1, 1]
        && matches!(g.kernel[0], 3 | 5 | 7)
        && matches!(stride[0], 1 | 2)
}

/// `y` of images `x` with the weights `w`.
pub(super) fn forward(g: &ConvShape, x: &[f32], w: &[f32], y: &mut [f32], finish: &dyn Finish<f32>) {
    let (arch, pixels) = (pulp::Arch::new(), g.outputs());
    let planes = (TASK / pixels).clamp(1, g.o);
    let (count, y) = (g.o.div_ceil(planes), Shared::new(y));
    tasks(g.n * count, COST * planes * pixels * g.taps(), &|| (), &|task, ()| {
        let (image, channel) = (task / count, task % count * planes);
        let first = (image * g.o + channel) * pixels;
        // SAFETY: the outputs of these channels belong to this task alone.
        let y = unsafe { y.part(first, planes.min(g.o - channel) * pixels) };
        let x = &x[image * g.c * g.inputs()..][..g.c * g.inputs()];
        arch.dispatch(Planes { g, x, w, channel, y: &mut *y });
        finish.finish(first, y);
    });
}

/// The outputs of neighbouring channels of an image.
struct Planes<'a> {
    g: &'a ConvShape,
    /// The channels of the image.
    x: &'a [f32],
    /// The weights of all channels.
    w: &'a [f32],
    /// The first channel of the outputs.
    channel: usize,
    y: &'a mut [f32],
}

impl WithSimd for Planes<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match (self.g.kernel[0], self.g.options().stride[0]) {
            (3, 1) => self.all::<S, 3, 1>(simd),
            (3, 2) => self.all::<S, 3, 2>(simd),
            (5, 1) => self.all::<S, 5, 1>(simd),
            (5, 2) => self.all::<S, 5, 2>(simd),
            (7, 1) => self.all::<S, 7, 1>(simd),
            (7, 2) => self.all::<S, 7, 2>(simd),
            _ => unreachable!("`applies` has these windows"),
        }
    }
}

impl Planes<'_> {
    #[inline(always)]
    fn all<S: Simd, const K: usize, const STRIDE: usize>(self, simd: S) {
        let Self { g, x, w, channel, y } = self;
        let copies = g.o / g.c;
        for (channel, y) in (channel..).zip(y.chunks_exact_mut(g.outputs())) {
            let mut weights = Weights([[simd.splat_f32s(0.0); K]; K]);
            for (tap, &w) in w[channel * K * K..][..K * K].iter().enumerate() {
                weights.0[tap / K][tap % K] = simd.splat_f32s(w);
            }
            let x = &x[channel / copies * g.inputs()..][..g.inputs()];
            let padding = g.options().padding;
            let mut plane = Plane { x, inputs: [g.h, g.w], y, outputs: [g.p, g.q], padding };
            plane.slide::<S, _, K, STRIDE>(simd, &weights);
        }
    }
}

/// The weights of a channel.
struct Weights<S: Simd, const K: usize>([[S::f32s; K]; K]);

impl<S: Simd, const K: usize> Window<S, K> for Weights<S, K> {
    const BESIDE: f32 = 0.0;

    #[inline(always)]
    fn empty(&self, simd: S) -> S::f32s {
        simd.splat_f32s(0.0)
    }

    #[inline(always)]
    fn with_row(&self, simd: S, row: usize, x: &[S::f32s; K], before: S::f32s) -> S::f32s {
        let mut sum = before;
        for (&w, &x) in self.0[row].iter().zip(x) {
            sum = simd.mul_add_e_f32s(w, x, sum);
        }
        sum
    }
}
