// Resampling of planes, each axis by itself: y[n,p,q] = Σ x[n,h,w]·a(p, h)·b(q, w); or the transpose, y[n,h,w] = Σ
// x[n,p,q]·a(p, h)·b(q, w).
//
// Bindings: x[N,H,W] → y[N,P,Q], or of images in lines x[N,H,W,SIDE] → y[N,P,Q,SIDE], by shared/terms.
//
// Defines: those of shared/terms and shared/resample

#include "shared/terms"
#include "shared/resample"

const RESULTS: u32 = N * P * Q * SIDE;

@group(0) @binding(0) var<storage, read> x: array<Held>;

struct Terms {
    extent: vec2<u32>,
    /// The place of the first element that contributes to the result.
    at: u32,
    /// Row and column of the result, and of that element.
    output: vec2<i32>,
    first: vec2<i32>,
}

fn terms_of(i: u32) -> Terms {
    let rows = ${ROWS};
    let columns = ${COLUMNS};
    let output = vec2(i32(i / (SIDE * Q) % P), i32(i / SIDE % Q));
    let first = vec2(operand_first(rows, output.x), operand_first(columns, output.y));
    let end = vec2(operand_end(rows, output.x), operand_end(columns, output.y));
    let at = ((i / (SIDE * P * Q) * H + u32(first.x)) * W + u32(first.y)) * SIDE + i % SIDE;
    return Terms(vec2<u32>(max(end - first, vec2<i32>())), at, output, first);
}

fn term(terms: Terms, t: vec2<u32>) -> Value {
    let operand = terms.first + vec2<i32>(t);
    let weight_of_row = weight(${ROWS}, terms.output.x, operand.x);
    let weight_of_column = weight(${COLUMNS}, terms.output.y, operand.y);
    return value(x[terms.at + (t.x * W + t.y) * SIDE]) * (weight_of_column * weight_of_row);
}

fn result(terms: Terms, sum: Value) -> Value {
    return sum;
}
