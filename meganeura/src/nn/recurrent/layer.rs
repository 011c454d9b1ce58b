//! Recurrent layers over sequences.

use std::fmt;

use super::cell::{OnTape, poisoned, zeros};
use super::gates::{Parts, RecurrentGates, RecurrentState, RnnGates, RnnNonlinearity};
use super::{RecurrentCell, RecurrentCellConfig, Steps};
use crate::error::bail;
use crate::module::{At, Init, Layer, Module, ModuleExt, Seed, Slot, SlotMut, fmt_module};
use crate::nn::Dropout;
use crate::{Device, Result, Shape, Var};

/// A stack of recurrent cells over sequences: [`Rnn`](super::Rnn), [`Lstm`](super::Lstm) or [`Gru`](super::Gru), by its
/// gates.
///
/// [`forward`](Layer::forward) starts from zeros and returns the outputs of the last layer.
/// [`forward_with`](Self::forward_with) starts from any state, supports sequences of different lengths, and also
/// returns the final state.
///
/// Each layer reads the outputs of the one below. With two directions, a second cell runs from the end to the
/// beginning, and the outputs of both are concatenated. Dropout applies between layers, in training.
///
/// Parameters have PyTorch's names, shapes and order of gates: `weight_ih_l0`, `weight_hh_l0`, `bias_ih_l0`,
/// `bias_hh_l0`, with the suffix `_reverse` for the second direction. Sequences have the batch first, as with
/// `batch_first=True`.
///
/// Shapes, with `L` layers, `D` directions and a state of `H` numbers: `x [N, T, I]` → `y [N, T, D·H]`; states
/// `[L·D, N, H]`, the directions of the first layer first.
#[derive(Debug, Clone)]
pub struct Recurrent<G> {
    /// The cells of the first layer, one for each direction, then those of the second, and so on.
    pub cells: Vec<RecurrentCell<G>>,
    /// The number of directions, 1 or 2.
    directions: usize,
    /// The probability of dropping an element between layers.
    pub dropout: f64,
}

impl<G: RecurrentGates + Default> Recurrent<G> {
    /// A layer from vectors of `inputs` numbers, with a state of `hidden` numbers.
    #[expect(clippy::new_ret_no_self, reason = "a layer needs a device and a seed; this describes one without")]
    pub fn new(inputs: usize, hidden: usize) -> RecurrentConfig<G> {
        RecurrentConfig { cell: RecurrentCell::new(inputs, hidden), layers: 1, bidirectional: false, dropout: 0.0 }
    }
}

impl<G: RecurrentGates> Recurrent<G> {
    /// Runs over sequences `[N, T, I]`. Returns the outputs `[N, T, D·H]` and the final state.
    ///
    /// The initial state is zeros without `state`; `steps` selects the steps that exist. States are `[L·D, N, H]`. The
    /// final state is the one after each sequence's last step, and in the reverse direction the one after its first.
    #[must_use]
    #[track_caller]
    pub fn forward_with(&self, x: &Var, state: Option<&G::State>, steps: Steps<'_>) -> (Var, G::State) {
        let mut entered = crate::module::enter(self, x);
        let (inputs, hidden) = (self.cells[0].inputs(), self.cells[0].hidden());
        let (&[n, t, width], true) = (x.shape().dims(), x.ty().dtype.is_float()) else {
            return self.refuse(x, format!("the input must be floats [N, T, {inputs}], it is {}", x.ty()));
        };
        if width != inputs {
            return self.refuse(x, format!("takes vectors of {inputs} numbers, these have {width}"));
        }
        let mask = match steps.mask(G::NAME, x, [n, t]) {
            Ok(mask) => mask,
            Err(y) => return (y.clone(), poisoned::<G>(&y)),
        };
        let start = match state {
            Some(state) => state.to_parts(),
            None => zeros::<G>(x, &[self.cells.len(), n, hidden]),
        };
        for part in &start {
            let expected = Shape::from([self.cells.len(), n, hidden]);
            if part.shape() != expected {
                return self.refuse(part, format!("the initial state must be {expected}, it is {}", part.shape()));
            }
        }
        let mut y = x.clone();
        let mut last: Vec<Parts> = Vec::new();
        for (layer, cells) in self.cells.chunks(self.directions).enumerate() {
            if layer > 0 && self.dropout > 0.0 && self.is_training(x.tape()) {
                y = Dropout::new(self.dropout).forward(&y);
            }
            let mut outputs = Vec::new();
            for (direction, cell) in cells.iter().enumerate() {
                let mut state = Parts::new();
                for part in &start {
                    state.push(part.slice(0, last.len()..last.len() + 1).reshape([n, hidden]));
                }
                let (output, state) = over_steps(cell, &y, &state, mask.as_ref(), direction == 1);
                outputs.push(output);
                last.push(state);
            }
            // Both directions of a step side by side.
            y = match &outputs[..] {
                [output] => output.clone(),
                _ => Var::concat(&outputs.iter().collect::<Vec<_>>(), 2),
            };
            y = y.permute(&[1, 0, 2]);
            if y.error().is_some() {
                let state = poisoned::<G>(&y);
                return (y, state);
            }
        }
        entered.gives(&y);
        let mut parts = Parts::new();
        for part in 0..G::PARTS {
            let mut cells = Vec::new();
            for state in &last {
                cells.push(state[part].reshape([1, n, hidden]));
            }
            parts.push(Var::concat(&cells.iter().collect::<Vec<_>>(), 0));
        }
        (y, G::State::from_parts(parts))
    }

    #[track_caller]
    fn refuse(&self, x: &Var, message: String) -> (Var, G::State) {
        let y = self.cells[0].refuse(x, message);
        (y.clone(), poisoned::<G>(&y))
    }

    /// The suffix of a cell's parameter names.
    fn suffix(index: usize, directions: usize) -> String {
        let (layer, direction) = (index / directions, index % directions);
        format!("_l{layer}{}", if direction == 1 { "_reverse" } else { "" })
    }
}

/// The outputs of all steps, `[T, N, H]`, and the state after the last step.
#[track_caller]
fn over_steps<G: RecurrentGates>(
    cell: &RecurrentCell<G>,
    x: &Var,
    state: &Parts,
    mask: Option<&Var>,
    reverse: bool,
) -> (Var, Parts) {
    let [n, t, width] = *x.shape().dims() else { unreachable!("sequences") };
    let weights = OnTape::new(cell, x);
    // Padding is dropped before the product: the gradient of the weight multiplies its elements by 0, and NaN·0 is NaN.
    let x = match mask {
        Some(mask) => mask.reshape([n, t, 1]).where_cond(x, &x.constant(0.0)),
        None => x.clone(),
    };
    // Step by step: the numbers of a step are adjacent.
    let of_input = weights.of_input(&x.permute(&[1, 0, 2]).reshape([t * n, width]));
    let of_input = of_input.reshape([t, n, G::COUNT * cell.hidden()]);
    #[expect(clippy::manual_map, reason = "what a closure records has the closure's line")]
    let mask = match mask {
        Some(mask) => Some(mask.t()),
        None => None,
    };
    let (y, last) = of_input.recurrent(&weights.hidden, state, weights.options(cell.gates, reverse, mask.as_ref()));
    let y = match mask {
        Some(mask) => mask.reshape([t, n, 1]).where_cond(&y, &y.constant(0.0)),
        None => y,
    };
    (y, Parts::from_vec(last))
}

impl<G: RecurrentGates> Layer for Recurrent<G> {
    fn forward(&self, x: &Var) -> Var {
        self.forward_with(x, None, Steps::All).0
    }

    fn flow(&self) -> crate::module::Flow {
        let cell = &self.cells[0];
        crate::module::Flow::unknown().takes_features(cell.inputs()).gives_features(self.directions * cell.hidden())
    }
}

/// PyTorch's names: those of a cell, with layer and direction as a suffix.
impl<G: RecurrentGates> Module for Recurrent<G> {
    fn visit<'a>(&'a self, at: At<'_>, f: &mut dyn FnMut(At<'_>, Slot<'a>)) {
        for (index, cell) in self.cells.iter().enumerate() {
            let suffix = Self::suffix(index, self.directions);
            cell.weight_ih.visit(at.field(&format!("weight_ih{suffix}")), f);
            cell.weight_hh.visit(at.field(&format!("weight_hh{suffix}")), f);
            cell.bias_ih.visit(at.field(&format!("bias_ih{suffix}")), f);
            cell.bias_hh.visit(at.field(&format!("bias_hh{suffix}")), f);
        }
    }

    fn visit_mut<'a>(&'a mut self, at: At<'_>, f: &mut dyn FnMut(At<'_>, SlotMut<'a>)) {
        for (index, cell) in self.cells.iter_mut().enumerate() {
            let suffix = Self::suffix(index, self.directions);
            cell.weight_ih.visit_mut(at.field(&format!("weight_ih{suffix}")), f);
            cell.weight_hh.visit_mut(at.field(&format!("weight_hh{suffix}")), f);
            cell.bias_ih.visit_mut(at.field(&format!("bias_ih{suffix}")), f);
            cell.bias_hh.visit_mut(at.field(&format!("bias_hh{suffix}")), f);
        }
    }
}

impl<G: RecurrentGates> fmt::Display for Recurrent<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt_module(self, f)
    }
}

/// Describes a [`Recurrent`] layer; [`Init::init`] builds it.
#[derive(Debug, Clone)]
#[must_use]
pub struct RecurrentConfig<G> {
    cell: RecurrentCellConfig<G>,
    layers: usize,
    bidirectional: bool,
    dropout: f64,
}

impl<G: RecurrentGates> RecurrentConfig<G> {
    /// The number of layers, each of which reads the outputs of the one below; 1 by default.
    pub fn layers(self, layers: usize) -> Self {
        Self { layers, ..self }
    }

    /// Adds a second cell to each layer, which runs from the end to the beginning; `false` by default.
    pub fn bidirectional(self, bidirectional: bool) -> Self {
        Self { bidirectional, ..self }
    }

    /// The probability of dropping an element between two layers, in training; 0 by default.
    pub fn dropout(self, dropout: f64) -> Self {
        Self { dropout, ..self }
    }

    /// Adds biases if `true`, the default.
    pub fn bias(self, bias: bool) -> Self {
        Self { cell: self.cell.bias(bias), ..self }
    }
}

impl RecurrentConfig<RnnGates> {
    /// The activation that ends a step; the hyperbolic tangent by default.
    pub fn nonlinearity(self, nonlinearity: RnnNonlinearity) -> Self {
        Self { cell: self.cell.nonlinearity(nonlinearity), ..self }
    }
}

impl<G: RecurrentGates> Init for RecurrentConfig<G> {
    type Output = Recurrent<G>;

    fn build(self, device: &Device, seed: Seed) -> Result<Recurrent<G>> {
        let Self { cell, layers, bidirectional, dropout } = self;
        cell.check()?;
        if layers == 0 {
            bail!(Argument, "{}: 0 layers; there must be at least 1", G::NAME);
        }
        if !(0.0..1.0).contains(&dropout) {
            bail!(Argument, "{}: the probability {dropout} is not at least 0 and below 1", G::NAME);
        }
        if dropout > 0.0 && layers == 1 {
            bail!(Argument, "{}: dropout is between layers, and there is only one", G::NAME);
        }
        let directions = if bidirectional { 2 } else { 1 };
        let build = |index: usize| {
            let inputs = if index < directions { cell.inputs } else { directions * cell.hidden };
            let config = RecurrentCellConfig { inputs, ..cell.clone() };
            RecurrentCell::draw(&config, &Recurrent::<G>::suffix(index, directions), device, seed)
        };
        let cells = (0..layers * directions).map(build).collect::<Result<_>>()?;
        Ok(Recurrent { cells, directions, dropout })
    }
}
