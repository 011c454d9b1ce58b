// The outputs whose windows reach over an element of the input, as the terms of shared/tree.

#include "shared/window"

struct Terms {
    count: u32,
    /// The element: its plane, row and column.
    plane: u32,
    row: u32,
    column: u32,
    /// The first output, and how many there are beside each other.
    first: vec2<u32>,
    across: u32,
}

/// The terms of element `input` of x[…,H,W].
fn terms_of(input: u32) -> Terms {
    let column = input % W;
    let row = input / W % H;
    let rows = outputs_over_row(row);
    let columns = outputs_over_column(column);
    return Terms(rows.y * columns.y, input / (H * W), row, column, vec2(rows.x, columns.x), columns.y);
}

/// Row and column of output number t.
fn output_over(terms: Terms, t: u32) -> vec2<u32> {
    return terms.first + vec2(t / terms.across, t % terms.across);
}

/// Where it is in y[…,P,Q].
fn output_at(terms: Terms, output: vec2<u32>) -> u32 {
    return (terms.plane * P + output.x) * Q + output.y;
}

/// `true` if it reads the element: with a dilation, it may read only its neighbours.
fn reads(terms: Terms, output: vec2<u32>) -> bool {
    return (terms.row + PH - output.x * SH) % DH == 0u && (terms.column + PW - output.y * SW) % DW == 0u;
}
