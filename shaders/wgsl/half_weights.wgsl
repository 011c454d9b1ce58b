// The weights of a convolution as products on matrix units read them, in f16, scaled: u[g,m,t,k] for group g and tap t = i·KW + j,
// with m the rows of the product and k the rest of its reduction: output and input channels, or for the gradient of the input the
// other way round.
//
// Bindings: w[O,C/G,KH,KW], scales → u[G,M,TAPS,K]. One invocation moves eight weights; ⌈LEN/8/WG⌉ workgroups.
//
// Defines: WG
//          LEN  number of weights
//          TAPS KH·KW
//          GROUP_O, GROUP_C channels of a group, out and in; multiples of 8
//          FORM forward or grad_input

enable f16;

#include "shared/grid"

const WG: u32 = ${WG};
const LEN: u32 = ${LEN};
const TAPS: u32 = ${TAPS};
const GROUP_O: u32 = ${GROUP_O};
const GROUP_C: u32 = ${GROUP_C};

@group(0) @binding(0) var<storage, read> w: array<f32>;
@group(0) @binding(1) var<storage, read> scales: array<f32>;
@group(0) @binding(2) var<storage, read_write> u: array<vec4<f16>>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let scale = scales[1];
    // Neighbours read neighbouring taps.
    let index = workgroup_index(workgroup, workgroups) * WG + lane;
    if index >= LEN / 8u {
        return;
    }
    let tap = index % TAPS;
#if FORM == forward
    let k = index / TAPS % (GROUP_C / 8u) * 8u;
    let m = index / (TAPS * (GROUP_C / 8u)) % GROUP_O;
    let group = index / (TAPS * (GROUP_C / 8u) * GROUP_O);
    let at = ((group * GROUP_O + m) * GROUP_C + k) * TAPS + tap;
    let step = TAPS;
    let to = ((group * GROUP_O + m) * TAPS + tap) * (GROUP_C / 8u) + k / 8u;
#else
    let m = index / TAPS % GROUP_C;
    let k = index / (TAPS * GROUP_C) % (GROUP_O / 8u) * 8u;
    let group = index / (TAPS * GROUP_C * (GROUP_O / 8u));
    let at = ((group * GROUP_O + k) * GROUP_C + m) * TAPS + tap;
    let step = GROUP_C * TAPS;
    let to = ((group * GROUP_C + m) * TAPS + tap) * (GROUP_O / 8u) + k / 8u;
#endif
    let first = vec4(w[at], w[at + step], w[at + 2u * step], w[at + 3u * step]);
    u[2u * to] = vec4<f16>(first * scale);
    let second = vec4(w[at + 4u * step], w[at + 5u * step], w[at + 6u * step], w[at + 7u * step]);
    u[2u * to + 1u] = vec4<f16>(second * scale);
}
