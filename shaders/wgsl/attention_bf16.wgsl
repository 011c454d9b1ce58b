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

fn lowest(row: u32, column: u32, x: f32) -> f32 {
    return negative_infinity();
}

fn coop_map_lowest(x: Sums) -> Sums {
    return x;
}

fn larger_of(row: u32, column: u32, x: f32, y: f32) -> f32 {
    return max(x, y);
}

fn coop_map_larger_of(x: Sums, y: Sums) -> Sums {
    return x;
}

/// Until a key is visible, the largest score is −∞, and weights are relative to 0.
fn base_of(row: u32, column: u32, peak: f32) -> f32 {
    return select(peak, 0.0, bitcast<u32>(peak) == 0xff800000u);
}

fn coop_map_base_of(peak: Sums) -> Sums {
    return peak;
}

/// The largest score has weight 1, whatever its magnitude: the difference is rounded, not its terms.
fn power(row: u32, column: u32, x: f32, base: f32) -> f32 {
    return exp2((x - base) * FACTOR);
}

fn coop_map_power(x: Sums, base: Sums) -> Sums {
    return x;
}

/// The weight of the largest score is 1, so only a query that sees no key has no mass. Its sums are 0.
fn mean(row: u32, column: u32, x: f32, mass: f32) -> f32 {
    return x / select(mass, 1.0, bitcast<u32>(mass) == 0u);
}

fn coop_map_mean(x: Sums, mass: Sums) -> Sums {
    return x;
}

/// Stores the log-sum-exp of queries from `i` on, in two parts.
fn keep(row: u32, column: u32, peak: f32, mass: f32, b: u32, i: u32) -> f32 {
    if column == 0u && i + row < L {
        let at = (b * L + i + row) * 2u;
        lse[at] = select(scaled(peak), 0.0, bitcast<u32>(peak) == 0xff800000u);
        lse[at + 1u] = log(select(mass, 1.0, bitcast<u32>(mass) == 0u));
    }
    return peak;
}

fn coop_map_keep(peak: Sums, mass: Sums, b: u32, i: u32) -> Sums {
    return peak;
}

// The tile of keys from `start` on. MASKED: 0 where all queries of the workgroup see all of them, and there is no bias.
#macro step(MASKED)
        let values = v_part(b, start, lane);
#for J in FT
#for I in STRIPS
        var score_${I}_${J} = Sums();
#endfor
#for K in FD
        let k_at_${J}_${K} = ${J}u * 16u * PITCH_D + ${K}u * 4u;
        let k_${J}_${K} = coopLoad<Right>(&tiles[k_at_${J}_${K}], PITCH_D);
#for I in STRIPS
        score_${I}_${J} = coopMultiplyAdd(q_${I}_${K}, k_${J}_${K}, score_${I}_${J});
#endfor
#endfor
#endfor
#for I in STRIPS
        {
#if MASKED == 1
            let query = first + ${I}u * 64u + strip;
#for J in FT
            score_${I}_${J} = coop_map_score(score_${I}_${J}, b, query, start + ${J}u * 16u);
#endfor
#elif SCALED == 1
#for J in FT
            score_${I}_${J} = score_${I}_${J} * ${SCALE};
#endfor
#endif
            var largest = peak_${I};
#for J in FT
            largest = coop_map_larger_of(largest, score_${I}_${J});
#endfor
            largest = coop_rows_larger(largest);
            let base = coop_map_base_of(largest);
            let shrink = coop_map_power(peak_${I}, base);
            peak_${I} = largest;
            mass_${I} = coop_map_product(mass_${I}, shrink);
#for J in FT
            score_${I}_${J} = coop_map_power(score_${I}_${J}, base);
#endfor
#for N in FE
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
#for N in FE
        let v_at_${J}_${N} = SECOND + ${J}u * 16u * PITCH_E + ${N}u * 4u;
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
    let subgroup = lane / SUBGROUP;
    let strip = subgroup * 16u;
#insert load_strips(q, q_part, put_d, FD, PITCH_D)
    // Products with it are the sums of rows.
    let ones = coop_as_right(coop_map_one(Sums()));
#for I in STRIPS
    var peak_${I} = coop_map_lowest(Sums());
    var mass_${I} = Sums();
#for N in FE
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
    let begin_sums = subgroup * 16u * PITCH_SUMS;
    let member = lane % SUBGROUP;
#for I in STRIPS
    {
        let query = first + ${I}u * 64u + strip;
        coop_map_keep(peak_${I}, mass_${I}, b, query);
#for N in FE
        let mean_${N} = coop_map_mean(y_${I}_${N}, mass_${I});
        workgroupBarrier();
        coopStoreT(mean_${N}, &sums[begin_sums], PITCH_SUMS);
        workgroupBarrier();
#for A in EACH
        {
            let place = ${A}u * SUBGROUP + member;
            let i = query + place % 16u;
            let e = ${N}u * 16u + place / 16u * 8u;
            let at = begin_sums + place % 16u * PITCH_SUMS + place / 16u * 2u;
            if place < 32u && i < L && e < E {
                store_line((b * L + i) * E + e, Eight(sums[at], sums[at + 1u]));
            }
        }
#endfor
#endfor
    }
#endfor
}
