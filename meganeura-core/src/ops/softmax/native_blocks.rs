//! Softmax on the CPU.

use pulp::{Simd, WithSimd};

use crate::kernel::native::{self, COLUMNS, Columns, Real};

/// Rows that are computed at once: one need not wait for the peak and the mass of another.
const AT_ONCE: usize = 4;

/// Numbers that stay in the first-level cache.
const NEAR: usize = 2048;

/// Blocks of `len` rows of `inner` numbers, each normalised along its columns.
pub(super) struct Blocks<'a, T> {
    pub(super) log: bool,
    /// `true` if a row of −∞ gives 0. Then `inner` is 1.
    pub(super) masked: bool,
    pub(super) len: usize,
    pub(super) inner: usize,
    pub(super) x: &'a [T],
    pub(super) y: &'a mut [T],
}

impl<T: Real> WithSimd for Blocks<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { log, masked, len, inner, x, y } = self;
        if inner == 1 && !log {
            let size = len * (NEAR / len).clamp(1, AT_ONCE);
            for (x, y) in x.chunks(size).zip(y.chunks_mut(size)) {
                rows::<T, S>(masked, len, x, y);
            }
            return;
        }
        let size = len * inner;
        for (x, y) in x.chunks_exact(size).zip(y.chunks_exact_mut(size)) {
            if inner == 1 {
                logarithms::<T, S>(x, y);
                continue;
            }
            for first in (0..inner).step_by(COLUMNS) {
                let width = COLUMNS.min(inner - first);
                columns::<T, S>(log, Columns { x: &x[first..], pitch: inner, width }, &mut y[first..]);
            }
        }
    }
}

/// The logarithms of a row's weights.
#[inline(always)]
fn logarithms<T: Real, S: Simd>(x: &[T], y: &mut [T]) {
    let (peak, mass) = native::peak_and_mass::<T, S>(x);
    let log = mass.ln();
    y.iter_mut().zip(x).for_each(|(y, &x)| *y = x - peak - log);
}

/// Up to [`AT_ONCE`] rows.
#[inline(always)]
fn rows<T: Real, S: Simd>(masked: bool, len: usize, x: &[T], y: &mut [T]) {
    // NaN is not counted as a peak. It makes the mass NaN.
    let mut peaks = [T::ZERO; AT_ONCE];
    for (peak, x) in peaks.iter_mut().zip(x.chunks_exact(len)) {
        *peak = native::peak(x);
        if masked && *peak == T::NEG_INFINITY {
            *peak = T::ZERO;
        }
    }
    for ((y, x), &peak) in y.chunks_exact_mut(len).zip(x.chunks_exact(len)).zip(&peaks) {
        native::weights::<T, S>(x, peak, y);
    }
    let mut shares = [T::ONE; AT_ONCE];
    for (share, y) in shares.iter_mut().zip(y.chunks_exact(len)) {
        let mass = native::sum(y);
        *share = T::ONE / if masked && mass == T::ZERO { T::ONE } else { mass };
    }
    for (y, &share) in y.chunks_exact_mut(len).zip(&shares) {
        y.iter_mut().for_each(|y| *y = *y * share);
    }
}

#[inline(always)]
fn columns<T: Real, S: Simd>(log: bool, x: Columns<'_, T>, y: &mut [T]) {
    let (mut peaks, mut masses) = ([T::ZERO; COLUMNS], [T::ZERO; COLUMNS]);
    let (peaks, masses) = (&mut peaks[..x.width], &mut masses[..x.width]);
    x.peaks_and_masses::<S>(peaks, masses);
    // From here on the logarithms of the masses, or their inverses.
    masses.iter_mut().for_each(|mass| *mass = if log { mass.ln() } else { T::ONE / *mass });
    for (y, row) in y.chunks_mut(x.pitch).zip(x.rows()) {
        let places = y.iter_mut().zip(row).zip(peaks.iter().zip(&*masses));
        if log {
            places.for_each(|((y, &x), (&peak, &log))| *y = x - peak - log);
        } else {
            for ((y, &x), (&peak, &share)) in places {
                *y = (x - peak).decay::<S>() * share;
            }
        }
    }
}
