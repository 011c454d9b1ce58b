//! MSL, with the options of wgpu-hal 30 (`metal/device.rs`).

use naga::back::msl::{BindTarget, EntryPointResourceMap, EntryPointResources, Options, PipelineOptions, write_string};
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};

use crate::{Guard, Kernel};

/// The versions of macOS 12 and 26.
pub(crate) const VERSIONS: [(u8, u8); 2] = [(2, 4), (4, 0)];

pub(crate) fn write(kernel: &Kernel, guard: Guard, lang_version: (u8, u8)) -> Result<String, String> {
    let mut resources = EntryPointResources::default();
    for (slot, (binding, mutable)) in (0..).zip(kernel.buffers()) {
        resources.resources.insert(binding, BindTarget { buffer: Some(slot), mutable, ..BindTarget::default() });
    }
    // wgpu passes the buffers' sizes in an extra buffer.
    resources.sizes_buffer = Some(kernel.needs.buffers as u8);
    let policy = if guard.checks() { BoundsCheckPolicy::Restrict } else { BoundsCheckPolicy::Unchecked };
    let options = Options {
        lang_version,
        per_entry_point_map: EntryPointResourceMap::from([("main".to_owned(), resources)]),
        spirv_cross_compatibility: false,
        fake_missing_bindings: false,
        bounds_check_policies: BoundsCheckPolicies {
            index: policy,
            buffer: policy,
            image_load: policy,
            binding_array: BoundsCheckPolicy::Unchecked,
        },
        zero_initialize_workgroup_memory: guard.checks(),
        force_loop_bounding: guard.checks(),
        emit_int_div_checks: true,
        ..Options::default()
    };
    let pipeline = PipelineOptions {
        entry_point: Some((naga::ShaderStage::Compute, "main".to_owned())),
        vertex_pulling_transform: true,
        ..PipelineOptions::default()
    };
    let (text, info) =
        write_string(&kernel.module, &kernel.info, &options, &pipeline).map_err(|error| error.to_string())?;
    // Unsupported bindings are errors of the entry point, not of the module.
    info.entry_point_names[0].as_ref().map_err(ToString::to_string)?;
    Ok(text)
}
