// Winograd's transform of the weights, G w Gᵀ: u[f,k,m] for product f of 36, whose rows are m and whose reduction runs
// over k. FORM forward: m is the output and k the input channel. FORM grad_input: the other way round, with taps in
// reverse order.
//
// Bindings: w[O,C,3,3] → u[36,K,M]. One invocation transforms the weights of a pair of channels; ⌈O·C/WG⌉ workgroups.
//
// Defines: WG, O, C
//          FORM forward or grad_input

#include "shared/elements"
#include "shared/winograd"

const O: u32 = ${O};
const C: u32 = ${C};
const ELEMENTS: u32 = O * C;

@group(0) @binding(0) var<storage, read> w: array<f32>;
@group(0) @binding(1) var<storage, read_write> u: array<f32>;

fn tap(pair: u32, i: u32, j: u32) -> f32 {
#if FORM == forward
    return w[pair * 9u + i * 3u + j];
#else
    return w[pair * 9u + 8u - i * 3u - j];
#endif
}

fn compute(index: u32) {
#if FORM == forward
    // Neighbouring invocations write neighbouring elements.
    let pair = index % O * C + index / O;
#else
    let pair = index;
#endif
#for J in 3
    let column_${J} = of_weight(tap(pair, 0u, ${J}u), tap(pair, 1u, ${J}u), tap(pair, 2u, ${J}u));
#endfor
#for I in 6
    let row_${I} = of_weight(column_0[${I}], column_1[${I}], column_2[${I}]);
#for J in 6
    u[(${I}u * 6u + ${J}u) * O * C + index] = row_${I}[${J}];
#endfor
#endfor
}
