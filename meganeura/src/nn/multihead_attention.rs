//! Attention over sequences.

use std::panic::Location;

use meganeura_derive::Module;

use super::{KeyValueCache, Linear};
use crate::error::bail;
use crate::init::Initializer;
use crate::module::{Init, Layer, Seed, init_field};
use crate::ops::{AttentionOptions, Mask};
use crate::{Device, Error, ErrorKind, Param, Result, Tensor, Var};

/// Multi-head attention over sequences: `y = concat(head₁, …, headₕ)·Wₒᵀ`, where each head is `softmax(q·kᵀ/√d)·v` over
/// its `d = width/heads` features of the projected queries, keys and values
///
/// [`forward`](Layer::forward) attends from a sequence to itself, [`attend`](Self::attend) from one sequence to
/// another, with an optional mask. Normalisation and residual are up to the caller.
///
/// It starts as in PyTorch: the projections of queries, keys and values by Xavier's uniform distribution over the three
/// as one matrix, the output's like any [`Linear`], and all biases as 0.
///
/// Shapes: `x [N, L, width]` → `y [N, L, width]`. [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762).
///
/// ```
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let attention = MultiheadAttention::new(32, 4).init(&device, Seed::new(42))?;
///
/// let tape = Tape::new(&device);
/// let x = tape.input(&Tensor::zeros(&device, [2, 10, 32])?);
/// assert_eq!(attention.forward(&x).shape(), x.shape());
/// let context = tape.input(&Tensor::zeros(&device, [2, 7, 32])?);
/// assert_eq!(attention.attend(&x, &context, None).shape(), x.shape());
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Module, Debug, Clone)]
#[non_exhaustive]
pub struct MultiheadAttention {
    /// The projection to the queries.
    pub query: Linear,
    /// The projection to the keys.
    pub key: Linear,
    /// The projection to the values.
    pub value: Linear,
    /// The projection of the heads' results to the output.
    pub output: Linear,
    /// The number of heads, a divisor of the width.
    #[module(skip)]
    pub heads: usize,
}

impl MultiheadAttention {
    /// Multi-head attention over vectors of `width` features, with `heads` heads.
    #[expect(clippy::new_ret_no_self, reason = "a layer needs a device and a seed; this describes one without")]
    pub fn new(width: usize, heads: usize) -> MultiheadAttentionConfig {
        MultiheadAttentionConfig { width, heads, bias: true }
    }

    /// Attends from `x [N, L, width]` to `context [N, S, width]` → `[N, L, width]`.
    ///
    /// The mask broadcasts to `[N, heads, L, S]`. For a position that sees none of the context, the heads give 0, so
    /// the result is the bias of `output`.
    #[must_use]
    #[track_caller]
    pub fn attend(&self, x: &Var, context: &Var, mask: Option<Mask<'_>>) -> Var {
        self.attend_with(x, context, AttentionOptions { mask, ..AttentionOptions::default() })
    }

    /// Like [`attend`](Self::attend), with the options of [`Var::attention_with`]: causal attention, for example.
    #[must_use]
    #[track_caller]
    pub fn attend_with(&self, x: &Var, context: &Var, options: AttentionOptions<'_>) -> Var {
        let _entered = crate::module::enter(self, x);
        let (&[n, l, width], &[of, s, also]) = (x.shape().dims(), context.shape().dims()) else {
            return self.refuse(x, context);
        };
        if n != of || width != also || width != self.query.weight.shape()[1] {
            return self.refuse(x, context);
        }
        let query = self.split(&self.query.forward(x), [n, l, width]);
        let key = self.split(&self.key.forward(context), [n, s, width]);
        let value = self.split(&self.value.forward(context), [n, s, width]);
        let heads = query.attention_with(&key, &value, options);
        self.output.forward(&heads.permute(&[0, 2, 1, 3]).reshape([n, l, width]))
    }

    /// Causal self-attention of the next positions `x [N, L, width]` of a sequence, which see the positions in the
    /// cache and are added to it. The result is the one that attention over the whole sequence has at these positions.
    ///
    /// Errors: more positions than the cache has room for; a batch or width other than the cache's.
    #[must_use]
    #[track_caller]
    pub fn attend_next(&self, x: &Var, cache: &mut KeyValueCache) -> Var {
        let _entered = crate::module::enter(self, x);
        let &[n, l, width] = x.shape().dims() else { return self.refuse(x, x) };
        if width != self.query.weight.shape()[1] {
            return self.refuse(x, x);
        }
        let of_places = |projection: &Linear| self.split(&projection.forward(x), [n, l, width]);
        let [key, value, mask] = cache.push(&of_places(&self.key), &of_places(&self.value));
        let heads = of_places(&self.query).attention(&key, &value, Some(Mask::Bias(&mask)));
        self.output.forward(&heads.permute(&[0, 2, 1, 3]).reshape([n, l, width]))
    }

    /// `[n, len, width]` → `[n, heads, len, width/heads]`
    #[track_caller]
    fn split(&self, x: &Var, [n, len, width]: [usize; 3]) -> Var {
        x.reshape([n, len, self.heads, width / self.heads]).permute(&[0, 2, 1, 3])
    }

    #[track_caller]
    fn refuse(&self, x: &Var, context: &Var) -> Var {
        let weight = &self.query.weight;
        let width = weight.shape()[1];
        let message =
            format!("attends from [N, L, {width}] to [N, S, {width}], not from {} to {}", x.shape(), context.shape());
        let error = Error::new(ErrorKind::Shape, message).in_op("multihead_attention").at(Location::caller());
        let error = error.operand(x.ty(), x.path()).operand(context.ty(), context.path());
        // The operand that failed before has the reason.
        let poisoned = if context.error().is_some() { context } else { x };
        poisoned.fail(error.operand(weight.ty(), weight.path()))
    }
}

impl Layer for MultiheadAttention {
    fn forward(&self, x: &Var) -> Var {
        self.attend(x, x, None)
    }

    fn flow(&self) -> crate::module::Flow {
        crate::module::Flow::kept().takes_features(self.query.weight.shape()[1])
    }
}

/// Describes a [`MultiheadAttention`]; [`Init::init`] builds it.
#[derive(Debug, Clone)]
#[must_use]
pub struct MultiheadAttentionConfig {
    width: usize,
    heads: usize,
    bias: bool,
}

impl MultiheadAttentionConfig {
    /// Gives the projections biases if `true`, the default.
    pub fn bias(self, bias: bool) -> Self {
        Self { bias, ..self }
    }
}

/// Checks the heads of any attention.
pub(super) fn check_heads(layer: &str, width: usize, heads: usize) -> Result<()> {
    if width == 0 || heads == 0 || !width.is_multiple_of(heads) {
        bail!(Argument, "{layer}: {width} features do not fall into {heads} equal heads");
    }
    Ok(())
}

impl Init for MultiheadAttentionConfig {
    type Output = MultiheadAttention;

    fn build(self, device: &Device, seed: Seed) -> Result<MultiheadAttention> {
        let Self { width, heads, bias } = self;
        check_heads("multihead_attention", width, heads)?;
        // Xavier's bound for the three input projections as one matrix `[3·width, width]`.
        #[expect(clippy::cast_precision_loss, reason = "widths are far below 2^53")]
        let bound = (6.0 / (4.0 * width as f64)).sqrt();
        let xavier = Initializer::Uniform { low: -bound, high: bound };
        let project = |name, weight_init| {
            let projection = || {
                let linear = Linear::new(width, width).bias(false).weight_init(weight_init);
                let mut linear = linear.build(device, seed.field(name))?;
                if bias {
                    linear.bias = Some(Param::new(Tensor::zeros(device, [width])?));
                }
                Ok(linear)
            };
            init_field(name, projection())
        };
        let [query, key, value] = ["query", "key", "value"].map(|name| project(name, xavier));
        let output = project("output", Initializer::default())?;
        Ok(MultiheadAttention { query: query?, key: key?, value: value?, output, heads })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Shape, Tape};

    #[test]
    fn computes_the_formula() {
        let device = Device::cpu();
        let tape = Tape::new(&device);
        let input = |shape: [usize; 2], data: &[f32]| tape.input(&Tensor::from_slice(&device, shape, data).unwrap());
        let q = input([1, 4], &[2.0, 0.0, 0.0, 2.0]);
        let k = input([2, 4], &[1.0, 5.0, 0.0, 0.0, 0.0, 0.0, 7.0, 0.0]);
        let v = input([2, 1], &[10.0, 20.0]);
        // The scores are 2/√4 and 0.
        let share = 1f32.exp() / (1f32.exp() + 1.0);
        let y = q.attention(&k, &v, None).item().unwrap();
        assert!((y - (10.0 * share + 20.0 * (1.0 - share))).abs() < 1e-5, "{y}");
        let mask = input([1, 2], &[f32::NEG_INFINITY, 0.0]);
        assert_eq!(q.attention(&k, &v, Some(Mask::Bias(&mask))).item().unwrap(), 20.0);
    }

    /// Every projection is the identity, which shows that each head sees only its own features.
    #[test]
    fn heads_are_blocks_of_features_and_masks_hide() {
        let device = Device::cpu();
        let mut attention = MultiheadAttention::new(2, 2).bias(false).init(&device, Seed::new(0)).unwrap();
        let identity = Tensor::from_slice(&device, [2, 2], &[1.0, 0.0, 0.0, 1.0]).unwrap();
        let MultiheadAttention { query, key, value, output, .. } = &mut attention;
        for linear in [query, key, value, output] {
            linear.weight = Param::new(identity.clone());
        }
        let tape = Tape::new(&device);
        let x = tape.input(&Tensor::from_slice(&device, [1, 2, 2], &[100.0, 0.0, -100.0, 3.0]).unwrap());
        // In head 0, each query attends to its own key. In head 1, the first query is 0 and gets the mean.
        let y = attention.forward(&x).to_vec().unwrap();
        let share = 9f32.exp() / (9f32.exp() + 1.0);
        let expected = [100.0, 1.5, -100.0, 3.0 * share];
        assert!(y.iter().zip(expected).all(|(y, e)| (y - e).abs() < 1e-5), "{y:?}");
        let hidden = [0.0, f32::NEG_INFINITY, 0.0, 0.0];
        let causal = tape.input(&Tensor::from_slice(&device, [2, 2], &hidden).unwrap());
        let y = attention.attend(&x, &x, Some(Mask::Bias(&causal))).to_vec().unwrap();
        assert_eq!(y[..2], [100.0, 0.0]);
    }

    #[test]
    fn misfits_are_errors() {
        let device = Device::cpu();
        for (width, heads) in [(0, 1), (4, 0), (4, 3)] {
            let error = MultiheadAttention::new(width, heads).init(&device, Seed::new(0)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Argument);
        }
        let attention = MultiheadAttention::new(4, 2).init(&device, Seed::new(0)).unwrap();
        let tape = Tape::new(&device);
        let input = |shape: &[usize]| tape.input(&Tensor::zeros(&device, Shape::new(shape)).unwrap());
        let x = input(&[2, 3, 4]);
        for context in [input(&[1, 3, 4]), input(&[2, 3, 2]), input(&[3, 4])] {
            let (y, line) = (attention.attend(&x, &context, None), line!());
            let error = y.error().unwrap();
            assert_eq!((error.kind(), error.location().unwrap().line()), (ErrorKind::Shape, line));
            assert!(error.to_string().contains("attends from [N, L, 4] to [N, S, 4]"), "{error}");
        }
        assert!(attention.attend(&x, &x, Some(Mask::Visible(&input(&[2, 5])))).error().is_some());
    }
}
