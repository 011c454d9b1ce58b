//! How long each launch of a run takes.

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

/// Times of one launch: of a kernel on a GPU, of a step of the plan on the CPU.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LaunchTime {
    /// The step that the launch belongs to: its number in [`Device::plan_dumps`].
    pub step: usize,
    /// The kernel; on the CPU the operation.
    pub name: &'static str,
    /// Which of the operation's ways to be computed this is; empty where there is one.
    pub variant: &'static str,
    /// From the end of the launch before it to its own end.
    pub duration: Duration,
    /// The type of its step's first result.
    pub result: TensorType,
    /// The operation that the launch is of; `pointwise` for elementwise work that no kernel does along with its own.
    pub op: &'static str,
    /// Bytes of what it reads and writes, each tensor counted once: the least that it moves.
    pub bytes: usize,
    /// The paths of the parameters and buffers that its step reads or updates, where they have any.
    pub parameters: Vec<Arc<str>>,
}

/// How long a run took, launch by launch.
///
/// `Display` lists the kernels, those that took longest first.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Profile {
    /// In the order in which they ran; empty with [`Profiling::Runs`].
    pub launches: Vec<LaunchTime>,
    /// From the begin of the first launch to the end of the last.
    pub total: Duration,
    /// The host's work for it and since the run before. Empty for work from before profiling was turned on.
    pub host: Vec<HostSpan>,
    /// When the first launch could begin, since profiling was turned on: on the CPU when it did, on a GPU when all was
    /// submitted.
    pub begin: Duration,
    /// The device.
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

/// What an executor measured: how long each launch took.
pub(super) enum Times {
    Cpu(Vec<Duration>),
    #[cfg(feature = "gpu")]
    Gpu(crate::gpu::Times),
}

/// The last run that was timed.
pub(super) enum Timed {
    /// All but the times of the launches, and those.
    Measured(Profile, Times),
    Read(Profile),
}

impl Timed {
    /// A run that ends now, and on the CPU began then.
    pub(super) fn new(
        device: &Device,
        prepared: &PreparedPlan,
        paths: &[Option<Arc<str>>],
        profiling: Profiling,
        (begin, times): (Instant, Times),
    ) -> Self {
        let wanted = if profiling == Profiling::Launches { usize::MAX } else { 0 };
        let path = |leaf: usize| paths.get(leaf).cloned().flatten();
        let launches = prepared.plan.launched().take(wanted).map(|launched| LaunchTime {
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
    /// What of later runs of this device is timed; nothing at first.
    ///
    /// # Errors
    ///
    /// Where the adapter writes no timestamps between the launches of a pass, unless it is `Off`.
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

    /// The paths of a run's leaves, where it is timed launch by launch; else none.
    pub(crate) fn paths_to_report(&self, paths: impl Iterator<Item = Option<Arc<str>>>) -> Vec<Option<Arc<str>>> {
        if *lock(&self.0.profiling) == Profiling::Launches { paths.collect() } else { Vec::new() }
    }

    /// The times of the last run that [`Device::set_profiling`] asked for, as the device itself measured them. Waits
    /// for it.
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
    /// If nothing was timed, or the device was lost.
    #[track_caller]
    pub fn last_profile(&self) -> Result<Profile> {
        here(|| {
            let last = lock(&self.0.profile).take();
            let Some(timed) = last else { bail!(Device, "no run was timed: `set_profiling` comes before it") };
            // Not under the lock, which every run that is timed takes: this waits for the device.
            let profile = timed.read()?;
            lock(&self.0.profile).get_or_insert_with(|| Timed::Read(profile.clone()));
            Ok(profile)
        })
    }
}
