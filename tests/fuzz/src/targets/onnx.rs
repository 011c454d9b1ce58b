//! ONNX models.

use meganeura::onnx::{Export, Model};
use meganeura::prelude::*;
use meganeura::{ErrorKind, Result};

use super::{Target, documented};

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
        vec![seed().expect("the model has a form")]
    }

    fn words(&self) -> &'static [&'static str] {
        &[
            "Add",
            "Cast",
            "Concat",
            "Constant",
            "ConstantOfShape",
            "Conv",
            "Expand",
            "Gather",
            "Gemm",
            "GroupNormalization",
            "MatMul",
            "MaxPool",
            "Pad",
            "Range",
            "Reshape",
            "Resize",
            "Shape",
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

    fn read(&self, input: &[u8]) -> std::result::Result<bool, String> {
        let read = documented(read(input), &[ErrorKind::Argument, ErrorKind::Checkpoint, ErrorKind::OutOfMemory]);
        Ok(read?.is_some())
    }
}
