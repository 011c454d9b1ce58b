// What convolutions as products share: their geometry, and where the sums go. The kernel that includes this says how many elements
// the result has, RESULT.
//
// Defines: SUMS    whole, to the epilogue, or parts, to a buffer parts[part,RESULT] which another kernel adds up
//          SUMS_AT the binding of parts

#include "shared/gemm"
#include "shared/conv2d"
#if SUMS == whole
#include "shared/epilogue"
#endif

/// Products: one for each group.
const BATCH: u32 = ${G};
const TAPS: u32 = KH * KW;

#if SUMS == whole
fn put_sum(at: u32, sum: f32) {
    store(at, sum);
}
#else
@group(0) @binding(${SUMS_AT}) var<storage, read_write> parts: array<f32>;

fn put_sum(at: u32, sum: f32) {
    parts[at] = sum;
}
#endif
