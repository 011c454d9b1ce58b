// `conv2d_grad_input` of long sums: a workgroup computes an element, over the output channels and pixels that read it; see
// shared/tree.
//
// Bindings: dy[N,O,P,Q], w[O,C/G,KH,KW] → dx[N,C,H,W]. N·C·H·W workgroups.
//
// Defines: those of `conv2d`, and EACH

#include "shared/tree"
#include "shared/conv2d"

const RESULTS: u32 = N * CHANNELS * H * W;

@group(0) @binding(0) var<storage, read> dy: array<f32>;
@group(0) @binding(1) var<storage, read> w: array<f32>;

struct Terms {
    count: u32,
    /// The element: its image, channel, and row and column in the padded input.
    n: u32,
    c: u32,
    place: vec2<u32>,
    /// The first output pixel whose window reaches over it, and how many there are down and across.
    first: vec2<u32>,
    extent: vec2<u32>,
}

fn terms_of(index: u32) -> Terms {
    let column = index % W;
    let row = index / W % H;
    let rows = outputs_over_row(row);
    let columns = outputs_over_column(column);
    let count = GROUP_O * rows.y * columns.y;
    let n = index / (CHANNELS * H * W);
    let c = index / (H * W) % CHANNELS;
    let place = vec2(row + PH, column + PW);
    return Terms(count, n, c, place, vec2(rows.x, columns.x), vec2(rows.y, columns.y));
}

fn term(terms: Terms, t: u32) -> f32 {
    let output = terms.first + vec2(t / terms.extent.y % terms.extent.x, t % terms.extent.y);
    let o = terms.c / GROUP_C * GROUP_O + t / (terms.extent.x * terms.extent.y);
    let steps = terms.place - output * vec2(SH, SW);
    let tap = steps / vec2(DH, DW);
    let dy_at = ((terms.n * O + o) * P + output.x) * Q + output.y;
    let w_at = ((o * GROUP_C + terms.c % GROUP_C) * KH + tap.x) * KW + tap.y;
    return select(0.0, dy[dy_at] * w[w_at], all(tap * vec2(DH, DW) == steps));
}

fn result(terms: Terms, sum: f32) -> f32 {
    return sum;
}
