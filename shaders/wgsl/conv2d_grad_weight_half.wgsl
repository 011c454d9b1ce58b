// `conv2d_grad_weight_gemm` on matrix units, the columns tap by tap, of operands that `half_images` has rounded to f16.
//
// Bindings: x[N,H·W,C], dy[N,P·Q,O], scales → dw[O,C/G,KH,KW] by its epilogue, or parts[part,o,c,i,j] (SUMS parts).
//
// Defines: those of shared/gemm with UNITS half, A_ALONG row, B_ALONG column, and of `conv2d` without WG
//          SUMS whole or parts

#include "shared/conv2d_gemm"

const ROWS: u32 = GROUP_O;
const COLUMNS: u32 = GROUP_C * TAPS;
const DEPTH: u32 = N * P * Q;
const RESULT: u32 = O * GROUP_C * TAPS;

@group(0) @binding(0) var<storage, read> x: array<vec4<f16>>;
@group(0) @binding(1) var<storage, read> dy: array<vec4<f16>>;

fn load_a(group: u32, o: u32, pixel: u32, end: u32) -> Line {
    let there = is_row(o) && is_term(pixel, end);
    let line = select(0u, (pixel * O + group * GROUP_O + o) / 8u * 2u, there);
    return Line(select(vec4<f16>(), dy[line], there), select(vec4<f16>(), dy[line + 1u], there));
}

fn load_b(group: u32, pixel: u32, j: u32, end: u32) -> Line {
    let tap = j / GROUP_C;
    let row = pixel / Q % P * SH + tap / KW * DH - PH;
    let column = pixel % Q * SW + tap % KW * DW - PW;
    // Negative numbers are large ones.
    let there = is_term(pixel, end) && is_column(j) && row < H && column < W;
    let place = pixel / (P * Q) * (H * W) + row * W + column;
    let at = (place * CHANNELS + group * GROUP_C + j % GROUP_C) / 8u;
    let line = select(0u, at * 2u, there);
    return Line(select(vec4<f16>(), x[line], there), select(vec4<f16>(), x[line + 1u], there));
}

/// Where the weight of a column is among those of an output channel.
fn place_of(column: u32) -> u32 {
    return column % GROUP_C * TAPS + column / GROUP_C;
}

fn finish(group: u32, part: u32, i: u32, j: u32, sums: vec4<f32>) {
#for R in 4
    if is_column(j + ${R}u) {
        put_sum(part, (group * GROUP_O + i) * COLUMNS + place_of(j + ${R}u), sums[${R}]);
    }
#endfor
}
