// y[b,i,j] = Σ_k (a[b,i,k] − za[b,i]) · (b[b,k,j] − zb[b,j]) of bytes, which are whole floats; the sum is an i32 and
// wraps around. FORM conv: a is the weight of a group, b are the patches of its channels in an image, and bias[b,i] is
// added. Floats hold differences, their products, and the sum of 256 products exactly.
//
// Bindings: FORM matmul: a, b, za, zb → y by its epilogue. FORM conv: x[N,C,IN_D,H,W], w[O,C/G,KD,KH,KW], the zero of x
// [1], those of w [O], bias[O] of i32 → y[N,O,OUT_D,P,Q] by its epilogue. SUMS parts: parts[PARTS,…] of i32 instead of
// y, which another kernel adds up.
//
// BY invocation: one computes a result; ⌈RESULTS/WG⌉ workgroups. BY tile: each invocation computes 4×4 results, and a
// workgroup SIDE×SIDE, in steps of 16 terms. The terms of the next step are loaded while those of this step are
// multiplied. PARTS · BATCH · TILES_M · TILES_N workgroups.
//
// Defines: WG, BY
//          FORM    matmul or conv; with conv those of shared/conv2d
//          BATCH, ROWS, COLUMNS, DEPTH  products, and the extents along i, j and k
//          SUMS    whole or parts; parts takes BY tile, and SUMS_AT, the binding of parts
//          SIDE    BY tile: 32 or 64, of (SIDE/4)² = WG invocations
//          LOADS   BY tile: fours of each operand that an invocation loads in a step, 4·SIDE/WG
//          TILES_M, TILES_N             BY tile: tiles down and across
//          PARTS, PART                  BY tile: parts of the reduction; terms of each but the last, a multiple of 16
//          A_BATCH, A_ROW, A_COL        FORM matmul: the offset of product b in a, an expression of `b: u32`; strides
//                                       along i and k
//          B_BATCH, B_ROW, B_COL        likewise of b, with strides along k and j
//          A_ZERO, B_ZERO               likewise: the place of za[b,i], an expression of `i: u32`, the number of the
//                                       row among those of all products; that of zb[b,j]

#if SUMS == whole
#include "shared/epilogue"
#endif
#if FORM == conv
#include "shared/conv2d"
#endif
#if BY == invocation
#include "shared/elements"
#else
#include "shared/grid"
#endif

const BATCH: u32 = ${BATCH};
const ROWS: u32 = ${ROWS};
const COLUMNS: u32 = ${COLUMNS};
const DEPTH: u32 = ${DEPTH};
/// Terms whose sum a float holds exactly.
const EXACT: u32 = 256u;

#if FORM == matmul
@group(0) @binding(0) var<storage, read> lhs: array<f32>;
@group(0) @binding(1) var<storage, read> rhs: array<f32>;
@group(0) @binding(2) var<storage, read> lhs_zeros: array<f32>;
@group(0) @binding(3) var<storage, read> rhs_zeros: array<f32>;

fn row_of(i: u32) -> f32 {
    return lhs_zeros[${A_ZERO}];
}

fn column_of(i: u32) -> f32 {
    return rhs_zeros[${B_ZERO}];
}

fn zero_of_row(b: u32, i: u32) -> f32 {
    return row_of(b * ROWS + i);
}

fn zero_of_column(b: u32, j: u32) -> f32 {
    return column_of(b * COLUMNS + j);
}

fn a_at(b: u32, i: u32, k: u32, zero: f32) -> f32 {
    let begin: u32 = ${A_BATCH};
    return lhs[begin + i * ${A_ROW}u + k * ${A_COL}u] - zero;
}

fn b_at(b: u32, k: u32, j: u32, zero: f32) -> f32 {
    let begin: u32 = ${B_BATCH};
    return rhs[begin + k * ${B_ROW}u + j * ${B_COL}u] - zero;
}

fn start_of(b: u32, i: u32) -> i32 {
    return 0;
}
#else
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> w: array<f32>;
@group(0) @binding(2) var<storage, read> x_zero: array<f32>;
@group(0) @binding(3) var<storage, read> w_zeros: array<f32>;
@group(0) @binding(4) var<storage, read> bias: array<i32>;

const GROUPS: u32 = ${G};

fn zero_of_row(b: u32, i: u32) -> f32 {
    return w_zeros[b % GROUPS * ROWS + i];
}

fn zero_of_column(b: u32, j: u32) -> f32 {
    return x_zero[0];
}

fn a_at(b: u32, i: u32, k: u32, zero: f32) -> f32 {
    return w[(b % GROUPS * ROWS + i) * DEPTH + k] - zero;
}

/// Element k of the patch of output pixel j; outside of the image, the difference is 0.
fn b_at(b: u32, k: u32, j: u32, zero: f32) -> f32 {
    let plane = plane_read(j / (P * Q), k / (KH * KW) % KD);
    let row = row_read(j / Q % P, k / KW % KH);
    let column = column_read(j % Q, k % KW);
    let channel = b * GROUP_C + k / TAPS;
    let there = plane < IN_D && row < H && column < W;
    let at = select(0u, ((channel * IN_D + plane) * H + row) * W + column, there);
    return select(0.0, x[at] - zero, there);
}

fn start_of(b: u32, i: u32) -> i32 {
    return bias[b % GROUPS * ROWS + i];
}
#endif

#if SUMS == parts
@group(0) @binding(${SUMS_AT}) var<storage, read_write> parts: array<i32>;

alias Stored = i32;

struct Epilogue {
    at: u32,
}

fn epilogue(at: u32) -> Epilogue {
    return Epilogue(at);
}

fn finish(e: Epilogue, sum: i32) {
    parts[e.at] = sum;
}
#endif

const RESULTS: u32 = BATCH * ROWS * COLUMNS;

#if BY == invocation
const ELEMENTS: u32 = RESULTS;

fn compute(index: u32) {
    let b = index / (ROWS * COLUMNS);
    let i = index / COLUMNS % ROWS;
    let j = index % COLUMNS;
    let of_row = zero_of_row(b, i);
    let of_column = zero_of_column(b, j);
    var sum = start_of(b, i);
    for (var first = 0u; first < DEPTH; first += EXACT) {
        var part = 0.0;
        for (var k = first; k < min(first + EXACT, DEPTH); k++) {
            part += a_at(b, i, k, of_row) * b_at(b, k, j, of_column);
        }
        sum += i32(part);
    }
    store(index, Stored(sum));
}
#else
const WG: u32 = ${WG};
const SIDE: u32 = ${SIDE};
/// Fours along a side.
const FOURS: u32 = SIDE / 4u;
const STEP: u32 = 16u;
/// Of a step's rows, each of one term; one group of four more than the tile, so that terms lie in different banks.
const PITCH: u32 = SIDE + 4u;
const PART: u32 = ${PART};
const TILES_M: u32 = ${TILES_M};
const TILES_N: u32 = ${TILES_N};

var<workgroup> tile_a: array<vec4<f32>, STEP * PITCH / 4u>;
var<workgroup> tile_b: array<vec4<f32>, STEP * PITCH / 4u>;

/// Differences of terms k to k + 3 of row i; zeros from `end` on.
fn four_of_a(b: u32, i: u32, k: u32, end: u32, zero: f32) -> vec4<f32> {
    let four = vec4(
#for E in 4
        a_at(b, i, min(k + ${E}u, DEPTH - 1u), zero),
#endfor
    );
    return select(vec4<f32>(), four, vec4(k) + vec4(0u, 1u, 2u, 3u) < vec4(end));
}

/// Differences of term k of four columns; zeros from `end` on.
fn four_of_b(b: u32, k: u32, columns: vec4<u32>, end: u32, zeros: vec4<f32>) -> vec4<f32> {
    let term = min(k, DEPTH - 1u);
    let four = vec4(
#for E in 4
        b_at(b, term, columns[${E}], zeros[${E}]),
#endfor
    );
    return select(vec4<f32>(), four, k < end);
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = workgroup_index(workgroup, workgroups);
    let part = index / (BATCH * TILES_M * TILES_N);
    if part >= ${PARTS}u {
        return;
    }
    let b = index / (TILES_M * TILES_N) % BATCH;
    let top = index / TILES_N % TILES_M * SIDE;
    let left = index % TILES_N * SIDE;
    let begin = part * PART;
    let end = min(begin + PART, DEPTH);
    // An invocation loads four terms of rows of a, and four columns of terms of b.
    let term_a = lane % 4u * 4u;
    let term_b = lane / FOURS;
    let columns = min(vec4(left + lane % FOURS * 4u) + vec4(0u, 1u, 2u, 3u), vec4(COLUMNS - 1u));
    let of_columns = vec4(
#for E in 4
        zero_of_column(b, columns[${E}]),
#endfor
    );
#for L in LOADS
    let row_${L} = min(top + lane / 4u + ${L}u * (WG / 4u), ROWS - 1u);
    let of_row_${L} = zero_of_row(b, row_${L});
    var next_a_${L} = four_of_a(b, row_${L}, begin + term_a, end, of_row_${L});
    var next_b_${L} = four_of_b(b, begin + term_b + ${L}u * (WG / FOURS), columns, end, of_columns);
#endfor
    let down = lane / FOURS;
    let across = lane % FOURS;
#for R in 4
    var sum_${R} = vec4<i32>();
#endfor
    for (var first = begin; first < end; first += EXACT) {
#for R in 4
        var exact_${R} = vec4<f32>();
#endfor
        for (var step = first; step < min(first + EXACT, end); step += STEP) {
            workgroupBarrier();
#for L in LOADS
            let row_of_tile_${L} = lane / 4u + ${L}u * (WG / 4u);
#for E in 4
            tile_a[((term_a + ${E}u) * PITCH + row_of_tile_${L}) / 4u][row_of_tile_${L} % 4u] = next_a_${L}[${E}];
#endfor
            tile_b[(term_b + ${L}u * (WG / FOURS)) * PITCH / 4u + across] = next_b_${L};
#endfor
            workgroupBarrier();
#for L in LOADS
            next_a_${L} = four_of_a(b, row_${L}, step + STEP + term_a, end, of_row_${L});
            next_b_${L} = four_of_b(b, step + STEP + term_b + ${L}u * (WG / FOURS), columns, end, of_columns);
#endfor
            for (var k = 0u; k < STEP; k++) {
                let of_a = tile_a[k * PITCH / 4u + down];
                let of_b = tile_b[k * PITCH / 4u + across];
#for R in 4
                exact_${R} += of_a[${R}] * of_b;
#endfor
            }
        }
#for R in 4
        sum_${R} += vec4<i32>(exact_${R});
#endfor
    }
#for R in 4
    {
        let i = top + down * 4u + ${R}u;
        let first = part * RESULTS + (b * ROWS + i) * COLUMNS;
        let start = select(0, start_of(b, min(i, ROWS - 1u)), part == 0u);
#for C in 4
        let column_${C} = left + across * 4u + ${C}u;
        let there_${C} = i < ROWS && column_${C} < COLUMNS;
        let epilogue_${C} = epilogue(select(0u, first + column_${C}, there_${C}));
#endfor
#for C in 4
        if there_${C} {
            finish(epilogue_${C}, Stored(sum_${R}[${C}] + start));
        }
#endfor
    }
#endfor
}
#endif
