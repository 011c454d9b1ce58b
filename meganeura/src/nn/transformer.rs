//! Transformer layers, which encoders and decoders stack.

use meganeura_derive::Module;

use super::{Dropout, KeyValueCache, LayerNorm, Linear, MultiheadAttention};
use crate::module::{Init, Layer, Seed, init_field};
use crate::ops::{AttentionOptions, Mask};
use crate::{Device, ErrorKind, Result, Var};

/// The activation between the two linear maps of a feed-forward part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FeedForwardActivation {
    /// `max(x, 0)`
    #[default]
    Relu,
    /// `x·Φ(x)`
    Gelu,
}

/// The positions of a sequence that a transformer layer attends to.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttentionMask<'a> {
    /// The positions that each position sees, or numbers that are added to the scores. Broadcasts to
    /// `[N, heads, L, S]`.
    ///
    /// PyTorch's layers take a boolean mask in the opposite sense: `True` hides a position.
    pub mask: Option<Mask<'a>>,
    /// The padding mask, `[N, S]`: a position that is not 0 is padding, which nothing sees. PyTorch's
    /// `key_padding_mask`. A sequence may be padding altogether: then attention gives 0, and has no gradient.
    pub padding: Option<&'a Var>,
    /// `true` if a position sees no later ones.
    pub causal: bool,
}

impl AttentionMask<'_> {
    /// [`MultiheadAttention::attend_with`], restricted to these positions.
    #[track_caller]
    fn attend(self, attention: &MultiheadAttention, x: &Var, context: &Var) -> Var {
        let mut mask = self.mask.map(Mask::scores);
        if let Some(padding) = self.padding {
            let &[n, s] = padding.shape().dims() else {
                return padding.refuse("padding", ErrorKind::Shape, format!("needs [N, S], not {}", padding.shape()));
            };
            let tape = padding.tape();
            let padding = if padding.ty().dtype.is_float() { padding.clone() } else { padding.to_float() };
            let hidden = padding.where_cond(&tape.scalar(f64::NEG_INFINITY), &tape.scalar(0.0)).reshape([n, 1, 1, s]);
            mask = Some(match mask {
                Some(mask) => mask + hidden,
                None => hidden,
            });
        }
        attention.attend_with(
            x,
            context,
            AttentionOptions {
                mask: mask.as_ref().map(Mask::Bias),
                causal: self.causal,
                ..AttentionOptions::default()
            },
        )
    }
}

/// A layer of a transformer's encoder: self-attention, then two linear maps with an activation between.
///
/// Each part has dropout, a residual and a layer normalisation. With `norm_first`, a part computes
/// `x + attention(norm(x))`, else `norm(x + attention(x))`, and likewise for the linear maps.
///
/// It is PyTorch's `nn.TransformerEncoderLayer(width, heads, batch_first=True)`, with three differences: PyTorch also
/// drops attention weights in training, draws its projections from another distribution, and stores those of queries,
/// keys and values as one tensor ([`Names::split`](crate::io::Names::split) loads it). A decoder without
/// cross-attention, as in GPT, is this layer with [`AttentionMask::causal`].
///
/// Shapes: `x [N, L, width]`, kept. [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762); `norm_first`
/// [Xiong et al., 2020](https://arxiv.org/abs/2002.04745).
///
/// ```
/// use meganeura::nn::AttentionMask;
/// use meganeura::prelude::*;
///
/// let device = Device::cpu();
/// let layer = TransformerEncoderLayer::new(32, 4).feed_forward(64).norm_first(true).init(&device, Seed::new(42))?;
///
/// let tape = Tape::inference(&device);
/// let x = tape.input(&Tensor::zeros(&device, [2, 10, 32])?);
/// assert_eq!(layer.forward_with(&x, AttentionMask { causal: true, ..AttentionMask::default() }).shape(), x.shape());
/// # Ok::<(), meganeura::Error>(())
/// ```
#[derive(Module, Debug, Clone)]
#[non_exhaustive]
pub struct TransformerEncoderLayer {
    /// The self-attention.
    pub attention: MultiheadAttention,
    /// The two linear maps.
    pub feed_forward: FeedForward,
    /// The normalisation of the attention.
    pub norm1: LayerNorm,
    /// The normalisation of the linear maps.
    pub norm2: LayerNorm,
    /// The dropout on the attention's result.
    pub dropout: Dropout,
    /// `true` if the operand of each part is normalised, rather than its sum with the residual.
    #[module(skip)]
    pub norm_first: bool,
}

/// A layer of a transformer's decoder: a [`TransformerEncoderLayer`] that also attends to the encoder's result, between
/// its two parts.
///
/// It is PyTorch's `nn.TransformerDecoderLayer(width, heads, batch_first=True)`, with the same two differences.
///
/// Shapes: `x [N, L, width]` and `memory [N, S, width]` → `[N, L, width]`.
#[derive(Module, Debug, Clone)]
#[non_exhaustive]
pub struct TransformerDecoderLayer {
    /// The self-attention.
    pub attention: MultiheadAttention,
    /// The attention to the encoder's result.
    pub cross_attention: MultiheadAttention,
    /// The two linear maps.
    pub feed_forward: FeedForward,
    /// The normalisation of the attention.
    pub norm1: LayerNorm,
    /// The normalisation of the attention to the encoder's result.
    pub norm2: LayerNorm,
    /// The normalisation of the linear maps.
    pub norm3: LayerNorm,
    /// The dropout on the results of both attentions.
    pub dropout: Dropout,
    /// `true` if the operand of each part is normalised, rather than its sum with the residual.
    #[module(skip)]
    pub norm_first: bool,
}

/// Two linear maps with an activation and dropout between, and dropout after them.
///
/// Shapes: `x [.., width]`, kept.
#[derive(Module, Debug, Clone)]
#[non_exhaustive]
pub struct FeedForward {
    /// `width → hidden`
    pub linear1: Linear,
    /// `hidden → width`
    pub linear2: Linear,
    /// The dropout between the maps and after them.
    pub dropout: Dropout,
    /// The activation between the maps.
    #[module(skip)]
    pub activation: FeedForwardActivation,
}

impl Layer for FeedForward {
    fn forward(&self, x: &Var) -> Var {
        let _entered = crate::module::enter(self, x);
        let hidden = self.linear1.forward(x);
        let hidden = match self.activation {
            FeedForwardActivation::Relu => hidden.relu(),
            FeedForwardActivation::Gelu => hidden.gelu(),
        };
        self.dropout.forward(&self.linear2.forward(&self.dropout.forward(&hidden)))
    }

    fn flow(&self) -> crate::module::Flow {
        crate::module::Flow::kept().takes_features(self.linear1.weight.shape()[1])
    }
}

/// The order of a part, its residual and its normalisation.
#[derive(Clone, Copy)]
struct Residual<'a> {
    norm: &'a LayerNorm,
    first: bool,
}

impl Residual<'_> {
    /// The part's operand.
    #[track_caller]
    fn operand(self, x: &Var) -> Var {
        if self.first { self.norm.forward(x) } else { x.clone() }
    }

    /// The part's result, joined with its residual.
    #[track_caller]
    fn join(self, x: &Var, result: &Var) -> Var {
        if self.first { x + result } else { self.norm.forward(&(x + result)) }
    }
}

impl TransformerEncoderLayer {
    /// A layer of `width` features and `heads` heads, with 2,048 hidden features and dropout of 0.1, as in PyTorch.
    #[expect(clippy::new_ret_no_self, reason = "a layer needs a device and a seed; this describes one without")]
    pub fn new(width: usize, heads: usize) -> TransformerEncoderLayerConfig {
        TransformerEncoderLayerConfig(Settings::new(width, heads))
    }

    /// The layer's result, where positions see what `mask` allows.
    #[must_use]
    #[track_caller]
    pub fn forward_with(&self, x: &Var, mask: AttentionMask<'_>) -> Var {
        let _entered = crate::module::enter(self, x);
        let own = self.residual(&self.norm1).operand(x);
        self.after_attention(x, &mask.attend(&self.attention, &own, &own))
    }

    /// The causal layer's result for the next positions of a sequence whose earlier positions are in the cache: see
    /// [`MultiheadAttention::attend_next`].
    #[must_use]
    #[track_caller]
    pub fn forward_next(&self, x: &Var, cache: &mut KeyValueCache) -> Var {
        let _entered = crate::module::enter(self, x);
        let own = self.residual(&self.norm1).operand(x);
        self.after_attention(x, &self.attention.attend_next(&own, cache))
    }

    fn residual<'a>(&self, norm: &'a LayerNorm) -> Residual<'a> {
        Residual { norm, first: self.norm_first }
    }

    /// The layer's result, from its input and that of the attention.
    #[track_caller]
    fn after_attention(&self, x: &Var, attended: &Var) -> Var {
        let (attention, feed_forward) = (self.residual(&self.norm1), self.residual(&self.norm2));
        let x = attention.join(x, &self.dropout.forward(attended));
        feed_forward.join(&x, &self.feed_forward.forward(&feed_forward.operand(&x)))
    }
}

impl Layer for TransformerEncoderLayer {
    fn forward(&self, x: &Var) -> Var {
        self.forward_with(x, AttentionMask::default())
    }

    fn flow(&self) -> crate::module::Flow {
        crate::module::Flow::kept().takes_features(self.attention.query.weight.shape()[1])
    }
}

impl TransformerDecoderLayer {
    /// A layer of `width` features and `heads` heads, with 2,048 hidden features and dropout of 0.1, as in PyTorch.
    #[expect(clippy::new_ret_no_self, reason = "a layer needs a device and a seed; this describes one without")]
    pub fn new(width: usize, heads: usize) -> TransformerDecoderLayerConfig {
        TransformerDecoderLayerConfig(Settings::new(width, heads))
    }

    /// The layer's result, where positions see what `mask` allows of the sequence itself, and `memory_mask` of
    /// the encoder's result.
    #[must_use]
    #[track_caller]
    pub fn forward(&self, x: &Var, memory: &Var, mask: AttentionMask<'_>, memory_mask: AttentionMask<'_>) -> Var {
        let _entered = crate::module::enter(self, x);
        let norms = [&self.norm1, &self.norm2, &self.norm3];
        let [attention, cross, feed_forward] = norms.map(|norm| Residual { norm, first: self.norm_first });
        let own = attention.operand(x);
        let x = attention.join(x, &self.dropout.forward(&mask.attend(&self.attention, &own, &own)));
        let own = cross.operand(&x);
        let attended = memory_mask.attend(&self.cross_attention, &own, memory);
        let x = cross.join(&x, &self.dropout.forward(&attended));
        feed_forward.join(&x, &self.feed_forward.forward(&feed_forward.operand(&x)))
    }
}

/// The settings of both layers.
#[derive(Debug, Clone)]
struct Settings {
    width: usize,
    heads: usize,
    hidden: usize,
    dropout: f64,
    activation: FeedForwardActivation,
    norm_first: bool,
    eps: f64,
}

impl Settings {
    fn new(width: usize, heads: usize) -> Self {
        let activation = FeedForwardActivation::default();
        Self { width, heads, hidden: 2048, dropout: 0.1, activation, norm_first: false, eps: 1e-5 }
    }

    fn attention(&self, name: &'static str, device: &Device, seed: Seed) -> Result<MultiheadAttention> {
        init_field(name, MultiheadAttention::new(self.width, self.heads).build(device, seed.field(name)))
    }

    fn norm(&self, name: &'static str, device: &Device, seed: Seed) -> Result<LayerNorm> {
        init_field(name, LayerNorm::new([self.width]).eps(self.eps).build(device, seed.field(name)))
    }

    fn dropout(&self, device: &Device, seed: Seed) -> Result<Dropout> {
        init_field("dropout", Dropout::new(self.dropout).build(device, seed.field("dropout")))
    }

    fn feed_forward(&self, device: &Device, seed: Seed) -> Result<FeedForward> {
        let seed = seed.field("feed_forward");
        let linear =
            |name, inputs, outputs| init_field(name, Linear::new(inputs, outputs).build(device, seed.field(name)));
        let parts = || {
            Ok(FeedForward {
                linear1: linear("linear1", self.width, self.hidden)?,
                linear2: linear("linear2", self.hidden, self.width)?,
                dropout: self.dropout(device, seed)?,
                activation: self.activation,
            })
        };
        init_field("feed_forward", parts())
    }
}

macro_rules! configs {
    ($($(#[$doc:meta])* $Config:ident;)+) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone)]
            #[must_use]
            pub struct $Config(Settings);

            impl $Config {
                /// The number of features between the two linear maps; 2,048 by default.
                pub fn feed_forward(self, hidden: usize) -> Self {
                    Self(Settings { hidden, ..self.0 })
                }

                /// The probability of dropping an element; 0.1 by default.
                pub fn dropout(self, dropout: f64) -> Self {
                    Self(Settings { dropout, ..self.0 })
                }

                /// The activation between the two linear maps; ReLU by default.
                pub fn activation(self, activation: FeedForwardActivation) -> Self {
                    Self(Settings { activation, ..self.0 })
                }

                /// Normalises each part's operand if `true`, rather than its sum with the residual; `false` by default.
                pub fn norm_first(self, norm_first: bool) -> Self {
                    Self(Settings { norm_first, ..self.0 })
                }

                /// The number that normalisations add to the variance; 1e-5 by default.
                pub fn eps(self, eps: f64) -> Self {
                    Self(Settings { eps, ..self.0 })
                }
            }
        )+
    };
}

configs! {
    /// Describes a [`TransformerEncoderLayer`]; [`Init::init`] builds it.
    TransformerEncoderLayerConfig;
    /// Describes a [`TransformerDecoderLayer`]; [`Init::init`] builds it.
    TransformerDecoderLayerConfig;
}

impl Init for TransformerEncoderLayerConfig {
    type Output = TransformerEncoderLayer;

    fn build(self, device: &Device, seed: Seed) -> Result<TransformerEncoderLayer> {
        let Self(settings) = self;
        Ok(TransformerEncoderLayer {
            attention: settings.attention("attention", device, seed)?,
            feed_forward: settings.feed_forward(device, seed)?,
            norm1: settings.norm("norm1", device, seed)?,
            norm2: settings.norm("norm2", device, seed)?,
            dropout: settings.dropout(device, seed)?,
            norm_first: settings.norm_first,
        })
    }
}

impl Init for TransformerDecoderLayerConfig {
    type Output = TransformerDecoderLayer;

    fn build(self, device: &Device, seed: Seed) -> Result<TransformerDecoderLayer> {
        let Self(settings) = self;
        Ok(TransformerDecoderLayer {
            attention: settings.attention("attention", device, seed)?,
            cross_attention: settings.attention("cross_attention", device, seed)?,
            feed_forward: settings.feed_forward(device, seed)?,
            norm1: settings.norm("norm1", device, seed)?,
            norm2: settings.norm("norm2", device, seed)?,
            norm3: settings.norm("norm3", device, seed)?,
            dropout: settings.dropout(device, seed)?,
            norm_first: settings.norm_first,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ModuleExt, Param, Tape, Tensor};

    /// The gradient of a parameter.
    fn gradient(grads: &crate::Grads, param: &Param) -> Vec<f32> {
        grads.get(param).expect("the layer uses it").to_vec().expect("it can be computed")
    }

    #[test]
    fn a_sequence_of_padding_alone_has_no_attention() -> Result<()> {
        let device = Device::cpu();
        let layer = TransformerEncoderLayer::new(8, 2).feed_forward(5).dropout(0.0).init(&device, Seed::new(3))?;
        let tape = Tape::new(&device);
        let x = tape.input(&Tensor::randn(&device, [2, 3, 8], 1)?);
        let padding = tape.input(&Tensor::from_bools(&device, [2, 3], &[false, false, true, true, true, true])?);
        let y = layer.forward_with(&x, AttentionMask { padding: Some(&padding), ..AttentionMask::default() });
        let heads = layer.attention.output.bias.as_ref().expect("by default");
        // What follows the attention, of its bias alone.
        let rest = layer.after_attention(&x, &tape.param(heads).expand(x.shape()));
        y.slice(0, 1..2).to_tensor()?.expect_close(&rest.slice(0, 1..2).to_tensor()?, 0.0, 0.0)?;
        let alone = layer.forward_with(&x.slice(0, 0..1).slice(1, 0..2), AttentionMask::default());
        y.slice(0, 0..1).slice(1, 0..2).to_tensor()?.expect_close(&alone.to_tensor()?, 1e-6, 1e-6)?;

        // The padded sequence trains everything but the projections of its attention.
        let grads = tape.backward(&y.slice(0, 1..2).square().sum())?;
        let MultiheadAttention { query, key, value, output, .. } = &layer.attention;
        for linear in [query, key, value] {
            assert_eq!(gradient(&grads, &linear.weight), [0.0; 64]);
        }
        assert_eq!(gradient(&grads, &output.weight), [0.0; 64]);
        for (path, param) in layer.named_parameters() {
            assert!(gradient(&grads, param).iter().all(|x| x.is_finite()), "{path}");
        }
        Ok(())
    }
}
