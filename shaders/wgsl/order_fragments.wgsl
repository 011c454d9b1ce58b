// An operand of `matmul_fragments`, in the order in which it is multiplied: y[b, block, k, f, i] is the line of
// invocation i of fragment f of a block of 64 rows, or columns, by 16 terms; see shared/fragment_lines. The operand is
// bf16, or f32 that is rounded to bf16, and lies in lines of eight, along the reduction or across it. Terms past the
// last are zeros. Rows past the last are that one again, since their sums are not stored.
//
// Bindings: x → y. A workgroup orders a block by 64 terms. Workgroups: BATCH·BLOCKS·STEPS, of four subgroups of 32.
//
// Defines: BATCH, EXTENT, DEPTH   products; rows or columns; terms
//          SIDE     left or right
//          ALONG    the axis of lines: k, or across
//          PITCH    the distance from a line to its neighbour across
//          X_BATCH  the offset of product b, an expression of `b: u32`
//          FORMAT   bf16 or full, as in `matmul_bf16`
//          BLOCKS   ⌈EXTENT/64⌉
//          FRAGMENTS   of y along the reduction
//          STEPS    ⌈FRAGMENTS/4⌉
//          WG       128
//          BF16_UNITS   defined

enable wgpu_cooperative_matrix;

#include "shared/bf16"
#include "shared/fragment_lines"

const EXTENT: u32 = ${EXTENT};
const DEPTH: u32 = ${DEPTH};
const BLOCKS: u32 = ${BLOCKS};
const FRAGMENTS: u32 = ${FRAGMENTS};
const STEPS: u32 = ${STEPS};
const WG: u32 = ${WG};
/// Lines between rows of lines in workgroup memory, so that neighbours lie in different banks.
const PITCH: u32 = 9;

#if FORMAT == bf16
@group(0) @binding(0) var<storage, read> x: array<vec4<u32>>;
#else
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
#endif
@group(0) @binding(1) var<storage, read_write> y: array<vec4<u32>>;

var<workgroup> places: array<vec4<f32>, 64u * PITCH>;

fn begin_x(b: u32) -> u32 {
    return ${X_BATCH};
}

/// Line number `at` of the block at row, or column, `first` and term `k`, from `begin` on.
fn line_at(begin: u32, first: u32, k: u32, at: u32) -> vec4<u32> {
#if ALONG == k
    let term = k + at % 8u * 8u;
    let place = begin + min(first + at / 8u, EXTENT - 1u) * ${PITCH} + term;
#else
    let term = k + at / 8u;
    let place = begin + term * ${PITCH} + min(first + at % 8u * 8u, (EXTENT - 1u) / 8u * 8u);
#endif
    let there = term < DEPTH;
    let first_of_line = select(begin, place, there);
#if FORMAT == bf16
    return select(vec4<u32>(), x[first_of_line / 8u], there);
#else
    return select(vec4<u32>(), line_of(Eight(x[first_of_line / 4u], x[first_of_line / 4u + 1u])), there);
#endif
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) invocation: u32,
) {
    // Not `workgroup_index`: matrix units require control flow that naga knows to be uniform.
    let lane = invocation % WG;
    let tile = workgroup.x + workgroup.y * workgroups.x;
    if tile >= ${BATCH}u * BLOCKS * STEPS {
        return;
    }
    let b = tile / (BLOCKS * STEPS);
    let block = tile / STEPS % BLOCKS;
    let step = tile % STEPS;
    let begin = begin_x(b);
#for L in 4
    let at_${L} = lane + ${L}u * WG;
    let line_${L} = line_at(begin, block * 64u, step * 64u, at_${L});
#endfor
#for L in 4
    places[at_${L} / 8u * PITCH + at_${L} % 8u] = bitcast<vec4<f32>>(line_${L});
#endfor
    workgroupBarrier();
    let subgroup = lane / 32u;
    let member = lane % 32u;
    // A subgroup has a fragment of the block, and four of terms.
#for K in 4
#if ALONG == k
    let from_${K} = subgroup * 16u * PITCH + ${K}u * 2u;
#else
    let from_${K} = ${K}u * 16u * PITCH + subgroup * 2u;
#endif
#if SIDE == left
#if ALONG == k
    let fragment_${K} = coopLoadT<Left>(&places[from_${K}], PITCH);
#else
    let fragment_${K} = coopLoad<Left>(&places[from_${K}], PITCH);
#endif
    let ordered_${K} = coop_to_line_left(fragment_${K});
#else
#if ALONG == k
    let fragment_${K} = coopLoad<Right>(&places[from_${K}], PITCH);
#else
    let fragment_${K} = coopLoadT<Right>(&places[from_${K}], PITCH);
#endif
    let ordered_${K} = coop_to_line_right(fragment_${K});
#endif
    if step * 4u + ${K}u < FRAGMENTS {
        y[(((b * BLOCKS + block) * FRAGMENTS + step * 4u + ${K}u) * 4u + subgroup) * 32u + member] = ordered_${K};
    }
#endfor
}
