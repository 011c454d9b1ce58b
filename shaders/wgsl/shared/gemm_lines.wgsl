// The product of shared/gemm on matrix units, of operands that are read in lines of eight, along the reduction or across it, rounded
// to f16 on their way through workgroup memory, scaled by powers of two (shared/scales); the sums are scaled back. Instead of blocks,
// the kernel says
//   fn load_a(b: u32, i: u32, k: u32, end: u32) -> Line   k.. of row i (A_ALONG k), or rows i.. of column k (A_ALONG row)
//   fn load_b(b: u32, k: u32, j: u32, end: u32) -> Line   k.. of column j (B_ALONG k), or columns j.. of row k
// What they start at is a multiple of 8. Neighbouring invocations load lines beside each other, of neighbouring rows, columns or k.
//
// Defines: those of shared/matrix_units
//          LOADS  lines that an invocation loads, (BM + BN)·BK/(8·SUBGROUP·SM·SN)

#include "shared/matrix_units"
#include "shared/line"

const LOADS_A: u32 = BM * BK / 8u;
// Lines of a tile beside each other, and the distance of the next in groups of four, 16 bytes more than they have elements, so that
// neighbours lie in different banks.
#if A_ALONG == k
const BESIDE_A: u32 = BM;
const PITCH_A: u32 = BK / 4u + 2u;
#else
const BESIDE_A: u32 = BK;
const PITCH_A: u32 = BM / 4u + 2u;
#endif
#if B_ALONG == k
const BESIDE_B: u32 = BN;
const PITCH_B: u32 = BK / 4u + 2u;
#else
const BESIDE_B: u32 = BK;
const PITCH_B: u32 = BN / 4u + 2u;
#endif
const HALF_A: u32 = BESIDE_A * PITCH_A;
const HALF_B: u32 = BESIDE_B * PITCH_B;

var<workgroup> tile_a: array<vec4<f16>, HALVES * HALF_A>;
var<workgroup> tile_b: array<vec4<f16>, HALVES * HALF_B>;

/// Line number `at` of the step at k0, first those of a.
fn fetch(b: u32, row0: u32, column0: u32, k0: u32, end: u32, at: u32) -> Line {
    if at < LOADS_A {
#if A_ALONG == k
        return load_a(b, row0 + at % BESIDE_A, k0 + at / BESIDE_A * 8u, end);
#else
        return load_a(b, row0 + at / BESIDE_A * 8u, k0 + at % BESIDE_A, end);
#endif
    }
    let of_b = at - LOADS_A;
#if B_ALONG == k
    return load_b(b, k0 + of_b / BESIDE_B * 8u, column0 + of_b % BESIDE_B, end);
#else
    return load_b(b, k0 + of_b % BESIDE_B, column0 + of_b / BESIDE_B * 8u, end);
#endif
}

/// The largest finite magnitudes that a line adds to a and b.
fn magnitudes(at: u32, line: Line) -> vec2<f32> {
    return select(vec2(0.0, finite_magnitude(line)), vec2(finite_magnitude(line), 0.0), at < LOADS_A);
}

/// Stores a line; returns the largest magnitude stored.
fn put(half: u32, at: u32, line: Line, scale: vec2<f32>) -> f32 {
    let stored = scaled(line, select(scale.y, scale.x, at < LOADS_A));
    if at < LOADS_A {
        let place = half * HALF_A + at % BESIDE_A * PITCH_A + at / BESIDE_A * 2u;
        tile_a[place] = vec4<f16>(stored.first);
        tile_a[place + 1u] = vec4<f16>(stored.second);
        return magnitude(stored);
    }
    let of_b = at - LOADS_A;
    let place = half * HALF_B + of_b % BESIDE_B * PITCH_B + of_b / BESIDE_B * 2u;
    tile_b[place] = vec4<f16>(stored.first);
    tile_b[place + 1u] = vec4<f16>(stored.second);
    return magnitude(stored);
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
    let first_${L} = fetch(batch, row0, column0, begin, end, lane + ${L}u * WG);
    held = max(held, magnitudes(lane + ${L}u * WG, first_${L}));
#endfor
    var exponents = exponents_of_block(lane, held);
    var scale = powers(exponents);
#for L in LOADS
    put(0u, lane + ${L}u * WG, first_${L}, scale);
#endfor
    workgroupBarrier();
    for (var round = 0u; round < ROUNDS; round += 1u) {
#for H in HALVES
        // After the last step, the last once more: loads that depend on nothing can be moved to where they cost least.
        let k_${H} = begin + min(round * HALVES + ${H}u + 1u, ROUNDS * HALVES - 1u) * BK;
#for L in LOADS
        let next_${H}_${L} = fetch(batch, row0, column0, k_${H}, end, lane + ${L}u * WG);
#endfor
#for U in STEPS
        // Named, because naga's SPIR-V writer does not take them inside of the calls.
#for I in FM
#if A_ALONG == k
        let at_a_${H}_${U}_${I} = ${H}u * HALF_A + 16u * (y + ${I}u) * PITCH_A + ${U}u * 4u;
        let a_${H}_${U}_${I} = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[at_a_${H}_${U}_${I}], PITCH_A);
#else
        let at_a_${H}_${U}_${I} = ${H}u * HALF_A + ${U}u * 16u * PITCH_A + 4u * (y + ${I}u);
        let a_${H}_${U}_${I} = coopLoad<coop_mat16x16<f16, A>>(&tile_a[at_a_${H}_${U}_${I}], PITCH_A);
#endif
#endfor
#for J in FN
#if B_ALONG == k
        let at_b_${H}_${U}_${J} = ${H}u * HALF_B + 16u * (x + ${J}u) * PITCH_B + ${U}u * 4u;
        let b_${H}_${U}_${J} = coopLoad<coop_mat16x16<f16, B>>(&tile_b[at_b_${H}_${U}_${J}], PITCH_B);
#else
        let at_b_${H}_${U}_${J} = ${H}u * HALF_B + ${U}u * 16u * PITCH_B + 4u * (x + ${J}u);
        let b_${H}_${U}_${J} = coopLoadT<coop_mat16x16<f16, B>>(&tile_b[at_b_${H}_${U}_${J}], PITCH_B);
#endif
#for I in FM
        sum_${I}_${J} = coopMultiplyAdd(a_${H}_${U}_${I}, b_${H}_${U}_${J}, sum_${I}_${J});
#endfor
#endfor
#endfor
#if HALVES == 1
        workgroupBarrier();
#endif
        let half_${H} = (${H}u + 1u) % HALVES;
        var stored_${H} = 0.0;
#for L in LOADS
        stored_${H} = max(stored_${H}, put(half_${H}, lane + ${L}u * WG, next_${H}_${L}, scale));
#endfor
        note(half_${H}, stored_${H});
        workgroupBarrier();
        if too_large[half_${H}] != 0u {
            var held = vec2<f32>();
#for L in LOADS
            held = max(held, magnitudes(lane + ${L}u * WG, next_${H}_${L}));
#endfor
            let lower = min(exponents, exponents_of_block(lane, held));
            let by = change(exponents, lower);
#for I in FM
#for J in FN
            sum_${I}_${J} = sum_${I}_${J} * by.x * by.y;
#endfor
#endfor
            exponents = lower;
            scale = powers(exponents);
#for L in LOADS
            put(half_${H}, lane + ${L}u * WG, next_${H}_${L}, scale);
#endfor
            workgroupBarrier();
        }
#endfor
    }

#include "shared/matrix_sums"
}
