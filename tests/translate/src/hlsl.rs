//! HLSL, with the options of wgpu-hal 30 (`dx12/device.rs`).

use naga::back::hlsl::{BindTarget, Options, PipelineOptions, ShaderModel, Writer};

use crate::{Guard, Kernel, Needs};

/// wgpu uses 5.1 with FXC, Windows' own compiler, and 6.0 or later with DXC.
pub(crate) const MODELS: [ShaderModel; 3] = [ShaderModel::V5_1, ShaderModel::V6_0, ShaderModel::V6_2];

/// Bytes of workgroup memory on DirectX 12.
const WORKGROUP_MEMORY: usize = 32_768;

/// `true` if a kernel with these needs is written for a shader model. A kernel that 6.0 can run is not written for 6.2.
pub(crate) fn has(model: ShaderModel, needs: &Needs) -> bool {
    let has = match model {
        ShaderModel::V5_1 => !needs.f16 && !needs.subgroups,
        ShaderModel::V6_0 => !needs.f16,
        _ => needs.f16,
    };
    has && needs.workgroup_memory <= WORKGROUP_MEMORY
}

pub(crate) fn write(kernel: &Kernel, guard: Guard, shader_model: ShaderModel) -> Result<String, String> {
    // Read-only buffers and writable buffers are numbered separately.
    let (mut read, mut written) = (BindTarget::default(), BindTarget::default());
    let bind = |(binding, writes)| {
        let next = if writes { &mut written } else { &mut read };
        let target = *next;
        next.register += 1;
        (binding, target)
    };
    let options = Options {
        shader_model,
        binding_map: kernel.buffers().map(bind).collect(),
        fake_missing_bindings: false,
        // The number of workgroups.
        special_constants_binding: Some(BindTarget::default()),
        zero_initialize_workgroup_memory: guard.checks(),
        restrict_indexing: guard.checks(),
        force_loop_bounding: guard.checks(),
        ..Options::default()
    };
    let pipeline = PipelineOptions { entry_point: Some((naga::ShaderStage::Compute, "main".to_owned())) };
    let mut text = String::new();
    let mut writer = Writer::new(&mut text, &options, &pipeline);
    let info = writer.write(&kernel.module, &kernel.info, None).map_err(|error| error.to_string())?;
    info.entry_point_names[0].as_ref().map_err(ToString::to_string)?;
    Ok(text)
}
