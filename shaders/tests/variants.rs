//! Expands every variant that `variants.txt` names, and lets naga parse and validate it.

use std::collections::BTreeSet;

use meganeura_shaders::{expand, kernels};
use naga::{
    ShaderStage,
    back::spv,
    proc::{BoundsCheckPolicies, BoundsCheckPolicy},
    valid::{Capabilities, ValidationFlags, Validator},
};

/// What kernels on matrix units need.
const MATRIX: Capabilities = Capabilities::SHADER_FLOAT16.union(Capabilities::COOPERATIVE_MATRIX);

struct Variant {
    kernel: String,
    defines: Vec<(String, String)>,
}

impl Variant {
    fn expand(&self) -> String {
        let defines: Vec<_> = self.defines.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        expand(&self.kernel, &defines).unwrap_or_else(|error| panic!("{error}"))
    }
}

fn variants() -> Vec<Variant> {
    let mut variants: Vec<Variant> = Vec::new();
    for line in include_str!("../variants.txt").lines() {
        let mut words = words(line).into_iter();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if !line.starts_with(' ') {
            let kernel = words.next().expect("the line is not empty");
            variants.push(Variant { kernel, defines: Vec::new() });
        }
        let variant = variants.last_mut().expect("the first variant is not indented");
        for word in words {
            let (name, value) = word.split_once('=').unwrap_or_else(|| panic!("`{word}` is not NAME=value"));
            variant.defines.push((name.to_owned(), value.to_owned()));
        }
    }
    variants
}

/// Splits at blanks that are not between double quotes, and drops the quotes.
fn words(line: &str) -> Vec<String> {
    let mut quoted = false;
    line.split(|character: char| {
        quoted ^= character == '"';
        character == ' ' && !quoted
    })
    .filter(|word| !word.is_empty())
    .map(|word| word.replace('"', ""))
    .collect()
}

#[test]
fn every_kernel_has_a_variant() {
    let named: BTreeSet<_> = variants().into_iter().map(|variant| variant.kernel).collect();
    let existing: BTreeSet<_> = kernels().map(str::to_owned).collect();
    assert_eq!(named, existing);
}

#[test]
fn every_variant_is_valid() {
    for variant in variants() {
        let wgsl = variant.expand();
        let module = naga::front::wgsl::parse_str(&wgsl)
            .unwrap_or_else(|error| panic!("{}", error.emit_to_string_with_path(&wgsl, &variant.kernel)));
        let features = if wgsl.contains("enable wgpu_cooperative_matrix;") { MATRIX } else { Capabilities::empty() };
        let info = Validator::new(ValidationFlags::all(), Capabilities::default() | features)
            .validate(&module)
            .unwrap_or_else(|error| panic!("{}", error.emit_to_string_with_path(&wgsl, &variant.kernel)));
        // What validates is not always what the writer takes, with or without checks of accesses.
        for policy in [BoundsCheckPolicy::Unchecked, BoundsCheckPolicy::Restrict] {
            let bounds_check_policies = BoundsCheckPolicies { index: policy, buffer: policy, ..Default::default() };
            let options = spv::Options { bounds_check_policies, ..spv::Options::default() };
            let spirv = spv::write_vec(&module, &info, &options, None);
            assert!(spirv.is_ok(), "{}: {spirv:?}", variant.kernel);
        }

        let [entry] = module.entry_points.as_slice() else {
            panic!("{}: one entry point", variant.kernel);
        };
        assert_eq!((entry.name.as_str(), entry.stage), ("main", ShaderStage::Compute), "{}", variant.kernel);
        let invocations: u32 = entry.workgroup_size.iter().product();
        assert!(invocations <= 256, "{}: {invocations} invocations a workgroup", variant.kernel);
        assert!(workgroup_bytes(&module) <= 16 << 10, "{}: {} bytes", variant.kernel, workgroup_bytes(&module));
        assert_bindings(&variant.kernel, &module);
    }
}

fn workgroup_bytes(module: &naga::Module) -> u32 {
    let mut layouter = naga::proc::Layouter::default();
    layouter.update(module.to_ctx()).expect("the module is valid");
    let shared = module.global_variables.iter().map(|(_, variable)| variable);
    shared
        .filter(|variable| variable.space == naga::AddressSpace::WorkGroup)
        .map(|variable| layouter[variable.ty].size)
        .sum()
}

/// Bindings are 0, 1, … of group 0, first those that are read, then those that are written.
fn assert_bindings(kernel: &str, module: &naga::Module) {
    let mut bindings: Vec<_> = module
        .global_variables
        .iter()
        .filter_map(|(_, variable)| Some((variable.binding?, variable.space)))
        .map(|(binding, space)| {
            let naga::AddressSpace::Storage { access } = space else {
                panic!("{kernel}: a binding that is not a storage buffer");
            };
            (binding.group, binding.binding, access.contains(naga::StorageAccess::STORE))
        })
        .collect();
    bindings.sort_unstable();
    let inputs = bindings.iter().filter(|(_, _, written)| !written).count();
    for (index, (group, binding, written)) in bindings.into_iter().enumerate() {
        assert_eq!((group, binding as usize, written), (0, index, index >= inputs), "{kernel}: binding {index}");
    }
}
