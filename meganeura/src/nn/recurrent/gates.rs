//! The formulas of recurrent cells.

use std::fmt;

use smallvec::{SmallVec, smallvec};

use crate::Var;
use crate::ops::RecurrentFormula;

/// The values of a state: one, or two for an LSTM.
pub(super) type Parts = SmallVec<[Var; 2]>;

/// The state that a recurrent layer carries from step to step: a [`Var`], or an [`LstmState`].
pub trait RecurrentState: Clone + fmt::Debug {
    /// The values in it, the hidden state first.
    #[doc(hidden)]
    fn to_parts(&self) -> SmallVec<[Var; 2]>;

    /// A state from its values.
    #[doc(hidden)]
    fn from_parts(parts: SmallVec<[Var; 2]>) -> Self;
}

impl RecurrentState for Var {
    fn to_parts(&self) -> Parts {
        smallvec![self.clone()]
    }

    fn from_parts(mut parts: Parts) -> Self {
        parts.swap_remove(0)
    }
}

/// The state of an LSTM.
#[derive(Clone, Debug)]
pub struct LstmState {
    /// The hidden state, which is also the output.
    pub h: Var,
    /// The cell state.
    pub c: Var,
}

impl RecurrentState for LstmState {
    fn to_parts(&self) -> Parts {
        smallvec![self.h.clone(), self.c.clone()]
    }

    fn from_parts(mut parts: Parts) -> Self {
        let c = parts.swap_remove(1);
        Self { h: parts.swap_remove(0), c }
    }
}

/// The formula of a recurrent cell: [`RnnGates`], [`LstmGates`] or [`GruGates`].
pub trait RecurrentGates: Copy + fmt::Debug + Send + Sync + 'static {
    /// The state passed from step to step.
    type State: RecurrentState;

    /// The name of the layer in messages.
    #[doc(hidden)]
    const NAME: &'static str;

    /// The number of blocks of `H` rows in a weight.
    #[doc(hidden)]
    const COUNT: usize;

    /// The number of values in a state.
    #[doc(hidden)]
    const PARTS: usize;

    /// The bias added to the input's products, `[COUNT·H]`, and the bias within the formula, `[H]`.
    #[doc(hidden)]
    #[track_caller]
    fn biases(bias_ih: Var, bias_hh: Var) -> (Var, Option<Var>) {
        (bias_ih + bias_hh, None)
    }

    /// The formula of a step.
    #[doc(hidden)]
    fn formula(self) -> RecurrentFormula;
}

/// The activation of an [`Rnn`](super::Rnn).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum RnnNonlinearity {
    /// The hyperbolic tangent.
    #[default]
    Tanh,
    /// `max(x, 0)`
    Relu,
}

/// The formula of an [`Rnn`](super::Rnn).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RnnGates {
    /// The activation that ends a step.
    pub nonlinearity: RnnNonlinearity,
}

impl RecurrentGates for RnnGates {
    type State = Var;

    const NAME: &'static str = "rnn";
    const COUNT: usize = 1;
    const PARTS: usize = 1;

    fn formula(self) -> RecurrentFormula {
        match self.nonlinearity {
            RnnNonlinearity::Tanh => RecurrentFormula::Tanh,
            RnnNonlinearity::Relu => RecurrentFormula::Relu,
        }
    }
}

/// The formula of an [`Lstm`](super::Lstm).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LstmGates;

impl RecurrentGates for LstmGates {
    type State = LstmState;

    const NAME: &'static str = "lstm";
    const COUNT: usize = 4;
    const PARTS: usize = 2;

    fn formula(self) -> RecurrentFormula {
        RecurrentFormula::Lstm
    }
}

/// The formula of a [`Gru`](super::Gru).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GruGates;

impl RecurrentGates for GruGates {
    type State = Var;

    const NAME: &'static str = "gru";
    const COUNT: usize = 3;
    const PARTS: usize = 1;

    /// In `n`, the reset gate multiplies the hidden state's product together with its bias, so this bias stays
    /// separate.
    fn biases(bias_ih: Var, bias_hh: Var) -> (Var, Option<Var>) {
        let hidden = bias_hh.shape().elements() / 3;
        let of_gates = bias_hh.slice(0, 0..2 * hidden).pad(&[(0, hidden)], 0.0);
        (bias_ih + of_gates, Some(bias_hh.slice(0, 2 * hidden..3 * hidden)))
    }

    fn formula(self) -> RecurrentFormula {
        RecurrentFormula::Gru
    }
}
