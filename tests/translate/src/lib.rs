//! Kernels for Metal and DirectX 12, where no tests run: naga translates their WGSL with wgpu 30's options.
//!
//! If [`FOLDER`] is set, the translations are also written to that folder: kernels that every WebGPU device can run to
//! `baseline/`, those that need more to `beyond/`, and those on cooperative matrices to `matrices/`. `cargo xtask
//! kernels` sets it, and passes the files to other compilers: Chrome's Tint and DirectX's DXC.

mod hlsl;
mod msl;
mod needs;
mod text;

use std::fs;
use std::path::PathBuf;

use naga::valid::{Capabilities, ModuleInfo, ShaderStages, SubgroupOperationSet, ValidationFlags, Validator};

pub use needs::{BASELINE, Needs};
pub use text::without_numbers;

/// The environment variable with the folder that kernels are written to.
pub const FOLDER: &str = "MEGANEURA_KERNELS";

/// `true` if translations are to be written to a folder.
#[must_use]
pub fn saves() -> bool {
    std::env::var_os(FOLDER).is_some()
}

/// The checks that wgpu adds to a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Guard {
    /// Users' kernels: every access is bounds-checked, every loop is bounded, and workgroup memory starts as zeros.
    Checked,
    /// Kernels that the shaders crate trusts: no such checks.
    Trusted,
}

impl Guard {
    /// The checks of a kernel as users run it.
    #[must_use]
    pub fn of(is_trusted: bool) -> Self {
        if is_trusted { Self::Trusted } else { Self::Checked }
    }

    fn checks(self) -> bool {
        self == Self::Checked
    }
}

fn parse(name: &str, wgsl: &str) -> Result<naga::Module, String> {
    naga::front::wgsl::parse_str(wgsl).map_err(|error| error.emit_to_string_with_path(wgsl, name))
}

/// A kernel that naga read and validated.
#[derive(Debug)]
pub struct Kernel {
    name: String,
    wgsl: String,
    module: naga::Module,
    info: ModuleInfo,
    needs: Needs,
}

impl Kernel {
    /// Reads a kernel.
    ///
    /// # Errors
    ///
    /// If it is not valid WGSL; the message shows the line.
    pub fn read(name: &str, wgsl: &str) -> Result<Self, String> {
        let module = parse(name, wgsl)?;
        let mut validator = Validator::new(ValidationFlags::all(), Capabilities::all());
        validator.subgroup_stages(ShaderStages::COMPUTE).subgroup_operations(SubgroupOperationSet::all());
        let info = validator.validate(&module).map_err(|error| error.emit_to_string_with_path(wgsl, name))?;
        let needs = Needs::of(&module)?;
        Ok(Self { name: name.to_owned(), wgsl: wgsl.to_owned(), module, info, needs })
    }

    /// The device requirements.
    #[must_use]
    pub fn needs(&self) -> &Needs {
        &self.needs
    }

    /// Translates the kernel with each of these guards: to MSL of an old and of the newest version, and to HLSL of each
    /// shader model that has what the kernel needs. Kernels on matrix units are not translated, because naga writes
    /// those only for Vulkan. With the last guard, also writes files if requested.
    ///
    /// # Errors
    ///
    /// If naga cannot write the kernel in one of these languages.
    pub fn translate(&self, guards: &[Guard]) -> Result<(), String> {
        let context = |language: &str, error: String| format!("kernel {} in {language}: {error}", self.name);
        let (mut metal, mut direct) = (None, None);
        for &guard in guards.iter().filter(|_| !self.needs.matrices) {
            for version in msl::VERSIONS {
                metal = Some(msl::write(self, guard, version).map_err(|error| context("MSL", error))?);
            }
            for model in hlsl::MODELS.into_iter().filter(|model| hlsl::has(*model, &self.needs)) {
                direct = Some(hlsl::write(self, guard, model).map_err(|error| context("HLSL", error))?);
            }
        }
        let texts = [("wgsl", Some(&self.wgsl)), ("metal", metal.as_ref()), ("hlsl", direct.as_ref())];
        self.save(texts).map_err(|error| context("a file", error.to_string()))
    }

    fn save(&self, texts: [(&str, Option<&String>); 3]) -> std::io::Result<()> {
        let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return Ok(()) };
        let digest = blake3::hash(self.wgsl.as_bytes()).to_hex();
        let folder = folder.join(match self.needs {
            Needs { matrices: true, .. } => "matrices",
            needs if needs.within(&BASELINE) => "baseline",
            _ => "beyond",
        });
        fs::create_dir_all(&folder)?;
        let path = folder.join(format!("{}-{}", self.name, &digest[..16]));
        let texts = texts.into_iter().filter_map(|(extension, text)| Some((extension, text?)));
        texts.into_iter().try_for_each(|(extension, text)| fs::write(path.with_extension(extension), text))
    }

    /// The binding of each buffer, and `true` if the kernel writes it.
    fn buffers(&self) -> impl Iterator<Item = (naga::ResourceBinding, bool)> {
        self.module.global_variables.iter().filter_map(|(_, variable)| match variable.space {
            naga::AddressSpace::Storage { access } => {
                Some((variable.binding?, access.contains(naga::StorageAccess::STORE)))
            }
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUM: &str = "
        var<workgroup> shared_terms: array<f32, 64>;
        @group(0) @binding(0) var<storage, read> x: array<f32>;
        @group(0) @binding(1) var<storage, read_write> y: array<f32>;
        @compute @workgroup_size(64)
        fn main(
            @builtin(workgroup_id) id: vec3<u32>,
            @builtin(num_workgroups) n: vec3<u32>,
            @builtin(local_invocation_index) lane: u32,
        ) {
            let at = id.x + id.y * n.x;
            shared_terms[lane] = x[at * 64u + lane];
            workgroupBarrier();
            if lane == 0u {
                var sum = 0.0;
                for (var i = 0u; i < 64u; i++) { sum += shared_terms[i]; }
                y[at] = sum;
            }
        }";

    #[test]
    fn needs_are_counted() {
        let kernel = Kernel::read("sum", SUM).unwrap();
        let expected = Needs { buffers: 2, workgroup_memory: 256, invocations: 64, ..Needs::default() };
        assert_eq!(*kernel.needs(), expected);
        assert!(kernel.needs().within(&BASELINE));
        let large = SUM.replace("array<f32, 64>", "array<f32, 4097>");
        let kernel = Kernel::read("large", &large).unwrap();
        // Rounded up to 16 bytes.
        assert!(kernel.needs().workgroup_memory == 16_400 && !kernel.needs().within(&BASELINE));
        let f16 = format!("enable f16; alias Half = f16;{SUM}").replace("var sum = 0.0;", "var sum = f32(Half(0.0));");
        assert!(Kernel::read("f16", &f16).unwrap().needs().f16);
    }

    #[test]
    fn sizes_are_read_from_declarations() {
        let sum = *Kernel::read("sum", SUM).unwrap().needs();
        let large = SUM.replace("array<f32, 64>", "array<f32, 4097>").replace("size(64)", "size(32)");
        assert_eq!(without_numbers(SUM), without_numbers(&large));
        let expected = Kernel::read("large", &large).unwrap();
        assert_eq!(sum.with_sizes("large", &large).unwrap(), *expected.needs());
        let halves = Needs { f16: true, subgroups: true, matrices: true, ..sum };
        assert_eq!(halves.with_sizes("sum", SUM).unwrap(), halves);
    }

    #[test]
    fn guards_are_left_out_of_trusted_kernels() {
        let kernel = Kernel::read("sum", SUM).unwrap();
        let metal = [Guard::Checked, Guard::Trusted].map(|guard| msl::write(&kernel, guard, (2, 4)).unwrap());
        let direct =
            [Guard::Checked, Guard::Trusted].map(|guard| hlsl::write(&kernel, guard, hlsl::MODELS[1]).unwrap());
        for [checked, trusted] in [metal, direct] {
            assert!(checked.contains("loop_bound") && !trusted.contains("loop_bound"), "{checked}{trusted}");
            assert!(checked.contains("metal::min") == trusted.contains("kernel void"), "{checked}{trusted}");
            assert!(trusted.len() < checked.len());
        }
    }

    #[test]
    fn invalid_wgsl_is_refused() {
        let error = Kernel::read("broken", "fn main( {").unwrap_err();
        assert!(error.contains("broken:1:"), "{error}");
    }

    #[test]
    fn unsupported_bindings_are_refused() {
        let text = "@group(0) @binding(0) var<uniform> x: vec4<f32>;
            @group(0) @binding(1) var<storage, read_write> y: vec4<f32>;
            @compute @workgroup_size(32) fn main(@builtin(subgroup_size) size: u32) { y = x * f32(size); }";
        let kernel = Kernel::read("uniform", text).unwrap();
        assert!(kernel.needs().subgroups && !kernel.needs().within(&BASELINE));
        let metal = msl::write(&kernel, Guard::Checked, msl::VERSIONS[0]).unwrap_err();
        let direct = hlsl::write(&kernel, Guard::Checked, hlsl::MODELS[0]).unwrap_err();
        assert!(metal.contains("binding") && direct.contains("binding"), "{metal}; {direct}");
    }
}
