// Winograd's transform of the inputs, BᵀdB: v[f,c,t] for product f of 36, channel c, and tile t of 4×4 outputs.
//
// Bindings: x[N,C,H,W] → v[36,C,TILES]. One invocation transforms a tile of a channel; ⌈C·TILES/WG⌉ workgroups.
//
// Defines: WG, N, C
//          H, W the planes of x; P, Q those of the outputs
//          PH, PW rows and columns of padding before the planes; may be negative

#include "shared/grid"
#include "shared/winograd"
#include "shared/winograd_tiles"

const WG: u32 = ${WG};
const C: u32 = ${C};
const H: u32 = ${H};
const W: u32 = ${W};
const PH: i32 = ${PH};
const PW: i32 = ${PW};

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> v: array<f32>;

/// The element at a row and column of a plane; zero outside.
fn input(plane: u32, row: i32, column: i32) -> f32 {
    if row < 0 || row >= i32(H) || column < 0 || column >= i32(W) {
        return 0.0;
    }
    return x[(plane * H + u32(row)) * W + u32(column)];
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = workgroup_index(workgroup, workgroups) * WG + lane;
    if index >= C * TILES {
        return;
    }
    let tile = index % TILES;
    let c = index / TILES;
    let plane = tile / (TILES_P * TILES_Q) * C + c;
    let row = i32(tile / TILES_Q % TILES_P * 4u) - PH;
    let column = i32(tile % TILES_Q * 4u) - PW;

#for J in 6
    let column_${J} = of_input(
        input(plane, row, column + ${J}),
        input(plane, row + 1, column + ${J}),
        input(plane, row + 2, column + ${J}),
        input(plane, row + 3, column + ${J}),
        input(plane, row + 4, column + ${J}),
        input(plane, row + 5, column + ${J}),
    );
#endfor
#for I in 6
    let row_${I} = of_input(
        column_0[${I}],
        column_1[${I}],
        column_2[${I}],
        column_3[${I}],
        column_4[${I}],
        column_5[${I}],
    );
#for J in 6
    v[(${I}u * 6u + ${J}u) * C * TILES + index] = row_${I}[${J}];
#endfor
#endfor
}
