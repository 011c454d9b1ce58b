//! Rules for the files of timm, whose names differ from torchvision's.

use meganeura::io::Names;

use crate::{ConvNextConfig, EfficientNetConfig, MobileNetV2Config, MobileNetV3Config, VisionTransformerConfig};

impl VisionTransformerConfig {
    /// The rules for the files of timm's models of this kind, such as `vit_base_patch16_224`.
    ///
    /// ```no_run
    /// use meganeura::prelude::*;
    /// use meganeura_models::{VisionTransformer, VisionTransformerConfig};
    ///
    /// # fn main() -> meganeura::Result<()> {
    /// let config = VisionTransformerConfig::b_16();
    /// let names = config.timm_names();
    /// let mut net = VisionTransformer::init(&Device::best()?, 42, config)?;
    /// net.load_with("vit_base_patch16_224.safetensors", &names)?.strict()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn timm_names(&self) -> Names {
        let names = Names::new()
            .rename("cls_token", "class_token")
            .rename("pos_embed", "encoder.pos_embedding")
            .rename("patch_embed.proj.*", "conv_proj.*")
            .rename("norm.*", "encoder.ln.*")
            .rename("head.*", "heads.head.*");
        (0..self.layers).fold(names, |names, at| {
            let (from, to) = (format!("blocks.{at}"), format!("encoder.layers.encoder_layer_{at}"));
            names
                .rename(format!("{from}.norm1.*"), format!("{to}.ln_1.*"))
                .rename(format!("{from}.norm2.*"), format!("{to}.ln_2.*"))
                .rename(format!("{from}.attn.qkv.weight"), format!("{to}.self_attention.in_proj_weight"))
                .rename(format!("{from}.attn.qkv.bias"), format!("{to}.self_attention.in_proj_bias"))
                .rename(format!("{from}.attn.proj.*"), format!("{to}.self_attention.out_proj.*"))
                .rename(format!("{from}.mlp.fc1.*"), format!("{to}.mlp.0.*"))
                .rename(format!("{from}.mlp.fc2.*"), format!("{to}.mlp.3.*"))
        })
    }
}

impl ConvNextConfig {
    /// The rules for the files of timm's models of this kind, such as `convnext_tiny`.
    pub fn timm_names(&self) -> Names {
        let names = Names::new()
            .rank("stages.*.blocks.*.gamma", 1)
            .rename("head.norm.*", "classifier.0.*")
            .rename("head.fc.*", "classifier.2.*");
        (0..self.depths.len()).fold(names, |names, stage| {
            let (block, to) = (format!("stages.{stage}.blocks.*"), format!("features.{}.*", 2 * stage + 1));
            // Before the first stage is the stem.
            let names = match stage {
                0 => names.rename("stem.*.*", "features.0.*.*"),
                _ => names.rename(format!("stages.{stage}.downsample.*.*"), format!("features.{}.*.*", 2 * stage)),
            };
            names
                .rename(format!("{block}.gamma"), format!("{to}.layer_scale"))
                .rename(format!("{block}.conv_dw.*"), format!("{to}.block.0.*"))
                .rename(format!("{block}.norm.*"), format!("{to}.block.2.*"))
                .rename(format!("{block}.mlp.fc1.*"), format!("{to}.block.3.*"))
                .rename(format!("{block}.mlp.fc2.*"), format!("{to}.block.5.*"))
        })
    }
}

/// The parts of a block in order, as timm names them: a convolution and its normalisation, or a squeeze.
#[derive(Clone, Copy)]
enum Part {
    Conv(&'static str),
    Squeeze,
}

const WIDE: [Part; 4] = [Part::Conv("conv_pw"), Part::Conv("conv_dw"), Part::Squeeze, Part::Conv("conv_pwl")];
const NARROW: [Part; 3] = [Part::Conv("conv_dw"), Part::Squeeze, Part::Conv("conv_pw")];
const FUSED: [Part; 2] = [Part::Conv("conv_exp"), Part::Conv("conv_pwl")];
const PLAIN: [Part; 1] = [Part::Conv("conv")];

/// The rules of a block. `is_bare`: the last convolution and its normalisation are parts of their own, as in
/// MobileNetV2.
fn block(names: Names, from: &str, to: &str, parts: &[Part], has_squeeze: bool, is_bare: bool) -> Names {
    let parts = parts.iter().filter(|part| has_squeeze || matches!(part, Part::Conv(_)));
    let last = parts.clone().count() - 1;
    let (mut names, mut norms) = (names, 0);
    for (at, part) in parts.enumerate() {
        names = match part {
            Part::Squeeze => names
                .rename(format!("{from}.se.conv_reduce.*"), format!("{to}.{at}.fc1.*"))
                .rename(format!("{from}.se.conv_expand.*"), format!("{to}.{at}.fc2.*")),
            Part::Conv(conv) => {
                norms += 1;
                let (own, norm) = match is_bare && at == last {
                    true => (format!("{to}.{at}"), format!("{to}.{}", at + 1)),
                    false => (format!("{to}.{at}.0"), format!("{to}.{at}.1")),
                };
                names
                    .rename(format!("{from}.{conv}.*"), format!("{own}.*"))
                    .rename(format!("{from}.bn{norms}.*"), format!("{norm}.*"))
            }
        };
    }
    names
}

/// The rules of the first convolution, of a net without others in front of its blocks.
fn stem() -> Names {
    Names::new().rename("conv_stem.*", "features.0.0.*").rename("bn1.*", "features.0.1.*")
}

/// The rules of the last convolution, whose place is that of the blocks' end.
fn top(names: Names, place: usize) -> Names {
    names
        .rename("conv_head.*", format!("features.{place}.0.*"))
        .rename("bn2.*", format!("features.{place}.1.*"))
        .rename("classifier.*", "classifier.1.*")
}

impl EfficientNetConfig {
    /// The rules for the files of timm's models of this kind, such as `efficientnet_b0`. Their ε is [`eps`](Self::eps)
    /// 1e-5, and 1e-3 in those whose name begins with `tf_`, which also pad otherwise.
    pub fn timm_names(&self) -> Names {
        let mut names = stem();
        for (at, stage) in self.stages.iter().enumerate() {
            let parts: &[Part] = match (stage.fused, stage.expansion) {
                (true, 1) => &PLAIN,
                (true, _) => &FUSED,
                (false, 1) => &NARROW,
                (false, _) => &WIDE,
            };
            for k in 0..stage.blocks {
                let (from, to) = (format!("blocks.{at}.{k}"), format!("features.{}.{k}.block", at + 1));
                names = block(names, &from, &to, parts, !stage.fused, false);
            }
        }
        top(names, self.stages.len() + 1)
    }
}

impl MobileNetV2Config {
    /// The rules for the files of timm's models of this kind, such as `mobilenetv2_100`.
    pub fn timm_names(&self) -> Names {
        let (mut names, mut place) = (stem(), 1);
        for (at, stage) in self.stages.iter().enumerate() {
            let parts: &[Part] = if stage.expansion == 1 { &NARROW } else { &WIDE };
            for k in 0..stage.blocks {
                let (from, to) = (format!("blocks.{at}.{k}"), format!("features.{place}.conv"));
                names = block(names, &from, &to, parts, false, true);
                place += 1;
            }
        }
        top(names, place)
    }
}

impl MobileNetV3Config {
    /// The rules for the files of timm's models of this kind, such as `mobilenetv3_large_100`. Their ε is
    /// [`eps`](Self::eps) 1e-5, and 1e-3 in those whose name begins with `tf_`, which also pad otherwise.
    pub fn timm_names(&self) -> Names {
        let (mut names, mut stage, mut k, mut outputs) = (stem(), 0, 0, None);
        for (at, of) in self.blocks.iter().enumerate() {
            // Blocks of one width are a stage.
            (stage, k) = match outputs {
                None => (0, 0),
                Some(before) if before == of.outputs => (stage, k + 1),
                Some(_) => (stage + 1, 0),
            };
            outputs = Some(of.outputs);
            let parts: &[Part] = if of.inputs == of.inside { &NARROW } else { &WIDE };
            let (from, to) = (format!("blocks.{stage}.{k}"), format!("features.{}.block", at + 1));
            names = block(names, &from, &to, parts, of.squeeze, false);
        }
        let last = if outputs.is_some() { stage + 1 } else { 0 };
        names
            .rename(format!("blocks.{last}.0.conv.*"), format!("features.{}.0.*", self.blocks.len() + 1))
            .rename(format!("blocks.{last}.0.bn1.*"), format!("features.{}.1.*", self.blocks.len() + 1))
            .rank("conv_head.weight", 4)
            .rename("conv_head.*", "classifier.0.*")
            .rename("classifier.*", "classifier.3.*")
    }
}
