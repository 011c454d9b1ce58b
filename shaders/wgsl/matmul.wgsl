// y[b,i,j] = Σ_k lhs[b,i,k] · rhs[b,k,j], y contiguous, the operands strided.
//
// Bindings: lhs, rhs → y.
//
// FORM tile: one workgroup computes a square block of y, 16·MICRO wide, and each of its 16×16 invocations MICRO×MICRO elements
// of it, 16 apart in either direction so that neighbours write side by side. The operands pass through workgroup memory,
// 16 deep, at most 8.3 KB; BATCH·⌈M/(16·MICRO)⌉·⌈N/(16·MICRO)⌉ workgroups.
//
// FORM dot: one workgroup computes an element, in a tree over K; for long K and few elements. BATCH·M·N workgroups.
//
// Defines: FORM  tile or dot
//          MICRO 1, 2 or 4; FORM tile only
//          WG    a power of two; FORM dot only
//          BATCH, M, N, K
//          A_BATCH, A_ROW, A_COL where batch b of lhs begins, an expression of `b: u32`; its strides along i and k
//          B_BATCH, B_ROW, B_COL the same for rhs, its strides along k and j

#include "shared/epilogue"
#include "shared/grid"
#if FORM == dot
#include "shared/reduce"
#endif

const BATCH: u32 = ${BATCH};
const M: u32 = ${M};
const N: u32 = ${N};
const K: u32 = ${K};
const A_ROW: u32 = ${A_ROW};
const A_COL: u32 = ${A_COL};
const B_ROW: u32 = ${B_ROW};
const B_COL: u32 = ${B_COL};

@group(0) @binding(0) var<storage, read> lhs: array<f32>;
@group(0) @binding(1) var<storage, read> rhs: array<f32>;

fn lhs_batch(b: u32) -> u32 {
    return ${A_BATCH};
}

fn rhs_batch(b: u32) -> u32 {
    return ${B_BATCH};
}

#if FORM == tile
const MICRO: u32 = ${MICRO};
const SIDE: u32 = 16u;
const WG: u32 = SIDE * SIDE;
const TILE: u32 = SIDE * MICRO;
const DEPTH: u32 = 16u;
const TILES_M: u32 = (M + TILE - 1u) / TILE;
const TILES_N: u32 = (N + TILE - 1u) / TILE;
/// Odd, so that a column of a tile is spread over the banks of workgroup memory.
const PITCH: u32 = TILE + 1u;

/// Rows of `lhs` and columns of `rhs`, both as [k][row or column].
var<workgroup> lhs_tile: array<f32, DEPTH * PITCH>;
var<workgroup> rhs_tile: array<f32, DEPTH * PITCH>;

/// Loads the elements `k0..k0 + DEPTH` of the rows and columns from `row0` and `column0` on; zeros past the ends.
fn load_tiles(lane: u32, b: u32, row0: u32, column0: u32, k0: u32) {
    for (var e = lane; e < DEPTH * TILE; e += WG) {
        // Neighbouring invocations read along the dimension of stride 1.
        let lhs_down = A_ROW == 1u;
        let lhs_k = select(e % DEPTH, e / TILE, lhs_down);
        let lhs_row = select(e / DEPTH, e % TILE, lhs_down);
        var value = 0.0;
        if k0 + lhs_k < K && row0 + lhs_row < M {
            value = lhs[lhs_batch(b) + (row0 + lhs_row) * A_ROW + (k0 + lhs_k) * A_COL];
        }
        lhs_tile[lhs_k * PITCH + lhs_row] = value;

        let rhs_down = B_ROW == 1u;
        let rhs_k = select(e / TILE, e % DEPTH, rhs_down);
        let rhs_column = select(e % TILE, e / DEPTH, rhs_down);
        value = 0.0;
        if k0 + rhs_k < K && column0 + rhs_column < N {
            value = rhs[rhs_batch(b) + (k0 + rhs_k) * B_ROW + (column0 + rhs_column) * B_COL];
        }
        rhs_tile[rhs_k * PITCH + rhs_column] = value;
    }
}

// An invocation's block of sums stays in registers only where every index into it is a constant: hence vectors and matrices
// spelled out, and no loops over them.
#if MICRO == 4
alias Line = vec4<f32>;
alias Block = mat4x4<f32>;

fn lhs_line(at: u32) -> Line {
    return Line(lhs_tile[at], lhs_tile[at + SIDE], lhs_tile[at + 2u * SIDE], lhs_tile[at + 3u * SIDE]);
}

fn rhs_line(at: u32) -> Line {
    return Line(rhs_tile[at], rhs_tile[at + SIDE], rhs_tile[at + 2u * SIDE], rhs_tile[at + 3u * SIDE]);
}

fn outer(rows: Line, columns: Line) -> Block {
    return Block(rows.x * columns, rows.y * columns, rows.z * columns, rows.w * columns);
}

fn store_line(b: u32, i: u32, j: u32, line: Line) {
    store_at(b, i, j, line.x);
    store_at(b, i, j + SIDE, line.y);
    store_at(b, i, j + 2u * SIDE, line.z);
    store_at(b, i, j + 3u * SIDE, line.w);
}

fn store_block(b: u32, i: u32, j: u32, block: Block) {
    store_line(b, i, j, block[0]);
    store_line(b, i + SIDE, j, block[1]);
    store_line(b, i + 2u * SIDE, j, block[2]);
    store_line(b, i + 3u * SIDE, j, block[3]);
}
#endif
#if MICRO == 2
alias Line = vec2<f32>;
alias Block = mat2x2<f32>;

fn lhs_line(at: u32) -> Line {
    return Line(lhs_tile[at], lhs_tile[at + SIDE]);
}

fn rhs_line(at: u32) -> Line {
    return Line(rhs_tile[at], rhs_tile[at + SIDE]);
}

fn outer(rows: Line, columns: Line) -> Block {
    return Block(rows.x * columns, rows.y * columns);
}

fn store_line(b: u32, i: u32, j: u32, line: Line) {
    store_at(b, i, j, line.x);
    store_at(b, i, j + SIDE, line.y);
}

fn store_block(b: u32, i: u32, j: u32, block: Block) {
    store_line(b, i, j, block[0]);
    store_line(b, i + SIDE, j, block[1]);
}
#endif
#if MICRO == 1
alias Block = f32;

fn lhs_line(at: u32) -> f32 {
    return lhs_tile[at];
}

fn rhs_line(at: u32) -> f32 {
    return rhs_tile[at];
}

fn outer(row: f32, column: f32) -> Block {
    return row * column;
}

fn store_block(b: u32, i: u32, j: u32, block: Block) {
    store_at(b, i, j, block);
}
#endif

fn store_at(b: u32, i: u32, j: u32, sum: f32) {
    if i < M && j < N {
        store((b * M + i) * N + j, sum);
    }
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let tile = workgroup_index(workgroup, workgroups);
    if tile >= BATCH * TILES_M * TILES_N {
        return;
    }
    let b = tile / (TILES_M * TILES_N);
    let row0 = tile / TILES_N % TILES_M * TILE;
    let column0 = tile % TILES_N * TILE;
    let row = lane / SIDE;
    let column = lane % SIDE;

    var sums: Block;
    for (var k0 = 0u; k0 < K; k0 += DEPTH) {
        workgroupBarrier();
        load_tiles(lane, b, row0, column0, k0);
        workgroupBarrier();
        for (var k = 0u; k < DEPTH; k++) {
            sums += outer(lhs_line(k * PITCH + row), rhs_line(k * PITCH + column));
        }
    }
    store_block(b, row0 + row, column0 + column, sums);
}
#else
const WG: u32 = ${WG};

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = workgroup_index(workgroup, workgroups);
    if index >= BATCH * M * N {
        return;
    }
    let b = index / (M * N);
    let row = lhs_batch(b) + index / N % M * A_ROW;
    let column = rhs_batch(b) + index % N * B_COL;
    var sum = 0.0;
    for (var k = lane; k < K; k += WG) {
        sum += lhs[row + k * A_COL] * rhs[column + k * B_ROW];
    }
    let result = workgroup_sum(lane, sum);
    if lane == 0u {
        store(index, result);
    }
}
#endif
