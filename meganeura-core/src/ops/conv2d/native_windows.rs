//! Depthwise convolutions with small square windows on the CPU in single precision, and their gradients: see
//! [`Plane`], [`Spread`] and [`Correlated`].

use pulp::{Simd, WithSimd};

use super::ConvShape;
use crate::kernel::native::{Correlated, Finish, Plane, Scratch, Shared, Spread, WIDEST, Window, by_halves, tasks};
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

/// `true` if there is a loop for the gradient of the input of such a convolution, besides [`applies`].
pub(super) fn applies_to_grad_input(g: &ConvShape) -> bool {
    let padding = g.options().padding;
    g.o == g.c && (g.options().stride[0] == 2 || padding.iter().all(|&padding| padding < g.kernel[0]))
}

/// `dx` of cotangents `dy` with the weights `w`.
pub(super) fn grad_input(g: &ConvShape, dy: &[f32], w: &[f32], dx: &mut [f32]) {
    let (arch, pixels) = (pulp::Arch::new(), g.inputs());
    let planes = (TASK / pixels).clamp(1, g.c);
    let (count, dx) = (g.c.div_ceil(planes), Shared::new(dx));
    tasks(g.n * count, COST * planes * g.outputs() * g.taps(), &|| (), &|task, ()| {
        let (image, channel) = (task / count, task % count * planes);
        // SAFETY: these channels belong to this task alone.
        let dx = unsafe { dx.part((image * g.c + channel) * pixels, planes.min(g.c - channel) * pixels) };
        let dy = &dy[image * g.c * g.outputs()..][..g.c * g.outputs()];
        arch.dispatch(OfInput { g, dy, w, channel, dx });
    });
}

/// The gradients of neighbouring channels of an image.
struct OfInput<'a> {
    g: &'a ConvShape,
    /// The cotangents of the image.
    dy: &'a [f32],
    /// The weights of all channels.
    w: &'a [f32],
    /// The first channel.
    channel: usize,
    dx: &'a mut [f32],
}

impl WithSimd for OfInput<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match (self.g.kernel[0], self.g.options().stride[0]) {
            (3, 1) => self.turned::<S, 3>(simd),
            (5, 1) => self.turned::<S, 5>(simd),
            (7, 1) => self.turned::<S, 7>(simd),
            (3, 2) => self.spread::<S, 3, 2>(simd),
            (5, 2) => self.spread::<S, 5, 3>(simd),
            (7, 2) => self.spread::<S, 7, 4>(simd),
            _ => unreachable!("`applies` has these windows"),
        }
    }
}

impl OfInput<'_> {
    /// At stride 1: the convolution of the cotangents with the weights from the last to the first.
    #[inline(always)]
    fn turned<S: Simd, const K: usize>(self, simd: S) {
        let Self { g, dy, w, channel, dx } = self;
        let padding = g.options().padding.map(|padding| K - 1 - padding);
        for (channel, y) in (channel..).zip(dx.chunks_exact_mut(g.inputs())) {
            let mut weights = Weights([[simd.splat_f32s(0.0); K]; K]);
            for (tap, &w) in w[channel * K * K..][..K * K].iter().rev().enumerate() {
                weights.0[tap / K][tap % K] = simd.splat_f32s(w);
            }
            let x = &dy[channel * g.outputs()..][..g.outputs()];
            let mut plane = Plane { x, inputs: [g.p, g.q], y, outputs: [g.h, g.w], padding };
            plane.slide::<S, _, K, 1>(simd, &weights);
        }
    }

    /// At stride 2.
    #[inline(always)]
    fn spread<S: Simd, const K: usize, const HALF: usize>(self, simd: S) {
        let Self { g, dy, w, channel, dx } = self;
        for (channel, dx) in (channel..).zip(dx.chunks_exact_mut(g.inputs())) {
            let mut weights = [[simd.splat_f32s(0.0); K]; K];
            for (tap, &w) in w[channel * K * K..][..K * K].iter().enumerate() {
                weights[tap / K][tap % K] = simd.splat_f32s(w);
            }
            let dy = &dy[channel * g.outputs()..][..g.outputs()];
            let (inputs, outputs, padding) = ([g.h, g.w], [g.p, g.q], g.options().padding);
            Spread { dy, outputs, dx, inputs, padding }.compute::<S, K, HALF>(simd, &weights);
        }
    }
}

/// The most channels of a task of the gradient of the weight: neighbours, which lie together in each image.
const CHANNELS: usize = 32;

/// `dw` of images `x` and cotangents `dy`.
pub(super) fn grad_weight(g: &ConvShape, x: &[f32], dy: &[f32], dw: &mut [f32], scratch: &Scratch) {
    let arch = pulp::Arch::new();
    let (copies, taps, inputs, outputs) = (g.o / g.c, g.taps(), g.inputs(), g.outputs());
    let dw = Shared::new(dw);
    let group = (g.o / (2 * rayon::current_num_threads())).clamp(1, CHANNELS);
    let memory = || scratch.borrow::<f32>(group * taps * WIDEST);
    tasks(g.o.div_ceil(group), COST * g.n * group * taps * outputs, &memory, &|task, memory| {
        let Some(sums) = memory else { return };
        let channels = task * group..g.o.min((task + 1) * group);
        sums.fill(0.0);
        for image in 0..g.n {
            for (channel, sums) in channels.clone().zip(sums.chunks_exact_mut(taps * WIDEST)) {
                let x = &x[(image * g.c + channel / copies) * inputs..][..inputs];
                let dy = &dy[(image * g.o + channel) * outputs..][..outputs];
                arch.dispatch(OfWeight { g, x, dy, sums: sums.as_chunks_mut().0 });
            }
        }
        // SAFETY: the weights of these channels belong to this task alone.
        let dw = unsafe { dw.part(channels.start * taps, channels.len() * taps) };
        dw.iter_mut().zip(sums.as_chunks::<WIDEST>().0).for_each(|(dw, &lanes)| *dw = by_halves(lanes, |a, b| a + b));
    });
}

/// One channel's pixels and cotangents, and partial sums of each tap.
struct OfWeight<'a> {
    g: &'a ConvShape,
    x: &'a [f32],
    dy: &'a [f32],
    sums: &'a mut [[f32; WIDEST]],
}

impl WithSimd for OfWeight<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { g, x, dy, sums } = self;
        let padding = g.options().padding;
        let mut planes = Correlated { x, inputs: [g.h, g.w], dy, outputs: [g.p, g.q], padding, sums };
        // At most 28 sums stay in registers.
        match (g.kernel[0], g.options().stride[0]) {
            (3, 1) => planes.add::<S, 3, 1, 0, 3>(simd),
            (3, 2) => planes.add::<S, 3, 2, 0, 3>(simd),
            (5, 1) => {
                planes.add::<S, 5, 1, 0, 3>(simd);
                planes.add::<S, 5, 1, 3, 2>(simd);
            }
            (5, 2) => {
                planes.add::<S, 5, 2, 0, 3>(simd);
                planes.add::<S, 5, 2, 3, 2>(simd);
            }
            (7, 1) => {
                planes.add::<S, 7, 1, 0, 4>(simd);
                planes.add::<S, 7, 1, 4, 3>(simd);
            }
            (7, 2) => {
                planes.add::<S, 7, 2, 0, 4>(simd);
                planes.add::<S, 7, 2, 4, 3>(simd);
            }
            _ => unreachable!("`applies` has these windows"),
        }
    }
}
