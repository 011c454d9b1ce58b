// Winograd's transform back to outputs, AᵀmA: y[n,o,p,q] from the products m[f,o,t].
//
// Bindings: m[36,O,TILES] → y[N,O,P,Q] by its epilogue. One invocation computes a 4×4 tile of a channel; ⌈O·TILES/WG⌉
// workgroups.
//
// Defines: WG, N, O
//          P, Q the planes of y

#include "shared/epilogue"
#include "shared/grid"
#include "shared/winograd"
#include "shared/winograd_tiles"

const WG: u32 = ${WG};
const O: u32 = ${O};

@group(0) @binding(0) var<storage, read> m: array<f32>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = workgroup_index(workgroup, workgroups) * WG + lane;
    if index >= O * TILES {
        return;
    }
    let tile = index % TILES;
    let o = index / TILES;
    let plane = tile / (TILES_P * TILES_Q) * O + o;
    let row = tile / TILES_Q % TILES_P * 4u;
    let column = tile % TILES_Q * 4u;

#for J in 6
    let column_${J} = to_output(
        m[${J}u * O * TILES + index],
        m[(6u + ${J}u) * O * TILES + index],
        m[(12u + ${J}u) * O * TILES + index],
        m[(18u + ${J}u) * O * TILES + index],
        m[(24u + ${J}u) * O * TILES + index],
        m[(30u + ${J}u) * O * TILES + index],
    );
#endfor
#for I in 4
#for J in 4
    let there_${I}_${J} = row + ${I}u < P && column + ${J}u < Q;
    let at_${I}_${J} = (plane * P + row + ${I}u) * Q + column + ${J}u;
    let epilogue_${I}_${J} = epilogue(select(0u, at_${I}_${J}, there_${I}_${J}));
#endfor
#endfor
#for I in 4
    let row_${I} = to_output(
        column_0[${I}],
        column_1[${I}],
        column_2[${I}],
        column_3[${I}],
        column_4[${I}],
        column_5[${I}],
    );
#for J in 4
    if there_${I}_${J} {
        finish(epilogue_${I}_${J}, row_${I}[${J}]);
    }
#endfor
#endfor
}
