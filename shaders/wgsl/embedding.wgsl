// y[i,d] = table[index[i],d]: rows of a table by index. NaN, or the integer farthest from the others, where
// the index is past the end; 0 where it is padding.
//
// Bindings: table[ROWS,WIDTH], index → y. One invocation writes an element; ⌈N/WG⌉ workgroups.
//
// Defines: WG
//          N      number of elements of y
//          ROWS, WIDTH
//          ELEMENT see shared/element
//          PADDED `true` if row `row: u32` is padding, an expression

#include "shared/element"
#include "shared/elements"
#include "shared/epilogue"

const ELEMENTS: u32 = ${N};
const ROWS: u32 = ${ROWS};
const WIDTH: u32 = ${WIDTH};

@group(0) @binding(0) var<storage, read> table: array<Element>;
@group(0) @binding(1) var<storage, read> index: array<u32>;

fn compute(i: u32) {
    let row = index[i / WIDTH];
    var value = Element();
    if ${PADDED} {
        value = Element();
    } else if row < ROWS {
        value = table[row * WIDTH + i % WIDTH];
    } else {
        value = nothing();
    }
    store(i, value);
}
