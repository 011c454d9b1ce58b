//! The inverse of the error function: `erfinv(y) = Φ⁻¹((1 + y)/2)/√2`, Φ being the normal distribution.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use super::Real;

/// A polynomial, from the constant term on.
#[inline(always)]
fn polynomial<T: Real>(coefficients: &[f64], x: T) -> T {
    coefficients.iter().rev().fold(T::ZERO, |sum, &c| sum * x + T::from_f64(c))
}

/// Relative error 1.2e-7 and a few roundings: the rational functions PPND7 of
/// [Wichura, 1988](https://doi.org/10.2307/2347330).
#[inline(always)]
fn approximate<T: Real>(y: T) -> T {
    let a = y.abs();
    if a >= T::ONE {
        // Infinite at ±1.
        return if a > T::ONE { T::NAN } else { y / T::ZERO };
    }
    let half = T::from_f64(0.5);
    if a <= T::from_f64(0.85) {
        let r = T::from_f64(0.180_625) - half * half * y * y;
        let above = polynomial(&[3.387_132_717_9, 50.434_271_938, 159.291_132_02, 59.109_374_72], r);
        let below = polynomial(&[1.0, 17.895_169_469, 78.757_757_664, 67.187_563_6], r);
        return half * T::from_f64(FRAC_1_SQRT_2) * y * (above / below);
    }
    // `1 − a` is exact.
    let s = (-(half * (T::ONE - a)).ln()).sqrt();
    let quantile = if s <= T::from_f64(5.0) {
        let r = s - T::from_f64(1.6);
        let above = polynomial(&[1.423_437_277_7, 2.756_815_39, 1.306_728_481_6, 0.170_238_211_03], r);
        above / polynomial(&[1.0, 0.737_001_642_5, 0.120_211_329_75], r)
    } else {
        let r = s - T::from_f64(5.0);
        let above = polynomial(&[6.657_905_115, 3.081_226_386, 0.428_682_943_37, 0.017_337_203_997], r);
        above / polynomial(&[1.0, 0.241_978_942_25, 0.012_258_202_635], r)
    };
    let x = T::from_f64(FRAC_1_SQRT_2) * quantile;
    if y < T::ZERO { -x } else { x }
}

pub(super) fn single(y: f32) -> f32 {
    approximate(y)
}

/// A few units in the last place: one step of Halley's method, which cubes the error of the approximation.
pub(super) fn double(y: f64) -> f64 {
    let x = approximate(y);
    if !x.is_finite() {
        return x;
    }
    // `erf(x) − y`. Near ±1, the difference of the complements keeps the digits that `erf` has lost.
    let a = y.abs();
    let residual = if a < 0.5 { libm::erf(x) - y } else { y.signum() * ((1.0 - a) - libm::erfc(x.abs())) };
    let newton = residual * (x * x).exp() / FRAC_2_SQRT_PI;
    x - newton / (1.0 + x * newton)
}

#[cfg(test)]
mod tests {
    /// From mpmath, with 40 digits.
    #[expect(clippy::excessive_precision, reason = "digits beyond those of f64")]
    const VALUES: [(f64, f64); 11] = [
        (1e-300, 8.862_269_254_527_580_358_6e-301),
        (1e-8, 8.862_269_254_527_580_553_9e-9),
        (0.1, 0.088_855_990_494_257_691_974),
        (0.5, 0.476_936_276_204_469_873_38),
        (0.75, 0.813_419_847_597_618_541_69),
        (0.85, 1.017_902_464_832_027_588_2),
        (0.850_000_000_000_000_1, 1.017_902_464_832_027_865_4),
        (0.99, 1.821_386_367_718_449_455_9),
        (1.0 - 1.0 / 16_777_216.0, 3.832_506_856_900_711_11),
        (1.0 - 1.0 / 1_099_511_627_776.0, 5.051_254_085_249_389_967_1),
        (1.0 - f64::EPSILON / 2.0, 5.863_584_748_755_167_927_2),
    ];

    #[test]
    fn double_precision_keeps_all_digits() {
        for (y, x) in VALUES {
            for (found, wanted) in [(super::double(y), x), (super::double(-y), -x)] {
                assert!((found / wanted - 1.0).abs() <= 3.0 * f64::EPSILON, "{y:e}: {found:e}, not {wanted:e}");
            }
        }
    }

    #[test]
    fn single_precision_is_near_the_double() {
        // Densely around 0 and towards 1, so that the regions and their seam are covered.
        let around = (1..=100_000u32).map(|i| i as f32 / 100_000.5);
        let towards = (1..=10_000u32).map(|i| 1.0 - i as f32 * (f32::EPSILON / 2.0));
        for y in around.chain(towards) {
            let (found, wanted) = (f64::from(super::single(y)), super::double(f64::from(y)));
            assert!((found / wanted - 1.0).abs() < 5e-7, "{y}: {found}, not {wanted}");
        }
    }

    #[test]
    fn the_ends_are_infinite_and_nothing_is_beyond() {
        assert_eq!([super::single(1.0), super::single(-1.0)], [f32::INFINITY, f32::NEG_INFINITY]);
        assert_eq!([super::double(1.0), super::double(-1.0)], [f64::INFINITY, f64::NEG_INFINITY]);
        for y in [1.0 + f32::EPSILON, -2.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            assert!(super::single(y).is_nan() && super::double(f64::from(y)).is_nan(), "{y}");
        }
        assert!(super::single(-0.0).is_sign_negative() && super::double(-0.0).is_sign_negative());
    }
}
