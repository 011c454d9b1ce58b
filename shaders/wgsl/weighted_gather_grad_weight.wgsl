// Gradient of `weighted_gather`: dw[n,t,k] = Σ_c x[n,c,index[n,t,k]]·dy[n,c,k], the sums of RUN channels first. A
// column past the end is 0.
//
// Bindings: x[·,CHANNELS,COLUMNS], index[·,TAPS,COUNT], dy[·,CHANNELS,COUNT] → dw[·,TAPS,COUNT] by its epilogue. One
// invocation writes an element; ⌈N/WG⌉ workgroups.
//
// Defines: WG
//          N    number of elements of dw
//          CHANNELS, COLUMNS, TAPS, COUNT
//          RUN  channels of a chain of additions

#include "shared/elements"
#include "shared/epilogue"

const ELEMENTS: u32 = ${N};
const CHANNELS: u32 = ${CHANNELS};
const COLUMNS: u32 = ${COLUMNS};
const TAPS: u32 = ${TAPS};
const COUNT: u32 = ${COUNT};
const RUN: u32 = ${RUN};

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> index: array<u32>;
@group(0) @binding(2) var<storage, read> dy: array<f32>;

fn compute(i: u32) {
    let e = epilogue(i);
    let first = i / (TAPS * COUNT) * CHANNELS;
    let column = index[i];
    let inside = column < COLUMNS;
    let place = min(column, COLUMNS - 1u);
    var sum = 0.0;
    for (var begin = 0u; begin < CHANNELS; begin += RUN) {
        var run = 0.0;
        for (var c = first + begin; c < first + min(begin + RUN, CHANNELS); c++) {
            run += select(0.0, x[c * COLUMNS + place], inside) * dy[c * COUNT + i % COUNT];
        }
        sum += run;
    }
    finish(e, sum);
}
