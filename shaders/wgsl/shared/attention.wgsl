// Tiles of scores, for the kernels of attention. A workgroup holds TILE rows against TILE columns. Each invocation
// computes ROWS_EACH rows and 4 columns of a tile; of a result, as many rows and EACH fours of features. The operands
// of products pass through workgroup memory in chunks. The next chunk is loaded while one is multiplied.
//
// Defines: WG       TILE²/(16·HEIGHT)
//          TILE     64 or 32
//          HEIGHT   an invocation's groups of four rows, 1 or 2; ROWS_EACH is 4·HEIGHT
//          DEPTH    fours of features in a chunk for scores, a power of two
//          FOURS    fours of features of a result that a workgroup computes, a power of two from 4 to 16
//          LOADS    fours of a chunk that an invocation loads, DEPTH·TILE/WG
//          EACH     max(1, FOURS/(TILE/4))
//          SHARED_SUMS   1 where FOURS is less than TILE/4
//          UNROLL   fours that the products add in a row: 2 where both D and E have an even number of them, else 1
//          BATCH, L, S, D, E
//          SCALE    a literal
//          CAUSAL   1: query i sees the keys up to i + S − L
//          BIAS     1: there is a bias
//          Q_BATCH, Q_ROW, Q_COL   where batch b of q begins, an expression of `b: u32`; its strides. The same for K_…,
//                   V_… and BIAS_…
//          Q_ELEM, K_ELEM, V_ELEM  vec4<f32> where four neighbours along a row can be read at once, else f32

#include "shared/grid"
#include "shared/float"

const WG: u32 = ${WG};
const TILE: u32 = ${TILE};
/// Invocations along the columns of a tile, and fours in a row of its weights.
const SIDE: u32 = TILE / 4u;
const FOURS: u32 = ${FOURS};
const HEIGHT: u32 = ${HEIGHT};
const ROWS_EACH: u32 = ${ROWS_EACH};
const EACH: u32 = ${EACH};
/// Invocations that share features of a result. Each adds up some of the columns.
const SHARES: u32 = SIDE * EACH / FOURS;
const BATCH: u32 = ${BATCH};
const L: u32 = ${L};
const S: u32 = ${S};
const D: u32 = ${D};
const E: u32 = ${E};

/// Fours of features in each row of a chunk for scores, which has TILE rows.
const DEPTH: u32 = ${DEPTH};
/// Columns of a tile that a weighted sum adds at a time: half of it.
const TERMS: u32 = TILE / 2u;
/// Fours of their weights in each row.
const HALF: u32 = TERMS / 4u;

// Two regions of workgroup memory. Each holds chunks for scores first; then one holds weights, the other their
// operands.
const REGION: u32 = SIDE * (4u * DEPTH + 1u);
const ROW_CHUNK: u32 = 0u;
const COLUMN_CHUNK: u32 = REGION;
/// Half of a tile of weights, TILE rows.
const WEIGHTS: u32 = 0u;
/// The operands of the weights, TERMS rows of FOURS.
const TERM_CHUNK: u32 = REGION;

var<workgroup> memory: array<vec4<f32>, 2u * REGION>;

/// The place of a four in the first of a group of four rows. Each row has so many fours, and the next row begins that
/// much further on. Groups are one four further apart than they are long, so that invocations that read neighbouring
/// groups use different banks.
fn place(group: u32, four: u32, pitch: u32) -> u32 {
    return group * (4u * pitch + 1u) + four;
}

/// The fours that an invocation loads of a chunk. An array of them has no other name: in HLSL, as naga writes it, it
/// would be defined twice.
const LOADS: u32 = ${LOADS};

/// Stores a chunk of so many rows, with so many fours in each.
fn put(region: u32, part: array<vec4<f32>, LOADS>, rows: u32, pitch: u32, lane: u32) {
#for N in LOADS
    if ${N}u * WG < rows * pitch {
        let row = (${N}u * WG + lane) / pitch;
        memory[region + place(row / 4u, (${N}u * WG + lane) % pitch, pitch) + row % 4u * pitch] = part[${N}];
    }
#endfor
}

// Four features of a row, or past the last row those of the last. Features past the last are zero or arbitrary: nothing
// reads those.

fn q_four(b: u32, i: u32, four: u32) -> vec4<f32> {
    let row = ${Q_BATCH} + min(i, L - 1u) * ${Q_ROW}u;
#if Q_ELEM == vec4<f32>
    return q[row / 4u + min(four, D / 4u - 1u)];
#else
    let k = vec4(four * 4u) + vec4(0u, 1u, 2u, 3u);
    let at = vec4(row) + min(k, vec4(D - 1u)) * ${Q_COL}u;
    return select(vec4(0.0), vec4(q[at.x], q[at.y], q[at.z], q[at.w]), k < vec4(D));
#endif
}

fn k_four(b: u32, j: u32, four: u32) -> vec4<f32> {
    let row = ${K_BATCH} + min(j, S - 1u) * ${K_ROW}u;
#if K_ELEM == vec4<f32>
    return key[row / 4u + min(four, D / 4u - 1u)];
#else
    let k = vec4(four * 4u) + vec4(0u, 1u, 2u, 3u);
    let at = vec4(row) + min(k, vec4(D - 1u)) * ${K_COL}u;
    return select(vec4(0.0), vec4(key[at.x], key[at.y], key[at.z], key[at.w]), k < vec4(D));
#endif
}

fn v_four(b: u32, j: u32, four: u32) -> vec4<f32> {
    let row = ${V_BATCH} + min(j, S - 1u) * ${V_ROW}u;
#if V_ELEM == vec4<f32>
    return value[row / 4u + min(four, E / 4u - 1u)];
#else
    let k = vec4(four * 4u) + vec4(0u, 1u, 2u, 3u);
    let at = vec4(row) + min(k, vec4(E - 1u)) * ${V_COL}u;
    return select(vec4(0.0), vec4(value[at.x], value[at.y], value[at.z], value[at.w]), k < vec4(E));
#endif
}

// The part that an invocation loads of the chunk that begins with a row and a four, with so many rows and fours in
// each.

fn q_part(b: u32, first: u32, four: u32, rows: u32, pitch: u32, lane: u32) -> array<vec4<f32>, LOADS> {
    var part: array<vec4<f32>, LOADS>;
#for N in LOADS
    if ${N}u * WG < rows * pitch {
        part[${N}] = q_four(b, first + (${N}u * WG + lane) / pitch, four + (${N}u * WG + lane) % pitch);
    }
#endfor
    return part;
}

fn k_part(b: u32, first: u32, four: u32, rows: u32, pitch: u32, lane: u32) -> array<vec4<f32>, LOADS> {
    var part: array<vec4<f32>, LOADS>;
#for N in LOADS
    if ${N}u * WG < rows * pitch {
        part[${N}] = k_four(b, first + (${N}u * WG + lane) / pitch, four + (${N}u * WG + lane) % pitch);
    }
#endfor
    return part;
}

fn v_part(b: u32, first: u32, four: u32, rows: u32, pitch: u32, lane: u32) -> array<vec4<f32>, LOADS> {
    var part: array<vec4<f32>, LOADS>;
#for N in LOADS
    if ${N}u * WG < rows * pitch {
        part[${N}] = v_four(b, first + (${N}u * WG + lane) / pitch, four + (${N}u * WG + lane) % pitch);
    }
#endfor
    return part;
}

/// `true` if all queries of a tile see all of its keys.
fn all_visible(query: u32, key: u32) -> bool {
#if CAUSAL == 1
    return query + TILE <= L && key + TILE <= S && key + TILE + L <= query + S + 1u;
#else
    return query + TILE <= L && key + TILE <= S;
#endif
}

/// `true` if query `i` sees key `j`; both may be past the end.
fn is_visible(i: u32, j: u32) -> bool {
#if CAUSAL == 1
    return i < L && j < S && j + L <= i + S;
#else
    return i < L && j < S;
#endif
}

/// The score of a query and a key from their product; both may be past the end.
fn score(b: u32, i: u32, j: u32, product: f32) -> f32 {
#if BIAS == 1
    let at = ${BIAS_BATCH} + min(i, L - 1u) * ${BIAS_ROW}u + min(j, S - 1u) * ${BIAS_COL}u;
    return product * ${SCALE} + bias[at];
#else
    return product * ${SCALE};
#endif
}

/// The place of an invocation in a tile: x across and y down. 32 invocations that run together compute 8×4 of it.
/// Neighbours read the same rows, and those two apart the same columns: hardware merges such reads.
fn position(lane: u32) -> vec2<u32> {
    let x = lane / 32u % (SIDE / 8u) * 8u + lane / 8u % 4u * 2u + lane % 2u;
    let y = lane / 32u / (SIDE / 8u) * 4u + lane / 2u % 4u;
    return vec2(x, y);
}


/// Adds the products of an invocation's rows and columns, over so many fours of the chunks, to a tile's elements.
fn add_products(sums: ptr<function, array<vec4<f32>, ROWS_EACH>>, fours: u32, at: vec2<u32>) {
    for (var first = 0u; first < fours; first += ${UNROLL}u) {
#for U in UNROLL
        {
            let columns = COLUMN_CHUNK + place(at.x, first + ${U}u, DEPTH);
            let b = transpose(mat4x4(
                memory[columns],
                memory[columns + DEPTH],
                memory[columns + 2u * DEPTH],
                memory[columns + 3u * DEPTH],
            ));
#for H in HEIGHT
            let rows_${H} = ROW_CHUNK + place(at.y * HEIGHT + ${H}u, first + ${U}u, DEPTH);
#for R in 4
            {
                let a = memory[rows_${H} + ${R}u * DEPTH];
                let sum = &(*sums)[${H}u * 4u + ${R}u];
                *sum = fma(vec4(a.x), b[0], *sum);
                *sum = fma(vec4(a.y), b[1], *sum);
                *sum = fma(vec4(a.z), b[2], *sum);
                *sum = fma(vec4(a.w), b[3], *sum);
            }
#endfor
#endfor
        }
#endfor
    }
}

/// Adds the products of rows of weights and their operands to an invocation's part of a result: four n of row r is at
/// `n*ROWS_EACH + r`.
fn add_weighted(sums: ptr<function, array<vec4<f32>, ROWS_EACH * EACH>>, at: vec2<u32>) {
    let begin = at.x * EACH / FOURS * (HALF / SHARES);
    for (var first = begin; first < begin + HALF / SHARES; first += 2u) {
#for U in 2
        {
#for N in EACH
            let terms_${N} = TERM_CHUNK + place(first + ${U}u, at.x % FOURS + ${N}u * SIDE, FOURS);
            let b_${N} = mat4x4(
                memory[terms_${N}],
                memory[terms_${N} + FOURS],
                memory[terms_${N} + 2u * FOURS],
                memory[terms_${N} + 3u * FOURS],
            );
#endfor
#for H in HEIGHT
            let rows_${H} = WEIGHTS + place(at.y * HEIGHT + ${H}u, first + ${U}u, HALF);
#for R in 4
            {
                let a = memory[rows_${H} + ${R}u * HALF];
#for N in EACH
                let sum_${N} = &(*sums)[${N}u * ROWS_EACH + ${H}u * 4u + ${R}u];
                *sum_${N} = fma(vec4(a.x), b_${N}[0], *sum_${N});
                *sum_${N} = fma(vec4(a.y), b_${N}[1], *sum_${N});
                *sum_${N} = fma(vec4(a.z), b_${N}[2], *sum_${N});
                *sum_${N} = fma(vec4(a.w), b_${N}[3], *sum_${N});
#endfor
            }
#endfor
#endfor
        }
#endfor
    }
}

/// Stores an invocation's part of a tile for `add_weighted`, if it is in the half of the tile that begins with column
/// `first`.
fn put_weights(tile: ptr<function, array<vec4<f32>, ROWS_EACH>>, first: u32, at: vec2<u32>) {
    if at.x / HALF != first / TERMS {
        return;
    }
#for H in HEIGHT
#for R in 4
    memory[WEIGHTS + place(at.y * HEIGHT + ${H}u, at.x % HALF, HALF) + ${R}u * HALF] = (*tile)[${H}u * 4u + ${R}u];
#endfor
#endfor
}

#if SHARED_SUMS == 1
/// Adds up the sums of the invocations that share features; the first of them gets the total. All invocations of the
/// workgroup call this together, once they no longer read workgroup memory.
fn join_shares(sums: ptr<function, array<vec4<f32>, ROWS_EACH * EACH>>, at: vec2<u32>) {
#for H in HEIGHT
#for R in 4
    memory[place(at.y * HEIGHT + ${H}u, at.x, SIDE) + ${R}u * SIDE] = (*sums)[${H}u * 4u + ${R}u];
#endfor
#endfor
    workgroupBarrier();
    for (var x = at.x + FOURS; x < SIDE; x += FOURS) {
#for H in HEIGHT
#for R in 4
        (*sums)[${H}u * 4u + ${R}u] += memory[place(at.y * HEIGHT + ${H}u, x, SIDE) + ${R}u * SIDE];
#endfor
#endfor
    }
    workgroupBarrier();
}
#endif
