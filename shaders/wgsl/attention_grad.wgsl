// Gradients of attention. The weights w[i,j] = exp(score[i,j] − lse[i,0] − lse[i,1]) are recomputed. With
// delta[i] = Σ_e dy[i,e]·y[i,e] − dlse[i] and ds[i,j] = w[i,j]·(Σ_e dy[i,e]·v[j,e] − delta[i]):
//     OF queries: dq[i,d] = SCALE·Σ_j ds[i,j]·k[j,d]
//     OF keys:    dk[j,d] = SCALE·Σ_i ds[i,j]·q[i,d],  dv[j,e] = Σ_i w[i,j]·dy[i,e]
// (Dao, "FlashAttention-2", 2023.) GROUP heads of queries share a head of keys and values, whose gradients are sums
// over the group, one head after the other.
//
// Bindings: those of shared/attention_slopes → dq by its epilogue; or dk, dv. A workgroup computes TILE rows of the
// results, and 4·FOURS of their columns. Workgroups: BATCH·⌈L/TILE⌉·⌈D/(4·FOURS)⌉, or BATCH·⌈S/TILE⌉·⌈max(D,
// E)/(4·FOURS)⌉.
//
// Defines: those of shared/attention_slopes; ROWS is TILE, and WIDTH is 1
//          OF       queries or keys
//          GROUP    the heads of queries of a workgroup; 1 for queries
//          ROW_OF_SCORE, COLUMN_OF_SCORE, ROW_OF_SLOPE, COLUMN_OF_SLOPE
//                   the operands of scores q·kᵀ and of slopes dy·vᵀ along the rows and columns of the tile: q, k, dy, v
//                   for queries; k, q, v, dy for keys
//          RESULT_AT, SECOND_AT   for keys, the bindings of the results

#if OF == queries
#include "shared/epilogue"
#else
@group(0) @binding(${RESULT_AT}) var<storage, read_write> first_result: array<f32>;
@group(0) @binding(${SECOND_AT}) var<storage, read_write> second_result: array<f32>;
#endif

#include "shared/attention_slopes"

#if OF == queries
const LINES: u32 = L;
const COLUMNS: u32 = S;
#else
const LINES: u32 = S;
const COLUMNS: u32 = L;
#endif

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
    let entry = turn.x;
    // In a causal attention, the last queries see the most keys, and the first keys are seen by the most queries.
#if OF == queries
    let first = (BLOCKS - 1u - turn.y) * TILE;
#else
    let first = turn.y * TILE;
#endif
    let column = id % PARTS * FOURS;
    let at = position(lane);

#if OF == queries
    let b = entry;
#for R in ROWS_EACH
    let lse_${R} = lse_of(b, first + at.y * ROWS_EACH + ${R}u);
    let delta_${R} = delta_of(b, first + at.y * ROWS_EACH + ${R}u);
#endfor
#endif
    var of_slopes = array<vec4<f32>, ROWS_EACH * EACH>();
#if OF == keys
    var of_weights = array<vec4<f32>, ROWS_EACH * EACH>();
#endif
    var begin = 0u;
    var end = COLUMNS;
#if CAUSAL == 1
#if OF == queries
    end = min(S, max(first + TILE + S, L) - L);
#else
    // The first query that sees one of the keys, rounded down to whole tiles.
    begin = (max(first + L, S) - S) / TILE * TILE;
#endif
#endif
#if OF == keys
#if GROUP == 1
    let b = entry;
    {
#else
    for (var b = entry * ${GROUP}u; b < entry * ${GROUP}u + ${GROUP}u; b++) {
#endif
#endif
    var of_rows = ${ROW_OF_SCORE}_part(b, first, 0u, TILE, DEPTH, lane);
    var of_columns = ${COLUMN_OF_SCORE}_part(b, begin, 0u, TILE, DEPTH, lane);
    for (var start = begin; start < end; start += TILE) {
        var tile = array<vec4<f32>, ROWS_EACH * WIDTH>();
        for (var d = 0u; d < (D + 3u) / 4u; d += DEPTH) {
            put(ROW_CHUNK, of_rows, TILE, DEPTH, lane);
            put(COLUMN_CHUNK, of_columns, TILE, DEPTH, lane);
            workgroupBarrier();
            if d + DEPTH < (D + 3u) / 4u {
                of_rows = ${ROW_OF_SCORE}_part(b, first, d + DEPTH, TILE, DEPTH, lane);
                of_columns = ${COLUMN_OF_SCORE}_part(b, start, d + DEPTH, TILE, DEPTH, lane);
            } else {
                of_rows = ${ROW_OF_SLOPE}_part(b, first, 0u, TILE, DEPTH, lane);
                of_columns = ${COLUMN_OF_SLOPE}_part(b, start, 0u, TILE, DEPTH, lane);
            }
            add_products(&tile, fours_from(d, D), at);
            workgroupBarrier();
        }
        var slopes = array<vec4<f32>, ROWS_EACH * WIDTH>();
        for (var e = 0u; e < (E + 3u) / 4u; e += DEPTH) {
            put(ROW_CHUNK, of_rows, TILE, DEPTH, lane);
            put(COLUMN_CHUNK, of_columns, TILE, DEPTH, lane);
            workgroupBarrier();
            if e + DEPTH < (E + 3u) / 4u {
                of_rows = ${ROW_OF_SLOPE}_part(b, first, e + DEPTH, TILE, DEPTH, lane);
                of_columns = ${COLUMN_OF_SLOPE}_part(b, start, e + DEPTH, TILE, DEPTH, lane);
            }
            add_products(&slopes, fours_from(e, E), at);
            workgroupBarrier();
        }
#if OF == keys
        var terms = ${COLUMN_OF_SLOPE}_part(b, start, column, TERMS, FOURS, lane);
#else
        var terms = ${COLUMN_OF_SCORE}_part(b, start, column, TERMS, FOURS, lane);
#endif
#for C in 4
#if OF == keys
        let lse_${C} = lse_of(b, start + at.x * 4u + ${C}u);
        let delta_${C} = delta_of(b, start + at.x * 4u + ${C}u);
#endif
#for R in ROWS_EACH
        {
#if OF == queries
            let i = first + at.y * ROWS_EACH + ${R}u;
            let j = start + at.x * 4u + ${C}u;
            let weight = exp(score(b, i, j, tile[${R}][${C}]) - lse_${R}.x - lse_${R}.y);
            slopes[${R}][${C}] = weight * (slopes[${R}][${C}] - delta_${R});
#else
            let i = start + at.x * 4u + ${C}u;
            let j = first + at.y * ROWS_EACH + ${R}u;
            let weight = exp(score(b, i, j, tile[${R}][${C}]) - lse_${C}.x - lse_${C}.y);
            slopes[${R}][${C}] = weight * (slopes[${R}][${C}] - delta_${C});
            tile[${R}][${C}] = weight;
#endif
        }
#endfor
#endfor
#if OF == queries
        let are_visible = all_visible(first, TILE, start, TILE);
#else
        let are_visible = all_visible(start, TILE, first, TILE);
#endif
        if !are_visible {
#for C in 4
#for R in ROWS_EACH
#if OF == queries
            if !is_visible(first + at.y * ROWS_EACH + ${R}u, start + at.x * 4u + ${C}u) {
                slopes[${R}][${C}] = 0.0;
            }
#else
            if !is_visible(start + at.x * 4u + ${C}u, first + at.y * ROWS_EACH + ${R}u) {
                slopes[${R}][${C}] = 0.0;
                tile[${R}][${C}] = 0.0;
            }
#endif
#endfor
#endfor
        }
#if OF == keys
        for (var i = 0u; i < TILE; i += TERMS) {
            put_weights(&tile, i, at);
            put(TERM_CHUNK, terms, TERMS, FOURS, lane);
            workgroupBarrier();
            if i + TERMS < TILE {
                terms = ${COLUMN_OF_SLOPE}_part(b, start + i + TERMS, column, TERMS, FOURS, lane);
            } else {
                terms = ${COLUMN_OF_SCORE}_part(b, start, column, TERMS, FOURS, lane);
            }
            add_weighted(&of_weights, at);
            workgroupBarrier();
        }
#endif
        for (var i = 0u; i < TILE; i += TERMS) {
            put_weights(&slopes, i, at);
            put(TERM_CHUNK, terms, TERMS, FOURS, lane);
            workgroupBarrier();
            if i + TERMS < TILE {
                terms = ${COLUMN_OF_SCORE}_part(b, start + i + TERMS, column, TERMS, FOURS, lane);
            } else {
                of_rows = ${ROW_OF_SCORE}_part(b, first, 0u, TILE, DEPTH, lane);
                of_columns = ${COLUMN_OF_SCORE}_part(b, start + TILE, 0u, TILE, DEPTH, lane);
            }
            add_weighted(&of_slopes, at);
            workgroupBarrier();
        }
    }
#if OF == keys
    }
#endif
#if SHARED_SUMS == 1
    join_shares(&of_slopes, at);
#if OF == keys
    join_shares(&of_weights, at);
#endif
#endif
#for R in ROWS_EACH
    {
        let row = first + at.y * ROWS_EACH + ${R}u;
        if row < LINES && at.x < FOURS {
#for N in EACH
#for C in 4
            {
                let at = (column + at.x + ${N}u * SIDE) * 4u + ${C}u;
                if at < D {
                    let i = (entry * LINES + row) * D + at;
#if OF == queries
                    store(i, of_slopes[${N}u * ROWS_EACH + ${R}u][${C}] * ${SCALE});
#else
                    first_result[i] = of_slopes[${N}u * ROWS_EACH + ${R}u][${C}] * ${SCALE};
#endif
                }
#if OF == keys
                if at < E {
                    second_result[(entry * LINES + row) * E + at] = of_weights[${N}u * ROWS_EACH + ${R}u][${C}];
                }
#endif
            }
#endfor
#endfor
        }
    }
#endfor
}
