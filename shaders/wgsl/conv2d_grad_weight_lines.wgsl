// Gradient of the weight of `conv2d_lines`, in one pass over images and cotangents. An invocation sums up CHUNK_I by
// CHUNK_J taps of a plane of the kernel, of a line of eight output channels, over its share of the rows of outputs, of
// which it takes TILE_Q columns at a time. Invocations for the same line and taps add up their sums; another launch
// adds up those of PARTS workgroups.
//
// Bindings: x[N,IN_D,H,W,CHANNELS], dy[N,OUT_D,P,Q,8·LINES] → parts[PARTS,KD·KERNEL_H·KERNEL_W,IN,8·LINES].
//
// A workgroup has ACROSS lines, CHUNKS chunks of taps, and SLOTS tiles at a time: WG is their product. BLOCKS·PARTS
// workgroups.
//
// Defines: those of shared/conv2d_tiles, with the taps of a chunk as KH and KW, of shared/planes and of
//          shared/conv2d_lines
//          WG, N, LINES, ACROSS, BLOCKS, SLOTS, PARTS
//          TILES               in all planes of the outputs
//          EACH                tiles of a part
//          KERNEL_H, KERNEL_W  taps of a plane
//          CHUNK_I, CHUNK_J    taps of a chunk
//          CHUNKS_I, CHUNKS_J  chunks down and along a row
//          CHUNKS, TURNS       chunks of taps, of all planes, and input channels; IN / AT_ONCE
//          OVERHANG            defined if the last tiles of a row extend beyond it

#include "shared/conv2d_tiles"
#include "shared/planes"
#include "shared/conv2d_lines"
#include "shared/grid"

const WG: u32 = ${WG};
const N: u32 = ${N};
const LINES: u32 = ${LINES};
const ACROSS: u32 = ${ACROSS};
const BLOCKS: u32 = ${BLOCKS};
const SLOTS: u32 = ${SLOTS};
const PARTS: u32 = ${PARTS};
const TILES: u32 = ${TILES};
const EACH: u32 = ${EACH};
const KERNEL_H: u32 = ${KERNEL_H};
const KERNEL_W: u32 = ${KERNEL_W};
const CHUNK_I: u32 = ${CHUNK_I};
const CHUNK_J: u32 = ${CHUNK_J};
const CHUNKS_I: u32 = ${CHUNKS_I};
const CHUNKS_J: u32 = ${CHUNKS_J};
const CHUNKS: u32 = ${CHUNKS};
const TURNS: u32 = ${TURNS};

@group(0) @binding(1) var<storage, read> dy: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> parts: array<vec4<f32>>;

var<workgroup> sums: array<vec4<f32>, 2u * WG>;

#macro add_products(I, V, B, J)
#for K in AT_ONCE
        let x_${I}_${V}_${B}_${K} = spread_${K}(inputs_${I}_${V});
        first_${I}_${J}_${K} = fma(x_${I}_${V}_${B}_${K}.first, dy_${B}.first, first_${I}_${J}_${K});
        second_${I}_${J}_${K} = fma(x_${I}_${V}_${B}_${K}.second, dy_${B}.second, second_${I}_${J}_${K});
#endfor
#endmacro

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = workgroup_index(workgroup, workgroups);
    let part = index / BLOCKS;
    let is_line = index % BLOCKS * ACROSS + lane % ACROSS < LINES && part < PARTS;
    let line = min(index % BLOCKS * ACROSS + lane % ACROSS, LINES - 1u);
    let chunk = lane / ACROSS % CHUNKS;
    let slot = lane / (ACROSS * CHUNKS);
    let turn = chunk % TURNS;
    let depth = chunk / (TURNS * CHUNKS_J * CHUNKS_I);
    let i = chunk / (TURNS * CHUNKS_J) % CHUNKS_I * CHUNK_I;
    let j = chunk / TURNS % CHUNKS_J * CHUNK_J;
#for I in CHUNK_I
#for J in CHUNK_J
#for K in AT_ONCE
    var first_${I}_${J}_${K} = vec4<f32>();
    var second_${I}_${J}_${K} = vec4<f32>();
#endfor
#endfor
#endfor
    let end = select(0u, min((part + 1u) * EACH, TILES), part < PARTS);
    for (var tile = part * EACH + slot; tile < end; tile += SLOTS) {
        let plane = tile / (TILES_P * TILES_Q);
        let met = plane_read(plane % OUT_D, depth);
#if VOLUMES
        if met >= IN_D {
            continue;
        }
#endif
        let above = (plane / OUT_D * IN_D + met) * H;
        let first = first_of(tile / TILES_Q % TILES_P, tile % TILES_Q);
        let read = first_read(first);
        // All loads come before the first product, so that they are in flight together.
#for B in TILE_Q
        let q_${B} = first.y + ${B}u * EVERY_Q;
        let is_${B} = q_${B} < Q;
        let words_of_dy_${B} = dy[select(0u, ((plane * P + first.x) * Q + q_${B}) * LINES + line, is_${B})];
#endfor
#for V in COLUMNS
        let column_${V} = read.y + (j + ${V}u) * STEP_Q;
#endfor
#for I in CHUNK_I
        let row_${I} = read.x + (i + ${I}u) * STEP_P;
#for V in COLUMNS
        let there_${I}_${V} = row_${I} < H && column_${V} < W;
        let words_${I}_${V} = words(there_${I}_${V}, (above + row_${I}) * W + column_${V}, line, turn);
#endfor
#endfor
#for B in TILE_Q
        let dy_${B} = eight_of(words_of_dy_${B});
#endfor
#for I in CHUNK_I
#for V in COLUMNS
        let inputs_${I}_${V} = inputs(words_${I}_${V});
#for B in TILE_Q
#for J in CHUNK_J
#if V == APART_Q * B + J
#if OVERHANG
        // Inputs are not multiplied by outputs that are not there: infinity would be NaN.
        if is_${B} {
#insert add_products(I, V, B, J)
        }
#else
#insert add_products(I, V, B, J)
#endif
#endif
#endfor
#endfor
#endfor
#endfor
    }
#for I in CHUNK_I
#for J in CHUNK_J
#for K in AT_ONCE
    workgroupBarrier();
    sums[2u * lane] = first_${I}_${J}_${K};
    sums[2u * lane + 1u] = second_${I}_${J}_${K};
    workgroupBarrier();
    if slot == 0u && is_line && i + ${I}u < KERNEL_H && j + ${J}u < KERNEL_W {
        for (var other = 1u; other < SLOTS; other++) {
            let at = 2u * (other * ACROSS * CHUNKS + lane);
            first_${I}_${J}_${K} += sums[at];
            second_${I}_${J}_${K} += sums[at + 1u];
        }
        let tap = (depth * KERNEL_H + i + ${I}u) * KERNEL_W + j + ${J}u;
        let to = 2u * (((part * KD * KERNEL_H * KERNEL_W + tap) * IN + turn * AT_ONCE + ${K}u) * LINES + line);
        parts[to] = first_${I}_${J}_${K};
        parts[to + 1u] = second_${I}_${J}_${K};
    }
#endfor
#endfor
#endfor
}
