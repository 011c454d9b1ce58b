//! Small models, built from messages. Expected numbers are those of `onnxruntime` 1.32.

mod control;
mod folding;
mod gradients;
mod invalid;
mod learned;
mod limits;
mod narrow;
mod numbers;
mod quantised;
mod run;
mod spelled;
mod texts;
mod trainable;
mod training;

use prost::Message;
use prost::bytes::Bytes;

use crate::onnx::import::Model;
use crate::onnx::proto::{self, attribute, element};
use crate::{Device, Error, Result, Shape, Tape, Tensor, Var};

/// A graph under construction.
#[derive(Clone, Default)]
struct Graph {
    graph: proto::Graph,
    functions: Vec<proto::Function>,
    opset: i64,
}

/// The value of an attribute.
enum Value {
    Int(i64),
    Ints(Vec<i64>),
    Float(f32),
    Floats(Vec<f32>),
    Text(&'static str),
    Texts(&'static [&'static str]),
    Graph(Graph),
}

type Attributes<'a> = &'a [(&'a str, Value)];

fn attribute((name, value): &(&str, Value)) -> proto::Attribute {
    let own = proto::Attribute { name: (*name).to_owned(), ..proto::Attribute::default() };
    match value {
        Value::Int(number) => proto::Attribute { i: Some(*number), kind: attribute::INT, ..own },
        Value::Ints(numbers) => proto::Attribute { ints: numbers.clone(), kind: attribute::INTS, ..own },
        Value::Float(number) => proto::Attribute { f: Some(*number), kind: attribute::FLOAT, ..own },
        Value::Floats(numbers) => proto::Attribute { floats: numbers.clone(), kind: attribute::FLOATS, ..own },
        Value::Text(text) => {
            proto::Attribute { s: Some(Bytes::from_static(text.as_bytes())), kind: attribute::STRING, ..own }
        }
        Value::Texts(texts) => {
            let strings = texts.iter().map(|text| Bytes::from_static(text.as_bytes())).collect();
            proto::Attribute { strings, kind: attribute::STRINGS, ..own }
        }
        Value::Graph(graph) => {
            proto::Attribute { g: Some(Box::new(graph.graph.clone())), kind: attribute::GRAPH, ..own }
        }
    }
}

/// A tensor of an element type, whose numbers are given as floats.
fn tensor(name: &str, data_type: i32, dims: &[i64], numbers: &[f64]) -> proto::Tensor {
    let mut tensor = proto::Tensor { name: name.into(), data_type, dims: dims.to_vec(), ..proto::Tensor::default() };
    match data_type {
        element::FLOAT => tensor.float_data = numbers.iter().map(|&number| number as f32).collect(),
        element::DOUBLE => tensor.double_data = numbers.to_vec(),
        element::INT64 => tensor.int64_data = numbers.iter().map(|&number| number as i64).collect(),
        element::UINT32 | element::UINT64 => {
            tensor.uint64_data = numbers.iter().map(|&number| number as u64).collect();
        }
        _ => tensor.int32_data = numbers.iter().map(|&number| number as i32).collect(),
    }
    tensor
}

impl Graph {
    fn new(opset: i64) -> Self {
        Self { opset, ..Self::default() }
    }

    fn value(name: &str, elem_type: i32, dims: Option<&[i64]>) -> proto::ValueInfo {
        // A negative extent is open.
        let dimension = |&value: &i64| proto::Dimension { value: Some(value), param: None };
        let shape = dims.map(|dims| proto::Shape { dim: dims.iter().map(dimension).collect() });
        let tensor = proto::TensorType { elem_type, shape };
        proto::ValueInfo { name: name.into(), ty: Some(proto::Type { tensor: Some(tensor), ..proto::Type::default() }) }
    }

    fn input(mut self, name: &str, elem_type: i32, dims: &[i64]) -> Self {
        self.graph.input.push(Self::value(name, elem_type, Some(dims)));
        self
    }

    fn output(mut self, name: &str, elem_type: i32) -> Self {
        self.graph.output.push(Self::value(name, elem_type, None));
        self
    }

    /// Makes the node that was added last one of another domain.
    fn of_domain(mut self, domain: &str) -> Self {
        self.graph.node.last_mut().expect("a node").domain = domain.into();
        self
    }

    fn constant(mut self, name: &str, data_type: i32, dims: &[i64], numbers: &[f64]) -> Self {
        self.graph.initializer.push(tensor(name, data_type, dims, numbers));
        self
    }

    /// A vector of `int64`.
    fn ints(self, name: &str, numbers: &[f64]) -> Self {
        self.constant(name, element::INT64, &[numbers.len() as i64], numbers)
    }

    fn node(mut self, op: &str, inputs: &[&str], outputs: &[&str], attributes: Attributes<'_>) -> Self {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        self.graph.node.push(proto::Node {
            input: names(inputs),
            output: names(outputs),
            op_type: op.into(),
            attribute: attributes.iter().map(attribute).collect(),
            ..proto::Node::default()
        });
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let opset_import = vec![proto::OperatorSet { domain: String::new(), version: self.opset }];
        let graph = Some(self.graph.clone());
        let functions = self.functions.clone();
        proto::Model { ir_version: 8, graph, opset_import, functions, ..proto::Model::default() }.encode_to_vec()
    }

    /// The results for these floats, given for inputs of any type, with their shapes.
    fn run(&self, inputs: &[&[f64]]) -> Result<Vec<(Shape, Vec<f64>)>> {
        let device = Device::cpu();
        let model = Model::from_bytes(&device, &self.bytes())?;
        let tape = Tape::new(&device);
        let var = |(port, numbers): (&crate::onnx::Port, &&[f64])| -> Result<Var> {
            let shape = port.shape().expect("fixed extents");
            Ok(tape.input(&Tensor::from_f64(&device, shape, numbers)?))
        };
        let vars = model.inputs().iter().zip(inputs).map(var).collect::<Result<Vec<_>>>()?;
        let results = model.record(&tape, &vars)?;
        let number = |var: &Var| {
            let tensor = var.to_tensor()?;
            let numbers = if tensor.ty().dtype.is_float() {
                tensor.to_f64_vec()?
            } else {
                tensor.to_i64_vec()?.into_iter().map(|int| int as f64).collect()
            };
            Ok((tensor.shape(), numbers))
        };
        results.iter().map(number).collect()
    }

    /// The numbers of the only result.
    fn numbers(&self, inputs: &[&[f64]]) -> Result<Vec<f64>> {
        Ok(self.run(inputs)?.swap_remove(0).1)
    }

    /// The error of reading or recording the model for these inputs.
    fn error(&self, inputs: &[&[f64]]) -> Error {
        self.run(inputs).map(|results| format!("{results:?}")).expect_err("it is refused")
    }
}

/// Equal up to a few roundings in `f32`; infinities and NaN must agree.
fn assert_close(computed: &[f64], expected: &[f64], what: &str) {
    assert_eq!(computed.len(), expected.len(), "{what}: {computed:?} {expected:?}");
    for (a, b) in computed.iter().zip(expected) {
        let close = a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= 4e-7 * b.abs().max(1.0);
        assert!(close, "{what}: {computed:?} {expected:?}");
    }
}
