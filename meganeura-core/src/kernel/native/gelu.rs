//! GELU, `x·Φ(x)`, and its derivative, `Φ(x) + x·φ(x)`: Φ is the normal distribution, φ its density.

use std::f64::consts::FRAC_1_SQRT_2;

use pulp::Simd;

use super::fast::{ROUND, mul_add, polynomial};

/// `1/√(2π)`
const DENSITY: f64 = 0.398_942_280_401_432_7;

/// From here on `Φ(−a)` counts as 0: it is below 1e-38.
const FAR: f32 = 13.0;

/// For `|x|`, at most [`FAR`]: itself, `e^(−x²/2)`, and `Φ(−|x|)·e^(x²/2)`. The latter is a rational function with a
/// relative error of 5e-9, so that the left tail keeps its digits.
#[inline(always)]
#[expect(clippy::excessive_precision, reason = "coefficients as they were fitted")]
fn parts<S: Simd>(x: f32) -> (f32, f32, f32) {
    // −1/(2·ln 2), in two parts.
    const LOG: f32 = -0.721_347_51;
    const LOG_REST: f32 = -9.629_815_2e-9;
    // NaN stays.
    let a = if x.abs() > FAR { FAR } else { x.abs() };
    let square = a * a;
    let rounded = mul_add::<S>(square, LOG, ROUND);
    let r = mul_add::<S>(square, LOG, ROUND - rounded);
    let r = mul_add::<S>(square, LOG_REST, r);
    // 2ʳ
    let coefficients =
        [1.535_336_2e-4, 1.339_887_4e-3, 9.618_437e-3, 5.550_332_4e-2, 2.402_264_8e-1, std::f32::consts::LN_2, 1.0];
    let power = polynomial::<S, _>(r, coefficients);
    // The integer is added to the exponent.
    let exp = f32::from_bits(power.to_bits().wrapping_add(rounded.to_bits() << 23));
    let coefficients = [3.994_331_2e-3, 3.980_863_2e-2, 1.807_835_5e-1, 4.349_756e-1, 0.5];
    let above = polynomial::<S, _>(a, coefficients);
    let coefficients = [1.001_215_2e-2, 9.979_309_4e-2, 4.629_995_9e-1, 1.192_303_8, 1.667_836_1, 1.0];
    (a, exp, above / polynomial::<S, _>(a, coefficients))
}

/// `max(x, 0) − |x|·Φ(−|x|)`
#[inline(always)]
pub(super) fn single<S: Simd>(x: f32) -> f32 {
    let (a, exp, ratio) = parts::<S>(x);
    mul_add::<S>(-a, exp * ratio, if x <= 0.0 { 0.0 } else { x })
}

/// The derivative at `−|x|`, or 1 minus that.
#[inline(always)]
pub(super) fn slope<S: Simd>(x: f32) -> f32 {
    let (a, exp, ratio) = parts::<S>(x);
    let slope = exp * mul_add::<S>(-a, DENSITY as f32, ratio);
    if x <= 0.0 { slope } else { 1.0 - slope }
}

pub(super) fn double(x: f64) -> f64 {
    if x == f64::NEG_INFINITY { 0.0 } else { x * distribution(x) }
}

pub(super) fn slope_of_double(x: f64) -> f64 {
    if x.is_infinite() { distribution(x) } else { distribution(x) + x * DENSITY * (-0.5 * x * x).exp() }
}

/// `Φ(x)`
fn distribution(x: f64) -> f64 {
    0.5 * libm::erfc(-x * FRAC_1_SQRT_2)
}

#[cfg(test)]
mod tests {
    use pulp::Scalar;

    use super::*;
    use crate::kernel::native::fast::tests::{Function, worst};

    #[derive(Clone, Copy)]
    struct Gelu;
    #[derive(Clone, Copy)]
    struct Slope;

    impl Function for Gelu {
        #[inline(always)]
        fn of<S: Simd>(x: f32) -> f32 {
            single::<S>(x)
        }
    }

    impl Function for Slope {
        #[inline(always)]
        fn of<S: Simd>(x: f32) -> f32 {
            slope::<S>(x)
        }
    }

    #[test]
    fn both_are_precise() {
        assert!(worst(Gelu, -1.0..20.0, 0.0, double) < 3.0e-7);
        // Two roundings of the exponent, which is x²/2.
        assert!(worst(Gelu, -5.0..0.0, 0.0, double) < 1.5e-6);
        assert!(worst(Gelu, -20.0..-5.0, 1e-6, double) < 2.0e-6);
        // It is 0 near −0.75.
        assert!(worst(Slope, -20.0..20.0, 0.2, slope_of_double) < 3.0e-7);
    }

    #[test]
    fn ends_and_nan_are_kept() {
        for (x, y, slope) in
            [(f32::INFINITY, f32::INFINITY, 1.0), (1e30, 1e30, 1.0), (0.0, 0.0, 0.5), (f32::NEG_INFINITY, 0.0, 0.0)]
        {
            let close = |found: f64, wanted: f64| found == wanted || (found - wanted).abs() < 1e-35;
            let wide = f64::from(x);
            assert!(close(f64::from(single::<Scalar>(x)), f64::from(y)) && close(double(wide), f64::from(y)), "{x}");
            let slopes = [f64::from(super::slope::<Scalar>(x)), slope_of_double(wide)];
            assert!(slopes.iter().all(|&found| close(found, slope)), "{x}: {slopes:?}");
        }
        assert!(single::<Scalar>(f32::NAN).is_nan() && slope::<Scalar>(f32::NAN).is_nan());
        assert!(double(f64::NAN).is_nan() && slope_of_double(f64::NAN).is_nan());
    }
}
