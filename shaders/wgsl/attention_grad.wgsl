// Gradients of attention, from the weights w[i,j] = exp(score[i,j] − spread[i]), which are computed anew, and
// ds[i,j] = SCALE·w[i,j]·(Σ_e dy[i,e]·v[j,e] − drift[i]), where drift[i] = Σ_e dy[i,e]·y[i,e]:
//     OF queries: dq[i,d] = Σ_j ds[i,j]·k[j,d]
//     OF keys:    dk[j,d] = Σ_i ds[i,j]·q[i,d],  dv[j,e] = Σ_i w[i,j]·dy[i,e]
// (Dao, "FlashAttention-2", 2023.)
//
// Bindings: q, key, value, spread[B,L], drift[B,L], dy[B,L,E], bias where there is one → dq; or dk, dv. A workgroup computes TILE rows of
// the results, and TILE of their columns.
//
// Defines: OF queries or keys; RESULT_AT the binding of the first result; the others as for attention

@group(0) @binding(0) var<storage, read> q: array<f32>;
@group(0) @binding(1) var<storage, read> key: array<f32>;
@group(0) @binding(2) var<storage, read> value: array<f32>;
@group(0) @binding(3) var<storage, read> spread: array<f32>;
@group(0) @binding(4) var<storage, read> drift: array<f32>;
@group(0) @binding(5) var<storage, read> dy: array<f32>;
#if BIAS == 1
@group(0) @binding(6) var<storage, read> bias: array<f32>;
#endif
@group(0) @binding(${RESULT_AT}) var<storage, read_write> first_result: array<f32>;
#if OF == keys
@group(0) @binding(${SECOND_AT}) var<storage, read_write> second_result: array<f32>;
#endif

#include "shared/attention"

fn dy_element(b: u32, i: u32, e: u32) -> f32 {
    let there = i < L && e < E;
    return select(0.0, dy[select(0u, (b * L + i) * E + e, there)], there);
}

#if OF == queries
const ROWS: u32 = L;
const COLUMNS: u32 = S;
const WIDTH: u32 = D;

fn row_of_score(b: u32, i: u32, d: u32) -> f32 {
    return q_element(b, i, d);
}

fn column_of_score(b: u32, j: u32, d: u32) -> f32 {
    return k_element(b, j, d);
}

fn row_of_slope(b: u32, i: u32, e: u32) -> f32 {
    return dy_element(b, i, e);
}

fn column_of_slope(b: u32, j: u32, e: u32) -> f32 {
    return v_element(b, j, e);
}
#else
const ROWS: u32 = S;
const COLUMNS: u32 = L;
const WIDTH: u32 = max(D, E);

fn row_of_score(b: u32, j: u32, d: u32) -> f32 {
    return k_element(b, j, d);
}

fn column_of_score(b: u32, i: u32, d: u32) -> f32 {
    return q_element(b, i, d);
}

fn row_of_slope(b: u32, j: u32, e: u32) -> f32 {
    return v_element(b, j, e);
}

fn column_of_slope(b: u32, i: u32, e: u32) -> f32 {
    return dy_element(b, i, e);
}
#endif

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    const BLOCKS = (ROWS + TILE - 1u) / TILE;
    const PARTS = (WIDTH + TILE - 1u) / TILE;
    let id = workgroup_index(workgroup, workgroups);
    let is_there = id < BATCH * BLOCKS * PARTS;
    let b = select(0u, id / (BLOCKS * PARTS), is_there);
    // Those that see the most begin first: of a causal attention the last queries, and the first keys.
#if OF == queries
    let first = (BLOCKS - 1u - id / PARTS % BLOCKS) * TILE;
#else
    let first = id / PARTS % BLOCKS * TILE;
#endif
    let column = id % PARTS * TILE;
    let ty = lane / SIDE;
    let tx = lane % SIDE;

    var of_slopes = array<vec4<f32>, 4>();
#if OF == keys
    var of_weights = array<vec4<f32>, 4>();
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
    for (var start = begin; start < end; start += TILE) {
        var tile = array<vec4<f32>, 4>();
        for (var d = 0u; d < D; d += STEP) {
            for (var i = lane; i < SIDE * STEP; i += WG) {
                let row = i / STEP * 4u;
                let at = i % STEP;
                left[at * PITCH + row / 4u] = vec4(
                    row_of_score(b, first + row, d + at),
                    row_of_score(b, first + row + 1u, d + at),
                    row_of_score(b, first + row + 2u, d + at),
                    row_of_score(b, first + row + 3u, d + at),
                );
                right[at * PITCH + row / 4u] = vec4(
                    column_of_score(b, start + row, d + at),
                    column_of_score(b, start + row + 1u, d + at),
                    column_of_score(b, start + row + 2u, d + at),
                    column_of_score(b, start + row + 3u, d + at),
                );
            }
            workgroupBarrier();
            add_terms(&tile, ty, tx);
            workgroupBarrier();
        }
        var slopes = array<vec4<f32>, 4>();
        for (var e = 0u; e < E; e += STEP) {
            for (var i = lane; i < SIDE * STEP; i += WG) {
                let row = i / STEP * 4u;
                let at = i % STEP;
                left[at * PITCH + row / 4u] = vec4(
                    row_of_slope(b, first + row, e + at),
                    row_of_slope(b, first + row + 1u, e + at),
                    row_of_slope(b, first + row + 2u, e + at),
                    row_of_slope(b, first + row + 3u, e + at),
                );
                right[at * PITCH + row / 4u] = vec4(
                    column_of_slope(b, start + row, e + at),
                    column_of_slope(b, start + row + 1u, e + at),
                    column_of_slope(b, start + row + 2u, e + at),
                    column_of_slope(b, start + row + 3u, e + at),
                );
            }
            workgroupBarrier();
            add_terms(&slopes, ty, tx);
            workgroupBarrier();
        }
        for (var r = 0u; r < 4u; r++) {
            for (var c = 0u; c < 4u; c++) {
#if OF == queries
                let i = first + ty * 4u + r;
                let j = start + tx * 4u + c;
#else
                let i = start + tx * 4u + c;
                let j = first + ty * 4u + r;
#endif
                var weight = 0.0;
                var slope = 0.0;
                if is_visible(i, j) {
                    weight = exp(score(b, i, j, tile[r][c]) - spread[b * L + i]);
                    slope = weight * (slopes[r][c] - drift[b * L + i]) * ${SCALE};
                }
                tile[r][c] = weight;
                slopes[r][c] = slope;
            }
        }
#if OF == keys
        put_weights(&tile, ty, tx);
        for (var j = 0u; j < TILE; j += STEP) {
            for (var i = lane; i < SIDE * STEP; i += WG) {
                let row = i / SIDE;
                let at = i % SIDE * 4u;
                right[row * PITCH + at / 4u] = vec4(
                    column_of_slope(b, start + j + row, column + at),
                    column_of_slope(b, start + j + row, column + at + 1u),
                    column_of_slope(b, start + j + row, column + at + 2u),
                    column_of_slope(b, start + j + row, column + at + 3u),
                );
            }
            workgroupBarrier();
            add_weighted(&of_weights, j, ty, tx);
            workgroupBarrier();
        }
#endif
        put_weights(&slopes, ty, tx);
        for (var j = 0u; j < TILE; j += STEP) {
            for (var i = lane; i < SIDE * STEP; i += WG) {
                let row = i / SIDE;
                let at = i % SIDE * 4u;
                right[row * PITCH + at / 4u] = vec4(
                    column_of_score(b, start + j + row, column + at),
                    column_of_score(b, start + j + row, column + at + 1u),
                    column_of_score(b, start + j + row, column + at + 2u),
                    column_of_score(b, start + j + row, column + at + 3u),
                );
            }
            workgroupBarrier();
            add_weighted(&of_slopes, j, ty, tx);
            workgroupBarrier();
        }
    }
    for (var r = 0u; r < 4u; r++) {
        let row = first + ty * 4u + r;
        for (var c = 0u; c < 4u; c++) {
            let at = column + tx * 4u + c;
            if is_there && row < ROWS && at < D {
                first_result[(b * ROWS + row) * D + at] = of_slopes[r][c];
            }
#if OF == keys
            if is_there && row < ROWS && at < E {
                second_result[(b * ROWS + row) * E + at] = of_weights[r][c];
            }
#endif
        }
    }
}
