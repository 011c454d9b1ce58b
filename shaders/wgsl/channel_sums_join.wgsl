// Adds up, in a fixed order, the two sums of parts of each channel that `channel_sums` computed.
//
// Bindings: parts[C,PARTS,2] → sum[C], product[C] by its epilogue. LANES invocations add up a channel;
// ⌈C·LANES/WG⌉ workgroups.
//
// Defines: WG; LANES see shared/totals
//          C, PARTS

#include "shared/epilogue_all"
#include "shared/grid"
#include "shared/totals"

const WG: u32 = ${WG};
const C: u32 = ${C};
const PARTS: u32 = ${PARTS};

@group(0) @binding(0) var<storage, read> parts: array<vec2<f32>>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let first = workgroup_index(workgroup, workgroups) * (WG / LANES);
    if first >= C {
        return;
    }
    // Invocations without a channel must still reach the barriers: they repeat the last channel.
    let own = first + lane / LANES;
    let channel = min(own, C - 1u);
    let begin = channel * PARTS;
    let member = lane % LANES;
    // Merged work reads its operands while the parts are on their way.
    let e = epilogue(channel);
    var both = vec2<f32>();
    for (var p = member; p < PARTS; p += LANES) {
        both += parts[begin + p];
    }
    both = segment_total(lane, both);
    if member == 0u && own < C {
        finish(e, vec4(both, 0.0, 0.0));
    }
}
