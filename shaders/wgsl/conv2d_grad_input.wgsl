// Gradient of `conv2d` with respect to its input: dx[n,c,h,v] = Σ_{o,i,j} dy[n,o,p,q] · w[o, c mod C/G, i, j], summed over the
// output channels o of c's group and the taps i, j for which outputs p, q exist: p·SH + i·DH − PH = h, q·SW + j·DW − PW = v.
//
// Bindings: dy[N,O,P,Q], w[O,C/G,KH,KW] → dx[N,C,H,W], by shared/terms.
//
// Defines: those of `conv2d`

#include "shared/terms"
#include "shared/conv2d"

const RESULTS: u32 = N * CHANNELS * H * W;

@group(0) @binding(0) var<storage, read> dy: array<f32>;
@group(0) @binding(1) var<storage, read> w: array<f32>;

struct Terms {
    /// Rows of all channels' outputs whose windows reach over the element, and columns.
    extent: vec2<u32>,
    /// The rows of one channel.
    rows: u32,
    /// The element: its image, channel, and row and column in the padded input.
    n: u32,
    c: u32,
    place: vec2<u32>,
    /// The first output.
    first: vec2<u32>,
}

fn terms_of(index: u32) -> Terms {
    let column = index % W;
    let row = index / W % H;
    let rows = outputs_over_row(row);
    let columns = outputs_over_column(column);
    let n = index / (CHANNELS * H * W);
    let c = index / (H * W) % CHANNELS;
    let place = vec2(row + PH, column + PW);
    return Terms(vec2(GROUP_O * rows.y, columns.y), rows.y, n, c, place, vec2(rows.x, columns.x));
}

fn term(terms: Terms, t: vec2<u32>) -> f32 {
    let output = terms.first + vec2(t.x % terms.rows, t.y);
    let o = terms.c / GROUP_C * GROUP_O + t.x / terms.rows;
    let steps = terms.place - output * vec2(SH, SW);
    let tap = steps / vec2(DH, DW);
    let dy_at = ((terms.n * O + o) * P + output.x) * Q + output.y;
    let w_at = ((o * GROUP_C + terms.c % GROUP_C) * KH + tap.x) * KW + tap.y;
    return select(0.0, dy[dy_at] * w[w_at], all(tap * vec2(DH, DW) == steps));
}

fn result(terms: Terms, sum: f32) -> f32 {
    return sum;
}
