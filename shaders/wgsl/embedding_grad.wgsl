// Gradient of `embedding`: dtable[r,d] = Σ dy[i,d] over the i with index[i] = r, in order of i; 0 for the padding row.
//
// Bindings: index[COUNT], dy[COUNT,WIDTH] → dtable[ROWS,WIDTH] by its epilogue (TO result), or the sums over CHUNK
// indices at a time to parts[PARTS,ROWS,WIDTH] (TO scratch), which another kernel adds. A workgroup computes up to WG
// columns of a row; PARTS·ROWS·⌈WIDTH/WG⌉ workgroups. Its invocations compare WG indices at a time and mark those that
// equal the row. Then each adds up its column of the marked rows of dy.
//
// Defines: WG     a multiple of 32
//          TO     result or scratch
//          MARKED marks that an iteration handles: one, the next that is set; or word, all of a word
//          ROWS, WIDTH, COUNT; BLOCKS: ⌈WIDTH/WG⌉
//          PARTS, CHUNK  (PARTS − 1)·CHUNK < COUNT ≤ PARTS·CHUNK; where TO is result, PARTS is 1
//          PADDED `true` if row `row: u32` is padding, an expression

#include "shared/grid"
#if TO == result
#include "shared/epilogue"
#endif

const WG: u32 = ${WG};
const ROWS: u32 = ${ROWS};
const WIDTH: u32 = ${WIDTH};
const COUNT: u32 = ${COUNT};
const PARTS: u32 = ${PARTS};
const CHUNK: u32 = ${CHUNK};
const BLOCKS: u32 = ${BLOCKS};

@group(0) @binding(0) var<storage, read> index: array<u32>;
@group(0) @binding(1) var<storage, read> dy: array<f32>;
#if TO == scratch
@group(0) @binding(2) var<storage, read_write> parts: array<f32>;
#endif

/// A bit for each of WG indices. The order in which bits are set does not matter.
var<workgroup> marked: array<atomic<u32>, WG / 32u>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let block = workgroup_index(workgroup, workgroups);
    let part = block / (ROWS * BLOCKS);
    let row = block / BLOCKS % ROWS;
    let column = block % BLOCKS * WG + lane;
    let inside = part < PARTS && column < WIDTH;
    let padded = ${PADDED};
    let end = min(part * CHUNK + CHUNK, COUNT);

    var sum = 0.0;
    for (var start = part * CHUNK; start < end; start += WG) {
        if lane < WG / 32u {
            atomicStore(&marked[lane], 0u);
        }
        workgroupBarrier();
        let at = start + lane;
        if at < end && !padded {
            if index[at] == row {
                atomicOr(&marked[lane / 32u], 1u << (lane % 32u));
            }
        }
        workgroupBarrier();
        for (var word = 0u; word < WG / 32u; word++) {
            var bits = atomicLoad(&marked[word]);
#if MARKED == one
            while bits != 0u && inside {
                let place = start + word * 32u + countTrailingZeros(bits);
                bits &= bits - 1u;
                sum += dy[place * WIDTH + column];
            }
#else
            if bits != 0u && inside {
#for BIT in 32
                if (bits & (1u << ${BIT}u)) != 0u {
                    sum += dy[(start + word * 32u + ${BIT}u) * WIDTH + column];
                }
#endfor
            }
#endif
        }
        workgroupBarrier();
    }
    if inside {
#if TO == result
        store(row * WIDTH + column, sum);
#else
        parts[(part * ROWS + row) * WIDTH + column] = sum;
#endif
    }
}
