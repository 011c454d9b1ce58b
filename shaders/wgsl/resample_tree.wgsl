// `resample` where an element is made of many: a workgroup computes one; see shared/tree.
//
// Bindings: x[planes,H,W] → y[planes,P,Q]. N workgroups.
//
// Defines: those of `resample`, and EACH

#include "shared/tree"
#include "shared/resample"

const RESULTS: u32 = N;

@group(0) @binding(0) var<storage, read> x: array<f32>;

struct Terms {
    count: u32,
    plane: u32,
    /// Row and column of the result, of the first element that it is made of, and how many there are beside each other.
    made: vec2<i32>,
    first: vec2<i32>,
    across: u32,
}

fn terms_of(i: u32) -> Terms {
    let rows = ${ROWS};
    let columns = ${COLUMNS};
    let made = vec2(i32(i / Q % P), i32(i % Q));
    let first = vec2(operand_first(rows, made.x), operand_first(columns, made.y));
    let end = vec2(operand_end(rows, made.x), operand_end(columns, made.y));
    let extent = vec2<u32>(max(end - first, vec2<i32>()));
    return Terms(extent.x * extent.y, i / (P * Q) * H * W, made, first, extent.y);
}

fn term(terms: Terms, t: u32) -> f32 {
    let h = terms.first.x + i32(t / terms.across);
    let w = terms.first.y + i32(t % terms.across);
    let value = x[terms.plane + u32(h) * W + u32(w)];
    return value * (weight(${COLUMNS}, terms.made.y, w) * weight(${ROWS}, terms.made.x, h));
}

fn result(terms: Terms, sum: f32) -> f32 {
    return sum;
}
