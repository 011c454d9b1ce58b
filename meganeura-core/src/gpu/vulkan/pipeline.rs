//! Pipelines: translates WGSL to SPIR-V, after the validation that wgpu would otherwise do.

use std::sync::Arc;

use ash::vk;
use naga::back::pipeline_constants::process_overrides;
use naga::back::{PipelineConstants, spv};
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::{AddressSpace, StorageAccess, valid};

use super::dynamic::{Numbers, Slots};
use super::families::Family;
use super::store::Store;
use super::{Layouts, Shared, Vulkan, bf16, fault, fragments, spirv};
use crate::error::bail;
use crate::gpu::lock;
use crate::gpu::pipelines::Source;
use crate::{Error, ErrorKind, Result};

/// A kernel for one shape.
pub(in crate::gpu) struct Pipeline {
    pub(super) kernel: Arc<Kernel>,
    pub(super) bindings: Vec<Binding>,
    /// The push constants that make the kernel one for this shape. Empty if it is compiled for this shape alone.
    pub(super) words: Box<[u32]>,
}

impl Pipeline {
    /// `true` if other shapes use the same kernel.
    pub(in crate::gpu) fn is_dynamic(&self) -> bool {
        !self.words.is_empty()
    }
}

/// A compiled kernel.
pub(super) struct Kernel {
    shared: Arc<Shared>,
    pub(super) raw: vk::Pipeline,
    pub(super) layouts: Layouts,
}

/// A buffer that a kernel binds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Binding {
    pub(super) writes: bool,
    /// The least size in bytes that the kernel's types need.
    pub(super) bytes: u64,
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // SAFETY: every recording keeps its pipelines, and is kept until it has run.
        unsafe { self.shared.raw.destroy_pipeline(self.raw, None) };
    }
}

/// The options for writing SPIR-V for a device that was opened with these features, the same as wgpu's.
pub(super) fn options(features: wgpu::Features, version: u32, robust: bool) -> spv::Options<'static> {
    use spv::Capability as C;

    let mut capabilities = vec![C::Shader, C::Matrix];
    if features.contains(wgpu::Features::SUBGROUP) {
        capabilities.extend([C::GroupNonUniform, C::GroupNonUniformVote, C::GroupNonUniformArithmetic]);
        capabilities.extend([C::GroupNonUniformBallot, C::GroupNonUniformShuffle]);
        capabilities.extend([C::GroupNonUniformShuffleRelative, C::GroupNonUniformQuad]);
    }
    if features.contains(wgpu::Features::SHADER_F16) {
        capabilities.push(C::Float16);
    }
    if features.contains(wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX) {
        capabilities.extend([C::CooperativeMatrixKHR, C::VulkanMemoryModel]);
    }
    spv::Options {
        lang_version: match (vk::api_version_major(version), vk::api_version_minor(version)) {
            (1, 0) => (1, 0),
            (1, 1) => (1, 3),
            (1, 2) => (1, 5),
            _ => (1, 6),
        },
        flags: spv::WriterFlags::empty(),
        capabilities: Some(capabilities.into_iter().collect()),
        bounds_check_policies: BoundsCheckPolicies {
            index: BoundsCheckPolicy::Restrict,
            // Otherwise the driver checks.
            buffer: if robust { BoundsCheckPolicy::Unchecked } else { BoundsCheckPolicy::Restrict },
            ..BoundsCheckPolicies::default()
        },
        zero_initialize_workgroup_memory: spv::ZeroInitializeWorkgroupMemoryMode::Polyfill,
        // For 16-bit values between the stages of a pipeline, but there is only one stage.
        use_storage_input_output_16: false,
        ..spv::Options::default()
    }
}

/// The capabilities of kernels on a device that was opened with these features.
pub(super) fn capabilities(features: wgpu::Features) -> valid::Capabilities {
    use valid::Capabilities as C;

    let table = [
        (wgpu::Features::SHADER_F16, C::SHADER_FLOAT16),
        (wgpu::Features::SUBGROUP, C::SUBGROUP | C::SUBGROUP_BARRIER),
        (wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX, C::COOPERATIVE_MATRIX),
    ];
    let allowed = table.iter().filter(|(feature, _)| features.contains(*feature));
    allowed.fold(C::SHADER_FLOAT16_IN_FLOAT32, |all, &(_, capability)| all | capability)
}

fn refused(error: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Device, format!("the kernel does not compile: {error}"))
}

/// Sets the constant of kernels that make use of additions in the order in which they are written: the device keeps to
/// it, because of [`spirv::without_contraction`].
fn promise_exact_sums(module: &mut naga::Module) {
    let mut constants = module.constants.iter_mut().map(|(_, constant)| constant);
    if let Some(promise) = constants.find(|constant| constant.name.as_deref() == Some("EXACT_SUMS")) {
        let yes = naga::Expression::Literal(naga::Literal::Bool(true));
        promise.init = module.global_expressions.append(yes, naga::Span::UNDEFINED);
    }
}

impl Vulkan {
    /// The pipeline of a source, and `true` if a kernel was compiled for it. If shapes vary, kernels serve several.
    pub(in crate::gpu) fn pipeline(&self, source: &Source, shapes_vary: bool) -> Result<(Pipeline, bool)> {
        let mut module =
            naga::front::wgsl::parse_str(&source.wgsl).map_err(|error| refused(error.emit_to_string(&source.wgsl)))?;
        promise_exact_sums(&mut module);
        let mut validator = valid::Validator::new(valid::ValidationFlags::all(), self.capabilities);
        validator.subgroup_stages(valid::ShaderStages::COMPUTE).subgroup_operations(valid::SubgroupOperationSet::all());
        let info = validator.validate(&module).map_err(|error| refused(error.emit_to_string(&source.wgsl)))?;
        let bindings = self.bindings(&module)?;
        self.expect_runs(&module)?;
        let numbers = Numbers::of(&module, (source.checked, source.zeroed, source.bf16));
        let family = self.families.of(&numbers);
        if shapes_vary {
            // Held meanwhile, so that other threads wait for the kernel instead of compiling it as well.
            let mut family = lock(&family);
            if let Some((kernel, words)) = family.find(&numbers.values) {
                return Ok((Pipeline { kernel, bindings, words }, false));
            }
            if let Some((kernel, words)) = self.dynamic(&mut family, source, &module, &numbers, bindings.len()) {
                family.note(&numbers.values);
                return Ok((Pipeline { kernel, bindings, words }, true));
            }
        }
        let kernel = Arc::new(self.kernel(source, &module, &info, bindings.len())?);
        lock(&family).note(&numbers.values);
        Ok((Pipeline { kernel, bindings, words: Box::default() }, true))
    }

    /// A new dynamic kernel that serves this shape and similar ones, with its push constants for this shape. `None` if
    /// there is no other shape yet, or if what differs must be compiled in.
    fn dynamic(
        &self,
        family: &mut Family,
        source: &Source,
        module: &naga::Module,
        numbers: &Numbers,
        buffers: usize,
    ) -> Option<(Arc<Kernel>, Box<[u32]>)> {
        let shapes = family.related(&numbers.values);
        let slots = Slots::new(&shapes.iter().map(|shape| &**shape).collect::<Vec<_>>())?;
        let words = slots.words(&numbers.values)?;
        let mut module = module.clone();
        slots.apply(&mut module)?;
        // The arguments are uniform, which the validator cannot know; without them, it found the control flow uniform.
        let flags = valid::ValidationFlags::all() - valid::ValidationFlags::CONTROL_FLOW_UNIFORMITY;
        let capabilities = self.capabilities | valid::Capabilities::IMMEDIATES;
        let mut validator = valid::Validator::new(flags, capabilities);
        validator.subgroup_stages(valid::ShaderStages::COMPUTE).subgroup_operations(valid::SubgroupOperationSet::all());
        let info = validator.validate(&module).ok()?;
        let kernel = Arc::new(self.kernel(source, &module, &info, buffers).ok()?);
        family.keep(slots, shapes, Arc::clone(&kernel));
        Some((kernel, words))
    }

    /// Compiles a module that binds this number of buffers.
    fn kernel(
        &self,
        source: &Source,
        module: &naga::Module,
        info: &valid::ModuleInfo,
        buffers: usize,
    ) -> Result<Kernel> {
        let mut options = self.spirv.clone();
        if !source.checked {
            options.bounds_check_policies = BoundsCheckPolicies {
                index: BoundsCheckPolicy::Unchecked,
                buffer: BoundsCheckPolicy::Unchecked,
                ..BoundsCheckPolicies::default()
            };
            options.force_loop_bounding = false;
        }
        if !source.zeroed {
            options.zero_initialize_workgroup_memory = spv::ZeroInitializeWorkgroupMemoryMode::None;
        }
        let in_registers = fragments::are_mapped(module);
        if in_registers {
            // The names of functions.
            options.flags |= spv::WriterFlags::DEBUG;
        }
        // A user's kernel may declare override constants; they keep their defaults.
        let constants = PipelineConstants::default();
        let (module, info) = process_overrides(module, info, None, &constants).map_err(refused)?;
        let words = spirv::without_contraction(&spv::write_vec(&module, &info, &options, None).map_err(refused)?);
        let words = spirv::with_ordering_subgroup_barriers(&words);
        let is_matrix = |(_, ty): (_, &naga::Type)| matches!(ty.inner, naga::TypeInner::CooperativeMatrix { .. });
        let words = if module.types.iter().any(is_matrix) { spirv::without_unrolling(&words) } else { words };
        let words = if source.bf16 { bf16::instead_of_f16(&words) } else { words };
        let words = if in_registers { fragments::in_registers(&words) } else { words };
        let layouts = self.shared.layouts(buffers)?;
        let raw = self.compile(&words, layouts)?;
        Ok(Kernel { shared: Arc::clone(&self.shared), raw, layouts })
    }

    fn compile(&self, words: &[u32], layouts: Layouts) -> Result<vk::Pipeline> {
        let device = &self.shared.raw;
        let mut flags = vk::PipelineShaderStageCreateFlags::empty();
        if self.varying_subgroups {
            flags |= vk::PipelineShaderStageCreateFlags::ALLOW_VARYING_SUBGROUP_SIZE;
        }
        let cache = self.kept.store().map_or(vk::PipelineCache::null(), Store::cache);
        // SAFETY: naga validated the module, and wrote it for the device's features. The module is needed only for this
        // call; the caller destroys the pipeline.
        unsafe {
            let description = vk::ShaderModuleCreateInfo::default().code(words);
            let module = device.create_shader_module(&description, None).map_err(fault)?;
            let stage = vk::PipelineShaderStageCreateInfo::default()
                .flags(flags)
                .stage(vk::ShaderStageFlags::COMPUTE)
                .module(module)
                .name(c"main");
            let description = vk::ComputePipelineCreateInfo::default().layout(layouts.pipeline).stage(stage);
            let made = device.create_compute_pipelines(cache, &[description], None);
            device.destroy_shader_module(module, None);
            made.map(|made| made[0]).map_err(|(_, error)| fault(error))
        }
    }

    /// The buffers of a kernel, by binding number. Refuses kernels with other bindings.
    fn bindings(&self, module: &naga::Module) -> Result<Vec<Binding>> {
        let bound = |space| !matches!(space, AddressSpace::Private | AddressSpace::WorkGroup | AddressSpace::Function);
        let mut bindings = Vec::new();
        for (_, variable) in module.global_variables.iter().filter(|(_, variable)| bound(variable.space)) {
            let name = variable.name.as_deref().unwrap_or("a variable");
            match (variable.space, &variable.binding) {
                (AddressSpace::Storage { access }, Some(at)) if at.group == 0 => {
                    let bytes = u64::from(module.types[variable.ty].inner.size(module.to_ctx()));
                    bindings.push((at.binding, Binding { writes: access.contains(StorageAccess::STORE), bytes }));
                }
                _ => bail!(Device, "a kernel may only bind storage buffers of group 0, and `{name}` is something else"),
            }
        }
        bindings.sort_by_key(|(number, _)| *number);
        if let Some((expected, _)) = (0..).zip(&bindings).find(|(expected, (number, _))| expected != number) {
            bail!(
                Device,
                "a kernel must number its {} bindings from 0 on, but number {expected} is missing",
                bindings.len()
            );
        }
        let most = self.limits.max_storage_buffers_per_shader_stage;
        if bindings.len() > most as usize {
            bail!(Device, "a kernel binds {} buffers, but the device allows {most}", bindings.len());
        }
        Ok(bindings.into_iter().map(|(_, binding)| binding).collect())
    }

    /// Refuses kernels that exceed the device's limits.
    fn expect_runs(&self, module: &naga::Module) -> Result<()> {
        let limits = &self.limits;
        let is_main = |entry: &&naga::EntryPoint| entry.name == "main" && entry.stage == naga::ShaderStage::Compute;
        let Some(main) = module.entry_points.iter().find(is_main) else {
            bail!(Device, "a kernel needs a compute shader `main`, but this one has none");
        };
        let most = [
            limits.max_compute_workgroup_size_x,
            limits.max_compute_workgroup_size_y,
            limits.max_compute_workgroup_size_z,
        ];
        let size = main.workgroup_size;
        let invocations = size.iter().map(|&extent| u64::from(extent)).product::<u64>();
        let fits = size.iter().zip(most).all(|(&extent, most)| (1..=most).contains(&extent));
        if !fits || invocations > u64::from(limits.max_compute_invocations_per_workgroup) {
            bail!(
                Device,
                "a kernel has workgroups of {size:?} invocations, but the device runs at most {most:?}, {} in all",
                limits.max_compute_invocations_per_workgroup
            );
        }
        let shared = module.global_variables.iter().filter(|(_, variable)| variable.space == AddressSpace::WorkGroup);
        let sizes = shared.map(|(_, variable)| u64::from(module.types[variable.ty].inner.size(module.to_ctx())));
        let bytes: u64 = sizes.map(|bytes| bytes.next_multiple_of(16)).sum();
        if bytes > u64::from(limits.max_compute_workgroup_storage_size) {
            bail!(
                Device,
                "a kernel needs {bytes} bytes of workgroup memory, but the device has {}",
                limits.max_compute_workgroup_storage_size
            );
        }
        Ok(())
    }
}
