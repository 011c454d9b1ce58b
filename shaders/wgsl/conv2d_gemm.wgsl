// `conv2d` in both its forms, as a product for each group by shared/gemm. Rows are output channels, columns are the
// pixels of all outputs, and the reduction runs over the weights of an output channel.
//
// Bindings: x[N,C,IN_D,H,W], w → y[N,O,OUT_D,P,Q] by its epilogue (SUMS whole), or parts[part,n,o,z,p,q] (SUMS parts).
//           ORDER channels: w[O,C/G,KD,KH,KW], or with FORM grad_input w[C,O/G,KD,KH,KW]; ORDER taps: w from
//           `conv2d_pack`.
//
// Defines: those of shared/conv2d_product; with ORDER taps, O/G is a multiple of 4, like C/G
//          FORM   as in `conv2d`
//          SKIPS  defined with ORDER taps and FORM grad_input, if the extents of y are multiples of the distances of
//                 pixels of x; with SHIFT_D, SHIFT_H and SHIFT_W: −PD, −PH and −PW, modulo the distances

#include "shared/conv2d_product"

const ROWS: u32 = GROUP_O;
const COLUMNS: u32 = N * PIXELS;
const DEPTH: u32 = GROUP_C * TAPS;
/// Elements of the result, and of each part.
const RESULT: u32 = N * O * PIXELS;

#if SKIPS
/// Pixels of y that are as far apart as those of x read nothing but zeros by the same taps. They are neighbouring
/// columns of the product.
const PHASES: u32 = UD * UH * UW;
const OF_PHASE: u32 = N * PIXELS / PHASES;

fn pixel_of(column: u32) -> u32 {
    let phase = column / OF_PHASE;
    let at = column % OF_PHASE;
    let q = at % (Q / UW) * UW + phase % UW;
    let p = at / (Q / UW) % (P / UH) * UH + phase / UW % UH;
    let z = at / (Q / UW * (P / UH)) % (OUT_D / UD) * UD + phase / (UW * UH);
    return ((at / (PIXELS / PHASES) * OUT_D + z) * P + p) * Q + q;
}

/// `true` if tap `tap` of the pixels of this phase reads pixels of x, not only the zeros between them.
fn meets(phase: u32, tap: u32) -> bool {
    let planes = phase / (UW * UH) + tap / (KH * KW) * DD + ${SHIFT_D}u;
    let rows = phase / UW % UH + tap / KW % KH * DH + ${SHIFT_H}u;
    let columns = phase % UW + tap % KW * DW + ${SHIFT_W}u;
    return planes % UD == 0u && rows % UH == 0u && columns % UW == 0u;
}

fn next_step(column0: u32, k: u32, end: u32) -> u32 {
    // Otherwise a step or a tile has more than two taps or phases.
    if GROUP_C < BK || OF_PHASE < BN {
        return k;
    }
    let first = column0 / OF_PHASE;
    let last = (min(column0 + BN, N * PIXELS) - 1u) / OF_PHASE;
    var next = k;
    while next < end {
        let tap = next / GROUP_C;
        let other = (min(next + BK, end) - 1u) / GROUP_C;
        if meets(first, tap) || meets(last, tap) || meets(first, other) || meets(last, other) {
            break;
        }
        next += BK;
    }
    return next;
}
#else
fn pixel_of(column: u32) -> u32 {
    return column;
}
#endif

#if ORDER == taps
@group(0) @binding(1) var<storage, read> w: array<vec4<f32>>;

/// Weights of rows i to i + 3 at term k, from w[G,DEPTH,ROWS].
fn weights(group: u32, i: u32, k: u32, end: u32) -> vec4<f32> {
    let there = is_row(i) && is_term(k, end);
    return select(vec4<f32>(), w[select(0u, ((group * DEPTH + k) * ROWS + i) / 4u, there)], there);
}

fn load_a(group: u32, i: u32, k: u32, end: u32) -> mat4x4<f32> {
    return mat4x4(
        weights(group, i, k, end),
        weights(group, i, k + 1u, end),
        weights(group, i, k + 2u, end),
        weights(group, i, k + 3u, end),
    );
}

fn load_b(group: u32, k: u32, j: u32, end: u32) -> mat4x4<f32> {
    let tap = k / GROUP_C;
    let c = k % GROUP_C;
    let wanted = is_term(k, end);
    return transpose(mat4x4(
        gather(group, tap, c, pixel_of(j), wanted && is_column(j)),
        gather(group, tap, c, pixel_of(j + 1u), wanted && is_column(j + 1u)),
        gather(group, tap, c, pixel_of(j + 2u), wanted && is_column(j + 2u)),
        gather(group, tap, c, pixel_of(j + 3u), wanted && is_column(j + 3u)),
    ));
}
#else
@group(0) @binding(1) var<storage, read> w: array<f32>;

fn weight(group: u32, o: u32, k: u32, end: u32) -> f32 {
    let there = is_row(o) && is_term(k, end);
#if FORM == forward
    let at = (group * GROUP_O + o) * DEPTH + k;
#else
    let at = ((group * GROUP_C + k / TAPS) * GROUP_O + o) * TAPS + TAPS - 1u - k % TAPS;
#endif
    return select(0.0, w[select(0u, at, there)], there);
}

fn weight_column(group: u32, o: u32, k: u32, end: u32) -> vec4<f32> {
    return vec4(
        weight(group, o, k, end),
        weight(group, o + 1u, k, end),
        weight(group, o + 2u, k, end),
        weight(group, o + 3u, k, end),
    );
}

fn load_a(group: u32, i: u32, k: u32, end: u32) -> mat4x4<f32> {
    return mat4x4(
        weight_column(group, i, k, end),
        weight_column(group, i, k + 1u, end),
        weight_column(group, i, k + 2u, end),
        weight_column(group, i, k + 3u, end),
    );
}

fn input(group: u32, pixel: u32, k: u32, end: u32) -> f32 {
    let plane = plane_read(pixel / (P * Q) % OUT_D, k / (KH * KW) % KD);
    let row = row_read(pixel / Q % P, k / KW % KH);
    let column = column_read(pixel % Q, k % KW);
    let there = is_column(pixel) && is_term(k, end) && plane < IN_D && row < H && column < W;
    let channel = pixel / PIXELS * CHANNELS + group * GROUP_C + k / TAPS;
    return select(0.0, x[select(0u, ((channel * IN_D + plane) * H + row) * W + column, there)], there);
}

fn load_b(group: u32, k: u32, j: u32, end: u32) -> mat4x4<f32> {
    return mat4x4(
#for R in 4
        vec4(
            input(group, j, k + ${R}u, end),
            input(group, j + 1u, k + ${R}u, end),
            input(group, j + 2u, k + ${R}u, end),
            input(group, j + 3u, k + ${R}u, end),
        ),
#endfor
    );
}
#endif

const PITCH_RESULT: u32 = PIXELS;

/// The place of output channel i. Adding `column_at` gives the place of one of its pixels.
fn row_at(group: u32, part: u32, i: u32) -> u32 {
    return part * RESULT + (group * GROUP_O + i) * PIXELS;
}

fn column_at(column: u32) -> u32 {
    let pixel = pixel_of(column);
    return pixel / PIXELS * (O * PIXELS) + pixel % PIXELS;
}
