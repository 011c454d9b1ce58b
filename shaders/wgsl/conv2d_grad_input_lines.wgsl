// `conv2d_grad_input` as a product on matrix units, tap by tap; see shared/gemm_lines. A line is eight channels of a pixel.
//
// Bindings: dy[N,P,Q,O] in halves, w[G,TAPS·O/G/8,C/G,8] from `conv2d_pack_lines` → dx[N,H,W,C] by its epilogue, or parts[part,n,h,w,c]
// (SUMS parts).
//
// Defines: those of shared/gemm with UNITS lines, LINES, A_ALONG k, B_ALONG k, and of `conv2d` without WG; C/G and O/G multiples of 8
//          SUMS whole or parts

#include "shared/conv2d_gemm"

const ROWS: u32 = GROUP_C;
const COLUMNS: u32 = N * H * W;
const DEPTH: u32 = GROUP_O * TAPS;
const RESULT: u32 = N * CHANNELS * H * W;

@group(0) @binding(0) var<storage, read> dy: array<vec4<u32>>;
#include "shared/conv2d_cotangents"
#include "shared/conv2d_packed_lines"

/// The cotangents that reached input `pixel` through the tap of k, whose outputs are o..; nothing where none did.
fn load_b(group: u32, k: u32, pixel: u32, end: u32) -> Line {
    let tap = k / GROUP_O;
    let row = pixel / W % H + PH - tap / KW * DH;
    let column = pixel % W + PW - tap % KW * DW;
    // Negative numbers are large ones.
    let p = row / SH;
    let q = column / SW;
    let reached = p * SH == row && q * SW == column;
    let wanted = reached && is_term(k, end) && is_column(pixel);
    return cotangent(pixel / (H * W), group * GROUP_O + k % GROUP_O, p, q, wanted);
}

/// Where the sum of input channel i at an input pixel goes.
const PITCH_RESULT: u32 = CHANNELS;

fn result_at(group: u32, part: u32, i: u32, pixel: u32) -> u32 {
    return part * RESULT + pixel * CHANNELS + group * GROUP_C + i;
}
