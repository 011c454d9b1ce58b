// y[b,i,j] = Σ_k a[b,i,k] · b[b,k,j] on matrix units, y contiguous, of operands that are packed in f16; see shared/gemm_packed.
//
// Bindings: a, b as shared/packed says, [BATCH,K/8,M,8] and [BATCH,K/8,N,8] where lines lie along k, else [BATCH,M/8,K,8] and
// [BATCH,N/8,K,8]; the exponents of both, those of a batch the same → y by its epilogue (SUMS whole), or parts[part,b,i,j] (SUMS
// parts).
//
// Defines: those of shared/gemm with UNITS packed
//          SUMS          whole or parts
//          SUMS_AT       the binding of parts
//          BATCH, M, N, K   those along lines multiples of 8

#include "shared/gemm"
#include "shared/gemm_result"

const BATCH: u32 = ${BATCH};
const ROWS: u32 = ${M};
const COLUMNS: u32 = ${N};
const DEPTH: u32 = ${K};

@group(0) @binding(0) var<storage, read> a: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> b: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> a_exponents: array<i32>;
@group(0) @binding(3) var<storage, read> b_exponents: array<i32>;
