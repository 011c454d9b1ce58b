// The product of shared/gemm on matrix units, of operands that are read in lines of eight, along the reduction or across it, rounded
// to f16 on their way through workgroup memory, scaled by powers of two (shared/scales); the sums are scaled back. Instead of blocks,
// the kernel says
//   fn load_a(b: u32, i: u32, k: u32, end: u32) -> Line   k.. of row i (A_ALONG k), or rows i.. of column k (A_ALONG row)
//   fn load_b(b: u32, k: u32, j: u32, end: u32) -> Line   k.. of column j (B_ALONG k), or columns j.. of row k
// What they start at is a multiple of 8. Neighbouring invocations load lines beside each other, of neighbouring rows, columns or k.
//
// Defines: those of shared/matrix_units, HALVES being 1
//          LOADS  lines that an invocation loads, (BM + BN)·BK/(8·SUBGROUP·SM·SN)

#include "shared/matrix_units"
#include "shared/line"

#include "shared/lines_tile"

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
fn put(at: u32, line: Line, scale: vec2<f32>) -> f32 {
    let stored = scaled(line, select(scale.y, scale.x, at < LOADS_A));
    if at < LOADS_A {
        let place = at % BESIDE_A * PITCH_A + at / BESIDE_A * 2u;
        tile_a[place] = vec4<f16>(stored.first);
        tile_a[place + 1u] = vec4<f16>(stored.second);
        return magnitude(stored);
    }
    let of_b = at - LOADS_A;
    let place = of_b % BESIDE_B * PITCH_B + of_b / BESIDE_B * 2u;
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
    put(lane + ${L}u * WG, first_${L}, scale);
#endfor
    workgroupBarrier();
    for (var round = 0u; round < ROUNDS; round += 1u) {
        // After the last step, the last once more: loads that depend on nothing can be moved to where they cost least.
        let k = begin + min(round + 1u, ROUNDS - 1u) * BK;
#for L in LOADS
        let next_${L} = fetch(batch, row0, column0, k, end, lane + ${L}u * WG);
#endfor
#insert "shared/lines_step"
        workgroupBarrier();
        var stored = 0.0;
#for L in LOADS
        stored = max(stored, put(lane + ${L}u * WG, next_${L}, scale));
#endfor
        note(0u, stored);
        workgroupBarrier();
        if too_large[0] != 0u {
            var held = vec2<f32>();
#for L in LOADS
            held = max(held, magnitudes(lane + ${L}u * WG, next_${L}));
#endfor
#insert "shared/lower_scales"
#for L in LOADS
            put(lane + ${L}u * WG, next_${L}, scale);
#endfor
            workgroupBarrier();
        }
    }

#include "shared/matrix_sums"
}
