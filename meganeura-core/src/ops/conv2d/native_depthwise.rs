//! Depthwise convolutions of images on the CPU in single precision: each output channel reads one channel, in the order
//! of [`Sorted`].

use std::iter::once;

use pulp::{Simd, WithSimd};

use super::ConvShape;
use super::sorted::Sorted;
use crate::kernel::native::{Finish, Run, Scratch, Shared, store, tasks};

/// `y` of images `x` with the weights `w`.
pub(super) fn forward(g: &ConvShape, x: &[f32], w: &[f32], y: &mut [f32], finish: &dyn Finish<f32>, scratch: &Scratch) {
    let arch = pulp::Arch::new();
    let (copies, taps, pixels) = (g.o / g.groups, g.taps(), g.outputs());
    let sorted = Sorted::new(g);
    let y = Shared::new(y);
    let memory = || [sorted.len, pixels].map(|len| scratch.borrow::<f32>(len));
    tasks(g.n * g.c, copies * taps * pixels, &memory, &|task, memory| {
        let [Some(channel), Some(sums)] = memory else { return };
        sorted.copy(&x[task * g.inputs()..][..g.inputs()], channel);
        for copy in task * copies..(task + 1) * copies {
            let w = &w[copy % g.o * taps..][..taps];
            arch.dispatch(Plane { sorted: &sorted, channel, w, q: g.q, y: sums });
            let all = Run { first: copy * pixels, at: 0, len: pixels };
            // SAFETY: the outputs of this channel belong to this task alone.
            unsafe { store(&y, sums, once(all), finish) };
        }
    });
}

/// One channel of outputs, in rows of `q`.
struct Plane<'a> {
    sorted: &'a Sorted,
    channel: &'a [f32],
    w: &'a [f32],
    q: usize,
    y: &'a mut [f32],
}

impl WithSimd for Plane<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { sorted, channel, w, q, y } = self;
        let taps = &sorted.taps[..w.len()];
        for (row, y) in y.chunks_exact_mut(q).enumerate() {
            for (at, y) in y.chunks_mut(2 * S::F32_LANES).enumerate() {
                let begin = row * sorted.width + at * 2 * S::F32_LANES;
                let vectors = y.len().div_ceil(S::F32_LANES);
                let mut sums = [simd.splat_f32s(0.0); 2];
                for (&w, &tap) in w.iter().zip(taps) {
                    let w = simd.splat_f32s(w);
                    let x = &channel[begin + tap..][..vectors * S::F32_LANES];
                    let (x, _) = S::as_simd_f32s(x);
                    for (sum, &x) in sums.iter_mut().zip(x) {
                        *sum = simd.mul_add_e_f32s(w, x, *sum);
                    }
                }
                for (y, sum) in y.chunks_mut(S::F32_LANES).zip(&sums) {
                    simd.partial_store_f32s(y, *sum);
                }
            }
        }
    }
}
