//! Gradients of a convolution's input on the CPU in single precision, as convolutions of the cotangents without stride.
//!
//! At stride 1, taps are in reverse order. At stride `s`, pixels fall into `s` phases along each axis, by their
//! remainders, and each phase is reached through taps of its own. All phases read the same cotangents, and store their
//! pixels a stride apart.

use pulp::{Simd, WithSimd};

use super::convolution::Axis;
use super::sorted::{Part, Sorted, Terms};
use super::{ConvShape, native_depthwise, native_direct, native_products};
use crate::kernel::native::{Finish, Plain, Real, Run, Scratch, Shared, parallel};

/// Input channels of a task that turns weights.
const CHANNELS: usize = 16;

/// A gradient of the input as a convolution of the cotangents.
pub(super) struct Phases<'g> {
    g: &'g ConvShape,
    /// The window of all phases, and the outputs of the largest.
    window: ConvShape,
    phases: Vec<Phase<'g>>,
}

/// Rows of pixels with one remainder of layers and one of rows.
struct Phase<'g> {
    g: &'g ConvShape,
    at: [usize; 2],
    /// Layers, rows and columns of outputs of the window.
    outputs: [usize; 3],
    /// The taps that reach pixels with each remainder in the row: those of the window, and those of the weights.
    taps: Vec<Vec<[usize; 2]>>,
}

impl<'g> Phases<'g> {
    /// `None` where the gradient has no such form.
    pub(super) fn new(g: &'g ConvShape) -> Option<Self> {
        let of = [0, 1, 2].map(|axis| g.window(axis));
        let axes = [Axis::new(of[0])?, Axis::new(of[1])?, Axis::new(of[2])?];
        let [phases, taps, padding, dilation] = [
            axes.map(|axis| axis.phases),
            axes.map(|axis| axis.taps),
            axes.map(|axis| axis.padding),
            axes.map(|axis| axis.dilation),
        ];
        let outputs = [g.depth.inputs.div_ceil(phases[0]), g.h.div_ceil(phases[1]), g.w.div_ceil(phases[2])];
        let window = g.transposed_to(outputs, taps, padding, dilation);
        let taps_of = |at: [usize; 3]| {
            let weight = |tap: usize| {
                let here = [tap / (taps[1] * taps[2]), tap / taps[2] % taps[1], tap % taps[2]];
                let mut weight = 0;
                for axis in 0..3 {
                    weight = weight * of[axis].kernel + axes[axis].weight(of[axis], at[axis], here[axis])?;
                }
                Some([tap, weight])
            };
            (0..window.taps()).filter_map(weight).collect()
        };
        let phase = |at: usize| {
            let at = [at / phases[1], at % phases[1]];
            let taps = (0..phases[2]).map(|column| taps_of([at[0], at[1], column])).collect();
            Phase { g, at, outputs, taps }
        };
        Some(Self { g, window, phases: (0..phases[0] * phases[1]).map(phase).collect() })
    }

    /// `true` if this is faster than adding up the gradients of patches: not for single taps, and not for few pixels a
    /// stride apart.
    pub(super) fn pay(&self) -> bool {
        let has_many = self.is_whole() || self.g.outputs() >= native_products::PIXELS;
        native_depthwise::applies(&self.window) || self.g.taps() > 1 && has_many
    }

    /// `dx` of the cotangents `dy`.
    pub(super) fn grad_input(&self, dy: &[f32], w: &[f32], dx: &mut [f32], scratch: &Scratch) {
        // Weights that stay the same are turned once.
        let kept = scratch.prepared::<f32>(1, w.len(), |turned| self.turn(w, turned));
        let mut own = None;
        let mut turned = if let Some(kept) = &kept {
            f32::slice(kept)
        } else {
            let Some(own) = scratch.borrow::<f32>(w.len()).map(|turned| own.insert(turned)) else { return };
            self.turn(w, own);
            &own[..]
        };
        let (g, sorted) = (&self.window, Sorted::new(&self.window));
        if self.is_whole() && !native_depthwise::applies(g) && native_products::interleaves(g) {
            return native_products::forward(g, dy, turned, dx, scratch);
        }
        let mut parts = Vec::with_capacity(self.phases.len());
        for phase in &self.phases {
            let mut sums = Vec::with_capacity(phase.taps.len());
            for taps in &phase.taps {
                let w;
                (w, turned) = turned.split_at(self.weights(taps));
                sums.push(Terms { taps: taps.iter().map(|&[tap, _]| tap).collect(), w });
            }
            let finish: &dyn Finish<f32> = if self.is_whole() { &Plain } else { phase };
            parts.push(Part { sums, finish });
        }
        if native_depthwise::applies(g) {
            native_depthwise::convolve(g, &sorted, &parts, dy, dx, scratch);
        } else {
            native_direct::convolve(g, &sorted, &parts, dy, dx, scratch);
        }
    }

    /// `true` if pixels are stored in the order of outputs.
    fn is_whole(&self) -> bool {
        [0, 1, 2].iter().all(|&axis| self.g.window(axis).stride == 1)
    }

    /// The weights of all phases: in each, `[input channel, output channel of its group, tap]`.
    fn turn(&self, w: &[f32], mut turned: &mut [f32]) {
        let g = self.g;
        let (channels, outputs, all) = (g.c / g.groups, g.o / g.groups, g.taps());
        for taps in self.phases.iter().flat_map(|phase| &phase.taps).filter(|taps| !taps.is_empty()) {
            let (here, rest) = std::mem::take(&mut turned).split_at_mut(self.weights(taps));
            turned = rest;
            let of_channel = outputs * taps.len();
            parallel(here, CHANNELS * of_channel, &|first, of_channels| {
                for (at, to) in of_channels.chunks_exact_mut(of_channel).enumerate() {
                    let channel = first / of_channel + at;
                    let from = &w[(channel / channels * outputs * channels + channel % channels) * all..];
                    for (to, from) in to.chunks_exact_mut(taps.len()).zip(from.chunks(channels * all)) {
                        to.iter_mut().zip(taps).for_each(|(to, &[_, tap])| *to = from[tap]);
                    }
                }
            });
        }
    }

    /// The number of weights of so many taps.
    fn weights(&self, taps: &[[usize; 2]]) -> usize {
        self.g.c * (self.g.o / self.g.groups) * taps.len()
    }
}

impl Finish<f32> for Phase<'_> {
    fn finish(&self, _: usize, _: &mut [f32]) {
        unreachable!("pixels are stored where they belong");
    }

    unsafe fn store(&self, values: &[f32], runs: &mut dyn Iterator<Item = Run>, dx: &Shared<'_, f32>) {
        pulp::Arch::new().dispatch(Store { phase: self, values, runs, dx });
    }
}

/// The store of a phase's pixels, in the form that `pulp` needs.
struct Store<'a> {
    phase: &'a Phase<'a>,
    values: &'a [f32],
    runs: &'a mut dyn Iterator<Item = Run>,
    dx: &'a Shared<'a, f32>,
}

impl WithSimd for Store<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let &Phase { g, at: [front, top], outputs: [layers, rows, columns], ref taps } = self.phase;
        let [deep, down, across] = [0, 1, 2].map(|axis| g.window(axis).stride);
        let kind = self.values.len() / taps.len();
        for Run { first, at, len } in self.runs {
            let (mut line, mut column) = (first / columns, first % columns);
            let mut from = at;
            while from < at + len {
                let here = (columns - column).min(at + len - from);
                let (channel, layer, row) = (line / (layers * rows), line / rows % layers, line % rows);
                let (z, y) = (layer * deep + front, row * down + top);
                // The window may have a layer, a row or some columns beyond the input.
                if z < g.depth.inputs && y < g.h {
                    let place = ((channel * g.depth.inputs + z) * g.h + y) * g.w;
                    let (begin, end) = (column * across, ((column + here) * across).min(g.w));
                    // SAFETY: these pixels belong to the caller.
                    let to = unsafe { self.dx.part(place + begin, end - begin) };
                    interleave(&self.values[from..], kind, across, to);
                }
                from += here;
                (line, column) = (line + 1, 0);
            }
        }
    }
}

/// Stores numbers of several kinds, `apart` in `from`, by turns.
#[inline(always)]
fn interleave(from: &[f32], apart: usize, kinds: usize, to: &mut [f32]) {
    if kinds == 2 {
        let (first, second) = (from, &from[apart..]);
        let (pairs, last) = to.as_chunks_mut::<2>();
        last.iter_mut().zip(&first[pairs.len()..]).for_each(|(to, &x)| *to = x);
        return match pairs.len() {
            16.. => pairs_of::<16>(first, second, pairs),
            4.. => pairs_of::<4>(first, second, pairs),
            _ => pairs_of::<1>(first, second, pairs),
        };
    }
    for kind in 0..kinds.min(to.len()) {
        to[kind..].iter_mut().step_by(kinds).zip(&from[kind * apart..]).for_each(|(to, &x)| *to = x);
    }
}

/// Pairs up numbers in vectors, the last of which may have some of the one before: rows are often short.
#[inline(always)]
fn pairs_of<const N: usize>(first: &[f32], second: &[f32], pairs: &mut [[f32; 2]]) {
    let of = |at: usize, to: &mut [[f32; 2]; N]| {
        let (a, b) = (&first[at..][..N], &second[at..][..N]);
        *to = std::array::from_fn(|k| [a[k], b[k]]);
    };
    let count = pairs.len();
    for (at, to) in pairs.as_chunks_mut::<N>().0.iter_mut().enumerate() {
        of(at * N, to);
    }
    if let Some(to) = pairs.last_chunk_mut::<N>() {
        of(count - N, to);
    }
}
