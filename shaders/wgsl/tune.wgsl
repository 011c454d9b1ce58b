#include "shared/gemm"
const BATCH: u32 = ${BATCH};
const M: u32 = ${M};
const N: u32 = ${N};
const K: u32 = ${K};
@group(0) @binding(0) var<storage, read> lhs: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> rhs: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
fn load_a(b: u32, i: u32, k: u32, end: u32) -> mat4x4<f32> {
#if A_ALONG == k
    let at = ((b * M + i) * K + k) / 4u;
    return transpose(mat4x4<f32>(lhs[at], lhs[at + K / 4u], lhs[at + 2u * K / 4u], lhs[at + 3u * K / 4u]));
#else
    let at = ((b * K + k) * M + i) / 4u;
    return mat4x4<f32>(lhs[at], lhs[at + M / 4u], lhs[at + 2u * M / 4u], lhs[at + 3u * M / 4u]);
#endif
}
fn load_b(b: u32, k: u32, j: u32, end: u32) -> mat4x4<f32> {
#if B_ALONG == k
    let at = ((b * N + j) * K + k) / 4u;
    return transpose(mat4x4<f32>(rhs[at], rhs[at + K / 4u], rhs[at + 2u * K / 4u], rhs[at + 3u * K / 4u]));
#else
    let at = ((b * K + k) * N + j) / 4u;
    return mat4x4<f32>(rhs[at], rhs[at + N / 4u], rhs[at + 2u * N / 4u], rhs[at + 3u * N / 4u]);
#endif
}
fn finish(b: u32, part: u32, i: u32, j: u32, s: vec4<f32>) {
    let at = ((part * BATCH + b) * M + i) * N + j;
    if j < N { y[at] = s.x; y[at+1u] = s.y; y[at+2u] = s.z; y[at+3u] = s.w; }
}
