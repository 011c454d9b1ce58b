//! Softmax on the CPU.

use pulp::{Simd, WithSimd};

use crate::kernel::native::{self, COLUMNS, Columns, Real};

/// Numbers of a row that are computed at once.
const LANES: usize = 16;

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
        let size = len * inner;
        for (x, y) in x.chunks_exact(size).zip(y.chunks_exact_mut(size)) {
            if inner == 1 {
                row::<T, S>(log, masked, x, y);
                continue;
            }
            for first in (0..inner).step_by(COLUMNS) {
                let width = COLUMNS.min(inner - first);
                columns::<T, S>(log, Columns { x: &x[first..], pitch: inner, width }, &mut y[first..]);
            }
        }
    }
}

#[inline(always)]
fn row<T: Real, S: Simd>(log: bool, masked: bool, x: &[T], y: &mut [T]) {
    if log {
        let (peak, mass) = native::peak_and_mass::<T, S>(x);
        let log = mass.ln();
        y.iter_mut().zip(x).for_each(|(y, &x)| *y = x - peak - log);
        return;
    }
    let peak = native::peak(x);
    // NaN is not counted as a peak. It makes the mass NaN.
    let base = if masked && peak == T::NEG_INFINITY { T::ZERO } else { peak };
    // Rows are often short: what is left of them is computed in as many numbers at once.
    let ((groups, last), (to, of_last)) = (x.as_chunks::<LANES>(), y.as_chunks_mut::<LANES>());
    for (y, x) in to.iter_mut().zip(groups) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = (x - base).exp::<S>();
        }
    }
    if !last.is_empty() {
        let mut group = [T::NEG_INFINITY; LANES];
        group[..last.len()].copy_from_slice(last);
        for x in &mut group {
            *x = (*x - base).exp::<S>();
        }
        of_last.copy_from_slice(&group[..last.len()]);
    }
    let mass = native::sum(y);
    let share = T::ONE / if masked && mass == T::ZERO { T::ONE } else { mass };
    y.iter_mut().for_each(|y| *y = *y * share);
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
                *y = (x - peak).exp::<S>() * share;
            }
        }
    }
}
