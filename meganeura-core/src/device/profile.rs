//! Profiles: the duration of each launch of a run.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use web_time::Instant;

use super::trace::Timeline;
use super::{Device, Engine, HostSpan, PreparedPlan, lock};
use crate::error::{bail, here};
use crate::executor::Profiling;
use crate::{Result, TensorType};

/// The time of one launch: a kernel on a GPU, a step of the plan on the CPU.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LaunchTime {
    /// The launch's step: its number in [`Device::plan_dumps`].
    pub step: usize,
    /// The kernel's name; on the CPU, the operation's.
    pub name: &'static str,
    /// The operation's variant; empty for fused elementwise work, and on the CPU.
    pub variant: &'static str,
    /// The time from the end of the previous launch to the end of this one.
    pub duration: Duration,
    /// The type of its step's first result.
    pub result: TensorType,
    /// The operation that the launch belongs to; `pointwise` for elementwise work outside kernels.
    pub op: &'static str,
    /// The bytes that it reads and writes, each tensor counted once: a lower bound on its traffic.
    pub bytes: usize,
    /// The paths of the parameters and buffers that its step reads or updates, where they have paths.
    pub parameters: Vec<Arc<str>>,
}

/// The duration of a run, launch by launch.
///
/// `Display` lists the kernels, the slowest first.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Profile {
    /// In the order of execution; empty with [`Profiling::Runs`].
    pub launches: Vec<LaunchTime>,
    /// The time from the start of the first launch to the end of the last.
    pub total: Duration,
    /// The host's work for this run, and since the previous one. Empty for work from before profiling was turned on.
    pub host: Vec<HostSpan>,
    /// The earliest start of the first launch, since profiling was turned on. On the CPU this is its actual start, on a
    /// GPU the time when everything was submitted.
    pub begin: Duration,
    /// The name of the device.
    pub(super) device: Arc<str>,
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut kernels: Vec<(&str, &str, Duration, usize)> = Vec::new();
        for launch in &self.launches {
            let is_same = |kernel: &&mut (&str, &str, _, _)| (kernel.0, kernel.1) == (launch.name, launch.variant);
            match kernels.iter_mut().find(is_same) {
                Some((_, _, duration, count)) => (*duration, *count) = (*duration + launch.duration, *count + 1),
                None => kernels.push((launch.name, launch.variant, launch.duration, 1)),
            }
        }
        kernels.sort_by_key(|kernel| std::cmp::Reverse(kernel.2));
        let microseconds = |duration: Duration| duration.as_secs_f64() * 1e6;
        for (name, variant, duration, count) in kernels {
            let name = if variant.is_empty() { name.to_owned() } else { format!("{name} ({variant})") };
            writeln!(f, "{:>12.1} µs  {count:>4} × {name}", microseconds(duration))?;
        }
        writeln!(f, "{:>12.1} µs  in all", microseconds(self.total))
    }
}

/// Times of the launches, measured by an executor.
pub(super) enum Times {
    Cpu(Vec<Duration>),
    #[cfg(feature = "gpu")]
    Gpu(crate::gpu::Times),
}

/// The last run that was timed.
pub(super) enum Timed {
    /// A profile without the times of its launches, and those times.
    Measured(Profile, Times),
    Read(Profile),
}

impl Timed {
    /// A run that ends now. On the CPU it started at `begin`.
    pub(super) fn new(
        device: &Device,
        prepared: &PreparedPlan,
        paths: &[Option<Arc<str>>],
        profiling: Profiling,
        (begin, times): (Instant, Times),
    ) -> Self {
        let wanted = if profiling == Profiling::Launches { usize::MAX } else { 0 };
        let path = |leaf: usize| paths.get(leaf).cloned().flatten();
        let launches = prepared.plan.launch_infos().take(wanted).map(|launched| LaunchTime {
            step: launched.step,
            name: launched.kernel,
            variant: launched.variant,
            duration: Duration::ZERO,
            result: launched.result,
            op: launched.op,
            bytes: launched.bytes,
            parameters: launched.leaves.into_iter().filter_map(path).collect(),
        });
        let can_begin = if device.is_gpu() { Instant::now() } else { begin };
        let profile = Profile {
            launches: launches.collect(),
            total: Duration::ZERO,
            begin: device.since_profiling(can_begin),
            host: device.noted(),
            device: device.to_string().into(),
        };
        Self::Measured(profile, times)
    }

    fn read(self) -> Result<Profile> {
        let (profile, times) = match self {
            Self::Read(profile) => return Ok(profile),
            Self::Measured(profile, Times::Cpu(times)) => (profile, times),
            #[cfg(feature = "gpu")]
            Self::Measured(profile, Times::Gpu(times)) => (profile, times.read()?),
        };
        let (mut launches, total) = (profile.launches, times.iter().sum());
        launches.iter_mut().zip(times).for_each(|(launch, time)| launch.duration = time);
        Ok(Profile { launches, total, ..profile })
    }
}

impl Device {
    /// Sets what is timed in later runs of this device; nothing by default.
    ///
    /// # Errors
    ///
    /// Fails, unless it is `Off`, if the adapter cannot write timestamps between the launches of a pass.
    #[track_caller]
    pub fn set_profiling(&self, profiling: Profiling) -> Result<()> {
        here(|| {
            match &self.0.engine {
                Engine::Cpu(_) => {}
                #[cfg(feature = "gpu")]
                Engine::Gpu(gpu) if profiling != Profiling::Off => gpu.expect_timing()?,
                #[cfg(feature = "gpu")]
                Engine::Gpu(_) => {}
            }
            *lock(&self.0.profiling) = profiling;
            let is_timed = profiling != Profiling::Off;
            *lock(&self.0.timeline) = is_timed.then(Timeline::new);
            self.0.is_timed.store(is_timed, Ordering::Relaxed);
            Ok(())
        })
    }

    /// The paths of a run's leaves if launches are timed, else nothing.
    pub(crate) fn paths_to_report(&self, paths: impl Iterator<Item = Option<Arc<str>>>) -> Vec<Option<Arc<str>>> {
        if *lock(&self.0.profiling) == Profiling::Launches { paths.collect() } else { Vec::new() }
    }

    /// The times of the last timed run, measured by the device itself. Waits for that run.
    ///
    /// [`Device::set_profiling`] turns timing on.
    ///
    /// ```
    /// # fn main() -> meganeura::Result<()> {
    /// use meganeura::{Profiling, prelude::*};
    ///
    /// let device = Device::cpu();
    /// device.set_profiling(Profiling::Launches)?;
    /// let x = Tape::new(&device).input(&Tensor::full(&device, [64, 64], 0.5)?);
    /// x.matmul(&x).tanh().to_vec()?;
    /// let profile = device.last_profile()?;
    /// assert_eq!(profile.launches[0].name, "matmul");
    /// println!("{profile}"); // the kernels, those that took longest first
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if no run was timed, or if the device was lost.
    #[track_caller]
    pub fn last_profile(&self) -> Result<Profile> {
        here(|| {
            let last = lock(&self.0.profile).take();
            let Some(timed) = last else { bail!(Device, "no run was timed; call `set_profiling` before the run") };
            // Outside the lock, which every timed run takes: this waits for the device.
            let profile = timed.read()?;
            lock(&self.0.profile).get_or_insert_with(|| Timed::Read(profile.clone()));
            Ok(profile)
        })
    }
}
