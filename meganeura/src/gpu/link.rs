//! The way to the GPUs of other ranks: NCCL, in memory that Vulkan exports. Two queues take turns, Vulkan's and a stream of CUDA's, by a
//! semaphore whose number both count up.

use std::sync::{Arc, Mutex};

use super::memory::Buffer;
use super::program::Meeting;
use super::vulkan::{Exported, Timeline};
use super::{Gpu, Inner, lock};
use crate::Result;
use crate::error::bail;
use crate::world::World;
use crate::world::nccl::{Memory, Nccl, Semaphore, Took};

pub(super) struct Link {
    world: World,
    nccl: Arc<Nccl>,
    /// Before the timeline, of which it is a copy.
    semaphore: Semaphore,
    timeline: Timeline,
    /// The number that the semaphore will have.
    number: Mutex<u64>,
}

impl Gpu {
    /// Connects the GPU with those of the other ranks, where all can. All ranks do so together.
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

impl Inner {
    /// The link of a world's ranks, if their GPUs have one.
    pub(super) fn link(&self, world: &World) -> Option<&Link> {
        self.link.get().filter(|link| link.world == *world)
    }

    /// Whether commands may wait for other ranks.
    pub(super) fn is_linked(&self) -> bool {
        self.link.get().is_some()
    }

    /// What keeps other ranks from meeting this one, if anything does. Nothing waits for them any more then.
    pub(super) fn expect_linked(&self) -> Result<()> {
        let fault = self.link.get().and_then(|link| Some((link, link.world.fault()?)));
        fault.map_or(Ok(()), |(link, fault)| {
            link.nccl.abort();
            Err(fault)
        })
    }
}

impl Link {
    /// Memory for what a meeting exchanges.
    pub(super) fn ranged(&self, gpu: &Inner, meeting: &Meeting, align: usize) -> Result<(Vec<Arc<Buffer>>, Memory)> {
        let Some(vulkan) = &gpu.vulkan else { bail!(Device, "no link without Vulkan") };
        let sizes = meeting.values.iter().map(|value| value.bytes);
        let places: Vec<_> = meeting.range.offsets.iter().copied().zip(sizes).collect();
        let Exported { buffers, file, bytes } = vulkan.export(&places, meeting.range.bytes, align)?;
        let memory = self.nccl.import(file, bytes)?;
        Ok((buffers.into_iter().map(|buffer| gpu.memory.adopt(buffer)).collect(), memory))
    }

    /// Exchanges a range between the commands that were submitted and those that will be.
    pub(super) fn exchange(
        &self,
        gpu: &Inner,
        meeting: &Meeting,
        memory: &Memory,
        is_timed: bool,
    ) -> Result<Option<Took>> {
        gpu.expect_linked()?;
        let (collective, range) = (&meeting.exchange.collective, &meeting.range);
        self.world.announce(collective, range)?;
        let mut number = lock(&self.number);
        let [ready, done] = [*number + 1, *number + 2];
        // Commands that another thread may submit before these come after those of the run all the same.
        self.timeline.signal(&gpu.queue, ready);
        gpu.submit([], None);
        let took = self.nccl.exchange(collective, (memory, range), &self.semaphore, [ready, done], is_timed)?;
        self.timeline.wait(&gpu.queue, done);
        *number = done;
        Ok(took)
    }
}
