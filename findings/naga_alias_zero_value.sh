#!/usr/bin/env bash
# naga's HLSL for zero values of a type and of an alias of it has two functions of one name.
#
# One would guess: an alias is another name of a type, so `vec4<f32>()` and `Four()` with `alias Four = vec4<f32>` are
# the same expression in every language that naga writes.
#
# What happens: naga holds the alias as a type of its own. For each type with a zero value, its HLSL writer emits a
# helper, whose name follows from the type without the alias: ZeroValuefloat4 stands there twice, with the same
# parameters. The module is valid, its SPIR-V runs, and DXC refuses the HLSL with "redefinition of
# 'ZeroValuefloat4'".
#
# Why it matters: a kernel that runs on Vulkan has no pipeline on DirectX 12, and nothing says so until a
# device with it is there.
#
# Source: naga's HLSL writer; WGSL, "Type Aliases". The counts below were observed.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/src"
cat >"$folder/Cargo.toml" <<'TOML'
[package]
name = "alias"
version = "0.0.0"
edition = "2021"

[dependencies]
naga = { version = "=30.0.2", features = ["wgsl-in", "hlsl-out"] }
TOML
cat >"$folder/src/main.rs" <<'RUST'
use naga::back::hlsl;
use naga::valid;

const WGSL: &str = "
alias Four = vec4<f32>;
@group(0) @binding(0) var<storage, read_write> y: array<vec4<f32>>;

@compute @workgroup_size(1)
fn main() {
    y[0] = select(vec4<f32>(), y[1], y[2].x > 0.0);
    y[3] = select(ZERO(), y[4], y[5].x > 0.0);
}
";

/// The functions for zero values of four floats.
fn functions(zero: &str) -> usize {
    let module = naga::front::wgsl::parse_str(&WGSL.replace("ZERO", zero)).unwrap();
    let info = valid::Validator::new(valid::ValidationFlags::all(), valid::Capabilities::all()).validate(&module).unwrap();
    let mut hlsl = String::new();
    let (options, of_pipeline) = (hlsl::Options::default(), hlsl::PipelineOptions::default());
    hlsl::Writer::new(&mut hlsl, &options, &of_pipeline).write(&module, &info, None).unwrap();
    hlsl.matches("float4 ZeroValuefloat4() {").count()
}

fn main() {
    println!("naga 30.0.2");
    let (same, alias) = (functions("vec4<f32>"), functions("Four"));
    println!("definitions of ZeroValuefloat4: {same} without an alias, {alias} with one");
    assert_eq!((same, alias), (1, 2), "this has changed");
}
RUST
cargo run --quiet --manifest-path "$folder/Cargo.toml"
echo "as described"
