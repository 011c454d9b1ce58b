// `conv2d` as a product on matrix units, tap by tap; see shared/gemm_lines. A line is eight channels of a pixel.
//
// Bindings: x[N,C,H,W], w[G,TAPS·C/G/8,O/G,8] from `conv2d_pack_lines` → y[N,O,P,Q] by its epilogue, or parts[part,n,o,p,q]
// (SUMS parts). With FORMAT half x[N,H,W,C]; with LINES y[N,P,Q,O] or parts[part,n,p,q,o].
//
// Defines: those of shared/gemm with UNITS lines, A_ALONG k, B_ALONG k, and of `conv2d` without WG; C/G a multiple of 8,
//          with LINES O/G as well
//          SUMS whole or parts

#include "shared/conv2d_gemm"

const ROWS: u32 = GROUP_O;
const COLUMNS: u32 = N * P * Q;
const DEPTH: u32 = GROUP_C * TAPS;
const RESULT: u32 = N * O * P * Q;

@group(0) @binding(0) var<storage, read> x: array<Element>;
#include "shared/conv2d_window"
#include "shared/conv2d_packed_lines"

fn load_b(group: u32, k: u32, pixel: u32, end: u32) -> Line {
    let tap = k / GROUP_C;
    return window(group * GROUP_C + k % GROUP_C, tap, pixel, is_term(k, end) && is_column(pixel));
}

/// Where the sum of output channel i at an output pixel goes.
#if LINES
const PITCH_RESULT: u32 = O;

fn result_at(group: u32, part: u32, i: u32, pixel: u32) -> u32 {
    return part * RESULT + pixel * O + group * GROUP_O + i;
}
#else
const PITCH_RESULT: u32 = P * Q;

fn result_at(group: u32, part: u32, i: u32, pixel: u32) -> u32 {
    let plane = pixel / (P * Q) * O + group * GROUP_O + i;
    return part * RESULT + plane * P * Q + pixel % (P * Q);
}
#endif
