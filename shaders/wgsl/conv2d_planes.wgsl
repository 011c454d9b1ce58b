// Convolution of few channels in each group, above all depthwise ones, in f32; or the gradient of its input, which is
// such a convolution of the cotangents. An invocation computes a tile of outputs of a channel: a column of TILE_P,
// and its neighbours if inputs are UP_Q apart. Each input that it loads serves all its taps and outputs. Neighbouring
// invocations read and write neighbouring columns.
//
// Bindings: x[N,C,IN_D,H,W], w → y[N,O,OUT_D,P,Q] by its epilogue. FORM forward: w[O,IN,KD,KH,KW]. FORM grad_input:
// w[C,OUT,KD,KH,KW], whose taps are read in reverse order.
//
// Defines: those of shared/conv2d_tiles, shared/planes, shared/elements and shared/epilogue
//          FORM
//          N, C, O
//          IN, OUT  channels of a group that are read, and of the result

#include "shared/conv2d_tiles"
#include "shared/planes"
#include "shared/epilogue"
#include "shared/elements"

const N: u32 = ${N};
const C: u32 = ${C};
const O: u32 = ${O};
const IN: u32 = ${IN};
const OUT: u32 = ${OUT};
const TAPS: u32 = KD * KH * KW;
const ELEMENTS: u32 = N * O * OUT_D * TILES_P * TILES_Q;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> w: array<f32>;

fn compute(i: u32) {
    let plane = i / (TILES_P * TILES_Q);
    let image = plane / OUT_D;
    let o = image % O;
    let first = first_of(i / TILES_Q % TILES_P, i % TILES_Q);
    let read = first_read(first);
#for A in TILE_P
#for B in TILE_Q
    var sum_${A}_${B} = 0.0;
#endfor
#endfor
    // Over channels, and the planes of the kernel.
    for (var k = 0u; k < IN * KD; k++) {
        let c = o / OUT * IN + k / KD;
        let depth = k % KD;
        let met = plane_read(plane % OUT_D, depth);
#if VOLUMES
        if met >= IN_D {
            continue;
        }
#endif
        let begin = ((image / O * C + c) * IN_D + met) * (H * W);
#if FORM == forward
        let weights = (o * IN + k / KD) * TAPS + depth * (KH * KW);
#for I in KH
#for J in KW
        let w_${I}_${J} = w[weights + ${I}u * KW + ${J}u];
#endfor
#endfor
#else
        let weights = (c * OUT + o % OUT) * TAPS + TAPS - 1u - depth * (KH * KW);
#for I in KH
#for J in KW
        let w_${I}_${J} = w[weights - (${I}u * KW + ${J}u)];
#endfor
#endfor
#endif
#for V in COLUMNS
        let column_${V} = read.y + ${V}u * STEP_Q;
        let is_${V} = column_${V} < W;
#endfor
#for R in ROWS
        let row_${R} = read.x + ${R}u * STEP_P;
#for V in COLUMNS
        let there_${R}_${V} = row_${R} < H && is_${V};
        let x_${R}_${V} = select(0.0, x[select(0u, begin + row_${R} * W + column_${V}, there_${R}_${V})], there_${R}_${V});
#endfor
#for A in TILE_P
#for I in KH
#if UP_P * R + PHASE_P == APART_P * A + WIDE_P * I
#for B in TILE_Q
#for V in COLUMNS
#for J in KW
#if UP_Q * V + PHASE_Q == APART_Q * B + WIDE_Q * J
        sum_${A}_${B} = fma(x_${R}_${V}, w_${I}_${J}, sum_${A}_${B});
#endif
#endfor
#endfor
#endfor
#endif
#endfor
#endfor
#endfor
    }
#for A in TILE_P
#for B in TILE_Q
    let p_${A}_${B} = first.x + ${A}u * EVERY_P;
    let q_${A}_${B} = first.y + ${B}u * EVERY_Q;
    let to_${A}_${B} = (plane * P + p_${A}_${B}) * Q + q_${A}_${B};
    let result_${A}_${B} = p_${A}_${B} < P && q_${A}_${B} < Q;
    let epilogue_${A}_${B} = epilogue(select(0u, to_${A}_${B}, result_${A}_${B}));
#endfor
#endfor
#for A in TILE_P
#for B in TILE_Q
    if result_${A}_${B} {
        finish(epilogue_${A}_${B}, sum_${A}_${B});
    }
#endfor
#endfor
}
