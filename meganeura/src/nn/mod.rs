//! Layers.
//!
//! A layer is a struct whose parameters are public. Nothing here is special: you write a layer of your own in the same
//! way. A layer with parameters is built from a config, `Conv2d::new(1, 32, 3).padding(1)`, by
//! [`Init::init`](crate::module::Init::init), which returns an error for invalid settings. Activations, pooling,
//! dropout and rearrangements have no config: they are ready for use. An input that does not fit gives a poisoned
//! [`Var`](crate::Var), whose error names the layer's line.
//!
//! | layer | shapes |
//! |---|---|
//! | [`Linear`] | `[.., in] → [.., out]` |
//! | [`SinusoidalEmbedding`] | `[N] → [N, D]` |
//! | [`MultiheadAttention`] | `[N, L, D]`, kept |
//! | [`Rnn`], [`Lstm`], [`Gru`] | `[N, T, I] → [N, T, D·H]` |
//! | [`TransformerEncoderLayer`], [`TransformerDecoderLayer`] | `[N, L, D]`, kept |
//! | [`SelfAttention2d`] | `[N, C, H, W]`, kept |
//! | [`RotaryEmbedding`] | `[.., L, d]`, kept |
//! | [`SwiGlu`] | `[.., D]`, kept |
//! | [`Embedding`] | `u32 [I…] → [I…, D]` |
//! | [`Conv1d`] | `[N, C, L] → [N, O, P]` |
//! | [`Conv2d`] | `[N, C, H, W] → [N, O, P, Q]` |
//! | [`Conv3d`] | `[N, C, D, H, W] → [N, O, P, Q, R]` |
//! | [`ConvTranspose1d`] | `[N, C, L] → [N, O, P]` |
//! | [`ConvTranspose2d`] | `[N, C, H, W] → [N, O, P, Q]` |
//! | [`ConvTranspose3d`] | `[N, C, D, H, W] → [N, O, P, Q, R]` |
//! | [`BatchNorm1d`] | `[N, C]` or `[N, C, L]`, kept |
//! | [`BatchNorm2d`] | `[N, C, H, W]`, kept |
//! | [`BatchNorm3d`] | `[N, C, D, H, W]`, kept |
//! | [`GroupNorm`] | `[N, C, ..]`, kept |
//! | [`LayerNorm`], [`RmsNorm`] | `[.., D₁, …, Dₖ]`, kept |
//! | [`InstanceNorm2d`], [`LayerNorm2d`] | `[N, C, H, W]`, kept |
//! | [`MaxPool1d`], [`AvgPool1d`], [`AdaptiveAvgPool1d`], [`AdaptiveMaxPool1d`] | `[N, C, L] → [N, C, P]` |
//! | [`MaxPool2d`], [`AvgPool2d`], [`AdaptiveAvgPool2d`], [`AdaptiveMaxPool2d`] | `[N, C, H, W] → [N, C, P, Q]` |
//! | [`MaxPool3d`], [`AvgPool3d`], [`AdaptiveAvgPool3d`], [`AdaptiveMaxPool3d`] | `[N, C, D, H, W] → [N, C, P, Q, R]` |
//! | [`GlobalAvgPool2d`] | `[N, C, H, W] → [N, C]` |
//! | [`Upsample`] | `[N, C, H, W] → [N, C, s·H, s·W]` |
//! | [`PixelShuffle`] | `[N, C·r², H, W] → [N, C, r·H, r·W]`; [`PixelUnshuffle`] is its inverse |
//! | [`Dropout`], [`Relu`], [`LeakyRelu`], [`Elu`], [`Gelu`], [`GeluTanh`], [`Silu`], [`Sigmoid`], [`Tanh`], [`Softplus`], [`Relu6`], [`Hardsigmoid`], [`Hardswish`], [`Mish`], [`Selu`], [`Identity`] | any, kept |
//! | [`Softmax`], [`LogSoftmax`], [`PRelu`] | any with their axis, kept |
//! | [`StochasticDepth`] | `[N, ..]`, kept |
//! | [`Glu`] | `[.., 2D] → [.., D]` |
//! | [`Flatten`] | `[N, ..] → [N, M]` |
//!
//! Layers record operations through [`Var`](crate::Var) and know neither gradients nor kernels.

mod activation;
mod adaptive_pool;
mod batch_norm;
mod batch_norm1d;
mod batch_norm2d;
mod batch_norm3d;
mod conv;
mod conv_transpose;
mod dropout;
mod embedding;
mod extents;
mod flatten;
mod glu;
mod group_norm;
#[cfg(test)]
mod initial;
mod instance_norm2d;
mod key_value_cache;
mod layer_norm;
mod layer_norm2d;
mod linear;
mod multihead_attention;
mod pixel_shuffle;
mod pool;
mod prelu;
mod recurrent;
mod rms_norm;
mod rotary_embedding;
mod self_attention2d;
mod settings;
mod sinusoidal_embedding;
mod softmax;
mod stochastic_depth;
mod transformer;
mod unbuilt;
mod upsample;

pub use activation::{
    Elu, Gelu, GeluTanh, Hardsigmoid, Hardswish, Identity, LeakyRelu, Mish, Relu, Relu6, Selu, Sigmoid, Silu, Softplus,
    Tanh,
};
pub use adaptive_pool::{
    AdaptiveAvgPool, AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveAvgPool3d, AdaptiveMaxPool, AdaptiveMaxPool1d,
    AdaptiveMaxPool2d, AdaptiveMaxPool3d, GlobalAvgPool2d,
};
pub use batch_norm1d::{BatchNorm1d, BatchNorm1dConfig};
pub use batch_norm2d::{BatchNorm2d, BatchNorm2dConfig};
pub use batch_norm3d::{BatchNorm3d, BatchNorm3dConfig};
pub use conv::{Conv, Conv1d, Conv1dConfig, Conv2d, Conv2dConfig, Conv3d, Conv3dConfig, ConvConfig};
pub use conv_transpose::{
    ConvTranspose, ConvTranspose1d, ConvTranspose1dConfig, ConvTranspose2d, ConvTranspose2dConfig, ConvTranspose3d,
    ConvTranspose3dConfig, ConvTransposeConfig,
};
pub use dropout::Dropout;
pub use embedding::{Embedding, EmbeddingConfig};
pub use extents::{IntoExtents, IntoPair, IntoTriple};
pub use flatten::Flatten;
pub use glu::{Glu, SwiGlu, SwiGluConfig};
pub use group_norm::{GroupNorm, GroupNormConfig};
pub use instance_norm2d::{InstanceNorm2d, InstanceNorm2dConfig};
pub use key_value_cache::KeyValueCache;
pub use layer_norm::{LayerNorm, LayerNormConfig};
pub use layer_norm2d::{LayerNorm2d, LayerNorm2dConfig};
pub use linear::{Linear, LinearConfig};
pub use multihead_attention::{MultiheadAttention, MultiheadAttentionConfig};
pub use pixel_shuffle::{PixelShuffle, PixelUnshuffle};
pub use pool::{AvgPool, AvgPool1d, AvgPool2d, AvgPool3d, MaxPool, MaxPool1d, MaxPool2d, MaxPool3d};
pub use prelu::{PRelu, PReluConfig};
pub use recurrent::{
    Gru, GruCell, GruGates, Lstm, LstmCell, LstmGates, LstmState, Recurrent, RecurrentCell, RecurrentCellConfig,
    RecurrentConfig, RecurrentGates, RecurrentState, Rnn, RnnCell, RnnGates, RnnNonlinearity, Steps,
};
pub use rms_norm::{RmsNorm, RmsNormConfig};
pub use rotary_embedding::RotaryEmbedding;
pub use self_attention2d::{SelfAttention2d, SelfAttention2dConfig};
pub use sinusoidal_embedding::{SinusoidalEmbedding, SinusoidalEmbeddingConfig};
pub use softmax::{LogSoftmax, Softmax};
pub use stochastic_depth::StochasticDepth;
pub use transformer::{
    AttentionMask, FeedForward, FeedForwardActivation, TransformerDecoderLayer, TransformerDecoderLayerConfig,
    TransformerEncoderLayer, TransformerEncoderLayerConfig,
};
pub use upsample::Upsample;

#[doc(no_inline)]
pub use crate::ops::{Conv1dOptions, Conv3dOptions, ConvTranspose1dOptions, ConvTranspose3dOptions};

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;

    use super::*;
    use crate::{Device, Init, Layer, ModuleExt, Seed, Shape, Tape, Tensor};

    /// Any built layer, boxed.
    fn boxed<I: Init<Output: Layer + 'static>>(builder: I) -> Box<dyn Layer> {
        Box::new(builder.init(&Device::cpu(), Seed::new(1)).unwrap())
    }

    /// The flow that a layer declares matches its forward pass.
    #[test]
    fn flows_are_those_of_the_forward_pass() {
        // A layer, the shape of its input, and the axes that its flow describes: channels, features.
        type Case<'a> = (Box<dyn Layer>, &'a [usize], [bool; 2]);
        let layers: Vec<Case<'_>> = vec![
            (boxed(Linear::new(5, 7)), &[3, 4, 5], [false, true]),
            (boxed(Embedding::new(9, 4)), &[3, 5], [false, false]),
            (boxed(Conv1d::new(4, 6, 3).groups(2)), &[2, 4, 8], [true, false]),
            (boxed(Conv2d::new(4, 6, 3).groups(2)), &[2, 4, 8, 8], [true, false]),
            (boxed(Conv3d::new(4, 6, 3).groups(2)), &[2, 4, 5, 5, 5], [true, false]),
            (boxed(ConvTranspose1d::new(4, 6, 3).groups(2)), &[2, 4, 8], [true, false]),
            (boxed(ConvTranspose2d::new(4, 6, 3).groups(2)), &[2, 4, 8, 8], [true, false]),
            (boxed(ConvTranspose3d::new(4, 6, 3).groups(2)), &[2, 4, 3, 3, 3], [true, false]),
            (boxed(BatchNorm1d::new(4)), &[2, 4, 8], [true, false]),
            (boxed(BatchNorm2d::new(4)), &[2, 4, 8, 8], [true, false]),
            (boxed(BatchNorm3d::new(4)), &[2, 4, 3, 4, 5], [true, false]),
            (boxed(GroupNorm::new(2, 4)), &[2, 4, 8, 8], [true, false]),
            (boxed(InstanceNorm2d::new(4)), &[2, 4, 8, 8], [true, false]),
            (boxed(LayerNorm::new([6, 5])), &[2, 6, 5], [false, true]),
            (boxed(LayerNorm2d::new(4)), &[2, 4, 3, 3], [true, false]),
            (boxed(RmsNorm::new([5])), &[2, 6, 5], [false, true]),
            (boxed(MultiheadAttention::new(6, 2)), &[2, 3, 6], [false, true]),
            (boxed(SelfAttention2d::new(4, 2)), &[2, 4, 3, 3], [true, false]),
            (boxed(TransformerEncoderLayer::new(6, 2)), &[2, 3, 6], [false, true]),
            (boxed(SwiGlu::new(6, 8)), &[2, 3, 6], [false, true]),
            (boxed(Lstm::new(5, 3).bidirectional(true)), &[2, 4, 5], [false, true]),
            (boxed(MaxPool1d::new(2)), &[2, 4, 8], [false, false]),
            (boxed(AvgPool2d::new(2)), &[2, 4, 8, 8], [false, false]),
            (boxed(MaxPool2d::new(2)), &[2, 4, 8, 8], [false, false]),
            (boxed(MaxPool3d::new(2)), &[2, 4, 4, 4, 4], [false, false]),
            (boxed(GlobalAvgPool2d), &[2, 4, 8, 8], [false, false]),
            (boxed(AdaptiveAvgPool2d::new(3)), &[2, 4, 8, 8], [false, false]),
            (boxed(Upsample::nearest(2)), &[2, 4, 8, 8], [false, false]),
            (boxed(RotaryEmbedding::new(6)), &[2, 4, 6], [false, false]),
            (boxed((Dropout::new(0.5), Relu, Elu { alpha: 1.0 }, Softplus)), &[2, 4, 8], [false, false]),
            (boxed((StochasticDepth::new(0.5), Relu6, Hardsigmoid, Hardswish)), &[2, 4, 8], [false, false]),
            (
                boxed((Mish, Selu, Identity, Softmax::new(-1), LogSoftmax::new(1), PRelu::new(1))),
                &[2, 4, 8],
                [false, false],
            ),
            (boxed((PixelShuffle::new(2), Flatten)), &[2, 4, 8, 8], [false, false]),
        ];
        let device = Device::cpu();
        for (layer, shape, says) in &layers {
            let shape = Shape::new(shape);
            let x = match shape.rank() {
                2 => Tensor::indices(&device, shape, &vec![1; shape.elements()]),
                _ => Tensor::zeros(&device, shape),
            };
            let y = layer.forward(&Tape::inference(&device).input(&x.unwrap())).shape();
            let ends = |shape: Shape| [shape[1], shape[shape.rank() - 1]];
            let flow = layer.flow().of_input(ends(shape));
            for ((axis, says), (given, made)) in flow.iter().zip(says).zip(ends(shape).into_iter().zip(ends(y))) {
                assert_eq!(axis.0, says.then_some(given), "{layer:?} of {shape}: {flow:?}");
                assert!(axis.1.is_none_or(|gives| gives == made), "{layer:?} of {shape} gives {y}: {flow:?}");
                assert!(!says || axis.1.is_some(), "{layer:?} takes {given} and gives nothing known");
            }
        }
        // An embedding's width is the number of features that the next linear layer takes.
        assert_eq!(Embedding::new(9, 4).init(&device, 1).unwrap().flow().of_input([5, 5])[1].1, Some(4));
    }

    #[test]
    fn every_layer_stands_in_a_chain_put_together_at_run_time() {
        let activations = VecDeque::from([boxed(Relu), boxed(Gelu), boxed(GeluTanh), boxed(Silu), boxed(Sigmoid)]);
        let shared: Arc<dyn Layer> = Arc::new(Linear::new(4, 4).init(&Device::cpu(), Seed::new(1)).unwrap());
        let chain: Vec<Box<dyn Layer>> = vec![
            boxed(Conv2d::new(1, 2, 3).padding(1)),
            boxed(GroupNorm::new(1, 2)),
            Box::new(activations),
            boxed(MaxPool2d::new(2)),
            boxed(ConvTranspose2d::new(2, 1, 2).stride(2)),
            boxed((InstanceNorm2d::new(1), [LeakyRelu { slope: 0.1 }, LeakyRelu { slope: 0.2 }])),
            boxed(AvgPool2d::new(2)),
            boxed((Flatten, Elu { alpha: 1.0 })),
            Box::new(Arc::clone(&shared)),
            boxed((LayerNorm::new([4]), Tanh, Softplus, Dropout::new(0.5))),
            Box::new(shared),
        ];
        let device = Device::cpu();
        let x = Tape::new(&device).input(&Tensor::full(&device, [3, 1, 4, 4], 1.0).unwrap());
        assert_eq!(chain.forward(&x).to_tensor().unwrap().shape().dims(), [3, 4]);
        assert_eq!(format!("{:?}", chain[8]), "dyn Layer (20 parameters)");
        let paths: Vec<_> = chain.named_parameters().into_iter().map(|(path, _)| path).collect();
        let expected = ["0.weight", "0.bias", "1.weight", "1.bias", "4.weight", "4.bias", "8.weight", "8.bias"];
        assert_eq!(paths, [&expected[..], &["9.0.weight", "9.0.bias"]].concat());
    }
}
