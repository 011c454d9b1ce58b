//! The difference between computed numbers and PyTorch's.

use libtest_mimic::Trial;

use crate::numbers::{Computed, Reference};

/// `max |a − b| / max |b|`. Infinite if a number is not finite, or if the lengths differ. If all of `b` is 0, up to
/// rounding errors of 1e-15, it is `max |a − b|`, because all inputs of golden cases are about 1.
pub(super) fn relative_error(computed: &Computed, reference: &Reference) -> f64 {
    let (Computed(computed), Reference(reference)) = (computed, reference);
    let all_finite = computed.iter().chain(reference).all(|x| x.is_finite());
    if computed.len() != reference.len() || !all_finite {
        return f64::INFINITY;
    }
    let largest = reference.iter().fold(0.0f64, |max, x| max.max(x.abs()));
    let scale = if largest < 1e-12 { 1.0 } else { largest };
    computed.iter().zip(reference).fold(0.0f64, |max, (a, b)| max.max((a - b).abs())) / scale
}

/// Tests that the comparison can fail.
pub(super) fn collect(trials: &mut Vec<Trial>) {
    let error = |a: &[f64], b: &[f64]| relative_error(&Computed(a.to_vec()), &Reference(b.to_vec()));
    trials.push(Trial::test("pytorch::comparison_can_fail", move || {
        assert_eq!(error(&[1.0, 2.0], &[1.0, 4.0]), 0.5);
        // Relative even for small numbers.
        assert_eq!(error(&[1e-9, 2e-9], &[1e-9, 4e-9]), 0.5);
        assert_eq!(error(&[0.0], &[1e-11]), 1.0);
        assert_eq!(error(&[1e-3, 0.0], &[0.0, 0.0]), 1e-3);
        assert_eq!(error(&[1.0, 2.0], &[1.0, 2.0]), 0.0);
        for (a, b) in [(f64::NAN, 1.0), (1.0, f64::NAN), (f64::INFINITY, f64::INFINITY), (f64::NAN, f64::NAN)] {
            assert_eq!(error(&[1.0, a], &[1.0, b]), f64::INFINITY);
        }
        assert_eq!(error(&[1.0], &[1.0, 1.0]), f64::INFINITY);
        Ok(())
    }));
}
