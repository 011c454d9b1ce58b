//! The choice of a device where the caller leaves it open.

use super::Device;
use super::Engine;
use crate::error::{bail, here, here_async};
#[cfg(not(target_family = "wasm"))]
use crate::wait::block_on;
#[cfg(not(target_family = "wasm"))]
use crate::world::World;
use crate::{Precision, Result};

/// The environment variable that overrides [`Device::best`]'s choice.
const OVERRIDE: &str = "MEGANEURA_DEVICE";

/// The name for an automatic choice.
const AUTO: &str = "auto";

impl Device {
    /// The best device: a GPU if one answers, else the CPU. [`Device::reason`] explains the choice.
    ///
    /// The environment variable `MEGANEURA_DEVICE` overrides it: `cpu`, `gpu`, or part of an adapter's name. Software
    /// drivers are used only if named, as the native executor is faster.
    ///
    /// # Errors
    ///
    /// Fails if the device named by the variable does not exist; the message starts with the variable's name.
    #[cfg(not(target_family = "wasm"))]
    #[track_caller]
    pub fn best() -> Result<Self> {
        block_on(Self::best_async())
    }

    /// Like [`Device::best`], for async code. In a browser the GPU is reached through WebGPU. Natively the driver opens
    /// it on this thread.
    ///
    /// # Errors
    ///
    /// Fails like [`Device::best`].
    #[track_caller]
    pub fn best_async() -> impl Future<Output = Result<Self>> {
        here_async(async {
            if let Some(wanted) = std::env::var_os(OVERRIDE).filter(|wanted| !wanted.is_empty()) {
                let wanted = wanted.to_string_lossy();
                let source = format!("{OVERRIDE}={wanted}");
                return match Self::called(&wanted).await {
                    Ok(device) => Ok(device.because(source)),
                    Err(error) => Err(error.context(source)),
                };
            }
            Ok(match Self::first_gpu().await {
                Ok(device) => device.because("the first GPU found".into()),
                Err(why) => Self::cpu().because(why),
            })
        })
    }

    /// The device with this name: `cpu`, `gpu` (the first that answers), or part of an adapter's name, ignoring case.
    ///
    /// # Errors
    ///
    /// Fails if there is none, or if `name` is blank; the message lists the available adapters.
    #[cfg(not(target_family = "wasm"))]
    #[track_caller]
    pub fn named(name: &str) -> Result<Self> {
        block_on(Self::named_async(name))
    }

    /// Like [`Device::named`], for async code. A browser shows at most one adapter, and most browsers give it no name;
    /// `webgpu` is part of every name there.
    ///
    /// # Errors
    ///
    /// Fails like [`Device::named`].
    #[track_caller]
    pub fn named_async(name: &str) -> impl Future<Output = Result<Self>> {
        here_async(Self::called(name))
    }

    async fn called(name: &str) -> Result<Self> {
        match name.trim().to_lowercase().as_str() {
            "cpu" => Ok(Self::cpu()),
            "gpu" => match Self::first_gpu().await {
                Ok(device) => Ok(device),
                Err(why) => bail!(Device, "no GPU to run on: {why}; use `cpu` for the CPU"),
            },
            _ => Self::adapter(name.trim()).await,
        }
    }

    /// This device in another precision.
    ///
    /// Both use the same adapter, opened once, so full and fast precision share tensors and models. Tapes, plans,
    /// statistics and seeds belong to each device. A tape computes in the precision of the device that it was made on.
    ///
    /// ```
    /// # use meganeura::{Device, Precision};
    /// # fn main() -> meganeura::Result<()> {
    /// let device = Device::best()?;
    /// match device.with_precision(Precision::Fast) {
    ///     Ok(fast) => println!("{fast}"),
    ///     Err(why) => println!("{why}"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if the device does not have this precision; the message says what it lacks. Only the CPU has
    /// [`Precision::Double`]. [`Precision::Fast`] needs a GPU with matrix units that pass a probe, which runs at the
    /// first request.
    #[doc(alias = "autocast")]
    #[track_caller]
    pub fn with_precision(&self, precision: Precision) -> Result<Self> {
        here(|| {
            let engine = match &self.0.engine {
                Engine::Cpu(_) if precision == Precision::Fast => bail!(Device, "{}", super::NO_MATRIX_UNITS),
                Engine::Cpu(_) => Engine::Cpu(crate::cpu::Cpu::default()),
                #[cfg(feature = "gpu")]
                Engine::Gpu(gpu) => {
                    match precision {
                        Precision::Full => {}
                        Precision::Fast => gpu.expect_matrix()?,
                        Precision::Double => {
                            bail!(Device, "double precision is available on the CPU only, not on {gpu}")
                        }
                    }
                    Engine::Gpu(gpu.clone())
                }
            };
            Ok(Self::make(engine, precision, self.0.reason.clone()).of_rank(self.0.rank))
        })
    }

    /// This device in [`Precision::Fast`] if it has that, else unchanged.
    ///
    /// [`Device::precision`] and `Display` tell which; the error of [`Device::with_precision`] explains why it is not
    /// fast.
    #[must_use]
    pub fn fast_if_available(&self) -> Self {
        self.with_precision(Precision::Fast).unwrap_or_else(|_| self.clone())
    }

    /// The device for a rank of a world; see [`World::device`].
    #[cfg(not(target_family = "wasm"))]
    async fn for_rank(world: &World, name: &str) -> Result<Self> {
        crate::cpu::share_cores(world.local_size());
        if world.is_alone() {
            return if name == AUTO { Self::best_async().await } else { Self::called(name).await };
        }
        let wanted = std::env::var(OVERRIDE).ok().filter(|wanted| name == AUTO && !wanted.is_empty());
        let device = match wanted.as_deref().unwrap_or(name).trim().to_lowercase().as_str() {
            "cpu" => Self::cpu(),
            AUTO => match Self::gpu("", world).await {
                Ok(gpu) => gpu.because(format!("one of the GPUs for each rank; this is {world}")),
                Err(why) => Self::cpu().because(why.to_string()),
            },
            "gpu" => Self::gpu("", world).await?,
            part => Self::gpu(part, world).await?,
        };
        #[cfg(feature = "gpu")]
        match &device.0.engine {
            Engine::Gpu(gpu) => gpu.connect(world)?,
            Engine::Cpu(_) => crate::gpu::without_link(world)?,
        }
        Ok(device.of_rank(world.rank() as u64))
    }

    /// The first GPU, or the reason why there is none. Without the `gpu` feature there is none.
    async fn first_gpu() -> Result<Self, String> {
        #[cfg(feature = "gpu")]
        {
            crate::gpu::Gpu::first().await.map(|gpu| Self::make(Engine::Gpu(gpu), Precision::Full, "asked for".into()))
        }
        #[cfg(not(feature = "gpu"))]
        {
            Err("built without the `gpu` feature".into())
        }
    }

    /// Any adapter with this in its name, including software drivers.
    async fn adapter(part: &str) -> Result<Self> {
        #[cfg(feature = "gpu")]
        {
            let gpu = crate::gpu::Gpu::named(part).await?;
            Ok(Self::make(Engine::Gpu(gpu), Precision::Full, "asked for".into()))
        }
        #[cfg(not(feature = "gpu"))]
        {
            bail!(Device, "no adapter {part:?}: built without the `gpu` feature")
        }
    }

    /// The adapter for a rank, among those with `part` in their name. If that is empty, among those that are not
    /// software drivers.
    #[cfg(not(target_family = "wasm"))]
    async fn gpu(part: &str, world: &World) -> Result<Self> {
        #[cfg(feature = "gpu")]
        {
            let gpu = crate::gpu::Gpu::of_rank(part, world).await?;
            Ok(Self::make(Engine::Gpu(gpu), Precision::Full, "asked for".into()))
        }
        #[cfg(not(feature = "gpu"))]
        {
            let _ = world;
            Self::adapter(part).await
        }
    }

    /// Makes this new device that of a rank.
    fn of_rank(self, rank: u64) -> Self {
        let inner = std::sync::Arc::into_inner(self.0).expect("nobody else has seen the device");
        Self(std::sync::Arc::new(super::Inner { rank, ..inner }))
    }

    /// Sets the reason of this new device.
    fn because(self, reason: String) -> Self {
        let inner = std::sync::Arc::into_inner(self.0).expect("nobody else has seen the device");
        Self(std::sync::Arc::new(super::Inner { reason, ..inner }))
    }
}

#[cfg(not(target_family = "wasm"))]
impl World {
    /// The device for this rank.
    ///
    /// The name is `auto`, for the choice of [`Device::best`], or one for [`Device::named`]. If it matches several
    /// adapters, the ranks of a host take one each, in order; with fewer adapters than ranks, they start over. Ranks
    /// that compute on the CPU divide its cores, unless `RAYON_NUM_THREADS` sets the number of threads.
    ///
    /// This is a collective call: ranks agree on whether their GPUs exchange numbers directly
    /// ([`engine`](Self::engine)).
    ///
    /// Tapes of this device draw different random numbers from those of other ranks: each drops different elements.
    ///
    /// # Errors
    ///
    /// Fails like [`Device::best`] and [`Device::named`].
    #[track_caller]
    pub fn device(&self, name: &str) -> Result<Device> {
        here(|| block_on(Device::for_rank(self, name)))
    }
}
