//! Branch-free single-precision functions: the compiler turns loops over them into SIMD, which a call into the C
//! library prevents. Errors are a few units in the last place; tests below hold them to that.

#![expect(clippy::excessive_precision, reason = "coefficients as they were fitted")]

use pulp::Simd;

/// `true` if the instructions of this SIMD round `a·b + c` once. Without such an instruction, `f32::mul_add` is a call.
const fn is_fused<S: Simd>() -> bool {
    !S::IS_SCALAR && cfg!(any(target_arch = "x86", target_arch = "x86_64", target_arch = "aarch64"))
}

/// `a·b + c`, rounded once where the processor can, else twice. So the last bits of a result depend on the processor;
/// on one processor, they are the same in every loop that is compiled for its SIMD.
#[inline(always)]
pub(super) fn mul_add<S: Simd>(a: f32, b: f32, c: f32) -> f32 {
    if is_fused::<S>() { a.mul_add(b, c) } else { a * b + c }
}

/// A polynomial, from the leading coefficient on.
#[inline(always)]
pub(super) fn polynomial<S: Simd, const N: usize>(x: f32, coefficients: [f32; N]) -> f32 {
    let mut sum = coefficients[0];
    for &coefficient in &coefficients[1..] {
        sum = mul_add::<S>(sum, x, coefficient);
    }
    sum
}

/// 1.5·2²³: adding it leaves the nearest integer in the low bits.
pub(super) const ROUND: f32 = 12_582_912.0;

/// eˣ by reduction to `[-ln2/2, ln2/2]` and a polynomial of degree 6.
#[inline(always)]
pub(super) fn exp<S: Simd>(x: f32) -> f32 {
    // Two factors of 2^(n/2) reach from subnormals to the largest float without leaving the exponent's range.
    let clamped = if x > 89.0 { 89.0 } else { x };
    let clamped = if clamped < -104.0 { -104.0 } else { clamped };
    let (y, rounded) = reduced::<S>(clamped);
    // Not `n as i32`, which checks its range, and so prevents SIMD. For NaN, `n` is arbitrary; `y` is NaN anyway.
    let n = rounded.to_bits().wrapping_sub(ROUND.to_bits()).cast_signed();
    let half = n >> 1;
    let scale = |k: i32| f32::from_bits(k.wrapping_add(127).cast_unsigned() << 23);
    y * scale(half) * scale(n.wrapping_sub(half))
}

/// The least argument of [`decay`] that does not give 0. A few numbers below it would be normal, too.
const LEAST_DECAY: f32 = -87.0;

/// eˣ up to 88, in fewer instructions than [`exp`]: 0 where it is below 1.7e-38, so that 2ⁿ is a normal number.
#[inline(always)]
pub(super) fn decay<S: Simd>(x: f32) -> f32 {
    let clamped = if x < LEAST_DECAY { LEAST_DECAY } else { x };
    let (y, rounded) = reduced::<S>(clamped);
    // The rounded exponent's low bits move into the place of an exponent, and its high bits leave the number.
    let scale = f32::from_bits((rounded.to_bits() << 23).wrapping_add(1f32.to_bits()));
    if x < LEAST_DECAY { 0.0 } else { y * scale }
}

/// eˣ without its factor 2ⁿ, and `n` in the low bits of a number.
#[inline(always)]
fn reduced<S: Simd>(x: f32) -> (f32, f32) {
    let rounded = mul_add::<S>(x, std::f32::consts::LOG2_E, ROUND);
    let n = rounded - ROUND;
    let r = mul_add::<S>(n, 2.121_944_4e-4, mul_add::<S>(n, -0.693_359_375, x));
    let coefficients =
        [1.987_569_15e-4, 1.398_199_95e-3, 8.333_451_9e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5.000_000_1e-1];
    (mul_add::<S>(polynomial::<S, _>(r, coefficients), r * r, r) + 1.0, rounded)
}

/// tanh by `1 − 2/(e²ˣ + 1)` for large and an odd polynomial for small arguments.
#[inline(always)]
pub(super) fn tanh<S: Simd>(x: f32) -> f32 {
    let (a, z) = (x.abs(), x * x);
    let coefficients = [-5.704_988_73e-3, 2.063_908_88e-2, -5.373_971_56e-2, 1.333_144_18e-1, -3.333_328_22e-1];
    let small = mul_add::<S>(polynomial::<S, _>(z, coefficients) * z, x, x);
    let large = 1.0 - 2.0 / (exp::<S>(2.0 * a) + 1.0);
    if a < 0.625 { small } else { large.copysign(x) }
}

/// erf: `x + x·p(x²)` below 1, and `1 − q(|x| − 2.5)` above, where 4 counts as infinite. Both polynomials are minimax
/// fits to f64.
#[inline(always)]
pub(super) fn erf<S: Simd>(x: f32) -> f32 {
    let a = x.abs();
    let coefficients = [
        7.853_859_3e-5,
        -8.010_193e-4,
        5.188_327_7e-3,
        -2.685_381_1e-2,
        1.128_358_54e-1,
        -3.761_262_6e-1,
        1.283_791_7e-1,
    ];
    let small = mul_add::<S>(x, polynomial::<S, _>(x * x, coefficients), x);
    // NaN stays.
    let u = if a > 4.0 { 1.5 } else { a - 2.5 };
    let coefficients = [
        -8.961_344e-7,
        -5.093_371e-7,
        1.576_798_6e-5,
        -1.768_170_5e-5,
        -8.125_658e-5,
        2.703_980_7e-4,
        -2.584_807_8e-4,
        -5.600_641_6e-4,
        2.797_348_9e-3,
        -6.109_303e-3,
        8.622_685e-3,
        -8.351_715e-3,
        5.445_676_4e-3,
        -2.178_188_9e-3,
        4.069_526_6e-4,
    ];
    let large = 1.0 - polynomial::<S, _>(u, coefficients);
    if a < 1.0 { small } else { large.copysign(x) }
}

#[cfg(test)]
pub(super) mod tests {
    use pulp::{Arch, Scalar, WithSimd};

    use super::*;

    /// A function for every SIMD.
    pub(in super::super) trait Function {
        fn of<S: Simd>(x: f32) -> f32;
    }

    struct All<'a, F>(F, &'a mut [f32]);

    impl<F: Function> WithSimd for All<'_, F> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) {
            self.1.iter_mut().for_each(|x| *x = F::of::<S>(*x));
        }
    }

    /// The largest difference over a dense grid, relative to `max(|want|, floor)`, with the instructions of this
    /// processor and with plain ones.
    pub(in super::super) fn worst<F: Function + Copy>(
        f: F,
        range: std::ops::Range<f64>,
        floor: f64,
        want: fn(f64) -> f64,
    ) -> f64 {
        let steps = 200_000;
        let step = (range.end - range.start) / f64::from(steps);
        let x: Vec<_> = (0..=steps).map(|i| (range.start + step * f64::from(i)) as f32).collect();
        let mut fused = x.clone();
        Arch::new().dispatch(All(f, &mut fused));
        let error = |(&x, fused): (&f32, f32)| {
            let want = want(f64::from(x));
            let error = |y: f32| (f64::from(y) - want).abs() / want.abs().max(floor);
            error(fused).max(error(F::of::<Scalar>(x)))
        };
        x.iter().zip(fused).map(error).fold(0.0, f64::max)
    }

    #[derive(Clone, Copy)]
    struct Exp;
    #[derive(Clone, Copy)]
    struct Decay;
    #[derive(Clone, Copy)]
    struct Tanh;
    #[derive(Clone, Copy)]
    struct Erf;

    impl Function for Exp {
        #[inline(always)]
        fn of<S: Simd>(x: f32) -> f32 {
            exp::<S>(x)
        }
    }

    impl Function for Decay {
        #[inline(always)]
        fn of<S: Simd>(x: f32) -> f32 {
            decay::<S>(x)
        }
    }

    impl Function for Tanh {
        #[inline(always)]
        fn of<S: Simd>(x: f32) -> f32 {
            tanh::<S>(x)
        }
    }

    impl Function for Erf {
        #[inline(always)]
        fn of<S: Simd>(x: f32) -> f32 {
            erf::<S>(x)
        }
    }

    #[test]
    fn functions_are_precise() {
        assert!(worst(Exp, -87.0..88.7, 0.0, f64::exp) < 2.0e-7);
        assert!(worst(Decay, -87.0..88.0, 0.0, f64::exp) < 2.0e-7);
        assert!(worst(Decay, -200.0..-87.0, 1.0, f64::exp) < 2.0e-38);
        assert!(worst(Tanh, -10.0..10.0, 1e-30, f64::tanh) < 3.0e-7);
        assert!(worst(Erf, -5.0..5.0, 1e-30, libm::erf) < 1.0e-7);
    }

    #[test]
    fn special_values_are_kept() {
        for f in [exp::<Scalar>, decay::<Scalar>, tanh::<Scalar>, erf::<Scalar>] {
            assert!(f(f32::NAN).is_nan());
        }
        assert_eq!(exp::<Scalar>(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp::<Scalar>(f32::NEG_INFINITY), 0.0);
        assert_eq!([f32::NEG_INFINITY, -87.1, 0.0].map(decay::<Scalar>), [0.0, 0.0, 1.0]);
        assert_eq!(tanh::<Scalar>(f32::NEG_INFINITY), -1.0);
        assert_eq!([f32::NEG_INFINITY, -6.0, 4.0, f32::INFINITY].map(erf::<Scalar>), [-1.0, -1.0, 1.0, 1.0]);
    }
}
