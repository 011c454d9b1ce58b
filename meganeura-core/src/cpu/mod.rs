//! The native executor: runs a plan's steps on the CPU, in threads.
//!
//! It knows plans and how to call the native kernels of operations, but not what an operation means.

mod affine;
mod pointwise;
mod pool;

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use web_time::Instant;

pub(crate) use pool::{share_cores, threads};

use crate::executor::{Bindings, Fixed};
use crate::host::{HostBuffer, HostWord, Spares};
use crate::kernel::launch::Binding;
use crate::kernel::native::{Affine, Buffers, OutView, Real, Scratch, Slice, View};
use crate::plan::{Place, Plan, Step, StorageId, StorageInfo, Work};
use crate::storage::Storage;
use crate::{DType, Result};

/// The memory that plans share. All other state is in the plan.
///
/// Each concurrent run has its own set of slots, so no run waits for another. Otherwise a pool thread that waits for
/// the parts of one run could begin another run, and wait for itself.
#[derive(Debug, Default)]
pub(crate) struct Cpu {
    /// Sets that no run uses, the most recently used last.
    idle: Mutex<Vec<Slots>>,
    /// The bytes of all sets.
    bytes: AtomicU64,
    /// The most that they have been.
    peak: AtomicU64,
    /// The scratch memory of the kernels of all runs.
    scratch: Arc<Buffers>,
    /// The memory of earlier results.
    spares: Arc<Spares>,
}

/// Slots of one run, by index.
type Slots = Vec<HostBuffer>;

/// The memory of one run, by the place that the plan chose.
struct RunMemory<'a> {
    plan: &'a Plan,
    leaves: &'a mut [Storage],
    host: HostBuffer,
    outputs: Vec<HostBuffer>,
    slots: &'a mut [HostBuffer],
    scratch: Scratch,
}

impl Cpu {
    /// Runs a plan. Returns the storages of its outputs and, if `timed`, the duration of each step. Updated leaves are
    /// written in place and must not be shared.
    pub(crate) fn run(
        &self,
        plan: &Arc<Plan>,
        dtype: DType,
        bindings: &mut Bindings<'_>,
        poison: bool,
        timed: bool,
    ) -> Result<(Vec<Storage>, Option<Vec<Duration>>)> {
        let threads = pool::get()?;
        let mut slots = self.idle().pop().unwrap_or_default();
        let before = bytes(&slots);
        let prepared = prepare_slots(plan, &mut slots);
        self.count(before, bytes(&slots));
        if let Err(error) = prepared {
            self.idle().push(slots);
            return Err(error);
        }
        let run = Run {
            plan: Arc::clone(plan),
            dtype,
            host: bindings.host.to_vec(),
            fixed: bindings.fixed.clone(),
            scratch: Arc::clone(&self.scratch),
            spares: Arc::clone(&self.spares),
            poison,
            timed,
        };
        // One entry into the pool for each run. From outside, every loop of every step would be handed over and waited
        // for.
        let lent = (std::mem::take(bindings.leaves), slots);
        let ((leaves, slots), done) = pool::run(threads, lent, move |(leaves, slots)| run.steps(leaves, slots));
        *bindings.leaves = leaves;
        self.idle().push(slots);
        done.unwrap_or_else(|panic| resume_unwind(panic))
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Slots>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a set that had `before` bytes now has `after`. A slot is replaced if its element type changes.
    fn count(&self, before: u64, after: u64) {
        let change = after.wrapping_sub(before);
        let now = self.bytes.fetch_add(change, Ordering::Relaxed).wrapping_add(change);
        self.peak.fetch_max(now, Ordering::Relaxed);
    }

    /// The most bytes that all slots have had, and those of the scratch memory of kernels.
    pub(crate) fn peak_bytes(&self) -> u64 {
        self.peak.load(Ordering::Relaxed) + self.scratch.bytes() as u64
    }
}

/// A run, moved to the threads that compute it.
struct Run {
    plan: Arc<Plan>,
    dtype: DType,
    host: Vec<HostWord>,
    fixed: Option<Fixed>,
    scratch: Arc<Buffers>,
    spares: Arc<Spares>,
    poison: bool,
    timed: bool,
}

impl Run {
    fn steps(self, leaves: &mut [Storage], slots: &mut Slots) -> Result<(Vec<Storage>, Option<Vec<Duration>>)> {
        let Self { plan, dtype, host, fixed, scratch, spares, poison, timed } = self;
        let outputs = plan.outputs.iter().map(|&s| {
            let StorageInfo { dtype, elements, .. } = plan.storages[s];
            let spare = spares.take(dtype, elements).map(Ok);
            spare.unwrap_or_else(|| zeros(plan.storages[s])).map_err(|error| plan.explain(s, error))
        });
        let mut memory = RunMemory {
            plan: &plan,
            leaves,
            host: HostBuffer::U32(host.iter().map(|word| word.bits()).collect()),
            outputs: outputs.collect::<Result<_>>()?,
            slots,
            scratch: Scratch::new(&scratch, poison),
        };
        if let Some(Fixed { kept, exact, .. }) = &fixed {
            memory.scratch.keep(kept, *exact);
        }
        let version = |storage: StorageId| match plan.storages[storage].place {
            Place::Leaf(leaf) => fixed.as_ref().and_then(|fixed| fixed.versions[leaf]),
            _ => None,
        };
        let mut times = timed.then(Vec::new);
        for (at, step) in plan.steps.iter().enumerate() {
            let read = match &step.work {
                Work::Kernel(kernel) => &kernel.read[..],
                Work::Pointwise(_) => &[],
            };
            memory.scratch.begin(at, step.reads().map(version), read);
            let start = times.is_some().then(Instant::now);
            match dtype {
                DType::F64 => memory.step::<f64>(step, &host, poison)?,
                _ => memory.step::<f32>(step, &host, poison)?,
            }
            if let (Some(times), Some(start)) = (&mut times, start) {
                times.push(start.elapsed());
            }
        }
        Ok((memory.outputs.into_iter().map(|buffer| Storage::lent(buffer, &spares)).collect(), times))
    }
}

const NO_RANGES: &str = "only plans for GPUs have ranges";
/// Why no step reads or writes a storage without a place.
const PLACED: &str = "the last pass places what steps touch";

fn bytes(slots: &Slots) -> u64 {
    slots.iter().map(|slot| (slot.len() * slot.dtype().bytes()) as u64).sum()
}

fn zeros(storage: StorageInfo) -> Result<HostBuffer> {
    HostBuffer::try_zeros(storage.dtype, storage.elements)
}

/// Allocates or grows the shared slots for a plan, with its element types.
fn prepare_slots(plan: &Plan, slots: &mut Slots) -> Result<()> {
    if slots.len() < plan.slots.len() {
        slots.resize_with(plan.slots.len(), || HostBuffer::F32(Vec::new()));
    }
    for (at, storage) in plan.storages.iter().enumerate() {
        let Place::Slot(rank) = storage.place else { continue };
        let slot = &mut slots[rank];
        if slot.dtype() != storage.dtype || slot.len() < storage.elements {
            *slot = HostBuffer::F32(Vec::new());
            *slot = zeros(*storage).map_err(|error| plan.explain(at, error))?;
        }
    }
    Ok(())
}

impl RunMemory<'_> {
    fn buffer(&self, storage: StorageId) -> &HostBuffer {
        match self.plan.storages[storage].place {
            Place::Leaf(leaf) => match &self.leaves[leaf] {
                Storage::Host(buffer) => buffer,
                #[cfg(feature = "gpu")]
                Storage::Gpu(_) => unreachable!("the tape checked the devices"),
            },
            Place::Host => &self.host,
            Place::Output(k) => &self.outputs[k],
            Place::Slot(rank) => &self.slots[rank],
            Place::Unplaced => unreachable!("{PLACED}"),
            Place::Range { .. } => unreachable!("{NO_RANGES}"),
        }
    }

    /// Takes a buffer out to write to it while others are read.
    fn take(&mut self, storage: StorageId) -> HostBuffer {
        let empty = HostBuffer::F32(Vec::new());
        match self.plan.storages[storage].place {
            Place::Leaf(leaf) => match std::mem::replace(&mut self.leaves[leaf], Storage::empty()) {
                Storage::Host(memory) => Arc::try_unwrap(memory).expect("updated leaves are not shared").into_buffer(),
                #[cfg(feature = "gpu")]
                Storage::Gpu(_) => unreachable!("the tape checked the devices"),
            },
            Place::Host => unreachable!("nothing writes the host's words"),
            Place::Output(k) => std::mem::replace(&mut self.outputs[k], empty),
            Place::Slot(rank) => std::mem::replace(&mut self.slots[rank], empty),
            Place::Unplaced => unreachable!("{PLACED}"),
            Place::Range { .. } => unreachable!("{NO_RANGES}"),
        }
    }

    fn put(&mut self, storage: StorageId, buffer: HostBuffer) {
        match self.plan.storages[storage].place {
            Place::Leaf(leaf) => self.leaves[leaf] = Storage::host(buffer),
            Place::Host => unreachable!("nothing writes the host's words"),
            Place::Output(k) => self.outputs[k] = buffer,
            Place::Slot(rank) => self.slots[rank] = buffer,
            Place::Unplaced => unreachable!("{PLACED}"),
            Place::Range { .. } => unreachable!("{NO_RANGES}"),
        }
    }

    /// Fails if a kernel gets no scratch memory, or returns another error. Results of earlier steps stay written.
    fn step<T: Real>(&mut self, step: &Step, host: &[HostWord], poison: bool) -> Result<()> {
        let mut written: Vec<_> = step.outputs.iter().map(|&(storage, _)| self.take(storage)).collect();
        // The part of its buffer that each result has.
        let part = |k: usize| {
            let begin = step.binding_offset(Binding::Output(k));
            begin..begin + step.outputs[k].1.shape.elements()
        };
        if poison {
            let fresh = written.iter_mut().enumerate();
            let fresh = fresh.filter(|(k, _)| step.reads().all(|read| read != step.outputs[*k].0));
            fresh.for_each(|(k, buffer)| buffer.poison(part(k)));
        }
        let mut outputs: Vec<_> = written
            .iter_mut()
            .enumerate()
            .map(|(k, buffer)| match buffer {
                HostBuffer::U32(data) => OutView::Index(&mut data[part(k)]),
                HostBuffer::I32(data) => OutView::Int(&mut data[part(k)]),
                HostBuffer::I64(data) => OutView::Long(&mut data[part(k)]),
                floats => OutView::Float(&mut T::slice_mut(floats)[part(k)]),
            })
            .collect();
        let view = |input: &crate::plan::Operand| {
            let data = match self.buffer(input.storage) {
                HostBuffer::U32(data) => Slice::Index(&data[..]),
                HostBuffer::I32(data) => Slice::Int(&data[..]),
                HostBuffer::I64(data) => Slice::Long(&data[..]),
                floats => Slice::Float(T::slice(floats)),
            };
            View::new(data, input.argument.layout)
        };
        match &step.work {
            Work::Kernel(kernel) => {
                let inputs: Vec<_> = step.inputs.iter().map(view).collect();
                match &kernel.store {
                    None => kernel.op.cpu(&inputs, &mut outputs, &self.scratch),
                    Some(program) => {
                        let sources: Vec<_> = inputs.iter().map(|&view| pointwise::Source::View(view)).collect();
                        let (affine, rest) = Affine::chain(program, &sources, host);
                        let epilogue = pointwise::Epilogue::new(affine, rest.as_deref(), &sources, host);
                        let own = &inputs[..kernel.elementwise];
                        kernel.op.cpu_finishing(own, &mut outputs, &epilogue, &self.scratch);
                    }
                }
            }
            Work::Pointwise(program) => {
                // An operand that is updated in place is read through the result.
                let updated = |storage| step.outputs.iter().position(|&(output, _)| output == storage);
                let inputs = step.inputs.iter().map(|input| match updated(input.storage) {
                    Some(result) => pointwise::Source::Updated(result),
                    None => pointwise::Source::View(view(input)),
                });
                pointwise::run(program, inputs.collect(), host, &mut outputs, &self.scratch);
            }
        }
        for (&(storage, _), buffer) in step.outputs.iter().zip(written) {
            self.put(storage, buffer);
        }
        self.scratch.expect_done().map_err(|error| step.explain(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_of_what_is_held_at_one_time() {
        let cpu = Cpu::default();
        // Two plans that replace each other's slot, by one of another type and size.
        for (before, after) in [(0, 100), (100, 40), (40, 100), (100, 40)] {
            cpu.count(before, after);
        }
        assert_eq!(cpu.peak_bytes(), 100);
        cpu.count(0, 70);
        assert_eq!(cpu.peak_bytes(), 110);
    }
}
