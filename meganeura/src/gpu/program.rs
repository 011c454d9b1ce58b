//! Plans as pipelines, and running them: a compute pass, and for long plans several, so that the GPU need not wait for the last.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::memory::Buffer;
use super::pipelines::Source;
use super::timer::{Timer, Times};
use super::{Gpu, Inner, lock};
use crate::Result;
use crate::error::bail;
use crate::kernel::launch::{Binding, Launch};
use crate::plan::{Bindings, HostWord, Place, Plan, Profiling, Step, StorageId};
use crate::tensor::Storage;

/// Bind groups kept for each launch: a step alternates between few sets of buffers.
const BIND_GROUPS_KEPT: usize = 4;

/// A plan's launches, compiled.
pub(crate) struct Executable {
    launches: Vec<Compiled>,
    bind_groups: Arc<Mutex<BindGroups>>,
}

/// For each launch of a plan, the last sets of buffers that were bound: they stay alive with their groups.
pub(super) type BindGroups = Vec<Vec<(Vec<u64>, wgpu::BindGroup)>>;

struct Compiled {
    pipeline: Arc<wgpu::ComputePipeline>,
    /// The storage of each binding, and the bytes of it that are bound.
    storages: Vec<(StorageId, u64)>,
    grid: (u32, u32),
}

/// Buffers that runs share.
#[derive(Default)]
pub(super) struct Arena {
    slots: Vec<Arc<Buffer>>,
    host: Option<Arc<Buffer>>,
}

/// Launches of the first command buffer of a plan, and the most of one that others follow.
const PORTION: (usize, usize) = (32, 256);

/// The numbers of launches in a plan's command buffers. Writing a launch down takes the host a good part of the time that it takes
/// the GPU, so the first are few, and those after them, written meanwhile, twice as many each time.
fn portions(launches: usize) -> Vec<usize> {
    let (mut portions, mut left, mut next) = (Vec::new(), launches, PORTION.0);
    while left > 2 * next {
        portions.push(next);
        left -= next;
        next = (2 * next).min(PORTION.1);
    }
    portions.push(left);
    portions
}

/// A grid of at least `workgroups`, folded where one dimension does not reach.
fn fold(workgroups: usize, most: u32) -> Option<(u32, u32)> {
    let workgroups = u32::try_from(workgroups).ok()?.max(1);
    let rows = workgroups.div_ceil(most);
    (rows <= most).then(|| (workgroups.div_ceil(rows), rows))
}

/// Refuses numbers that no `u32` of a shader holds.
fn expect_spelled(launch: &Launch) -> Result<()> {
    let large = |(_, value): &&(&str, String)| value.parse().is_ok_and(|number: u64| u32::try_from(number).is_err());
    match launch.defines.iter().find(large) {
        Some((name, value)) => {
            bail!(OutOfMemory, "kernel {} counts in 32 bits, not to {name} = {value}", launch.kernel)
        }
        None => Ok(()),
    }
}

impl Gpu {
    /// Compiles the launches of a plan; `checked` asks for checks also where kernels need none.
    pub(crate) fn compile(&self, plan: &Plan, checked: bool) -> Result<Executable> {
        self.0.check()?;
        // Shaders could not even spell the extents of what does not fit.
        for (storage, info) in plan.storages.iter().enumerate() {
            self.expect_fits(info.bytes()).map_err(|error| plan.blame(storage, error))?;
        }
        let launches: Vec<(&Step, &Launch)> =
            plan.steps.iter().flat_map(|step| step.launches.iter().map(move |launch| (step, launch))).collect();
        // Of many parameters, most launches are the same: their text is made once.
        let mut distinct = Vec::new();
        let mut known = HashMap::new();
        let numbers: Vec<usize> = launches
            .iter()
            .map(|(step, launch)| {
                *known.entry((launch.kernel, &launch.defines[..])).or_insert_with(|| {
                    distinct.push((*step, *launch));
                    distinct.len() - 1
                })
            })
            .collect();
        let source = |(step, launch): &(&Step, &Launch)| {
            expect_spelled(launch).and_then(|()| Source::new(launch, checked)).map_err(|error| step.blame(error))
        };
        let sources = distinct.iter().map(source).collect::<Result<Vec<_>>>()?;
        let pipelines = self.0.pipelines(&sources)?;
        let most = self.0.limits.max_compute_workgroups_per_dimension;
        let pipelines = numbers.iter().map(|&number| Arc::clone(&pipelines[number]));
        let compiled = launches.iter().zip(pipelines).map(|((step, launch), pipeline)| {
            let Some(grid) = fold(launch.workgroups, most) else {
                bail!(
                    OutOfMemory,
                    "kernel {} needs {} workgroups, more than {} runs",
                    launch.kernel,
                    launch.workgroups,
                    self.0.name
                );
            };
            let storages = launch.bindings.iter().map(|binding| {
                let storage = match *binding {
                    Binding::Input(k) => step.inputs[k].storage,
                    Binding::Output(k) => step.outputs[k].0,
                    Binding::Scratch(k) => step.scratch[k],
                    Binding::Host => return (StorageId::MAX, 0),
                };
                (storage, plan.storages[storage].bytes() as u64)
            });
            let storages = storages.collect();
            Ok(Compiled { pipeline, storages, grid })
        });
        let launches = compiled.collect::<Result<Vec<_>>>()?;
        let bind_groups = Arc::new(Mutex::new(vec![Vec::new(); launches.len()]));
        let mut executables = lock(&self.0.executables);
        executables.retain(|other| other.strong_count() > 0);
        executables.push(Arc::downgrade(&bind_groups));
        Ok(Executable { launches, bind_groups })
    }

    /// Runs a compiled plan; the storages of its outputs, how long it takes where that is wanted, and the number of submissions.
    pub(crate) fn run(
        &self,
        plan: &Plan,
        executable: &Executable,
        bindings: &mut Bindings<'_>,
        poison: bool,
        profiling: Profiling,
    ) -> Result<(Vec<Storage>, Option<Times>, u64)> {
        self.0.check()?;
        let mut arena = lock(&self.0.arena);
        for (rank, &bytes) in plan.slots.iter().enumerate() {
            if arena.slots.get(rank).is_none_or(|slot| slot.raw().size() < bytes as u64) {
                let buffer = self.allocate(bytes).map_err(|error| plan.blame_slot(rank, error))?;
                if rank < arena.slots.len() { arena.slots[rank] = buffer } else { arena.slots.push(buffer) }
            }
        }
        let host = self.write_host(&mut arena, bindings.host)?;
        let output = |&storage: &StorageId| {
            self.allocate(plan.storages[storage].bytes()).map_err(|error| plan.blame(storage, error))
        };
        let outputs = plan.outputs.iter().map(output).collect::<Result<Vec<_>>>()?;
        if poison {
            outputs.iter().chain(&arena.slots).for_each(|buffer| self.0.fill_with_nan(buffer));
        }
        let buffers: Vec<Option<Arc<Buffer>>> = plan
            .storages
            .iter()
            .map(|storage| match storage.place {
                Place::Leaf(leaf) => match &bindings.leaves[leaf] {
                    Storage::Gpu(buffer) => Some(Arc::clone(buffer)),
                    Storage::Host(_) => unreachable!("the tape checked the devices"),
                },
                Place::Host => host.clone(),
                Place::Output(k) => Some(Arc::clone(&outputs[k])),
                Place::Slot(rank) => arena.slots.get(rank).cloned(),
            })
            .collect();
        let launches = executable.launches.len();
        let timer = match profiling {
            _ if launches == 0 => None,
            Profiling::Off => None,
            Profiling::Runs => Some(Timer::new(&self.0.device, 1)),
            Profiling::Launches => Some(Timer::new(&self.0.device, launches)),
        };
        let memory = Memory { buffers, host: host.as_deref() };
        // Times are taken of an uninterrupted run.
        let portions = if timer.is_some() { vec![launches] } else { portions(launches) };
        let new_encoder = || self.0.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let mut groups = lock(&executable.bind_groups);
        let mut encoder = new_encoder();
        let mut end = 0;
        for &portion in &portions {
            if end > 0 {
                self.0.queue.submit([std::mem::replace(&mut encoder, new_encoder()).finish()]);
            }
            let begin = end;
            end += portion;
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            let stamp = |pass: &mut _, at| timer.as_ref().map_or((), |timer| timer.stamp(pass, at));
            stamp(&mut pass, 0);
            let mut last: Option<&Arc<wgpu::ComputePipeline>> = None;
            for at in begin..end {
                let launch = &executable.launches[at];
                if last.is_none_or(|last| !Arc::ptr_eq(last, &launch.pipeline)) {
                    pass.set_pipeline(&launch.pipeline);
                    last = Some(&launch.pipeline);
                }
                pass.set_bind_group(0, launch.bind_group(&self.0.device, &mut groups[at], &memory), &[]);
                pass.dispatch_workgroups(launch.grid.0, launch.grid.1, 1);
                match profiling {
                    Profiling::Launches => stamp(&mut pass, at + 1),
                    Profiling::Runs if at + 1 == launches => stamp(&mut pass, 1),
                    _ => {}
                }
            }
        }
        drop(groups);
        let stamps = timer.map(|timer| timer.finish(&self.0.device, &mut encoder));
        self.0.submit(encoder.finish());
        let times = stamps.map(|stamps| Times::new(self, stamps));
        Ok((outputs.into_iter().map(Storage::Gpu).collect(), times, portions.len() as u64))
    }

    fn write_host(&self, arena: &mut Arena, words: &[HostWord]) -> Result<Option<Arc<Buffer>>> {
        if words.is_empty() {
            return Ok(None);
        }
        let bits: Vec<u32> = words.iter().map(|word| word.bits()).collect();
        let bytes: &[u8] = bytemuck::cast_slice(&bits);
        let fits = |buffer: &Arc<Buffer>| buffer.raw().size() >= bytes.len() as u64;
        let buffer = match arena.host.take().filter(fits) {
            Some(buffer) => buffer,
            None => self.allocate(bytes.len())?,
        };
        self.0.queue.write_buffer(buffer.raw(), 0, bytes);
        Ok(arena.host.insert(buffer).clone().into())
    }
}

impl Inner {
    /// For tests: what a kernel leaves unwritten shows.
    fn fill_with_nan(&self, buffer: &Buffer) {
        let words = usize::try_from(buffer.raw().size() / 4).expect("buffers of tests are small");
        self.queue.write_buffer(buffer.raw(), 0, bytemuck::cast_slice(&vec![f32::NAN; words]));
    }
}

/// The memory of a run.
struct Memory<'a> {
    /// Of each storage of the plan that has any.
    buffers: Vec<Option<Arc<Buffer>>>,
    /// The words of the host.
    host: Option<&'a Buffer>,
}

impl Compiled {
    fn bind_group<'a>(
        &self,
        device: &wgpu::Device,
        kept: &'a mut Vec<(Vec<u64>, wgpu::BindGroup)>,
        memory: &Memory<'_>,
    ) -> &'a wgpu::BindGroup {
        let bound = self.storages.iter().map(|&(storage, bytes)| match storage {
            StorageId::MAX => {
                let host = memory.host.expect("kernels read host words only where there are some");
                (host, host.raw().size())
            }
            storage => (memory.buffers[storage].as_deref().expect("every bound storage has memory"), bytes),
        });
        let bound: Vec<(&Buffer, u64)> = bound.collect();
        let ids = || bound.iter().map(|(buffer, _)| buffer.id());
        if let Some(at) = kept.iter().position(|(known, _)| known.iter().copied().eq(ids())) {
            return &kept[at].1;
        }
        let entries: Vec<_> = (0..)
            .zip(&bound)
            .map(|(binding, (buffer, bytes))| wgpu::BindGroupEntry {
                binding,
                resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                    buffer: buffer.raw(),
                    offset: 0,
                    size: std::num::NonZeroU64::new(*bytes),
                }),
            })
            .collect();
        let layout = self.pipeline.get_bind_group_layout(0);
        let descriptor = wgpu::BindGroupDescriptor { label: None, layout: &layout, entries: &entries };
        let group = device.create_bind_group(&descriptor);
        if kept.len() == BIND_GROUPS_KEPT {
            kept.remove(0);
        }
        kept.push((ids().collect(), group));
        &kept.last().expect("just put there").1
    }
}

#[cfg(test)]
mod tests {
    use super::{fold, portions};

    #[test]
    fn portions_grow() {
        assert_eq!(portions(0), [0]);
        assert_eq!(portions(64), [64]);
        assert_eq!(portions(65), [32, 33]);
        assert_eq!(portions(876), [32, 64, 128, 256, 396]);
        assert!((0..2000).all(|launches| portions(launches).iter().sum::<usize>() == launches));
    }

    #[test]
    fn grids_fold() {
        assert_eq!(fold(0, 65_535), Some((1, 1)));
        assert_eq!(fold(65_535, 65_535), Some((65_535, 1)));
        assert_eq!(fold(65_536, 65_535), Some((32_768, 2)));
        for workgroups in [100_000, 1_000_003, 16_777_217] {
            let (x, y) = fold(workgroups, 65_535).expect("fits");
            assert!((x as usize) * (y as usize) >= workgroups && x <= 65_535 && y <= 65_535);
        }
        assert_eq!(fold(usize::MAX, 65_535), None);
        assert_eq!(fold(100, 9), None);
    }
}
