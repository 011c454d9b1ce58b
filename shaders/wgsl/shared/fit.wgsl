// Scaling of bf16 to fit f16, for kernels on matrix units: `conv2d_taps`, `conv2d_grad_weight_taps` and
// `matmul_bf16`.
//
// A workgroup chooses powers of two from the peaks of the first blocks that it loads, with ROOM for larger elements. An
// element that is too large even so becomes infinite, and so do its sums. Macro check_fit looks for such sums at the
// end. If there are any, the workgroup starts over, with powers from the peaks of all blocks. So loads need no checks.
// With BF16_UNITS, everything fits as it is, and there is one attempt.
//
// The kernel declares
//     const WG, the invocations of the workgroup
// It gives SUBGROUP, TURNS, ROOM, ATTEMPTS, exponents_of_all, finite_magnitude, `sums`, and macro check_fit().
//
// Defines: that of shared/units
//          SUBGROUP, SUBGROUPS   invocations of a subgroup; subgroups of the workgroup
//          TURNS    turns in which subgroups store their sums, a divisor of SUBGROUPS; more take less workgroup memory
//          PITCH_SUMS, FOURS_OF_SUMS   the pitch in workgroup memory of rows of sixteen sums, and a fragment of sums of
//                   each subgroup whose turn it is; in fours

#include "shared/units"
#include "shared/float"

/// log₂ of the headroom above the peaks of the first blocks, less one: operands are scaled to peak below 2^(15 − ROOM),
/// and f16 overflows at 2^16. Underflow loses at most 2⁻³³ of the peak.
const ROOM: i32 = 6;

const SUBGROUP: u32 = ${SUBGROUP};
const SUBGROUPS: u32 = ${SUBGROUPS};
const TURNS: u32 = ${TURNS};
const PITCH_SUMS: u32 = ${PITCH_SUMS};
var<workgroup> sums: array<vec4<f32>, ${FOURS_OF_SUMS}>;

#if BF16_UNITS
const ATTEMPTS: u32 = 1u;

fn exponents_of_all(lane: u32, held: vec2<f32>, room: i32) -> vec2<i32> {
    workgroupBarrier();
    return vec2<i32>();
}
#else
const ATTEMPTS: u32 = 2u;

var<workgroup> largest_of: array<vec2<f32>, SUBGROUPS>;
/// Nonzero in x if a sum is not finite. Four components, so that tiles begin at a multiple of 16 bytes.
var<workgroup> unfit: vec4<u32>;

/// The exponents for the largest magnitude of each operand in the workgroup; `held` has those of the invocation. All
/// invocations call this together.
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
    for (var at = 1u; at < SUBGROUPS; at += 1u) {
        all = max(all, largest_of[at]);
    }
    return exponents_for(all, room);
}
#endif

/// The largest finite magnitude among a line's elements.
fn finite_magnitude(words: vec4<u32>) -> f32 {
    let x = eight_of(words);
    return largest(max(finite_magnitudes(x.first), finite_magnitudes(x.second)));
}

// Declares `fit`: `true` if the sums of all subgroups are finite. It takes `lane` and `subgroup`; `total`, the sum of
// the subgroup's fragments; and `begin_sums`, the place in `sums` of the subgroup's fragment.
#macro check_fit()
#if BF16_UNITS
        let fit = true;
#else
        for (var turn = 0u; turn < TURNS; turn += 1u) {
            if subgroup % TURNS == turn {
                coopStoreT(total, &sums[begin_sums], PITCH_SUMS);
            }
            workgroupBarrier();
            if subgroup % TURNS == turn {
                for (var at = lane % SUBGROUP; at < 64u; at += SUBGROUP) {
                    let four = bitcast<vec4<u32>>(sums[begin_sums + at / 4u * PITCH_SUMS + at % 4u]);
                    if any((four & vec4(0x7f800000u)) == vec4(0x7f800000u)) {
                        unfit.x = 1u;
                    }
                }
            }
            workgroupBarrier();
        }
        let fit = workgroupUniformLoad(&unfit).x == 0u;
#endif
#endmacro
