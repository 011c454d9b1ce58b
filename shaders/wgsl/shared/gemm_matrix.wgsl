// The product of shared/gemm on matrix units: operands are rounded to f16 on their way through workgroup memory, scaled
// by powers of two (shared/scales), and the sums are scaled back. Blocks are not looked at as they are stored, which
// would take a tenth of the time: where something was too large, the tile's sums are not finite in the end, and are
// computed once more.
//
// Defines: those of shared/matrix_units
//          LOADS  blocks that an invocation loads, (BM + BN)·BK/(16·SUBGROUP·SM·SN)

#include "shared/matrix_units"
#include "shared/blocks"

// The distance of one k from the next: 16 bytes more than the tile, so that neighbours along k lie in different banks.
const PITCH_A: u32 = LINES_A + 2u;
const PITCH_B: u32 = LINES_B + 2u;

var<workgroup> tile_a: array<vec4<f16>, HALVES * BK * PITCH_A>;
var<workgroup> tile_b: array<vec4<f16>, HALVES * BK * PITCH_B>;

/// The largest finite magnitudes that a block adds to a and b.
fn magnitudes(lane: u32, first: u32, block: mat4x4<f32>) -> vec2<f32> {
    var of_all = vec4<f32>();
#for C in 4
    of_all = max(of_all, finite_magnitudes(block[${C}]));
#endfor
    return select(vec2(0.0, largest(of_all)), vec2(largest(of_all), 0.0), is_of_a(lane, first));
}

/// The largest finite magnitudes of a and b that an invocation loads for the tile.
fn largest_of_all(b: u32, row0: u32, column0: u32, begin: u32, end: u32, lane: u32) -> vec2<f32> {
    var held = vec2<f32>();
    for (var k = begin; k < end; k += BK) {
#for L in LOADS
        held = max(held, magnitudes(lane, ${L}u * WG, fetch(b, row0, column0, k, end, lane, ${L}u * WG)));
#endfor
    }
    return held;
}

fn put(half: u32, lane: u32, first: u32, block: mat4x4<f32>, scale: vec2<f32>) {
    if is_of_a(lane, first) {
        let place = place_a(first + lane);
        let line = (half * BK + 4u * place.y) * PITCH_A + place.x;
#for C in 4
        tile_a[line + ${C}u * PITCH_A] = vec4<f16>(block[${C}] * scale.x);
#endfor
        return;
    }
    let place = place_b(first + lane - BLOCKS_A);
    let line = (half * BK + 4u * place.y) * PITCH_B + place.x;
#for C in 4
    tile_b[line + ${C}u * PITCH_B] = vec4<f16>(block[${C}] * scale.y);
#endfor
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) invocation: u32,
) {
#include "shared/matrix_tile"
    var held = vec2<f32>();
#for L in LOADS
    let first_${L} = fetch(batch, row0, column0, begin, end, lane, ${L}u * WG);
    held = max(held, magnitudes(lane, ${L}u * WG, first_${L}));
#endfor
    var exponents = exponents_of_block(lane, held);
    if are_unknown(exponents) {
        exponents = exponents_of_block(lane, largest_of_all(batch, row0, column0, begin, end, lane));
    }
    let scale = powers(exponents);
#for L in LOADS
    put(0u, lane, ${L}u * WG, first_${L}, scale);
#endfor
    workgroupBarrier();
    for (var k0 = begin; k0 < end; k0 += HALVES * BK) {
#for H in HALVES
        let more_${H} = k0 + ${H}u * BK + BK < begin + PART_K;
#for L in LOADS
        var next_${H}_${L}: mat4x4<f32>;
#endfor
        if more_${H} {
#for L in LOADS
            next_${H}_${L} = fetch(batch, row0, column0, k0 + ${H}u * BK + BK, end, lane, ${L}u * WG);
#endfor
        }
#insert "shared/blocks_step"
#if HALVES == 1
        workgroupBarrier();
#endif
        if more_${H} {
#for L in LOADS
            put((${H}u + 1u) % HALVES, lane, ${L}u * WG, next_${H}_${L}, scale);
#endfor
        }
        workgroupBarrier();
#endfor
    }

    // A sum that is not finite has something in it that was too large for f16, or was not finite itself.
    var total = sum_0_0;
#for I in FM
#for J in FN
    if ${I}u + ${J}u > 0u {
        total = total + sum_${I}_${J};
    }
#endfor
#endfor
    let begin_total = subgroup * 16u * PITCH;
    workgroupBarrier();
    coopStoreT(total, &sums[begin_total], PITCH);
    workgroupBarrier();
    for (var e = lane % SUBGROUP; e < 256u; e += SUBGROUP) {
        note_sum(sums[begin_total + e / 16u * PITCH + e % 16u]);
    }
    workgroupBarrier();
    if too_large.x != 0u {
        // Once more, in small steps: hardly a tile gets here.
        exponents = exponents_of_block(lane, largest_of_all(batch, row0, column0, begin, end, lane));
        let lower = powers(exponents);
#for I in FM
#for J in FN
        sum_${I}_${J} = coop_mat16x16<f32, C>();
#endfor
#endfor
        for (var k = begin; k < end; k += BK) {
            workgroupBarrier();
#for L in LOADS
            put(0u, lane, ${L}u * WG, fetch(batch, row0, column0, k, end, lane, ${L}u * WG), lower);
#endfor
            workgroupBarrier();
#for H in 1
#insert "shared/blocks_step"
#endfor
        }
    }

#include "shared/matrix_sums"
}
