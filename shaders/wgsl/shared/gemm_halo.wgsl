// The product of shared/gemm on matrix units whose columns are pixels and whose reduction runs over channels, for each of TAPS taps:
// the pixels that a tile reads, those around it included, are in workgroup memory once for all taps, BK channels at a time, so that
// a tap is a distance. The rows' elements come in f16, each eight channels of a tile scaled by a power of two of their
// own, by whose inverse the columns' are multiplied; besides, those are scaled as shared/scales has it. The kernel says:
//   fn load_a(b: u32, i: u32, tap: u32, c: u32) -> vec4<u32>   channel c.. of tap `tap`, rows i.., two in a word
//   fn source(b: u32, tile: u32, pixel: u32, c: u32) -> Source   channels c.. of one of the tile's PIXELS
//   fn load_b(at: u32) -> Line                               eight channels of an image's pixel, those at `at`
//   fn power_b(b: u32, tile: u32, c: u32) -> f32             what those from channel c on are multiplied by, for rows of tile `tile`
//   fn origin(fragment: u32) -> u32                         the pixel in workgroup memory that a fragment's first column reads at tap 0
//   fn shift(tap: u32) -> u32                               how many pixels further on it is at another tap; a constant
//   const HALO      pixels in workgroup memory
//   const PIXELS    those of them that may be anything but zero
//   const BLOCK     how much further on than what is `at` of a channel is that of the one BK further
// The reduction is cut into whole blocks of BK channels.
//
// Defines: TAPS
//          RUN     taps of a step of a, which divide them
//          those of shared/matrix_units, HALVES saying how many steps of a are in workgroup memory
//          LOADS_A lines of a that an invocation loads, RUN·BM·BK/8/(SUBGROUP·SM·SN)
//          LOADS_B lines of b that an invocation loads at most, ⌈PIXELS·BK/8/(SUBGROUP·SM·SN)⌉, of PIXELS rounded up to a multiple
//                  of 8

#include "shared/matrix_units"
#include "shared/line"

/// What stands for the largest element of a: with it, a's scale is 1.
const SCALED: f32 = 2048.0;

/// Where a line comes from, if there is one, and the pixel in workgroup memory where it goes.
struct Source {
    there: bool,
    at: u32,
    pixel: u32,
}

/// Taps of a step, and steps of a round.
const RUN: u32 = ${RUN};
const STEPS_A: u32 = TAPS / RUN;
// The distance of rows in groups of four, 16 bytes more than they have elements, so that neighbours lie in different banks.
const PITCH_A: u32 = BM / 4u + 2u;
const PITCH_B: u32 = BK / 4u + 2u;
const HALF_A: u32 = RUN * BK * PITCH_A;

var<workgroup> tile_a: array<Four, HALVES * HALF_A>;
var<workgroup> tile_b: array<Four, HALO * PITCH_B>;

/// Returns the largest magnitude that was stored.
fn put_b(at: u32, line: Line, scale: f32) -> f32 {
#if BFLOAT
    tile_b[at] = four_of(words_of_line(line).xy);
    tile_b[at + 1u] = four_of(words_of_line(line).zw);
    return 0.0;
#else
    let stored = scaled(eight_of_line(line), scale);
    tile_b[at] = vec4<f16>(stored.first);
    tile_b[at + 1u] = vec4<f16>(stored.second);
    return magnitude(stored);
#endif
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) invocation: u32,
) {
#include "shared/matrix_tile"
    // The padding, which nobody writes again.
    for (var at = lane; at < HALO * PITCH_B; at += WG) {
        tile_b[at] = Four();
    }
    let channel0 = begin / TAPS;
#for J in FN
    let origin_${J} = origin(x + ${J}u) * PITCH_B;
#endfor
#for L in LOADS_A
    let row_a_${L} = row0 + (lane + ${L}u * WG) % (BM / 8u) * 8u;
    let term_a_${L} = (lane + ${L}u * WG) / (BM / 8u) % BK;
    let tap_a_${L} = (lane + ${L}u * WG) / (BM / 8u * BK);
    let to_a_${L} = (lane + ${L}u * WG) / (BM / 8u) * PITCH_A + (lane + ${L}u * WG) % (BM / 8u) * 2u;
    var a_${L} = load_a(batch, row_a_${L}, tap_a_${L}, channel0 + term_a_${L});
#endfor
#for L in LOADS_B
    let place_b_${L} = line_at(lane + ${L}u * WG, PIXELS, BK / 8u);
    let channel_b_${L} = place_b_${L}.y * 8u;
    let source_${L} = source(batch, column0 / BN, place_b_${L}.x, channel_b_${L});
    let there_${L} = source_${L}.there && place_b_${L}.x < PIXELS && channel_b_${L} < BK;
    let start_${L} = select(0u, source_${L}.at + channel0 / BK * BLOCK, there_${L});
    let to_b_${L} = source_${L}.pixel * PITCH_B + place_b_${L}.y * 2u;
    var b_${L} = load_b(start_${L});
    var power_${L} = power_b(batch, row0 / BM, select(0u, channel0 + channel_b_${L}, there_${L}));
#endfor
    // Barriers stand between the zeros and what is stored over them.
#if BFLOAT
    workgroupBarrier();
    let exponents = vec2<i32>();
#else
    var held = vec2(SCALED, 0.0);
#for L in LOADS_B
    held.y = max(held.y, select(0.0, finite_magnitude(eight_of_line(b_${L})) * power_${L}, there_${L}));
#endfor
    var exponents = exponents_of_block(lane, held);
#endif
    var scale = powers(exponents);
#for L in LOADS_A
    tile_a[to_a_${L}] = four_of(a_${L}.xy);
    tile_a[to_a_${L} + 1u] = four_of(a_${L}.zw);
#endfor
#for L in LOADS_B
    if there_${L} {
        put_b(to_b_${L}, b_${L}, scale.y * power_${L});
    }
#endfor
    workgroupBarrier();
    for (var round = 0u; round < ROUNDS; round += 1u) {
        // After the last block, the last once more: loads that depend on nothing can be moved to where they cost least.
        let next_round = min(round + 1u, ROUNDS - 1u);
#for T in TAPS
        // The tap's step, and the one that comes after it.
        let half_${T} = (round * STEPS_A + ${T}u / RUN) % HALVES * HALF_A;
        let next_half_${T} = (round * STEPS_A + ${T}u / RUN + 1u) % HALVES * HALF_A;
        let next_tap_${T} = (${T}u + RUN) % TAPS;
        let next_channel_${T} = channel0 + select(next_round, round, ${T}u + RUN < TAPS) * BK;
        if ${T}u % RUN == 0u {
#for L in LOADS_A
            a_${L} = load_a(batch, row_a_${L}, next_tap_${T} + tap_a_${L}, next_channel_${T} + term_a_${L});
#endfor
        }
        if ${T}u + 1u == TAPS {
#for L in LOADS_B
            b_${L} = load_b(start_${L} + next_round * BLOCK);
            power_${L} = power_b(batch, row0 / BM, select(0u, channel0 + channel_b_${L} + next_round * BK, there_${L}));
#endfor
        }
#for U in STEPS
        // Named, because naga's SPIR-V writer does not take them inside of the calls.
#for I in FM
        let at_a_${T}_${U}_${I} = half_${T} + (${T}u % RUN * BK + ${U}u * 16u) * PITCH_A + 4u * (y + ${I}u);
        let a_${T}_${U}_${I} = coopLoad<coop_mat16x16<f16, A>>(&tile_a[at_a_${T}_${U}_${I}], PITCH_A);
#endfor
#for J in FN
        let at_b_${T}_${U}_${J} = origin_${J} + shift(${T}u) * PITCH_B + ${U}u * 4u;
        let b_${T}_${U}_${J} = coopLoad<coop_mat16x16<f16, B>>(&tile_b[at_b_${T}_${U}_${J}], PITCH_B);
#for I in FM
        sum_${I}_${J} = coopMultiplyAdd(a_${T}_${U}_${I}, b_${T}_${U}_${J}, sum_${I}_${J});
#endfor
#endfor
#endfor
        if ${T}u + 1u == TAPS || (HALVES == 1u && ${T}u % RUN == RUN - 1u) {
            workgroupBarrier();
        }
        if ${T}u + 1u == TAPS {
            var stored = 0.0;
#for L in LOADS_B
            if there_${L} {
                stored = max(stored, put_b(to_b_${L}, b_${L}, scale.y * power_${L}));
            }
#endfor
#if BFLOAT
#else
            note(0u, stored);
#endif
        }
        if ${T}u % RUN == RUN - 1u {
#for L in LOADS_A
            tile_a[next_half_${T} + to_a_${L}] = four_of(a_${L}.xy);
            tile_a[next_half_${T} + to_a_${L} + 1u] = four_of(a_${L}.zw);
#endfor
            workgroupBarrier();
        }
#endfor
#if BFLOAT
#else
        if too_large[0] != 0u {
            var held = vec2(SCALED, 0.0);
#for L in LOADS_B
            held.y = max(held.y, select(0.0, finite_magnitude(eight_of_line(b_${L})) * power_${L}, there_${L}));
#endfor
#insert "shared/lower_scales"
#for L in LOADS_B
            if there_${L} {
                put_b(to_b_${L}, b_${L}, scale.y * power_${L});
            }
#endfor
            workgroupBarrier();
        }
#endif
    }

#include "shared/matrix_sums"
}
