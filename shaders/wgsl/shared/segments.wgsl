// Segments of a workgroup. A segment is LANES of its WG invocations, which work on one result; a workgroup has SEGMENTS
// of them. ACROSS 0: a segment's members are neighbours, for results whose own elements are adjacent. ACROSS 1:
// neighbours are members of neighbouring segments, where elements of neighbouring results are adjacent. In both,
// neighbours read neighbouring addresses.
//
// Defines: LANES, ACROSS. LANES and the kernel's constant WG are powers of two
//          SEGMENTS WG/LANES
//          RUN      elements of a segment's run

const LANES: u32 = ${LANES};
const SEGMENTS: u32 = ${SEGMENTS};
const RUN: u32 = ${RUN};

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
