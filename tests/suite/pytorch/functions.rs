//! Functions of values, written in PyTorch and here.

use std::sync::Arc;

use meganeura::Var;
use meganeura::ops::{AttentionOptions, Mask};

use super::{Case, Inputs, function};

pub(super) fn cases() -> Vec<Arc<Case>> {
    let of = |torch: &str, f: fn(&Inputs) -> Var| function("functions", torch, f);
    [order(&of), arrangement(&of), picks(&of), numbers(&of), attention(&of)].concat()
}

type Of<'a> = &'a dyn Fn(&str, fn(&Inputs) -> Var) -> Arc<Case>;

fn order(of: Of<'_>) -> Vec<Arc<Case>> {
    vec![
        of("torch.sort(x, 1)[0]", |i| i.var("x").sort(1, false).0),
        of("torch.sort(x, dim=0, descending=True, stable=True)[0]", |i| i.var("x").sort(0, true).0),
        of("torch.topk(x, 3, 1)[0]", |i| i.var("x").topk(3, 1).0),
        of("x + torch.argsort(x, dim=1, stable=True)", |i| i.var("x") + i.var("x").argsort(1, false).to_float()),
        of("x + torch.argmax(x, 1, keepdim=True)", |i| i.var("x") + i.var("x").argmax(1).to_float().unsqueeze(1)),
        of("x + torch.argmin(x, 0)", |i| i.var("x") + i.var("x").argmin(0).to_float()),
        of("torch.cumsum(x, 1)", |i| i.var("x").cumsum(1)),
        of("torch.logcumsumexp(x * 30, 1)", |i| (i.var("x") * 30.0).logcumsumexp(1)),
        of("torch.cumprod(x, 0)", |i| i.var("x").cumprod(0)),
    ]
}

fn arrangement(of: Of<'_>) -> Vec<Arc<Case>> {
    vec![
        of("torch.stack([x, t], 1)", |i| Var::stack(&[i.var("x"), i.var("t")], 1)),
        of("torch.chunk(x, 3, 1)[2]", |i| i.var("x").chunk(3, 1).swap_remove(2)),
        of("torch.split(x, [2, 1, 4], 1)[2]", |i| i.var("x").split(&[2, 1, 4], 1).swap_remove(2)),
        of("torch.transpose(x, 0, 2)", |i| i.var("x").transpose(0, 2)),
        of("x[1, :, 2:4]", |i| i.var("x").at((1, .., 2..4))),
        of("torch.diagonal(x, dim1=-2, dim2=-1)", |i| i.var("x").diagonal()),
        of("torch.flip(x, [0, 2])", |i| i.var("x").flip(&[0, 2])),
        of("torch.roll(x, 3, 1)", |i| i.var("x").roll(3, 1)),
        of("torch.roll(x, -4, 0)", |i| i.var("x").roll(-4, 0)),
        of("x.repeat(2, 3, 1)", |i| i.var("x").tile(&[2, 3, 1])),
        of("torch.repeat_interleave(x, 3, 1)", |i| i.var("x").repeat_interleave(3, 1)),
    ]
}

fn picks(of: Of<'_>) -> Vec<Arc<Case>> {
    vec![
        of("torch.gather(x, 1, labels)", |i| i.var("x").gather(1, i.var("labels"))),
        of("torch.scatter_add(x, 0, labels, t)", |i| i.var("x").scatter_add(0, i.var("labels"), i.var("t"))),
        of("torch.scatter(x, 1, labels.argsort(1), t)", |i| {
            i.var("x").scatter(1, &i.var("labels").to_float().argsort(1, false), i.var("t"))
        }),
        of("torch.index_select(x, 1, labels)", |i| i.var("x").index_select(1, i.var("labels"))),
        of("F.one_hot(labels, 5) * x", |i| i.var("labels").one_hot(5) * i.var("x")),
        of("torch.where(x > t, x, t * 2)", |i| {
            let (x, t) = (i.var("x"), i.var("t"));
            x.gt(t).where_cond(x, &(t * 2.0))
        }),
        of("x.masked_fill(t > 0, -2.5)", |i| {
            i.var("x").masked_fill(&i.var("t").gt(i.var("t").tape().scalar(0.0)), -2.5)
        }),
        of("torch.tril(x, -1)", |i| i.var("x").tril(-1)),
        of("torch.triu(x, 2)", |i| i.var("x").triu(2)),
    ]
}

fn numbers(of: Of<'_>) -> Vec<Arc<Case>> {
    vec![
        of("torch.floor(x) + torch.ceil(x) + torch.round(x) + x", |i| {
            let x = i.var("x");
            x.floor() + x.ceil() + x.round() + x
        }),
        of("torch.tan(x)", |i| i.var("x").tan()),
        of("torch.erfinv(x / 3.5)", |i| (i.var("x") / 3.5).erfinv()),
        of("torch.trapezoid(x, dim=0)", |i| i.var("x").trapezoid(0)),
        of("torch.trapezoid(x, dx=0.25, dim=1)", |i| i.var("x").trapezoid_with(1, 0.25)),
        of("torch.trapezoid(x, dim=1)", |i| i.var("x").trapezoid(1)),
        of("torch.cumulative_trapezoid(x, dim=1)", |i| i.var("x").cumulative_trapezoid(1)),
        of("torch.cumulative_trapezoid(x, dx=0.25, dim=0)", |i| i.var("x").cumulative_trapezoid_with(0, 0.25)),
        of("torch.linalg.vector_norm(x)", |i| i.var("x").norm()),
        of("torch.linalg.vector_norm(x, 3, (0, 2))", |i| i.var("x").norm_over(&[0, 2], 3.0)),
        of("torch.linalg.vector_norm(x, 1, 1)", |i| i.var("x").norm_over(&[1], 1.0)),
        of("torch.logsumexp(x * 100, (0, 1))", |i| (i.var("x") * 100.0).logsumexp(&[0, 1])),
        of("torch.std(x, 1)", |i| i.var("x").std_over(&[1], 1)),
        of("torch.einsum('bij,bjk->bik', x, t)", |i| Var::einsum("bij,bjk->bik", &[i.var("x"), i.var("t")])),
        of("torch.einsum('iij->j', x)", |i| Var::einsum("iij->j", &[i.var("x")])),
        of("torch.einsum('ij,kj,j->ki', x, t, v.exp())", |i| {
            Var::einsum("ij,kj,j->ki", &[i.var("x"), i.var("t"), &i.var("v").exp()])
        }),
        of("torch.einsum('nchw,cd->ndwh', x, t)", |i| Var::einsum("nchw,cd->ndwh", &[i.var("x"), i.var("t")])),
        of("torch.einsum('ab,cd', x, t)", |i| Var::einsum("ab,cd", &[i.var("x"), i.var("t")])),
    ]
}

fn attention(of: Of<'_>) -> Vec<Arc<Case>> {
    vec![
        of("F.scaled_dot_product_attention(x, k, v)", |i| i.var("x").attention(i.var("k"), i.var("v"), None)),
        of("F.scaled_dot_product_attention(x, k, v, is_causal=True, scale=0.3)", |i| {
            let options = AttentionOptions { causal: true, scale: Some(0.3), ..AttentionOptions::default() };
            i.var("x").attention_with(i.var("k"), i.var("v"), options)
        }),
        of("F.scaled_dot_product_attention(x, x, k, attn_mask=mask)", |i| {
            i.var("x").attention(i.var("x"), i.var("k"), Some(Mask::Bias(i.var("mask"))))
        }),
    ]
}
