#!/usr/bin/env bash
# naga's SPIR-V for WGSL's subgroupBarrier() orders no access to workgroup memory.
#
# One would guess: after subgroupBarrier(), an invocation sees what others of its subgroup wrote to workgroup memory
# before, as after workgroupBarrier() for those of its workgroup, but without waiting for other subgroups.
#
# What happens: naga writes OpControlBarrier with the semantics AcquireRelease and SubgroupMemory (0x88). Vulkan knows no
# memory of subgroups. WorkgroupMemory (0x100), which workgroupBarrier() has (0x108), is missing, so the driver may move
# loads and stores of workgroup memory across the barrier.
#
# Why it matters: it is the barrier for subgroups that exchange values through their own part of workgroup memory, and
# such a kernel is right only as long as a driver's compiler happens not to use its freedom.
#
# Source: naga's SPIR-V writer; the SPIR-V specification, "Memory Semantics". The words below were observed.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/src"
cat >"$folder/Cargo.toml" <<'TOML'
[package]
name = "barrier"
version = "0.0.0"
edition = "2021"

[dependencies]
naga = { version = "=30.0.2", features = ["wgsl-in", "spv-out"] }
TOML
cat >"$folder/src/main.rs" <<'RUST'
use naga::back::spv;
use naga::valid;

const WGSL: &str = "
var<workgroup> shared_sums: array<f32, 64>;
@group(0) @binding(0) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) lane: u32) {
    shared_sums[lane] = f32(lane);
    BARRIER();
    y[lane] = shared_sums[lane ^ 1u];
}
";

/// The memory semantics of the module's barriers, in order.
fn semantics(barrier: &str) -> Vec<u32> {
    let module = naga::front::wgsl::parse_str(&WGSL.replace("BARRIER", barrier)).unwrap();
    let info = valid::Validator::new(valid::ValidationFlags::all(), valid::Capabilities::all())
        .subgroup_stages(valid::ShaderStages::COMPUTE)
        .subgroup_operations(valid::SubgroupOperationSet::all())
        .validate(&module)
        .unwrap();
    let mut options = spv::Options::default();
    options.lang_version = (1, 3);
    options.zero_initialize_workgroup_memory = spv::ZeroInitializeWorkgroupMemoryMode::None;
    let words = spv::write_vec(&module, &info, &options, None).unwrap();
    let (mut constants, mut found, mut at) = (std::collections::HashMap::new(), Vec::new(), 5);
    while at < words.len() {
        let (code, length) = (words[at] & 0xffff, (words[at] >> 16) as usize);
        match code {
            43 => _ = constants.insert(words[at + 2], words[at + 3]),
            224 => found.push(words[at + 3]),
            _ => {}
        }
        at += length;
    }
    found.into_iter().map(|id| constants[&id]).collect()
}

fn main() {
    let (workgroup, subgroup) = (semantics("workgroupBarrier"), semantics("subgroupBarrier"));
    println!("naga 30.0.2: workgroupBarrier {workgroup:x?}, subgroupBarrier {subgroup:x?}");
    assert_eq!(workgroup, [0x108], "AcquireRelease, WorkgroupMemory");
    assert_eq!(subgroup, [0x88], "AcquireRelease, SubgroupMemory");
}
RUST
cargo run --quiet --manifest-path "$folder/Cargo.toml"
