// y[b,i,j] = Σ_k a[b,i,k] · b[b,k,j] on matrix units, stored in lines. Operands are bf16, or f32 that is rounded to
// bf16. Each lies in lines of eight, along the reduction or across it. A workgroup computes a tile of BM×BN. Operands
// pass through workgroup memory, BK terms at a step. The next step is loaded while this one is multiplied.
//
// Bindings: a, b → y by its epilogue (SUMS whole), or parts[part,b,i,j] (SUMS parts). Workgroups:
// BATCH·PARTS·⌈M/BM⌉·⌈N/BN⌉.
//
// Defines: BATCH, M, N, K     N is a multiple of 8, as are extents along lines
//          A_ALONG, B_ALONG   the axis of lines: k or row; k or column
//          A_PITCH, B_PITCH   the distance from a line to its neighbour across
//          A_BATCH, B_BATCH   the offset of product b, an expression of `b: u32`
//          A_FORMAT, B_FORMAT bf16, where pitch and offset are multiples of 8; or full, where they are of 4
//          WG, BM, BN, BK   invocations; rows, columns and terms of a step
//          TILES_M, TILES_N   tiles down and across
//          SN       subgroups across a tile
//          FM, FN   fragments of 16×16 of each subgroup, down and across
//          STEPS    BK/16
//          LOADS_A, LOADS_B   lines that an invocation loads in a step: BM·BK/(8·WG) and BN·BK/(8·WG)
//          PITCH_A, PITCH_B, FOURS_A, FOURS_B   of a step in workgroup memory, in fours: the distance of its rows of
//                   lines, and its size
//          PARTS, PART_K   parts of the reduction; terms of each, whole steps
//          TURNS and others   see shared/fit
//          EACH     lines of a fragment that an invocation stores, ⌈32/SUBGROUP⌉
//          SUMS, SUMS_AT, LINES   see shared/product; LINES is defined
//          BF16_UNITS   see shared/units

// Subgroups store their sums in turns. All invocations of a subgroup do so together, which naga cannot know.
diagnostic(off, derivative_uniformity);
enable f16;
enable wgpu_cooperative_matrix;

#include "shared/product"
#include "shared/fit"

const BATCH: u32 = ${BATCH};
const ROWS: u32 = ${M};
const COLUMNS: u32 = ${N};
const DEPTH: u32 = ${K};
const SN: u32 = ${SN};
const FM: u32 = ${FM};
const FN: u32 = ${FN};
const BK: u32 = ${BK};
const WG: u32 = ${WG};
const BM: u32 = ${BM};
const BN: u32 = ${BN};
const PARTS: u32 = ${PARTS};
const TILES_M: u32 = ${TILES_M};
const TILES_N: u32 = ${TILES_N};
const PART_K: u32 = ${PART_K};
// Where extents are multiples of the tile's, loads need no bounds check.
const WHOLE_A: bool = ROWS % BM == 0u && PARTS * PART_K == DEPTH;
const WHOLE_B: bool = COLUMNS % BN == 0u && PARTS * PART_K == DEPTH;

// BESIDE: lines of a step that are adjacent in memory.
#if A_ALONG == k
const BESIDE_A: u32 = BK / 8u;
#else
const BESIDE_A: u32 = BM / 8u;
#endif
#if B_ALONG == k
const BESIDE_B: u32 = BK / 8u;
#else
const BESIDE_B: u32 = BN / 8u;
#endif
const PITCH_A: u32 = ${PITCH_A};
const PITCH_B: u32 = ${PITCH_B};

#if A_FORMAT == bf16
alias LineA = vec4<u32>;
@group(0) @binding(0) var<storage, read> a: array<vec4<u32>>;
#else
alias LineA = Eight;
@group(0) @binding(0) var<storage, read> a: array<vec4<f32>>;
#endif
#if B_FORMAT == bf16
alias LineB = vec4<u32>;
@group(0) @binding(1) var<storage, read> b: array<vec4<u32>>;
#else
alias LineB = Eight;
@group(0) @binding(1) var<storage, read> b: array<vec4<f32>>;
#endif

var<workgroup> tile_a: array<Four, ${FOURS_A}>;
var<workgroup> tile_b: array<Four, ${FOURS_B}>;

fn begin_a(b: u32) -> u32 {
    return ${A_BATCH};
}

fn begin_b(b: u32) -> u32 {
    return ${B_BATCH};
}

/// The row and term at which line number `at` of a step begins.
fn place_a(at: u32) -> vec2<u32> {
#if A_ALONG == k
    return vec2(at / BESIDE_A, at % BESIDE_A * 8u);
#else
    return vec2(at % BESIDE_A * 8u, at / BESIDE_A);
#endif
}

/// The column and term at which line number `at` of a step begins.
fn place_b(at: u32) -> vec2<u32> {
#if B_ALONG == k
    return vec2(at / BESIDE_B, at % BESIDE_B * 8u);
#else
    return vec2(at % BESIDE_B * 8u, at / BESIDE_B);
#endif
}

/// The line of a that begins at a row and a term; zeros outside the matrix or the part.
fn load_a(begin: u32, place: vec2<u32>, end: u32) -> LineA {
    let there = WHOLE_A || (place.x < ROWS && place.y < end);
#if A_ALONG == k
    let at = select(0u, begin + place.x * ${A_PITCH} + place.y, there);
#else
    let at = select(0u, begin + place.y * ${A_PITCH} + place.x, there);
#endif
#if A_FORMAT == bf16
    return select(vec4<u32>(), a[at / 8u], there);
#else
    return Eight(select(vec4<f32>(), a[at / 4u], there), select(vec4<f32>(), a[at / 4u + 1u], there));
#endif
}

/// The line of b that begins at a column and a term; zeros outside the matrix or the part.
fn load_b(begin: u32, place: vec2<u32>, end: u32) -> LineB {
    let there = WHOLE_B || (place.x < COLUMNS && place.y < end);
#if B_ALONG == k
    let at = select(0u, begin + place.x * ${B_PITCH} + place.y, there);
#else
    let at = select(0u, begin + place.y * ${B_PITCH} + place.x, there);
#endif
#if B_FORMAT == bf16
    return select(vec4<u32>(), b[at / 8u], there);
#else
    return Eight(select(vec4<f32>(), b[at / 4u], there), select(vec4<f32>(), b[at / 4u + 1u], there));
#endif
}

fn bits_a(line: LineA) -> vec4<u32> {
#if A_FORMAT == bf16
    return line;
#else
    return line_of(line);
#endif
}

fn bits_b(line: LineB) -> vec4<u32> {
#if B_FORMAT == bf16
    return line;
#else
    return line_of(line);
#endif
}

fn put_a(at: u32, line: LineA, scale: f32) {
    let place = at / BESIDE_A * PITCH_A + at % BESIDE_A * 2u;
    let bits = bits_a(line);
    tile_a[place] = first_four(bits, scale);
    tile_a[place + 1u] = last_four(bits, scale);
}

fn put_b(at: u32, line: LineB, scale: f32) {
    let place = at / BESIDE_B * PITCH_B + at % BESIDE_B * 2u;
    let bits = bits_b(line);
    tile_b[place] = first_four(bits, scale);
    tile_b[place + 1u] = last_four(bits, scale);
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) invocation: u32,
) {
#insert find_tile()
    let of_a = begin_a(batch);
    let of_b = begin_b(batch);
    let origin_a = vec2(row0, begin);
    let origin_b = vec2(column0, begin);
    var held = vec2<f32>();
#for L in LOADS_A
    let to_a_${L} = lane + ${L}u * WG;
    let place_a_${L} = origin_a + place_a(to_a_${L});
    var line_a_${L} = load_a(of_a, place_a_${L}, end);
    held.x = max(held.x, finite_magnitude(bits_a(line_a_${L})));
#endfor
#for L in LOADS_B
    let to_b_${L} = lane + ${L}u * WG;
    let place_b_${L} = origin_b + place_b(to_b_${L});
    var line_b_${L} = load_b(of_b, place_b_${L}, end);
    held.y = max(held.y, finite_magnitude(bits_b(line_b_${L})));
#endfor
    let begin_sums = subgroup / TURNS * 16u * PITCH_SUMS;
    var exponents = exponents_of_all(lane, held, ROOM);
    for (var attempt = 0u; attempt < ATTEMPTS; attempt += 1u) {
        let scale = powers(exponents);
#for I in FM
#for J in FN
        sum_${I}_${J} = coop_mat16x16<f32, C>();
#endfor
#endfor
#for L in LOADS_A
        put_a(to_a_${L}, line_a_${L}, scale.x);
#endfor
#for L in LOADS_B
        put_b(to_b_${L}, line_b_${L}, scale.y);
#endfor
        workgroupBarrier();
        for (var k = 0u; k < PART_K; k += BK) {
            // The last step is loaded twice: loads without a condition can be scheduled where they cost least.
            let next = vec2(0u, min(k + BK, PART_K - BK));
#for L in LOADS_A
            line_a_${L} = load_a(of_a, place_a_${L} + next, end);
#endfor
#for L in LOADS_B
            line_b_${L} = load_b(of_b, place_b_${L} + next, end);
#endfor
            // Places are variables, because naga's SPIR-V writer rejects them inside the calls.
#for U in STEPS
#for I in FM
#if A_ALONG == k
            let at_a_${U}_${I} = 16u * (y + ${I}u) * PITCH_A + ${U}u * 4u;
            let a_${U}_${I} = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[at_a_${U}_${I}], PITCH_A);
#else
            let at_a_${U}_${I} = ${U}u * 16u * PITCH_A + 4u * (y + ${I}u);
            let a_${U}_${I} = coopLoad<coop_mat16x16<f16, A>>(&tile_a[at_a_${U}_${I}], PITCH_A);
#endif
#endfor
#for J in FN
#if B_ALONG == k
            let at_b_${U}_${J} = 16u * (x + ${J}u) * PITCH_B + ${U}u * 4u;
            let b_${U}_${J} = coopLoad<coop_mat16x16<f16, B>>(&tile_b[at_b_${U}_${J}], PITCH_B);
#else
            let at_b_${U}_${J} = ${U}u * 16u * PITCH_B + 4u * (x + ${J}u);
            let b_${U}_${J} = coopLoadT<coop_mat16x16<f16, B>>(&tile_b[at_b_${U}_${J}], PITCH_B);
#endif
#for I in FM
            sum_${I}_${J} = coopMultiplyAdd(a_${U}_${I}, b_${U}_${J}, sum_${I}_${J});
#endfor
#endfor
#endfor
            workgroupBarrier();
#for L in LOADS_A
            put_a(to_a_${L}, line_a_${L}, scale.x);
#endfor
#for L in LOADS_B
            put_b(to_b_${L}, line_b_${L}, scale.y);
#endfor
            workgroupBarrier();
        }
        var total = coop_mat16x16<f32, C>();
#for I in FM
#for J in FN
        total = total + sum_${I}_${J};
#endfor
#endfor
#insert check_fit()
        if fit || attempt + 1u == ATTEMPTS {
            break;
        }
        for (var k = 0u; k < PART_K; k += BK) {
#for L in LOADS_A
            line_a_${L} = load_a(of_a, place_a_${L} + vec2(0u, k), end);
            held.x = max(held.x, finite_magnitude(bits_a(line_a_${L})));
#endfor
#for L in LOADS_B
            line_b_${L} = load_b(of_b, place_b_${L} + vec2(0u, k), end);
            held.y = max(held.y, finite_magnitude(bits_b(line_b_${L})));
#endfor
        }
        exponents = exponents_of_all(lane, held, 0);
#for L in LOADS_A
        line_a_${L} = load_a(of_a, place_a_${L}, end);
#endfor
#for L in LOADS_B
        line_b_${L} = load_b(of_b, place_b_${L}, end);
#endfor
    }
    let inverse = powers(-exponents);
    // The smaller power first, so that no product overflows unless the result does.
    let back = vec2(min(inverse.x, inverse.y), max(inverse.x, inverse.y));
    // Sums go through workgroup memory, a fragment of each subgroup at a time. For all fragments of a row, the operands
    // of merged work are read first.
    let member = lane % SUBGROUP;
    for (var turn = 0u; turn < TURNS; turn += 1u) {
        let is_turn = subgroup % TURNS == turn;
#for I in FM
#for J in FN
#for E in EACH
            let place_${I}_${J}_${E} = ${E}u * SUBGROUP + member;
            let row_${I}_${J}_${E} = row0 + (y + ${I}u) * 16u + place_${I}_${J}_${E} % 16u;
            let column_${I}_${J}_${E} = column0 + (x + ${J}u) * 16u + place_${I}_${J}_${E} / 16u * 8u;
            let there_${I}_${J}_${E} = is_turn && place_${I}_${J}_${E} < 32u && row_${I}_${J}_${E} < ROWS && column_${I}_${J}_${E} < COLUMNS;
            let to_${I}_${J}_${E} = ((part * BATCH + batch) * ROWS + row_${I}_${J}_${E}) * ${Y_PITCH}u + column_${I}_${J}_${E};
            let epilogue_${I}_${J}_${E} = epilogue(select(0u, to_${I}_${J}_${E}, there_${I}_${J}_${E}));
#endfor
#endfor
#for J in FN
            workgroupBarrier();
            if is_turn {
                coopStoreT(sum_${I}_${J}, &sums[begin_sums], PITCH_SUMS);
            }
            workgroupBarrier();
#for E in EACH
            if there_${I}_${J}_${E} {
                let at = begin_sums + place_${I}_${J}_${E} % 16u * PITCH_SUMS + place_${I}_${J}_${E} / 16u * 2u;
                finish(epilogue_${I}_${J}_${E}, Eight(sums[at] * back.x * back.y, sums[at + 1u] * back.x * back.y));
            }
#endfor
#endfor
#endfor
    }
}
