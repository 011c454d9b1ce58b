// Gradient of `embedding`: dtable[r,d] = Σ dy[i,d] over the i with index[i] = r, from the places of the sorted indices;
// 0 for the padding row. The order of additions is fixed: first the places before the first chunk that begins with r,
// then the sums of the chunks that do.
//
// Bindings: dy[COUNT,WIDTH], order[COUNT], starts[ROWS + 1], parts[PARTS,WIDTH] → dtable[ROWS,WIDTH] by its epilogue.
// One invocation computes an element; ⌈ROWS·WIDTH/WG⌉ workgroups.
//
// Defines: WG
//          ROWS, WIDTH, COUNT
//          CHUNK  places of a chunk, of which `parts` has the sums: see embedding_grad_parts
//          PADDED `true` if row `row: u32` is padding, an expression

#include "shared/elements"
#include "shared/epilogue"

const WIDTH: u32 = ${WIDTH};
const COUNT: u32 = ${COUNT};
const CHUNK: u32 = ${CHUNK};
const ELEMENTS: u32 = ${ROWS} * WIDTH;

@group(0) @binding(0) var<storage, read> dy: array<f32>;
@group(0) @binding(1) var<storage, read> order: array<u32>;
@group(0) @binding(2) var<storage, read> starts: array<u32>;
@group(0) @binding(3) var<storage, read> parts: array<f32>;

fn compute(i: u32) {
    // Whatever is merged into the store reads its operands meanwhile.
    let e = epilogue(i);
    let row = i / WIDTH;
    let column = i % WIDTH;
    var sum = 0.0;
    if !(${PADDED}) {
        let begin = min(starts[row], COUNT);
        let end = min(starts[row + 1u], COUNT);
        let chunk = (begin + CHUNK - 1u) / CHUNK;
        for (var k = begin; k < min(end, chunk * CHUNK); k++) {
            sum += dy[min(order[k], COUNT - 1u) * WIDTH + column];
        }
        for (var c = chunk; c * CHUNK < end; c++) {
            sum += parts[c * WIDTH + column];
        }
    }
    finish(e, sum);
}
