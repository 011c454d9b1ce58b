//! Launches, recorded with their buffers, and run again as long as those stay the same.
//!
//! On Vulkan a recording is a command buffer (`vulkan`). Elsewhere it is a list of bind groups, which wgpu encodes
//! again in each run (`encoding`).

use std::sync::Arc;
use std::time::Duration;

use web_time::Instant;

use super::memory::Buffer;
use super::reading::{Reading, SmallResults};
use super::{Gpu, Inner, encoding, lock, vulkan};
use crate::executor::Profiling;
use crate::host::HostBuffer;
use crate::wait::block_or_refuse;
use crate::{DType, Error, ErrorKind, Result, Shape, TensorType};

/// A compiled kernel.
pub(super) enum Pipeline {
    Vulkan(vulkan::Pipeline),
    Wgpu(wgpu::ComputePipeline),
}

impl Pipeline {
    /// `true` if other shapes use the same kernel.
    pub(super) fn is_dynamic(&self) -> bool {
        match self {
            Self::Vulkan(pipeline) => pipeline.is_dynamic(),
            Self::Wgpu(_) => false,
        }
    }
}

/// A launch: a kernel, the memory that it binds, and the workgroups along x and y.
pub(super) struct Dispatch<'a> {
    pub(super) pipeline: &'a Arc<Pipeline>,
    pub(super) buffers: Vec<BufferRange<'a>>,
    pub(super) grid: (u32, u32),
}

/// The bytes of a buffer that a launch binds.
#[derive(Clone, Copy)]
pub(super) struct BufferRange<'a> {
    pub(super) buffer: &'a Buffer,
    pub(super) begin: u64,
    pub(super) bytes: u64,
}

impl<'a> BufferRange<'a> {
    /// All of a buffer.
    pub(super) fn whole(buffer: &'a Buffer) -> Self {
        Self { buffer, begin: 0, bytes: buffer.raw().size() }
    }
}

pub(super) enum Recording {
    Vulkan(vulkan::Recording),
    Wgpu(encoding::Recording),
}

/// The reason why times are not read in a browser.
const NO_TIMES: &str = "profiles can only be read in native programs";

/// The number of timestamps in a run: one before its first launch, and one after the last or after each.
pub(super) fn stamps(profiling: Profiling, launches: usize) -> Option<u32> {
    let stamps = match profiling {
        _ if launches == 0 => return None,
        Profiling::Off => return None,
        Profiling::Runs => 2,
        Profiling::Launches => launches + 1,
    };
    Some(u32::try_from(stamps).expect("plans are small"))
}

/// The durations of a run's launches, which may still be running.
pub(crate) struct Times {
    gpu: Gpu,
    parts: Vec<Segment>,
}

/// The times of a part of a run.
pub(super) enum Segment {
    /// The launches of a part.
    Launches(Stamps),
    /// Work of the host between launches.
    Host(Duration),
    /// An exchange from GPU to GPU.
    #[cfg(target_os = "linux")]
    Collective(crate::world::nccl::Elapsed),
}

pub(super) enum Stamps {
    Vulkan(Arc<Recording>),
    Wgpu(Reading),
}

impl Times {
    /// `None` if nothing was timed.
    pub(super) fn new(gpu: &Gpu, parts: Vec<Segment>) -> Option<Self> {
        let is_timed = parts.iter().any(|part| matches!(part, Segment::Launches(_)));
        is_timed.then(|| Self { gpu: gpu.clone(), parts })
    }

    /// The duration of each launch, or of all launches between exchanges if only runs are timed, and of each exchange.
    /// Waits for the run.
    pub(crate) fn read(&self) -> Result<Vec<Duration>> {
        let mut times = Vec::new();
        for part in &self.parts {
            match part {
                Segment::Launches(stamps) => times.extend(self.between(stamps)?),
                Segment::Host(time) => times.push(*time),
                #[cfg(target_os = "linux")]
                Segment::Collective(elapsed) => {
                    self.gpu.wait_here()?;
                    times.push(elapsed.read()?);
                }
            }
        }
        Ok(times)
    }

    /// The times between timestamps.
    fn between(&self, stamps: &Stamps) -> Result<Vec<Duration>> {
        let stamps = match stamps {
            Stamps::Vulkan(recording) => {
                self.gpu.wait_here()?;
                let Recording::Vulkan(recording) = &**recording else { unreachable!("made of such a recording") };
                recording.stamps()?
            }
            Stamps::Wgpu(reading) => {
                let words = reading.bytes() as usize / 4;
                let ty = TensorType::new(DType::U32, Shape::from([words]));
                let HostBuffer::U32(words) = block_or_refuse(self.gpu.read(reading, ty), NO_TIMES)? else {
                    unreachable!("asked for words")
                };
                words.chunks_exact(2).map(|word| u64::from(word[0]) | u64::from(word[1]) << 32).collect()
            }
        };
        let period = f64::from(self.gpu.0.queue.get_timestamp_period());
        let time = |pair: &[u64]| Duration::from_secs_f64(pair[1].saturating_sub(pair[0]) as f64 * period * 1e-9);
        Ok(stamps.windows(2).map(time).collect())
    }
}

impl Inner {
    /// Records launches. With `profiling`, a recording serves only one run.
    pub(super) fn record(&self, dispatches: &[Dispatch<'_>], profiling: Profiling) -> Result<Arc<Recording>> {
        let recorded = match &self.vulkan {
            Some(vulkan) => vulkan.record(dispatches, profiling).map(Recording::Vulkan),
            None => Ok(Recording::Wgpu(encoding::Recording::new(&self.device, dispatches, profiling))),
        };
        recorded.map(Arc::new).map_err(|error| self.refusal(error))
    }
}

impl Gpu {
    /// Runs a recording with these host words, and copies small results. Returns its timestamps if it is timed, and the
    /// number of submissions.
    pub(super) fn play(
        &self,
        recording: &Arc<Recording>,
        words: Option<(&Buffer, &[u32])>,
        along: Option<SmallResults<'_>>,
    ) -> Result<(Option<Stamps>, u64)> {
        let inner = &*self.0;
        let begin = Instant::now();
        let new_encoder = || inner.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let submit = |commands: Vec<wgpu::CommandBuffer>, executed| {
            lock(&inner.host).encode += begin.elapsed();
            inner.submit(commands, executed)
        };
        let (stamps, submissions, submission) = match &**recording {
            Recording::Vulkan(launches) => {
                let mut encoder = new_encoder();
                if !launches.execute(&mut encoder, words) {
                    return Err(inner.refusal(Error::new(ErrorKind::Device, "the device accepts no commands")));
                }
                // wgpu allows no encoder with both its own commands and foreign ones.
                let copies = along.as_ref().map(|along| {
                    let mut encoder = new_encoder();
                    along.encode(&mut encoder);
                    encoder
                });
                let commands = [encoder].into_iter().chain(copies).map(wgpu::CommandEncoder::finish).collect();
                let submission = submit(commands, Some(Arc::clone(recording)));
                (launches.has_stamps().then(|| Stamps::Vulkan(Arc::clone(recording))), 1, submission)
            }
            Recording::Wgpu(launches) => {
                if let Some((buffer, words)) = words {
                    inner.queue.write_buffer(buffer.raw(), 0, bytemuck::cast_slice(words));
                }
                let (mut encoder, staging, submissions) = launches.encode(inner);
                along.iter().for_each(|along| along.encode(&mut encoder));
                let submission = submit(vec![encoder.finish()], None);
                let reading = |staging: wgpu::Buffer| {
                    let bytes = staging.size();
                    Reading::new(inner, staging, bytes, submission.clone())
                };
                (staging.map(|staging| Stamps::Wgpu(reading(staging))), submissions, submission)
            }
        };
        if let Some(along) = along {
            along.note(inner, &submission);
        }
        Ok((stamps, submissions))
    }
}
