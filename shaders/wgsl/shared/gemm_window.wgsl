// The product of shared/gemm on matrix units whose columns are windows: the operand b has TAPS columns for each channel, and the one
// of tap t is the channel's from row `shift(t)` on. So the rows of a step and SPAN more are in workgroup memory once for all taps.
// Columns are 16 channels for each tap in turn, then the next 16. Operands are read as by shared/gemm_lines, in lines of eight:
//   fn load_a(b: u32, i: u32, k: u32, end: u32) -> Line   rows i.. of column k
//   fn load_b(b: u32, k: u32, c: u32) -> Line             channels c.. of row k; there may be no such channel, and k may be past DEPTH
//   fn shift(tap: u32) -> u32                             at most SPAN; a constant
//   const TAPS, SPAN
//
// Defines: those of shared/matrix_units, FN being TAPS
//          LOADS_A lines of a that an invocation loads, BM·BK/8/(SUBGROUP·SM·SN)
//          LOADS_B lines of b that an invocation loads at most, ⌈(BK + SPAN)·2·SN/(SUBGROUP·SM·SN)⌉; with FORMAT half, of
//                  BK + SPAN rounded up to a multiple of 8
//          those of shared/line

#include "shared/matrix_units"
#include "shared/line"

/// Channels of a tile.
const CHANNELS_B: u32 = 16u * SN;
const ROWS_B: u32 = BK + SPAN;
// The distance of rows in groups of four, 16 bytes more than they have elements, so that neighbours lie in different banks.
const PITCH_A: u32 = BM / 4u + 2u;
const PITCH_B: u32 = CHANNELS_B / 4u + 2u;

var<workgroup> tile_a: array<vec4<f16>, BK * PITCH_A>;
var<workgroup> tile_b: array<vec4<f16>, ROWS_B * PITCH_B>;

fn put_a(at: u32, line: Line, scale: f32) -> f32 {
    let stored = scaled(eight_of_line(line), scale);
    tile_a[at] = vec4<f16>(stored.first);
    tile_a[at + 1u] = vec4<f16>(stored.second);
    return magnitude(stored);
}

fn put_b(at: u32, line: Line, scale: f32) -> f32 {
    let stored = scaled(eight_of_line(line), scale);
    tile_b[at] = vec4<f16>(stored.first);
    tile_b[at + 1u] = vec4<f16>(stored.second);
    return magnitude(stored);
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) invocation: u32,
) {
#include "shared/matrix_tile"
    let channel0 = column0 / (16u * TAPS) * 16u;
    let channel = x / TAPS * 4u;
#for L in LOADS_A
    let place_a_${L} = line_at(lane + ${L}u * WG, BK, BM / 8u);
    let to_a_${L} = place_a_${L}.x * PITCH_A + place_a_${L}.y * 2u;
    var a_${L} = load_a(batch, row0 + place_a_${L}.y * 8u, begin + place_a_${L}.x, end);
#endfor
#for L in LOADS_B
    let place_b_${L} = line_at(lane + ${L}u * WG, ROWS_B, CHANNELS_B / 8u);
    let is_b_${L} = place_b_${L}.x < ROWS_B && place_b_${L}.y < CHANNELS_B / 8u;
    let to_b_${L} = place_b_${L}.x * PITCH_B + place_b_${L}.y * 2u;
    var b_${L} = load_b(batch, begin + place_b_${L}.x, channel0 + place_b_${L}.y * 8u);
#endfor
    var held = vec2<f32>();
#for L in LOADS_A
    held.x = max(held.x, finite_magnitude(eight_of_line(a_${L})));
#endfor
#for L in LOADS_B
    held.y = max(held.y, finite_magnitude(eight_of_line(b_${L})));
#endfor
    var exponents = exponents_of_block(lane, held);
    var scale = powers(exponents);
    for (var round = 0u; round < ROUNDS; round += 1u) {
        var stored = 0.0;
#for L in LOADS_A
        stored = max(stored, put_a(to_a_${L}, a_${L}, scale.x));
#endfor
#for L in LOADS_B
        if is_b_${L} {
            stored = max(stored, put_b(to_b_${L}, b_${L}, scale.y));
        }
#endfor
        note(0u, stored);
        workgroupBarrier();
        if too_large[0] != 0u {
            var held = vec2<f32>();
#for L in LOADS_A
            held.x = max(held.x, finite_magnitude(eight_of_line(a_${L})));
#endfor
#for L in LOADS_B
            held.y = max(held.y, finite_magnitude(eight_of_line(b_${L})));
#endfor
#insert "shared/lower_scales"
#for L in LOADS_A
            put_a(to_a_${L}, a_${L}, scale.x);
#endfor
#for L in LOADS_B
            if is_b_${L} {
                put_b(to_b_${L}, b_${L}, scale.y);
            }
#endfor
            workgroupBarrier();
        }
        // After the last step one more, which nobody uses: loads that depend on nothing can be moved to where they cost least.
        let next = begin + (round + 1u) * BK;
#for L in LOADS_A
        a_${L} = load_a(batch, row0 + place_a_${L}.y * 8u, next + place_a_${L}.x, end);
#endfor
#for L in LOADS_B
        b_${L} = load_b(batch, next + place_b_${L}.x, channel0 + place_b_${L}.y * 8u);
#endfor
#for U in STEPS
        // Named, because naga's SPIR-V writer does not take them inside of the calls.
#for I in FM
        let at_a_${U}_${I} = ${U}u * 16u * PITCH_A + 4u * (y + ${I}u);
        let a_${U}_${I} = coopLoad<coop_mat16x16<f16, A>>(&tile_a[at_a_${U}_${I}], PITCH_A);
#endfor
#for J in FN
        let at_b_${U}_${J} = (${U}u * 16u + shift(${J}u)) * PITCH_B + channel;
        let b_${U}_${J} = coopLoadT<coop_mat16x16<f16, B>>(&tile_b[at_b_${U}_${J}], PITCH_B);
#for I in FM
        sum_${I}_${J} = coopMultiplyAdd(a_${U}_${I}, b_${U}_${J}, sum_${I}_${J});
#endfor
#endfor
#endfor
        workgroupBarrier();
    }

#include "shared/matrix_sums"
}
