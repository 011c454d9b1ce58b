//! Recurrent layers over sequences: all time steps of a layer and a direction are one operation.

mod grad;
mod launch;
mod native;
mod native_products;
mod native_units;
#[cfg(feature = "onnx")]
mod onnx;

pub use self::grad::RecurrentGrad;
use super::{Bf16, Innermost, Kernel, Primitive, Stores};
use crate::kernel::launch::{Argument, Caps, LINE, Variant};
use crate::kernel::native::{OutView, Real, Scratch, View};
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Form};
use crate::{Result, Shape, TensorType};

/// The formula of a step, with `s = x + W·h` for each gate and `σ(s) = 1/(1 + e⁻ˢ)`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RecurrentFormula {
    /// `h' = tanh(s)`
    Tanh,
    /// `h' = max(s, 0)`
    Relu,
    /// `c' = σ(s₁)·c + σ(s₀)·tanh(s₂)`, `h' = σ(s₃)·tanh(c')`
    Lstm,
    /// `n = tanh(x₂ + σ(s₀)·(W₂·h + b))`, `h' = σ(s₁)·(h − n) + n`
    Gru,
}

impl RecurrentFormula {
    /// The number of gates `G`: of blocks of `H` columns in the input, and of `H` rows in the weight.
    #[must_use]
    pub fn gates(self) -> usize {
        match self {
            Self::Tanh | Self::Relu => 1,
            Self::Lstm => 4,
            Self::Gru => 3,
        }
    }

    /// The number of blocks of `H` columns in the cotangents of the sums: that of the gates, and of a GRU another for
    /// `W₂·h + b`, after that of `x₂`.
    #[must_use]
    pub fn blocks(self) -> usize {
        if self == Self::Gru { 4 } else { self.gates() }
    }

    /// `true` if the forward pass saves four numbers of each element of a state.
    pub(crate) fn saves(self) -> bool {
        matches!(self, Self::Lstm | Self::Gru)
    }

    pub(crate) fn is_lstm(self) -> bool {
        self == Self::Lstm
    }

    /// The define of the kernels.
    fn define(self) -> &'static str {
        match self {
            Self::Tanh => "tanh",
            Self::Relu => "relu",
            Self::Lstm => "lstm",
            Self::Gru => "gru",
        }
    }
}

/// A recurrent layer in one direction: for each time step the product of the last state with a weight, and a
/// [formula](RecurrentFormula).
///
/// Shapes: the input's products with their bias `x [T,N,G·H]`, weight `[G·H,H]`, initial state `h [N,H]`, of an LSTM
/// also `c [N,H]`; then, if there is one, the bias `b [H]` within the formula of a GRU, and a mask `[T,N]`. → The
/// states before, between and after the steps, `[T+1,N,H]`. Of an LSTM also the last cell state, `[N,H]`, and, for the
/// gradient, all cell states, `[T+1,N,H]`. Of an LSTM the gates, and of a GRU the gates, `n` and `W₂·h + b`, for the
/// gradient, `[T,N,4·H]`.
/// With `reverse`, the steps go from the last to the first; the initial state is then the last of the states. Where the
/// mask is 0, a step leaves the state as it is.
/// Gradient: [`RecurrentGrad`] gives the cotangents of all sums `s`; the weight's is one product over all steps.
/// [Hochreiter and Schmidhuber, 1997](https://doi.org/10.1162/neco.1997.9.8.1735),
/// [Cho et al., 2014](https://arxiv.org/abs/1406.1078).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Recurrent {
    pub(crate) formula: RecurrentFormula,
    pub(crate) reverse: bool,
    pub(crate) biased: bool,
    pub(crate) masked: bool,
}

/// The operand that is the weight, of both operations.
pub(crate) const WEIGHT: usize = 1;

/// The extents of a layer: steps, rows of a state, and hidden units.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RecurrentShape {
    pub(crate) t: usize,
    pub(crate) n: usize,
    pub(crate) h: usize,
}

impl RecurrentShape {
    /// The elements of a state.
    pub(crate) fn state(&self) -> usize {
        self.n * self.h
    }
}

impl Recurrent {
    /// The number of the operand after the initial state, and of those after it, if they exist.
    pub(crate) fn bias(&self) -> Option<usize> {
        self.biased.then(|| if self.formula.is_lstm() { 4 } else { 3 })
    }

    pub(crate) fn mask(&self) -> Option<usize> {
        let after = if self.formula.is_lstm() { 4 } else { 3 };
        self.masked.then(|| after + usize::from(self.biased))
    }

    /// The result that holds all cell states, of an LSTM.
    pub(crate) fn cells(&self) -> Option<usize> {
        self.formula.is_lstm().then_some(2)
    }

    /// The result that holds what the gradient needs besides the states.
    pub(crate) fn saved(&self) -> Option<usize> {
        self.formula.saves().then(|| if self.formula.is_lstm() { 3 } else { 1 })
    }

    /// The time of step `step`, and the places among the states of those before and after it.
    pub(crate) fn at(&self, step: usize, steps: usize) -> At {
        let time = if self.reverse { steps - 1 - step } else { step };
        let (before, after) = if self.reverse { (time + 1, time) } else { (time, time + 1) };
        At { time, before, after }
    }

    /// The extents, by the states of all steps.
    pub(crate) fn shape(states: Shape) -> RecurrentShape {
        let [states, n, h] = *states.dims() else { unreachable!("checked when recorded") };
        RecurrentShape { t: states - 1, n, h }
    }
}

/// The places of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    pub(crate) time: usize,
    pub(crate) before: usize,
    pub(crate) after: usize,
}

/// The error if an operand has another type than it must.
fn expect(what: &str, found: TensorType, like: TensorType, shape: Shape) -> Result<(), String> {
    let wanted = like.with_shape(shape);
    if found == wanted { Ok(()) } else { Err(format!("the {what} must be {wanted}, it is {found}")) }
}

impl Primitive for Recurrent {
    fn name(&self) -> &'static str {
        "recurrent"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let gates = self.formula.gates();
        let ([t, n, width], true) = (x[0].shape.dims(), x[0].dtype.is_float()) else {
            return Err(format!("the input must be floats [T, N, {gates}·H], it is {}", x[0]));
        };
        let (t, n, h) = (*t, *n, width / gates);
        if x[0].shape.elements() == 0 || width % gates != 0 {
            return Err(format!("the input must be [T, N, {gates}·H] and not empty, it is {}", x[0]));
        }
        // Shaders compute indices in 32 bits.
        let most = (t + 1).checked_mul(n).and_then(|rows| rows.checked_mul(h)?.checked_mul(4));
        if most.is_none_or(|elements| elements > 1 << 31) {
            return Err(format!("4 · {n} · {h} numbers of {t} steps exceed 2³¹"));
        }
        let state = Shape::from([n, h]);
        expect("weight", x[WEIGHT], x[0], Shape::from([gates * h, h]))?;
        let parts = if self.formula.is_lstm() { 2 } else { 1 };
        x[2..2 + parts].iter().try_for_each(|ty| expect("initial state", *ty, x[0], state))?;
        self.bias().map_or(Ok(()), |k| expect("bias", x[k], x[0], Shape::from([h])))?;
        self.mask().map_or(Ok(()), |k| expect("mask", x[k], x[0], Shape::from([t, n])))?;
        let all = x[0].with_shape(Shape::from([t + 1, n, h]));
        let mut results = vec![all];
        if self.formula.is_lstm() {
            results.extend([x[0].with_shape(state), all]);
        }
        if self.formula.saves() {
            results.push(x[0].with_shape(Shape::from([t, n, 4 * h])));
        }
        Ok(results)
    }

    fn multiply_adds(&self, x: &[TensorType], _: &[TensorType]) -> u64 {
        let [t, n, _] = *x[0].shape.dims() else { unreachable!("checked when recorded") };
        (t * n) as u64 * x[WEIGHT].shape.elements() as u64
    }

    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[form::Operand], y: &[TensorType], to: &mut Form) -> Option<form::Results> {
        Some(onnx::form(self, x, y, to))
    }
}

/// Reads the weight as lines of bf16 where there are many products to compute; all else is in `f32`.
fn bf16(weight: TensorType, caps: &Caps) -> Option<Bf16> {
    let h = weight.shape[1];
    let bf16 = Bf16 { wanted: h >= 64, ..Bf16::new(Innermost::Last, &[WEIGHT], Stores::Full) };
    (caps.bf16 && h.is_multiple_of(LINE) && launch::fits_lines(caps)).then_some(bf16)
}

impl Kernel for Recurrent {
    fn bf16(&self, x: &[TensorType], _: &[TensorType], caps: &Caps) -> Option<Bf16> {
        bf16(x[WEIGHT], caps)
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], scratch: &Scratch) {
        native::forward(self, x, y, scratch);
    }

    fn variants(&self, x: &[Argument], y: &[TensorType], caps: &Caps) -> Vec<Variant> {
        vec![launch::forward(self, Self::shape(y[0].shape), x[WEIGHT].format, caps)]
    }
}
