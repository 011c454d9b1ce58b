//! Statistics of a device.

use std::time::Duration;

use web_time::Instant;

use super::{Device, Engine, lock};
use crate::executor::{HostTimes, PipelineCache};

/// Counts of a device's work since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Stats {
    /// Plans made: one for each structure of a step.
    pub plans: u64,
    /// Time spent on making plans, including compiling kernels.
    pub plan_time: Duration,
    /// Runs of plans.
    pub runs: u64,
    /// Kernel launches; steps of a plan on the CPU.
    pub launches: u64,
    /// Command buffers submitted to a GPU for runs.
    pub submissions: u64,
    /// Copies submitted to read a tensor, by all devices of the adapter. Small results of a run, such as a loss, need
    /// none: the run's own commands copy them.
    pub reads: u64,
    /// Optimizer steps before which a value that depends on their parameters was read, usually the loss. The read ran
    /// the forward pass, and the step ran it once more: read after the step instead.
    pub early_reads: u64,
    /// The host's time spent in runs.
    pub host: HostTimes,
    /// The peak number of bytes of tensors and plans on the device; on the CPU, of plans only.
    pub peak_bytes: u64,
    /// An estimate of the host memory that the kept plans take. At most 64 plans are kept, and 256 MiB of them, but
    /// always the last one. A plan of more than 32 MiB, which takes ten thousand operations, is kept from the second
    /// time on that it is made.
    pub plan_bytes: u64,
    /// Kernels compiled on the adapter, by all of its devices. Zero on the CPU.
    pub pipelines: u64,
    /// Time that plans waited for these kernels.
    pub pipeline_time: Duration,
    /// The state of the cache of compiled kernels from earlier processes.
    pub pipeline_cache: PipelineCache,
    /// The number of failed attempts to store compiled kernels for later processes.
    pub pipeline_cache_failures: u64,
}

impl Device {
    /// Adds the time of some work to one of the host's times, and to the timeline under a name if runs are timed.
    pub(crate) fn spend<T>(
        &self,
        name: &'static str,
        part: fn(&mut HostTimes) -> &mut Duration,
        work: impl FnOnce() -> T,
    ) -> T {
        let begin = Instant::now();
        let done = work();
        let duration = begin.elapsed();
        *part(&mut lock(&self.0.stats).host) += duration;
        self.note(name, begin, duration);
        done
    }

    /// Counts a step that computes anew what a read had computed.
    pub(crate) fn count_early_read(&self) {
        lock(&self.0.stats).early_reads += 1;
    }

    /// Statistics of this device's work since it was created.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let stats = Stats { plan_bytes: lock(&self.0.plans).bytes(), ..*lock(&self.0.stats) };
        match &self.0.engine {
            Engine::Cpu(cpu) => Stats { peak_bytes: cpu.peak_bytes(), ..stats },
            #[cfg(feature = "gpu")]
            Engine::Gpu(gpu) => {
                let counts = gpu.pipeline_counts();
                Stats {
                    peak_bytes: gpu.peak_bytes(),
                    pipelines: counts.pipelines,
                    pipeline_time: counts.time,
                    pipeline_cache: counts.cache,
                    pipeline_cache_failures: counts.failures,
                    reads: gpu.reads(),
                    host: gpu.host_times(stats.host),
                    ..stats
                }
            }
        }
    }
}
