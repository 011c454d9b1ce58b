//! Gradients of the weights of depthwise convolutions of images on the CPU in single precision:
//! `dw[c,i,j] = Σ dy[n,c,p,q] · x[n,c,p·s+i·d−pad,q·s+j·d−pad]`, with `x` in the order of [`Sorted`] and `dy` read in
//! place. The sums of several taps stay in registers, so each cotangent is read once for all of them.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::ConvShape;
use super::native_depthwise::COST;
use super::sorted::Sorted;
use crate::kernel::native::{Scratch, Shared, by_halves, prefetch_line, tasks};

/// Partial sums of a tap: the widest vector.
const LANES: usize = 16;

/// The most taps whose sums are in registers at a time.
const TAPS: usize = 9;

/// The most vectors that are summed before they are added to the partial sums: rounding errors grow with their number
/// and that of the parts, not of all vectors.
const VECTORS: usize = 128;

/// The most numbers that are fetched ahead, and those of a line of the cache.
const FETCHED: usize = 1024;
const LINE: usize = 16;

/// `dw` of images `x` and cotangents `dy`.
pub(super) fn grad_weight(g: &ConvShape, x: &[f32], dy: &[f32], dw: &mut [f32], scratch: &Scratch) {
    let arch = pulp::Arch::new();
    let (copies, taps, inputs, outputs) = (g.o / g.groups, g.taps(), g.inputs(), g.outputs());
    let sorted = Sorted::new(g);
    let dw = Shared::new(dw);
    let memory = || [scratch.zeros(sorted.len), scratch.borrow(copies * taps * LANES)];
    tasks(g.c, COST * g.n * copies * taps * outputs, &memory, &|channel, memory| {
        let [Some(pixels), Some(sums)] = memory else { return };
        sums.fill(0.0);
        for image in 0..g.n {
            // The channel of the next image is somewhere else, so nothing fetches it by itself.
            fetch(x, ((image + 1) * g.c + channel) * inputs, inputs);
            fetch(dy, ((image + 1) * g.o + channel * copies) * outputs, copies * outputs);
            sorted.copy(&x[(image * g.c + channel) * inputs..][..inputs], pixels, arch);
            for (copy, sums) in sums.chunks_exact_mut(taps * LANES).enumerate() {
                let dy = &dy[(image * g.o + channel * copies + copy) * outputs..][..outputs];
                for (layer, dy) in dy.chunks_exact(g.p * g.q).enumerate() {
                    let x = &pixels[layer * sorted.layer..];
                    arch.dispatch(Plane { sorted: &sorted, x, dy, q: g.q, sums: sums.as_chunks_mut().0 });
                }
            }
        }
        // SAFETY: the weights of this channel belong to this task alone.
        let dw = unsafe { dw.part(channel * copies * taps, copies * taps) };
        dw.iter_mut().zip(sums.as_chunks::<LANES>().0).for_each(|(dw, &lanes)| *dw = by_halves(lanes, |a, b| a + b));
    });
}

/// Fetches some numbers into the caches, the first of them if they are many. They need not exist.
fn fetch(x: &[f32], at: usize, len: usize) {
    for line in (0..len.min(FETCHED)).step_by(LINE) {
        prefetch_line(x.as_ptr().wrapping_add(at + line));
    }
}

/// The products of one channel's cotangents, in rows of `q`, and its pixels.
struct Plane<'a> {
    sorted: &'a Sorted,
    x: &'a [f32],
    dy: &'a [f32],
    q: usize,
    /// Partial sums of each tap, to which this adds.
    sums: &'a mut [[f32; LANES]],
}

impl WithSimd for Plane<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let rows = self.dy.len() / self.q;
        let at_once = (VECTORS / self.q.div_ceil(S::F32_LANES)).max(1);
        let taps = self.sums.len();
        // Groups of taps of nearly one size.
        let groups = taps.div_ceil(TAPS);
        for first in (0..rows).step_by(at_once) {
            let rows = first..rows.min(first + at_once);
            for group in 0..groups {
                self.taps::<S>(simd, rows.clone(), taps * group / groups..taps * (group + 1) / groups);
            }
        }
    }
}

impl Plane<'_> {
    #[inline(always)]
    fn taps<S: Simd>(&mut self, simd: S, rows: Range<usize>, taps: Range<usize>) {
        macro_rules! groups {
            ($($taps:literal)+) => {
                match taps.len() {
                    $($taps => self.group::<S, $taps>(simd, rows, taps.start),)+
                    _ => unreachable!("a group has at most {TAPS} taps"),
                }
            };
        }
        groups!(1 2 3 4 5 6 7 8 9);
    }

    /// Adds some rows to the partial sums of `N` taps, from tap `first` on.
    #[inline(always)]
    fn group<S: Simd, const N: usize>(&mut self, simd: S, rows: Range<usize>, first: usize) {
        let (q, width) = (self.q, self.sorted.width);
        let taps: &[usize; N] = self.sorted.taps[first..].first_chunk().expect("so many taps");
        let whole = q / S::F32_LANES * S::F32_LANES;
        let furthest = taps.iter().max().expect("not empty") + (rows.end - 1) * width + whole + S::F32_LANES;
        assert!(rows.end * q <= self.dy.len() && furthest <= self.x.len(), "all rows lie in their slices");
        #[expect(clippy::cast_possible_truncation, reason = "less than a vector")]
        let inside = simd.mask_between_m32s(0, (q - whole) as u32).mask();
        let zero = simd.splat_f32s(0.0);
        let mut sums = [zero; N];
        for row in rows {
            let (cotangents, rest) = self.dy[row * q..][..q].split_at(whole);
            // SAFETY: it was checked that this row and a vector behind it lie in the slice, for each tap.
            let x = taps.map(|tap| unsafe { self.x.as_ptr().add(row * width + tap) });
            for column in (0..whole).step_by(S::F32_LANES) {
                // SAFETY: as above, and vectors have no alignment here.
                let of = |x: *const f32| unsafe { x.add(column).cast::<S::f32s>().read_unaligned() };
                let dy = of(cotangents.as_ptr());
                sums.iter_mut().zip(x).for_each(|(sum, x)| *sum = simd.mul_add_e_f32s(dy, of(x), *sum));
            }
            if !rest.is_empty() {
                // What is behind the row may be infinite.
                let dy = simd.partial_load_f32s(rest);
                for (sum, x) in sums.iter_mut().zip(x) {
                    // SAFETY: as above.
                    let x = unsafe { x.add(whole).cast::<S::f32s>().read_unaligned() };
                    *sum = simd.mul_add_e_f32s(dy, simd.select_f32s(inside, x, zero), *sum);
                }
            }
        }
        for (to, sums) in self.sums[first..].iter_mut().zip(sums) {
            let to = &mut to[..S::F32_LANES];
            simd.partial_store_f32s(to, simd.add_f32s(simd.partial_load_f32s(to), sums));
        }
    }
}
