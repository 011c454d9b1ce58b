// Powers of two that make operands fit f16. A workgroup guesses them from the blocks that it begins with, leaving room
// for larger elements. One that is too large becomes infinite, and so do the sums that it is part of: shared/fit_check
// looks for those at the end, and the workgroup starts over with powers found from all blocks. So nothing is compared
// on the way. With BFLOAT everything fits as it is.
//
// WG and SUBGROUP, constants of the kernel, are the invocations of a workgroup and of a subgroup. Subgroups look at and
// store their sums in TURNS turns, which bounds the memory that this takes.

#include "shared/powers"
#include "shared/units"
#include "shared/float"

/// Binary digits of room that a guess leaves. What is 2³⁰ times smaller than the largest element guessed from becomes
/// zero.
const ROOM: i32 = 6;

/// The distance of rows of sixteen sums, in groups of four.
const PITCH_SUMS: u32 = 5u;
/// A fragment of sums of each subgroup whose turn it is.
var<workgroup> sums: array<vec4<f32>, WG / SUBGROUP / TURNS * 16u * PITCH_SUMS>;

#if BFLOAT
const ATTEMPTS: u32 = 1u;

fn exponents_of_all(lane: u32, held: vec2<f32>, room: i32) -> vec2<i32> {
    workgroupBarrier();
    return vec2<i32>();
}
#else
const ATTEMPTS: u32 = 2u;

var<workgroup> largest_of: array<vec2<f32>, WG / SUBGROUP>;
/// Whether a sum is not finite, in x; four numbers, so that tiles begin at a multiple of 16 bytes.
var<workgroup> unfit: vec4<u32>;

/// The exponents for the largest of all invocations' magnitudes, of each operand. All invocations call this together.
fn exponents_of_all(lane: u32, held: vec2<f32>, room: i32) -> vec2<i32> {
    let largest = vec2(subgroupMax(held.x), subgroupMax(held.y));
    workgroupBarrier();
    if lane % SUBGROUP == 0u {
        largest_of[lane / SUBGROUP] = largest;
    }
    if lane == 0u {
        unfit.x = 0u;
    }
    workgroupBarrier();
    var all = largest_of[0];
    for (var at = 1u; at < WG / SUBGROUP; at += 1u) {
        all = max(all, largest_of[at]);
    }
    return exponents_for(all, room);
}
#endif

/// The largest magnitude of a line's elements, without what is not finite.
fn finite_magnitude(words: vec4<u32>) -> f32 {
    let x = eight_of(words);
    return largest(max(finite_magnitudes(x.first), finite_magnitudes(x.second)));
}
