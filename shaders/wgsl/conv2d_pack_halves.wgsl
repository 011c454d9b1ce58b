// The weights of a convolution as `conv2d_halo` and `conv2d_taps` read them: for group g and tap t = i·KW + j, the rest k of the product's reduction
// and its rows m: input and output channels, or for the gradient of the input the other way round, and its taps turned, which
// makes it a convolution. In f16: eight k of ROWS rows, all their taps, are scaled by one power of two.
//
// Bindings: w[O,C/G,KH,KW] → u[G,TAPS,K,M], the inverses of the powers powers[G,⌈M/ROWS⌉,K/8].
// A workgroup scales those and brings them into their order; G·⌈M/ROWS⌉·K/8 workgroups of 256.
//
// Defines: G
//          TAPS  KH·KW
//          ROWS  a multiple of 32
//          LOADS TAPS·ROWS/32, elements of an invocation
//          GROUP_O, GROUP_C channels of a group, out and in, multiples of 8
//          FORM  forward or grad_input

enable f16;

#include "shared/powers"
#include "shared/reduce"
#include "shared/grid"

const WG: u32 = 256u;
const G: u32 = ${G};
const TAPS: u32 = ${TAPS};
const ROWS: u32 = ${ROWS};
const GROUP_O: u32 = ${GROUP_O};
const GROUP_C: u32 = ${GROUP_C};
#if FORM == forward
const M: u32 = GROUP_O;
const K: u32 = GROUP_C;
#else
const M: u32 = GROUP_C;
const K: u32 = GROUP_O;
#endif
const BLOCKS: u32 = (M + ROWS - 1u) / ROWS;
/// Distance of what is beside each other in the weights: one bank.
const PITCH: u32 = ROWS + 2u;

@group(0) @binding(0) var<storage, read> w: array<f32>;
@group(0) @binding(1) var<storage, read_write> u: array<vec4<f16>>;
@group(0) @binding(2) var<storage, read_write> powers_of: array<f32>;

var<workgroup> block: array<f16, 8u * TAPS * PITCH>;

/// Row, k and tap of element `at` of a block, in the order in which they lie in memory.
fn element(at: u32) -> vec3<u32> {
#if FORM == forward
    return vec3(at / (8u * TAPS), at / TAPS % 8u, at % TAPS);
#else
    return vec3(at / TAPS % ROWS, at / (ROWS * TAPS), at % TAPS);
#endif
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = workgroup_index(workgroup, workgroups);
    if index >= G * BLOCKS * (K / 8u) {
        return;
    }
    let k0 = index % (K / 8u) * 8u;
    let m0 = index / (K / 8u) % BLOCKS * ROWS;
    let group = index / (K / 8u * BLOCKS);
#for L in LOADS
    let at_${L} = element(lane + ${L}u * WG);
#if FORM == forward
    let place_${L} = ((group * GROUP_O + m0 + at_${L}.x) * GROUP_C + k0 + at_${L}.y) * TAPS + at_${L}.z;
#else
    let place_${L} = ((group * GROUP_O + k0 + at_${L}.y) * GROUP_C + m0 + at_${L}.x) * TAPS + at_${L}.z;
#endif
    let there_${L} = m0 + at_${L}.x < M;
    let w_${L} = select(0.0, w[select(0u, place_${L}, there_${L})], there_${L});
#endfor
    var peak = vec4<f32>();
#for L in LOADS
    peak.x = max(peak.x, finite_magnitudes(vec4(w_${L})).x);
#endfor
    let exponents = exponents_for(vec2(workgroup_max(lane, peak.x)), 0);
    let scale = powers(exponents).x;
#for L in LOADS
    block[(at_${L}.y * TAPS + at_${L}.z) * PITCH + at_${L}.x] = f16(w_${L} * scale);
#endfor
    workgroupBarrier();
    for (var at = lane; at < 8u * TAPS * ROWS / 4u; at += WG) {
        let m = at % (ROWS / 4u) * 4u;
        let k = at / (ROWS / 4u) % 8u;
        let tap = at / (ROWS / 4u * 8u);
        if m0 + m < M {
#if FORM == forward
            let at_block = (k * TAPS + tap) * PITCH + m;
#else
            let at_block = (k * TAPS + TAPS - 1u - tap) * PITCH + m;
#endif
            let halves = vec4(block[at_block], block[at_block + 1u], block[at_block + 2u], block[at_block + 3u]);
            u[(((group * TAPS + tap) * K + k0 + k) * M + m0 + m) / 4u] = halves;
        }
    }
    if lane == 0u {
        powers_of[index] = powers(-exponents).x;
    }
}
