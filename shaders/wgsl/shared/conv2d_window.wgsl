// The windows of a convolution over its inputs, in lines of eight channels for shared/gemm_lines.

#include "shared/conv2d_inputs"

/// Channels c.. of the pixel that tap `tap` of output pixel `pixel` reads; nothing in the padding, and unless `wanted`.
fn window(c: u32, tap: u32, pixel: u32, wanted: bool) -> Line {
    // Negative numbers are large ones.
    let row = pixel / Q % P * SH + tap / KW * DH - PH;
    let column = pixel % Q * SW + tap % KW * DW - PW;
    return input(pixel / (P * Q), c, row, column, wanted);
}
