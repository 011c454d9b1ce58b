//! Rules on which module may name which. ARCHITECTURE has the reasons; the tables below are the rules that are
//! enforced.
//!
//! A path counts for the module that it leads to: `crate::Tape` is `crate::tape::Tape`. Tests may name anything.

use std::collections::HashMap;
use std::fs;
use std::sync::LazyLock;

use super::File;
use super::code::{blank, crate_paths, reexports, without_tests};
use crate::process::root;

/// The core and the crate above it. Cargo keeps the core from naming what is above; these rules are for the modules
/// inside each.
const SOURCES: [&str; 2] = ["meganeura-core/src/", "meganeura/src/"];
const ENGINES: [&str; 5] = ["tape", "grad", "plan", "cpu", "gpu"];

/// Modules of the core that are built from operations. Nothing that operations are built from may name them.
const ABOVE: [&str; 4] = ["check", "functions", "init", "loss"];

/// Modules that run a step. No module of [`ABOVE`] may name them.
const RUNNING: [&str; 5] = ["kernel", "plan", "executor", "cpu", "gpu"];

/// Modules below [`ABOVE`], and what else they may not name.
const BELOW: [(&str, &[&str]); 22] = [
    ("shape", &INSIDE),
    ("dtype", &INSIDE),
    ("error", &INSIDE),
    ("file", &INSIDE),
    ("host", &INSIDE),
    ("seed", &INSIDE),
    ("mode", &INSIDE),
    ("wait", &INSIDE),
    ("dot", &INSIDE),
    (
        "storage",
        &[
            "kernel", "graph", "ops", "tape", "grad", "plan", "executor", "cpu", "device", "tensor", "param", "module",
            "world",
        ],
    ),
    ("world", INSIDE.split_last().expect("the world is last").1),
    ("kernel", INSIDE.split_first().expect("kernels are first").1),
    (
        "graph",
        &["kernel", "tape", "grad", "plan", "executor", "cpu", "gpu", "device", "tensor", "param", "module", "world"],
    ),
    ("ops", &["graph", "tape", "grad", "plan", "executor", "cpu", "gpu", "device", "tensor", "param", "module"]),
    ("plan", &["tape", "grad", "executor", "cpu", "gpu", "device", "tensor", "param", "module"]),
    (
        "executor",
        &[
            "kernel", "graph", "ops", "tape", "grad", "plan", "cpu", "gpu", "device", "tensor", "param", "module",
            "world",
        ],
    ),
    ("cpu", &["graph", "ops", "tape", "grad", "gpu", "device", "tensor", "param", "module", "world"]),
    ("gpu", &["graph", "tape", "grad", "cpu", "device", "tensor", "param", "module"]),
    ("device", &["kernel", "graph", "ops", "tape", "grad", "tensor", "param", "module"]),
    ("tape", &["kernel", "grad", "cpu", "gpu", "module", "world"]),
    ("tensor", &["kernel", "graph", "ops", "tape", "grad", "plan", "executor", "cpu", "param", "module", "world"]),
    ("param", &["kernel", "graph", "ops", "tape", "grad", "plan", "executor", "cpu", "gpu", "module", "world"]),
];

/// Modules of the core between the two, modules of [`ABOVE`] with further restrictions, and the modules of the crate
/// above the core.
const BESIDE: [(&str, &[&str]); 15] = [
    ("grad", &["kernel", "plan", "executor", "cpu", "gpu", "loss", "check"]),
    ("module", &["kernel", "ops", "grad", "plan", "executor", "cpu", "gpu", "loss"]),
    ("functions", &["grad", "module", "loss", "check"]),
    ("init", &["graph", "ops", "tape", "grad", "check"]),
    ("loss", &["graph", "ops", "grad", "module", "check"]),
    ("lora", &["nn", "optim", "loss", "metric", "data", "onnx", "run", "serve", "train", "check"]),
    ("metric", &["module", "nn", "optim", "loss", "data", "io", "onnx", "run", "serve", "train", "check", "lora"]),
    ("data", &["module", "nn", "optim", "loss", "metric", "io", "onnx", "run", "serve", "train", "check", "lora"]),
    (
        "io",
        &[
            "graph", "ops", "tape", "grad", "nn", "loss", "metric", "data", "onnx", "run", "serve", "train", "check",
            "lora",
        ],
    ),
    (
        "nn",
        &["graph", "grad", "optim", "loss", "metric", "data", "io", "onnx", "run", "serve", "train", "check", "lora"],
    ),
    ("optim", &["graph", "nn", "loss", "metric", "data", "onnx", "run", "serve", "train", "check", "lora"]),
    ("onnx", &["grad", "optim", "loss", "metric", "data", "run", "serve", "train", "check", "lora"]),
    ("run", &["graph", "ops", "grad", "loss", "metric", "functions", "onnx", "check", "lora", "serve", "train"]),
    (
        "serve",
        &[
            "graph",
            "ops",
            "grad",
            "loss",
            "metric",
            "optim",
            "functions",
            "io",
            "onnx",
            "run",
            "check",
            "lora",
            "train",
        ],
    ),
    ("train", &["graph", "ops", "loss", "functions", "onnx", "check", "lora"]),
];

/// All of [`BELOW`] except the modules that may name none of these.
const INSIDE: [&str; 14] = [
    "kernel", "graph", "ops", "tape", "grad", "plan", "executor", "cpu", "gpu", "device", "tensor", "param", "module",
    "world",
];

/// The re-exports of the two roots, with the path that each leads to. The crate above has the core's under the same
/// names.
static ROOT: LazyLock<HashMap<String, String>> = LazyLock::new(|| {
    let mut all = reexports_of("meganeura/src/lib.rs");
    all.retain(|_, place| first(place) != "meganeura_core");
    all.extend(reexports_of("meganeura-core/src/lib.rs"));
    all
});

/// The same for `ops/`.
static OPS: LazyLock<HashMap<String, String>> = LazyLock::new(|| reexports_of("meganeura-core/src/ops/mod.rs"));

fn reexports_of(file: &str) -> HashMap<String, String> {
    reexports(&blank(&fs::read_to_string(root().join(file)).expect("a file of the framework")))
}

/// Modules of `ops/` that engines may name: families of operations, exchanges between ranks, which run outside of
/// kernels, and the ways to hold operands and results in bf16.
const FAMILIES: [&str; 4] = ["pointwise", "view", "collective", "bf16"];

/// Crates, and the only folder that may name each.
const CRATES: [(&str, &str); 2] = [("wgpu", "meganeura-core/src/gpu"), ("ash", "meganeura-core/src/gpu/vulkan")];

pub fn graphics_stay_in_gpu(file: &File<'_>) -> Vec<(usize, String)> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let names = |line: &str, name: &str| {
        line.match_indices(name).any(|(at, _)| {
            let after = line[at..].trim_start_matches(is_word);
            let word = &line[at..line.len() - after.len()];
            // `wgpu_core` and similar crates count as well.
            let is_named = word == name || word.strip_prefix(name).is_some_and(|rest| rest.starts_with('_'));
            is_named && !line[..at].ends_with(is_word) && after.starts_with("::")
        })
    };
    let mut found = Vec::new();
    for (name, folder) in CRATES.iter().filter(|(_, folder)| !file.path.starts_with(&format!("{folder}/"))) {
        let lines = file.code.unwrap_or_default().lines().enumerate().filter(|(_, line)| names(line, name));
        found.extend(lines.map(|(index, _)| (index + 1, format!("only {folder} may name `{name}::`"))));
    }
    found
}

pub fn layers_look_down(file: &File<'_>) -> Vec<(usize, String)> {
    let Some(layer) = layer_of(file) else { return Vec::new() };
    let forbidden: Vec<_> = forbidden(layer).collect();
    named(file)
        .filter(|(_, path)| forbidden.contains(&first(path)))
        .map(|(line, path)| (line, format!("`{layer}` may not name `crate::{path}`")))
        .collect()
}

/// The modules that a layer may not name.
fn forbidden(layer: &str) -> impl Iterator<Item = &'static str> {
    let of = |table: &[(&str, &'static [&'static str])]| {
        table.iter().find(|(name, _)| *name == layer).map(|&(_, beside)| beside)
    };
    let below = of(&BELOW).map(|beside| ABOVE.iter().chain(beside));
    let beside = of(&BESIDE).into_iter().flatten();
    let above = ABOVE.contains(&layer).then_some(&RUNNING).into_iter().flatten();
    // The prelude is for users: it re-exports from every layer.
    let users = below.is_none().then_some(&"prelude");
    below.into_iter().flatten().chain(beside).chain(above).chain(users).copied()
}

pub fn engines_know_no_operation(file: &File<'_>) -> Vec<(usize, String)> {
    if !layer_of(file).is_some_and(|layer| ENGINES.contains(&layer)) {
        return Vec::new();
    }
    let operation = |path: &str| {
        let module = first(path.strip_prefix("ops::")?).to_owned();
        // A path into a submodule names an operation. Items of `ops` itself are for everyone.
        let is_module = path.matches("::").count() > 1 && module.starts_with(char::is_lowercase);
        (is_module && !FAMILIES.contains(&&*module)).then_some(module)
    };
    named(file)
        .filter_map(|(line, path)| Some((line, operation(&path)?)))
        .map(|(line, module)| (line, format!("an engine may not name the operation `crate::ops::{module}`")))
        .collect()
}

/// The paths that a file of the framework names outside of tests, with re-exports resolved.
fn named(file: &File<'_>) -> impl Iterator<Item = (usize, String)> {
    let modules = in_sources(file.path).unwrap_or_default().trim_end_matches(".rs");
    let modules: Vec<_> = modules.split('/').filter(|module| !matches!(*module, "lib" | "mod")).collect();
    let code = file.code.filter(|_| !modules.contains(&"tests"));
    let paths = code.map(|code| crate_paths(&without_tests(code), modules.len())).unwrap_or_default();
    paths.into_iter().map(|named| (named.line, resolved(named.path)))
}

/// A path in which re-exports of the root and of `ops` are replaced by their origins.
fn resolved(path: String) -> String {
    let name = first(&path);
    let path = match ROOT.get(name) {
        Some(place) => place.clone() + &path[name.len()..],
        None => path,
    };
    let Some(name) = path.strip_prefix("ops::").map(first) else { return path };
    match OPS.get(name) {
        Some(place) => format!("ops::{place}{}", &path["ops::".len() + name.len()..]),
        None => path,
    }
}

/// The path of a file of the framework in its crate.
fn in_sources(path: &str) -> Option<&str> {
    SOURCES.iter().find_map(|sources| path.strip_prefix(sources))
}

/// The module of the framework that a file belongs to: `plan` for `meganeura-core/src/plan/passes/fuse.rs`.
fn layer_of<'a>(file: &File<'a>) -> Option<&'a str> {
    let path = in_sources(file.path)?;
    path.split('/').next().map(|name| name.strip_suffix(".rs").unwrap_or(name))
}

fn first(path: &str) -> &str {
    path.split("::").next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tests::complaints;

    #[test]
    fn only_gpu_names_its_crates() {
        let raw = "use ash::vk;";
        assert!(complaints("meganeura-core/src/gpu/vulkan/mod.rs", raw).is_empty());
        assert_eq!(
            complaints("meganeura-core/src/gpu/mod.rs", raw),
            ["1: only meganeura-core/src/gpu/vulkan may name `ash::`"]
        );
        assert!(complaints("meganeura-core/src/gpu/mod.rs", "use crate::hash::X;\nuse ashes::Y;").is_empty());
        let uses = "pub fn f(device: &wgpu::Device) {}";
        assert!(complaints("meganeura-core/src/gpu/mod.rs", uses).is_empty());
        assert_eq!(complaints("meganeura-core/src/device/mod.rs", uses).len(), 1);
        assert_eq!(complaints("tests/src/lib.rs", "use wgpu_hal::Api;").len(), 1);
        assert!(complaints("meganeura/src/lib.rs", "//! Kernels run through `wgpu::Device`.").is_empty());
        assert!(complaints("meganeura/src/lib.rs", "const NAME: &str = \"wgpu::\";").is_empty());
        assert!(complaints("meganeura/src/lib.rs", "use not_wgpu::x;").is_empty());
    }

    /// Tests every row of the tables with every spelling of a path.
    #[test]
    fn layers_may_not_look_up() {
        for layer in BELOW.iter().chain(&BESIDE).map(|(layer, _)| *layer).chain(ABOVE) {
            for module in forbidden(layer) {
                let [short, long] = [".rs", "/part/mod.rs"].map(|end| format!("{}{layer}{end}", SOURCES[0]));
                for (path, code) in [
                    (&short, format!("use crate::{module}::X;")),
                    (&long, format!("fn f(x: &crate::{module}::X) {{}}")),
                    (&long, format!("use crate::{{Error, {module}::X as Y}};")),
                    (&short, format!("use super::{module}::X;")),
                    (&long, format!("use super::super::{{{module}::X}};")),
                ] {
                    let expected = format!("1: `{layer}` may not name `crate::{module}::X`");
                    assert_eq!(complaints(path, &code), [expected], "{path}: {code}");
                }
                for (name, place) in ROOT.iter().filter(|(_, place)| first(place) == module) {
                    let code = format!("\nuse crate::{{{name}}};");
                    let expected = format!("2: `{layer}` may not name `crate::{place}`");
                    assert_eq!(complaints(&long, &code), [expected], "{code}");
                }
            }
        }
    }

    #[test]
    fn every_module_has_a_row() {
        // The guide is prose, the prelude is for users, and the last one for the derive's expansions.
        let free = ["guide", "prelude", "tests", "__private"];
        let text = SOURCES.map(|sources| fs::read_to_string(root().join(sources).join("lib.rs")).unwrap()).concat();
        let modules: Vec<_> = text
            .lines()
            .filter_map(|line| {
                let (visibility, name) = line.split_once("mod ")?;
                let is_item = matches!(visibility, "" | "pub " | "pub(crate) ");
                is_item.then(|| name.split([';', ' ']).next().unwrap_or_default())
            })
            .collect();
        assert!(modules.len() > 30, "{modules:?}");
        let rows: Vec<_> = BELOW.iter().chain(&BESIDE).map(|(layer, _)| *layer).chain(ABOVE).chain(free).collect();
        for module in modules {
            assert!(rows.contains(&module), "`{module}` has no row");
        }
    }

    #[test]
    fn the_tables_name_existing_modules() {
        let exists = |module: &str| {
            let paths =
                SOURCES.into_iter().flat_map(|sources| ["", ".rs"].map(|end| format!("{sources}{module}{end}")));
            paths.into_iter().any(|path| root().join(path).exists())
        };
        let rows = BELOW.iter().chain(&BESIDE).flat_map(|(layer, beside)| beside.iter().chain([layer]));
        for module in rows.chain(&ABOVE).chain(&RUNNING) {
            assert!(exists(module), "{module}");
        }
        assert!(BELOW.iter().all(|(layer, beside)| !beside.contains(layer) && !ABOVE.contains(layer)));
        for name in ["Tape", "Var", "Device", "Tensor", "Result", "Shape", "Profiling", "Seed"] {
            assert!(ROOT.contains_key(name), "{name}");
        }
        assert!(!ROOT.contains_key("Dataset"), "that is in the prelude only");
    }

    #[test]
    fn layers_may_look_down() {
        for (path, code) in [
            ("meganeura/src/nn/linear.rs", "use crate::{Tape, tape::Var, init::Initializer};"),
            ("meganeura-core/src/tape/mod.rs", "use crate::plan::Request;"),
            ("meganeura-core/src/ops/conv2d.rs", "use crate::{kernel::Real, world::World};"),
            ("meganeura-core/src/functions/conv2d.rs", "use crate::{ops::conv2d::Conv2d, tape::Var};"),
            ("meganeura-core/src/tensor.rs", "use crate::{Device, gpu::Buffer};"),
            ("meganeura-core/src/plan/mod.rs", "use crate::database::X; // crate::gpu is not named here"),
            (
                "meganeura-core/src/plan/mod.rs",
                "use crate::{Shape, Result};\n#[cfg(test)]\nmod tests { use crate::Tape; }",
            ),
            ("meganeura-core/src/plan/passes/tests.rs", "use crate::Tape;"),
            ("meganeura-core/src/plan/passes/fuse.rs", "use super::super::super::X; use super::gpu;"),
            ("tests/src/lib.rs", "use crate::nn::Linear;"),
        ] {
            assert!(complaints(path, code).is_empty(), "{path}: {code}");
        }
    }

    #[test]
    fn engines_know_families_only() {
        let code = "use crate::ops::{Op, KernelOp, conv2d::Conv2d, philox};\nuse crate::ops::pointwise::Row;";
        let complaint = ["1: an engine may not name the operation `crate::ops::conv2d`"];
        assert_eq!(complaints("meganeura-core/src/plan/lower.rs", code), complaint);
        assert_eq!(complaints("meganeura-core/src/gpu/mod.rs", code), complaint);
        assert!(complaints("meganeura/src/nn/conv2d.rs", code).is_empty());
    }
}
