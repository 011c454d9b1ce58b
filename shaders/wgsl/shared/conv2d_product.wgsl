// Convolutions as products by shared/gemm, one for each group: `conv2d_gemm` and `conv2d_grad_weight_gemm`. The im2col
// matrix is never in memory: its blocks are gathered from x as they are needed.
//
// Binding 0: x[N,C,H,W].
//
// Defines: those of shared/gemm and shared/conv2d
//          ORDER    order of an output channel's weights in the product. channels: c, i, j. taps: i, j, c; C/G is then
//                   a multiple of 4, so that `gather` finds the places of four channels at once

#include "shared/gemm"
#include "shared/conv2d"

/// Products: one for each group.
const BATCH: u32 = ${G};
const TAPS: u32 = KH * KW;

@group(0) @binding(0) var<storage, read> x: array<f32>;

#if ORDER == taps
/// Channels c to c + 3 of the pixel that tap `tap` of output pixel `pixel` reads; zeros in the padding and if not
/// `wanted`.
fn gather(group: u32, tap: u32, c: u32, pixel: u32, wanted: bool) -> vec4<f32> {
    let row = row_read(pixel / Q % P, tap / KW);
    let column = column_read(pixel % Q, tap % KW);
    let there = wanted && row < H && column < W;
    let plane = pixel / (P * Q) * CHANNELS + group * GROUP_C + c;
    let at = select(0u, plane * (H * W) + row * W + column, there);
    let four = vec4(x[at], x[at + H * W], x[at + 2u * H * W], x[at + 3u * H * W]);
    return select(vec4<f32>(), four, there);
}
#endif
