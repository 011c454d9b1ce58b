// 2-D average pooling: y[n,p,q] = Σ over taps i, j of x[n, p·SH + i·DH − PH, q·SW + j·DW − PW] / DIVISOR. Padding
// counts as zeros; an output that sees only padding is 0.
//
// Bindings: x[N,H,W] → y[N,P,Q], or of images in lines x[N,H,W,SIDE] → y[N,P,Q,SIDE], by shared/terms.
//
// Defines: those of shared/terms and shared/pool
//          DIVISOR  an expression of the output's place `p: u32`, `q: u32`, in the constants of shared/window

#include "shared/terms"
#include "shared/avg_pool2d"

const RESULTS: u32 = N * P * Q * SIDE;

@group(0) @binding(0) var<storage, read> x: array<Held>;

struct Terms {
    /// The extent of the window inside the plane.
    extent: vec2<u32>,
    /// The place of its first element.
    first: u32,
    /// The number that the sum is divided by.
    averaged: f32,
}

fn terms_of(output: u32) -> Terms {
    let q = output / SIDE % Q;
    let p = output / (SIDE * Q) % P;
    let n = output / (SIDE * P * Q);
    let rows = rows_inside(p);
    let columns = columns_inside(q);
    let row = p * SH + rows.x * DH - PH;
    let column = q * SW + columns.x * DW - PW;
    let first = ((n * H + row) * W + column) * SIDE + output % SIDE;
    // A window of padding alone gives 0.
    return Terms(vec2(rows.y, columns.y), first, max(averaged(p, q), 1.0));
}

fn term(terms: Terms, t: vec2<u32>) -> Value {
    return value(x[terms.first + (t.x * (DH * W) + t.y * DW) * SIDE]);
}

fn result(terms: Terms, sum: Value) -> Value {
    return divided(sum, terms.averaged);
}
