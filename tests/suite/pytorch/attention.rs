//! Attention in which some queries see no key, or share keys, written in PyTorch and here.

use std::sync::Arc;

use meganeura::Var;
use meganeura::nn::*;
use meganeura::ops::{AttentionOptions, Mask};
use meganeura::{Init, Seed};

use super::penalties::gradient;
use super::{Case, Inputs, function, module, transformers};

pub(super) fn cases() -> Vec<Arc<Case>> {
    [functions(), layers(), penalties()].concat()
}

fn attend(i: &Inputs, mask: Mask<'_>) -> Var {
    i.var("x").attention(i.var("k"), i.var("v"), Some(mask))
}

/// 1 where a number is positive.
fn is_positive(x: &Var) -> Var {
    x.gt(x.tape().scalar(0.0))
}

/// 1 where one of `of` rows is not among the first ones of a sequence of this length: `[rows, of]`.
fn padding(i: &Inputs, lengths: &[f64], of: usize) -> Var {
    let rows: Vec<_> = lengths.iter().map(|&length| i.tape.scalar(length)).collect();
    let lengths = Var::stack(&rows.iter().collect::<Vec<_>>(), 0);
    i.tape.iota([1, of], 1).ge(lengths.unsqueeze(1))
}

fn functions() -> Vec<Arc<Case>> {
    let of = |torch: &str, f: fn(&Inputs) -> Var| function("attention", torch, f);
    vec![
        of("F.scaled_dot_product_attention(x, k, v, attn_mask=(t > 0) & (torch.arange(5) != 2)[:, None])", |i| {
            let rows = i.tape.iota([5, 1], 0).ne(i.tape.scalar(2.0));
            attend(i, Mask::Visible(&(is_positive(i.var("t")) * rows)))
        }),
        of(
            "F.scaled_dot_product_attention(x, k, v, attn_mask=mask.masked_fill((torch.arange(5) > 2)[:, None], -torch.inf))",
            |i| {
                let rows = i.tape.iota([5, 1], 0).gt(i.tape.scalar(2.0));
                attend(i, Mask::Bias(&i.var("mask").masked_fill(&rows, f64::NEG_INFINITY)))
            },
        ),
        of(
            "F.scaled_dot_product_attention(x, k, v, attn_mask=(torch.arange(70)[:, None] % 9 > 2) & (torch.arange(90) >= 65))",
            |i| {
                let sees = |row: usize| if row % 9 > 2 { 1.0 } else { 0.0 };
                let rows: Vec<_> = (0..70).map(|row| i.tape.scalar(sees(row))).collect();
                let rows = Var::stack(&rows.iter().collect::<Vec<_>>(), 0).unsqueeze(1);
                attend(i, Mask::Visible(&(rows * i.tape.iota([1, 90], 1).ge(i.tape.scalar(65.0)))))
            },
        ),
        // Here, causality is a setting for any number of queries.
        of("F.scaled_dot_product_attention(x, k, v, attn_mask=torch.ones(9, 5).tril(-4) > 0)", |i| {
            let options = AttentionOptions { causal: true, ..AttentionOptions::default() };
            i.var("x").attention_with(i.var("k"), i.var("v"), options)
        }),
        of("F.scaled_dot_product_attention(x, k, v, is_causal=True, enable_gqa=True)", |i| {
            let options = AttentionOptions { causal: true, grouped: true, ..AttentionOptions::default() };
            i.var("x").attention_with(i.var("k"), i.var("v"), options)
        }),
        of(
            "F.scaled_dot_product_attention(x, k, v, attn_mask=(t > 0) & (torch.arange(5) != 2)[:, None], enable_gqa=True)",
            |i| {
                let rows = i.tape.iota([5, 1], 0).ne(i.tape.scalar(2.0));
                attend(i, Mask::Visible(&(is_positive(i.var("t")) * rows)))
            },
        ),
    ]
}

fn layers() -> Vec<Arc<Case>> {
    let attention = "nn.MultiheadAttention(6, 3, batch_first=True)";
    let encoder = "nn.TransformerEncoderLayer(6, 2, 5, 0.0, batch_first=True, norm_first=True)";
    let decoder = "nn.TransformerDecoderLayer(4, 2, 3, 0.0, batch_first=True)";
    let seed = Seed::new(1);
    vec![
        module(
            "attention",
            attention,
            super::layers::names_of_attention(),
            move |device| MultiheadAttention::new(6, 3).init(device, seed),
            |layer, i| {
                let padding = padding(i, &[3.0, 0.0, 5.0], 5).reshape([3, 1, 1, 5]);
                let sees = padding.eq(i.tape.scalar(0.0));
                layer.attend(i.var("x"), i.var("context"), Some(Mask::Visible(&sees)))
            },
        ),
        module(
            "attention",
            encoder,
            transformers::names(),
            move |device| {
                TransformerEncoderLayer::new(6, 2).feed_forward(5).dropout(0.0).norm_first(true).init(device, seed)
            },
            |layer, i| {
                let padding = padding(i, &[0.0, 2.0, 4.0], 4);
                layer.forward_with(i.var("x"), AttentionMask { padding: Some(&padding), ..AttentionMask::default() })
            },
        ),
        module(
            "attention",
            decoder,
            transformers::names(),
            move |device| TransformerDecoderLayer::new(4, 2).feed_forward(3).dropout(0.0).init(device, seed),
            |layer, i| {
                let padding = padding(i, &[4.0, 0.0], 5);
                let memory = AttentionMask { padding: Some(&padding), ..AttentionMask::default() };
                layer.forward(i.var("x"), i.var("t"), AttentionMask::default(), memory)
            },
        ),
    ]
}

fn penalties() -> Vec<Arc<Case>> {
    let of = |torch: &str, operand: &'static str| {
        function("attention", torch, move |i| {
            let rows = i.tape.iota([5, 1], 0).ne(i.tape.scalar(2.0));
            let sees = i.var("t").gt(i.tape.scalar(-1.0)) * rows;
            gradient(&attend(i, Mask::Visible(&sees)).square().sum(), i.var(operand))
        })
    };
    vec![
        of(
            "torch.autograd.grad(by_products(x, k, v, (t > -1) & (torch.arange(5) != 2)[:, None]).square().sum(), x, create_graph=True)[0]",
            "x",
        ),
        of(
            "torch.autograd.grad(by_products(x, k, v, (t > -1) & (torch.arange(5) != 2)[:, None]).square().sum(), v, create_graph=True)[0]",
            "v",
        ),
    ]
}
