// y[b,i,j] = Σ_k lhs[b,i,k] · rhs[b,k,j] in large tiles, by shared/gemm. y is contiguous; the operands are strided.
//
// Bindings: lhs, rhs → y by its epilogue (SUMS whole), or parts[part,b,i,j] (SUMS parts).
//
// Defines: those of shared/gemm
//          BATCH, M, N, K
//          A_BATCH, A_ROW, A_COL   the offset of product b in lhs, an expression of `b: u32`; strides along i and k
//          B_BATCH, B_ROW, B_COL   likewise for rhs, with strides along k and j
//          A_ELEM, B_ELEM   vec4<f32> where four neighbours can be read at once: one stride is 1 and the extent along
//                           it is a multiple of 4, as are the other stride and the first element's place; else f32

#include "shared/gemm"

const BATCH: u32 = ${BATCH};
const ROWS: u32 = ${M};
const COLUMNS: u32 = ${N};
const DEPTH: u32 = ${K};
const A_ROW: u32 = ${A_ROW};
const A_COL: u32 = ${A_COL};
const B_ROW: u32 = ${B_ROW};
const B_COL: u32 = ${B_COL};

@group(0) @binding(0) var<storage, read> lhs: array<${A_ELEM}>;
@group(0) @binding(1) var<storage, read> rhs: array<${B_ELEM}>;

/// `index`, or `last` if it lies past the end: such rows and columns are multiplied, but not stored.
fn within(index: u32, last: u32, is_whole: bool) -> u32 {
    return select(min(index, last), index, is_whole);
}

fn lhs_at(b: u32, i: u32, k: u32) -> u32 {
    let begin: u32 = ${A_BATCH};
    return begin + i * A_ROW + k * A_COL;
}

fn rhs_at(b: u32, k: u32, j: u32) -> u32 {
    let begin: u32 = ${B_BATCH};
    return begin + k * B_ROW + j * B_COL;
}

#if A_ELEM == f32
fn a_element(b: u32, i: u32, k: u32, end: u32) -> f32 {
    let there = is_term(k, end);
    return select(0.0, lhs[select(0u, lhs_at(b, within(i, ROWS - 1u, WHOLE_ROWS), k), there)], there);
}

fn a_column(b: u32, i: u32, k: u32, end: u32) -> vec4<f32> {
    return vec4(
        a_element(b, i, k, end),
        a_element(b, i + 1u, k, end),
        a_element(b, i + 2u, k, end),
        a_element(b, i + 3u, k, end),
    );
}

fn load_a(b: u32, i: u32, k: u32, end: u32) -> mat4x4<f32> {
    return mat4x4(
        a_column(b, i, k, end),
        a_column(b, i, k + 1u, end),
        a_column(b, i, k + 2u, end),
        a_column(b, i, k + 3u, end),
    );
}
#else
/// Four neighbours: columns k to k + 3 of row i, or rows i to i + 3 of column k.
fn a_line(b: u32, i: u32, k: u32, end: u32) -> vec4<f32> {
    let there = is_term(k, end);
#if A_ALONG == k
    let row = within(i, ROWS - 1u, WHOLE_ROWS);
#else
    let row = within(i, ROWS - 4u, WHOLE_ROWS);
#endif
    return select(vec4<f32>(), lhs[select(0u, lhs_at(b, row, k) / 4u, there)], there);
}

fn load_a(b: u32, i: u32, k: u32, end: u32) -> mat4x4<f32> {
#if A_ALONG == k
    return transpose(mat4x4(
        a_line(b, i, k, end),
        a_line(b, i + 1u, k, end),
        a_line(b, i + 2u, k, end),
        a_line(b, i + 3u, k, end),
    ));
#else
    return mat4x4(
        a_line(b, i, k, end),
        a_line(b, i, k + 1u, end),
        a_line(b, i, k + 2u, end),
        a_line(b, i, k + 3u, end),
    );
#endif
}
#endif

#if B_ELEM == f32
fn b_element(b: u32, k: u32, j: u32, end: u32) -> f32 {
    let there = is_term(k, end);
    return select(0.0, rhs[select(0u, rhs_at(b, k, within(j, COLUMNS - 1u, WHOLE_COLUMNS)), there)], there);
}

fn b_row(b: u32, k: u32, j: u32, end: u32) -> vec4<f32> {
    return vec4(
        b_element(b, k, j, end),
        b_element(b, k, j + 1u, end),
        b_element(b, k, j + 2u, end),
        b_element(b, k, j + 3u, end),
    );
}

fn load_b(b: u32, k: u32, j: u32, end: u32) -> mat4x4<f32> {
    return mat4x4(
        b_row(b, k, j, end),
        b_row(b, k + 1u, j, end),
        b_row(b, k + 2u, j, end),
        b_row(b, k + 3u, j, end),
    );
}
#else
/// Four neighbours: rows k to k + 3 of column j, or columns j to j + 3 of row k.
fn b_line(b: u32, k: u32, j: u32, end: u32) -> vec4<f32> {
    let there = is_term(k, end);
#if B_ALONG == k
    let column = within(j, COLUMNS - 1u, WHOLE_COLUMNS);
#else
    let column = within(j, COLUMNS - 4u, WHOLE_COLUMNS);
#endif
    return select(vec4<f32>(), rhs[select(0u, rhs_at(b, k, column) / 4u, there)], there);
}

fn load_b(b: u32, k: u32, j: u32, end: u32) -> mat4x4<f32> {
#if B_ALONG == k
    return transpose(mat4x4(
        b_line(b, k, j, end),
        b_line(b, k, j + 1u, end),
        b_line(b, k, j + 2u, end),
        b_line(b, k, j + 3u, end),
    ));
#else
    return mat4x4(
        b_line(b, k, j, end),
        b_line(b, k + 1u, j, end),
        b_line(b, k + 2u, j, end),
        b_line(b, k + 3u, j, end),
    );
#endif
}
#endif

const PITCH_RESULT: u32 = COLUMNS;

/// The place of a row in [b,i,j] or parts[part,b,i,j].
fn row_at(b: u32, part: u32, i: u32) -> u32 {
    return ((part * BATCH + b) * ROWS + i) * COLUMNS;
}

fn column_at(j: u32) -> u32 {
    return j;
}
