// y[i] = Σ_p parts[p,i], in the order of p: what a reduction that was cut into parts ends with.
//
// Bindings: parts[PARTS,LEN] → y[LEN]. One invocation computes a sum, or with LINES eight beside each other; ⌈LEN/WG⌉ or
// ⌈LEN/8/WG⌉ workgroups.
//
// Defines: WG, PARTS, LEN
//          LINES if defined, sums are stored in lines; LEN is a multiple of 8

#if LINES
#include "shared/epilogue_lines"
#else
#include "shared/epilogue"
#endif
#include "shared/grid"

const WG: u32 = ${WG};
const PARTS: u32 = ${PARTS};
const LEN: u32 = ${LEN};

#if LINES
@group(0) @binding(0) var<storage, read> parts: array<vec4<f32>>;
#else
@group(0) @binding(0) var<storage, read> parts: array<f32>;
#endif

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
#if LINES
    let line = workgroup_index(workgroup, workgroups) * WG + lane;
    if line >= LEN / 8u {
        return;
    }
    let e = epilogue(line * 8u);
    var sum = Eight(parts[2u * line], parts[2u * line + 1u]);
    for (var p = 1u; p < PARTS; p++) {
        let at = p * (LEN / 4u) + 2u * line;
        sum = Eight(sum.first + parts[at], sum.second + parts[at + 1u]);
    }
    finish(e, sum);
#else
    let i = workgroup_index(workgroup, workgroups) * WG + lane;
    if i >= LEN {
        return;
    }
    var sum = parts[i];
    for (var p = 1u; p < PARTS; p++) {
        sum += parts[p * LEN + i];
    }
    store(i, sum);
#endif
}
