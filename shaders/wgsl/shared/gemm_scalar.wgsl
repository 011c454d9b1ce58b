// The product of shared/gemm in f32: each invocation computes FM×FN blocks of 4×4 elements, which stay in registers.
// Workgroup memory holds one step, or two: then one is multiplied while the next is stored.
//
// BM = 4·FM·TM, BN = 4·FN·TN; TM·TN invocations.
//
// Defines: TM, TN invocations down and across a tile; TN a multiple of 8, TM of 4 FM, FN blocks of each, down and
// across BK a multiple of 4 HALVES 1 or 2, the steps that workgroup memory holds: one takes another barrier, and leaves
// memory for more workgroups, which work while others wait for theirs UNROLL terms that the loop adds in a row, a
// divisor of BK LOADS blocks that an invocation loads, (BM + BN)·BK/(16·TM·TN)

#include "shared/grid"
#include "shared/blocks"

const TM: u32 = ${TM};
const TN: u32 = ${TN};
const FM: u32 = ${FM};
const FN: u32 = ${FN};
const BK: u32 = ${BK};
const HALVES: u32 = ${HALVES};
const ROUND: u32 = BK;
const WG: u32 = TM * TN;
const BM: u32 = 4u * FM * TM;
const BN: u32 = 4u * FN * TN;
// The distance of one k from the next is odd, so that neighbours along k are stored into different banks.
const PITCH_A: u32 = LINES_A + 1u;
const PITCH_B: u32 = LINES_B + 1u;

var<workgroup> tile_a: array<vec4<f32>, HALVES * BK * PITCH_A>;
var<workgroup> tile_b: array<vec4<f32>, HALVES * BK * PITCH_B>;

fn put(half: u32, lane: u32, first: u32, block: mat4x4<f32>) {
    if is_of_a(lane, first) {
        let place = place_a(first + lane);
        let line = (half * BK + 4u * place.y) * PITCH_A + place.x;
#for C in 4
        tile_a[line + ${C}u * PITCH_A] = block[${C}];
#endfor
        return;
    }
    let place = place_b(first + lane - BLOCKS_A);
    let line = (half * BK + 4u * place.y) * PITCH_B + place.x;
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
    if tile >= BATCH * PARTS * TILES_M * TILES_N {
        return;
    }
    let batch = tile / (PARTS * TILES_M * TILES_N);
    let part = tile / (TILES_M * TILES_N) % PARTS;
    let row0 = tile / TILES_N % TILES_M * BM;
    let column0 = tile % TILES_N * BN;
    // 32 invocations that run together make 4×8 of the tile: they read few lines of it. Of neighbours both read the
    // same line of a, of those that are two apart both the same of b: hardware joins such reads.
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

    // A round loads a step and multiplies the one before it: the first has nothing to multiply, the last nothing to
    // load.
    var half = 0u;
    var depth = 0u;
    for (var k0 = begin; k0 < end + BK; k0 += BK) {
        let more = k0 < end;
#for L in LOADS
        var next_${L}: mat4x4<f32>;
#endfor
        if more {
#for L in LOADS
            next_${L} = fetch(batch, row0, column0, k0, end, lane, ${L}u * WG);
#endfor
        }
        let lines_a = half * BK * PITCH_A + y;
        let lines_b = half * BK * PITCH_B + x;
        // Not a constant: a loop unrolled altogether would leave the instruction cache.
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
#if HALVES == 2
        half = 1u - half;
#else
        workgroupBarrier();
#endif
        if more {
#for L in LOADS
            put(half, lane, ${L}u * WG, next_${L});
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
