// y[i,d] = table[index[i],d]: rows of a table by index. NaN where the index is past the end, 0 where it is padding.
//
// Bindings: table[ROWS,WIDTH], index → y. One invocation writes an element; ⌈N/WG⌉ workgroups.
//
// Defines: WG
//          N      number of elements of y
//          ROWS, WIDTH
//          PADDED `true` if row `row: u32` is padding, an expression

#include "shared/elements"
#include "shared/epilogue"
#include "shared/float"

const ELEMENTS: u32 = ${N};
const ROWS: u32 = ${ROWS};
const WIDTH: u32 = ${WIDTH};

@group(0) @binding(0) var<storage, read> table: array<f32>;
@group(0) @binding(1) var<storage, read> index: array<u32>;

fn compute(i: u32) {
    let row = index[i / WIDTH];
    var value = 0.0;
    if ${PADDED} {
        value = 0.0;
    } else if row < ROWS {
        value = table[row * WIDTH + i % WIDTH];
    } else {
        value = quiet_nan();
    }
    store(i, value);
}
