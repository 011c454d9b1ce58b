//! Choosing other variants of kernels, and listing the choices.

use super::{Device, Engine, lock};
use crate::Result;
use crate::error::{bail, here};
use crate::plan::KernelChoice;

impl Device {
    /// Runs other variants of kernels than the device would choose, to measure them.
    ///
    /// `preferences` are pairs of the names of an operation and a variant, as in [`Device::kernel_choices`]. They
    /// replace all earlier preferences; an empty list restores the device's own choice. All plans are made again.
    ///
    /// ```no_run
    /// # fn main() -> meganeura::Result<()> {
    /// let device = meganeura::Device::named("gpu")?;
    /// device.prefer_variants(&[("matmul", "tile 32")])?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails on the CPU, where every operation has a single variant. If an operation with this name lacks the variant,
    /// the run that needs it fails; its message lists the existing ones.
    #[track_caller]
    pub fn prefer_variants(&self, preferences: &[(&str, &str)]) -> Result<()> {
        here(|| {
            if matches!(self.0.engine, Engine::Cpu(_)) && !preferences.is_empty() {
                bail!(Argument, "the CPU has a single variant of every operation; only GPUs have others to prefer");
            }
            let named = preferences.iter().map(|&(op, variant)| (op.to_owned(), variant.to_owned())).collect();
            lock(&self.0.preferences).named = named;
            *lock(&self.0.plans) = super::Plans::default();
            Ok(())
        })
    }

    /// The choices made for the kernels of each plan that this device keeps, in the order of [`Device::plan_dumps`].
    #[must_use]
    pub fn kernel_choices(&self) -> Vec<Vec<KernelChoice>> {
        lock(&self.0.plans).iter().map(|prepared| prepared.plan.choices().collect()).collect()
    }
}
