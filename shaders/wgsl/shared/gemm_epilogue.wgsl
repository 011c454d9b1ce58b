// Where the sums of a product go: `finish(epilogue(at), sum)`, to element `at` of the result or of its parts; see shared/epilogue.
//
// Defines: SUMS    whole, to the epilogue, or parts, to a buffer of parts which another kernel adds up
//          SUMS_AT the binding of parts

#if SUMS == whole
#include "shared/epilogue"
#else
@group(0) @binding(${SUMS_AT}) var<storage, read_write> parts: array<f32>;

struct Epilogue {
    at: u32,
}

fn epilogue(at: u32) -> Epilogue {
    return Epilogue(at);
}

fn finish(e: Epilogue, sum: f32) {
    parts[e.at] = sum;
}
#endif
