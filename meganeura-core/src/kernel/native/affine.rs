//! The work that follows most convolutions, `bound((x − m)·f + s + r)`, in one pass: a normalisation by running
//! statistics or a bias, a residual, bounds. `m`, `f` and `s` are numbers of each channel, and all but one of these
//! parts may be missing. Quantised numbers are rounded before `s` is added, their zero point. An activation of other
//! form follows in a pass of its own, while the numbers are in the L1 cache.

use pulp::{Simd, WithSimd};

use super::activation::{clamped, splat};
use super::{Activation, Real, Run, Shared};

/// The channels of numbers that are all the same.
pub(crate) const NONE: [usize; 2] = [1, usize::MAX];

/// A number for each element.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Number<'a, T> {
    One(T),
    /// That of each channel, so far apart.
    Channels(&'a [T], usize),
}

impl<T: Copy> Number<'_, T> {
    #[inline(always)]
    fn of(&self, channel: usize) -> T {
        match *self {
            Self::One(value) => value,
            Self::Channels(data, step) => data[channel * step],
        }
    }
}

impl<T: Real> Number<'_, T> {
    /// The numbers of adjacent columns in single precision, and their distance: 0 if there is one for all.
    fn of_columns(&self) -> Option<(&[f32], usize)> {
        match self {
            Self::One(value) => Some((T::singles(std::slice::from_ref(value))?, 0)),
            Self::Channels(data, 1) => Some((T::singles(data)?, 1)),
            Self::Channels(..) => None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Bound<T> {
    None,
    Relu,
    Clamp(T, T),
}

/// Elementwise work of this form.
#[derive(Clone, Copy, Debug)]
pub struct Affine<'a, T> {
    /// `m`, `f` and `s`.
    pub(crate) numbers: [Number<'a, T>; 3],
    pub(crate) is_rounded: bool,
    /// As many numbers as the result has.
    pub(crate) residual: Option<&'a [T]>,
    pub(crate) bound: Bound<T>,
    pub(crate) activation: Option<Activation<T>>,
    /// Channels, and the adjacent elements of each. With one element, they are the columns of a matrix.
    pub(crate) channels: [usize; 2],
    arch: pulp::Arch,
}

impl<T: Real> Affine<'_, T> {
    /// The form with none of its parts.
    pub(crate) fn nothing() -> Self {
        // x − 0, x·1 and x + −0 are x, bit by bit.
        let numbers = [0.0, 1.0, -0.0].map(|none| Number::One(T::from_f64(none)));
        let arch = pulp::Arch::new();
        let (residual, bound, activation) = (None, Bound::None, None);
        Self { numbers, is_rounded: false, residual, bound, activation, channels: NONE, arch }
    }

    /// Computes neighbouring elements, from number `first` on: from `x` into `y`, or all in `y`.
    pub(crate) fn run(&self, first: usize, x: Option<&[T]>, y: &mut [T]) {
        self.arch.dispatch(Pass { affine: self, first, x, y });
    }

    /// Finishes the values of some runs into the result: see [`Finish::store`](super::Finish::store).
    ///
    /// # Safety
    ///
    /// No other thread reads or writes any of these elements.
    pub(crate) unsafe fn store(&self, values: &[T], runs: &mut dyn Iterator<Item = Run>, y: &Shared<'_, T>) {
        self.arch.dispatch(Store { affine: self, values, runs, y });
    }

    /// Likewise from `x` into `y`, or all in `y`.
    #[inline(always)]
    fn run_here<S: Simd>(&self, simd: S, first: usize, x: Option<&[T]>, y: &mut [T]) {
        let [_, inner] = self.channels;
        self.run_from(simd, first, [first / inner, first % inner], x, y);
    }

    /// Likewise; `first` lies at this place of this channel, which is counted over all images.
    #[inline(always)]
    fn run_from<S: Simd>(&self, simd: S, first: usize, place: [usize; 2], x: Option<&[T]>, y: &mut [T]) {
        self.run_form(simd, first, place, x, y);
        if let Some(activation) = &self.activation {
            activation.run(simd, y);
        }
    }

    /// The work without its activation.
    #[inline(always)]
    fn run_form<S: Simd>(&self, simd: S, first: usize, [channel, inside]: [usize; 2], x: Option<&[T]>, y: &mut [T]) {
        let [count, inner] = self.channels;
        if inner == 1 && self.run_columns(simd, first, x, y) {
            return;
        }
        let (mut begin, mut channel, mut inside) = (0, channel % count, inside);
        while begin < y.len() {
            let at = first + begin;
            let end = begin.saturating_add(inner - inside).min(y.len());
            let numbers = self.numbers.each_ref().map(|number| number.of(channel));
            let residual = self.residual.map(|residual| &residual[at..][..end - begin]);
            let is_rounded = self.is_rounded;
            let mut stretch =
                Stretch { numbers, is_rounded, residual, x: x.map(|x| &x[begin..end]), y: &mut y[begin..end] };
            if !stretch.run_vectors(simd, self.bound) {
                match self.bound {
                    Bound::None => stretch.run(|x| x),
                    Bound::Relu => stretch.run(|x| if x <= T::ZERO { T::ZERO } else { x }),
                    Bound::Clamp(low, high) => stretch.run(|x| {
                        if x < low {
                            low
                        } else if x > high {
                            high
                        } else {
                            x
                        }
                    }),
                }
            }
            (begin, inside) = (end, 0);
            channel = if channel + 1 == count { 0 } else { channel + 1 };
        }
    }
}

impl<T: Real> Affine<'_, T> {
    /// The form for elements of a matrix whose columns have numbers of their own, in vectors. `false` if they are not
    /// adjacent, or in double precision.
    #[inline(always)]
    fn run_columns<S: Simd>(&self, simd: S, first: usize, x: Option<&[T]>, y: &mut [T]) -> bool {
        let Some(numbers) = self.columns() else { return false };
        let (x, r) = (x.and_then(T::singles), self.residual.and_then(T::singles));
        let Some(y) = T::singles_mut(y) else { return false };
        let columns = self.channels[0];
        let mut vectors = Vectors::new(simd, [T::ZERO; 3], self.is_rounded, self.bound);
        let (mut at, mut column) = (0, first % columns);
        while at < y.len() {
            let count = S::F32_LANES.min(columns - column).min(y.len() - at);
            for (to, &(data, step)) in vectors.numbers.iter_mut().zip(&numbers) {
                *to = if step == 0 { simd.splat_f32s(data[0]) } else { load(simd, &data[column..][..count]) };
            }
            let y = &mut y[at..][..count];
            let x = load(simd, if let Some(x) = x { &x[at..][..count] } else { y });
            let found = match r {
                Some(r) => vectors.finished(x, Some(load(simd, &r[first + at..][..count]))),
                None => vectors.finished(x, None),
            };
            match S::as_mut_simd_f32s(y).0 {
                [y] => *y = found,
                _ => simd.partial_store_f32s(y, found),
            }
            at += count;
            column = if column + count == columns { 0 } else { column + count };
        }
        true
    }

    /// The numbers of all columns, if they are adjacent, and the distance of neighbouring ones.
    pub(super) fn columns(&self) -> Option<[(&[f32], usize); 3]> {
        let [m, f, s] = &self.numbers;
        Some([m.of_columns()?, f.of_columns()?, s.of_columns()?])
    }
}

/// At most a vector.
#[inline(always)]
fn load<S: Simd>(simd: S, x: &[f32]) -> S::f32s {
    match S::as_simd_f32s(x).0 {
        &[x] => x,
        _ => simd.partial_load_f32s(x),
    }
}

/// Elements with the same numbers.
struct Stretch<'a, T> {
    numbers: [T; 3],
    is_rounded: bool,
    residual: Option<&'a [T]>,
    x: Option<&'a [T]>,
    y: &'a mut [T],
}

impl<T: Real> Stretch<'_, T> {
    #[inline(always)]
    fn run(self, bound: impl Fn(T) -> T) {
        let [m, f, s] = self.numbers;
        let affine = |x: T| {
            let x = (x - m) * f;
            (if self.is_rounded { x.round() } else { x }) + s
        };
        match (self.x, self.residual) {
            (Some(x), Some(r)) => {
                self.y.iter_mut().zip(x).zip(r).for_each(|((y, &x), &r)| *y = bound(affine(x) + r));
            }
            (Some(x), None) => self.y.iter_mut().zip(x).for_each(|(y, &x)| *y = bound(affine(x))),
            (None, Some(r)) => self.y.iter_mut().zip(r).for_each(|(y, &r)| *y = bound(affine(*y) + r)),
            (None, None) => self.y.iter_mut().for_each(|y| *y = bound(affine(*y))),
        }
    }
}

impl<T: Real> Stretch<'_, T> {
    /// The same in single precision, in explicit vectors: rows of images are often shorter than the loops that the
    /// compiler makes SIMD. `false` in double precision.
    #[inline(always)]
    fn run_vectors<S: Simd>(&mut self, simd: S, bound: Bound<T>) -> bool {
        let Some(y) = T::singles_mut(self.y) else { return false };
        let vectors = Vectors::new(simd, self.numbers, self.is_rounded, bound);
        let (x, r) = (self.x.and_then(T::singles), self.residual.and_then(T::singles));
        match (x, r) {
            (Some(x), Some(r)) => vectors.run::<true, true>(x, r, y),
            (Some(x), None) => vectors.run::<true, false>(x, &[], y),
            (None, Some(r)) => vectors.run::<false, true>(&[], r, y),
            (None, None) => vectors.run::<false, false>(&[], &[], y),
        }
        true
    }
}

/// The form on vectors. There are no closures here: those that are not inlined lack the instructions of their caller.
struct Vectors<S: Simd> {
    simd: S,
    numbers: [S::f32s; 3],
    is_rounded: bool,
    bound: Bound<S::f32s>,
}

impl<S: Simd> Vectors<S> {
    #[inline(always)]
    fn new<T: Real>(simd: S, [m, f, s]: [T; 3], is_rounded: bool, bound: Bound<T>) -> Self {
        let numbers = [splat(simd, m), splat(simd, f), splat(simd, s)];
        let bound = match bound {
            Bound::None => Bound::None,
            Bound::Relu => Bound::Relu,
            Bound::Clamp(low, high) => Bound::Clamp(splat(simd, low), splat(simd, high)),
        };
        Self { simd, numbers, is_rounded, bound }
    }

    /// From `x` with `X`, or else in place; with residuals `r` with `R`.
    #[inline(always)]
    fn run<const X: bool, const R: bool>(&self, x: &[f32], r: &[f32], y: &mut [f32]) {
        let simd = self.simd;
        let whole = y.len() / S::F32_LANES * S::F32_LANES;
        let x_vectors = if X { S::as_simd_f32s(&x[..whole]).0 } else { &[] };
        let r_vectors = if R { S::as_simd_f32s(&r[..whole]).0 } else { &[] };
        let (vectors, rest) = S::as_mut_simd_f32s(y);
        for (k, y) in vectors.iter_mut().enumerate() {
            let x = if X { x_vectors[k] } else { *y };
            *y = self.finished(x, if R { Some(r_vectors[k]) } else { None });
        }
        if !rest.is_empty() {
            let x = simd.partial_load_f32s(if X { &x[whole..] } else { rest });
            let r = if R { Some(simd.partial_load_f32s(&r[whole..])) } else { None };
            simd.partial_store_f32s(rest, self.finished(x, r));
        }
    }

    #[inline(always)]
    fn finished(&self, x: S::f32s, residual: Option<S::f32s>) -> S::f32s {
        let (simd, [m, f, s]) = (self.simd, self.numbers);
        let x = simd.mul_f32s(simd.sub_f32s(x, m), f);
        let x = simd.add_f32s(if self.is_rounded { rounded(simd, x) } else { x }, s);
        let x = match residual {
            Some(r) => simd.add_f32s(x, r),
            None => x,
        };
        match self.bound {
            Bound::None => x,
            Bound::Relu => {
                let zero = simd.splat_f32s(0.0);
                simd.select_f32s(simd.less_than_or_equal_f32s(x, zero), zero, x)
            }
            Bound::Clamp(low, high) => clamped(simd, x, [low, high]),
        }
    }
}

/// The nearest whole numbers, on a tie the even ones, with the signs of `x`.
#[inline(always)]
fn rounded<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    // 2²³: adding it leaves the nearest integer in the low bits. Numbers from there on are whole.
    let shift = simd.splat_f32s(8_388_608.0);
    let (magnitude, sign) = (simd.abs_f32s(x), simd.and_f32s(x, simd.splat_f32s(-0.0)));
    let nearest = simd.sub_f32s(simd.add_f32s(magnitude, shift), shift);
    simd.select_f32s(simd.less_than_f32s(magnitude, shift), simd.or_f32s(nearest, sign), x)
}

/// A store in the form that `pulp` needs.
struct Store<'a, T> {
    affine: &'a Affine<'a, T>,
    values: &'a [T],
    runs: &'a mut dyn Iterator<Item = Run>,
    y: &'a Shared<'a, T>,
}

impl<T: Real> WithSimd for Store<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { affine, values, runs, y } = self;
        let [_, inner] = affine.channels;
        // Most runs begin in the channel of the one before or in the next: a division takes as long as many elements.
        let (mut channel, mut begin) = (0, 0);
        for Run { first, at, len } in runs {
            let inside = first.wrapping_sub(begin);
            if inside >= inner {
                let is_next = inside - inner < inner;
                channel = if is_next { channel + 1 } else { first / inner };
                begin = channel * inner;
            }
            // SAFETY: the caller's promise.
            let y = unsafe { y.part(first, len) };
            affine.run_from(simd, first, [channel, first - begin], Some(&values[at..][..len]), y);
        }
    }
}

/// A pass in the form that `pulp` needs.
struct Pass<'a, 'b, T> {
    affine: &'b Affine<'a, T>,
    first: usize,
    x: Option<&'b [T]>,
    y: &'b mut [T],
}

impl<T: Real> WithSimd for Pass<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        self.affine.run_here(simd, self.first, self.x, self.y);
    }
}
