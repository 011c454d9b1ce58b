//! Results of rows that are known before anything is computed. Plans drop rows without effect, and spell out rows that
//! drivers would otherwise simplify.

use super::Pointwise;

impl Pointwise {
    /// The operand that the result equals because the other operand is a neutral constant, as in `x + 0` or `x · 1`.
    pub(crate) fn neutral(self, constants: &[Option<f64>]) -> Option<usize> {
        match (self, constants) {
            (Self::Add | Self::Sub, [_, Some(0.0)]) | (Self::Mul | Self::Div, [_, Some(1.0)]) => Some(0),
            (Self::Add, [Some(0.0), _]) | (Self::Mul, [Some(1.0), _]) => Some(1),
            _ => None,
        }
    }

    /// The `shared/math` function for this row if both operands are the same value, as in `x − x`, and that value.
    /// Compilers that assume neither NaN nor infinity would fold such a row to a number. `maker` returns the row that
    /// computed an operand, and that row's first operand.
    pub(crate) fn of_itself<T: PartialEq + Copy>(
        self,
        operands: &[T],
        maker: impl Fn(T) -> Option<(Self, T)>,
    ) -> Option<(&'static str, T)> {
        let &[a, b] = operands else { return None };
        let inverse = |row| match (maker(a), maker(b)) {
            (_, Some((made, x))) if (made, x) == (row, a) => Some(a),
            (Some((made, x)), _) if (made, x) == (row, b) => Some(b),
            _ => None,
        };
        match self {
            Self::Sub if a == b => Some(("m_sub_itself", a)),
            Self::Div if a == b => Some(("m_div_itself", a)),
            Self::Add => inverse(Self::Neg).map(|x| ("m_sub_itself", x)),
            Self::Mul => inverse(Self::Recip).map(|x| ("m_div_itself", x)),
            _ => None,
        }
    }
}
