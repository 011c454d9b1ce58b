//! The link to other ranks' GPUs: NCCL on memory that Vulkan exports. A timeline semaphore orders Vulkan's queue and
//! NCCL's stream; both count it up.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::executable::CollectiveStep;
use super::memory::Buffer;
use super::vulkan::{Exported, Timeline};
use super::{Gpu, Inner, lock};
use crate::Result;
use crate::error::bail;
use crate::world::World;
use crate::world::nccl::{Elapsed, ImportedMemory, Nccl, Semaphore};

/// The interval at which threads that wait for the device also check on the other ranks.
const ASKING: Duration = Duration::from_millis(100);

/// The time between polls of such a thread.
const NAP: Duration = Duration::from_micros(100);

pub(super) struct Link {
    world: World,
    nccl: Arc<Nccl>,
    /// The timeline as imported into CUDA. Declared, and so dropped, before the timeline itself.
    semaphore: Semaphore,
    timeline: Timeline,
    /// The semaphore's value once everything enqueued is done.
    number: Mutex<u64>,
}

impl Gpu {
    /// Links the GPU with those of the other ranks, if all can. A collective call.
    pub(crate) fn connect(&self, world: &World) -> Result<()> {
        let vulkan = self.0.vulkan.as_ref().filter(|vulkan| vulkan.exports());
        let bus = match vulkan {
            Some(_) if !self.0.bus.is_empty() => Ok(&self.0.bus[..]),
            _ => Err(format!("{} does not export its memory", self.0.name)),
        };
        let nccl = world.connect_gpus(bus)?;
        if let (Some(nccl), Some(vulkan)) = (nccl, vulkan) {
            let (timeline, file) = vulkan.timeline()?;
            let semaphore = nccl.import_timeline(file)?;
            let link = Link { world: world.clone(), nccl, semaphore, timeline, number: Mutex::new(0) };
            drop(self.0.link.set(link));
        }
        Ok(())
    }
}

/// Lets the other ranks know that this one's device has no link. A collective call, in place of [`Gpu::connect`].
pub(crate) fn without_link(world: &World) -> Result<()> {
    world.connect_gpus(Err("a rank computes on the CPU".to_owned())).map(drop)
}

impl Inner {
    /// The link between a world's GPUs, if there is one.
    pub(super) fn link(&self, world: &World) -> Option<&Link> {
        self.link.get().filter(|link| link.world == *world)
    }

    /// `true` if submitted commands may wait for other ranks.
    pub(super) fn is_linked(&self) -> bool {
        self.link.get().is_some()
    }

    /// If there is a link, waits until a submission is done, and meanwhile checks on the other ranks: a loss of one
    /// releases the commands that wait for it. The thread naps between polls, because a wait of wgpu with a timeout may
    /// fail an assertion when another thread's poll ends at the same time.
    pub(super) fn wait_linked(&self, last: u64) {
        if !self.is_linked() {
            return;
        }
        let mut asked = Instant::now();
        loop {
            let polled = self.poll_once(wgpu::PollType::Poll);
            let is_waiting = polled.is_ok_and(|status| !status.is_queue_empty());
            if !is_waiting || self.ended.load(Ordering::Relaxed) >= last || lock(&self.faults).lost.is_some() {
                return;
            }
            if asked.elapsed() >= ASKING {
                asked = Instant::now();
                self.note_lost_ranks();
            }
            thread::sleep(NAP);
        }
    }

    /// Lets other ranks know that this one's device is lost.
    pub(super) fn abandon_link(&self) {
        if let Some(link) = self.link.get() {
            link.world.abandon();
        }
    }

    /// Fails if a rank was lost or entered a different exchange. Then NCCL is aborted, so that nothing waits for it.
    pub(super) fn expect_linked(&self) -> Result<()> {
        let fault = self.link.get().and_then(|link| Some((link, link.world.fault()?)));
        fault.map_or(Ok(()), |(link, fault)| {
            link.nccl.abort();
            Err(fault)
        })
    }
}

impl Link {
    /// Allocates the range of a collective, and imports it.
    pub(super) fn range_buffers(
        &self,
        gpu: &Inner,
        collective: &CollectiveStep,
        align: usize,
    ) -> Result<(Vec<Arc<Buffer>>, ImportedMemory)> {
        let Some(vulkan) = &gpu.vulkan else { bail!(Device, "no link without Vulkan") };
        let sizes = collective.values.iter().map(|value| value.bytes);
        let places: Vec<_> = collective.range.offsets.iter().copied().zip(sizes).collect();
        let Exported { buffers, file, bytes } = vulkan.export(&places, collective.range.bytes, align)?;
        let memory = self.nccl.import(file, bytes)?;
        Ok((buffers.into_iter().map(|buffer| gpu.memory.adopt(buffer)).collect(), memory))
    }

    /// Exchanges a range between the commands submitted before and after.
    pub(crate) fn run_collective(
        &self,
        gpu: &Inner,
        collective: &CollectiveStep,
        memory: &ImportedMemory,
        is_timed: bool,
    ) -> Result<Option<Elapsed>> {
        gpu.expect_linked()?;
        let (collective, range) = (&collective.op.collective, &collective.range);
        self.world.announce(collective, range)?;
        let mut number = lock(&self.number);
        let [ready, done] = [*number + 1, *number + 2];
        *number = done;
        // Commands that another thread submits before these still run after those of this run.
        self.timeline.signal(&gpu.queue, ready);
        gpu.submit([], None);
        let elapsed = self.nccl.run_collective(collective, (memory, range), &self.semaphore, [ready, done], is_timed);
        match &elapsed {
            Ok(_) => self.timeline.wait(&gpu.queue, done),
            Err(_) => self.world.abandon(),
        }
        elapsed
    }
}
