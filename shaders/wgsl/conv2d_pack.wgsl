// Packs the weights of a convolution for `conv2d_gemm`: u[g,t,k,m] for group g, tap number t, row m of the product
// and term k of its reduction. FORM forward: m is the output and k the input channel. FORM grad_input: m is the input
// and k the output channel, and taps are in reverse order.
//
// Bindings: w[O,C/G,KD,KH,KW] → u[G,TAPS,K,M]. One invocation moves a weight; ⌈LEN/WG⌉ workgroups.
//
// Defines: WG
//          LEN  number of weights
//          TAPS KD·KH·KW
//          GROUP_O, GROUP_C   output and input channels of a group
//          FORM forward or grad_input

#include "shared/elements"

const ELEMENTS: u32 = ${LEN};
const TAPS: u32 = ${TAPS};
const GROUP_O: u32 = ${GROUP_O};
const GROUP_C: u32 = ${GROUP_C};

@group(0) @binding(0) var<storage, read> w: array<f32>;
@group(0) @binding(1) var<storage, read_write> u: array<f32>;

fn compute(index: u32) {
#if FORM == forward
    let o = index % GROUP_O;
    let c = index / GROUP_O % GROUP_C;
#else
    let c = index % GROUP_C;
    let o = index / GROUP_C % GROUP_O;
#endif
    let of_product = index / (GROUP_O * GROUP_C) % TAPS;
#if FORM == forward
    let tap = of_product;
#else
    let tap = TAPS - 1u - of_product;
#endif
    let group = index / (GROUP_O * GROUP_C * TAPS);
    u[index] = w[((group * GROUP_O + o) * GROUP_C + c) * TAPS + tap];
}
