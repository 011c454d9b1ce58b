// Gradients of attention on matrix units, as in `attention_grad`. With w[i,j] = exp(score[i,j] − lse[i,0] − lse[i,1])
// and ds[i,j] = w[i,j]·(Σ_e dy[i,e]·v[j,e] − delta[i]), both f32 in registers and rounded to bf16 before they are
// multiplied:
//     OF queries: dq[i,d] = SCALE·Σ_j ds[i,j]·k[j,d]
//     OF keys:    dk[j,d] = SCALE·Σ_i ds[i,j]·q[i,d],  dv[j,e] = Σ_i w[i,j]·dy[i,e]
//
// GROUP heads of queries share a head of keys and values, whose gradients are sums over the group, one head after the
// other.
//
// Bindings: q, key, value, lse, delta, dy, bias where there is one → dq by its epilogue, by lines; or dk, dv in lines
// of bf16. A workgroup computes ROWS rows of the results. Workgroups: BATCH·⌈L/ROWS⌉, or BATCH·⌈S/ROWS⌉.
//
// Defines: those of shared/attention_bf16
//          OF       queries or keys
//          GROUP    OF keys: the heads of queries for each head of keys
//          AHEAD    1: a tile is loaded while the one before is multiplied; 0: registers are too few
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

fn store_dk(i: u32, line: Eight) {
    dk[i / 8u] = line_of(line);
}

fn store_dv(i: u32, line: Eight) {
    dv[i / 8u] = line_of(line);
}
#endif

fn dy_line(b: u32, i: u32, at: u32) -> vec4<u32> {
#insert load_line(dy, DY_FORMAT, DY_BATCH, DY_ROW, L, E)
}

fn dy_part(b: u32, first: u32, lane: u32) -> array<vec4<u32>, ${LOADS_E}> {
#insert load_part(dy_line, LOADS_E, FE)
}

/// The exponent of 2 of the sum of a query's weights, relative to their base, from its log-sum-exp.
fn rest_of(peak: f32, rest: f32) -> f32 {
    return fma(rest, LOG2E, residue_of_peak(peak));
}

/// The weight of a score: at most 1, also where the score is computed in another order than in the forward pass.
fn weight_of(score: f32, base: f32, rest: f32) -> f32 {
    let power = exponent(score, base) - rest;
    // Unlike a minimum, this leaves NaN.
    return exp2(power - max(power, 0.0));
}

/// The gradient of a score, from what it is for a weight of 1.
fn slope(row: u32, column: u32, x: f32, weight: f32) -> f32 {
    return nearest(x * weight);
}

fn coop_map_slope(x: Sums, weight: Sums) -> Sums {
    return x;
}

#if OF == queries
fn base_of_row(row: u32, column: u32, x: f32, b: u32, i: u32) -> f32 {
    return base_of_peak(lse[(b * L + min(i + row, L - 1u)) * 2u]);
}

fn coop_map_base_of_row(x: Sums, b: u32, i: u32) -> Sums {
    return x;
}

fn rest_of_row(row: u32, column: u32, x: f32, b: u32, i: u32) -> f32 {
    let at = (b * L + min(i + row, L - 1u)) * 2u;
    return rest_of(lse[at], lse[at + 1u]);
}

fn coop_map_rest_of_row(x: Sums, b: u32, i: u32) -> Sums {
    return x;
}

/// Slopes begin with what is subtracted from all of a query, or with half of it in each half.
fn minus_delta(row: u32, column: u32, x: f32, b: u32, i: u32) -> f32 {
    return delta[b * L + min(i + row, L - 1u)] / -${SHARE}f;
}

fn coop_map_minus_delta(x: Sums, b: u32, i: u32) -> Sums {
    return x;
}

fn weight(row: u32, column: u32, x: f32, base: f32, rest: f32) -> f32 {
    return weight_of(x, base, rest);
}

fn coop_map_weight(x: Sums, base: Sums, rest: Sums) -> Sums {
    return x;
}
#else
/// Of a tile of queries: base and rest, and what slopes begin with. Past the last query, weights are 0.
var<workgroup> statistics: array<vec4<f32>, TILE>;

fn minus_delta(row: u32, column: u32, x: f32, place: u32) -> f32 {
    return statistics[place + column].z;
}

fn coop_map_minus_delta(x: Sums, place: u32) -> Sums {
    return x;
}

/// The weight of a query, by columns, from `place` of the tile on.
fn weight(row: u32, column: u32, x: f32, place: u32) -> f32 {
    let of_query = statistics[place + column];
    return weight_of(x, of_query.x, of_query.y);
}

fn coop_map_weight(x: Sums, place: u32) -> Sums {
    return x;
}

fn rounded(row: u32, column: u32, x: f32) -> f32 {
    return nearest_above(x);
}

fn coop_map_rounded(x: Sums) -> Sums {
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

// The tile from `start` on: of keys, or OF keys of queries of head `b`. MASKED: 0 where all queries see all keys, and
// there is no bias.
#macro step(MASKED)
#if AHEAD == 1
        put_d(0u, of_d, lane);
        put_e(SECOND, of_e, lane);
#elif OF == queries
        put_d(0u, k_part(b, start, lane), lane);
        put_e(SECOND, v_part(b, start, lane), lane);
#else
        put_d(0u, q_part(b, start, lane), lane);
        put_e(SECOND, dy_part(b, start, lane), lane);
#endif
#if OF == keys
        if lane < TILE {
            let i = b * L + min(start + lane, L - 1u);
            let peak = lse[i * 2u];
            let rest = select(rest_of(peak, lse[i * 2u + 1u]), infinity(), start + lane >= L);
            statistics[lane] = vec4(base_of_peak(peak), rest, delta[i] / -${SHARE}f, 0.0);
        }
#endif
        workgroupBarrier();
#if AHEAD == 1
#if OF == queries
        of_d = k_part(b, start + TILE, lane);
        of_e = v_part(b, start + TILE, lane);
#else
        of_d = q_part(b, start + TILE, lane);
        of_e = dy_part(b, start + TILE, lane);
#endif
#endif
#for J in FT
#for I in STRIPS
        var score_${I}_${J} = Sums();
#if OF == queries
        var slope_${I}_${J} = begin_${I};
#else
        var slope_${I}_${J} = coop_map_minus_delta(Sums(), ${J}u * 16u);
#endif
#endfor
#for K in OWN_D
        let d_at_${J}_${K} = ${J}u * 16u * PITCH_D + (member * ${OWN_D}u + ${K}u) * 4u;
        let d_${J}_${K} = coopLoad<Right>(&tiles[d_at_${J}_${K}], PITCH_D);
#for I in STRIPS
#if OF == queries
        score_${I}_${J} = coopMultiplyAdd(q_${I}_${K}, d_${J}_${K}, score_${I}_${J});
#else
        score_${I}_${J} = coopMultiplyAdd(k_${I}_${K}, d_${J}_${K}, score_${I}_${J});
#endif
#endfor
#endfor
#for K in OWN_E
        let e_at_${J}_${K} = SECOND + ${J}u * 16u * PITCH_E + (member * ${OWN_E}u + ${K}u) * 4u;
        let e_${J}_${K} = coopLoad<Right>(&tiles[e_at_${J}_${K}], PITCH_E);
#for I in STRIPS
#if OF == queries
        slope_${I}_${J} = coopMultiplyAdd(dy_${I}_${K}, e_${J}_${K}, slope_${I}_${J});
#else
        slope_${I}_${J} = coopMultiplyAdd(v_${I}_${K}, e_${J}_${K}, slope_${I}_${J});
#endif
#endfor
#endfor
#if SHARE == 2
#insert give_half(score, 0, J)
        workgroupBarrier();
#insert take_half(score, 0, J)
        workgroupBarrier();
#insert give_half(slope, 0, J)
        workgroupBarrier();
#insert take_half(slope, 0, J)
#endif
#for I in STRIPS
#if MASKED == 1
#if OF == queries
        score_${I}_${J} = coop_map_score(score_${I}_${J}, b, row + ${I}u * ${TEAM_ROWS}u, start + ${J}u * 16u);
#else
        score_${I}_${J} = coop_map_turned(score_${I}_${J}, b, start + ${J}u * 16u, row + ${I}u * ${TEAM_ROWS}u);
#endif
#elif SCALED == 1
        score_${I}_${J} = score_${I}_${J} * ${SCALE};
#endif
#if OF == queries
        let weight_${I}_${J} = coop_map_weight(score_${I}_${J}, base_${I}, rest_${I});
        let ds_${I}_${J} = coop_as_left(coop_map_slope(slope_${I}_${J}, weight_${I}_${J}));
#else
        let weight_${I}_${J} = coop_map_weight(score_${I}_${J}, ${J}u * 16u);
        let ds_${I}_${J} = coop_as_left(coop_map_slope(slope_${I}_${J}, weight_${I}_${J}));
        let w_${I}_${J} = coop_as_left(coop_map_rounded(weight_${I}_${J}));
#endif
#endfor
#if OF == keys
#for N in OWN_E
        let dv_at_${J}_${N} = SECOND + ${J}u * 16u * PITCH_E + (member * ${OWN_E}u + ${N}u) * 4u;
        let dv_of_${J}_${N} = coopLoadT<Right>(&tiles[dv_at_${J}_${N}], PITCH_E);
#for I in STRIPS
        dv_${I}_${N} = coopMultiplyAdd(w_${I}_${J}, dv_of_${J}_${N}, dv_${I}_${N});
#endfor
#endfor
#endif
#for N in OWN_D
        let dx_at_${J}_${N} = ${J}u * 16u * PITCH_D + (member * ${OWN_D}u + ${N}u) * 4u;
        let dx_of_${J}_${N} = coopLoadT<Right>(&tiles[dx_at_${J}_${N}], PITCH_D);
#for I in STRIPS
        dx_${I}_${N} = coopMultiplyAdd(ds_${I}_${J}, dx_of_${J}_${N}, dx_${I}_${N});
#endfor
#endfor
#endfor
        workgroupBarrier();
#endmacro

// All tiles of queries of head `b`.
#macro queries_of_head()
#if AHEAD == 1
    var of_d = q_part(b, begin, lane);
    var of_e = dy_part(b, begin, lane);
#endif
    for (var start = begin; start < whole; start += TILE) {
#insert step(1)
    }
    for (var start = whole; start < L; start += TILE) {
#insert step(0)
    }
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
    let entry = id % BATCH;
#if OF == queries
    let first = (BLOCKS - 1u - id / BATCH) * ROWS;
    let end = min(S, max(first + ROWS + S, L) - L);
#else
    let first = id / BATCH * ROWS;
    // The first query that sees one of the keys, rounded down to whole tiles.
    let begin = (max(first + L, S) - S) / TILE * TILE;
#endif
#else
    let entry = id / BLOCKS;
    let first = id % BLOCKS * ROWS;
#if OF == queries
    let end = S;
#else
    let begin = 0u;
#endif
#endif
#insert places()
#if OF == queries
    let b = entry;
#insert load_strips(q, q_part, put_d, OWN_D, PITCH_D)
#insert load_strips(dy, dy_part, put_e, OWN_E, PITCH_E)
#for I in STRIPS
    let base_${I} = coop_map_base_of_row(Sums(), b, row + ${I}u * ${TEAM_ROWS}u);
    let rest_${I} = coop_map_rest_of_row(Sums(), b, row + ${I}u * ${TEAM_ROWS}u);
    let begin_${I} = coop_map_minus_delta(Sums(), b, row + ${I}u * ${TEAM_ROWS}u);
#endfor
#else
    var b = entry * ${GROUP}u;
#insert load_strips(k, k_part, put_d, OWN_D, PITCH_D)
#insert load_strips(v, v_part, put_e, OWN_E, PITCH_E)
#endif
#for I in STRIPS
#for N in OWN_D
    var dx_${I}_${N} = Sums();
#endfor
#if OF == keys
#for N in OWN_E
    var dv_${I}_${N} = Sums();
#endfor
#endif
#endfor
#if OF == queries
    let whole = visible_to(first);
#if AHEAD == 1
    var of_d = k_part(b, 0u, lane);
    var of_e = v_part(b, 0u, lane);
#endif
    for (var start = 0u; start < whole; start += TILE) {
#insert step(0)
    }
    for (var start = whole; start < end; start += TILE) {
#insert step(1)
    }
#else
    let whole = masked_to(first, begin);
#if GROUP == 1
#insert queries_of_head()
#else
    for (var head = 0u; head < ${GROUP}u; head++) {
#insert queries_of_head()
        b++;
    }
#endif
#endif
#for I in STRIPS
#for N in OWN_D
    dx_${I}_${N} = dx_${I}_${N} * ${SCALE};
#if OF == queries
#insert store_sums(dx, I, N, store_line, L, D, OWN_D)
#else
#insert store_sums(dx, I, N, store_dk, S, D, OWN_D)
#endif
#endfor
#if OF == keys
#for N in OWN_E
#insert store_sums(dv, I, N, store_dv, S, E, OWN_E)
#endfor
#endif
#endfor
}
