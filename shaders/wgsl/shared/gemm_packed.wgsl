// The product of shared/gemm on matrix units, of operands that are packed in f16 (shared/packed), with lines of eight along the reduction or
// across it:
//   a[BATCH,DEPTH/8,ROWS,8] and its exponents a_exponents (A_ALONG k), or a[BATCH,ROWS/8,DEPTH,8] (A_ALONG row)
//   b[BATCH,DEPTH/8,COLUMNS,8] and b_exponents (B_ALONG k), or b[BATCH,COLUMNS/8,DEPTH,8]
//
// Defines: those of shared/matrix_units, HALVES being 1
//          LOADS  lines that an invocation loads, (BM + BN)·BK/(8·SUBGROUP·SM·SN)

#include "shared/matrix_units"
#include "shared/packed"

const LINES_A: u32 = BM * BK / 8u;
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

var<workgroup> tile_a: array<vec4<f16>, BESIDE_A * PITCH_A>;
var<workgroup> tile_b: array<vec4<f16>, BESIDE_B * PITCH_B>;

/// Eight elements, two in a word. Zeros where there is nothing, whatever was read instead.
struct Halves {
    bits: vec4<u32>,
    there: bool,
}

/// Row and k of line number `at` of a step that is read for a.
fn line_a(at: u32) -> vec2<u32> {
#if A_ALONG == k
    return vec2(at % BESIDE_A, at / BESIDE_A * 8u);
#else
    return vec2(at / BESIDE_A * 8u, at % BESIDE_A);
#endif
}

/// Column and k of one that is read for b.
fn line_b(at: u32) -> vec2<u32> {
#if B_ALONG == k
    return vec2(at % BESIDE_B, at / BESIDE_B * 8u);
#else
    return vec2(at / BESIDE_B * 8u, at % BESIDE_B);
#endif
}

/// Line number `at` of the step at `origin`, its row, column and k; first those of a.
fn fetch(f: u32, origin: vec3<u32>, end: u32, at: u32) -> Halves {
    if at < LINES_A {
        let place = origin.xz + line_a(at);
        let there = is_row(place.x) && is_term(place.y, end);
#if A_ALONG == k
        let line = select(0u, (f * DEPTH + place.y) / 8u * ROWS + place.x, there);
#else
        let line = select(0u, (f * ROWS + place.x) / 8u * DEPTH + place.y, there);
#endif
        return Halves(a[line], there);
    }
    let place = origin.yz + line_b(at - LINES_A);
    let there = is_column(place.x) && is_term(place.y, end);
#if B_ALONG == k
    let line = select(0u, (f * DEPTH + place.y) / 8u * COLUMNS + place.x, there);
#else
    let line = select(0u, (f * COLUMNS + place.x) / 8u * DEPTH + place.y, there);
#endif
    return Halves(b[line], there);
}

fn put(at: u32, line: Halves) {
    let bits = select(vec4<u32>(), line.bits, line.there);
    if at < LINES_A {
        let place = at % BESIDE_A * PITCH_A + at / BESIDE_A * 2u;
        tile_a[place] = four_of(bits.xy);
        tile_a[place + 1u] = four_of(bits.zw);
        return;
    }
    let of_b = at - LINES_A;
    let place = of_b % BESIDE_B * PITCH_B + of_b / BESIDE_B * 2u;
    tile_b[place] = four_of(bits.xy);
    tile_b[place + 1u] = four_of(bits.zw);
}

/// The exponent of the block of a in which row i and k are, or of the last one.
fn exponent_a(i: u32, k: u32) -> i32 {
    let at = vec2(min(i, ROWS - 1u), min(k, DEPTH - 1u)) / BLOCK;
#if A_ALONG == k
    return a_exponents[at.y * ((ROWS + BLOCK - 1u) / BLOCK) + at.x];
#else
    return a_exponents[at.x * ((DEPTH + BLOCK - 1u) / BLOCK) + at.y];
#endif
}

fn exponent_b(k: u32, j: u32) -> i32 {
    let at = vec2(min(j, COLUMNS - 1u), min(k, DEPTH - 1u)) / BLOCK;
#if B_ALONG == k
    return b_exponents[at.y * ((COLUMNS + BLOCK - 1u) / BLOCK) + at.x];
#else
    return b_exponents[at.x * ((DEPTH + BLOCK - 1u) / BLOCK) + at.y];
#endif
}

/// Line number `at` of the step at `origin`, brought to these powers.
fn brought(line: Halves, origin: vec3<u32>, at: u32, exponents: vec2<i32>) -> Halves {
    var by = 0;
    if at < LINES_A {
        let place = origin.xz + line_a(at);
        by = exponents.x - exponent_a(place.x, place.y);
    } else {
        let place = origin.yz + line_b(at - LINES_A);
        by = exponents.y - exponent_b(place.y, place.x);
    }
    let scale = powers(vec2(max(by, -126))).x;
    var bits = line.bits;
#for E in 4
    bits[${E}] = pack2x16float(unpack2x16float(bits[${E}]) * scale);
#endfor
    return Halves(bits, line.there);
}

/// The exponents of the first blocks of a tile.
fn first_exponents(origin: vec3<u32>) -> vec2<i32> {
    return vec2(exponent_a(origin.x, origin.z), exponent_b(origin.z, origin.y));
}

/// The least exponents of the blocks of a tile that are an invocation's to look at. Notes where they differ.
fn least_exponents(origin: vec3<u32>, first: vec2<i32>, lane: u32) -> vec2<i32> {
    const ALONG: u32 = (PART_K + BLOCK - 1u) / BLOCK;
    const OF_A: u32 = (BM + BLOCK - 1u) / BLOCK * ALONG;
    const OF_B: u32 = (BN + BLOCK - 1u) / BLOCK * ALONG;
    var least = vec2(NOTHING);
    for (var at = lane; at < OF_A + OF_B; at += WG) {
        let k = origin.z + at % ALONG * BLOCK;
        if at < OF_A {
            least.x = noted(least.x, exponent_a(origin.x + at / ALONG * BLOCK, k), first.x);
        } else {
            least.y = noted(least.y, exponent_b(k, origin.y + (at - OF_A) / ALONG * BLOCK), first.y);
        }
    }
    return least;
}

/// The lesser of two exponents; notes where the new one is another than the first, of something.
fn noted(least: i32, exponent: i32, first: i32) -> i32 {
    if exponent != first && exponent != NOTHING {
        too_large.x = 1u;
    }
    return min(least, exponent);
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) invocation: u32,
) {
#include "shared/matrix_tile"
    let origin = vec3(row0, column0, begin);
#for L in LOADS
    let first_${L} = fetch(batch, origin, end, lane + ${L}u * WG);
#endfor
    if lane == 0u {
        too_large.x = 0u;
    }
    workgroupBarrier();
    var exponents = first_exponents(origin);
    let least = least_exponents(origin, exponents, lane);
    workgroupBarrier();
    if too_large.x == 0u {
#for L in LOADS
        put(lane + ${L}u * WG, first_${L});
#endfor
        workgroupBarrier();
        for (var round = 0u; round < ROUNDS; round += 1u) {
            // After the last step, the last once more: loads that depend on nothing can be moved to where they cost least.
            let k = begin + min(round + 1u, ROUNDS - 1u) * BK;
#for L in LOADS
            let next_${L} = fetch(batch, vec3(row0, column0, k), end, lane + ${L}u * WG);
#endfor
#insert "shared/packed_step"
            workgroupBarrier();
#for L in LOADS
            put(lane + ${L}u * WG, next_${L});
#endfor
            workgroupBarrier();
        }
    } else {
        // Blocks have to be brought to one power, which hardly any tile needs.
        exponents = lowest_of_all(lane, least);
        for (var k = begin; k < end; k += BK) {
            let at = vec3(row0, column0, k);
            workgroupBarrier();
#for L in LOADS
            put(lane + ${L}u * WG, brought(fetch(batch, at, end, lane + ${L}u * WG), at, lane + ${L}u * WG, exponents));
#endfor
            workgroupBarrier();
#insert "shared/packed_step"
        }
    }

#include "shared/matrix_sums"
}
