// Inputs of a convolution, x[N,C,H,W], four channels at a time.

/// Channels c.. of the pixel that tap `tap` of output pixel `pixel` reads; zeros in the padding, and unless `wanted`.
fn gather(group: u32, tap: u32, c: u32, pixel: u32, wanted: bool) -> vec4<f32> {
    let row = row_read(pixel / Q % P, tap / KW);
    let column = column_read(pixel % Q, tap % KW);
    let there = wanted && row < H && column < W;
    let plane = pixel / (P * Q) * CHANNELS + group * GROUP_C + c;
    let at = select(0u, plane * (H * W) + row * W + column, there);
    let four = vec4(x[at], x[at + H * W], x[at + 2u * H * W], x[at + 3u * H * W]);
    return select(vec4<f32>(), four, there);
}
