//! Methods of [`Var`] that are more than a row of the table: operands that are numbers, and the operators of Rust.

use crate::ErrorKind;
use crate::ops::Pointwise;
use crate::tape::Var;

impl Var {
    /// `x` above 0, `slope·x` below.
    #[must_use]
    #[track_caller]
    pub fn leaky_relu(&self, slope: f64) -> Self {
        self.record_broadcast(Pointwise::LeakyRelu, &[self, &self.scalar(slope)])
    }

    /// `x` above 0, `alpha·(eˣ − 1)` below. [Clevert et al., 2015](https://arxiv.org/abs/1511.07289).
    #[must_use]
    #[track_caller]
    pub fn elu(&self, alpha: f64) -> Self {
        self.record_broadcast(Pointwise::Elu, &[self, &self.scalar(alpha)])
    }

    /// Clamps each number between `lo` and `hi`, either of which may be infinite. The derivative on a bound is 0. It is
    /// an error if `lo` is above `hi`, or if one of them is NaN.
    #[must_use]
    #[track_caller]
    pub fn clamp(&self, lo: f64, hi: f64) -> Self {
        if lo.is_nan() || hi.is_nan() || lo > hi {
            return self.refuse("clamp", ErrorKind::Argument, format!("no number is between {lo} and {hi}"));
        }
        self.record_broadcast(Pointwise::Clamp, &[self, &self.scalar(lo), &self.scalar(hi)])
    }

    /// The larger of each number and `lo`. The derivative on the bound is 0. It is an error if `lo` is NaN.
    #[must_use]
    #[track_caller]
    pub fn clamp_min(&self, lo: f64) -> Self {
        self.clamp(lo, f64::INFINITY)
    }

    /// The smaller of each number and `hi`. The derivative on the bound is 0. It is an error if `hi` is NaN.
    #[must_use]
    #[track_caller]
    pub fn clamp_max(&self, hi: f64) -> Self {
        self.clamp(f64::NEG_INFINITY, hi)
    }

    /// `x` to the power of a number.
    #[must_use]
    #[track_caller]
    pub fn powf(&self, exponent: f64) -> Self {
        self.pow(&self.scalar(exponent))
    }

    /// `factor·x` for a factor that is part of the program. For a number that changes from step to step, use
    /// `x * factor`.
    #[must_use]
    #[track_caller]
    #[doc(hidden)]
    pub fn scale(&self, factor: f64) -> Self {
        self * self.constant(factor)
    }
}

mod sealed {
    pub trait Sealed {}
}

/// The second operand of a method of [`Var`], such as [`gt`](Var::gt) or [`maximum`](Var::maximum): a value, or a
/// number, which may change from step to step without a new plan.
pub trait Operand: sealed::Sealed {
    /// The operand on the tape of `x`.
    #[doc(hidden)]
    #[track_caller]
    fn beside(&self, x: &Var) -> Var;
}

macro_rules! operands {
    ($($T:ty, $this:ident, $x:ident => $var:expr;)+) => {
        $(
            impl sealed::Sealed for $T {}
            impl Operand for $T {
                #[track_caller]
                fn beside(&self, $x: &Var) -> Var {
                    let $this = self;
                    $var
                }
            }
        )+
    };
}

operands! {
    Var, this, _x => this.clone();
    &Var, this, _x => (*this).clone();
    &&Var, this, _x => (**this).clone();
    f64, this, x => x.scalar(*this);
    f32, this, x => x.scalar(f64::from(*this));
    i32, this, x => x.scalar(f64::from(*this));
}

macro_rules! operators {
    ($($Trait:ident $method:ident $name:ident, $Assign:ident $assign:ident;)+) => {
        $(
            operators! { @right $Trait $method $name, $Assign $assign: Var, &Var, f64, i32 }
            operators! { @left $Trait $method $name: f64, i32 }
        )+
    };
    (@right $Trait:ident $method:ident $name:ident, $Assign:ident $assign:ident: $($Right:ty),+) => {
        $(
            impl std::ops::$Trait<$Right> for &Var {
                type Output = Var;
                #[track_caller]
                fn $method(self, other: $Right) -> Var {
                    self.record_broadcast(Pointwise::$name, &[self, &other.beside(self)])
                }
            }
            impl std::ops::$Trait<$Right> for Var {
                type Output = Var;
                #[track_caller]
                fn $method(self, other: $Right) -> Var {
                    self.record_broadcast(Pointwise::$name, &[&self, &other.beside(&self)])
                }
            }
            impl std::ops::$Assign<$Right> for Var {
                #[track_caller]
                fn $assign(&mut self, other: $Right) {
                    *self = self.record_broadcast(Pointwise::$name, &[self, &other.beside(self)]);
                }
            }
        )+
    };
    (@left $Trait:ident $method:ident $name:ident: $($Number:ty),+) => {
        $(
            impl std::ops::$Trait<&Var> for $Number {
                type Output = Var;
                #[track_caller]
                fn $method(self, other: &Var) -> Var {
                    other.record_broadcast(Pointwise::$name, &[&self.beside(other), other])
                }
            }
            impl std::ops::$Trait<Var> for $Number {
                type Output = Var;
                #[track_caller]
                fn $method(self, other: Var) -> Var {
                    other.record_broadcast(Pointwise::$name, &[&self.beside(&other), &other])
                }
            }
        )+
    };
}

operators! {
    Add add Add, AddAssign add_assign;
    Sub sub Sub, SubAssign sub_assign;
    Mul mul Mul, MulAssign mul_assign;
    Div div Div, DivAssign div_assign;
}

/// The sum of values of broadcastable shapes, such as the losses of several heads.
///
/// # Panics
///
/// Panics if there are no values: then there is no tape to record on.
impl std::iter::Sum for Var {
    #[track_caller]
    fn sum<I: Iterator<Item = Self>>(values: I) -> Self {
        values.reduce(|sum, value| sum + value).expect("a sum of `Var`s needs at least one value")
    }
}

impl std::ops::Neg for &Var {
    type Output = Var;
    #[track_caller]
    fn neg(self) -> Var {
        self.record(Pointwise::Neg, &[self])
    }
}

impl std::ops::Neg for Var {
    type Output = Var;
    #[track_caller]
    fn neg(self) -> Var {
        -&self
    }
}
