// Attention on matrix units: y[b,i,e] = Σ_j w[b,i,j]·v[b,j,e] with w[b,i,·] = softmax(SCALE·q[b,i,·]·k[b,·,·]ᵀ + bias),
// in one pass over the keys, as in `attention`. Operands are bf16, or f32 that is rounded to it; scores and sums are
// f32 and stay in registers. Weights are rounded to bf16 before they multiply values.
//
// Bindings: q, key, value, bias where there is one → y[B,L,E] by its epilogue, by lines; lse[B,L,2]. A workgroup
// computes ROWS queries. Workgroups: BATCH·⌈L/ROWS⌉.
//
// Defines: those of shared/attention_bf16
//          LSE_AT    the binding of lse

diagnostic(off, derivative_uniformity);
enable f16;
enable wgpu_cooperative_matrix;

#include "shared/epilogue_lines"
#include "shared/attention_bf16"

@group(0) @binding(0) var<storage, read> q: array<${Q_ELEM}>;
@group(0) @binding(1) var<storage, read> key: array<${K_ELEM}>;
@group(0) @binding(2) var<storage, read> value: array<${V_ELEM}>;
#if BIAS == 1
@group(0) @binding(3) var<storage, read> bias: array<f32>;
#endif
@group(0) @binding(${LSE_AT}) var<storage, read_write> lse: array<f32>;

fn one(row: u32, column: u32, x: f32) -> f32 {
    return 1.0;
}

fn coop_map_one(x: Sums) -> Sums {
    return x;
}

/// The base of a row before its first key: the least finite number.
fn least(row: u32, column: u32, x: f32) -> f32 {
    return -3.4028234663852886e38f;
}

fn coop_map_least(x: Sums) -> Sums {
    return x;
}

fn larger_of(row: u32, column: u32, x: f32, y: f32) -> f32 {
    return max(x, y);
}

fn coop_map_larger_of(x: Sums, y: Sums) -> Sums {
    return x;
}

/// What weights are relative to, from the largest score of a tile and the base before.
fn higher(row: u32, column: u32, largest: f32, before: f32) -> f32 {
    return max(base(largest), before);
}

fn coop_map_higher(largest: Sums, before: Sums) -> Sums {
    return largest;
}

/// The factor of sums that were relative to another base.
fn shrink(row: u32, column: u32, before: f32, base: f32) -> f32 {
    return exp2(between(before, base));
}

fn coop_map_shrink(before: Sums, base: Sums) -> Sums {
    return before;
}

fn product(row: u32, column: u32, x: f32, y: f32) -> f32 {
    return x * y;
}

fn coop_map_product(x: Sums, y: Sums) -> Sums {
    return x;
}

fn power(row: u32, column: u32, x: f32, base: f32) -> f32 {
    return nearest_above(exp2(exponent(x, base)));
}

fn coop_map_power(x: Sums, base: Sums) -> Sums {
    return x;
}

/// The weight of the largest score is about 1, so only a query that sees no key has no mass. Its sums are 0.
fn mean(row: u32, column: u32, x: f32, mass: f32) -> f32 {
    return x / select(mass, 1.0, bitcast<u32>(mass) == 0u);
}

fn coop_map_mean(x: Sums, mass: Sums) -> Sums {
    return x;
}

/// Stores the log-sum-exp of queries from `i` on, in two parts.
fn keep(row: u32, column: u32, base: f32, mass: f32, b: u32, i: u32) -> f32 {
    if column == 0u && i + row < L {
        let at = (b * L + i + row) * 2u;
        let is_empty = bitcast<u32>(mass) == 0u;
        lse[at] = select(peak_of(base), 0.0, is_empty);
        lse[at + 1u] = select(log(mass) + remainder_of(base) * LN2, 0.0, is_empty);
    }
    return base;
}

fn coop_map_keep(base: Sums, mass: Sums, b: u32, i: u32) -> Sums {
    return base;
}

// The tile of keys from `start` on. MASKED: 0 where all queries of the workgroup see all of them, and there is no bias.
#macro step(MASKED)
        let values = v_part(b, start, lane);
#for J in FT
#for I in STRIPS
        var score_${I}_${J} = Sums();
#endfor
#for K in OWN_D
        let k_at_${J}_${K} = ${J}u * 16u * PITCH_D + (member * ${OWN_D}u + ${K}u) * 4u;
        let k_${J}_${K} = coopLoad<Right>(&tiles[k_at_${J}_${K}], PITCH_D);
#for I in STRIPS
        score_${I}_${J} = coopMultiplyAdd(q_${I}_${K}, k_${J}_${K}, score_${I}_${J});
#endfor
#endfor
#if SHARE == 2
#insert give_half(score, 0, J)
#endif
#endfor
#if SHARE == 2
        workgroupBarrier();
#for J in FT
#insert take_half(score, 0, J)
#endfor
#endif
#for I in STRIPS
        {
#if MASKED == 1
            let query = row + ${I}u * ${TEAM_ROWS}u;
#for J in FT
            score_${I}_${J} = coop_map_score(score_${I}_${J}, b, query, start + ${J}u * 16u);
#endfor
#elif SCALED == 1
#for J in FT
            score_${I}_${J} = score_${I}_${J} * ${SCALE};
#endfor
#endif
            var largest = score_${I}_0;
#for J in FT
            largest = coop_map_larger_of(largest, score_${I}_${J});
#endfor
            largest = coop_rows_larger(largest);
            let higher = coop_map_higher(largest, base_${I});
            let shrink = coop_map_shrink(base_${I}, higher);
            base_${I} = higher;
            mass_${I} = coop_map_product(mass_${I}, shrink);
#for J in FT
            score_${I}_${J} = coop_map_power(score_${I}_${J}, higher);
#endfor
#for N in OWN_E
            y_${I}_${N} = coop_map_product(y_${I}_${N}, shrink);
#endfor
        }
#endfor
        put_e(SECOND, values, lane);
        workgroupBarrier();
        let keys = k_part(b, start + TILE, lane);
#for J in FT
#for I in STRIPS
        let weight_${I}_${J} = coop_as_left(score_${I}_${J});
        mass_${I} = coopMultiplyAdd(weight_${I}_${J}, ones, mass_${I});
#endfor
#for N in OWN_E
        let v_at_${J}_${N} = SECOND + ${J}u * 16u * PITCH_E + (member * ${OWN_E}u + ${N}u) * 4u;
        let v_${J}_${N} = coopLoadT<Right>(&tiles[v_at_${J}_${N}], PITCH_E);
#for I in STRIPS
        y_${I}_${N} = coopMultiplyAdd(weight_${I}_${J}, v_${J}_${N}, y_${I}_${N});
#endfor
#endfor
#endfor
        put_d(0u, keys, lane);
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
    // In a causal attention, blocks with the most work run first.
#if CAUSAL == 1
    let b = id % BATCH;
    let first = (BLOCKS - 1u - id / BATCH) * ROWS;
    let end = min(S, max(first + ROWS + S, L) - L);
#else
    let b = id / BLOCKS;
    let first = id % BLOCKS * ROWS;
    let end = S;
#endif
    let whole = visible_to(first);
    let entry = b;
#insert places()
#insert load_strips(q, q_part, put_d, OWN_D, PITCH_D)
    // Products with it are the sums of rows.
    let ones = coop_as_right(coop_map_one(Sums()));
#for I in STRIPS
    var base_${I} = coop_map_least(Sums());
    var mass_${I} = Sums();
#for N in OWN_E
    var y_${I}_${N} = Sums();
#endfor
#endfor
    put_d(0u, k_part(b, 0u, lane), lane);
    workgroupBarrier();
    for (var start = 0u; start < whole; start += TILE) {
#insert step(0)
    }
    for (var start = whole; start < end; start += TILE) {
#insert step(1)
    }
#for I in STRIPS
    if member == 0u {
        coop_map_keep(base_${I}, mass_${I}, b, row + ${I}u * ${TEAM_ROWS}u);
    }
#for N in OWN_E
    y_${I}_${N} = coop_map_mean(y_${I}_${N}, mass_${I});
#insert store_sums(y, I, N, store_line, L, E, OWN_E)
#endfor
#endfor
}
