//! Pipelines: compiled in parallel, and cached by their WGSL.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use web_time::Instant;

use super::recording::Pipeline;
use super::vulkan::Vulkan;
use super::{Faults, Inner, fault, lock};
use crate::executor::PipelineCache;
use crate::kernel::launch::{BF16_UNITS, Launch};
use crate::{Error, ErrorKind, Result};

/// The number of cached pipelines, used ones included, above which all unused ones are evicted.
const PIPELINES_KEPT: usize = 1024;

/// The source of a pipeline.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Source {
    pub(super) wgsl: String,
    /// `true` if every access is bounds-checked and every loop is bounded.
    pub(super) checked: bool,
    /// `true` if workgroup memory is zero-initialised. This project's kernels write it before they read it.
    pub(super) zeroed: bool,
    /// `true` if `f16` in the text stands for bf16.
    pub(super) bf16: bool,
}

impl Source {
    /// The source of a launch; `checked` adds checks even if the kernel needs none.
    pub(super) fn new(launch: &Launch, checked: bool) -> Result<Self> {
        let defines: Vec<_> = launch.defines.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let source = Self::expand(launch.kernel, &defines, checked)?;
        let bounded =
            launch.workgroups.loops > 0 || !meganeura_shaders::is_trusted(launch.kernel) || !has_loop(&source.wgsl);
        debug_assert!(bounded, "kernel {} has a loop, and its launch does not say how long it is", launch.kernel);
        Ok(source)
    }

    pub(super) fn expand(kernel: &str, defines: &[(&str, &str)], checked: bool) -> Result<Self> {
        let wgsl = meganeura_shaders::expand(kernel, defines).map_err(|error| {
            Error::new(ErrorKind::Device, format!("kernel {kernel} does not expand: {error}")).caused_by(error)
        })?;
        let trusted = meganeura_shaders::is_trusted(kernel);
        let bf16 = defines.iter().any(|(name, _)| *name == BF16_UNITS);
        Ok(Self { wgsl, checked: checked || !trusted, zeroed: !trusted, bf16 })
    }
}

/// The results of `work` for each item, computed by as many threads as there are cores. Items are taken in order.
pub(super) fn side_by_side<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let take = || {
        let next = || next.fetch_add(1, Ordering::Relaxed);
        let made = std::iter::from_fn(|| Some(next()).and_then(|at| Some((at, work(items.get(at)?)))));
        made.collect::<Vec<_>>()
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(items.len());
    let mut made = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(take)).collect();
        let joined = others.into_iter().map(|thread| thread.join().unwrap_or_else(|why| resume_unwind(why)));
        take().into_iter().chain(joined.flatten()).collect::<Vec<_>>()
    });
    made.sort_unstable_by_key(|&(at, _)| at);
    made.into_iter().map(|(_, made)| made).collect()
}

/// Runs `work`, with `beside` in parallel where there are threads.
pub(super) fn meanwhile<R>(beside: impl FnOnce() + Send, work: impl FnOnce() -> R) -> R {
    if cfg!(target_family = "wasm") {
        beside();
        return work();
    }
    std::thread::scope(|scope| {
        scope.spawn(beside);
        work()
    })
}

/// `true` if a module has loops, in the spelling of this project's kernels.
fn has_loop(wgsl: &str) -> bool {
    wgsl.lines().any(|line| ["for (", "while ", "loop {"].iter().any(|word| line.trim_start().starts_with(word)))
}

/// The pipelines of an adapter.
#[derive(Default)]
pub(super) struct Pipelines {
    known: Mutex<HashMap<Source, Arc<Pipeline>>>,
    counts: Mutex<(u64, Duration)>,
}

/// Statistics of the compiled pipelines.
pub(crate) struct PipelineCounts {
    pub(crate) pipelines: u64,
    pub(crate) time: Duration,
    /// The state of the cache on disk when the adapter was opened.
    pub(crate) cache: PipelineCache,
    /// The number of failed attempts to write the cache.
    pub(crate) failures: u64,
}

impl Pipelines {
    /// Evicts unused entries when there are too many.
    fn evict<T>(known: &mut HashMap<Source, Arc<T>>, kept: usize) {
        if known.len() > kept {
            known.retain(|_, pipeline| Arc::strong_count(pipeline) > 1);
        }
    }
}

impl Inner {
    pub(super) fn pipeline_counts(&self) -> PipelineCounts {
        let (pipelines, time) = *lock(&self.pipelines.counts);
        let (cache, failures) = self.vulkan.as_ref().map_or((PipelineCache::Off, 0), Vulkan::cache);
        PipelineCounts { pipelines, time, cache, failures }
    }

    /// The pipeline of each source. Missing ones are compiled in parallel, without blocking other threads; if shapes
    /// vary, as kernels that serve several.
    pub(super) fn pipelines(&self, sources: &[Source], shapes_vary: bool) -> Result<Vec<Arc<Pipeline>>> {
        let mut found: BTreeMap<&Source, Arc<_>> = {
            let known = lock(&self.pipelines.known);
            sources.iter().filter_map(|source| Some((source, Arc::clone(known.get(source)?)))).collect()
        };
        let missing: BTreeSet<&Source> = sources.iter().filter(|source| !found.contains_key(source)).collect();
        if !missing.is_empty() {
            found.append(&mut self.compile(&missing.into_iter().collect::<Vec<_>>(), shapes_vary)?);
        }
        Ok(sources.iter().map(|source| Arc::clone(&found[source])).collect())
    }

    fn compile<'a>(&self, missing: &[&'a Source], shapes_vary: bool) -> Result<BTreeMap<&'a Source, Arc<Pipeline>>> {
        let start = Instant::now();
        // The longest first, so that no long one is left at the end for all threads to wait for.
        let mut missing = missing.to_vec();
        missing.sort_by_key(|source| Reverse(source.wgsl.len()));
        let (mut made, mut compiled, mut refused) = (BTreeMap::new(), 0, None);
        let pipelines = side_by_side(&missing, |source| self.pipeline(source, shapes_vary));
        for (&source, pipeline) in missing.iter().zip(pipelines) {
            match pipeline {
                Ok((pipeline, is_new)) => {
                    compiled += u64::from(is_new);
                    made.insert(source, Arc::new(pipeline));
                }
                Err(error) => drop(refused.get_or_insert(error)),
            }
        }
        {
            let mut known = lock(&self.pipelines.known);
            // Dynamic ones are found by their structure.
            let specific = made.iter().filter(|(_, pipeline)| !pipeline.is_dynamic());
            known.extend(specific.map(|(&source, pipeline)| (source.clone(), Arc::clone(pipeline))));
            Pipelines::evict(&mut known, PIPELINES_KEPT);
        }
        {
            let mut counts = lock(&self.pipelines.counts);
            *counts = (counts.0 + compiled, counts.1 + start.elapsed());
        }
        if let Some(vulkan) = &self.vulkan {
            vulkan.save();
        }
        match refused {
            Some(error) => Err(error),
            None => self.check().map(|()| made),
        }
    }

    /// The pipeline of a source, and `true` if a kernel was compiled for it.
    pub(super) fn pipeline(&self, source: &Source, shapes_vary: bool) -> Result<(Pipeline, bool)> {
        match &self.vulkan {
            Some(vulkan) => {
                let (pipeline, is_new) = vulkan.pipeline(source, shapes_vary)?;
                Ok((Pipeline::Vulkan(pipeline), is_new))
            }
            None => Ok((Pipeline::Wgpu(self.wgpu_pipeline(source)?), true)),
        }
    }

    fn wgpu_pipeline(&self, source: &Source) -> Result<wgpu::ComputePipeline> {
        // Error scopes are per thread, so other threads' faults are not attributed to this kernel.
        let filters = [wgpu::ErrorFilter::Internal, wgpu::ErrorFilter::OutOfMemory, wgpu::ErrorFilter::Validation];
        let scopes = filters.map(|filter| self.device.push_error_scope(filter));
        let descriptor =
            wgpu::ShaderModuleDescriptor { label: None, source: wgpu::ShaderSource::Wgsl(source.wgsl.as_str().into()) };
        let mut checks = wgpu::ShaderRuntimeChecks::checked();
        if !source.checked {
            checks.bounds_checks = false;
            checks.force_loop_bounding = false;
        }
        // SAFETY: checks are left out only for kernels that stay inside their buffers and end their loops whatever the
        // buffers contain. The list of these is in the shaders crate, and this project's launches set their defines.
        let module = unsafe { self.device.create_shader_module_trusted(descriptor, checks) };
        let pipeline = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: None,
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions {
                zero_initialize_workgroup_memory: source.zeroed,
                ..wgpu::PipelineCompilationOptions::default()
            },
            cache: None,
        });
        // Innermost first, and every one of them.
        let faults = scopes.into_iter().rev().filter_map(|scope| Faults::caught(&self.faults, scope));
        let faults: Vec<_> = faults.collect();
        faults.into_iter().next().map_or(Ok(pipeline), |error| Err(fault(error)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipelines_in_use_are_not_evicted() {
        let source = |at: usize| Source { wgsl: at.to_string(), checked: true, zeroed: true, bf16: false };
        let mut known: HashMap<_, _> = (0..10).map(|at| (source(at), Arc::new(at))).collect();
        let used: Vec<_> = [3, 7].iter().map(|&at| Arc::clone(&known[&source(at)])).collect();
        Pipelines::evict(&mut known, 10);
        assert_eq!(known.len(), 10);
        Pipelines::evict(&mut known, 9);
        assert!(known.len() == 2 && used.iter().all(|at| known.contains_key(&source(**at))));
    }
}
