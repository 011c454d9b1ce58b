// Tiles of ROWS×TILE scores for the attention kernels. A workgroup computes one tile at a time. Each invocation
// computes ROWS_EACH × 4·WIDTH scores. Of the result, it computes the same rows and 4·EACH features. Operands pass
// through workgroup memory in chunks. The next chunk is loaded while this one is multiplied.
//
// Defines: WG       ROWS·TILE/(16·HEIGHT·WIDTH)
//          ROWS     128, 64 or 32
//          TILE     64 or 32
//          HEIGHT   groups of four rows of an invocation, 1 or 2; ROWS_EACH is 4·HEIGHT
//          WIDTH    groups of four columns of a tile of an invocation, 1 or 2
//          DEPTH    fours of features in a chunk for scores, a power of two
//          FOURS    fours of features of a result that a workgroup computes, a power of two from 4 to 32
//          LOADS    the most fours of a chunk that an invocation loads
//          MEMORY   fours of workgroup memory: for chunks of rows and of columns, or weights and their operands, or
//                   shares of sums
//          SIDE     invocations along the columns of a tile, TILE/(4·WIDTH)
//          TERMS    columns of a tile that a weighted sum takes at a time, min(4·DEPTH, TILE/2)
//          COLUMN_CHUNK   the place in workgroup memory of the chunk of columns, after that of rows
//          EACH     max(1, FOURS/SIDE); SHARES: SIDE·EACH/FOURS
//          BLOCKS, PARTS   tiles of rows of a batch entry, and the parts of each: BATCH·BLOCKS·PARTS workgroups
//          SHARED_SUMS   1 where FOURS is less than SIDE
//          UNROLL   fours of features that an iteration of the loop over a chunk for scores adds: a divisor of DEPTH,
//                   and of the fours of D and of E
//          UNROLL_WEIGHTED   fours of columns that an iteration of a weighted sum adds, a divisor of PIECE/SHARES
//          UNROLLED   1: both are the largest such divisors
//          BATCH    batch entries of the result
//          L, S, D, E
//          SCALE    a literal
//          CAUSAL   1: query i sees the keys up to i + S − L
//          PAIRED   1: all workgroups run at once, two on each multiprocessor
//          BIAS     1: there is a bias
//          Q_BATCH, Q_ROW, Q_COL   the offset of batch b of q, an expression of `b: u32`, and the strides of q;
//                                  likewise K_…, V_… and BIAS_…. b counts heads of queries
//          Q_ELEM, K_ELEM, V_ELEM  vec4<f32> where four neighbours along a row can be read at once, else f32

#include "shared/grid"
#include "shared/float"

const WG: u32 = ${WG};
const ROWS: u32 = ${ROWS};
const TILE: u32 = ${TILE};
const WIDTH: u32 = ${WIDTH};
/// Invocations along the columns of a tile.
const SIDE: u32 = ${SIDE};
const FOURS: u32 = ${FOURS};
const HEIGHT: u32 = ${HEIGHT};
const ROWS_EACH: u32 = ${ROWS_EACH};
const EACH: u32 = ${EACH};
/// Invocations that share the same features of a result. Each sums over its share of the columns.
const SHARES: u32 = ${SHARES};
const BATCH: u32 = ${BATCH};
const L: u32 = ${L};
const S: u32 = ${S};
const D: u32 = ${D};
const E: u32 = ${E};

/// Fours of features per row of a chunk for scores. Such a chunk has ROWS or TILE rows.
const DEPTH: u32 = ${DEPTH};
/// Columns of a tile that a weighted sum takes at a time.
const TERMS: u32 = ${TERMS};
/// Fours of weights per row of these columns.
const PIECE: u32 = TERMS / 4u;

// Tiles of rows, and parts of each that have workgroups of their own.
const BLOCKS: u32 = ${BLOCKS};
const PARTS: u32 = ${PARTS};

// Two regions of workgroup memory. Both hold chunks while scores are computed. Then one holds weights, and the other
// the operands that are weighted.
const ROW_CHUNK: u32 = 0u;
const COLUMN_CHUNK: u32 = ${COLUMN_CHUNK};
/// A piece of a tile of weights: all rows, and TERMS columns.
const WEIGHTS: u32 = ROW_CHUNK;
/// The operands of the weights, TERMS rows of FOURS.
const TERM_CHUNK: u32 = COLUMN_CHUNK;

var<workgroup> memory: array<vec4<f32>, ${MEMORY}>;

/// The place of four number `four` in the first row of a group of four rows, each `pitch` fours long. One four of
/// padding follows each group, so that invocations that read neighbouring groups hit different banks.
fn place(group: u32, four: u32, pitch: u32) -> u32 {
    return group * (4u * pitch + 1u) + four;
}

/// The most fours of a chunk that an invocation loads. The array type of that many has no alias: naga's HLSL writer
/// would define a function twice, once under each name.
const LOADS: u32 = ${LOADS};

/// Stores an invocation's part of a chunk of `rows` rows of `pitch` fours.
fn put(region: u32, part: array<vec4<f32>, LOADS>, rows: u32, pitch: u32, lane: u32) {
#for N in LOADS
    if ${N}u * WG < rows * pitch {
#if UNROLLED == 1
        // The same place, in fewer steps. Where loops are not unrolled, some kernels are 10 % slower this way.
        let at = ${N}u * WG + lane;
        memory[region + at + at / (4u * pitch)] = part[${N}];
#else
        let row = (${N}u * WG + lane) / pitch;
        memory[region + place(row / 4u, (${N}u * WG + lane) % pitch, pitch) + row % 4u * pitch] = part[${N}];
#endif
    }
#endfor
}

// Four features of row `i` of an operand. Rows past the last repeat the last. Features past the last are zeros with
// f32; with vec4<f32> they are arbitrary, and no result depends on them.
#macro load_four(OPERAND, ELEM, BEGIN, ROW, COL, COUNT, FEATURES)
    let row = ${BEGIN} + min(i, ${COUNT}u - 1u) * ${ROW}u;
#if ELEM == vec4<f32>
    return ${OPERAND}[row / 4u + min(four, ${FEATURES}u / 4u - 1u)];
#else
    let k = vec4(four * 4u) + vec4(0u, 1u, 2u, 3u);
    let at = vec4(row) + min(k, vec4(${FEATURES}u - 1u)) * ${COL}u;
    let features = vec4(${OPERAND}[at.x], ${OPERAND}[at.y], ${OPERAND}[at.z], ${OPERAND}[at.w]);
    return select(vec4(0.0), features, k < vec4(${FEATURES}u));
#endif
#endmacro

fn q_four(b: u32, i: u32, four: u32) -> vec4<f32> {
#insert load_four(q, Q_ELEM, Q_BATCH, Q_ROW, Q_COL, L, D)
}

fn k_four(b: u32, i: u32, four: u32) -> vec4<f32> {
#insert load_four(key, K_ELEM, K_BATCH, K_ROW, K_COL, S, D)
}

fn v_four(b: u32, i: u32, four: u32) -> vec4<f32> {
#insert load_four(value, V_ELEM, V_BATCH, V_ROW, V_COL, S, E)
}

// An invocation's part of the chunk of `rows` rows of `pitch` fours that begins at row `first` and four `four`.
#macro load_part(FOUR)
    var part: array<vec4<f32>, LOADS>;
#for N in LOADS
    if ${N}u * WG < rows * pitch {
        part[${N}] = ${FOUR}(b, first + (${N}u * WG + lane) / pitch, four + (${N}u * WG + lane) % pitch);
    }
#endfor
    return part;
#endmacro

fn q_part(b: u32, first: u32, four: u32, rows: u32, pitch: u32, lane: u32) -> array<vec4<f32>, LOADS> {
#insert load_part(q_four)
}

fn k_part(b: u32, first: u32, four: u32, rows: u32, pitch: u32, lane: u32) -> array<vec4<f32>, LOADS> {
#insert load_part(k_four)
}

fn v_part(b: u32, first: u32, four: u32, rows: u32, pitch: u32, lane: u32) -> array<vec4<f32>, LOADS> {
#insert load_part(v_four)
}

/// The batch entry and the block of rows of workgroup `number`. In causal attention, blocks are launched in order of
/// work, largest first, to shorten the tail. With PAIRED, the second half runs smallest first, so a large and a small
/// block share a multiprocessor.
fn turn(number: u32, blocks: u32) -> vec2<u32> {
#if CAUSAL == 1
    var turn = number;
#if PAIRED == 1
    let count = BATCH * blocks;
    if number >= count / 2u {
        turn = count / 2u + count - 1u - number;
    }
#endif
    return vec2(turn % BATCH, turn / BATCH);
#else
    return vec2(number / blocks, number % blocks);
#endif
}

/// `true` if all of `queries` queries from `query` on see all of `keys` keys from `key` on.
fn all_visible(query: u32, queries: u32, key: u32, keys: u32) -> bool {
#if CAUSAL == 1
    return query + queries <= L && key + keys <= S && key + keys + L <= query + S + 1u;
#else
    return query + queries <= L && key + keys <= S;
#endif
}

/// `true` if none of `queries` queries from `query` on sees any of the keys from `key` on.
fn none_visible(query: u32, queries: u32, key: u32) -> bool {
#if CAUSAL == 1
    return key + L >= query + queries + S;
#else
    return false;
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

/// The score of query `i` and key `j` from their product; both may be past the end.
fn score(b: u32, i: u32, j: u32, product: f32) -> f32 {
#if BIAS == 1
    let at = ${BIAS_BATCH} + min(i, L - 1u) * ${BIAS_ROW}u + min(j, S - 1u) * ${BIAS_COL}u;
    return product * ${SCALE} + bias[at];
#else
    return product * ${SCALE};
#endif
}

/// An invocation's position in a tile: x across and y down. 32 invocations that run together cover 8×4 positions.
/// Neighbours read the same rows, and invocations two apart the same columns: the hardware merges such reads.
fn position(lane: u32) -> vec2<u32> {
    let x = lane / 32u % (SIDE / 8u) * 8u + lane / 8u % 4u * 2u + lane % 2u;
    let y = lane / 32u / (SIDE / 8u) * 4u + lane / 2u % 4u;
    return vec2(x, y);
}

/// The first column, within the tile, of an invocation's group `w` of four columns.
fn column_of(at: vec2<u32>, w: u32) -> u32 {
    return (at.x + w * SIDE) * 4u;
}

/// The number of fours in the chunk that begins at four `first` of `features` features: a constant if all chunks are
/// whole.
fn fours_from(first: u32, features: u32) -> u32 {
    let fours = (features + 3u) / 4u;
    return select(min(DEPTH, fours - first), DEPTH, fours % DEPTH == 0u);
}

/// Accumulates the products of an invocation's rows and columns over the first `fours` fours of the chunks. The sum of
/// row r and group w of columns is at `w*ROWS_EACH + r`.
fn add_products(sums: ptr<function, array<vec4<f32>, ROWS_EACH * WIDTH>>, fours: u32, at: vec2<u32>) {
    for (var first = 0u; first < fours; first += ${UNROLL}u) {
#for U in UNROLL
        {
#for W in WIDTH
            let columns_${W} = COLUMN_CHUNK + place(at.x + ${W}u * SIDE, first + ${U}u, DEPTH);
            let b_${W} = transpose(mat4x4(
                memory[columns_${W}],
                memory[columns_${W} + DEPTH],
                memory[columns_${W} + 2u * DEPTH],
                memory[columns_${W} + 3u * DEPTH],
            ));
#endfor
#for H in HEIGHT
            let rows_${H} = ROW_CHUNK + place(at.y * HEIGHT + ${H}u, first + ${U}u, DEPTH);
#for R in 4
            {
                let a = memory[rows_${H} + ${R}u * DEPTH];
#for W in WIDTH
                let sum_${W} = &(*sums)[${W}u * ROWS_EACH + ${H}u * 4u + ${R}u];
                *sum_${W} = fma(vec4(a.x), b_${W}[0], *sum_${W});
                *sum_${W} = fma(vec4(a.y), b_${W}[1], *sum_${W});
                *sum_${W} = fma(vec4(a.z), b_${W}[2], *sum_${W});
                *sum_${W} = fma(vec4(a.w), b_${W}[3], *sum_${W});
#endfor
            }
#endfor
#endfor
        }
#endfor
    }
}

/// Accumulates the products of rows of weights and their operands in an invocation's part of a result. The sum of row r
/// and four n is at `n*ROWS_EACH + r`.
fn add_weighted(sums: ptr<function, array<vec4<f32>, ROWS_EACH * EACH>>, at: vec2<u32>) {
    let begin = at.x * EACH / FOURS * (PIECE / SHARES);
    for (var first = begin; first < begin + PIECE / SHARES; first += ${UNROLL_WEIGHTED}u) {
#for U in UNROLL_WEIGHTED
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
            let rows_${H} = WEIGHTS + place(at.y * HEIGHT + ${H}u, first + ${U}u, PIECE);
#for R in 4
            {
                let a = memory[rows_${H} + ${R}u * PIECE];
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

/// Stores an invocation's weights of the piece that begins at column `first`, for `add_weighted`.
fn put_weights(tile: ptr<function, array<vec4<f32>, ROWS_EACH * WIDTH>>, first: u32, at: vec2<u32>) {
#for W in WIDTH
    if column_of(at, ${W}u) / TERMS == first / TERMS {
#for H in HEIGHT
#for R in 4
        memory[WEIGHTS + place(at.y * HEIGHT + ${H}u, column_of(at, ${W}u) / 4u % PIECE, PIECE) + ${R}u * PIECE] =
            (*tile)[${W}u * ROWS_EACH + ${H}u * 4u + ${R}u];
#endfor
#endfor
    }
#endfor
}

#if SHARED_SUMS == 1
/// Adds up the sums of the invocations that share features. The first of these gets the total. All invocations of the
/// workgroup call this together, once none of them reads workgroup memory any more.
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
