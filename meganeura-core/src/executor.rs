//! The exchange between a device and its executors, apart from plans: the memory of a run, the profiling level,
//! counters.
//!
//! `cpu/` and `gpu/` know this module, not the device that calls them.

use std::sync::Arc;
use std::time::Duration;

use crate::host::{HostWord, Kept};
use crate::storage::Storage;

/// The memory of one run: a storage for each leaf, in the graph's numbering, and the host's words.
pub(crate) struct Bindings<'a> {
    pub(crate) leaves: &'a mut Vec<Storage>,
    pub(crate) host: &'a [HostWord],
    /// The names of the leaves, where they are needed: see [`Plan::launch_infos`](crate::plan::Plan::launch_infos).
    pub(crate) paths: &'a [Option<Arc<str>>],
    /// For a function that runs again and again.
    pub(crate) fixed: Option<Fixed>,
}

/// The leaves that stay the same from run to run of a function, and what native kernels have prepared of them.
#[derive(Clone)]
pub(crate) struct Fixed {
    /// For each leaf, its version, which says whether it is still the same; `None` for an input.
    pub(crate) versions: Arc<[Option<u64>]>,
    pub(crate) kept: Arc<Kept>,
    /// `true` if results have the bits of a tape's.
    pub(crate) exact: bool,
}

/// The granularity at which a device times its runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Profiling {
    /// Nothing is timed, at no cost.
    #[default]
    Off,
    /// Each run as a whole, without slowing it down.
    Runs,
    /// Each launch. The GPU finishes one before it starts the next, which costs a few microseconds each.
    Launches,
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
#[non_exhaustive]
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
