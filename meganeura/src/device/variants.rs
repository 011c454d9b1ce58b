//! Running other variants of kernels than the best, and what was chosen.

use super::{Device, Engine, lock};
use crate::Result;
use crate::error::{bail, here};
use crate::plan::KernelChoice;

impl Device {
    /// Runs other variants of kernels than the device would choose, in order to measure them: pairs of an operation's
    /// name and a variant's, as [`Device::kernel_choices`] has them. They take the place of all preferences before, so
    /// none gives the device its choice back. Plans are made anew.
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
    /// On the CPU, where every operation is computed in one way. A run whose plan has an operation of this name without
    /// this variant fails and lists those that there are.
    #[track_caller]
    pub fn prefer_variants(&self, preferences: &[(&str, &str)]) -> Result<()> {
        here(|| {
            if matches!(self.0.engine, Engine::Cpu(_)) && !preferences.is_empty() {
                bail!(Argument, "the CPU computes every operation in one way; only GPUs have variants to prefer");
            }
            let named = preferences.iter().map(|&(op, variant)| (op.to_owned(), variant.to_owned())).collect();
            lock(&self.0.preferences).named = named;
            *lock(&self.0.plans) = super::Plans::default();
            Ok(())
        })
    }

    /// How the kernels of each plan that this device keeps were chosen, in the order of [`Device::plan_dumps`].
    #[must_use]
    pub fn kernel_choices(&self) -> Vec<Vec<KernelChoice>> {
        lock(&self.0.plans).0.iter().map(|(_, prepared)| prepared.plan.choices().collect()).collect()
    }
}
