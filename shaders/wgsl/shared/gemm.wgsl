// A batch of matrix products y[b,i,j] = Σ_k a[b,i,k] · b[b,k,j] of operands in f32. One workgroup computes a tile of
// BM×BN elements of y. Operands pass through workgroup memory, BK terms at a step, in blocks of 4×4. The blocks of the
// next step are loaded while those of this step are multiplied.
//
// UNITS scalar: in f32. Each invocation keeps FM×FN blocks of 4×4 sums in registers.
// UNITS matrix: on matrix units. Each subgroup keeps FM×FN fragments of 16×16 sums in f32. On their way through
// workgroup memory, operands are scaled by powers of two and rounded to f16. The powers come from the peaks of the
// first step's blocks, with room for elements sixteen times as large. Underflow loses at most 2⁻³⁶ of the peak.
// Checking each block as it is stored would take a tenth of the time. Instead, an element that is too large becomes
// infinite, and so do its sums. A tile whose sums are not finite is computed once more, with powers from the peaks of
// all blocks.
// PARTS > 1 cuts the reduction into parts with workgroups of their own: BATCH·PARTS·TILES_M·TILES_N in all.
//
// The kernel includes this file first, because it enables extensions, and declares
//     const BATCH, ROWS, COLUMNS, DEPTH   products, rows of a, columns of b, terms of a sum
//     fn load_a(b: u32, i: u32, k: u32, end: u32) -> mat4x4<f32>
//                 Column c: elements of a at rows i to i + 3 and term k + c.
//     fn load_b(b: u32, k: u32, j: u32, end: u32) -> mat4x4<f32>
//                 Column c: elements of b at columns j to j + 3 and term k + c.
//                 In both, i, j and k are multiples of 4. Elements outside `is_term(_, end)` are zero. Rows and columns
//                 past the end may have any elements of the operand, or zeros: their sums are not stored. Loads must
//                 not branch, or each waits for the last: read element 0 and `select`.
//     fn row_at(b: u32, part: u32, i: u32) -> u32, fn column_at(j: u32) -> u32
//                 Their sum is the place of the sum of row i and column j, for `epilogue` of shared/product.
//     fn next_step(column0: u32, k: u32, end: u32) -> u32
//                 With SKIPS: the next step, k if none is skipped, and past `end` if all are. What is skipped is zero
//                 in all columns of the tile.
//     const PITCH_RESULT   with PLAIN: the distance between the places of neighbouring rows
// It gives is_row, is_column and is_term, and `main`.
//
// Defines: UNITS    scalar or matrix
//          WG, BM, BN, BK   invocations; rows, columns and terms of a step
//          TILES_M, TILES_N   tiles down and across, ⌈ROWS/BM⌉ and ⌈COLUMNS/BN⌉
//          FM, FN   blocks, or fragments, down and across
//          PITCH_A, PITCH_B, FOURS_A, FOURS_B   of the stages in workgroup memory, in fours: the distance of terms, and
//                   the size
//          STAGES   steps that workgroup memory holds, 1 or 2. 1 takes another barrier per step, but leaves memory for
//                   more workgroups, which run while this one waits
//          LOADS    blocks that an invocation loads in a step, (BM + BN)·BK/(16·WG)
//          A_ALONG  k or row: the axis along which neighbours of a are adjacent in memory
//          B_ALONG  k or column
//          PARTS, PART_K   parts of the reduction; terms of each, whole rounds of the loop
//          SUMS, SUMS_AT, GROUP   see shared/product
//  scalar: SKIPS    defined if steps whose terms are zeros are skipped
//          TM, TN   invocations down and across, multiples of 4 and 8
//          UNROLL   a divisor of BK: terms that an iteration of the inner loop adds
//  matrix: SN       subgroups across
//          PITCH, FLOATS_OF_SUMS   of sums in workgroup memory: the distance of a fragment's rows, and the size of a
//                   fragment of each subgroup
//          SUBGROUP invocations of a subgroup; STEPS: BK/16; EACH: 256/SUBGROUP
//          PLAIN    the result's buffer, where tiles are whole and sums are stored as they are; else none

#if UNITS == matrix
enable f16;
enable wgpu_cooperative_matrix;
#include "shared/units"
#else
#include "shared/grid"
#endif
#include "shared/product"

const FM: u32 = ${FM};
const FN: u32 = ${FN};
const STAGES: u32 = ${STAGES};
#if UNITS == matrix
const SN: u32 = ${SN};
const SUBGROUP: u32 = ${SUBGROUP};
#else
const TM: u32 = ${TM};
const TN: u32 = ${TN};
#endif
const WG: u32 = ${WG};
const BM: u32 = ${BM};
const BN: u32 = ${BN};
const BK: u32 = ${BK};
const PARTS: u32 = ${PARTS};
const TILES_M: u32 = ${TILES_M};
const TILES_N: u32 = ${TILES_N};
const PART_K: u32 = ${PART_K};
const PITCH_A: u32 = ${PITCH_A};
const PITCH_B: u32 = ${PITCH_B};
// Where extents are multiples of the tile's, loads need no bounds check.
const WHOLE_ROWS: bool = ROWS % BM == 0u;
const WHOLE_COLUMNS: bool = COLUMNS % BN == 0u;
const WHOLE_DEPTH: bool = PARTS * PART_K == DEPTH;

fn is_row(i: u32) -> bool {
    return WHOLE_ROWS || i < ROWS;
}
fn is_column(j: u32) -> bool {
    return WHOLE_COLUMNS || j < COLUMNS;
}
fn is_term(k: u32, end: u32) -> bool {
    return WHOLE_DEPTH || k < end;
}

/// Groups of four rows of a, and of four columns of b, in a step.
const LINES_A: u32 = BM / 4u;
const LINES_B: u32 = BN / 4u;
const BLOCKS_A: u32 = LINES_A * BK / 4u;

/// Block number `at` of a step's blocks of a: its group of rows, and its group of terms.
fn place_a(at: u32) -> vec2<u32> {
#if A_ALONG == k
    return vec2(at / (BK / 4u), at % (BK / 4u));
#else
    return vec2(at % LINES_A, at / LINES_A);
#endif
}

/// Block number `at` of a step's blocks of b: its group of columns, and its group of terms.
fn place_b(at: u32) -> vec2<u32> {
#if B_ALONG == k
    return vec2(at / (BK / 4u), at % (BK / 4u));
#else
    return vec2(at % LINES_B, at / LINES_B);
#endif
}

/// `true` if block number `first + lane` of a step is one of a. Those come before the blocks of b. `first` is a
/// constant, so the result mostly is one, too.
fn is_of_a(lane: u32, first: u32) -> bool {
    return first + WG <= BLOCKS_A || (first < BLOCKS_A && first + lane < BLOCKS_A);
}

/// Loads block number `first + lane` of the step at k0.
fn fetch(b: u32, row0: u32, column0: u32, k0: u32, end: u32, lane: u32, first: u32) -> mat4x4<f32> {
    if is_of_a(lane, first) {
        let place = place_a(first + lane);
        return load_a(b, row0 + 4u * place.x, k0 + 4u * place.y, end);
    }
    let place = place_b(first + lane - BLOCKS_A);
    return load_b(b, k0 + 4u * place.y, column0 + 4u * place.x, end);
}

#if UNITS == scalar
var<workgroup> tile_a: array<vec4<f32>, ${FOURS_A}>;
var<workgroup> tile_b: array<vec4<f32>, ${FOURS_B}>;

/// Stores block number `first + lane` of a step into a stage in workgroup memory.
fn put(stage: u32, lane: u32, first: u32, block: mat4x4<f32>) {
    if is_of_a(lane, first) {
        let place = place_a(first + lane);
        let line = (stage * BK + 4u * place.y) * PITCH_A + place.x;
#for C in 4
        tile_a[line + ${C}u * PITCH_A] = block[${C}];
#endfor
        return;
    }
    let place = place_b(first + lane - BLOCKS_A);
    let line = (stage * BK + 4u * place.y) * PITCH_B + place.x;
#for C in 4
    tile_b[line + ${C}u * PITCH_B] = block[${C}];
#endfor
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let tile = workgroup_index(workgroup, workgroups);
#insert find_place()
    // 32 invocations that run together compute 4×8 blocks, which read few lines of the tiles. Neighbours read the same
    // line of a, and invocations two apart the same line of b: the hardware merges such reads.
    let x = lane / 32u % (TN / 8u) * 8u + lane / 8u % 4u * 2u + lane % 2u;
    let y = lane / 32u / (TN / 8u) * 4u + lane / 2u % 4u;

#for I in FM
#for J in FN
#for R in 4
    var sum_${I}_${J}_${R} = vec4<f32>();
#endfor
#endfor
#endfor
    let begin = part * PART_K;
    let end = min(begin + PART_K, DEPTH);

    // A round loads one step and multiplies the one before it: the first multiplies nothing, the last loads nothing.
    var stage = 0u;
    var depth = 0u;
#if SKIPS
    for (var k0 = next_step(column0, begin, end); k0 < end + BK; k0 = next_step(column0, k0 + BK, end)) {
#else
    for (var k0 = begin; k0 < end + BK; k0 += BK) {
#endif
        let more = k0 < end;
#for L in LOADS
        var next_${L}: mat4x4<f32>;
#endfor
        if more {
#for L in LOADS
            next_${L} = fetch(batch, row0, column0, k0, end, lane, ${L}u * WG);
#endfor
        }
        let lines_a = stage * BK * PITCH_A + y;
        let lines_b = stage * BK * PITCH_B + x;
        // `depth` is not a constant: fully unrolled, the loop would not fit the instruction cache.
        for (var step = 0u; step < depth; step += ${UNROLL}u) {
#for U in UNROLL
            let line_a_${U} = lines_a + (step + ${U}u) * PITCH_A;
            let line_b_${U} = lines_b + (step + ${U}u) * PITCH_B;
#for I in FM
            let a_${U}_${I} = tile_a[line_a_${U} + ${I}u * TM];
#endfor
#for J in FN
            let b_${U}_${J} = tile_b[line_b_${U} + ${J}u * TN];
#endfor
#for I in FM
#for J in FN
#for R in 4
            sum_${I}_${J}_${R} = fma(vec4<f32>(a_${U}_${I}[${R}]), b_${U}_${J}, sum_${I}_${J}_${R});
#endfor
#endfor
#endfor
#endfor
        }
#if STAGES == 2
        stage = 1u - stage;
#else
        workgroupBarrier();
#endif
        if more {
#for L in LOADS
            put(stage, lane, ${L}u * WG, next_${L});
#endfor
        }
        workgroupBarrier();
        depth = min(BK, end - k0);
    }

#for J in FN
#for C in 4
    let column_${J}_${C} = column0 + (${J}u * TN + x) * 4u + ${C}u;
    let column_at_${J}_${C} = column_at(column_${J}_${C});
#endfor
#endfor
#for I in FM
#for R in 4
    {
        let row = row0 + (${I}u * TM + y) * 4u + ${R}u;
        let row_at = row_at(batch, part, row);
#for J in FN
#for C in 4
        let there_${J}_${C} = is_row(row) && is_column(column_${J}_${C});
        let epilogue_${J}_${C} = epilogue(select(0u, row_at + column_at_${J}_${C}, there_${J}_${C}));
#endfor
#endfor
#for J in FN
#for C in 4
        if there_${J}_${C} {
            finish(epilogue_${J}_${C}, sum_${I}_${J}_${R}[${C}]);
        }
#endfor
#endfor
    }
#endfor
#endfor
}
#else
const PITCH: u32 = ${PITCH};
/// The headroom above the peaks of the first step; see ROOM in shared/fit.
const ROOM: i32 = 3;
/// Magnitudes of an operand that `sums` has room for while they are compared, a power of two. It divides WG.
const FINDERS: u32 = min(WG, 128u);

/// One fragment of sums for each subgroup, on its way to the epilogue; before that, the magnitudes that are compared.
var<workgroup> sums: array<f32, ${FLOATS_OF_SUMS}>;
/// Nonzero in x if a sum is not finite. Four components, because the next variable must begin at a multiple of 16
/// bytes: NVIDIA's driver does not align variables, and loads fragments wrongly from other places.
var<workgroup> too_large: vec4<u32>;
var<workgroup> tile_a: array<vec4<f16>, ${FOURS_A}>;
var<workgroup> tile_b: array<vec4<f16>, ${FOURS_B}>;

/// Notes a sum that is not finite.
fn note_sum(sum: f32) {
    if (bitcast<u32>(sum) & 0x7f800000u) == 0x7f800000u {
        too_large.x = 1u;
    }
}

/// The maximum over the workgroup of each of two values, which are not negative. All invocations call this together. It
/// overwrites 2·FINDERS elements of `sums`.
fn largest_of_workgroup(lane: u32, held: vec2<f32>) -> vec2<f32> {
    workgroupBarrier();
    let at = lane % FINDERS;
    for (var turn = 0u; turn < WG / FINDERS; turn += 1u) {
        if lane / FINDERS == turn {
            sums[at] = max(held.x, select(sums[at], 0.0, turn == 0u));
            sums[FINDERS + at] = max(held.y, select(sums[FINDERS + at], 0.0, turn == 0u));
        }
        workgroupBarrier();
    }
    for (var stride = FINDERS / 2u; stride > 0u; stride /= 2u) {
        if lane < stride {
            sums[lane] = max(sums[lane], sums[lane + stride]);
            sums[FINDERS + lane] = max(sums[FINDERS + lane], sums[FINDERS + lane + stride]);
        }
        workgroupBarrier();
    }
    return vec2(sums[0], sums[FINDERS]);
}

/// The exponents of the powers that scale a and b; `held` has the invocation's largest magnitude of each. All
/// invocations call this together.
fn exponents_of_block(lane: u32, held: vec2<f32>) -> vec2<i32> {
    workgroupBarrier();
    if lane == 0u {
        too_large.x = 0u;
    }
    return exponents_for(largest_of_workgroup(lane, held), ROOM);
}

/// `true` if an operand's elements were all zero, or so small that its exponent was clamped.
fn are_unknown(exponents: vec2<i32>) -> bool {
    return max(exponents.x, exponents.y) == 113;
}

/// The largest finite magnitudes in block number `first + lane`: of a in x, of b in y.
fn magnitudes(lane: u32, first: u32, block: mat4x4<f32>) -> vec2<f32> {
    var of_all = vec4<f32>();
#for C in 4
    of_all = max(of_all, finite_magnitudes(block[${C}]));
#endfor
    return select(vec2(0.0, largest(of_all)), vec2(largest(of_all), 0.0), is_of_a(lane, first));
}

/// The largest finite magnitudes of a and b in all blocks that this invocation loads for the tile.
fn largest_of_all(b: u32, row0: u32, column0: u32, begin: u32, end: u32, lane: u32) -> vec2<f32> {
    var held = vec2<f32>();
    for (var k = begin; k < end; k += BK) {
#for L in LOADS
        held = max(held, magnitudes(lane, ${L}u * WG, fetch(b, row0, column0, k, end, lane, ${L}u * WG)));
#endfor
    }
    return held;
}

/// Stores block number `first + lane` of a step into a stage in workgroup memory, scaled and rounded.
fn put(stage: u32, lane: u32, first: u32, block: mat4x4<f32>, scale: vec2<f32>) {
    if is_of_a(lane, first) {
        let place = place_a(first + lane);
        let line = (stage * BK + 4u * place.y) * PITCH_A + place.x;
#for C in 4
        tile_a[line + ${C}u * PITCH_A] = vec4<f16>(block[${C}] * scale.x);
#endfor
        return;
    }
    let place = place_b(first + lane - BLOCKS_A);
    let line = (stage * BK + 4u * place.y) * PITCH_B + place.x;
#for C in 4
    tile_b[line + ${C}u * PITCH_B] = vec4<f16>(block[${C}] * scale.y);
#endfor
}

// Accumulates the products of a step in sum_I_J. The step is in stage H of workgroup memory. It takes `y` and `x` of
// find_tile.
#macro multiply_step(H)
#for U in STEPS
        // Places are variables, because naga's SPIR-V writer rejects them inside the calls.
#for I in FM
        let at_a_${H}_${U}_${I} = (${H}u * BK + ${U}u * 16u) * PITCH_A + 4u * (y + ${I}u);
        let a_${H}_${U}_${I} = coopLoad<coop_mat16x16<f16, A>>(&tile_a[at_a_${H}_${U}_${I}], PITCH_A);
#endfor
#for J in FN
        let at_b_${H}_${U}_${J} = (${H}u * BK + ${U}u * 16u) * PITCH_B + 4u * (x + ${J}u);
        let b_${H}_${U}_${J} = coopLoadT<coop_mat16x16<f16, B>>(&tile_b[at_b_${H}_${U}_${J}], PITCH_B);
#for I in FM
        sum_${I}_${J} = coopMultiplyAdd(a_${H}_${U}_${I}, b_${H}_${U}_${J}, sum_${I}_${J});
#endfor
#endfor
#endfor
#endmacro

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) invocation: u32,
) {
#insert find_tile()
    var held = vec2<f32>();
#for L in LOADS
    let first_${L} = fetch(batch, row0, column0, begin, end, lane, ${L}u * WG);
    held = max(held, magnitudes(lane, ${L}u * WG, first_${L}));
#endfor
    var exponents = exponents_of_block(lane, held);
    if are_unknown(exponents) {
        exponents = exponents_of_block(lane, largest_of_all(batch, row0, column0, begin, end, lane));
    }
    let scale = powers(exponents);
#for L in LOADS
    put(0u, lane, ${L}u * WG, first_${L}, scale);
#endfor
    workgroupBarrier();
    for (var k0 = begin; k0 < end; k0 += STAGES * BK) {
#for H in STAGES
        let more_${H} = k0 + ${H}u * BK + BK < begin + PART_K;
#for L in LOADS
        var next_${H}_${L}: mat4x4<f32>;
#endfor
        if more_${H} {
#for L in LOADS
            next_${H}_${L} = fetch(batch, row0, column0, k0 + ${H}u * BK + BK, end, lane, ${L}u * WG);
#endfor
        }
#insert multiply_step(H)
#if STAGES == 1
        workgroupBarrier();
#endif
        if more_${H} {
#for L in LOADS
            put((${H}u + 1u) % STAGES, lane, ${L}u * WG, next_${H}_${L}, scale);
#endfor
        }
        workgroupBarrier();
#endfor
    }

    // A sum that is not finite has a term that was too large for f16, or was not finite itself.
    var total = sum_0_0;
#for I in FM
#for J in FN
    if ${I}u + ${J}u > 0u {
        total = total + sum_${I}_${J};
    }
#endfor
#endfor
    let begin_sums = subgroup * 16u * PITCH;
    workgroupBarrier();
    coopStoreT(total, &sums[begin_sums], PITCH);
    workgroupBarrier();
    for (var e = lane % SUBGROUP; e < 256u; e += SUBGROUP) {
        note_sum(sums[begin_sums + e / 16u * PITCH + e % 16u]);
    }
    workgroupBarrier();
    if too_large.x != 0u {
        // Once more. This is rare, so loads do not overlap with products.
        exponents = exponents_of_block(lane, largest_of_all(batch, row0, column0, begin, end, lane));
        let lower = powers(exponents);
#for I in FM
#for J in FN
        sum_${I}_${J} = coop_mat16x16<f32, C>();
#endfor
#endfor
        for (var k = begin; k < end; k += BK) {
            workgroupBarrier();
#for L in LOADS
            put(0u, lane, ${L}u * WG, fetch(batch, row0, column0, k, end, lane, ${L}u * WG), lower);
#endfor
            workgroupBarrier();
#insert multiply_step(0)
        }
    }

    // Sums are scaled back by the smaller power first, so that no product overflows unless the result does.
    let inverse = powers(-exponents);
    let back = vec2(min(inverse.x, inverse.y), max(inverse.x, inverse.y));
#if PLAIN == none
    // They go through workgroup memory, one fragment of each subgroup at a time.
    let member = lane % SUBGROUP;
#for I in FM
#for J in FN
    workgroupBarrier();
    coopStoreT(sum_${I}_${J}, &sums[begin_sums], PITCH);
    workgroupBarrier();
    {
        // Neighbouring invocations store neighbouring elements.
#for E in EACH
        let place_${E} = ${E}u * SUBGROUP + member;
        let row_${E} = row0 + (y + ${I}u) * 16u + place_${E} / 16u;
        let column_${E} = column0 + (x + ${J}u) * 16u + place_${E} % 16u;
        let there_${E} = is_row(row_${E}) && is_column(column_${E});
        let epilogue_${E} = epilogue(select(0u, row_at(batch, part, row_${E}) + column_at(column_${E}), there_${E}));
#endfor
#for E in EACH
        if there_${E} {
            finish(epilogue_${E}, sums[begin_sums + place_${E} / 16u * PITCH + place_${E} % 16u] * back.x * back.y);
        }
#endfor
    }
#endfor
#endfor
#else
#for I in FM
#for J in FN
    let place_${I}_${J} = row_at(batch, part, row0 + (y + ${I}u) * 16u) + column_at(column0 + (x + ${J}u) * 16u);
    let scaled_${I}_${J} = sum_${I}_${J} * back.x * back.y;
    coopStoreT(scaled_${I}_${J}, &${PLAIN}[place_${I}_${J}], PITCH_RESULT);
#endfor
#endfor
#endif
}
#endif
