//! Statistics of a device.

use std::time::Duration;

use web_time::Instant;

use super::{Device, Engine, lock};

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
    /// The host's time spent in runs.
    pub host: HostTimes,
    /// The peak number of bytes of tensors and plans on the device; on the CPU, of plans only.
    pub peak_bytes: u64,
    /// Kernels compiled on the adapter, by all of its devices. Zero on the CPU.
    pub pipelines: u64,
    /// Time that plans waited for these kernels.
    pub pipeline_time: Duration,
    /// The state of the cache of compiled kernels from earlier processes.
    pub pipeline_cache: PipelineCache,
    /// The number of failed attempts to store compiled kernels for later processes.
    pub pipeline_cache_failures: u64,
}

/// The host's time spent in runs of a device.
///
/// The rest of a step's time is its recording: forward, backward, update, and dropping the tape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostTimes {
    /// Finding the plan for the structure of the recording.
    pub look_up: Duration,
    /// Collecting the tensors of a run and the memory for its results.
    pub bind: Duration,
    /// Encoding commands for a GPU, by all devices of the adapter.
    pub encode: Duration,
    /// Submitting these commands, by all devices of the adapter.
    pub submit: Duration,
    /// Waiting for a GPU, by all devices of the adapter.
    pub wait: Duration,
    /// Computing on the CPU.
    pub compute: Duration,
}

impl HostTimes {
    /// The difference from an earlier value.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            look_up: self.look_up - earlier.look_up,
            bind: self.bind - earlier.bind,
            encode: self.encode - earlier.encode,
            submit: self.submit - earlier.submit,
            wait: self.wait - earlier.wait,
            compute: self.compute - earlier.compute,
        }
    }
}

/// The state of a device's on-disk cache of compiled kernels, as of when the device was opened.
///
/// The cache is in the user's cache folder, or in the folder that the environment variable `MEGANEURA_CACHE` names;
/// `off` disables it. A driver runs the code that it finds there. So on Unix the folder and its files must belong to
/// this user, with no write access for others; the framework creates them so. A checksum detects damaged files, but not
/// who wrote them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PipelineCache {
    /// There is no cache: it is turned off, or the adapter's API or the system has no support for it.
    #[default]
    Off,
    /// The cache was empty.
    Cold,
    /// The cache held compiled kernels from an earlier process.
    Warm,
    /// Others could write to the folder or its file, so nothing is read or kept. The text says which, and why.
    Refused(&'static str),
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

    /// Statistics of this device's work since it was created.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let stats = *lock(&self.0.stats);
        match &self.0.engine {
            Engine::Cpu(cpu) => Stats { peak_bytes: cpu.slot_bytes(), ..stats },
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
