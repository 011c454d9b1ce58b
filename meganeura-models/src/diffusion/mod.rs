//! Models that make pictures from noise, under diffusers' names.

mod parts;
mod transformer;
mod unet;
mod vae;

use meganeura::io::Names;

pub use unet::{UNet, UNetAttention, UNetConfig, UNetLevel};
pub use vae::{AutoencoderKl, AutoencoderKlConfig};

/// The rules for files whose attentions between pixels have the names of diffusers before version 0.18: `query`, `key`,
/// `value` and `proj_attn`.
///
/// ```no_run
/// use meganeura::prelude::*;
/// use meganeura_models::{UNet, UNetConfig, legacy_names};
///
/// # fn main() -> meganeura::Result<()> {
/// let mut net = UNet::init(&Device::best()?, 42, UNetConfig::ddpm_cifar10())?;
/// net.load_with("diffusion_pytorch_model.safetensors", &legacy_names())?.strict()?;
/// # Ok(())
/// # }
/// ```
pub fn legacy_names() -> Names {
    let parts = [("query", "to_q"), ("key", "to_k"), ("value", "to_v"), ("proj_attn", "to_out.0")];
    let rule = |names: Names, (old, new): (&str, &str)| {
        names.rename(format!("**.attentions.*.{old}.*"), format!("**.attentions.*.{new}.*"))
    };
    parts.into_iter().fold(Names::new(), rule)
}
