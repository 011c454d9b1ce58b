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

macro_rules! operators {
    ($($Trait:ident $method:ident $name:ident;)+) => {
        $(
            impl std::ops::$Trait<&Var> for &Var {
                type Output = Var;
                #[track_caller]
                fn $method(self, other: &Var) -> Var {
                    self.record_broadcast(Pointwise::$name, &[self, other])
                }
            }
            impl std::ops::$Trait<Var> for &Var {
                type Output = Var;
                #[track_caller]
                fn $method(self, other: Var) -> Var {
                    self.record_broadcast(Pointwise::$name, &[self, &other])
                }
            }
            impl std::ops::$Trait<&Var> for Var {
                type Output = Var;
                #[track_caller]
                fn $method(self, other: &Var) -> Var {
                    self.record_broadcast(Pointwise::$name, &[&self, other])
                }
            }
            impl std::ops::$Trait<Var> for Var {
                type Output = Var;
                #[track_caller]
                fn $method(self, other: Var) -> Var {
                    self.record_broadcast(Pointwise::$name, &[&self, &other])
                }
            }
            impl std::ops::$Trait<f64> for &Var {
                type Output = Var;
                #[track_caller]
                fn $method(self, other: f64) -> Var {
                    self.record_broadcast(Pointwise::$name, &[self, &self.scalar(other)])
                }
            }
            impl std::ops::$Trait<f64> for Var {
                type Output = Var;
                #[track_caller]
                fn $method(self, other: f64) -> Var {
                    self.record_broadcast(Pointwise::$name, &[&self, &self.scalar(other)])
                }
            }
            impl std::ops::$Trait<&Var> for f64 {
                type Output = Var;
                #[track_caller]
                fn $method(self, other: &Var) -> Var {
                    other.record_broadcast(Pointwise::$name, &[&other.scalar(self), other])
                }
            }
            impl std::ops::$Trait<Var> for f64 {
                type Output = Var;
                #[track_caller]
                fn $method(self, other: Var) -> Var {
                    other.record_broadcast(Pointwise::$name, &[&other.scalar(self), &other])
                }
            }
        )+
    };
}

operators! {
    Add add Add;
    Sub sub Sub;
    Mul mul Mul;
    Div div Div;
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
