//! Cross-entropy on the CPU. Logits are `[N, classes, inner]`. Where `inner` is 1, rows are contiguous; otherwise they
//! are columns.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use crate::kernel::native::{self, COLUMNS, Columns, Real};

/// The parameters of a loss besides its logits and label.
#[derive(Clone, Copy)]
pub(super) struct Rule<T> {
    pub(super) smoothing: T,
    pub(super) ignored: Option<u32>,
    pub(super) classes: usize,
    pub(super) inner: usize,
}

impl<T: Real> Rule<T> {
    /// Computes losses, peaks and masses.
    pub(super) fn losses(self, x: &[T], labels: &[u32], loss: &mut [T], [peak, mass]: [&mut [T]; 2]) {
        let arch = pulp::Arch::new();
        // The columns of some images, or some rows.
        let block = if self.inner == 1 { native::grain(self.classes) } else { self.inner };
        let part = if self.inner == 1 { block } else { COLUMNS };
        let statistics = peak.par_chunks_mut(block).zip(mass.par_chunks_mut(block));
        let blocks = loss.par_chunks_mut(block).zip(statistics).enumerate();
        blocks.for_each(|(at, (loss, (peak, mass)))| {
            let (x, labels) = (&x[at * block * self.classes..], &labels[at * block..]);
            let statistics = peak.par_chunks_mut(part).zip(mass.par_chunks_mut(part));
            let parts = loss.par_chunks_mut(part).zip(statistics).enumerate();
            parts.for_each(|(at, (loss, (peak, mass)))| {
                let (first, labels) = (at * part, &labels[at * part..][..loss.len()]);
                arch.dispatch(Losses { rule: self, x: &x[first..], labels, loss, peak, mass });
            });
        });
    }

    /// Computes the gradient of the logits from peaks, masses and cotangents.
    pub(super) fn gradient(self, x: &[T], labels: &[u32], rows: [&[T]; 3], dx: &mut [T]) {
        let arch = pulp::Arch::new();
        let size = self.classes * self.inner;
        native::parallel(dx, native::grain(size) * size, &|first, dx| {
            let at = first / self.classes;
            let rows = rows.map(|rows| &rows[at..]);
            arch.dispatch(Gradient { rule: self, x: &x[first..], labels: &labels[at..], rows, dx });
        });
    }

    /// Combines `−ln softmax(x)` of the label's class and the mean over all classes.
    #[inline(always)]
    fn loss(self, label: u32, of_label: T, of_all: impl FnOnce() -> T) -> T {
        if Some(label) == self.ignored {
            return T::ZERO;
        }
        let loss = (T::ONE - self.smoothing) * of_label;
        // Without smoothing, a class that is masked by −∞ costs nothing.
        if self.smoothing > T::ZERO { loss + self.smoothing * of_all() } else { loss }
    }

    /// The amount to subtract from the probability of class `c`.
    #[inline(always)]
    fn hit(self, label: u32, c: usize) -> T {
        match label as usize {
            label if label >= self.classes => T::NAN,
            label if label == c => T::ONE - self.smoothing,
            _ => T::ZERO,
        }
    }
}

/// The losses of some rows, or of some columns of one block.
struct Losses<'a, T> {
    rule: Rule<T>,
    /// The logits, starting at the first class of the first row or column.
    x: &'a [T],
    labels: &'a [u32],
    loss: &'a mut [T],
    peak: &'a mut [T],
    mass: &'a mut [T],
}

impl<T: Real> WithSimd for Losses<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { rule, x, labels, loss, peak, mass } = self;
        let Rule { classes, inner, .. } = rule;
        if inner == 1 {
            let statistics = peak.iter_mut().zip(mass);
            for (((loss, &label), x), (peak, mass)) in
                loss.iter_mut().zip(labels).zip(x.chunks_exact(classes)).zip(statistics)
            {
                (*peak, *mass) = native::peak_and_mass::<T, S>(x);
                // Computed from differences, so large numbers have cancelled before anything is rounded at their
                // magnitude.
                let (log, peak) = (mass.ln(), *peak);
                let of_label = x.get(label as usize).map_or(T::NAN, |&x| log - (x - peak));
                *loss = rule.loss(label, of_label, || log - native::sum_by(x, |x| x - peak) / native::real(classes));
            }
            return;
        }
        // The last row ends with the last column, or later.
        let x = &x[..x.len().min(classes * inner)];
        let columns = Columns { x, pitch: inner, width: loss.len() };
        columns.peaks_and_masses::<S>(peak, mass);
        let mut depths = [T::ZERO; COLUMNS];
        if rule.smoothing > T::ZERO {
            columns.mean_depths(peak, &mut depths[..loss.len()]);
        }
        for (k, (loss, &label)) in loss.iter_mut().zip(labels).enumerate() {
            let log = mass[k].ln();
            let is_class = (label as usize) < classes;
            let of_label = if is_class { log - (x[label as usize * inner + k] - peak[k]) } else { T::NAN };
            *loss = rule.loss(label, of_label, || log - depths[k]);
        }
    }
}

/// The gradient of some blocks of logits.
struct Gradient<'a, T> {
    rule: Rule<T>,
    x: &'a [T],
    labels: &'a [u32],
    /// Peaks, masses and cotangents.
    rows: [&'a [T]; 3],
    dx: &'a mut [T],
}

impl<T: Real> WithSimd for Gradient<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { rule, x, labels, rows: [peak, mass, d_loss], dx } = self;
        let Rule { classes, inner, ignored, smoothing } = rule;
        let share = smoothing / native::real(classes);
        for (block, dx) in dx.chunks_exact_mut(classes * inner).enumerate() {
            let x = &x[block * classes * inner..];
            let rows = block * inner..(block + 1) * inner;
            let labels = &labels[rows.clone()];
            let (peak, mass, d_loss) = (&peak[rows.clone()], &mass[rows.clone()], &d_loss[rows]);
            if inner == 1 {
                let (label, peak, mass, d_loss) = (labels[0], peak[0], mass[0], d_loss[0]);
                if Some(label) == ignored {
                    dx.fill(T::ZERO);
                    continue;
                }
                let miss = rule.hit(label, usize::MAX);
                for (dx, &x) in dx.iter_mut().zip(x) {
                    *dx = d_loss * ((x - peak).exp::<S>() / mass - miss - share);
                }
                if let Some(dx) = dx.get_mut(label as usize) {
                    *dx = d_loss * ((x[label as usize] - peak).exp::<S>() / mass - (T::ONE - smoothing) - share);
                }
                continue;
            }
            for (c, (dx, x)) in dx.chunks_exact_mut(inner).zip(x.chunks_exact(inner)).enumerate() {
                for (i, dx) in dx.iter_mut().enumerate() {
                    let slope = (x[i] - peak[i]).exp::<S>() / mass[i] - rule.hit(labels[i], c) - share;
                    *dx = if Some(labels[i]) == ignored { T::ZERO } else { d_loss[i] * slope };
                }
            }
        }
    }
}
