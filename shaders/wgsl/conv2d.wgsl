// 2-D convolution: y[n,o,p,q] = Σ_{c,i,j} x[n, g·C/G + c, p·SH + i·DH − PH, q·SW + j·DW − PW] · w[o,c,i,j], where output channel
// o belongs to group g = ⌊o·G/O⌋ and x is zero outside its planes.
//
// Bindings: x[N,C,H,W], w[O,C/G,KH,KW] → y[N,O,P,Q], by shared/terms.
//
// Defines: those of shared/terms, in full
//          N, C, H, W, O, P, Q, G
//          KH, KW taps; SH, SW stride; PH, PW padding; DH, DW dilation

#include "shared/terms"
#include "shared/conv2d"

const RESULTS: u32 = N * O * P * Q;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> w: array<f32>;

struct Terms {
    /// Rows of all channels' weights, and columns; those in the padding add 0.
    extent: vec2<u32>,
    first_w: u32,
    /// The first channel that is read, counted through all images.
    plane: u32,
    p: u32,
    q: u32,
}

fn terms_of(index: u32) -> Terms {
    let o = index / (P * Q) % O;
    let plane = index / (O * P * Q) * CHANNELS + o / GROUP_O * GROUP_C;
    return Terms(vec2(GROUP_C * KH, KW), o * (GROUP_C * KH * KW), plane, index / Q % P, index % Q);
}

fn term(terms: Terms, t: vec2<u32>) -> f32 {
    let row = input_row(terms.p, t.x % KH);
    let column = input_column(terms.q, t.y);
    let inside = row >= 0 && column >= 0;
    let at = select(0u, ((terms.plane + t.x / KH) * H + u32(row)) * W + u32(column), inside);
    return select(0.0, x[at] * w[terms.first_w + t.x * KW + t.y], inside);
}

fn result(terms: Terms, sum: f32) -> f32 {
    return sum;
}
