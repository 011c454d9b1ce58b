// Inputs of a convolution in lines, eight channels of a pixel, from the kernel's binding `x`, an array of `Element`s
// (shared/line): x[N,C,H,W], or with FORMAT half x[N,H,W,C].

#if FORMAT == half
/// How much further on the next eight channels are.
const NEXT_INPUT: u32 = 1u;

fn input_at(n: u32, c: u32, row: u32, column: u32) -> u32 {
    return ((n * H + row) * W + column) * (CHANNELS / 8u) + c / 8u;
}

fn input_line(at: u32, there: bool) -> Line {
    return Line(x[at], there);
}
#else
const NEXT_INPUT: u32 = 8u * H * W;

fn input_at(n: u32, c: u32, row: u32, column: u32) -> u32 {
    return ((n * CHANNELS + c) * H + row) * W + column;
}

fn input_line(at: u32, there: bool) -> Line {
    return Line(
        vec4(x[at], x[at + H * W], x[at + 2u * H * W], x[at + 3u * H * W]),
        vec4(x[at + 4u * H * W], x[at + 5u * H * W], x[at + 6u * H * W], x[at + 7u * H * W]),
        there,
    );
}
#endif

/// Channels c.. of a pixel of image n; nothing outside of it, and unless `wanted`.
fn input(n: u32, c: u32, row: u32, column: u32, wanted: bool) -> Line {
    let there = wanted && row < H && column < W;
    return input_line(select(0u, input_at(n, c, row, column), there), there);
}
