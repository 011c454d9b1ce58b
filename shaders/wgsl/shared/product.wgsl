// Shared by the kernels of tiled products (shared/gemm, `matmul_bf16`, `conv2d_taps`): the tile that a workgroup
// computes on matrix units, and the destination of its sums.
//
// Defines: SUMS    whole: sums go to the epilogue; or parts: they go to a buffer, which another kernel adds up
//          SUMS_AT with SUMS parts, that buffer's binding
//          LINES   defined where sums are stored eight at a time
//
// Gives: struct Epilogue, fn epilogue(at: u32) -> Epilogue
//        fn finish(e: Epilogue, sum: f32), or with LINES fn finish(e: Epilogue, line: Eight)
//                `finish(epilogue(at), sum)` stores the element at `at` of the result or of the parts; with LINES, the
//                eight elements from `at` on. See shared/epilogue and shared/epilogue_lines.
//        macros find_place() and find_tile()

#if SUMS == whole
#if LINES
#include "shared/epilogue_lines"
#else
#include "shared/epilogue"
#endif
#else
struct Epilogue {
    at: u32,
}

fn epilogue(at: u32) -> Epilogue {
    return Epilogue(at);
}

#if LINES
#include "shared/bf16"

@group(0) @binding(${SUMS_AT}) var<storage, read_write> parts: array<vec4<f32>>;

fn finish(e: Epilogue, line: Eight) {
    parts[e.at / 4u] = line.first;
    parts[e.at / 4u + 1u] = line.second;
}
#else
@group(0) @binding(${SUMS_AT}) var<storage, read_write> parts: array<f32>;

fn finish(e: Epilogue, sum: f32) {
    parts[e.at] = sum;
}
#endif
#endif

// The place of a tile. It takes `tile`, the constants BATCH, PARTS, TILES_M, TILES_N, BM and BN, and ends an invocation
// that has no tile. With the define GROUP, workgroups take the tiles of so many rows of tiles column by column, so that
// those which run at once read few rows and columns, which stay in the cache. Otherwise, they take row by row. It
// declares
//     batch, part, row0, column0   product, part of the reduction, first row and first column of the tile
#macro find_place()
    if tile >= BATCH * PARTS * TILES_M * TILES_N {
        return;
    }
    let batch = tile / (PARTS * TILES_M * TILES_N);
    let part = tile / (TILES_M * TILES_N) % PARTS;
#if GROUP
    let of_product = tile % (TILES_M * TILES_N);
    let of_group = of_product % (${GROUP}u * TILES_N);
    let first_row = of_product / (${GROUP}u * TILES_N) * ${GROUP}u;
    let height = min(TILES_M - first_row, ${GROUP}u);
    let row0 = (first_row + of_group % height) * BM;
    let column0 = of_group / height * BN;
#else
    let row0 = tile / TILES_N % TILES_M * BM;
    let column0 = tile % TILES_N * BN;
#endif
#endmacro

// The beginning of a `main` on matrix units. It takes main's `workgroup`, `workgroups` and `invocation`, the constants
// PART_K, DEPTH, SUBGROUP and WG, those of find_place, and the defines FM and FN. It declares what find_place does, and
//     lane, subgroup            the invocation's number, and its subgroup's
//     begin, end                the terms of the part
//     y, x                      the subgroup's first fragment, counted in fragments down and across the tile
//     sum_I_J                   the subgroup's FM×FN fragments of sums, zero
#macro find_tile()
    // Not `workgroup_index`: matrix units require control flow that naga knows to be uniform. The remainder bounds
    // `lane`, so that the compiler knows which operand, or which line, a load belongs to.
    let lane = invocation % WG;
    let tile = workgroup.x + workgroup.y * workgroups.x;
#insert find_place()
    let subgroup = lane / SUBGROUP;
    let x = subgroup % SN * FN;
    let y = subgroup / SN * FM;

#for I in FM
#for J in FN
    var sum_${I}_${J}: coop_mat16x16<f32, C>;
#endfor
#endfor
    let begin = part * PART_K;
    let end = min(begin + PART_K, DEPTH);
#endmacro
