// Gradients of attention, from the weights w[i,j] = exp(score[i,j] − spread[i,0] − spread[i,1]), which are computed
// anew, and ds[i,j] = w[i,j]·(Σ_e dy[i,e]·v[j,e] − drift[i]), where drift[i] = Σ_e dy[i,e]·y[i,e]:
//     OF queries: dq[i,d] = SCALE·Σ_j ds[i,j]·k[j,d]
//     OF keys:    dk[j,d] = SCALE·Σ_i ds[i,j]·q[i,d],  dv[j,e] = Σ_i w[i,j]·dy[i,e]
// (Dao, "FlashAttention-2", 2023.)
//
// Bindings: q, key, value, spread[B,L,2], drift[B,L], dy[B,L,E], bias where there is one → dq; or dk, dv. With JOINED,
// spread and drift are one buffer [B,L,3] (`attention_join`). A workgroup computes TILE rows of the results, and
// 4·FOURS of their columns.
//
// Defines: those of shared/attention
//          OF       queries or keys
//          ROW_OF_SCORE, COLUMN_OF_SCORE, ROW_OF_SLOPE, COLUMN_OF_SLOPE
//                   the operands of scores q·kᵀ and slopes dy·vᵀ by rows and columns of the tile: q, k, dy, v for
//                   queries; k, q, v, dy for keys
//          RESULT_AT, SECOND_AT   the bindings of the first result, and for keys of the second
//          JOINED   1: spread and drift are one buffer
//          DY_AT, BIAS_AT   the bindings of dy and of the bias
//          DY_ELEM  vec4<f32> where E is a multiple of four, else f32

@group(0) @binding(0) var<storage, read> q: array<${Q_ELEM}>;
@group(0) @binding(1) var<storage, read> key: array<${K_ELEM}>;
@group(0) @binding(2) var<storage, read> value: array<${V_ELEM}>;
@group(0) @binding(3) var<storage, read> spread: array<f32>;
#if JOINED != 1
@group(0) @binding(4) var<storage, read> drift: array<f32>;
#endif
@group(0) @binding(${DY_AT}) var<storage, read> dy: array<${DY_ELEM}>;
#if BIAS == 1
@group(0) @binding(${BIAS_AT}) var<storage, read> bias: array<f32>;
#endif
@group(0) @binding(${RESULT_AT}) var<storage, read_write> first_result: array<f32>;
#if OF == keys
@group(0) @binding(${SECOND_AT}) var<storage, read_write> second_result: array<f32>;
#endif

#include "shared/attention"

fn dy_four(b: u32, i: u32, four: u32) -> vec4<f32> {
    let row = (b * L + min(i, L - 1u)) * E;
#if DY_ELEM == vec4<f32>
    return dy[row / 4u + min(four, E / 4u - 1u)];
#else
    let k = vec4(four * 4u) + vec4(0u, 1u, 2u, 3u);
    let at = vec4(row) + min(k, vec4(E - 1u));
    return select(vec4(0.0), vec4(dy[at.x], dy[at.y], dy[at.z], dy[at.w]), k < vec4(E));
#endif
}

fn dy_part(b: u32, first: u32, four: u32, rows: u32, pitch: u32, lane: u32) -> array<vec4<f32>, LOADS> {
    var part: array<vec4<f32>, LOADS>;
#for N in LOADS
    if ${N}u * WG < rows * pitch {
        part[${N}] = dy_four(b, first + (${N}u * WG + lane) / pitch, four + (${N}u * WG + lane) % pitch);
    }
#endfor
    return part;
}

#if JOINED == 1
const SPREAD_PITCH: u32 = 3u;
#else
const SPREAD_PITCH: u32 = 2u;
#endif

fn spread_of(b: u32, i: u32) -> vec2<f32> {
    let at = (b * L + min(i, L - 1u)) * SPREAD_PITCH;
    return vec2(spread[at], spread[at + 1u]);
}

fn drift_of(b: u32, i: u32) -> f32 {
#if JOINED == 1
    return spread[(b * L + min(i, L - 1u)) * SPREAD_PITCH + 2u];
#else
    return drift[b * L + min(i, L - 1u)];
#endif
}

#if OF == queries
const ROWS: u32 = L;
const COLUMNS: u32 = S;
const WIDTH: u32 = D;
#else
const ROWS: u32 = S;
const COLUMNS: u32 = L;
const WIDTH: u32 = max(D, E);
#endif

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    const BLOCKS = (ROWS + TILE - 1u) / TILE;
    const PARTS = (WIDTH + 4u * FOURS - 1u) / (4u * FOURS);
    let id = workgroup_index(workgroup, workgroups);
    if id >= BATCH * BLOCKS * PARTS {
        return;
    }
    let b = id / (BLOCKS * PARTS);
    // The tiles with the most work begin first: in a causal attention the last queries, and the first keys.
#if OF == queries
    let first = (BLOCKS - 1u - id / PARTS % BLOCKS) * TILE;
#else
    let first = id / PARTS % BLOCKS * TILE;
#endif
    let column = id % PARTS * FOURS;
    let at = position(lane);

#if OF == queries
#for R in ROWS_EACH
    let spread_${R} = spread_of(b, first + at.y * ROWS_EACH + ${R}u);
    let drift_${R} = drift_of(b, first + at.y * ROWS_EACH + ${R}u);
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
    // The first query that sees one of the keys, in whole tiles.
    begin = (max(first + L, S) - S) / TILE * TILE;
#endif
#endif
    var of_rows = ${ROW_OF_SCORE}_part(b, first, 0u, TILE, DEPTH, lane);
    var of_columns = ${COLUMN_OF_SCORE}_part(b, begin, 0u, TILE, DEPTH, lane);
    for (var start = begin; start < end; start += TILE) {
        var tile = array<vec4<f32>, ROWS_EACH>();
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
            add_products(&tile, min(DEPTH, (D + 3u) / 4u - d), at);
            workgroupBarrier();
        }
        var slopes = array<vec4<f32>, ROWS_EACH>();
        for (var e = 0u; e < (E + 3u) / 4u; e += DEPTH) {
            put(ROW_CHUNK, of_rows, TILE, DEPTH, lane);
            put(COLUMN_CHUNK, of_columns, TILE, DEPTH, lane);
            workgroupBarrier();
            if e + DEPTH < (E + 3u) / 4u {
                of_rows = ${ROW_OF_SLOPE}_part(b, first, e + DEPTH, TILE, DEPTH, lane);
                of_columns = ${COLUMN_OF_SLOPE}_part(b, start, e + DEPTH, TILE, DEPTH, lane);
            }
            add_products(&slopes, min(DEPTH, (E + 3u) / 4u - e), at);
            workgroupBarrier();
        }
#if OF == keys
        var terms = ${COLUMN_OF_SLOPE}_part(b, start, column, TERMS, FOURS, lane);
#else
        var terms = ${COLUMN_OF_SCORE}_part(b, start, column, TERMS, FOURS, lane);
#endif
#for C in 4
#if OF == keys
        let spread_${C} = spread_of(b, start + at.x * 4u + ${C}u);
        let drift_${C} = drift_of(b, start + at.x * 4u + ${C}u);
#endif
#for R in ROWS_EACH
        {
#if OF == queries
            let i = first + at.y * ROWS_EACH + ${R}u;
            let j = start + at.x * 4u + ${C}u;
            let weight = exp(score(b, i, j, tile[${R}][${C}]) - spread_${R}.x - spread_${R}.y);
            slopes[${R}][${C}] = weight * (slopes[${R}][${C}] - drift_${R});
#else
            let i = start + at.x * 4u + ${C}u;
            let j = first + at.y * ROWS_EACH + ${R}u;
            let weight = exp(score(b, i, j, tile[${R}][${C}]) - spread_${C}.x - spread_${C}.y);
            slopes[${R}][${C}] = weight * (slopes[${R}][${C}] - drift_${C});
            tile[${R}][${C}] = weight;
#endif
        }
#endfor
#endfor
#if OF == queries
        let are_visible = all_visible(first, start);
#else
        let are_visible = all_visible(start, first);
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
#if SHARED_SUMS == 1
    join_shares(&of_slopes, at);
#if OF == keys
    join_shares(&of_weights, at);
#endif
#endif
#for R in ROWS_EACH
    {
        let row = first + at.y * ROWS_EACH + ${R}u;
        if row < ROWS && at.x < FOURS {
#for N in EACH
#for C in 4
            {
                let at = (column + at.x + ${N}u * SIDE) * 4u + ${C}u;
                if at < D {
                    first_result[(b * ROWS + row) * D + at] = of_slopes[${N}u * ROWS_EACH + ${R}u][${C}] * ${SCALE};
                }
#if OF == keys
                if at < E {
                    second_result[(b * ROWS + row) * E + at] = of_weights[${N}u * ROWS_EACH + ${R}u][${C}];
                }
#endif
            }
#endfor
#endfor
        }
    }
#endfor
}
