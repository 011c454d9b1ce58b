// Convolution, of an image: y[n,o,p,q] = Σ_{c,i,j} x[n, g·C/G + c, p·SH + i·DH − PH, q·SW + j·DW − PW] · w[o,c,i,j].
// Output channel o belongs to group g = ⌊o·G/O⌋, and x is zero outside its planes. Of volumes, the sum is also over the
// planes of the kernel (shared/planes). FORM grad_input computes the gradient of
// the input, which is also such a convolution; see shared/conv2d.
//
// Bindings: x[N,C,IN_D,H,W], w → y[N,O,OUT_D,P,Q], by shared/terms. FORM forward: w[O,C/G,KD,KH,KW]. FORM grad_input:
// w[C,O/G,KD,KH,KW], whose taps are read in reverse order.
//
// Defines: those of shared/terms, with FORMAT full, and of shared/conv2d
//          FORM  forward or grad_input

#include "shared/terms"
#include "shared/conv2d"

const RESULTS: u32 = N * O * OUT_D * P * Q;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> w: array<f32>;

struct Terms {
    /// Rows of taps that read pixels, over all channels and planes of taps; and columns of such taps.
    extent: vec2<u32>,
    /// The first of those taps.
    first: vec2<u32>,
    /// Such rows of one plane of taps.
    rows: u32,
    n: u32,
    o: u32,
    z: u32,
    p: u32,
    q: u32,
}

fn terms_of(index: u32) -> Terms {
    let p = index / Q % P;
    let q = index % Q;
    let rows = taps_inside(p, KH, SH, PH, DH, SPAN_H);
    let columns = taps_inside(q, KW, SW, PW, DW, SPAN_W);
    let extent = vec2(GROUP_C * KD * rows.y, columns.y);
    let plane = index / (P * Q);
    return Terms(extent, vec2(rows.x, columns.x), rows.y, plane / (O * OUT_D), plane / OUT_D % O, plane % OUT_D, p, q);
}

fn term(terms: Terms, t: vec2<u32>) -> f32 {
    let tap = terms.first + vec2(t.x % terms.rows, t.y);
    let row = row_read(terms.p, tap.x);
    let column = column_read(terms.q, tap.y);
    let depth = t.x / terms.rows % KD;
    let c = t.x / (terms.rows * KD);
    let channel = terms.o / GROUP_O * GROUP_C + c;
    let plane = plane_read(terms.z, depth);
    let there = plane < IN_D && row < H && column < W;
    let x_at = select(0u, (((terms.n * CHANNELS + channel) * IN_D + plane) * H + row) * W + column, there);
    let number = (depth * KH + tap.x) * KW + tap.y;
#if FORM == forward
    let w_at = (terms.o * GROUP_C + c) * TAPS + number;
#else
    let w_at = (channel * GROUP_O + terms.o % GROUP_O) * TAPS + TAPS - 1u - number;
#endif
    return select(0.0, x[x_at] * w[w_at], there);
}

fn result(terms: Terms, sum: f32) -> f32 {
    return sum;
}
