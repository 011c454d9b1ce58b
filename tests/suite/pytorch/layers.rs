//! Every layer, written in PyTorch and here.

use std::sync::Arc;

use meganeura::io::Names;
use meganeura::nn::*;
use meganeura::ops::{GridSampleMode, GridSampleOptions, GridSamplePadding, Mask, Padding};
use meganeura::{Init, Layer, Seed};

use super::{Case, function, module};

/// A layer with one input.
fn layer<I>(torch: &str, builder: I) -> Arc<Case>
where
    I: Init<Output: Layer + 'static> + Clone + Send + Sync + 'static,
{
    let build = move |device: &_| builder.clone().init(device, Seed::new(1));
    module("layers", torch, Names::new(), build, |layer, inputs| layer.forward(inputs.var("x")))
}

/// The projections of attention, which PyTorch keeps in one tensor.
pub(super) fn names_of_attention() -> Names {
    Names::new().split("in_proj_*", ["query.*", "key.*", "value.*"]).rename("out_proj.*", "output.*")
}

/// Attention from a sequence to itself, or to a context behind a mask.
fn attention(torch: &str, config: MultiheadAttentionConfig) -> Arc<Case> {
    let build = move |device: &_| config.clone().init(device, Seed::new(1));
    module("layers", torch, names_of_attention(), build, |layer: &MultiheadAttention, inputs| {
        match inputs.vars.get("context") {
            Some(context) => layer.attend(inputs.var("x"), context, Some(Mask::Bias(inputs.var("mask")))),
            None => layer.forward(inputs.var("x")),
        }
    })
}

pub(super) fn cases() -> Vec<Arc<Case>> {
    [linear_maps(), paddings(), norms(), others(), images(), activations()].concat()
}

/// Layers with slightly wrong settings, and the results that this changes.
pub(super) fn wrong() -> Vec<(Arc<Case>, Vec<&'static str>)> {
    vec![
        (layer("nn.LeakyReLU(0.2)", LeakyRelu { slope: 0.201 }), vec!["input_grad.x", "output"]),
        (
            layer("nn.BatchNorm2d(3)", BatchNorm2d::new(3).momentum(0.101)),
            vec!["after.running_mean", "after.running_var"],
        ),
        (layer("nn.GroupNorm(3, 3)", GroupNorm::new(3, 3).eps(1e-3)), vec!["grad.weight", "input_grad.x", "output"]),
    ]
}

fn linear_maps() -> Vec<Arc<Case>> {
    vec![
        layer("nn.Linear(5, 3)", Linear::new(5, 3)),
        layer("nn.Linear(7, 4, bias=False)", Linear::new(7, 4).bias(false)),
        layer(
            "nn.Conv2d(3, 5, (3, 2), stride=(1, 2), padding=(1, 0))",
            Conv2d::new(3, 5, (3, 2)).stride((1, 2)).padding((1, 0)),
        ),
        layer(
            "nn.Conv2d(4, 6, 3, stride=(2, 3), padding=(2, 1), dilation=(2, 1), groups=2, bias=False)",
            Conv2d::new(4, 6, 3).stride((2, 3)).padding((2, 1)).dilation((2, 1)).groups(2).bias(false),
        ),
        layer("nn.Conv2d(3, 6, (2, 3), padding=(0, 2), groups=3)", Conv2d::new(3, 6, (2, 3)).padding((0, 2)).groups(3)),
        layer("nn.Conv2d(5, 3, 1, stride=2)", Conv2d::new(5, 3, 1).stride(2)),
        layer("nn.Conv2d(8, 8, 3, padding=1)", Conv2d::new(8, 8, 3).padding(1)),
        layer("nn.Conv2d(2, 3, (4, 5))", Conv2d::new(2, 3, (4, 5))),
        layer("nn.ConvTranspose2d(3, 2, 3)", ConvTranspose2d::new(3, 2, 3)),
        layer(
            "nn.ConvTranspose2d(4, 6, (3, 2), stride=(2, 3), padding=(1, 0), output_padding=(1, 2), dilation=(1, 2), groups=2)",
            ConvTranspose2d::new(4, 6, (3, 2))
                .stride((2, 3))
                .padding((1, 0))
                .output_padding((1, 2))
                .dilation((1, 2))
                .groups(2),
        ),
        layer(
            "nn.ConvTranspose2d(3, 3, (2, 3), stride=(3, 1), padding=(0, 2), groups=3, bias=False)",
            ConvTranspose2d::new(3, 3, (2, 3)).stride((3, 1)).padding((0, 2)).groups(3).bias(false),
        ),
    ]
}

/// Padding other than with zeros. PyTorch counts axes from the last one on.
fn paddings() -> Vec<Arc<Case>> {
    let pad = |torch: &str, rows: (usize, usize), columns: (usize, usize), padding| {
        function("layers", torch, move |inputs| inputs.var("x").pad_with(&[(0, 0), (0, 0), rows, columns], padding))
    };
    vec![
        layer(
            "nn.Conv2d(2, 3, 3, padding=(2, 1), padding_mode='reflect')",
            Conv2d::new(2, 3, 3).padding((2, 1)).padding_mode(Padding::Reflect),
        ),
        layer(
            "nn.Conv2d(2, 4, (3, 2), stride=2, padding=(1, 2), groups=2, bias=False, padding_mode='replicate')",
            Conv2d::new(2, 4, (3, 2)).stride(2).padding((1, 2)).groups(2).bias(false).padding_mode(Padding::Replicate),
        ),
        layer(
            "nn.Conv2d(1, 2, 3, padding=3, padding_mode='circular')",
            Conv2d::new(1, 2, 3).padding(3).padding_mode(Padding::Circular),
        ),
        pad("F.pad(x, (3, 1, 0, 2), mode='reflect')", (0, 2), (3, 1), Padding::Reflect),
        pad("F.pad(x, (7, 0, 1, 2), mode='replicate')", (1, 2), (7, 0), Padding::Replicate),
        pad("F.pad(x, (2, 5, 3, 0), mode='circular')", (3, 0), (2, 5), Padding::Circular),
    ]
}

fn norms() -> Vec<Arc<Case>> {
    vec![
        layer("nn.BatchNorm2d(3)", BatchNorm2d::new(3)),
        layer("nn.BatchNorm2d(3, eps=0.1, momentum=0.3)", BatchNorm2d::new(3).eps(0.1).momentum(0.3)),
        layer("nn.BatchNorm2d(5, affine=False)", BatchNorm2d::new(5).affine(false)),
        layer("nn.BatchNorm2d(3).eval()", BatchNorm2d::new(3)),
        layer("nn.BatchNorm2d(2, eps=0.1, affine=False).eval()", BatchNorm2d::new(2).eps(0.1).affine(false)),
        layer("nn.BatchNorm1d(3)", BatchNorm1d::new(3)),
        layer("nn.BatchNorm1d(3, eps=0.1, momentum=0.3)", BatchNorm1d::new(3).eps(0.1).momentum(0.3)),
        layer("nn.BatchNorm1d(5, affine=False)", BatchNorm1d::new(5).affine(false)),
        layer("nn.BatchNorm1d(3).eval()", BatchNorm1d::new(3)),
        layer("nn.GroupNorm(2, 6, eps=0.1)", GroupNorm::new(2, 6).eps(0.1)),
        layer("nn.GroupNorm(3, 3)", GroupNorm::new(3, 3)),
        layer("nn.LayerNorm(7)", LayerNorm::new([7])),
        layer("nn.LayerNorm((3, 5), eps=0.1, elementwise_affine=False)", LayerNorm::new([3, 5]).eps(0.1).affine(false)),
        layer("nn.InstanceNorm2d(3)", InstanceNorm2d::new(3)),
        layer("nn.InstanceNorm2d(3, eps=0.1, affine=True)", InstanceNorm2d::new(3).eps(0.1).affine(true)),
    ]
}

fn others() -> Vec<Arc<Case>> {
    vec![
        layer("nn.Embedding(7, 3)", Embedding::new(7, 3)),
        layer("nn.Embedding(5, 3, padding_idx=2)", Embedding::new(5, 3).padding(2)),
        attention("nn.MultiheadAttention(6, 2, batch_first=True)", MultiheadAttention::new(6, 2)),
        attention(
            "nn.MultiheadAttention(3, 1, bias=False, batch_first=True)",
            MultiheadAttention::new(3, 1).bias(false),
        ),
        attention("nn.MultiheadAttention(4, 2, batch_first=True)", MultiheadAttention::new(4, 2)),
        layer("SelfAttention2d(6, 3)", SelfAttention2d::new(6, 3)),
        layer("SinusoidalEmbedding(6)", SinusoidalEmbedding::new(6)),
        layer("nn.Dropout(0.3).eval()", Dropout::new(0.3)),
        layer("nn.Flatten()", Flatten),
    ]
}

fn images() -> Vec<Arc<Case>> {
    vec![
        layer("nn.MaxPool2d(2)", MaxPool2d::new(2)),
        layer(
            "nn.MaxPool2d((3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2))",
            MaxPool2d::new((3, 2)).stride((2, 1)).padding((1, 0)).dilation((1, 2)),
        ),
        layer("nn.MaxPool2d(3, stride=2, padding=1)", MaxPool2d::new(3).stride(2).padding(1)),
        layer("nn.AvgPool2d((3, 2))", AvgPool2d::new((3, 2))),
        layer("nn.AvgPool2d(3, stride=(2, 1), padding=1)", AvgPool2d::new(3).stride((2, 1)).padding(1)),
        layer(
            "nn.AvgPool2d((3, 2), stride=2, padding=(1, 0), count_include_pad=False)",
            AvgPool2d::new((3, 2)).stride(2).padding((1, 0)).count_include_pad(false),
        ),
        layer("nn.AdaptiveAvgPool2d((3, 2))", AdaptiveAvgPool2d::new((3, 2))),
        layer("nn.AdaptiveAvgPool2d((5, 3))", AdaptiveAvgPool2d::new((5, 3))),
        layer("nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())", GlobalAvgPool2d),
        layer("nn.Upsample(scale_factor=(2, 3))", Upsample::nearest((2, 3))),
        layer("nn.Upsample(scale_factor=(3, 2), mode='bilinear')", Upsample::bilinear((3, 2))),
        layer(
            "nn.Upsample(scale_factor=(2, 3), mode='bilinear', align_corners=True)",
            Upsample::bilinear((2, 3)).align_corners(true),
        ),
        function("layers", "F.interpolate(x, size=(5, 2), mode='bilinear')", |inputs| {
            inputs.var("x").resize_bilinear([5, 2], false)
        }),
        function("layers", "F.interpolate(x, size=(2, 9), mode='bilinear', align_corners=True)", |inputs| {
            inputs.var("x").resize_bilinear([2, 9], true)
        }),
        layer("nn.Upsample(scale_factor=(2, 3), mode='bicubic')", Upsample::bicubic((2, 3))),
        function("layers", "F.interpolate(x, size=(5, 2), mode='bicubic')", |inputs| {
            inputs.var("x").resize_bicubic([5, 2], false)
        }),
        function("layers", "F.interpolate(x, size=(2, 9), mode='bicubic', align_corners=True)", |inputs| {
            inputs.var("x").resize_bicubic([2, 9], true)
        }),
        function("layers", "F.grid_sample(x, grid, align_corners=False)", |inputs| {
            inputs.var("x").grid_sample(inputs.var("grid"), GridSampleOptions::default())
        }),
        function("layers", "F.grid_sample(x, grid, padding_mode='border', align_corners=True)", |inputs| {
            let options =
                GridSampleOptions { padding: GridSamplePadding::Border, align_corners: true, ..Default::default() };
            inputs.var("x").grid_sample(inputs.var("grid"), options)
        }),
        function("layers", "F.grid_sample(x, w, mode='nearest', align_corners=True)", |inputs| {
            let options =
                GridSampleOptions { mode: GridSampleMode::Nearest, align_corners: true, ..Default::default() };
            inputs.var("x").grid_sample(inputs.var("w"), options)
        }),
        function(
            "layers",
            "F.grid_sample(x, w, mode='nearest', padding_mode='border', align_corners=False)",
            |inputs| {
                let options = GridSampleOptions {
                    mode: GridSampleMode::Nearest,
                    padding: GridSamplePadding::Border,
                    align_corners: false,
                };
                inputs.var("x").grid_sample(inputs.var("w"), options)
            },
        ),
        layer("nn.PixelShuffle(2)", PixelShuffle::new(2)),
        layer("nn.PixelUnshuffle(3)", PixelUnshuffle::new(3)),
    ]
}

fn activations() -> Vec<Arc<Case>> {
    vec![
        layer("nn.ReLU()", Relu),
        layer("nn.LeakyReLU(0.2)", LeakyRelu { slope: 0.2 }),
        layer("nn.ELU(1.3)", Elu { alpha: 1.3 }),
        layer("nn.GELU()", Gelu),
        layer("nn.GELU(approximate='tanh')", GeluTanh),
        layer("nn.SiLU()", Silu),
        layer("nn.Sigmoid()", Sigmoid),
        layer("nn.Tanh()", Tanh),
        layer("nn.Softplus()", Softplus),
        layer("nn.ReLU6()", Relu6),
        layer("nn.Hardsigmoid()", Hardsigmoid),
        layer("nn.Hardswish()", Hardswish),
        layer("nn.Mish()", Mish),
        layer("nn.SELU()", Selu),
        layer("nn.Identity()", Identity),
        layer("nn.Softmax(1)", Softmax::new(1)),
        layer("nn.LogSoftmax(-1)", LogSoftmax::new(-1)),
        layer("nn.PReLU()", PRelu::new(1)),
        layer("nn.PReLU(3)", PRelu::new(3)),
    ]
}
