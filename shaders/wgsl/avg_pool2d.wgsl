// Average pooling, of an image: y[n,p,q] = Σ over taps i, j of x[n, p·SH + i·DH − PH, q·SW + j·DW − PW] / DIVISOR; of
// volumes also over the planes of the window. Padding counts as zeros; an output that sees only padding is 0.
//
// Bindings: x[N,IN_D,H,W] → y[N,OUT_D,P,Q], or in lines x[N,IN_D,H,W,SIDE] → y[N,OUT_D,P,Q,SIDE], by shared/terms.
//
// Defines: those of shared/terms and shared/pool
//          DIVISOR  an expression of the output's place `z: u32`, `p: u32`, `q: u32`, in the constants of shared/pool

#include "shared/terms"
#include "shared/avg_pool2d"

const RESULTS: u32 = N * OUTPUTS * SIDE;

@group(0) @binding(0) var<storage, read> x: array<Held>;

struct Terms {
    /// The extent of the window inside the input: rows of all planes, and columns.
    extent: vec2<u32>,
    /// Rows of a plane.
    rows: u32,
    /// The place of its first element.
    first: u32,
    /// The number that the sum is divided by.
    averaged: f32,
}

fn terms_of(index: u32) -> Terms {
    let output = output_of(index / SIDE);
    let planes = planes_inside(output.x);
    let rows = rows_inside(output.y);
    let columns = columns_inside(output.z);
    let pixel = first_pixel(output, vec3(planes.x, rows.x, columns.x));
    let first = (index / (SIDE * OUTPUTS) * INPUTS + pixel) * SIDE + index % SIDE;
    // A window of padding alone gives 0.
    return Terms(vec2(planes.y * rows.y, columns.y), rows.y, first, max(averaged(output), 1.0));
}

fn term(terms: Terms, t: vec2<u32>) -> Value {
    return value(x[terms.first + (row_of_window(t.x, terms.rows) + t.y * DW) * SIDE]);
}

fn result(terms: Terms, sum: Value) -> Value {
    return divided(sum, terms.averaged);
}
