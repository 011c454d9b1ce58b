//! Gradients, computed in PyTorch and here, and the gradients of these gradients.

use std::sync::Arc;

use meganeura::Var;
use meganeura::loss::CrossEntropyOptions;

use super::{Case, Inputs, function};

pub(super) fn cases() -> Vec<Arc<Case>> {
    let of = |torch: &str, f: fn(&Inputs) -> Var| function("penalties", torch, f);
    vec![
        of(
            "torch.autograd.grad(F.silu(F.group_norm(x, 2, v, b)).sum(), x, create_graph=True)[0].square().sum((1, 2)).sqrt()",
            |i| {
                let y = i.var("x").group_norm(2, 1e-5, i.var("v"), i.var("b"));
                gradient(&y.silu().sum(), i.var("x")).square().sum_over(&[1, 2]).sqrt()
            },
        ),
        of("torch.autograd.grad(F.silu(F.layer_norm(x, (6,), v, b)).sum(), x, create_graph=True)[0]", |i| {
            // Each row as a group of one channel, like in `LayerNorm`.
            let x = i.var("x");
            let one = x.tape().scalar(1.0).reshape([1]);
            let zero = x.tape().scalar(0.0).reshape([1]);
            let normal = x.unsqueeze(1).group_norm(1, 1e-5, &one, &zero).squeeze(1);
            gradient(&(normal * i.var("v") + i.var("b")).silu().sum(), x)
        }),
        of(
            "torch.autograd.grad(F.cross_entropy(x, labels, label_smoothing=0.1, ignore_index=1), x, create_graph=True)[0]",
            |i| {
                let options =
                    CrossEntropyOptions { label_smoothing: 0.1, ignored: Some(1), ..CrossEntropyOptions::default() };
                gradient(&i.var("x").cross_entropy_with(i.var("labels"), &options), i.var("x"))
            },
        ),
        of("torch.autograd.grad(F.max_pool2d(x, 3, 2, 1).square().sum(), x, create_graph=True)[0]", |i| {
            gradient(&i.var("x").max_pool2d([3, 3], [2, 2], [1, 1], [1, 1]).square().sum(), i.var("x"))
        }),
    ]
}

/// The gradient of a number.
pub(super) fn gradient(y: &Var, x: &Var) -> Var {
    let grads = y.tape().backward(y).expect("the case fits");
    grads.of(x).expect("depends")
}
