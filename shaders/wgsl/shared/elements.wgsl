// The entry point of kernels in which each invocation computes an element, or a few, without the others: ⌈ELEMENTS/WG⌉
// workgroups.
//
// The kernel declares
//     const ELEMENTS: u32   the number of elements, or of groups of them
//     fn compute(i: u32)    computes and stores number i of them
//
// Defines: WG

#include "shared/grid"

const WG: u32 = ${WG};

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = workgroup_index(workgroup, workgroups) * WG + lane;
    if i < ELEMENTS {
        compute(i);
    }
}
