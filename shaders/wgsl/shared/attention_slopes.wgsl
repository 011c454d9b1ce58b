// Operands of the gradient of attention, for the kernels that compute scores and slopes Σ_e dy[i,e]·v[j,e] − delta[i].
//
// Bindings: q, key, value, lse[B,L,2], delta[B,L], dy[B,L,E], and bias where there is one. With JOINED, lse and
// delta are one buffer [B,L,3] (`attention_join`).
//
// Defines: those of shared/attention
//          JOINED   1: lse and delta are one buffer
//          DY_AT, BIAS_AT   the bindings of dy and of the bias
//          DY_BATCH, DY_ROW, DY_COL, DY_ELEM   of dy, as those of q

@group(0) @binding(0) var<storage, read> q: array<${Q_ELEM}>;
@group(0) @binding(1) var<storage, read> key: array<${K_ELEM}>;
@group(0) @binding(2) var<storage, read> value: array<${V_ELEM}>;
@group(0) @binding(3) var<storage, read> lse: array<f32>;
#if JOINED != 1
@group(0) @binding(4) var<storage, read> delta: array<f32>;
#endif
@group(0) @binding(${DY_AT}) var<storage, read> dy: array<${DY_ELEM}>;
#if BIAS == 1
@group(0) @binding(${BIAS_AT}) var<storage, read> bias: array<f32>;
#endif

#include "shared/attention"

fn dy_four(b: u32, i: u32, four: u32) -> vec4<f32> {
#insert load_four(dy, DY_ELEM, DY_BATCH, DY_ROW, DY_COL, L, E)
}

fn dy_part(b: u32, first: u32, four: u32, rows: u32, pitch: u32, lane: u32) -> array<vec4<f32>, LOADS> {
#insert load_part(dy_four)
}

#if JOINED == 1
const LSE_PITCH: u32 = 3u;
#else
const LSE_PITCH: u32 = 2u;
#endif

fn lse_of(b: u32, i: u32) -> vec2<f32> {
    let at = (b * L + min(i, L - 1u)) * LSE_PITCH;
    return vec2(lse[at], lse[at + 1u]);
}

fn delta_of(b: u32, i: u32) -> f32 {
#if JOINED == 1
    return lse[(b * L + min(i, L - 1u)) * LSE_PITCH + 2u];
#else
    return delta[b * L + min(i, L - 1u)];
#endif
}
