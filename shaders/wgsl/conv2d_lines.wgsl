// Convolution of few channels in each group, above all depthwise ones, in bf16 with channels innermost; or the
// gradient of its input, which is such a convolution of the cotangents. An invocation computes a line of eight channels
// for a tile of outputs. It goes over the rows that the tile reads; inputs in a row serve all its taps and outputs. The
// weights are in workgroup memory in f32.
//
// Bindings: x[N,IN_D,H,W,CHANNELS], w → y[N,OUT_D,P,Q,8·LINES] by its epilogue. FORM forward: w[OUTPUTS,IN,KD,KH,KW].
// FORM grad_input: w[…,OUT,KD,KH,KW], whose taps are read in reverse order.
//
// A workgroup has ACROSS lines and SLOTS tiles: WG is their product. ⌈LINES/ACROSS⌉·⌈TILES/SLOTS⌉ workgroups.
//
// Defines: those of shared/conv2d_tiles, shared/planes, shared/conv2d_lines and shared/epilogue_lines
//          WG, N, FORM
//          LINES           of output channels
//          ACROSS, BLOCKS  lines of a workgroup, and blocks of so many lines
//          SLOTS, TILES    tiles of a workgroup, and of all planes of the result
//          TURNS           IN / AT_ONCE
//          WEIGHTS         fours of workgroup memory
//          ROWS_ARE        unrolled, for tiles that read few inputs; or looped

#include "shared/conv2d_tiles"
#include "shared/planes"
#include "shared/conv2d_lines"
#include "shared/epilogue_lines"
#include "shared/grid"

const WG: u32 = ${WG};
const N: u32 = ${N};
const LINES: u32 = ${LINES};
const ACROSS: u32 = ${ACROSS};
const BLOCKS: u32 = ${BLOCKS};
const SLOTS: u32 = ${SLOTS};
const TILES: u32 = ${TILES};
const TURNS: u32 = ${TURNS};
const WEIGHTS: u32 = ${WEIGHTS};
const TAPS: u32 = KD * KH * KW;

@group(0) @binding(1) var<storage, read> w: array<f32>;

/// For each tap, input channel of a group and line, the weights of eight outputs.
var<workgroup> weights: array<vec4<f32>, WEIGHTS>;

/// The weight of output channel `at` for channel k of its group; for the padding, that of the last channel.
fn weight(at: u32, k: u32, tap: u32) -> f32 {
    let o = min(at, OUTPUTS - 1u);
#if FORM == forward
    return w[(o * IN + k) * TAPS + tap];
#else
    return w[((o / OUT * IN + k) * OUT + o % OUT) * TAPS + TAPS - 1u - tap];
#endif
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = workgroup_index(workgroup, workgroups);
    let first_line = index % BLOCKS * ACROSS;
    for (var at = lane; at < WEIGHTS; at += WG) {
        let o = min(first_line + at / 2u % ACROSS, LINES - 1u) * 8u + at % 2u * 4u;
        let k = at / (2u * ACROSS) % IN;
        let tap = at / (2u * ACROSS * IN);
        weights[at] = vec4(weight(o, k, tap), weight(o + 1u, k, tap), weight(o + 2u, k, tap), weight(o + 3u, k, tap));
    }
    workgroupBarrier();
    let line = first_line + lane % ACROSS;
    let tile = index / BLOCKS * SLOTS + lane / ACROSS;
    if line >= LINES || tile >= TILES {
        return;
    }
    let plane = tile / (TILES_P * TILES_Q);
    let n = plane / OUT_D;
    let first = first_of(tile / TILES_Q % TILES_P, tile % TILES_Q);
    let read = first_read(first);
#for A in TILE_P
#for B in TILE_Q
    var first_${A}_${B} = vec4<f32>();
    var second_${A}_${B} = vec4<f32>();
#endfor
#endfor
#for V in COLUMNS
    let column_${V} = read.y + ${V}u * STEP_Q;
    let is_${V} = column_${V} < W;
#endfor
    for (var turn_of_plane = 0u; turn_of_plane < TURNS * KD; turn_of_plane++) {
        let turn = turn_of_plane % TURNS;
        let depth = turn_of_plane / TURNS;
        let met = plane_read(plane % OUT_D, depth);
#if VOLUMES
        if met >= IN_D {
            continue;
        }
#endif
        let above = (n * IN_D + met) * H;
#if ROWS_ARE == unrolled
        // All inputs are loaded before the first is needed.
#for R in ROWS
        let row_${R} = read.x + ${R}u * STEP_P;
#for V in COLUMNS
        let words_${R}_${V} = words(row_${R} < H && is_${V}, (above + row_${R}) * W + column_${V}, line, turn);
#endfor
#endfor
#for R in ROWS
#for V in COLUMNS
        let inputs_${R}_${V} = inputs(words_${R}_${V});
#endfor
#for A in TILE_P
#for I in KH
#if UP_P * R + PHASE_P == APART_P * A + WIDE_P * I
#for J in KW
#for K in AT_ONCE
        let at_${R}_${A}_${J}_${K} = (((depth * KH + ${I}u) * KW + ${J}u) * IN + turn * AT_ONCE + ${K}u) * ACROSS + lane % ACROSS;
        let w_${R}_${A}_${J}_${K} = Eight(weights[2u * at_${R}_${A}_${J}_${K}], weights[2u * at_${R}_${A}_${J}_${K} + 1u]);
#for B in TILE_Q
#for V in COLUMNS
#if UP_Q * V + PHASE_Q == APART_Q * B + WIDE_Q * J
        {
            let x = spread_${K}(inputs_${R}_${V});
            first_${A}_${B} = fma(x.first, w_${R}_${A}_${J}_${K}.first, first_${A}_${B});
            second_${A}_${B} = fma(x.second, w_${R}_${A}_${J}_${K}.second, second_${A}_${B});
        }
#endif
#endfor
#endfor
#endfor
#endfor
#endif
#endfor
#endfor
#endfor
#else
        // The inputs of the next row are loaded while those of this one are multiplied.
#for V in COLUMNS
        var words_${V} = words(read.x < H && is_${V}, (above + read.x) * W + column_${V}, line, turn);
#endfor
        for (var r = 0u; r < ROWS; r++) {
            let row = read.x + (r + 1u) * STEP_P;
            let is_row = r + 1u < ROWS && row < H;
#for V in COLUMNS
            let inputs_${V} = inputs(words_${V});
            words_${V} = words(is_row && is_${V}, (above + row) * W + column_${V}, line, turn);
#endfor
#for A in TILE_P
            let at_${A} = UP_P * r + PHASE_P - APART_P * ${A}u;
            let i_${A} = at_${A} / WIDE_P;
            if at_${A} % WIDE_P == 0u && i_${A} < KH {
#for J in KW
#for K in AT_ONCE
                let at_${J}_${K} = (((depth * KH + i_${A}) * KW + ${J}u) * IN + turn * AT_ONCE + ${K}u) * ACROSS + lane % ACROSS;
                let w_${J}_${K} = Eight(weights[2u * at_${J}_${K}], weights[2u * at_${J}_${K} + 1u]);
#for B in TILE_Q
#for V in COLUMNS
#if UP_Q * V + PHASE_Q == APART_Q * B + WIDE_Q * J
                let x_${J}_${K}_${B} = spread_${K}(inputs_${V});
                first_${A}_${B} = fma(x_${J}_${K}_${B}.first, w_${J}_${K}.first, first_${A}_${B});
                second_${A}_${B} = fma(x_${J}_${K}_${B}.second, w_${J}_${K}.second, second_${A}_${B});
#endif
#endfor
#endfor
#endfor
#endfor
            }
#endfor
        }
#endif
    }
    // The operands of merged work are read for a row before it is stored.
#for A in TILE_P
    let p_${A} = first.x + ${A}u * EVERY_P;
#for B in TILE_Q
    let q_${A}_${B} = first.y + ${B}u * EVERY_Q;
    let there_${A}_${B} = p_${A} < P && q_${A}_${B} < Q;
    let to_${A}_${B} = (((plane * P + p_${A}) * Q + q_${A}_${B}) * LINES + line) * 8u;
    let epilogue_${A}_${B} = epilogue(select(0u, to_${A}_${B}, there_${A}_${B}));
#endfor
#for B in TILE_Q
    if there_${A}_${B} {
        finish(epilogue_${A}_${B}, Eight(first_${A}_${B}, second_${A}_${B}));
    }
#endfor
#endfor
}
