// `conv2d` as a product on matrix units, tap by tap; see shared/gemm_lines. A line is eight channels of a pixel.
//
// Bindings: x[N,H,W,C] in halves, w[G,TAPS·C/G/8,O/G,8] from `conv2d_pack_lines` → y[N,P,Q,O] by its epilogue, or parts[part,n,p,q,o]
// (SUMS parts).
//
// Defines: those of shared/gemm with UNITS lines, LINES, A_ALONG k, B_ALONG k, and of `conv2d` without WG; C/G and O/G multiples of 8
//          SUMS whole or parts

#include "shared/conv2d_gemm"

const ROWS: u32 = GROUP_O;
const COLUMNS: u32 = N * P * Q;
const DEPTH: u32 = GROUP_C * TAPS;
const RESULT: u32 = N * O * P * Q;

@group(0) @binding(0) var<storage, read> x: array<vec4<u32>>;
#include "shared/conv2d_window"
#include "shared/conv2d_packed_lines"

fn load_b(group: u32, k: u32, pixel: u32, end: u32) -> Line {
    let tap = k / GROUP_C;
    return window(group * GROUP_C + k % GROUP_C, tap, pixel, is_term(k, end) && is_column(pixel));
}

/// Where the sum of output channel i at an output pixel goes.
const PITCH_RESULT: u32 = O;

fn result_at(group: u32, part: u32, i: u32, pixel: u32) -> u32 {
    return part * RESULT + pixel * O + group * GROUP_O + i;
}
