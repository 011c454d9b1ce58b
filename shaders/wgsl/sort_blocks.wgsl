// Sorts each block of WG elements of a line: order[first + r] is the index in the line of the element of rank r in the
// block that begins at `first`. The sort is stable.
//
// Bindings: x → order. A workgroup sorts a block: each invocation counts the elements that come before its own.
// LINES·⌈LEN/WG⌉ workgroups.
//
// Defines: WG
//          LINES, BLOCKS   number of lines, and of blocks of each
//          ELEMENT, LEN, INNER, KEPT, DESCENDING see shared/sort

#include "shared/grid"
#include "shared/sort"

const WG: u32 = ${WG};
const LINES: u32 = ${LINES};
const BLOCKS: u32 = ${BLOCKS};

@group(0) @binding(0) var<storage, read> x: array<Element>;
@group(0) @binding(1) var<storage, read_write> order: array<u32>;

var<workgroup> keys: array<Key, WG>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let block = workgroup_index(workgroup, workgroups);
    let line = block / BLOCKS;
    let first = block % BLOCKS * WG;
    let is_element = line < LINES && first + lane < LEN;
    var key = Key();
    if is_element {
        key = key_of(x[place(line, first + lane)]);
    }
    keys[lane] = key;
    workgroupBarrier();
    if !is_element {
        return;
    }
    var before = 0u;
    for (var other = 0u; other < min(WG, LEN - first); other++) {
        let is_before = is_key_below(keys[other], key) || (is_same_key(keys[other], key) && other < lane);
        before += u32(is_before);
    }
    if first + before < KEPT {
        order[place_kept(line, first + before)] = first + lane;
    }
}
