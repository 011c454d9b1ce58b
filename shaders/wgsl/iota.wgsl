// y[i] = the index of element i along an axis.
//
// Bindings: y. One invocation writes an element; ⌈N/WG⌉ workgroups.
//
// Defines: WG
//          N      number of elements of y
//          EXTENT the extent of the axis
//          INNER  elements of the axes after it

#include "shared/epilogue"
#include "shared/grid"

const WG: u32 = ${WG};
const N: u32 = ${N};
const EXTENT: u32 = ${EXTENT};
const INNER: u32 = ${INNER};

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
    store(i, f32(i / INNER % EXTENT));
}
