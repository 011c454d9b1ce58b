// Attention: y[b,i,e] = Σ_j w[b,i,j]·v[b,j,e] with w[b,i,·] = softmax(SCALE·q[b,i,·]·k[b,·,·]ᵀ + bias), in one pass
// over the keys. Weights are relative to the largest score so far, and sums are scaled down when a larger one comes
// (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al., "FlashAttention", 2022). The
// logarithm of Σ_j exp(score) is lse[b,i,0] + lse[b,i,1]: the largest score, and the rest. A query that sees no key
// gets y = 0 and lse = (0, 0).
//
// Bindings: q, key, value, bias where there is one → y[B,L,E] by its epilogue, lse[B,L,2]. A workgroup computes ROWS
// queries, and 4·FOURS of the columns of y. Workgroups: BATCH·⌈L/ROWS⌉·⌈E/(4·FOURS)⌉.
//
// Defines: those of shared/attention
//          LSE_AT    the binding of lse

#include "shared/epilogue"

@group(0) @binding(0) var<storage, read> q: array<${Q_ELEM}>;
@group(0) @binding(1) var<storage, read> key: array<${K_ELEM}>;
@group(0) @binding(2) var<storage, read> value: array<${V_ELEM}>;
#if BIAS == 1
@group(0) @binding(3) var<storage, read> bias: array<f32>;
#endif
@group(0) @binding(${LSE_AT}) var<storage, read_write> lse: array<f32>;

#include "shared/attention"

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let id = workgroup_index(workgroup, workgroups);
    if id >= BATCH * BLOCKS * PARTS {
        return;
    }
    let turn = turn(id / PARTS, BLOCKS);
    let b = turn.x;
    let first = (BLOCKS - 1u - turn.y) * ROWS;
    let column = id % PARTS * FOURS;
    let at = position(lane);

    var sums = array<vec4<f32>, ROWS_EACH * EACH>();
    // By groups of four rows: the largest score so far, and the invocation's share of the sum of weights.
    var peak: array<vec4<f32>, HEIGHT>;
    var mass: array<vec4<f32>, HEIGHT>;
#for H in HEIGHT
    peak[${H}] = vec4(negative_infinity());
#endfor
#if CAUSAL == 1
    let end = min(S, max(first + ROWS + S, L) - L);
#else
    let end = S;
#endif
    var of_rows = q_part(b, first, 0u, ROWS, DEPTH, lane);
    var of_columns = k_part(b, 0u, 0u, TILE, DEPTH, lane);
    for (var start = 0u; start < end; start += TILE) {
        var scores = array<vec4<f32>, ROWS_EACH * WIDTH>();
        var values: array<vec4<f32>, LOADS>;
        for (var d = 0u; d < (D + 3u) / 4u; d += DEPTH) {
            put(ROW_CHUNK, of_rows, ROWS, DEPTH, lane);
            put(COLUMN_CHUNK, of_columns, TILE, DEPTH, lane);
            workgroupBarrier();
            if d + DEPTH < (D + 3u) / 4u {
                of_rows = q_part(b, first, d + DEPTH, ROWS, DEPTH, lane);
                of_columns = k_part(b, start, d + DEPTH, TILE, DEPTH, lane);
            } else {
                values = v_part(b, start, column, TERMS, FOURS, lane);
            }
            add_products(&scores, fours_from(d, D), at);
            workgroupBarrier();
        }
#for W in WIDTH
#for H in HEIGHT
#for R in 4
        {
            let row = &scores[${W}u * ROWS_EACH + ${H}u * 4u + ${R}u];
            let i = first + at.y * ROWS_EACH + ${H}u * 4u + ${R}u;
#for C in 4
            (*row)[${C}] = score(b, i, start + column_of(at, ${W}u) + ${C}u, (*row)[${C}]);
#endfor
        }
#endfor
#endfor
#endfor
        if !all_visible(first, ROWS, start, TILE) {
#for W in WIDTH
#for H in HEIGHT
#for R in 4
#for C in 4
            if !is_visible(first + at.y * ROWS_EACH + ${H}u * 4u + ${R}u, start + column_of(at, ${W}u) + ${C}u) {
                scores[${W}u * ROWS_EACH + ${H}u * 4u + ${R}u][${C}] = negative_infinity();
            }
#endfor
#endfor
#endfor
#endfor
        }
        var largest = peak;
#for H in HEIGHT
#for R in 4
#for W in WIDTH
        {
            let row = scores[${W}u * ROWS_EACH + ${H}u * 4u + ${R}u];
            let pair = max(row.xy, row.zw);
            largest[${H}][${R}] = max(largest[${H}][${R}], max(pair.x, pair.y));
        }
#endfor
#endfor
        memory[(at.y * HEIGHT + ${H}u) * SIDE + at.x] = largest[${H}];
#endfor
        workgroupBarrier();
        for (var other = 0u; other < SIDE; other += 4u) {
#for H in HEIGHT
            let others_${H} = (at.y * HEIGHT + ${H}u) * SIDE + other;
            let pair_${H} = max(memory[others_${H}], memory[others_${H} + 1u]);
            let next_${H} = max(memory[others_${H} + 2u], memory[others_${H} + 3u]);
            largest[${H}] = max(largest[${H}], max(pair_${H}, next_${H}));
#endfor
        }
#for H in HEIGHT
        // Until a key is visible, the largest score is −∞, and weights are relative to 0.
        let base_${H} = select(largest[${H}], vec4(0.0), bitcast<vec4<u32>>(largest[${H}]) == vec4(0xff800000u));
        let shrink_${H} = exp(peak[${H}] - base_${H});
        peak[${H}] = largest[${H}];
        mass[${H}] *= shrink_${H};
#for R in 4
#for W in WIDTH
        {
            let row = &scores[${W}u * ROWS_EACH + ${H}u * 4u + ${R}u];
            *row = exp(*row - base_${H}[${R}]);
            mass[${H}][${R}] += dot(*row, vec4(1.0));
        }
#endfor
#for N in EACH
        sums[${N}u * ROWS_EACH + ${H}u * 4u + ${R}u] *= shrink_${H}[${R}];
#endfor
#endfor
#endfor
        // Other invocations may still read the maxima, which weights and values overwrite.
        workgroupBarrier();
        for (var j = 0u; j < TILE; j += TERMS) {
            put_weights(&scores, j, at);
            put(TERM_CHUNK, values, TERMS, FOURS, lane);
            workgroupBarrier();
            if j + TERMS < TILE {
                values = v_part(b, start + j + TERMS, column, TERMS, FOURS, lane);
            } else {
                of_rows = q_part(b, first, 0u, ROWS, DEPTH, lane);
                of_columns = k_part(b, start + TILE, 0u, TILE, DEPTH, lane);
            }
            add_weighted(&sums, at);
            workgroupBarrier();
        }
    }
#if SHARED_SUMS == 1
    join_shares(&sums, at);
#endif
#for H in HEIGHT
    memory[(at.y * HEIGHT + ${H}u) * SIDE + at.x] = mass[${H}];
#endfor
    workgroupBarrier();
    var total: array<vec4<f32>, HEIGHT>;
    for (var other = 0u; other < SIDE; other++) {
#for H in HEIGHT
        total[${H}] += memory[(at.y * HEIGHT + ${H}u) * SIDE + other];
#endfor
    }
#for H in HEIGHT
    // The weight of the largest score is 1, so only a query that sees no key has no mass. Its sums are 0.
    total[${H}] = select(total[${H}], vec4(1.0), bitcast<vec4<u32>>(total[${H}]) == vec4(0u));
#endfor
#for R in ROWS_EACH
    {
        let i = first + at.y * ROWS_EACH + ${R}u;
        if i < L && at.x < FOURS {
#for N in EACH
#for C in 4
            {
                let e = (column + at.x + ${N}u * SIDE) * 4u + ${C}u;
                if e < E {
                    store((b * L + i) * E + e, sums[${N}u * ROWS_EACH + ${R}u][${C}] / total[${R}u / 4u][${R}u % 4u]);
                }
            }
#endfor
#endfor
        }
        if i < L && at.x == 0u && column == 0u {
            // If no key is visible, the peak is −∞, too.
            let largest = peak[${R}u / 4u][${R}u % 4u];
            lse[(b * L + i) * 2u] = select(largest, 0.0, bitcast<u32>(largest) == 0xff800000u);
            lse[(b * L + i) * 2u + 1u] = log(total[${R}u / 4u][${R}u % 4u]);
        }
    }
#endfor
}
