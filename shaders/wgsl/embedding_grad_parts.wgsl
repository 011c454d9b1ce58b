// parts[c,d] = Σ dy[order[k],d] over those k of chunk c, from c·CHUNK to (c+1)·CHUNK, that have the same index as its
// first one. They are neighbours, since `order` sorts the indices. So no chain of additions of `embedding_grad_sorted`
// is as long as the uses of a row.
//
// Bindings: index[COUNT], dy[COUNT,WIDTH], order[COUNT], starts[ROWS + 1] → parts[PARTS,WIDTH]. One invocation computes
// an element; ⌈PARTS·WIDTH/WG⌉ workgroups.
//
// Defines: WG
//          ROWS, WIDTH, COUNT
//          PARTS, CHUNK  (PARTS − 1)·CHUNK < COUNT ≤ PARTS·CHUNK

#include "shared/elements"

const ROWS: u32 = ${ROWS};
const WIDTH: u32 = ${WIDTH};
const COUNT: u32 = ${COUNT};
const CHUNK: u32 = ${CHUNK};
const ELEMENTS: u32 = ${PARTS} * WIDTH;

@group(0) @binding(0) var<storage, read> index: array<u32>;
@group(0) @binding(1) var<storage, read> dy: array<f32>;
@group(0) @binding(2) var<storage, read> order: array<u32>;
@group(0) @binding(3) var<storage, read> starts: array<u32>;
@group(0) @binding(4) var<storage, read_write> parts: array<f32>;

fn compute(i: u32) {
    let first = i / WIDTH * CHUNK;
    let row = index[min(order[first], COUNT - 1u)];
    var sum = 0.0;
    // Indices past the end have no row.
    if row < ROWS {
        let end = min(min(first + CHUNK, COUNT), starts[row + 1u]);
        for (var k = first; k < end; k++) {
            sum += dy[min(order[k], COUNT - 1u) * WIDTH + i % WIDTH];
        }
    }
    parts[i] = sum;
}
