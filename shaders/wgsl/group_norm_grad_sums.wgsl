// The last pass of the gradient of `group_norm`: adds up, in a fixed order, the Σ dy·z and Σ dy of each channel that
// `group_norm_grad`, `group_norm_grad_lines` or `group_norm_grad_rows` computed over samples or parts of them.
//
// Bindings: sums[P,2,C] → dgamma[C], dbeta[C] (TO result), or the sums over RANGE of P at a time to
// fewer[⌈P/RANGE⌉,2,C] (TO scratch), which a second launch adds up. LANES invocations add up a channel. Neighbouring
// invocations take neighbouring channels, so that loads coalesce. ⌈P/RANGE⌉·⌈C·LANES/WG⌉ workgroups.
//
// Defines: WG; LANES see shared/totals
//          TO    result or scratch
//          P, C
//          RANGE of P that a workgroup adds up; P where TO is result; RANGES: ⌈P/RANGE⌉
//          BLOCKS of C that a workgroup adds up: ⌈C/(WG/LANES)⌉

#include "shared/grid"
#include "shared/totals"

const WG: u32 = ${WG};
const P: u32 = ${P};
const C: u32 = ${C};
const RANGE: u32 = ${RANGE};
const RANGES: u32 = ${RANGES};
const CHANNELS: u32 = WG / LANES;
const BLOCKS: u32 = ${BLOCKS};

@group(0) @binding(0) var<storage, read> sums: array<f32>;
#if TO == result
@group(0) @binding(1) var<storage, read_write> dgamma: array<f32>;
@group(0) @binding(2) var<storage, read_write> dbeta: array<f32>;
#else
@group(0) @binding(1) var<storage, read_write> fewer: array<f32>;
#endif

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = workgroup_index(workgroup, workgroups);
    if index >= RANGES * BLOCKS {
        return;
    }
    let range = index / BLOCKS;
    let own = index % BLOCKS * CHANNELS + lane % CHANNELS;
    // Invocations without a channel must still reach the barriers: they repeat the last channel.
    let c = min(own, C - 1u);
    let member = lane / CHANNELS;
    let end = min(range * RANGE + RANGE, P);
    var sum = vec2<f32>();
    for (var p = range * RANGE + member; p < end; p += 8u * LANES) {
        // Eight at a time, so that loads need not wait for one another.
#for K in 8
        let at_${K} = min(p + ${K}u * LANES, end - 1u) * 2u * C + c;
        let part_${K} = vec2(sums[at_${K}], sums[at_${K} + C]);
#endfor
#for K in 8
        sum += select(vec2<f32>(), part_${K}, p + ${K}u * LANES < end);
#endfor
    }
    // The members of a segment must be neighbours there, so invocations are renumbered by channel.
    let total = segment_total(lane % CHANNELS * LANES + member, sum);
    if member == 0u && own < C {
#if TO == result
        dgamma[c] = total.x;
        dbeta[c] = total.y;
#else
        fewer[range * 2u * C + c] = total.x;
        fewer[range * 2u * C + C + c] = total.y;
#endif
    }
}
