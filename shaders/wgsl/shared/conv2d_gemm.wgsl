// What convolutions as products share: their geometry, and where the sums go. The kernel that includes this says how
// many elements the result has, RESULT, by which its parts follow each other.

#include "shared/gemm"
#include "shared/conv2d"
#include "shared/gemm_epilogue"

/// Products: one for each group.
const BATCH: u32 = ${G};
const TAPS: u32 = KH * KW;
