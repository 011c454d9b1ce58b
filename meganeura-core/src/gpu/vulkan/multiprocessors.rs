//! The multiprocessors that drivers report. Only NVIDIA's and AMD's have extensions for this.

use ash::{amd, nv, vk};
use wgpu::hal::api;

use crate::kernel::launch::Multiprocessors;

/// The multiprocessors of an adapter, if it runs on Vulkan and its driver reports them. No extension reports the
/// workgroup memory of one.
pub(in crate::gpu) fn multiprocessors(adapter: &wgpu::Adapter) -> Option<Multiprocessors> {
    // SAFETY: handles are only read while `adapter` lives; no object of wgpu's is destroyed.
    let above = unsafe { adapter.as_hal::<api::Vulkan>()? };
    let shared = above.shared_instance();
    let version = above.physical_device_capabilities().properties().api_version;
    if shared.instance_api_version().min(version) < vk::API_VERSION_1_1 {
        return None;
    }
    let reports = |extension| above.physical_device_capabilities().supports_extension(extension);
    let (of_nvidia, of_amd) = (reports(nv::shader_sm_builtins::NAME), reports(amd::shader_core_properties::NAME));
    let mut nvidia = vk::PhysicalDeviceShaderSMBuiltinsPropertiesNV::default();
    let mut amd = vk::PhysicalDeviceShaderCorePropertiesAMD::default();
    let mut subgroup = vk::PhysicalDeviceSubgroupProperties::default();
    let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut subgroup);
    if of_nvidia {
        properties = properties.push_next(&mut nvidia);
    }
    if of_amd {
        properties = properties.push_next(&mut amd);
    }
    // SAFETY: the handle is the adapter's own, and the device supports the extensions of both structures.
    unsafe { shared.raw_instance().get_physical_device_properties2(above.raw_physical_device(), &mut properties) };
    let (count, invocations) = if of_nvidia {
        (nvidia.shader_sm_count, nvidia.shader_warps_per_sm * subgroup.subgroup_size)
    } else {
        let count = amd.shader_engine_count * amd.shader_arrays_per_engine_count * amd.compute_units_per_shader_array;
        (count, amd.simd_per_compute_unit * amd.wavefronts_per_simd * amd.wavefront_size)
    };
    let [count, invocations] = [count, invocations].map(|number| number as usize);
    (count > 0 && invocations > 0).then_some(Multiprocessors { count, invocations, ..Multiprocessors::LARGE })
}
