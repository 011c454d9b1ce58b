// The powers of two by which a product's operands are scaled to fit f16, found on the way, so that operands are read
// once: the blocks that a tile begins with give them, with room for elements sixteen times as large. What f16 loses is
// 2³⁶ times smaller than what came with it.
//
// A number of a later block that is too large even so becomes infinite, and so do the sums that it is part of, for
// `note_sum` to find.

#include "shared/powers"

const ROOM: i32 = 3;

/// Whether there was anything that f16 cannot hold, in x. Four numbers: what follows begins at a multiple of 16 bytes.
/// Fragments are loaded wrongly from elsewhere, and NVIDIA's driver does not see to it.
var<workgroup> too_large: vec4<u32>;

/// Invocations that compare magnitudes. That they are few saves workgroup memory: see `Tiling::memory`.
const FINDERS: u32 = min(WG, 128u);

/// Notes a sum that is not finite.
fn note_sum(sum: f32) {
    if (bitcast<u32>(sum) & 0x7f800000u) == 0x7f800000u {
        too_large.x = 1u;
    }
}

/// The largest of all invocations' values, none below zero. All invocations call this together. Uses `sums`, 2·FINDERS
/// elements.
fn largest_of_workgroup(lane: u32, held: vec2<f32>) -> vec2<f32> {
    workgroupBarrier();
    let at = lane % FINDERS;
    for (var turn = 0u; turn < WG / FINDERS; turn += 1u) {
        if lane / FINDERS == turn {
            sums[at] = max(held.x, select(sums[at], 0.0, turn == 0u));
            sums[FINDERS + at] = max(held.y, select(sums[FINDERS + at], 0.0, turn == 0u));
        }
        workgroupBarrier();
    }
    for (var stride = FINDERS / 2u; stride > 0u; stride /= 2u) {
        if lane < stride {
            sums[lane] = max(sums[lane], sums[lane + stride]);
            sums[FINDERS + lane] = max(sums[FINDERS + lane], sums[FINDERS + lane + stride]);
        }
        workgroupBarrier();
    }
    return vec2(sums[0], sums[FINDERS]);
}

/// The exponents of the scales for a block, of whose operands a and b each invocation holds elements of these
/// magnitudes at most. All invocations call this together.
fn exponents_of_block(lane: u32, held: vec2<f32>) -> vec2<i32> {
    workgroupBarrier();
    if lane == 0u {
        too_large.x = 0u;
    }
    return exponents_for(largest_of_workgroup(lane, held), ROOM);
}

/// Whether a block of an operand had nothing but zeros.
fn are_unknown(exponents: vec2<i32>) -> bool {
    return max(exponents.x, exponents.y) == 113;
}
