// Merges sorted runs of each line in pairs: each element finds by bisection how many elements of the other run come
// before it. The merge is stable.
//
// Bindings: x, order within runs → order within runs twice as long. One invocation moves an element; ⌈N/WG⌉ workgroups.
//
// Defines: WG
//          N   number of elements
//          RUN elements of a run; the last run of a line may have fewer
//          ELEMENT, LEN, INNER, KEPT, DESCENDING see shared/sort

#include "shared/elements"
#include "shared/sort"

const ELEMENTS: u32 = ${N};
const RUN: u32 = ${RUN};

@group(0) @binding(0) var<storage, read> x: array<Element>;
@group(0) @binding(1) var<storage, read> runs: array<u32>;
@group(0) @binding(2) var<storage, read_write> merged: array<u32>;

fn compute(i: u32) {
    let line = i / (LEN * INNER) * INNER + i % INNER;
    let at = i / INNER % LEN;
    let element = runs[i];
    let key = key_of(x[place(line, min(element, LEN - 1u))]);
    let is_left = at / RUN % 2u == 0u;
    let pair = at / (2u * RUN) * 2u * RUN;
    let other = pair + select(0u, RUN, is_left);
    // Bisect for the first element of the other run that does not come before this one.
    var low = min(other, LEN);
    var high = min(other + RUN, LEN);
    while low < high {
        let middle = (low + high) / 2u;
        let found = key_of(x[place(line, min(runs[place(line, middle)], LEN - 1u))]);
        if is_key_below(found, key) || (is_same_key(found, key) && !is_left) {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    let before = low - min(other, LEN);
    let rank = pair + at % RUN + before;
    if rank < KEPT {
        merged[place_kept(line, rank)] = element;
    }
}
