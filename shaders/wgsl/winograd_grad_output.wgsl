// Winograd's transform of the cotangents, A dy Aᵀ: z[f,o,t] for product f of 36, output channel o, and 4×4 tile t.
//
// Bindings: dy[N,O,P,Q] → z[36,O,TILES]. One invocation transforms a tile of a channel; ⌈O·TILES/WG⌉ workgroups.
//
// Defines: WG, N, O
//          P, Q the planes of dy

#include "shared/grid"
#include "shared/winograd"
#include "shared/winograd_tiles"

const WG: u32 = ${WG};
const O: u32 = ${O};

@group(0) @binding(0) var<storage, read> dy: array<f32>;
@group(0) @binding(1) var<storage, read_write> z: array<f32>;

fn cotangent(plane: u32, row: u32, column: u32) -> f32 {
    if row >= P || column >= Q {
        return 0.0;
    }
    return dy[(plane * P + row) * Q + column];
}

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

#for J in 4
    let column_${J} = of_output(
        cotangent(plane, row, column + ${J}u),
        cotangent(plane, row + 1u, column + ${J}u),
        cotangent(plane, row + 2u, column + ${J}u),
        cotangent(plane, row + 3u, column + ${J}u),
    );
#endfor
#for I in 6
    let row_${I} = of_output(column_0[${I}], column_1[${I}], column_2[${I}], column_3[${I}]);
#for J in 6
    z[(${I}u * 6u + ${J}u) * O * TILES + index] = row_${I}[${J}];
#endfor
#endfor
}
