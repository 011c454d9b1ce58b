// The outputs whose windows cover an element of the input, as the terms of shared/terms.

#include "shared/pool"

const RESULTS: u32 = N * H * W * SIDE;

struct Terms {
    extent: vec2<u32>,
    /// The element: its plane, row and column, and its index among the pixel's values.
    n: u32,
    row: u32,
    column: u32,
    side: u32,
    /// The first output.
    first: vec2<u32>,
}

/// The terms of element `input` of x[N,H,W,SIDE].
fn terms_of(input: u32) -> Terms {
    let column = input / SIDE % W;
    let row = input / (SIDE * W) % H;
    let rows = outputs_over_row(row);
    let columns = outputs_over_column(column);
    let n = input / (SIDE * H * W);
    return Terms(vec2(rows.y, columns.y), n, row, column, input % SIDE, vec2(rows.x, columns.x));
}

/// The place of an output in y[N,P,Q,SIDE].
fn output_at(terms: Terms, output: vec2<u32>) -> u32 {
    return ((terms.n * P + output.x) * Q + output.y) * SIDE + terms.side;
}

/// `true` if an output reads the element: with a dilation, its window may skip it.
fn reads(terms: Terms, output: vec2<u32>) -> bool {
    return (terms.row + PH - output.x * SH) % DH == 0u && (terms.column + PW - output.y * SW) % DW == 0u;
}
