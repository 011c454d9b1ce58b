// Joins the moments of parts of each channel, in a fixed order, that `channel_moments` computed; it explains how.
//
// Bindings: parts[C,PARTS,4] → mean[C], rest[C], variance[C] by its epilogue. LANES invocations join a channel;
// ⌈C·LANES/WG⌉ workgroups.
//
// Defines: WG; LANES see shared/totals
//          C, PARTS; LEN, CHUNK   elements of a channel, and of its parts, the last of which may have fewer

#include "shared/epilogue_all"
#include "shared/float"
#include "shared/grid"
#include "shared/totals"

const WG: u32 = ${WG};
const C: u32 = ${C};
const PARTS: u32 = ${PARTS};
const LEN: u32 = ${LEN};
const CHUNK: u32 = ${CHUNK};

@group(0) @binding(0) var<storage, read> parts: array<vec4<f32>>;

/// The number of elements of part p.
fn count(p: u32) -> f32 {
    return f32(min(CHUNK, LEN - p * CHUNK));
}

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

    let pivot = parts[begin].x;
    var sum = 0.0;
    for (var p = member; p < PARTS; p += LANES) {
        let part = parts[begin + p];
        sum += count(p) * ((part.x - pivot) + part.y);
    }
    let high = pivot + segment_total(lane, vec2(sum, 0.0)).x / f32(LEN);
    var both = vec2<f32>();
    for (var p = member; p < PARTS; p += LANES) {
        let part = parts[begin + p];
        let d = (part.x - high) + part.y;
        both += vec2(count(p) * d, part.z + count(p) * d * d);
    }
    both = segment_total(lane, both);
    let low = both.x / f32(LEN);
    let squares = both.y - both.x * low;
    if member == 0u && own < C {
        let sum = high + low;
        // NaN stays NaN: a comparison may become a maximum, which loses it.
        let variance = select(squares, 0.0, is_at_most_zero(squares)) / f32(LEN);
        finish(e, vec4(sum, (high - sum) + low, variance, 0.0));
    }
}
