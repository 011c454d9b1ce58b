//! Which device to use where the caller leaves it open.

use super::Device;
#[cfg(feature = "gpu")]
use super::Engine;
#[cfg(feature = "gpu")]
use crate::Precision;
use crate::Result;
use crate::error::bail;

/// The environment variable that overrides [`Device::best`]'s choice.
const OVERRIDE: &str = "MEGANEURA_DEVICE";

impl Device {
    /// The best device here: a GPU if one answers, else the CPU. [`Device::reason`] says why.
    ///
    /// The environment variable `MEGANEURA_DEVICE` overrides the choice: `cpu`, `gpu`, or part of an adapter's name.
    /// Software drivers are used only when named: the native executor is faster.
    ///
    /// # Errors
    ///
    /// If the override asks for what is not there.
    pub fn best() -> Result<Self> {
        if let Some(wanted) = std::env::var_os(OVERRIDE).filter(|wanted| !wanted.is_empty()) {
            let wanted = wanted.to_string_lossy();
            return Self::named(&wanted).map(|device| device.because(format!("{OVERRIDE}={wanted}")));
        }
        Ok(match Self::first_gpu() {
            Ok(device) => device.because("the first GPU that answered".into()),
            Err(why) => Self::cpu().because(why),
        })
    }

    /// The device of this name: `cpu`, `gpu` (the first that answers), or part of an adapter's name, whatever its case.
    ///
    /// # Errors
    ///
    /// If there is none; the message lists the adapters that answered.
    pub fn named(name: &str) -> Result<Self> {
        match name.to_lowercase().as_str() {
            "cpu" => Ok(Self::cpu()),
            "gpu" => match Self::first_gpu() {
                Ok(device) => Ok(device),
                Err(why) => bail!(Device, "no GPU to run on: {why}"),
            },
            part => Self::adapter(part),
        }
    }

    /// The first GPU, or why there is none. Without the `gpu` feature there is none.
    fn first_gpu() -> Result<Self, String> {
        #[cfg(feature = "gpu")]
        {
            crate::gpu::Gpu::first().map(|gpu| Self::make(Engine::Gpu(gpu), Precision::Full, "asked for".into()))
        }
        #[cfg(not(feature = "gpu"))]
        {
            Err("built without the `gpu` feature".into())
        }
    }

    /// Any adapter with this in its name, software drivers included.
    fn adapter(part: &str) -> Result<Self> {
        #[cfg(feature = "gpu")]
        {
            let gpu = crate::gpu::Gpu::named(part)?;
            Ok(Self::make(Engine::Gpu(gpu), Precision::Full, "asked for".into()))
        }
        #[cfg(not(feature = "gpu"))]
        {
            bail!(Device, "no adapter {part:?}: built without the `gpu` feature")
        }
    }

    /// The same device, which was just made, with another reason.
    fn because(self, reason: String) -> Self {
        let inner = std::sync::Arc::into_inner(self.0).expect("nobody else has seen the device");
        Self(std::sync::Arc::new(super::Inner { reason, ..inner }))
    }
}
