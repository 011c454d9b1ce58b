//! Memory and semaphores exported to CUDA on the same GPU.

use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;

use ash::vk;
use wgpu::hal::api;

use super::{Shared, Vulkan, fault};
use crate::Result;
use crate::error::bail;

/// Buffers in one exported allocation.
pub(in crate::gpu) struct Exported {
    pub(in crate::gpu) buffers: Vec<wgpu::Buffer>,
    /// A file descriptor of the allocation.
    pub(in crate::gpu) file: OwnedFd,
    pub(in crate::gpu) bytes: u64,
}

/// The allocation, freed with its last buffer.
struct ExportedMemory {
    shared: Arc<Shared>,
    raw: vk::DeviceMemory,
}

impl Drop for ExportedMemory {
    fn drop(&mut self) {
        // SAFETY: the buffers bound to it are gone.
        unsafe { self.shared.raw.free_memory(self.raw, None) };
    }
}

/// An exported timeline semaphore.
pub(in crate::gpu) struct Timeline {
    shared: Arc<Shared>,
    raw: vk::Semaphore,
}

impl Drop for Timeline {
    fn drop(&mut self) {
        // SAFETY: all users have waited for the queue.
        unsafe { self.shared.raw.destroy_semaphore(self.raw, None) };
    }
}

impl Timeline {
    /// Adds a signal of `number` to the next submission.
    pub(in crate::gpu) fn signal(&self, queue: &wgpu::Queue, number: u64) {
        // SAFETY: the semaphore belongs to the device, and numbers increase.
        unsafe {
            if let Some(queue) = queue.as_hal::<api::Vulkan>() {
                queue.add_signal_semaphore(self.raw, Some(number));
            }
        }
    }

    /// Adds a wait for `number` to the next submission.
    pub(in crate::gpu) fn wait(&self, queue: &wgpu::Queue, number: u64) {
        let stages = vk::PipelineStageFlags::COMPUTE_SHADER | vk::PipelineStageFlags::TRANSFER;
        // SAFETY: as above.
        unsafe {
            if let Some(queue) = queue.as_hal::<api::Vulkan>() {
                queue.add_wait_semaphore(self.raw, Some(number), stages);
            }
        }
    }
}

const FILE: vk::ExternalMemoryHandleTypeFlags = vk::ExternalMemoryHandleTypeFlags::OPAQUE_FD;

impl Vulkan {
    /// `true` if memory and semaphores can be exported.
    pub(in crate::gpu) fn exports(&self) -> bool {
        self.exports
    }

    /// Buffers at these places (offset, bytes) of one allocation. Offsets are multiples of `align`.
    pub(in crate::gpu) fn export(&self, places: &[(usize, usize)], bytes: usize, align: usize) -> Result<Exported> {
        let raw = &self.shared.raw;
        // SAFETY: the device is open; handles are only read.
        let Some(below) = (unsafe { self.shared.device.as_hal::<api::Vulkan>() }) else {
            bail!(DeviceLost, "the device is gone")
        };
        let instance = below.shared_instance().raw_instance();
        let usage = vk::BufferUsageFlags::STORAGE_BUFFER
            | vk::BufferUsageFlags::TRANSFER_SRC
            | vk::BufferUsageFlags::TRANSFER_DST;
        let mut made = Made { shared: &self.shared, buffers: Vec::new() };
        let (mut types, mut end) = (u32::MAX, bytes as u64);
        for &(offset, bytes) in places {
            let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(FILE);
            let description = vk::BufferCreateInfo::default().size(bytes as u64).usage(usage).push_next(&mut external);
            // SAFETY: destroyed with `made`, or by wgpu.
            let needs = unsafe {
                let buffer = raw.create_buffer(&description, None).map_err(fault)?;
                made.buffers.push(buffer);
                raw.get_buffer_memory_requirements(buffer)
            };
            if !(align as u64).is_multiple_of(needs.alignment) {
                bail!(Device, "buffers must start at multiples of {}, not of {align}", needs.alignment);
            }
            types &= needs.memory_type_bits;
            end = end.max(offset as u64 + needs.size);
        }
        // SAFETY: the device belongs to the instance.
        let known = unsafe { instance.get_physical_device_memory_properties(below.raw_physical_device()) };
        let local = vk::MemoryPropertyFlags::DEVICE_LOCAL;
        let is_fit =
            |&kind: &u32| types & (1 << kind) != 0 && known.memory_types[kind as usize].property_flags.contains(local);
        let Some(kind) = (0..known.memory_type_count).find(is_fit) else { bail!(Device, "no memory can be exported") };
        let mut exported = vk::ExportMemoryAllocateInfo::default().handle_types(FILE);
        let description =
            vk::MemoryAllocateInfo::default().allocation_size(end).memory_type_index(kind).push_next(&mut exported);
        let files = ash::khr::external_memory_fd::Device::new(instance, raw);
        // SAFETY: buffers are bound before anything uses them, without overlap. The file descriptor is new, for its new
        // owner.
        let (memory, file) = unsafe {
            let memory = ExportedMemory {
                shared: Arc::clone(&self.shared),
                raw: raw.allocate_memory(&description, None).map_err(fault)?,
            };
            for (&buffer, &(offset, _)) in made.buffers.iter().zip(places) {
                raw.bind_buffer_memory(buffer, memory.raw, offset as u64).map_err(fault)?;
            }
            let wanted = vk::MemoryGetFdInfoKHR::default().memory(memory.raw).handle_type(FILE);
            let file = files.get_memory_fd(&wanted).map_err(fault)?;
            (Arc::new(memory), OwnedFd::from_raw_fd(file))
        };
        drop(below);
        let buffers = std::mem::take(&mut made.buffers).into_iter().zip(places);
        let buffers = buffers.map(|(buffer, &(_, bytes))| self.wrap(buffer, bytes, &memory)).collect();
        Ok(Exported { buffers, file, bytes: end })
    }

    /// Wraps a buffer for wgpu.
    fn wrap(&self, buffer: vk::Buffer, bytes: usize, memory: &Arc<ExportedMemory>) -> wgpu::Buffer {
        let memory = Arc::clone(memory);
        let drop_it = Box::new(move || {
            // SAFETY: wgpu calls this once nothing uses the buffer. The memory is freed after its last buffer.
            unsafe { memory.shared.raw.destroy_buffer(buffer, None) };
        });
        let description = wgpu::BufferDescriptor {
            label: Some("exchanged"),
            size: bytes as u64,
            usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        };
        // SAFETY: the buffer is bound, and has this size and these usages.
        unsafe {
            let hal = wgpu::hal::vulkan::Buffer::from_raw_externally_owned(buffer, drop_it);
            self.shared.device.create_buffer_from_hal::<api::Vulkan>(hal, &description)
        }
    }

    /// A timeline semaphore at 0, and a file descriptor of it.
    pub(in crate::gpu) fn timeline(&self) -> Result<(Timeline, OwnedFd)> {
        let raw = &self.shared.raw;
        // SAFETY: the device is open; handles are only read.
        let Some(below) = (unsafe { self.shared.device.as_hal::<api::Vulkan>() }) else {
            bail!(DeviceLost, "the device is gone")
        };
        let handle = vk::ExternalSemaphoreHandleTypeFlags::OPAQUE_FD;
        let mut exported = vk::ExportSemaphoreCreateInfo::default().handle_types(handle);
        let mut kind = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let description = vk::SemaphoreCreateInfo::default().push_next(&mut exported).push_next(&mut kind);
        let files = ash::khr::external_semaphore_fd::Device::new(below.shared_instance().raw_instance(), raw);
        // SAFETY: destroyed with the returned value. The file descriptor is new, for its new owner.
        unsafe {
            let semaphore = raw.create_semaphore(&description, None).map_err(fault)?;
            let timeline = Timeline { shared: Arc::clone(&self.shared), raw: semaphore };
            let wanted = vk::SemaphoreGetFdInfoKHR::default().semaphore(semaphore).handle_type(handle);
            let file = files.get_semaphore_fd(&wanted).map_err(fault)?;
            Ok((timeline, OwnedFd::from_raw_fd(file)))
        }
    }
}

/// Buffers that are destroyed unless they are taken out.
struct Made<'a> {
    shared: &'a Shared,
    buffers: Vec<vk::Buffer>,
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        // SAFETY: nothing has used them.
        self.buffers.iter().for_each(|&buffer| unsafe { self.shared.raw.destroy_buffer(buffer, None) });
    }
}
