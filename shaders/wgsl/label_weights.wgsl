// y[row] = weights[labels[row]], or 0 where the label is ignored. A label past the end gives NaN.
//
// Bindings: weights[CLASSES], labels[ROWS] (u32) → y[ROWS]. One invocation computes a row; ⌈ROWS/WG⌉ workgroups.
//
// Defines: WG; ROWS, CLASSES; IGNORED `true` if a row is ignored, an expression of `label: u32`

#include "shared/epilogue"
#include "shared/float"
#include "shared/grid"

const WG: u32 = ${WG};
const ROWS: u32 = ${ROWS};
const CLASSES: u32 = ${CLASSES};

@group(0) @binding(0) var<storage, read> weights: array<f32>;
@group(0) @binding(1) var<storage, read> labels: array<u32>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = workgroup_index(workgroup, workgroups) * WG + lane;
    if row >= ROWS {
        return;
    }
    let label = labels[row];
    var weight = quiet_nan();
    if label < CLASSES {
        weight = weights[label];
    }
    store(row, select(weight, 0.0, ${IGNORED}));
}
