//! Calls of a model whose plan depends on the values of inputs: a plan for each of them.
//!
//! Shapes may be computed from small integers among the inputs: a length, new extents, the axis of a sum. Their values
//! become constants of a plan. Which inputs these are is found by recording the model: all that can stay open does.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::element::Kind;
use super::value::{Array, Value};
use super::{Model, entered};
use crate::error::{bail, here};
use crate::{Compiled, Result, Shape, Tape, Tensor, TensorType, Var};

/// The most plans that are kept, one for each combination of shapes and values.
const MOST_PLANS: usize = 16;

/// The most elements of an input whose values become constants.
const MOST_VALUES: usize = 1 << 12;

/// A compiled model. Takes the inputs that are no constants.
type Function = Compiled<Vec<Tensor>, Vec<Tensor>>;

/// The number of an input, and its values as a constant of a plan.
pub(super) type Constant = (usize, Arc<Array>);

/// The way in which a model runs.
#[derive(Clone, PartialEq, Eq)]
enum Form {
    /// These inputs are constants of a plan.
    Planned(Vec<usize>),
    /// Other values decide what is recorded, so it is recorded for each call.
    Recorded,
}

/// The plans of a model.
pub(super) struct Plans {
    state: Mutex<State>,
}

struct State {
    form: Form,
    /// Those that were used last come last.
    plans: Vec<(Vec<Shape>, Vec<Constant>, Function)>,
}

impl Plans {
    pub(super) fn new() -> Self {
        Self { state: Mutex::new(State { form: Form::Planned(Vec::new()), plans: Vec::new() }) }
    }

    /// The number of plans.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).plans.len()
    }

    pub(super) fn forget(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = State { form: Form::Planned(Vec::new()), plans: Vec::new() };
    }
}

impl Model {
    /// Computes the outputs for inputs of any shapes that the file allows.
    ///
    /// The model is planned for each combination of shapes, as by [`compile_for`](Self::compile_for), and for each
    /// value of the inputs that decide what is computed: a length, the shape of a `Reshape`, the axes of a sum. Those
    /// must be integers or conditions of at most 4096 elements. If other values decide, such as the number of elements
    /// that are not 0, the model is recorded for each call, and planned if its structure is new to the device.
    ///
    /// Integers of any type, and whole floats, become those of the file; integers become conditions, which are true
    /// unless they are 0.
    ///
    /// The 16 plans that were used last are kept. Threads may call it at the same time; one plans at a time.
    ///
    /// ```
    /// use meganeura::onnx::{self, Model};
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let bytes = onnx::Export::new().batch("N").record(&device, [1, 3], |x| x * 2.0)?.to_bytes()?;
    /// let model = Model::from_bytes(&device, &bytes)?;
    /// for rows in [1, 4] {
    ///     let y = model.run(&[&Tensor::full(&device, [rows, 3], 1.5)?])?.swap_remove(0);
    ///     assert_eq!(y.to_vec()?, vec![3.0; 3 * rows]);
    /// }
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Argument`](crate::ErrorKind::Argument) if the file does not allow an input. Fails like
    /// [`compile_for`](Self::compile_for), and if the device fails.
    #[track_caller]
    pub fn run(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        here(|| {
            if inputs.len() != self.inputs.len() {
                bail!(Argument, "{} inputs, but the model has {}", inputs.len(), self.inputs.len());
            }
            let tape = Tape::inference(&self.device);
            let mut extents = HashMap::new();
            let mut tensors = Vec::with_capacity(inputs.len());
            for (port, &input) in self.inputs.iter().zip(inputs) {
                let var = tape.input(input);
                if let Some(error) = var.error() {
                    return Err(error);
                }
                port.expect(&var, &mut extents)?;
                let is_same = input.ty().dtype == port.dtype(self.device.precision().dtype());
                tensors.push(if is_same { input.clone() } else { entered(&var, port.element()).to_tensor()? });
            }
            let vars: Vec<_> = tensors.iter().map(|tensor| tape.input(tensor)).collect();
            match self.planned(&vars)? {
                Some((constants, function)) => {
                    let is_open = |at: &usize| constants.iter().all(|(constant, _)| constant != at);
                    let open: Vec<_> = (0..inputs.len()).filter(is_open).map(|at| &tensors[at]).collect();
                    function.call(&open)
                }
                None => {
                    let results = self.recorded(&tape, &[], &vars)?;
                    results.iter().map(Var::to_tensor).collect()
                }
            }
        })
    }

    /// The plan for these inputs; `None` if the model is recorded for each call.
    fn planned(&self, vars: &[Var]) -> Result<Option<(Vec<Constant>, Function)>> {
        // A plan has an input.
        if vars.is_empty() {
            return Ok(None);
        }
        let mut state = self.plans.state.lock().unwrap_or_else(PoisonError::into_inner);
        let shapes: Vec<_> = vars.iter().map(Var::shape).collect();
        loop {
            let Form::Planned(numbers) = state.form.clone() else { return Ok(None) };
            let constants = self.constants(&numbers, vars)?;
            let is_same =
                |(own, values, _): &(Vec<Shape>, Vec<Constant>, Function)| (own, values) == (&shapes, &constants);
            if let Some(at) = state.plans.iter().position(is_same) {
                let plan = state.plans.remove(at);
                let function = plan.2.clone();
                state.plans.push(plan);
                return Ok(Some((constants, function)));
            }
            match self.compiled(&constants, vars) {
                Ok(function) => {
                    if state.plans.len() == MOST_PLANS {
                        state.plans.remove(0);
                    }
                    state.plans.push((shapes, constants.clone(), function.clone()));
                    return Ok(Some((constants, function)));
                }
                Err(error) => match self.form(vars) {
                    Some(form) if form != state.form => {
                        state.plans.clear();
                        state.form = form;
                    }
                    _ => return Err(error),
                },
            }
        }
    }

    /// The values of these inputs.
    fn constants(&self, numbers: &[usize], vars: &[Var]) -> Result<Vec<Constant>> {
        let value = |&at: &usize| {
            let var = entered(&vars[at], self.inputs[at].element());
            Ok((at, Value::Var(var, self.inputs[at].element()).read(vars[at].tape())?))
        };
        numbers.iter().map(value).collect()
    }

    /// The form with the fewest constants; `None` if the model cannot be recorded at all.
    fn form(&self, vars: &[Var]) -> Option<Form> {
        let is_small = |at: &usize| {
            self.inputs[*at].element().kind() != Kind::Float && vars[*at].shape().elements() <= MOST_VALUES
        };
        let mut numbers: Vec<_> = (0..vars.len()).filter(is_small).collect();
        let records = |numbers: &[usize]| {
            let constants = self.constants(numbers, vars)?;
            if let (true, Some(first)) = (numbers.len() == vars.len(), vars.first()) {
                return self.recorded(first.tape(), &constants, &[]).map(drop);
            }
            let mut result = Ok(());
            // Without results, there is nothing to plan.
            let _ = self.device.compile(self.types(&constants, vars), |open: &Vec<Var>| {
                if let Some(first) = open.first() {
                    result = self.recorded(first.tape(), &constants, open).map(drop);
                }
                Vec::<Var>::new()
            });
            result
        };
        if records(&numbers).is_ok() {
            for at in numbers.clone() {
                let fewer: Vec<_> = numbers.iter().copied().filter(|&other| other != at).collect();
                if records(&fewer).is_ok() {
                    numbers = fewer;
                }
            }
            // A plan has an input.
            if numbers.len() < vars.len() {
                return Some(Form::Planned(numbers));
            }
        }
        self.recorded(vars.first()?.tape(), &[], vars).is_ok().then_some(Form::Recorded)
    }

    /// The types of the inputs that are no constants.
    fn types(&self, constants: &[Constant], vars: &[Var]) -> Vec<TensorType> {
        let float = self.device.precision().dtype();
        let is_open = |at: &usize| constants.iter().all(|(constant, _)| constant != at);
        let ty = |at: usize| TensorType::new(self.inputs[at].dtype(float), vars[at].shape());
        (0..vars.len()).filter(is_open).map(ty).collect()
    }

    fn compiled(&self, constants: &[Constant], vars: &[Var]) -> Result<Function> {
        let types = self.types(constants, vars);
        if types.is_empty() {
            bail!(Checkpoint, "the model has no inputs");
        }
        let mut failed = None;
        let compiled = self.device.compile(types, |open: &Vec<Var>| {
            self.recorded(open[0].tape(), constants, open).unwrap_or_else(|error| {
                failed = Some(error);
                Vec::new()
            })
        });
        failed.map_or(compiled, Err)
    }
}
