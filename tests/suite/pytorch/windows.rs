//! Options of convolutions and of pooling, written in PyTorch and here.

use std::sync::Arc;

use meganeura::io::Names;
use meganeura::nn::*;
use meganeura::ops::Padding;
use meganeura::{Init, Layer, Seed, Var};

use super::{Case, module};

/// A layer with one input.
fn layer<I>(torch: &str, builder: I) -> Arc<Case>
where
    I: Init<Output: Layer + 'static> + Clone + Send + Sync + 'static,
{
    let build = move |device: &_| builder.clone().init(device, Seed::new(1));
    module("windows", torch, Names::new(), build, |layer, inputs| layer.forward(inputs.var("x")))
}

/// The sum of a pooling's values and indices.
fn with_indices<L>(torch: &str, layer: L, run: fn(&L, &Var) -> (Var, Var)) -> Arc<Case>
where
    L: Init<Output = L> + Layer + Copy + Send + Sync + 'static,
{
    let build = move |device: &_| layer.init(device, Seed::new(1));
    module("windows", torch, Names::new(), build, move |layer: &L, inputs| {
        let (y, index) = run(layer, inputs.var("x"));
        y + index.to_float()
    })
}

pub(super) fn cases() -> Vec<Arc<Case>> {
    [convolutions(), pools(), adaptive_pools()].concat()
}

fn convolutions() -> Vec<Arc<Case>> {
    vec![
        layer("nn.Conv1d(3, 4, 4, padding='same')", Conv1d::new(3, 4, 4).padding_same()),
        layer(
            "nn.Conv1d(4, 4, 2, padding='same', dilation=3, groups=2, padding_mode='circular')",
            Conv1d::new(4, 4, 2).padding_same().dilation(3).groups(2).padding_mode(Padding::Circular),
        ),
        layer(
            "nn.Conv1d(2, 3, 3, stride=2, padding=2, padding_mode='reflect', bias=False)",
            Conv1d::new(2, 3, 3).stride(2).padding(2).padding_mode(Padding::Reflect).bias(false),
        ),
        layer(
            "nn.Conv1d(2, 3, 3, padding=4, padding_mode='replicate')",
            Conv1d::new(2, 3, 3).padding(4).padding_mode(Padding::Replicate),
        ),
        layer(
            "nn.Conv2d(2, 3, (4, 3), padding='same', dilation=(1, 2))",
            Conv2d::new(2, 3, (4, 3)).padding_same().dilation((1, 2)),
        ),
        layer(
            "nn.Conv2d(2, 4, (2, 3), padding='same', groups=2, padding_mode='reflect')",
            Conv2d::new(2, 4, (2, 3)).padding_same().groups(2).padding_mode(Padding::Reflect),
        ),
        layer("nn.Conv3d(2, 3, (2, 3, 4), padding='same')", Conv3d::new(2, 3, (2, 3, 4)).padding_same()),
        layer(
            "nn.Conv3d(2, 2, 2, padding='same', dilation=(3, 1, 2), padding_mode='replicate')",
            Conv3d::new(2, 2, 2).padding_same().dilation((3, 1, 2)).padding_mode(Padding::Replicate),
        ),
        layer(
            "nn.Conv3d(2, 3, (3, 2, 3), stride=(1, 2, 2), padding=(2, 1, 1), padding_mode='circular')",
            Conv3d::new(2, 3, (3, 2, 3)).stride((1, 2, 2)).padding((2, 1, 1)).padding_mode(Padding::Circular),
        ),
        layer(
            "nn.Conv3d(2, 2, 3, padding=(1, 2, 1), padding_mode='reflect', bias=False)",
            Conv3d::new(2, 2, 3).padding((1, 2, 1)).padding_mode(Padding::Reflect).bias(false),
        ),
        layer("nn.ConvTranspose3d(2, 3, 2)", ConvTranspose3d::new(2, 3, 2)),
        layer(
            "nn.ConvTranspose3d(4, 6, (3, 2, 3), stride=(2, 3, 1), padding=(1, 0, 2), output_padding=(1, 2, 0), groups=2)",
            ConvTranspose3d::new(4, 6, (3, 2, 3))
                .stride((2, 3, 1))
                .padding((1, 0, 2))
                .output_padding((1, 2, 0))
                .groups(2),
        ),
        layer(
            "nn.ConvTranspose3d(2, 2, (2, 3, 1), stride=(1, 2, 2), output_padding=(1, 0, 1), dilation=(2, 3, 1), bias=False)",
            ConvTranspose3d::new(2, 2, (2, 3, 1))
                .stride((1, 2, 2))
                .output_padding((1, 0, 1))
                .dilation((2, 3, 1))
                .bias(false),
        ),
        layer(
            "nn.ConvTranspose3d(3, 3, (1, 2, 2), stride=3, padding=(0, 1, 1), output_padding=2, groups=3)",
            ConvTranspose3d::new(3, 3, (1, 2, 2)).stride(3).padding((0, 1, 1)).output_padding(2).groups(3),
        ),
    ]
}

fn pools() -> Vec<Arc<Case>> {
    vec![
        layer("nn.MaxPool1d(2, ceil_mode=True)", MaxPool1d::new(2).ceil_mode(true)),
        layer(
            "nn.MaxPool1d(2, stride=3, padding=1, ceil_mode=True)",
            MaxPool1d::new(2).stride(3).padding(1).ceil_mode(true),
        ),
        with_indices(
            "nn.MaxPool1d(3, stride=2, dilation=2, ceil_mode=True, return_indices=True)",
            MaxPool1d::new(3).stride(2).dilation(2).ceil_mode(true),
            MaxPool1d::forward_with_indices,
        ),
        layer(
            "nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True)",
            MaxPool2d::new(3).stride(2).padding(1).ceil_mode(true),
        ),
        with_indices(
            "nn.MaxPool2d((2, 3), stride=(3, 4), padding=(1, 0), ceil_mode=True, return_indices=True)",
            MaxPool2d::new((2, 3)).stride((3, 4)).padding((1, 0)).ceil_mode(true),
            MaxPool2d::forward_with_indices,
        ),
        layer(
            "nn.MaxPool3d((2, 3, 2), stride=2, padding=(1, 1, 0), ceil_mode=True)",
            MaxPool3d::new((2, 3, 2)).stride(2).padding((1, 1, 0)).ceil_mode(true),
        ),
        with_indices(
            "nn.MaxPool3d(2, stride=(1, 2, 2), ceil_mode=True, return_indices=True)",
            MaxPool3d::new(2).stride((1, 2, 2)).ceil_mode(true),
            MaxPool3d::forward_with_indices,
        ),
        layer(
            "nn.AvgPool1d(3, stride=2, padding=1, ceil_mode=True)",
            AvgPool1d::new(3).stride(2).padding(1).ceil_mode(true),
        ),
        layer(
            "nn.AvgPool1d(3, stride=2, padding=1, ceil_mode=True, count_include_pad=False)",
            AvgPool1d::new(3).stride(2).padding(1).ceil_mode(true).count_include_pad(false),
        ),
        layer(
            "nn.AvgPool2d((3, 2), stride=(2, 3), padding=(1, 0), ceil_mode=True)",
            AvgPool2d::new((3, 2)).stride((2, 3)).padding((1, 0)).ceil_mode(true),
        ),
        layer(
            "nn.AvgPool2d((3, 2), stride=(2, 3), padding=(1, 0), ceil_mode=True, count_include_pad=False)",
            AvgPool2d::new((3, 2)).stride((2, 3)).padding((1, 0)).ceil_mode(true).count_include_pad(false),
        ),
        layer(
            "nn.AvgPool2d(3, stride=2, padding=1, ceil_mode=True, divisor_override=5)",
            AvgPool2d::new(3).stride(2).padding(1).ceil_mode(true).divisor_override(5),
        ),
        layer("nn.AvgPool2d((4, 3), stride=3, ceil_mode=True)", AvgPool2d::new((4, 3)).stride(3).ceil_mode(true)),
        layer(
            "nn.AvgPool3d((2, 3, 2), stride=2, padding=(1, 1, 0), ceil_mode=True)",
            AvgPool3d::new((2, 3, 2)).stride(2).padding((1, 1, 0)).ceil_mode(true),
        ),
        layer(
            "nn.AvgPool3d((2, 3, 2), stride=2, padding=(1, 1, 0), ceil_mode=True, count_include_pad=False)",
            AvgPool3d::new((2, 3, 2)).stride(2).padding((1, 1, 0)).ceil_mode(true).count_include_pad(false),
        ),
        layer("nn.AvgPool3d(2, padding=1, divisor_override=3)", AvgPool3d::new(2).padding(1).divisor_override(3)),
    ]
}

fn adaptive_pools() -> Vec<Arc<Case>> {
    vec![
        layer("nn.AdaptiveAvgPool3d((2, 3, 4))", AdaptiveAvgPool3d::new((2, 3, 4))),
        layer("nn.AdaptiveMaxPool1d(3)", AdaptiveMaxPool1d::new(3)),
        with_indices(
            "nn.AdaptiveMaxPool1d(5, return_indices=True)",
            AdaptiveMaxPool1d::new(5),
            AdaptiveMaxPool1d::forward_with_indices,
        ),
        with_indices(
            "nn.AdaptiveMaxPool2d((3, 2), return_indices=True)",
            AdaptiveMaxPool2d::new((3, 2)),
            AdaptiveMaxPool2d::forward_with_indices,
        ),
        layer("nn.AdaptiveMaxPool2d((2, 3))", AdaptiveMaxPool2d::new((2, 3))),
        with_indices(
            "nn.AdaptiveMaxPool3d((2, 3, 2), return_indices=True)",
            AdaptiveMaxPool3d::new((2, 3, 2)),
            AdaptiveMaxPool3d::forward_with_indices,
        ),
    ]
}
