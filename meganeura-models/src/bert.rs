//! BERT, under Hugging Face's names.

use meganeura::ErrorKind;
use meganeura::init::Initializer;
use meganeura::ops::Mask;
use meganeura::prelude::*;

use crate::projected::{head_of, join_heads};

/// BERT, an encoder of text: [Devlin et al., 2018](https://arxiv.org/abs/1810.04805)
///
/// Its parameters have the names and shapes of `BertModel` of Hugging Face's transformers, with its pooler. Models for
/// a task have them below `bert`. Attention weights have no dropout in training.
///
/// Shapes: tokens `u32 [N, L]` → features of each token, `[N, L, width]`.
///
/// ```
/// use meganeura::prelude::*;
/// use meganeura_models::{Bert, BertConfig};
///
/// # fn main() -> meganeura::Result<()> {
/// let device = Device::cpu();
/// let small = BertConfig { vocabulary: 100, width: 12, layers: 2, heads: 3, inside: 24, ..BertConfig::base_uncased() };
/// let net = Bert::init(&device, 42, small)?;
/// let tape = Tape::inference(&device);
/// let tokens = tape.input(&Tensor::indices(&device, [2, 3], &[1, 2, 3, 4, 5, 0])?);
/// // The last token of the second text is padding.
/// let visible = tape.input(&Tensor::from_slice(&device, [2, 3], &[1.0, 1.0, 1.0, 1.0, 1.0, 0.0])?);
/// let features = net.forward_with(&tokens, None, Some(&visible));
/// assert_eq!(net.pooled(&features).shape(), Shape::from([2, 12]));
/// # Ok(())
/// # }
/// ```
#[derive(Module, Debug, Clone)]
#[module(config = BertConfig)]
pub struct Bert {
    #[module(init = EmbeddingsConfig { of: config.clone() })]
    embeddings: Embeddings,
    #[module(init = EncoderConfig { of: config.clone() })]
    encoder: Encoder,
    #[module(init = DenseConfig { inputs: config.width, outputs: config.width })]
    pooler: Dense,
}

/// Describes a [`Bert`]
#[derive(Debug, Clone, PartialEq)]
pub struct BertConfig {
    /// The number of different tokens.
    pub vocabulary: usize,
    /// The longest text in tokens.
    pub context: usize,
    /// The number of different kinds of tokens: 2 for pairs of sentences.
    pub kinds: usize,
    /// Features of a token.
    pub width: usize,
    /// The number of layers.
    pub layers: usize,
    /// Heads of each attention, a divisor of the width.
    pub heads: usize,
    /// Features inside the feed-forward part of each layer.
    pub inside: usize,
    /// The probability of dropout behind the embedding and each branch.
    pub dropout: f64,
}

impl BertConfig {
    const fn new(vocabulary: usize, layers: usize, heads: usize, width: usize) -> Self {
        Self { vocabulary, context: 512, kinds: 2, width, layers, heads, inside: 4 * width, dropout: 0.1 }
    }

    /// `bert-base-uncased`: 109,482,240 parameters.
    #[must_use]
    pub const fn base_uncased() -> Self {
        Self::new(30_522, 12, 12, 768)
    }

    /// `bert-base-cased`: 108,310,272 parameters.
    #[must_use]
    pub const fn base_cased() -> Self {
        Self::new(28_996, 12, 12, 768)
    }

    /// `bert-large-uncased`: 335,141,888 parameters.
    #[must_use]
    pub const fn large_uncased() -> Self {
        Self::new(30_522, 24, 16, 1024)
    }
}

const START: Initializer = Initializer::Normal { mean: 0.0, std: 0.02 };

/// The ε of all normalisations.
const EPS: f64 = 1e-12;

#[derive(Module, Debug, Clone)]
#[module(config(of: BertConfig))]
struct Embeddings {
    #[module(init = Embedding::new(of.vocabulary, of.width).weight_init(START))]
    word_embeddings: Embedding,
    #[module(init = Embedding::new(of.context, of.width).weight_init(START))]
    position_embeddings: Embedding,
    #[module(init = Embedding::new(of.kinds, of.width).weight_init(START))]
    token_type_embeddings: Embedding,
    #[module(rename = "LayerNorm", init = LayerNorm::new([of.width]).eps(EPS))]
    norm: LayerNorm,
    #[module(init = Dropout::new(of.dropout))]
    dropout: Dropout,
}

#[derive(Module, Debug, Clone)]
#[module(config(of: BertConfig))]
struct Encoder {
    #[module(init = vec![BlockConfig { of: of.clone() }; of.layers])]
    layer: Vec<Block>,
}

#[derive(Module, Debug, Clone)]
#[module(config(of: BertConfig))]
struct Block {
    #[module(init = AttentionConfig { of: of.clone() })]
    attention: Attention,
    #[module(init = DenseConfig { inputs: of.width, outputs: of.inside })]
    intermediate: Dense,
    #[module(init = AddedConfig { inputs: of.inside, outputs: of.width, dropout: of.dropout })]
    output: Added,
}

#[derive(Module, Debug, Clone)]
#[module(config(of: BertConfig))]
struct Attention {
    #[module(rename = "self", init = ProjectionsConfig { width: of.width, heads: of.heads })]
    heads: Projections,
    #[module(init = AddedConfig { inputs: of.width, outputs: of.width, dropout: of.dropout })]
    output: Added,
}

#[derive(Module, Debug, Clone)]
#[module(config(width: usize, heads: usize))]
struct Projections {
    #[module(init = Linear::new(width, width).weight_init(START))]
    query: Linear,
    #[module(init = Linear::new(width, width).weight_init(START))]
    key: Linear,
    #[module(init = Linear::new(width, width).weight_init(START))]
    value: Linear,
    #[module(skip, init = heads)]
    heads: usize,
}

#[derive(Module, Debug, Clone)]
#[module(config(inputs: usize, outputs: usize))]
struct Dense {
    #[module(init = Linear::new(inputs, outputs).weight_init(START))]
    dense: Linear,
}

/// `norm(x + dense(y))`
#[derive(Module, Debug, Clone)]
#[module(config(inputs: usize, outputs: usize, dropout: f64))]
struct Added {
    #[module(init = Linear::new(inputs, outputs).weight_init(START))]
    dense: Linear,
    #[module(rename = "LayerNorm", init = LayerNorm::new([outputs]).eps(EPS))]
    norm: LayerNorm,
    #[module(init = Dropout::new(dropout))]
    dropout: Dropout,
}

impl Added {
    #[track_caller]
    fn forward(&self, x: &Var, y: &Var) -> Var {
        self.norm.forward(&(x + self.dropout.forward(&self.dense.forward(y))))
    }
}

impl Block {
    #[track_caller]
    fn forward(&self, x: &Var, visible: Option<&Var>) -> Var {
        let of = &self.attention.heads;
        let [query, key, value] = [&of.query, &of.key, &of.value].map(|part| head_of(&part.forward(x), of.heads));
        let heads = query.attention(&key, &value, visible.map(Mask::Visible));
        let x = self.attention.output.forward(x, &join_heads(&heads));
        self.output.forward(&x, &self.intermediate.dense.forward(&x).gelu())
    }
}

impl Bert {
    /// The features of each token of texts `u32 [N, L]`, `[N, L, width]`.
    ///
    /// `kinds`, `u32 [N, L]`, tells the sentences of a pair apart; all are 0 if it is left out. Tokens whose number in
    /// `visible`, `[N, L]`, is 0 are hidden from all others.
    #[must_use]
    #[track_caller]
    pub fn forward_with(&self, tokens: &Var, kinds: Option<&Var>, visible: Option<&Var>) -> Var {
        let Embeddings { word_embeddings, position_embeddings, token_type_embeddings, norm, dropout } =
            &self.embeddings;
        let (shape, context) = (tokens.shape(), position_embeddings.weight.shape()[0]);
        let &[n, length] = shape.dims() else {
            return tokens.refuse("bert", ErrorKind::Shape, format!("takes tokens [N, L], not {shape}"));
        };
        if length > context {
            let message = format!("a text of {length} tokens, the longest has {context}");
            return tokens.refuse("bert", ErrorKind::Argument, message);
        }
        let places = tokens.param(&position_embeddings.weight).slice(0, 0..length);
        let kinds = match kinds {
            Some(kinds) => token_type_embeddings.forward(kinds),
            None => tokens.param(&token_type_embeddings.weight).slice(0, 0..1),
        };
        let x = word_embeddings.forward(tokens) + places + kinds;
        let x = dropout.forward(&norm.forward(&x));
        let visible = visible.map(|visible| visible.reshape([n, 1, 1, length]));
        self.encoder.layer.iter().fold(x, |x, block| block.forward(&x, visible.as_ref()))
    }

    /// The features of a whole text: those of its first token, `[N, L, width]` → `[N, width]`, behind another layer.
    #[must_use]
    #[track_caller]
    pub fn pooled(&self, features: &Var) -> Var {
        let &[n, _, width] = features.shape().dims() else { return features.clone() };
        self.pooler.dense.forward(&features.slice(1, 0..1).reshape([n, width])).tanh()
    }
}

/// All tokens of one kind, and none hidden.
impl Layer for Bert {
    #[track_caller]
    fn forward(&self, tokens: &Var) -> Var {
        self.forward_with(tokens, None, None)
    }
}
