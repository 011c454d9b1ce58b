//! GPT-2, under Hugging Face's names.

use meganeura::init::Initializer;
use meganeura::nn::KeyValueCache;
use meganeura::ops::{AttentionOptions, Mask};
use meganeura::prelude::*;
use meganeura::{Error, ErrorKind, Result};

use crate::projected::{join_heads, split_heads};
use crate::sampling::Sampling;

/// GPT-2, a model of language: Radford et al., 2019, "Language Models are Unsupervised Multitask Learners"
///
/// Its parameters have the names and shapes of `GPT2LMHeadModel` of Hugging Face's transformers, with matrices stored
/// as `[in, out]`. The scores are products with the embedding, so there is no `lm_head.weight`. The published files,
/// those of `GPT2Model`, have the names of the field [`transformer`](Self::transformer), and masks that nothing needs:
///
/// ```no_run
/// use meganeura::io::Names;
/// use meganeura::prelude::*;
/// use meganeura_models::{Gpt2, Gpt2Config, Sampling};
///
/// # fn main() -> meganeura::Result<()> {
/// let mut net = Gpt2::init(&Device::best()?, 42, Gpt2Config::gpt2())?;
/// let names = Names::new().ignore("h.*.attn.bias");
/// net.transformer.load_with("gpt2/model.safetensors", &names)?.strict()?;
/// let hello = [15496, 11, 314, 716]; // "Hello, I am", from a tokenizer
/// let tokens = net.generate(&hello, 20, &Sampling { top_k: Some(50), temperature: 0.8, ..Sampling::default() })?;
/// # Ok(())
/// # }
/// ```
///
/// Attention weights have no dropout in training.
///
/// Shapes: tokens `u32 [N, L]` → scores of the next token at each place, `[N, L, vocabulary]`.
#[derive(Module, Debug, Clone)]
#[module(config = Gpt2Config)]
pub struct Gpt2 {
    /// All parameters.
    #[module(init = Gpt2TransformerConfig { of: config.clone() })]
    pub transformer: Gpt2Transformer,
}

/// Describes a [`Gpt2`]
#[derive(Debug, Clone, PartialEq)]
pub struct Gpt2Config {
    /// The number of different tokens.
    pub vocabulary: usize,
    /// The longest text in tokens.
    pub context: usize,
    /// Features of a token.
    pub width: usize,
    /// The number of layers.
    pub layers: usize,
    /// Heads of each attention, a divisor of the width.
    pub heads: usize,
    /// The probability of dropout behind the embedding and each branch.
    pub dropout: f64,
}

impl Gpt2Config {
    const fn new(layers: usize, heads: usize, width: usize) -> Self {
        Self { vocabulary: 50_257, context: 1024, width, layers, heads, dropout: 0.1 }
    }

    /// The small one: 124,439,808 parameters.
    #[must_use]
    pub const fn gpt2() -> Self {
        Self::new(12, 12, 768)
    }

    /// 354,823,168 parameters.
    #[must_use]
    pub const fn medium() -> Self {
        Self::new(24, 16, 1024)
    }

    /// 774,030,080 parameters.
    #[must_use]
    pub const fn large() -> Self {
        Self::new(36, 20, 1280)
    }

    /// 1,557,611,200 parameters.
    #[must_use]
    pub const fn xl() -> Self {
        Self::new(48, 25, 1600)
    }
}

/// The layers of a [`Gpt2`]
#[derive(Module, Debug, Clone)]
#[module(config(
    /// The whole model's settings.
    of: Gpt2Config,
))]
pub struct Gpt2Transformer {
    #[module(init = Embedding::new(of.vocabulary, of.width).weight_init(START))]
    wte: Embedding,
    #[module(init = Embedding::new(of.context, of.width).weight_init(START))]
    wpe: Embedding,
    #[module(init = Dropout::new(of.dropout))]
    drop: Dropout,
    #[module(init = vec![BlockConfig { of: of.clone() }; of.layers])]
    h: Vec<Block>,
    #[module(init = LayerNorm::new([of.width]))]
    ln_f: LayerNorm,
}

const START: Initializer = Initializer::Normal { mean: 0.0, std: 0.02 };

/// `x·W + b`, with the matrix as `[in, out]`.
#[derive(Module, Debug, Clone)]
#[module(config(inputs: usize, outputs: usize))]
struct Conv1D {
    #[module(init = START.param([inputs, outputs]))]
    weight: Param,
    #[module(init = Initializer::Zeros.param([outputs]))]
    bias: Param,
}

impl Layer for Conv1D {
    #[track_caller]
    fn forward(&self, x: &Var) -> Var {
        let shape = x.shape();
        let [inputs, outputs] = *self.weight.shape().dims() else { unreachable!("a matrix since it was built") };
        let rows = x.reshape([shape.elements() / inputs, inputs]);
        let y = rows.matmul(&x.param(&self.weight)) + x.param(&self.bias);
        y.reshape(shape.with(shape.rank() - 1, outputs))
    }
}

#[derive(Module, Debug, Clone)]
#[module(config(of: Gpt2Config))]
struct Block {
    #[module(init = LayerNorm::new([of.width]))]
    ln_1: LayerNorm,
    #[module(init = AttentionConfig { width: of.width, heads: of.heads })]
    attn: Attention,
    #[module(init = LayerNorm::new([of.width]))]
    ln_2: LayerNorm,
    #[module(init = FeedForwardConfig { width: of.width })]
    mlp: FeedForward,
    #[module(init = Dropout::new(of.dropout))]
    drop: Dropout,
}

#[derive(Module, Debug, Clone)]
#[module(config(width: usize, heads: usize))]
struct Attention {
    #[module(init = Conv1DConfig { inputs: width, outputs: 3 * width })]
    c_attn: Conv1D,
    #[module(init = Conv1DConfig { inputs: width, outputs: width })]
    c_proj: Conv1D,
    #[module(skip, init = heads)]
    heads: usize,
}

#[derive(Module, Debug, Clone)]
#[module(sequential, config(width: usize))]
struct FeedForward {
    #[module(init = Conv1DConfig { inputs: width, outputs: 4 * width }, then = gelu_tanh)]
    c_fc: Conv1D,
    #[module(init = Conv1DConfig { inputs: 4 * width, outputs: width })]
    c_proj: Conv1D,
}

impl Block {
    /// Without a cache, the whole text is `x`.
    #[track_caller]
    fn forward(&self, x: &Var, cache: Option<&mut KeyValueCache>) -> Var {
        let [query, key, value] = split_heads(&self.attn.c_attn.forward(&self.ln_1.forward(x)), self.attn.heads);
        let heads = match cache {
            None => {
                query.attention_with(&key, &value, AttentionOptions { causal: true, ..AttentionOptions::default() })
            }
            Some(cache) => {
                let [key, value, mask] = cache.push(&key, &value);
                query.attention(&key, &value, Some(Mask::Bias(&mask)))
            }
        };
        let x = x + self.drop.forward(&self.attn.c_proj.forward(&join_heads(&heads)));
        &x + self.drop.forward(&self.mlp.forward(&self.ln_2.forward(&x)))
    }
}

impl Gpt2Transformer {
    /// The features of each token `u32 [N, L]`, `[N, L, width]`.
    #[must_use]
    #[track_caller]
    pub fn forward(&self, tokens: &Var) -> Var {
        self.features(tokens, 0, None)
    }

    #[track_caller]
    fn features(&self, tokens: &Var, before: usize, mut caches: Option<&mut [KeyValueCache]>) -> Var {
        let (shape, context) = (tokens.shape(), self.wpe.weight.shape()[0]);
        let &[_, length] = shape.dims() else {
            return tokens.refuse("gpt2", ErrorKind::Shape, format!("takes tokens [N, L], not {shape}"));
        };
        if before + length > context {
            let message = format!("a text of {} tokens, the longest has {context}", before + length);
            return tokens.refuse("gpt2", ErrorKind::Argument, message);
        }
        let places = tokens.param(&self.wpe.weight).slice(0, before..before + length);
        let mut x = self.drop.forward(&(self.wte.forward(tokens) + places));
        for (index, block) in self.h.iter().enumerate() {
            x = block.forward(&x, caches.as_mut().map(|caches| &mut caches[index]));
        }
        self.ln_f.forward(&x)
    }

    /// The scores of each token at each place: products with the embedding.
    #[track_caller]
    fn scores(&self, features: &Var) -> Var {
        let &[n, length, width] = features.shape().dims() else { return features.clone() };
        let rows = features.reshape([n * length, width]);
        let scores = rows.matmul(&features.param(&self.wte.weight).t());
        scores.reshape([n, length, self.wte.weight.shape()[0]])
    }
}

impl Layer for Gpt2 {
    #[track_caller]
    fn forward(&self, tokens: &Var) -> Var {
        self.transformer.scores(&self.transformer.forward(tokens))
    }
}

impl Gpt2 {
    /// The tokens that follow a prompt, `count` of them.
    ///
    /// Keys and values of earlier tokens are kept, so each token takes one step through the layers.
    ///
    /// # Errors
    ///
    /// Fails for an empty prompt, for a token that the vocabulary lacks, if prompt and new tokens are longer than the
    /// context, for settings that make no sense, and if a score is not finite.
    #[track_caller]
    pub fn generate(&self, prompt: &[u32], count: usize, sampling: &Sampling) -> Result<Vec<u32>> {
        let (net, mut text) = (&self.transformer, prompt.to_vec());
        let context = net.wpe.weight.shape()[0];
        if prompt.is_empty() || prompt.len().saturating_add(count) > context + 1 {
            let message = format!("gpt2: {count} tokens behind a prompt of {}; the context is {context}", prompt.len());
            return Err(Error::new(ErrorKind::Argument, message));
        }
        let device = net.wte.weight.value().device().clone();
        let tape = Tape::inference(&device);
        let width = net.wte.weight.shape()[1];
        let cache = |block: &Block| {
            let heads = block.attn.heads;
            KeyValueCache::of_heads(&tape, [1, heads, context, width / heads])
        };
        let mut caches: Vec<_> = net.h.iter().map(cache).collect();
        let mut seen = 0;
        for step in 0..count {
            let next = tape.input(&Tensor::indices(&device, [1, text.len() - seen], &text[seen..])?);
            let features = net.features(&next, seen, Some(&mut caches));
            let last = next.shape()[1] - 1;
            let scores = net.scores(&features.slice(1, last..last + 1)).to_vec()?;
            seen = text.len();
            text.push(sampling.draw(&scores, step)?);
        }
        Ok(text.split_off(prompt.len()))
    }
}
