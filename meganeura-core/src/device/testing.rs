//! For tests: devices with other limits than those of the available adapters.

use std::sync::Arc;

use super::{Device, Engine, lock};
use crate::Result;
use crate::error::{bail, here};
use crate::gpu::{Absent, PlannedKernel};
use crate::wait::block_on;

impl Device {
    /// The CPU executor. Each run is also planned for a large GPU with matrix units, with every variant of its kernels.
    /// This tests plans for [`Precision::Fast`](crate::Precision::Fast) without such a GPU.
    #[must_use]
    pub fn for_testing_matrix_units() -> Self {
        Self::cpu_and(Absent::MatrixUnits)
    }

    /// The CPU executor. Each run is also planned for a GPU with WebGPU's default limits, with every variant of its
    /// kernels.
    #[must_use]
    pub fn for_testing_baseline() -> Self {
        Self::cpu_and(Absent::Baseline)
    }

    fn cpu_and(absent: Absent) -> Self {
        let mut made = Self::cpu();
        let inner = Arc::get_mut(&mut made.0).expect("nobody else has seen the device");
        inner.testing.absent = Some(absent);
        made
    }

    /// The kernels of all plans for the hypothetical GPU, each once. Empty on other devices.
    #[must_use]
    pub fn planned_kernels(&self) -> Vec<PlannedKernel> {
        lock(&self.0.planned).iter().cloned().collect()
    }

    /// The launches of the last plan whose kernels serve several shapes, and all of its launches.
    #[must_use]
    pub fn dynamic_launches(&self) -> (usize, usize) {
        let plans = lock(&self.0.plans);
        let last = plans.iter().last().and_then(|prepared| prepared.gpu.as_ref());
        last.map_or((0, 0), |compiled| compiled.latest().dynamic())
    }

    /// The multiprocessors on which the choice of kernels depends, and the invocations that reside on one; `None` on
    /// the CPU.
    #[must_use]
    pub fn multiprocessors(&self) -> Option<(usize, usize)> {
        let Engine::Gpu(gpu) = &self.0.engine else { return None };
        let multiprocessors = gpu.caps(false).multiprocessors;
        Some((multiprocessors.count, multiprocessors.invocations))
    }

    /// The adapter, opened again with WebGPU's default limits: it refuses launches that exceed them.
    ///
    /// # Errors
    ///
    /// Fails if this is the CPU, or if the adapter does not open.
    #[track_caller]
    pub fn at_baseline(&self) -> Result<Self> {
        here(|| {
            let Engine::Gpu(gpu) = &self.0.engine else { bail!(Device, "the CPU does not have WebGPU's limits") };
            let gpu = block_on(gpu.at_baseline())?;
            Ok(Self::make(Engine::Gpu(gpu), self.0.precision, self.0.reason.clone()))
        })
    }
}
