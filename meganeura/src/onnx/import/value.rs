//! Values of a graph while it is recorded: known on the host, or on the tape.

use std::sync::Arc;

use super::element::{Element, Kind};
use super::texts::Texts;
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

/// Numbers of an [`Array`]. Each is a value of its element type; conditions are 0 or 1. Those of `uint64` are their 64
/// bits.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Data {
    Floats(Vec<f64>),
    Ints(Vec<i64>),
}

/// A value of the graph.
///
/// On the tape, floats have the device's precision, and conditions are floats, 0 or 1. Integers have the type
/// [`Element::dtype`], and so have the numbers of texts. Indices that operations return stay `u32`, and quantised
/// numbers, which have at most 16 bits, may be whole floats. [`Value::own`] converts them.
#[derive(Clone)]
pub(super) enum Value {
    Known(Arc<Array>),
    Var(Var, Element),
    /// Tensors, and the type of their elements.
    Sequence(Arc<[Value]>, Element),
    /// An optional value that is left out.
    Nothing(Element),
}

impl Array {
    pub(super) fn new(dims: Vec<usize>, element: Element, numbers: Numbers, texts: &mut Texts) -> Self {
        let data = match numbers {
            Numbers::F32(numbers) => Data::Floats(numbers.into_iter().map(f64::from).collect()),
            Numbers::F64(numbers) => Data::Floats(numbers),
            Numbers::Ints(numbers) => Data::Ints(numbers),
            Numbers::Texts(all) => return texts.array(dims, &all),
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

    /// `true` if a number of `uint64` is above 2⁶³ − 1.
    pub(super) fn is_beyond_i64(&self) -> bool {
        self.element == Element::U64 && self.as_ints().is_some_and(|ints| ints.iter().any(|int| int.is_negative()))
    }

    /// All numbers as floats.
    #[expect(clippy::cast_precision_loss, reason = "integers that become floats are rounded")]
    pub(super) fn as_floats(&self) -> Vec<f64> {
        match &self.data {
            Data::Floats(numbers) => numbers.clone(),
            Data::Ints(numbers) if self.element == Element::U64 => {
                numbers.iter().map(|&number| number.cast_unsigned() as f64).collect()
            }
            Data::Ints(numbers) => numbers.iter().map(|&number| number as f64).collect(),
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

    /// The numbers on the tape, as floats: integers are rounded to the nearest one.
    fn floats(&self, tape: &Tape) -> Result<Var> {
        let (shape, numbers) = (self.shape()?, self.as_floats());
        if let [number] = numbers[..] {
            // A constant of the program.
            return Ok(tape.constant(number).reshape(shape));
        }
        sound(tape.input(&Tensor::from_f64(&tape.device(), shape, &numbers)?))
    }

    /// The numbers on the tape, in the type that they have there.
    #[expect(clippy::cast_possible_truncation, reason = "integers of at most 32 bits")]
    pub(super) fn own(&self, tape: &Tape) -> Result<Var> {
        let Some(dtype) = self.element.integer_dtype() else { return self.floats(tape) };
        let (shape, ints) = (self.shape()?, self.as_ints().unwrap_or_default());
        let device = tape.device();
        let tensor = match dtype {
            DType::I32 => Tensor::from_i32(&device, shape, &ints.iter().map(|&int| int as i32).collect::<Vec<_>>())?,
            _ => Tensor::from_i64(&device, shape, ints)?,
        };
        sound(tape.input(&tensor))
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
        match self {
            Self::Known(array) => array.element,
            Self::Var(_, element) | Self::Sequence(_, element) | Self::Nothing(element) => *element,
        }
    }

    pub(super) fn kind(&self) -> Kind {
        self.element().kind()
    }

    /// The extents along each axis.
    pub(super) fn dims(&self) -> Vec<usize> {
        match self {
            Self::Known(array) => array.dims.clone(),
            Self::Var(var, _) => var.shape().dims().to_vec(),
            Self::Sequence(items, _) => vec![items.len()],
            Self::Nothing(_) => Vec::new(),
        }
    }

    /// The number of elements on the tape.
    pub(super) fn elements(&self) -> usize {
        match self {
            Self::Known(_) | Self::Nothing(_) => 0,
            Self::Var(var, _) => var.shape().elements(),
            Self::Sequence(items, _) => items.iter().fold(0, |sum, item| sum.saturating_add(item.elements())),
        }
    }

    /// The error of a value on the tape, if there is one.
    pub(super) fn error(&self) -> Option<Error> {
        match self {
            Self::Known(_) | Self::Nothing(_) => None,
            Self::Var(var, _) => var.error(),
            Self::Sequence(items, _) => items.iter().find_map(Self::error),
        }
    }

    /// `true` if the numbers are known, and no tensor has more than `most` of them.
    pub(super) fn is_known(&self, most: usize) -> bool {
        match self {
            Self::Known(array) => array.len() <= most,
            Self::Var(..) => false,
            Self::Sequence(items, _) => items.iter().all(|item| item.is_known(most)),
            Self::Nothing(_) => true,
        }
    }

    /// The value with its numbers, computed now if they are on the tape.
    pub(super) fn known(&self, tape: &Tape) -> Result<Self> {
        Ok(match self {
            Self::Var(..) => Self::Known(self.read(tape)?),
            Self::Sequence(items, element) => {
                Self::Sequence(items.iter().map(|item| item.known(tape)).collect::<Result<_>>()?, *element)
            }
            Self::Known(_) | Self::Nothing(_) => self.clone(),
        })
    }

    /// The numbers, computed now if they are on the tape. Fails if they depend on an input without a value.
    pub(super) fn read(&self, tape: &Tape) -> Result<Arc<Array>> {
        let element = match self {
            Self::Known(array) => return Ok(Arc::clone(array)),
            value => value.element(),
        };
        let tensor = self.own(tape)?.to_tensor()?;
        let data = match element.kind() {
            Kind::Float => Data::Floats(tensor.to_f64_vec()?),
            Kind::Bool => Data::Ints(tensor.to_f64_vec()?.into_iter().map(|number| i64::from(number != 0.0)).collect()),
            Kind::Int | Kind::Text => Data::Ints(tensor.to_i64_vec()?),
        };
        Ok(Arc::new(Array { dims: tensor.shape().dims().to_vec(), element, data }))
    }

    /// The value on the tape, as floats: integers are rounded to the nearest one.
    pub(super) fn float(&self, tape: &Tape) -> Result<Var> {
        match self {
            Self::Known(array) => array.floats(tape),
            Self::Var(var, _) if var.ty().dtype.is_float() => Ok(var.clone()),
            Self::Var(var, Element::U64) => {
                // The highest bit is no sign.
                let x = var.to_float();
                Ok(x.lt(x.constant(0.0)).where_cond(&(&x + x.constant(2f64.powi(64))), &x))
            }
            Self::Var(var, _) => Ok(var.to_float()),
            Self::Sequence(..) | Self::Nothing(_) => Err(no_tensor()),
        }
    }

    /// The value on the tape, in the type of its elements there: see [`Element::dtype`].
    pub(super) fn own(&self, tape: &Tape) -> Result<Var> {
        match self {
            Self::Known(array) => array.own(tape),
            Self::Sequence(..) | Self::Nothing(_) => Err(no_tensor()),
            Self::Var(var, element) => Ok(element.integer_dtype().map_or_else(|| var.clone(), |dtype| var.cast(dtype))),
        }
    }

    /// The value on the tape, in whichever type it has.
    pub(super) fn stored(&self, tape: &Tape) -> Result<Var> {
        match self {
            Self::Known(array) => array.own(tape),
            Self::Var(var, _) => Ok(var.clone()),
            Self::Sequence(..) | Self::Nothing(_) => Err(no_tensor()),
        }
    }
}

/// The error for a sequence where a tensor belongs.
fn no_tensor() -> Error {
    Error::new(ErrorKind::Checkpoint, "a sequence, or nothing, where a tensor must be".to_owned())
}

/// `x`, integers in the type of the tape, as those of an element type that may be narrower: they wrap around.
pub(super) fn wrapped(x: &Var, element: Element) -> Var {
    let Some((bits, is_signed)) = element.integer() else { return x.clone() };
    match (x.ty().dtype, bits) {
        (DType::I32, 32) | (_, 64) => x.clone(),
        (dtype, bits) if is_signed => {
            let all = if dtype == DType::I32 { 32 } else { 64 };
            let places = x.constant(f64::from(all - bits));
            x.shift_left(&places).shift_right(&places)
        }
        (_, bits) => x.bitwise_and(&x.constant(2f64.powi(bits.cast_signed()) - 1.0)),
    }
}
