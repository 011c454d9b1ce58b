// Inputs of a convolution in lines, eight channels of a pixel, from the kernel's binding `x`: x[N,H,W,C] in halves.

/// How much further on the next eight channels are.
const NEXT_INPUT: u32 = 1u;

fn input_at(n: u32, c: u32, row: u32, column: u32) -> u32 {
    return ((n * H + row) * W + column) * (CHANNELS / 8u) + c / 8u;
}

fn input_line(at: u32, there: bool) -> Line {
    return Line(x[at], there);
}

/// Channels c.. of a pixel of image n; nothing outside of it, and unless `wanted`.
fn input(n: u32, c: u32, row: u32, column: u32, wanted: bool) -> Line {
    let there = wanted && row < H && column < W;
    return input_line(select(0u, input_at(n, c, row, column), there), there);
}
