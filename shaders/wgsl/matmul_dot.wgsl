// y[b,i,j] = Σ_k lhs[b,i,k] · rhs[b,k,j] for long K and few results. y is contiguous; the operands are strided.
//
// Bindings: lhs, rhs → y, by shared/terms.
//
// Defines: those of shared/terms, with FORMAT full
//          BATCH, M, N, K
//          A_BATCH, A_ROW, A_COL   the offset of product b in lhs, an expression of `b: u32`; strides along i and k
//          B_BATCH, B_ROW, B_COL   likewise for rhs, with strides along k and j

#include "shared/terms"

const BATCH: u32 = ${BATCH};
const M: u32 = ${M};
const N: u32 = ${N};
const K: u32 = ${K};
const A_ROW: u32 = ${A_ROW};
const A_COL: u32 = ${A_COL};
const B_ROW: u32 = ${B_ROW};
const B_COL: u32 = ${B_COL};

@group(0) @binding(0) var<storage, read> lhs: array<f32>;
@group(0) @binding(1) var<storage, read> rhs: array<f32>;

fn lhs_batch(b: u32) -> u32 {
    return ${A_BATCH};
}

fn rhs_batch(b: u32) -> u32 {
    return ${B_BATCH};
}

const RESULTS: u32 = BATCH * M * N;

struct Terms {
    extent: vec2<u32>,
    row: u32,
    column: u32,
}

fn terms_of(index: u32) -> Terms {
    let b = index / (M * N);
    return Terms(vec2(1u, K), lhs_batch(b) + index / N % M * A_ROW, rhs_batch(b) + index % N * B_COL);
}

fn term(terms: Terms, t: vec2<u32>) -> f32 {
    let k = t.y;
    return lhs[terms.row + k * A_COL] * rhs[terms.column + k * B_ROW];
}

fn result(terms: Terms, sum: f32) -> f32 {
    return sum;
}
