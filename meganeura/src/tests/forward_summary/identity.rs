//! The identity of layers: boxes, shared layers, tied parameters, zero-sized layers, and parts that are entered again.

use std::sync::Arc;

use crate::module::{ForwardSummary, LayerRow, enter};
use crate::nn::{BatchNorm2d, Conv2d, Embedding, KeyValueCache, Linear, LstmCell, MultiheadAttention, Relu};
use crate::nn::{RotaryEmbedding, Sigmoid};
use crate::{DType, Device, Init, Layer, Module, ModuleExt, Precision, Shape, Tensor, TensorType, Var};

/// The path, the type, the depth, and the number of parameters, or `None` if an earlier row has counted them.
type Told<'a> = (&'a str, &'a str, usize, Option<usize>);

fn told(summary: &ForwardSummary) -> Vec<Told<'_>> {
    let told = |row: &'_ LayerRow| (!row.is_again).then_some(row.parameters);
    summary.rows().iter().map(|row| (row.path.as_deref().unwrap_or("?"), &*row.kind, row.depth, told(row))).collect()
}

#[derive(Module, Debug)]
#[module(sequential)]
struct Pointers {
    first: Arc<Linear>,
    rest: Vec<Box<dyn Layer>>,
}

fn built<I: Init<Output: Layer + 'static>>(builder: I) -> Box<dyn Layer> {
    Box::new(builder.init(&Device::cpu(), 1).unwrap())
}

fn chain() -> Vec<Box<dyn Layer>> {
    vec![built(Relu), built(Linear::new(4, 4)), Box::new(built((Relu, Sigmoid)))]
}

fn pointers() -> Pointers {
    Pointers { first: Arc::new(Linear::new(3, 4).init(&Device::cpu(), 1).unwrap()), rest: chain() }
}

#[test]
fn a_layer_behind_a_pointer_is_one_row() {
    let summary = pointers().summary_with([2, 3]).unwrap();
    let rest = "Vec<Box<dyn Layer>>";
    let expected = [
        ("", "Pointers", 0, Some(36)),
        ("first", "Linear", 1, Some(16)),
        ("rest", rest, 1, Some(20)),
        ("rest.0", "Relu", 2, Some(0)),
        ("rest.1", "Linear", 2, Some(20)),
        ("rest.2", "(Relu, Sigmoid)", 2, Some(0)),
        ("rest.2.0", "Relu", 3, Some(0)),
        ("rest.2.1", "Sigmoid", 3, Some(0)),
    ];
    assert_eq!(told(&summary), expected, "\n{summary}");
    // 3 rows of (Linear, Relu), then two activations.
    assert_eq!(summary.activation_bytes(), 4 * 2 * 4 * 5);
}

#[test]
fn a_boxed_root_is_the_model() {
    let boxed: Box<dyn Layer> = Box::new(Arc::new(Linear::new(3, 4).init(&Device::cpu(), 1).unwrap()));
    let summary = boxed.summary_with([2, 3]).unwrap();
    assert_eq!(told(&summary), [("", "Linear", 0, Some(16))], "\n{summary}");
    let boxed: Box<dyn Layer> = Box::new(Relu);
    assert_eq!(told(&boxed.summary_with([2, 3]).unwrap()), [("", "Relu", 0, Some(0))]);
}

/// A newtype has the same address as its contents, also if both are zero-sized.
#[derive(Module, Debug)]
struct Squashed(Sigmoid);

impl Layer for Squashed {
    fn forward(&self, x: &Var) -> Var {
        self.0.forward(x).square()
    }
}

#[test]
fn a_zero_sized_newtype_is_not_its_contents() {
    let summary = Squashed(Sigmoid).summary_with([2, 3]).unwrap();
    assert_eq!(told(&summary), [("", "Squashed", 0, Some(0)), ("?", "Sigmoid", 1, Some(0))], "\n{summary}");
    let summary = (Relu, Squashed(Sigmoid)).summary_with([2, 3]).unwrap();
    let expected = [("0", "Relu", 1), ("1", "Squashed", 1), ("?", "Sigmoid", 2)];
    let rows: Vec<_> = told(&summary)[1..].iter().map(|&(path, kind, depth, _)| (path, kind, depth)).collect();
    assert_eq!(rows, expected, "\n{summary}");
}

/// Calls the elements of two fields alternately.
#[derive(Module, Debug)]
struct ByTurns {
    #[module(init = [Conv2d::new(2, 2, 1), Conv2d::new(2, 2, 1)])]
    convs: [Conv2d; 2],
    #[module(init = [BatchNorm2d::new(2), BatchNorm2d::new(2)])]
    norms: [BatchNorm2d; 2],
}

impl Layer for ByTurns {
    fn forward(&self, x: &Var) -> Var {
        let mut x = x.clone();
        for (conv, norm) in self.convs.iter().zip(&self.norms) {
            x = norm.forward(&conv.forward(&x));
        }
        self.convs[0].forward(&x)
    }
}

#[test]
fn a_part_that_is_entered_again_counts_its_new_layers() {
    let net = ByTurns::init(&Device::cpu(), 1).unwrap();
    let summary = net.summary_with([1, 2, 3, 3]).unwrap();
    let expected = [
        ("", "ByTurns", 0, Some(20)),
        ("convs", "", 1, Some(6)),
        ("convs.0", "Conv2d", 2, Some(6)),
        ("norms", "", 1, Some(4)),
        ("norms.0", "BatchNorm2d", 2, Some(4)),
        ("convs", "", 1, Some(6)),
        ("convs.1", "Conv2d", 2, Some(6)),
        ("norms", "", 1, Some(4)),
        ("norms.1", "BatchNorm2d", 2, Some(4)),
        ("convs", "", 1, None),
        ("convs.0", "Conv2d", 2, None),
    ];
    assert_eq!(told(&summary), expected, "\n{summary}");
}

/// A model whose head shares the embedding's weights.
#[derive(Module, Debug)]
struct Tied {
    embedding: Embedding,
    head: Linear,
}

impl Tied {
    fn new() -> Self {
        let embedding = Embedding::new(5, 3).init(&Device::cpu(), 1).unwrap();
        let mut head = Linear::new(3, 5).bias(false).init(&Device::cpu(), 1).unwrap();
        head.weight = embedding.weight.tied();
        Self { embedding, head }
    }
}

impl Layer for Tied {
    fn forward(&self, x: &Var) -> Var {
        self.head.forward(&self.embedding.forward(x))
    }
}

#[test]
fn tied_layers_have_their_own_paths_and_count_once() {
    let words = |extents: &[usize]| TensorType::new(DType::U32, Shape::new(extents));
    let summary = Tied::new().summary_with(words(&[2, 4])).unwrap();
    let expected = [("", "Tied", 0, Some(15)), ("embedding", "Embedding", 1, Some(15)), ("head", "Linear", 1, None)];
    assert_eq!(told(&summary), expected, "\n{summary}");
    // In a chain, whose fields name them as well.
    let Tied { embedding, head } = Tied::new();
    let summary = (embedding, head).summary_with(words(&[2, 4])).unwrap();
    let counted: Vec<_> = told(&summary).into_iter().map(|(.., counted)| counted).collect();
    assert_eq!(counted, [Some(15), Some(15), None], "\n{summary}");
    // A layer that is created while it is called is identified by its tensor alone.
    let net = Tied::new();
    let head = |net: &Tied, x: &Var| Linear { weight: net.head.weight.tied(), bias: None }.forward(x);
    let summary = net.summary_by([2, 3], head).unwrap();
    assert_eq!(summary.rows()[1].path.as_deref(), Some("embedding"), "\n{summary}");
}

#[test]
fn the_error_of_a_tied_layer_is_its_own() {
    let error = Tied::new().summary_by([2, 4], |net, x| net.head.forward(x)).unwrap_err();
    assert!(error.to_string().contains("`head`, with an input f32[2, 4] of the model"), "{error}");
}

#[derive(Module, Debug)]
#[module(sequential, residual = shortcut)]
struct Residual {
    linear: Linear,
    shortcut: Option<Linear>,
}

#[test]
fn a_shortcut_is_a_row_if_it_is_there() {
    let linear = || Linear::new(3, 3).init(&Device::cpu(), 1).unwrap();
    let summary = Residual { linear: linear(), shortcut: None }.summary_with([2, 3]).unwrap();
    assert_eq!(told(&summary), [("", "Residual", 0, Some(12)), ("linear", "Linear", 1, Some(12))], "\n{summary}");
    let summary = Residual { linear: linear(), shortcut: Some(linear()) }.summary_with([2, 3]).unwrap();
    assert_eq!(told(&summary)[2], ("shortcut", "Linear", 1, Some(12)), "\n{summary}");
    assert_eq!(summary.rows().len(), 3);
}

/// Adds a tensor that is not a buffer, so no visit finds it.
#[derive(Module, Debug)]
#[module(input = [_, width], config(shift: Tensor, width: usize))]
struct Shifted {
    #[module(skip, init = shift)]
    shift: Tensor,
}

impl Layer for Shifted {
    fn forward(&self, x: &Var) -> Var {
        let _entered = enter(self, x);
        x + x.tape().input(&self.shift)
    }
}

#[test]
fn an_input_is_tried_on_the_device_of_init() {
    let device = Device::cpu_with(Precision::Double);
    let config = |extent: usize| ShiftedConfig { shift: Tensor::full(&device, [extent], 1.0).unwrap(), width: 3 };
    Shifted::init(&device, 1, config(3)).unwrap();
    assert!(Shifted::init(&device, 1, config(2)).is_err());
    let error = Shifted::init(&Device::cpu(), 1, config(3)).unwrap_err();
    assert!(error.to_string().contains("the tensor is on"), "{error}");
}

/// The extents of `input` are read before a builder consumes the value that they come from.
#[derive(Module, Debug)]
#[module(sequential, input = [_, sizes.len()], config(sizes: Vec<usize>))]
struct Taking {
    #[module(init = Linear::new(sizes.into_iter().next().unwrap(), 2))]
    linear: Linear,
}

#[test]
fn extents_are_read_before_a_builder_takes_the_config() {
    Taking::init(&Device::cpu(), 1, TakingConfig { sizes: vec![2, 7] }).unwrap();
    let error = Taking::init(&Device::cpu(), 1, TakingConfig { sizes: vec![2] }).unwrap_err();
    assert!(error.to_string().contains("`linear`, with an input f32[2, 1] of the model"), "{error}");
}

#[derive(Module, Debug)]
struct Steps {
    #[module(init = LstmCell::new(4, 3))]
    cell: LstmCell,
    #[module(init = MultiheadAttention::new(4, 2))]
    attention: MultiheadAttention,
    #[module(init = RotaryEmbedding::new(4))]
    rotary: RotaryEmbedding,
}

#[test]
fn single_steps_are_rows() {
    let device = Device::cpu();
    let net = Steps::init(&device, 1).unwrap();
    let rows = |summary: &ForwardSummary| -> Vec<(String, Shape)> {
        summary.rows()[1..].iter().map(|row| (row.kind.clone(), row.output.shape)).collect()
    };
    let summary = net.summary_by([2, 4], |net, x| net.cell.step(x, None).h).unwrap();
    assert_eq!(rows(&summary), [("RecurrentCell<LstmGates>".to_owned(), Shape::from([2, 3]))], "\n{summary}");
    let summary = net.summary_by([2, 5, 4], |net, x| net.rotary.forward_from(&net.rotary.forward(x), 3)).unwrap();
    let rotary = ("RotaryEmbedding".to_owned(), Shape::from([2, 5, 4]));
    assert_eq!(rows(&summary), [rotary.clone(), rotary], "\n{summary}");
    let attend = |net: &Steps, x: &Var| {
        let mut cache = KeyValueCache::new(x.tape(), &net.attention, 2, 8);
        net.attention.attend_next(x, &mut cache)
    };
    let summary = net.summary_by([2, 1, 4], attend).unwrap();
    assert_eq!(summary.rows()[1].kind, "MultiheadAttention", "\n{summary}");
    assert_eq!(summary.rows().len(), 6, "\n{summary}");
}
