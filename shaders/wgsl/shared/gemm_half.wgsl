// The product of shared/gemm on matrix units, of operands that are f16 in memory already, scaled; the sums are scaled back. They are
// read in lines of eight, 16 bytes, along the reduction or across it:
//   fn load_a(b: u32, i: u32, k: u32, end: u32) -> Line   k.. of row i (A_ALONG k), or rows i.. of column k (A_ALONG row)
//   fn load_b(b: u32, k: u32, j: u32, end: u32) -> Line   k.. of column j (B_ALONG k), or columns j.. of row k
// instead of blocks; what they start at is a multiple of 8.
//
// Defines: those of shared/matrix_units
//          LOADS  lines that an invocation loads, (BM + BN)·BK/(8·SUBGROUP·SM·SN)

#include "shared/matrix_units"

alias Line = mat2x4<f16>;

const LOADS_A: u32 = BM * BK / 8u;
// Groups of four in a row of a tile, and 16 bytes more, so that neighbouring rows lie in different banks.
#if A_ALONG == k
const PITCH_A: u32 = BK / 4u + 2u;
const HALF_A: u32 = BM * PITCH_A;
#else
const PITCH_A: u32 = BM / 4u + 2u;
const HALF_A: u32 = BK * PITCH_A;
#endif
#if B_ALONG == k
const PITCH_B: u32 = BK / 4u + 2u;
const HALF_B: u32 = BN * PITCH_B;
#else
const PITCH_B: u32 = BN / 4u + 2u;
const HALF_B: u32 = BK * PITCH_B;
#endif

var<workgroup> tile_a: array<vec4<f16>, HALVES * HALF_A>;
var<workgroup> tile_b: array<vec4<f16>, HALVES * HALF_B>;

/// Line number `at` of the step at k0, first those of a.
fn fetch(b: u32, row0: u32, column0: u32, k0: u32, end: u32, at: u32) -> Line {
    if at < LOADS_A {
#if A_ALONG == k
        return load_a(b, row0 + at / (BK / 8u), k0 + at % (BK / 8u) * 8u, end);
#else
        return load_a(b, row0 + at % (BM / 8u) * 8u, k0 + at / (BM / 8u), end);
#endif
    }
    let of_b = at - LOADS_A;
#if B_ALONG == k
    return load_b(b, k0 + of_b % (BK / 8u) * 8u, column0 + of_b / (BK / 8u), end);
#else
    return load_b(b, k0 + of_b / (BN / 8u), column0 + of_b % (BN / 8u) * 8u, end);
#endif
}

fn put(half: u32, at: u32, line: Line) {
    if at < LOADS_A {
#if A_ALONG == k
        let place = half * HALF_A + at / (BK / 8u) * PITCH_A + at % (BK / 8u) * 2u;
#else
        let place = half * HALF_A + at / (BM / 8u) * PITCH_A + at % (BM / 8u) * 2u;
#endif
        tile_a[place] = line[0];
        tile_a[place + 1u] = line[1];
        return;
    }
    let of_b = at - LOADS_A;
#if B_ALONG == k
    let place = half * HALF_B + of_b / (BK / 8u) * PITCH_B + of_b % (BK / 8u) * 2u;
#else
    let place = half * HALF_B + of_b / (BN / 8u) * PITCH_B + of_b % (BN / 8u) * 2u;
#endif
    tile_b[place] = line[0];
    tile_b[place + 1u] = line[1];
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
#include "shared/matrix_tile"
#for L in LOADS
    put(0u, lane + ${L}u * WG, fetch(batch, row0, column0, begin, end, lane + ${L}u * WG));
#endfor
    workgroupBarrier();
    for (var k0 = begin; k0 < end; k0 += HALVES * BK) {
#for H in HALVES
        let more_${H} = k0 + ${H}u * BK + BK < begin + PART_K;
#for L in LOADS
        var next_${H}_${L}: Line;
#endfor
        if more_${H} {
#for L in LOADS
            next_${H}_${L} = fetch(batch, row0, column0, k0 + ${H}u * BK + BK, end, lane + ${L}u * WG);
#endfor
        }
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
        if more_${H} {
#for L in LOADS
            put((${H}u + 1u) % HALVES, lane + ${L}u * WG, next_${H}_${L});
#endfor
        }
        workgroupBarrier();
#endfor
    }

#include "shared/matrix_sums"
}
