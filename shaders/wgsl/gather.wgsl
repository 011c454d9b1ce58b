// y[o,k,i] = x[o,index[o,k,i],i]: elements along an axis by index. NaN, or the integer farthest
// from the others, where the index is past the end.
//
// Bindings: x[O,ROWS,INNER], index[O,COUNT,INNER] → y. One invocation writes an element; ⌈N/WG⌉ workgroups.
//
// Defines: WG
//          N number of elements of y
//          ROWS, COUNT, INNER
//          ELEMENT see shared/element

#include "shared/element"
#include "shared/elements"
#include "shared/epilogue"

const ELEMENTS: u32 = ${N};
const ROWS: u32 = ${ROWS};
const COUNT: u32 = ${COUNT};
const INNER: u32 = ${INNER};

@group(0) @binding(0) var<storage, read> x: array<Element>;
@group(0) @binding(1) var<storage, read> index: array<u32>;

fn compute(i: u32) {
    let row = index[i];
    var value = nothing();
    if row < ROWS {
        value = x[(i / (COUNT * INNER) * ROWS + row) * INNER + i % INNER];
    }
    store(i, value);
}
