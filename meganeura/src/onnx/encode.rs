//! From nodes with numbered values to a graph in which every value has a name.

use std::collections::{HashMap, HashSet};

use prost::bytes::Bytes;

use super::batch::{Affine, Symbolic};
use super::export::{ExportedFunction, Named};
use super::file::Onnx;
use super::proto::{self, attribute};
use crate::ops::form::{Attribute, Constant, Form, Node, Value, element, int, ints};
use crate::tape::TraceLeaf;
use crate::{DType, Result, Shape, TensorType};

/// The version of the format that introduced an operator set.
fn ir_version(opset: i64) -> i64 {
    match opset {
        ..=22 => 10,
        23 => 11,
        24 => 12,
        _ => 13,
    }
}

/// Writes a recorded function.
pub(super) fn model(named: Named) -> Result<Onnx> {
    let Named { recorded, inputs, outputs, batch, opset, paths } = named;
    let ExportedFunction { form, leaves, outputs: results, .. } = recorded;
    let (batch, symbolic) = batch.map_or((None, None), |(name, symbolic)| (Some(name), Some(symbolic)));
    let live = live(&form, &results);
    let mut writer = Writer::default();
    writer.taken.extend(inputs.iter().map(|(name, _)| name.clone()).chain(outputs.iter().cloned()));
    let mut weights = Vec::new();
    for (value, leaf, ty) in &leaves {
        let tensor = match leaf {
            TraceLeaf::Input(k) => {
                writer.names.insert(*value, inputs[*k].0.clone());
                continue;
            }
            _ if !live.contains(value) => continue,
            TraceLeaf::Tensor(tensor) => tensor.clone(),
            TraceLeaf::Cell(cell) => cell.value(),
        };
        let path = match leaf {
            TraceLeaf::Cell(cell) => paths.get(&cell.id()).map(|path| path.as_str().into()).or_else(|| cell.path()),
            _ => None,
        };
        let name = writer.unique(path.as_deref().unwrap_or("tensor"));
        weights.push((writer.initializers.len(), super::file::bytes(tensor.to_host_here()?)?));
        let data_type = data_type(ty.dtype);
        let dims = ints(ty.shape.dims());
        writer.initializers.push(proto::Tensor { name: name.clone(), dims, data_type, ..proto::Tensor::default() });
        writer.names.insert(*value, name);
    }
    writer.constants(&form, &live, symbolic.as_ref(), inputs.first().map(|(name, _)| name.as_str()));
    writer.nodes(&form, &live, &results, &outputs);
    let port = |name: &str, ty: &TensorType, extents: Option<&Vec<Affine>>| {
        let dimension = |(axis, &extent): (usize, &usize)| match extents.map(|extents| extents[axis]) {
            Some(affine) if !affine.is_fixed() => {
                proto::Dimension { value: None, param: Some(affine.text(batch.as_deref().unwrap_or("N"))) }
            }
            _ => proto::Dimension { value: Some(int(extent)), param: None },
        };
        let dim = ty.shape.dims().iter().enumerate().map(dimension).collect();
        let tensor = proto::TensorType { elem_type: data_type(ty.dtype), shape: Some(proto::Shape { dim }) };
        proto::ValueInfo {
            name: name.to_owned(),
            ty: Some(proto::Type { tensor: Some(tensor), ..proto::Type::default() }),
        }
    };
    let open = |ty: &TensorType| -> Vec<Affine> {
        let extent = |(axis, &extent): (usize, &usize)| match axis {
            0 => Affine { factor: 1, more: 0 },
            _ => Affine { factor: 0, more: int(extent) },
        };
        ty.shape.dims().iter().enumerate().map(extent).collect()
    };
    let input = |(name, ty): &(String, TensorType)| port(name, ty, symbolic.as_ref().map(|_| open(ty)).as_ref());
    let output = |(k, (name, (_, ty))): (usize, (&String, &(Value, TensorType)))| {
        port(name, ty, symbolic.as_ref().map(|symbolic| &symbolic.outputs[k]))
    };
    let graph = proto::Graph {
        name: "forward".to_owned(),
        input: inputs.iter().map(input).collect(),
        output: outputs.iter().zip(&results).enumerate().map(output).collect(),
        node: writer.nodes,
        initializer: writer.initializers,
        sparse_initializer: Vec::new(),
    };
    let model = proto::Model {
        ir_version: ir_version(opset),
        producer_name: env!("CARGO_PKG_NAME").to_owned(),
        producer_version: env!("CARGO_PKG_VERSION").to_owned(),
        graph: Some(graph),
        opset_import: vec![proto::OperatorSet { domain: String::new(), version: opset }],
        functions: Vec::new(),
    };
    Ok(Onnx::new(model, weights))
}

/// The values that the results depend on.
fn live(form: &Form, results: &[(Value, TensorType)]) -> HashSet<Value> {
    let mut live: HashSet<Value> = results.iter().map(|(value, _)| *value).collect();
    for node in form.nodes.iter().rev() {
        if node.outputs.iter().any(|value| live.contains(value)) {
            live.extend(node.inputs.iter().flatten());
        }
    }
    live
}

fn data_type(dtype: DType) -> i32 {
    i32::try_from(element(dtype)).expect("small numbers")
}

impl Affine {
    /// The text of a symbolic extent.
    fn text(self, batch: &str) -> String {
        let product = if self.factor == 1 { batch.to_owned() } else { format!("{}*{batch}", self.factor) };
        match self.more {
            0 => product,
            more => format!("{product}{more:+}"),
        }
    }
}

/// A graph under construction.
#[derive(Default)]
struct Writer {
    names: HashMap<Value, String>,
    taken: HashSet<String>,
    nodes: Vec<proto::Node>,
    initializers: Vec<proto::Tensor>,
    /// Small constants by type, shape and bytes; equal ones are shared.
    known: HashMap<(i32, Vec<i64>, Bytes), String>,
    /// The name of the value with the batch size, once it has been read.
    batch: Option<String>,
}

impl Writer {
    /// A name that is not taken yet.
    fn unique(&mut self, wish: &str) -> String {
        let mut name = wish.to_owned();
        let mut number = 1;
        while !self.taken.insert(name.clone()) {
            number += 1;
            name = format!("{wish}_{number}");
        }
        name
    }

    /// The name of a constant, possibly an earlier equal one.
    fn constant(&mut self, data_type: i32, shape: Shape, bytes: Bytes) -> String {
        let key = (data_type, ints(shape.dims()), bytes);
        if let Some(name) = self.known.get(&key) {
            return name.clone();
        }
        let name = self.unique("constant");
        let (data_type, dims, raw_data) = key.clone();
        self.initializers.push(proto::Tensor {
            name: name.clone(),
            dims,
            data_type,
            raw_data,
            ..proto::Tensor::default()
        });
        self.known.insert(key, name.clone());
        name
    }

    fn ints(&mut self, shape: Shape, numbers: &[i64]) -> String {
        let bytes = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        self.constant(data_type(DType::U32), shape, bytes)
    }

    #[expect(clippy::cast_possible_truncation, reason = "numbers of the program are rounded to its precision")]
    fn constants(&mut self, form: &Form, live: &HashSet<Value>, symbolic: Option<&Symbolic>, input: Option<&str>) {
        for (value, constant) in form.constants.iter().filter(|(value, _)| live.contains(value)) {
            let name = match constant {
                Constant::Ints(shape, numbers) => match symbolic.and_then(|symbolic| symbolic.constants.get(value)) {
                    Some(extents) => self.extents(extents, is_shape(form, *value), input.unwrap_or_default()),
                    None => self.ints(*shape, numbers),
                },
                Constant::Floats(ty, numbers) => {
                    let bytes = match ty.dtype {
                        DType::F64 => numbers.iter().flat_map(|number| number.0.to_le_bytes()).collect(),
                        _ => numbers.iter().flat_map(|number| (number.0 as f32).to_le_bytes()).collect(),
                    };
                    self.constant(data_type(ty.dtype), ty.shape, bytes)
                }
            };
            self.names.insert(*value, name);
        }
    }

    /// Extents that depend on the batch size: computed from the first axis of an input, or left for `Reshape` to infer.
    fn extents(&mut self, extents: &[Affine], is_shape: bool, input: &str) -> String {
        let open = extents.iter().filter(|extent| !extent.is_fixed()).count();
        if is_shape && open == 1 {
            let numbers: Vec<_> =
                extents.iter().map(|extent| if extent.is_fixed() { extent.more } else { -1 }).collect();
            return self.ints(Shape::from([numbers.len()]), &numbers);
        }
        let parts = extents.chunk_by(|a, b| a.is_fixed() && b.is_fixed()).map(|part| match part {
            &[extent] if !extent.is_fixed() => self.extent(extent, input),
            fixed => {
                let numbers: Vec<_> = fixed.iter().map(|extent| extent.more).collect();
                self.ints(Shape::from([numbers.len()]), &numbers)
            }
        });
        let parts: Vec<_> = parts.collect();
        match &parts[..] {
            [one] => one.clone(),
            _ => self.node("Concat", parts, vec![int_attribute("axis", 0)]),
        }
    }

    /// One extent, as a vector.
    fn extent(&mut self, Affine { factor, more }: Affine, input: &str) -> String {
        let mut extent = match &self.batch {
            Some(known) => known.clone(),
            None => {
                let ends = vec![int_attribute("start", 0), int_attribute("end", 1)];
                let name = self.node("Shape", vec![input.to_owned()], ends);
                self.batch.insert(name).clone()
            }
        };
        for (op, number, neutral) in [("Mul", factor, 1), ("Add", more, 0)] {
            if number != neutral {
                let number = self.ints(Shape::from([1]), &[number]);
                extent = self.node(op, vec![extent, number], Vec::new());
            }
        }
        extent
    }

    /// Adds a node with one result and returns the result's name.
    fn node(&mut self, op: &str, input: Vec<String>, attribute: Vec<proto::Attribute>) -> String {
        let name = self.unique(&op.to_lowercase());
        self.nodes.push(proto::Node {
            input,
            output: vec![name.clone()],
            name: name.clone(),
            op_type: op.to_owned(),
            attribute,
            domain: String::new(),
        });
        name
    }

    fn nodes(&mut self, form: &Form, live: &HashSet<Value>, results: &[(Value, TensorType)], outputs: &[String]) {
        // The result of a node gets the name of the output that it is, unless it is two outputs.
        for ((value, _), name) in results.iter().zip(outputs) {
            if !self.names.contains_key(value) {
                self.names.insert(*value, name.clone());
            }
        }
        for Node { op, inputs, outputs, attributes } in &form.nodes {
            if !outputs.iter().any(|value| live.contains(value)) {
                continue;
            }
            let name = self.unique(&op.to_lowercase());
            let input = inputs.iter().map(|input| input.map_or_else(String::new, |input| self.names[&input].clone()));
            let input = input.collect();
            let mut output = Vec::with_capacity(outputs.len());
            for (k, value) in outputs.iter().enumerate() {
                let own = match self.names.get(value) {
                    Some(known) => known.clone(),
                    None if k == 0 => name.clone(),
                    None => self.unique(&format!("{name}_output_{k}")),
                };
                self.names.insert(*value, own.clone());
                output.push(own);
            }
            let attribute = attributes.iter().map(|(name, value)| encoded(name, value)).collect();
            self.nodes.push(proto::Node {
                input,
                output,
                name,
                op_type: (*op).to_owned(),
                attribute,
                domain: String::new(),
            });
        }
        for ((value, _), name) in results.iter().zip(outputs) {
            let made = self.names[value].clone();
            if made != *name {
                let title = self.unique("identity");
                self.nodes.push(proto::Node {
                    input: vec![made],
                    output: vec![name.clone()],
                    name: title,
                    op_type: "Identity".to_owned(),
                    attribute: Vec::new(),
                    domain: String::new(),
                });
            }
        }
    }
}

/// `true` if a value is used only as the shape of `Reshape` nodes, which can infer one extent.
fn is_shape(form: &Form, value: Value) -> bool {
    let reads = |node: &&Node| node.inputs.contains(&Some(value));
    form.nodes.iter().filter(reads).all(|node| node.op == "Reshape" && node.inputs[0] != Some(value))
}

fn int_attribute(name: &str, value: i64) -> proto::Attribute {
    proto::Attribute { name: name.to_owned(), i: Some(value), kind: attribute::INT, ..proto::Attribute::default() }
}

#[expect(clippy::cast_possible_truncation, reason = "attributes of ONNX are single-precision numbers")]
fn encoded(name: &str, value: &Attribute) -> proto::Attribute {
    let own = proto::Attribute { name: name.to_owned(), ..proto::Attribute::default() };
    match value {
        Attribute::Int(number) => int_attribute(name, *number),
        Attribute::Ints(numbers) => proto::Attribute { ints: numbers.clone(), kind: attribute::INTS, ..own },
        Attribute::Float(number) => proto::Attribute { f: Some(*number as f32), kind: attribute::FLOAT, ..own },
        Attribute::Text(text) => {
            proto::Attribute { s: Some(Bytes::from_static(text.as_bytes())), kind: attribute::STRING, ..own }
        }
    }
}
