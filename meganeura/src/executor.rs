//! What a device exchanges with its executors besides plans: the memory of a run, what to time, and counts.
//!
//! `cpu/` and `gpu/` know this module, not the device that calls them.

use std::sync::Arc;
use std::time::Duration;

use crate::host::HostWord;
use crate::tensor::Storage;

/// The memory of one run: a storage for each leaf, in the graph's numbering, and the host's words.
pub(crate) struct Bindings<'a> {
    pub(crate) leaves: &'a mut Vec<Storage>,
    pub(crate) host: &'a [HostWord],
    /// What the leaves are called, where that is wanted: see [`Plan::launched`](crate::plan::Plan::launched).
    pub(crate) paths: &'a [Option<Arc<str>>],
}

/// What of the runs of a device is timed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profiling {
    /// Nothing. A run costs no more than without this.
    #[default]
    Off,
    /// Each run as a whole, undisturbed.
    Runs,
    /// Each launch. A GPU ends one before it starts the next, which costs a few microseconds each.
    Launches,
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
