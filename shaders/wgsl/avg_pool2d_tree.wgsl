// `avg_pool2d` of large windows: a workgroup averages one; see shared/tree.
//
// Bindings: x[N,H,W] → y[N,P,Q]. N·P·Q workgroups.
//
// Defines: those of `avg_pool2d`, and EACH

#include "shared/tree"
#include "shared/avg_pool2d"

const RESULTS: u32 = N * P * Q;

@group(0) @binding(0) var<storage, read> x: array<f32>;

struct Terms {
    count: u32,
    /// Of the elements of the window that are inside of the plane: the first, and how many there are beside each other.
    first: u32,
    across: u32,
    /// The number that the sum is divided by.
    averaged: f32,
}

fn terms_of(output: u32) -> Terms {
    let q = output % Q;
    let p = output / Q % P;
    let n = output / (P * Q);
    let rows = rows_inside(p);
    let columns = columns_inside(q);
    let row = p * SH + rows.x * DH - PH;
    let column = q * SW + columns.x * DW - PW;
    // A window that sees nothing but padding is 0.
    return Terms(rows.y * columns.y, (n * H + row) * W + column, columns.y, max(averaged(p, q), 1.0));
}

fn term(terms: Terms, t: u32) -> f32 {
    return x[terms.first + t / terms.across * DH * W + t % terms.across * DW];
}

fn result(terms: Terms, sum: f32) -> f32 {
    return sum / terms.averaged;
}
