//! Exchanges in the middle of a run: from GPU to GPU if there is a link, else through the host.

use std::sync::Arc;

use web_time::Instant;

use super::executable::{Meeting, Memory};
use super::memory::Buffer;
use super::reading::Reading;
use super::recording::Part;
use super::{Gpu, Inner};
use crate::error::bail;
use crate::executor::Profiling;
use crate::host::HostBuffer;
use crate::ops::Exchange;
use crate::wait::block_or_refuse;
use crate::world::Range;
use crate::{DType, Result, Shape, TensorType};

/// Alignment of the values in a range, in bytes.
pub(super) const ALIGNMENT: usize = 256;

/// The buffers of a range, one per value. Plans with equal exchanges share it.
pub(super) struct Ranged {
    /// The number of the first meeting in its plan that uses it, since meetings of one plan may overlap.
    meeting: usize,
    range: Range,
    pub(super) buffers: Vec<Arc<Buffer>>,
    /// The whole allocation, if NCCL can reach it.
    #[cfg(target_os = "linux")]
    linked: Option<crate::world::nccl::Memory>,
}

impl Ranged {
    /// `true` if this is the memory of a meeting's values.
    pub(super) fn is_of(&self, meeting: &Meeting) -> bool {
        self.meeting == meeting.memory && self.range == meeting.range
    }
}

impl Meeting {
    /// The values that this rank contributes.
    fn read(&self) -> impl Iterator<Item = usize> {
        let Exchange { world, collective, .. } = &self.exchange;
        (0..self.values.len()).filter(|&value| collective.reads(value, world.rank()))
    }

    /// The values that this rank receives.
    fn given(&self) -> impl Iterator<Item = usize> {
        let Exchange { world, collective, .. } = &self.exchange;
        (0..self.values.len()).filter(|&value| collective.gives(value, world.rank()))
    }
}

impl Gpu {
    /// Allocates the range of a meeting.
    pub(super) fn ranged(&self, meeting: &Meeting) -> Result<Ranged> {
        let (number, range) = (meeting.memory, meeting.range.clone());
        #[cfg(target_os = "linux")]
        if let Some(link) = self.0.link(&meeting.exchange.world) {
            let (buffers, memory) = link.ranged(&self.0, meeting, ALIGNMENT)?;
            buffers.iter().for_each(|buffer| self.0.clear(buffer));
            return Ok(Ranged { meeting: number, range, buffers, linked: Some(memory) });
        }
        let buffers = meeting.values.iter().map(|value| self.allocate(value.bytes)).collect::<Result<_>>()?;
        Ok(Ranged {
            meeting: number,
            range,
            buffers,
            #[cfg(target_os = "linux")]
            linked: None,
        })
    }

    /// Exchanges values computed by launches before the meeting.
    pub(super) fn meet(
        &self,
        meeting: &Meeting,
        ranged: &Ranged,
        memory: &Memory<'_>,
        profiling: Profiling,
    ) -> Result<Part> {
        #[cfg(target_os = "linux")]
        if let (Some(link), Some(linked)) = (self.0.link(&meeting.exchange.world), &ranged.linked) {
            let values = meeting.read().map(|k| (&meeting.values[k], &*ranged.buffers[k]));
            self.0.copy_all(values.map(|(value, buffer)| (memory.buffer(value.from), buffer, value.bytes)).collect());
            let took = link.exchange(&self.0, meeting, linked, profiling != Profiling::Off)?;
            let values = meeting.given().map(|k| (&meeting.values[k], &*ranged.buffers[k]));
            self.0.copy_all(values.map(|(value, buffer)| (buffer, memory.buffer(value.to), value.bytes)).collect());
            return Ok(took.map_or(Part::Host(std::time::Duration::ZERO), Part::Link));
        }
        let _ = (ranged, profiling);
        self.meet_by_host(meeting, memory)
    }

    /// The returned time is the exchange's, without the download.
    fn meet_by_host(&self, meeting: &Meeting, memory: &Memory<'_>) -> Result<Part> {
        let Meeting { exchange, values, range, .. } = meeting;
        if range.bf16_bytes > 0 {
            bail!(Argument, "only linked GPUs exchange bf16; use the device from this world's `World::device`");
        }
        let place = |k: usize| (&values[k], range.offsets[k]);
        let staging = self.0.staging(range.bytes as u64);
        let mut encoder = self.0.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        for (value, offset) in meeting.read().map(place) {
            let from = memory.buffer(value.from).raw();
            encoder.copy_buffer_to_buffer(from, 0, &staging, offset as u64, value.bytes as u64);
        }
        let submission = self.0.submit([encoder.finish()], None);
        let own = Reading::new(&self.0, staging, range.bytes as u64, submission);
        let words = TensorType::new(DType::F32, Shape::from([range.bytes / DType::F32.bytes()]));
        let own = block_or_refuse(self.read(&own, words), "distributed training works only in native programs")?;
        let begin = Instant::now();
        let mut all = HostBuffer::try_zeros(DType::F32, words.shape.elements())?;
        let meet = || exchange.world.exchange(&exchange.collective, DType::F32, range, own.bytes(), all.bytes_mut());
        self.0.spend(|host| &mut host.wait, meet)?;
        for (value, offset) in meeting.given().map(place) {
            let to = memory.buffer(value.to).raw();
            self.0.queue.write_buffer(to, 0, &all.bytes()[offset..offset + value.bytes]);
        }
        self.0.check().map(|()| Part::Host(begin.elapsed()))
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
