// y[OUT_OFFSET(i)] = x[IN_OFFSET(i)]: materialises a view, or a part of a concatenation.
//
// Bindings: x → y. One invocation copies an element; ⌈N/WG⌉ workgroups.
//
// Defines: WG
//          ELEM       f32, u32, or vec4<u32> for a line of halves
//          N          number of elements that are copied
//          IN_OFFSET  the source of element i, an expression of `i: u32`
//          OUT_OFFSET its destination, an expression of `i: u32`

#include "shared/grid"

const WG: u32 = ${WG};
const N: u32 = ${N};

@group(0) @binding(0) var<storage, read> x: array<${ELEM}>;
@group(0) @binding(1) var<storage, read_write> y: array<${ELEM}>;

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
    y[${OUT_OFFSET}] = x[${IN_OFFSET}];
}
