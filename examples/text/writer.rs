//! The model: a transformer that predicts the next character or token, and writes by sampling one after the other.

use meganeura::Error;
use meganeura::init::Initializer;
use meganeura::nn::{AttentionMask, FeedForwardActivation, KeyValueCache};
use meganeura::prelude::*;

/// A small GPT: maps codes of characters or tokens `[N, L]` to scores of the next one at each position,
/// `[N, L, vocabulary]`.
#[derive(Module, Debug, Clone)]
#[module(config(
    /// The number of different codes.
    vocabulary: usize,
    /// The longest sequence.
    context: usize,
    /// Features of a code.
    width: usize,
    /// Heads of each attention, a divisor of the width.
    heads: usize,
    /// Layers of attention and feed-forward.
    layers: usize,
    /// The dropout probability in training.
    dropout: f64,
))]
pub struct Writer {
    #[module(init = Embedding::new(vocabulary, width).weight_init(SMALL))]
    character: Embedding,
    #[module(init = Embedding::new(context, width).weight_init(SMALL))]
    position: Embedding,
    #[module(init = vec![TransformerEncoderLayer::new(width, heads).feed_forward(4 * width)
        .activation(FeedForwardActivation::Gelu).dropout(dropout).norm_first(true); layers])]
    layers: Vec<TransformerEncoderLayer>,
    #[module(init = LayerNorm::new([width]))]
    norm: LayerNorm,
    #[module(init = Linear::new(width, vocabulary))]
    head: Linear,
}

/// The residual path starts small, so that the layers' results matter from the beginning.
const SMALL: Initializer = Initializer::Normal { mean: 0.0, std: 0.02 };

impl Writer {
    /// The longest sequence.
    fn context(&self) -> usize {
        self.position.weight.shape()[0]
    }

    /// Codes as features; the first one follows `before` others.
    fn embed(&self, codes: &Var, before: usize) -> Var {
        let tape = codes.tape();
        let places = tape.iota([codes.shape()[1]], 0) + tape.scalar(before as f64);
        self.character.forward(codes) + self.position.forward(&places.to_index())
    }

    /// The scores of each next code.
    pub fn forward(&self, codes: &Var) -> Var {
        let mut x = self.embed(codes, 0);
        for layer in &self.layers {
            x = layer.forward_with(&x, AttentionMask { causal: true, ..AttentionMask::default() });
        }
        self.head.forward(&self.norm.forward(&x))
    }

    /// The mean loss per code, in nats, of scores of each next code.
    pub fn loss(scores: &Var, next: &Var) -> Var {
        let vocabulary = scores.shape()[2];
        let count = next.shape().elements();
        scores.reshape([count, vocabulary]).cross_entropy(&next.reshape([count]))
    }

    /// Continues a text by `count` codes. A code of probability `p` is drawn in proportion to `p^(1/temperature)`.
    ///
    /// Keys and values of earlier codes are cached, so each code takes one step through the layers. When the
    /// context is full, its second half starts a new one.
    pub fn write(
        &self,
        text: &mut Vec<u32>,
        count: usize,
        temperature: f64,
        seed: u64,
        device: &Device,
    ) -> Result<(), Error> {
        let mut random = fastrand::Rng::with_seed(seed);
        let end = text.len() + count;
        let mut begins_with = self.context();
        while text.len() < end {
            let tape = Tape::inference(device);
            let cache =
                |layer: &TransformerEncoderLayer| KeyValueCache::new(&tape, &layer.attention, 1, self.context());
            let mut caches: Vec<_> = self.layers.iter().map(cache).collect();
            let mut seen = text.len() - text.len().min(begins_with);
            begins_with = self.context().div_ceil(2);
            while text.len() < end && caches.iter().all(|cache| cache.len() + (text.len() - seen) <= self.context()) {
                let next = tape.input(&Tensor::indices(device, [1, text.len() - seen], &text[seen..])?);
                let mut x = self.embed(&next, caches.first().map_or(0, KeyValueCache::len));
                for (layer, cache) in self.layers.iter().zip(&mut caches) {
                    x = layer.forward_next(&x, cache);
                }
                let last = x.shape()[1] - 1;
                let scores = self.head.forward(&self.norm.forward(&x.slice(1, last..last + 1)));
                seen = text.len();
                text.push(draw(&scores.to_vec()?, temperature, &mut random));
            }
        }
        Ok(())
    }
}

/// Samples a number by its scores.
fn draw(scores: &[f32], temperature: f64, random: &mut fastrand::Rng) -> u32 {
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<_> = scores.iter().map(|score| (f64::from(score - largest) / temperature).exp()).collect();
    let mut rest = random.f64() * weights.iter().sum::<f64>();
    let drawn = weights.iter().position(|weight| {
        rest -= weight;
        rest < 0.0
    });
    drawn.unwrap_or(weights.len() - 1) as u32
}
