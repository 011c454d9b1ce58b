// The weights of a convolution as products on matrix units read them: for group g, tap t = i·KW + j, the rows m of the product and
// the rest k of its reduction: output and input channels, or for the gradient of the input the other way round.
//
// Bindings: w[O,C/G,KH,KW] → u[G,TAPS,K/8,M,8], eight k of a row beside each other.
// One workgroup moves eight k of 32 rows, through its own memory, RUN taps at a time, so that whole runs are read and written;
// G·K/8·⌈M/32⌉ workgroups of 256.
//
// Defines: G
//          TAPS KH·KW
//          RUN  taps at a time, at most 9
//          GROUP_O, GROUP_C channels of a group, out and in; those that are k a multiple of 8
//          FORM forward or grad_input

#include "shared/grid"

const WG: u32 = 256u;
const G: u32 = ${G};
const TAPS: u32 = ${TAPS};
const RUN: u32 = ${RUN};
const GROUP_O: u32 = ${GROUP_O};
const GROUP_C: u32 = ${GROUP_C};
#if FORM == forward
const M: u32 = GROUP_O;
const K: u32 = GROUP_C;
#else
const M: u32 = GROUP_C;
const K: u32 = GROUP_O;
#endif
const BLOCKS: u32 = (M + 31u) / 32u;

@group(0) @binding(0) var<storage, read> w: array<f32>;
@group(0) @binding(1) var<storage, read_write> u: array<f32>;

/// RUN taps of 8 k for each of 32 rows; rows begin in different banks.
var<workgroup> block: array<f32, 32u * (8u * RUN + 1u)>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = workgroup_index(workgroup, workgroups);
    if index >= G * (K / 8u) * BLOCKS {
        return;
    }
    let m0 = index % BLOCKS * 32u;
    let line = index / BLOCKS % (K / 8u);
    let group = index / BLOCKS / (K / 8u);
    for (var tap0 = 0u; tap0 < TAPS; tap0 += RUN) {
        workgroupBarrier();
        for (var at = lane; at < WG * RUN; at += WG) {
            // In the order in which they lie in memory.
#if FORM == forward
            let m = at / (8u * RUN);
            let k = at / RUN % 8u;
            let place = ((group * GROUP_O + m0 + m) * GROUP_C + line * 8u + k) * TAPS;
#else
            let k = at / (32u * RUN);
            let m = at / RUN % 32u;
            let place = ((group * GROUP_O + line * 8u + k) * GROUP_C + m0 + m) * TAPS;
#endif
            let tap = tap0 + at % RUN;
            if m0 + m < M && tap < TAPS {
                block[m * (8u * RUN + 1u) + k * RUN + at % RUN] = w[place + tap];
            }
        }
        workgroupBarrier();
        let m = lane / 8u;
        let k = lane % 8u;
        for (var run = 0u; run < RUN; run += 1u) {
            if m0 + m < M && tap0 + run < TAPS {
                let element = block[m * (8u * RUN + 1u) + k * RUN + run];
                u[(((group * TAPS + tap0 + run) * (K / 8u) + line) * M + m0 + m) * 8u + k] = element;
            }
        }
    }
}
