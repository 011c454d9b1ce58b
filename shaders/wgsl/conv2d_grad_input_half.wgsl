// `conv2d_grad_input_gemm` on matrix units, tap by tap, of operands that `half_images` and `half_weights` have rounded to f16.
//
// Bindings: dy[N,P·Q,O], w[G,C/G,TAPS,O/G], scales → dx[N,C,H,W] by its epilogue, or parts[part,n,c,h,w] (SUMS parts).
//
// Defines: those of shared/gemm with UNITS half, A_ALONG k, B_ALONG k, and of `conv2d` without WG
//          SUMS whole or parts

#include "shared/conv2d_gemm"

const ROWS: u32 = GROUP_C;
const COLUMNS: u32 = N * H * W;
const DEPTH: u32 = GROUP_O * TAPS;
const RESULT: u32 = N * CHANNELS * H * W;

@group(0) @binding(0) var<storage, read> dy: array<vec4<f16>>;
@group(0) @binding(1) var<storage, read> w: array<vec4<f16>>;

fn load_a(group: u32, c: u32, k: u32, end: u32) -> Line {
    let there = is_row(c) && is_term(k, end);
    let line = select(0u, ((group * GROUP_C + c) * DEPTH + k) / 8u * 2u, there);
    return Line(select(vec4<f16>(), w[line], there), select(vec4<f16>(), w[line + 1u], there));
}

fn load_b(group: u32, k: u32, pixel: u32, end: u32) -> Line {
    let tap = k / GROUP_O;
    let row = pixel / W % H + PH - tap / KW * DH;
    let column = pixel % W + PW - tap % KW * DW;
    // Negative numbers are large ones.
    let p = row / SH;
    let q = column / SW;
    let fits = p < P && q < Q && p * SH == row && q * SW == column;
    let there = is_term(k, end) && is_column(pixel) && fits;
    let place = pixel / (H * W) * (P * Q) + p * Q + q;
    let at = (place * O + group * GROUP_O + k % GROUP_O) / 8u;
    let line = select(0u, at * 2u, there);
    return Line(select(vec4<f16>(), dy[line], there), select(vec4<f16>(), dy[line + 1u], there));
}

fn finish(group: u32, part: u32, i: u32, j: u32, sums: vec4<f32>) {
#for R in 4
    if is_column(j + ${R}u) {
        let pixel_${R} = j + ${R}u;
        let plane_${R} = pixel_${R} / (H * W) * CHANNELS + group * GROUP_C + i;
        put_sum(part, plane_${R} * H * W + pixel_${R} % (H * W), sums[${R}]);
    }
#endfor
}
