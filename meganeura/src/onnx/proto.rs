//! The ONNX messages that are read and written: `onnx.proto3` without unused fields. Owns the format, and knows no
//! operation.
//!
//! Other fields are skipped. A field that changes the meaning of others is included even if every use of it is refused.

use prost::bytes::Bytes;

/// A file.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Model {
    #[prost(int64, tag = "1")]
    pub(super) ir_version: i64,
    #[prost(string, tag = "2")]
    pub(super) producer_name: String,
    #[prost(string, tag = "3")]
    pub(super) producer_version: String,
    #[prost(message, optional, tag = "7")]
    pub(super) graph: Option<Graph>,
    #[prost(message, repeated, tag = "8")]
    pub(super) opset_import: Vec<OperatorSet>,
    #[prost(message, repeated, tag = "25")]
    pub(super) functions: Vec<Function>,
}

/// An operator that the file defines by nodes.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Function {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, repeated, tag = "4")]
    pub(super) input: Vec<String>,
    #[prost(string, repeated, tag = "5")]
    pub(super) output: Vec<String>,
    #[prost(string, repeated, tag = "6")]
    pub(super) attribute: Vec<String>,
    #[prost(message, repeated, tag = "7")]
    pub(super) node: Vec<Node>,
    #[prost(message, repeated, tag = "9")]
    pub(super) opset_import: Vec<OperatorSet>,
    #[prost(string, tag = "10")]
    pub(super) domain: String,
    /// Attributes with defaults.
    #[prost(message, repeated, tag = "11")]
    pub(super) attribute_proto: Vec<Attribute>,
}

/// The version of an operator set.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct OperatorSet {
    #[prost(string, tag = "1")]
    pub(super) domain: String,
    #[prost(int64, tag = "2")]
    pub(super) version: i64,
}

/// Nodes with what goes in and out. Those of files may be in any order.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Graph {
    #[prost(message, repeated, tag = "1")]
    pub(super) node: Vec<Node>,
    #[prost(string, tag = "2")]
    pub(super) name: String,
    #[prost(message, repeated, tag = "5")]
    pub(super) initializer: Vec<Tensor>,
    #[prost(message, repeated, tag = "11")]
    pub(super) input: Vec<ValueInfo>,
    #[prost(message, repeated, tag = "12")]
    pub(super) output: Vec<ValueInfo>,
    #[prost(message, repeated, tag = "15")]
    pub(super) sparse_initializer: Vec<Present>,
}

/// A message whose content does not matter.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Present {}

/// A call of an operator.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Node {
    #[prost(string, repeated, tag = "1")]
    pub(super) input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub(super) output: Vec<String>,
    #[prost(string, tag = "3")]
    pub(super) name: String,
    #[prost(string, tag = "4")]
    pub(super) op_type: String,
    #[prost(message, repeated, tag = "5")]
    pub(super) attribute: Vec<Attribute>,
    #[prost(string, tag = "7")]
    pub(super) domain: String,
}

/// An attribute of a node. Its value is in the field that `kind` names.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Attribute {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(float, optional, tag = "2")]
    pub(super) f: Option<f32>,
    #[prost(int64, optional, tag = "3")]
    pub(super) i: Option<i64>,
    #[prost(bytes = "bytes", optional, tag = "4")]
    pub(super) s: Option<Bytes>,
    #[prost(message, optional, boxed, tag = "5")]
    pub(super) t: Option<Box<Tensor>>,
    #[prost(message, optional, boxed, tag = "6")]
    pub(super) g: Option<Box<Graph>>,
    #[prost(float, repeated, packed = "false", tag = "7")]
    pub(super) floats: Vec<f32>,
    #[prost(int64, repeated, packed = "false", tag = "8")]
    pub(super) ints: Vec<i64>,
    #[prost(bytes = "bytes", repeated, tag = "9")]
    pub(super) strings: Vec<Bytes>,
    #[prost(int32, tag = "20")]
    pub(super) kind: i32,
    #[prost(string, tag = "21")]
    pub(super) ref_attr_name: String,
}

/// The values of [`Attribute::kind`].
pub(super) mod attribute {
    pub(in crate::onnx) const FLOAT: i32 = 1;
    pub(in crate::onnx) const INT: i32 = 2;
    pub(in crate::onnx) const STRING: i32 = 3;
    pub(in crate::onnx) const GRAPH: i32 = 5;
    pub(in crate::onnx) const FLOATS: i32 = 6;
    pub(in crate::onnx) const INTS: i32 = 7;
    pub(in crate::onnx) const STRINGS: i32 = 8;
}

/// Numbers, in the file or in a separate one.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Tensor {
    #[prost(int64, repeated, packed = "false", tag = "1")]
    pub(super) dims: Vec<i64>,
    #[prost(int32, tag = "2")]
    pub(super) data_type: i32,
    #[prost(float, repeated, tag = "4")]
    pub(super) float_data: Vec<f32>,
    #[prost(int32, repeated, tag = "5")]
    pub(super) int32_data: Vec<i32>,
    #[prost(bytes = "bytes", repeated, tag = "6")]
    pub(super) string_data: Vec<Bytes>,
    #[prost(int64, repeated, tag = "7")]
    pub(super) int64_data: Vec<i64>,
    #[prost(string, tag = "8")]
    pub(super) name: String,
    #[prost(bytes = "bytes", tag = "9")]
    pub(super) raw_data: Bytes,
    #[prost(double, repeated, tag = "10")]
    pub(super) double_data: Vec<f64>,
    #[prost(uint64, repeated, tag = "11")]
    pub(super) uint64_data: Vec<u64>,
    #[prost(message, repeated, tag = "13")]
    pub(super) external_data: Vec<Entry>,
    #[prost(int32, tag = "14")]
    pub(super) data_location: i32,
}

/// The value of [`Tensor::data_location`] for numbers in a separate file.
pub(super) const EXTERNAL: i32 = 1;

/// A key and its value.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Entry {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
}

/// An input or output of a graph.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ValueInfo {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(message, optional, tag = "2")]
    pub(super) ty: Option<Type>,
}

/// The type of a value: one of these, or that of a map.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Type {
    #[prost(message, optional, tag = "1")]
    pub(super) tensor: Option<TensorType>,
    #[prost(message, optional, tag = "4")]
    pub(super) sequence: Option<Nested>,
    #[prost(message, optional, tag = "9")]
    pub(super) optional: Option<Nested>,
}

/// The type inside that of a sequence or an optional value.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Nested {
    #[prost(message, optional, boxed, tag = "1")]
    pub(super) elem_type: Option<Box<Type>>,
}

/// The type of a tensor.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct TensorType {
    #[prost(int32, tag = "1")]
    pub(super) elem_type: i32,
    #[prost(message, optional, tag = "2")]
    pub(super) shape: Option<Shape>,
}

/// The extents of a tensor.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Shape {
    #[prost(message, repeated, tag = "1")]
    pub(super) dim: Vec<Dimension>,
}

/// An extent: a number, a name, or neither.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Dimension {
    #[prost(int64, optional, tag = "1")]
    pub(super) value: Option<i64>,
    #[prost(string, optional, tag = "2")]
    pub(super) param: Option<String>,
}

/// The numbers of ONNX element types.
pub(super) mod element {
    pub(in crate::onnx) const FLOAT: i32 = 1;
    pub(in crate::onnx) const UINT8: i32 = 2;
    pub(in crate::onnx) const INT8: i32 = 3;
    pub(in crate::onnx) const UINT16: i32 = 4;
    pub(in crate::onnx) const INT16: i32 = 5;
    pub(in crate::onnx) const INT32: i32 = 6;
    pub(in crate::onnx) const INT64: i32 = 7;
    pub(in crate::onnx) const STRING: i32 = 8;
    pub(in crate::onnx) const BOOL: i32 = 9;
    pub(in crate::onnx) const FLOAT16: i32 = 10;
    pub(in crate::onnx) const DOUBLE: i32 = 11;
    pub(in crate::onnx) const UINT32: i32 = 12;
    pub(in crate::onnx) const UINT64: i32 = 13;
    pub(in crate::onnx) const BFLOAT16: i32 = 16;
    pub(in crate::onnx) const FLOAT8E4M3FN: i32 = 17;
    pub(in crate::onnx) const FLOAT8E4M3FNUZ: i32 = 18;
    pub(in crate::onnx) const FLOAT8E5M2: i32 = 19;
    pub(in crate::onnx) const FLOAT8E5M2FNUZ: i32 = 20;
    pub(in crate::onnx) const UINT4: i32 = 21;
    pub(in crate::onnx) const INT4: i32 = 22;
    pub(in crate::onnx) const FLOAT4E2M1: i32 = 23;
    pub(in crate::onnx) const FLOAT8E8M0: i32 = 24;
    pub(in crate::onnx) const UINT2: i32 = 25;
    pub(in crate::onnx) const INT2: i32 = 26;
}

/// The name of an element type, for messages.
pub(super) fn element_name(number: i32) -> &'static str {
    match number {
        element::FLOAT => "float",
        element::UINT8 => "uint8",
        element::INT8 => "int8",
        element::UINT16 => "uint16",
        element::INT16 => "int16",
        element::INT32 => "int32",
        element::INT64 => "int64",
        element::STRING => "string",
        element::BOOL => "bool",
        element::FLOAT16 => "float16",
        element::DOUBLE => "double",
        element::UINT32 => "uint32",
        element::UINT64 => "uint64",
        14 => "complex64",
        15 => "complex128",
        element::BFLOAT16 => "bfloat16",
        element::FLOAT8E4M3FN => "float8e4m3fn",
        element::FLOAT8E4M3FNUZ => "float8e4m3fnuz",
        element::FLOAT8E5M2 => "float8e5m2",
        element::FLOAT8E5M2FNUZ => "float8e5m2fnuz",
        element::UINT4 => "uint4",
        element::INT4 => "int4",
        element::FLOAT4E2M1 => "float4e2m1",
        element::FLOAT8E8M0 => "float8e8m0",
        element::UINT2 => "uint2",
        element::INT2 => "int2",
        27 | 28 => "a 6-bit float",
        _ => "an unknown type",
    }
}
