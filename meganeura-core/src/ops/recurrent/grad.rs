//! The gradient of a recurrent layer.

use super::{Recurrent, RecurrentShape, WEIGHT, expect, launch, native};
use crate::kernel::launch::{Argument, Caps, Variant};
use crate::kernel::native::{OutView, Real, Scratch, View};
use crate::ops::{Bf16, Kernel, Primitive};
use crate::{Result, Shape, TensorType};

/// The cotangents of the sums of each gate of a [`Recurrent`] layer, and of its initial state, from the last step to
/// the first.
///
/// Shapes: the states' cotangents `dh [T+1,N,H]`, weight `[G·H,H]`, all states, or all cell states of an LSTM,
/// `[T+1,N,H]`; then, if they exist, what the forward pass saved, `[T,N,4·H]`, the mask `[T,N]`, and the cotangent of
/// the last cell state, `[N,H]`. → `ds [T,N,B·H]`, `dh [N,H]`, of an LSTM also `dc [N,H]`. `B` is `G`, and 4 for a GRU:
/// the third block belongs to `x₂`, the fourth to `W₂·h + b`.
/// Gradient: records the steps (`functions/recurrent/recorded.rs`) and differentiates that.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RecurrentGrad {
    pub(crate) forward: Recurrent,
    /// `true` if the last cell state has a cotangent.
    pub(crate) of_last: bool,
}

impl RecurrentGrad {
    /// The operand that the forward pass saved.
    pub(crate) fn saved(&self) -> Option<usize> {
        self.forward.formula.saves().then_some(3)
    }

    pub(crate) fn mask(&self) -> Option<usize> {
        self.forward.masked.then(|| 3 + usize::from(self.forward.formula.saves()))
    }

    pub(crate) fn last(&self) -> Option<usize> {
        self.of_last.then(|| 4 + usize::from(self.forward.masked))
    }
}

impl Primitive for RecurrentGrad {
    fn name(&self) -> &'static str {
        "recurrent_grad"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let formula = self.forward.formula;
        let [states, ..] = *x[0].shape.dims() else {
            return Err(format!("states have three axes, these are {}", x[0]));
        };
        if x[0].shape.rank() != 3 || states < 2 {
            return Err(format!("the cotangents must be [T + 1, N, H], they are {}", x[0]));
        }
        let RecurrentShape { t, n, h } = Recurrent::shape(x[0].shape);
        expect("weight", x[WEIGHT], x[0], Shape::from([formula.gates() * h, h]))?;
        expect("states", x[2], x[0], x[0].shape)?;
        self.saved().map_or(Ok(()), |k| expect("saved numbers", x[k], x[0], Shape::from([t, n, 4 * h])))?;
        self.mask().map_or(Ok(()), |k| expect("mask", x[k], x[0], Shape::from([t, n])))?;
        self.last().map_or(Ok(()), |k| expect("last cotangent", x[k], x[0], Shape::from([n, h])))?;
        let state = x[0].with_shape(Shape::from([n, h]));
        let mut results = vec![x[0].with_shape(Shape::from([t, n, formula.blocks() * h])), state];
        if formula.is_lstm() {
            results.push(state);
        }
        Ok(results)
    }
}

impl Kernel for RecurrentGrad {
    fn bf16(&self, x: &[TensorType], _: &[TensorType], caps: &Caps) -> Option<Bf16> {
        super::bf16(x[WEIGHT], caps)
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], scratch: &Scratch) {
        native::backward(self, x, y, scratch);
    }

    fn variants(&self, x: &[Argument], _: &[TensorType], caps: &Caps) -> Vec<Variant> {
        vec![launch::backward(self, Recurrent::shape(x[0].ty.shape), x[WEIGHT].format, caps)]
    }
}
