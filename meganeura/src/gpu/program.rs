//! Plans as pipelines, and running them: one command buffer, one compute pass.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::memory::Buffer;
use super::{Gpu, Inner, fault, lock};
use crate::error::bail;
use crate::kernel::launch::{Binding, Launch};
use crate::plan::{Bindings, HostWord, Place, Plan, Step, StorageId};
use crate::tensor::Storage;
use crate::{Error, ErrorKind, Result};

/// Bind groups kept for each launch: a step alternates between few sets of buffers.
const BIND_GROUPS_KEPT: usize = 4;

/// A plan's launches, compiled.
pub(crate) struct Executable {
    launches: Vec<Compiled>,
}

struct Compiled {
    pipeline: Arc<wgpu::ComputePipeline>,
    /// The storage of each binding, and the bytes of it that are bound.
    storages: Vec<(StorageId, u64)>,
    grid: (u32, u32),
    bind_groups: Mutex<Vec<(Vec<u64>, wgpu::BindGroup)>>,
}

/// Pipelines by the WGSL that they were made from.
#[derive(Default)]
pub(super) struct Pipelines(Mutex<HashMap<String, Arc<wgpu::ComputePipeline>>>);

/// Buffers that runs share.
#[derive(Default)]
pub(super) struct Arena {
    slots: Vec<Arc<Buffer>>,
    host: Option<Arc<Buffer>>,
}

/// The WGSL of a launch.
fn source(launch: &Launch) -> Result<String> {
    let defines: Vec<_> = launch.defines.iter().map(|(name, value)| (*name, value.as_str())).collect();
    meganeura_shaders::expand(launch.kernel, &defines).map_err(|error| {
        Error::new(ErrorKind::Device, format!("kernel {} does not expand: {error}", launch.kernel)).caused_by(error)
    })
}

/// A grid of at least `workgroups`, folded where one dimension does not reach.
fn fold(workgroups: usize, most: u32) -> Option<(u32, u32)> {
    let workgroups = u32::try_from(workgroups).ok()?.max(1);
    let rows = workgroups.div_ceil(most);
    (rows <= most).then(|| (workgroups.div_ceil(rows), rows))
}

impl Gpu {
    /// Compiles the launches of a plan; kernels that no plan needed before are compiled side by side.
    pub(crate) fn compile(&self, plan: &Plan) -> Result<Executable> {
        // Shaders could not even spell the extents of what does not fit.
        for (storage, info) in plan.storages.iter().enumerate() {
            self.expect_fits(info.bytes()).map_err(|error| plan.blame(storage, error))?;
        }
        let launches: Vec<(&Step, &Launch)> =
            plan.steps.iter().flat_map(|step| step.launches.iter().map(move |launch| (step, launch))).collect();
        let sources = launches.iter().map(|(_, launch)| source(launch)).collect::<Result<Vec<_>>>()?;
        self.compile_missing(&sources)?;
        let pipelines = lock(&self.0.pipelines.0);
        let most = self.0.limits.max_compute_workgroups_per_dimension;
        let compiled = launches.iter().zip(&sources).map(|((step, launch), source)| {
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
            let pipeline = Arc::clone(&pipelines[source]);
            Ok(Compiled { pipeline, storages, grid, bind_groups: Mutex::default() })
        });
        Ok(Executable { launches: compiled.collect::<Result<_>>()? })
    }

    fn compile_missing(&self, sources: &[String]) -> Result<()> {
        let mut missing: Vec<&String> = {
            let known = lock(&self.0.pipelines.0);
            sources.iter().filter(|source| !known.contains_key(*source)).collect()
        };
        missing.sort_unstable();
        missing.dedup();
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(missing.len());
        let next = std::sync::atomic::AtomicUsize::new(0);
        let refused = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while let Some(source) = missing.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
                        match self.0.pipeline(source) {
                            Ok(pipeline) => {
                                lock(&self.0.pipelines.0).insert((*source).clone(), Arc::new(pipeline));
                            }
                            Err(error) => lock(&refused).push(error),
                        }
                    }
                });
            }
        });
        match refused.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).pop() {
            Some(error) => Err(error),
            None => self.0.check(),
        }
    }

    /// Runs a compiled plan; the storages of its outputs.
    pub(crate) fn run(
        &self,
        plan: &Plan,
        executable: &Executable,
        bindings: &mut Bindings<'_>,
        poison: bool,
    ) -> Result<Vec<Storage>> {
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
        let mut encoder = self.0.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        let mut last: Option<&Arc<wgpu::ComputePipeline>> = None;
        for launch in &executable.launches {
            let bound: Vec<(&Buffer, u64)> = launch
                .storages
                .iter()
                .map(|&(storage, bytes)| match storage {
                    StorageId::MAX => {
                        let host = host.as_deref().expect("kernels read host words only where there are some");
                        (host, host.raw().size())
                    }
                    storage => (buffers[storage].as_deref().expect("every bound storage has memory"), bytes),
                })
                .collect();
            if last.is_none_or(|last| !Arc::ptr_eq(last, &launch.pipeline)) {
                pass.set_pipeline(&launch.pipeline);
                last = Some(&launch.pipeline);
            }
            pass.set_bind_group(0, &launch.bind_group(&self.0.device, &bound), &[]);
            pass.dispatch_workgroups(launch.grid.0, launch.grid.1, 1);
        }
        drop(pass);
        self.0.submit(encoder.finish());
        Ok(outputs.into_iter().map(Storage::Gpu).collect())
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
    fn pipeline(&self, source: &str) -> Result<wgpu::ComputePipeline> {
        // Scopes belong to the thread: another thread's faults are not this kernel's.
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let module = self.device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: None,
            source: wgpu::ShaderSource::Wgsl(source.into()),
        });
        let pipeline = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: None,
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions::default(),
            cache: None,
        });
        pollster::block_on(scope.pop()).map_or(Ok(pipeline), |error| Err(fault(error)))
    }

    /// For tests: what a kernel leaves unwritten shows.
    fn fill_with_nan(&self, buffer: &Buffer) {
        let words = usize::try_from(buffer.raw().size() / 4).expect("buffers of tests are small");
        self.queue.write_buffer(buffer.raw(), 0, bytemuck::cast_slice(&vec![f32::NAN; words]));
    }
}

impl Compiled {
    fn bind_group(&self, device: &wgpu::Device, bound: &[(&Buffer, u64)]) -> wgpu::BindGroup {
        let ids = || bound.iter().map(|(buffer, _)| buffer.id());
        let mut kept = lock(&self.bind_groups);
        if let Some((_, group)) = kept.iter().find(|(known, _)| known.iter().copied().eq(ids())) {
            return group.clone();
        }
        let entries: Vec<_> = (0..)
            .zip(bound)
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
        kept.push((ids().collect(), group.clone()));
        group
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
