// y[b,i,j] = Σ_k lhs[b,i,k] · rhs[b,k,j], y contiguous, the operands strided.
//
// Bindings: lhs, rhs → y by its epilogue. One workgroup computes an element, in a tree over K: for long K and few elements.
// BATCH·M·N workgroups.
//
// Defines: WG    a power of two
//          BATCH, M, N, K
//          A_BATCH, A_ROW, A_COL where batch b of lhs begins, an expression of `b: u32`; its strides along i and k
//          B_BATCH, B_ROW, B_COL the same for rhs, its strides along k and j

#include "shared/epilogue"
#include "shared/grid"
#include "shared/reduce"

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

const WG: u32 = ${WG};

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = workgroup_index(workgroup, workgroups);
    if index >= BATCH * M * N {
        return;
    }
    let b = index / (M * N);
    let row = lhs_batch(b) + index / N % M * A_ROW;
    let column = rhs_batch(b) + index % N * B_COL;
    var sum = 0.0;
    for (var k = lane; k < K; k += WG) {
        sum += lhs[row + k * A_COL] * rhs[column + k * B_ROW];
    }
    let result = workgroup_sum(lane, sum);
    if lane == 0u {
        store(index, result);
    }
}
