// The weights of attention, w[i,j] = exp(score[i,j] − lse[i,0] − lse[i,1]), and the gradients of its scores,
// ds[i,j] = w[i,j]·(Σ_e dy[i,e]·v[j,e] − delta[i]). Both are 0 where query i does not see key j.
//
// Bindings: those of shared/attention_slopes → weights[B,L,S], slopes[B,L,S]. A workgroup computes ROWS×TILE of both.
// Workgroups: BATCH·⌈L/ROWS⌉·⌈S/TILE⌉.
//
// Defines: those of shared/attention_slopes; FOURS, EACH, SHARED_SUMS, UNROLL_WEIGHTED and PAIRED do nothing
//          RESULT_AT, SECOND_AT   the bindings of the weights and of the slopes
//          RESULT_ELEM vec4<f32> where S is a multiple of four, else f32

@group(0) @binding(${RESULT_AT}) var<storage, read_write> weights: array<${RESULT_ELEM}>;
@group(0) @binding(${SECOND_AT}) var<storage, read_write> slopes: array<${RESULT_ELEM}>;

#include "shared/attention_slopes"

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
    let b = id / (BLOCKS * PARTS);
    let first = id / PARTS % BLOCKS * ROWS;
    let start = id % PARTS * TILE;
    let at = position(lane);
    // Hidden tiles are zeros, whatever the products are.
    let is_hidden = none_visible(first, ROWS, start);
    let score_fours = select((D + 3u) / 4u, 0u, is_hidden);
    let slope_fours = select((E + 3u) / 4u, 0u, is_hidden);

    var of_scores = array<vec4<f32>, ROWS_EACH * WIDTH>();
    var of_slopes = array<vec4<f32>, ROWS_EACH * WIDTH>();
    var rows = q_part(b, first, 0u, ROWS, DEPTH, lane);
    var columns = k_part(b, start, 0u, TILE, DEPTH, lane);
    for (var d = 0u; d < score_fours; d += DEPTH) {
        put(ROW_CHUNK, rows, ROWS, DEPTH, lane);
        put(COLUMN_CHUNK, columns, TILE, DEPTH, lane);
        workgroupBarrier();
        if d + DEPTH < (D + 3u) / 4u {
            rows = q_part(b, first, d + DEPTH, ROWS, DEPTH, lane);
            columns = k_part(b, start, d + DEPTH, TILE, DEPTH, lane);
        } else {
            rows = dy_part(b, first, 0u, ROWS, DEPTH, lane);
            columns = v_part(b, start, 0u, TILE, DEPTH, lane);
        }
        add_products(&of_scores, fours_from(d, D), at);
        workgroupBarrier();
    }
    for (var e = 0u; e < slope_fours; e += DEPTH) {
        put(ROW_CHUNK, rows, ROWS, DEPTH, lane);
        put(COLUMN_CHUNK, columns, TILE, DEPTH, lane);
        workgroupBarrier();
        if e + DEPTH < (E + 3u) / 4u {
            rows = dy_part(b, first, e + DEPTH, ROWS, DEPTH, lane);
            columns = v_part(b, start, e + DEPTH, TILE, DEPTH, lane);
        }
        add_products(&of_slopes, fours_from(e, E), at);
        workgroupBarrier();
    }
    let are_visible = all_visible(first, ROWS, start, TILE);
#for R in ROWS_EACH
    {
        let i = first + at.y * ROWS_EACH + ${R}u;
        let lse = lse_of(b, i);
        let delta = delta_of(b, i);
#for W in WIDTH
        {
            let j = start + column_of(at, ${W}u);
            let products = of_scores[${W}u * ROWS_EACH + ${R}u];
            var weight: vec4<f32>;
#for C in 4
            weight[${C}] = exp(score(b, i, j + ${C}u, products[${C}]) - lse.x - lse.y);
#endfor
            var slope = weight * (of_slopes[${W}u * ROWS_EACH + ${R}u] - delta);
            if !are_visible {
#for C in 4
                if !is_visible(i, j + ${C}u) {
                    weight[${C}] = 0.0;
                    slope[${C}] = 0.0;
                }
#endfor
            }
            let place = (b * L + i) * S + j;
#if RESULT_ELEM == vec4<f32>
            if i < L && j < S {
                weights[place / 4u] = weight;
                slopes[place / 4u] = slope;
            }
#else
#for C in 4
            if i < L && j + ${C}u < S {
                weights[place + ${C}u] = weight[${C}];
                slopes[place + ${C}u] = slope[${C}];
            }
#endfor
#endif
        }
#endfor
    }
#endfor
}
