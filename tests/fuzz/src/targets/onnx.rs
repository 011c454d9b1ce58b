//! ONNX models. Their messages are changed as trees, so that most files can be decoded.

use fastrand::Rng;
use meganeura::onnx::{Export, Model};
use meganeura::prelude::*;
use meganeura::{ErrorKind, Result};

use super::{Target, documented};
use crate::limits::Limits;
use crate::protobuf::{self, Kind};

/// A model from the bytes of a file, compiled if possible.
pub struct Onnx;

fn seed() -> Result<Vec<u8>> {
    let device = Device::cpu();
    let net = (Conv2d::new(1, 2, 3), BatchNorm2d::new(2), Relu, MaxPool2d::new(2), GroupNorm::new(1, 2))
        .init(&device, Seed::new(1))?;
    let export = Export::new().inputs(["image"]).batch("N");
    let onnx = export.record(&device, [1, 1, 6, 6], |x| {
        let y = net.forward(x).pad(&[(0, 0), (0, 0), (0, 1), (0, 0)], 0.5);
        y.flatten().softmax(1).slice(1, 1..5)
    });
    onnx?.to_bytes()
}

/// Shapes that are computed, selections, reductions and resizing.
fn arrangements() -> Result<Vec<u8>> {
    let device = Device::cpu();
    let export = Export::new().inputs(["image"]).batch("N");
    let onnx = export.record(&device, [1, 1, 6, 6], |x| {
        let y = x.resize_bilinear([9, 5], false).reshape([x.shape()[0], 45]);
        let (top, place) = y.topk(3, 1);
        let rows = Var::concat(&[&top, &place.to_float()], 1).tile(&[1, 2]).permute(&[1, 0]);
        rows.max_over(&[0]) + y.cumsum(1).sum_over(&[1]) + y.flip(&[1]).norm_over(&[1], 2.0)
    });
    onnx?.to_bytes()
}

/// Reads a model and compiles it for its own batch size, or for two if that is open.
fn read(input: &[u8]) -> Result<()> {
    let model = Model::from_bytes(&Device::cpu(), input)?;
    match model.inputs() {
        [image] if image.name() == "image" => model.compile_for(&[Shape::from([2, 1, 6, 6])]).map(drop),
        _ => model.compile().map(drop),
    }
}

impl Target for Onnx {
    fn name(&self) -> &'static str {
        "onnx"
    }

    fn seeds(&self) -> Vec<Vec<u8>> {
        [seed, arrangements].map(|make| make().expect("the model has a form")).to_vec()
    }

    fn words(&self) -> &'static [&'static str] {
        &[
            "Add",
            "And",
            "ArgMax",
            "AveragePool",
            "Cast",
            "CastLike",
            "Clip",
            "Concat",
            "Constant",
            "ConstantOfShape",
            "Conv",
            "ConvTranspose",
            "CumSum",
            "Div",
            "Einsum",
            "Equal",
            "Expand",
            "Flatten",
            "Gather",
            "GatherElements",
            "Gemm",
            "GroupNormalization",
            "LayerNormalization",
            "MatMul",
            "MaxPool",
            "Mod",
            "Mul",
            "OneHot",
            "Pad",
            "Pow",
            "Range",
            "ReduceProd",
            "ReduceSum",
            "Reshape",
            "Resize",
            "ScatterElements",
            "Shape",
            "Size",
            "Slice",
            "Softmax",
            "Split",
            "Squeeze",
            "Tile",
            "TopK",
            "Transpose",
            "Unsqueeze",
            "Where",
            "axes",
            "axis",
            "kernel_shape",
            "pads",
            "perm",
            "strides",
            "to",
            "value",
        ]
    }

    fn reshape(&self, input: &mut Vec<u8>, rng: &mut Rng) {
        let Some(mut model) = protobuf::parse(Kind::Model, input) else { return };
        for _ in 0..1 << rng.u32(..3) {
            protobuf::mutate(&mut model, self.words(), rng);
        }
        *input = protobuf::bytes(&model);
    }

    fn limits(&self, length: usize) -> Limits {
        // Constants that are computed, and the plan. Messages take up to 24 bytes for each of the file, twice while
        // they are decoded.
        Limits::linear(96 << 20, length, 160, 1 << 14)
    }

    fn read(&self, input: &[u8]) -> std::result::Result<bool, String> {
        let read = documented(read(input), &[ErrorKind::Argument, ErrorKind::Checkpoint, ErrorKind::OutOfMemory]);
        Ok(read?.is_some())
    }
}
