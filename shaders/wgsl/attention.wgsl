// y[b,i,e] = Σ_j w[b,i,j]·v[b,j,e] with w[b,i,·] = softmax(SCALE·q[b,i,·]·k[b,·,·]ᵀ + bias), in one pass over the keys: weights are taken
// relative to the largest score so far, and what was summed is scaled down when a larger one comes (Milakov and Gimelshein, "Online
// normalizer calculation for softmax", 2018; Dao et al., "FlashAttention", 2022). spread[b,i] is the logarithm of the sum of eˢᶜᵒʳᵉ.
//
// Bindings: q, key, value, bias where there is one → y[B,L,E] by its epilogue, spread[B,L]. A workgroup computes TILE queries, and TILE of
// the columns of y.
//
// Defines: WG           (TILE/4)²
//          TILE         64 or 32
//          BATCH, L, S, D, E
//          SCALE        a literal
//          CAUSAL       1: query i sees the keys up to i + S − L
//          BIAS         1: there is a bias
//          Q_BATCH, Q_ROW, Q_COL  where batch b of q begins, an expression of `b: u32`; its strides. K_…, V_…, BIAS_… the same
//          SPREAD_AT    the binding of spread

#include "shared/epilogue"

@group(0) @binding(0) var<storage, read> q: array<f32>;
@group(0) @binding(1) var<storage, read> key: array<f32>;
@group(0) @binding(2) var<storage, read> value: array<f32>;
#if BIAS == 1
@group(0) @binding(3) var<storage, read> bias: array<f32>;
#endif
@group(0) @binding(${SPREAD_AT}) var<storage, read_write> spread: array<f32>;

#include "shared/attention"

/// The largest score of each row that a column of invocations has, and later the sum of its weights.
var<workgroup> partials: array<f32, TILE * SIDE>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    const BLOCKS = (L + TILE - 1u) / TILE;
    const PARTS = (E + TILE - 1u) / TILE;
    let id = workgroup_index(workgroup, workgroups);
    let is_there = id < BATCH * BLOCKS * PARTS;
    let b = select(0u, id / (BLOCKS * PARTS), is_there);
    // The last queries of a causal attention see the most keys: they begin first.
    let first = (BLOCKS - 1u - id / PARTS % BLOCKS) * TILE;
    let column = id % PARTS * TILE;
    let ty = lane / SIDE;
    let tx = lane % SIDE;

    var sums = array<vec4<f32>, 4>();
    var peak = vec4(negative_infinity());
    var mass = vec4(0.0);
#if CAUSAL == 1
    let end = min(S, max(first + TILE + S, L) - L);
#else
    let end = S;
#endif
    for (var start = 0u; start < end; start += TILE) {
        var scores = array<vec4<f32>, 4>();
        for (var d = 0u; d < D; d += STEP) {
            for (var i = lane; i < SIDE * STEP; i += WG) {
                let row = i / STEP * 4u;
                let at = i % STEP;
                left[at * PITCH + row / 4u] = vec4(
                    q_element(b, first + row, d + at),
                    q_element(b, first + row + 1u, d + at),
                    q_element(b, first + row + 2u, d + at),
                    q_element(b, first + row + 3u, d + at),
                );
                right[at * PITCH + row / 4u] = vec4(
                    k_element(b, start + row, d + at),
                    k_element(b, start + row + 1u, d + at),
                    k_element(b, start + row + 2u, d + at),
                    k_element(b, start + row + 3u, d + at),
                );
            }
            workgroupBarrier();
            add_terms(&scores, ty, tx);
            workgroupBarrier();
        }
        for (var r = 0u; r < 4u; r++) {
            var largest = negative_infinity();
            for (var c = 0u; c < 4u; c++) {
                let i = first + ty * 4u + r;
                let j = start + tx * 4u + c;
                var element = negative_infinity();
                if is_visible(i, j) {
                    element = score(b, i, j, scores[r][c]);
                }
                scores[r][c] = element;
                largest = m_max(largest, element);
            }
            partials[(ty * 4u + r) * SIDE + tx] = largest;
        }
        workgroupBarrier();
        for (var r = 0u; r < 4u; r++) {
            var largest = peak[r];
            for (var other = 0u; other < SIDE; other++) {
                largest = m_max(largest, partials[(ty * 4u + r) * SIDE + other]);
            }
            // Where no key was visible yet, there is nothing to be relative to.
            let base = select(largest, 0.0, bitcast<u32>(largest) == 0xff800000u);
            let shrink = exp(peak[r] - base);
            peak[r] = largest;
            scores[r] = exp(scores[r] - base);
            sums[r] *= shrink;
            mass[r] = mass[r] * shrink + dot(scores[r], vec4(1.0));
        }
        put_weights(&scores, ty, tx);
        for (var j = 0u; j < TILE; j += STEP) {
            for (var i = lane; i < SIDE * STEP; i += WG) {
                let row = i / SIDE;
                let at = i % SIDE * 4u;
                right[row * PITCH + at / 4u] = vec4(
                    v_element(b, start + j + row, column + at),
                    v_element(b, start + j + row, column + at + 1u),
                    v_element(b, start + j + row, column + at + 2u),
                    v_element(b, start + j + row, column + at + 3u),
                );
            }
            workgroupBarrier();
            add_weighted(&sums, j, ty, tx);
            workgroupBarrier();
        }
    }
    for (var r = 0u; r < 4u; r++) {
        partials[(ty * 4u + r) * SIDE + tx] = mass[r];
    }
    workgroupBarrier();
    for (var r = 0u; r < 4u; r++) {
        let i = first + ty * 4u + r;
        var total = 0.0;
        for (var other = 0u; other < SIDE; other++) {
            total += partials[(ty * 4u + r) * SIDE + other];
        }
        if is_there && i < L {
            for (var c = 0u; c < 4u; c++) {
                let e = column + tx * 4u + c;
                if e < E {
                    store((b * L + i) * E + e, sums[r][c] / total);
                }
            }
            if tx == 0u && column == 0u {
                spread[b * L + i] = peak[r] + log(total);
            }
        }
    }
}
