//! Transformer layers, written in PyTorch and here.

use std::sync::Arc;

use meganeura::io::Names;
use meganeura::nn::*;
use meganeura::{Init, Seed, Var};

use super::{Case, Inputs, module};

/// Here, attentions have separate projections, and the feed-forward layers are a separate part.
pub(super) fn names() -> Names {
    Names::new()
        .split("self_attn.in_proj_*", ["attention.query.*", "attention.key.*", "attention.value.*"])
        .rename("self_attn.out_proj.*", "attention.output.*")
        .split(
            "multihead_attn.in_proj_*",
            ["cross_attention.query.*", "cross_attention.key.*", "cross_attention.value.*"],
        )
        .rename("multihead_attn.out_proj.*", "cross_attention.output.*")
        .rename("linear1.*", "feed_forward.linear1.*")
        .rename("linear2.*", "feed_forward.linear2.*")
}

type Run<L> = fn(&L, &Inputs) -> Var;

fn encoder(torch: &str, config: TransformerEncoderLayerConfig, run: Run<TransformerEncoderLayer>) -> Arc<Case> {
    let build = move |device: &_| config.clone().dropout(0.0).init(device, Seed::new(1));
    module("sequences", torch, names(), build, run)
}

fn decoder(torch: &str, config: TransformerDecoderLayerConfig, run: Run<TransformerDecoderLayer>) -> Arc<Case> {
    let build = move |device: &_| config.clone().dropout(0.0).init(device, Seed::new(1));
    module("sequences", torch, names(), build, run)
}

pub(super) fn cases() -> Vec<Arc<Case>> {
    const CAUSAL: AttentionMask<'_> = AttentionMask { mask: None, padding: None, causal: true };
    vec![
        encoder(
            "nn.TransformerEncoderLayer(4, 2, 6, 0.0, batch_first=True)",
            TransformerEncoderLayer::new(4, 2).feed_forward(6),
            |layer, i| layer.forward_with(i.var("x"), AttentionMask::default()),
        ),
        encoder(
            "nn.TransformerEncoderLayer(4, 2, 3, 0.0, F.gelu, batch_first=True, norm_first=True)",
            TransformerEncoderLayer::new(4, 2).feed_forward(3).activation(FeedForwardActivation::Gelu).norm_first(true),
            |layer, i| layer.forward_with(i.var("x"), CAUSAL),
        ),
        encoder(
            "nn.TransformerEncoderLayer(4, 1, 6, 0.0, layer_norm_eps=0.1, batch_first=True)",
            TransformerEncoderLayer::new(4, 1).feed_forward(6).eps(0.1),
            |layer, i| {
                let lengths = i.as_floats("lengths").unsqueeze(1);
                let padding = i.tape.iota([1, 5], 1).gt(&lengths);
                layer.forward_with(i.var("x"), AttentionMask { padding: Some(&padding), ..AttentionMask::default() })
            },
        ),
        decoder(
            "nn.TransformerDecoderLayer(4, 2, 6, 0.0, batch_first=True)",
            TransformerDecoderLayer::new(4, 2).feed_forward(6),
            |layer, i| layer.forward(i.var("x"), i.var("t"), AttentionMask::default(), AttentionMask::default()),
        ),
        decoder(
            "nn.TransformerDecoderLayer(6, 3, 5, 0.0, norm_first=True, batch_first=True)",
            TransformerDecoderLayer::new(6, 3).feed_forward(5).norm_first(true),
            |layer, i| layer.forward(i.var("x"), i.var("t"), CAUSAL, AttentionMask::default()),
        ),
    ]
}
