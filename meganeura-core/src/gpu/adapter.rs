//! Finding and opening adapters.

use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock};

use super::memory::MemoryPool;
use super::pipelines::Pipelines;
use super::vulkan::{self, Vulkan};
use super::{Faults, Gpu, Inner, lock, matrix, timer};
use crate::error::bail;
use crate::kernel::launch::{Caps, Kind, Multiprocessors};
use crate::world::World;
use crate::{Error, ErrorKind, Result};

/// The environment variable that, set to `wgpu`, has wgpu encode launches on Vulkan as well.
const ENCODER: &str = "MEGANEURA_ENCODER";

/// All adapters that can compute, the best kind first.
async fn adapters() -> Vec<wgpu::Adapter> {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    // wgpu's own validation stays on. The driver's validation layers are for debugging drivers.
    descriptor.flags = wgpu::InstanceFlags::empty();
    let instance = wgpu::Instance::new(descriptor);
    let mut adapters = instance.enumerate_adapters(wgpu::Backends::all()).await;
    let computes = wgpu::DownlevelFlags::COMPUTE_SHADERS;
    adapters.retain(|adapter| adapter.get_downlevel_capabilities().flags.contains(computes));
    adapters.sort_by_key(|adapter| match adapter.get_info().device_type {
        wgpu::DeviceType::DiscreteGpu => 0,
        wgpu::DeviceType::IntegratedGpu => 1,
        wgpu::DeviceType::VirtualGpu => 2,
        wgpu::DeviceType::Other => 3,
        wgpu::DeviceType::Cpu => 4,
    });
    adapters
}

/// `NVIDIA H200 (Vulkan, NVIDIA 580.159.03)`
fn name(info: &wgpu::AdapterInfo) -> String {
    let driver = [info.driver.trim(), info.driver_info.trim()].join(" ");
    match driver.trim() {
        // Browsers do not reveal it.
        "" if info.name.is_empty() && info.device_type == wgpu::DeviceType::Cpu => "a software adapter (WebGPU)".into(),
        "" if info.name.is_empty() => "a GPU (WebGPU)".into(),
        "" => format!("{} ({:?})", info.name, info.backend),
        driver => format!("{} ({:?}, {driver})", info.name, info.backend),
    }
}

/// `true` if an adapter's name contains `part`, ignoring case.
fn holds(name: &str, part: &str) -> bool {
    name.to_lowercase().contains(&part.to_lowercase())
}

/// The error text if there are only software drivers: their names, and a short name for each.
fn software(names: &[String]) -> String {
    let spelled = |(at, name): (usize, &String)| {
        // The first word, unless it also matches an earlier adapter.
        let word = name.split(' ').next().unwrap_or(name);
        let leads = names.iter().position(|other| holds(other, word)) == Some(at);
        format!("{name} (select it with `{}`)", if leads { word } else { name })
    };
    let names: Vec<_> = names.iter().enumerate().map(spelled).collect();
    format!(
        "no GPU was found, only software drivers, which are slower than the CPU's own kernels: {}",
        names.join("; ")
    )
}

fn list(adapters: &[wgpu::Adapter]) -> String {
    let names: Vec<_> = adapters.iter().map(|adapter| name(&adapter.get_info())).collect();
    if names.is_empty() { "no adapter was found".into() } else { format!("available adapters: {}", names.join("; ")) }
}

/// `true` for SwiftShader, which browsers fall back to.
fn is_swiftshader(info: &wgpu::AdapterInfo) -> bool {
    let is_fallback = info.device_type == wgpu::DeviceType::Cpu && info.backend == wgpu::Backend::BrowserWebGpu;
    is_fallback || holds(&info.name, "SwiftShader")
}

/// The capabilities that kernels may rely on in full precision.
fn caps(info: &wgpu::AdapterInfo, limits: &wgpu::Limits, reported: Option<Multiprocessors>) -> Caps {
    let size = |limit: u32| limit as usize;
    let (kind, assumed) = match info.device_type {
        wgpu::DeviceType::Cpu => (Kind::Software, Multiprocessors::SOFTWARE),
        wgpu::DeviceType::IntegratedGpu => (Kind::Integrated, Multiprocessors::INTEGRATED),
        _ => (Kind::Discrete, Multiprocessors::LARGE),
    };
    Caps {
        kind,
        workgroup_memory: size(limits.max_compute_workgroup_storage_size),
        workgroup_size: size(limits.max_compute_invocations_per_workgroup.min(limits.max_compute_workgroup_size_x)),
        bindings: size(limits.max_storage_buffers_per_shader_stage),
        // A kernel reads 16 bytes at once.
        alignment: size(limits.min_storage_buffer_offset_alignment).max(16),
        buffer: usize::try_from(limits.max_buffer_size.min(limits.max_storage_buffer_binding_size))
            .unwrap_or(usize::MAX),
        subgroup: (size(info.subgroup_min_size), size(info.subgroup_max_size)),
        multiprocessors: reported.unwrap_or(assumed),
        loops: if info.device_type == wgpu::DeviceType::Cpu { Caps::LOOPS_IN_SOFTWARE } else { usize::MAX },
        tiles: !is_swiftshader(info),
        matrix: false,
        bf16: false,
        bf16_units: false,
        fragments: false,
        linked: false,
    }
}

impl Gpu {
    /// The first adapter that is not a software driver, or the reason why there is none.
    pub(crate) async fn first() -> Result<Self, String> {
        let adapters = adapters().await;
        match adapters.first() {
            None => Err("no GPU was found".into()),
            Some(adapter) if adapter.get_info().device_type == wgpu::DeviceType::Cpu => {
                let names: Vec<_> = adapters.iter().map(|adapter| name(&adapter.get_info())).collect();
                Err(software(&names))
            }
            Some(adapter) => Self::open(adapter, false).await.map_err(|error| error.to_string()),
        }
    }

    /// The first adapter whose name contains `part`, ignoring case; software drivers included.
    pub(crate) async fn named(part: &str) -> Result<Self> {
        let adapters = adapters().await;
        if part.trim().is_empty() {
            bail!(Device, "{part:?} is not a device name; {}; use `cpu` for the CPU", list(&adapters));
        }
        match adapters.iter().find(|adapter| holds(&name(&adapter.get_info()), part)) {
            Some(adapter) => Self::open(adapter, false).await,
            None => bail!(Device, "no adapter has {part:?} in its name; {}; use `cpu` for the CPU", list(&adapters)),
        }
    }

    /// The adapter at this place on the PCI bus, if its name contains `part`.
    #[cfg(target_os = "linux")]
    async fn at_bus(part: &str, bus: &str) -> Result<Self> {
        let adapters = adapters().await;
        let is_meant = |adapter: &&wgpu::Adapter| {
            let info = adapter.get_info();
            info.device_pci_bus_id.eq_ignore_ascii_case(bus) && holds(&name(&info), part)
        };
        match adapters.iter().find(is_meant) {
            Some(adapter) => Self::open(adapter, true).await,
            None => bail!(Device, "NCCL uses the GPU at {bus}, but no adapter there is {part:?}; {}", list(&adapters)),
        }
    }

    /// The adapter for a rank. If NCCL already has one for this rank, it is that one. Otherwise ranks are assigned in
    /// order, by their number on the host, to the adapters whose name contains `part`, starting over at the end. If
    /// `part` is empty, those are the adapters of the same kind as the first, software drivers excluded.
    pub(crate) async fn of_rank(part: &str, world: &World) -> Result<Self> {
        #[cfg(target_os = "linux")]
        if let Some(bus) = world.bus() {
            return Self::at_bus(part, bus).await;
        }
        let number = world.local_rank();
        let adapters = adapters().await;
        let kind = adapters.first().map(|adapter| adapter.get_info().device_type);
        let is_meant = |adapter: &&wgpu::Adapter| {
            let info = adapter.get_info();
            let is_first_kind = Some(info.device_type) == kind && info.device_type != wgpu::DeviceType::Cpu;
            if part.is_empty() { is_first_kind } else { holds(&name(&info), part) }
        };
        let meant: Vec<_> = adapters.iter().filter(is_meant).collect();
        match meant.get(number % meant.len().max(1)) {
            Some(adapter) => Self::open(adapter, true).await,
            None if part.is_empty() => bail!(Device, "no GPU to run on: {}; use `cpu` for the CPU", list(&adapters)),
            None => bail!(Device, "no adapter has {part:?} in its name; {}; use `cpu` for the CPU", list(&adapters)),
        }
    }

    /// Opens an adapter. With `exports`, other APIs of the driver can use its memory, where supported.
    async fn open(adapter: &wgpu::Adapter, exports: bool) -> Result<Self> {
        Self::open_with(adapter, exports, adapter.limits()).await
    }

    /// For tests: this adapter, opened again with WebGPU's default limits.
    #[cfg(feature = "testing")]
    pub(crate) async fn at_baseline(&self) -> Result<Self> {
        let adapters = adapters().await;
        match adapters.iter().find(|adapter| name(&adapter.get_info()) == self.0.name) {
            Some(adapter) => Self::open_with(adapter, false, wgpu::Limits::default()).await,
            None => bail!(Device, "{} no longer answers; {}", self.0.name, list(&adapters)),
        }
    }

    /// Opens an adapter with these limits, which it must support.
    async fn open_with(adapter: &wgpu::Adapter, exports: bool, limits: wgpu::Limits) -> Result<Self> {
        let info = adapter.get_info();
        let name = name(&info);
        let below = std::env::var_os(ENCODER).is_none_or(|encoder| encoder != "wgpu");
        let open = async |features: wgpu::Features| {
            let descriptor = wgpu::DeviceDescriptor {
                label: Some("meganeura"),
                required_features: features,
                required_limits: limits.clone(),
                experimental_features: if features.intersects(wgpu::Features::all_experimental_mask()) {
                    // SAFETY: the only such feature here is cooperative matrices. Only this project's kernels use them,
                    // on devices whose results were probed.
                    unsafe { wgpu::ExperimentalFeatures::enabled() }
                } else {
                    wgpu::ExperimentalFeatures::disabled()
                },
                ..wgpu::DeviceDescriptor::default()
            };
            match if below { vulkan::open(adapter, &descriptor, exports) } else { None } {
                Some(opened) => Ok(opened),
                None => adapter.request_device(&descriptor).await,
            }
        };
        // Optional features must not keep a device from opening at all.
        let exporting = if exports { vulkan::exporting(adapter) } else { wgpu::Features::empty() };
        let features = timer::features(adapter) | matrix::features(adapter);
        let opened = match open(features | exporting).await {
            Ok(opened) => Ok(opened),
            Err(_) => open(wgpu::Features::empty()).await,
        };
        let (device, queue) = opened.map_err(|error| {
            Error::new(ErrorKind::Device, format!("{name} cannot be opened: {error}")).caused_by(error)
        })?;
        let faults = Arc::new(Mutex::new(Faults::default()));
        let report = Arc::clone(&faults);
        device.on_uncaptured_error(Arc::new(move |error| lock(&report).note(error)));
        let report = Arc::clone(&faults);
        device.set_device_lost_callback(move |_, message| lock(&report).lost = Some(message));
        Ok(Self(Arc::new(Inner {
            name,
            bus: info.device_pci_bus_id.to_lowercase(),
            #[cfg(target_os = "linux")]
            link: OnceLock::new(),
            vulkan: below.then(|| Vulkan::below(adapter, &device, &limits)).flatten(),
            pipelines: Pipelines::default(),
            device,
            queue,
            caps: caps(&info, &limits, vulkan::multiprocessors(adapter)),
            missing: matrix::missing(adapter),
            matrix: OnceLock::new(),
            limits,
            memory: Arc::new(MemoryPool::default()),
            executables: Mutex::default(),
            arena: Mutex::default(),
            faults,
            in_flight: Arc::default(),
            staging: Arc::default(),
            reads: AtomicU64::new(0),
            ended: Arc::default(),
            waited: AtomicU64::new(0),
            polling: AtomicUsize::new(0),
            host: Mutex::default(),
        })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn software_is_listed_with_a_name_that_leads_to_it() {
        let names = ["llvmpipe (LLVM 15.0.6, 256 bits) (Vulkan)", "LLVMpipe (OpenGL)", "SwiftShader (Vulkan)"];
        let message = software(&names.map(str::to_owned));
        for part in ["no GPU was found, only software", "with `llvmpipe`", "with `LLVMpipe (OpenGL)`", "`SwiftShader`"]
        {
            assert!(message.contains(part), "{message}");
        }
    }
}
