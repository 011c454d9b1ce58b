// y[i] = x[IN_OFFSET(i)]: integers as floats.
//
// Bindings: x → y. One invocation writes an element; ⌈N/WG⌉ workgroups.
//
// Defines: WG
//          N         number of elements
//          IN_OFFSET the source of element i, an expression of `i: u32`

#include "shared/elements"
#include "shared/epilogue"

const ELEMENTS: u32 = ${N};

@group(0) @binding(0) var<storage, read> x: array<u32>;

fn compute(i: u32) {
    store(i, f32(x[${IN_OFFSET}]));
}
