// Reductions over segments of a workgroup, in a tree of fixed order. All invocations of a workgroup call them together;
// each gets the result of its segment.
//
// Defines: those of shared/segments

#include "shared/float"
#include "shared/segments"

var<workgroup> segment_partials: array<f32, WG>;

/// The value of the segment's first member, after the reduction. After the call, the partials may be overwritten.
fn segment_result(lane: u32) -> f32 {
    workgroupBarrier();
    let result = segment_partials[lane - member_of(lane) * NEXT_MEMBER];
    workgroupBarrier();
    return result;
}

fn segment_sum(lane: u32, value: f32) -> f32 {
    if LANES == 1u {
        return value;
    }
    segment_partials[lane] = value;
    for (var stride = LANES / 2u; stride > 0u; stride /= 2u) {
        workgroupBarrier();
        if member_of(lane) < stride {
            segment_partials[lane] += segment_partials[lane + stride * NEXT_MEMBER];
        }
    }
    return segment_result(lane);
}

/// NaN if any value is.
fn segment_max(lane: u32, value: f32) -> f32 {
    if LANES == 1u {
        return value;
    }
    segment_partials[lane] = value;
    for (var stride = LANES / 2u; stride > 0u; stride /= 2u) {
        workgroupBarrier();
        if member_of(lane) < stride {
            segment_partials[lane] = m_max(segment_partials[lane], segment_partials[lane + stride * NEXT_MEMBER]);
        }
    }
    return segment_result(lane);
}
