// The weights of a convolution in the order in which products read them. For group g, tap t = i·KW + j, the rows m of the product and
// the rest k of its reduction, output and input channels, or for the gradient of the input the other way round:
// u[g,t,k,m] (LINE 1), or lines of eight k, u[g,t,k/8,m,k%8] (LINE 8, k a multiple of 8).
//
// Bindings: w[O,C/G,KH,KW] → u. One invocation moves a line of RUN taps; ⌈LEN/RUN/LINE/WG⌉ workgroups.
//
// Defines: WG
//          LEN  number of weights
//          TAPS KH·KW
//          RUN  a divisor of TAPS
//          GROUP_O, GROUP_C channels of a group, out and in
//          FORM forward or grad_input
//          LINE 1 or 8

#include "shared/grid"

const WG: u32 = ${WG};
const LEN: u32 = ${LEN};
const TAPS: u32 = ${TAPS};
const RUN: u32 = ${RUN};
const GROUP_O: u32 = ${GROUP_O};
const GROUP_C: u32 = ${GROUP_C};
const LINE: u32 = ${LINE};
#if FORM == forward
const M: u32 = GROUP_O;
const K: u32 = GROUP_C;
#else
const M: u32 = GROUP_C;
const K: u32 = GROUP_O;
#endif

@group(0) @binding(0) var<storage, read> w: array<f32>;
#if LINE == 8
@group(0) @binding(1) var<storage, read_write> u: array<vec4<f32>>;
#else
@group(0) @binding(1) var<storage, read_write> u: array<f32>;
#endif

fn weight(group: u32, m: u32, k: u32, tap: u32) -> f32 {
#if FORM == forward
    return w[((group * GROUP_O + m) * GROUP_C + k) * TAPS + tap];
#else
    return w[((group * GROUP_O + k) * GROUP_C + m) * TAPS + tap];
#endif
}

fn weights(group: u32, m: u32, k: u32, tap: u32) -> vec4<f32> {
    return vec4(
        weight(group, m, k, tap),
        weight(group, m, k + 1u, tap),
        weight(group, m, k + 2u, tap),
        weight(group, m, k + 3u, tap),
    );
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = workgroup_index(workgroup, workgroups) * WG + lane;
    if index >= LEN / RUN / LINE {
        return;
    }
    // Neighbours write neighbouring lines, and each reads on where it was for the last tap.
    let m = index % M;
    let k = index / M % (K / LINE);
    let run = index / (M * (K / LINE)) % (TAPS / RUN);
    let group = index / (M * (K / LINE) * (TAPS / RUN));
    for (var tap = run * RUN; tap < run * RUN + RUN; tap += 1u) {
        let to = ((group * TAPS + tap) * (K / LINE) + k) * M + m;
#if LINE == 8
        u[2u * to] = weights(group, m, k * 8u, tap);
        u[2u * to + 1u] = weights(group, m, k * 8u + 4u, tap);
#else
        u[to] = weight(group, m, k, tap);
#endif
    }
}
