//! Calls of a model with values of any kind: texts, sequences, optional values, tensors without elements.

use std::collections::HashMap;
use std::sync::Arc;

use super::element::Kind;
use super::port::Port;
use super::texts::Texts;
use super::value::{Array, Value};
use super::{Model, entered};
use crate::error::{bail, here};
use crate::onnx::Item;
use crate::{Error, Result, Tape};

impl Model {
    /// Computes the outputs for inputs of any kind that the file allows. The model is recorded for each call, so
    /// [`run`](Self::run) is faster if all inputs and outputs are tensors of numbers.
    ///
    /// Texts, lengths of sequences and optional values are known while the model is recorded, as are the numbers of all
    /// inputs.
    ///
    /// ```
    /// use meganeura::onnx::{self, Item, Model};
    /// use meganeura::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let bytes = onnx::export(&device, [1, 3], |x| x * 2.0)?.to_bytes()?;
    /// let model = Model::from_bytes(&device, &bytes)?;
    /// let outputs = model.evaluate(&[Tensor::full(&device, [1, 3], 1.5)?.into()])?;
    /// assert_eq!(outputs[0].as_tensor().expect("a tensor").to_vec()?, [3.0; 3]);
    /// # Ok::<(), meganeura::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Argument`](crate::ErrorKind::Argument) if the file does not allow an input. Fails like
    /// [`compile_for`](Self::compile_for), and if the device fails.
    #[track_caller]
    pub fn evaluate(&self, inputs: &[Item]) -> Result<Vec<Item>> {
        here(|| {
            if inputs.len() != self.inputs.len() {
                bail!(Argument, "{} inputs, but the model has {}", inputs.len(), self.inputs.len());
            }
            let (tape, recording) = (Tape::inference(&self.device), self.recording());
            let mut extents = HashMap::new();
            let mut given = Vec::new();
            for (port, item) in self.inputs.iter().zip(inputs) {
                given.push((port.name(), entering(port, item, &tape, &mut recording.texts.borrow_mut())?));
                if let (true, Some((_, Value::Var(var, _)))) = (port.is_tensor(), given.last()) {
                    port.expect(var, &mut extents)?;
                }
            }
            let values = self.values(&tape, &recording, given)?;
            let leaving = |(port, value): (&Port, Value)| {
                let within = |error: Error| error.context(format_args!("output {port}"));
                leaving(&value, &tape, &recording.texts.borrow()).map_err(within)
            };
            self.outputs.iter().zip(values).map(leaving).collect()
        })
    }
}

/// An input as a value of the graph.
fn entering(port: &Port, item: &Item, tape: &Tape, texts: &mut Texts) -> Result<Value> {
    let element = port.element();
    let single = |item: &Item, texts: &mut Texts| match item {
        Item::Tensor(tensor) if element.kind() != Kind::Text => {
            let var = tape.input(tensor);
            if let Some(error) = var.error() {
                return Err(error);
            }
            if element.kind() == Kind::Float && !var.ty().dtype.is_float() {
                bail!(Argument, "input {port} is given {}", var.ty());
            }
            Ok(Value::Var(entered(&var, element), element))
        }
        Item::Empty(dims) if element.kind() != Kind::Text && dims.contains(&0) => {
            Ok(Value::Known(Arc::new(Array::empty(dims.clone(), element))))
        }
        Item::Texts(dims, given) if element.kind() == Kind::Text => {
            if dims.iter().try_fold(1usize, |count, &extent| count.checked_mul(extent)) != Some(given.len()) {
                bail!(Argument, "input {port} is given {} texts of extents {dims:?}", given.len());
            }
            Ok(Value::Known(Arc::new(texts.array(dims.clone(), given))))
        }
        other => bail!(Argument, "input {port} is given {}", described(other)),
    };
    match item {
        Item::Nothing if port.is_optional() => Ok(Value::Nothing(element)),
        Item::Sequence(items) if port.is_sequence() => {
            let items = items.iter().map(|item| single(item, texts)).collect::<Result<Vec<_>>>()?;
            Ok(Value::Sequence(items.into(), element))
        }
        Item::Sequence(_) | Item::Nothing => bail!(Argument, "input {port} is given {}", described(item)),
        _ if port.is_sequence() => bail!(Argument, "input {port} is given {}", described(item)),
        item => {
            let value = single(item, texts)?;
            if !port.allows(&value.dims()) {
                bail!(Argument, "input {port} is given {}", described(item));
            }
            Ok(value)
        }
    }
}

/// A value of the graph as an output.
fn leaving(value: &Value, tape: &Tape, texts: &Texts) -> Result<Item> {
    Ok(match value {
        Value::Nothing(_) => Item::Nothing,
        Value::Sequence(items, _) => {
            Item::Sequence(items.iter().map(|item| leaving(item, tape, texts)).collect::<Result<_>>()?)
        }
        value if value.kind() == Kind::Text => {
            let array = value.read(tape)?;
            let all = texts.of(&array)?.iter().map(ToString::to_string).collect();
            Item::Texts(array.dims.clone(), all)
        }
        Value::Known(array) if array.len() == 0 => Item::Empty(array.dims.clone()),
        value => Item::Tensor(value.own(tape)?.to_tensor()?),
    })
}

/// What an item is, for messages.
fn described(item: &Item) -> String {
    match item {
        Item::Tensor(tensor) => tensor.ty().to_string(),
        Item::Empty(dims) => format!("a tensor of extents {dims:?}"),
        Item::Texts(dims, _) => format!("texts {dims:?}"),
        Item::Sequence(items) => format!("a sequence of {}", items.len()),
        Item::Nothing => "nothing".to_owned(),
    }
}
