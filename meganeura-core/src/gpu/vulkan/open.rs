//! Opening devices with extensions that wgpu does not know.

use wgpu::hal::api;

use super::{bf16, fragments};

/// Opens an adapter as `descriptor` says, with bf16 on matrix units and with operations on their fragments where
/// available, and with exportable semaphores if it `exports`. `None` if there is nothing to add, or if the device fails
/// to open this way.
pub(in crate::gpu) fn open(
    adapter: &wgpu::Adapter,
    descriptor: &wgpu::DeviceDescriptor<'_>,
    exports: bool,
) -> Option<(wgpu::Device, wgpu::Queue)> {
    // SAFETY: handles are only read while `adapter` lives; no object of wgpu's is destroyed.
    let above = unsafe { adapter.as_hal::<api::Vulkan>()? };
    let semaphores = ash::khr::external_semaphore_fd::NAME;
    let exports = exports && above.physical_device_capabilities().supports_extension(semaphores);
    let has_bf16 = bf16::is_there(&above, descriptor.required_features);
    let has_fragments = fragments::is_there(&above, descriptor.required_features);
    if !exports && !has_bf16 && !has_fragments {
        return None;
    }
    let (mut of_bf16, mut of_fragments) = (bf16::Features::all(), fragments::Features::all());
    // SAFETY: only extensions and features that the device has are added.
    unsafe {
        let opened = above.open_with_callback(
            descriptor.required_features,
            &descriptor.required_limits,
            &descriptor.memory_hints,
            Some(Box::new(|device| {
                if exports {
                    device.extensions.push(semaphores);
                }
                if has_bf16 {
                    device.extensions.push(bf16::EXTENSION);
                    *device.create_info = std::mem::take(device.create_info).push_next(&mut of_bf16);
                }
                if has_fragments {
                    device.extensions.push(fragments::EXTENSION);
                    *device.create_info = std::mem::take(device.create_info).push_next(&mut of_fragments);
                }
            })),
        );
        adapter.create_device_from_hal::<api::Vulkan>(opened.ok()?, descriptor).ok()
    }
}

/// The feature for exportable memory, where available.
pub(in crate::gpu) fn exporting(adapter: &wgpu::Adapter) -> wgpu::Features {
    adapter.features() & wgpu::Features::VULKAN_EXTERNAL_MEMORY_FD
}

/// `true` if a device exports memory and semaphores.
pub(super) fn exports(device: &wgpu::Device, extensions: &[&std::ffi::CStr]) -> bool {
    let extension = ash::khr::external_semaphore_fd::NAME;
    device.features().contains(wgpu::Features::VULKAN_EXTERNAL_MEMORY_FD) && extensions.contains(&extension)
}
