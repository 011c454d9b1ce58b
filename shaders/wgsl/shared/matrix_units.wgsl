// What products on matrix units have in common: tiles of BM×BN, of which each of SM·SN subgroups computes FM×FN fragments of 16×16,
// summed in f32.
//
// Defines: SM, SN         subgroups down and across a tile
//          FM, FN         fragments of each, down and across
//          STEPS          BK/16
//          HALVES         1 or 2: steps that workgroup memory holds; with 2 one is multiplied while the next is stored
//          SUBGROUP       invocations of a subgroup
//          LINES          if defined, sums are stored in lines, eight rows of a column, which lie beside each other in
//                         the result: shared/gemm_epilogue takes them so, and rows are multiples of 8
//          EACH           elements of a fragment that each invocation of a subgroup stores, 256/SUBGROUP; with LINES,
//                         lines at most, ⌈32/SUBGROUP⌉
//          PLAIN          the buffer of the result, where fragments of sums lie inside of it and nothing is done to them but to store them;
//                         else `none`. It takes from the kernel
//                           const PITCH_RESULT   how much further on than `result_at` of a row is that of the next;
//                                                with LINES, of a column

const SM: u32 = ${SM};
const SN: u32 = ${SN};
const FM: u32 = ${FM};
const FN: u32 = ${FN};
const BK: u32 = 16u * ${STEPS};
const HALVES: u32 = ${HALVES};
#if UNITS == halo
const ROUND: u32 = TAPS * BK;
#else
const ROUND: u32 = HALVES * BK;
#endif
const SUBGROUP: u32 = ${SUBGROUP};
const WG: u32 = SUBGROUP * SM * SN;
const BM: u32 = 16u * FM * SM;
const BN: u32 = 16u * FN * SN;
/// Distance of the rows of a fragment's sums.
const PITCH: u32 = 20u;

/// The same in fours of columns, with LINES.
const PITCH_LINES: u32 = PITCH / 4u;

/// The sums of a fragment of each subgroup, where they are looked at before they are stored; and before there are any, what the
/// scales are found with. With LINES, in fours.
#if LINES
#if PLAIN == none
var<workgroup> sums: array<vec4<f32>, SM * SN * 16u * PITCH_LINES>;
#else
var<workgroup> sums: array<vec4<f32>, FINDERS / 2u>;
#endif
#else
#if PLAIN == none
var<workgroup> sums: array<f32, SM * SN * 16u * PITCH>;
#else
#if UNITS == matrix
var<workgroup> sums: array<f32, SM * SN * 16u * PITCH>;
#else
var<workgroup> sums: array<f32, 2u * FINDERS>;
#endif
#endif
#endif

#include "shared/units"
#include "shared/scales"
