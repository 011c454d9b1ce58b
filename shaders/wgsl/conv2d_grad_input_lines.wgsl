// `conv2d_grad_input` as a product on matrix units, tap by tap; see shared/gemm_lines. A line is eight channels of a pixel.
//
// Bindings: dy[N,O,P,Q], w[G,TAPS·O/G/8,C/G,8] from `conv2d_pack_lines` → dx[N,C,H,W] by its epilogue, or parts[part,n,c,h,w]
// (SUMS parts).
//
// Defines: those of shared/gemm with UNITS lines, A_ALONG k, B_ALONG k, and of `conv2d` without WG; O/G a multiple of 8
//          SUMS whole or parts

#include "shared/conv2d_gemm"

const ROWS: u32 = GROUP_C;
const COLUMNS: u32 = N * H * W;
const DEPTH: u32 = GROUP_O * TAPS;
const RESULT: u32 = N * CHANNELS * H * W;

@group(0) @binding(0) var<storage, read> dy: array<f32>;
#include "shared/conv2d_packed_lines"

/// The cotangents that reached input `pixel` through the tap of k, whose outputs are o..; nothing where none did.
fn load_b(group: u32, k: u32, pixel: u32, end: u32) -> Line {
    let tap = k / GROUP_O;
    let row = pixel / W % H + PH - tap / KW * DH;
    let column = pixel % W + PW - tap % KW * DW;
    // Negative numbers are large ones.
    let p = row / SH;
    let q = column / SW;
    let reached = p < P && q < Q && p * SH == row && q * SW == column;
    let there = reached && is_term(k, end) && is_column(pixel);
    let plane = pixel / (H * W) * O + group * GROUP_O + k % GROUP_O;
    let at = select(0u, (plane * P + p) * Q + q, there);
    return Line(
        vec4(dy[at], dy[at + P * Q], dy[at + 2u * P * Q], dy[at + 3u * P * Q]),
        vec4(dy[at + 4u * P * Q], dy[at + 5u * P * Q], dy[at + 6u * P * Q], dy[at + 7u * P * Q]),
        there,
    );
}

const PITCH_RESULT: u32 = H * W;

/// Where the sum of input channel i at an input pixel goes.
fn result_at(group: u32, part: u32, i: u32, pixel: u32) -> u32 {
    let plane = pixel / (H * W) * CHANNELS + group * GROUP_C + i;
    return part * RESULT + plane * H * W + pixel % (H * W);
}
