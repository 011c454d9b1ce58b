// The powers of two by which a product's operands are scaled to fit f16, found on the way, so that operands are read once: the
// blocks that a tile begins with give them, with room for elements sixteen times as large. What f16 loses is 2³⁶ times smaller than
// what came with it.
//
// Where a later block has something that is too large even so, its operand's power goes down. Either at once: what stores a block
// notes the largest magnitude that it stored,
//     note(which, magnitude);
//     workgroupBarrier();
//     if too_large[which] != 0u { … }
// and there shared/lower_scales lowers the powers and the sums so far, and the block is stored once more. `which` is 0 or 1: blocks
// without a barrier between the use of one and the storing of the other differ. Or in the end: a number too large for f16 becomes infinite, and so do the sums that it is part of, for `note_sum` to find.

#include "shared/powers"

const ROOM: i32 = 3;
/// The largest number of f16.
const MOST: f32 = 65504.0;

/// Whether there was anything in a block that f16 cannot hold.
var<workgroup> too_large: array<u32, 2>;

/// Invocations that compare magnitudes. That they are few saves workgroup memory: see `Tiling::memory`.
const FINDERS: u32 = min(WG, 128u);

fn note(which: u32, magnitude: f32) {
    // What is said of NaN must not depend on the driver.
    if !(magnitude <= MOST) {
        too_large[which] = 1u;
    }
}

/// Notes a sum that is not finite, as of block 0.
fn note_sum(sum: f32) {
    if (bitcast<u32>(sum) & 0x7f800000u) == 0x7f800000u {
        too_large[0] = 1u;
    }
}

// What is found, in `sums`.
#if LINES
fn found(at: u32) -> f32 {
    return sums[at / 4u][at % 4u];
}

fn find(at: u32, value: f32) {
    sums[at / 4u][at % 4u] = value;
}
#else
fn found(at: u32) -> f32 {
    return sums[at];
}

fn find(at: u32, value: f32) {
    sums[at] = value;
}
#endif

/// The largest of all invocations' values, none below zero. All invocations call this together. Uses `sums`, 2·FINDERS elements.
fn largest_of_workgroup(lane: u32, held: vec2<f32>) -> vec2<f32> {
    workgroupBarrier();
    let at = lane % FINDERS;
    for (var turn = 0u; turn < WG / FINDERS; turn += 1u) {
        if lane / FINDERS == turn {
            find(at, max(held.x, select(found(at), 0.0, turn == 0u)));
            find(FINDERS + at, max(held.y, select(found(FINDERS + at), 0.0, turn == 0u)));
        }
        workgroupBarrier();
    }
    for (var stride = FINDERS / 2u; stride > 0u; stride /= 2u) {
        if lane < stride {
            find(lane, max(found(lane), found(lane + stride)));
            find(FINDERS + lane, max(found(FINDERS + lane), found(FINDERS + lane + stride)));
        }
        workgroupBarrier();
    }
    return vec2(found(0u), found(FINDERS));
}

/// The exponents of the scales for a block, of whose operands a and b each invocation holds elements of these magnitudes at most. All
/// invocations call this together.
fn exponents_of_block(lane: u32, held: vec2<f32>) -> vec2<i32> {
    workgroupBarrier();
    if lane < 2u {
        too_large[lane] = 0u;
    }
    return exponents_for(largest_of_workgroup(lane, held), ROOM);
}

/// The least exponents of all invocations'. All call this together.
fn lowest_of_all(lane: u32, exponents: vec2<i32>) -> vec2<i32> {
    return vec2(127) - vec2<i32>(largest_of_workgroup(lane, vec2<f32>(vec2(127) - exponents)));
}

/// What sums are scaled by where the exponents of the scales go down to `lower`: a power for each operand.
fn change(exponents: vec2<i32>, lower: vec2<i32>) -> vec2<f32> {
    return powers(max(lower - exponents, vec2(-126)));
}

/// Whether a block of an operand had nothing but zeros.
fn are_unknown(exponents: vec2<i32>) -> bool {
    return max(exponents.x, exponents.y) == 113;
}
