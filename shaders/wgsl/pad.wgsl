// y[i] = x[IN_OFFSET(i)] where INSIDE(i), else VALUE: padding with a constant, or a permutation of elements, where all
// are inside.
//
// Bindings: x → y. One invocation writes an element; ⌈N/WG⌉ workgroups.
//
// Defines: WG
//          N         number of elements of y
//          INSIDE    `true` if element i comes from x, an expression of `i: u32`
//          IN_OFFSET its place in x; evaluated only where INSIDE holds
//          VALUE     the padding, a literal

#include "shared/epilogue"
#include "shared/grid"

const WG: u32 = ${WG};
const N: u32 = ${N};

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
    var value: f32 = ${VALUE};
    if ${INSIDE} {
        value = x[${IN_OFFSET}];
    }
    store(i, value);
}
