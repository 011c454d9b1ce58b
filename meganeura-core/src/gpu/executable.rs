//! Compiling plans to pipelines, and running them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use web_time::Instant;

use super::collective::{ALIGNMENT, RangeBuffers};
use super::memory::Buffer;
use super::pipelines::{Source, meanwhile, side_by_side};
use super::reading::{SMALL, Small, SmallResults, small};
use super::recording::{BufferRange, Dispatch, Pipeline, Recording, Segment, Times};
use super::{Gpu, Inner, lock};
use crate::error::bail;
use crate::executor::{Bindings, Profiling};
use crate::kernel::launch::{Binding, Format, Launch};
use crate::ops::CollectiveOp;
use crate::plan::{Operand, Place, Plan, Step, StorageId};
use crate::storage::Storage;
use crate::world::{Collective, Range};
use crate::{ErrorKind, Result, TensorType};

/// The number of recordings kept for each plan: a step alternates between a few sets of buffers.
const RECORDINGS_KEPT: usize = 4;

/// A plan's launches, compiled.
pub(crate) struct Executable {
    launches: Vec<CompiledLaunch>,
    /// The collectives of ranks between launches.
    collectives: Vec<CollectiveStep>,
    /// The leaves that launches write.
    updated: Vec<usize>,
    /// The small results that a run copies to the host.
    small: Vec<Small>,
    recordings: Arc<Mutex<Recordings>>,
}

impl Executable {
    /// An estimate of the host memory that it takes, with its recordings, as measured with lavapipe.
    pub(crate) fn host_bytes(&self) -> usize {
        OF_LAUNCH * self.launches.len()
    }

    /// The number of launches whose kernels serve several shapes, and of all launches.
    pub(crate) fn dynamic(&self) -> (usize, usize) {
        let dynamic = self.launches.iter().filter(|launch| launch.pipeline.is_dynamic());
        (dynamic.count(), self.launches.len())
    }
}

/// The bytes of a compiled launch, and of its place in a recording.
const OF_LAUNCH: usize = 2048;

/// The last recordings of a plan, with the buffers that each of them binds and keeps alive. The most recently used
/// comes last.
pub(super) type Recordings = Vec<(Vec<u64>, Segments)>;

/// The launches up to each collective, and those after the last.
type Segments = Arc<[Arc<Recording>]>;

/// An exchange between ranks in the middle of a run.
pub(super) struct CollectiveStep {
    /// The number of launches before it.
    after: usize,
    pub(super) op: CollectiveOp,
    /// The collective whose memory holds the values: this one, or an earlier one.
    pub(super) memory: usize,
    pub(super) values: Vec<Exchanged>,
    /// The range of the results, if they have memory of their own.
    pub(super) range: Range,
}

/// A value that ranks exchange: its storages before and after, which may be the same.
pub(super) struct Exchanged {
    pub(super) from: StorageId,
    pub(super) to: StorageId,
    pub(super) bytes: usize,
}

struct CompiledLaunch {
    pipeline: Arc<Pipeline>,
    bindings: Vec<Bound>,
    grid: (u32, u32),
}

/// The memory of a binding.
enum Bound {
    /// The host's words.
    Host,
    /// So many bytes of a storage, from byte `begin` on.
    Storage { storage: StorageId, begin: u64, bytes: u64 },
}

/// Buffers that runs share.
#[derive(Default)]
pub(super) struct Arena {
    slots: Vec<Arc<Buffer>>,
    /// Small results, before they are copied to their tensors.
    small: Vec<Arc<Buffer>>,
    host: Option<Arc<Buffer>>,
    /// The ranges that ranks exchange.
    ranges: Vec<RangeBuffers>,
}

/// The memory of a collective, which must have been allocated.
fn range_buffers<'a>(arena: &'a Arena, collective: &CollectiveStep) -> &'a RangeBuffers {
    arena.ranges.iter().find(|range_buffers| range_buffers.is_of(collective)).expect("it was made room for")
}

/// A grid of at least `workgroups`, folded into two dimensions if one is too short.
pub(super) fn fold(workgroups: usize, most: u32) -> Option<(u32, u32)> {
    let workgroups = u32::try_from(workgroups).ok()?.max(1);
    let rows = workgroups.div_ceil(most);
    (rows <= most).then(|| (workgroups.div_ceil(rows), rows))
}

/// The collectives of ranks in a plan.
fn collectives(plan: &Plan) -> Vec<CollectiveStep> {
    let (mut launches, mut number) = (0, 0);
    let mut collective = |step: &Step| {
        launches += step.launches.len();
        let op = step.collective()?.clone();
        let values = step.inputs.iter().zip(&step.outputs);
        let exchanged = |(input, &(to, ty)): (&Operand, &(StorageId, TensorType))| {
            debug_assert_eq!(input.argument.format, plan.storages[to].format, "a value keeps its format");
            Exchanged { from: input.storage, to, bytes: ty.shape.elements() * plan.storages[to].element_bytes() }
        };
        let values: Vec<_> = values.map(exchanged).collect();
        let range = if op.collective == Collective::AllReduce {
            let is_bf16 = |value: &Exchanged| plan.storages[value.to].format != Format::Full;
            let values: Vec<_> = values.iter().map(|value| (value.bytes, is_bf16(value))).collect();
            Range::of_sums(&values, ALIGNMENT)
        } else {
            let bytes: Vec<_> = values.iter().map(|value| value.bytes).collect();
            op.collective.range(&bytes, op.world.size(), ALIGNMENT)
        };
        let place = |value: &Exchanged| match plan.storages[value.to].place {
            Place::Range { collective, .. } => Some(collective),
            _ => None,
        };
        let memory = values.iter().filter_map(place).max().unwrap_or(number);
        number += 1;
        Some(CollectiveStep { after: launches, op, memory, values, range })
    };
    plan.steps.iter().filter_map(&mut collective).collect()
}

/// Refuses numbers that overflow a shader's `u32`.
fn expect_spelled(launch: &Launch) -> Result<()> {
    let large = |(_, value): &&(&str, String)| value.parse().is_ok_and(|number: u64| u32::try_from(number).is_err());
    match launch.defines.iter().find(large) {
        Some((name, value)) => {
            bail!(OutOfMemory, "{name} = {value} does not fit into the 32-bit integers of kernel {}", launch.kernel)
        }
        None => Ok(()),
    }
}

/// The distinct sources of launches, and the number of each launch's source. With many parameters, most launches are
/// alike, so their text is generated once.
fn sources(launches: &[(&Step, &Launch)], checked: bool) -> Result<(Vec<Source>, Vec<usize>)> {
    let (mut distinct, mut known) = (Vec::new(), HashMap::new());
    let mut numbers = Vec::with_capacity(launches.len());
    for &(step, launch) in launches {
        let number = known.entry((launch.kernel, &launch.defines[..])).or_insert_with(|| {
            distinct.push((step, launch));
            distinct.len() - 1
        });
        numbers.push(*number);
    }
    let source = |(step, launch): &(&Step, &Launch)| {
        expect_spelled(launch).and_then(|()| Source::new(launch, checked)).map_err(|error| step.explain(error))
    };
    let sources = side_by_side(&distinct, source).into_iter().collect::<Result<_>>()?;
    Ok((sources, numbers))
}

impl Gpu {
    /// Compiles the launches of a plan; `checked` adds checks even where kernels need none. If shapes vary, kernels
    /// serve several of them.
    pub(crate) fn compile(&self, plan: &Plan, checked: bool, shapes_vary: bool) -> Result<Executable> {
        self.0.check()?;
        // The extents of a storage that does not fit may overflow the shader's `u32`.
        for (storage, info) in plan.storages.iter().enumerate() {
            self.expect_fits(info.bytes()).map_err(|error| plan.explain(storage, error))?;
        }
        let launches: Vec<(&Step, &Launch)> =
            plan.steps.iter().flat_map(|step| step.launches.iter().map(move |launch| (step, launch))).collect();
        let (sources, numbers) = sources(&launches, checked)?;
        let collectives = collectives(plan);
        // Allocating large buffers is slow too, so it happens meanwhile. If it fails, the run reports it.
        let reserve = || drop(self.reserve(plan, &collectives, &mut lock(&self.0.arena)));
        let pipelines = meanwhile(reserve, || self.0.pipelines(&sources, shapes_vary))?;
        let pipelines = numbers.iter().map(|&number| Arc::clone(&pipelines[number]));
        let compiled = launches.iter().zip(pipelines);
        let compiled = compiled.map(|((step, launch), pipeline)| self.compiled_launch(plan, step, launch, pipeline));
        let launches = compiled.collect::<Result<Vec<_>>>()?;
        let written = plan.steps.iter().flat_map(|step| step.outputs.iter().map(|&(storage, _)| storage));
        let leaf = |storage: StorageId| match plan.storages[storage].place {
            Place::Leaf(leaf) => Some(leaf),
            _ => None,
        };
        let updated = written.filter_map(leaf).collect();
        let small = small(plan.outputs.iter().map(|&storage| plan.storages[storage].bytes() as u64));
        let recordings = Arc::default();
        let mut executables = lock(&self.0.executables);
        executables.retain(|other| other.strong_count() > 0);
        executables.push(Arc::downgrade(&recordings));
        Ok(Executable { launches, collectives, updated, small, recordings })
    }

    fn compiled_launch(
        &self,
        plan: &Plan,
        step: &Step,
        launch: &Launch,
        pipeline: Arc<Pipeline>,
    ) -> Result<CompiledLaunch> {
        let Launch { kernel, workgroups, .. } = *launch;
        let count = workgroups.count;
        let Some(grid) = fold(count, self.0.limits.max_compute_workgroups_per_dimension) else {
            bail!(OutOfMemory, "kernel {kernel} needs {count} workgroups, more than {} can launch", self.0.name);
        };
        let bound = |(at, &binding): (usize, &Binding)| {
            let storage = match binding {
                Binding::Input(k) => step.inputs[k].storage,
                Binding::Output(k) => step.outputs[k].0,
                Binding::Scratch(k) => step.scratch[k],
                Binding::Host => return Bound::Host,
            };
            let info = plan.storages[storage];
            let own = launch.begins.get(at).copied().unwrap_or(0);
            let begin = (step.binding_offset(binding) + own) * info.element_bytes();
            Bound::Storage { storage, begin: begin as u64, bytes: (info.bytes() - begin) as u64 }
        };
        Ok(CompiledLaunch { pipeline, bindings: launch.bindings.iter().enumerate().map(bound).collect(), grid })
    }

    /// Runs a compiled plan. Returns the storages of its outputs, its times if it is profiled, and the number of
    /// submissions.
    pub(crate) fn run(
        &self,
        plan: &Plan,
        executable: &Executable,
        bindings: &mut Bindings<'_>,
        poison: bool,
        profiling: Profiling,
    ) -> Result<(Vec<Storage>, Option<Times>, u64)> {
        self.0.check()?;
        let begin = Instant::now();
        let mut arena = lock(&self.0.arena);
        self.reserve(plan, &executable.collectives, &mut arena)?;
        let words: Vec<u32> = bindings.host.iter().map(|word| word.bits()).collect();
        let host = self.host_buffer(&mut arena, words.len())?;
        let [outputs, bound] = self.outputs(plan, executable, &mut arena)?;
        if poison {
            bound.iter().chain(&arena.slots).for_each(|buffer| self.0.fill_with_nan(buffer));
        }
        let ranges: Vec<_> =
            executable.collectives.iter().map(|collective| range_buffers(&arena, collective)).collect();
        let buffer = |place: Place| match place {
            Place::Leaf(leaf) => match &bindings.leaves[leaf] {
                Storage::Gpu(buffer) => Some(Arc::clone(buffer)),
                Storage::Host(_) => unreachable!("the tape checked the devices"),
            },
            Place::Host => host.clone(),
            Place::Output(k) => Some(Arc::clone(&bound[k])),
            Place::Slot(slot) => Some(Arc::clone(&arena.slots[slot])),
            Place::Unplaced => None,
            Place::Range { collective, value } => Some(Arc::clone(&ranges[collective].buffers[value])),
        };
        let buffers = plan.storages.iter().map(|storage| buffer(storage.place)).collect();
        let memory = RunMemory { buffers, host: host.as_deref() };
        let recorded = self.recorded(executable, &memory, profiling)?;
        for &leaf in &executable.updated {
            if let Storage::Gpu(buffer) = &bindings.leaves[leaf] {
                buffer.forget_copy();
            }
        }
        let results = executable.small.iter().zip(&arena.small);
        let results = results.map(|(small, written)| (small, &**written, &*outputs[small.output])).collect();
        let mut along = SmallResults::new(&self.0, results);
        lock(&self.0.host).bind += begin.elapsed();
        let (mut parts, mut submissions) = (Vec::new(), 0);
        let mut words = host.as_deref().map(|host| (host, &words[..]));
        for (recording, number) in recorded.iter().zip(0..) {
            let collective = executable.collectives.get(number);
            // The first commands write the host words, which stay; results exist after the last.
            let along = if collective.is_none() { along.take() } else { None };
            let (stamps, submitted) = self.play(recording, words.take(), along)?;
            parts.extend(stamps.map(Segment::Launches));
            submissions += submitted;
            if let Some(collective) = collective {
                parts.push(self.run_collective(collective, ranges[number], &memory, profiling)?);
            }
        }
        Ok((outputs.into_iter().map(Storage::Gpu).collect(), Times::new(self, parts), submissions))
    }

    /// Allocates a plan's results. Returns their buffers, and those that launches write: small results are copied from
    /// there to their tensors, and to the host.
    fn outputs(&self, plan: &Plan, executable: &Executable, arena: &mut Arena) -> Result<[Vec<Arc<Buffer>>; 2]> {
        let allocate = |storage: StorageId, bytes| self.allocate(bytes).map_err(|error| plan.explain(storage, error));
        let outputs = plan.outputs.iter().map(|&storage| allocate(storage, plan.storages[storage].bytes()));
        let outputs = outputs.collect::<Result<Vec<_>>>()?;
        for small in executable.small.iter().skip(arena.small.len()) {
            arena.small.push(allocate(plan.outputs[small.output], SMALL)?);
        }
        let mut bound = outputs.clone();
        for (small, buffer) in executable.small.iter().zip(&arena.small) {
            bound[small.output] = Arc::clone(buffer);
        }
        Ok([outputs, bound])
    }

    /// Allocates the slots of a plan, and the ranges that ranks exchange in it.
    fn reserve(&self, plan: &Plan, collectives: &[CollectiveStep], arena: &mut Arena) -> Result<()> {
        for collective in collectives {
            if !arena.ranges.iter().any(|range_buffers| range_buffers.is_of(collective)) {
                let range_buffers = self.range_buffers(collective).or_else(|_| {
                    // Frees the ranges of other plans.
                    self.wait_here()?;
                    arena
                        .ranges
                        .retain(|range_buffers| collectives.iter().any(|collective| range_buffers.is_of(collective)));
                    self.make_room()?;
                    self.range_buffers(collective).map_err(|error| error.context("the values that ranks exchange"))
                })?;
                arena.ranges.push(range_buffers);
            }
        }
        for (slot, &bytes) in plan.slots.iter().enumerate() {
            if arena.slots.get(slot).is_none_or(|buffer| buffer.raw().size() < bytes as u64) {
                let buffer = self.allocate(bytes).map_err(|error| plan.blame_slot(slot, error))?;
                if slot < arena.slots.len() { arena.slots[slot] = buffer } else { arena.slots.push(buffer) }
            }
        }
        Ok(())
    }

    /// The plan's launches, recorded with this memory.
    fn recorded(&self, executable: &Executable, memory: &RunMemory<'_>, profiling: Profiling) -> Result<Segments> {
        let record = || {
            let dispatches: Vec<_> = executable.launches.iter().map(|launch| launch.dispatch(memory)).collect();
            let ends = executable.collectives.iter().map(|collective| collective.after).chain([dispatches.len()]);
            let mut begin = 0;
            let parts = ends.map(|end| self.0.record(&dispatches[std::mem::replace(&mut begin, end)..end], profiling));
            parts.collect::<Result<Segments>>()
        };
        if profiling != Profiling::Off {
            return record();
        }
        let ids: Vec<u64> =
            memory.buffers.iter().flatten().map(|buffer| buffer.id()).chain(memory.host.map(Buffer::id)).collect();
        {
            let mut kept = lock(&executable.recordings);
            if let Some(at) = kept.iter().position(|(known, _)| *known == ids) {
                kept[at..].rotate_left(1);
                return Ok(Arc::clone(&kept[kept.len() - 1].1));
            }
        }
        let recorded = match record() {
            Err(error) if error.kind() == ErrorKind::OutOfMemory => {
                self.make_room()?;
                record()?
            }
            recorded => recorded?,
        };
        let mut kept = lock(&executable.recordings);
        if kept.len() == RECORDINGS_KEPT {
            kept.remove(0);
        }
        kept.push((ids, Arc::clone(&recorded)));
        Ok(recorded)
    }

    /// A buffer for the host words, if there are any.
    fn host_buffer(&self, arena: &mut Arena, words: usize) -> Result<Option<Arc<Buffer>>> {
        if words == 0 {
            return Ok(None);
        }
        let fits = |buffer: &Arc<Buffer>| buffer.raw().size() >= 4 * words as u64;
        let buffer = match arena.host.take().filter(fits) {
            Some(buffer) => buffer,
            None => self.allocate(4 * words)?,
        };
        Ok(arena.host.insert(buffer).clone().into())
    }
}

impl Inner {
    /// For tests: makes elements visible that a kernel does not write.
    fn fill_with_nan(&self, buffer: &Buffer) {
        let words = usize::try_from(buffer.raw().size() / 4).expect("buffers of tests are small");
        self.queue.write_buffer(buffer.raw(), 0, bytemuck::cast_slice(&vec![f32::NAN; words]));
    }
}

/// The memory of a run.
pub(super) struct RunMemory<'a> {
    /// The buffer of each storage of the plan that has memory.
    buffers: Vec<Option<Arc<Buffer>>>,
    /// The host words.
    host: Option<&'a Buffer>,
}

impl RunMemory<'_> {
    /// The buffer of a storage that has memory.
    pub(super) fn buffer(&self, storage: StorageId) -> &Buffer {
        self.buffers[storage].as_deref().expect("every bound storage has memory")
    }
}

impl CompiledLaunch {
    fn dispatch<'a>(&'a self, memory: &'a RunMemory<'_>) -> Dispatch<'a> {
        let bound = self.bindings.iter().map(|binding| match *binding {
            Bound::Host => BufferRange::whole(memory.host.expect("kernels read host words only where there are some")),
            Bound::Storage { storage, begin, bytes } => BufferRange { buffer: memory.buffer(storage), begin, bytes },
        });
        Dispatch { pipeline: &self.pipeline, buffers: bound.collect(), grid: self.grid }
    }
}

#[cfg(test)]
mod tests {
    use super::fold;

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
