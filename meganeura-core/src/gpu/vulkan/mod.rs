//! Vulkan itself, below wgpu: a plan's launches as a command buffer that is recorded once.
//!
//! wgpu opens the device and owns its memory and queue, but never sees the launches. It would put a barrier between any
//! two, and would check and encode each of them in every run. Command buffers of this module are executed from wgpu's
//! encoders, so that everything is submitted in one order. The only code that uses `ash`.

mod bf16;
mod dynamic;
#[cfg(target_os = "linux")]
mod export;
mod families;
mod fragments;
mod multiprocessors;
mod open;
mod owned;
mod pipeline;
mod recording;
mod spirv;
mod store;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use ash::vk;
use naga::back::spv;
use naga::valid;
use wgpu::hal::api;

#[cfg(target_os = "linux")]
pub(super) use export::{Exported, Timeline};
pub(super) use multiprocessors::multiprocessors;
pub(super) use open::{exporting, open};
pub(super) use pipeline::Pipeline;
pub(super) use recording::Recording;

use dynamic::MOST_WORDS;
use families::Families;
use store::DiskCache;

use super::lock;
use crate::executor::PipelineCache;
use crate::{Error, ErrorKind, Result};

/// A device that wgpu opened, with the settings for compiling kernels.
pub(super) struct Vulkan {
    shared: Arc<Shared>,
    family: u32,
    spirv: spv::Options<'static>,
    capabilities: valid::Capabilities,
    limits: wgpu::Limits,
    /// `true` if subgroups of a kernel may have any size that the device supports.
    varying_subgroups: bool,
    bf16: bool,
    fragments: bool,
    /// `true` if other APIs can use its memory.
    exports: bool,
    kept: DiskCache,
    families: Families,
}

/// The device objects that pipelines and recordings need while they live.
struct Shared {
    raw: ash::Device,
    /// The layouts of kernels, by the number of buffers that they bind.
    layouts: Mutex<BTreeMap<usize, Layouts>>,
    /// Keeps `raw` open.
    device: wgpu::Device,
}

#[derive(Clone, Copy)]
struct Layouts {
    set: vk::DescriptorSetLayout,
    pipeline: vk::PipelineLayout,
}

impl Vulkan {
    /// The Vulkan device below a wgpu device, if wgpu runs on Vulkan.
    pub(super) fn below(adapter: &wgpu::Adapter, device: &wgpu::Device, limits: &wgpu::Limits) -> Option<Self> {
        // SAFETY: handles are only read, and used while `device` is kept; no object of wgpu's is destroyed here.
        let (below, above) = unsafe { (device.as_hal::<api::Vulkan>()?, adapter.as_hal::<api::Vulkan>()?) };
        let raw = below.raw_device().clone();
        let (instance, physical) = (below.shared_instance().raw_instance(), below.raw_physical_device());
        // SAFETY: the handle is the device's own.
        let properties = unsafe { instance.get_physical_device_properties(physical) };
        let mut robustness = vk::PhysicalDeviceRobustness2FeaturesEXT::default();
        if below.enabled_device_extensions().contains(&ash::ext::robustness2::NAME) {
            let mut features = vk::PhysicalDeviceFeatures2::default().push_next(&mut robustness);
            // SAFETY: as above; the device supports the extension.
            unsafe { instance.get_physical_device_features2(physical, &mut features) };
        }
        let bf16 = bf16::is_open(below.enabled_device_extensions());
        let fragments = fragments::is_open(below.enabled_device_extensions());
        let exports = open::exports(device, below.enabled_device_extensions());
        let robust = robustness.robust_buffer_access2 == vk::TRUE;
        let features = device.features();
        let version = above.physical_device_capabilities().properties().api_version;
        let family = below.queue_family_index();
        let shared = Arc::new(Shared { raw, layouts: Mutex::default(), device: device.clone() });
        Some(Self {
            kept: DiskCache::open(&shared, &properties),
            families: Families::default(),
            shared,
            family,
            spirv: pipeline::options(features, version, robust),
            capabilities: pipeline::capabilities(features),
            limits: limits.clone(),
            bf16,
            fragments,
            exports,
            varying_subgroups: features.contains(wgpu::Features::SUBGROUP),
        })
    }

    /// `true` if matrix units claim to multiply bf16.
    pub(super) fn multiplies_bf16(&self) -> bool {
        self.bf16
    }

    /// `true` if operations on fragments of matrix units are claimed to exist.
    pub(super) fn maps_fragments(&self) -> bool {
        self.fragments
    }

    /// The state of the on-disk cache of kernels, and the number of failed writes to it.
    pub(super) fn cache(&self) -> (PipelineCache, u64) {
        match &self.kept {
            DiskCache::Off => (PipelineCache::Off, 0),
            DiskCache::Refused(why) => (PipelineCache::Refused(why), 0),
            DiskCache::On(store) if store.is_warm() => (PipelineCache::Warm, store.failures()),
            DiskCache::On(store) => (PipelineCache::Cold, store.failures()),
        }
    }

    /// Writes the driver's compiled kernels to disk.
    pub(super) fn save(&self) {
        if let DiskCache::On(store) = &self.kept {
            store.save();
        }
    }
}

impl Shared {
    /// The layouts of kernels that bind this number of buffers, in order.
    fn layouts(&self, buffers: usize) -> Result<Layouts> {
        let mut known = lock(&self.layouts);
        if let Some(&layouts) = known.get(&buffers) {
            return Ok(layouts);
        }
        let binding = |binding| {
            vk::DescriptorSetLayoutBinding::default()
                .binding(binding)
                .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                .descriptor_count(1)
                .stage_flags(vk::ShaderStageFlags::COMPUTE)
        };
        let bindings: Vec<_> = (0..buffers as u32).map(binding).collect();
        let description = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
        // SAFETY: the device is open; the objects are destroyed with `self`.
        let layouts = unsafe {
            let set = self.raw.create_descriptor_set_layout(&description, None).map_err(fault)?;
            let words =
                vk::PushConstantRange::default().stage_flags(vk::ShaderStageFlags::COMPUTE).size(4 * MOST_WORDS as u32);
            let description = vk::PipelineLayoutCreateInfo::default()
                .set_layouts(std::slice::from_ref(&set))
                .push_constant_ranges(std::slice::from_ref(&words));
            match self.raw.create_pipeline_layout(&description, None) {
                Ok(pipeline) => Layouts { set, pipeline },
                Err(error) => {
                    self.raw.destroy_descriptor_set_layout(set, None);
                    return Err(fault(error));
                }
            }
        };
        known.insert(buffers, layouts);
        Ok(layouts)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for layouts in lock(&self.layouts).values() {
            // SAFETY: all objects made with these kept `self`, so none is left.
            unsafe {
                self.raw.destroy_pipeline_layout(layouts.pipeline, None);
                self.raw.destroy_descriptor_set_layout(layouts.set, None);
            }
        }
    }
}

/// The error for a failed call of the driver.
fn fault(error: vk::Result) -> Error {
    match error {
        vk::Result::ERROR_OUT_OF_DEVICE_MEMORY | vk::Result::ERROR_OUT_OF_POOL_MEMORY => {
            Error::new(ErrorKind::OutOfMemory, "the device has no memory left")
        }
        vk::Result::ERROR_OUT_OF_HOST_MEMORY => {
            Error::new(ErrorKind::OutOfMemory, "the driver has no host memory left")
        }
        other => Error::new(ErrorKind::Device, format!("the driver refused a command: {other}")),
    }
}
