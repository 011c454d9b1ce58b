//! Attention whose queries, keys and values are one product.

use meganeura::ErrorKind;
use meganeura::init::{Initializer, Nonlinearity};
use meganeura::prelude::*;

/// Self-attention with the names of PyTorch's `MultiheadAttention`: `in_proj_weight` `[3·width, width]`,
/// `in_proj_bias`, and `out_proj`.
#[derive(Module, Debug, Clone)]
#[module(config(width: usize, heads: usize))]
pub(crate) struct PackedAttention {
    #[module(init = Initializer::XavierUniform { nonlinearity: Nonlinearity::Linear }.param([3 * width, width]))]
    in_proj_weight: Param,
    #[module(init = Initializer::Zeros.param([3 * width]))]
    in_proj_bias: Param,
    #[module(init = Linear::new(width, width))]
    out_proj: Linear,
    #[module(skip, init = heads)]
    heads: usize,
}

impl Layer for PackedAttention {
    #[track_caller]
    fn forward(&self, x: &Var) -> Var {
        let &[n, length, width] = x.shape().dims() else {
            return x.refuse("attention", ErrorKind::Shape, format!("attends in [N, L, width], not in {}", x.shape()));
        };
        let rows = x.reshape([n * length, width]);
        let packed = rows.matmul(&x.param(&self.in_proj_weight).t()) + x.param(&self.in_proj_bias);
        let [query, key, value] = split_heads(&packed.reshape([n, length, 3 * width]), self.heads);
        self.out_proj.forward(&join_heads(&query.attention(&key, &value, None)))
    }
}

/// Queries, keys and values side by side, `[N, L, 3·width]` → each `[N, heads, L, width/heads]`.
#[track_caller]
pub(crate) fn split_heads(packed: &Var, heads: usize) -> [Var; 3] {
    let &[n, length, three] = packed.shape().dims() else { return [0; 3].map(|_| packed.clone()) };
    let parts = packed.reshape([n, length, 3, heads, three / 3 / heads.max(1)]).permute(&[2, 0, 3, 1, 4]);
    [0, 1, 2].map(|at| parts.at(at))
}

/// `[N, heads, L, d]` → `[N, L, heads·d]`
#[track_caller]
pub(crate) fn join_heads(x: &Var) -> Var {
    let &[n, heads, length, d] = x.shape().dims() else { return x.clone() };
    x.permute(&[0, 2, 1, 3]).reshape([n, length, heads * d])
}

/// `[N, L, heads·d]` → `[N, heads, L, d]`
#[track_caller]
pub(crate) fn head_of(x: &Var, heads: usize) -> Var {
    let &[n, length, width] = x.shape().dims() else { return x.clone() };
    x.reshape([n, length, heads, width / heads.max(1)]).permute(&[0, 2, 1, 3])
}
