// From Winograd's frequencies back to outputs, AᵀmA: y[n,o,p,q] from the products m[f,o,t].
//
// Bindings: m[16,O,TILES] → y[N,O,P,Q] by its epilogue. One invocation computes a tile of a channel, 2×2; ⌈O·TILES/WG⌉ workgroups.
//
// Defines: WG, N, O
//          P, Q the planes of y
//          LINE_N, LINE_P, LINE_Q, LINES_N, LINES_P, LINES_Q   how tiles are counted, as in `winograd2_images`

#include "shared/epilogue"
#include "shared/grid"
#include "shared/winograd2"

const WG: u32 = ${WG};
const N: u32 = ${N};
const O: u32 = ${O};
const P: u32 = ${P};
const Q: u32 = ${Q};
const LINE_N: u32 = ${LINE_N};
const LINE_P: u32 = ${LINE_P};
const LINE_Q: u32 = ${LINE_Q};
const LINES_P: u32 = ${LINES_P};
const LINES_Q: u32 = ${LINES_Q};
const TILES: u32 = ${LINES_N}u * LINES_P * LINES_Q * 8u;

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
    let tile = index % 8u;
    let line = index % TILES / 8u;
    let o = index / TILES;
    let n = line / (LINES_P * LINES_Q) * LINE_N + tile / (LINE_P * LINE_Q);
    let row = (line / LINES_Q % LINES_P * LINE_P + tile / LINE_Q % LINE_P) * 2u;
    let column = (line % LINES_Q * LINE_Q + tile % LINE_Q) * 2u;
    if n >= N || row >= P || column >= Q {
        return;
    }
    let plane = n * O + o;
#for J in 4
    let column_${J} = to_output(
        m[${J}u * O * TILES + index],
        m[(4u + ${J}u) * O * TILES + index],
        m[(8u + ${J}u) * O * TILES + index],
        m[(12u + ${J}u) * O * TILES + index],
    );
#endfor
#for I in 2
#for J in 2
    let there_${I}_${J} = row + ${I}u < P && column + ${J}u < Q;
    let at_${I}_${J} = (plane * P + row + ${I}u) * Q + column + ${J}u;
    let epilogue_${I}_${J} = epilogue(select(0u, at_${I}_${J}, there_${I}_${J}));
#endfor
#endfor
#for I in 2
    let row_${I} = to_output(column_0[${I}], column_1[${I}], column_2[${I}], column_3[${I}]);
#for J in 2
    if there_${I}_${J} {
        finish(epilogue_${I}_${J}, row_${I}[${J}]);
    }
#endfor
#endfor
}
