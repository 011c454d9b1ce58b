//! Recurrent layers: [`Rnn`], [`Lstm`] and [`Gru`] over sequences, and their cells, which compute a single step.
//!
//! [`RecurrentGates`] is the formula of a cell, [`RecurrentCell`] holds the weights of one cell, and [`Recurrent`] the
//! cells of all layers and directions. One matrix product computes the input's part of all steps. A step is then one
//! product of the hidden state, and one launch of elementwise work.

mod cell;
mod gates;
mod layer;
mod steps;

pub use cell::{RecurrentCell, RecurrentCellConfig};
pub use gates::{GruGates, LstmGates, LstmState, RecurrentGates, RecurrentState, RnnGates, RnnNonlinearity};
pub use layer::{Recurrent, RecurrentConfig};
pub use steps::Steps;

/// Elman's recurrent layer: `h′ = tanh(W_ih·x + b_ih + W_hh·h + b_hh)`, or `relu` in place of `tanh`
///
/// See [`Recurrent`] for everything but the formula.
///
/// Shapes: `x [N, T, I]` → `y [N, T, D·H]`, with the batch first.
/// [Elman, 1990](https://doi.org/10.1207/s15516709cog1402_1).
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let rnn = Rnn::new(3, 5).nonlinearity(RnnNonlinearity::Relu).init(&device, Seed::new(42))?;
///
/// let tape = Tape::new(&device);
/// let x = tape.input(&Tensor::zeros(&device, [4, 10, 3])?);
/// assert_eq!(rnn.forward(&x).shape(), Shape::from([4, 10, 5]));
/// # Ok::<(), meganeura::Error>(())
/// ```
pub type Rnn = Recurrent<RnnGates>;

/// Long short-term memory: `i, f, o = σ(…)`, `g = tanh(…)`, `c′ = f·c + i·g`, `h′ = o·tanh(c′)`
///
/// Each `…` is `W_ih·x + b_ih + W_hh·h + b_hh`, with a block of rows for each of `i`, `f`, `g` and `o`, in this order.
/// See [`Recurrent`] for everything but the formula. The state is an [`LstmState`].
///
/// Shapes: `x [N, T, I]` → `y [N, T, D·H]`, with the batch first.
/// [Hochreiter and Schmidhuber, 1997](https://doi.org/10.1162/neco.1997.9.8.1735).
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let lstm = Lstm::new(3, 5).layers(2).bidirectional(true).init(&device, Seed::new(42))?;
///
/// let tape = Tape::new(&device);
/// let x = tape.input(&Tensor::zeros(&device, [2, 10, 3])?);
/// let lengths = tape.input(&Tensor::indices(&device, [2], &[10, 7])?);
/// let (y, state) = lstm.forward_with(&x, None, Steps::Lengths(&lengths));
/// assert_eq!(y.shape(), Shape::from([2, 10, 2 * 5]));
/// assert_eq!(state.c.shape(), Shape::from([2 * 2, 2, 5]));
/// # Ok::<(), meganeura::Error>(())
/// ```
pub type Lstm = Recurrent<LstmGates>;

/// Gated recurrent units: `r, z = σ(W_ih·x + b_ih + W_hh·h + b_hh)`, `n = tanh(W_in·x + b_in + r·(W_hn·h + b_hn))`,
/// `h′ = (1 − z)·n + z·h`
///
/// Weights have a block of rows for each of `r`, `z` and `n`, in this order. See [`Recurrent`] for everything but the
/// formula.
///
/// Shapes: `x [N, T, I]` → `y [N, T, D·H]`, with the batch first. [Cho et al., 2014](https://arxiv.org/abs/1406.1078),
/// but with the reset gate after the product, as in PyTorch; in the paper it multiplies `h` before.
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let gru = Gru::new(3, 5).init(&device, Seed::new(42))?;
///
/// let tape = Tape::inference(&device);
/// let x = tape.input(&Tensor::full(&device, [1, 4, 3], 0.5)?);
/// let (_, state) = gru.forward_with(&x.slice(1, 0..3), None, Steps::All);
/// // The last step on its own, from where the first three led.
/// let (y, _) = gru.forward_with(&x.slice(1, 3..4), Some(&state), Steps::All);
/// assert_eq!(y.to_vec()?, gru.forward(&x).slice(1, 3..4).to_vec()?);
/// # Ok::<(), meganeura::Error>(())
/// ```
pub type Gru = Recurrent<GruGates>;

/// One step of an [`Rnn`]: from `x [N, I]` and `h [N, H]` to the next `h`.
pub type RnnCell = RecurrentCell<RnnGates>;

/// One step of an [`Lstm`]: from `x [N, I]` and a state of `[N, H]` each to the next state.
pub type LstmCell = RecurrentCell<LstmGates>;

/// One step of a [`Gru`]: from `x [N, I]` and `h [N, H]` to the next `h`.
pub type GruCell = RecurrentCell<GruGates>;

#[cfg(test)]
mod tests;
