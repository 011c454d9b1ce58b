// Where the sums of a product go: `finish(epilogue(at), sum)`, to element `at` of the result or of its parts; see
// shared/epilogue. With LINES `finish(epilogue(at), line)`, eight sums to the elements from `at` on; see
// shared/epilogue_lines.
//
// Defines: SUMS    whole, to the epilogue, or parts, to a buffer of parts which another kernel adds up
//          SUMS_AT the binding of parts

#if SUMS == whole
#if LINES
#include "shared/epilogue_lines"
#else
#include "shared/epilogue"
#endif
#else
struct Epilogue {
    at: u32,
}

fn epilogue(at: u32) -> Epilogue {
    return Epilogue(at);
}

#if LINES
#include "shared/half"

@group(0) @binding(${SUMS_AT}) var<storage, read_write> parts: array<vec4<f32>>;

fn finish(e: Epilogue, line: Eight) {
    parts[e.at / 4u] = line.first;
    parts[e.at / 4u + 1u] = line.second;
}
#else
@group(0) @binding(${SUMS_AT}) var<storage, read_write> parts: array<f32>;

fn finish(e: Epilogue, sum: f32) {
    parts[e.at] = sum;
}
#endif
#endif
