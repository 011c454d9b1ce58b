// The product of shared/gemm on matrix units, of operands that are read in lines of eight, along the reduction or across it, rounded
// to f16 on their way through workgroup memory, scaled by powers of two (shared/scales); the sums are scaled back. Instead of blocks,
// the kernel says
//   fn load_a(b: u32, i: u32, k: u32, end: u32) -> FullLine   k.. of row i (A_ALONG k): weights
//   fn load_a(b: u32, i: u32, k: u32, end: u32) -> Line       rows i.. of column k (A_ALONG row): channels of a pixel
//   fn load_b(b: u32, k: u32, j: u32, end: u32) -> Line       k.. of column j (B_ALONG k), or columns j.. of row k
// What they start at is a multiple of 8.
//
// Defines: those of shared/matrix_units, HALVES being 1
//          LOADS_A lines of a that an invocation loads, BM·BK/8/(SUBGROUP·SM·SN)
//          LOADS_B lines of b, BN·BK/8/(SUBGROUP·SM·SN)

#include "shared/matrix_units"
#include "shared/line"

#include "shared/lines_tile"

// Of a: where line `at` is in a tile (its row or k, and its eight of the other), the line of the step at k0, and what is in
// it.
#if A_ALONG == k
fn place_a(at: u32) -> vec2<u32> {
    return vec2(at % BM, at / BM);
}

fn fetch_a(b: u32, row0: u32, k0: u32, end: u32, place: vec2<u32>) -> FullLine {
    return load_a(b, row0 + place.x, k0 + place.y * 8u, end);
}

fn eight_of_a(line: FullLine) -> Eight {
    return eight_of_full(line);
}
#else
fn place_a(at: u32) -> vec2<u32> {
    return line_at(at, BK, BM / 8u);
}

fn fetch_a(b: u32, row0: u32, k0: u32, end: u32, place: vec2<u32>) -> Line {
    return load_a(b, row0 + place.y * 8u, k0 + place.x, end);
}

fn eight_of_a(line: Line) -> Eight {
    return eight_of_line(line);
}
#endif

// The same of b.
#if B_ALONG == k
fn place_b(at: u32) -> vec2<u32> {
    return line_at(at, BN, BK / 8u);
}

fn fetch_b(b: u32, column0: u32, k0: u32, end: u32, place: vec2<u32>) -> Line {
    return load_b(b, k0 + place.y * 8u, column0 + place.x, end);
}
#else
fn place_b(at: u32) -> vec2<u32> {
    return line_at(at, BK, BN / 8u);
}

fn fetch_b(b: u32, column0: u32, k0: u32, end: u32, place: vec2<u32>) -> Line {
    return load_b(b, k0 + place.x, column0 + place.y * 8u, end);
}
#endif

/// Stores a line; returns the largest magnitude stored.
fn put_a(place: vec2<u32>, x: Eight, scale: f32) -> f32 {
    let stored = scaled(x, scale);
    let at = place.x * PITCH_A + place.y * 2u;
    tile_a[at] = vec4<f16>(stored.first);
    tile_a[at + 1u] = vec4<f16>(stored.second);
    return magnitude(stored);
}

fn put_b(place: vec2<u32>, x: Eight, scale: f32) -> f32 {
    let stored = scaled(x, scale);
    let at = place.x * PITCH_B + place.y * 2u;
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
    var held = vec2<f32>();
#for L in LOADS_A
    let place_a_${L} = place_a(lane + ${L}u * WG);
    let a_${L} = fetch_a(batch, row0, begin, end, place_a_${L});
    held.x = max(held.x, finite_magnitude(eight_of_a(a_${L})));
#endfor
#for L in LOADS_B
    let place_b_${L} = place_b(lane + ${L}u * WG);
    let b_${L} = fetch_b(batch, column0, begin, end, place_b_${L});
    held.y = max(held.y, finite_magnitude(eight_of_line(b_${L})));
#endfor
    var exponents = exponents_of_block(lane, held);
    var scale = powers(exponents);
#for L in LOADS_A
    put_a(place_a_${L}, eight_of_a(a_${L}), scale.x);
#endfor
#for L in LOADS_B
    put_b(place_b_${L}, eight_of_line(b_${L}), scale.y);
#endfor
    workgroupBarrier();
    for (var round = 0u; round < ROUNDS; round += 1u) {
        // After the last step, the last once more: loads that depend on nothing can be moved to where they cost least.
        let k = begin + min(round + 1u, ROUNDS - 1u) * BK;
#for L in LOADS_A
        let next_a_${L} = fetch_a(batch, row0, k, end, place_a_${L});
#endfor
#for L in LOADS_B
        let next_b_${L} = fetch_b(batch, column0, k, end, place_b_${L});
#endfor
#insert "shared/lines_step"
        workgroupBarrier();
        var stored = 0.0;
#for L in LOADS_A
        stored = max(stored, put_a(place_a_${L}, eight_of_a(next_a_${L}), scale.x));
#endfor
#for L in LOADS_B
        stored = max(stored, put_b(place_b_${L}, eight_of_line(next_b_${L}), scale.y));
#endfor
        note(0u, stored);
        workgroupBarrier();
        if too_large[0] != 0u {
            var held = vec2<f32>();
#for L in LOADS_A
            held.x = max(held.x, finite_magnitude(eight_of_a(next_a_${L})));
#endfor
#for L in LOADS_B
            held.y = max(held.y, finite_magnitude(eight_of_line(next_b_${L})));
#endfor
#insert "shared/lower_scales"
#for L in LOADS_A
            put_a(place_a_${L}, eight_of_a(next_a_${L}), scale.x);
#endfor
#for L in LOADS_B
            put_b(place_b_${L}, eight_of_line(next_b_${L}), scale.y);
#endfor
            workgroupBarrier();
        }
    }

#include "shared/matrix_sums"
}
