//! Norms, variances and standard deviations. The squares of norms and standard deviations neither overflow nor vanish,
//! and at 0 their gradients are 0.
//!
//! A sum of squares overflows `f32` where the numbers are above 1e19, and is 0 where they are below 1e-23. So the
//! numbers are multiplied by a power of two first, which depends on the largest of them: it is 1 for ordinary numbers,
//! whose norms have the same bits as without it.

use std::panic::Location;

use super::axis::{Axis, axes};
use crate::ops::as_f64;
use crate::{DType, Error, ErrorKind, Result, Var};

/// A power of two by which numbers are multiplied before they are squared, and its inverse, by which the root of the
/// sum is multiplied.
pub(crate) struct Scale {
    pub(crate) down: Var,
    pub(crate) up: Var,
}

impl Scale {
    /// The scale for numbers whose largest magnitude is `peak`; an upper bound of a few times the largest will do. NaN
    /// and infinities stay what they are.
    ///
    /// The scaled peak is at least 1 where it was large, so that no step of a gradient leaves the range unless the
    /// gradient does.
    #[track_caller]
    pub(crate) fn of(peak: &Var) -> Self {
        // Exponents: numbers from the first on are multiplied by its inverse, those below the last threshold by the
        // last factor. Elements up to 2³⁹ or 2³²⁴ remain, whose squares can be added up.
        let ([huge, large], (small, raise)) = match peak.ty().dtype {
            DType::F64 => ([700, 400], (-400, 600)),
            _ => ([89, 50], (-40, 80)),
        };
        let power = Powers(peak);
        let (is_huge, is_large, is_small) = (power.at_least(huge), power.at_least(large), peak.lt(power.of(small)));
        let (down, up) =
            (is_small.where_cond(&power.of(raise), &power.of(0)), is_small.where_cond(&power.of(-raise), &power.of(0)));
        let (down, up) = (is_large.where_cond(&power.of(-large), &down), is_large.where_cond(&power.of(large), &up));
        Self { down: is_huge.where_cond(&power.of(-huge), &down), up: is_huge.where_cond(&power.of(huge), &up) }
    }
}

/// Powers of two beside a value.
struct Powers<'a>(&'a Var);

impl Powers<'_> {
    #[track_caller]
    fn of(&self, exponent: i32) -> Var {
        self.0.constant(2f64.powi(exponent))
    }

    /// 1 where the value is at least this power.
    #[track_caller]
    fn at_least(&self, exponent: i32) -> Var {
        self.0.ge(self.of(exponent))
    }
}

impl Var {
    /// The Euclidean norm of all elements, `√Σ x²`: a scalar. Where it is 0, so is its gradient. No square overflows.
    #[must_use]
    #[track_caller]
    pub fn norm(&self) -> Self {
        self.norm_over(&self.all_axes(), 2.0)
    }

    /// The `p`-norm over some axes, which are removed: `(Σ |x|ᵖ)^(1/p)`, the largest `|x|` for `p = ∞`, the number of
    /// elements other than 0 for `p = 0`. Where the norm is 0, so is its gradient. No power overflows: the norm of
    /// numbers of any size is finite unless it is itself too large.
    ///
    /// Errors: a `p` below 0, or NaN.
    #[doc(alias = "vector_norm")]
    #[must_use]
    #[track_caller]
    pub fn norm_over(&self, axes: &[impl Axis], p: f64) -> Self {
        let axes = &axes!(self, "norm", axes)[..];
        match p {
            2.0 => self.root_of_squares(axes, 1.0).drop_axes(axes),
            1.0 => self.abs().sum_over(axes),
            0.0 => self.ne(self.constant(0.0)).sum_over(axes),
            f64::INFINITY => self.abs().max_over(axes),
            p if p > 0.0 => self.root_of_powers(axes, p).drop_axes(axes),
            _ => self.refuse("norm", ErrorKind::Argument, format!("p must be at least 0, it is {p}")),
        }
    }

    /// `√(factor·Σ x²)` over some axes, which keep extent 1. Where it is 0, so is its gradient.
    #[track_caller]
    #[doc(hidden)]
    pub fn root_of_squares(&self, axes: &[usize], factor: f64) -> Self {
        let Scale { down, up } = Scale::of(&self.detach().abs().max_keep(axes));
        (self * down).square().sum_keep(axes).scale(factor).root_or_zero() * up
    }

    /// `√x`, where the derivative at 0 is 0 instead of infinite: for sums of squares, which are 0 only at their
    /// minimum.
    #[track_caller]
    pub(crate) fn root_or_zero(&self) -> Self {
        // The root of 1 is computed instead, and not used.
        let is_zero = self.eq(self.constant(0.0));
        is_zero.where_cond(&self.constant(0.0), &is_zero.where_cond(&self.constant(1.0), self).sqrt())
    }

    /// `1/√(x + eps)` of a variance; NaN where it is infinite, because 0 would hide that squares overflowed.
    #[track_caller]
    #[doc(hidden)]
    pub fn reciprocal_deviation(&self, eps: f64) -> Self {
        let is_finite = self.lt(self.constant(f64::INFINITY));
        is_finite.where_cond(&(self + self.constant(eps)).rsqrt(), &self.constant(f64::NAN))
    }

    /// `(Σ |x|ᵖ)^(1/p)` over some axes, which keep extent 1, for a finite `p` above 0.
    #[track_caller]
    fn root_of_powers(&self, axes: &[usize], p: f64) -> Self {
        let (least, most) = match self.ty().dtype {
            DType::F64 => (f64::MIN_POSITIVE, f64::MAX),
            _ => (f64::from(f32::MIN_POSITIVE), f64::from(f32::MAX)),
        };
        // No element of a quotient by the peak is above 1. Only an ordinary number divides: neither 0, nor infinity.
        // GPUs divide by numbers up to 2¹²⁶ only, hence the scale.
        let peak = self.detach().abs().max_keep(axes);
        let Scale { down, up } = Scale::of(&peak);
        let peak = peak * &down;
        let divides = peak.ge(peak.constant(least)) * peak.le(peak.constant(most));
        let peak = divides.where_cond(&peak, &peak.constant(1.0));
        let magnitude = (self * down).abs() / &peak;
        // Neither a power nor a root of 0 has a derivative: those of 1 are computed instead, and not used.
        let is_zero = magnitude.eq(self.constant(0.0));
        let power = is_zero.where_cond(&self.constant(1.0), &magnitude).powf(p);
        let sum = is_zero.where_cond(&self.constant(0.0), &power).sum_keep(axes);
        let is_zero = sum.eq(sum.constant(0.0));
        let root = is_zero.where_cond(&sum.constant(1.0), &sum).powf(p.recip());
        is_zero.where_cond(&sum.constant(0.0), &root) * peak * up
    }

    /// The variance of all elements. `correction` 1 gives the unbiased estimate, 0 that of the population.
    #[doc(alias = "var")]
    #[must_use]
    #[track_caller]
    pub fn variance(&self, correction: usize) -> Self {
        self.variance_over(&self.all_axes(), correction)
    }

    /// The variance over some axes, which are dropped from the result. Squares are centred, so a mean far from 0 costs
    /// no precision, and a single element has a population variance of exactly 0.
    #[must_use]
    #[track_caller]
    pub fn variance_over(&self, axes: &[impl Axis], correction: usize) -> Self {
        let axes = &axes!(self, "variance", axes)[..];
        self.variance_keep(axes, correction).drop_axes(axes)
    }

    /// The variance over some axes, which keep extent 1.
    #[must_use]
    #[track_caller]
    pub fn variance_keep(&self, axes: &[impl Axis], correction: usize) -> Self {
        let axes = &axes!(self, "variance", axes)[..];
        match self.centred(axes, correction) {
            Ok((centred, factor)) => centred.square().sum_keep(axes).scale(factor),
            Err(refused) => refused,
        }
    }

    /// The elements less their mean over some axes, and the factor that makes the sum of their squares the variance;
    /// or this value, poisoned, if there are too few elements.
    #[track_caller]
    pub(crate) fn centred(&self, axes: &[usize], correction: usize) -> Result<(Self, f64), Self> {
        let count = self.count(axes);
        if count <= correction {
            let message = format!("a correction of {correction} needs more than {correction} elements, not {count}");
            let error = Error::new(ErrorKind::Argument, message).in_op("variance").operand(self.ty(), self.path());
            return Err(self.fail(error.at(Location::caller())));
        }
        // A mean far above the spread is rounded by as much as that spread. So the rounded mean is subtracted first:
        // the differences are then exact, and so is their small mean. Subtracting a constant does not change the
        // variance, so the first mean is detached.
        let near = self - self.mean_keep(axes).detach();
        let centred = &near - near.mean_keep(axes);
        Ok((centred, 1.0 / as_f64(count - correction)))
    }

    /// The standard deviation of all elements, `√variance`: see [`variance`](Self::variance). Where all elements are
    /// equal, it is 0, and so is its gradient. No square overflows.
    #[must_use]
    #[track_caller]
    pub fn std(&self, correction: usize) -> Self {
        self.std_over(&self.all_axes(), correction)
    }

    /// The standard deviation over some axes, which are removed.
    #[must_use]
    #[track_caller]
    pub fn std_over(&self, axes: &[impl Axis], correction: usize) -> Self {
        let axes = &axes!(self, "std", axes)[..];
        match self.centred(axes, correction) {
            Ok((centred, factor)) => centred.root_of_squares(axes, factor).drop_axes(axes),
            Err(refused) => refused,
        }
    }
}
