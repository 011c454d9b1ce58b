// How products of frequencies become weights again: their parts are added up, and the weights of a workgroup's pairs of channels, nine
// each, are stored through the epilogue.
//
// A kernel says before it includes this:
//   const FREQUENCIES: u32
//
// Defines: WG, O, C
//          PARTS, added up in their order
// Bindings: du[PARTS,FREQUENCIES,O,C] → dw[O,C,3,3] by its epilogue. ⌈O·C/WG⌉ workgroups.

#include "shared/epilogue"
#include "shared/grid"

const WG: u32 = ${WG};
const O: u32 = ${O};
const C: u32 = ${C};
const PARTS: u32 = ${PARTS};

@group(0) @binding(0) var<storage, read> du: array<f32>;

var<workgroup> weights: array<f32, 9u * WG>;

/// A product of a pair of channels.
fn product(pair: u32, f: u32) -> f32 {
    var sum = du[f * O * C + pair];
    for (var part = 1u; part < PARTS; part++) {
        sum += du[(part * FREQUENCIES + f) * O * C + pair];
    }
    return sum;
}

/// Stores what is in `weights`, the pairs from `first` on, so that neighbours store neighbours. All invocations call this together.
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
