//! Values of a graph while it is recorded: known on the host, or on the tape.

use std::sync::Arc;

use crate::error::bail;
use crate::onnx::read::Numbers;
use crate::{DType, Error, Result, Shape, Tape, Tensor, Var};

/// The kind of a value's elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::onnx) enum Kind {
    Float,
    /// On the tape, an index as it was given, else a float with an integer value.
    Int,
    /// On the tape, 0 or 1.
    Bool,
}

/// Small numbers, known on the host. Extents may be 0.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Array {
    pub(super) dims: Vec<usize>,
    pub(super) data: Data,
}

/// Numbers of an [`Array`].
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Data {
    Floats(Vec<f64>),
    Ints(Vec<i64>),
    Bools(Vec<i64>),
}

/// A value of the graph.
#[derive(Clone)]
pub(super) enum Value {
    Known(Arc<Array>),
    Var(Var, Kind),
}

impl Array {
    pub(super) fn new(dims: Vec<usize>, numbers: Numbers) -> Self {
        let data = match numbers {
            Numbers::F32(numbers) => Data::Floats(numbers.into_iter().map(f64::from).collect()),
            Numbers::F64(numbers) => Data::Floats(numbers),
            Numbers::Ints(numbers) => Data::Ints(numbers),
            Numbers::Bools(numbers) => Data::Bools(numbers),
        };
        Self { dims, data }
    }

    /// A vector of integers.
    pub(super) fn ints(numbers: Vec<i64>) -> Self {
        Self { dims: vec![numbers.len()], data: Data::Ints(numbers) }
    }

    pub(super) fn len(&self) -> usize {
        match &self.data {
            Data::Floats(numbers) => numbers.len(),
            Data::Ints(numbers) | Data::Bools(numbers) => numbers.len(),
        }
    }

    pub(super) fn kind(&self) -> Kind {
        match self.data {
            Data::Floats(_) => Kind::Float,
            Data::Ints(_) => Kind::Int,
            Data::Bools(_) => Kind::Bool,
        }
    }

    /// The integers, if the elements are integers.
    pub(super) fn as_ints(&self) -> Option<&[i64]> {
        match &self.data {
            Data::Ints(numbers) | Data::Bools(numbers) => Some(numbers),
            Data::Floats(_) => None,
        }
    }

    /// All numbers as floats.
    #[expect(clippy::cast_precision_loss, reason = "integers that become floats are rounded")]
    pub(super) fn as_floats(&self) -> Vec<f64> {
        match &self.data {
            Data::Floats(numbers) => numbers.clone(),
            Data::Ints(numbers) | Data::Bools(numbers) => numbers.iter().map(|&number| number as f64).collect(),
        }
    }

    pub(super) fn shape(&self) -> Result<Shape> {
        let Some(shape) = Shape::try_new(&self.dims) else {
            bail!(Checkpoint, "{} axes are too many for a value", self.dims.len());
        };
        if self.len() == 0 {
            bail!(Checkpoint, "an operand is a constant {shape} without elements");
        }
        Ok(shape)
    }

    /// The numbers on the tape, as floats.
    fn floats(&self, tape: &Tape) -> Result<Var> {
        let (shape, numbers) = (self.shape()?, self.as_floats());
        if let [number] = numbers[..] {
            // A constant of the program.
            return Ok(tape.constant(number).reshape(shape));
        }
        Ok(tape.input(&Tensor::from_f64(&tape.device(), shape, &numbers)?))
    }

    /// The numbers on the tape, as indices.
    pub(super) fn indices(&self, tape: &Tape) -> Result<Var> {
        let shape = self.shape()?;
        let Some(numbers) = self.as_ints() else { bail!(Checkpoint, "floats cannot be indices") };
        let index = |&number: &i64| match u32::try_from(number) {
            Ok(index) => Ok(index),
            Err(_) => bail!(Checkpoint, "{number} is not an index"),
        };
        let numbers = numbers.iter().map(index).collect::<Result<Vec<_>>>()?;
        Ok(tape.input(&Tensor::indices(&tape.device(), shape, &numbers)?))
    }
}

impl Value {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Known(array) => array.kind(),
            Self::Var(_, kind) => *kind,
        }
    }

    /// The extents along each axis.
    pub(super) fn dims(&self) -> Vec<usize> {
        match self {
            Self::Known(array) => array.dims.clone(),
            Self::Var(var, _) => var.shape().dims().to_vec(),
        }
    }

    /// The error of a value on the tape, if there is one.
    pub(super) fn error(&self) -> Option<Error> {
        match self {
            Self::Known(_) => None,
            Self::Var(var, _) => var.error(),
        }
    }

    /// The value on the tape, as floats.
    pub(super) fn float(&self, tape: &Tape) -> Result<Var> {
        match self {
            Self::Known(array) => array.floats(tape),
            Self::Var(var, _) if var.ty().dtype == DType::U32 => Ok(var.to_float()),
            Self::Var(var, _) => Ok(var.clone()),
        }
    }

    /// The value on the tape as an output of the model: integers as indices.
    pub(super) fn result(&self, tape: &Tape) -> Result<Var> {
        match self {
            Self::Known(array) if array.kind() == Kind::Int => array.indices(tape),
            Self::Var(var, Kind::Int) if var.ty().dtype.is_float() => Ok(var.to_index()),
            _ => match self {
                Self::Var(var, Kind::Int) => Ok(var.clone()),
                _ => self.float(tape),
            },
        }
    }
}
