//! Devices: an executor, its precision, and the plans that it keeps.

#[cfg(feature = "gpu")]
mod compiled;
mod plans;
mod profile;
mod selection;
mod stats;
#[cfg(all(feature = "gpu", feature = "testing", not(target_family = "wasm")))]
mod testing;
mod trace;
mod variants;

#[cfg(all(feature = "gpu", feature = "testing"))]
use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use web_time::Instant;

pub use profile::{LaunchTime, Profile};
pub use stats::Stats;
pub use trace::HostSpan;

use crate::cpu::{Cpu, threads};
#[cfg(feature = "gpu")]
use crate::error::bail;
use crate::error::here_async;
#[cfg(feature = "gpu")]
use crate::executor::HostTimes;
use crate::executor::{Bindings, Profiling};
#[cfg(feature = "gpu")]
use crate::gpu::Gpu;
#[cfg(all(feature = "gpu", feature = "testing"))]
use crate::gpu::{Absent, PlannedKernel};
use crate::host::HostBuffer;
use crate::plan::{Excerpt, Key, Plan, Preferences, Target};
use crate::storage::Storage;
#[cfg(not(target_family = "wasm"))]
use crate::wait::block_on;
use crate::{Precision, Result, TensorType};
#[cfg(feature = "gpu")]
use compiled::Compiled;
use plans::Plans;
use profile::{Timed, Times};
use trace::Timeline;

/// The reason why the CPU has no fast precision.
const NO_MATRIX_UNITS: &str = "fast precision is available on GPUs with matrix units only, not on the CPU";

/// A device that computes: a GPU, or the CPU's threads. Cheap to clone; clones are the same device.
///
/// `Display` shows the adapter or processor.
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    engine: Engine,
    precision: Precision,
    reason: String,
    plans: Mutex<Plans>,
    seed: AtomicU64,
    /// The number of this process in a world; each rank draws random numbers of its own.
    rank: u64,
    stats: Mutex<Stats>,
    profiling: Mutex<Profiling>,
    profile: Mutex<Option<Timed>>,
    /// `true` while runs are timed. Otherwise no run touches the timeline or reads the clock for it.
    is_timed: AtomicBool,
    timeline: Mutex<Option<Timeline>>,
    preferences: Mutex<Preferences>,
    /// For tests: options for checked kernels, and for memory that holds NaN until it is written.
    testing: Testing,
    /// For tests: kernels of plans for a hypothetical GPU.
    #[cfg(all(feature = "gpu", feature = "testing"))]
    planned: Mutex<BTreeSet<PlannedKernel>>,
}

enum Engine {
    Cpu(Cpu),
    #[cfg(feature = "gpu")]
    Gpu(Gpu),
}

#[derive(Clone, Copy, Default)]
struct Testing {
    #[cfg_attr(not(feature = "gpu"), expect(dead_code, reason = "the native executor always checks"))]
    checked: bool,
    poison: bool,
    /// The hypothetical GPU for which each run is also planned.
    #[cfg(all(feature = "gpu", feature = "testing"))]
    absent: Option<Absent>,
}

/// A plan, ready to run on its device.
pub(crate) struct PreparedPlan {
    pub(crate) plan: Arc<Plan>,
    #[cfg(feature = "gpu")]
    gpu: Option<Compiled>,
}

impl PreparedPlan {
    /// An estimate of the host memory that it takes.
    pub(crate) fn host_bytes(&self) -> usize {
        #[cfg(feature = "gpu")]
        let compiled = self.gpu.as_ref().map_or(0, |compiled| compiled.latest().host_bytes());
        #[cfg(not(feature = "gpu"))]
        let compiled = 0;
        self.plan.host_bytes() + compiled
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each mutex holds plain data that a panic cannot leave half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Device {
    fn make(engine: Engine, precision: Precision, reason: String) -> Self {
        Self(Arc::new(Inner {
            engine,
            precision,
            reason,
            plans: Mutex::default(),
            seed: AtomicU64::new(0),
            rank: 0,
            stats: Mutex::default(),
            profiling: Mutex::default(),
            profile: Mutex::default(),
            is_timed: AtomicBool::new(false),
            timeline: Mutex::default(),
            preferences: Mutex::new(Preferences { economical: true, ..Preferences::default() }),
            testing: Testing::default(),
            #[cfg(all(feature = "gpu", feature = "testing"))]
            planned: Mutex::default(),
        }))
    }

    /// The CPU, in single precision.
    ///
    /// All such devices share the framework's own threads. The first run starts them; `RAYON_NUM_THREADS` sets their
    /// number, by default that of the cores.
    #[must_use]
    pub fn cpu() -> Self {
        Self::cpu_with(Precision::Full)
    }

    /// The CPU, in a given precision.
    ///
    /// # Panics
    ///
    /// Panics for [`Precision::Fast`], which the CPU lacks. [`Device::with_precision`] returns an error instead.
    #[must_use]
    pub fn cpu_with(precision: Precision) -> Self {
        assert_ne!(precision, Precision::Fast, "{NO_MATRIX_UNITS}");
        Self::make(Engine::Cpu(Cpu::default()), precision, "asked for".into())
    }

    /// The reason why this device was chosen.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.0.reason
    }

    /// The precision in which this device computes.
    #[must_use]
    pub fn precision(&self) -> Precision {
        self.0.precision
    }

    /// `true` if this is a GPU (or a software driver for one), `false` for the native executor.
    #[must_use]
    pub fn is_gpu(&self) -> bool {
        !matches!(self.0.engine, Engine::Cpu(_))
    }

    /// `true` if the devices can use each other's tensors: the same adapter, opened once, in full or fast precision; or
    /// the CPU in one precision.
    #[must_use]
    pub fn same(&self, other: &Self) -> bool {
        match (&self.0.engine, &other.0.engine) {
            (Engine::Cpu(_), Engine::Cpu(_)) => self.precision() == other.precision(),
            #[cfg(feature = "gpu")]
            (Engine::Gpu(gpu), Engine::Gpu(other)) => gpu.same(other),
            #[cfg(feature = "gpu")]
            _ => false,
        }
    }

    /// `true` if kernels may keep tiles of products in registers.
    pub(crate) fn tiles(&self) -> bool {
        match &self.0.engine {
            Engine::Cpu(_) => true,
            #[cfg(feature = "gpu")]
            Engine::Gpu(gpu) => gpu.caps(false).tiles,
        }
    }

    /// `true` if kernels compute with fragments in the registers of matrix units.
    pub(crate) fn keeps_fragments(&self) -> bool {
        match &self.0.engine {
            Engine::Cpu(_) => false,
            #[cfg(feature = "gpu")]
            Engine::Gpu(gpu) => gpu.caps(self.precision() == Precision::Fast).fragments,
        }
    }

    /// The most bytes that a buffer may have.
    pub(crate) fn largest_buffer(&self) -> usize {
        match &self.0.engine {
            Engine::Cpu(_) => usize::MAX,
            #[cfg(feature = "gpu")]
            Engine::Gpu(gpu) => gpu.caps(false).buffer,
        }
    }

    /// Sets the random seed of the next [`Tape::new`](crate::Tape::new). Each later tape gets the next number.
    #[doc(alias = "manual_seed")]
    pub fn set_seed(&self, seed: u64) {
        self.0.seed.store(seed, Ordering::Relaxed);
    }

    /// The random seed of the next [`Tape::new`](crate::Tape::new).
    ///
    /// Passing it to [`set_seed`](Self::set_seed) later makes new tapes draw the same numbers again.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.0.seed.load(Ordering::Relaxed)
    }

    pub(crate) fn next_seed(&self) -> u64 {
        self.0.seed.fetch_add(1, Ordering::Relaxed) ^ self.0.rank << 48
    }

    /// Waits until all submitted work is done.
    ///
    /// # Errors
    ///
    /// Any fault of the device in the meantime: a lost device, exhausted memory, or a kernel that it refused.
    #[cfg(not(target_family = "wasm"))]
    #[track_caller]
    pub fn wait(&self) -> Result<()> {
        block_on(self.wait_async())
    }

    /// Like [`Device::wait`], without blocking the thread.
    ///
    /// # Errors
    ///
    /// Fails like [`Device::wait`].
    #[track_caller]
    pub fn wait_async(&self) -> impl Future<Output = Result<()>> {
        here_async(async {
            match &self.0.engine {
                Engine::Cpu(_) => Ok(()),
                #[cfg(feature = "gpu")]
                Engine::Gpu(gpu) => gpu.wait().await,
            }
        })
    }

    /// Waits until another run may be submitted. Natively, submitting does that itself.
    #[doc(hidden)]
    pub async fn room(&self) -> Result<()> {
        match &self.0.engine {
            Engine::Cpu(_) => Ok(()),
            #[cfg(feature = "gpu")]
            Engine::Gpu(gpu) => gpu.room().await,
        }
    }

    /// Refuses a tensor too large for any buffer of the device, before its numbers are generated.
    #[cfg_attr(not(feature = "gpu"), expect(unused_variables, reason = "the host's memory says when it is full"))]
    pub(crate) fn expect_fits(&self, ty: TensorType) -> Result<()> {
        match &self.0.engine {
            Engine::Cpu(_) => Ok(()),
            #[cfg(feature = "gpu")]
            Engine::Gpu(gpu) => gpu.expect_fits(ty.bytes()).map_err(|error| error.context(format!("a tensor {ty}"))),
        }
    }

    #[cfg_attr(not(feature = "gpu"), expect(unused_variables, reason = "host storages know their type"))]
    pub(crate) fn upload(&self, host: HostBuffer, ty: TensorType) -> Result<Storage> {
        match &self.0.engine {
            Engine::Cpu(_) => Ok(Storage::host(host)),
            #[cfg(feature = "gpu")]
            Engine::Gpu(gpu) => Ok(Storage::Gpu(gpu.upload(&host, ty)?)),
        }
    }

    /// Copies a value from its memory on this device.
    #[cfg_attr(not(feature = "gpu"), expect(unused_variables, reason = "host memory knows its type"))]
    pub(crate) async fn download(&self, storage: &Storage, ty: TensorType) -> Result<HostBuffer> {
        match (storage, &self.0.engine) {
            (Storage::Host(buffer), _) => buffer.try_clone(),
            #[cfg(feature = "gpu")]
            (Storage::Gpu(buffer), Engine::Gpu(gpu)) => gpu.download(buffer, ty).await,
            #[cfg(feature = "gpu")]
            (Storage::Gpu(_), Engine::Cpu(_)) => unreachable!("a tensor's storage belongs to its device"),
        }
    }

    /// A copy of a storage, to write to while others read the original.
    #[cfg_attr(not(feature = "gpu"), expect(unused_variables, reason = "host storages know their type"))]
    pub(crate) fn copy(&self, storage: &Storage, ty: TensorType) -> Result<Storage> {
        match (storage, &self.0.engine) {
            (Storage::Host(buffer), _) => Ok(Storage::host(buffer.try_clone()?)),
            #[cfg(feature = "gpu")]
            (Storage::Gpu(buffer), Engine::Gpu(gpu)) => Ok(Storage::Gpu(gpu.copy(buffer, ty)?)),
            #[cfg(feature = "gpu")]
            (Storage::Gpu(_), Engine::Cpu(_)) => bail!(Device, "a value {ty} is on another device"),
        }
    }

    /// The plan for an excerpt of a graph: a kept one of the same structure, or a new one.
    pub(crate) fn plan(&self, excerpt: &Excerpt<'_>) -> Result<Arc<PreparedPlan>> {
        let known = self.spend("look up", |host| &mut host.look_up, || lock(&self.0.plans).find(excerpt));
        if let Some(prepared) = known {
            return Ok(prepared);
        }
        let start = Instant::now();
        let key = excerpt.to_key();
        let shapes_vary = lock(&self.0.plans).count(&key);
        let prepared = Arc::new(self.prepare(&key, shapes_vary)?);
        lock(&self.0.plans).keep(key, excerpt.digest(), Arc::clone(&prepared));
        let duration = start.elapsed();
        self.note("plan", start, duration);
        let mut stats = lock(&self.0.stats);
        stats.plans += 1;
        stats.plan_time += duration;
        Ok(prepared)
    }

    #[cfg_attr(not(feature = "gpu"), expect(unused_variables, reason = "only kernels of a GPU have shapes"))]
    fn prepare(&self, key: &Key, shapes_vary: bool) -> Result<PreparedPlan> {
        let request = &key.request();
        #[cfg(all(feature = "gpu", feature = "testing"))]
        if let Some(absent) = self.0.testing.absent {
            crate::gpu::plan_for(absent, request, &mut lock(&self.0.planned))?;
        }
        match &self.0.engine {
            Engine::Cpu(_) => Ok(PreparedPlan {
                plan: Arc::new(Plan { once: key.once, ..Plan::new(request, Target::Cpu)? }),
                #[cfg(feature = "gpu")]
                gpu: None,
            }),
            #[cfg(feature = "gpu")]
            Engine::Gpu(gpu) => {
                let caps = gpu.caps(self.0.precision == Precision::Fast);
                let preferences = lock(&self.0.preferences).clone();
                let plan = Plan::new(request, Target::Gpu { caps, preferences: &preferences })?;
                let plan = Plan { once: key.once, ..plan };
                let compiled = gpu.compile(&plan, self.0.testing.checked, shapes_vary)?;
                Ok(PreparedPlan { plan: Arc::new(plan), gpu: Some(Compiled::new(compiled)) })
            }
        }
    }

    /// Runs a plan and returns the storages of its outputs.
    pub(crate) fn run(&self, prepared: &PreparedPlan, bindings: &mut Bindings<'_>) -> Result<Vec<Storage>> {
        let poison = self.0.testing.poison;
        let profiling = *lock(&self.0.profiling);
        let begin = (profiling != Profiling::Off).then(Instant::now);
        let (outputs, times, submissions) = match &self.0.engine {
            Engine::Cpu(cpu) => {
                let (timed, dtype) = (profiling != Profiling::Off, self.0.precision.dtype());
                let compute = || cpu.run(&prepared.plan, dtype, bindings, poison, timed);
                let (outputs, times) = self.spend("compute", |host| &mut host.compute, compute)?;
                (outputs, times.map(Times::Cpu), 0)
            }
            #[cfg(feature = "gpu")]
            Engine::Gpu(gpu) => {
                let compiled = prepared.gpu.as_ref().expect("plans of a GPU are compiled");
                let compiled = compiled.for_run(gpu, &prepared.plan, self.0.testing.checked);
                let before = begin.map(|begin| (begin, gpu.host_times(HostTimes::default())));
                let (outputs, times, submissions) = gpu.run(&prepared.plan, &compiled, bindings, poison, profiling)?;
                if let Some((begin, before)) = before {
                    self.note_run(begin, &gpu.host_times(HostTimes::default()).since(&before));
                }
                (outputs, times.map(Times::Gpu), submissions)
            }
        };
        if let (Some(begin), Some(times)) = (begin, times) {
            *lock(&self.0.profile) = Some(Timed::new(self, prepared, bindings.paths, profiling, (begin, times)));
        }
        let mut stats = lock(&self.0.stats);
        stats.runs += 1;
        stats.launches += prepared.plan.launches() as u64;
        stats.submissions += submissions;
        Ok(outputs)
    }

    /// For tests of exhausted memory: limits the adapter of a GPU to this many bytes from now on; 0 is no limit.
    #[cfg(feature = "testing")]
    #[cfg_attr(not(feature = "gpu"), expect(unused_variables, reason = "the CPU has what the system gives"))]
    pub fn limit_memory(&self, bytes: u64) {
        match &self.0.engine {
            Engine::Cpu(_) => {}
            #[cfg(feature = "gpu")]
            Engine::Gpu(gpu) => gpu.limit_memory(bytes),
        }
    }

    /// For tests of a GPU that goes away: its driver loses it, and reports that at once or when it is next polled. The
    /// CPU is unaffected.
    #[cfg(feature = "testing")]
    #[cfg_attr(not(feature = "gpu"), expect(unused_variables, reason = "the CPU cannot be lost"))]
    pub fn lose(&self, at_once: bool) {
        match &self.0.engine {
            Engine::Cpu(_) => {}
            #[cfg(feature = "gpu")]
            Engine::Gpu(gpu) => gpu.lose(at_once),
        }
    }

    /// For tests of kernels: the same adapter, with a plan cache of its own and special options.
    ///
    /// Variant number `variant` of each kernel runs (the last where there are fewer). Memory holds NaN until it is
    /// written. Every access of every kernel is checked, even in trusted kernels. With the environment variable
    /// `MEGANEURA_UNCHECKED=1`, trusted kernels run unchecked, as on other devices. In fast precision, small plans,
    /// too, store bf16.
    #[cfg(feature = "testing")]
    pub fn for_testing(&self, variant: usize) -> Self {
        self.under_test(Preferences { number: variant, ..Preferences::default() })
    }

    /// Like [`Device::for_testing`], with elementwise work in separate launches instead of those of kernels.
    #[cfg(feature = "testing")]
    pub fn for_testing_apart(&self, variant: usize) -> Self {
        self.under_test(Preferences { number: variant, apart: true, ..Preferences::default() })
    }

    /// Like [`Device::for_testing`], where every kernel that supports it reads and stores bf16, with channels
    /// innermost. This is the only way to get bf16 on adapters without matrix units.
    #[cfg(feature = "testing")]
    pub fn for_testing_bf16(&self, variant: usize) -> Self {
        self.under_test(Preferences { number: variant, bf16: true, ..Preferences::default() })
    }

    #[cfg(feature = "testing")]
    fn under_test(&self, preferences: Preferences) -> Self {
        let engine = match &self.0.engine {
            Engine::Cpu(_) => Engine::Cpu(Cpu::default()),
            #[cfg(feature = "gpu")]
            Engine::Gpu(gpu) => Engine::Gpu(gpu.clone()),
        };
        let checked = std::env::var_os("MEGANEURA_UNCHECKED").is_none_or(|value| value != "1");
        let mut made = Self::make(engine, self.0.precision, self.0.reason.clone());
        let inner = Arc::get_mut(&mut made.0).expect("nobody else has seen the device");
        inner.testing = Testing {
            checked,
            poison: true,
            #[cfg(feature = "gpu")]
            absent: None,
        };
        inner.preferences = Mutex::new(preferences);
        made
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.engine {
            Engine::Cpu(_) => {
                let threads = threads();
                write!(f, "CPU, {threads} thread{}", if threads == 1 { "" } else { "s" })?;
            }
            #[cfg(feature = "gpu")]
            Engine::Gpu(gpu) => gpu.fmt(f)?,
        }
        match self.0.precision {
            Precision::Full => Ok(()),
            Precision::Double => f.write_str(", double precision"),
            Precision::Fast => f.write_str(", fast precision"),
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({self})")
    }
}
