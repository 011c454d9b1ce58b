// y[o,k,i] = x[o,index[o,k,i],i]: elements along an axis by index. NaN where the index is past the end.
//
// Bindings: x[O,ROWS,INNER], index[O,COUNT,INNER] → y. One invocation writes an element; ⌈N/WG⌉ workgroups.
//
// Defines: WG
//          N number of elements of y
//          ROWS, COUNT, INNER

#include "shared/epilogue"
#include "shared/float"
#include "shared/grid"

const WG: u32 = ${WG};
const N: u32 = ${N};
const ROWS: u32 = ${ROWS};
const COUNT: u32 = ${COUNT};
const INNER: u32 = ${INNER};

@group(0) @binding(0) var<storage, read> x: array<f32>;
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
    let row = index[i];
    var value = quiet_nan();
    if row < ROWS {
        value = x[(i / (COUNT * INNER) * ROWS + row) * INNER + i % INNER];
    }
    store(i, value);
}
