// The images of a convolution as products on matrix units read them: in f16, scaled, the channels of a pixel side by side.
//
// Bindings: x[N,C,S], scales → u[N,S,C]. One invocation moves eight channels of a pixel; ⌈N·S·C/8/WG⌉ workgroups.
//
// Defines: WG
//          N, C, S  C a multiple of 8
//          OPERAND  which of the operands of `scales` x is, 0 or 1

enable f16;

#include "shared/grid"

const WG: u32 = ${WG};
const N: u32 = ${N};
const CHANNELS: u32 = ${C};
const S: u32 = ${S};
const LINES: u32 = CHANNELS / 8u;
/// The same in whole fours.
const QUADS: u32 = (LINES + 3u) / 4u * 4u;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> scales: array<f32>;
@group(0) @binding(2) var<storage, read_write> u: array<vec4<f16>>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let scale = scales[${OPERAND}];
    // Four lines of a pixel, then the next pixel: whole sectors are read, and written.
    let index = workgroup_index(workgroup, workgroups) * WG + lane;
    let quad = index / (4u * S) * 4u + index % 4u;
    let pixel = index / 4u % S;
    let n = quad / QUADS;
    let line = quad % QUADS;
    if n >= N || line >= LINES {
        return;
    }
    let at = (n * CHANNELS + line * 8u) * S + pixel;
    let to = ((n * S + pixel) * LINES + line) * 2u;
    u[to] = vec4<f16>(vec4(x[at], x[at + S], x[at + 2u * S], x[at + 3u * S]) * scale);
    u[to + 1u] = vec4<f16>(vec4(x[at + 4u * S], x[at + 5u * S], x[at + 6u * S], x[at + 7u * S]) * scale);
}
