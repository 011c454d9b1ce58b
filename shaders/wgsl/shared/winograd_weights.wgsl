// The last stage of a weight's gradient by Winograd's algorithm: adds up the parts of the products and stores the
// weights, nine of each pair of channels, through the epilogue.
//
// Bindings: du[PARTS,FREQUENCIES,O,C] → dw[O,C,3,3] by its epilogue. ⌈O·C/WG⌉ workgroups.
//
// Defines: WG, O, C
//          FREQUENCIES  products of the transform, 36
//          PARTS        parts of the products, which are added in order

#include "shared/epilogue"
#include "shared/grid"

const WG: u32 = ${WG};
const O: u32 = ${O};
const C: u32 = ${C};
const PARTS: u32 = ${PARTS};
const FREQUENCIES: u32 = ${FREQUENCIES};

@group(0) @binding(0) var<storage, read> du: array<f32>;

var<workgroup> weights: array<f32, 9u * WG>;

/// The sums of a pair of channels. All products of a part are loaded together, so that loads overlap.
fn products(pair: u32) -> array<f32, FREQUENCIES> {
    var sums: array<f32, FREQUENCIES>;
#for F in FREQUENCIES
    sums[${F}] = du[${F}u * O * C + pair];
#endfor
    for (var part = 1u; part < PARTS; part++) {
        let first = part * FREQUENCIES * O * C + pair;
#for F in FREQUENCIES
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
