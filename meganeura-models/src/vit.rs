//! Vision transformers, under torchvision's names.

use meganeura::init::Initializer;
use meganeura::prelude::*;

use crate::numbered::Numbered;
use crate::projected::{PackedAttention, PackedAttentionConfig};

/// A vision transformer, a classifier of images: [Dosovitskiy et al., 2021](https://arxiv.org/abs/2010.11929)
///
/// Its parameters have the names and shapes of torchvision's `VisionTransformer`.
///
/// Shapes: images `[N, 3, side, side]` → scores `[N, classes]`.
///
/// ```
/// use meganeura::prelude::*;
/// use meganeura_models::{VisionTransformer, VisionTransformerConfig};
///
/// # fn main() -> meganeura::Result<()> {
/// let device = Device::cpu();
/// let small = VisionTransformerConfig { side: 32, layers: 2, width: 12, heads: 3, inside: 24, ..VisionTransformerConfig::b_16() };
/// let net = VisionTransformer::init(&device, 42, small)?;
/// let images = Tensor::zeros(&device, [2, 3, 32, 32])?;
/// assert_eq!(images.map(|x| net.forward(x))?.shape(), Shape::from([2, 1000]));
/// # Ok(())
/// # }
/// ```
#[derive(Module, Debug, Clone)]
#[module(config = VisionTransformerConfig)]
pub struct VisionTransformer {
    #[module(init = Initializer::Zeros.param([1, 1, config.width]))]
    class_token: Param,
    #[module(init = Conv2d::new(3, config.width, config.patch).stride(config.patch))]
    conv_proj: Conv2d,
    #[module(init = EncoderConfig { of: config.clone() })]
    encoder: Encoder,
    /// The layer that gives the scores.
    #[module(init = VisionTransformerHeadsConfig { width: config.width, classes: config.classes })]
    pub heads: VisionTransformerHeads,
}

/// Describes a [`VisionTransformer`]
#[derive(Debug, Clone, PartialEq)]
pub struct VisionTransformerConfig {
    /// Height and width of the images, a multiple of the patch's.
    pub side: usize,
    /// Height and width of a patch.
    pub patch: usize,
    /// The number of layers of attention.
    pub layers: usize,
    /// Heads of each attention, a divisor of the width.
    pub heads: usize,
    /// Features of a patch.
    pub width: usize,
    /// Features inside the feed-forward part of each layer.
    pub inside: usize,
    /// The probability of dropout behind the embedding, the attentions and the feed-forward layers.
    pub dropout: f64,
    /// The number of classes: 1,000 in the originals.
    pub classes: usize,
}

impl VisionTransformerConfig {
    const fn new(patch: usize, layers: usize, heads: usize, width: usize) -> Self {
        Self { side: 224, patch, layers, heads, width, inside: 4 * width, dropout: 0.0, classes: 1000 }
    }

    /// ViT-B/16: 86,567,656 parameters.
    #[must_use]
    pub const fn b_16() -> Self {
        Self::new(16, 12, 12, 768)
    }

    /// ViT-B/32: 88,224,232 parameters.
    #[must_use]
    pub const fn b_32() -> Self {
        Self::new(32, 12, 12, 768)
    }

    /// ViT-L/16: 304,326,632 parameters.
    #[must_use]
    pub const fn l_16() -> Self {
        Self::new(16, 24, 16, 1024)
    }

    /// ViT-L/32: 306,535,400 parameters.
    #[must_use]
    pub const fn l_32() -> Self {
        Self::new(32, 24, 16, 1024)
    }

    /// ViT-H/14: 632,045,800 parameters.
    #[must_use]
    pub const fn h_14() -> Self {
        Self::new(14, 32, 16, 1280)
    }

    /// The number of patches.
    fn patches(&self) -> usize {
        let along = self.side.checked_div(self.patch).unwrap_or(0);
        along * along
    }
}

/// The layer of a [`VisionTransformer`] that gives the scores
#[derive(Module, Debug, Clone)]
#[module(config(
    /// Features of a patch.
    width: usize,
    /// The number of classes.
    classes: usize,
))]
pub struct VisionTransformerHeads {
    /// From the features of the class's token to the scores.
    #[module(init = Linear::new(width, classes))]
    pub head: Linear,
}

#[derive(Module, Debug, Clone)]
#[module(config(of: VisionTransformerConfig))]
struct Encoder {
    #[module(init = Initializer::Normal { mean: 0.0, std: 0.02 }.param([1, of.patches() + 1, of.width]))]
    pos_embedding: Param,
    #[module(init = Dropout::new(of.dropout))]
    dropout: Dropout,
    #[module(init = Numbered::new("encoder_layer_", vec![BlockConfig { of: of.clone() }; of.layers]))]
    layers: Numbered<Block>,
    #[module(init = LayerNorm::new([of.width]).eps(EPS))]
    ln: LayerNorm,
}

/// The ε of all normalisations.
const EPS: f64 = 1e-6;

#[derive(Module, Debug, Clone)]
#[module(config(of: VisionTransformerConfig))]
struct Block {
    #[module(init = LayerNorm::new([of.width]).eps(EPS))]
    ln_1: LayerNorm,
    #[module(init = PackedAttentionConfig { width: of.width, heads: of.heads })]
    self_attention: PackedAttention,
    #[module(init = Dropout::new(of.dropout))]
    dropout: Dropout,
    #[module(init = LayerNorm::new([of.width]).eps(EPS))]
    ln_2: LayerNorm,
    #[module(init = (Linear::new(of.width, of.inside), Gelu, Dropout::new(of.dropout),
        Linear::new(of.inside, of.width), Dropout::new(of.dropout)))]
    mlp: (Linear, Gelu, Dropout, Linear, Dropout),
}

impl Layer for Block {
    fn forward(&self, x: &Var) -> Var {
        let x = x + self.dropout.forward(&self.self_attention.forward(&self.ln_1.forward(x)));
        &x + self.mlp.forward(&self.ln_2.forward(&x))
    }
}

impl VisionTransformer {
    /// The features of the class's token and of all patches, `[N, 1 + patches, width]`.
    #[must_use]
    #[track_caller]
    pub fn features(&self, x: &Var) -> Var {
        let patches = self.conv_proj.forward(x);
        let &[n, width, rows, columns] = patches.shape().dims() else { return patches };
        let patches = patches.reshape([n, width, rows * columns]).permute(&[0, 2, 1]);
        let class = x.param(&self.class_token).expand([n, 1, width]);
        let tokens = Var::concat(&[&class, &patches], 1) + x.param(&self.encoder.pos_embedding);
        let tokens = self.encoder.dropout.forward(&tokens);
        self.encoder.ln.forward(&self.encoder.layers.forward(&tokens))
    }
}

impl Layer for VisionTransformer {
    #[track_caller]
    fn forward(&self, x: &Var) -> Var {
        let features = self.features(x);
        let &[n, _, width] = features.shape().dims() else { return features };
        self.heads.head.forward(&features.slice(1, 0..1).reshape([n, width]))
    }
}
