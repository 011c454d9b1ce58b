//! Counts of what a device did.

use std::time::Duration;

use web_time::Instant;

use super::{Device, Engine, lock};

/// Counts of what a device did since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Stats {
    /// Plans made: one for each structure of a step.
    pub plans: u64,
    /// Time spent making plans, compiling kernels included.
    pub plan_time: Duration,
    /// Runs of plans.
    pub runs: u64,
    /// Kernel launches; steps of a plan on the CPU.
    pub launches: u64,
    /// Command buffers submitted to a GPU for runs.
    pub submissions: u64,
    /// Copies submitted in order to read a tensor, by all devices of the adapter. Small results of a run, such as a
    /// loss, need none: the run's own commands copy them.
    pub reads: u64,
    /// Where runs spent the host's time.
    pub host: HostTimes,
    /// The most bytes that tensors and plans held on the device at one time. On the CPU: of the plans alone.
    pub peak_bytes: u64,
    /// Kernels compiled on the adapter, by all of its devices. None on the CPU.
    pub pipelines: u64,
    /// Time that plans waited for those.
    pub pipeline_time: Duration,
    /// Whether kernels that an earlier process compiled were there.
    pub pipeline_cache: PipelineCache,
    /// How often compiled kernels could not be written for later processes.
    pub pipeline_cache_failures: u64,
}

/// Where runs of a device spent the host's time.
///
/// What a step takes besides is its recording: forward, backward, update, and dropping the tape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostTimes {
    /// Finding the plan that was made for the structure of what was recorded.
    pub look_up: Duration,
    /// Collecting the tensors of a run and the memory for its results.
    pub bind: Duration,
    /// Encoding commands for a GPU, by all devices of the adapter.
    pub encode: Duration,
    /// Submitting them, likewise.
    pub submit: Duration,
    /// Waiting for a GPU, likewise.
    pub wait: Duration,
    /// Computing, on the CPU.
    pub compute: Duration,
}

impl HostTimes {
    /// The times since an earlier look.
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

/// Whether a device keeps compiled kernels on disk, and found any when it was opened.
///
/// They are in the user's folder for caches, or in the one that the environment variable `MEGANEURA_CACHE` names; `off`
/// keeps nothing. A driver runs what it finds there, so on Unix the folder and its files must be this user's, and
/// nobody else's to write; the framework creates them so. A checksum tells a damaged file from a whole one. It does not
/// tell who wrote it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PipelineCache {
    /// Nothing is kept: turned off, or the adapter's API or the system offers no way.
    #[default]
    Off,
    /// Nothing was there.
    Cold,
    /// An earlier process left compiled kernels.
    Warm,
    /// The folder or its file is not this user's alone to write, so nothing is read or kept. The text says which, and
    /// why.
    Refused(&'static str),
}

impl Device {
    /// Counts the time of some work as a part of the host's, and notes it under a name if runs are timed.
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

    /// What this device did since it was made.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let stats = *lock(&self.0.stats);
        match &self.0.engine {
            Engine::Cpu(cpu) => Stats { peak_bytes: cpu.slot_bytes(), ..stats },
            #[cfg(feature = "gpu")]
            Engine::Gpu(gpu) => {
                let compiled = gpu.compiled();
                Stats {
                    peak_bytes: gpu.peak_bytes(),
                    pipelines: compiled.pipelines,
                    pipeline_time: compiled.time,
                    pipeline_cache: compiled.cache,
                    pipeline_cache_failures: compiled.failures,
                    reads: gpu.reads(),
                    host: gpu.host_times(stats.host),
                    ..stats
                }
            }
        }
    }
}
