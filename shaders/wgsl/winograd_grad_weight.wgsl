// Winograd's transform back to weights, Gᵀ du G, of products whose reduction was cut: dw[o,c,i,j] from du[part,f,o,c].
//
// Bindings: du[PARTS,36,O,C] → dw[O,C,3,3] by its epilogue. One invocation computes the weights of a pair of channels; ⌈O·C/WG⌉
// workgroups.
//
// Defines: WG, O, C
//          PARTS, added up in their order

#include "shared/epilogue"
#include "shared/grid"
#include "shared/winograd"

const WG: u32 = ${WG};
const O: u32 = ${O};
const C: u32 = ${C};
const PARTS: u32 = ${PARTS};

@group(0) @binding(0) var<storage, read> du: array<f32>;

fn product(pair: u32, f: u32) -> f32 {
    var sum = du[f * O * C + pair];
    for (var part = 1u; part < PARTS; part++) {
        sum += du[(part * 36u + f) * O * C + pair];
    }
    return sum;
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = workgroup_index(workgroup, workgroups) * WG + lane;
    if index >= O * C {
        return;
    }
#for J in 6
    let column_${J} = to_weight(
        product(index, ${J}u),
        product(index, 6u + ${J}u),
        product(index, 12u + ${J}u),
        product(index, 18u + ${J}u),
        product(index, 24u + ${J}u),
        product(index, 30u + ${J}u),
    );
#endfor
#for I in 3
    let row_${I} = to_weight(
        column_0[${I}],
        column_1[${I}],
        column_2[${I}],
        column_3[${I}],
        column_4[${I}],
        column_5[${I}],
    );
#for J in 3
    store(index * 9u + ${I}u * 3u + ${J}u, row_${I}[${J}]);
#endfor
#endfor
}
