// `conv2d_grad_weight` without stride as a product on matrix units; see shared/gemm_window. The reduction runs over the pixels of
// all images one after the other, each row followed by PW zeros and each image by PH rows of zeros, which are what comes before the
// next, so that a tap is a distance. A line is eight channels of a pixel.
//
// Bindings: x[N,C,H,W], dy[N,O,P,Q] → dw[O,C/G,KH,KW] by its epilogue, or parts[part,o,c,i,j] (SUMS parts). With FORMAT
// half x[N,H,W,C] and dy[N,P,Q,O].
//
// Defines: those of shared/gemm with UNITS window, and of `conv2d` without WG; SH = SW = 1, C/G and O/G multiples of 8
//          SUMS whole or parts

#include "shared/conv2d_gemm"

/// A row and an image with their zeros.
const PITCH_ROW: u32 = max(W + PW, Q);
const PITCH_IMAGE: u32 = max(H + PH, P) * PITCH_ROW;
const SPAN: u32 = (KH - 1u) * DH * PITCH_ROW + (KW - 1u) * DW;

const ROWS: u32 = GROUP_O;
const COLUMNS: u32 = (GROUP_C + 15u) / 16u * 16u * TAPS;
const DEPTH: u32 = N * PITCH_IMAGE;
const RESULT: u32 = O * GROUP_C * TAPS;

@group(0) @binding(0) var<storage, read> x: array<Element>;
@group(0) @binding(1) var<storage, read> dy: array<Element>;
#include "shared/conv2d_cotangents"
#include "shared/conv2d_inputs"

fn shift(tap: u32) -> u32 {
    return tap / KW * DH * PITCH_ROW + tap % KW * DW;
}

fn load_a(group: u32, o: u32, k: u32, end: u32) -> Line {
    let p = k % PITCH_IMAGE / PITCH_ROW;
    let q = k % PITCH_ROW;
    return cotangent(k / PITCH_IMAGE, group * GROUP_O + o, p, q, is_row(o) && k < end);
}

fn load_b(group: u32, k: u32, c: u32) -> Line {
    // Negative numbers are large ones.
    let row = k % PITCH_IMAGE / PITCH_ROW - PH;
    let column = k % PITCH_ROW - PW;
    return input(k / PITCH_IMAGE, group * GROUP_C + c, row, column, k < DEPTH && c < GROUP_C);
}

/// The input channel of a column.
fn channel(j: u32) -> u32 {
    return j / (16u * TAPS) * 16u + j % 16u;
}

fn result_at(group: u32, part: u32, i: u32, j: u32) -> u32 {
    return part * RESULT + ((group * GROUP_O + i) * GROUP_C + channel(j)) * TAPS + j / 16u % TAPS;
}

fn has_result(j: u32) -> bool {
    return channel(j) < GROUP_C;
}
