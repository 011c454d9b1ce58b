//! GPT-2: the small one has 163,037,184 parameters for 50,257 tokens and a context of 1,024, with a head of its own.

use meganeura::init::Initializer;
use meganeura::nn::{AttentionMask, FeedForwardActivation};
use meganeura::prelude::*;

/// Maps tokens `u32 [N, L]` to scores of the next token at each position, `[N, L, vocabulary]`.
///
/// The model of Radford et al., 2019, "Language Models are Unsupervised Multitask Learners", without dropout, and with
/// a head that is not tied to the embedding.
#[derive(Module, Debug, Clone)]
#[module(config(
    /// The number of different tokens: 50,257 in GPT-2.
    vocabulary: usize,
    /// The longest sequence: 1,024 in GPT-2.
    context: usize,
    /// Features of a token: 768 in the small one.
    width: usize,
    /// Heads of each attention, a divisor of the width: 12 in the small one.
    heads: usize,
    /// Layers of attention and feed-forward: 12 in the small one.
    layers: usize,
))]
pub struct Gpt2 {
    #[module(init = Embedding::new(vocabulary, width).weight_init(SMALL))]
    tokens: Embedding,
    #[module(init = SMALL.param([context, width]))]
    positions: Param,
    #[module(init = vec![TransformerEncoderLayer::new(width, heads).feed_forward(4 * width)
        .activation(FeedForwardActivation::Gelu).dropout(0.0).norm_first(true); layers])]
    layers: Vec<TransformerEncoderLayer>,
    #[module(init = LayerNorm::new([width]))]
    norm: LayerNorm,
    #[module(init = Linear::new(width, vocabulary).bias(false))]
    head: Linear,
}

/// The residual path starts small, so that the layers' results matter from the beginning.
const SMALL: Initializer = Initializer::Normal { mean: 0.0, std: 0.02 };

impl Gpt2 {
    /// The scores of each next token.
    pub fn forward(&self, tokens: &Var) -> Var {
        let length = tokens.shape().dims().last().copied().unwrap_or(0);
        let mut x = self.tokens.forward(tokens) + tokens.param(&self.positions).slice(0, 0..length);
        for layer in &self.layers {
            x = layer.forward_with(&x, AttentionMask { causal: true, ..AttentionMask::default() });
        }
        self.head.forward(&self.norm.forward(&x))
    }

    /// The mean loss per token, in nats; `next` are the tokens of one position further on, `[N, L]`.
    pub fn loss(&self, tokens: &Var, next: &Var) -> Var {
        let scores = self.forward(tokens);
        let count = next.shape().elements();
        scores.reshape([count, self.tokens.weight.shape()[0]]).cross_entropy(&next.reshape([count]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(device: &Device) -> Result<Gpt2> {
        Gpt2::init(device, 1, Gpt2Config { vocabulary: 11, context: 9, width: 16, heads: 2, layers: 2 })
    }

    #[test]
    fn the_reference_has_its_parameters() {
        let config = Gpt2Config { vocabulary: 50_257, context: 1024, width: 768, heads: 12, layers: 12 };
        assert_eq!(Gpt2::init(&Device::cpu(), 1, config).unwrap().parameter_count(), 163_037_184);
    }

    #[test]
    fn a_small_one_learns() -> Result<()> {
        let device = Device::cpu();
        let mut net = small(&device)?;
        // Each token is three more than the one before, so it says which comes next.
        let sequence = |first: u32| (0..4 * 8).map(move |place| (first + 3 * (place % 8) + place / 8) % 11);
        let [tokens, next] = [0, 3].map(|first| Tensor::indices(&device, [4, 8], &sequence(first).collect::<Vec<_>>()));
        let (tokens, next) = (tokens?, next?);
        let mut optimizer = AdamW::new(3e-3);
        let mut losses = Vec::new();
        for _ in 0..60 {
            let tape = Tape::new(&device);
            let loss = net.loss(&tape.input(&tokens), &tape.input(&next));
            let grads = tape.backward(&loss)?;
            optimizer.step(&mut net, &grads)?;
            losses.push(loss.item()?);
        }
        assert!((losses[0] - 11f32.ln()).abs() < 0.6 && losses[59] < 0.2, "{losses:?}");
        Ok(())
    }

    #[test]
    fn scores_depend_on_no_later_token() -> Result<()> {
        let device = Device::cpu();
        let net = small(&device)?;
        let scores = |tokens: &[u32]| {
            let tokens = Tensor::indices(&device, [1, tokens.len()], tokens)?;
            net.forward(&Tape::inference(&device).input(&tokens)).to_tensor()
        };
        let (one, other) = (scores(&[3, 1, 4, 1, 5])?.to_vec()?, scores(&[3, 1, 4, 9, 2])?.to_vec()?);
        assert_eq!(one[..3 * 11], other[..3 * 11]);
        assert_ne!(one[3 * 11..], other[3 * 11..]);
        Ok(())
    }
}
