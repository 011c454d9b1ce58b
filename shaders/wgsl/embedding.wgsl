// y[i,d] = table[index[i],d]: rows of a table by index. NaN where the index is past the end, 0 where it is padding.
//
// Bindings: table[ROWS,WIDTH], index → y. One invocation writes an element; ⌈N/WG⌉ workgroups.
//
// Defines: WG
//          N      number of elements of y
//          ROWS, WIDTH
//          PADDED `true` if row `row: u32` is padding, an expression

#include "shared/epilogue"
#include "shared/float"
#include "shared/grid"

const WG: u32 = ${WG};
const N: u32 = ${N};
const ROWS: u32 = ${ROWS};
const WIDTH: u32 = ${WIDTH};

@group(0) @binding(0) var<storage, read> table: array<f32>;
@group(0) @binding(1) var<storage, read> index: array<u32>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = workgroup_index(workgroup, workgroups) * WG + lane;
    if i >= N {
        return;
    }
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
