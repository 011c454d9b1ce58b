// Where the sums of a product go: `put_sum(at, sum)`, to element `at` of the result or of its parts.
//
// Defines: SUMS    whole, to the epilogue, or parts, to a buffer of parts which another kernel adds up
//          SUMS_AT the binding of parts

#if SUMS == whole
#include "shared/epilogue"

fn put_sum(at: u32, sum: f32) {
    store(at, sum);
}
#else
@group(0) @binding(${SUMS_AT}) var<storage, read_write> parts: array<f32>;

fn put_sum(at: u32, sum: f32) {
    parts[at] = sum;
}
#endif
