//! A recurrent language model: 14,452,496 parameters for 10,000 tokens and two layers of 512 features.

use meganeura::prelude::*;

/// Maps tokens `u32 [N, L]` to scores of the next token at each position, `[N, L, vocabulary]`.
///
/// As in Zaremba et al., 2014, "Recurrent Neural Network Regularization", without dropout.
#[derive(Module, Debug, Clone)]
#[module(sequential, config(
    /// The number of different tokens.
    vocabulary: usize,
    /// Features of a token, and of each layer's state.
    width: usize,
    /// Recurrent layers.
    layers: usize,
))]
pub struct LstmLanguage {
    #[module(init = Embedding::new(vocabulary, width))]
    tokens: Embedding,
    #[module(init = Lstm::new(width, width).layers(layers))]
    lstm: Lstm,
    #[module(init = Linear::new(width, vocabulary))]
    head: Linear,
}

impl LstmLanguage {
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

    #[test]
    fn the_reference_has_its_parameters() {
        let config = LstmLanguageConfig { vocabulary: 10_000, width: 512, layers: 2 };
        assert_eq!(LstmLanguage::init(&Device::cpu(), 1, config).unwrap().parameter_count(), 14_452_496);
    }
}
