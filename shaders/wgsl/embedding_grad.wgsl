// Gradient of `embedding`: dtable[r,d] = Σ dy[i,d] over the i with index[i] = r, in order of i; 0 for the padding row.
//
// Bindings: index[COUNT], dy[COUNT,WIDTH] → dtable[ROWS,WIDTH] by its epilogue. A workgroup computes up to WG columns
// of a row; ROWS·⌈WIDTH/WG⌉ workgroups. Its invocations compare WG indices at a time and mark those that equal the row.
// Then each adds up its column of the marked rows of dy.
//
// Defines: WG     a multiple of 32
//          ROWS, WIDTH, COUNT; BLOCKS: ⌈WIDTH/WG⌉
//          PADDED `true` if row `row: u32` is padding, an expression

#include "shared/grid"
#include "shared/epilogue"

const WG: u32 = ${WG};
const ROWS: u32 = ${ROWS};
const WIDTH: u32 = ${WIDTH};
const COUNT: u32 = ${COUNT};
const BLOCKS: u32 = ${BLOCKS};

@group(0) @binding(0) var<storage, read> index: array<u32>;
@group(0) @binding(1) var<storage, read> dy: array<f32>;

/// A bit for each of WG indices. The order in which bits are set does not matter.
var<workgroup> marked: array<atomic<u32>, WG / 32u>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let block = workgroup_index(workgroup, workgroups);
    let row = block / BLOCKS;
    let column = block % BLOCKS * WG + lane;
    let inside = row < ROWS && column < WIDTH;
    let padded = ${PADDED};

    var sum = 0.0;
    for (var start = 0u; start < COUNT; start += WG) {
        if lane < WG / 32u {
            atomicStore(&marked[lane], 0u);
        }
        workgroupBarrier();
        let at = start + lane;
        if at < COUNT && !padded {
            if index[at] == row {
                atomicOr(&marked[lane / 32u], 1u << (lane % 32u));
            }
        }
        workgroupBarrier();
        for (var word = 0u; word < WG / 32u; word++) {
            var bits = atomicLoad(&marked[word]);
            while bits != 0u && inside {
                let place = start + word * 32u + countTrailingZeros(bits);
                bits &= bits - 1u;
                sum += dy[place * WIDTH + column];
            }
        }
        workgroupBarrier();
    }
    if inside {
        store(row * WIDTH + column, sum);
    }
}
