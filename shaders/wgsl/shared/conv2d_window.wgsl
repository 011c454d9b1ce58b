// Inputs of a convolution, x[N,C,H,W], in lines of eight channels for shared/gemm_lines.

/// Channels c.. of the pixel that tap `tap` of output pixel `pixel` reads; nothing in the padding, and unless `wanted`.
fn window(c: u32, tap: u32, pixel: u32, wanted: bool) -> Line {
    let row = pixel / Q % P * SH + tap / KW * DH - PH;
    let column = pixel % Q * SW + tap % KW * DW - PW;
    // Negative numbers are large ones.
    let there = wanted && row < H && column < W;
    let plane = pixel / (P * Q) * CHANNELS + c;
    let at = select(0u, (plane * H + row) * W + column, there);
    return Line(
        vec4(x[at], x[at + H * W], x[at + 2u * H * W], x[at + 3u * H * W]),
        vec4(x[at + 4u * H * W], x[at + 5u * H * W], x[at + 6u * H * W], x[at + 7u * H * W]),
        there,
    );
}
