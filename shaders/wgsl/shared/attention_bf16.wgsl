// Attention on matrix units: operands as lines of bf16, their tiles in workgroup memory, and scores in registers. A
// workgroup has four subgroups, in teams of SHARE that compute the same rows: STRIPS strips of 16 rows each, against
// tiles of TILE columns. With SHARE 2, each member of a team has half of the features, of operands and of results.
// Their products are halves of the scores, which pass through workgroup memory.
//
// Defines: WG, SUBGROUP   128 invocations, 32 of each subgroup
//          SHARE    subgroups of a team, 1 or 2; TEAM_ROWS: 64/SHARE, the rows of a strip of all teams
//          STRIPS   fragments down of each subgroup: ROWS is TEAM_ROWS·STRIPS
//          TILE, FT   columns of a tile, and fragments across it
//          FD, FE   fragments of the features of q and k, and of v: ⌈D/16⌉ and ⌈E/16⌉, or more for equal shares
//          OWN_D, OWN_E   those of a subgroup: FD/SHARE and FE/SHARE
//          PITCH_D, PITCH_E   rows of D and of E features in workgroup memory, in fours
//          FOURS    fours of workgroup memory for both tiles
//          SECOND   where the second of them begins
//          ROUNDS   tiles of TILE rows in ROWS
//          LOADS_D, LOADS_E   lines of a tile that an invocation loads: ⌈FD·TILE/64⌉ and ⌈FE·TILE/64⌉
//          WHOLE_D, WHOLE_E   1 where all invocations load as many
//          EACH     lines of a fragment that an invocation stores
//          BLOCKS   tiles of rows of a batch entry
//          BATCH    batch entries of the result
//          L, S, D, E
//          SCALE    a literal
//          CAUSAL   1: query i sees the keys up to i + S − L
//          BIAS     1: there is a bias
//          SCALED   1: products are scaled at once, for a bias or a SCALE that is not positive; 0: with exponents
//          Q_BATCH, Q_ROW   the offset of batch b of q, an expression of `b: u32`, and the pitch of its rows; likewise
//                   K_…, V_…, BIAS_… and BIAS_COL. b counts heads of queries. Those of lines are multiples of 8, or of
//                   4 in f32
//          Q_FORMAT, K_FORMAT, V_FORMAT   bf16 or full
//          PITCH_SUMS   rows of 16 sums in workgroup memory, in fours
//          SLOTS    fragments of sums of each subgroup there, FT with SHARE 2; FOURS_OF_SUMS: the fours of all of them
//          BF16_UNITS   see shared/units

#include "shared/grid"
#include "shared/float"
#include "shared/units"
#include "shared/fragments"

const WG: u32 = ${WG};
const SUBGROUP: u32 = ${SUBGROUP};
const ROWS: u32 = ${TEAM_ROWS}u * ${STRIPS}u;
const TILE: u32 = ${TILE};
const PITCH_D: u32 = ${PITCH_D};
const PITCH_E: u32 = ${PITCH_E};
const SECOND: u32 = ${SECOND};
const BLOCKS: u32 = ${BLOCKS};
const BATCH: u32 = ${BATCH};
const L: u32 = ${L};
const S: u32 = ${S};
const D: u32 = ${D};
const E: u32 = ${E};
const PITCH_SUMS: u32 = ${PITCH_SUMS};
/// Fours of f32 of a fragment of sums.
const SLOT: u32 = 16u * PITCH_SUMS;
/// log₂ e.
const LOG2E: f32 = 1.44269504f;
/// ln 2.
const LN2: f32 = 0.693147181f;

var<workgroup> tiles: array<Four, ${FOURS}>;
var<workgroup> sums: array<vec4<f32>, ${FOURS_OF_SUMS}>;

// The line of row `i` of an operand that begins at feature `at`. Features past the last are zeros, and so are rows past
// the last, so that their products are finite.
#macro load_line(OPERAND, FORMAT, BATCH, ROW, COUNT, FEATURES)
    let there = i < ${COUNT}u && at < ${FEATURES}u;
    let place = ${BATCH} + select(0u, i * ${ROW}u + at, there);
#if FORMAT == bf16
    return select(vec4<u32>(), ${OPERAND}[place / 8u], there);
#else
    return select(vec4<u32>(), line_of(Eight(${OPERAND}[place / 4u], ${OPERAND}[place / 4u + 1u])), there);
#endif
#endmacro

fn q_line(b: u32, i: u32, at: u32) -> vec4<u32> {
#insert load_line(q, Q_FORMAT, Q_BATCH, Q_ROW, L, D)
}

fn k_line(b: u32, i: u32, at: u32) -> vec4<u32> {
#insert load_line(key, K_FORMAT, K_BATCH, K_ROW, S, D)
}

fn v_line(b: u32, i: u32, at: u32) -> vec4<u32> {
#insert load_line(value, V_FORMAT, V_BATCH, V_ROW, S, E)
}

// An invocation's lines of the tile that begins at row `first`.
#macro load_part(LINE, LOADS, FRAGMENTS)
    var part: array<vec4<u32>, ${LOADS}>;
#for N in LOADS
    {
        let number = ${N}u * WG + lane;
        part[${N}] = ${LINE}(b, first + number / (2u * ${FRAGMENTS}u), number % (2u * ${FRAGMENTS}u) * 8u);
    }
#endfor
    return part;
#endmacro

fn q_part(b: u32, first: u32, lane: u32) -> array<vec4<u32>, ${LOADS_D}> {
#insert load_part(q_line, LOADS_D, FD)
}

fn k_part(b: u32, first: u32, lane: u32) -> array<vec4<u32>, ${LOADS_D}> {
#insert load_part(k_line, LOADS_D, FD)
}

fn v_part(b: u32, first: u32, lane: u32) -> array<vec4<u32>, ${LOADS_E}> {
#insert load_part(v_line, LOADS_E, FE)
}

// Stores an invocation's lines in the tile that begins at `begin`.
#macro put_part(LOADS, FRAGMENTS, PITCH, WHOLE)
#for N in LOADS
#if WHOLE == 1
    {
#else
    if ${N}u * WG + lane < 2u * ${FRAGMENTS}u * TILE {
#endif
        let number = ${N}u * WG + lane;
        let place = begin + number / (2u * ${FRAGMENTS}u) * ${PITCH}u + number % (2u * ${FRAGMENTS}u) * 2u;
        tiles[place] = four_of(part[${N}].xy);
        tiles[place + 1u] = four_of(part[${N}].zw);
    }
#endfor
#endmacro

fn put_d(begin: u32, part: array<vec4<u32>, ${LOADS_D}>, lane: u32) {
#insert put_part(LOADS_D, FD, PITCH_D, WHOLE_D)
}

fn put_e(begin: u32, part: array<vec4<u32>, ${LOADS_E}>, lane: u32) {
#insert put_part(LOADS_E, FE, PITCH_E, WHOLE_E)
}

// The place of a subgroup: its number in its team, its first row, and its slots of sums and the other member's.
#macro places()
    let subgroup = lane / SUBGROUP;
    let member = subgroup % ${SHARE}u;
    let strip = subgroup / ${SHARE}u * 16u;
    let row = first + strip;
    let begin_sums = subgroup * ${SLOTS}u * SLOT;
#if SHARE == 2
    let begin_other = (subgroup ^ 1u) * ${SLOTS}u * SLOT;
#endif
#endmacro

// The strips of a subgroup as left operands NAME_I_K, its OWN fragments of rows that PART loads. All pass through the
// first tile, by TILE rows at a time.
#macro load_strips(NAME, PART, PUT, OWN, PITCH)
#for I in STRIPS
#for K in OWN
    var ${NAME}_${I}_${K}: Left;
#endfor
#endfor
#for R in ROUNDS
    ${PUT}(0u, ${PART}(b, first + ${R}u * TILE, lane), lane);
    workgroupBarrier();
#for I in STRIPS
    if (${I}u * ${TEAM_ROWS}u + strip) / TILE == ${R}u {
#for K in OWN
        let from_${K} = (${I}u * ${TEAM_ROWS}u + strip) % TILE * ${PITCH}u + (member * ${OWN}u + ${K}u) * 4u;
        ${NAME}_${I}_${K} = coopLoadT<Left>(&tiles[from_${K}], ${PITCH}u);
#endfor
    }
#endfor
    workgroupBarrier();
#endfor
#endmacro

// With SHARE 2, the sums NAME_I_J become those of both halves, in two steps with a barrier between them. They pass
// through slot J. There is another barrier before the slot is used again.
#macro give_half(NAME, I, J)
    let given_${NAME}_${I}_${J} = begin_sums + ${J}u * SLOT;
    coopStoreT(${NAME}_${I}_${J}, &sums[given_${NAME}_${I}_${J}], PITCH_SUMS);
#endmacro

#macro take_half(NAME, I, J)
    let taken_${NAME}_${I}_${J} = begin_other + ${J}u * SLOT;
    let other_${NAME}_${I}_${J} = coopLoadT<Sums>(&sums[taken_${NAME}_${I}_${J}], PITCH_SUMS);
    ${NAME}_${I}_${J} = coop_map_total(${NAME}_${I}_${J}, other_${NAME}_${I}_${J});
#endmacro

// Stores the sums NAME_I_N of rows from `row` on with TO(i, line), where line i of the rows' FEATURES is in memory that
// holds ROWS rows for each batch entry `entry`. OWN fragments across belong to each member of a team.
#macro store_sums(NAME, I, N, TO, ROWS, FEATURES, OWN)
    workgroupBarrier();
    coopStoreT(${NAME}_${I}_${N}, &sums[begin_sums], PITCH_SUMS);
    workgroupBarrier();
#for A in EACH
    {
        let place = ${A}u * SUBGROUP + lane % SUBGROUP;
        let i = row + ${I}u * ${TEAM_ROWS}u + place % 16u;
        let feature = (member * ${OWN}u + ${N}u) * 16u + place / 16u * 8u;
        let at = begin_sums + place % 16u * PITCH_SUMS + place / 16u * 2u;
        if place < 32u && i < ${ROWS}u && feature < ${FEATURES}u {
            ${TO}((entry * ${ROWS}u + i) * ${FEATURES}u + feature, Eight(sums[at], sums[at + 1u]));
        }
    }
#endfor
#endmacro

/// `true` if query `i` sees key `j`; both may be past the end.
fn is_visible(i: u32, j: u32) -> bool {
#if CAUSAL == 1
    return j < S && j + L <= i + S;
#else
    return j < S;
#endif
}

/// The first key of the first tile that must be masked for queries from `query` on.
fn visible_to(query: u32) -> u32 {
#if BIAS == 1
    return 0u;
#elif CAUSAL == 1
    return min(S, max(query + S + 1u, L) - L) / TILE * TILE;
#else
    return S / TILE * TILE;
#endif
}

/// The score of query `i` and key `j` from their product; without SCALED, before it is multiplied by SCALE.
fn visible_score(b: u32, i: u32, j: u32, product: f32) -> f32 {
    if !is_visible(i, j) {
        return negative_infinity();
    }
#if BIAS == 1
    let at = ${BIAS_BATCH} + min(i, L - 1u) * ${BIAS_ROW}u + min(j, S - 1u) * ${BIAS_COL}u;
    return product * ${SCALE} + bias[at];
#elif SCALED == 1
    return product * ${SCALE};
#else
    return product;
#endif
}

// A score times FACTOR is an exponent of 2.
#if SCALED == 1
const FACTOR: f32 = LOG2E;
#else
const FACTOR: f32 = ${SCALE} * LOG2E;
#endif

// Weights are 2^exponent(score, base), relative to the base of the row's largest score; `between` is the exponent of 2
// from one base to another. A log-sum-exp has `peak_of` a base as its first part, and its remainder, an exponent of 2,
// is in the second. The gradient gets the base of another rounding from the peak, `base_of_peak`, with a residue.
#if BIAS == 1
// Bases are scores: the difference is rounded, not its terms, and a score may be the least number.
fn base(score: f32) -> f32 {
    return score;
}

fn exponent(score: f32, base: f32) -> f32 {
    return (score - base) * FACTOR;
}

fn between(base: f32, other: f32) -> f32 {
    return (base - other) * FACTOR;
}

fn peak_of(base: f32) -> f32 {
    return base;
}

fn remainder_of(base: f32) -> f32 {
    return 0.0;
}

fn base_of_peak(peak: f32) -> f32 {
    return peak;
}

fn residue_of_peak(peak: f32) -> f32 {
    return 0.0;
}
#else
// Bases are exponents of 2. What is lost where a base is rounded is a factor of all weights of the row, and so of their
// sum.
fn base(score: f32) -> f32 {
    return score * FACTOR;
}

/// The largest score is rounded as its base was, so no exponent exceeds 0. With a fused product, one of a score beyond
/// 2³¹ would exceed 128.
fn exponent(score: f32, base: f32) -> f32 {
    return score * FACTOR - base;
}

fn between(base: f32, other: f32) -> f32 {
    return base - other;
}

fn peak_of(base: f32) -> f32 {
    return base * LN2;
}

fn remainder_of(base: f32) -> f32 {
    return -fma(peak_of(base), LOG2E, -base);
}

fn base_of_peak(peak: f32) -> f32 {
    return peak * LOG2E;
}

fn residue_of_peak(peak: f32) -> f32 {
    return fma(peak, LOG2E, -base_of_peak(peak));
}
#endif

fn score(row: u32, column: u32, product: f32, b: u32, i: u32, j: u32) -> f32 {
    return visible_score(b, i + row, j + column, product);
}

fn coop_map_score(product: Sums, b: u32, i: u32, j: u32) -> Sums {
    return product;
}

fn total(row: u32, column: u32, x: f32, y: f32) -> f32 {
    return x + y;
}

fn coop_map_total(x: Sums, y: Sums) -> Sums {
    return x;
}

/// The nearest number that bf16 holds, in its upper 16 bits, ties away from 0: conversions of fragments may truncate.
fn nearest(x: f32) -> f32 {
    let power = bitcast<f32>(bitcast<u32>(x) & 0xff800000u);
    return fma(power, 0x1p-8f, x);
}

/// Likewise for `x` above 0. NaN stays what it is.
fn nearest_above(x: f32) -> f32 {
    return bitcast<f32>(min(bitcast<u32>(x) + 0x8000u, 0x7fffffffu));
}
