// y[i] = x[IN_OFFSET(i)]: integers as floats.
//
// Bindings: x → y. One invocation writes an element; ⌈N/WG⌉ workgroups.
//
// Defines: WG
//          N         number of elements
//          IN_OFFSET the source of element i, an expression of `i: u32`

#include "shared/epilogue"
#include "shared/grid"

const WG: u32 = ${WG};
const N: u32 = ${N};

@group(0) @binding(0) var<storage, read> x: array<u32>;

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
    store(i, f32(x[${IN_OFFSET}]));
}
