// y[i] = x[IN_OFFSET(i)] where INSIDE(i), else VALUE: padding with a constant, or a permutation of elements, where all
// are inside.
//
// Bindings: x → y. One invocation writes an element; ⌈N/WG⌉ workgroups.
//
// Defines: WG
//          N         number of elements of y
//          INSIDE    `true` if element i comes from x, an expression of `i: u32`
//          IN_OFFSET its place in x; evaluated only where INSIDE holds
//          VALUE     the padding, a literal or a call of a function of shared/float
//          ELEMENT   see shared/element

#include "shared/element"
#include "shared/elements"
#include "shared/epilogue"

const ELEMENTS: u32 = ${N};

@group(0) @binding(0) var<storage, read> x: array<Element>;

fn compute(i: u32) {
    var value: Element = ${VALUE};
    if ${INSIDE} {
        value = x[${IN_OFFSET}];
    }
    store(i, value);
}
