// Reductions over segments of a workgroup. A segment is LANES of its WG invocations, which work on one result; a
// workgroup has SEGMENTS of them. ACROSS 0: a segment's members are neighbours, for results whose own elements are
// adjacent. ACROSS 1: neighbours are members of neighbouring segments, where elements of neighbouring results are
// adjacent. In both, neighbours read neighbouring addresses.
//
// A reduction is a tree of fixed order. All invocations of a workgroup call it together; each gets the result of its
// segment.
//
// Defines: LANES, ACROSS. LANES and the kernel's constant WG are powers of two
//          SEGMENTS WG/LANES
//          RUN      elements of a segment's run

#include "shared/float"

const LANES: u32 = ${LANES};
const SEGMENTS: u32 = ${SEGMENTS};
const RUN: u32 = ${RUN};

var<workgroup> segment_partials: array<f32, WG>;

#if ACROSS == 1
const NEXT_MEMBER: u32 = SEGMENTS;

fn segment_of(lane: u32) -> u32 {
    return lane % SEGMENTS;
}

fn member_of(lane: u32) -> u32 {
    return lane / SEGMENTS;
}
#else
const NEXT_MEMBER: u32 = 1u;

fn segment_of(lane: u32) -> u32 {
    return lane / LANES;
}

fn member_of(lane: u32) -> u32 {
    return lane % LANES;
}
#endif

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

/// NaN if any value is.
fn segment_min(lane: u32, value: f32) -> f32 {
    if LANES == 1u {
        return value;
    }
    segment_partials[lane] = value;
    for (var stride = LANES / 2u; stride > 0u; stride /= 2u) {
        workgroupBarrier();
        if member_of(lane) < stride {
            segment_partials[lane] = m_min(segment_partials[lane], segment_partials[lane + stride * NEXT_MEMBER]);
        }
    }
    return segment_result(lane);
}
