// y[i] = f(x[i], …): the body of a fused chain of elementwise operations, written by the host.
//
// Bindings: BINDINGS declares them. One invocation computes the element i of every output; ⌈N/WG⌉ workgroups.
//
// Defines: WG
//          N         number of elements
//          BINDINGS  declarations of the inputs and outputs
//          FUNCTIONS declarations of further functions and constants; may be empty
//          BODY      statements, given `i: u32`; they may call whatever shared/math declares

#include "shared/grid"
#include "shared/math"

const WG: u32 = ${WG};
const N: u32 = ${N};

${BINDINGS}

${FUNCTIONS}

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
    ${BODY}
}
