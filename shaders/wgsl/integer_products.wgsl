// y[b,i,j] = Σ_k (a[b,i,k] − za[b,i]) · (b[b,k,j] − zb[b,j]) of bytes, which are whole floats; the sum is an i32 and
// wraps around. FORM conv: a is the weight of a group, b are the patches of its channels in an image, and bias[b,i] is
// added. Floats hold differences, their products, and the sum of 256 products exactly.
//
// Bindings: FORM matmul: a, b, za, zb → y by its epilogue. FORM conv: x[N,C,IN_D,H,W], w[O,C/G,KD,KH,KW], the zero of x
// [1], those of w [O], bias[O] of i32 → y[N,O,OUT_D,P,Q] by its epilogue.
//
// BY invocation: one computes a result; ⌈RESULTS/WG⌉ workgroups. BY tile: 16×16 invocations compute 64×64 results in
// steps of 16 terms; BATCH · TILES_M · TILES_N workgroups.
//
// Defines: WG, BY
//          FORM    matmul or conv; with conv those of shared/conv2d
//          RESULT  f32 or i32, the type of y
//          BATCH, ROWS, COLUMNS, DEPTH  products, and the extents along i, j and k
//          TILES_M, TILES_N             BY tile: tiles down and across
//          A_BATCH, A_ROW, A_COL        FORM matmul: the offset of product b in a, an expression of `b: u32`; strides
//                                       along i and k
//          B_BATCH, B_ROW, B_COL        likewise of b, with strides along k and j
//          A_ZERO, B_ZERO               likewise: the place of za[b,i], an expression of `i: u32`, the number of the
//                                       row among those of all products; that of zb[b,j]

#include "shared/epilogue"
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

fn store_sum(b: u32, i: u32, j: u32, sum: i32) {
    if i < ROWS && j < COLUMNS {
#if RESULT == f32
        store((b * ROWS + i) * COLUMNS + j, f32(sum));
#else
        store((b * ROWS + i) * COLUMNS + j, sum);
#endif
    }
}

#if BY == invocation
const ELEMENTS: u32 = BATCH * ROWS * COLUMNS;

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
    store_sum(b, i, j, sum);
}
#else
const WG: u32 = ${WG};
const SIDE: u32 = 64u;
const STEP: u32 = 16u;
/// Of a step's rows, each of one term; one group of four more than the tile, so that terms lie in different banks.
const PITCH: u32 = SIDE + 4u;

var<workgroup> tile_a: array<vec4<f32>, STEP * PITCH / 4u>;
var<workgroup> tile_b: array<vec4<f32>, STEP * PITCH / 4u>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = workgroup_index(workgroup, workgroups);
    let b = index / (${TILES_M}u * ${TILES_N}u);
    if b >= BATCH {
        return;
    }
    let top = index / ${TILES_N}u % ${TILES_M}u * SIDE;
    let left = index % ${TILES_N}u * SIDE;
    // Four terms of a row of a, and four columns of a term of b.
    let row = min(top + lane / 4u, ROWS - 1u);
    let of_row = zero_of_row(b, row);
    let four = left + lane % 16u * 4u;
    let columns = min(vec4(four) + vec4(0u, 1u, 2u, 3u), vec4(COLUMNS - 1u));
    var of_columns = vec4<f32>();
    for (var e = 0u; e < 4u; e++) {
        of_columns[e] = zero_of_column(b, columns[e]);
    }
    let down = lane / 16u;
    let across = lane % 16u;
    var sum_0 = vec4<i32>();
    var sum_1 = vec4<i32>();
    var sum_2 = vec4<i32>();
    var sum_3 = vec4<i32>();
    for (var first = 0u; first < DEPTH; first += EXACT) {
        var part_0 = vec4<f32>();
        var part_1 = vec4<f32>();
        var part_2 = vec4<f32>();
        var part_3 = vec4<f32>();
        for (var step = first; step < min(first + EXACT, DEPTH); step += STEP) {
            workgroupBarrier();
            for (var e = 0u; e < 4u; e++) {
                let k = lane % 4u * 4u + e;
                let there = step + k < DEPTH;
                let value = a_at(b, row, min(step + k, DEPTH - 1u), of_row);
                let place = k * PITCH + lane / 4u;
                tile_a[place / 4u][place % 4u] = select(0.0, value, there);
            }
            let k = lane / 16u;
            var values = vec4<f32>();
            for (var e = 0u; e < 4u; e++) {
                values[e] = b_at(b, min(step + k, DEPTH - 1u), columns[e], of_columns[e]);
            }
            tile_b[(k * PITCH + lane % 16u * 4u) / 4u] = select(vec4<f32>(), values, step + k < DEPTH);
            workgroupBarrier();
            for (var k = 0u; k < STEP; k++) {
                let a = tile_a[k * PITCH / 4u + down];
                let b = tile_b[k * PITCH / 4u + across];
                part_0 += a.x * b;
                part_1 += a.y * b;
                part_2 += a.z * b;
                part_3 += a.w * b;
            }
        }
        sum_0 += vec4<i32>(part_0);
        sum_1 += vec4<i32>(part_1);
        sum_2 += vec4<i32>(part_2);
        sum_3 += vec4<i32>(part_3);
    }
    let sums = array(sum_0, sum_1, sum_2, sum_3);
    for (var r = 0u; r < 4u; r++) {
        let i = top + down * 4u + r;
        let start = start_of(b, min(i, ROWS - 1u));
        for (var c = 0u; c < 4u; c++) {
            store_sum(b, i, left + across * 4u + c, sums[r][c] + start);
        }
    }
}
#endif
