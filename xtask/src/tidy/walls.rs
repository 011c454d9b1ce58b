//! Rules on who may know whom: data flows `nn -> tape -> ops -> plan -> {cpu, gpu}`, and no layer names one above it.

use super::File;
use super::code::crate_paths;

const SOURCES: &str = "meganeura/src/";
const ENGINES: [&str; 5] = ["tape", "grad", "plan", "cpu", "gpu"];

/// What is built from operations; nothing that operations are built from may know it.
const ABOVE: [&str; 10] = ["functions", "nn", "optim", "loss", "metric", "data", "io", "onnx", "run", "check"];

/// Modules and what they may not name besides [`ABOVE`].
const BELOW: [(&str, &[&str]); 8] = [
    ("tape", &["cpu", "gpu"]),
    ("grad", &["plan", "cpu", "gpu"]),
    ("ops", &["plan", "cpu", "gpu", "device"]),
    ("kernel", &["ops", "tape", "grad", "plan", "cpu", "gpu", "device"]),
    ("plan", &["tape", "cpu", "gpu"]),
    ("cpu", &["gpu"]),
    ("gpu", &["cpu"]),
    ("world", &["ops", "tape", "grad", "graph", "plan", "cpu", "gpu", "device", "tensor", "module", "param"]),
];

/// Modules of `ops/` that are no operation but a family of them, or what tests hold them to.
const FAMILIES: [&str; 3] = ["pointwise", "view", "case"];

pub fn wgpu_stays_in_gpu(file: &File<'_>) -> Vec<(usize, String)> {
    let Some(code) = file.code.filter(|_| !file.path.starts_with("meganeura/src/gpu/")) else { return Vec::new() };
    let names_wgpu = |line: &str| {
        line.match_indices("wgpu").any(|(at, _)| {
            let is_word = |c: char| c.is_alphanumeric() || c == '_';
            // `wgpu_core` and its like are wgpu as well.
            !line[..at].ends_with(is_word) && line[at..].trim_start_matches(is_word).starts_with("::")
        })
    };
    let lines = code.lines().enumerate().filter(|(_, line)| names_wgpu(line));
    lines.map(|(index, _)| (index + 1, "only meganeura/src/gpu may name `wgpu::`".to_owned())).collect()
}

pub fn layers_look_down(file: &File<'_>) -> Vec<(usize, String)> {
    let Some((layer, beside)) = BELOW.iter().find(|(name, _)| layer_of(file) == Some(*name)) else { return Vec::new() };
    let is_wrong = |module: &str| ABOVE.contains(&module) || beside.contains(&module);
    named(file)
        .filter(|(_, path)| is_wrong(first(path)))
        .map(|(line, path)| (line, format!("`{layer}` may not name `crate::{}`", first(&path))))
        .collect()
}

pub fn engines_know_no_operation(file: &File<'_>) -> Vec<(usize, String)> {
    if !layer_of(file).is_some_and(|layer| ENGINES.contains(&layer)) {
        return Vec::new();
    }
    let operation = |path: &str| {
        let module = first(path.strip_prefix("ops::")?).to_owned();
        // Below a module there is more; what `ops` itself hands out is for everyone.
        let is_module = path.matches("::").count() > 1 && module.starts_with(char::is_lowercase);
        (is_module && !FAMILIES.contains(&&*module)).then_some(module)
    };
    named(file)
        .filter_map(|(line, path)| Some((line, operation(&path)?)))
        .map(|(line, module)| (line, format!("an engine may not name the operation `crate::ops::{module}`")))
        .collect()
}

/// The paths that a file of the framework names.
fn named(file: &File<'_>) -> impl Iterator<Item = (usize, String)> {
    file.code.map(crate_paths).unwrap_or_default().into_iter()
}

/// The module of the framework that a file belongs to: `plan` for `meganeura/src/plan/fuse.rs`.
fn layer_of<'a>(file: &File<'a>) -> Option<&'a str> {
    let path = file.path.strip_prefix(SOURCES)?;
    path.split('/').next().map(|name| name.strip_suffix(".rs").unwrap_or(name))
}

fn first(path: &str) -> &str {
    path.split("::").next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use crate::tidy::tests::complaints;

    #[test]
    fn only_gpu_says_wgpu() {
        let uses = "pub fn f(device: &wgpu::Device) {}";
        assert!(complaints("meganeura/src/gpu/mod.rs", uses).is_empty());
        assert_eq!(complaints("meganeura/src/device/mod.rs", uses).len(), 1);
        assert_eq!(complaints("tests/src/lib.rs", "use wgpu_hal::Api;").len(), 1);
        assert!(complaints("meganeura/src/lib.rs", "//! Kernels run through `wgpu::Device`.").is_empty());
        assert!(complaints("meganeura/src/lib.rs", "const NAME: &str = \"wgpu::\";").is_empty());
        assert!(complaints("meganeura/src/lib.rs", "use not_wgpu::x;").is_empty());
    }

    #[test]
    fn nobody_looks_up() {
        let complaint = |path, code| complaints(path, code);
        assert_eq!(
            complaint("meganeura/src/tape/var.rs", "use crate::nn::Linear;"),
            ["1: `tape` may not name `crate::nn`"]
        );
        assert_eq!(complaint("meganeura/src/grad.rs", "use crate::{Result, check::gradcheck};").len(), 1);
        assert_eq!(
            complaint("meganeura/src/plan/mod.rs", "\nuse crate::gpu;"),
            ["2: `plan` may not name `crate::gpu`"]
        );
        assert_eq!(complaint("meganeura/src/plan/mod.rs", "use crate::tape::Var;").len(), 1);
        assert_eq!(complaint("meganeura/src/cpu/mod.rs", "fn f(x: crate::gpu::Buffer) {}").len(), 1);
        assert_eq!(complaint("meganeura/src/gpu/mod.rs", "use crate::cpu::HostBuffer;").len(), 1);
        assert_eq!(complaint("meganeura/src/ops/conv2d.rs", "use crate::{optim::Sgd, plan::Plan, cpu};").len(), 3);
    }

    #[test]
    fn everybody_may_look_down() {
        for (path, code) in [
            ("meganeura/src/nn/linear.rs", "use crate::{Tape, tape::Var, data::Batch};"),
            ("meganeura/src/tape/mod.rs", "use crate::plan::Request;"),
            ("meganeura/src/ops/conv2d.rs", "use crate::{kernel::Real, tape::Var};"),
            ("meganeura/src/tensor.rs", "use crate::{cpu::HostBuffer, gpu::Buffer};"),
            ("meganeura/src/plan/mod.rs", "use crate::database::X; // crate::gpu is not named here"),
            ("tests/src/lib.rs", "use crate::nn::Linear;"),
        ] {
            assert!(complaints(path, code).is_empty(), "{path}: {code}");
        }
    }

    #[test]
    fn engines_know_families_only() {
        let code = "use crate::ops::{Op, KernelOp, conv2d::Conv2d, philox};\nuse crate::ops::pointwise::Row;";
        let complaint = ["1: an engine may not name the operation `crate::ops::conv2d`"];
        assert_eq!(complaints("meganeura/src/plan/lower.rs", code), complaint);
        assert_eq!(complaints("meganeura/src/cpu/mod.rs", code), complaint);
        assert!(complaints("meganeura/src/nn/conv2d.rs", code).is_empty());
    }
}
