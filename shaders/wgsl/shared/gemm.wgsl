// A matrix product y[b,i,j] = Σ_k a[b,i,k] · b[b,k,j]: one workgroup computes a tile of y, BM×BN. The operands pass through
// workgroup memory, BK deep at a time, in blocks of 4×4; while those of one step are multiplied, the next are on their way.
//
// The kernel that includes this says what the operands are:
//   fn load_a(b: u32, i: u32, k: u32, end: u32) -> mat4x4<f32>   column c of the result is column k + c of rows i.. of a
//   fn load_b(b: u32, k: u32, j: u32, end: u32) -> mat4x4<f32>   column c of the result is row k + c of columns j.. of b
//       both with zeros where `is_row`, `is_column` and `is_term` say no; i, j and k are multiples of 4. A load that depends on a
//       condition waits for it, and the next for that: better to read element 0 and select
//   fn finish(b: u32, part: u32, i: u32, j: u32, sums: vec4<f32>)  takes the elements j.. of row i < ROWS; j + 3 may be past COLUMNS
//   const BATCH, ROWS, COLUMNS, DEPTH   the number of products, rows of a, columns of b, terms of each sum
// It includes this first, since what it enables must come first.
//
// Where PARTS > 1 the reduction is cut into so many parts, each by a workgroup of its own; `finish` gets the sum of part `part`.
//
// Workgroups: BATCH·PARTS·⌈ROWS/BM⌉·⌈COLUMNS/BN⌉.
//
// Defines: UNITS    scalar, matrix or half; the further defines are those of shared/gemm_scalar, shared/gemm_matrix or
//                   shared/gemm_half, which reads its operands in another way
//          A_ALONG  k or row: where neighbours in a lie in memory
//          B_ALONG  k or column
//          PARTS    parts of the reduction

#if UNITS == scalar
#include "shared/gemm_scalar"
#else
enable f16;
enable wgpu_cooperative_matrix;

#if UNITS == matrix
#include "shared/gemm_matrix"
#else
#include "shared/gemm_half"
#endif
#endif

const PARTS: u32 = ${PARTS};
const TILES_M: u32 = (ROWS + BM - 1u) / BM;
const TILES_N: u32 = (COLUMNS + BN - 1u) / BN;
/// Depth of a part, whole rounds of the loop.
const PART_K: u32 = ((DEPTH + PARTS - 1u) / PARTS + ROUND - 1u) / ROUND * ROUND;
// Where the extents are multiples of the tile's, nothing needs to be asked.
const WHOLE_ROWS: bool = ROWS % BM == 0u;
const WHOLE_COLUMNS: bool = COLUMNS % BN == 0u;
const WHOLE_DEPTH: bool = PARTS * PART_K == DEPTH;

fn is_row(i: u32) -> bool {
    return WHOLE_ROWS || i < ROWS;
}

fn is_column(j: u32) -> bool {
    return WHOLE_COLUMNS || j < COLUMNS;
}

fn is_term(k: u32, end: u32) -> bool {
    return WHOLE_DEPTH || k < end;
}

#if UNITS == half
#else
// Groups of four rows (columns) of a step.
const LINES_A: u32 = BM / 4u;
const LINES_B: u32 = BN / 4u;
const BLOCKS_A: u32 = LINES_A * BK / 4u;

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
#endif
