//! The weights of a recurrent cell, and a single step.

use std::panic::Location;

use meganeura_derive::Module;

use super::gates::{Parts, RecurrentGates, RecurrentState, RnnGates, RnnNonlinearity};
use crate::error::bail;
use crate::init::Initializer;
use crate::module::{Init, Seed, init_field};
use crate::ops::RecurrentOptions;
use crate::{Device, Error, ErrorKind, Param, Result, Shape, Var};

/// A recurrent cell: one step of a layer.
///
/// The gates determine the formula, that of [`Rnn`](super::Rnn), [`Lstm`](super::Lstm) or [`Gru`](super::Gru).
///
/// Weights have PyTorch's names, shapes and order of gates: `COUNT·H` rows, `H` for each gate.
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let cell = LstmCell::new(3, 5).init(&device, Seed::new(42))?;
///
/// let tape = Tape::inference(&device);
/// let x = tape.input(&Tensor::full(&device, [2, 3], 1.0)?);
/// let first = cell.step(&x, None);
/// let second = cell.step(&x, Some(&first));
/// assert_eq!(second.h.shape(), Shape::from([2, 5]));
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Module, Debug, Clone)]
#[non_exhaustive]
pub struct RecurrentCell<G> {
    /// The input's weight, `[COUNT·H, I]`.
    pub weight_ih: Param,
    /// The hidden state's weight, `[COUNT·H, H]`.
    pub weight_hh: Param,
    /// The bias beside the input's weight, `[COUNT·H]`.
    pub bias_ih: Option<Param>,
    /// The bias beside the hidden state's weight, `[COUNT·H]`.
    pub bias_hh: Option<Param>,
    /// The formula.
    #[module(skip)]
    pub gates: G,
}

impl<G: RecurrentGates + Default> RecurrentCell<G> {
    /// A cell from vectors of `inputs` numbers to a state of `hidden` numbers.
    #[expect(clippy::new_ret_no_self, reason = "a layer needs a device and a seed; this describes one without")]
    pub fn new(inputs: usize, hidden: usize) -> RecurrentCellConfig<G> {
        RecurrentCellConfig { inputs, hidden, bias: true, gates: G::default() }
    }
}

impl<G: RecurrentGates> RecurrentCell<G> {
    /// The state after one step over `x [N, I]`, from a state of `[N, H]`, or from zeros without one.
    #[must_use]
    #[track_caller]
    pub fn step(&self, x: &Var, state: Option<&G::State>) -> G::State {
        let mut entered = crate::module::enter(self, x);
        let (inputs, hidden) = (self.inputs(), self.hidden());
        let n = match *x.shape().dims() {
            [n, width] if width == inputs && x.ty().dtype.is_float() => n,
            _ => {
                let message = format!("the input must be floats [N, {inputs}], it is {}", x.ty());
                return poisoned::<G>(&self.refuse(x, message));
            }
        };
        let state = match state {
            Some(state) => state.to_parts(),
            None => zeros::<G>(x, &[n, hidden]),
        };
        for part in &state {
            if part.shape() != Shape::from([n, hidden]) {
                let message = format!("the state must be [{n}, {hidden}], it is {}", part.shape());
                return poisoned::<G>(&self.refuse(part, message));
            }
        }
        let weights = OnTape::new(self, x);
        let of_input = weights.of_input(x).reshape([1, n, G::COUNT * hidden]);
        let (_, next) = of_input.recurrent(&weights.hidden, &state, weights.options(self.gates, false, None));
        entered.gives(&next[0]);
        G::State::from_parts(Parts::from_vec(next))
    }

    /// The length of an input vector.
    pub(super) fn inputs(&self) -> usize {
        self.weight_ih.shape()[1]
    }

    /// The length of the hidden state.
    pub(super) fn hidden(&self) -> usize {
        self.weight_hh.shape()[1]
    }

    #[track_caller]
    pub(super) fn refuse(&self, x: &Var, message: String) -> Var {
        let error = Error::new(ErrorKind::Shape, message).in_op(G::NAME).at(Location::caller());
        x.fail(error.operand(x.ty(), x.path()).operand(self.weight_ih.ty(), self.weight_ih.path()))
    }

    /// A cell with random parameters, uniform in ±1/√H, as in PyTorch. `suffix` ends their names.
    pub(super) fn draw(config: &RecurrentCellConfig<G>, suffix: &str, device: &Device, seed: Seed) -> Result<Self> {
        let &RecurrentCellConfig { inputs, hidden, bias, gates } = config;
        let rows = G::COUNT * hidden;
        #[expect(clippy::cast_precision_loss, reason = "features are far below 2^53")]
        let bound = (hidden as f64).sqrt().recip();
        let draw = |name: &str, shape: Shape| {
            let name = format!("{name}{suffix}");
            let values = Initializer::Uniform { low: -bound, high: bound }.sample(device, shape, seed.field(&name));
            init_field(&name, values).map(Param::new)
        };
        let draw_bias = |name: &str| bias.then(|| draw(name, [rows].into())).transpose();
        Ok(Self {
            weight_ih: draw("weight_ih", [rows, inputs].into())?,
            weight_hh: draw("weight_hh", [rows, hidden].into())?,
            bias_ih: draw_bias("bias_ih")?,
            bias_hh: draw_bias("bias_hh")?,
            gates,
        })
    }
}

/// The weights of a cell on a tape, for any number of steps.
pub(super) struct OnTape {
    /// `W_ihᵀ`
    input: Var,
    /// `W_hh`
    pub(super) hidden: Var,
    bias: Option<Var>,
    /// The bias within the formula, `[H]`.
    within: Option<Var>,
}

impl OnTape {
    #[track_caller]
    pub(super) fn new<G: RecurrentGates>(cell: &RecurrentCell<G>, x: &Var) -> Self {
        let (mut bias, mut within) = (None, None);
        if cell.bias_ih.is_some() || cell.bias_hh.is_some() {
            let len = G::COUNT * cell.hidden();
            let (sum, apart) = G::biases(or_zeros(x, &cell.bias_ih, len), or_zeros(x, &cell.bias_hh, len));
            (bias, within) = (Some(sum), apart);
        }
        Self { input: x.param(&cell.weight_ih).t(), hidden: x.param(&cell.weight_hh), bias, within }
    }

    /// The options of the steps.
    pub(super) fn options<'a, G: RecurrentGates>(
        &'a self,
        gates: G,
        reverse: bool,
        mask: Option<&'a Var>,
    ) -> RecurrentOptions<'a> {
        RecurrentOptions { formula: gates.formula(), reverse, bias: self.within.as_ref(), mask }
    }

    /// `x·W_ihᵀ + b` for vectors in rows.
    #[track_caller]
    pub(super) fn of_input(&self, x: &Var) -> Var {
        match &self.bias {
            Some(bias) => x.matmul(&self.input) + bias,
            None => x.matmul(&self.input),
        }
    }
}

/// The bias, or as many zeros.
#[track_caller]
fn or_zeros(x: &Var, bias: &Option<Param>, len: usize) -> Var {
    match bias {
        Some(bias) => x.param(bias),
        None => x.constant(0.0).expand([len]),
    }
}

/// A state of zeros.
#[track_caller]
pub(super) fn zeros<G: RecurrentGates>(x: &Var, shape: &[usize]) -> Parts {
    let zero = x.constant(0.0).expand(Shape::new(shape));
    std::iter::repeat_n(zero, G::PARTS).collect()
}

/// A state with the error of `x`.
pub(super) fn poisoned<G: RecurrentGates>(x: &Var) -> G::State {
    G::State::from_parts(std::iter::repeat_n(x.clone(), G::PARTS).collect())
}

/// Describes a [`RecurrentCell`]; [`Init::init`] builds it.
#[derive(Debug, Clone)]
#[must_use]
pub struct RecurrentCellConfig<G> {
    pub(super) inputs: usize,
    pub(super) hidden: usize,
    pub(super) bias: bool,
    pub(super) gates: G,
}

impl<G: RecurrentGates> RecurrentCellConfig<G> {
    /// Adds biases if `true`, the default.
    pub fn bias(self, bias: bool) -> Self {
        Self { bias, ..self }
    }

    pub(super) fn check(&self) -> Result<()> {
        let Self { inputs, hidden, .. } = *self;
        if inputs == 0 || hidden == 0 {
            bail!(Argument, "{}: from {inputs} numbers to a state of {hidden}; both must be at least 1", G::NAME);
        }
        Ok(())
    }
}

impl RecurrentCellConfig<RnnGates> {
    /// The activation that ends a step; the hyperbolic tangent by default.
    pub fn nonlinearity(mut self, nonlinearity: RnnNonlinearity) -> Self {
        self.gates.nonlinearity = nonlinearity;
        self
    }
}

impl<G: RecurrentGates> Init for RecurrentCellConfig<G> {
    type Output = RecurrentCell<G>;

    fn build(self, device: &Device, seed: Seed) -> Result<RecurrentCell<G>> {
        self.check()?;
        RecurrentCell::draw(&self, "", device, seed)
    }
}
