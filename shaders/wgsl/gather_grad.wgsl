// Gradient of `gather`: dtable[r,d] = Σ dy[i,d] over the i with index[i] = r, in their order; 0 for the row that is padding.
//
// Bindings: index[COUNT], dy[COUNT,WIDTH] → dtable[ROWS,WIDTH]. A workgroup computes up to WG columns of a row; ROWS·⌈WIDTH/WG⌉
// workgroups. Its invocations look at WG indices at a time, mark those that name the row, and all add what is marked.
//
// Defines: WG     a multiple of 32
//          ROWS, WIDTH, COUNT
//          PADDED whether `row: u32` is padding, an expression

#include "shared/epilogue"
#include "shared/grid"

const WG: u32 = ${WG};
const ROWS: u32 = ${ROWS};
const WIDTH: u32 = ${WIDTH};
const COUNT: u32 = ${COUNT};
const PARTS: u32 = (WIDTH + WG - 1u) / WG;

@group(0) @binding(0) var<storage, read> index: array<u32>;
@group(0) @binding(1) var<storage, read> dy: array<f32>;

/// A bit for each of the indices looked at. That bits are set in any order changes nothing.
var<workgroup> marked: array<atomic<u32>, WG / 32u>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let block = workgroup_index(workgroup, workgroups);
    let row = block / PARTS;
    let column = block % PARTS * WG + lane;
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
