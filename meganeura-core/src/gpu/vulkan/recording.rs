//! Launches in a command buffer of their own, which can be executed many times.

use std::collections::HashSet;
use std::sync::Arc;

use ash::vk;
use wgpu::hal::api;

use super::pipeline::{Kernel, Pipeline};
use super::{Shared, Vulkan, fault};
use crate::Result;
use crate::error::bail;
use crate::executor::Profiling;
use crate::gpu::memory::Buffer;
use crate::gpu::recording::{BufferRange, Dispatch, stamps};

/// The most words that one command can write: 65,536 bytes.
const MOST_WORDS: usize = 1 << 14;

/// Launches with the buffers that they were recorded for. Kept until its last run is done.
pub(in crate::gpu) struct Recording {
    shared: Arc<Shared>,
    pool: vk::CommandPool,
    commands: vk::CommandBuffer,
    descriptors: vk::DescriptorPool,
    queries: Option<(vk::QueryPool, u32)>,
    _pipelines: Vec<Arc<crate::gpu::recording::Pipeline>>,
    /// wgpu frees their memory with the last reference.
    _buffers: Vec<wgpu::Buffer>,
}

impl Drop for Recording {
    fn drop(&mut self) {
        let device = &self.shared.raw;
        // SAFETY: all users kept the recording until its runs were done, and nothing refers to its parts any more. A
        // recording that failed halfway has null handles, which are ignored.
        unsafe {
            device.destroy_command_pool(self.pool, None);
            device.destroy_descriptor_pool(self.descriptors, None);
            if let Some((queries, _)) = self.queries {
                device.destroy_query_pool(queries, None);
            }
        }
    }
}

/// The buffers that launches have touched since the last barrier.
#[derive(Default)]
struct Hazards {
    read: HashSet<u64>,
    written: HashSet<u64>,
}

impl Hazards {
    /// Notes a launch by its buffers, each with `true` if it is written. Returns `true` if the launch must wait for
    /// earlier ones.
    fn wait(&mut self, bound: &[(u64, bool)]) -> bool {
        let conflicts =
            |&(buffer, writes): &(u64, bool)| self.written.contains(&buffer) || (writes && self.read.contains(&buffer));
        let waits = bound.iter().any(conflicts);
        if waits {
            self.read.clear();
            self.written.clear();
        }
        for &(buffer, writes) in bound {
            let touched = if writes { &mut self.written } else { &mut self.read };
            touched.insert(buffer);
        }
        waits
    }
}

impl Vulkan {
    pub(in crate::gpu) fn record(&self, dispatches: &[Dispatch<'_>], profiling: Profiling) -> Result<Recording> {
        let device = &self.shared.raw;
        let mut recording = Recording {
            shared: Arc::clone(&self.shared),
            pool: vk::CommandPool::null(),
            commands: vk::CommandBuffer::null(),
            descriptors: vk::DescriptorPool::null(),
            queries: None,
            _pipelines: dispatches.iter().map(|dispatch| Arc::clone(dispatch.pipeline)).collect(),
            _buffers: dispatches
                .iter()
                .flat_map(|dispatch| &dispatch.buffers)
                .map(|bound| bound.buffer.raw().clone())
                .collect(),
        };
        let sets = self.descriptors(&mut recording, dispatches)?;
        let description = vk::CommandPoolCreateInfo::default().queue_family_index(self.family);
        // SAFETY: the pipelines and buffers live as long as `recording`; new objects are destroyed with it.
        unsafe {
            recording.pool = device.create_command_pool(&description, None).map_err(fault)?;
            let description = vk::CommandBufferAllocateInfo::default()
                .command_pool(recording.pool)
                .level(vk::CommandBufferLevel::SECONDARY)
                .command_buffer_count(1);
            recording.commands = device.allocate_command_buffers(&description).map_err(fault)?[0];
            if let Some(count) = stamps(profiling, dispatches.len()) {
                let description =
                    vk::QueryPoolCreateInfo::default().query_type(vk::QueryType::TIMESTAMP).query_count(count);
                recording.queries = Some((device.create_query_pool(&description, None).map_err(fault)?, count));
            }
            let inheritance = vk::CommandBufferInheritanceInfo::default();
            let description = vk::CommandBufferBeginInfo::default()
                .flags(vk::CommandBufferUsageFlags::SIMULTANEOUS_USE)
                .inheritance_info(&inheritance);
            device.begin_command_buffer(recording.commands, &description).map_err(fault)?;
            self.write(&recording, dispatches, &sets, profiling);
            device.end_command_buffer(recording.commands).map_err(fault)?;
        }
        Ok(recording)
    }

    /// A descriptor set for each launch.
    fn descriptors(&self, recording: &mut Recording, dispatches: &[Dispatch<'_>]) -> Result<Vec<vk::DescriptorSet>> {
        let device = &self.shared.raw;
        let mut handles = Vec::new();
        for dispatch in dispatches {
            let bindings = &pipeline(dispatch).bindings;
            if bindings.len() != dispatch.buffers.len() {
                bail!(Device, "a kernel binds {} buffers, but got {}", bindings.len(), dispatch.buffers.len());
            }
            for (number, (&BufferRange { buffer, begin, bytes }, binding)) in
                dispatch.buffers.iter().zip(bindings).enumerate()
            {
                let size = buffer.raw().size();
                if bytes == 0 || begin.checked_add(bytes).is_none_or(|end| end > size) {
                    bail!(Device, "a kernel binds {bytes} bytes of buffer {number} from {begin} on; it has {size}");
                }
                if bytes < binding.bytes {
                    bail!(Device, "a kernel needs {} bytes in buffer {number}, which has {bytes}", binding.bytes);
                }
                // SAFETY: the handle is used while `recording` keeps the buffer.
                let raw = unsafe { buffer.raw().as_hal::<api::Vulkan>().map(|buffer| buffer.raw_handle()) };
                let Some(raw) = raw else { bail!(DeviceLost, "the device's memory is gone") };
                handles.push(vk::DescriptorBufferInfo::default().buffer(raw).offset(begin).range(bytes));
            }
        }
        if dispatches.is_empty() {
            return Ok(Vec::new());
        }
        let size = vk::DescriptorPoolSize::default()
            .ty(vk::DescriptorType::STORAGE_BUFFER)
            .descriptor_count((handles.len() as u32).max(1));
        let description = vk::DescriptorPoolCreateInfo::default()
            .max_sets(dispatches.len() as u32)
            .pool_sizes(std::slice::from_ref(&size));
        let layouts: Vec<_> = dispatches.iter().map(|dispatch| pipeline(dispatch).kernel.layouts.set).collect();
        // SAFETY: the pool has room for exactly these sets, which nothing uses yet.
        unsafe {
            recording.descriptors = device.create_descriptor_pool(&description, None).map_err(fault)?;
            let description =
                vk::DescriptorSetAllocateInfo::default().descriptor_pool(recording.descriptors).set_layouts(&layouts);
            let sets = device.allocate_descriptor_sets(&description).map_err(fault)?;
            let mut left = &handles[..];
            let writes = sets.iter().zip(dispatches).filter(|(_, dispatch)| !dispatch.buffers.is_empty());
            let writes: Vec<_> = writes
                .map(|(&set, dispatch)| {
                    let (own, others) = left.split_at(dispatch.buffers.len());
                    left = others;
                    vk::WriteDescriptorSet::default()
                        .dst_set(set)
                        .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                        .buffer_info(own)
                })
                .collect();
            device.update_descriptor_sets(&writes, &[]);
            Ok(sets)
        }
    }

    /// Records the launches.
    ///
    /// # Safety
    ///
    /// `recording.commands` must be in the recording state, and `sets` must hold the buffers of `dispatches`.
    unsafe fn write(
        &self,
        recording: &Recording,
        dispatches: &[Dispatch<'_>],
        sets: &[vk::DescriptorSet],
        profiling: Profiling,
    ) {
        use vk::{AccessFlags as Access, PipelineStageFlags as Stage};

        let (device, commands) = (&self.shared.raw, recording.commands);
        let barrier = |(from, written): (Stage, Access), (to, touched): (Stage, Access)| {
            let memory = vk::MemoryBarrier::default().src_access_mask(written).dst_access_mask(touched);
            // SAFETY: by the contract.
            unsafe {
                device.cmd_pipeline_barrier(commands, from, to, vk::DependencyFlags::empty(), &[memory], &[], &[]);
            }
        };
        let stamp = |at: u32| {
            if let Some((queries, _)) = recording.queries {
                // SAFETY: the pool has a query for each timestamp.
                unsafe { device.cmd_write_timestamp(commands, Stage::BOTTOM_OF_PIPE, queries, at) };
            }
        };
        let kernels = (Stage::COMPUTE_SHADER, Access::SHADER_READ | Access::SHADER_WRITE);
        let others = (
            Stage::COMPUTE_SHADER | Stage::TRANSFER,
            Access::SHADER_READ | Access::SHADER_WRITE | Access::TRANSFER_READ | Access::TRANSFER_WRITE,
        );
        // wgpu does not know which buffers these launches touch, so they are kept apart from its commands before and
        // after.
        barrier(others, kernels);
        if let Some((queries, stamps)) = recording.queries {
            // SAFETY: by the contract.
            unsafe { device.cmd_reset_query_pool(commands, queries, 0, stamps) };
        }
        stamp(0);
        let mut hazards = Hazards::default();
        let mut last = vk::Pipeline::null();
        for (dispatch, (&set, number)) in dispatches.iter().zip(sets.iter().zip(1..)) {
            let Pipeline { kernel, bindings, words } = pipeline(dispatch);
            let Kernel { raw, layouts, .. } = &**kernel;
            let bound = dispatch.buffers.iter().zip(bindings);
            let bound: Vec<_> = bound.map(|(bound, binding)| (bound.buffer.id(), binding.writes)).collect();
            // With timed launches, each waits for the one before.
            if hazards.wait(&bound) || (profiling == Profiling::Launches && number > 1) {
                barrier(kernels, kernels);
            }
            // SAFETY: by the contract; the layout is the pipeline's.
            unsafe {
                if *raw != last {
                    device.cmd_bind_pipeline(commands, vk::PipelineBindPoint::COMPUTE, *raw);
                    last = *raw;
                }
                let point = vk::PipelineBindPoint::COMPUTE;
                device.cmd_bind_descriptor_sets(commands, point, layouts.pipeline, 0, &[set], &[]);
                if !words.is_empty() {
                    let (stage, words) = (vk::ShaderStageFlags::COMPUTE, bytemuck::cast_slice(words));
                    device.cmd_push_constants(commands, layouts.pipeline, stage, 0, words);
                }
                device.cmd_dispatch(commands, dispatch.grid.0, dispatch.grid.1, 1);
            }
            if profiling == Profiling::Launches {
                stamp(number);
            }
        }
        if profiling == Profiling::Runs {
            stamp(1);
        }
        barrier(kernels, others);
    }
}

fn pipeline<'a>(dispatch: &Dispatch<'a>) -> &'a Pipeline {
    match &**dispatch.pipeline {
        crate::gpu::recording::Pipeline::Vulkan(pipeline) => pipeline,
        crate::gpu::recording::Pipeline::Wgpu(_) => unreachable!("a device has pipelines of one kind"),
    }
}

impl Recording {
    /// Adds the launches to wgpu's commands, with the host words that they read from a buffer. Returns `false` if the
    /// device is gone. The caller keeps the recording until they have run.
    pub(in crate::gpu) fn execute(&self, encoder: &mut wgpu::CommandEncoder, words: Option<(&Buffer, &[u32])>) -> bool {
        let device = &self.shared.raw;
        // SAFETY: the encoder is open and outside any pass. The recording is finished, and may be pending several
        // times. It starts and ends with barriers, so words are written after an earlier run has read them, and before
        // this one reads them.
        unsafe {
            let words = match words {
                Some((buffer, words)) => match buffer.raw().as_hal::<api::Vulkan>() {
                    Some(buffer) => Some((buffer.raw_handle(), words)),
                    None => return false,
                },
                None => None,
            };
            encoder.as_hal_mut::<api::Vulkan, _, _>(|encoder| {
                let Some(encoder) = encoder else { return false };
                let commands = encoder.raw_handle();
                if let Some((buffer, words)) = words {
                    for (portion, offset) in words.chunks(MOST_WORDS).zip((0..).step_by(MOST_WORDS * 4)) {
                        device.cmd_update_buffer(commands, buffer, offset, bytemuck::cast_slice(portion));
                    }
                }
                device.cmd_execute_commands(commands, &[self.commands]);
                true
            })
        }
    }

    /// `true` if its runs are timed.
    pub(in crate::gpu) fn has_stamps(&self) -> bool {
        self.queries.is_some()
    }

    /// The timestamps of the last run, in ticks. The run must be over.
    pub(in crate::gpu) fn stamps(&self) -> Result<Vec<u64>> {
        let Some((queries, count)) = self.queries else { return Ok(Vec::new()) };
        let mut stamps = vec![0u64; count as usize];
        // SAFETY: the pool has this many queries.
        unsafe { self.shared.raw.get_query_pool_results(queries, 0, &mut stamps, vk::QueryResultFlags::TYPE_64) }
            .map_err(fault)?;
        Ok(stamps)
    }
}

#[cfg(test)]
mod tests {
    use super::Hazards;

    #[test]
    fn launches_wait_for_hazards() {
        let mut hazards = Hazards::default();
        let mut wait = |reads: &[u64], writes: &[u64]| {
            let reads = reads.iter().map(|&buffer| (buffer, false));
            let bound: Vec<_> = reads.chain(writes.iter().map(|&buffer| (buffer, true))).collect();
            hazards.wait(&bound)
        };
        assert!(!wait(&[1], &[2]));
        assert!(!wait(&[1], &[3]), "both read 1");
        assert!(wait(&[2], &[4]), "2 was written");
        assert!(!wait(&[3], &[5]), "3 was written before the barrier");
        assert!(wait(&[], &[3]), "3 is being read");
        assert!(wait(&[3], &[4]), "3 is being written");
        assert!(wait(&[], &[4]), "4 is being written");
        assert!(wait(&[4], &[4]), "in place, of what is being written");
        assert!(!wait(&[6, 6], &[7]));
        assert!(!wait(&[], &[]));
    }
}
