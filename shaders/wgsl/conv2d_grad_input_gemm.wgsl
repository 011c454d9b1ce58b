// `conv2d_grad_input` as a product for each group: rows are input channels, columns the pixels of all inputs, and the reduction runs
// over the weights that an input meets, o, i, j; see shared/gemm. The columns are never in memory: blocks are gathered as they are
// needed.
//
// Bindings: dy[N,O,P,Q], w[O,C/G,KH,KW] → dx[N,C,H,W] by its epilogue, or parts[part,n,c,h,w] (SUMS parts).
//
// Defines: those of shared/gemm, and of `conv2d` without WG
//          SUMS  whole or parts
//          ORDER of the reduction: channels, or taps, as in `conv2d_gemm`

#include "shared/conv2d_gemm"

const ROWS: u32 = GROUP_C;
const COLUMNS: u32 = N * H * W;
const DEPTH: u32 = GROUP_O * TAPS;
const RESULT: u32 = N * CHANNELS * H * W;

@group(0) @binding(0) var<storage, read> dy: array<f32>;
#if ORDER == taps
#include "shared/conv2d_packed"

/// Channels o.. of the cotangent that reached input pixel `pixel` through tap `tap`; zeros where none did, and unless `wanted`.
fn gather(group: u32, tap: u32, o: u32, pixel: u32, wanted: bool) -> vec4<f32> {
    let row = pixel / W % H + PH - tap / KW * DH;
    let column = pixel % W + PW - tap % KW * DW;
    // Negative numbers are large ones.
    let p = row / SH;
    let q = column / SW;
    let there = wanted && p < P && q < Q && p * SH == row && q * SW == column;
    let plane = pixel / (H * W) * O + group * GROUP_O + o;
    let at = select(0u, plane * (P * Q) + p * Q + q, there);
    let four = vec4(dy[at], dy[at + P * Q], dy[at + 2u * P * Q], dy[at + 3u * P * Q]);
    return select(vec4<f32>(), four, there);
}

fn load_b(group: u32, k: u32, j: u32, end: u32) -> mat4x4<f32> {
    let tap = k / GROUP_O;
    let o = k % GROUP_O;
    let wanted = is_term(k, end);
    return transpose(mat4x4(
        gather(group, tap, o, j, wanted && is_column(j)),
        gather(group, tap, o, j + 1u, wanted && is_column(j + 1u)),
        gather(group, tap, o, j + 2u, wanted && is_column(j + 2u)),
        gather(group, tap, o, j + 3u, wanted && is_column(j + 3u)),
    ));
}
#else
@group(0) @binding(1) var<storage, read> w: array<f32>;

fn weight(group: u32, c: u32, k: u32, end: u32) -> f32 {
    let there = is_row(c) && is_term(k, end);
    let at = ((group * GROUP_O + k / TAPS) * GROUP_C + c) * TAPS + k % TAPS;
    return select(0.0, w[select(0u, at, there)], there);
}

fn weight_column(group: u32, c: u32, k: u32, end: u32) -> vec4<f32> {
    return vec4(
        weight(group, c, k, end),
        weight(group, c + 1u, k, end),
        weight(group, c + 2u, k, end),
        weight(group, c + 3u, k, end),
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

/// The pixel's image, and its row and column in the padded input.
fn place(pixel: u32) -> vec3<u32> {
    return vec3(pixel / (H * W), pixel / W % H + PH, pixel % W + PW);
}

fn cotangent(group: u32, pixel: u32, at: vec3<u32>, k: u32, end: u32) -> f32 {
    let row = i32(at.y) - i32(k / KW % KH * DH);
    let column = i32(at.z) - i32(k % KW * DW);
    // Negative numbers are large ones.
    let p = u32(row) / SH;
    let q = u32(column) / SW;
    let there = is_term(k, end) && is_column(pixel) && p * SH == u32(row) && q * SW == u32(column) && p < P && q < Q;
    let plane = at.x * O + group * GROUP_O + k / TAPS;
    return select(0.0, dy[select(0u, (plane * P + p) * Q + q, there)], there);
}

fn load_b(group: u32, k: u32, j: u32, end: u32) -> mat4x4<f32> {
    let at_0 = place(j);
    let at_1 = place(j + 1u);
    let at_2 = place(j + 2u);
    let at_3 = place(j + 3u);
    return mat4x4(
#for R in 4
        vec4(
            cotangent(group, j, at_0, k + ${R}u, end),
            cotangent(group, j + 1u, at_1, k + ${R}u, end),
            cotangent(group, j + 2u, at_2, k + ${R}u, end),
            cotangent(group, j + 3u, at_3, k + ${R}u, end),
        ),
#endfor
    );
}
#endif

const PITCH_RESULT: u32 = H * W;

/// Where the sum of input channel i at an input pixel goes.
fn result_at(group: u32, part: u32, i: u32, pixel: u32) -> u32 {
    let plane = pixel / (H * W) * CHANNELS + group * GROUP_C + i;
    return part * RESULT + plane * H * W + pixel % (H * W);
}
