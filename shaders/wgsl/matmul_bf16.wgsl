// y[b,i,j] = Σ_k a[b,i,k] · b[b,k,j] on matrix units, stored in lines. Operands are bf16, or f32 that is rounded to
// bf16. Each lies in lines of eight, along the reduction or across it. A workgroup computes a tile of BM×BN. Operands
// pass through workgroup memory, BK terms at a step. The next step is loaded while this one is multiplied.
//
// Workgroup memory consists of places. For units that multiply f16, a place is a four of them, and sums have memory of
// their own. With BF16_UNITS, it is a line, bit for bit as in memory, and sums leave through the same places. The host
// then compiles matrices A and B of f32 as bf16.
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
//          LINES_A  lines of a in a step, BM·BK/8
//          LOADS_A, LOADS_B   lines that an invocation loads in a step: ⌈BM·BK/(8·WG)⌉, and exactly BN·BK/(8·WG)
//          STAGES   1 or 2 steps in workgroup memory. One leaves memory for a second workgroup on a multiprocessor.
//                   With two, a step has one barrier instead of two, and the next is stored before it.
//          PITCH_A, PITCH_B, PLACES_A, PLACES_B   of a step in workgroup memory, in places: the distance of its rows of
//                   lines, and its size
//          PLACES   of the memory in all
//          PARTS, PART_K   parts of the reduction; terms of each, whole rounds of STAGES steps
//          RAGGED   defined where the last part has fewer
//          OPERAND  the type of A and B in WGSL: f16, or with BF16_UNITS f32
//          EACH     lines that an invocation stores at once: of a fragment, ⌈32/SUBGROUP⌉; with BF16_UNITS, of a row of
//                   the subgroup's fragments, ⌈32·FN/SUBGROUP⌉
//          SUBGROUP; without BF16_UNITS, TURNS and others   see shared/fit
//          SUMS, SUMS_AT, LINES, GROUP   see shared/product; LINES is defined
//          BF16_UNITS   defined where matrix units multiply bf16

#if BF16_UNITS
enable wgpu_cooperative_matrix;

#include "shared/product"
#include "shared/product_rows"
#include "shared/bf16"

const SUBGROUP: u32 = ${SUBGROUP};
#else
// Subgroups store their sums in turns. All invocations of a subgroup do so together, which naga cannot know.
diagnostic(off, derivative_uniformity);
enable f16;
enable wgpu_cooperative_matrix;

#include "shared/product"
#include "shared/fit"
#endif

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
const STAGES: u32 = ${STAGES};

// BESIDE: lines of a step that are adjacent in memory. NEXT: from a term to the next, in elements.
#if A_ALONG == k
const BESIDE_A: u32 = BK / 8u;
const NEXT_A: u32 = 1;
#else
const BESIDE_A: u32 = BM / 8u;
const NEXT_A: u32 = ${A_PITCH};
#endif
#if B_ALONG == k
const BESIDE_B: u32 = BK / 8u;
const NEXT_B: u32 = 1;
#else
const BESIDE_B: u32 = BN / 8u;
const NEXT_B: u32 = ${B_PITCH};
#endif
// The first element of the last line across.
const LAST_ROWS: u32 = (ROWS - 1u) / 8u * 8u;
const LAST_COLUMNS: u32 = (COLUMNS - 1u) / 8u * 8u;
const LINES_A: u32 = ${LINES_A};
const PITCH_A: u32 = ${PITCH_A};
const PITCH_B: u32 = ${PITCH_B};

// WIDTH: elements that are read at once.
#if A_FORMAT == bf16
alias LineA = vec4<u32>;
const WIDTH_A: u32 = 8;
@group(0) @binding(0) var<storage, read> a: array<vec4<u32>>;
#else
alias LineA = Eight;
const WIDTH_A: u32 = 4;
@group(0) @binding(0) var<storage, read> a: array<vec4<f32>>;
#endif
#if B_FORMAT == bf16
alias LineB = vec4<u32>;
const WIDTH_B: u32 = 8;
@group(0) @binding(1) var<storage, read> b: array<vec4<u32>>;
#else
alias LineB = Eight;
const WIDTH_B: u32 = 4;
@group(0) @binding(1) var<storage, read> b: array<vec4<f32>>;
#endif

// A step begins with the lines of a, and those of b follow. OF_LINE: places of a line.
#if BF16_UNITS
const OF_LINE: u32 = 1;
var<workgroup> places: array<vec4<f32>, ${PLACES}>;
#else
const OF_LINE: u32 = 2;
var<workgroup> places: array<Four, ${PLACES}>;
#endif
const PLACES_A: u32 = ${PLACES_A};
const STEP: u32 = PLACES_A + ${PLACES_B};
/// Places of sixteen numbers.
const SIXTEEN: u32 = 2u * OF_LINE;

fn begin_a(b: u32) -> u32 {
    return ${A_BATCH};
}

fn begin_b(b: u32) -> u32 {
    return ${B_BATCH};
}

/// The row and term at which line number `at` of a step begins. Past the last row, it is the last one's.
fn place_a(origin: vec2<u32>, at: u32) -> vec2<u32> {
#if A_ALONG == k
    return vec2(min(origin.x + at / BESIDE_A, ROWS - 1u), origin.y + at % BESIDE_A * 8u);
#else
    return vec2(min(origin.x + at % BESIDE_A * 8u, LAST_ROWS), origin.y + at / BESIDE_A);
#endif
}

/// The column and term at which line number `at` of a step begins. Past the last column, it is the last one's.
fn place_b(origin: vec2<u32>, at: u32) -> vec2<u32> {
#if B_ALONG == k
    return vec2(min(origin.x + at / BESIDE_B, COLUMNS - 1u), origin.y + at % BESIDE_B * 8u);
#else
    return vec2(min(origin.x + at % BESIDE_B * 8u, LAST_COLUMNS), origin.y + at / BESIDE_B);
#endif
}

/// The number of the line of a that begins at a row and a term, counted in what is read at once.
fn from_a(begin: u32, place: vec2<u32>) -> u32 {
#if A_ALONG == k
    return (begin + place.x * ${A_PITCH} + place.y) / WIDTH_A;
#else
    return (begin + place.y * ${A_PITCH} + place.x) / WIDTH_A;
#endif
}

fn from_b(begin: u32, place: vec2<u32>) -> u32 {
#if B_ALONG == k
    return (begin + place.x * ${B_PITCH} + place.y) / WIDTH_B;
#else
    return (begin + place.y * ${B_PITCH} + place.x) / WIDTH_B;
#endif
}

/// `true` if the lines of a term are in the part.
fn is_there(term: u32, end: u32) -> bool {
#if RAGGED
    return term < end;
#else
    return true;
#endif
}

/// A line of a; zeros unless it is there.
fn load_a(line: u32, there: bool) -> LineA {
    let at = select(0u, line, there);
#if A_FORMAT == bf16
    return select(vec4<u32>(), a[at], there);
#else
    return Eight(select(vec4<f32>(), a[at], there), select(vec4<f32>(), a[at + 1u], there));
#endif
}

fn load_b(line: u32, there: bool) -> LineB {
    let at = select(0u, line, there);
#if B_FORMAT == bf16
    return select(vec4<u32>(), b[at], there);
#else
    return Eight(select(vec4<f32>(), b[at], there), select(vec4<f32>(), b[at + 1u], there));
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

/// Puts line number `at` of a step, which begins at place `step`, into workgroup memory.
fn put_a(step: u32, at: u32, line: LineA, scale: f32) {
#if LINES_A != LOADS_A * WG
    // That line is another invocation's.
    if at >= LINES_A {
        return;
    }
#endif
    put(step + at / BESIDE_A * PITCH_A + at % BESIDE_A * OF_LINE, bits_a(line), scale);
}

fn put_b(step: u32, at: u32, line: LineB, scale: f32) {
    put(step + PLACES_A + at / BESIDE_B * PITCH_B + at % BESIDE_B * OF_LINE, bits_b(line), scale);
}

fn put(place: u32, bits: vec4<u32>, scale: f32) {
#if BF16_UNITS
    places[place] = bitcast<vec4<f32>>(bits);
#else
    places[place] = first_four(bits, scale);
    places[place + 1u] = last_four(bits, scale);
#endif
}

// Adds the products of a part to the sums. It takes the first step in `line_a_L` and `line_b_L`.
#macro multiply()
#for L in LOADS_A
        put_a(0u, to_a_${L}, line_a_${L}, scale.x);
#endfor
#for L in LOADS_B
        put_b(0u, to_b_${L}, line_b_${L}, scale.y);
#endfor
        workgroupBarrier();
        for (var round = 0u; round < PART_K; round += STAGES * BK) {
#for S in STAGES
            // The last step is loaded twice: loads without a condition can be scheduled where they cost least.
            let next_${S} = min(round + ${S}u * BK + BK, PART_K - BK);
#for L in LOADS_A
            line_a_${L} = load_a(from_a_${L} + next_${S} * NEXT_A / WIDTH_A, is_there(place_a_${L}.y + next_${S}, end));
#endfor
#for L in LOADS_B
            line_b_${L} = load_b(from_b_${L} + next_${S} * NEXT_B / WIDTH_B, is_there(place_b_${L}.y + next_${S}, end));
#endfor
            // Places are variables, because naga's SPIR-V writer rejects them inside the calls.
#for U in STEPS
#for I in FM
#if A_ALONG == k
            let at_a_${S}_${U}_${I} = ${S}u * STEP + 16u * (y + ${I}u) * PITCH_A + ${U}u * SIXTEEN;
            let a_${S}_${U}_${I} = coopLoadT<coop_mat16x16<${OPERAND}, A>>(&places[at_a_${S}_${U}_${I}], PITCH_A);
#else
            let at_a_${S}_${U}_${I} = ${S}u * STEP + ${U}u * 16u * PITCH_A + (y + ${I}u) * SIXTEEN;
            let a_${S}_${U}_${I} = coopLoad<coop_mat16x16<${OPERAND}, A>>(&places[at_a_${S}_${U}_${I}], PITCH_A);
#endif
#endfor
#for J in FN
#if B_ALONG == k
            let at_b_${S}_${U}_${J} = ${S}u * STEP + PLACES_A + 16u * (x + ${J}u) * PITCH_B + ${U}u * SIXTEEN;
            let b_${S}_${U}_${J} = coopLoad<coop_mat16x16<${OPERAND}, B>>(&places[at_b_${S}_${U}_${J}], PITCH_B);
#else
            let at_b_${S}_${U}_${J} = ${S}u * STEP + PLACES_A + ${U}u * 16u * PITCH_B + (x + ${J}u) * SIXTEEN;
            let b_${S}_${U}_${J} = coopLoadT<coop_mat16x16<${OPERAND}, B>>(&places[at_b_${S}_${U}_${J}], PITCH_B);
#endif
#for I in FM
            sum_${I}_${J} = coopMultiplyAdd(a_${S}_${U}_${I}, b_${S}_${U}_${J}, sum_${I}_${J});
#endfor
#endfor
#endfor
#if STAGES == 1
            workgroupBarrier();
#endif
#for L in LOADS_A
            put_a((${S}u + 1u) % STAGES * STEP, to_a_${L}, line_a_${L}, scale.x);
#endfor
#for L in LOADS_B
            put_b((${S}u + 1u) % STAGES * STEP, to_b_${L}, line_b_${L}, scale.y);
#endfor
            workgroupBarrier();
#endfor
        }
#endmacro

// Stores the sums, a fragment of each subgroup in turn.
#macro store_in_turns()
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
#endmacro

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
#for L in LOADS_A
    let to_a_${L} = lane + ${L}u * WG;
    let place_a_${L} = place_a(origin_a, min(to_a_${L}, LINES_A - 1u));
    let from_a_${L} = from_a(of_a, place_a_${L});
    var line_a_${L} = load_a(from_a_${L}, is_there(place_a_${L}.y, end));
#endfor
#for L in LOADS_B
    let to_b_${L} = lane + ${L}u * WG;
    let place_b_${L} = place_b(origin_b, to_b_${L});
    let from_b_${L} = from_b(of_b, place_b_${L});
    var line_b_${L} = load_b(from_b_${L}, is_there(place_b_${L}.y, end));
#endfor
#if BF16_UNITS
    let scale = vec2(1.0);
#insert multiply()
#insert store_rows()
#else
    var held = vec2<f32>();
#for L in LOADS_A
    held.x = max(held.x, finite_magnitude(bits_a(line_a_${L})));
#endfor
#for L in LOADS_B
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
#insert multiply()
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
            line_a_${L} = load_a(from_a_${L} + k * NEXT_A / WIDTH_A, is_there(place_a_${L}.y + k, end));
            held.x = max(held.x, finite_magnitude(bits_a(line_a_${L})));
#endfor
#for L in LOADS_B
            line_b_${L} = load_b(from_b_${L} + k * NEXT_B / WIDTH_B, is_there(place_b_${L}.y + k, end));
            held.y = max(held.y, finite_magnitude(bits_b(line_b_${L})));
#endfor
        }
        exponents = exponents_of_all(lane, held, 0);
#for L in LOADS_A
        line_a_${L} = load_a(from_a_${L}, is_there(place_a_${L}.y, end));
#endfor
#for L in LOADS_B
        line_b_${L} = load_b(from_b_${L}, is_there(place_b_${L}.y, end));
#endfor
    }
#insert store_in_turns()
#endif
}
