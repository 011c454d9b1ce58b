// `conv2d_grad_weight` as a product on matrix units, its columns tap by tap; see shared/gemm_lines. A line is eight channels of a
// pixel.
//
// Bindings: x[N,H,W,C], dy[N,P,Q,O] in halves → dw[O,C/G,KH,KW] by its epilogue, or parts[part,o,c,i,j] (SUMS parts).
//
// Defines: those of shared/gemm with UNITS lines, A_ALONG row, B_ALONG column, and of `conv2d` without WG; C/G and O/G multiples of 8
//          SUMS whole or parts

#include "shared/conv2d_gemm"

const ROWS: u32 = GROUP_O;
const COLUMNS: u32 = GROUP_C * TAPS;
const DEPTH: u32 = N * P * Q;
const RESULT: u32 = O * GROUP_C * TAPS;

@group(0) @binding(0) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> dy: array<vec4<u32>>;
#include "shared/conv2d_cotangents"
#include "shared/conv2d_window"

fn load_a(group: u32, o: u32, pixel: u32, end: u32) -> Line {
    let wanted = is_row(o) && is_term(pixel, end);
    return cotangent(pixel / (P * Q), group * GROUP_O + o, pixel / Q % P, pixel % Q, wanted);
}

fn load_b(group: u32, pixel: u32, j: u32, end: u32) -> Line {
    return window(group * GROUP_C + j % GROUP_C, j / GROUP_C, pixel, is_term(pixel, end) && is_column(j));
}

/// Where the weight of a column is among those of an output channel.
fn place_of(column: u32) -> u32 {
    return column % GROUP_C * TAPS + column / GROUP_C;
}

fn result_at(group: u32, part: u32, i: u32, j: u32) -> u32 {
    return part * RESULT + (group * GROUP_O + i) * COLUMNS + place_of(j);
}
