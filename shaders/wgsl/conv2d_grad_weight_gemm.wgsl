// `conv2d_grad_weight` as a product for each group by shared/gemm. Rows are output channels, columns are the weights of
// an output channel, and the reduction runs over the pixels of all outputs. There are few results, so the reduction is
// cut into parts.
//
// Bindings: x[N,C,IN_D,H,W], dy[N,O,OUT_D,P,Q] → dw[O,C/G,KD,KH,KW] by its epilogue (SUMS whole), or parts of such
// shapes (SUMS parts).
//
// Defines: those of shared/conv2d_product
//          FOURS  defined where OUT_D·P·Q is a multiple of 4

#include "shared/conv2d_product"

const ROWS: u32 = GROUP_O;
const COLUMNS: u32 = GROUP_C * TAPS;
const DEPTH: u32 = N * PIXELS;
/// Elements of the result, and of each part.
const RESULT: u32 = O * GROUP_C * TAPS;

#if FOURS
@group(0) @binding(1) var<storage, read> dy: array<vec4<f32>>;

/// Four pixels of channel o.
fn cotangents(group: u32, o: u32, pixel: u32, end: u32) -> vec4<f32> {
    let there = is_row(o) && is_term(pixel, end);
    let at = (pixel / PIXELS * O + group * GROUP_O + o) * PIXELS + pixel % PIXELS;
    return select(vec4<f32>(), dy[select(0u, at / 4u, there)], there);
}

fn load_a(group: u32, i: u32, k: u32, end: u32) -> mat4x4<f32> {
    return transpose(mat4x4(
        cotangents(group, i, k, end),
        cotangents(group, i + 1u, k, end),
        cotangents(group, i + 2u, k, end),
        cotangents(group, i + 3u, k, end),
    ));
}
#else
@group(0) @binding(1) var<storage, read> dy: array<f32>;

fn cotangent(group: u32, o: u32, pixel: u32, end: u32) -> f32 {
    let there = is_row(o) && is_term(pixel, end);
    let at = (pixel / PIXELS * O + group * GROUP_O + o) * PIXELS + pixel % PIXELS;
    return select(0.0, dy[select(0u, at, there)], there);
}

fn load_a(group: u32, i: u32, k: u32, end: u32) -> mat4x4<f32> {
    return mat4x4(
#for R in 4
        vec4(
            cotangent(group, i, k + ${R}u, end),
            cotangent(group, i + 1u, k + ${R}u, end),
            cotangent(group, i + 2u, k + ${R}u, end),
            cotangent(group, i + 3u, k + ${R}u, end),
        ),
#endfor
    );
}
#endif

#if ORDER == taps
fn load_b(group: u32, k: u32, j: u32, end: u32) -> mat4x4<f32> {
    let tap = j / GROUP_C;
    let c = j % GROUP_C;
    let wanted = is_column(j);
    return mat4x4(
        gather(group, tap, c, k, wanted && is_term(k, end)),
        gather(group, tap, c, k + 1u, wanted && is_term(k + 1u, end)),
        gather(group, tap, c, k + 2u, wanted && is_term(k + 2u, end)),
        gather(group, tap, c, k + 3u, wanted && is_term(k + 3u, end)),
    );
}

/// The place of a column's weight among those of an output channel.
fn column_at(column: u32) -> u32 {
    return column % GROUP_C * TAPS + column / GROUP_C;
}
#else
/// Channel, plane, row and column of a weight.
fn tap(column: u32) -> vec4<u32> {
    return vec4(column / TAPS, column / (KH * KW) % KD, column / KW % KH, column % KW);
}

fn input(group: u32, column: u32, tap: vec4<u32>, pixel: u32, end: u32) -> f32 {
    let plane = plane_read(pixel / (P * Q) % OUT_D, tap.y);
    let h = row_read(pixel / Q % P, tap.z);
    let v = column_read(pixel % Q, tap.w);
    let there = is_column(column) && is_term(pixel, end) && plane < IN_D && h < H && v < W;
    let channel = pixel / PIXELS * CHANNELS + group * GROUP_C + tap.x;
    return select(0.0, x[select(0u, ((channel * IN_D + plane) * H + h) * W + v, there)], there);
}

fn load_b(group: u32, k: u32, j: u32, end: u32) -> mat4x4<f32> {
    let tap_0 = tap(j);
    let tap_1 = tap(j + 1u);
    let tap_2 = tap(j + 2u);
    let tap_3 = tap(j + 3u);
    return mat4x4(
#for R in 4
        vec4(
            input(group, j, tap_0, k + ${R}u, end),
            input(group, j + 1u, tap_1, k + ${R}u, end),
            input(group, j + 2u, tap_2, k + ${R}u, end),
            input(group, j + 3u, tap_3, k + ${R}u, end),
        ),
#endfor
    );
}

fn column_at(column: u32) -> u32 {
    return column;
}
#endif

fn row_at(group: u32, part: u32, i: u32) -> u32 {
    return part * RESULT + (group * GROUP_O + i) * COLUMNS;
}
