// y = x in the other memory format: f32 in the order [N,C,S], or bf16 in the order [N,S,C] (see shared/bf16), with
// channels padded by zeros to whole lines. In FORM tiles, a workgroup moves SIDE channels of SIDE pixels of an image
// through workgroup memory. In FORM pixels, an invocation moves a pixel, whose channels are a single line.
//
// Bindings: x → y; N·⌈C/SIDE⌉·⌈S/SIDE⌉ workgroups, or ⌈N·S/WG⌉ for FORM pixels.
//
// Defines: WG   in FORM tiles an invocation for each line of a tile: SIDE²/8
//          TO bf16 or full
//          FORM tiles or pixels, with C at most 8
//          N, C, S
//          SIDE, PITCH   of a tile; PITCH is that of its channels in workgroup memory
//          TILES_C, TILES_S   ⌈C/SIDE⌉ and ⌈S/SIDE⌉

#include "shared/grid"
#include "shared/bf16"

const N: u32 = ${N};
const C: u32 = ${C};
const S: u32 = ${S};
const WG: u32 = ${WG};
#if FORM == tiles
const IN_LINES: u32 = (C + 7u) / 8u * 8u;
const SIDE: u32 = ${SIDE};
const TILES_C: u32 = ${TILES_C};
const TILES_S: u32 = ${TILES_S};
const PITCH: u32 = ${PITCH};

var<workgroup> tile: array<f32, SIDE * PITCH>;
#endif

#if TO == bf16
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<u32>>;
#else
@group(0) @binding(0) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
#endif

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = workgroup_index(workgroup, workgroups);
#if FORM == pixels
    let pixel = index * WG + lane;
    if pixel >= N * S {
        return;
    }
    let first = pixel / S * C * S + pixel % S;
#if TO == bf16
#for K in 8
    let channel_${K} = select(0.0, x[first + min(${K}u, C - 1u) * S], ${K}u < C);
#endfor
    y[pixel] = line_of(Eight(
        vec4(channel_0, channel_1, channel_2, channel_3),
        vec4(channel_4, channel_5, channel_6, channel_7),
    ));
#else
    let eight = eight_of(x[pixel]);
#for K in 4
    if ${K}u < C {
        y[first + ${K}u * S] = eight.first[${K}];
    }
    if ${K}u + 4u < C {
        y[first + (${K}u + 4u) * S] = eight.second[${K}];
    }
#endfor
#endif
#else
    if index >= N * TILES_C * TILES_S {
        return;
    }
    let s0 = index % TILES_S * SIDE;
    let c0 = index / TILES_S % TILES_C * SIDE;
    let n = index / (TILES_S * TILES_C);
    // A line of the tile, and its place among the lines of bf16.
    let line_c = lane % 4u * 8u;
    let line_s = lane / 4u;
    let is_line = c0 + line_c < IN_LINES && s0 + line_s < S;
    let line = ((n * S + s0 + line_s) * IN_LINES + c0 + line_c) / 8u;
#if TO == bf16
#for K in 8
    {
        let c = lane / SIDE + ${K}u * (WG / SIDE);
        let s = lane % SIDE;
        let there = c0 + c < C && s0 + s < S;
        tile[c * PITCH + s] = select(0.0, x[select(0u, (n * C + c0 + c) * S + s0 + s, there)], there);
    }
#endfor
    workgroupBarrier();
    if is_line {
        let at = line_c * PITCH + line_s;
        y[line] = line_of(Eight(
            vec4(tile[at], tile[at + PITCH], tile[at + 2u * PITCH], tile[at + 3u * PITCH]),
            vec4(tile[at + 4u * PITCH], tile[at + 5u * PITCH], tile[at + 6u * PITCH], tile[at + 7u * PITCH]),
        ));
    }
#else
    if is_line {
        let eight = eight_of(x[line]);
#for K in 4
        tile[(line_c + ${K}u) * PITCH + line_s] = eight.first[${K}];
        tile[(line_c + ${K}u + 4u) * PITCH + line_s] = eight.second[${K}];
#endfor
    }
    workgroupBarrier();
#for K in 8
    {
        let c = lane / SIDE + ${K}u * (WG / SIDE);
        let s = lane % SIDE;
        if c0 + c < C && s0 + s < S {
            y[(n * C + c0 + c) * S + s0 + s] = tile[c * PITCH + s];
        }
    }
#endfor
#endif
#endif
}
