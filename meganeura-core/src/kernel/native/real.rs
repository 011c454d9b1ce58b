//! The float types that kernels of the native executor are written for.

use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub};

use pulp::Simd;

use super::element::Element;
use super::finish::Finish;
use super::gemm::Product;
use super::{erfinv, fast, gelu};
use crate::DType;
use crate::host::HostBuffer;

/// `docs name: the function of f32, that of f64`. Those under `fused` are branch-free in single precision. They take
/// the SIMD that they are compiled for, because only some processors round `a·b + c` once.
macro_rules! functions {
    (
        plain { $($(#[$doc:meta])* $name:ident: $single:path, $double:path;)+ }
        fused { $($(#[$fused_doc:meta])* $fused:ident: $module:ident::$of_f32:ident, $of_f64:path;)+ }
    ) => {
        /// The functions of one number that rows of the elementwise table are written with.
        pub trait Functions: Sized {
            $($(#[$doc])* fn $name(self) -> Self;)+
            $($(#[$fused_doc])* fn $fused<S: Simd>(self) -> Self;)+
        }

        impl Functions for f32 {
            $(#[inline(always)] fn $name(self) -> Self { $single(self) })+
            $(#[inline(always)] fn $fused<S: Simd>(self) -> Self { $module::$of_f32::<S>(self) })+
        }

        impl Functions for f64 {
            $(#[inline(always)] fn $name(self) -> Self { $double(self) })+
            $(#[inline(always)] fn $fused<S: Simd>(self) -> Self { $of_f64(self) })+
        }
    };
}

functions! {
    plain {
        /// `|x|`
        abs: f32::abs, f64::abs;
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
        /// The inverse of the error function.
        erfinv: erfinv::single, erfinv::double;
    }
    fused {
        /// `eˣ`
        exp: fast::exp, f64::exp;
        /// `eˣ` up to 88, and 0 where it is hardly a normal number: for differences from a peak.
        decay: fast::decay, f64::exp;
        /// `tanh x`
        tanh: fast::tanh, f64::tanh;
        /// The error function.
        erf: fast::erf, libm::erf;
        /// `x·Φ(x)`, where Φ is the normal distribution.
        gelu: gelu::single, gelu::double;
        /// The derivative of `x·Φ(x)`.
        gelu_slope: gelu::slope, gelu::slope_of_double;
    }
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
    ($T:ident, $variant:ident, product: $product:path, singles: $singles:path, from_i32: $from_i32:path) => {
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
            fn from_i32(x: i32) -> Self {
                $from_i32(x)
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

real!(f32, F32, product: gemm_f32::gemm::f32::get_gemm_fn, singles: Some, from_i32: nearest);
real!(f64, F64, product: gemm_f64::gemm::f64::get_gemm_fn, singles: none, from_i32: f64::from);

#[inline(always)]
#[expect(clippy::cast_precision_loss, reason = "rounding is this function's purpose")]
fn nearest(x: i32) -> f32 {
    x as f32
}

/// Numbers in double precision are not in single precision.
fn none<A, B>(_: A) -> Option<B> {
    None
}
