// Gradients of attention on matrix units, as in `attention_grad`. With w[i,j] = exp(score[i,j] − lse[i,0] − lse[i,1])
// and ds[i,j] = w[i,j]·(Σ_e dy[i,e]·v[j,e] − delta[i]), both f32 in registers and rounded to bf16 before they are
// multiplied:
//     OF queries: dq[i,d] = SCALE·Σ_j ds[i,j]·k[j,d]
//     OF keys:    dk[j,d] = SCALE·Σ_i ds[i,j]·q[i,d],  dv[j,e] = Σ_i w[i,j]·dy[i,e]
//
// Bindings: q, key, value, lse, delta, dy, bias where there is one → dq by its epilogue, by lines; or dk, dv in lines
// of bf16. A workgroup computes ROWS rows of the results. Workgroups: BATCH·⌈L/ROWS⌉, or BATCH·⌈S/ROWS⌉.
//
// Defines: those of shared/attention_bf16; STRIPS is 1
//          OF       queries or keys
//          DY_ROW, DY_FORMAT   the pitch of dy's rows, whose batches are adjacent; bf16 or full
//          DK_AT, DV_AT   OF keys: the bindings of the results

diagnostic(off, derivative_uniformity);
enable f16;
enable wgpu_cooperative_matrix;

#if OF == queries
#include "shared/epilogue_lines"
#endif
#include "shared/attention_bf16"

@group(0) @binding(0) var<storage, read> q: array<${Q_ELEM}>;
@group(0) @binding(1) var<storage, read> key: array<${K_ELEM}>;
@group(0) @binding(2) var<storage, read> value: array<${V_ELEM}>;
@group(0) @binding(3) var<storage, read> lse: array<f32>;
@group(0) @binding(4) var<storage, read> delta: array<f32>;
@group(0) @binding(5) var<storage, read> dy: array<${DY_ELEM}>;
#if BIAS == 1
@group(0) @binding(6) var<storage, read> bias: array<f32>;
#endif
#if OF == keys
@group(0) @binding(${DK_AT}) var<storage, read_write> dk: array<vec4<u32>>;
@group(0) @binding(${DV_AT}) var<storage, read_write> dv: array<vec4<u32>>;
#endif

fn dy_line(b: u32, i: u32, at: u32) -> vec4<u32> {
#insert load_line(dy, DY_FORMAT, DY_BATCH, DY_ROW, L, E)
}

fn dy_part(b: u32, first: u32, lane: u32) -> array<vec4<u32>, ${LOADS_E}> {
#insert load_part(dy_line, LOADS_E, FE)
}

/// The weight of a score: at most 1, also where the score is computed in another order than in the forward pass.
/// `peak` and `rest` are the log-sum-exp, the second as an exponent of 2.
fn weight_of(score: f32, peak: f32, rest: f32) -> f32 {
    let exponent = fma(scaled(score) - peak, LOG2E, -rest);
    // By bits, because NaN must stay.
    return exp2(select(exponent, 0.0, bitcast<u32>(exponent) - 1u < 0x7f800000u));
}

#if OF == queries
fn peak(row: u32, column: u32, x: f32, b: u32, i: u32) -> f32 {
    return lse[(b * L + min(i + row, L - 1u)) * 2u];
}

fn coop_map_peak(x: Sums, b: u32, i: u32) -> Sums {
    return x;
}

fn rest(row: u32, column: u32, x: f32, b: u32, i: u32) -> f32 {
    return lse[(b * L + min(i + row, L - 1u)) * 2u + 1u] * LOG2E;
}

fn coop_map_rest(x: Sums, b: u32, i: u32) -> Sums {
    return x;
}

fn drift(row: u32, column: u32, x: f32, b: u32, i: u32) -> f32 {
    return delta[b * L + min(i + row, L - 1u)];
}

fn coop_map_drift(x: Sums, b: u32, i: u32) -> Sums {
    return x;
}

fn weight(row: u32, column: u32, x: f32, peak: f32, rest: f32) -> f32 {
    return weight_of(x, peak, rest);
}

fn coop_map_weight(x: Sums, peak: Sums, rest: Sums) -> Sums {
    return x;
}

fn slope(row: u32, column: u32, x: f32, weight: f32, drift: f32) -> f32 {
    return weight * (x - drift);
}

fn coop_map_slope(x: Sums, weight: Sums, drift: Sums) -> Sums {
    return x;
}
#else
/// Of a tile of queries: `peak` and `rest`, and delta. Past the last query, weights are 0.
var<workgroup> statistics: array<vec4<f32>, TILE>;

/// The weight of a query, by columns, from `place` of the tile on.
fn weight(row: u32, column: u32, x: f32, place: u32) -> f32 {
    let of_query = statistics[place + column];
    return weight_of(x, of_query.x, of_query.y);
}

fn coop_map_weight(x: Sums, place: u32) -> Sums {
    return x;
}

fn slope(row: u32, column: u32, x: f32, weight: f32, place: u32) -> f32 {
    return weight * (x - statistics[place + column].z);
}

fn coop_map_slope(x: Sums, weight: Sums, place: u32) -> Sums {
    return x;
}

/// The score of a key and a query from `j` and `i` on.
fn turned(row: u32, column: u32, x: f32, b: u32, i: u32, j: u32) -> f32 {
    return visible_score(b, i + column, j + row, x);
}

fn coop_map_turned(x: Sums, b: u32, i: u32, j: u32) -> Sums {
    return x;
}
#endif

#if OF == keys
/// The end of the tiles of queries from `begin` on that must be masked for keys from `key` on. Keys past the last are
/// not stored, and queries past the last have no weight.
fn masked_to(key: u32, begin: u32) -> u32 {
#if BIAS == 1
    return L;
#elif CAUSAL == 1
    let all_see = max(key + ROWS - 1u + L, S) - S;
    return min(L, (all_see + TILE - 1u) / TILE * TILE);
#else
    return begin;
#endif
}
#endif

// The tile from `start` on: of keys, or OF keys of queries. MASKED: 0 where all queries see all keys, and there is no
// bias.
#macro step(MASKED)
        put_d(0u, of_d, lane);
        put_e(SECOND, of_e, lane);
#if OF == keys
        if lane < TILE {
            let i = b * L + min(start + lane, L - 1u);
            let rest = select(lse[i * 2u + 1u] * LOG2E, infinity(), start + lane >= L);
            statistics[lane] = vec4(lse[i * 2u], rest, delta[i], 0.0);
        }
#endif
        workgroupBarrier();
#if OF == queries
        of_d = k_part(b, start + TILE, lane);
        of_e = v_part(b, start + TILE, lane);
#else
        of_d = q_part(b, start + TILE, lane);
        of_e = dy_part(b, start + TILE, lane);
#endif
#for J in FT
        var score_${J} = Sums();
#for K in FD
        let d_at_${J}_${K} = ${J}u * 16u * PITCH_D + ${K}u * 4u;
        let d_${J}_${K} = coopLoad<Right>(&tiles[d_at_${J}_${K}], PITCH_D);
#if OF == queries
        score_${J} = coopMultiplyAdd(q_0_${K}, d_${J}_${K}, score_${J});
#else
        score_${J} = coopMultiplyAdd(k_0_${K}, d_${J}_${K}, score_${J});
#endif
#endfor
        var slope_${J} = Sums();
#for K in FE
        let e_at_${J}_${K} = SECOND + ${J}u * 16u * PITCH_E + ${K}u * 4u;
        let e_${J}_${K} = coopLoad<Right>(&tiles[e_at_${J}_${K}], PITCH_E);
#if OF == queries
        slope_${J} = coopMultiplyAdd(dy_0_${K}, e_${J}_${K}, slope_${J});
#else
        slope_${J} = coopMultiplyAdd(v_0_${K}, e_${J}_${K}, slope_${J});
#endif
#endfor
#if MASKED == 1
#if OF == queries
        score_${J} = coop_map_score(score_${J}, b, row, start + ${J}u * 16u);
#else
        score_${J} = coop_map_turned(score_${J}, b, start + ${J}u * 16u, row);
#endif
#elif SCALED == 1
        score_${J} = score_${J} * ${SCALE};
#endif
#if OF == queries
        let weight_${J} = coop_map_weight(score_${J}, peak, rest);
        let ds_${J} = coop_as_left(coop_map_slope(slope_${J}, weight_${J}, drift));
#else
        let weight_${J} = coop_map_weight(score_${J}, ${J}u * 16u);
        let ds_${J} = coop_as_left(coop_map_slope(slope_${J}, weight_${J}, ${J}u * 16u));
        let w_${J} = coop_as_left(weight_${J});
#for N in FE
        let dv_at_${J}_${N} = SECOND + ${J}u * 16u * PITCH_E + ${N}u * 4u;
        let dv_of_${J}_${N} = coopLoadT<Right>(&tiles[dv_at_${J}_${N}], PITCH_E);
        dv_${N} = coopMultiplyAdd(w_${J}, dv_of_${J}_${N}, dv_${N});
#endfor
#endif
#for N in FD
        let dx_at_${J}_${N} = ${J}u * 16u * PITCH_D + ${N}u * 4u;
        let dx_of_${J}_${N} = coopLoadT<Right>(&tiles[dx_at_${J}_${N}], PITCH_D);
        dx_${N} = coopMultiplyAdd(ds_${J}, dx_of_${J}_${N}, dx_${N});
#endfor
#endfor
        workgroupBarrier();
#endmacro

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) invocation: u32,
) {
    let lane = invocation % WG;
    let id = workgroup_index(workgroup, workgroups);
    if id >= BATCH * BLOCKS {
        return;
    }
#if CAUSAL == 1
    // Blocks with the most work run first: the last queries, and the first keys.
    let b = id % BATCH;
#if OF == queries
    let first = (BLOCKS - 1u - id / BATCH) * ROWS;
    let end = min(S, max(first + ROWS + S, L) - L);
#else
    let first = id / BATCH * ROWS;
    // The first query that sees one of the keys, rounded down to whole tiles.
    let begin = (max(first + L, S) - S) / TILE * TILE;
#endif
#else
    let b = id / BLOCKS;
    let first = id % BLOCKS * ROWS;
#if OF == queries
    let end = S;
#else
    let begin = 0u;
#endif
#endif
    let subgroup = lane / SUBGROUP;
    let strip = subgroup * 16u;
    let row = first + strip;
#if OF == queries
#insert load_strips(q, q_part, put_d, FD, PITCH_D)
#insert load_strips(dy, dy_part, put_e, FE, PITCH_E)
    let peak = coop_map_peak(Sums(), b, row);
    let rest = coop_map_rest(Sums(), b, row);
    let drift = coop_map_drift(Sums(), b, row);
#else
#insert load_strips(k, k_part, put_d, FD, PITCH_D)
#insert load_strips(v, v_part, put_e, FE, PITCH_E)
#for N in FE
    var dv_${N} = Sums();
#endfor
#endif
#for N in FD
    var dx_${N} = Sums();
#endfor
#if OF == queries
    var of_d = k_part(b, 0u, lane);
    var of_e = v_part(b, 0u, lane);
#else
    var of_d = q_part(b, begin, lane);
    var of_e = dy_part(b, begin, lane);
#endif
#if OF == queries
    let whole = visible_to(first);
    for (var start = 0u; start < whole; start += TILE) {
#insert step(0)
    }
    for (var start = whole; start < end; start += TILE) {
#insert step(1)
    }
#else
    let whole = masked_to(first, begin);
    for (var start = begin; start < whole; start += TILE) {
#insert step(1)
    }
    for (var start = whole; start < L; start += TILE) {
#insert step(0)
    }
#endif
    let begin_sums = subgroup * 16u * PITCH_SUMS;
    let member = lane % SUBGROUP;
#for N in FD
    {
        let dx = dx_${N} * ${SCALE};
        workgroupBarrier();
        coopStoreT(dx, &sums[begin_sums], PITCH_SUMS);
        workgroupBarrier();
#for A in EACH
        {
            let place = ${A}u * SUBGROUP + member;
            let i = row + place % 16u;
            let d = ${N}u * 16u + place / 16u * 8u;
            let at = begin_sums + place % 16u * PITCH_SUMS + place / 16u * 2u;
#if OF == queries
            if place < 32u && i < L && d < D {
                store_line((b * L + i) * D + d, Eight(sums[at], sums[at + 1u]));
            }
#else
            if place < 32u && i < S && d < D {
                dk[((b * S + i) * D + d) / 8u] = line_of(Eight(sums[at], sums[at + 1u]));
            }
#endif
        }
#endfor
    }
#endfor
#if OF == keys
#for N in FE
    workgroupBarrier();
    coopStoreT(dv_${N}, &sums[begin_sums], PITCH_SUMS);
    workgroupBarrier();
#for A in EACH
    {
        let place = ${A}u * SUBGROUP + member;
        let i = row + place % 16u;
        let e = ${N}u * 16u + place / 16u * 8u;
        let at = begin_sums + place % 16u * PITCH_SUMS + place / 16u * 2u;
        if place < 32u && i < S && e < E {
            dv[((b * S + i) * E + e) / 8u] = line_of(Eight(sums[at], sums[at + 1u]));
        }
    }
#endfor
#endfor
#endif
}
