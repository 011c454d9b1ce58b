//! Activations in one pass of vectors, over results that are in the L1 cache or were in registers a moment ago. They
//! have the bits of the operations that they replace, one by one.

use pulp::{Simd, WithSimd};

use super::Real;
use super::windows::WIDEST;

/// `1/(1 + e⁻ˣ)`
#[inline(always)]
pub(crate) fn sigmoid<T: Real, S: Simd>(x: T) -> T {
    T::ONE / (T::ONE + (-x).exp::<S>())
}

/// `x/(1 + e⁻ˣ)`
#[inline(always)]
pub(crate) fn silu<T: Real, S: Simd>(x: T) -> T {
    x / (T::ONE + (-x).exp::<S>())
}

/// `√(2/π)`
pub(crate) const SQRT_2_OVER_PI: f64 = 0.797_884_560_802_865_4;

/// `x/2·(1 + tanh(√(2/π)(x + 0.044715 x³)))`
#[inline(always)]
pub(crate) fn gelu_tanh<T: Real, S: Simd>(x: T) -> T {
    let u = T::from_f64(SQRT_2_OVER_PI) * (x + T::from_f64(0.044_715) * x * x * x);
    x * T::from_f64(0.5) * (T::ONE + u.tanh::<S>())
}

/// A function of one number.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Activation<T> {
    HardSwish(HardSwish<T>),
    /// The slope below 0.
    LeakyRelu(T),
    Sigmoid,
    Silu,
    /// SiLU as a product, `x·σ(x)`.
    Gated,
    Gelu,
    GeluTanh,
    Tanh,
}

/// `x·clamp(x·factor + shift, low, high)`, multiplied or divided by `scale`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HardSwish<T> {
    pub(crate) factor: T,
    pub(crate) shift: T,
    pub(crate) low: T,
    pub(crate) high: T,
    pub(crate) scale: T,
    pub(crate) divides: bool,
}

impl<T: Real> Activation<T> {
    /// Replaces numbers in a function of its own, since some callers are compiled many times.
    #[inline(always)]
    pub(super) fn run<S: Simd>(&self, simd: S, y: &mut [T]) {
        simd.vectorize(Pass { activation: self, y });
    }
}

/// A pass in the form that `pulp` needs.
struct Pass<'a, T> {
    activation: &'a Activation<T>,
    y: &'a mut [T],
}

/// Replaces all numbers. Lines are often short: what is left behind their groups is computed in as many numbers. A
/// closure instead of the expression might not be inlined.
macro_rules! replace {
    ($y:ident, $x:ident => $function:expr) => {{
        let (groups, last) = $y.as_chunks_mut::<WIDEST>();
        for group in groups {
            for x in group {
                let $x = *x;
                *x = $function;
            }
        }
        if !last.is_empty() {
            let mut group = [T::ZERO; WIDEST];
            group[..last.len()].copy_from_slice(last);
            for x in &mut group {
                let $x = *x;
                *x = $function;
            }
            last.copy_from_slice(&group[..last.len()]);
        }
    }};
}

impl<T: Real> WithSimd for Pass<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let y = self.y;
        match *self.activation {
            Activation::HardSwish(form) => form.run(simd, y),
            Activation::LeakyRelu(slope) => Leaky(slope).run(simd, y),
            Activation::Sigmoid => replace!(y, x => sigmoid::<T, S>(x)),
            Activation::Silu => replace!(y, x => silu::<T, S>(x)),
            Activation::Gated => replace!(y, x => x * sigmoid::<T, S>(x)),
            Activation::Gelu => replace!(y, x => x.gelu::<S>()),
            Activation::GeluTanh => replace!(y, x => gelu_tanh::<T, S>(x)),
            Activation::Tanh => replace!(y, x => x.tanh::<S>()),
        }
    }
}

/// Arithmetic, in explicit vectors: the compiler does not make loops over groups with so many choices SIMD.
trait Arithmetic<T: Real> {
    fn of(&self, x: T) -> T;
    fn of_vector<S: Simd>(&self, simd: S, x: S::f32s) -> S::f32s;

    #[inline(always)]
    fn run<S: Simd>(&self, simd: S, y: &mut [T]) {
        let Some(y) = T::singles_mut(y) else {
            return y.iter_mut().for_each(|x| *x = self.of(*x));
        };
        let (vectors, last) = S::as_mut_simd_f32s(y);
        for x in vectors {
            *x = self.of_vector(simd, *x);
        }
        if !last.is_empty() {
            let x = simd.partial_load_f32s(last);
            simd.partial_store_f32s(last, self.of_vector(simd, x));
        }
    }
}

/// The slope below 0.
struct Leaky<T>(T);

impl<T: Real> Arithmetic<T> for Leaky<T> {
    #[inline(always)]
    fn of(&self, x: T) -> T {
        if x <= T::ZERO { self.0 * x } else { x }
    }

    #[inline(always)]
    fn of_vector<S: Simd>(&self, simd: S, x: S::f32s) -> S::f32s {
        let below = simd.mul_f32s(splat(simd, self.0), x);
        simd.select_f32s(simd.less_than_or_equal_f32s(x, simd.splat_f32s(0.0)), below, x)
    }
}

impl<T: Real> Arithmetic<T> for HardSwish<T> {
    #[inline(always)]
    fn of(&self, x: T) -> T {
        let Self { factor, shift, low, high, scale, divides } = *self;
        let gate = x * factor + shift;
        let y = x * if gate < low {
            low
        } else if gate > high {
            high
        } else {
            gate
        };
        if divides { y / scale } else { y * scale }
    }

    #[inline(always)]
    fn of_vector<S: Simd>(&self, simd: S, x: S::f32s) -> S::f32s {
        let Self { factor, shift, low, high, scale, divides } = *self;
        let gate = simd.add_f32s(simd.mul_f32s(x, splat(simd, factor)), splat(simd, shift));
        let y = simd.mul_f32s(x, clamped(simd, gate, [splat(simd, low), splat(simd, high)]));
        let scale = splat(simd, scale);
        if divides { simd.div_f32s(y, scale) } else { simd.mul_f32s(y, scale) }
    }
}

/// `x` clamped between two numbers; NaN stays.
#[inline(always)]
pub(super) fn clamped<S: Simd>(simd: S, x: S::f32s, [low, high]: [S::f32s; 2]) -> S::f32s {
    let below = simd.select_f32s(simd.greater_than_f32s(x, high), high, x);
    simd.select_f32s(simd.less_than_f32s(x, low), low, below)
}

/// A number as it is in single precision.
#[inline(always)]
pub(super) fn splat<T: Real, S: Simd>(simd: S, x: T) -> S::f32s {
    simd.splat_f32s(T::singles(&[x]).map_or(0.0, |x| x[0]))
}

#[cfg(test)]
mod tests {
    use pulp::Scalar;

    use super::*;

    fn all<T: Real>() -> [Activation<T>; 9] {
        let [factor, shift, low, high, scale] = [1.0 / 6.0, 0.5, 0.0, 1.0, 3.0].map(T::from_f64);
        let form = HardSwish { factor, shift, low, high, scale, divides: false };
        [
            Activation::HardSwish(form),
            Activation::HardSwish(HardSwish { divides: true, ..form }),
            Activation::LeakyRelu(T::from_f64(0.1)),
            Activation::Sigmoid,
            Activation::Silu,
            Activation::Gated,
            Activation::Gelu,
            Activation::GeluTanh,
            Activation::Tanh,
        ]
    }

    struct Run<'a>(Activation<f32>, &'a mut [f32]);

    impl WithSimd for Run<'_> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            self.0.run(simd, self.1);
        }
    }

    /// Runs one with the vectors of each kind that the processor has.
    fn with_each(activation: Activation<f32>, x: &[f32]) -> Vec<Vec<f32>> {
        let mut results = vec![x.to_vec(), x.to_vec()];
        Run(activation, &mut results[0]).with_simd(Scalar);
        pulp::Arch::new().dispatch(Run(activation, &mut results[1]));
        #[cfg(target_arch = "x86_64")]
        if let Some(simd) = pulp::x86::V3::try_new() {
            results.push(x.to_vec());
            Run(activation, results.last_mut().expect("it was pushed")).with_simd(simd);
        }
        results
    }

    #[test]
    fn lines_of_all_lengths_are_those_of_f64() {
        for (single, double) in all::<f32>().into_iter().zip(all::<f64>()) {
            for len in [0, 1, 5, 8, 15, 16, 17, 31, 49, 100] {
                let x: Vec<_> = (0..len).map(|i| (i * 7919 % 1013) as f32 / 90.0 - 5.5).collect();
                let mut wanted: Vec<_> = x.iter().copied().map(f64::from).collect();
                double.run(Scalar, &mut wanted);
                for found in with_each(single, &x) {
                    for ((found, wanted), x) in found.iter().zip(&wanted).zip(&x) {
                        // A few units in the last place, of a product with a gate that may be nearly 0.
                        let most = 4e-7 * wanted.abs().max(f64::from(x.abs())).max(0.3);
                        assert!((f64::from(*found) - wanted).abs() <= most, "{single:?} of {x}");
                    }
                }
            }
        }
    }

    #[test]
    fn nan_stays_and_infinities_have_limits() {
        let x = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0];
        for activation in all::<f32>() {
            for y in with_each(activation, &x) {
                assert!(y[0].is_nan(), "{activation:?}");
                let at_infinity = if matches!(activation, Activation::Sigmoid | Activation::Tanh) { 1.0 } else { x[1] };
                assert_eq!(y[1], at_infinity, "{activation:?}");
            }
        }
    }
}
