// Gradient of the weight of `conv2d_planes`, in one pass over images and cotangents. A workgroup computes all taps of a
// pair of an output and an input channel, of one plane of the kernel, from its share of the outputs. An invocation
// takes TILE_P outputs of a column at a time and has the sums of all taps in registers. Then the invocations add up
// their sums in a tree, eight taps at a time.
//
// Bindings: x[N,C,IN_D,H,W], dy[N,O,OUT_D,P,Q] → dw[O,IN,KD,KH,KW] by its epilogue; SUMS parts: → parts[PARTS,…] of
// such shapes. O·IN·KD·PARTS workgroups.
//
// Defines: those of shared/conv2d_tiles and shared/planes, and with SUMS whole of shared/epilogue
//          WG          256
//          N, C, O
//          IN, OUT     channels of a group, of x and of dy
//          TILES       in all planes of the outputs
//          PARTS       parts of all tiles
//          BATCHES     ⌈KH·KW/8⌉
//          SUMS        whole, with one part; or parts
//          OVERHANG    defined if the last tiles of a column extend beyond it

#if SUMS == whole
#include "shared/epilogue"
#endif
#include "shared/conv2d_tiles"
#include "shared/planes"
#include "shared/grid"

const WG: u32 = ${WG};
const N: u32 = ${N};
const C: u32 = ${C};
const O: u32 = ${O};
const IN: u32 = ${IN};
const OUT: u32 = ${OUT};
const TILES: u32 = ${TILES};
const PARTS: u32 = ${PARTS};
const TAPS: u32 = KH * KW;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> dy: array<f32>;
#if SUMS == parts
@group(0) @binding(2) var<storage, read_write> parts: array<f32>;
#endif

/// The sums of eight taps of each invocation, and two stages of the tree.
var<workgroup> sums: array<f32, 8u * WG>;
var<workgroup> once: array<f32, WG>;
var<workgroup> twice: array<f32, WG / 4u>;

/// The total of tap number `lane` of the eight taps in `sums`; all invocations call this.
fn total(lane: u32) -> f32 {
    workgroupBarrier();
    let first = lane / 32u * WG + lane % 32u;
    var sum = sums[first];
#for U in 7
    sum += sums[first + 32u * ${U}u + 32u];
#endfor
    once[lane] = sum;
    workgroupBarrier();
    if lane < WG / 4u {
        let at = lane / 8u * 32u + lane % 8u;
        twice[lane] = (once[at] + once[at + 8u]) + (once[at + 16u] + once[at + 24u]);
    }
    workgroupBarrier();
    if lane >= 8u {
        return 0.0;
    }
    let at = 8u * lane;
    let lower = (twice[at] + twice[at + 1u]) + (twice[at + 2u] + twice[at + 3u]);
    return lower + ((twice[at + 4u] + twice[at + 5u]) + (twice[at + 6u] + twice[at + 7u]));
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = workgroup_index(workgroup, workgroups);
    if index >= O * IN * KD * PARTS {
        return;
    }
    let pair = index / PARTS;
    let part = index % PARTS;
    let o = pair / (IN * KD);
    let c = o / OUT * IN + pair / KD % IN;
#for I in KH
#for J in KW
    var sum_${I}_${J} = 0.0;
#endfor
#endfor
    for (var tile = part * WG + lane; tile < TILES; tile += PARTS * WG) {
        let n = tile / (TILES_P * TILES_Q * OUT_D);
        let z = tile / (TILES_P * TILES_Q) % OUT_D;
        let met = plane_read(z, pair % KD);
#if VOLUMES
        if met >= IN_D {
            continue;
        }
#endif
        let first = first_of(tile / TILES_Q % TILES_P, tile % TILES_Q);
        let read = first_read(first);
        let begin = ((n * C + c) * IN_D + met) * (H * W);
#for A in TILE_P
        let p_${A} = first.x + ${A}u * EVERY_P;
        let is_${A} = p_${A} < P;
        let dy_${A} = dy[select(0u, (((n * O + o) * OUT_D + z) * P + p_${A}) * Q + first.y, is_${A})];
#endfor
#for J in KW
        let column_${J} = read.y + ${J}u * STEP_Q;
        let inside_${J} = column_${J} < W;
#endfor
#for R in ROWS
        let row_${R} = read.x + ${R}u * STEP_P;
#for J in KW
        let there_${R}_${J} = row_${R} < H && inside_${J};
        let x_${R}_${J} = select(0.0, x[select(0u, begin + row_${R} * W + column_${J}, there_${R}_${J})], there_${R}_${J});
#endfor
#for A in TILE_P
#for I in KH
#if R == APART_P * A + I
#if OVERHANG
        // Inputs are not multiplied by outputs that are not there: infinity would be NaN.
        if is_${A} {
#for J in KW
            sum_${I}_${J} = fma(x_${R}_${J}, dy_${A}, sum_${I}_${J});
#endfor
        }
#else
#for J in KW
        sum_${I}_${J} = fma(x_${R}_${J}, dy_${A}, sum_${I}_${J});
#endfor
#endif
#endif
#endfor
#endfor
#endfor
    }
#for B in BATCHES
    // Before these sums are written, those of the batch before were read.
#for E in 8
#for I in KH
#for J in KW
#if I * KW + J == B * 8 + E
    sums[${E}u * WG + lane] = sum_${I}_${J};
#endif
#endfor
#endfor
    if ${B}u * 8u + ${E}u >= TAPS {
        sums[${E}u * WG + lane] = 0.0;
    }
#endfor
    let total_${B} = total(lane);
    let tap_${B} = ${B}u * 8u + lane;
    if lane < 8u && tap_${B} < TAPS {
#if SUMS == whole
        store(pair * TAPS + tap_${B}, total_${B});
#else
        parts[(part * O * IN * KD + pair) * TAPS + tap_${B}] = total_${B};
#endif
    }
#endfor
}
