// A matrix product y[b,i,j] = Σ_k a[b,i,k] · b[b,k,j] in f32: one workgroup computes a tile of y, BM×BN; each of its invocations
// FM×FN blocks of 4×4 elements, which stay in registers. The operands pass through workgroup memory, BK deep, in two halves: while
// one is multiplied, the next is on its way from memory, also in blocks of 4×4.
//
// The kernel that includes this says what the operands are:
//   fn load_a(b: u32, i: u32, k: u32, end: u32) -> mat4x4<f32>   column c of the result is column k + c of rows i.. of a
//   fn load_b(b: u32, k: u32, j: u32, end: u32) -> mat4x4<f32>   column c of the result is row k + c of columns j.. of b
//       both with zeros from row ROWS, column COLUMNS and from k = end on; i, j and k are multiples of 4
//   fn finish(b: u32, part: u32, i: u32, j: u32, sums: vec4<f32>)  takes the elements j.. of row i < ROWS; j + 3 may be past COLUMNS
//   const BATCH, ROWS, COLUMNS, DEPTH   the number of products, rows of a, columns of b, terms of each sum
//
// Where PARTS > 1 the reduction is cut into so many parts, each by a workgroup of its own; `finish` gets the sum of part `part`.
//
// Workgroups: BATCH·PARTS·⌈ROWS/BM⌉·⌈COLUMNS/BN⌉ of TM·TN invocations; BM = 4·FM·TM, BN = 4·FN·TN.
//
// Defines: TM, TN         invocations down and across a tile; TN a multiple of 8, TM of 4
//          FM, FN         blocks of each, down and across
//          BK             a multiple of 4
//          LOADS          blocks that an invocation loads, (BM + BN)·BK/(16·TM·TN)
//          A_ALONG        k or row: where neighbours in a lie in memory
//          B_ALONG        k or column
//          PARTS          parts of the reduction

#include "shared/grid"

const TM: u32 = ${TM};
const TN: u32 = ${TN};
const FM: u32 = ${FM};
const FN: u32 = ${FN};
const BK: u32 = ${BK};
const PARTS: u32 = ${PARTS};
const WG: u32 = TM * TN;
const BM: u32 = 4u * FM * TM;
const BN: u32 = 4u * FN * TN;
const TILES_M: u32 = (ROWS + BM - 1u) / BM;
const TILES_N: u32 = (COLUMNS + BN - 1u) / BN;
/// Depth of a part, whole steps of BK.
const PART_K: u32 = ((DEPTH + PARTS - 1u) / PARTS + BK - 1u) / BK * BK;
// Groups of four rows (columns) of a step, and the distance of one k from the next, which is odd so that neighbours along k are
// stored into different banks.
const LINES_A: u32 = BM / 4u;
const LINES_B: u32 = BN / 4u;
const PITCH_A: u32 = LINES_A + 1u;
const PITCH_B: u32 = LINES_B + 1u;
const BLOCKS_A: u32 = LINES_A * BK / 4u;

var<workgroup> tile_a: array<vec4<f32>, 2u * BK * PITCH_A>;
var<workgroup> tile_b: array<vec4<f32>, 2u * BK * PITCH_B>;

/// Place of block number `at` in a step: its group of rows, and its group of k.
fn place_a(at: u32) -> vec2<u32> {
#if A_ALONG == k
    return vec2(at / (BK / 4u), at % (BK / 4u));
#else
    return vec2(at % LINES_A, at / LINES_A);
#endif
}

fn place_b(at: u32) -> vec2<u32> {
#if B_ALONG == k
    return vec2(at / (BK / 4u), at % (BK / 4u));
#else
    return vec2(at % LINES_B, at / LINES_B);
#endif
}

/// Block number `at` of the step at k0, first those of a.
fn fetch(b: u32, row0: u32, column0: u32, k0: u32, end: u32, at: u32) -> mat4x4<f32> {
    if at < BLOCKS_A {
        let place = place_a(at);
        return load_a(b, row0 + 4u * place.x, k0 + 4u * place.y, end);
    }
    let place = place_b(at - BLOCKS_A);
    return load_b(b, k0 + 4u * place.y, column0 + 4u * place.x, end);
}

fn put(half: u32, at: u32, block: mat4x4<f32>) {
    if at < BLOCKS_A {
        let place = place_a(at);
        let line = (half * BK + 4u * place.y) * PITCH_A + place.x;
#for C in 4
        tile_a[line + ${C}u * PITCH_A] = block[${C}];
#endfor
        return;
    }
    let place = place_b(at - BLOCKS_A);
    let line = (half * BK + 4u * place.y) * PITCH_B + place.x;
#for C in 4
    tile_b[line + ${C}u * PITCH_B] = block[${C}];
#endfor
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let tile = workgroup_index(workgroup, workgroups);
    if tile >= BATCH * PARTS * TILES_M * TILES_N {
        return;
    }
    let batch = tile / (PARTS * TILES_M * TILES_N);
    let part = tile / (TILES_M * TILES_N) % PARTS;
    let row0 = tile / TILES_N % TILES_M * BM;
    let column0 = tile % TILES_N * BN;
    // 32 invocations that run together make 4×8 of the tile: they read few lines of it.
    let x = lane / 32u % (TN / 8u) * 8u + lane % 8u;
    let y = lane / 32u / (TN / 8u) * 4u + lane / 8u % 4u;

#for I in FM
#for J in FN
#for R in 4
    var sum_${I}_${J}_${R} = vec4<f32>();
#endfor
#endfor
#endfor
    let begin = part * PART_K;
    let end = min(begin + PART_K, DEPTH);

#for L in LOADS
    put(0u, lane + ${L}u * WG, fetch(batch, row0, column0, begin, end, lane + ${L}u * WG));
#endfor
    workgroupBarrier();
    var half = 0u;
    for (var k0 = begin; k0 < end; k0 += BK) {
        let more = k0 + BK < end;
#for L in LOADS
        var next_${L}: mat4x4<f32>;
#endfor
        if more {
#for L in LOADS
            next_${L} = fetch(batch, row0, column0, k0 + BK, end, lane + ${L}u * WG);
#endfor
        }
        let lines_a = half * BK * PITCH_A + y;
        let lines_b = half * BK * PITCH_B + x;
        // Not a constant: a loop unrolled altogether would leave the instruction cache.
        let depth = min(BK, end - k0);
        for (var step = 0u; step < depth; step += ${UNROLL}u) {
#for U in UNROLL
            let line_a_${U} = lines_a + (step + ${U}u) * PITCH_A;
            let line_b_${U} = lines_b + (step + ${U}u) * PITCH_B;
#for I in FM
            let a_${U}_${I} = tile_a[line_a_${U} + ${I}u * TM];
#endfor
#for J in FN
            let b_${U}_${J} = tile_b[line_b_${U} + ${J}u * TN];
#endfor
#for I in FM
#for J in FN
#for R in 4
            sum_${I}_${J}_${R} = fma(vec4<f32>(a_${U}_${I}[${R}]), b_${U}_${J}, sum_${I}_${J}_${R});
#endfor
#endfor
#endfor
#endfor
        }
        half = 1u - half;
        if more {
#for L in LOADS
            put(half, lane + ${L}u * WG, next_${L});
#endfor
        }
        workgroupBarrier();
    }

#for I in FM
#for R in 4
    let row_${I}_${R} = row0 + (${I}u * TM + y) * 4u + ${R}u;
    if row_${I}_${R} < ROWS {
#for J in FN
        finish(batch, part, row_${I}_${R}, column0 + (${J}u * TN + x) * 4u, sum_${I}_${J}_${R});
#endfor
    }
#endfor
#endfor
}
