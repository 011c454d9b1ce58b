//! The float types that kernels of the native executor are written for.

use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub};

use super::element::Element;
use super::erfinv;
use super::finish::Finish;
use super::gemm::Product;
use crate::DType;
use crate::host::HostBuffer;

/// `docs name: the function of f32, that of f64`
macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident: $single:path, $double:path;)+) => {
        /// The functions of one number that rows of the elementwise table are written with.
        pub trait Functions: Sized {
            $($(#[$doc])* fn $name(self) -> Self;)+
        }

        impl Functions for f32 {
            $(#[inline(always)] fn $name(self) -> Self { $single(self) })+
        }

        impl Functions for f64 {
            $(#[inline(always)] fn $name(self) -> Self { $double(self) })+
        }
    };
}

functions! {
    /// `|x|`
    abs: f32::abs, f64::abs;
    /// `eˣ`
    exp: fast::exp, f64::exp;
    /// `eˣ − 1`, precise near 0.
    exp_m1: f32::exp_m1, f64::exp_m1;
    /// `ln x`
    ln: f32::ln, f64::ln;
    /// `ln(1 + x)`, precise near 0.
    ln_1p: f32::ln_1p, f64::ln_1p;
    /// The largest integer that is at most `x`.
    floor: f32::floor, f64::floor;
    /// The smallest integer that is at least `x`.
    ceil: f32::ceil, f64::ceil;
    /// The nearest integer; ties to even.
    round: f32::round_ties_even, f64::round_ties_even;
    /// `√x`
    sqrt: f32::sqrt, f64::sqrt;
    /// `sin x`
    sin: f32::sin, f64::sin;
    /// `cos x`
    cos: f32::cos, f64::cos;
    /// `tan x`
    tan: f32::tan, f64::tan;
    /// `tanh x`
    tanh: fast::tanh, f64::tanh;
    /// The error function.
    erf: fast::erf, libm::erf;
    /// The inverse of the error function.
    erfinv: erfinv::single, erfinv::double;
}

/// `f32` or `f64`.
pub trait Real:
    Functions
    + Element
    + Sum
    + Neg<Output = Self>
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + AddAssign
{
    /// The element type.
    const DTYPE: DType;
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// −∞.
    const NEG_INFINITY: Self;
    /// NaN.
    const NAN: Self;

    /// Rounds a 64-bit integer.
    fn from_i64(x: i64) -> Self;
    /// Rounds a 32-bit integer.
    fn from_i32(x: i32) -> Self;
    /// Widens to 64 bits.
    fn to_f64(self) -> f64;
    /// xʸ
    fn powf(self, y: Self) -> Self;

    /// The matrix product for this processor.
    fn product() -> Product<Self>;
    /// These numbers, if they are in single precision: for kernels that are written for it alone.
    fn singles(x: &[Self]) -> Option<&[f32]>;
    /// Mutable form of [`Real::singles`].
    fn singles_mut(x: &mut [Self]) -> Option<&mut [f32]>;
    /// Likewise the elementwise work on results.
    fn single_finish(finish: &dyn Finish<Self>) -> Option<&dyn Finish<f32>>;
    /// The numbers of a buffer of this type.
    fn slice(buffer: &HostBuffer) -> &[Self];
    /// The numbers of a buffer of this type.
    fn slice_mut(buffer: &mut HostBuffer) -> &mut [Self];
}

macro_rules! real {
    ($T:ident, $variant:ident, product: $product:path, singles: $singles:path) => {
        impl Real for $T {
            const DTYPE: DType = DType::$variant;
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const NEG_INFINITY: Self = $T::NEG_INFINITY;
            const NAN: Self = $T::NAN;

            #[inline(always)]
            #[expect(clippy::cast_precision_loss, reason = "rounding is this function's purpose")]
            fn from_i64(x: i64) -> Self {
                x as $T
            }
            #[inline(always)]
            #[expect(clippy::allow_attributes, reason = "f64 needs no rounding")]
            #[allow(clippy::cast_precision_loss, clippy::cast_lossless, reason = "rounding is this function's purpose")]
            fn from_i32(x: i32) -> Self {
                x as $T
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
            #[inline(always)]
            fn powf(self, y: Self) -> Self {
                self.powf(y)
            }
            fn product() -> Product<Self> {
                $product()
            }
            fn singles(x: &[Self]) -> Option<&[f32]> {
                $singles(x)
            }
            fn singles_mut(x: &mut [Self]) -> Option<&mut [f32]> {
                $singles(x)
            }
            fn single_finish(finish: &dyn Finish<Self>) -> Option<&dyn Finish<f32>> {
                $singles(finish)
            }
            fn slice(buffer: &HostBuffer) -> &[Self] {
                match buffer {
                    HostBuffer::$variant(data) => data,
                    other => unreachable!("a plan reads {} as {}", other.dtype(), Self::DTYPE),
                }
            }
            fn slice_mut(buffer: &mut HostBuffer) -> &mut [Self] {
                match buffer {
                    HostBuffer::$variant(data) => data,
                    other => unreachable!("a plan writes {} as {}", other.dtype(), Self::DTYPE),
                }
            }
        }
    };
}

real!(f32, F32, product: gemm_f32::gemm::f32::get_gemm_fn, singles: Some);
real!(f64, F64, product: gemm_f64::gemm::f64::get_gemm_fn, singles: none);

/// Numbers in double precision are not in single precision.
fn none<A, B>(_: A) -> Option<B> {
    None
}

/// Branch-free single-precision functions: the compiler turns loops over them into SIMD, which a call into the C
/// library prevents. Errors are a few units in the last place; tests below hold them to that.
#[expect(clippy::excessive_precision, reason = "coefficients as they were fitted")]
mod fast {
    /// eˣ by reduction to `[-ln2/2, ln2/2]` and a polynomial of degree 6.
    #[inline(always)]
    pub(super) fn exp(x: f32) -> f32 {
        // 1.5·2²³: adding it leaves the nearest integer in the low bits.
        const ROUND: f32 = 12_582_912.0;
        // Two factors of 2^(n/2) reach from subnormals to the largest float without leaving the exponent's range.
        let clamped = if x > 89.0 { 89.0 } else { x };
        let clamped = if clamped < -104.0 { -104.0 } else { clamped };
        let rounded = clamped * std::f32::consts::LOG2_E + ROUND;
        let n = rounded - ROUND;
        let r = (clamped - n * 0.693_359_375) - n * -2.121_944_4e-4;
        let p = 1.987_569_15e-4;
        let p = p * r + 1.398_199_95e-3;
        let p = p * r + 8.333_451_9e-3;
        let p = p * r + 4.166_579_6e-2;
        let p = p * r + 1.666_666_5e-1;
        let p = p * r + 5.000_000_1e-1;
        let y = p * (r * r) + r + 1.0;
        // Not `n as i32`, which checks its range, and so prevents SIMD. For NaN, `n` is arbitrary; `y` is NaN anyway.
        let n = rounded.to_bits().wrapping_sub(ROUND.to_bits()).cast_signed();
        let half = n >> 1;
        let scale = |k: i32| f32::from_bits(k.wrapping_add(127).cast_unsigned() << 23);
        y * scale(half) * scale(n.wrapping_sub(half))
    }

    /// tanh by `1 − 2/(e²ˣ + 1)` for large and an odd polynomial for small arguments.
    #[inline(always)]
    pub(super) fn tanh(x: f32) -> f32 {
        let a = x.abs();
        let z = x * x;
        let p = -5.704_988_73e-3;
        let p = p * z + 2.063_908_88e-2;
        let p = p * z - 5.373_971_56e-2;
        let p = p * z + 1.333_144_18e-1;
        let p = p * z - 3.333_328_22e-1;
        let small = p * z * x + x;
        let large = 1.0 - 2.0 / (exp(2.0 * a) + 1.0);
        if a < 0.625 { small } else { large.copysign(x) }
    }

    /// erf: `x + x·p(x²)` below 1, and `1 − q(|x| − 2.5)` above, where 4 counts as infinite. Both polynomials are
    /// minimax fits to f64.
    #[inline(always)]
    pub(super) fn erf(x: f32) -> f32 {
        let a = x.abs();
        let z = x * x;
        let p = 7.853_859_3e-5;
        let p = p * z - 8.010_193e-4;
        let p = p * z + 5.188_327_7e-3;
        let p = p * z - 2.685_381_1e-2;
        let p = p * z + 1.128_358_54e-1;
        let p = p * z - 3.761_262_6e-1;
        let p = p * z + 1.283_791_7e-1;
        let small = x + x * p;
        // NaN stays.
        let u = if a > 4.0 { 1.5 } else { a - 2.5 };
        let q = -8.961_344e-7;
        let q = q * u - 5.093_371e-7;
        let q = q * u + 1.576_798_6e-5;
        let q = q * u - 1.768_170_5e-5;
        let q = q * u - 8.125_658e-5;
        let q = q * u + 2.703_980_7e-4;
        let q = q * u - 2.584_807_8e-4;
        let q = q * u - 5.600_641_6e-4;
        let q = q * u + 2.797_348_9e-3;
        let q = q * u - 6.109_303e-3;
        let q = q * u + 8.622_685e-3;
        let q = q * u - 8.351_715e-3;
        let q = q * u + 5.445_676_4e-3;
        let q = q * u - 2.178_188_9e-3;
        let q = q * u + 4.069_526_6e-4;
        let large = 1.0 - q;
        if a < 1.0 { small } else { large.copysign(x) }
    }

    #[cfg(test)]
    mod tests {
        /// The largest difference over a dense grid, relative to `max(|want|, floor)`.
        fn worst(range: std::ops::Range<f64>, floor: f64, f: fn(f32) -> f32, want: fn(f64) -> f64) -> f64 {
            let steps = 200_000;
            (0..=steps)
                .map(|i| {
                    let x = (range.start + (range.end - range.start) * f64::from(i) / f64::from(steps)) as f32;
                    let want = want(f64::from(x));
                    (f64::from(f(x)) - want).abs() / want.abs().max(floor)
                })
                .fold(0.0, f64::max)
        }

        #[test]
        fn functions_are_precise() {
            assert!(worst(-87.0..88.7, 0.0, super::exp, f64::exp) < 2.0e-7);
            assert!(worst(-10.0..10.0, 1e-30, super::tanh, f64::tanh) < 3.0e-7);
            assert!(worst(-5.0..5.0, 1e-30, super::erf, libm::erf) < 1.0e-7);
        }

        #[test]
        fn special_values_are_kept() {
            for f in [super::exp, super::tanh, super::erf] {
                assert!(f(f32::NAN).is_nan());
            }
            assert_eq!(super::exp(f32::INFINITY), f32::INFINITY);
            assert_eq!(super::exp(f32::NEG_INFINITY), 0.0);
            assert_eq!(super::tanh(f32::NEG_INFINITY), -1.0);
            assert_eq!([f32::NEG_INFINITY, -6.0, 4.0, f32::INFINITY].map(super::erf), [-1.0, -1.0, 1.0, 1.0]);
        }
    }
}
