//! Exchanges in the middle of a run: from GPU to GPU if there is a link, else through the host.

use std::sync::Arc;

use web_time::Instant;

use super::executable::{CollectiveStep, RunMemory};
use super::memory::Buffer;
use super::reading::Reading;
use super::recording::Segment;
use super::{Gpu, Inner};
use crate::error::bail;
use crate::executor::Profiling;
use crate::host::HostBuffer;
use crate::ops::CollectiveOp;
use crate::wait::block_or_refuse;
use crate::world::Range;
use crate::{DType, Result, Shape, TensorType};

/// Alignment of the values in a range, in bytes.
pub(super) const ALIGNMENT: usize = 256;

/// The buffers of a range, one per value. Plans with equal exchanges share it.
pub(super) struct RangeBuffers {
    /// The number of the first collective in its plan that uses it, since collectives of one plan may overlap.
    collective: usize,
    range: Range,
    pub(super) buffers: Vec<Arc<Buffer>>,
    /// The whole allocation, if NCCL can reach it.
    #[cfg(target_os = "linux")]
    linked: Option<crate::world::nccl::ImportedMemory>,
}

impl RangeBuffers {
    /// `true` if this is the memory of a collective's values.
    pub(super) fn is_of(&self, collective: &CollectiveStep) -> bool {
        self.collective == collective.memory && self.range == collective.range
    }
}

impl CollectiveStep {
    /// The values that this rank contributes.
    fn read(&self) -> impl Iterator<Item = usize> {
        let CollectiveOp { world, collective, .. } = &self.op;
        (0..self.values.len()).filter(|&value| collective.reads(value, world.rank()))
    }

    /// The values that this rank receives.
    fn given(&self) -> impl Iterator<Item = usize> {
        let CollectiveOp { world, collective, .. } = &self.op;
        (0..self.values.len()).filter(|&value| collective.gives(value, world.rank()))
    }
}

impl Gpu {
    /// Allocates the range of a collective.
    pub(super) fn range_buffers(&self, collective: &CollectiveStep) -> Result<RangeBuffers> {
        let (number, range) = (collective.memory, collective.range.clone());
        #[cfg(target_os = "linux")]
        if let Some(link) = self.0.link(&collective.op.world) {
            let (buffers, memory) = link.range_buffers(&self.0, collective, ALIGNMENT)?;
            buffers.iter().for_each(|buffer| self.0.clear(buffer));
            return Ok(RangeBuffers { collective: number, range, buffers, linked: Some(memory) });
        }
        let buffers = collective.values.iter().map(|value| self.allocate(value.bytes)).collect::<Result<_>>()?;
        Ok(RangeBuffers {
            collective: number,
            range,
            buffers,
            #[cfg(target_os = "linux")]
            linked: None,
        })
    }

    /// Exchanges values computed by launches before the collective.
    pub(super) fn run_collective(
        &self,
        collective: &CollectiveStep,
        range_buffers: &RangeBuffers,
        memory: &RunMemory<'_>,
        profiling: Profiling,
    ) -> Result<Segment> {
        #[cfg(target_os = "linux")]
        if let (Some(link), Some(linked)) = (self.0.link(&collective.op.world), &range_buffers.linked) {
            let values = collective.read().map(|k| (&collective.values[k], &*range_buffers.buffers[k]));
            self.0.copy_all(values.map(|(value, buffer)| (memory.buffer(value.from), buffer, value.bytes)).collect());
            let elapsed = link.run_collective(&self.0, collective, linked, profiling != Profiling::Off)?;
            let values = collective.given().map(|k| (&collective.values[k], &*range_buffers.buffers[k]));
            self.0.copy_all(values.map(|(value, buffer)| (buffer, memory.buffer(value.to), value.bytes)).collect());
            return Ok(elapsed.map_or(Segment::Host(std::time::Duration::ZERO), Segment::Collective));
        }
        let _ = (range_buffers, profiling);
        self.run_collective_by_host(collective, memory)
    }

    /// The returned time is the exchange's, without the download.
    fn run_collective_by_host(&self, collective: &CollectiveStep, memory: &RunMemory<'_>) -> Result<Segment> {
        let CollectiveStep { op, values, range, .. } = collective;
        if range.bf16_bytes > 0 {
            bail!(Argument, "only linked GPUs exchange bf16; use the device from this world's `World::device`");
        }
        let place = |k: usize| (&values[k], range.offsets[k]);
        let staging = self.0.staging(range.bytes as u64);
        let mut encoder = self.0.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        for (value, offset) in collective.read().map(place) {
            let from = memory.buffer(value.from).raw();
            encoder.copy_buffer_to_buffer(from, 0, &staging, offset as u64, value.bytes as u64);
        }
        let submission = self.0.submit([encoder.finish()], None);
        let own = Reading::new(&self.0, staging, range.bytes as u64, submission);
        let words = TensorType::new(DType::F32, Shape::from([range.bytes / DType::F32.bytes()]));
        let own = block_or_refuse(self.read(&own, words), "distributed training works only in native programs")?;
        let begin = Instant::now();
        let mut all = HostBuffer::try_zeros(DType::F32, words.shape.elements())?;
        let meet = || op.world.run_collective(&op.collective, DType::F32, range, own.bytes(), all.bytes_mut());
        self.0.spend(|host| &mut host.wait, meet)?;
        for (value, offset) in collective.given().map(place) {
            let to = memory.buffer(value.to).raw();
            self.0.queue.write_buffer(to, 0, &all.bytes()[offset..offset + value.bytes]);
        }
        self.0.check().map(|()| Segment::Host(begin.elapsed()))
    }
}

impl Inner {
    /// Copies between buffers, leaving out pairs of the same buffer.
    #[cfg(target_os = "linux")]
    fn copy_all(&self, mut copies: Vec<(&Buffer, &Buffer, usize)>) {
        copies.retain(|(from, to, _)| from.id() != to.id());
        if copies.is_empty() {
            return;
        }
        let mut encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        for (from, to, bytes) in copies {
            encoder.copy_buffer_to_buffer(from.raw(), 0, to.raw(), 0, bytes as u64);
        }
        self.submit([encoder.finish()], None);
    }
}
