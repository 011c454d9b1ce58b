// Winograd's transform back to weights, Gᵀ du G, of the products du[part,f,o,c]: dw[o,c,i,j].
//
// Bindings, defines and workgroups: those of shared/winograd_weights. One invocation computes the weights of a pair of
// channels.

#include "shared/winograd"
#include "shared/winograd_weights"

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let first = workgroup_index(workgroup, workgroups) * WG;
    let index = min(first + lane, O * C - 1u);
    let sums = products(index);
#for J in 6
    let column_${J} = to_weight(sums[${J}], sums[6 + ${J}], sums[12 + ${J}], sums[18 + ${J}], sums[24 + ${J}], sums[30 + ${J}]);
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
    weights[lane * 9u + ${I}u * 3u + ${J}u] = row_${I}[${J}];
#endfor
#endfor
    store_weights(first, lane);
}
