// y[i] = Σ_p parts[p,i], in the order of p: what a reduction that was cut into parts ends with.
//
// Bindings: parts[PARTS,LEN] → y[LEN]. One invocation computes a sum; ⌈LEN/WG⌉ workgroups.
//
// Defines: WG, PARTS, LEN

#include "shared/epilogue"
#include "shared/grid"

const WG: u32 = ${WG};
const PARTS: u32 = ${PARTS};
const LEN: u32 = ${LEN};

@group(0) @binding(0) var<storage, read> parts: array<f32>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = workgroup_index(workgroup, workgroups) * WG + lane;
    if i >= LEN {
        return;
    }
    var sum = parts[i];
    for (var p = 1u; p < PARTS; p++) {
        sum += parts[p * LEN + i];
    }
    store(i, sum);
}
