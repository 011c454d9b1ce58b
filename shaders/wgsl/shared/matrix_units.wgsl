// What products on matrix units have in common: tiles of BM×BN, of which each of SM·SN subgroups computes FM×FN
// fragments of 16×16, summed in f32.
//
// Defines: SM, SN subgroups down and across a tile FM, FN fragments of each, down and across STEPS BK/16 HALVES 1 or 2:
// steps that workgroup memory holds; with 2 one is multiplied while the next is stored SUBGROUP invocations of a
// subgroup EACH elements of a fragment that each invocation of a subgroup stores, 256/SUBGROUP PLAIN the buffer of the
// result, where fragments of sums lie inside of it and nothing is done to them but to store them; else `none`. It takes
// from the kernel const PITCH_RESULT how much further on than `row_at` of a row is that of the next

const SM: u32 = ${SM};
const SN: u32 = ${SN};
const FM: u32 = ${FM};
const FN: u32 = ${FN};
const BK: u32 = 16u * ${STEPS};
const HALVES: u32 = ${HALVES};
const ROUND: u32 = HALVES * BK;
const SUBGROUP: u32 = ${SUBGROUP};
const WG: u32 = SUBGROUP * SM * SN;
const BM: u32 = 16u * FM * SM;
const BN: u32 = 16u * FN * SN;
/// Distance of the rows of a fragment's sums.
const PITCH: u32 = 20u;

/// The sums of a fragment of each subgroup, where they are looked at before they are stored; and before there are any,
/// what the scales are found with.
const SUMS: u32 = SM * SN * 16u * PITCH;
var<workgroup> sums: array<f32, SUMS>;

#include "shared/units"
#include "shared/scales"
