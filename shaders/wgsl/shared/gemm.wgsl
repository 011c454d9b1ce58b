// A matrix product y[b,i,j] = Σ_k a[b,i,k] · b[b,k,j]: one workgroup computes a tile of y, BM×BN. The operands pass
// through workgroup memory, BK deep at a time, in blocks of 4×4; while those of one step are multiplied, the next are
// on their way.
//
// The kernel that includes this says what the operands are: fn load_a(b: u32, i: u32, k: u32, end: u32) -> mat4x4<f32>
// column c of the result is column k + c of rows i.. of a fn load_b(b: u32, k: u32, j: u32, end: u32) -> mat4x4<f32>
// column c of the result is row k + c of columns j.. of b both with zeros where `is_row`, `is_column` and `is_term` say
// no; i, j and k are multiples of 4. A load that depends on a condition waits for it, and the next for that: better to
// read element 0 and select fn row_at(b: u32, part: u32, i: u32) -> u32, fn column_at(j: u32) -> u32 their sum is where
// shared/gemm_epilogue puts the sum of row i and column j const BATCH, ROWS, COLUMNS, DEPTH the number of products,
// rows of a, columns of b, terms of each sum It includes this first, since what it enables must come first.
//
// Where PARTS > 1 the reduction is cut into so many parts, each by a workgroup of its own.
//
// Workgroups: BATCH·PARTS·⌈ROWS/BM⌉·⌈COLUMNS/BN⌉.
//
// Defines: UNITS    scalar or matrix; the further defines are those of shared/gemm_scalar or shared/gemm_matrix
//          A_ALONG  k or row: where neighbours in a lie in memory; B_ALONG k or column
//          PARTS    parts of the reduction

#if UNITS == scalar
#include "shared/gemm_scalar"
#else
enable f16;
enable wgpu_cooperative_matrix;

#include "shared/gemm_matrix"
#endif

const PARTS: u32 = ${PARTS};
const TILES_M: u32 = (ROWS + BM - 1u) / BM;
const TILES_N: u32 = (COLUMNS + BN - 1u) / BN;
/// Depth of a part, whole rounds of the loop.
const PART_K: u32 = ((DEPTH + PARTS - 1u) / PARTS + ROUND - 1u) / ROUND * ROUND;
const ROUNDS: u32 = PART_K / ROUND;
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
