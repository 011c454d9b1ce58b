// y[n,c,k] = Σ_t w[n,t,k]·x[n,c,index[n,t,k]]: weighted sums of columns. A column past the end is 0.
//
// Bindings: x[·,CHANNELS,COLUMNS], index[·,TAPS,COUNT], w[·,TAPS,COUNT] → y. One invocation writes an element; ⌈N/WG⌉
// workgroups.
//
// Defines: WG
//          N    number of elements of y
//          CHANNELS, COLUMNS, TAPS, COUNT

#include "shared/elements"
#include "shared/epilogue"

const ELEMENTS: u32 = ${N};
const CHANNELS: u32 = ${CHANNELS};
const COLUMNS: u32 = ${COLUMNS};
const TAPS: u32 = ${TAPS};
const COUNT: u32 = ${COUNT};

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> index: array<u32>;
@group(0) @binding(2) var<storage, read> w: array<f32>;

fn compute(i: u32) {
    let e = epilogue(i);
    let plane = i / COUNT;
    let first = plane / CHANNELS * TAPS * COUNT + i % COUNT;
    var sum = 0.0;
    for (var t = 0u; t < TAPS; t++) {
        let at = first + t * COUNT;
        let column = index[at];
        sum += w[at] * select(0.0, x[plane * COLUMNS + min(column, COLUMNS - 1u)], column < COLUMNS);
    }
    finish(e, sum);
}
