// Winograd's transform back to weights: dw[o,c,i,j] is Gᵀ du G of the products du[part,f,o,c], whose parts are added in
// order.
//
// Bindings: du[PARTS,36,O,C] → dw[O,C,3,3] by its epilogue. An invocation computes the nine weights of a pair of
// channels; ⌈O·C/WG⌉ workgroups.
//
// Defines: WG, O, C
//          PARTS    parts of the products

#include "shared/epilogue"
#include "shared/grid"
#include "shared/winograd"

const WG: u32 = ${WG};
const O: u32 = ${O};
const C: u32 = ${C};
const PARTS: u32 = ${PARTS};

@group(0) @binding(0) var<storage, read> du: array<f32>;

var<workgroup> weights: array<f32, 9u * WG>;

/// The sums of a pair of channels. All products of a part are loaded together, so that loads overlap.
fn products(pair: u32) -> array<f32, 36> {
    var sums: array<f32, 36>;
#for F in 36
    sums[${F}] = du[${F}u * O * C + pair];
#endfor
    for (var part = 1u; part < PARTS; part++) {
        let first = part * 36u * O * C + pair;
#for F in 36
        sums[${F}] += du[first + ${F}u * O * C];
#endfor
    }
    return sums;
}

/// Stores `weights`, those of the pairs from `first` on. Neighbouring invocations store neighbouring elements. All
/// invocations call this together.
fn store_weights(first: u32, lane: u32) {
    workgroupBarrier();
#for T in 9
    let at_${T} = first * 9u + ${T}u * WG + lane;
    let epilogue_${T} = epilogue(select(0u, at_${T}, at_${T} < O * C * 9u));
#endfor
#for T in 9
    if at_${T} < O * C * 9u {
        finish(epilogue_${T}, weights[${T}u * WG + lane]);
    }
#endfor
}

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
