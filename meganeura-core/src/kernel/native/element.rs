//! The element types that kernels which only move elements are written for, and the integers with arithmetic.

use std::fmt::Debug;

/// A number of any element type.
pub trait Element: bytemuck::Pod + Send + Sync + Debug + Default + PartialOrd + 'static {
    /// What stands where there is no element: NaN, or the integer farthest from the others.
    const NOTHING: Self;

    /// Rounds a 64-bit float. A float that is no integer of this type becomes the nearest one, NaN becomes 0.
    fn from_f64(x: f64) -> Self;

    /// `true` for NaN.
    #[inline]
    #[expect(clippy::eq_op, reason = "NaN is the number that differs from itself")]
    fn is_nan(self) -> bool {
        self != self
    }
}

macro_rules! element {
    ($($T:ident $nothing:ident;)+) => {
        $(impl Element for $T {
            const NOTHING: Self = $T::$nothing;

            #[inline(always)]
            #[expect(clippy::allow_attributes, reason = "some of the types need some of these")]
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "as documented")]
            fn from_f64(x: f64) -> Self {
                x as $T
            }
        })+
    };
}

element! {
    f32 NAN;
    f64 NAN;
    u32 MAX;
    i32 MIN;
    i64 MIN;
}

/// An integer with arithmetic, which wraps around.
pub trait Integer: Element + Ord {
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// All bits set: −1.
    const ONES: Self;

    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    /// The quotient, rounded towards 0; 0 if `other` is 0.
    fn quotient(self, other: Self) -> Self;
    /// What the quotient leaves, with the sign of `self`.
    fn remainder(self, other: Self) -> Self;
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
    /// Bits moved to the left; 0 if there are fewer bits than that, or for a negative number of bits.
    fn shifted_left(self, bits: Self) -> Self;
    /// Bits moved to the right, with copies of the sign; only these if there are fewer bits than that, or for a
    /// negative number of bits.
    fn shifted_right(self, bits: Self) -> Self;

    /// The quotient, rounded down; 0 if `other` is 0.
    fn floor_quotient(self, other: Self) -> Self {
        let (quotient, rest) = (self.quotient(other), self.remainder(other));
        let is_above = other != Self::ZERO && rest != Self::ZERO && (rest < Self::ZERO) != (other < Self::ZERO);
        if is_above { quotient.minus(Self::ONE) } else { quotient }
    }

    /// What the quotient that was rounded down leaves, with the sign of `other`; `self` if `other` is 0.
    fn modulo(self, other: Self) -> Self {
        let rest = self.remainder(other);
        let is_below = other != Self::ZERO && rest != Self::ZERO && (rest < Self::ZERO) != (other < Self::ZERO);
        if is_below { rest.plus(other) } else { rest }
    }

    /// The power; for an exponent below 0, the number rounded towards 0: 0 unless `self` is 1 or −1, and 0 for 0.
    fn power(self, exponent: Self) -> Self {
        let is_odd = exponent.and(Self::ONE) == Self::ONE;
        if exponent < Self::ZERO {
            return match self {
                one if one == Self::ONE => one,
                minus_one if minus_one == Self::ONES && !is_odd => Self::ONE,
                minus_one if minus_one == Self::ONES => minus_one,
                _ => Self::ZERO,
            };
        }
        let (mut power, mut factor, mut left) = (Self::ONE, self, exponent);
        while left != Self::ZERO {
            if left.and(Self::ONE) == Self::ONE {
                power = power.times(factor);
            }
            factor = factor.times(factor);
            left = left.shifted_right(Self::ONE);
        }
        power
    }
}

macro_rules! integer {
    ($($T:ident)+) => {
        $(impl Integer for $T {
            const ZERO: Self = 0;
            const ONE: Self = 1;
            const ONES: Self = -1;

            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn minus(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
            fn times(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            fn quotient(self, other: Self) -> Self {
                if other == 0 { 0 } else { self.wrapping_div(other) }
            }
            fn remainder(self, other: Self) -> Self {
                if other == 0 { self } else { self.wrapping_rem(other) }
            }
            fn and(self, other: Self) -> Self {
                self & other
            }
            fn or(self, other: Self) -> Self {
                self | other
            }
            fn xor(self, other: Self) -> Self {
                self ^ other
            }
            fn shifted_left(self, bits: Self) -> Self {
                u32::try_from(bits).ok().and_then(|bits| self.checked_shl(bits)).unwrap_or(0)
            }
            fn shifted_right(self, bits: Self) -> Self {
                let sign = if self < 0 { -1 } else { 0 };
                u32::try_from(bits).ok().and_then(|bits| self.checked_shr(bits)).unwrap_or(sign)
            }
        })+
    };
}

integer!(i32 i64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn division_rounds_towards_0_or_down_and_never_fails() {
        for (a, b, quotient, remainder, floor, modulo) in [
            (7, 3, 2, 1, 2, 1),
            (-7, 3, -2, -1, -3, 2),
            (7, -3, -2, 1, -3, -2),
            (-7, -3, 2, -1, 2, -1),
            (6, -3, -2, 0, -2, 0),
            (7, 0, 0, 7, 0, 7),
            (-7, 0, 0, -7, 0, -7),
            (i64::MIN, -1, i64::MIN, 0, i64::MIN, 0),
        ] {
            let found = (a.quotient(b), a.remainder(b), a.floor_quotient(b), a.modulo(b));
            assert_eq!(found, (quotient, remainder, floor, modulo), "{a} by {b}");
        }
    }

    #[test]
    fn powers_wrap_around_and_shifts_end_at_the_width() {
        assert_eq!((3i64.power(4), 2i32.power(31), 2i32.power(32), 0i64.power(0)), (81, i32::MIN, 0, 1));
        assert_eq!([1i64, -1, 2, 0].map(|x| x.power(-3)), [1, -1, 0, 0]);
        assert_eq!([-1i64.power(-2), (-1i64).power(-2)], [-1, 1]);
        assert_eq!((1i32.shifted_left(31), 1i32.shifted_left(32), 5i64.shifted_left(-1)), (i32::MIN, 0, 0));
        assert_eq!(((-5i32).shifted_right(1), (-5i32).shifted_right(99), 5i64.shifted_right(-1)), (-3, -1, 0));
    }
}
