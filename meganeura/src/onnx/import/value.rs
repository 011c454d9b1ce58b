//! Values of a graph while it is recorded: known on the host, or on the tape.

use std::sync::Arc;

use super::element::{Element, Kind};
use crate::error::bail;
use crate::onnx::read::Numbers;
use crate::{DType, Error, ErrorKind, Result, Shape, Tape, Tensor, Var};

/// Small numbers, known on the host. Extents may be 0.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Array {
    pub(super) dims: Vec<usize>,
    pub(super) element: Element,
    pub(super) data: Data,
}

/// Numbers of an [`Array`]. Each is a value of its element type; conditions are 0 or 1.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Data {
    Floats(Vec<f64>),
    Ints(Vec<i64>),
}

/// The elements of a value on the tape.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Elements {
    /// Their type in the file.
    pub(super) element: Element,
    /// For integers, the smallest and the largest possible one.
    pub(super) bounds: [f64; 2],
}

/// A value of the graph.
///
/// On the tape, integers are indices (`u32`) as they were given, else floats with an integer value. Where
/// a float cannot hold an integer exactly, it is infinite or huge, never a rounded number. Conditions are 0 or 1.
#[derive(Clone)]
pub(super) enum Value {
    Known(Arc<Array>),
    Var(Var, Elements),
}

impl Elements {
    /// Any elements of a type.
    pub(super) fn any(element: Element) -> Self {
        Self { element, bounds: element.bounds() }
    }

    pub(super) fn kind(self) -> Kind {
        self.element.kind()
    }
}

/// The smallest integer range that contains both.
pub(super) fn union(a: [f64; 2], b: [f64; 2]) -> [f64; 2] {
    [a[0].min(b[0]), a[1].max(b[1])]
}

/// The largest integer below which a float of this type holds every integer, and every rounded result is above it if
/// the exact one is.
pub(super) fn exact_limit(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 9_007_199_254_740_991.0,
        _ => 16_777_215.0,
    }
}

impl Array {
    pub(super) fn new(dims: Vec<usize>, element: Element, numbers: Numbers) -> Self {
        let data = match numbers {
            Numbers::F32(numbers) => Data::Floats(numbers.into_iter().map(f64::from).collect()),
            Numbers::F64(numbers) => Data::Floats(numbers),
            Numbers::Ints(numbers) => Data::Ints(numbers),
        };
        Self { dims, element, data }
    }

    /// A vector of 64-bit integers.
    pub(super) fn ints(numbers: Vec<i64>) -> Self {
        Self { dims: vec![numbers.len()], element: Element::I64, data: Data::Ints(numbers) }
    }

    /// One 64-bit integer, of rank 0.
    pub(super) fn int(number: i64) -> Self {
        Self { dims: Vec::new(), element: Element::I64, data: Data::Ints(vec![number]) }
    }

    /// No elements, of these extents.
    pub(super) fn empty(dims: Vec<usize>, element: Element) -> Self {
        let data = if element.kind() == Kind::Float { Data::Floats(Vec::new()) } else { Data::Ints(Vec::new()) };
        Self { dims, element, data }
    }

    pub(super) fn len(&self) -> usize {
        match &self.data {
            Data::Floats(numbers) => numbers.len(),
            Data::Ints(numbers) => numbers.len(),
        }
    }

    pub(super) fn kind(&self) -> Kind {
        self.element.kind()
    }

    /// The integers or conditions, if the elements are no floats.
    pub(super) fn as_ints(&self) -> Option<&[i64]> {
        match &self.data {
            Data::Ints(numbers) => Some(numbers),
            Data::Floats(_) => None,
        }
    }

    /// All numbers as floats.
    #[expect(clippy::cast_precision_loss, reason = "integers that become floats are rounded")]
    pub(super) fn as_floats(&self) -> Vec<f64> {
        match &self.data {
            Data::Floats(numbers) => numbers.clone(),
            Data::Ints(numbers) => numbers.iter().map(|&number| number as f64).collect(),
        }
    }

    pub(super) fn elements(&self) -> Elements {
        let all = Elements::any(self.element);
        match &self.data {
            Data::Ints(numbers) if !numbers.is_empty() => {
                #[expect(clippy::cast_precision_loss, reason = "only bounds below 2^53 matter exactly")]
                let bound = |number: Option<&i64>| *number.expect("there are numbers") as f64;
                Elements { bounds: [bound(numbers.iter().min()), bound(numbers.iter().max())], ..all }
            }
            _ => all,
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

    /// The numbers on the tape, as floats. Integers must be exact.
    #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "inexact integers are refused")]
    fn floats(&self, tape: &Tape) -> Result<Var> {
        let (shape, numbers) = (self.shape()?, self.as_floats());
        if let Data::Ints(ints) = &self.data {
            let single = tape.device().precision().dtype() == DType::F32;
            let is_inexact = |&&number: &&i64| match single {
                // The index past every end is the only one that rounds to 2^32.
                true => i128::from(number) != (number as f32) as i128 && number != i64::from(u32::MAX),
                false => i128::from(number) != (number as f64) as i128,
            };
            if let Some(number) = ints.iter().find(is_inexact) {
                bail!(
                    Checkpoint,
                    "the integer {number} is computed with as a float, which cannot hold it exactly; integers have to \
                     be below 2^{}",
                    if single { 24 } else { 53 }
                );
            }
        }
        if let [number] = numbers[..] {
            // A constant of the program.
            return Ok(tape.constant(number).reshape(shape));
        }
        sound(tape.input(&Tensor::from_f64(&tape.device(), shape, &numbers)?))
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
        sound(tape.input(&Tensor::indices(&tape.device(), shape, &numbers)?))
    }
}

/// A value whose shape may be relied on: the error of a poisoned one is returned.
pub(super) fn sound(var: Var) -> Result<Var> {
    match var.error() {
        None => Ok(var),
        Some(error) => Err(Error::new(ErrorKind::Checkpoint, error.to_string())),
    }
}

impl Value {
    pub(super) fn element(&self) -> Element {
        self.elements().element
    }

    pub(super) fn kind(&self) -> Kind {
        self.element().kind()
    }

    pub(super) fn elements(&self) -> Elements {
        match self {
            Self::Known(array) => array.elements(),
            Self::Var(_, elements) => *elements,
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

    /// The numbers, computed now if they are on the tape. Fails if they depend on an input without a value.
    pub(super) fn read(&self) -> Result<Arc<Array>> {
        let (var, element) = match self {
            Self::Known(array) => return Ok(Arc::clone(array)),
            Self::Var(var, elements) => (var, elements.element),
        };
        let tensor = var.to_tensor()?;
        let data = match tensor.ty().dtype {
            DType::U32 => Data::Ints(tensor.to_u32_vec()?.into_iter().map(i64::from).collect()),
            _ if element.kind() == Kind::Float => Data::Floats(tensor.to_f64_vec()?),
            _ => Data::Ints(tensor.to_f64_vec()?.into_iter().map(whole).collect::<Result<_>>()?),
        };
        Ok(Arc::new(Array { dims: tensor.shape().dims().to_vec(), element, data }))
    }

    /// The value on the tape, as floats: integers are rounded to the nearest float.
    pub(super) fn float(&self, tape: &Tape) -> Result<Var> {
        match self {
            Self::Known(array) => array.floats(tape),
            Self::Var(var, _) if var.ty().dtype == DType::U32 => Ok(var.to_float()),
            Self::Var(var, _) => Ok(var.clone()),
        }
    }

    /// The value on the tape, as floats to compute with: integers that have no exact float are infinite.
    pub(super) fn exact(&self, tape: &Tape) -> Result<Var> {
        let x = self.float(tape)?;
        // Every other integer is exact, or infinite already.
        match self {
            Self::Var(var, elements) if var.ty().dtype == DType::U32 => Ok(exactly(&x, elements.bounds)),
            _ => Ok(x),
        }
    }

    /// The value on the tape as an output of the model: integers as indices, or as floats if they may be negative.
    pub(super) fn result(&self, tape: &Tape) -> Result<Var> {
        match self {
            Self::Known(array) if array.kind() == Kind::Int && array.elements().bounds[0] >= 0.0 => array.indices(tape),
            Self::Known(array) => array.floats(tape),
            Self::Var(var, elements) if elements.kind() == Kind::Int && elements.bounds[0] >= 0.0 => {
                Ok(if var.ty().dtype.is_float() { var.to_index() } else { var.clone() })
            }
            Self::Var(..) => self.float(tape),
        }
    }
}

/// An integer that is held as a float.
#[expect(clippy::cast_possible_truncation, reason = "a whole number of less than 63 bits")]
fn whole(number: f64) -> Result<i64> {
    if number.fract() != 0.0 || number.abs() >= 2f64.powi(62) {
        bail!(Checkpoint, "{number} stands for an integer that has no exact float");
    }
    Ok(number as i64)
}

/// `x`, an integer within these bounds, as infinite or huge where a float cannot hold it exactly: comparisons stay
/// right, and no other result passes for a number.
pub(super) fn exactly(x: &Var, bounds: [f64; 2]) -> Var {
    let limit = exact_limit(x.ty().dtype);
    let mut y = x.clone();
    if bounds[1] > limit {
        y = x.gt(&x.constant(limit)).where_cond(&far(x), &y);
    }
    if bounds[0] < -limit {
        y = x.lt(&x.constant(-limit)).where_cond(&far(x), &y);
    }
    y
}

/// Overflows in single precision for every integer that has no exact float, and keeps the sign.
pub(super) fn far(x: &Var) -> Var {
    x.scale(1e38)
}
