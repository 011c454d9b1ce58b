// y[n,p,q] = Σ x[n,h,w]·a(p, h)·b(q, w): planes resampled, each axis by itself; or the transpose, y[n,h,w] = Σ x[n,p,q]·a(p, h)·b(q, w).
//
// Bindings: x[planes,H,W] → y[planes,P,Q]. One invocation computes an element of y; ⌈N/WG⌉ workgroups.
//
// Defines: WG
//          N             number of elements of y
//          H, W, P, Q    extents of the operand's planes, and of the result's
//          ROWS, COLUMNS the axes, an expression of type Axis
//          RULE          mean: of windows that cover the axis; linear: interpolated between two
//          TRANSPOSED    1 for the transpose; the axes are those of the operation that it is the transpose of

#include "shared/epilogue"
#include "shared/grid"
#include "shared/resample"

const WG: u32 = ${WG};
@group(0) @binding(0) var<storage, read> x: array<f32>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = workgroup_index(workgroup, workgroups) * WG + lane;
    if i >= N {
        return;
    }
    let rows = ${ROWS};
    let columns = ${COLUMNS};
    let p = i32(i / Q % P);
    let q = i32(i % Q);
    let plane = i / (P * Q) * H * W;

    var sum = 0.0;
    for (var h = operand_first(rows, p); h < operand_end(rows, p); h++) {
        var row = 0.0;
        for (var w = operand_first(columns, q); w < operand_end(columns, q); w++) {
            row += x[plane + u32(h) * W + u32(w)] * weight(columns, q, w);
        }
        sum += row * weight(rows, p, h);
    }
    store(i, sum);
}
