// The outputs whose windows cover an element of the input, as the terms of shared/terms.

#include "shared/pool"

const RESULTS: u32 = N * INPUTS * SIDE;

struct Terms {
    /// Rows of outputs, of all planes, and columns.
    extent: vec2<u32>,
    /// Rows of a plane.
    rows: u32,
    /// The element: its channel, its plane, row and column, and its index among the pixel's values.
    n: u32,
    at: vec3<u32>,
    side: u32,
    /// The first output.
    first: vec3<u32>,
}

/// The terms of element `input` of x[N,IN_D,H,W,SIDE].
fn terms_of(input: u32) -> Terms {
    let column = input / SIDE % W;
    let row = input / (SIDE * W) % H;
    let rows = outputs_over_row(row);
    let columns = outputs_over_column(column);
#if VOLUMES
    let plane = input / (SIDE * W * H) % IN_D;
    let planes = outputs_over(plane, KD, SD, PD, DD, OUT_D);
#else
    let plane = 0u;
    let planes = vec2(0u, 1u);
#endif
    let n = input / (SIDE * INPUTS);
    let extent = vec2(planes.y * rows.y, columns.y);
    return Terms(extent, rows.y, n, vec3(plane, row, column), input % SIDE, vec3(planes.x, rows.x, columns.x));
}

/// The plane, row and column of the output of term t.
fn output_over(terms: Terms, t: vec2<u32>) -> vec3<u32> {
#if VOLUMES
    return terms.first + vec3(t.x / terms.rows, t.x % terms.rows, t.y);
#else
    return terms.first + vec3(0u, t);
#endif
}

/// The place of an output in y[N,OUT_D,P,Q,SIDE].
fn output_at(terms: Terms, output: vec3<u32>) -> u32 {
    return (((terms.n * OUT_D + output.x) * P + output.y) * Q + output.z) * SIDE + terms.side;
}

/// `true` if an output reads the element: with a dilation, its window may skip it.
fn reads(terms: Terms, output: vec3<u32>) -> bool {
#if VOLUMES
    if (terms.at.x + PD - output.x * SD) % DD != 0u {
        return false;
    }
#endif
    return (terms.at.y + PH - output.y * SH) % DH == 0u && (terms.at.z + PW - output.z * SW) % DW == 0u;
}
