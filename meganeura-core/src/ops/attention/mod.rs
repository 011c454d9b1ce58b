//! Scaled dot-product attention. A GPU's forward kernel makes one pass over the keys and stores no scores; the CPU
//! stores those of a few dozen queries at a time, and most gradients on a GPU those of a block of heads or queries.

mod grad;
mod launch;
mod native;
mod native_blocks;
mod units;
mod weights;

pub use grad::AttentionGrad;
pub(crate) use units::fits_in_registers;
pub use weights::AttentionWeights;

use super::{Bf16, Kernel, Primitive};
use crate::kernel::launch::{Argument, Caps, LINE, Variant};
use crate::kernel::native::{OutView, Real, Scratch, View};
use crate::ops::Exact;
#[cfg(feature = "onnx")]
use crate::ops::form::{self, Form};

use crate::{Result, Shape, TensorType};

/// `y = softmax(scale·q·kᵀ + bias)·v`, and each query's log-sum-exp, `lse = ln Σ eˢᶜᵒʳᵉ`
///
/// A log-sum-exp is stored as two numbers, a score `m` near the largest and `ln Σ e^(score − m)`: their sum would be
/// rounded at the magnitude of the scores. Differentiation treats the first as a constant; the second carries the
/// gradient.
///
/// Shapes: `q [B…, L, D]`, `k [B…, S, D]`, `v [B…, S, E]`, and optionally `bias [B…, L, S]` → `y [B…, L, E]`, `lse
/// [B…, L, 2]`. The last axis of `B…` may be shorter for keys and values: `Hₖ` heads, a divisor of the queries' `H`.
/// Then query head `h` sees head `h / (H / Hₖ)`. With `causal`, query `i` sees the keys up to `i + S − L`. A query that
/// sees no key, and so has a row of −∞, gives 0 with a log-sum-exp of `(0, 0)`: then its weights `e^(score − lse)` are
/// 0, too.
///
/// Gradient: with `w = e^(score − lse)`, `dv = wᵀ·dy` and `ds = w·(dy·vᵀ − Σ dy·y + dlse)`, `dq = scale·ds·k`,
/// `dk = scale·dsᵀ·q`, `dbias = ds`. [`AttentionGrad`] recomputes `w`.
///
/// Sources: [Rabe and Staats, 2021](https://arxiv.org/abs/2112.05682), [Dao et al.,
/// 2022](https://arxiv.org/abs/2205.14135).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Attention {
    pub(crate) scale: Exact,
    pub(crate) causal: bool,
}

/// The extents of an attention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionShape {
    /// Heads of queries, of all sequences.
    pub(crate) batch: usize,
    /// Heads of queries that share a head of keys and values.
    pub(crate) group: usize,
    pub(crate) l: usize,
    pub(crate) s: usize,
    pub(crate) d: usize,
    pub(crate) e: usize,
}

impl AttentionShape {
    /// The extents of operands that passed the type rule.
    pub(crate) fn of(q: &[usize], v: &[usize]) -> Self {
        let ([batch @ .., l, d], [of_keys @ .., s, e]) = (q, v) else { unreachable!("the type rule checked the axes") };
        let group = group(batch, of_keys).expect("the type rule checked the heads");
        Self { batch: batch.iter().product(), group, l: *l, s: *s, d: *d, e: *e }
    }

    /// The extents with rows of whole lines.
    pub(crate) fn in_lines(self) -> Self {
        Self { d: self.d.next_multiple_of(LINE), e: self.e.next_multiple_of(LINE), ..self }
    }

    /// The number of the head of keys that serves head `b` of queries, as an expression of WGSL.
    fn keys_of(self, b: &str) -> String {
        if self.group == 1 { b.into() } else { format!("{b} / {}u", self.group) }
    }
}

/// The number of heads of queries for each head of keys and values, whose leading axes are these. `None` if they do not
/// fit: all but the last of them must be the same, and the last of the queries' a multiple of that of the keys'.
pub(crate) fn group(queries: &[usize], keys: &[usize]) -> Option<usize> {
    match (queries, keys) {
        _ if queries == keys => Some(1),
        ([outer @ .., heads], [of_keys @ .., own]) => {
            (outer == of_keys && *own > 0 && *heads > 0 && heads.is_multiple_of(*own)).then(|| heads / own)
        }
        _ => None,
    }
}

impl Attention {
    pub(crate) fn check(&self, x: &[TensorType]) -> Result<[TensorType; 2], String> {
        let ([q, k, v] | [q, k, v, _]) = x else {
            return Err(format!("takes three or four operands, not {}", x.len()));
        };
        if x.iter().any(|ty| !ty.dtype.is_float() || ty.dtype != q.dtype) {
            return Err("needs floats of one type".into());
        }
        let misfit = || {
            format!("needs q [.., L, D], k [.., S, D] and v [.., S, E], not {}, {} and {}", q.shape, k.shape, v.shape)
        };
        let ([b, l, d], [bk, s, dk], [bv, sv, e]) = (split(q)?, split(k)?, split(v)?);
        if bk != bv || group(b, bk).is_none() || d != dk || s != sv {
            return Err(misfit());
        }
        let rank = q.shape.rank();
        if let [_, _, _, bias] = x
            && (bias.shape.rank() != rank || bias.shape != q.shape.with(rank - 1, s[0]))
        {
            return Err(format!(
                "needs a bias for each query and key, {}, not {}",
                q.shape.with(rank - 1, s[0]),
                bias.shape
            ));
        }
        let lead = Shape::new(&[b, l, &[2]].concat());
        Ok([q.with_shape(q.shape.with(rank - 1, e[0])), q.with_shape(lead)])
    }
}

/// The leading axes and the last two of a shape.
fn split(ty: &TensorType) -> Result<[&[usize]; 3], String> {
    let dims = ty.shape.dims();
    match dims.len() {
        0 | 1 => Err(format!("{} has fewer than two axes", ty.shape)),
        n => Ok([&dims[..n - 2], &dims[n - 2..n - 1], &dims[n - 1..]]),
    }
}

impl Primitive for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn outputs(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        self.check(x).map(Vec::from)
    }

    fn multiply_adds(&self, x: &[TensorType], y: &[TensorType]) -> u64 {
        let (q, k) = (x[0].shape, x[1].shape);
        let keys = k[k.rank() - 2] as u64;
        // The scores, and the weighted sum of the values.
        (q.elements() as u64 + y[0].shape.elements() as u64) * keys
    }

    #[cfg(feature = "onnx")]
    fn onnx(&self, x: &[form::Operand], y: &[TensorType], to: &mut Form) -> Option<form::Results> {
        let [q, k, v] = [0, 1, 2].map(|operand: usize| x[operand].value);
        let (dtype, rank) = (y[0].dtype, y[0].shape.rank());
        let (queries, keys) = (x[0].ty.shape[rank - 2], x[1].ty.shape[rank - 2]);
        let scale = to.float(dtype, self.scale.0);
        let q = to.node("Mul", &[q, scale], Vec::new());
        let group = AttentionShape::of(x[0].ty.shape.dims(), x[2].ty.shape.dims()).group;
        // With a group, the last leading axis is split into groups and their heads; keys and values have one each.
        let split = |shape: Shape, of: usize| {
            let (lead, matrix) = shape.dims().split_at(rank - 2);
            let (outer, heads) = lead.split_at(lead.len().saturating_sub(1));
            Shape::new(&[outer, &[heads.first().map_or(1, |heads| heads / of), of], matrix].concat())
        };
        let of_scores = x[0].ty.shape.with(rank - 1, keys);
        let (mut q, mut k, mut v, mut axes) = (q, k, v, (0..rank).collect::<Vec<_>>());
        if group > 1 {
            [q, k, v] = [(q, 0, group), (k, 1, 1), (v, 2, 1)]
                .map(|(value, x_at, of)| to.reshape(value, split(x[x_at].ty.shape, of)));
            axes.push(rank);
        }
        let last = axes.len() - 1;
        axes.swap(last - 1, last);
        let k = to.node("Transpose", &[k], vec![("perm", form::Attribute::Ints(form::ints(&axes)))]);
        let mut scores = to.node("MatMul", &[q, k], Vec::new());
        if group > 1 {
            scores = to.reshape(scores, of_scores);
        }
        if let [_, _, _, bias] = x {
            scores = to.node("Add", &[scores, bias.narrow.0], Vec::new());
        }
        if self.causal {
            let sees = |query: usize, key: usize| key + queries <= query + keys;
            let places = (0..queries * keys).map(|at| sees(at / keys, at % keys));
            let hidden = places.map(|sees| if sees { 0.0 } else { f64::NEG_INFINITY }).collect();
            let hidden = to.floats(TensorType::new(dtype, Shape::from([queries, keys])), hidden);
            scores = to.node("Add", &[scores, hidden], Vec::new());
        }
        // A mask, or more causal queries than keys, may leave a query without keys.
        let weights = match x.len() > 3 || (self.causal && queries > keys) {
            true => super::softmax::weights(scores, y[0], to),
            false => to.node("Softmax", &[scores], vec![("axis", form::Attribute::Int(-1))]),
        };
        if group == 1 {
            return Some(vec![Some(to.node("MatMul", &[weights, v], Vec::new())), None]);
        }
        let weights = to.reshape(weights, split(of_scores, group));
        let heads = to.node("MatMul", &[weights, v], Vec::new());
        Some(vec![Some(to.reshape(heads, y[0].shape)), None])
    }
}

impl Attention {
    /// `true` if products of whole matrices are the fastest way to the gradient on a GPU, in blocks of `most` scores.
    pub(crate) fn differentiates_by_products(&self, g: AttentionShape, most: usize) -> bool {
        let features = g.d.max(g.e);
        // The kernels of one pass skip hidden keys, which pays if there are many tiles of scores.
        let skips = self.causal && features <= COSTLY && g.l > 128 && g.batch.saturating_mul(g.l) > 1 << 13;
        // The queries of a causal head, and of its group, are in one block.
        let fits = !self.causal || g.l.saturating_mul(g.s).saturating_mul(g.group) <= most;
        features > NARROW && g.l.min(g.s) > FEW && fits && !skips
    }
}

impl Kernel for Attention {
    fn reads_strided(&self, _: usize) -> bool {
        true
    }

    fn stores(&self) -> bool {
        true
    }

    fn cpu<T: Real>(&self, x: &[View<'_, T>], y: &mut [OutView<'_, T>], scratch: &Scratch) {
        native::forward(self, x, y, scratch);
    }

    fn bf16(&self, x: &[TensorType], _: &[TensorType], caps: &Caps) -> Option<Bf16> {
        units::bf16(AttentionShape::of(x[0].shape.dims(), x[2].shape.dims()), &[0, 1, 2], false, caps)
    }

    fn variants(&self, x: &[Argument], _: &[TensorType], caps: &Caps) -> Vec<Variant> {
        if x[..3].iter().any(|x| x.format.is_bf16()) {
            return units::forward(self, x, caps);
        }
        launch::forward(self, x, caps)
    }
}

/// The most features of a head for which one pass is the fastest way to the gradient: products of whole matrices are
/// slow for so few.
pub(crate) const NARROW: usize = 16;

/// The same limit for the number of queries, or of keys.
pub(crate) const FEW: usize = 32;

/// With more features of a head, computing scores again takes longer than reading them.
pub(crate) const COSTLY: usize = 64;
