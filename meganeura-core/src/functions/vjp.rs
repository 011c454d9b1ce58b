//! Gradient rules: the trait, and the rule of any operation.

use crate::ops::{KernelOp, Op, Primitive, each_kernel_op};
use crate::{Result, Var};

/// The vector-Jacobian product of an operation, which is the rule that the reverse sweep applies.
pub(crate) trait Vjp: Primitive {
    /// The gradient rule: appends operations to the operands' tape and returns the cotangent of each operand, or `None`
    /// where it has none. `x` are the operands, `y` the results, and `dy` the cotangents of the results that have one.
    ///
    /// # Errors
    ///
    /// Fails if the operation has no derivative although one of its operands could have one.
    fn vjp(&self, x: &[Var], y: &[Var], dy: &[Option<Var>]) -> Result<Vec<Option<Var>>>;

    /// Recomputes result 0 by elementwise operations on the operands and the other results, if that is possible.
    /// Gradient rules of elementwise operations on the result get this value, so the result need not be kept from the
    /// forward pass.
    fn rematerialized(&self, x: &[Var], y: &[Var]) -> Option<Var> {
        let _ = (x, y);
        None
    }
}

macro_rules! rules {
    ($($module:ident::$name:ident),+ $(,)?) => {
        /// The gradient rule of an operation.
        pub(crate) fn rule(op: &Op) -> &dyn Vjp {
            match op {
                Op::Pointwise(op) => op,
                Op::View(op) => op,
                $(Op::Kernel(KernelOp::$name(op)) => op,)+
            }
        }
    };
}

each_kernel_op!(rules);
