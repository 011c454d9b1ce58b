//! Peaks and masses: `m = max x` and `Σ eˣ⁻ᵐ`, the parts of `ln Σ eˣ = m + ln Σ eˣ⁻ᵐ`. They are kept apart, because
//! their sum would be rounded at the magnitude of `m`. Without a finite maximum the mass is NaN.
//!
//! Everything is inlined into code that the caller dispatches to the processor's SIMD. Exponentials stand in loops
//! rather than in closures, which might not be inlined.

use pulp::Simd;

use super::cascade::{Cascade, by_halves};
use super::{Real, real};

/// Interleaved partial results of a row: two of the widest vectors.
const LANES: usize = 32;
/// The most columns that are processed at once.
pub(crate) const COLUMNS: usize = 64;
/// Terms of a chain of additions; [`Cascade`] says why it is short.
const RUN: usize = 16;

/// The larger of two numbers. A NaN `x` is ignored; `peak` is never NaN.
#[inline(always)]
fn larger<T: Real>(peak: T, x: T) -> T {
    if x > peak { x } else { peak }
}

#[inline(always)]
fn add<T: Real>(a: T, b: T) -> T {
    a + b
}

/// The peak of a row.
#[inline(always)]
pub(crate) fn peak<T: Real>(x: &[T]) -> T {
    let mut peaks = [T::NEG_INFINITY; LANES];
    let (groups, last) = x.as_chunks::<LANES>();
    for group in groups {
        for (peak, &x) in peaks.iter_mut().zip(group) {
            *peak = larger(*peak, x);
        }
    }
    for (peak, &x) in peaks.iter_mut().zip(last) {
        *peak = larger(*peak, x);
    }
    by_halves(peaks, larger)
}

/// Numbers of a row whose exponentials are computed at once.
const GROUP: usize = 16;

#[inline(always)]
fn weights_of_group<T: Real, S: Simd>(mut x: [T; GROUP], base: T) -> [T; GROUP] {
    for x in &mut x {
        *x = (*x - base).decay::<S>();
    }
    x
}

/// The first numbers of a group, which −∞ fills.
#[inline(always)]
fn filled<T: Real>(x: &[T]) -> [T; GROUP] {
    let mut group = [T::NEG_INFINITY; GROUP];
    group[..x.len()].copy_from_slice(x);
    group
}

/// `y = e^(x − base)`, where `base` is the peak of a row. Rows are often short: what is left of them is computed in as
/// many numbers at once.
#[inline(always)]
pub(crate) fn weights<T: Real, S: Simd>(x: &[T], base: T, y: &mut [T]) {
    let ((groups, last), (to, of_last)) = (x.as_chunks(), y.as_chunks_mut());
    for (y, x) in to.iter_mut().zip(groups) {
        *y = weights_of_group::<T, S>(*x, base);
    }
    if !last.is_empty() {
        of_last.copy_from_slice(&weights_of_group::<T, S>(filled(last), base)[..last.len()]);
    }
}

/// The same, in place.
#[inline(always)]
pub(crate) fn make_weights<T: Real, S: Simd>(x: &mut [T], base: T) {
    let (groups, last) = x.as_chunks_mut();
    for x in groups {
        *x = weights_of_group::<T, S>(*x, base);
    }
    if !last.is_empty() {
        let weights = weights_of_group::<T, S>(filled(last), base);
        last.copy_from_slice(&weights[..last.len()]);
    }
}

/// The peak and the mass of a row.
#[inline(always)]
pub(crate) fn peak_and_mass<T: Real, S: Simd>(x: &[T]) -> (T, T) {
    let peak = peak(x);
    let mut cascade = Cascade::<T, LANES>::new(T::ZERO);
    for block in x.chunks(RUN * LANES) {
        let mut masses = [T::ZERO; LANES];
        let (groups, rest) = block.as_chunks::<LANES>();
        for group in groups {
            for (mass, &x) in masses.iter_mut().zip(group) {
                *mass += (x - peak).decay::<S>();
            }
        }
        for (mass, &x) in masses.iter_mut().zip(rest) {
            *mass += (x - peak).decay::<S>();
        }
        cascade.push(&masses, add);
    }
    (peak, by_halves(cascade.finish(add), add))
}

/// Up to [`COLUMNS`] adjacent columns: element `k` of each row is column `k`'s.
#[derive(Clone, Copy)]
pub(crate) struct Columns<'a, T> {
    /// The rows one after the other, from the first row's first column on.
    pub(crate) x: &'a [T],
    /// The distance of neighbouring rows.
    pub(crate) pitch: usize,
    pub(crate) width: usize,
}

impl<'a, T: Real> Columns<'a, T> {
    /// The rows.
    #[inline(always)]
    pub(crate) fn rows(self) -> impl Iterator<Item = &'a [T]> {
        self.x.chunks(self.pitch).map(move |row| &row[..self.width])
    }

    /// The peak and the mass of each column.
    #[inline(always)]
    pub(crate) fn peaks_and_masses<S: Simd>(self, peaks: &mut [T], masses: &mut [T]) {
        peaks.fill(T::NEG_INFINITY);
        for row in self.rows() {
            peaks.iter_mut().zip(row).for_each(|(peak, &x)| *peak = larger(*peak, x));
        }
        let mut cascade = Cascade::<T, COLUMNS>::new(T::ZERO);
        let mut run = [T::ZERO; COLUMNS];
        let run = &mut run[..self.width];
        let mut terms = 0;
        for row in self.rows() {
            for ((mass, &x), &peak) in run.iter_mut().zip(row).zip(&*peaks) {
                *mass += (x - peak).decay::<S>();
            }
            terms += 1;
            if terms == RUN {
                cascade.push(run, add);
                run.fill(T::ZERO);
                terms = 0;
            }
        }
        cascade.push(run, add);
        masses.copy_from_slice(&cascade.finish(add)[..self.width]);
    }

    /// The mean of each column's differences from its peak.
    #[inline(always)]
    pub(crate) fn mean_depths(self, peaks: &[T], means: &mut [T]) {
        let mut cascade = Cascade::<T, COLUMNS>::new(T::ZERO);
        let mut count = 0;
        for row in self.rows() {
            let mut depths = [T::ZERO; COLUMNS];
            for ((depth, &x), &peak) in depths.iter_mut().zip(row).zip(peaks) {
                *depth = x - peak;
            }
            cascade.push(&depths[..self.width], add);
            count += 1;
        }
        let sums = cascade.finish(add);
        means.iter_mut().zip(sums).for_each(|(mean, sum)| *mean = sum / real(count));
    }
}
