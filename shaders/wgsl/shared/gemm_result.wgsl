// How a product's sums go to a contiguous result [b,i,j], or parts[part,b,i,j]; see shared/gemm_epilogue.

#include "shared/gemm_epilogue"

const PITCH_RESULT: u32 = COLUMNS;

fn row_at(b: u32, part: u32, i: u32) -> u32 {
    return ((part * BATCH + b) * ROWS + i) * COLUMNS;
}

fn column_at(j: u32) -> u32 {
    return j;
}
