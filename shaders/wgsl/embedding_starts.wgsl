// starts[r] = the number of indices below r, for r from 0 to ROWS, from the indices' places in ascending order.
//
// Bindings: index[COUNT], order[COUNT] → starts[ROWS + 1]. One invocation bisects for an r; ⌈(ROWS + 1)/WG⌉ workgroups.
//
// Defines: WG
//          ROWS, COUNT

#include "shared/elements"

const ELEMENTS: u32 = ${ROWS} + 1u;
const COUNT: u32 = ${COUNT};

@group(0) @binding(0) var<storage, read> index: array<u32>;
@group(0) @binding(1) var<storage, read> order: array<u32>;
@group(0) @binding(2) var<storage, read_write> starts: array<u32>;

fn compute(row: u32) {
    var low = 0u;
    var high = COUNT;
    while low < high {
        let middle = (low + high) / 2u;
        if index[min(order[middle], COUNT - 1u)] < row {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    starts[row] = low;
}
