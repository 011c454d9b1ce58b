// From Winograd's frequencies back to weights, Gᵀ du G, of products whose reduction was cut: dw[o,c,i,j] from du[part,f,o,c].
//
// Bindings: du[PARTS,16,O,C] → dw[O,C,3,3] by its epilogue. One invocation computes the weights of a pair of channels; ⌈O·C/WG⌉
// workgroups.
//
// Defines: WG, O, C
//          PARTS, added up in their order

#include "shared/epilogue"
#include "shared/grid"
#include "shared/winograd2"

const WG: u32 = ${WG};
const O: u32 = ${O};
const C: u32 = ${C};
const PARTS: u32 = ${PARTS};

@group(0) @binding(0) var<storage, read> du: array<f32>;

var<workgroup> weights: array<f32, 9u * WG>;

fn product(pair: u32, f: u32) -> f32 {
    var sum = du[f * O * C + pair];
    for (var part = 1u; part < PARTS; part++) {
        sum += du[(part * 16u + f) * O * C + pair];
    }
    return sum;
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let first = workgroup_index(workgroup, workgroups) * WG;
    let index = min(first + lane, O * C - 1u);
#for J in 4
    let column_${J} =
        to_weight(product(index, ${J}u), product(index, 4u + ${J}u), product(index, 8u + ${J}u), product(index, 12u + ${J}u));
#endfor
#for I in 3
    let row_${I} = to_weight(column_0[${I}], column_1[${I}], column_2[${I}], column_3[${I}]);
#for J in 3
    weights[lane * 9u + ${I}u * 3u + ${J}u] = row_${I}[${J}];
#endfor
#endfor
    // Neighbours store neighbours.
    workgroupBarrier();
#for T in 9
    if first * 9u + ${T}u * WG + lane < O * C * 9u {
        store(first * 9u + ${T}u * WG + lane, weights[${T}u * WG + lane]);
    }
#endfor
}
