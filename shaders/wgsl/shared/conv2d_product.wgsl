// Convolutions as products by shared/gemm, one for each group: `conv2d_gemm` and `conv2d_grad_weight_gemm`. The im2col
// matrix is never in memory: its blocks are gathered from x as they are needed.
//
// Binding 0: x[N,C,IN_D,H,W].
//
// Defines: those of shared/gemm and shared/conv2d
//          ORDER    order of an output channel's weights in the product. channels: c before the tap. taps: the tap
//                   before c; C/G is then a multiple of 4, so that `gather` finds the places of four channels at once

#include "shared/gemm"
#include "shared/conv2d"

/// Products: one for each group.
const BATCH: u32 = ${G};
/// Pixels of a channel of x, and of y.
const CHANNEL: u32 = IN_D * H * W;
const PIXELS: u32 = OUT_D * P * Q;

@group(0) @binding(0) var<storage, read> x: array<f32>;

#if ORDER == taps
/// Channels c to c + 3 of the pixel that tap `tap` of output pixel `pixel` reads; zeros in the padding and if not
/// `wanted`.
fn gather(group: u32, tap: u32, c: u32, pixel: u32, wanted: bool) -> vec4<f32> {
    let plane = plane_read(pixel / (P * Q) % OUT_D, tap / (KH * KW));
#if VOLUMES
    let row = row_read(pixel / Q % P, tap / KW % KH);
#else
    let row = row_read(pixel / Q % P, tap / KW);
#endif
    let column = column_read(pixel % Q, tap % KW);
    let there = wanted && plane < IN_D && row < H && column < W;
    let channel = pixel / PIXELS * CHANNELS + group * GROUP_C + c;
    let at = select(0u, channel * CHANNEL + (plane * H + row) * W + column, there);
    let four = vec4(x[at], x[at + CHANNEL], x[at + 2u * CHANNEL], x[at + 3u * CHANNEL]);
    return select(vec4<f32>(), four, there);
}
#endif
