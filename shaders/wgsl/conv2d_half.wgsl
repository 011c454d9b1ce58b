// `conv2d_gemm` on matrix units, tap by tap, of operands that `half_images` and `half_weights` have rounded to f16.
//
// Bindings: x[N,H·W,C], w[G,O/G,TAPS,C/G], scales → y[N,O,P,Q] by its epilogue, or parts[part,n,o,p,q] (SUMS parts).
//
// Defines: those of shared/gemm with UNITS half, A_ALONG k, B_ALONG k, and of `conv2d` without WG
//          SUMS whole or parts

#include "shared/conv2d_gemm"

const ROWS: u32 = GROUP_O;
const COLUMNS: u32 = N * P * Q;
const DEPTH: u32 = GROUP_C * TAPS;
const RESULT: u32 = N * O * P * Q;

@group(0) @binding(0) var<storage, read> x: array<vec4<f16>>;
@group(0) @binding(1) var<storage, read> w: array<vec4<f16>>;

fn load_a(group: u32, o: u32, k: u32, end: u32) -> Line {
    let there = is_row(o) && is_term(k, end);
    let line = select(0u, ((group * GROUP_O + o) * DEPTH + k) / 8u * 2u, there);
    return Line(select(vec4<f16>(), w[line], there), select(vec4<f16>(), w[line + 1u], there));
}

fn load_b(group: u32, k: u32, pixel: u32, end: u32) -> Line {
    let tap = k / GROUP_C;
    let row = pixel / Q % P * SH + tap / KW * DH - PH;
    let column = pixel % Q * SW + tap % KW * DW - PW;
    // Negative numbers are large ones.
    let there = is_term(k, end) && is_column(pixel) && row < H && column < W;
    let place = pixel / (P * Q) * (H * W) + row * W + column;
    let at = (place * CHANNELS + group * GROUP_C + k % GROUP_C) / 8u;
    let line = select(0u, at * 2u, there);
    return Line(select(vec4<f16>(), x[line], there), select(vec4<f16>(), x[line + 1u], there));
}

fn finish(group: u32, part: u32, i: u32, j: u32, sums: vec4<f32>) {
#for R in 4
    if is_column(j + ${R}u) {
        let pixel_${R} = j + ${R}u;
        let plane_${R} = pixel_${R} / (P * Q) * O + group * GROUP_O + i;
        put_sum(part, plane_${R} * P * Q + pixel_${R} % (P * Q), sums[${R}]);
    }
#endfor
}
