//! A vision transformer: ViT-S/16 has 22,049,896 parameters for images of 224×224 pixels and 1,000 classes.

use meganeura::init::Initializer;
use meganeura::nn::FeedForwardActivation;
use meganeura::prelude::*;

/// Maps images `[N, images, side, side]` to a score for each class, `[N, classes]`.
///
/// Patches are the tokens; the scores are of their mean. [Dosovitskiy et al., 2021](https://arxiv.org/abs/2010.11929).
#[derive(Module, Debug, Clone)]
#[module(config(
    /// Channels of the images: 1 for grey ones, 3 for coloured ones.
    images: usize,
    /// Height and width of the images, a multiple of the patch's.
    side: usize,
    /// Height and width of a patch: 16 in ViT-S/16.
    patch: usize,
    /// Features of a token: 384 in ViT-S.
    width: usize,
    /// Heads of each attention, a divisor of the width: 6 in ViT-S.
    heads: usize,
    /// Layers of attention and feed-forward: 12 in ViT-S.
    layers: usize,
    /// The number of classes.
    classes: usize,
))]
pub struct ViT {
    #[module(init = Conv2d::new(images, width, patch).stride(patch))]
    patches: Conv2d,
    #[module(init = SMALL.param([(side / patch) * (side / patch), width]))]
    positions: Param,
    #[module(init = vec![TransformerEncoderLayer::new(width, heads).feed_forward(4 * width)
        .activation(FeedForwardActivation::Gelu).dropout(0.0).norm_first(true); layers])]
    layers: Vec<TransformerEncoderLayer>,
    #[module(init = LayerNorm::new([width]))]
    norm: LayerNorm,
    #[module(init = Linear::new(width, classes))]
    head: Linear,
}

/// Positions start small beside the patches.
const SMALL: Initializer = Initializer::Normal { mean: 0.0, std: 0.02 };

impl Layer for ViT {
    fn forward(&self, x: &Var) -> Var {
        let patches = self.patches.forward(x);
        let &[n, width, rows, columns] = patches.shape().dims() else { return patches };
        let tokens = patches.reshape([n, width, rows * columns]).permute(&[0, 2, 1]) + x.param(&self.positions);
        let tokens = self.norm.forward(&self.layers.forward(&tokens));
        self.head.forward(&tokens.mean_over(&[1]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_has_its_parameters() {
        let config = ViTConfig { images: 3, side: 224, patch: 16, width: 384, heads: 6, layers: 12, classes: 1000 };
        let net = ViT::init(&Device::cpu(), 1, config).unwrap();
        assert_eq!(net.parameter_count(), 22_049_896);
    }

    #[test]
    fn a_small_one_learns() -> Result<()> {
        let device = Device::cpu();
        let config = ViTConfig { images: 3, side: 12, patch: 4, width: 16, heads: 2, layers: 2, classes: 5 };
        let mut net = ViT::init(&device, 1, config)?;
        let images = Tensor::randn(&device, [10, 3, 12, 12], 2)?;
        let labels = Tensor::indices(&device, [10], &[0, 1, 2, 3, 4, 0, 1, 2, 3, 4])?;
        let mut optimizer = AdamW::new(3e-3);
        let mut losses = Vec::new();
        for _ in 0..40 {
            let tape = Tape::new(&device);
            let scores = net.forward(&tape.input(&images));
            assert_eq!(scores.shape(), Shape::from([10, 5]));
            let loss = scores.cross_entropy(&labels);
            let grads = tape.backward(&loss)?;
            optimizer.step(&mut net, &grads)?;
            losses.push(loss.item()?);
        }
        // From guesses to certainty.
        assert!((losses[0] - 5f32.ln()).abs() < 0.5 && losses[39] < 0.1, "{losses:?}");
        Ok(())
    }
}
