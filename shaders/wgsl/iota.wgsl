// y[i] = the index of element i along an axis.
//
// Bindings: y. One invocation writes an element; ⌈N/WG⌉ workgroups.
//
// Defines: WG
//          N      number of elements of y
//          EXTENT the extent of the axis
//          INNER  elements of the axes after it

#include "shared/elements"
#include "shared/epilogue"

const ELEMENTS: u32 = ${N};
const EXTENT: u32 = ${EXTENT};
const INNER: u32 = ${INNER};

fn compute(i: u32) {
    store(i, f32(i / INNER % EXTENT));
}
