// Gradient of `conv2d` with respect to its weight: dw[o,c,i,j] = Σ_{n,p,q}
// x[n, g·C/G + c, p·SH + i·DH − PH, q·SW + j·DW − PW] · dy[n,o,p,q], where o belongs to group g; of volumes over their
// planes, too.
//
// Bindings: x[N,C,IN_D,H,W], dy[N,O,OUT_D,P,Q] → dw[O,C/G,KD,KH,KW], by shared/terms.
//
// Defines: those of shared/terms, with FORMAT full, and of shared/conv2d

#include "shared/terms"
#include "shared/conv2d"

const RESULTS: u32 = O * GROUP_C * TAPS;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> dy: array<f32>;

struct Terms {
    /// Rows of pixels of all planes; and columns.
    extent: vec2<u32>,
    o: u32,
    c: u32,
    depth: u32,
    i: u32,
    j: u32,
}

fn terms_of(index: u32) -> Terms {
    let o = index / (GROUP_C * TAPS);
    let c = o / GROUP_O * GROUP_C + index / TAPS % GROUP_C;
    return Terms(vec2(N * OUT_D * P, Q), o, c, index / (KH * KW) % KD, index / KW % KH, index % KW);
}

fn term(terms: Terms, t: vec2<u32>) -> f32 {
    let n = t.x / (P * OUT_D);
    let z = t.x / P % OUT_D;
    let plane = plane_read(z, terms.depth);
    let row = row_read(t.x % P, terms.i);
    let column = column_read(t.y, terms.j);
    if plane >= IN_D || row >= H || column >= W {
        return 0.0;
    }
    let x_at = (((n * CHANNELS + terms.c) * IN_D + plane) * H + row) * W + column;
    let dy_at = (((n * O + terms.o) * OUT_D + z) * P + t.x % P) * Q + t.y;
    return x[x_at] * dy[dy_at];
}

fn result(terms: Terms, sum: f32) -> f32 {
    return sum;
}
