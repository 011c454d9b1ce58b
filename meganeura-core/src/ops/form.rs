//! The ONNX form of an operation: nodes and constants as data. Knows neither the file format nor any operation.
//!
//! `Primitive::onnx` appends an operation's nodes to a [`Form`]. The encoder of the form
//! names its values.

use crate::ops::Exact;
use crate::{DType, Shape, TensorType};

/// A value of a [`Form`], by number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Value(pub(crate) usize);

/// An operand as the operation sees it.
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    /// The value after broadcasting.
    pub value: Value,
    /// Its type.
    pub ty: TensorType,
    /// The value before it was broadcast to that type, for ONNX operators that broadcast by themselves.
    pub narrow: (Value, Shape),
}

/// An attribute of a node.
#[derive(Clone, PartialEq, Debug)]
pub enum Attribute {
    /// An integer.
    Int(i64),
    /// Several integers.
    Ints(Vec<i64>),
    /// A float.
    Float(f64),
    /// A string.
    Text(&'static str),
}

/// A call of an operator.
#[derive(Clone, PartialEq, Debug)]
pub struct Node {
    pub op: &'static str,
    /// `None` for an optional operand that is left out.
    pub inputs: Vec<Option<Value>>,
    pub outputs: Vec<Value>,
    pub attributes: Vec<(&'static str, Attribute)>,
}

/// Numbers that are part of the program.
#[derive(Clone, PartialEq, Debug)]
pub enum Constant {
    /// Integers: extents, axes, indices.
    Ints(Shape, Vec<i64>),
    /// Floats of a type, compared by their bits.
    Floats(TensorType, Vec<Exact>),
}

/// Nodes in topological order, operands first.
#[derive(Debug, Default)]
pub struct Form {
    pub nodes: Vec<Node>,
    pub constants: Vec<(Value, Constant)>,
    values: usize,
}

/// An extent or an index as an ONNX integer.
#[doc(hidden)]
pub fn int(number: usize) -> i64 {
    i64::try_from(number).expect("extents are far below 2^63")
}

/// Extents or indices as ONNX integers.
#[doc(hidden)]
pub fn ints(numbers: &[usize]) -> Vec<i64> {
    numbers.iter().copied().map(int).collect()
}

/// The number of a type among ONNX's element types, for the operator `Cast`. Indices are `int64`, because ONNX's
/// indexing operators accept no `uint32`.
#[doc(hidden)]
pub const fn element(dtype: DType) -> i64 {
    match dtype {
        DType::F32 => 1,
        DType::F64 => 11,
        DType::I32 => 6,
        DType::U32 | DType::I64 => 7,
    }
}

/// The number of ONNX's boolean type.
const BOOL: i64 = 9;

/// The number of ONNX's integers of 8 bits without a sign.
const UINT8: i64 = 2;

impl Form {
    /// A new value.
    #[doc(hidden)]
    pub fn value(&mut self) -> Value {
        self.values += 1;
        Value(self.values - 1)
    }

    /// Appends a node with one result.
    pub(crate) fn node(
        &mut self,
        op: &'static str,
        inputs: &[Value],
        attributes: Vec<(&'static str, Attribute)>,
    ) -> Value {
        let inputs = inputs.iter().copied().map(Some).collect();
        self.optional(op, inputs, 1, attributes).swap_remove(0)
    }

    /// Appends a node with optional operands, and with several results.
    pub(crate) fn optional(
        &mut self,
        op: &'static str,
        inputs: Vec<Option<Value>>,
        results: usize,
        attributes: Vec<(&'static str, Attribute)>,
    ) -> Vec<Value> {
        let outputs: Vec<_> = (0..results).map(|_| self.value()).collect();
        self.nodes.push(Node { op, inputs, outputs: outputs.clone(), attributes });
        outputs
    }

    fn constant(&mut self, constant: Constant) -> Value {
        let value = self.value();
        self.constants.push((value, constant));
        value
    }

    /// A vector of integers.
    pub(crate) fn ints(&mut self, numbers: Vec<i64>) -> Value {
        self.constant(Constant::Ints(Shape::from([numbers.len()]), numbers))
    }

    /// One integer, of rank 0.
    pub(crate) fn int(&mut self, number: i64) -> Value {
        self.constant(Constant::Ints(Shape::SCALAR, vec![number]))
    }

    /// Floats of a type, in row-major order.
    pub(crate) fn floats(&mut self, ty: TensorType, numbers: Vec<f64>) -> Value {
        self.constant(Constant::Floats(ty, numbers.into_iter().map(Exact).collect()))
    }

    /// One float of a type, of rank 0.
    #[doc(hidden)]
    pub fn float(&mut self, dtype: DType, number: f64) -> Value {
        self.floats(TensorType::new(dtype, Shape::SCALAR), vec![number])
    }

    /// One number of any type, of rank 0.
    pub(crate) fn number_as(&mut self, dtype: DType, number: f64) -> Value {
        match dtype.integer(number) {
            None => self.float(dtype, number),
            Some(integer) if dtype == DType::I32 => {
                let integer = self.int(integer);
                self.cast(integer, dtype)
            }
            Some(integer) => self.int(integer),
        }
    }

    /// The elements of a value in another shape.
    pub(crate) fn reshape(&mut self, x: Value, shape: Shape) -> Value {
        let shape = self.ints(ints(shape.dims()));
        self.node("Reshape", &[x, shape], Vec::new())
    }

    /// A value cast to a type.
    pub(crate) fn cast(&mut self, x: Value, dtype: DType) -> Value {
        self.node("Cast", &[x], vec![("to", Attribute::Int(element(dtype)))])
    }

    /// A value as bytes without a sign; of a condition, 0 or 1, which ONNX's reductions accept.
    pub(crate) fn bytes(&mut self, x: Value) -> Value {
        self.node("Cast", &[x], vec![("to", Attribute::Int(UINT8))])
    }

    /// A condition that is true where a number is not 0.
    pub(crate) fn condition(&mut self, x: Value) -> Value {
        // A number that was converted from a condition yields that condition.
        self.converted(x).unwrap_or_else(|| self.node("Cast", &[x], vec![("to", Attribute::Int(BOOL))]))
    }

    /// `true` for numbers that were converted from a condition: 0 or 1.
    pub(crate) fn is_truth(&self, x: Value) -> bool {
        self.converted(x).is_some()
    }

    /// The condition that a number was converted from.
    fn converted(&self, x: Value) -> Option<Value> {
        let made = self.nodes.iter().rev().take(64).find(|node| node.outputs == [x])?;
        match made.inputs[..] {
            [Some(condition)] if made.op == "Cast" && self.is_condition(condition) => Some(condition),
            _ => None,
        }
    }

    /// The number that fills a value, if it is a constant of one element.
    pub(crate) fn number(&self, x: Value) -> Option<f64> {
        let (_, constant) = self.constants.iter().rev().find(|(value, _)| *value == x)?;
        match constant {
            Constant::Floats(_, numbers) if numbers.len() == 1 => Some(numbers[0].0),
            _ => None,
        }
    }

    fn is_condition(&self, x: Value) -> bool {
        let made = self.nodes.iter().rev().take(64).find(|node| node.outputs == [x]);
        made.is_some_and(|node| CONDITIONS.contains(&node.op))
    }
}

/// Operators with boolean results.
const CONDITIONS: [&str; 7] = ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Not", "IsNaN"];

/// A value for each result of an operation, `None` for those without an ONNX form.
pub type Results = Vec<Option<Value>>;

/// The form of an operation with one result.
#[expect(clippy::unnecessary_wraps, reason = "what `Primitive::onnx` returns")]
pub(crate) fn only(value: Value) -> Option<Results> {
    Some(vec![Some(value)])
}

impl Operand {
    /// The operands of an operator that broadcasts by itself to a result of this shape.
    pub(crate) fn broadcast(x: &[Self], shape: Shape) -> Vec<Value> {
        let narrow = x.iter().try_fold(Shape::SCALAR, |shape, operand| shape.broadcast(&operand.narrow.1));
        let full = |k: usize| k == 0 && narrow != Some(shape);
        x.iter().enumerate().map(|(k, x)| if full(k) { x.value } else { x.narrow.0 }).collect()
    }
}
