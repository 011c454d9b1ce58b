// y[b,i,j] = Σ_k a[b,i,k] · b[b,k,j] on matrix units that multiply bf16, stored in lines. `order_fragments` has ordered
// both operands, so that a fragment's elements arrive in the registers of the invocations that hold them: nothing but
// sums passes through workgroup memory, and no invocation waits for others. A workgroup of four subgroups computes a
// tile of 128×128. The fragments of the next 16 terms are loaded while these are multiplied.
//
// Bindings: a, b → y by its epilogue (SUMS whole), or parts[part,b,i,j] (SUMS parts). Workgroups:
// BATCH·PARTS·⌈M/128⌉·⌈N/128⌉.
//
// Defines: BATCH, M, N    N is a multiple of 8
//          K              fragments along the reduction, an even number
//          BLOCKS_M, BLOCKS_N   ⌈M/64⌉ and ⌈N/64⌉
//          PARTS, PART_K  parts of the reduction; fragments of each, an even number
//          TILES_M, TILES_N   tiles down and across
//          WG, SUBGROUP   128 and 32
//          PLACES         of workgroup memory, in fours of f32
//          FM, FN, SN, EACH, Y_PITCH   4, 4, 2 and 4; see shared/product_rows
//          SUMS, SUMS_AT, LINES, GROUP   see shared/product; LINES is defined
//          BF16_UNITS     defined

enable wgpu_cooperative_matrix;

#include "shared/product"
#include "shared/product_rows"
#include "shared/bf16"
#include "shared/fragment_lines"

const BATCH: u32 = ${BATCH};
const ROWS: u32 = ${M};
const COLUMNS: u32 = ${N};
const DEPTH: u32 = ${K};
const BLOCKS_M: u32 = ${BLOCKS_M};
const BLOCKS_N: u32 = ${BLOCKS_N};
const SN: u32 = ${SN};
const FM: u32 = ${FM};
const FN: u32 = ${FN};
const WG: u32 = ${WG};
const SUBGROUP: u32 = ${SUBGROUP};
const BM: u32 = 128;
const BN: u32 = 128;
const PARTS: u32 = ${PARTS};
const TILES_M: u32 = ${TILES_M};
const TILES_N: u32 = ${TILES_N};
const PART_K: u32 = ${PART_K};
/// Lines of a block's fragments.
const BLOCK: u32 = 128;

@group(0) @binding(0) var<storage, read> a: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> b: array<vec4<u32>>;

var<workgroup> places: array<vec4<f32>, ${PLACES}>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) invocation: u32,
) {
#insert find_tile()
    let block_a = min(row0 / 64u + subgroup / SN, BLOCKS_M - 1u);
    let block_b = min(column0 / 64u + subgroup % SN, BLOCKS_N - 1u);
    let from_a = (batch * BLOCKS_M + block_a) * DEPTH * BLOCK + lane % SUBGROUP;
    let from_b = (batch * BLOCKS_N + block_b) * DEPTH * BLOCK + lane % SUBGROUP;
#for I in FM
    var a_0_${I} = a[from_a + begin * BLOCK + ${I}u * SUBGROUP];
#endfor
#for J in FN
    var b_0_${J} = b[from_b + begin * BLOCK + ${J}u * SUBGROUP];
#endfor
    for (var k = begin; k < end; k += 2u) {
        // The last fragments are loaded twice: loads without a condition can be scheduled where they cost least.
#for S in 2
        let next_${S} = min(k + ${S}u + 1u, end - 1u) * BLOCK;
#for I in FM
        let left_${S}_${I} = coop_from_line_left(a_${S}_${I});
#endfor
#for I in FM
#if S == 0
        let a_1_${I} = a[from_a + next_0 + ${I}u * SUBGROUP];
#else
        a_0_${I} = a[from_a + next_1 + ${I}u * SUBGROUP];
#endif
#endfor
#for J in FN
        let right_${S}_${J} = coop_from_line_right(b_${S}_${J});
#endfor
#for J in FN
#if S == 0
        let b_1_${J} = b[from_b + next_0 + ${J}u * SUBGROUP];
#else
        b_0_${J} = b[from_b + next_1 + ${J}u * SUBGROUP];
#endif
#endfor
#for J in FN
#for I in FM
        sum_${I}_${J} = coopMultiplyAdd(left_${S}_${I}, right_${S}_${J}, sum_${I}_${J});
#endfor
#endfor
#endfor
    }
#insert store_rows()
}
