//! Expands every variant in `variants.txt`, parses and validates it with naga, and translates it for Metal and DirectX
//! 12. Also finds unused kernels and functions.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use meganeura_shaders::{ExpandError, expand, expand_from, is_trusted, kernels};
use meganeura_translate::{BASELINE, Guard, Kernel, Needs};
use naga::{
    ShaderStage,
    back::spv,
    proc::{BoundsCheckPolicies, BoundsCheckPolicy},
    valid::{Capabilities, ValidationFlags, Validator},
};

/// Capabilities that every kernel may use: every WGSL implementation can pack 16-bit floats into words.
const ALL: Capabilities = Capabilities::SHADER_FLOAT16_IN_FLOAT32;

/// Additional capabilities of kernels on matrix units.
const MATRIX: Capabilities = Capabilities::SHADER_FLOAT16
    .union(Capabilities::COOPERATIVE_MATRIX)
    .union(Capabilities::SUBGROUP)
    .union(Capabilities::SUBGROUP_BARRIER);

struct Variant {
    kernel: String,
    defines: Vec<(String, String)>,
}

/// Declarations that the host writes into kernels that store through `shared/epilogue`: the result's binding, and a
/// store that is plain or goes through merged work.
const STORES: [&str; 2] = [
    "@group(0) @binding(AT) var<storage, read_write> store_y0: array<f32>;
     alias Stored = f32;
     struct Epilogue { i: u32 }
     fn epilogue(i: u32) -> Epilogue { return Epilogue(i); }
     fn finish(e: Epilogue, value: Stored) { store_y0[e.i] = value; }",
    "@group(0) @binding(AT) var<storage, read_write> store_y0: array<f32>;
     alias Stored = f32;
     fn store_gelu(x: f32) -> f32 { return m_gelu(x); }
     struct Epilogue { i: u32, a0: f32 }
     fn epilogue(i: u32) -> Epilogue { return Epilogue(i, store_y0[i]); }
     fn finish(e: Epilogue, value: Stored) { let t0 = store_gelu(value); store_y0[e.i] = t0 + e.a0; }",
];

/// The same for kernels that store through `shared/epilogue_all`. The merged work has a result of its own.
const STORES_OF_ALL: [&str; 2] = [
    "@group(0) @binding(AT) var<storage, read_write> store_y0: array<f32>;
     struct Epilogue { i: u32 }
     fn epilogue(i: u32) -> Epilogue { return Epilogue(i); }
     fn finish(e: Epilogue, values: vec4<f32>) { let value = values[0u]; store_y0[e.i] = value; }",
    "@group(0) @binding(AT) var<storage, read_write> store_y0: array<f32>;
     fn store_gelu(x: f32) -> f32 { return m_gelu(x); }
     struct Epilogue { i: u32, a0: f32 }
     fn epilogue(i: u32) -> Epilogue { return Epilogue(i, store_y0[i]); }
     fn finish(e: Epilogue, values: vec4<f32>) {
         let value = values[0u];
         let more1 = values[1u];
         let t0 = store_gelu(value);
         store_y0[e.i] = t0 + e.a0 * more1;
     }",
];

/// The same for kernels that load through `shared/prologue`.
const LOADS: [&str; 2] = [
    "@group(0) @binding(AT) var<storage, read> load_x: array<f32>;
     fn load(i: u32) -> f32 { return load_x[i]; }",
    "@group(0) @binding(AT) var<storage, read> load_x: array<f32>;
     fn load_gelu(x: f32) -> f32 { return m_gelu(x); }
     fn load(i: u32) -> f32 { let t0 = load_gelu(load_x[i]); return t0; }",
];

/// The same for kernels that store through `shared/epilogue_lines`. The merged work reads a line as well.
const STORES_OF_LINES: [&str; 2] = [
    "@group(0) @binding(AT) var<storage, read_write> store_y0: array<vec4<u32>>;
     struct Epilogue { i: u32 }
     fn epilogue(i: u32) -> Epilogue { return Epilogue(i); }
     fn finish(e: Epilogue, line: Eight) { store_y0[e.i / 8u] = line_of(line); }",
    "@group(0) @binding(AT) var<storage, read_write> store_y0: array<vec4<u32>>;
     fn store_gelu(x: f32) -> f32 { return m_gelu(x); }
     struct Epilogue { i: u32, a0: Eight }
     fn epilogue(i: u32) -> Epilogue { return Epilogue(i, eight_of(store_y0[i / 8u])); }
     fn finish(e: Epilogue, line: Eight) {
         let t0 = Eight(line.first + e.a0.first, line.second + e.a0.second);
         let t1 = Eight(vec4(store_gelu(t0.first.x), t0.first.yzw), t0.second);
         store_y0[e.i / 8u] = line_of(t1);
     }",
];

/// The same for kernels that load through `shared/prologue_lines`.
const LOADS_OF_LINES: [&str; 2] = [
    "@group(0) @binding(AT) var<storage, read> load_x: array<vec4<u32>>;
     fn load_line(i: u32) -> Eight { return eight_of(load_x[i / 8u]); }",
    "@group(0) @binding(AT) var<storage, read> load_x: array<vec4<u32>>;
     fn load_gelu(x: f32) -> f32 { return m_gelu(x); }
     fn load_line(i: u32) -> Eight {
         let t0 = eight_of(load_x[i / 8u]);
         return Eight(vec4(load_gelu(t0.first.x), t0.first.yzw), t0.second);
     }",
];

/// A hole that the host fills: its name, its texts for kernels of elements, and other texts, each with a call that
/// marks the kernels which need it.
struct Hole {
    name: &'static str,
    elements: [&'static str; 2],
    others: &'static [(&'static str, [&'static str; 2])],
}

const HOLES: [Hole; 2] = [
    Hole {
        name: "STORE",
        elements: STORES,
        others: &[("store_line(", STORES_OF_LINES), ("store_all(", STORES_OF_ALL)],
    },
    Hole { name: "LOAD", elements: LOADS, others: &[("load_line(", LOADS_OF_LINES)] },
];

impl Variant {
    /// The variant's holes, each with an empty text.
    fn empty_holes(&self) -> Vec<(&'static str, &'static str)> {
        // A missing define fails first. An unused one is reported only if everything else is right.
        let is_unused =
            |defines: &[_], hole| matches!(self.with(defines), Err(ExpandError::Unused { name, .. }) if name == hole);
        let [store, load] = HOLES.map(|hole| (hole.name, ""));
        let mut empty = vec![store, load];
        empty.retain(|&(hole, text)| !is_unused(&[(hole, text)], hole) && !is_unused(&[store, load], hole));
        empty
    }

    /// The variant's WGSL, once for each text that may fill its holes.
    fn expand(&self) -> Vec<String> {
        let empty = self.empty_holes();
        let mut forms: Vec<Vec<(&str, &str)>> = vec![Vec::new()];
        for hole in HOLES.iter().filter(|hole| empty.contains(&(hole.name, ""))) {
            let bare = self.with(&empty).unwrap_or_else(|error| panic!("{error}"));
            let code: Vec<_> = bare.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
            let is_marked = |(mark, _): &&(&str, _)| code.iter().any(|code| code.contains(mark));
            let texts = hole.others.iter().find(is_marked).map_or(hole.elements, |&(_, texts)| texts);
            // No work is merged into kernels of integers.
            let count = if self.element(hole.name) == "f32" { texts.len() } else { 1 };
            let with = |form: &Vec<_>, text| form.iter().copied().chain([(hole.name, text)]).collect();
            forms = forms.iter().flat_map(|form| texts[..count].iter().map(|text| with(form, text))).collect();
        }
        forms.iter().map(|form| self.filled(form)).collect()
    }

    /// The WGSL type of the elements that go through a hole.
    fn element(&self, hole: &str) -> &str {
        let defined = |name| self.defines.iter().find(|(define, _)| define == name).map(|(_, value)| value.as_str());
        let stored = defined("RESULT").filter(|_| hole == "STORE");
        match stored.or(defined("ELEMENT")).unwrap_or("f32") {
            "i64" => "vec2<u32>",
            other => other,
        }
    }

    fn with(&self, more: &[(&str, &str)]) -> Result<String, ExpandError> {
        expand(&self.kernel, &self.defines(more))
    }

    fn defines<'d>(&'d self, more: &[(&'d str, &'d str)]) -> Vec<(&'d str, &'d str)> {
        let own = self.defines.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        own.chain(more.iter().copied()).collect()
    }

    /// The WGSL with the host's holes filled. The host's bindings follow those of the kernel.
    fn filled(&self, form: &[(&'static str, &str)]) -> String {
        let empty: Vec<_> = form.iter().map(|(hole, _)| (*hole, "")).collect();
        let own = self.with(&empty).unwrap_or_else(|error| panic!("{error}")).matches("@binding(").count();
        let text = |(at, (hole, text)): (usize, &(&str, &str))| match self.element(hole) {
            "f32" => text.replace("AT", &at.to_string()),
            element => text.replace("AT", &at.to_string()).replace("f32", element),
        };
        let texts: Vec<_> = (own..).zip(form).map(text).collect();
        let filled: Vec<_> = form.iter().zip(&texts).map(|((hole, _), text)| (*hole, text.as_str())).collect();
        self.with(&filled).unwrap_or_else(|error| panic!("{error}"))
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

/// Splits at spaces outside of double quotes, and drops the quotes.
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

/// The files with this extension in a folder of the workspace, by path below it, without the extension.
fn texts(folder: &str, extension: &str) -> BTreeMap<String, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder);
    let (mut folders, mut texts) = (vec![root.clone()], BTreeMap::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("the folder can be read") {
            let path = entry.expect("its entries can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                let name = path.strip_prefix(&root).expect("it is below").with_extension("");
                let name = name.to_str().expect("names are UTF-8").replace('\\', "/");
                texts.insert(name, fs::read_to_string(path).expect("the file can be read"));
            }
        }
    }
    texts
}

/// The string literals on the lines of the framework's sources.
fn literals_of_the_framework() -> Vec<String> {
    let sources = texts("meganeura-core/src", "rs");
    let lines = sources.values().flat_map(|text| text.lines());
    lines.flat_map(|line| line.split('"').skip(1).step_by(2)).map(str::to_owned).collect()
}

#[test]
fn the_framework_launches_every_kernel() {
    let literals: BTreeSet<_> = literals_of_the_framework().into_iter().collect();
    let unused: Vec<_> = kernels().filter(|&kernel| !literals.contains(kernel)).collect();
    assert_eq!(unused, [""; 0]);
}

/// The names that code calls.
fn calls(code: &str) -> impl Iterator<Item = &str> {
    code.lines().flat_map(|line| {
        let code = line.split("//").next().unwrap_or_default();
        code.split_inclusive(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter_map(|word| word.strip_suffix('('))
    })
}

/// The functions of a module that are reachable from `main` or from a call in `written`.
fn reached<'w>(wgsl: &'w str, written: &BTreeSet<&'w str>) -> BTreeSet<&'w str> {
    let (mut bodies, mut left) = (BTreeMap::new(), written.iter().copied().chain(["main"]).collect::<Vec<_>>());
    for text in wgsl.split("\nfn ").skip(1) {
        let (name, body) = text.split_once('(').expect("a function has parameters");
        let (body, rest) = body.split_once("\n}\n").unwrap_or((body, ""));
        bodies.insert(name, body);
        // Text that the host writes, which is indented.
        left.extend(calls(rest));
    }
    let mut reached = BTreeSet::new();
    while let Some(name) = left.pop() {
        if let Some(body) = bodies.get(name)
            && reached.insert(name)
        {
            left.extend(calls(body));
            // A call of `coop_map_NAME` becomes calls of `NAME`; see `shared/fragments`.
            left.extend(["coop_map_", "coop_rows_"].iter().filter_map(|prefix| name.strip_prefix(prefix)));
        }
    }
    reached
}

#[test]
fn every_function_is_called() {
    let literals = literals_of_the_framework();
    // Calls that the framework writes, and names that it turns into calls.
    let named = literals.iter().map(String::as_str).filter(|literal| literal.starts_with("m_"));
    let written: BTreeSet<_> = literals.iter().flat_map(|literal| calls(literal)).chain(named).collect();
    let mut called: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for variant in variants() {
        for wgsl in variant.expand() {
            let names = reached(&wgsl, &written).into_iter().map(str::to_owned);
            called.entry(variant.kernel.clone()).or_default().extend(names);
        }
    }
    let mut unused = Vec::new();
    for (file, text) in texts("shaders/wgsl", "wgsl") {
        for function in text.split("\nfn ").skip(1) {
            let name = function.split('(').next().unwrap_or_default();
            let mut kernels = called.iter().filter(|(kernel, _)| file.starts_with("shared/") || **kernel == file);
            if !kernels.any(|(_, names)| names.contains(name)) {
                unused.push(format!("{file}: {name}"));
            }
        }
    }
    assert_eq!(unused, [""; 0]);
}

/// Marks the beginning of each part that a variant may leave out: of a macro, and of both branches of a condition.
fn marked(file: &str, text: &str) -> String {
    let mark = |(index, line): (usize, &str)| {
        let begins = ["#if ", "#elif ", "#else", "#macro "].iter().any(|directive| line.starts_with(directive));
        if begins { format!("{line}\n//part {file}:{} {line}\n", index + 1) } else { format!("{line}\n") }
    };
    text.lines().enumerate().map(mark).collect()
}

#[test]
fn every_part_is_in_a_variant() {
    let files: BTreeMap<_, _> =
        texts("shaders/wgsl", "wgsl").iter().map(|(file, text)| (file.clone(), marked(file, text))).collect();
    let parts = |text: &str| text.lines().filter(|line| line.starts_with("//part ")).map(str::to_owned).collect();
    let mut left: BTreeSet<String> = files.values().flat_map(|text| -> Vec<_> { parts(text) }).collect();
    assert!(left.len() > 100);
    for variant in variants() {
        let holes = variant.empty_holes();
        let source = |file: &str| files.get(file).map(String::as_str);
        let wgsl = expand_from(source, &variant.kernel, &variant.defines(&holes));
        let kept: Vec<_> = parts(&wgsl.unwrap_or_else(|error| panic!("{error}")));
        left.retain(|part| !kept.contains(part));
    }
    assert_eq!(left.into_iter().collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn a_function_without_a_call_is_found() {
    let wgsl = "\nfn a() {\n    b();\n}\n\nfn b() {\n}\n\nfn c() {\n    d();\n}\n\nfn d() {\n}\n\n@compute\nfn main() {\n    a(); // c()\n}\n";
    assert_eq!(reached(wgsl, &BTreeSet::new()), BTreeSet::from(["a", "b", "main"]));
    assert_eq!(reached(wgsl, &BTreeSet::from(["c"])), BTreeSet::from(["a", "b", "c", "d", "main"]));
}

#[test]
fn every_variant_is_valid() {
    let all = variants();
    for (variant, wgsl) in all.iter().flat_map(|variant| variant.expand().into_iter().map(move |wgsl| (variant, wgsl)))
    {
        let module = naga::front::wgsl::parse_str(&wgsl)
            .unwrap_or_else(|error| panic!("{}", error.emit_to_string_with_path(&wgsl, &variant.kernel)));
        let is_enabled = |extension| wgsl.contains(&format!("enable {extension};"));
        let of_matrices = is_enabled("f16") || is_enabled("wgpu_cooperative_matrix");
        let features = if of_matrices { MATRIX } else { Capabilities::empty() };
        let info = Validator::new(ValidationFlags::all(), Capabilities::default() | ALL | features)
            .validate(&module)
            .unwrap_or_else(|error| panic!("{}", error.emit_to_string_with_path(&wgsl, &variant.kernel)));
        // The SPIR-V writer rejects some valid modules, with or without checks of accesses.
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
        let shared = workgroup_memory(&module);
        assert!(shared.iter().sum::<u32>() <= 48 << 10, "{}: {shared:?} bytes", variant.kernel);
        // NVIDIA's driver packs variables one after another, and loads fragments wrongly if they are not aligned to 16
        // bytes.
        assert!(!of_matrices || shared.iter().all(|size| size % 16 == 0), "{}: {shared:?} bytes", variant.kernel);
        assert_bindings(&variant.kernel, &module);
    }
}

/// Kernels with variants beyond full precision: on matrix units, which naga writes only for Vulkan, or in f16.
const ON_MATRIX_UNITS: [&str; 11] = [
    "attention_bf16",
    "attention_grad_bf16",
    "conv2d_gemm",
    "conv2d_grad_weight_gemm",
    "conv2d_grad_weight_taps",
    "conv2d_taps",
    "gemm",
    "matmul_bf16",
    "matmul_fragments",
    "matrix_probe",
    "order_fragments",
];
const OF_F16: [&str; 1] = ["conv2d_pack_taps"];

/// Kernels with full-precision variants that need more workgroup memory or buffers than WebGPU guarantees. Only capable
/// devices choose those variants.
const BEYOND_BASELINE: [&str; 6] =
    ["attention", "attention_grad", "conv2d_pack_taps", "gemm", "recurrent", "recurrent_grad"];

#[test]
fn every_variant_translates() {
    let (mut on_matrix_units, mut of_f16, mut beyond) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let all = variants();
    for (variant, wgsl) in all.iter().flat_map(|variant| variant.expand().into_iter().map(move |wgsl| (variant, wgsl)))
    {
        let kernel = Kernel::read(&variant.kernel, &wgsl).unwrap_or_else(|error| panic!("{error}"));
        kernel
            .translate(&[Guard::Checked, Guard::of(is_trusted(&variant.kernel))])
            .unwrap_or_else(|error| panic!("{error}"));
        let needs = kernel.needs();
        let list = match needs {
            Needs { matrices: true, .. } => &mut on_matrix_units,
            Needs { f16: true, .. } => &mut of_f16,
            _ if needs.within(&BASELINE) => continue,
            _ if needs.within(&Needs { workgroup_memory: 48 << 10, buffers: 9, ..BASELINE }) => &mut beyond,
            _ => panic!("{}: {needs:?}", variant.kernel),
        };
        list.insert(variant.kernel.as_str());
    }
    let lists = [on_matrix_units, of_f16, beyond].map(|names| names.into_iter().collect::<Vec<_>>());
    assert_eq!(lists, [&ON_MATRIX_UNITS[..], &OF_F16, &BEYOND_BASELINE]);
}

/// Bytes of each variable in workgroup memory.
fn workgroup_memory(module: &naga::Module) -> Vec<u32> {
    let mut layouter = naga::proc::Layouter::default();
    layouter.update(module.to_ctx()).expect("the module is valid");
    let shared = module.global_variables.iter().map(|(_, variable)| variable);
    shared
        .filter(|variable| variable.space == naga::AddressSpace::WorkGroup)
        .map(|variable| layouter[variable.ty].size)
        .collect()
}

/// Bindings are storage buffers, numbered 0, 1, … in group 0.
fn assert_bindings(kernel: &str, module: &naga::Module) {
    let mut bindings: Vec<_> = module
        .global_variables
        .iter()
        .filter_map(|(_, variable)| Some((variable.binding?, variable.space)))
        .map(|(binding, space)| {
            assert!(
                matches!(space, naga::AddressSpace::Storage { .. }),
                "{kernel}: a binding that is no storage buffer"
            );
            (binding.group, binding.binding as usize)
        })
        .collect();
    bindings.sort_unstable();
    assert!(bindings.iter().copied().eq((0..bindings.len()).map(|at| (0, at))), "{kernel}: {bindings:?}");
}
