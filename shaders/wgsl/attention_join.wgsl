// Joins two statistics of each query of an attention, so that the gradient with a bias binds eight buffers instead of
// nine: joined[i] = lse[i,0], lse[i,1], delta[i].
//
// Bindings: lse[ROWS,2], delta[ROWS] → joined[ROWS,3]. One invocation copies a row; ⌈ROWS/WG⌉ workgroups.
//
// Defines: WG, ROWS

#include "shared/elements"

const ELEMENTS: u32 = ${ROWS};

@group(0) @binding(0) var<storage, read> lse: array<f32>;
@group(0) @binding(1) var<storage, read> delta: array<f32>;
@group(0) @binding(2) var<storage, read_write> joined: array<f32>;

fn compute(i: u32) {
    joined[3u * i] = lse[2u * i];
    joined[3u * i + 1u] = lse[2u * i + 1u];
    joined[3u * i + 2u] = delta[i];
}
