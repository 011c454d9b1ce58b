// `conv2d` of long sums: a workgroup computes an element; see shared/tree.
//
// Bindings: x[N,C,H,W], w[O,C/G,KH,KW] → y[N,O,P,Q]. N·O·P·Q workgroups.
//
// Defines: those of `conv2d`, and EACH

#include "shared/tree"
#include "shared/conv2d"

const RESULTS: u32 = N * O * P * Q;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> w: array<f32>;

struct Terms {
    /// All weights of the output channel; those in the padding add 0.
    count: u32,
    first_w: u32,
    /// The first channel that is read, counted through all images.
    plane: u32,
    p: u32,
    q: u32,
}

fn terms_of(index: u32) -> Terms {
    let o = index / (P * Q) % O;
    let plane = index / (O * P * Q) * CHANNELS + o / GROUP_O * GROUP_C;
    return Terms(GROUP_C * KH * KW, o * (GROUP_C * KH * KW), plane, index / Q % P, index % Q);
}

fn term(terms: Terms, t: u32) -> f32 {
    let row = input_row(terms.p, t / KW % KH);
    let column = input_column(terms.q, t % KW);
    let inside = row >= 0 && column >= 0;
    let at = select(0u, ((terms.plane + t / (KH * KW)) * H + u32(row)) * W + u32(column), inside);
    return select(0.0, x[at] * w[terms.first_w + t], inside);
}

fn result(terms: Terms, sum: f32) -> f32 {
    return sum;
}
