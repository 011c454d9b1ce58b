//! What the compiler says of a config that is used as a layer.

use super::{
    BatchNorm1dConfig, BatchNorm2dConfig, BatchNorm3dConfig, ConvConfig, ConvTransposeConfig, EmbeddingConfig,
    GroupNormConfig, InstanceNorm2dConfig, LayerNorm2dConfig, LayerNormConfig, LinearConfig, MultiheadAttentionConfig,
    PReluConfig, RecurrentCellConfig, RecurrentConfig, RmsNormConfig, SelfAttention2dConfig, SinusoidalEmbeddingConfig,
    SwiGluConfig, TransformerDecoderLayerConfig, TransformerEncoderLayerConfig,
};
use crate::Var;

/// The trait that a config would need to have parameters. None has it.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`{Self}` describes a layer, and has no parameters yet",
    label = "not built",
    note = "`.init(&device, seed)?` builds the layer: `Linear::new(4, 3).init(&device, 42)?`",
    note = "in a model of your own, give it to the field: `#[module(init = Linear::new(4, 3))] head: Linear`"
)]
pub trait Built {}

macro_rules! unbuilt {
    ($([$($generic:tt)*] $Config:ty;)+) => {$(
        impl<$($generic)*> $Config {
            /// Never callable: the bound exists for its message. Without the lifetime, the compiler would refuse it.
            #[doc(hidden)]
            pub fn forward(&self, x: &Var) -> Var
            where
                for<'never> Self: Built,
            {
                x.clone()
            }
        }
    )+};
}

unbuilt! {
    [] BatchNorm1dConfig;
    [] BatchNorm2dConfig;
    [] BatchNorm3dConfig;
    [const D: usize] ConvConfig<D>;
    [const D: usize] ConvTransposeConfig<D>;
    [] EmbeddingConfig;
    [] GroupNormConfig;
    [] InstanceNorm2dConfig;
    [] LayerNorm2dConfig;
    [] LayerNormConfig;
    [] LinearConfig;
    [] MultiheadAttentionConfig;
    [] PReluConfig;
    [G] RecurrentCellConfig<G>;
    [G] RecurrentConfig<G>;
    [] RmsNormConfig;
    [] SelfAttention2dConfig;
    [] SinusoidalEmbeddingConfig;
    [] SwiGluConfig;
    [] TransformerDecoderLayerConfig;
    [] TransformerEncoderLayerConfig;
}
